//! What `cargo xtask bench kernel` measures, run inside the guest: nanoseconds per operation, one `name ns` a line; of all
//! operations, or of those that are named.
//!
//! Under `-icount shift=0` a guest nanosecond is an executed instruction, whoever executes it: what a daemon does beside
//! the operation is counted too. Each figure is the least of [`RUNS`] runs but the first, which fills caches and patches
//! code.

use anyhow::{Context, Result};
use nix::{
    fcntl::{OFlag, open},
    sys::{
        socket::{AddressFamily, SockFlag, SockType, SockaddrIn, connect, socket},
        stat::Mode,
    },
    time::{ClockId, clock_gettime},
};
use std::{ffi::CStr, os::fd::AsRawFd, process::Command};

/// A file one directory below the root.
const SHALLOW: &CStr = c"/bench/f";
/// A file seven directories deep.
const DEEP: &CStr = c"/bench/1/2/3/4/5/6/f";

/// Runs of each operation.
const RUNS: u32 = 6;

fn main() -> Result<()> {
    let opens = 20_000;
    report("open_shallow", opens, || open_close(SHALLOW))?;
    report("open_deep", opens, || open_close(DEEP))?;
    let udp = socket(AddressFamily::Inet, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None)?;
    let peer = SockaddrIn::new(127, 0, 0, 1, 9);
    report("udp_connect", opens, || connect(udp.as_raw_fd(), &peer).context("connect to 127.0.0.1:9"))?;
    report("udp_send", opens, || {
        // Nobody listens there: the second send says so, the others go out.
        let _ = rustix::net::send(&udp, b"x", rustix::net::SendFlags::empty());
        Ok(())
    })?;
    report("setsockopt", opens, || {
        rustix::net::sockopt::set_socket_keepalive(&udp, true).context("SO_KEEPALIVE")
    })?;
    report("ioctl", opens, || rustix::io::ioctl_fionread(&udp).map(drop).context("FIONREAD"))?;
    report("spawn", 200, || {
        let status = Command::new("/bench/true").status().context("/bench/true")?;
        anyhow::ensure!(status.success(), "/bench/true: {status}");
        Ok(())
    })
}

fn open_close(path: &CStr) -> Result<()> {
    open(path, OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())
        .map(drop)
        .with_context(|| format!("{path:?}"))
}

/// Runs `operation` `count` times in each of the runs; prints the least nanoseconds per operation.
fn report(name: &str, count: u32, mut operation: impl FnMut() -> Result<()>) -> Result<()> {
    let mut wanted = std::env::args().skip(1).peekable();
    if wanted.peek().is_some() && !wanted.any(|one| one == name) {
        return Ok(());
    }
    let mut least = f64::INFINITY;
    for run in 0..RUNS {
        let start = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
        for _ in 0..count {
            operation()?;
        }
        let spent = clock_gettime(ClockId::CLOCK_MONOTONIC)? - start;
        let per_operation = (spent.tv_sec() as f64 * 1e9 + spent.tv_nsec() as f64) / f64::from(count);
        if run > 0 {
            least = least.min(per_operation);
        }
    }
    println!("{name} {least:.0}");
    Ok(())
}
