//! Finding the command and becoming it, with a shell's exit statuses.

use super::environment::Environment;
use nix::{errno::Errno, unistd::execve};
use std::{
    convert::Infallible,
    ffi::{CString, OsStr, OsString},
    fmt,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
};

/// Exit status of a command that is there and could not be executed.
pub const NOT_EXECUTABLE: u8 = 126;
/// Exit status of a command that was not found.
pub const NOT_FOUND: u8 = 127;

/// A command and its arguments; none holds a NUL byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Command {
    arguments: Vec<CString>,
    /// Where it may be, in order.
    candidates: Vec<PathBuf>,
}

/// Why a command did not start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NotStarted {
    /// [`NOT_FOUND`] or [`NOT_EXECUTABLE`].
    pub status: u8,
    what: String,
}

impl fmt::Display for NotStarted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl Command {
    /// A command that is looked for in the environment's `PATH` unless it has a slash. Entries of `PATH` that are not
    /// absolute are passed over: what they mean depends on where one happens to be. `None`: there is no command, or
    /// it holds a NUL byte.
    pub(crate) fn new(words: &[OsString], environment: &Environment) -> Option<Self> {
        let name = words.first()?;
        let arguments = words.iter().map(|word| CString::new(word.as_bytes()).ok()).collect::<Option<_>>()?;
        let candidates = if name.as_bytes().contains(&b'/') {
            vec![PathBuf::from(name)]
        } else {
            let path = environment.value("PATH").unwrap_or_default().as_bytes();
            let dirs = path.split(|byte| *byte == b':').map(|dir| Path::new(OsStr::from_bytes(dir)));
            let named = |dir: &Path| (!name.is_empty() && dir.is_absolute()).then(|| dir.join(name));
            dirs.filter_map(named).collect()
        };
        Some(Self { arguments, candidates })
    }

    /// Becomes the command. Returns only if that failed.
    pub(crate) fn exec(&self, environment: &Environment) -> NotStarted {
        let environment = environment.entries();
        let mut refused = None;
        for candidate in &self.candidates {
            let Ok(path) = CString::new(candidate.clone().into_os_string().into_vec()) else { continue };
            let result: nix::Result<Infallible> = execve(&path, &self.arguments, &environment);
            match result {
                Ok(never) => match never {},
                Err(Errno::ENOENT | Errno::ENOTDIR) if candidate.symlink_metadata().is_err() => {}
                // As a shell: a later directory of PATH may have one that works.
                Err(errno) => refused = refused.or(Some((candidate, errno))),
            }
        }
        match refused {
            Some((path, errno)) => NotStarted {
                status: NOT_EXECUTABLE,
                what: format!("{}: {}", path.display(), why(path, errno)),
            },
            None => {
                let name = self.arguments.first().map(|name| name.to_string_lossy()).unwrap_or_default();
                NotStarted { status: NOT_FOUND, what: format!("{name}: command not found") }
            }
        }
    }
}

fn why(path: &Path, errno: Errno) -> String {
    match errno {
        Errno::EACCES | Errno::EPERM if path.is_dir() => "is a directory".into(),
        Errno::EACCES | Errno::EPERM => format!(
            "{}: it is not executable, or the profile does not grant exec of it or of its interpreter",
            errno.desc()
        ),
        Errno::ENOEXEC => "neither a program for this machine nor a script that begins with #!".into(),
        Errno::ENOENT => "its interpreter does not exist".into(),
        errno => errno.desc().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(words: &[&str], path: &str) -> Option<Command> {
        let words: Vec<OsString> = words.iter().map(OsString::from).collect();
        let (environment, _) = Environment::build([("PATH".into(), path.into())], &[], None);
        Command::new(&words, &environment)
    }

    fn candidates(name: &str, path: &str) -> Vec<PathBuf> {
        command(&[name], path).unwrap().candidates
    }

    #[test]
    fn a_name_is_looked_for_in_absolute_directories_of_path() {
        assert_eq!(
            candidates("git", "/usr/bin::.:bin:/bin"),
            [Path::new("/usr/bin/git"), Path::new("/bin/git")]
        );
        assert_eq!(candidates("./git", "/usr/bin"), [Path::new("./git")]);
        assert_eq!(candidates("/opt/git", "/usr/bin"), [Path::new("/opt/git")]);
        assert!(candidates("", "/usr/bin").is_empty());
        assert!(candidates("git", "").is_empty());
    }

    #[test]
    fn no_command_and_a_nul_byte_are_none() {
        assert_eq!(command(&[], "/bin"), None);
        assert_eq!(command(&["echo", "a\0b"], "/bin"), None);
    }
}
