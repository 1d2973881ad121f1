//! Where a session's grant comes from.

use super::{links::resolve_links, parse};
use ringfence_grant::{ExecEntry, Grant, PathEntry, Scope, gate::Programs};
use ringfence_policy::{self as profile, Dirs, LoadErrors, Profile};
use std::{
    env,
    ffi::OsString,
    fs::File,
    io::{self, Read},
    path::{Path, PathBuf},
};

/// Ringfence's own variable.
pub(crate) const VARIABLE: &str = "RINGFENCE_GRANT";
/// The variable that agent-bridle's clients set.
pub(crate) const BRIDLE_VARIABLE: &str = "AGENT_BRIDLE_CAVEATS";

/// Why there is no grant that could be used. A session with a bad grant does not start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A text is no grant.
    #[error("{origin} is not a grant")]
    Read {
        /// The variable or the file.
        origin: String,
        /// What is wrong with it.
        source: parse::Error,
    },
    /// A variable's value is no text.
    #[error("{0} is not UTF-8")]
    Encoding(&'static str),
    /// A configuration file cannot be read.
    #[error("cannot read {}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A configuration file without the table that it is for.
    #[error("{} has no table [{table}]", path.display())]
    NoTable {
        /// The file.
        path: PathBuf,
        /// The table.
        table: &'static str,
    },
    /// The profile.
    #[error("{0}")]
    Profile(LoadErrors),
}

/// A session's grant, and where it came from.
#[derive(Debug)]
pub struct Session {
    /// Links followed.
    pub grant: Grant,
    /// As it was written.
    pub written: Grant,
    /// Where it came from, for people; `None`: from nowhere, and it is nothing.
    pub origin: Option<String>,
    /// The profile that was named: its denies hold too.
    pub profile: Option<Profile>,
}

impl Session {
    /// The profile that the kernel is given: the named one, where nothing was met with it; else the grant's own, with the
    /// named one's denies.
    ///
    /// # Errors
    /// [`Error::Profile`]: an entry that the kernel's rules cannot express.
    pub fn for_the_kernel(&self, workdir: &Path, programs: &dyn Programs) -> Result<Profile, Error> {
        match &self.profile {
            Some(profile) if profile.grant(Some(workdir)) == self.written => Ok(profile.clone()),
            named => {
                let mut profile = profile::of_grant(&self.kernel_grant(programs)).map_err(Error::Profile)?;
                if let Some(named) = named {
                    profile.denials = named.denials.clone();
                    profile.kernel = named.kernel.clone();
                }
                Ok(profile)
            }
        }
    }
}

impl Session {
    /// The grant in files: each bare name is what it finds now, for the kernel knows no PATH of ours. What it does not find
    /// is left out, which denies it.
    pub fn kernel_grant(&self, programs: &dyn Programs) -> Grant {
        let file = |entry: &ExecEntry| -> Option<ExecEntry> {
            let mut names = entry.programs();
            let Some(name) = names.next() else { return Some(entry.clone()) };
            let found = programs.resolve_granted(name).ok()?.target;
            let same = |name: &str| programs.resolve_granted(name).is_ok_and(|other| other.target == found);
            let exact = PathEntry::exact(found.to_str()?).ok()?;
            let all = names.all(same) && entry.paths().has(&exact);
            all.then(|| PathEntry::tree(exact.anchor()).ok().map(ExecEntry::from)).flatten()
        };
        let exec = match &self.grant.exec {
            Scope::All => Scope::All,
            Scope::Only(entries) => Scope::only(entries.iter().filter_map(file)),
        };
        Grant { exec, ..self.grant.clone() }
    }
}

/// The environment, as far as it matters here.
#[derive(Debug, Default)]
pub struct Environment {
    own: Option<OsString>,
    bridle: Option<OsString>,
    config: Option<PathBuf>,
    home: Option<PathBuf>,
}

impl Environment {
    /// This process's.
    pub fn from_env() -> Self {
        let dir = |name: &str| env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let home = dir("HOME");
        let config = dir("XDG_CONFIG_HOME").or_else(|| home.as_ref().map(|home| home.join(".config")));
        // One that is set to nothing is a grant that went missing, not one that nobody meant: the next may give more.
        Self { own: env::var_os(VARIABLE), bridle: env::var_os(BRIDLE_VARIABLE), config, home }
    }

    /// The files that are looked for, with their tables.
    fn files(&self) -> Vec<(PathBuf, &'static str)> {
        let own = self.config.as_ref().map(|config| (config.join("ringfence/tools.toml"), "grant"));
        let bridle = self.home.as_ref().map(|home| (home.join(".agent-bridle/config.toml"), "caveats"));
        own.into_iter().chain(bridle).collect()
    }

    /// The first of: `RINGFENCE_GRANT`, `AGENT_BRIDLE_CAVEATS`, the user's configuration, agent-bridle's. A profile that is
    /// named is met with a variable's grant, and stands in place of the files.
    ///
    /// # Errors
    /// [`Error`]; the first source that is there must be right, the next is no way out.
    pub fn grant(&self, profile: Option<&str>, dirs: &Dirs, workdir: &Path) -> Result<Session, Error> {
        let variable = self.variable()?;
        let named = profile.map(|name| profile::load(name, dirs)).transpose().map_err(Error::Profile)?;
        let given = named.as_ref().map(|profile| profile.grant(Some(workdir)));
        let (written, origin) = match (variable, given, profile) {
            (Some((met, origin)), Some(grant), Some(name)) => {
                (grant.meet(&met), Some(format!("profile {name}, met with {origin}")))
            }
            (None, Some(grant), Some(name)) => (grant, Some(format!("profile {name}"))),
            (Some((grant, origin)), ..) => (grant, Some(origin.to_owned())),
            (None, ..) => match self.file()? {
                Some((grant, origin)) => (grant, Some(origin)),
                None => (Grant::bottom(), None),
            },
        };
        Ok(Session { grant: resolve_links(&written), written, origin, profile: named })
    }

    fn variable(&self) -> Result<Option<(Grant, &'static str)>, Error> {
        for (name, value) in [(VARIABLE, &self.own), (BRIDLE_VARIABLE, &self.bridle)] {
            let Some(value) = value else { continue };
            let text = value.to_str().ok_or(Error::Encoding(name))?;
            let parsed = parse::json(text);
            return Ok(Some((parsed.map_err(|source| Error::Read { origin: name.into(), source })?, name)));
        }
        Ok(None)
    }

    fn file(&self) -> Result<Option<(Grant, String)>, Error> {
        for (path, table) in self.files() {
            let text = match text(&path) {
                Ok(text) => text,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(source) => return Err(Error::File { path, source }),
            };
            let origin = path.display().to_string();
            return match parse::toml(&text, table) {
                Ok(Some(grant)) => Ok(Some((grant, origin))),
                Ok(None) => Err(Error::NoTable { path, table }),
                Err(source) => Err(Error::Read { origin, source }),
            };
        }
        Ok(None)
    }
}

fn text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(parse::MAX_BYTES as u64 + 1).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn json(exec: &str) -> String {
        format!(
            r#"{{"fs_read":"all","fs_write":"all","exec":{{"only":["{exec}"]}},"net":"all","max_calls":"unlimited","valid_for_generation":"all"}}"#
        )
    }

    fn toml(table: &str, exec: &str) -> String {
        format!(
            "[{table}]\nfs_read = \"all\"\nfs_write = \"all\"\nexec = {{ only = [\"{exec}\"] }}\nnet = \"all\"\n\
             max_calls = \"unlimited\"\nvalid_for_generation = \"all\"\n"
        )
    }

    fn exec(session: &Session) -> String {
        serde_json::to_value(&session.grant).unwrap()["exec"].to_string()
    }

    #[test]
    fn the_first_source_counts_and_none_is_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = Dirs { system: dir.path().join("profiles"), user: None };
        let mut from = Environment {
            config: Some(dir.path().join("config")),
            home: Some(dir.path().join("home")),
            ..Environment::default()
        };
        let grant = |from: &Environment, profile| from.grant(profile, &dirs, Path::new("/"));
        let nothing = grant(&from, None).unwrap();
        assert_eq!((nothing.origin, nothing.grant), (None, Grant::bottom()));

        fs::create_dir_all(dir.path().join("home/.agent-bridle")).unwrap();
        fs::write(dir.path().join("home/.agent-bridle/config.toml"), toml("caveats", "bridle")).unwrap();
        assert_eq!(exec(&grant(&from, None).unwrap()), r#"{"only":["bridle"]}"#);
        fs::create_dir_all(dir.path().join("config/ringfence")).unwrap();
        let own = dir.path().join("config/ringfence/tools.toml");
        fs::write(&own, toml("grant", "own")).unwrap();
        assert_eq!(exec(&grant(&from, None).unwrap()), r#"{"only":["own"]}"#);

        from.bridle = Some(json("caveats").into());
        assert_eq!(exec(&grant(&from, None).unwrap()), r#"{"only":["caveats"]}"#);
        from.own = Some(json("variable").into());
        let session = grant(&from, None).unwrap();
        assert_eq!(exec(&session), r#"{"only":["variable"]}"#);
        assert_eq!(session.origin.as_deref(), Some(VARIABLE));

        fs::create_dir(dir.path().join("profiles")).unwrap();
        fs::write(dir.path().join("profiles/p.toml"), toml("grant", "named")).unwrap();
        let met = grant(&from, Some("p")).unwrap();
        assert_eq!(exec(&met), r#"{"only":[["named","variable"]]}"#);
        from = Environment { own: None, bridle: None, ..from };
        assert_eq!(exec(&grant(&from, Some("p")).unwrap()), r#"{"only":["named"]}"#);
    }

    #[test]
    fn a_bad_source_is_no_reason_to_take_the_next() {
        let dir = tempfile::tempdir().unwrap();
        let dirs = Dirs { system: dir.path().into(), user: None };
        let own = Some("{}".into());
        let from = Environment { own, bridle: Some(json("echo").into()), ..Environment::default() };
        let said = |from: &Environment| {
            format!("{:#}", anyhow::Error::from(from.grant(None, &dirs, Path::new("/")).unwrap_err()))
        };
        let error = said(&from);
        assert!(error.contains("RINGFENCE_GRANT") && error.contains("`fs_read` is missing"), "{error}");
        fs::create_dir(dir.path().join("ringfence")).unwrap();
        let file = dir.path().join("ringfence/tools.toml");
        let from = Environment { config: Some(dir.path().into()), ..Environment::default() };
        for (text, expected) in
            [("", "has no table [grant]"), ("x", "not TOML"), ("grant = 1", "with the fields")]
        {
            fs::write(&file, text).unwrap();
            let error = said(&from);
            assert!(error.contains(expected), "{error}");
        }
        assert!(from.grant(Some("absent"), &dirs, Path::new("/")).is_err());
    }
}
