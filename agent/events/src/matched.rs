//! Which call an event fits by its path, where nothing stronger says so. Pure, and no guess: what a second call may name
//! as well is of neither.
//!
//! A tool for files runs inside the agent's own process, which is older than every call: by times alone its events are
//! `ambiguous`. What it was asked for names the file. That is no proof: the agent may have opened it for a reason of its
//! own. So the answer is `matched`, and not `sole`.

use super::{
    attribute::{Attribution, Moment, Span},
    decode::Decoded,
};
use ringfence_base::escape;
use ringfence_common::event::{FLAG_CUT, FLAG_OUTSIDE, FLAG_RACED, FLAG_UNLINKED, Op};

/// A call, and what it was asked to work on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// The call.
    pub span: Span,
    /// A process was tagged for it: what is its own has the tag.
    pub tagged: bool,
    /// The paths that its arguments name, as they are written there; none, of a shell's call. `None`: not known.
    pub paths: Option<Vec<String>>,
}

/// Whether a call names a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Naming {
    Yes,
    /// It may, from a directory that is not known; or nobody knows what it names.
    Perhaps,
    No,
}

/// What of an answer by times can be said by paths. `touched`: see [`touched`]. `calls` and `known_to` as for
/// [`attribute`](super::attribute::attribute), which gave that answer.
pub fn by_path<'a>(
    answer: Attribution,
    moment: Moment,
    touched: &[&str],
    calls: impl IntoIterator<Item = &'a Asked>,
    known_to: u64,
) -> Attribution {
    let Moment { at, born, single, .. } = moment;
    if !matches!(answer, Attribution::Ambiguous(_)) || !single || at > known_to {
        return answer;
    }
    let mut naming: Vec<&Asked> = Vec::new();
    for call in calls.into_iter().filter(|call| call.span.overlaps(at, at)) {
        // Born since, the process may be what that call started, whatever another one names.
        if born > call.span.began {
            return answer;
        }
        match call.naming(touched) {
            Naming::Yes => naming.push(call),
            Naming::Perhaps => return answer,
            Naming::No => {}
        }
    }
    naming.sort_by(|a, b| (a.span.began, &a.span.call).cmp(&(b.span.began, &b.span.call)));
    match naming.as_slice() {
        [] => answer,
        [one] if one.tagged => answer,
        [one] => Attribution::Matched(one.span.call.clone()),
        several => Attribution::Ambiguous(several.iter().map(|call| call.span.call.clone()).collect()),
    }
}

/// The paths that an event is about, where tools for files do such a thing and the whole path is known: of a rename or a
/// link, both names. An editor that writes a file anew renames it from another name.
pub fn touched(record: &Decoded) -> Vec<&str> {
    let is_done_to_files = match Op::of(record.op) {
        Some(
            Op::Open
            | Op::Create
            | Op::Truncate
            | Op::Unlink
            | Op::Rmdir
            | Op::Rename
            | Op::Link
            | Op::Mkdir
            | Op::Symlink
            | Op::Chmod
            | Op::Chown
            | Op::Utimes
            | Op::Setxattr,
        ) => true,
        // Nothing of these is done by reading or writing a file.
        Some(_) | None => false,
    };
    if !is_done_to_files || record.flags & (FLAG_CUT | FLAG_RACED | FLAG_OUTSIDE | FLAG_UNLINKED) != 0 {
        return Vec::new();
    }
    let paths = [&record.path, &record.path2].into_iter().flatten();
    paths.map(String::as_str).filter(|path| path.starts_with('/')).collect()
}

impl Asked {
    /// Whether its arguments name one of these.
    fn naming(&self, touched: &[&str]) -> Naming {
        let Some(paths) = &self.paths else { return Naming::Perhaps };
        let mut said = Naming::No;
        for named in paths {
            let (is_whole, named) = normal(named);
            if is_whole && touched.contains(&named.as_str()) {
                return Naming::Yes;
            }
            if !is_whole && touched.iter().any(|path| path.ends_with(&named)) {
                said = Naming::Perhaps;
            }
        }
        said
    }
}

/// A path as events have it, by its text alone; and whether it begins at the root. Of one that does not, what it ends
/// with, whatever the directory: a home, the agent's own one, one above it.
fn normal(path: &str) -> (bool, String) {
    let is_whole = path.starts_with('/');
    let mut names: Vec<&str> = Vec::new();
    for (at, name) in path.split('/').enumerate() {
        match name {
            "" | "." => {}
            ".." => {
                names.pop();
            }
            name if at == 0 && name.starts_with('~') => {}
            name => names.push(name),
        }
    }
    let mut text = String::with_capacity(path.len() + 1);
    for name in names {
        text.push('/');
        text.push_str(&escape::name(name.as_bytes()));
    }
    if is_whole && text.is_empty() {
        text.push('/');
    }
    (is_whole, text)
}

#[cfg(test)]
mod tests;
