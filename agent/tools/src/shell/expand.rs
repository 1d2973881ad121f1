//! Words into arguments: variables, then globs, inside of what may be read.

use super::{
    environment::Environment,
    glob::{Pattern, Unit},
    paths,
    refusal::Construct,
    script::{Piece, Word},
};
use std::{
    ffi::OsString,
    fs,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
    time::Instant,
};

/// Most names that the globs of one call may look at, and most words that a call may come to.
const MAX_NAMES: usize = 100_000;
/// Most bytes that the words of one call may come to.
const MAX_BYTES: usize = 4 * 1024 * 1024;

/// Why a word is not expanded.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExpandError<D> {
    /// It is outside of the subset.
    #[error(transparent)]
    Refused(Construct),
    /// The directory of a glob may not be read.
    #[error("a glob's directory may not be read")]
    Denied(D),
    /// Too many names.
    #[error(
        "the globs and words of this call come to more than {MAX_NAMES} names or {MAX_BYTES} bytes; name fewer files"
    )]
    TooMuch,
    /// Too many paths to look at.
    #[error("the time of this call was over before its files were found; name fewer")]
    TimedOut,
}

/// What decides which directories a glob may list.
pub(super) trait Listing {
    /// A refusal.
    type Denied;

    /// May this directory, that a word names, be listed?
    ///
    /// # Errors
    /// The refusal, for the record.
    fn check_named(&self, dir: &Path) -> Result<(), Self::Denied>;

    /// May this directory, that a glob came upon, be listed?
    fn may_list(&self, dir: &Path) -> bool;
}

/// The words of one call on their way.
pub(super) struct Expander<'a, L> {
    environment: &'a Environment,
    dir: &'a Path,
    listing: &'a L,
    deadline: Instant,
    names: usize,
    bytes: usize,
}

impl<'a, L: Listing> Expander<'a, L> {
    /// Relative paths start at `dir`, which is absolute and has no links. Nothing is looked for after `deadline`.
    pub(super) fn new(
        environment: &'a Environment,
        dir: &'a Path,
        listing: &'a L,
        deadline: Instant,
    ) -> Self {
        Self { environment, dir, listing, deadline, names: 0, bytes: 0 }
    }

    /// The arguments that a word stands for, added to `out`.
    pub(super) fn word(
        &mut self,
        word: &Word,
        out: &mut Vec<OsString>,
    ) -> Result<(), ExpandError<L::Denied>> {
        for field in self.fields(word)? {
            let before = out.len();
            if field.iter().any(|unit| unit.active && matches!(unit.c, '*' | '?' | '[')) {
                self.glob(&field, out)?;
            }
            if out.len() == before {
                out.push(text(&field));
            }
            for argument in &out[before..] {
                self.names += 1;
                self.bytes += argument.len() + 1;
            }
            self.check()?;
        }
        Ok(())
    }

    /// The one word that names a file.
    pub(super) fn one(&mut self, word: &Word) -> Result<OsString, ExpandError<L::Denied>> {
        match self.fields(word)?.as_slice() {
            [field] if !field.is_empty() => Ok(text(field)),
            _ => Err(ExpandError::Refused(Construct::AmbiguousTarget)),
        }
    }

    fn check(&self) -> Result<(), ExpandError<L::Denied>> {
        if self.names > MAX_NAMES || self.bytes > MAX_BYTES {
            return Err(ExpandError::TooMuch);
        }
        if Instant::now() > self.deadline { Err(ExpandError::TimedOut) } else { Ok(()) }
    }

    /// Puts in the variables; an unquoted value is split at its blanks.
    fn fields(&self, word: &Word) -> Result<Vec<Vec<Unit>>, ExpandError<L::Denied>> {
        let mut fields: Vec<Vec<Unit>> = Vec::new();
        let mut open: Option<Vec<Unit>> = None;
        let mut bytes = 0;
        for piece in &word.0 {
            let (text, active, split) = match piece {
                Piece::Plain(text) => (text.as_str(), true, false),
                Piece::Quoted(text) => (text.as_str(), false, false),
                Piece::Variable { name, quoted } => (self.value(name)?, !quoted, !quoted),
            };
            bytes += text.len();
            if bytes > MAX_BYTES {
                return Err(ExpandError::TooMuch);
            }
            if !split {
                open.get_or_insert_default().extend(text.chars().map(|c| Unit { c, active }));
                continue;
            }
            for c in text.chars() {
                if matches!(c, ' ' | '\t' | '\n') {
                    fields.extend(open.take());
                } else {
                    open.get_or_insert_default().push(Unit { c, active });
                }
            }
        }
        fields.extend(open);
        Ok(fields)
    }

    fn value(&self, name: &str) -> Result<&'a str, ExpandError<L::Denied>> {
        self.environment.value(name, self.dir).ok_or_else(|| {
            let allowed = self.environment.names();
            ExpandError::Refused(Construct::Variable { name: name.into(), allowed })
        })
    }

    /// The sorted names that match, added to `out`; none, if none does.
    ///
    /// The directory that the word itself names must be granted, or the call is refused. Below it a glob passes over
    /// what is not granted, as a shell passes over what it may not read.
    fn glob(&mut self, field: &[Unit], out: &mut Vec<OsString>) -> Result<(), ExpandError<L::Denied>> {
        let mut components: Vec<(&[Unit], Option<Pattern>)> = Vec::new();
        for units in field.split(|unit| unit.c == '/') {
            let pattern = Pattern::read(units).map_err(|_| ExpandError::Refused(Construct::Collation))?;
            components.push((units, pattern));
        }
        let Some(first) = components.iter().position(|(_, pattern)| pattern.is_some()) else { return Ok(()) };
        // As it is written so far, up to and with the slash.
        let mut prefix = Vec::new();
        for (units, _) in &components[..first] {
            prefix.extend_from_slice(text(units).as_bytes());
            prefix.push(b'/');
        }
        let Some(base) = self.directory(&prefix) else { return Ok(()) };
        self.listing.check_named(&base).map_err(ExpandError::Denied)?;
        let mut reached = vec![prefix];
        let last = components.len() - 1;
        for (at, (units, pattern)) in components.iter().enumerate().skip(first) {
            let mut next = Vec::new();
            for prefix in reached {
                match pattern {
                    Some(pattern) => self.list(&prefix, pattern, at < last, &mut next)?,
                    None => {
                        let mut path = prefix;
                        path.extend_from_slice(text(units).as_bytes());
                        let slash = at < last;
                        self.check()?;
                        if self.exists(&path, slash) {
                            path.extend(slash.then_some(b'/'));
                            next.push(path);
                        }
                    }
                }
            }
            reached = next;
        }
        reached.sort_unstable();
        out.extend(reached.into_iter().map(OsString::from_vec));
        Ok(())
    }

    /// Adds what matches in the directory that is written `prefix`.
    fn list(
        &mut self,
        prefix: &[u8],
        pattern: &Pattern,
        directories: bool,
        found: &mut Vec<Vec<u8>>,
    ) -> Result<(), ExpandError<L::Denied>> {
        let Some(dir) = self.directory(prefix) else { return Ok(()) };
        if !self.listing.may_list(&dir) {
            return Ok(());
        }
        let Ok(entries) = fs::read_dir(&dir) else { return Ok(()) };
        for entry in entries.flatten() {
            self.names += 1;
            self.check()?;
            let name = entry.file_name();
            if !pattern.matches(name.as_bytes()) {
                continue;
            }
            let mut path = prefix.to_vec();
            path.extend_from_slice(name.as_bytes());
            if directories {
                if !dir.join(&name).is_dir() {
                    continue;
                }
                path.push(b'/');
            }
            self.bytes += path.len();
            self.check()?;
            found.push(path);
        }
        Ok(())
    }

    /// Whether something is there, where it may be looked for.
    fn exists(&self, written: &[u8], directory: bool) -> bool {
        let written = Path::new(std::ffi::OsStr::from_bytes(written));
        let (parent, name) = match (written.parent(), written.file_name()) {
            (Some(parent), Some(name)) => (parent, Some(name)),
            // `..` and the root.
            _ => (written, None),
        };
        let Ok(parent) = paths::resolve(self.dir, parent) else { return false };
        if !self.listing.may_list(&parent) {
            return false;
        }
        let path = name.map_or(parent.clone(), |name| parent.join(name));
        if directory { path.is_dir() } else { path.symlink_metadata().is_ok() }
    }

    /// Where a directory is that is written with a slash at its end.
    fn directory(&self, prefix: &[u8]) -> Option<PathBuf> {
        paths::resolve(self.dir, Path::new(std::ffi::OsStr::from_bytes(prefix))).ok()
    }
}

fn text(units: &[Unit]) -> OsString {
    units.iter().map(|unit| unit.c).collect::<String>().into()
}

#[cfg(test)]
mod tests;
