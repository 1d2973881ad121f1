//! Finds the real tool that a shim stands for: the next of its name in PATH that is not this binary.

use rustix::fs::Access;
use std::{
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// Where there is no PATH: what the C library searches then.
pub(super) const DEFAULT_PATH: &str = "/bin:/usr/bin";

/// Why there is no tool to run.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Error {
    /// Nothing of this name.
    #[error("{0}: command not found")]
    NotFound(String),
    /// Something of this name that must not be run.
    #[error("{0}: permission denied")]
    NotExecutable(String),
}

impl Error {
    /// The status that a shell ends with.
    pub(super) fn status(&self) -> u8 {
        match self {
            Self::NotFound(_) => 127,
            Self::NotExecutable(_) => 126,
        }
    }
}

/// This program's own file: as device and inode, by whatever link it was started.
pub(super) fn own_file() -> Option<(u64, u64)> {
    let meta = fs::metadata("/proc/self/exe").ok().or_else(|| {
        // Without /proc: by the name that it was started with.
        fs::metadata(OsStr::new(rustix::param::linux_execfn().to_str().ok()?)).ok()
    })?;
    Some((meta.dev(), meta.ino()))
}

/// Finds `name` in `path` (the variable's value). `shim` is what the shim was started as: its own folder's successors come
/// first, so that copies of this binary in two folders do not call each other for ever.
///
/// # Errors
/// Nothing there, or nothing that may be run.
pub(super) fn tool(
    name: &OsStr,
    path: Option<OsString>,
    shim: Option<&Path>,
    own: Option<(u64, u64)>,
) -> Result<PathBuf, Error> {
    if name.as_encoded_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return runnable(&path, own).and_then(|is| if is { Ok(path) } else { Err(not_found(name)) });
    }
    let path = path.unwrap_or_else(|| DEFAULT_PATH.into());
    let dirs: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let after = shim
        .and_then(Path::parent)
        .and_then(|own| dirs.iter().position(|dir| dir == own))
        .map_or(0, |at| at + 1);
    let (before, later) = dirs.split_at(after);
    let mut refused = None;
    for dir in later.iter().chain(before) {
        // An empty entry is the working directory.
        let path = if dir.as_os_str().is_empty() { Path::new(".").join(name) } else { dir.join(name) };
        match runnable(&path, own) {
            Ok(true) => return Ok(path),
            Ok(false) => {}
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    Err(refused.unwrap_or_else(|| not_found(name)))
}

/// Whether a file is there, is another's and may be run.
fn runnable(path: &Path, own: Option<(u64, u64)>) -> Result<bool, Error> {
    let denied = || Error::NotExecutable(path.display().to_string());
    let meta = match fs::metadata(path) {
        Ok(meta) => meta,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(denied()),
        Err(_) => return Ok(false),
    };
    if own == Some((meta.dev(), meta.ino())) {
        return Ok(false);
    }
    if !meta.is_file() {
        return if meta.is_dir() { Ok(false) } else { Err(denied()) };
    }
    match rustix::fs::accessat(rustix::fs::CWD, path, Access::EXEC_OK, rustix::fs::AtFlags::EACCESS) {
        Ok(()) => Ok(true),
        Err(_) => Err(denied()),
    }
}

fn not_found(name: &OsStr) -> Error {
    Error::NotFound(name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn program(path: &Path, mode: u32) {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, "#!/bin/sh\n").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn the_next_of_the_name_that_is_not_the_shim() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        program(&at("runner"), 0o755);
        program(&at("bin/cat"), 0o755);
        program(&at("first/cat"), 0o755);
        fs::create_dir(at("shims")).unwrap();
        symlink(at("runner"), at("shims/cat")).unwrap();
        let meta = fs::metadata(at("runner")).unwrap();
        let own = Some((meta.dev(), meta.ino()));
        let path = |dirs: &[&str]| Some(std::env::join_paths(dirs.iter().map(|name| at(name))).unwrap());
        let cat = |dirs: &[&str], shim: Option<&Path>| tool(OsStr::new("cat"), path(dirs), shim, own);
        let shim = at("shims/cat");
        assert_eq!(cat(&["shims", "bin"], Some(&shim)), Ok(at("bin/cat")));
        assert_eq!(cat(&["first", "shims", "bin"], Some(&shim)), Ok(at("bin/cat")));
        assert_eq!(cat(&["first", "shims"], Some(&shim)), Ok(at("first/cat")));
        assert_eq!(cat(&["first", "bin"], None), Ok(at("first/cat")));
        assert_eq!(cat(&["shims", "none"], Some(&shim)), Err(Error::NotFound("cat".into())));
    }

    #[test]
    fn what_may_not_be_run_is_told_from_what_is_not_there() {
        let dir = tempfile::tempdir().unwrap();
        program(&dir.path().join("a/tool"), 0o644);
        program(&dir.path().join("b/tool"), 0o755);
        fs::create_dir_all(dir.path().join("c/tool")).unwrap();
        let find = |dirs: &[&str]| {
            let path = std::env::join_paths(dirs.iter().map(|name| dir.path().join(name))).unwrap();
            tool(OsStr::new("tool"), Some(path), None, None)
        };
        assert_eq!(find(&["a", "b"]), Ok(dir.path().join("b/tool")));
        assert_eq!(find(&["a"]).unwrap_err().status(), 126);
        assert_eq!(find(&["c"]).unwrap_err().status(), 127);
        let direct = |name: PathBuf| tool(name.as_os_str(), None, None, None);
        assert_eq!(direct(dir.path().join("none")).unwrap_err().status(), 127);
        assert_eq!(direct(dir.path().join("a/tool")).unwrap_err().status(), 126);
    }
}
