//! What a server wants, by its `WWW-Authenticate` (RFC 9110, section 11.6.1; RFC 6750; RFC 9728). Pure.

/// Most bytes of a header that are looked at.
const MAX: usize = 16 << 10;
/// Most scopes, and most bytes of one.
pub const MOST_SCOPES: usize = 64;
const MAX_SCOPE: usize = 200;

/// The challenge of the `Bearer` scheme.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Challenge {
    /// Where the server describes itself as a protected resource.
    pub resource_metadata: Option<String>,
    /// What is to be asked for.
    pub scope: Option<Vec<String>>,
    /// Why the token was refused.
    pub error: Option<String>,
}

impl Challenge {
    /// The first challenge of that scheme in these headers; `None`: there is none. What is no challenge is passed over.
    pub fn of<'a>(headers: impl IntoIterator<Item = &'a str>) -> Option<Self> {
        headers.into_iter().filter(|header| header.len() <= MAX).find_map(Self::in_header)
    }

    fn in_header(header: &str) -> Option<Self> {
        let mut found: Option<Self> = None;
        let mut rest = header;
        loop {
            rest = rest.trim_start_matches([' ', '\t', ',']);
            if rest.is_empty() {
                return found;
            }
            let word_end = rest.find(|c| !is_token(c)).unwrap_or(rest.len());
            let (word, behind) = rest.split_at(word_end);
            let value = behind.trim_start_matches([' ', '\t']);
            if word.is_empty() {
                // Nothing that the grammar has.
                return found;
            }
            // A parameter has a sign and a value; a scheme has neither. `token68` may end in signs, and nothing follows it.
            if let Some(value) = value.strip_prefix('=') {
                let Some((value, behind)) = value_of(value.trim_start_matches([' ', '\t'])) else {
                    return found;
                };
                if let Some(challenge) = &mut found {
                    challenge.set(word, value);
                }
                rest = behind;
            } else {
                if found.is_some() {
                    // The next scheme.
                    return found;
                }
                if word.eq_ignore_ascii_case("bearer") {
                    found = Some(Self::default());
                }
                rest = behind;
            }
        }
    }

    fn set(&mut self, name: &str, value: String) {
        // The first of a name counts.
        let place = match name.to_ascii_lowercase().as_str() {
            "resource_metadata" => &mut self.resource_metadata,
            "error" => &mut self.error,
            "scope" => {
                self.scope.get_or_insert_with(|| scopes(&value));
                return;
            }
            _ => return,
        };
        place.get_or_insert(value);
    }
}

/// Scopes of a list, those that are some (RFC 6749, section 3.3), each once.
pub fn scopes(list: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for scope in list.split(' ').filter(|scope| is_scope(scope)) {
        if found.len() < MOST_SCOPES && !found.iter().any(|known| known == scope) {
            found.push(scope.to_owned());
        }
    }
    found
}

/// Whether a text is a scope.
pub fn is_scope(text: &str) -> bool {
    let allowed = |byte: u8| matches!(byte, 0x21 | 0x23..=0x5b | 0x5d..=0x7e);
    !text.is_empty() && text.len() <= MAX_SCOPE && text.bytes().all(allowed)
}

/// Whether a text can stand in a shell's line as it is: what a server says may be copied there.
pub fn is_plain(text: &str) -> bool {
    !text.is_empty()
        && !text.starts_with('-')
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._:/+@-".contains(&byte))
}

fn is_token(c: char) -> bool {
    c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c)
}

/// A token or a quoted text, and what is behind it.
fn value_of(text: &str) -> Option<(String, &str)> {
    let Some(quoted) = text.strip_prefix('"') else {
        // Servers leave the quotes out where the grammar wants them.
        let end = text.find([',', ' ', '\t']).unwrap_or(text.len());
        let (value, behind) = text.split_at(end);
        return Some((value.to_owned(), behind));
    };
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    while let Some((at, c)) = characters.next() {
        match c {
            '"' => return Some((value, quoted.get(at + 1..).unwrap_or_default())),
            '\\' => value.push(characters.next()?.1),
            c => value.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(header: &str) -> Option<Challenge> {
        Challenge::of([header])
    }

    #[test]
    fn a_bearer_challenge_is_found_however_it_is_written() {
        let whole = Challenge {
            resource_metadata: Some("https://h/.well-known/oauth-protected-resource".into()),
            scope: Some(vec!["files:read".into(), "b".into()]),
            error: Some("insufficient_scope".into()),
        };
        for text in [
            r#"Bearer error="insufficient_scope", scope="files:read b", resource_metadata="https://h/.well-known/oauth-protected-resource", error_description="a, \"b\"=c""#,
            r#"bearer scope="files:read b files:read"   ,  error=insufficient_scope,RESOURCE_METADATA = "https://h/.well-known/oauth-protected-resource""#,
            r#"Basic realm="x, Bearer scope=no", Bearer realm="x", scope="files:read b",error="insufficient_scope",resource_metadata=https://h/.well-known/oauth-protected-resource, Digest scope="z""#,
            r#"Negotiate abc==, Bearer error=insufficient_scope,,scope="files:read b" , resource_metadata="https:\/\/h/.well-known/oauth-protected-resource", error=other"#,
        ] {
            assert_eq!(of(text), Some(whole.clone()), "{text}");
        }
        assert_eq!(of("Bearer"), Some(Challenge::default()));
        assert_eq!(
            Challenge::of(["Basic realm=\"x\"", "Bearer error=\"e\""]).unwrap().error.as_deref(),
            Some("e")
        );
    }

    #[test]
    fn what_is_none_is_none() {
        for text in
            ["", "Basic realm=\"Bearer scope=a\"", "\"Bearer\"", "=", ",,,", "Bearerx error=a", "\u{fc}"]
        {
            assert_eq!(of(text), None, "{text}");
        }
        assert_eq!(of(r#"Bearer scope="open"#), Some(Challenge::default()), "a text that never ends");
        assert_eq!(of(&format!("Bearer scope=\"{}\"", "a ".repeat(MAX))), None);
    }

    #[test]
    fn a_scope_has_no_quotes_and_only_plain_ones_go_into_a_command() {
        let many = "a\"b \u{fc} ok x\\y ".to_owned() + &"z".repeat(MAX_SCOPE + 1);
        assert_eq!(scopes(&many), ["ok"]);
        assert!(is_scope("$(rm)") && !is_plain("$(rm)"), "it may be a scope, and is nothing to copy");
        assert!(is_plain("https://a/b.c:d+e@f-g_h") && !is_plain("-x") && !is_plain("a;b") && !is_plain(""));
    }
}
