//! The certificates that programs of a container with credentials trust: a directory for each such container, root's, with one file.
//! Its name is ours alone; what is in it is what the launcher gave, and the one certificate that the container's process made.

use super::secrets::Sealed;
use ringfence_files::{Access, Dir};
use ringfence_wire::{credentials::Certificate, message::MAX_TRUSTED};
use rustix::{
    fs::{AtFlags, statat},
    io::pread,
};
use std::{
    collections::BTreeSet,
    ffi::OsStr,
    io,
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
};

/// The file.
pub(crate) const FILE: &str = "bundle.pem";
/// Whoever may read in the container reads it, as whatever user.
const DIR_MODE: u32 = 0o755;
const FILE_MODE: u32 = 0o644;

/// Where all of them are.
#[derive(Debug, Clone)]
pub(crate) struct Bundles {
    dir: PathBuf,
}

impl Bundles {
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    fn open(&self) -> io::Result<Dir> {
        let dir = Dir::make_trusted(&self.dir, DIR_MODE)?;
        if dir.meta()?.mode != DIR_MODE {
            dir.set_mode(DIR_MODE)?;
        }
        Ok(dir)
    }

    /// A directory for a container that is to be: nobody had it before.
    pub(crate) fn make(&self, id: &str, trusted: Sealed) -> io::Result<Bundle> {
        let all = self.open()?;
        let name = OsStr::new(id);
        if all.entry(name)?.is_some() {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let made = all.make_below(name, DIR_MODE)?;
        let bundle = Bundle { of: self.clone(), id: id.to_owned(), dir: made, trusted, is_kept: false };
        bundle.dir.set_mode(DIR_MODE)?;
        Ok(bundle)
    }

    /// Removes that of a container which is over.
    pub(crate) fn remove(&self, id: &str) {
        let removed = || -> io::Result<()> {
            let all = Dir::open_trusted(&self.dir)?;
            let name = OsStr::new(id);
            let dir = all.below(name)?;
            for file in dir.names()? {
                dir.remove(&file)?;
            }
            all.remove_dir(name).map(drop)
        };
        match removed() {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!("cannot remove {}: {error}", self.dir.join(id).display());
            }
            _ => {}
        }
    }

    /// Removes those of containers that are no more.
    pub(crate) fn keep_only(&self, ids: &BTreeSet<String>) {
        let names = self.open().and_then(|dir| dir.names());
        let names = names.unwrap_or_else(|error| {
            tracing::warn!("cannot look into {}: {error}", self.dir.display());
            Vec::new()
        });
        for name in names.iter().filter_map(|name| name.to_str()).filter(|name| !ids.contains(*name)) {
            self.remove(name);
        }
    }
}

/// One container's. Unless its container was made, it is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Bundle {
    of: Bundles,
    id: String,
    dir: Dir,
    trusted: Sealed,
    is_kept: bool,
}

impl Bundle {
    /// Its directory.
    pub(crate) fn path(&self) -> PathBuf {
        self.of.dir.join(&self.id)
    }

    /// It is its container's from now on, to be removed with that.
    pub(crate) fn keep(&mut self) {
        self.is_kept = true;
    }

    /// Puts the file there, or another in its place: whole, or not at all.
    pub(crate) fn write(&self, certificate: &Certificate) -> io::Result<()> {
        let mut text = self.trusted()?;
        text.push(b'\n');
        text.extend_from_slice(certificate.as_str().as_bytes());
        self.dir.replace(OsStr::new(FILE), &text, Access::Mode(FILE_MODE))
    }

    /// What the launcher gave. Its descriptor is the launcher's as well, so nothing depends on where that one stands.
    fn trusted(&self) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        let mut chunk = vec![0; 64 << 10];
        while all.len() <= MAX_TRUSTED {
            match pread(&self.trusted, &mut chunk, all.len() as u64)? {
                0 => return Ok(all),
                count => all.extend_from_slice(chunk.get(..count).unwrap_or_default()),
            }
        }
        Err(io::ErrorKind::FileTooLarge.into())
    }

    /// Whether it is the same file for who has this root directory.
    pub(crate) fn is_seen_from(&self, root: BorrowedFd<'_>) -> bool {
        let path = self.path().join(FILE);
        let below = path.strip_prefix("/").unwrap_or(&path);
        let stat = |dir, path: &Path| statat(dir, path, AtFlags::SYMLINK_NOFOLLOW);
        let theirs = stat(root, below);
        let ours = stat(std::os::fd::AsFd::as_fd(&self.dir), Path::new(FILE));
        matches!((theirs, ours), (Ok(theirs), Ok(ours)) if (theirs.st_dev, theirs.st_ino) == (ours.st_dev, ours.st_ino))
    }
}

impl Drop for Bundle {
    fn drop(&mut self) {
        if !self.is_kept {
            self.of.remove(&self.id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
    use std::{
        fs::{self, File},
        io::{Read, Seek, Write},
        os::{fd::AsFd, unix::fs::PermissionsExt},
    };

    use crate::egress::tests::credentials::certificate;

    fn trusted(text: &[u8]) -> Sealed {
        let mut file =
            File::from(memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap());
        file.write_all(text).unwrap();
        let all = SealFlags::SEAL | SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE;
        fcntl_add_seals(&file, all).unwrap();
        Sealed::new(file.into(), MAX_TRUSTED, None).unwrap()
    }

    #[test]
    fn it_is_what_the_launcher_gave_and_the_certificate_and_goes_with_its_container() {
        let dir = tempfile::tempdir().unwrap();
        let all = Bundles::new(dir.path().join("ca"));
        let mut bundle = all.make("0123456789ab", trusted(b"host")).unwrap();
        bundle.write(&certificate()).unwrap();
        bundle.write(&certificate()).unwrap();
        let file = bundle.path().join(FILE);
        assert_eq!(fs::read_to_string(&file).unwrap(), format!("host\n{}", certificate().as_str()));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&file), mode(&bundle.path())), (0o644, 0o755));
        assert_eq!(fs::read_dir(bundle.path()).unwrap().count(), 1, "nothing is left of writing it");
        let root = File::open("/").unwrap();
        assert!(bundle.is_seen_from(root.as_fd()));
        assert!(!bundle.is_seen_from(File::open(dir.path()).unwrap().as_fd()));
        assert!(all.make("0123456789ab", trusted(b"x")).is_err(), "nobody else gets it");
        bundle.keep();
        drop(bundle);
        assert!(file.exists());
        let given_up = all.make("aaaaaaaaaaaa", trusted(b"x")).unwrap().path();
        assert!(!given_up.exists(), "no container was made");
        fs::create_dir(dir.path().join("ca/bbbbbbbbbbbb")).unwrap();
        all.keep_only(&["0123456789ab".to_owned()].into());
        assert!(file.exists() && !dir.path().join("ca/bbbbbbbbbbbb").exists());
        all.remove("0123456789ab");
        assert!(!file.exists());
    }

    #[test]
    fn nothing_is_written_through_a_link_and_no_offset_of_the_launcher_s_counts() {
        let dir = tempfile::tempdir().unwrap();
        let all = Bundles::new(dir.path().join("ca"));
        let given = trusted(b"host");
        let mut launchers = File::from(given.as_fd().try_clone_to_owned().unwrap());
        launchers.rewind().unwrap();
        launchers.read_exact(&mut [0; 4]).unwrap();
        let bundle = all.make("0123456789ab", given).unwrap();
        let victim = dir.path().join("victim");
        fs::write(&victim, "mine").unwrap();
        std::os::unix::fs::symlink(&victim, bundle.path().join(FILE)).unwrap();
        bundle.write(&certificate()).unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "mine");
        assert!(fs::read_to_string(bundle.path().join(FILE)).unwrap().starts_with("host\n"));
        std::os::unix::fs::symlink(dir.path(), dir.path().join("ca/cccccccccccc")).unwrap();
        assert!(all.make("cccccccccccc", trusted(b"x")).is_err());
        all.remove("cccccccccccc");
        assert!(victim.exists());
    }
}
