//! The user's systemd service: written, started, stopped and removed.

use ringfence_files::Access;
use std::{
    env,
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
};

/// The unit's name.
pub const NAME: &str = "ringfence.service";

/// Why the service could not be changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Nothing says where home is.
    #[error("the home directory is not known; set HOME")]
    NoHome,
    /// A file.
    #[error("cannot {what} {}", .path.display())]
    File {
        /// `write`, `remove`, ...
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A path cannot stand in a unit.
    #[error("{what}, {}, cannot be written into a unit: it has a quote, a backslash, a line end or is not UTF-8", .path.display())]
    Path {
        /// Whose path.
        what: &'static str,
        /// The path.
        path: PathBuf,
    },
    /// There is no systemctl.
    #[error("cannot run systemctl; without systemd start `ringfence agent start` by other means")]
    NoSystemctl(#[source] io::Error),
    /// There is no service manager of this user to talk to.
    #[error(
        "systemd's manager of this user cannot be reached ({0}; its own message is above): nothing was changed. It is there for who logs in, not behind `su` or `sudo`; `ringfence agent start` does without"
    )]
    NoManager(ExitStatus),
    /// It failed.
    #[error("`systemctl --user {0}` failed ({1}); its own message is above")]
    Systemctl(String, ExitStatus),
}

/// The variables that say where a user's files are. The service is to look where the one who installs it does, and has
/// another environment than a login.
const PLACES: [&str; 2] = ["XDG_CONFIG_HOME", "XDG_DATA_HOME"];

fn place(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}

fn unit() -> Result<PathBuf, Error> {
    let config = place(PLACES[0]).or_else(|| env::home_dir().map(|home| home.join(".config")));
    Ok(config.ok_or(Error::NoHome)?.join("systemd/user").join(NAME))
}

/// A path as it stands between quotes in a unit.
fn quoted(what: &'static str, path: &Path) -> Result<String, Error> {
    let text = path.to_str().filter(|p| !p.contains(['"', '\\', '\n']));
    let text = text.ok_or_else(|| Error::Path { what, path: path.to_owned() })?;
    Ok(text.replace('%', "%%"))
}

fn text(binary: &Path, places: &[(&'static str, PathBuf)]) -> Result<String, Error> {
    // systemd expands $ in commands, % everywhere.
    let path = quoted("the path of this binary", binary)?.replace('$', "$$");
    let mut environment = String::new();
    for (variable, place) in places {
        environment += &format!("Environment=\"{variable}={}\"\n", quoted(variable, place)?);
    }
    Ok(format!(
        "# Written by `ringfence agent init`; `ringfence agent init --uninstall` removes it.\n\
         [Unit]\n\
         Description=Ringfence: LLM workers of this user's agents\n\
         \n\
         [Service]\n\
         Type=notify\n\
         {environment}\
         ExecStart=\"{path}\" start\n\
         ExecReload=/bin/kill -HUP $MAINPID\n\
         Restart=on-failure\n\
         RestartSec=2\n\
         TimeoutStopSec=60\n\
         NoNewPrivileges=yes\n\
         \n\
         [Install]\n\
         WantedBy=default.target\n"
    ))
}

/// Writes the unit, enables and starts it. Returns its path.
///
/// # Errors
/// [`Error`].
pub fn install() -> Result<PathBuf, Error> {
    let path = unit()?;
    let file = |what, path: &Path| {
        let path = path.to_owned();
        move |source| Error::File { what, path, source }
    };
    let this = Path::new("/proc/self/exe");
    let binary = fs::canonicalize(this).map_err(file("find", this))?;
    let places: Vec<_> = PLACES.into_iter().filter_map(|name| Some((name, place(name)?))).collect();
    let text = text(&binary, &places)?;
    // Before anything is written: a unit that nobody can start would be in the way.
    reachable()?;
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).map_err(file("make", dir))?;
    }
    ringfence_files::replace(&path, text.as_bytes(), Access::Mode(0o644)).map_err(file("write", &path))?;
    systemctl(&["daemon-reload"])?;
    // By its path: the manager may look for units elsewhere than `XDG_CONFIG_HOME` says here.
    systemctl(&[OsStr::new("enable"), path.as_os_str()])?;
    systemctl(&["restart", NAME])?;
    Ok(path)
}

/// Stops the service and removes its unit. False: there was none.
///
/// # Errors
/// [`Error`].
pub fn uninstall() -> Result<bool, Error> {
    let path = unit()?;
    if !path.exists() {
        return Ok(false);
    }
    reachable()?;
    systemctl(&["disable", "--now", NAME])?;
    fs::remove_file(&path).map_err(|source| Error::File { what: "remove", path, source })?;
    systemctl(&["daemon-reload"])?;
    Ok(true)
}

fn reachable() -> Result<(), Error> {
    systemctl(&["daemon-reload"]).map_err(|error| match error {
        Error::Systemctl(_, status) => Error::NoManager(status),
        error => error,
    })
}

fn systemctl<S: AsRef<OsStr>>(arguments: &[S]) -> Result<(), Error> {
    let status =
        Command::new("systemctl").arg("--user").args(arguments).status().map_err(Error::NoSystemctl)?;
    if status.success() {
        return Ok(());
    }
    let words: Vec<_> = arguments.iter().map(|word| word.as_ref().to_string_lossy()).collect();
    Err(Error::Systemctl(words.join(" "), status))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_systemd_would_expand_is_escaped() {
        let home = ("XDG_CONFIG_HOME", PathBuf::from("/home/me/100% $mine"));
        let unit = text(Path::new("/opt/a $b 100%/ringfence"), &[home]).unwrap();
        assert!(unit.contains("ExecStart=\"/opt/a $$b 100%%/ringfence\" start\n"), "{unit}");
        assert!(unit.contains("\nEnvironment=\"XDG_CONFIG_HOME=/home/me/100%% $mine\"\n"), "{unit}");
        assert!(text(Path::new("/opt/a\"b"), &[]).is_err());
        let error = text(Path::new("/opt/b"), &[("XDG_DATA_HOME", PathBuf::from("/a\nb"))]).unwrap_err();
        assert!(error.to_string().contains("XDG_DATA_HOME"), "{error}");
        assert!(!text(Path::new("/opt/b"), &[]).unwrap().contains("Environment"));
    }
}
