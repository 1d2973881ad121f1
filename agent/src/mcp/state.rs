//! Where a user's sessions are kept: the database, the journals beside it, the tools that were seen before.

use super::{client, journal::sha256, ready};
use crate::core::paths::Paths;
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
pub(crate) enum Error {
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

/// The places of one database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Places {
    /// The database.
    pub(crate) db: PathBuf,
    /// The daemon's socket, where no database was named: its auditor serves where it answers.
    pub(crate) daemon: Option<PathBuf>,
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
    pub(crate) fn find(db: Option<&str>) -> Result<Self, Error> {
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
    pub(crate) fn on_record(db: Option<&str>) -> Result<Self, Error> {
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
    pub(crate) fn locate(db: Option<&str>) -> Result<Self, Error> {
        let daemon = db.is_none().then(|| Paths::from_env().mcp_socket());
        let db = match db {
            Some(named) => expand(named)?,
            None => base("XDG_DATA_HOME", ".local/share")?.join("ringfence/audit.db"),
        };
        let db = std::path::absolute(&db).map_err(|source| Error::Make { path: db.clone(), source })?;
        let mut journals = db.clone().into_os_string();
        journals.push(".journals");
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
    pub(crate) fn make(&self) -> Result<(), Error> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.journals)
            .map_err(|source| Error::Make { path: self.journals.clone(), source })
    }

    /// Journal of a session.
    pub(crate) fn journal(&self, session: &str) -> PathBuf {
        self.journals.join(format!("{session}.journal"))
    }

    /// The file with the tools of a server that were called before.
    pub(crate) fn seen(&self, server: &str) -> PathBuf {
        let name: String = sha256(server.as_bytes()).chars().take(20).collect();
        self.journals.join(format!("{name}.tools"))
    }

    /// Every journal there is, with its session's id, newest first.
    pub(crate) fn journals(&self) -> Vec<(String, PathBuf)> {
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

    /// The socket of this database's auditor. Its name is short whatever the database's is: a socket's path holds 107
    /// bytes. Its directory is the user's alone.
    ///
    /// # Errors
    /// Where the directory cannot be made, or is somebody else's.
    pub(crate) fn socket(&self) -> io::Result<PathBuf> {
        let uid = nix::unistd::geteuid().as_raw();
        let runtime =
            env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| dir.is_absolute() && dir.is_dir());
        let dir = match runtime {
            Some(runtime) => runtime.join("ringfence"),
            None => PathBuf::from(format!("/tmp/ringfence-{uid}")),
        };
        DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        let found = fs::symlink_metadata(&dir)?;
        if !found.is_dir() || found.uid() != uid || found.mode() & 0o077 != 0 {
            return Err(io::Error::other(format!("{} is not this user's alone", dir.display())));
        }
        let digest = Sha256::digest(self.db.as_os_str().as_encoded_bytes());
        let name: String = digest.iter().take(10).map(|byte| format!("{byte:02x}")).collect();
        Ok(dir.join(name + ".sock"))
    }

    /// The user's rules.
    pub(crate) fn rules(&self) -> PathBuf {
        self.config.join("rules.yaml")
    }
}

/// A path as a configuration has it: a leading `~/` is the home directory.
///
/// # Errors
/// Where the home directory is not known.
pub(crate) fn expand(path: &str) -> Result<PathBuf, Error> {
    match path.strip_prefix("~/") {
        Some(rest) => Ok(home()?.join(rest)),
        None if path == "~" => home(),
        None => Ok(PathBuf::from(path)),
    }
}

fn base(variable: &str, below_home: &str) -> Result<PathBuf, Error> {
    match env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute()) {
        Some(path) => Ok(path),
        None => Ok(home()?.join(below_home)),
    }
}

fn home() -> Result<PathBuf, Error> {
    env::home_dir().filter(|home| home.is_absolute()).ok_or(Error::NoHome)
}

/// A server's name where none was given: its program's.
pub(crate) fn name_of(command: &[OsString]) -> String {
    let program = command.first().map(Path::new).and_then(Path::file_stem);
    program.map_or_else(|| "server".to_owned(), |name| name.to_string_lossy().into_owned())
}
