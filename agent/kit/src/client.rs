//! What leads an agent to its run's endpoint: variables and arguments, and a directory for the files that it keeps.

use super::{Endpoint, Error};
use nix::unistd::{Uid, User, getuid};
use ringfence_files::{Access, Dir};
use ringfence_policy::kit::{self, Kit};
use ringfence_wire::tie::VARIABLE;
use std::{
    ffi::{OsStr, OsString},
    io::Write as _,
    os::unix::process::CommandExt as _,
    path::Path,
    process::{Command, Output, Stdio},
};

/// Writes standard input to a file whose name is the first argument: whole, and in the place of whatever is there.
const WRITE: &str = r#"new=$(mktemp -- "$1.XXXXXX") && cat > "$new" && mv -fT -- "$new" "$1""#;

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

    /// The user.
    pub fn user(&self) -> &User {
        &self.0
    }

    /// Makes a directory in this user's home, as this user.
    fn make(&self, agent: &str, dir: &Path) -> Result<(), Error> {
        let failed = |why| Error::State { agent: agent.to_owned(), dir: dir.to_owned(), why };
        if self.0.uid == getuid() {
            return Dir::make(dir).map(drop).map_err(|error| failed(error.to_string()));
        }
        let mut mkdir = self.command("/bin/mkdir");
        mkdir.args(["-p", "-m", "700", "--"]).arg(dir).stdin(Stdio::null());
        succeeded(mkdir.output()).map_err(failed)
    }

    /// Puts a file into such a directory, in the place of whatever has its name.
    fn write(&self, agent: &str, dir: &Path, (name, text): (&str, &str)) -> Result<(), Error> {
        let path = dir.join(name);
        let failed = |why| Error::State { agent: agent.to_owned(), dir: path.clone(), why };
        if self.0.uid == getuid() {
            let written = Dir::make(dir)
                .and_then(|dir| dir.replace(OsStr::new(name), text.as_bytes(), Access::Mode(0o600)));
            return written.map_err(|error| failed(error.to_string()));
        }
        let mut shell = self.command("/bin/sh");
        shell.args(["-c", WRITE, "sh"]).arg(&path).env("PATH", "/usr/bin:/bin");
        let written = shell.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let written = written.and_then(|mut child| {
            if let Some(mut stdin) = child.stdin.take() {
                stdin.write_all(text.as_bytes())?;
            }
            child.wait_with_output()
        });
        succeeded(written).map_err(failed)
    }

    /// A command of this user's: root does not follow what a user puts in its own home.
    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.uid(self.0.uid.as_raw()).gid(self.0.gid.as_raw()).env_clear();
        command
    }
}

fn succeeded(output: std::io::Result<Output>) -> Result<(), String> {
    let output = output.map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).trim_end().to_owned())
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
    /// Fills in a kit's values, and makes the agent's own directory and the files that are to be in it.
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
        let address = endpoint.url();
        let tie = endpoint.tie().map(|tie| (format!("@{}", tie.name), tie.program.display().to_string()));
        let (socket, program) = tie.clone().unwrap_or_default();
        // Its agent's hooks name the program in JSON and in shell text, and agents compare what they allow as text.
        let tying = is_plain(&program).then(|| kit.tying());
        let kit = tying.as_ref().unwrap_or(kit);
        let values = [
            (kit::ENDPOINT, address.as_str()),
            (kit::TOKEN, endpoint.token()),
            (kit::STATE, &state),
            (kit::TIE, &socket),
            (kit::RUNTIME, &program),
        ];
        for (name, text) in kit.files.iter().filter(|_| !state.is_empty()) {
            runner.write(agent, Path::new(&state), (name, &fill(text, &values)))?;
        }
        let mut client = Self::filled(kit, &values);
        // Whatever the kit says: by it a tool's shell finds the way.
        client.variables.extend(tie.map(|(socket, _)| (VARIABLE.to_owned(), socket)));
        Ok(client)
    }

    fn filled(kit: &Kit, values: &[(&str, &str)]) -> Self {
        let fill = |text: &str| fill(text, values);
        Self {
            variables: kit.environment.iter().map(|(name, text)| (name.clone(), fill(text))).collect(),
            arguments: kit.arguments.iter().map(|text| fill(text).into()).collect(),
        }
    }
}

/// Whether a path is the same in JSON and in a shell's text as it is; an empty one is none.
fn is_plain(path: &str) -> bool {
    path.starts_with('/') && path.bytes().all(|b| b.is_ascii_alphanumeric() || b"/._-+@".contains(&b))
}

/// A kit's text with the run's values in it.
fn fill(text: &str, values: &[(&str, &str)]) -> String {
    values.iter().fold(text.to_owned(), |text, (name, value)| text.replace(name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_would_need_quotes_is_not_plain() {
        assert!(is_plain("/usr/local/bin/ringfence-runtime") && is_plain("/home/a_b/.x-1+2@3"));
        for odd in ["", "ringfence-runtime", "/a b/c", "/a'b", "/a\"b", "/$HOME/a", "/a\\b", "/\u{e9}"] {
            assert!(!is_plain(odd), "{odd}");
        }
    }
}
