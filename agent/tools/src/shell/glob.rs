//! Globs as a shell has them: `*`, `?`, `[...]`, matched against one name at a time.

/// A character of a word, and whether a shell may read it as part of a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unit {
    /// The character.
    pub(crate) c: char,
    /// Unquoted.
    pub(crate) active: bool,
}

/// `[[=a=]]` or `[[.a.]]`, which depend on a locale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Collation;

#[derive(Debug, Clone, PartialEq, Eq)]
enum Atom {
    One(char),
    Any,
    Star,
    Set { negated: bool, members: Vec<Member> },
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Member {
    Range(char, char),
    Class(String),
}

/// A pattern for one component of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pattern(Vec<Atom>);

impl Pattern {
    /// The pattern of a word's component; nothing if every character stands for itself.
    pub(crate) fn read(units: &[Unit]) -> Result<Option<Self>, Collation> {
        let mut atoms = Vec::with_capacity(units.len());
        let (mut at, mut special) = (0, false);
        while let Some(unit) = units.get(at) {
            at += 1;
            let atom = match unit {
                Unit { c: '*', active: true } if atoms.last() == Some(&Atom::Star) => continue,
                Unit { c: '*', active: true } => Atom::Star,
                Unit { c: '?', active: true } => Atom::Any,
                Unit { c: '[', active: true } => match set(&units[at..])? {
                    Some((set, length)) => {
                        at += length;
                        set
                    }
                    None => Atom::One('['),
                },
                Unit { c, .. } => Atom::One(*c),
            };
            special |= !matches!(atom, Atom::One(_));
            atoms.push(atom);
        }
        Ok(special.then_some(Self(atoms)))
    }

    /// Whether a name matches. A dot in front must be written out, as in every shell; `.` and `..` never match.
    pub(crate) fn matches(&self, name: &[u8]) -> bool {
        if name.first() == Some(&b'.')
            && (self.0.first() != Some(&Atom::One('.')) || matches!(name, b"." | b".."))
        {
            return false;
        }
        let mut name = chars(name);
        // Where the last star was, and what of the name came after what it stood for: enough to try again, since an
        // earlier star never has to give back.
        let mut star: Option<(usize, Chars<'_>)> = None;
        let mut at = 0;
        loop {
            let before = name.clone();
            match (self.0.get(at), name.next()) {
                (Some(Atom::Star), _) => {
                    at += 1;
                    name = before;
                    star = Some((at, name.clone()));
                }
                (Some(atom), Some(c)) if atom.takes(c) => at += 1,
                (None, None) => return true,
                (_, _) => {
                    let Some((after, from)) = &mut star else { return false };
                    if from.next().is_none() {
                        return false;
                    }
                    at = *after;
                    name = from.clone();
                }
            }
        }
    }
}

impl Atom {
    /// Whether it stands for this character; nothing is a byte that is none.
    fn takes(&self, c: Option<char>) -> bool {
        match (self, c) {
            (Self::One(own), c) => Some(*own) == c,
            (Self::Any | Self::Star, _) => true,
            (Self::Set { negated, .. }, None) => *negated,
            (Self::Set { negated, members }, Some(c)) => members.iter().any(|m| m.has(c)) != *negated,
        }
    }
}

impl Member {
    fn has(&self, c: char) -> bool {
        match self {
            Self::Range(from, to) => (*from..=*to).contains(&c),
            Self::Class(name) => match name.as_str() {
                "alnum" => c.is_ascii_alphanumeric(),
                "alpha" => c.is_ascii_alphabetic(),
                "blank" => matches!(c, ' ' | '\t'),
                "cntrl" => c.is_ascii_control(),
                "digit" => c.is_ascii_digit(),
                "graph" => c.is_ascii_graphic(),
                "lower" => c.is_ascii_lowercase(),
                "print" => c.is_ascii_graphic() || c == ' ',
                "punct" => c.is_ascii_punctuation(),
                "space" => c.is_ascii_whitespace() || c == '\u{b}',
                "upper" => c.is_ascii_uppercase(),
                "word" => c.is_ascii_alphanumeric() || c == '_',
                "xdigit" => c.is_ascii_hexdigit(),
                _ => false,
            },
        }
    }
}

/// The set after a `[`, and how many characters it has with its `]`; nothing if there is no `]`.
fn set(units: &[Unit]) -> Result<Option<(Atom, usize)>, Collation> {
    let is = |at: usize, c: char| units.get(at) == Some(&Unit { c, active: true });
    let negated = is(0, '!') || is(0, '^');
    let start = usize::from(negated);
    let mut members = Vec::new();
    let mut at = start;
    while let Some(unit) = units.get(at) {
        if is(at, ']') && at > start {
            return Ok(Some((Atom::Set { negated, members }, at + 1)));
        }
        if is(at, '[') && (is(at + 1, '=') || is(at + 1, '.')) {
            return Err(Collation);
        }
        if is(at, '[') && is(at + 1, ':') {
            let name: String =
                units[at + 2..].iter().map(|u| u.c).take_while(char::is_ascii_lowercase).collect();
            let end = at + 2 + name.len();
            if is(end, ':') && is(end + 1, ']') {
                members.push(Member::Class(name));
                at = end + 2;
                continue;
            }
        }
        if is(at + 1, '-') && at + 2 < units.len() && !is(at + 2, ']') {
            members.push(Member::Range(unit.c, units[at + 2].c));
            at += 3;
        } else {
            members.push(Member::Range(unit.c, unit.c));
            at += 1;
        }
    }
    Ok(None)
}

/// The characters of a name; nothing for each byte that is not UTF-8.
#[derive(Clone)]
struct Chars<'a>(&'a [u8]);

fn chars(name: &[u8]) -> Chars<'_> {
    Chars(name)
}

impl Iterator for Chars<'_> {
    type Item = Option<char>;

    fn next(&mut self) -> Option<Option<char>> {
        let longest = self.0.len().min(4);
        if longest == 0 {
            return None;
        }
        let valid = match std::str::from_utf8(&self.0[..longest]) {
            Ok(text) => text.chars().next(),
            Err(error) => {
                let text = std::str::from_utf8(&self.0[..error.valid_up_to()]);
                text.ok().and_then(|text| text.chars().next())
            }
        };
        self.0 = &self.0[valid.map_or(1, char::len_utf8)..];
        Some(valid)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A backslash in the pattern quotes the next character.
    fn matches(pattern: &str, name: &str) -> bool {
        let mut units = Vec::new();
        let mut chars = pattern.chars();
        while let Some(c) = chars.next() {
            let unit = match c {
                '\\' => Unit { c: chars.next().unwrap(), active: false },
                c => Unit { c, active: true },
            };
            units.push(unit);
        }
        match Pattern::read(&units).unwrap() {
            Some(pattern) => pattern.matches(name.as_bytes()),
            None => units.iter().map(|u| u.c).collect::<String>() == name,
        }
    }

    #[test]
    fn matches_as_a_shell_does() {
        for (pattern, name, expected) in [
            ("*", "a", true),
            ("*", ".a", false),
            (".*", ".a", true),
            (".*", "..", false),
            ("?", "é", true),
            ("?", ".", false),
            ("[.]a", ".a", false),
            ("a*b*c", "aXbYbZc", true),
            ("a*b*c", "aXbYbZd", false),
            ("a**", "a", true),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[^a-c]x", "dx", true),
            ("[]]", "]", true),
            ("[]a]b", "ab", true),
            ("[a-]", "-", true),
            ("[a\\-c]", "b", false),
            ("[a\\-c]", "-", true),
            ("[[:digit:]]*", "7up", true),
            ("[[:nonsense:]]", "7", false),
            ("[", "[", true),
            ("[ab", "[ab", true),
            ("\\*", "*", true),
            ("\\*", "x", false),
            ("*\\]", "a]", true),
            ("[c-a]", "b", false),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn bytes_that_are_no_characters_count_one_each() {
        let pattern = |text: &str| {
            let units: Vec<_> = text.chars().map(|c| Unit { c, active: true }).collect();
            Pattern::read(&units).unwrap().unwrap()
        };
        assert!(pattern("a??").matches(b"a\xff\xfe"));
        assert!(pattern("a[!b]*").matches(b"a\xff"));
        assert!(!pattern("a[b]").matches(b"a\xff"));
    }

    #[test]
    fn stars_do_not_multiply() {
        let pattern = "*a".repeat(40) + "b";
        // If they did, nobody would live to see it end.
        assert!(!matches(&pattern, &"a".repeat(255)));
    }

    #[test]
    fn a_pattern_that_is_none_and_one_that_a_locale_decides() {
        let units = |text: &str| text.chars().map(|c| Unit { c, active: true }).collect::<Vec<_>>();
        assert_eq!(Pattern::read(&units("plain[")).unwrap(), None);
        assert_eq!(Pattern::read(&units("[[=a=]]")), Err(Collation));
        assert_eq!(Pattern::read(&units("[[.a.]]")), Err(Collation));
    }
}
