//! What leads an agent to its run's endpoint: variables and arguments, and a directory for the files that it keeps.

use super::{Endpoint, Error};
use nix::unistd::{Uid, User, getuid};
use ringfence_files::Dir;
use ringfence_policy::kit::{self, Kit};
use std::{
    ffi::OsString,
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Command, Stdio},
};

/// The user that an agent runs as.
pub struct Runner(User);

impl Runner {
    /// By name or number; the caller, without one.
    pub fn named(name: Option<&str>) -> Option<Self> {
        let user = match name {
            Some(name) => match name.parse() {
                Ok(number) => User::from_uid(Uid::from_raw(number)),
                Err(_) => User::from_name(name),
            },
            None => User::from_uid(getuid()),
        };
        user.ok().flatten().map(Self)
    }

    /// Makes a directory in this user's home, as this user.
    fn make(&self, agent: &str, dir: &Path) -> Result<(), Error> {
        let failed = |why| Error::State { agent: agent.to_owned(), dir: dir.to_owned(), why };
        if self.0.uid == getuid() {
            return Dir::make(dir).map(drop).map_err(|error| failed(error.to_string()));
        }
        // Root does not follow what a user puts in its own home.
        let mut mkdir = Command::new("/bin/mkdir");
        mkdir.args(["-p", "-m", "700", "--"]).arg(dir).uid(self.0.uid.as_raw()).gid(self.0.gid.as_raw());
        let made =
            mkdir.env_clear().stdin(Stdio::null()).output().map_err(|error| failed(error.to_string()))?;
        if made.status.success() {
            return Ok(());
        }
        Err(failed(String::from_utf8_lossy(&made.stderr).trim_end().to_owned()))
    }
}

/// What a container has of its kit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    /// Variables.
    pub variables: Vec<(String, String)>,
    /// Arguments that come before the caller's.
    pub arguments: Vec<OsString>,
}

impl Client {
    /// Fills in a kit's values, and makes the agent's own directory.
    ///
    /// # Errors
    /// [`Error::State`].
    pub fn prepare(agent: &str, kit: &Kit, endpoint: &Endpoint, runner: &Runner) -> Result<Self, Error> {
        let state = match &kit.state {
            None => String::new(),
            Some(below) => {
                let dir = runner.0.dir.join(below);
                runner.make(agent, &dir)?;
                dir.to_string_lossy().into_owned()
            }
        };
        Ok(Self::filled(
            kit,
            &[(kit::ENDPOINT, &endpoint.url()), (kit::TOKEN, endpoint.token()), (kit::STATE, &state)],
        ))
    }

    fn filled(kit: &Kit, values: &[(&str, &str)]) -> Self {
        let fill =
            |text: &str| values.iter().fold(text.to_owned(), |text, (name, value)| text.replace(name, value));
        Self {
            variables: kit.environment.iter().map(|(name, text)| (name.clone(), fill(text))).collect(),
            arguments: kit.arguments.iter().map(|text| fill(text).into()).collect(),
        }
    }
}
