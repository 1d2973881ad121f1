//! A file that is put in place of another later: what would be in its way is found before there is anything to write.

use super::{Access, Dir, contents::give};
use rustix::fs::fsync;
use std::{
    ffi::{OsStr, OsString},
    fs::File,
    io::{self, Read as _},
    os::unix::fs::FileExt as _,
    path::PathBuf,
};

/// A file beside the one in whose place it is put, with the room that it needs. Dropped, it is removed, unless it was kept.
#[derive(Debug)]
pub struct Prepared {
    dir: Dir,
    name: OsString,
    new: OsString,
    file: File,
    is_in_place: bool,
    is_kept: bool,
}

impl Dir {
    /// A file that can come in place of whatever has this name, with room for `room` bytes on disk. Nobody but us can open it
    /// before it has its owner and its mode; until it is put there, it has nothing but zeros.
    ///
    /// # Errors
    /// As open(2), write(2) and fchown(2).
    pub fn prepare(&self, name: &OsStr, access: Access, room: u64) -> io::Result<Prepared> {
        let dir = Self { fd: self.fd.try_clone()?, path: self.path.clone() };
        let (new, mut file) = self.fresh(name)?;
        let written = io::copy(&mut io::repeat(0).take(room), &mut file)
            .and_then(|_| give(&file, access))
            .and_then(|()| file.sync_all());
        let prepared = Prepared { dir, name: name.to_owned(), new, file, is_in_place: false, is_kept: false };
        written.map(|()| prepared)
    }
}

impl Prepared {
    /// Puts it in place with this text, whole and on disk, if `is_due` still says so right before. False: it did not, and it can
    /// be tried again. Once it was put there, it is no more.
    ///
    /// # Errors
    /// Of `is_due`; as write(2) and rename(2). What was there is still there then.
    pub fn put(&mut self, text: &[u8], is_due: impl FnOnce() -> io::Result<bool>) -> io::Result<bool> {
        self.write(text)?;
        if !is_due()? {
            return Ok(false);
        }
        self.dir.rename(&self.new, &self.name)?;
        self.is_in_place = true;
        // Where the file system can: the new name is to survive a crash as the text does.
        let _ = fsync(&self.dir.fd);
        Ok(true)
    }

    /// Has it stay with this text, on disk, also where it is dropped or its process is gone, until it is put in place or
    /// [let go](Self::let_go). Gives where it is.
    ///
    /// # Errors
    /// As write(2).
    pub fn keep(&mut self, text: &[u8]) -> io::Result<PathBuf> {
        self.write(text)?;
        self.is_kept = true;
        let _ = fsync(&self.dir.fd);
        Ok(self.dir.path.join(&self.new))
    }

    /// It is removed where it is dropped, although it was kept.
    pub fn let_go(&mut self) {
        self.is_kept = false;
    }

    fn write(&mut self, text: &[u8]) -> io::Result<()> {
        if self.is_in_place {
            return Err(io::ErrorKind::NotFound.into());
        }
        self.file.write_all_at(text, 0)?;
        self.file.set_len(text.len() as u64)?;
        self.file.sync_all()
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        if !self.is_in_place && !self.is_kept {
            let _ = self.dir.remove(&self.new);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt as _};

    #[test]
    fn it_comes_in_place_once_it_is_due_and_leaves_nothing_otherwise() {
        let root = tempfile::tempdir().unwrap();
        let dir = Dir::open(root.path()).unwrap();
        let (name, path) = (OsStr::new("login"), root.path().join("login"));
        fs::write(&path, "old").unwrap();
        let names = || {
            let mut names = dir.names().unwrap();
            names.sort();
            names
        };
        let mut prepared = dir.prepare(name, Access::Mode(0o640), 4096).unwrap();
        let [_, new] = names().try_into().unwrap();
        let new = root.path().join(new);
        assert_eq!(fs::read(&new).unwrap(), [0; 4096]);
        assert!(!prepared.put(b"new and longer", || Ok(false)).unwrap());
        prepared.put(b"new", || Err(io::ErrorKind::Other.into())).unwrap_err();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert!(prepared.put(b"new", || Ok(true)).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o640);
        prepared.put(b"newer", || Ok(true)).unwrap_err();
        drop(prepared);
        drop(dir.prepare(name, Access::Mode(0o600), 0).unwrap());
        assert_eq!(names(), ["login"]);
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        let mut prepared = dir.prepare(name, Access::Mode(0o600), 64).unwrap();
        let kept = prepared.keep(b"to come").unwrap();
        drop(prepared);
        assert_eq!(fs::read_to_string(&kept).unwrap(), "to come");
        fs::remove_file(kept).unwrap();
        let mut prepared = dir.prepare(name, Access::Mode(0o600), 64).unwrap();
        prepared.keep(b"to come").unwrap();
        prepared.let_go();
        drop(prepared);
        assert_eq!(names(), ["login"]);
        // Its own name would be too long.
        let long = "x".repeat(250);
        fs::write(root.path().join(&long), "").unwrap();
        dir.prepare(OsStr::new(&long), Access::Mode(0o600), 0).unwrap_err();
    }
}
