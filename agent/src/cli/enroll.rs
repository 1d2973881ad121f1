//! `ringfence enroll`.

use super::output::print;
use anyhow::{Context as _, bail};
use ringfence_base::{client, paths::Paths};
use ringfence_wire::message::{AdminRequest, Enrolled};
use rustix::{
    io::Errno,
    process::{Pid, PidfdFlags, pidfd_open},
};
use std::{
    os::fd::AsFd,
    path::{Path, PathBuf},
    process::ExitCode,
};

/// Puts a running process or cgroup, with its children, under a profile.
///
/// Files and sockets that are open stay open. It prints the container's id.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  sudo ringfence enroll --pid 4711 --profile coder
  sudo ringfence enroll --cgroup /sys/fs/cgroup/system.slice/worker.service --profile coder")]
#[command(group = clap::ArgGroup::new("target").required(true).args(["pid", "cgroup"]))]
pub(crate) struct Args {
    /// The process, with all its threads and descendants.
    #[arg(long, value_name = "P", value_parser = clap::value_parser!(i32).range(1..))]
    pid: Option<i32>,
    /// Every process in this cgroup and in those below it.
    #[arg(long, value_name = "PATH")]
    cgroup: Option<PathBuf>,
    /// The profile: a name or a path.
    #[arg(long, value_name = "P")]
    profile: String,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let socket = Paths::from_env().admin_socket();
    let profile = profile(&args.profile)?;
    let enrolled: Enrolled = match (args.pid, &args.cgroup) {
        (Some(pid), _) => {
            let id = Pid::from_raw(pid).context("a process id is a positive number")?;
            let pidfd = pidfd_open(id, PidfdFlags::empty()).map_err(|error| match error {
                Errno::SRCH => anyhow::anyhow!("there is no process {pid}"),
                Errno::INVAL => anyhow::anyhow!("{pid} is a thread; name its process"),
                error => anyhow::Error::from(error).context(format!("cannot open process {pid}")),
            })?;
            client::admin(&socket, &AdminRequest::EnrollPid { profile }, &[pidfd.as_fd()])?
        }
        (None, Some(cgroup)) => {
            let path = std::fs::canonicalize(cgroup)
                .with_context(|| format!("there is no cgroup {}", cgroup.display()))?;
            let path = path.to_str().context("the cgroup's path is not UTF-8")?.to_owned();
            client::admin(&socket, &AdminRequest::EnrollCgroup { path, profile }, &[])?
        }
        (None, None) => bail!("name what to enroll: --pid or --cgroup"),
    };
    print(&format!("{}\n", enrolled.container))?;
    eprintln!("profile {}, mode {}", enrolled.profile, enrolled.mode);
    Ok(ExitCode::SUCCESS)
}

/// The profile as the daemon finds it: a path made absolute, since the daemon has another working directory.
fn profile(asked: &str) -> anyhow::Result<String> {
    if !asked.contains('/') && !asked.ends_with(".toml") {
        return Ok(asked.to_owned());
    }
    let path = std::path::absolute(Path::new(asked)).with_context(|| format!("cannot find {asked}"))?;
    Ok(path.to_str().with_context(|| format!("the path {} is not UTF-8", path.display()))?.to_owned())
}
