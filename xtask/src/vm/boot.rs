//! Booting one guest: the machine that qemu makes, the port to the guest's agent, the console for when it goes wrong.

use super::frames::{self, FromGuest, ToGuest};
use crate::report::tail;
use crate::setup::{Kernel, Lock};
use anyhow::{Context, Result, bail};
use std::fs;
use std::io::{BufRead as _, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long a guest may take from power on until the command starts. A quiet machine needs 10 to 20 seconds, most of them for the verifier.
const BOOT: Duration = Duration::from_secs(1200);

/// How long of that the kernel may take until its first process. A quiet machine needs 2 seconds, one busy with compiling 20; an
/// emulated kernel that hangs in between does so once in some hundred boots.
const KERNEL: Duration = Duration::from_secs(300);

/// What the kernel says on its console when it starts its first process, and never before.
const FIRST_PROCESS: &str = "as init process";

/// What an error says of a guest whose kernel took longer than [`KERNEL`].
pub(super) const HUNG_BARE: &str = "the guest's kernel never started its first process";

/// All that qemu emulates but what is slow in software: with `erms` the guest's kernel copies and clears memory byte by byte, which
/// takes six times as long as by words, and what glibc does by AVX2 costs more than the same by SSE2.
const PROCESSOR: &str = "max,-erms,-avx2";

/// How long qemu may take to end once it has closed the guest's port.
const QEMU_END: Duration = Duration::from_secs(30);

/// What to boot.
#[derive(Debug)]
pub(crate) struct Machine<'a> {
    /// The kernel.
    pub(crate) kernel: &'a Kernel,
    /// The guest's disk; it is not changed.
    pub(crate) disk: &'a Path,
    /// Added to the kernel's command line; what comes last wins.
    pub(crate) append: &'a str,
    /// Its memory, in MiB.
    pub(crate) megabytes: u32,
    /// Executed instructions as the guest's clock.
    pub(crate) icount: bool,
}

/// A running guest. Dropping it ends it.
pub(crate) struct Guest {
    qemu: Child,
    folder: TempDir,
    port: UnixStream,
    /// The reading half, apart from `port`, because reads go through a buffer.
    frames: BufReader<UnixStream>,
}

/// The folder of one boot, before it: the payload goes into it.
pub(crate) fn folder() -> Result<TempDir> {
    // A unix socket's path is short; cargo's target directory may be long.
    tempfile::Builder::new()
        .prefix("ringfence-vm-")
        .tempdir()
        .context("cannot make a temporary folder for the guest")
}

/// Where the payload of a boot is.
pub(crate) fn payload_path(folder: &TempDir) -> std::path::PathBuf {
    folder.path().join("payload.tar")
}

impl Guest {
    /// Powers a guest on and waits until its command starts.
    pub(crate) fn boot(machine: &Machine<'_>, folder: TempDir) -> Result<Guest> {
        let socket = folder.path().join("port");
        let listener =
            UnixListener::bind(&socket).with_context(|| format!("cannot listen at {}", socket.display()))?;
        let log = fs::File::create(folder.path().join("qemu.log")).context("cannot create qemu's log")?;
        // setpriv: a guest whose caller is killed must not go on. The link counts from the thread that spawns.
        // A process group of its own: a SIGHUP to ours would end it.
        let mut command = Command::new("setpriv");
        command
            .process_group(0)
            .args(["--pdeathsig", "KILL", "--", "qemu-system-x86_64"])
            .args(arguments(machine, folder.path()));
        let errors = log.try_clone().context("cannot share qemu's log")?;
        let mut qemu = {
            // A setup beside us may be replacing the image: not between its check and its opening.
            let _lock = Lock::take()?;
            let qemu = command.stdin(Stdio::null()).stdout(log).stderr(errors).spawn();
            qemu.context("cannot start qemu-system-x86_64; `cargo xtask setup` installs it")?
        };
        let Some(port) = accept(&listener, &mut qemu)? else {
            let _ = qemu.kill();
            let said = fs::read_to_string(folder.path().join("qemu.log")).unwrap_or_default();
            bail!("qemu ended before the guest started:\n{}", tail(&said, 20));
        };
        let frames = BufReader::new(port.try_clone().context("cannot share the guest's port")?);
        let mut guest = Guest { qemu, folder, port, frames };
        guest.wait_for_first_word()?;
        match guest.next() {
            Ok(FromGuest::Ready) => {}
            Ok(FromGuest::Failed(why)) => {
                bail!("the guest started, but not ringfence in it: {}", why.trim_end())
            }
            Ok(_) => bail!("the guest's agent began with something else than that it is ready"),
            Err(error) => return Err(error),
        }
        guest.port.set_read_timeout(None).context("cannot clear a timeout")?;
        Ok(guest)
    }

    /// Waits until the guest's agent says something, or its port ends. The caller's next read waits no longer than [`BOOT`].
    fn wait_for_first_word(&mut self) -> Result<()> {
        self.port.set_read_timeout(Some(KERNEL)).context("cannot set a timeout")?;
        // `fill_buf` takes nothing: the frame is whole for whoever reads it.
        let silent = self.frames.fill_buf().is_err();
        if silent && !self.console_text().contains(FIRST_PROCESS) {
            bail!("{HUNG_BARE} in {} s\n{}", KERNEL.as_secs(), self.console());
        }
        self.port.set_read_timeout(Some(BOOT)).context("cannot set a timeout")
    }

    /// The next thing that the guest says. A guest that went away is an error with the end of its console.
    pub(crate) fn next(&mut self) -> Result<FromGuest> {
        match frames::read(&mut self.frames) {
            Ok(Some(frame)) => Ok(frame),
            Ok(None) => {
                bail!("the guest went away before its command ended; {}\n{}", self.qemu_end(), self.console())
            }
            Err(error)
                if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) =>
            {
                bail!("the guest said nothing for too long\n{}", self.console())
            }
            Err(error) => Err(error).with_context(|| format!("the guest's port failed\n{}", self.console())),
        }
    }

    /// Gives up with an error if the guest says nothing for this long.
    pub(crate) fn set_patience(&self, silence: Option<Duration>) -> Result<()> {
        self.port.set_read_timeout(silence).context("cannot set a timeout")
    }

    /// Another handle to write to the guest by.
    pub(crate) fn writer(&self) -> Result<UnixStream> {
        self.port.try_clone().context("cannot share the guest's port")
    }

    /// Lets the guest go: it powers off, or is ended.
    pub(crate) fn finish(mut self) {
        let _ = frames::write(&mut self.port, &ToGuest::Bye);
        let _ = self.port.flush();
        // Nothing of the guest is kept, so there is nothing to wait for.
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }

    /// How qemu ended, to tell a guest that powered off from a qemu that somebody killed.
    fn qemu_end(&mut self) -> String {
        let begun = Instant::now();
        while begun.elapsed() < QEMU_END {
            match self.qemu.try_wait() {
                Ok(Some(status)) => {
                    let said = fs::read_to_string(self.folder.path().join("qemu.log")).unwrap_or_default();
                    let said = tail(&said, 20);
                    return if said.is_empty() {
                        format!("qemu: {status}")
                    } else {
                        format!("qemu: {status}, and said:\n{said}")
                    };
                }
                Ok(None) => std::thread::sleep(Duration::from_millis(20)),
                Err(error) => return format!("cannot watch qemu: {error}"),
            }
        }
        "qemu still runs".to_owned()
    }

    fn console_text(&self) -> String {
        let bytes = fs::read(self.folder.path().join("console")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).replace('\r', "")
    }

    /// The end of the console, as an error shows it.
    fn console(&self) -> String {
        let text = self.console_text();
        if text.trim().is_empty() {
            return "its console is empty".to_owned();
        }
        format!("the end of its console:\n{}", tail(&text, 45))
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

/// Waits for qemu to connect; `None` if it ended instead.
fn accept(listener: &UnixListener, qemu: &mut Child) -> Result<Option<UnixStream>> {
    listener.set_nonblocking(true).context("cannot listen for the guest")?;
    let start = Instant::now();
    while start.elapsed() < BOOT {
        match listener.accept() {
            Ok((port, _)) => {
                port.set_nonblocking(false).context("cannot use the guest's port")?;
                return Ok(Some(port));
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error).context("cannot accept the guest's port"),
        }
        if qemu.try_wait().context("cannot watch qemu")?.is_some() {
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(None)
}

fn arguments(machine: &Machine<'_>, folder: &Path) -> Vec<String> {
    let mut list: Vec<String> = Vec::new();
    let mut add = |words: &[&str]| list.extend(words.iter().map(|word| (*word).to_owned()));
    // Never KVM: no stock guest boots on every host that offers it, and only software gives exact counts.
    if machine.icount {
        add(&["-accel", "tcg", "-icount", "shift=0,sleep=off", "-smp", "1"]);
    } else {
        add(&["-accel", "tcg,thread=multi", "-smp", "2"]);
    }
    // Counts of instructions are compared with those of earlier versions.
    let processor = if machine.icount { "max" } else { PROCESSOR };
    add(&[
        "-cpu",
        processor,
        "-m",
        &machine.megabytes.to_string(),
        "-display",
        "none",
        "-no-reboot",
        "-nodefaults",
        "-no-user-config",
    ]);
    add(&["-kernel", &machine.kernel.vmlinuz().to_string_lossy()]);
    // Not `quiet`: a kernel that hangs says where, and one that starts its first process says so. The agent makes it quiet then.
    let line = "console=ttyS0 panic=-1 root=/dev/nvme0n1 rootfstype=ext4 rw init=/sbin/ringfence-guest-init";
    // On a busy host the guest's timer can seem dead for the moment that the kernel tests it in, and it panics.
    let timer = if machine.icount { "" } else { "no_timer_check" };
    // Nor is a processor that the host did not run for half a minute stuck: the kernel's watchdogs are as slow as they can be.
    let watchdogs = "watchdog_thresh=60 rcupdate.rcu_cpu_stall_timeout=300 workqueue.watchdog_thresh=300";
    add(&["-append", &format!("{line} {timer} {watchdogs} {}", machine.append)]);
    add(&["-drive", &format!("file={},if=none,id=root,format=raw,snapshot=on", commas(machine.disk))]);
    add(&["-device", "nvme,drive=root,serial=root"]);
    let payload = folder.join("payload.tar");
    add(&["-drive", &format!("file={},if=none,id=payload,format=raw,readonly=on", commas(&payload))]);
    add(&["-device", "virtio-blk-pci,drive=payload,serial=payload"]);
    add(&["-serial", &format!("file:{}", folder.join("console").display())]);
    add(&["-device", "virtio-serial-pci", "-chardev"]);
    add(&[&format!("socket,id=port,path={}", commas(&folder.join("port")))]);
    add(&["-device", "virtserialport,chardev=port,name=ringfence.io"]);
    list
}

/// A comma in a path would end the option.
fn commas(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}
