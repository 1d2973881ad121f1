//! The binary that root's service runs: only root can change it, and no build replaces it.

use super::{Error, file};
use ringfence_files::{Access, Dir, Entry, others_write};
use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// The binary that runs, whatever has its path by now: whoever may build there can put another file in its place meanwhile.
const RUNNING: &str = "/proc/self/exe";

/// The path that the unit starts: this binary where it is, or its copy at `fallback` if users other than root can change this
/// one or it is in a build directory.
pub(super) fn binary(fallback: &Path, done: &mut Vec<String>) -> Result<PathBuf, Error> {
    let running = Path::new(RUNNING);
    let this = fs::canonicalize(running).map_err(file("find", running))?;
    let why = if is_built_there(&this) {
        "the next build or `cargo clean` would change the first"
    } else if only_root_writes(&this).map_err(file("read", &this))? {
        return Ok(this);
    } else {
        "users other than root can change the first, or cannot execute it"
    };
    if !is_installed(running, fallback) {
        copy(running, fallback)?;
        done.push(format!("{} copied to {}: {why}", this.display(), fallback.display()));
    }
    Ok(fallback.to_owned())
}

/// Whether the binary is there already, as a file that only root can change. A link to a build directory leads to the same
/// content, and a file of another user's may have it, too, until its owner changes it.
fn is_installed(binary: &Path, there: &Path) -> bool {
    let entry = Dir::of(there).and_then(|(dir, name)| dir.entry(&name));
    let is_ours = |entry: &Entry| Ok::<_, io::Error>(entry.meta()?.is_file() && is_roots(entry)?);
    matches!(entry, Ok(Some(entry)) if is_ours(&entry).unwrap_or(false))
        && matches!((fs::read(binary), fs::read(there)), (Ok(this), Ok(there)) if this == there)
}

fn copy(from: &Path, to: &Path) -> Result<(), Error> {
    let binary = fs::read(from).map_err(file("read", from))?;
    ringfence_files::replace(to, &binary, Access::Mode(0o755)).map_err(file("write", to))
}

/// Whether the file is in a build directory: Cargo tags its target directory as a cache.
fn is_built_there(file: &Path) -> bool {
    file.ancestors().any(|dir| dir.join("CACHEDIR.TAG").is_file())
}

/// Whether only root may change it, and every user may execute or enter it.
fn is_roots(entry: &Entry) -> io::Result<bool> {
    let meta = entry.meta()?;
    Ok(meta.uid == 0 && meta.mode & 0o001 != 0 && !others_write(entry)?)
}

/// Whether only root may change the file and the directories above it, and every user may execute it: the auditor is another
/// user.
fn only_root_writes(path: &Path) -> io::Result<bool> {
    for part in path.ancestors() {
        if !is_roots(&Entry::of(part)?)? {
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
        os::unix::fs::{MetadataExt, PermissionsExt, symlink},
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
    fn what_leads_to_a_build_directory_or_is_somebody_else_s_is_replaced() {
        let shell = fs::canonicalize("/bin/sh").unwrap();
        assert!(is_installed(&shell, &shell), "the control");
        let dir = tempfile::tempdir().unwrap();
        let (built, there) = (dir.path().join("built"), dir.path().join("there"));
        fs::copy("/bin/true", &built).unwrap();
        assert!(!is_installed(&built, &there));
        for (mode, is_link) in [(0o755, true), (0o777, false), (0o700, false)] {
            if is_link {
                symlink(&built, &there).unwrap();
            } else {
                fs::copy(&built, &there).unwrap();
                fs::set_permissions(&there, Permissions::from_mode(mode)).unwrap();
            }
            assert!(!is_installed(&built, &there), "{mode:o}");
            copy(&built, &there).unwrap();
            let meta = fs::symlink_metadata(&there).unwrap();
            assert!(meta.is_file() && meta.mode() & 0o777 == 0o755, "{mode:o}");
            fs::remove_file(&there).unwrap();
        }
        assert!(built.exists(), "a link's target is left alone");
    }

    #[test]
    fn a_binary_that_an_acl_lets_somebody_write_is_not_root_s() {
        if !nix::unistd::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let there = dir.path().join("there");
        copy(Path::new("/bin/true"), &there).unwrap();
        let mode = |mode| fs::set_permissions(&there, Permissions::from_mode(mode)).unwrap();
        mode(0o771);
        assert!(is_installed(Path::new("/bin/true"), &there), "root's group is root");
        let all = ringfence_files::Permissions { own: 7, theirs: 7 };
        // Not every file system has ACLs.
        if ringfence_files::share(&fs::File::open(&there).unwrap(), Some(65534), all).is_ok() {
            mode(0o771);
            assert!(!is_installed(Path::new("/bin/true"), &there));
        }
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
