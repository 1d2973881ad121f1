//! Notifications on the desktop, by `notify-send`.

use super::{
    notice::Notice,
    queue::{Deliver, Delivered, Queue},
    say,
};
use std::{
    env, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// The program.
const PROGRAM: &str = "notify-send";
/// What it needs of the environment, whose other variables are none of its business: a webhook's secret may be among them.
const NEEDED: &[&str] = &[
    "DBUS_SESSION_BUS_ADDRESS",
    "DISPLAY",
    "HOME",
    "LANG",
    "LANGUAGE",
    "PATH",
    "WAYLAND_DISPLAY",
    "XAUTHORITY",
];
const NEEDED_BEGINNINGS: &[&str] = &["LC_", "XDG_"];
/// How long it may take for one.
const PATIENCE: Duration = Duration::from_secs(5);

/// There is no such program.
#[derive(Debug, thiserror::Error)]
#[error(
    "`{PROGRAM}`, which shows desktop notifications, is not installed. Install it (Debian and Ubuntu: apt install libnotify-bin; Fedora: dnf install libnotify; Arch: pacman -S libnotify), or use --webhook"
)]
pub struct Missing;

/// A desktop.
#[derive(Debug)]
pub struct Desktop {
    program: PathBuf,
}

impl Desktop {
    /// Finds the program in the directories of `PATH`.
    ///
    /// # Errors
    /// [`Missing`].
    pub fn find() -> Result<Self, Missing> {
        let path = env::var_os("PATH").unwrap_or_default();
        // A directory that is not whole would be another one after each change of directory.
        let dirs = env::split_paths(&path).filter(|dir| dir.is_absolute());
        let program = dirs.map(|dir| dir.join(PROGRAM)).find(|path| path.is_file());
        program.map(|program| Self { program }).ok_or(Missing)
    }

    /// Its queue.
    pub(crate) fn start(self) -> io::Result<Arc<Queue>> {
        let mut said = String::new();
        let deliver: Deliver = Box::new(move |notice, _| match show(&self.program, notice) {
            Ok(()) => {
                said.clear();
                Delivered::Over
            }
            Err(why) => {
                // A session without a desktop says the same each time.
                if said != why {
                    say(&why);
                    said = why;
                }
                Delivered::Over
            }
        });
        Queue::start("desktop", deliver)
    }
}

/// Shows one, and waits for the program, but not for long.
fn show(program: &Path, notice: &Notice) -> Result<(), String> {
    let (title, text) = notice.text();
    let failed = |what: String| format!("cannot show a notification: {} {what}", program.display());
    let needed = env::vars_os().filter(|(name, _)| {
        let name = name.to_string_lossy();
        NEEDED.iter().any(|one| *one == name) || NEEDED_BEGINNINGS.iter().any(|one| name.starts_with(one))
    });
    let mut child = Command::new(program)
        .env_clear()
        .envs(needed)
        .args(["--app-name=Ringfence", "--urgency=critical", "--", &title, &text])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| failed(format!("cannot be started: {error}")))?;
    let until = Instant::now() + PATIENCE;
    loop {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => return Err(failed(format!("failed ({status}); is there a desktop?"))),
            Ok(None) if Instant::now() < until => thread::sleep(Duration::from_millis(20)),
            Ok(None) | Err(_) => {
                let _ = child.kill();
                let _ = child.wait();
                return Err(failed(format!("took more than {} s", PATIENCE.as_secs())));
            }
        }
    }
}
