//! Host names as entries have them: one name, or all below one.

use std::{fmt, net::IpAddr, str::FromStr};

/// Most bytes of a name, without the dot of the root (RFC 1035).
const MAX_NAME: usize = 253;
/// Most bytes of one of its labels.
const MAX_LABEL: usize = 63;
/// Words that begin another kind of entry (`unix:443`), so that no host of that name could be written down with a port.
const TAKEN: [&str; 3] = ["unix", "tcp", "set"];

/// Why a text is not a host name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// It is none.
    #[error("it is neither an address, an address range, a host name nor a unix socket")]
    Unknown,
    /// A `*` elsewhere than in front.
    #[error(
        "a `*` can only stand in front, as a whole label: `*.example.org` is every name below example.org"
    )]
    Star,
    /// What anyone can have a name below.
    #[error("anyone can have a name below {0}, which is a public suffix")]
    Suffix(String),
    /// Letters that no name has.
    #[error("it is not a name that DNS can have (IDNA)")]
    International,
}

/// Which hosts an entry means.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HostPattern {
    /// `HOST`: this one.
    Exact(String),
    /// `*.HOST`: all that are one label or more below it, itself not included.
    Below(String),
}

impl HostPattern {
    /// Reads what a deny may have: as a grant, or a wildcard below a public suffix, which takes away and opens nothing.
    ///
    /// # Errors
    /// [`HostError`], never [`HostError::Suffix`].
    pub(crate) fn denied(text: &str) -> Result<Self, HostError> {
        match text.strip_prefix("*.") {
            Some(host) => name(host).map(Self::Below),
            None => name(text).map(Self::Exact),
        }
    }

    /// Whether a name is meant: without the dot of the root, in ASCII, in any case. An address never is, nor what no host has
    /// for a name (`a@b.example.org`).
    pub fn matches(&self, name: &str) -> bool {
        match self {
            Self::Exact(host) => host.eq_ignore_ascii_case(name),
            Self::Below(host) => {
                let Some(at) = name.len().checked_sub(host.len()) else { return false };
                let (Some(labels), Some(end)) = (name.get(..at), name.get(at..)) else { return false };
                let is_label = |label: &str| {
                    !label.is_empty()
                        && label.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_'))
                };
                let labels = labels.strip_suffix('.').filter(|labels| labels.split('.').all(is_label));
                labels.is_some() && end.eq_ignore_ascii_case(host)
            }
        }
    }

    /// The name, or the one that all that are meant are below.
    pub fn host(&self) -> &str {
        match self {
            Self::Exact(host) | Self::Below(host) => host,
        }
    }

    /// What both mean.
    pub fn meet(&self, other: &Self) -> Option<Self> {
        if self == other || other.has(self) {
            return Some(self.clone());
        }
        self.has(other).then(|| other.clone())
    }

    /// Whether it means all that `other` means, and more.
    fn has(&self, other: &Self) -> bool {
        matches!(self, Self::Below(_)) && self.matches(other.host())
    }

    /// Itself, and the patterns that mean more.
    pub(crate) fn covering(&self) -> Vec<Self> {
        let above = self.host().match_indices('.').filter_map(|(at, _)| self.host().get(at + 1..));
        std::iter::once(self.clone()).chain(above.map(|host| Self::Below(host.to_owned()))).collect()
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(host) => f.write_str(host),
            Self::Below(host) => write!(f, "*.{host}"),
        }
    }
}

impl FromStr for HostPattern {
    type Err = HostError;

    fn from_str(text: &str) -> Result<Self, HostError> {
        match Self::denied(text)? {
            Self::Below(host) if is_public_suffix(&host) => Err(HostError::Suffix(host)),
            pattern => Ok(pattern),
        }
    }
}

/// The one spelling of a name: lower case, letters of other scripts as an A-label (RFC 5890), no dot at the end.
fn name(text: &str) -> Result<String, HostError> {
    if text.contains('*') {
        return Err(HostError::Star);
    }
    // Longer than any name is in letters of its own: encoding takes the square of a label's length.
    if text.len() > 4 * MAX_NAME {
        return Err(HostError::Unknown);
    }
    // As browsers and `web_fetch` read names, so that the two spell one name alike.
    let name = idna::domain_to_ascii_cow(text.as_bytes(), idna::AsciiDenyList::EMPTY)
        .map_err(|_| HostError::International)?;
    let name = name.strip_suffix('.').unwrap_or(&name);
    let label = |l: &str| {
        (1..=MAX_LABEL).contains(&l.len())
            && l.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_')
            && !l.starts_with('-')
            && !l.ends_with('-')
    };
    // A name whose last label is a number is a misspelt address: `010.0.0.1`, `10.1`, `0x7f.1`.
    let last = name.rsplit('.').next().unwrap_or_default();
    let number =
        last.bytes().all(|b| b.is_ascii_digit()) || last.starts_with("0x") || name.parse::<IpAddr>().is_ok();
    let good = name.len() <= MAX_NAME && !number && !TAKEN.contains(&name) && name.split('.').all(label);
    if good { Ok(name.to_owned()) } else { Err(HostError::Unknown) }
}

/// Whether anyone can have a name directly below a host: the public suffix list says so, or it is a top-level domain that the
/// list does not know.
fn is_public_suffix(host: &str) -> bool {
    // Where the list has `*.HOST`, each name below it is a suffix of its own.
    let below = format!("a.{host}");
    psl::suffix_str(host).is_none_or(|suffix| suffix == host)
        || psl::suffix_str(&below).is_none_or(|suffix| suffix == below)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> HostPattern {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn a_wildcard_means_what_is_below_and_nothing_else() {
        let below = pattern("*.Example.ORG.");
        assert_eq!(below, HostPattern::Below("example.org".into()));
        for name in ["a.example.org", "a.b.example.org", "A.EXAMPLE.ORG", "_x.example.org"] {
            assert!(below.matches(name), "{name}");
        }
        for name in [
            "example.org",
            ".example.org",
            "a..example.org",
            ".a.example.org",
            "aexample.org",
            "a.example.org.",
            "example.org.evil.net",
            "org",
            "",
            "*",
            "127.0.0.1",
            "é.org",
            "éexample.org",
            "é.example.org",
            "a@b.example.org",
            "$(id).example.org",
            "*.example.org",
        ] {
            assert!(!below.matches(name), "{name}");
        }
        let exact = pattern("example.org");
        assert!(
            exact.matches("EXAMPLE.org") && !exact.matches("a.example.org") && !exact.matches("example.org.")
        );
    }

    #[test]
    fn international_names_have_one_spelling() {
        for (text, stored) in [
            ("bücher.example", "xn--bcher-kva.example"),
            ("BÜCHER.example", "xn--bcher-kva.example"),
            ("bu\u{308}cher.example", "xn--bcher-kva.example"),
            ("xn--bcher-kva.example", "xn--bcher-kva.example"),
            ("XN--BCHER-KVA.example", "xn--bcher-kva.example"),
            ("*.bücher.example", "*.xn--bcher-kva.example"),
            ("\u{ff45}xample.com", "example.com"),
            ("例え。テスト", "xn--r8jz45g.xn--zckzah"),
            ("faß.de", "xn--fa-hia.de"),
            ("r3---sn-4g5e.googlevideo.com", "r3---sn-4g5e.googlevideo.com"),
            ("_dmarc.example.org", "_dmarc.example.org"),
        ] {
            assert_eq!(pattern(text).to_string(), stored);
            assert_eq!(pattern(stored), pattern(text));
        }
        for text in
            ["xn--a.example", "xn--example-.org", "a\u{200d}b.example", "\u{202e}a.example", "xn--zz--.org"]
        {
            assert_eq!(text.parse::<HostPattern>(), Err(HostError::International), "{text}");
        }
    }

    #[test]
    fn what_spells_an_address_is_no_name() {
        for text in [
            "１２７.0.0.1",
            "127\u{3002}0\u{3002}0\u{3002}1",
            "2130706433",
            "0x7f.1",
            "*.0.0.1",
            "*.10",
            "::1",
            "tcp",
            "Set.",
            "a b",
            "a/b",
            "a:b",
            "a@b.org",
            "-a.org",
            "a-.org",
            "a..org",
            "",
            ".",
            "%61.org",
        ] {
            assert!(text.parse::<HostPattern>().is_err(), "{text:?}");
        }
        let long = format!("{}.org", "a".repeat(64));
        assert!(long.parse::<HostPattern>().is_err() && long[1..].parse::<HostPattern>().is_ok());
        assert!("\u{e9}".repeat(600).parse::<HostPattern>().is_err());
        let labels = "a.".repeat(126) + "a";
        assert!(
            labels.parse::<HostPattern>().is_ok() && format!("{labels}.a").parse::<HostPattern>().is_err()
        );
    }

    #[test]
    fn nobody_grants_what_anyone_can_have() {
        for text in [
            "*.com",
            "*.co.uk",
            "*.github.io",
            "*.internal",
            "*.localhost",
            "*.s3.amazonaws.com",
            "*.ck",
            "*.kawasaki.jp",
            "*.a.kawasaki.jp",
            "*.CO.UK.",
            "*.公司.cn",
        ] {
            assert!(matches!(text.parse::<HostPattern>(), Err(HostError::Suffix(_))), "{text}");
            assert!(matches!(HostPattern::denied(text), Ok(HostPattern::Below(_))), "{text} can be denied");
        }
        for text in ["*.pypi.org", "*.me.github.io", "*.team.internal", "*.www.ck", "*.a.b.kawasaki.jp"] {
            assert!(text.parse::<HostPattern>().is_ok(), "{text}");
        }
        assert!("co.uk".parse::<HostPattern>().is_ok(), "one name is one name");
        for text in ["a.*.org", "*", "*a.org", "**.a.org", "*.*.org", "a.*", "*."] {
            let error = text.parse::<HostPattern>().unwrap_err();
            let expected = if text == "*." { HostError::Unknown } else { HostError::Star };
            assert_eq!(error, expected, "{text}");
            assert_eq!(HostPattern::denied(text), Err(expected), "{text}");
        }
    }

    #[test]
    fn a_meet_is_the_narrower_or_nothing() {
        let meet = |a: &str, b: &str| pattern(a).meet(&pattern(b)).map(|met| met.to_string());
        for (a, b, met) in [
            ("a.example.org", "*.example.org", Some("a.example.org")),
            ("*.a.example.org", "*.example.org", Some("*.a.example.org")),
            ("*.example.org", "*.example.org", Some("*.example.org")),
            ("example.org", "*.example.org", None),
            ("*.aexample.org", "*.example.org", None),
            ("a.example.org", "b.example.org", None),
        ] {
            assert_eq!((meet(a, b).as_deref(), meet(b, a).as_deref()), (met, met), "{a} {b}");
        }
        let covering = pattern("a.b.org").covering();
        assert_eq!(covering, [pattern("a.b.org"), pattern("*.b.org"), HostPattern::Below("org".into())]);
    }
}
