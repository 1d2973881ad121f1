//! What the process may still do once it has its credentials: speak to the internet and over the pipes that it was given. No file
//! but what names are resolved by and certificates are checked with (by Landlock; without it, all that its user may read, and
//! none is written to, made, moved, removed or given other permissions), no program, no other process, no socket that listens.

use nix::sys::resource::{Resource, setrlimit};
use ringfence_sandbox::{
    caps,
    landlock::{self, Access, Hierarchy, Rules},
    resolving, seccomp,
};
use std::io;

/// Bytes of memory that it writes to, beside what messages may take.
const MEMORY: u64 = 512 << 20;

/// What the LLM worker's list has for its log, and for its socket: Landlock does not restrict who may do what with a file.
const NEEDLESS: &[&str] = &[
    "accept",
    "accept4",
    "chmod",
    "fchmod",
    "fchmodat",
    "fchown",
    "flock",
    "fsetxattr",
    "fsync",
    "fdatasync",
    "fremovexattr",
    "ftruncate",
    "lremovexattr",
    "lsetxattr",
    "mkdir",
    "mkdirat",
    "pwrite64",
    "pwritev",
    "removexattr",
    "rename",
    "renameat",
    "renameat2",
    "setxattr",
    "unlink",
    "unlinkat",
    "utimensat",
];

/// Of those, what takes a connection in.
const ACCEPTING: [&str; 2] = ["accept", "accept4"];

/// Why it cannot be confined; it does not run then.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Capabilities.
    #[error("the process that speaks to the remote server cannot give up its privileges")]
    Caps(#[from] caps::Error),
    /// Its memory.
    #[error("cannot set the limit of its memory")]
    Limit(#[source] io::Error),
    /// Landlock.
    #[error("the process that speaks to the remote server cannot confine itself")]
    Landlock(#[from] landlock::Error),
    /// seccomp.
    #[error("the process that speaks to the remote server cannot confine itself")]
    Seccomp(#[from] seccomp::Error),
}

/// Keeps others from looking into it, before it has anything that they could find.
///
/// # Errors
/// [`Error`]; the process must then end.
pub(crate) fn hide() -> Result<(), Error> {
    Ok(caps::not_dumpable()?)
}

/// Gives up everything but what it needs, for good, before the first thread. `messages`: bytes that messages may take in all.
/// False: the kernel has no Landlock, so it may read files as its user may.
///
/// # Errors
/// [`Error`]; the process must then end. A kernel without Landlock is no error.
pub(super) fn enter(messages: usize) -> Result<bool, Error> {
    enter_with(messages, &calls()?)
}

/// The same for a login: what connects to the socket that was handed over is taken in.
///
/// # Errors
/// As [`enter`].
pub(crate) fn enter_listening(messages: usize) -> Result<bool, Error> {
    enter_with(messages, &policy(|call| !ACCEPTING.contains(&call))?)
}

fn enter_with(messages: usize, calls: &seccomp::Policy) -> Result<bool, Error> {
    caps::drop_all()?;
    let most = MEMORY.saturating_add(messages as u64);
    setrlimit(Resource::RLIMIT_DATA, most, most).map_err(|errno| Error::Limit(errno.into()))?;
    let read = Access { read: true, ..Access::default() };
    let rules = Rules {
        restricted: Access { read: true, write: true, exec: true, unix: true },
        hierarchies: resolving::paths().iter().map(|path| Hierarchy::resolved(path, read)).collect(),
        // Servers are at any port.
        tcp: None,
        scope_signals: true,
        scope_abstract: true,
        ..Rules::default()
    };
    let is_enforced = rules.enforce()?;
    seccomp::Filter::compile(calls)?.load()?;
    Ok(is_enforced)
}

fn calls() -> Result<seccomp::Policy, seccomp::Error> {
    policy(|_| true)
}

fn policy(is_needless: impl Fn(&str) -> bool) -> Result<seccomp::Policy, seccomp::Error> {
    let needless: Vec<&str> = NEEDLESS.iter().copied().filter(|call| is_needless(call)).collect();
    let calls = seccomp::Policy::worker_list()?.without(&needless);
    Ok(calls.signalling_only(std::process::id()).opening_to_read_only())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs,
        os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _},
        thread,
    };

    #[test]
    fn files_keep_what_they_hold_their_permissions_and_names() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("key");
        fs::write(&file, "k").unwrap();
        let opened = |path: &std::path::Path, how: &mut fs::OpenOptions| how.open(path).is_ok();
        let tried = |path: &std::path::Path| {
            [
                opened(path, fs::OpenOptions::new().write(true)),
                opened(path, fs::OpenOptions::new().append(true)),
                opened(path, fs::OpenOptions::new().read(true).write(true)),
                // Neither needs to be opened for writing.
                opened(path, fs::OpenOptions::new().read(true).custom_flags(nix::libc::O_TRUNC)),
                opened(
                    &path.with_extension("new"),
                    fs::OpenOptions::new().read(true).custom_flags(nix::libc::O_CREAT),
                ),
                fs::write(path, "other").is_ok(),
                fs::File::create(path.with_extension("created")).is_ok(),
                fs::set_permissions(path, fs::Permissions::from_mode(0o777)).is_ok(),
                fs::rename(path, path.with_extension("moved")).is_ok(),
                fs::create_dir(path.with_extension("made")).is_ok(),
                fs::remove_file(path.with_extension("moved")).is_ok(),
            ]
        };
        // A filter is a thread's.
        let inside = thread::scope(|scope| {
            let run = || {
                nix::sys::prctl::set_no_new_privs().unwrap();
                seccomp::Filter::compile(&calls().unwrap()).unwrap().load().unwrap();
                (tried(&file), fs::read(&file).ok())
            };
            scope.spawn(run).join().unwrap()
        });
        assert_eq!(inside, ([false; 11], Some(b"k".to_vec())));
        assert_eq!(tried(&file), [true; 11], "the control");
    }
}
