//! What a deny may name beside the entries of a grant: components of a path by how they begin or end.
//!
//! A pattern is a type of its own, so that no grant can hold one: `**/*.pem` allowed would be whatever somebody calls so.

use crate::{
    exec::{ExecEntry, ExecError},
    path::{PathEntry, PathError, check_text, escape, unescape},
};
use std::{fmt, str::FromStr};

/// Most bytes of a pattern beside its star: the kernel hashes this much of a component's beginning and end.
pub const MAX_PATTERN: usize = 31;

/// Which end of a component a pattern names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum End {
    /// `**/NAME*`.
    Begins,
    /// `**/*NAME`.
    Ends,
}

/// `**/NAME*` or `**/*NAME`: a component that begins or ends so, at any depth, and all below it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamePattern {
    name: String,
    end: End,
}

impl NamePattern {
    /// The text beside the star, taken literally: 1 to [`MAX_PATTERN`] bytes.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The end of a component that it is compared with.
    pub fn end(&self) -> End {
        self.end
    }

    /// Whether a component is named so. The star may stand for nothing.
    pub fn matches(&self, component: &str) -> bool {
        match self.end {
            End::Begins => component.starts_with(&self.name),
            End::Ends => component.ends_with(&self.name),
        }
    }
}

impl FromStr for NamePattern {
    type Err = PathError;

    fn from_str(text: &str) -> Result<Self, PathError> {
        check_text(text)?;
        let component = text.strip_prefix("**/").ok_or(PathError::Glob)?;
        let (name, end) = match component.strip_prefix('*') {
            Some(name) => (name, End::Ends),
            None => (component.strip_suffix('*').ok_or(PathError::Glob)?, End::Begins),
        };
        // A star behind a backslash belongs to the name; the backslash that is left over has nothing to escape.
        let name = unescape(name)?;
        match name.len() {
            _ if name.contains('/') => Err(PathError::Glob),
            0 => Err(PathError::Glob),
            1..=MAX_PATTERN => Ok(Self { name, end }),
            _ => Err(PathError::LongPattern),
        }
    }
}

impl fmt::Display for NamePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = escape(&self.name);
        match self.end {
            End::Begins => write!(f, "**/{name}*"),
            End::Ends => write!(f, "**/*{name}"),
        }
    }
}

/// An entry of a deny: one that a grant may have, too, or a pattern.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Denied<E> {
    /// As in a grant.
    Entry(E),
    /// Components by their beginning or end.
    Pattern(NamePattern),
}

impl FromStr for Denied<PathEntry> {
    type Err = PathError;

    fn from_str(text: &str) -> Result<Self, PathError> {
        match text.parse() {
            Ok(entry) => Ok(Self::Entry(entry)),
            Err(PathError::Pattern) => text.parse().map(Self::Pattern),
            Err(PathError::Glob) => Err(PathError::DeniedGlob),
            Err(error) => Err(error),
        }
    }
}

impl FromStr for Denied<ExecEntry> {
    type Err = ExecError;

    fn from_str(text: &str) -> Result<Self, ExecError> {
        match text.parse() {
            Ok(entry) => Ok(Self::Entry(entry)),
            Err(ExecError::Path(PathError::Pattern)) => {
                text.parse().map(Self::Pattern).map_err(ExecError::Path)
            }
            Err(ExecError::Path(PathError::Glob)) => Err(ExecError::Path(PathError::DeniedGlob)),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn denied(text: &str) -> Result<Denied<PathEntry>, PathError> {
        text.parse()
    }

    fn pattern(text: &str) -> NamePattern {
        match denied(text) {
            Ok(Denied::Pattern(pattern)) => pattern,
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn a_star_at_one_end_stands_for_anything_and_nothing() {
        let pem = pattern("**/*.pem");
        assert_eq!((pem.name(), pem.end()), (".pem", End::Ends));
        assert!(pem.matches("a.pem") && pem.matches(".pem") && !pem.matches("a.pem.txt"));
        let env = pattern("**/.env.*");
        assert!(env.matches(".env.local") && env.matches(".env.") && !env.matches(".env"));
        assert!(pattern("**/.*").matches(".a"), "a dot alone is no component here");
        for text in ["**/*.pem", "**/.env.*", r"**/a\*\[*", r"**/*\\a", r"**/a\\*"] {
            assert_eq!(pattern(text).to_string(), text);
        }
        assert_eq!(pattern(r"**/a\*\[*").name(), "a*[");
        assert_eq!(pattern(r"**/a\\*").name(), r"a\", "the backslash is escaped, not the star");
        assert_eq!(denied(r"**/a\*"), Ok(Denied::Entry(r"**/a\*".parse().unwrap())), "a name with a star");
    }

    #[test]
    fn other_globs_are_refused_with_what_is_possible() {
        let long = "a".repeat(MAX_PATTERN);
        assert_eq!(pattern(&format!("**/{long}*")).name(), long);
        for text in [format!("**/{long}b*"), format!("**/*{long}b")] {
            assert_eq!(denied(&text), Err(PathError::LongPattern), "{text}");
        }
        for text in [
            "**/*",
            "**/**",
            "**/*a*",
            "**/a*b",
            "**/a?*",
            "**/*/a",
            "**/a/*b",
            "**/a*/b",
            "**/*a/b",
            "/a/*.py",
            "/a/**/*.py",
            "*.pem",
        ] {
            let error = denied(text).unwrap_err();
            let expected = if text == "*.pem" { PathError::Relative } else { PathError::DeniedGlob };
            assert_eq!(error, expected, "{text}");
        }
        let exec = |text: &str| text.parse::<Denied<ExecEntry>>();
        assert_eq!(exec("**/python*"), Ok(Denied::Pattern(pattern("**/python*"))));
        assert_eq!(exec("python*"), Err(ExecError::Path(PathError::DeniedGlob)));
        assert!(matches!(exec("git"), Ok(Denied::Entry(_))));
    }

    #[test]
    fn no_grant_has_a_pattern() {
        for text in ["**/*.pem", "**/.env.*"] {
            assert_eq!(text.parse::<PathEntry>(), Err(PathError::Pattern), "{text}");
            assert_eq!(text.parse::<ExecEntry>(), Err(ExecError::Path(PathError::Pattern)), "{text}");
        }
        let long = format!("**/*{}", "a".repeat(MAX_PATTERN + 1));
        assert_eq!(long.parse::<PathEntry>(), Err(PathError::Pattern), "a shorter one would not help");
        assert_eq!("**/*a*".parse::<PathEntry>(), Err(PathError::Glob));
    }
}
