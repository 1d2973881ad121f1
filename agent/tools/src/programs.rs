//! What a bare program name finds: the search along PATH.

use ringfence_grant::{
    PathEntry, Scope,
    gate::{Programs, ResolvedProgram},
};
use std::{
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};

/// Where programs are looked for by default.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The programs of this machine. Directories that are not absolute are not searched: what is in them depends on where
/// one stands.
#[derive(Debug, Clone)]
pub struct HostPrograms {
    directories: Vec<PathBuf>,
    /// What a granted name does not mean: programs where their user may write.
    writable: Scope<PathEntry>,
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
        let directories = std::env::split_paths(path).filter(|dir| dir.is_absolute()).collect();
        Self { directories, writable: Scope::none() }
    }

    /// For tools that may write to these paths: a name of their grant passes over every program that they could have
    /// written, in this session or an earlier one with the same grant. Where everything may be written, the system's own
    /// programs still count: those that root owns, in directories that nobody else may write to.
    #[must_use]
    pub fn passing_over(self, writable: &Scope<PathEntry>) -> Self {
        Self { writable: writable.clone(), ..self }
    }

    /// The directories of PATH in which a granted name means nothing.
    pub fn passed_over(&self) -> impl Iterator<Item = &Path> {
        self.directories.iter().map(PathBuf::as_path).filter(|dir| {
            let real = dir.canonicalize();
            real.is_ok_and(|real| self.could_be_written(dir) || self.could_be_written(&real))
        })
    }

    /// Whether a tool could have put there what is there.
    fn could_be_written(&self, path: &Path) -> bool {
        let entries = match &self.writable {
            Scope::All => return !is_of_the_system(path),
            Scope::Only(entries) if entries.is_empty() => return false,
            Scope::Only(entries) => entries,
        };
        // What has no name in a grant is not known to lie outside of it.
        let Some(exact) = path.to_str().and_then(|text| PathEntry::exact(text).ok()) else { return true };
        let mut granting = entries.iter().filter(|entry| entry.has(&exact)).peekable();
        if granting.peek().is_none() {
            return false;
        }
        let everything = PathEntry::exact("/").is_ok_and(|root| granting.all(|entry| entry.has(&root)));
        // The grant alone does not let anyone but root write there.
        let spares_the_system = everything || !rustix::process::geteuid().is_root();
        !(spares_the_system && is_of_the_system(path))
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

    fn resolve_granted(&self, name: &str) -> io::Result<ResolvedProgram> {
        if Path::new(name).file_name() != Some(OsStr::new(name)) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let trusted = |place: PathBuf| {
            let found = found(&place).ok()?;
            let planted = [&place, &found.path, &found.target].map(|path| self.could_be_written(path));
            (!planted.contains(&true)).then_some(found)
        };
        let mut places = self.directories.iter().map(|dir| dir.join(name));
        places.find_map(trusted).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// Whether only root can have put there what is there: it is root's, so are the directories above it, and nobody else may
/// write to them.
fn is_of_the_system(path: &Path) -> bool {
    path.ancestors().enumerate().all(|(above, place)| {
        let Ok(metadata) = fs::metadata(place) else { return false };
        // In a directory with the sticky bit nobody replaces what is root's, but anybody adds something.
        let others = metadata.mode() & 0o022 != 0 && (above < 2 || metadata.mode() & 0o1000 == 0);
        metadata.uid() == 0 && !others
    })
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

    /// Two directories on PATH with a program of the same name in each, and the second one's program by another name in
    /// the first, as a link.
    fn two() -> (tempfile::TempDir, [PathBuf; 2], HostPrograms) {
        let dir = tempfile::tempdir().unwrap();
        let home = dir.path().canonicalize().unwrap();
        let dirs = ["work", "bin"].map(|name| home.join(name));
        for bin in &dirs {
            fs::create_dir(bin).unwrap();
            fs::write(bin.join("tool"), "").unwrap();
            fs::set_permissions(bin.join("tool"), fs::Permissions::from_mode(0o755)).unwrap();
        }
        let programs = HostPrograms::on_path(&std::env::join_paths(&dirs).unwrap());
        (dir, dirs, programs)
    }

    #[test]
    fn a_granted_name_is_nothing_that_its_holder_could_have_written() {
        let (_dir, [work, bin], programs) = two();
        let may_write = |paths: &[&Path]| {
            let entries = paths.iter().map(|path| PathEntry::tree(path.to_str().unwrap()).unwrap());
            programs.clone().passing_over(&Scope::only(entries))
        };
        let means = |programs: &HostPrograms, name: &str| programs.resolve_granted(name).ok().map(|p| p.path);
        assert_eq!(means(&programs, "tool"), Some(work.join("tool")), "nothing may be written");
        assert_eq!(means(&may_write(&[Path::new("/nowhere")]), "tool"), Some(work.join("tool")));
        let planted = may_write(&[&work]);
        assert_eq!(means(&planted, "tool"), Some(bin.join("tool")));
        assert_eq!(
            planted.resolve(Path::new("tool")).unwrap().path,
            work.join("tool"),
            "the search is PATH's"
        );
        assert_eq!(planted.passed_over().collect::<Vec<_>>(), [work.as_path()]);
        assert_eq!(
            means(&may_write(&[&work.join("tool")]), "tool"),
            Some(bin.join("tool")),
            "the file alone"
        );
        assert_eq!(means(&may_write(&[&work, &bin]), "tool"), None);
        assert_eq!(means(&may_write(&[work.parent().unwrap()]), "tool"), None, "the directories themselves");

        // A link to what may be written, and one that may be written itself.
        fs::remove_file(bin.join("tool")).unwrap();
        symlink(work.join("tool"), bin.join("tool")).unwrap();
        assert_eq!(means(&planted, "tool"), None);
        for name in ["", ".", "..", "bin/tool", "/", "absent"] {
            assert_eq!(means(&planted, name), None, "{name}");
        }
    }

    #[test]
    fn where_all_may_be_written_the_systems_programs_still_count() {
        let (_dir, [work, bin], programs) = two();
        let all = programs.passing_over(&Scope::All);
        // Whoever else may write there may have planted it.
        for dir in [&work, &bin] {
            fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).unwrap();
        }
        all.resolve_granted("tool").unwrap_err();
        let system = HostPrograms::on_path(OsStr::new(PATH));
        for writable in [Scope::All, Scope::only(["/".parse().unwrap()])] {
            system.clone().passing_over(&writable).resolve_granted("sh").unwrap();
        }
    }

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
