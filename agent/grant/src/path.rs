//! Path entries: `/dir`, `/dir/*`, `/dir/**`, `**/NAME`, and what they have in common.

use crate::{
    denied::{MAX_PATTERN, NamePattern},
    scope::{Entry, written_as_atoms},
};
use std::{collections::BTreeSet, str::FromStr};

/// Most components of a path that the kernel looks at.
pub const MAX_COMPONENTS: usize = 64;
/// Most bytes of a path, slashes included.
pub const MAX_PATH: usize = 4096;
/// Most bytes of one component.
const MAX_COMPONENT: usize = 255;
/// Characters that other tools read as globs; they stand for themselves after a backslash only.
const GLOB: &[char] = &['*', '?', '[', ']', '{', '}', '\\'];

/// Why a text is not a path entry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    /// Nothing there.
    #[error("it is empty")]
    Empty,
    /// Not absolute.
    #[error("it is not an absolute path")]
    Relative,
    /// A glob that is not one of the three that are known.
    #[error("unsupported glob: only a trailing `/*` or `/**`, or a leading `**/NAME`")]
    Glob,
    /// The same where something is denied, which has two more.
    #[error("unsupported glob: only a trailing `/*` or `/**`, or `**/NAME`, `**/NAME*`, `**/*NAME`")]
    DeniedGlob,
    /// `**/NAME*` or `**/*NAME` where something is granted.
    #[error("a pattern can only be denied")]
    Pattern,
    /// A pattern of more than [`MAX_PATTERN`] bytes.
    #[error("it is too long a pattern: at most {MAX_PATTERN} bytes beside the `*`")]
    LongPattern,
    /// `.` or `..`.
    #[error("it has a `.` or `..` component")]
    Dots,
    /// A control character.
    #[error("it has a control character (NUL, newline or the like)")]
    Control,
    /// More than [`MAX_PATH`] bytes, or a component of more than 255.
    #[error("it is too long: at most {MAX_PATH} bytes, 255 a component")]
    TooLong,
    /// More than [`MAX_COMPONENTS`] components.
    #[error("it is too deep: at most {MAX_COMPONENTS} components")]
    TooDeep,
}

/// Which paths an anchor stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// Itself and all below it.
    Tree,
    /// All below it.
    Below,
    /// Its direct children.
    Children,
    /// Itself. Not written by anyone: what `/dir/*` and `/dir/file` have in common.
    Exact,
}

/// A set of paths: those that an absolute path reaches and that have all of some names among their components.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PathEntry {
    anchor: String,
    reach: Reach,
    /// Never one that the anchor has; empty unless the reach is [`Reach::Below`].
    names: BTreeSet<String>,
}

impl PathEntry {
    /// The absolute path it hangs on: no doubled or trailing slash. `/` for `**/NAME`.
    pub fn anchor(&self) -> &str {
        &self.anchor
    }

    /// Which paths at the anchor.
    pub fn reach(&self) -> Reach {
        self.reach
    }

    /// The names that must be among the components, beside the anchor's own.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// The name, if this is `**/NAME` and nothing else.
    pub fn anywhere(&self) -> Option<&str> {
        let mut names = self.names();
        names.next().filter(|_| names.len() == 0 && self.anchor == "/")
    }

    /// The path itself and all below it. `path` must be absolute and without `.`, `..`; it is taken literally.
    ///
    /// # Errors
    /// As for parsing, except that glob characters stand for themselves.
    pub fn tree(path: &str) -> Result<Self, PathError> {
        Self::literal(path, Reach::Tree)
    }

    /// The path alone: what `path` is, not what is below it. Otherwise as [`tree`](Self::tree).
    ///
    /// # Errors
    /// As for [`tree`](Self::tree).
    pub fn exact(path: &str) -> Result<Self, PathError> {
        match Self::literal(path, Reach::Exact)? {
            // `/` has no parent to be a child of, and is never a file.
            root if root.anchor == "/" => Ok(Self { reach: Reach::Tree, ..root }),
            exact => Ok(exact),
        }
    }

    /// The same at another anchor: an absolute path, taken literally.
    ///
    /// # Errors
    /// As for [`tree`](Self::tree).
    pub fn moved_to(&self, anchor: &str) -> Result<Self, PathError> {
        let Self { anchor, reach, .. } = Self::literal(anchor, self.reach)?;
        // Names that the new anchor has itself are no condition any more, unless nothing would be left below it.
        Ok(Self::normal(anchor, reach, self.names.clone()).unwrap_or_else(|| self.clone()))
    }

    /// Whether all of `path` lies within this entry.
    pub fn has(&self, path: &Self) -> bool {
        path.leq(self)
    }

    fn literal(path: &str, reach: Reach) -> Result<Self, PathError> {
        check_text(path)?;
        let rest = path.strip_prefix('/').ok_or(PathError::Relative)?;
        let components: Vec<&str> = rest.split('/').filter(|c| !c.is_empty()).collect();
        if components.len() > MAX_COMPONENTS {
            return Err(PathError::TooDeep);
        }
        components.iter().try_for_each(|c| check_component(c))?;
        Ok(Self { anchor: format!("/{}", components.join("/")), reach, names: BTreeSet::new() })
    }

    /// Brings an intersection into its one form; `None` if it is empty.
    fn normal(anchor: String, reach: Reach, mut names: BTreeSet<String>) -> Option<Self> {
        names.retain(|name| !has_component(&anchor, name));
        let (anchor, reach, names) = match (reach, names.len()) {
            (_, 0) => (anchor, reach, names),
            (Reach::Exact, _) => return None,
            (Reach::Children, 1) => (join(&anchor, &names.pop_first()?), Reach::Exact, names),
            (Reach::Children, _) => return None,
            // The anchor itself lacks the names.
            (Reach::Tree | Reach::Below, _) => (anchor, Reach::Below, names),
        };
        Some(Self { anchor, reach, names })
    }

    /// The texts that together describe this entry: one, or for an intersection several.
    pub fn atoms(&self) -> Vec<String> {
        let escaped = escape(&self.anchor);
        let base = escaped.trim_end_matches('/');
        let mut atoms = match self.reach {
            Reach::Tree => vec![escaped],
            Reach::Below if self.anchor == "/" && !self.names.is_empty() => vec![],
            Reach::Below => vec![format!("{base}/**")],
            Reach::Children => vec![format!("{base}/*")],
            Reach::Exact => {
                let above = escape(parent(&self.anchor).unwrap_or("/"));
                vec![format!("{}/*", above.trim_end_matches('/')), escaped]
            }
        };
        atoms.extend(self.names.iter().map(|name| format!("**/{}", escape(name))));
        atoms
    }
}

impl FromStr for PathEntry {
    type Err = PathError;

    fn from_str(text: &str) -> Result<Self, PathError> {
        check_text(text)?;
        if let Some(name) = text.strip_prefix("**/") {
            let name = unescape(name).map_err(|error| match text.parse::<NamePattern>() {
                Err(PathError::Glob) => error,
                // However long it is, a shorter one would be refused as well.
                _ => PathError::Pattern,
            })?;
            if name.contains('/') {
                return Err(PathError::Glob);
            }
            check_component(&name)?;
            let names = BTreeSet::from([name]);
            return Ok(Self { anchor: "/".to_owned(), reach: Reach::Below, names });
        }
        if !text.starts_with('/') {
            return Err(PathError::Relative);
        }
        let (base, reach) = match text {
            _ if text.ends_with("/**") => (&text[..text.len() - 2], Reach::Below),
            _ if text.ends_with("/*") => (&text[..text.len() - 1], Reach::Children),
            _ => (text, Reach::Tree),
        };
        Self::literal(&unescape(base)?, reach)
    }
}

impl Entry for PathEntry {
    type Key = String;

    fn meet(&self, other: &Self) -> Option<Self> {
        let (outer, inner) =
            if self.anchor.len() <= other.anchor.len() { (self, other) } else { (other, self) };
        let depth = depth_below(&outer.anchor, &inner.anchor)?;
        let reach = match (depth, outer.reach, inner.reach) {
            (0, a, b) => match (a, b) {
                (Reach::Tree, reach) | (reach, Reach::Tree) => reach,
                (a, b) if a == b => a,
                (Reach::Below, Reach::Children) | (Reach::Children, Reach::Below) => Reach::Children,
                _ => return None,
            },
            (_, Reach::Tree | Reach::Below, reach) => reach,
            (1, Reach::Children, Reach::Tree | Reach::Exact) => Reach::Exact,
            _ => return None,
        };
        Self::normal(inner.anchor.clone(), reach, outer.names.union(&inner.names).cloned().collect())
    }

    fn key(&self) -> String {
        self.anchor.clone()
    }

    fn covering(&self) -> Vec<String> {
        prefixes(&self.anchor).map(str::to_owned).collect()
    }
}

written_as_atoms!(PathEntry);

/// The path above an absolute path; `None` above `/`.
pub fn parent(path: &str) -> Option<&str> {
    match path.rfind('/')? {
        0 if path == "/" => None,
        0 => Some("/"),
        at => Some(&path[..at]),
    }
}

/// An absolute path and all paths above it, longest first, `/` last.
pub fn prefixes(path: &str) -> impl Iterator<Item = &str> {
    std::iter::successors(Some(path), |p| parent(p))
}

/// How many components `inner` lies below `outer`; `None`: it does not.
fn depth_below(outer: &str, inner: &str) -> Option<usize> {
    let rest = inner.strip_prefix(outer.trim_end_matches('/'))?;
    let rest = if rest.is_empty() { rest } else { rest.strip_prefix('/')? };
    Some(rest.split('/').filter(|c| !c.is_empty()).count())
}

fn has_component(path: &str, name: &str) -> bool {
    path.split('/').any(|c| c == name)
}

fn join(path: &str, name: &str) -> String {
    format!("{}/{name}", path.trim_end_matches('/'))
}

pub(crate) fn check_text(text: &str) -> Result<(), PathError> {
    match text {
        "" => Err(PathError::Empty),
        _ if text.chars().any(char::is_control) => Err(PathError::Control),
        _ if text.len() > MAX_PATH => Err(PathError::TooLong),
        _ => Ok(()),
    }
}

fn check_component(component: &str) -> Result<(), PathError> {
    match component {
        "" => Err(PathError::Empty),
        "." | ".." => Err(PathError::Dots),
        _ if component.len() > MAX_COMPONENT => Err(PathError::TooLong),
        _ => Ok(()),
    }
}

/// Takes the backslashes off; a glob character without one is an error.
pub(crate) fn unescape(text: &str) -> Result<String, PathError> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(next) if GLOB.contains(&next) => out.push(next),
                _ => return Err(PathError::Glob),
            },
            _ if GLOB.contains(&c) => return Err(PathError::Glob),
            _ => out.push(c),
        }
    }
    Ok(out)
}

pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if GLOB.contains(&c) {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(text: &str) -> PathEntry {
        text.parse().unwrap()
    }

    fn meet(a: &str, b: &str) -> Option<String> {
        entry(a).meet(&entry(b)).map(|m| m.to_string())
    }

    #[test]
    fn meets_by_containment() {
        assert_eq!(meet("/a", "/a/b").as_deref(), Some("/a/b"));
        assert_eq!(meet("/a", "/ab"), None);
        assert_eq!(meet("/", "/a/**").as_deref(), Some("/a/**"));
        assert_eq!(meet("/a/**", "/a/*").as_deref(), Some("/a/*"));
        assert_eq!(meet("/a/*", "/a"), Some("/a/*".to_owned()));
        assert_eq!(meet("/a/*", "/a/b/**"), None);
        assert_eq!(meet("/a/*", "/a/b").as_deref(), Some("/a/* and /a/b"));
        assert_eq!(meet("/a/*", "/a/b/c"), None);
        assert_eq!(meet("**/x", "/a/x/b").as_deref(), Some("/a/x/b"));
        assert_eq!(meet("**/x", "/a").as_deref(), Some("/a/** and **/x"));
        assert_eq!(meet("**/x", "/a/*").as_deref(), Some("/a/* and /a/x"));
        assert_eq!(meet("**/x", "**/y").as_deref(), Some("**/x and **/y"));
    }

    #[test]
    fn refuses_with_the_reason() {
        for (text, error) in [
            ("", PathError::Empty),
            ("src", PathError::Relative),
            ("~/x", PathError::Relative),
            ("./x", PathError::Relative),
            ("/a/../b", PathError::Dots),
            ("/a/./b", PathError::Dots),
            ("**/..", PathError::Dots),
            ("/a/*.py", PathError::Glob),
            ("/a/*/b", PathError::Glob),
            ("/a/**/b", PathError::Glob),
            ("**/a/b", PathError::Glob),
            ("**/*.py", PathError::Pattern),
            ("**/*.p?", PathError::Glob),
            ("/a/fil?", PathError::Glob),
            ("/a/[id]", PathError::Glob),
            ("/a/{b,c}", PathError::Glob),
            ("/a\\b", PathError::Glob),
            ("/a\nb", PathError::Control),
            ("/a\0b", PathError::Control),
            ("**/", PathError::Empty),
        ] {
            assert_eq!(text.parse::<PathEntry>(), Err(error), "{text:?}");
        }
        assert_eq!(format!("/{}", "a/".repeat(65)).parse::<PathEntry>(), Err(PathError::TooDeep));
        assert_eq!(format!("/{}", "a".repeat(256)).parse::<PathEntry>(), Err(PathError::TooLong));
        assert_eq!("/a".repeat(3000).parse::<PathEntry>(), Err(PathError::TooLong));
    }

    #[test]
    fn normalises_slashes_and_keeps_escapes() {
        assert_eq!(entry("//a//b/").to_string(), "/a/b");
        assert_eq!(entry("/*").to_string(), "/*");
        assert_eq!(entry("/**").to_string(), "/**");
        let odd = entry(r"/app/\[id\]/x\*y");
        assert_eq!(odd.anchor(), "/app/[id]/x*y");
        assert_eq!(odd.to_string(), r"/app/\[id\]/x\*y");
    }
}
