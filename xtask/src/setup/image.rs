//! The guest's disk: a small Debian made once, and a disk made of it and the kernels' modules.

use super::apt::Mirrors;
use super::kernels::Kernel;
use super::packages::as_root;
use crate::digest;
use crate::paths::workspace;
use crate::report::{quietly, step};
use anyhow::{Context, Result};
use ringfence_ebpf_build::cache_dir;
use std::fs;
use std::path::{Path, PathBuf};

/// Where the disk for these kernels is, or will be.
pub(super) fn path(kernels: &[Kernel]) -> Result<PathBuf> {
    let mut parts = vec![read("image.sh")?, read("init")?];
    parts.extend(kernels.iter().map(|kernel| kernel.id().into_bytes()));
    let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
    Ok(folder().join(format!("guest-{}.ext4", digest::short(&parts))))
}

/// Makes what is missing: the Debian, then the disk.
pub(super) fn install(kernels: &[Kernel]) -> Result<PathBuf> {
    let disk = path(kernels)?;
    if disk.is_file() {
        return Ok(disk);
    }
    fs::create_dir_all(folder()).with_context(|| format!("cannot create {}", folder().display()))?;
    let rootfs = folder().join(format!("rootfs-{}.tar", digest::short(&[&read("image.sh")?])));
    if !rootfs.is_file() {
        step("making a small Debian 12 for the guest (about 1 minute)", || {
            let mirrors = Mirrors::of_this_machine()?;
            made(&rootfs, |partial| {
                let mut script = script("rootfs")?;
                quietly(script.arg(partial).args([&mirrors.main, &mirrors.security]))
            })
        })?;
    }
    step("making the guest's disk", || {
        made(&disk, |partial| {
            let mut script = script("disk")?;
            script.arg(partial).arg(&rootfs).arg(guest_file("init"));
            quietly(script.args(kernels.iter().map(Kernel::modules)))
        })
    })?;
    remove_older(&[&disk, &rootfs]);
    Ok(disk)
}

fn folder() -> PathBuf {
    cache_dir().join("image")
}

fn guest_file(name: &str) -> PathBuf {
    workspace().join("vm-tests/guest").join(name)
}

fn read(name: &str) -> Result<Vec<u8>> {
    let path = guest_file(name);
    fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
}

fn script(verb: &str) -> Result<std::process::Command> {
    let mut command = as_root("bash")?;
    command.arg(guest_file("image.sh")).arg(verb);
    Ok(command)
}

/// Makes a file beside its place and moves it there when it is whole.
fn made(path: &Path, make: impl FnOnce(&Path) -> Result<String>) -> Result<()> {
    let partial = path.with_extension("partial");
    let result = make(&partial);
    if result.is_err() {
        let _ = fs::remove_file(&partial);
    }
    result?;
    fs::rename(&partial, path).with_context(|| format!("cannot move the guest's image to {}", path.display()))
}

/// Checkouts of other versions may still use an image: only those not made in the last month go.
fn remove_older(kept: &[&Path]) {
    let month = std::time::Duration::from_secs(30 * 24 * 3600);
    for entry in fs::read_dir(folder()).into_iter().flatten().flatten() {
        let path = entry.path();
        let old = entry
            .metadata()
            .and_then(|meta| meta.modified())
            .is_ok_and(|time| time.elapsed().is_ok_and(|age| age > month));
        if old && !kept.contains(&path.as_path()) {
            let _ = fs::remove_file(path);
        }
    }
}
