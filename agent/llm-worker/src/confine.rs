//! What a worker may still do once it runs: write its own log, accept on its socket, call its providers. And what the service
//! of one user may do that starts such workers.
//!
//! No capability, no gain by exec, no memory for others to read. Landlock, where the kernel has it, leaves a worker its own
//! directories, and for reading what names are resolved by; no other file, no program, no signal to others. seccomp
//! leaves the calls of `profiles/seccomp/worker.toml`: no program, no other process, no socket but to the internet and
//! none that listens. All of it comes before the first thread.

use nix::sys::resource::{Resource, setrlimit};
use ringfence_sandbox::{
    caps, host,
    landlock::{self, Access, Hierarchy, Rules},
    memory, resolving, seccomp,
};
use std::{
    fs::{self, File},
    io::{self, Read as _},
    path::{Path, PathBuf},
};

/// Most bytes of memory that a worker writes to: a container that makes it hold more ends its own worker, and nobody
/// else's. A conversation of 10 MB needs about 50 MB.
const MEMORY: u64 = 1 << 30;

/// Most bytes of a program in which the name of its loader is looked for: linkers put it at the beginning.
const BEGINNING: u64 = 1 << 20;

/// Why a worker cannot be confined; it does not run then.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Capabilities.
    #[error("the worker cannot give up its privileges")]
    Caps(#[from] caps::Error),
    /// Its memory, or its priority.
    #[error("cannot set the resource limits of the worker")]
    Limit(#[source] io::Error),
    /// What starting a worker takes.
    #[error("cannot find this program's own file")]
    Program(#[source] io::Error),
    /// Landlock.
    #[error("the worker cannot confine itself")]
    Landlock(#[from] landlock::Error),
    /// seccomp.
    #[error("the worker cannot confine itself")]
    Seccomp(#[from] seccomp::Error),
}

/// Keeps others from looking into a worker, before it has anything that they could find.
///
/// # Errors
/// [`Error`]; the process must then end.
pub(crate) fn hide() -> Result<(), Error> {
    // Before /proc/self is root's.
    if let Err(error) = memory::like_any_other() {
        tracing::warn!(
            "cannot write {}, so the kernel ends others before this worker when memory runs out: {error}",
            memory::OOM_SCORE
        );
    }
    caps::not_dumpable()?;
    Ok(())
}

/// Gives up everything but what the role needs, for good. `own`: the directories of what it keeps.
///
/// # Errors
/// [`Error`]; the process must then end. A kernel without Landlock is no error, but is said in the log.
pub(crate) fn enter(own: &[PathBuf]) -> Result<(), Error> {
    caps::drop_all()?;
    setrlimit(Resource::RLIMIT_DATA, MEMORY, MEMORY).map_err(|errno| Error::Limit(errno.into()))?;
    // The unit lets the record's threads go first (`precedence`). How much a worker has to do is its agent's doing.
    setrlimit(Resource::RLIMIT_NICE, 0, 0).map_err(|errno| Error::Limit(errno.into()))?;
    landlocked(own)?;
    let calls = seccomp::Policy::worker_list()?.signalling_only(std::process::id());
    seccomp::Filter::compile(&calls)?.load()?;
    Ok(())
}

/// The same for the service of one user, which starts a worker for each agent: it reads profiles and credentials wherever they
/// are, makes its agents' sockets, and writes nowhere but in `writable`. What it starts is this very program, and inherits
/// all of this. Commands that print credentials are run by another process (`commands`).
///
/// # Errors
/// As [`enter`].
pub(crate) fn enter_user(writable: &[PathBuf]) -> Result<(), Error> {
    caps::drop_all()?;
    caps::not_dumpable()?;
    if host::landlock_abi() == 0 {
        tracing::warn!("this kernel has no Landlock: the agents' service may write wherever its user may");
    } else {
        let of = |path: PathBuf, access| Hierarchy { path, access, exact: false, may_be_missing: true };
        let writes = |path: &PathBuf| of(path.clone(), Access { write: true, ..Access::default() });
        let null = PathBuf::from("/dev/null");
        let mut hierarchies: Vec<Hierarchy> = writable.iter().chain([&null]).map(writes).collect();
        let starts = own_program().map_err(Error::Program)?;
        hierarchies.extend(starts.map(|path| of(path, Access { exec: true, ..Access::default() })));
        let rules = Rules {
            restricted: Access { write: true, exec: true, ..Access::default() },
            hierarchies,
            tcp: None,
            scope_signals: true,
            // The service manager's socket may be one.
            scope_abstract: false,
            ..Rules::default()
        };
        rules.enforce()?;
    }
    seccomp::Filter::compile(&seccomp::Policy::user_list()?)?.load()?;
    Ok(())
}

/// What the kernel executes to start this program again: its file, and what is beside its loader. Not the loader's file alone:
/// an upgrade of the C library puts another in its place, and workers are to be started after that, too.
fn own_program() -> io::Result<impl Iterator<Item = PathBuf>> {
    let program = fs::canonicalize("/proc/self/exe")?;
    let mut bytes = Vec::new();
    File::open(&program)?.take(BEGINNING).read_to_end(&mut bytes)?;
    let beside = loader(&bytes).map(fs::canonicalize).transpose()?;
    let beside = beside.and_then(|loader| loader.parent().map(Path::to_owned));
    Ok([program].into_iter().chain(beside))
}

/// The loader that a program names; none: it is static.
fn loader(program: &[u8]) -> Option<PathBuf> {
    use object::{
        Endianness, elf,
        read::elf::{FileHeader as _, ProgramHeader as _},
    };
    use std::os::unix::ffi::OsStrExt;
    let header = elf::FileHeader64::<Endianness>::parse(program).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, program).ok()?;
    let name = segments.iter().find_map(|segment| segment.interpreter(endian, program).ok().flatten())?;
    Some(PathBuf::from(std::ffi::OsStr::from_bytes(name)))
}

fn landlocked(own: &[PathBuf]) -> Result<(), Error> {
    let kept =
        |path: &PathBuf| Hierarchy::resolved(path, Access { read: true, write: true, ..Access::default() });
    let mut hierarchies: Vec<Hierarchy> = own.iter().map(kept).collect();
    let read = Access { read: true, ..Access::default() };
    hierarchies.extend(resolving::paths().iter().map(|path| Hierarchy::resolved(path, read)));
    let rules = Rules {
        restricted: Access { read: true, write: true, exec: true, unix: true },
        hierarchies,
        // Providers are where the profile says, at any port.
        tcp: None,
        scope_signals: true,
        scope_abstract: true,
        ..Rules::default()
    };
    if !rules.enforce()? {
        tracing::warn!(
            "this kernel has no Landlock: the worker runs without capabilities, but sees the host's files"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::env;

    #[test]
    fn this_program_and_its_loader_are_found() {
        let mut found = own_program().unwrap();
        assert_eq!(found.next().unwrap(), env::current_exe().unwrap().canonicalize().unwrap());
        // Tests are linked as the program is; a static one would have none.
        let beside = found.next().unwrap();
        let loaders = fs::read_dir(beside).unwrap().flatten();
        assert!(loaders.map(|entry| entry.file_name()).any(|name| name.to_string_lossy().starts_with("ld-")));
        assert_eq!(loader(b"#!/bin/sh"), None);
    }
}
