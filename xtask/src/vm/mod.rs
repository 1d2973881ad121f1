//! `vm`: a guest with ringfence in it, for a shell or one command.

mod boot;
pub(crate) mod frames;
mod glibc;
mod payload;
mod session;
mod terminal;

pub(crate) use payload::Added;
pub(crate) use session::{Job, Ringfence};

use crate::setup::Series;
use anyhow::{Context, Result, bail};
use boot::Guest;
use frames::{FromGuest, ToGuest};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Boots a guest with ringfence in it: an interactive shell, or one command.
///
/// The guest is a small Debian 12 under software emulation; nothing in it is kept. A command's output is streamed, its exit
/// status returned, and standard output is the command's bytes and nothing else. Everything stale is built first.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  cargo xtask vm                                  a shell beside a running daemon\n  \
    cargo xtask vm -- ringfence run -- ls /root     one command\n  \
    cargo xtask vm --kernel 6.1 --bare -- uname -r  an older kernel, no daemon\n  \
    cargo xtask vm --add ./data:/srv/data -- find /srv\n  \
    cargo xtask vm --append 'preempt=full' --bare"
)]
pub(crate) struct Args {
    /// The kernel to boot; `newest` is Debian sid's.
    #[arg(long, value_name = "K", default_value = "6.12")]
    kernel: Series,
    /// Make the guest's nanoseconds executed instructions: one processor, exact and repeatable counts.
    #[arg(long)]
    icount: bool,
    /// More words for the kernel's command line, such as `lsm=capability,landlock`.
    #[arg(long, value_name = "ARGS", default_value = "", allow_hyphen_values = true)]
    append: String,
    /// Put a file or folder into the guest; it becomes root's and keeps its mode.
    #[arg(long, value_name = "HOST:GUEST")]
    add: Vec<Added>,
    /// Leave the daemon off.
    #[arg(long)]
    bare: bool,
    /// Boot without building or installing ringfence at all.
    #[arg(long, hide = true)]
    without_ringfence: bool,
    /// End the guest, with an error, when the command says nothing for so many seconds.
    #[arg(long, value_name = "SECONDS", hide = true)]
    silence: Option<u64>,
    /// The command and its arguments; without, a shell.
    #[arg(last = true, value_name = "CMD")]
    command: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let on_terminal = terminal::is_whole();
    let job = Job {
        series: args.kernel,
        icount: args.icount,
        append: args.append.clone(),
        megabytes: session::MEGABYTES,
        ringfence: match (args.without_ringfence, args.bare) {
            (true, _) => Ringfence::Absent,
            (false, true) => Ringfence::Installed,
            (false, false) => Ringfence::Running,
        },
        as_it_ships: false,
        added: args.add.clone(),
        command: if args.command.is_empty() { vec!["bash".to_owned()] } else { args.command.clone() },
        on_terminal,
    };
    let guest = job.start()?;
    guest.set_patience(args.silence.map(Duration::from_secs))?;
    let raw = on_terminal.then(terminal::Raw::enter).transpose()?;
    let status = converse(guest, on_terminal);
    drop(raw);
    Ok(ExitCode::from(u8::try_from(status? & 0xff).unwrap_or(1)))
}

/// Carries bytes both ways until the command ends; returns its status.
fn converse(mut guest: Guest, on_terminal: bool) -> Result<u32> {
    let writer = Arc::new(Mutex::new(guest.writer()?));
    let input = Arc::clone(&writer);
    // Neither thread is joined: both end with the process, which has nothing left to do by then.
    std::thread::spawn(move || forward_stdin(&input));
    if on_terminal {
        let mut signals = signal_hook::iterator::Signals::new([signal_hook::consts::SIGWINCH])
            .context("cannot watch the terminal's size")?;
        std::thread::spawn(move || {
            for _ in signals.forever() {
                let (rows, columns) = terminal::size();
                if !send(&writer, &ToGuest::Size(rows, columns)) {
                    return;
                }
            }
        });
    }
    loop {
        match guest.next()? {
            FromGuest::Stdout(bytes) => write_all(&mut std::io::stdout(), &bytes)?,
            FromGuest::Stderr(bytes) => write_all(&mut std::io::stderr(), &bytes)?,
            FromGuest::Exit(status) => {
                guest.finish();
                return Ok(status);
            }
            FromGuest::Failed(why) => bail!("the guest failed: {why}"),
            FromGuest::Ready => {}
        }
    }
}

/// Boots for a job without a person: whole lines of standard output go to `line`, standard error to ours.
///
/// # Errors
/// The guest died, said nothing for `silence`, or did not come up. A command that fails is a status, not an error.
pub(crate) fn lines(job: &Job, silence: Duration, mut line: impl FnMut(&str)) -> Result<u32> {
    let mut guest = start(job)?;
    guest.set_patience(Some(silence))?;
    let mut partial = Vec::new();
    loop {
        match guest.next()? {
            FromGuest::Stdout(bytes) => {
                partial.extend_from_slice(&bytes);
                while let Some(end) = partial.iter().position(|byte| *byte == b'\n') {
                    let whole: Vec<u8> = partial.drain(..=end).collect();
                    line(String::from_utf8_lossy(&whole).trim_end_matches(['\n', '\r']));
                }
            }
            FromGuest::Stderr(bytes) => write_all(&mut std::io::stderr(), &bytes)?,
            FromGuest::Exit(status) => {
                if !partial.is_empty() {
                    line(&String::from_utf8_lossy(&partial));
                }
                guest.finish();
                return Ok(status);
            }
            FromGuest::Failed(why) => bail!("the guest failed: {why}"),
            FromGuest::Ready => {}
        }
    }
}

/// Boots for a job, and again while the emulated kernel fails on its own, three times at most.
fn start(job: &Job) -> Result<Guest> {
    for _ in 1..3 {
        match job.start() {
            Err(error) if failed_bare(&format!("{error:#}")) => crate::report::say(&format!(
                "notice: the emulated kernel failed before anything of ours was in it; once more\n{error:#}"
            )),
            started => return started,
        }
    }
    job.start()
}

/// Whether a guest's kernel hung before its first process, or crashed while it had no module yet. The guest's init loads the
/// first ones before it unpacks the payload: whatever failed, of Ringfence nothing was there.
fn failed_bare(error: &str) -> bool {
    let no_module = |line: &str| line.trim_end().ends_with("Modules linked in:");
    let crashed =
        error.contains("Kernel panic - not syncing: Fatal exception") && error.lines().any(no_module);
    crashed || error.contains(boot::HUNG_BARE)
}

fn forward_stdin(writer: &Mutex<UnixStream>) {
    let mut buffer = vec![0; 16 * 1024];
    loop {
        // An error reads as the end: the command gets no more input, and goes on.
        let count = std::io::stdin().lock().read(&mut buffer).unwrap_or(0);
        if !send(writer, &ToGuest::Stdin(&buffer[..count])) || count == 0 {
            return;
        }
    }
}

fn send(writer: &Mutex<UnixStream>, frame: &ToGuest<'_>) -> bool {
    writer.lock().is_ok_and(|mut port| frames::write(&mut *port, frame).is_ok())
}

fn write_all(to: &mut impl Write, bytes: &[u8]) -> Result<()> {
    to.write_all(bytes).and_then(|()| to.flush()).context("cannot pass on the command's output")
}

#[cfg(test)]
mod tests {
    use super::{boot, failed_bare};

    #[test]
    fn only_a_kernel_without_anything_of_ours_may_fail() {
        let crash = "the guest went away before its command ended\n[    1.1] Modules linked in:\n[    1.1] CR2: ff2d\n\
                     [    1.2] Kernel panic - not syncing: Fatal exception in interrupt\n";
        assert!(failed_bare(crash));
        assert!(!failed_bare(&crash.replace("linked in:", "linked in: virtio_console virtio_blk")));
        assert!(!failed_bare(&crash.replace("Fatal exception in interrupt", "VFS: Unable to mount root fs")));
        assert!(!failed_bare("the guest said nothing for too long\n[    1.1] Modules linked in:"));
        assert!(failed_bare(&format!("{} in 300 s\nits console is empty", boot::HUNG_BARE)));
    }
}
