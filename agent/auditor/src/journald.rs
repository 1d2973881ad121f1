//! The host's journal: short notices for others to keep. Journald's own socket, or syslog's where there is no journald.

use std::{
    io,
    os::unix::net::UnixDatagram,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Journald's socket for structured messages (systemd's "Native Journal Protocol": `FIELD=value` lines in a datagram).
const NATIVE: &str = "/run/systemd/journal/socket";
/// The socket of syslog(3).
const SYSLOG: &str = "/dev/log";
/// The sender; `journalctl -t` takes it.
const IDENTIFIER: &str = "ringfence-audit";
/// How long an absent journal is not looked for again.
const PAUSE: Duration = Duration::from_secs(300);

/// A way to the host's journal.
#[derive(Debug)]
pub(crate) struct Journald {
    native: PathBuf,
    syslog: PathBuf,
    socket: Option<(UnixDatagram, bool)>,
    looked: Option<Instant>,
    warned: bool,
}

impl Journald {
    /// The host's.
    pub(crate) fn of_host() -> Self {
        Self::at(Path::new(NATIVE), Path::new(SYSLOG))
    }

    fn at(native: &Path, syslog: &Path) -> Self {
        Self {
            native: native.to_owned(),
            syslog: syslog.to_owned(),
            socket: None,
            looked: None,
            warned: false,
        }
    }

    /// Connected now, as far as it can be: for a process that may make no socket later.
    pub(crate) fn connected(mut self) -> Self {
        self.is_there();
        self
    }

    /// Whether there is one; connects to it. Its absence is logged once.
    pub(crate) fn is_there(&mut self) -> bool {
        if self.socket.is_none() && self.looked.is_none_or(|looked| looked.elapsed() >= PAUSE) {
            self.looked = Some(Instant::now());
            let connect = |path: &Path| {
                let socket = UnixDatagram::unbound()?;
                socket.connect(path)?;
                socket.set_nonblocking(true)?;
                io::Result::Ok(socket)
            };
            let native = connect(&self.native).map(|socket| (socket, true));
            self.socket = native.or_else(|_| connect(&self.syslog).map(|socket| (socket, false))).ok();
            if self.socket.is_none() && !self.warned {
                self.warned = true;
                tracing::warn!(
                    "this host has neither journald nor syslog: heads of journals are not kept elsewhere; `ringfence audit heads` prints them"
                );
            }
        }
        self.socket.is_some()
    }

    /// Sends one line, without waiting. `false`: it was not taken; send it again later.
    pub(crate) fn send(&mut self, line: &str) -> bool {
        if !self.is_there() {
            return false;
        }
        let Some((socket, native)) = &self.socket else { return false };
        // A line end would begin another field.
        let line = line.replace('\n', " ");
        let datagram = if *native {
            format!("MESSAGE={line}\nPRIORITY=5\nSYSLOG_FACILITY=10\nSYSLOG_IDENTIFIER={IDENTIFIER}\n")
        } else {
            // Facility authpriv (10), severity notice (5).
            format!("<{}>{IDENTIFIER}[{}]: {line}", 10 * 8 + 5, std::process::id())
        };
        match socket.send(datagram.as_bytes()) {
            Ok(_) => true,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => false,
            Err(_) => {
                self.socket = None;
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Journald;
    use std::os::unix::net::UnixDatagram;

    #[test]
    fn either_journal_gets_the_line_and_none_is_no_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let (native, syslog) = (folder.path().join("native"), folder.path().join("log"));
        let mut nobody = Journald::at(&native, &syslog);
        assert!(!nobody.send("one") && !nobody.send("two"));

        let received = |socket: &UnixDatagram| {
            let mut bytes = [0; 4096];
            let length = socket.recv(&mut bytes).expect("a datagram");
            String::from_utf8_lossy(&bytes[..length]).into_owned()
        };
        let log = UnixDatagram::bind(&syslog).expect("a socket");
        assert!(Journald::at(&native, &syslog).send("a head"));
        let text = received(&log);
        assert!(text.starts_with("<85>ringfence-audit[") && text.ends_with("]: a head"), "{text}");

        let journal = UnixDatagram::bind(&native).expect("a socket");
        let mut both = Journald::at(&native, &syslog);
        assert!(both.send("a head\nPRIORITY=0"));
        let text = received(&journal);
        assert!(text.starts_with("MESSAGE=a head PRIORITY=0\nPRIORITY=5\n"), "{text}");
        drop(journal);
        assert!(!both.send("nobody listens"), "and no error");
    }
}
