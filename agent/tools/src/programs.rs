//! What a bare program name finds: the search along PATH.

use ringfence_grant::gate::{Programs, ResolvedProgram};
use std::{
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

/// Where programs are looked for by default.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The programs of this machine. Directories that are not absolute are not searched: what is in them depends on where
/// one stands.
#[derive(Debug, Clone)]
pub struct HostPrograms {
    directories: Vec<PathBuf>,
}

impl Default for HostPrograms {
    /// Along this process's PATH.
    fn default() -> Self {
        Self::on_path(&std::env::var_os("PATH").unwrap_or_else(|| PATH.into()))
    }
}

impl HostPrograms {
    /// Along a PATH: directories with colons between them.
    pub fn on_path(path: &OsStr) -> Self {
        Self { directories: std::env::split_paths(path).filter(|dir| dir.is_absolute()).collect() }
    }

    /// The PATH that is searched: what a tool's own PATH should be.
    pub fn path(&self) -> OsString {
        // They came out of such a list, so that none has a colon.
        std::env::join_paths(&self.directories).unwrap_or_else(|_| PATH.into())
    }
}

impl Programs for HostPrograms {
    fn resolve(&self, program: &Path) -> io::Result<ResolvedProgram> {
        if program.is_absolute() {
            return found(program);
        }
        if program.file_name() != Some(program.as_os_str()) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let mut places = self.directories.iter().map(|dir| dir.join(program));
        places.find_map(|place| found(&place).ok()).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

fn found(place: &Path) -> io::Result<ResolvedProgram> {
    let metadata = fs::metadata(place)?;
    if !metadata.is_file() || metadata.permissions().mode() & 0o111 == 0 {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    let (Some(directory), Some(name)) = (place.parent(), place.file_name()) else {
        return Err(io::ErrorKind::NotFound.into());
    };
    Ok(ResolvedProgram { path: directory.canonicalize()?.join(name), target: place.canonicalize()? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn finds_along_absolute_directories_only() {
        let dir = tempfile::tempdir().unwrap();
        let (bin, link) = (dir.path().join("bin"), dir.path().join("link"));
        fs::create_dir(&bin).unwrap();
        symlink("bin", &link).unwrap();
        let tool = bin.join("tool");
        fs::write(&tool, "").unwrap();
        symlink("tool", bin.join("other")).unwrap();
        let programs = HostPrograms::on_path(OsStr::new(&format!(".::bin:{}", link.display())));
        assert!(programs.resolve(Path::new("tool")).is_err(), "it cannot be executed yet");
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
        let bin = bin.canonicalize().unwrap();
        let found =
            |path: &str, target: &str| ResolvedProgram { path: bin.join(path), target: bin.join(target) };
        assert_eq!(programs.resolve(Path::new("tool")).unwrap(), found("tool", "tool"));
        assert_eq!(programs.resolve(Path::new("other")).unwrap(), found("other", "tool"));
        assert_eq!(programs.resolve(&link.join("other")).unwrap(), found("other", "tool"));
        for absent in ["", ".", "..", "bin/tool", "./tool", "/", "absent"] {
            assert!(programs.resolve(Path::new(absent)).is_err(), "{absent}");
        }
    }
}
