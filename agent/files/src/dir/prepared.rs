//! A file that is put in place of another later: what would be in its way is found before there is anything to write.

use super::{Access, Dir, contents::give};
use crate::entry::Meta;
use rustix::{fs::fsync, io::Errno};
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
    access: Access,
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
        let name = name.to_owned();
        let prepared = Prepared { dir, name, new, file, access, is_in_place: false, is_kept: false };
        written.map(|()| prepared)
    }
}

impl Prepared {
    /// Its name until it is put in place.
    pub fn own_name(&self) -> &OsStr {
        &self.new
    }

    /// Puts it in place with this text, whole and on disk, if `is_due` still says so right before, and what was there until then
    /// had the text `before`. False: it is not there, and it can be tried again. Once it was put there, it is no more.
    ///
    /// # Errors
    /// Of `is_due`; as write(2) and rename(2). What was there is still there then.
    pub fn put(
        &mut self,
        text: &[u8],
        before: &[u8],
        is_due: impl FnOnce() -> io::Result<bool>,
    ) -> io::Result<bool> {
        self.write(text)?;
        if !is_due()? {
            return Ok(false);
        }
        match self.dir.exchange(&self.new, &self.name) {
            // Another may have come there since it was looked.
            Ok(()) if !self.came_out(before).unwrap_or(false) => {
                self.take_back()?;
                return Ok(false);
            }
            Ok(()) => drop(self.dir.remove(&self.new)),
            // Not every file system can.
            Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
                self.dir.rename(&self.new, &self.name)?;
            }
            Err(error) => return Err(error),
        }
        self.is_in_place = true;
        // Where the file system can: the new name is to survive a crash as the text does.
        let _ = fsync(&self.dir.fd);
        Ok(true)
    }

    /// Whether what has its name now has this text.
    fn came_out(&self, text: &[u8]) -> io::Result<bool> {
        let mut there = Vec::with_capacity(text.len() + 1);
        self.dir.read(&self.new)?.take(text.len() as u64 + 1).read_to_end(&mut there)?;
        Ok(there == text)
    }

    /// Has what came out of its place in there again.
    fn take_back(&self) -> io::Result<()> {
        // Another may come there at this moment, too: what it put there is newer than what came out first.
        for _ in 0..2 {
            match self.dir.exchange(&self.new, &self.name) {
                Ok(()) if self.is_there() => break,
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    return self.dir.rename_new(&self.new, &self.name);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Whether it has its name.
    fn is_there(&self) -> bool {
        let id = |meta: Meta| (meta.dev, meta.ino);
        let there = self.dir.entry(&self.new).and_then(|there| there.map(|there| there.meta()).transpose());
        matches!((there, Meta::of(&self.file)), (Ok(Some(there)), Ok(own)) if id(there) == id(own))
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
        // Somebody took its name.
        if !self.is_there() {
            (self.new, self.file) = self.dir.fresh(&self.name)?;
            give(&self.file, self.access)?;
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
        assert!(!prepared.put(b"new and longer", b"old", || Ok(false)).unwrap());
        prepared.put(b"new", b"old", || Err(io::ErrorKind::Other.into())).unwrap_err();
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        assert!(prepared.put(b"new", b"old", || Ok(true)).unwrap());
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o640);
        prepared.put(b"newer", b"new", || Ok(true)).unwrap_err();
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

    #[test]
    fn what_another_put_there_after_the_look_stays() {
        let root = tempfile::tempdir().unwrap();
        let dir = Dir::open(root.path()).unwrap();
        let (name, path, theirs) =
            (OsStr::new("login"), root.path().join("login"), root.path().join("theirs"));
        let put_after = |came: &dyn Fn()| {
            fs::write(&path, "old").unwrap();
            let mut prepared = dir.prepare(name, Access::Mode(0o600), 64).unwrap();
            let is_due = || {
                came();
                Ok(true)
            };
            let is_put = prepared.put(b"new", b"old", is_due);
            (is_put, prepared)
        };
        for text in ["theirs", "ol", "old and longer", ""] {
            let came = || {
                fs::write(&theirs, text).unwrap();
                fs::rename(&theirs, &path).unwrap();
            };
            let (is_put, mut prepared) = put_after(&came);
            assert_eq!((is_put.unwrap(), fs::read_to_string(&path).unwrap().as_str()), (false, text));
            // It can be tried again.
            assert!(prepared.put(b"new", text.as_bytes(), || Ok(true)).unwrap());
            assert_eq!((fs::read_to_string(&path).unwrap().as_str(), dir.names().unwrap().len()), ("new", 1));
        }
        // Nor is anything put there where nothing is any more, or what is no file.
        let (is_put, prepared) = put_after(&|| fs::remove_file(&path).unwrap());
        assert!(is_put.is_err() && !path.exists());
        drop(prepared);
        let link = || {
            fs::remove_file(&path).unwrap();
            std::os::unix::fs::symlink("elsewhere", &path).unwrap();
        };
        let (is_put, prepared) = put_after(&link);
        assert!(!is_put.unwrap() && fs::read_link(&path).unwrap() == OsStr::new("elsewhere"));
        drop(prepared);
        fs::remove_file(&path).unwrap();
        // The control.
        let (is_put, _prepared) = put_after(&|| ());
        assert!(is_put.unwrap() && fs::read_to_string(&path).unwrap() == "new");
    }

    #[test]
    fn one_whose_name_is_gone_gets_another() {
        let root = tempfile::tempdir().unwrap();
        let dir = Dir::open(root.path()).unwrap();
        let mut prepared = dir.prepare(OsStr::new("login"), Access::Mode(0o640), 64).unwrap();
        fs::remove_file(root.path().join(prepared.own_name())).unwrap();
        let kept = prepared.keep(b"to come").unwrap();
        assert_eq!(fs::read_to_string(&kept).unwrap(), "to come");
        assert_eq!(fs::metadata(&kept).unwrap().permissions().mode() & 0o7777, 0o640);
    }
}
