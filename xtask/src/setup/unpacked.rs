//! Debian 12's packages, unpacked in a folder of their own: what few tests want, and neither the machine nor everybody's guest is to
//! have installed.

use super::apt::{Apt, Mirrors};
use crate::digest;
use crate::report::{quietly, step};
use anyhow::{Context, Result};
use ringfence_ebpf_build::cache_dir;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// stress-ng and what it is linked with; not what that would draw in (drivers for graphics).
const STRESS_NG: &[&str] = &[
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
    unpacked("stress-ng", STRESS_NG, "", |_| Ok(()))
}

/// The folder in the cache of some packages. `made_of`: what else decides what `finish` makes of it.
pub(crate) fn place(name: &str, packages: &[&str], made_of: &str) -> PathBuf {
    let key = digest::short(&[packages.join(" ").as_bytes(), made_of.as_bytes()]);
    cache_dir().join(format!("{name}-{key}"))
}

/// Downloads packages (without what they depend on), unpacks them and has `finish` change what came of it; nothing if that was done.
pub(crate) fn unpacked(
    name: &str,
    packages: &[&str],
    made_of: &str,
    finish: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let root = place(name, packages, made_of);
    if root.is_dir() {
        return Ok(root);
    }
    step(&format!("downloading {name}"), || {
        let room = tempfile::Builder::new().prefix(&format!("{name}-")).tempdir_in(cache_dir());
        let room = room.with_context(|| format!("cannot make a folder for {name}"))?;
        let mirrors = Mirrors::of_this_machine()?;
        let sources = [(mirrors.main.as_str(), "bookworm"), (mirrors.security.as_str(), "bookworm-security")];
        let apt = Apt::new(room.path().join("apt"), &sources)?;
        let packages: Vec<String> = packages.iter().map(|name| (*name).to_owned()).collect();
        let (downloads, unpacked) = (room.path().join("packages"), room.path().join("root"));
        fs::create_dir(&downloads).context("cannot make a folder for packages")?;
        apt.download(&packages, &downloads)?;
        for package in fs::read_dir(&downloads).context("cannot list the packages")? {
            let package = package.context("cannot list the packages")?.path();
            quietly(Command::new("dpkg-deb").arg("--extract").arg(package).arg(&unpacked))?;
        }
        finish(&unpacked)?;
        fs::rename(&unpacked, &root).with_context(|| format!("cannot make {}", root.display()))
    })?;
    Ok(root)
}
