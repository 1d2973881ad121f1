//! One boot for one command: what goes into the guest, and the guest when its command starts.

use super::boot::{self, Guest, Machine};
use super::payload::{Added, Payload};
use super::{glibc, terminal};
use crate::build;
use crate::paths::workspace;
use crate::report::brief;
use crate::setup::{self, Series};
use anyhow::{Context, Result};
use std::path::Path;

/// How long the daemon may take under emulation, in seconds. Verifying the programs takes most of it: about ten seconds on a
/// quiet machine, many more on a busy one.
const DAEMON_SECONDS: u32 = 1000;

/// How much memory a guest has, in MiB.
pub(super) const MEGABYTES: u32 = 1024;

/// What to run, and in what guest.
#[derive(Debug)]
pub(crate) struct Job {
    /// Which kernel.
    pub(crate) series: Series,
    /// Count executed instructions as nanoseconds.
    pub(crate) icount: bool,
    /// More words for the kernel's command line.
    pub(crate) append: String,
    /// Its memory, in MiB.
    pub(crate) megabytes: u32,
    /// Whether ringfence is there, and its daemon runs.
    pub(crate) ringfence: Ringfence,
    /// The binary as it ships, for figures; else as `cargo test` builds it, which takes less time.
    pub(crate) as_it_ships: bool,
    /// Files from the host.
    pub(crate) added: Vec<Added>,
    /// The command and its arguments.
    pub(crate) command: Vec<String>,
    /// Give the command the caller's terminal.
    pub(crate) on_terminal: bool,
}

/// How much of ringfence a guest has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ringfence {
    /// Not even the binary.
    Absent,
    /// Installed, no daemon.
    Installed,
    /// Installed and the daemon ready before the command starts.
    Running,
}

impl Job {
    /// A command beside a running daemon on a kernel.
    pub(crate) fn new(series: Series, command: &[&str]) -> Job {
        Job {
            series,
            icount: false,
            append: String::new(),
            megabytes: MEGABYTES,
            ringfence: Ringfence::Running,
            as_it_ships: false,
            added: Vec::new(),
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            on_terminal: false,
        }
    }

    /// Builds what is stale, boots, and returns when the command starts.
    pub(crate) fn start(&self) -> Result<Guest> {
        let (kernel, disk) = setup::guest(self.series)?;
        let folder = boot::folder()?;
        self.write_payload(&boot::payload_path(&folder))?;
        let machine = Machine {
            kernel: &kernel,
            disk: &disk,
            append: &self.append,
            megabytes: self.megabytes,
            icount: self.icount,
        };
        brief(&format!("booting a guest with Linux {}", kernel.release), || Guest::boot(&machine, folder))
    }

    fn write_payload(&self, path: &Path) -> Result<()> {
        let mut payload = Payload::create(path)?;
        let (rows, columns) = terminal::size();
        let term = std::env::var("TERM").unwrap_or_else(|_| "dumb".to_owned());
        let job = serde_json::json!({
            "argv": self.command,
            "env": { "TERM": term, "HOME": "/root", "USER": "root", "LOGNAME": "root", "SHELL": "/bin/bash" },
            "terminal": self.on_terminal,
            "size": [rows, columns],
            "install": self.ringfence != Ringfence::Absent,
            "daemon": self.ringfence == Ringfence::Running,
            "daemon_seconds": DAEMON_SECONDS,
        });
        payload.write("/run/ringfence-guest/job.json", 0o644, job.to_string().as_bytes())?;
        if self.ringfence != Ringfence::Absent {
            add_ringfence(&mut payload, self.as_it_ships)?;
        }
        for added in &self.added {
            payload.add(added)?;
        }
        payload.finish()
    }
}

/// The binary, and the profiles that ship.
fn add_ringfence(payload: &mut Payload, as_it_ships: bool) -> Result<()> {
    let binary = if as_it_ships { build::shipped() } else { build::for_guest() }?;
    glibc::check(&binary)?;
    payload.add(&Added { host: binary, guest: "/usr/local/bin/ringfence".into() })?;
    let profiles = workspace().join("profiles");
    for entry in
        std::fs::read_dir(&profiles).with_context(|| format!("cannot read {}", profiles.display()))?
    {
        let path = entry.with_context(|| format!("cannot read {}", profiles.display()))?.path();
        if let Some(name) = path.file_name().filter(|_| path.extension().is_some_and(|end| end == "toml")) {
            let guest = Path::new("/etc/ringfence/profiles").join(name);
            payload.add(&Added { host: path.clone(), guest })?;
        }
    }
    Ok(())
}
