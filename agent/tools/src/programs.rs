//! What a bare program name finds: the search along PATH.

use ringfence_grant::{
    PathEntry, Scope,
    gate::{Programs, ResolvedProgram},
};
use std::{
    ffi::{OsStr, OsString},
    fs, io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Component, Path, PathBuf},
};

/// Where programs are looked for by default.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Most links on the way to one program, as the kernel has it.
const MAX_LINKS: usize = 40;

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
        let directories = self.directories.iter().map(PathBuf::as_path);
        directories.filter(|dir| dir.exists() && self.could_be_planted(dir))
    }

    /// Whether a tool could decide what a path leads to: by what is at its end, or by a link on its way.
    fn could_be_planted(&self, path: &Path) -> bool {
        let nothing = matches!(&self.writable, Scope::Only(entries) if entries.is_empty());
        // What cannot be followed is not known to lie outside of the grant.
        !nothing && on_the_way(path).map_or(true, |way| way.iter().any(|place| self.could_be_written(place)))
    }

    /// Whether a tool could have put there what is there, or a directory above it in its place.
    fn could_be_written(&self, path: &Path) -> bool {
        let entries = match &self.writable {
            Scope::All => return !is_of_the_system(path),
            Scope::Only(entries) if entries.is_empty() => return false,
            Scope::Only(entries) => entries,
        };
        // What has no name in a grant is not known to lie outside of it.
        let exact = |place: &Path| PathEntry::exact(place.to_str()?).ok();
        let Some(exact) = path.ancestors().map(exact).collect::<Option<Vec<_>>>() else { return true };
        let grants = |entry: &&PathEntry| exact.iter().any(|place| entry.has(place));
        let mut granting = entries.iter().filter(grants).peekable();
        if granting.peek().is_none() {
            return false;
        }
        let everything = PathEntry::exact("/").is_ok_and(|root| granting.all(|entry| entry.has(&root)));
        // The grant alone does not let anyone but root write there.
        let spares_the_system = everything || !rustix::process::geteuid().is_root();
        !(spares_the_system && is_of_the_system(path))
    }

    /// What a tool's own PATH should be: the one that is searched, without the directories in which a granted name means
    /// nothing, or would mean nothing if a tool made them.
    pub fn path(&self) -> OsString {
        let directories = self.directories.iter().filter(|dir| !self.could_be_planted(dir));
        // They came out of such a list, so that none has a colon.
        std::env::join_paths(directories).unwrap_or_else(|_| PATH.into())
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
            let planted = [&place, &found.path, &found.target].map(|path| self.could_be_planted(path));
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

/// Every link on the way along a path, and last where it leads, each by a path without links above it. What is not there may
/// come to be there: it is no link yet.
///
/// # Errors
/// As lstat(2) and readlink(2); too many links.
fn on_the_way(path: &Path) -> io::Result<Vec<PathBuf>> {
    let parts = |path: &Path| -> Vec<OsString> {
        path.components().rev().map(|part| part.as_os_str().to_owned()).collect()
    };
    let (mut way, mut at, mut to_come) = (Vec::new(), PathBuf::from("/"), parts(path));
    while let Some(part) = to_come.pop() {
        let next = match Path::new(&part).components().next() {
            Some(Component::RootDir) => PathBuf::from("/"),
            // Nothing in it is a link, so that the directory above is the one that its name says.
            Some(Component::ParentDir) => at.parent().map_or_else(|| at.clone(), Path::to_owned),
            Some(Component::Normal(name)) => at.join(name),
            _ => continue,
        };
        let is_link = match fs::symlink_metadata(&next) {
            Ok(metadata) => metadata.is_symlink(),
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                false
            }
            Err(error) => return Err(error),
        };
        if !is_link {
            at = next;
            continue;
        }
        if way.len() >= MAX_LINKS {
            return Err(rustix::io::Errno::LOOP.into());
        }
        to_come.extend(parts(&fs::read_link(&next)?));
        way.push(next);
    }
    way.push(at);
    Ok(way)
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
    fn no_link_on_the_way_to_a_granted_program_may_be_written() {
        let (_dir, [work, bin], programs) = two();
        let home = work.parent().unwrap();
        let (real, between) = (home.join("real"), home.join("between"));
        for dir in [&real, &between] {
            fs::create_dir(dir).unwrap();
        }
        fs::rename(bin.join("tool"), real.join("tool")).unwrap();
        symlink("../between/tool", bin.join("tool")).unwrap();
        // A directory on the way is a link, too.
        symlink("../real", between.join("dir")).unwrap();
        symlink("./dir/../real/tool", between.join("tool")).unwrap();
        fs::remove_file(work.join("tool")).unwrap();
        let may_write = |entry: PathEntry| programs.clone().passing_over(&Scope::only([entry]));
        let tree = |path: &Path| PathEntry::tree(path.to_str().unwrap()).unwrap();
        let exact = |path: &Path| PathEntry::exact(path.to_str().unwrap()).unwrap();
        for harmless in [tree(&work), exact(&between.join("tool2")), tree(Path::new("/nowhere"))] {
            let found = may_write(harmless).resolve_granted("tool").unwrap();
            assert_eq!(found.target, real.join("tool"));
        }
        for place in [&bin, &between, &real, &between.join("tool"), &between.join("dir"), &bin.join("tool")] {
            may_write(tree(place)).resolve_granted("tool").unwrap_err();
            may_write(exact(place)).resolve_granted("tool").unwrap_err();
        }
        symlink("round", bin.join("round")).unwrap();
        on_the_way(&bin.join("round")).unwrap_err();
    }

    #[test]
    fn a_tools_path_has_no_directory_that_its_holder_could_have_written() {
        let (_dir, [work, bin], _) = two();
        let home = work.parent().unwrap();
        let (link, absent) = (home.join("link"), home.join("work/absent"));
        symlink("work/to-bin", &link).unwrap();
        symlink("../bin", work.join("to-bin")).unwrap();
        let programs = HostPrograms::on_path(&std::env::join_paths([&work, &link, &bin, &absent]).unwrap());
        let path = |programs: &HostPrograms| std::env::split_paths(&programs.path()).collect::<Vec<_>>();
        assert_eq!(path(&programs), [&work, &link, &bin, &absent].map(PathBuf::clone), "the control");
        let writable = Scope::only([PathEntry::tree(work.to_str().unwrap()).unwrap()]);
        let programs = programs.passing_over(&writable);
        assert_eq!(path(&programs), [bin]);
        assert_eq!(programs.passed_over().collect::<Vec<_>>(), [work.as_path(), link.as_path()]);
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
