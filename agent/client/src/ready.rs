//! Whether a database can be recorded in, found out before a session relies on it. The auditor alone opens it.

use rustix::fs::{Access, access};
use std::{
    io::{self, Read},
    path::{Path, PathBuf},
};

/// How every SQLite database begins; an empty file is one too.
const MAGIC: &[u8; 16] = b"SQLite format 3\0";

/// Why nothing can be recorded in a database.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It, or its directory, where SQLite keeps files beside it.
    #[error("the audit database {} cannot be used: cannot {what} {}", db.display(), path.display())]
    Access {
        /// The database.
        db: PathBuf,
        /// What is not possible.
        what: &'static str,
        /// Where.
        path: PathBuf,
        /// The system's word.
        #[source]
        source: io::Error,
    },
    /// Something else has its name.
    #[error("the audit database {} cannot be used: it is no SQLite database; name another with --db", .0.display())]
    NotOne(PathBuf),
}

/// Checks that `db` can be read and written, or made.
///
/// # Errors
/// [`Error`].
pub fn check(db: &Path) -> Result<(), Error> {
    let fail = |what, path: &Path, source: io::Error| Error::Access {
        db: db.to_owned(),
        what,
        path: path.to_owned(),
        source,
    };
    let folder = db.parent().unwrap_or(Path::new("/"));
    access(folder, Access::WRITE_OK | Access::EXEC_OK).map_err(|e| fail("write in", folder, e.into()))?;
    match access(db, Access::READ_OK) {
        Err(rustix::io::Errno::NOENT) => return Ok(()),
        outcome => outcome.map_err(|e| fail("read", db, e.into()))?,
    }
    access(db, Access::WRITE_OK).map_err(|e| fail("write", db, e.into()))?;
    if !db.is_file() {
        return Err(Error::NotOne(db.to_owned()));
    }
    let mut start = Vec::new();
    let opened =
        ringfence_files::read(db).and_then(|file| file.take(MAGIC.len() as u64).read_to_end(&mut start));
    opened.map_err(|e| fail("read", db, e))?;
    if !start.is_empty() && start != MAGIC { Err(Error::NotOne(db.to_owned())) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::check;
    use std::fs;

    #[test]
    fn what_is_no_database_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let db = folder.path().join("audit.db");
        assert!(check(&db).is_ok(), "it can be made");
        fs::write(&db, "").expect("written");
        assert!(check(&db).is_ok(), "an empty one");
        fs::write(&db, "SQLite format 3\0 and so on").expect("written");
        assert!(check(&db).is_ok());
        for text in ["SQLite format 2\0", "{}"] {
            fs::write(&db, text).expect("written");
            assert!(check(&db).expect_err(text).to_string().contains("no SQLite database"));
        }
        assert!(check(folder.path()).is_err(), "a directory");
        let missing = folder.path().join("not/there/audit.db");
        assert!(check(&missing).expect_err("no folder").to_string().contains("write in"));
    }
}
