//! `setup`: what the build and the VM tests need, found or installed, each piece with what and why. A second run finds
//! everything and does nothing.

mod apt;
mod components;
mod image;
mod kernels;
mod linker;
mod lock;
mod packages;
mod unpacked;

pub(crate) use components::quick_target;
pub(crate) use kernels::{Kernel, Series};
pub(crate) use linker::installed_tool;
pub(crate) use lock::Lock;
pub(crate) use unpacked::{place as unpacked_place, stress_ng, unpacked};

use crate::agent_parties;
use crate::client_parties;
use crate::llm_parties;
use crate::parties;
use crate::report::say;
use anyhow::{Result, bail};
use packages::Group;
use std::path::PathBuf;
use std::process::ExitCode;

/// Finds or installs what the build and the VM tests need.
///
/// Debian packages (as root or by sudo), bpf-linker, the MCP servers, clients and LLM SDKs of the tests, the kernels that they boot and
/// the guest's disk image. All but
/// the packages go to the user's cache folder: $RINGFENCE_CACHE, else $XDG_CACHE_HOME/ringfence, else ~/.cache/ringfence.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  cargo xtask setup          install what is missing\n  \
                        cargo xtask setup --check  say what is missing, change nothing; fails if anything is")]
pub(crate) struct Args {
    /// Say what is missing and change nothing; the exit status is 1 if anything is.
    #[arg(long)]
    check: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if !args.check {
        everything()?;
        say("setup: everything is there");
        return Ok(ExitCode::SUCCESS);
    }
    let missing = missing();
    for line in &missing {
        println!("missing: {line}");
    }
    if missing.is_empty() {
        println!("everything is there");
        return Ok(ExitCode::SUCCESS);
    }
    println!("`cargo xtask setup` installs it");
    Ok(ExitCode::FAILURE)
}

/// Everything that any verb needs.
pub(crate) fn everything() -> Result<()> {
    platform()?;
    let _lock = Lock::take()?;
    packages::install(&[Group::Build, Group::Guest, Group::Browser, Group::Parties])?;
    linker::install()?;
    components::install()?;
    quick_target();
    parties::install()?;
    llm_parties::install()?;
    agent_parties::install()?;
    client_parties::install()?;
    kernels_and_image()
}

fn kernels_and_image() -> Result<()> {
    let kernels = kernels::install(Series::all())?;
    image::install(&kernels).map(drop)
}

/// What building and booting a guest need. Whoever tries the demo waits for no browser and no other party's software.
fn for_booting() -> Result<()> {
    platform()?;
    let _lock = Lock::take()?;
    packages::install(&[Group::Build, Group::Guest])?;
    linker::install()?;
    kernels_and_image()
}

/// What building needs, without the guest.
pub(crate) fn for_building() -> Result<()> {
    platform()?;
    let _lock = Lock::take()?;
    packages::install(&[Group::Build])?;
    linker::install()
}

/// What the checks of the sources need, and the unit tests.
pub(crate) fn for_checking() -> Result<()> {
    for_building()?;
    let _lock = Lock::take()?;
    components::install()
}

/// What the benchmarks compare with. Only they need it: `everything` leaves it out.
pub(crate) fn for_benchmarks() -> Result<()> {
    for_building()?;
    let _lock = Lock::take()?;
    packages::install(&[Group::Bench, Group::Parties])
}

/// A kernel and the guest's disk, installed where they are not yet.
pub(crate) fn guest(series: Series) -> Result<(Kernel, PathBuf)> {
    for_booting()?;
    let kernels = kernels::installed();
    let Some(kernel) = kernels.iter().find(|kernel| kernel.series == series) else {
        bail!("the kernel {series} is not in the cache although setup succeeded");
    };
    Ok((kernel.clone(), image::path(&kernels)?))
}

fn missing() -> Vec<String> {
    let mut missing = packages::missing_lines();
    missing.extend(linker::missing_line());
    missing.extend(components::missing_lines());
    missing.extend(parties::missing_lines());
    missing.extend(llm_parties::missing_lines());
    missing.extend(agent_parties::missing_lines());
    missing.extend(client_parties::missing_lines());
    let kernels = kernels::installed();
    for series in Series::all() {
        if !kernels.iter().any(|kernel| kernel.series == *series) {
            missing.push(format!("kernel {series}: the VM tests boot it"));
        }
    }
    if !image::path(&kernels).is_ok_and(|path| path.is_file()) {
        missing.push("guest image: the disk that the VM boots from".to_owned());
    }
    missing
}

fn platform() -> Result<()> {
    if cfg!(all(target_os = "linux", target_arch = "x86_64")) {
        return Ok(());
    }
    bail!(
        "Ringfence is built and tested on Linux on x86_64; this is {} on {}",
        std::env::consts::OS,
        std::env::consts::ARCH
    )
}
