//! Whether a tool stands at the end of the line: what it prints goes to whoever reads the whole run, not to another tool.
//!
//! It does if its standard output is the same open file as that of the outermost process of its run. That is the ancestor
//! that came from outside, whose parent is process 0: what `docker exec` started, or the container's first process. Below
//! `ringfence-runtime` and `ringfence-toolrunner exec`, it is the process that they started.

use rustix::{
    fs::{FileType, Stat, fstat, stat},
    process::{Pid, getpid, getppid},
    stdio,
    termios::isatty,
};
use std::{fs::File, io::Read, sync::OnceLock};

/// What `/proc/PID/stat` calls `ringfence-runtime`, whose children are runs: the kernel keeps 15 bytes of a name.
const RUNTIME: &[u8] = b"ringfence-runti";

/// What `ringfence-toolrunner exec` calls itself while its command runs.
pub(super) const EXEC: &std::ffi::CStr = c"ringfence-exec";

/// Most ancestors that are looked at. More than that is no run of tools.
const MOST_ANCESTORS: usize = 512;

/// How standard output leaves the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OutputKind {
    /// By a pipe or a socket.
    Pipe,
    /// By a terminal.
    Terminal,
}

/// What standard output is, if it is something that is read as it is written. A file is kept, and never cut.
pub(super) fn kind() -> Option<(OutputKind, Stat)> {
    let out = fstat(stdio::stdout()).ok()?;
    let leaves = match FileType::from_raw_mode(out.st_mode) {
        FileType::Fifo | FileType::Socket => OutputKind::Pipe,
        FileType::CharacterDevice if isatty(stdio::stdout()) => OutputKind::Terminal,
        _ => return None,
    };
    Some((leaves, out))
}

/// Whether this process stands at the end of its line. Where that cannot be seen (no /proc, another user's process), it
/// does not: what is not cut is long, what is cut in the wrong place is wrong.
pub(super) fn is_here(out: &Stat) -> bool {
    let Some(outermost) = outermost() else { return false };
    is_same(&format!("/proc/{}/fd/1", outermost.as_raw_nonzero()), out)
}

/// Whether standard error goes where the run's output or errors go.
pub(super) fn has_errors() -> Option<Stat> {
    let err = fstat(stdio::stderr()).ok()?;
    let outermost = outermost()?.as_raw_nonzero();
    let kind = FileType::from_raw_mode(err.st_mode);
    let is_read = matches!(kind, FileType::Fifo | FileType::Socket)
        || (kind == FileType::CharacterDevice && isatty(stdio::stderr()));
    let is_run_s = is_same(&format!("/proc/{outermost}/fd/1"), &err)
        || is_same(&format!("/proc/{outermost}/fd/2"), &err);
    (is_read && is_run_s).then_some(err)
}

/// Whether two descriptors are of one pipe, socket or terminal.
pub(super) fn same(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

fn is_same(path: &str, file: &Stat) -> bool {
    stat(path).is_ok_and(|other| same(&other, file))
}

/// The outermost process of this run, as it was at the first call.
pub(super) fn outermost() -> Option<Pid> {
    static FOUND: OnceLock<Option<Pid>> = OnceLock::new();
    let is_boundary = |name: &[u8]| name == RUNTIME || name == EXEC.to_bytes();
    *FOUND.get_or_init(|| climb(getpid(), getppid(), is_boundary).map(|(process, _)| process))
}

/// Whether a process descends from `ringfence-runtime`; `None`: that cannot be seen.
pub(super) fn is_below_runtime(process: Pid) -> Option<bool> {
    let line = stat_line(process)?;
    let (name, parent) = name_and_parent(&line)?;
    Some(name == RUNTIME || climb(process, parent, |name| name == RUNTIME)?.1)
}

/// Goes up until a parent's name is a boundary, or the parent is outside of this namespace: the last process before, and
/// whether there was a boundary.
fn climb(
    mut process: Pid,
    mut next: Option<Pid>,
    is_boundary: impl Fn(&[u8]) -> bool,
) -> Option<(Pid, bool)> {
    for _ in 0..MOST_ANCESTORS {
        let Some(parent) = next else { return Some((process, false)) };
        let line = stat_line(parent)?;
        let (name, above) = name_and_parent(&line)?;
        if is_boundary(name) {
            return Some((process, true));
        }
        (process, next) = (parent, above);
    }
    None
}

/// The start of /proc/PID/stat, in one read: the kernel makes the whole line anew for each.
fn stat_line(process: Pid) -> Option<Vec<u8>> {
    let mut line = vec![0; 512];
    let length = File::open(format!("/proc/{}/stat", process.as_raw_nonzero())).ok()?.read(&mut line).ok()?;
    line.truncate(length);
    Some(line)
}

/// From a line of /proc/PID/stat, `PID (NAME) STATE PARENT ...`, where the name may have anything in it.
fn name_and_parent(line: &[u8]) -> Option<(&[u8], Option<Pid>)> {
    let open = line.iter().position(|byte| *byte == b'(')?;
    let close = line.iter().rposition(|byte| *byte == b')')?;
    let mut fields = line.get(close + 1..)?.split(|byte| *byte == b' ').filter(|field| !field.is_empty());
    let parent = std::str::from_utf8(fields.nth(1)?).ok()?.parse().ok()?;
    Some((line.get(open + 1..close)?, Pid::from_raw(parent)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_does_not_hide_the_parent() {
        let read = |line: &'static [u8]| {
            name_and_parent(line)
                .map(|(name, parent)| (name, parent.map_or(0, |pid| pid.as_raw_nonzero().get())))
        };
        assert_eq!(read(b"10 (bash) S 7 10 10 0"), Some((b"bash".as_slice(), 7)));
        assert_eq!(read(b"10 (a) R 1 (b) S 8 10"), Some((b"a) R 1 (b".as_slice(), 8)));
        assert_eq!(read(b"1 (init) S 0 1"), Some((b"init".as_slice(), 0)));
        assert_eq!(read(b"1 init"), None);
        assert_eq!(read(b"1 (init) S x"), None);
        assert_eq!(read(b")("), None);
    }

    #[test]
    fn a_run_has_an_outermost_process() {
        assert!(outermost().is_some());
    }
}
