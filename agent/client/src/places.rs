//! Where a user's sessions are kept: the database, the journals beside it, the tools that were seen before.

use super::{ready, sessions as client};
use ringfence_base::paths::Paths;
use ringfence_files::Dir;
use ringfence_session::journal::sha256;
use sha2::{Digest, Sha256};
use std::{
    env,
    ffi::OsString,
    fs::{self, DirBuilder},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

/// Why the places cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing says where home is.
    #[error("the home directory is not known; set HOME, or name the file with --db")]
    NoHome,
    /// A database was named that nobody made yet: asking would make it.
    #[error("there is no audit database {}; `ringfence mcp --db FILE` makes one when a session begins, and without --db the usual one is asked", .0.display())]
    NoDatabase(PathBuf),
    /// A database that cannot be used.
    #[error(transparent)]
    Database(#[from] ready::Error),
    /// A directory cannot be made.
    #[error("cannot make the directory {}", path.display())]
    Make {
        /// The directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// What the journals' directory has behind the database's name.
pub const JOURNALS: &str = ".journals";

/// The places of one database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// The database.
    pub db: PathBuf,
    /// The daemon's socket, where no database was named: its auditor serves where it answers.
    pub daemon: Option<PathBuf>,
    /// The journals' directory: the database's name with `.journals`.
    journals: PathBuf,
    config: PathBuf,
}

impl Places {
    /// The places of `db`, or of the user's default database, for whoever asks its auditor; makes the directories (0700),
    /// unless the daemon's auditor serves. A file that is named and is no database is refused: the auditor would move it
    /// aside.
    ///
    /// # Errors
    /// [`Error`].
    pub fn find(db: Option<&str>) -> Result<Self, Error> {
        let places = Self::locate(db)?;
        if db.is_some() && places.db.exists() {
            ready::check(&places.db)?;
        }
        // Who only asks the daemon's auditor needs none of them.
        if client::connect_daemon(&places).is_none() {
            places.make()?;
        }
        Ok(places)
    }

    /// The same for whoever asks what is on record, or what waits there: a database that is named must be there.
    ///
    /// # Errors
    /// [`Error`].
    pub fn on_record(db: Option<&str>) -> Result<Self, Error> {
        let places = Self::locate(db)?;
        if db.is_some() && !places.db.exists() && !places.journals.exists() {
            return Err(Error::NoDatabase(places.db));
        }
        Self::find(db)
    }

    /// The places of `db`, and makes nothing.
    ///
    /// # Errors
    /// [`Error::NoHome`]; [`Error::Make`] where the working directory is gone.
    pub fn locate(db: Option<&str>) -> Result<Self, Error> {
        let daemon = db.is_none().then(|| Paths::from_env().mcp_socket());
        let db = match db {
            Some(named) => ringfence_base::home::expand(named).ok_or(Error::NoHome)?,
            None => base("XDG_DATA_HOME", ".local/share")?.join("ringfence/audit.db"),
        };
        let db = std::path::absolute(&db).map_err(|source| Error::Make { path: db.clone(), source })?;
        let mut journals = db.clone().into_os_string();
        journals.push(JOURNALS);
        Ok(Self {
            db,
            daemon,
            journals: journals.into(),
            config: base("XDG_CONFIG_HOME", ".config")?.join("ringfence"),
        })
    }

    /// Makes the directories (0700).
    ///
    /// # Errors
    /// [`Error::Make`].
    pub fn make(&self) -> Result<(), Error> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.journals)
            .map_err(|source| Error::Make { path: self.journals.clone(), source })
    }

    /// Journal of a session.
    pub fn journal(&self, session: &str) -> PathBuf {
        self.journals.join(format!("{session}.journal"))
    }

    /// The file with the tools of a server that were called before.
    pub fn seen(&self, server: &str) -> PathBuf {
        let name: String = sha256(server.as_bytes()).chars().take(20).collect();
        self.journals.join(format!("{name}.tools"))
    }

    /// Every journal there is, with its session's id, newest first.
    pub fn journals(&self) -> Vec<(String, PathBuf)> {
        let mut journals: Vec<_> = fs::read_dir(&self.journals)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let path = entry.path();
                let session = path.file_name()?.to_str()?.strip_suffix(".journal")?.to_owned();
                Some((entry.metadata().ok()?.modified().ok()?, session, path))
            })
            .collect();
        journals.sort_unstable_by(|a, b| b.cmp(a));
        journals.into_iter().map(|(_, session, path)| (session, path)).collect()
    }

    /// The socket of this database's auditor.
    ///
    /// # Errors
    /// As [`Self::socket_in`].
    pub fn socket(&self) -> io::Result<PathBuf> {
        self.socket_in().map(|(dir, name)| dir.path().join(name))
    }

    /// The directory of that socket, which is the user's alone, and its name. The name is short whatever the database's is: a
    /// socket's path holds 107 bytes.
    ///
    /// # Errors
    /// Where the directory cannot be made, is a symlink, somebody else's, or open to others.
    pub fn socket_in(&self) -> io::Result<(Dir, String)> {
        let dir = runtime_dir(env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from), Path::new("/tmp"))?;
        let digest = Sha256::digest(self.db.as_os_str().as_encoded_bytes());
        let name: String = digest.iter().take(10).map(|byte| format!("{byte:02x}")).collect();
        Ok((dir, name + ".sock"))
    }

    /// The user's rules.
    pub fn rules(&self) -> PathBuf {
        self.config.join("rules.yaml")
    }
}

/// The directory of this user's sockets: in `XDG_RUNTIME_DIR`, where that is a directory of this user's; else one in `temporary`
/// that bears the user's number.
///
/// # Errors
/// It is a symlink, somebody else's, or open to others; what is wrong is not repaired, for others may have been there.
fn runtime_dir(named: Option<PathBuf>, temporary: &Path) -> io::Result<Dir> {
    // Another user's, as `sudo` and `su` may leave it: its owner can put any directory under any name there.
    let own = |dir: &PathBuf| {
        let found = dir.is_absolute().then(|| fs::metadata(dir).ok()).flatten();
        found.is_some_and(|found| {
            found.is_dir() && found.uid() == nix::unistd::geteuid().as_raw() && found.mode() & 0o022 == 0
        })
    };
    match named.filter(own) {
        Some(runtime) => Dir::claim(&runtime.join("ringfence")),
        None => Dir::claim(&temporary.join(format!("ringfence-{}", nix::unistd::geteuid()))),
    }
}

fn base(variable: &str, below_home: &str) -> Result<PathBuf, Error> {
    match env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute()) {
        Some(path) => Ok(path),
        None => Ok(ringfence_base::home::home().ok_or(Error::NoHome)?.join(below_home)),
    }
}

/// A server's name where none was given: its program's.
pub fn name_of(command: &[OsString]) -> String {
    let program = command.first().map(Path::new).and_then(Path::file_stem);
    program.map_or_else(|| "server".to_owned(), |name| name.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::runtime_dir;
    use std::{
        fs,
        os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink},
        path::Path,
    };

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn sockets_are_in_a_directory_of_this_user_s_alone_or_nowhere() {
        let folder = tempfile::tempdir().unwrap();
        let (named, temporary) = (folder.path().join("run"), folder.path().join("tmp"));
        fs::create_dir(&named).unwrap();
        fs::create_dir(&temporary).unwrap();
        let own = temporary.join(format!("ringfence-{}", nix::unistd::geteuid()));
        let of = |named: Option<&Path>| runtime_dir(named.map(Path::to_owned), &temporary);
        set_mode(&named, 0o700);
        assert_eq!(of(Some(&named)).unwrap().path(), named.join("ringfence"));
        assert_eq!(fs::metadata(named.join("ringfence")).unwrap().mode() & 0o7777, 0o700);
        for none in [None, Some(Path::new("run")), Some(Path::new("/nonexistent"))] {
            assert_eq!(of(none).unwrap().path(), own, "{none:?}");
        }
        // One where others can put a directory of theirs under our name is not used.
        set_mode(&named, 0o777);
        assert_eq!(of(Some(&named)).unwrap().path(), own);
        set_mode(&named, 0o700);
        let refused = |named: Option<&Path>| of(named).unwrap_err().to_string();
        for (dir, named) in [(named.join("ringfence"), Some(&*named)), (own.clone(), None)] {
            set_mode(&dir, 0o750);
            assert!(refused(named).contains("mode 0750"), "{}", refused(named));
            fs::remove_dir(&dir).unwrap();
            symlink(folder.path(), &dir).unwrap();
            assert!(refused(named).contains("symlink"), "{}", refused(named));
            fs::remove_file(&dir).unwrap();
            if nix::unistd::geteuid().is_root() {
                fs::create_dir(&dir).unwrap();
                set_mode(&dir, 0o700);
                chown(&dir, Some(1234), None).unwrap();
                assert!(refused(named).contains("owner 1234"), "{}", refused(named));
                fs::remove_dir(&dir).unwrap();
            }
            of(named).unwrap();
        }
        if nix::unistd::geteuid().is_root() {
            // As `sudo` may leave it: another user's.
            chown(&named, Some(1234), None).unwrap();
            assert_eq!(of(Some(&named)).unwrap().path(), own);
        }
    }
}
