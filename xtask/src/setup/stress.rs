//! stress-ng and the libraries that the guest lacks, in a folder of their own: only `bench stress` wants them, and the guest's
//! disk is everybody's.

use super::apt::{Apt, Mirrors};
use crate::report::{quietly, step};
use anyhow::{Context, Result};
use ringfence_ebpf_build::cache_dir;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// Debian 12's stress-ng and what it is linked with; not what that would draw in (drivers for graphics).
const PACKAGES: &[&str] = &[
    "stress-ng",
    "libapparmor1",
    "libbsd0",
    "libdrm2",
    "libegl1",
    "libexpat1",
    "libffi8",
    "libgbm1",
    "libgles2",
    "libglvnd0",
    "libipsec-mb1",
    "libjpeg62-turbo",
    "libjudydebian1",
    "libkmod2",
    "libmd0",
    "libsctp1",
    "libwayland-server0",
    "libxxhash0",
];

/// The folder that is `/opt/stress-ng` in the guest; downloaded once.
pub(crate) fn stress_ng() -> Result<PathBuf> {
    let root = cache_dir().join("stress-ng");
    if root.is_dir() {
        return Ok(root);
    }
    step("downloading stress-ng", || {
        let room = tempfile::Builder::new().prefix("stress-ng-").tempdir_in(cache_dir());
        let room = room.context("cannot make a folder for stress-ng")?;
        let mirrors = Mirrors::of_this_machine()?;
        let apt = Apt::new(room.path().join("apt"), &[(&mirrors.main, "bookworm")])?;
        let packages: Vec<String> = PACKAGES.iter().map(|name| (*name).to_owned()).collect();
        let (downloads, unpacked) = (room.path().join("packages"), room.path().join("root"));
        fs::create_dir(&downloads).context("cannot make a folder for packages")?;
        apt.download(&packages, &downloads)?;
        for package in fs::read_dir(&downloads).context("cannot list the packages")? {
            let package = package.context("cannot list the packages")?.path();
            quietly(Command::new("dpkg-deb").arg("--extract").arg(package).arg(&unpacked))?;
        }
        fs::rename(&unpacked, &root).with_context(|| format!("cannot make {}", root.display()))
    })?;
    Ok(root)
}
