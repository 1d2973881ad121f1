//! Readers that are used again: to open a database SQLite reads its whole schema, which takes longer than most answers.

use super::{Error, SessionReader};
use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::Duration,
};

/// Most readers that are kept while nobody asks: each holds pages of the database, up to 2 MB.
const IDLE: usize = 4;

/// Device and inode of a file. A database that was damaged or removed has another in its place.
type Identity = (u64, u64);

/// Readers of one database, for questions from many threads.
#[derive(Debug)]
pub struct SessionReaders {
    path: PathBuf,
    idle: Mutex<Vec<(Identity, SessionReader)>>,
}

impl SessionReaders {
    /// None is open yet.
    pub fn new(path: PathBuf) -> Self {
        Self { path, idle: Mutex::default() }
    }

    /// Asks the database that is there now.
    ///
    /// # Errors
    /// [`Error::Open`], and those of the question.
    pub fn ask<T>(&self, question: impl FnOnce(&SessionReader) -> Result<T, Error>) -> Result<T, Error> {
        self.lend(|reader| {
            let answer = question(&reader);
            Ok((answer, reader))
        })?
    }

    /// The same; after `limit` there is no answer any more.
    ///
    /// # Errors
    /// As [`Self::ask`], and [`Error::Sql`].
    pub fn ask_within<T>(
        &self,
        limit: Duration,
        question: impl FnOnce(&SessionReader) -> Result<T, Error>,
    ) -> Result<T, Error> {
        self.lend(|reader| {
            let reader = reader.within(limit)?;
            let answer = question(&reader);
            Ok((answer, reader.without_limit()?))
        })?
    }

    /// A reader that nobody else has meanwhile; what gives none back has none that can be used again.
    fn lend<T>(
        &self,
        work: impl FnOnce(SessionReader) -> Result<(T, SessionReader), Error>,
    ) -> Result<T, Error> {
        let now = identity(&self.path);
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|(of, _)| Some(*of) == now);
        let kept = idle.pop();
        drop(idle);
        let reader = match kept {
            Some((_, reader)) => reader,
            None => SessionReader::open(&self.path)?,
        };
        let (answer, reader) = work(reader)?;
        // One that was opened while the file changed is neither's for sure.
        if let Some(of) = now.filter(|of| identity(&self.path) == Some(*of)) {
            let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
            if idle.len() < IDLE {
                idle.push((of, reader));
            }
        }
        Ok(answer)
    }
}

fn identity(path: &Path) -> Option<Identity> {
    fs::metadata(path).ok().map(|file| (file.dev(), file.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FILE, Viewer, open};
    use std::thread;

    fn database(sessions: u32) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(FILE);
        let writer = open(&path, 0).expect("opens").writer;
        for n in 0..sessions {
            let text =
                "INSERT INTO sessions (id, server_name, server_command, started_at) VALUES (?1, 's', 's', 0)";
            writer.connection().execute(text, [n]).expect("inserts");
        }
        (folder, path)
    }

    fn counted(reader: &SessionReader) -> Result<usize, Error> {
        Ok(reader.sessions(Viewer(0), 100)?.len())
    }

    #[test]
    fn a_reader_is_used_again_and_without_the_limit_it_had() {
        let (_folder, path) = database(1);
        let readers = SessionReaders::new(path);
        // In a debug build too, a question of this many steps looks at the clock.
        let long = |reader: &SessionReader| {
            let text = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000) SELECT max(i) FROM n";
            reader.connection().query_row(text, [], |row| row.get::<_, i64>(0)).map_err(crate::sql("count"))
        };
        assert!(
            readers.ask_within(Duration::ZERO, long).is_err_and(|error| error.is_late()),
            "it has no time"
        );
        let odd = |reader: &SessionReader| {
            reader.connection().execute_batch("SELECT nothing").map_err(crate::sql("count"))
        };
        assert!(readers.ask_within(Duration::from_secs(600), odd).is_err_and(|error| !error.is_late()));
        assert_eq!(readers.ask(long).expect("it has all the time"), 100_000);
        assert_eq!(readers.ask(counted).expect("reads"), 1);
        assert_eq!(readers.idle.lock().expect("unlocked").len(), 1, "each used the same");
    }

    #[test]
    fn a_database_in_another_s_place_is_the_one_that_is_asked() {
        let (_folder, path) = database(1);
        let readers = SessionReaders::new(path.clone());
        assert_eq!(readers.ask(counted).expect("reads"), 1);
        let (_other, other) = database(3);
        fs::rename(&other, &path).expect("replaced");
        for beside in ["-wal", "-shm"] {
            let _ = fs::remove_file(format!("{}{beside}", path.display()));
        }
        assert_eq!(readers.ask(counted).expect("reads"), 3);
    }

    #[test]
    fn a_crowd_is_answered_and_leaves_few_readers() {
        let (_folder, path) = database(2);
        let readers = SessionReaders::new(path);
        let barrier = std::sync::Barrier::new(12);
        thread::scope(|scope| {
            for _ in 0..12 {
                scope.spawn(|| {
                    let counted = readers.ask(|reader| {
                        barrier.wait();
                        counted(reader)
                    });
                    assert_eq!(counted.expect("reads"), 2);
                });
            }
        });
        assert_eq!(readers.idle.lock().expect("unlocked").len(), IDLE);
    }
}
