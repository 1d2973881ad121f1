//! The user's systemd service: written, started, stopped and removed.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
};

/// The unit's name.
pub(crate) const NAME: &str = "ringfence.service";

/// Why the service could not be changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
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
    /// The binary's path cannot stand in a unit.
    #[error("the path of this binary, {}, cannot be written into a unit: it has a quote, a line end or is not UTF-8", .0.display())]
    Binary(PathBuf),
    /// There is no systemctl.
    #[error("cannot run systemctl; without systemd start `ringfence start` by other means")]
    NoSystemctl(#[source] io::Error),
    /// It failed.
    #[error("`systemctl --user {0}` failed ({1}); its own message is above")]
    Systemctl(String, ExitStatus),
}

fn unit() -> Result<PathBuf, Error> {
    let config = env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|p| p.is_absolute());
    let config = config.or_else(|| env::home_dir().map(|home| home.join(".config"))).ok_or(Error::NoHome)?;
    Ok(config.join("systemd/user").join(NAME))
}

fn text(binary: &Path) -> Result<String, Error> {
    let path = binary
        .to_str()
        .filter(|p| !p.contains(['"', '\\', '\n']))
        .ok_or_else(|| Error::Binary(binary.to_owned()))?;
    // systemd expands % and $ in commands.
    let path = path.replace('%', "%%").replace('$', "$$");
    Ok(format!(
        "# Written by `ringfence init`; `ringfence init --uninstall` removes it.\n\
         [Unit]\n\
         Description=Ringfence: LLM workers of this user's agents\n\
         Documentation=man:ringfence(1)\n\
         \n\
         [Service]\n\
         Type=notify\n\
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
pub(crate) fn install() -> Result<PathBuf, Error> {
    let path = unit()?;
    let file = |what, path: &Path| {
        let path = path.to_owned();
        move |source| Error::File { what, path, source }
    };
    let this = Path::new("/proc/self/exe");
    let binary = fs::canonicalize(this).map_err(file("find", this))?;
    let text = text(&binary)?;
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).map_err(file("make", dir))?;
    }
    fs::write(&path, text).map_err(file("write", &path))?;
    systemctl(&["daemon-reload"])?;
    systemctl(&["enable", NAME])?;
    systemctl(&["restart", NAME])?;
    Ok(path)
}

/// Stops the service and removes its unit. False: there was none.
///
/// # Errors
/// [`Error`].
pub(crate) fn uninstall() -> Result<bool, Error> {
    let path = unit()?;
    if !path.exists() {
        return Ok(false);
    }
    systemctl(&["disable", "--now", NAME])?;
    fs::remove_file(&path).map_err(|source| Error::File { what: "remove", path, source })?;
    systemctl(&["daemon-reload"])?;
    Ok(true)
}

fn systemctl(arguments: &[&str]) -> Result<(), Error> {
    let status =
        Command::new("systemctl").arg("--user").args(arguments).status().map_err(Error::NoSystemctl)?;
    if status.success() { Ok(()) } else { Err(Error::Systemctl(arguments.join(" "), status)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_systemd_would_expand_is_escaped() {
        let unit = text(Path::new("/opt/a $b 100%/ringfence")).unwrap();
        assert!(unit.contains("ExecStart=\"/opt/a $$b 100%%/ringfence\" start\n"), "{unit}");
        assert!(text(Path::new("/opt/a\"b")).is_err());
    }
}
