//! The binary that root's service runs: one that nobody but root can change.

use super::{Error, file};
use ringfence_files::Access;
use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// The path that the unit shall start: this binary's own if only root can change it, else `fallback`, where this one
/// is copied to.
pub(super) fn binary(fallback: &Path, done: &mut Vec<String>) -> Result<PathBuf, Error> {
    let this = fs::canonicalize("/proc/self/exe").map_err(file("find", Path::new("/proc/self/exe")))?;
    if only_root_writes(&this).map_err(file("read", &this))? {
        return Ok(this);
    }
    let same = match (fs::read(&this), fs::read(fallback)) {
        (Ok(this), Ok(there)) => this == there,
        _ => false,
    };
    if !same {
        copy(&this, fallback)?;
        done.push(format!(
            "{} copied to {}: others than root can change the first",
            this.display(),
            fallback.display()
        ));
    }
    Ok(fallback.to_owned())
}

fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    let binary = fs::read(from).map_err(file("read", from))?;
    ringfence_files::replace(to, &binary, Access::Mode(0o755)).map_err(file("write", to))
}

/// Whether the file and all directories above it belong to root and nobody else may write them, and all may run it: the
/// auditor is another user.
fn only_root_writes(path: &Path) -> io::Result<bool> {
    for part in path.ancestors() {
        let meta = fs::metadata(part)?;
        let others = if meta.gid() == 0 { 0o002 } else { 0o022 };
        if meta.uid() != 0 || meta.mode() & others != 0 || meta.mode() & 0o001 == 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs::Permissions,
        os::unix::fs::PermissionsExt,
        time::{Duration, Instant},
    };

    #[test]
    fn a_system_binary_is_trusted_and_one_in_a_shared_directory_is_not() {
        let shell = fs::canonicalize("/bin/sh").unwrap();
        assert!(only_root_writes(&shell).unwrap());
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x");
        fs::write(&file, "").unwrap();
        fs::set_permissions(&file, Permissions::from_mode(0o755)).unwrap();
        assert!(!only_root_writes(&file).unwrap(), "/tmp is everybody's");
    }

    #[test]
    fn a_copy_is_whole_and_runnable() {
        let dir = tempfile::tempdir().unwrap();
        let to = dir.path().join("ringfence");
        copy(Path::new("/bin/true"), &to).unwrap();
        // A child of another test, forked while it was written, keeps it busy until it execs.
        let until = Instant::now() + Duration::from_secs(120);
        let ran = loop {
            match std::process::Command::new(&to).status() {
                Err(busy) if busy.kind() == io::ErrorKind::ExecutableFileBusy && Instant::now() < until => {}
                ran => break ran.unwrap(),
            }
        };
        assert!(ran.success());
    }
}
