//! The binary that root's service runs: only root can change it, and no build replaces it.

use super::{Error, file};
use ringfence_files::Access;
use std::{
    fs, io,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// The path that the unit starts: this binary where it is, or its copy at `fallback` if users other than root can change this
/// one or it is in a build directory.
pub(super) fn binary(fallback: &Path, done: &mut Vec<String>) -> Result<PathBuf, Error> {
    let this = fs::canonicalize("/proc/self/exe").map_err(file("find", Path::new("/proc/self/exe")))?;
    let why = if is_built_there(&this) {
        "the next build or `cargo clean` would change the first"
    } else if only_root_writes(&this).map_err(file("read", &this))? {
        return Ok(this);
    } else {
        "users other than root can change the first, or cannot execute it"
    };
    let same = match (fs::read(&this), fs::read(fallback)) {
        (Ok(this), Ok(there)) => this == there,
        _ => false,
    };
    if !same {
        copy(&this, fallback)?;
        done.push(format!("{} copied to {}: {why}", this.display(), fallback.display()));
    }
    Ok(fallback.to_owned())
}

fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    let binary = fs::read(from).map_err(file("read", from))?;
    ringfence_files::replace(to, &binary, Access::Mode(0o755)).map_err(file("write", to))
}

/// Whether the file is in a build directory: Cargo tags its target directory as a cache.
fn is_built_there(file: &Path) -> bool {
    file.ancestors().any(|dir| dir.join("CACHEDIR.TAG").is_file())
}

/// Whether only root may change the file and the directories above it, and every user may execute it: the auditor is another
/// user.
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
    fn a_service_does_not_run_from_a_build_directory() {
        let target = tempfile::tempdir().unwrap();
        let binary = target.path().join("release/ringfence");
        fs::create_dir(target.path().join("release")).unwrap();
        fs::write(&binary, "").unwrap();
        assert!(!is_built_there(&binary));
        fs::write(target.path().join("CACHEDIR.TAG"), "Signature: 8a477f597d28d172789f06886806bc55\n")
            .unwrap();
        assert!(is_built_there(&binary));
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
