//! mitmproxy's `mitmdump`, as it comes, which ends TLS with an authority of its own.

use crate::worker::Ended;
use anyhow::{Context, Result, bail};
use std::{
    fs::File,
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// How long its start may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Starts it; its authority's certificate is in the folder then.
pub(crate) fn start(program: &Path, folder: &Path) -> Result<(Ended, SocketAddr)> {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
    let mut command = Command::new(program);
    command.args(["--quiet", "--listen-host", "127.0.0.1", "--listen-port", &port.to_string(), "--set"]);
    command.arg(format!("confdir={}", folder.display())).arg("--set");
    command.arg(format!("ssl_verify_upstream_trusted_ca={}", folder.join("server.pem").display()));
    let log = File::create(folder.join("mitmproxy.log"))?;
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    let started = Ended(command.spawn().context("cannot start mitmdump")?);
    let (at, until) = (SocketAddr::from((Ipv4Addr::LOCALHOST, port)), Instant::now() + PATIENCE);
    while TcpStream::connect(at).is_err() {
        if Instant::now() > until {
            bail!("mitmdump does not listen; what it said is in mitmproxy.log of {}", folder.display());
        }
        thread::sleep(Duration::from_millis(50));
    }
    Ok((started, at))
}
