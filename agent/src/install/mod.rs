//! The service on this host: user, group, directories, binary, unit, profiles. Every step can be repeated.
//!
//! A file that ships and that an administrator may edit is stored twice: in its place, and unchanged below `shipped/`. If the
//! two differ, the file was edited and stays as it is; if only the copy exists, it was deleted and stays deleted.

mod trusted;

use nix::unistd::{Group, User};
use ringfence_base::paths::Paths;
use ringfence_core::{auditor_role::AUDIT_USER, daemon::GROUP};
use ringfence_files::{Access, Dir};
use ringfence_sandbox::caps;
use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

/// The unit file, with places for the binary and the capabilities.
const UNIT: &str = include_str!("../../packaging/ringfence.service");
const UNIT_NAME: &str = "ringfence.service";
/// Where the tools that create users are, whatever the caller's PATH.
const SYSTEM_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Where the binary goes if the service must not run it where it is.
const BINARY: &str = "/usr/local/bin/ringfence";

/// Why installing or uninstalling stopped. The steps before that are done and are skipped the next time.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A file.
    #[error("cannot {what} {}", .path.display())]
    File {
        /// The operation that failed.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A tool.
    #[error("`{command}` failed: {reason}")]
    Tool {
        /// The command line.
        command: String,
        /// Its standard error, or its exit status.
        reason: String,
    },
    /// The user database.
    #[error("cannot look up users and groups")]
    Users(#[source] nix::Error),
    /// A tool succeeded, but the user or group does not exist.
    #[error("the {kind} `{name}` was created but cannot be found; does this host keep its users elsewhere?")]
    NotCreated {
        /// `user` or `group`.
        kind: &'static str,
        /// Its name.
        name: &'static str,
    },
}

/// A file that ships with the binary.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ShippedProfile {
    /// Its name.
    pub(crate) file: &'static str,
    /// Its content.
    pub(crate) text: &'static str,
}

/// Where Ringfence is installed: this host, or in tests a directory.
#[derive(Debug)]
pub(crate) struct Installation {
    /// Our directories.
    pub(crate) paths: Paths,
    units: PathBuf,
}

impl Installation {
    /// The installation of this host.
    pub(crate) fn new(paths: Paths) -> Self {
        Self { paths, units: "/etc/systemd/system".into() }
    }

    /// Creates everything that is missing; returns what it did, as sentences.
    ///
    /// # Errors
    /// [`Error`].
    pub(crate) fn install(&self, shipped: &[ShippedProfile]) -> Result<Vec<String>, Error> {
        let mut done = Vec::new();
        create_group(&mut done)?;
        let user = create_user(&mut done)?;
        for (dir, mode) in [
            (self.paths.config.clone(), 0o755),
            (self.paths.profiles(), 0o755),
            (self.shipped(), 0o755),
            (self.paths.state.clone(), 0o700),
        ] {
            create_dir(&dir, mode, &mut done)?;
        }
        Dir::open_trusted(&self.paths.state)
            .and_then(|dir| dir.set_owner(user.uid.as_raw(), user.gid.as_raw()))
            .map_err(file("chown", &self.paths.state))?;
        for profile in shipped {
            self.ship(&self.paths.profiles().join(profile.file), profile.text, &mut done)?;
        }
        if self.units.is_dir() {
            let binary = trusted::binary(Path::new(BINARY), &mut done)?;
            self.ship(&self.units.join(UNIT_NAME), &unit(&binary), &mut done)?;
        }
        if done.is_empty() {
            done.push("everything was installed already".into());
        }
        Ok(done)
    }

    /// Whether systemd runs as this host's service manager.
    pub(crate) fn has_systemd(&self) -> bool {
        sd_notify::booted().unwrap_or(false)
    }

    /// Enables the daemon at boot, and with `start` (re)starts it now, with this binary.
    ///
    /// # Errors
    /// systemctl failed.
    pub(crate) fn enable(&self, start: bool) -> Result<(), Error> {
        run("systemctl", &["daemon-reload"])?;
        run("systemctl", &["enable", "--quiet", UNIT_NAME])?;
        if start { run("systemctl", &["restart", UNIT_NAME]) } else { Ok(()) }
    }

    /// Waits for the daemon, which is stopping, to end.
    pub(crate) fn wait_for_daemon(&self) {
        for _ in 0..300 {
            if !self.paths.admin_socket().exists() {
                break;
            }
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Removes the unit and the runtime directory, with `purge` everything but the binary; returns what it did, as sentences.
    /// Enforcement has ended before.
    ///
    /// # Errors
    /// [`Error`].
    pub(crate) fn uninstall(&self, purge: bool) -> Result<Vec<String>, Error> {
        let mut done = Vec::new();
        let unit = self.units.join(UNIT_NAME);
        if unit.exists() {
            if self.has_systemd() {
                run("systemctl", &["disable", "--quiet", "--now", UNIT_NAME])?;
            }
            remove(&unit, &mut done)?;
            let _ = fs::remove_file(self.shipped().join(UNIT_NAME));
            if self.has_systemd() {
                run("systemctl", &["daemon-reload"])?;
            }
        }
        remove(&self.paths.runtime, &mut done)?;
        if purge {
            remove(&self.paths.config, &mut done)?;
            remove(&self.paths.state, &mut done)?;
            if User::from_name(AUDIT_USER).map_err(Error::Users)?.is_some() {
                run_first(&[("userdel", &[AUDIT_USER]), ("deluser", &[AUDIT_USER])])?;
                done.push(format!("user {AUDIT_USER} removed"));
            }
            if Group::from_name(GROUP).map_err(Error::Users)?.is_some() {
                run_first(&[("groupdel", &[GROUP]), ("delgroup", &[GROUP])])?;
                done.push(format!("group {GROUP} removed"));
            }
        }
        Ok(done)
    }

    fn shipped(&self) -> PathBuf {
        self.paths.config.join("shipped")
    }

    /// Installs or updates a file, unless somebody has edited or deleted it.
    fn ship(&self, path: &Path, text: &str, done: &mut Vec<String>) -> Result<(), Error> {
        let copy = self.shipped().join(path.file_name().unwrap_or(path.as_os_str()));
        let (there, before) = (read(path)?, read(&copy)?);
        if there.as_deref() == Some(text.as_bytes()) && before.as_deref() == Some(text.as_bytes()) {
            return Ok(());
        }
        let edited = match (&there, &before) {
            (Some(there), before) => there != text.as_bytes() && before.as_ref() != Some(there),
            (None, before) => before.is_some(),
        };
        if edited {
            if before.as_deref() != Some(text.as_bytes()) {
                done.push(format!(
                    "{} was edited and is kept; the shipped one is {}",
                    path.display(),
                    copy.display()
                ));
            }
        } else {
            if there.as_deref() != Some(text.as_bytes()) {
                done.push(format!(
                    "{} {}",
                    path.display(),
                    if there.is_some() { "updated" } else { "installed" }
                ));
            }
            write(path, text)?;
        }
        write(&copy, text)
    }
}

/// The unit that starts the binary at this path.
fn unit(binary: &Path) -> String {
    let kept = caps::CORE.iter().chain(caps::CORE_START);
    let kept = kept.map(|keep| keep.capability.to_string()).collect::<Vec<_>>().join(" ");
    UNIT.replace("@BINARY@", &binary.display().to_string()).replace("@CAPABILITIES@", &kept)
}

fn create_group(done: &mut Vec<String>) -> Result<Group, Error> {
    let find = || Group::from_name(GROUP).map_err(Error::Users);
    if let Some(group) = find()? {
        return Ok(group);
    }
    run_first(&[("groupadd", &["--system", GROUP]), ("addgroup", &["-S", GROUP])])?;
    done.push(format!("group {GROUP} created: its members may use `ringfence run` with the daemon"));
    find()?.ok_or(Error::NotCreated { kind: "group", name: GROUP })
}

fn create_user(done: &mut Vec<String>) -> Result<User, Error> {
    let find = || User::from_name(AUDIT_USER).map_err(Error::Users);
    if let Some(user) = find()? {
        return Ok(user);
    }
    let long = ["--system", "--user-group", "--no-create-home", "--home-dir", "/nonexistent", "--shell"];
    let long: Vec<&str> = long.into_iter().chain(["/usr/sbin/nologin", AUDIT_USER]).collect();
    let short = ["-S", "-D", "-H", "-h", "/nonexistent", "-s", "/sbin/nologin", AUDIT_USER];
    run_first(&[("useradd", &long), ("adduser", &short)])?;
    done.push(format!("user {AUDIT_USER} created: the auditor runs as this user"));
    find()?.ok_or(Error::NotCreated { kind: "user", name: AUDIT_USER })
}

/// Runs the first of these tools that exists.
fn run_first(tools: &[(&str, &[&str])]) -> Result<(), Error> {
    let exists = |name: &str| SYSTEM_PATH.split(':').any(|dir| Path::new(dir).join(name).exists());
    match tools.iter().find(|(name, _)| exists(name)) {
        Some((name, args)) => run(name, args),
        None => {
            let names: Vec<&str> = tools.iter().map(|(name, _)| *name).collect();
            let reason = "not found; on Debian it is in the package passwd".to_owned();
            Err(Error::Tool { command: names.join("` or `"), reason })
        }
    }
}

fn run(name: &str, args: &[&str]) -> Result<(), Error> {
    let failed = |reason: String| Error::Tool { command: format!("{name} {}", args.join(" ")), reason };
    let output = Command::new(name)
        .args(args)
        .env("PATH", SYSTEM_PATH)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed(error.to_string()))?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(failed(if message.is_empty() { output.status.to_string() } else { message }))
}

fn file(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.to_owned();
    move |source| Error::File { what, path, source }
}

fn create_dir(path: &Path, mode: u32, done: &mut Vec<String>) -> Result<(), Error> {
    let existed = path.is_dir();
    let dir = Dir::make_trusted(path, 0o755).map_err(file("create", path))?;
    if !existed {
        done.push(format!("{} created", path.display()));
    }
    dir.set_mode(mode).map_err(file("set the mode of", path))
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, Error> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(file("read", path)(error)),
    }
}

/// Replaces a file atomically; everybody may read it.
fn write(path: &Path, text: &str) -> Result<(), Error> {
    ringfence_files::replace(path, text.as_bytes(), Access::Mode(0o644)).map_err(file("write", path))
}

fn remove(path: &Path, done: &mut Vec<String>) -> Result<(), Error> {
    let removed = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    match removed {
        Ok(()) => done.push(format!("{} removed", path.display())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(file("remove", path)(error)),
    }
    Ok(())
}

#[cfg(test)]
mod tests;
