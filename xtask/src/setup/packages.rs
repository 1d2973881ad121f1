//! The Debian packages that setup installs, and why each is needed.

use crate::report::{quietly, say, step};
use anyhow::{Context, Result, bail};
use ringfence_ebpf_build::find;
use std::process::Command;

/// What a package is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Group {
    /// Compiling `ringfence` and its eBPF object.
    Build,
    /// Making and booting the guest.
    Guest,
    /// Driving the dashboard's page, and real MCP servers and clients.
    Browser,
    /// Fetching and running other parties' software: MCP servers, SDKs.
    Parties,
    /// What the benchmarks compare with.
    Bench,
}

struct Package {
    name: &'static str,
    group: Group,
    why: &'static str,
    /// A program that shows that something else than the package provides it.
    program: Option<&'static str>,
    /// Only if the user has no eBPF toolchain of their own.
    ebpf: bool,
}

const fn package(name: &'static str, group: Group, why: &'static str) -> Package {
    Package { name, group, why, program: None, ebpf: false }
}

const fn program(name: &'static str, group: Group, why: &'static str, program: &'static str) -> Package {
    Package { name, group, why, program: Some(program), ebpf: false }
}

const fn ebpf(name: &'static str, why: &'static str) -> Package {
    Package { name, group: Group::Build, why, program: None, ebpf: true }
}

const PACKAGES: &[Package] = &[
    program("gcc", Group::Build, "links Rust programs, compiles SQLite", "cc"),
    program("g++", Group::Build, "links bpf-linker", "c++"),
    package("libc6-dev", Group::Build, "the C library to link against"),
    program("pkg-config", Group::Build, "finds libseccomp", "pkg-config"),
    package("libseccomp-dev", Group::Build, "seccomp filters, linked statically"),
    ebpf("rustc-web", "a compiler that can build for BPF"),
    ebpf("libstd-rust-web-dev-bpf", "Rust's core library for BPF"),
    ebpf("llvm-22-dev", "bpf-linker is built against it"),
    ebpf("zlib1g-dev", "bpf-linker links it"),
    ebpf("libzstd-dev", "bpf-linker links it"),
    program("git", Group::Guest, "tells tidy which files there are", "git"),
    program("python3", Group::Guest, "lists the VM tests' cases", "python3"),
    program("qemu-system-x86", Group::Guest, "runs the guest, by software alone", "qemu-system-x86_64"),
    program("mmdebstrap", Group::Guest, "makes the guest's Debian", "mmdebstrap"),
    package("debian-archive-keyring", Group::Guest, "checks that Debian's packages are Debian's"),
    program("e2fsprogs", Group::Guest, "makes the guest's disk", "mke2fs"),
    program("kmod", Group::Guest, "finds the kernel modules that the guest needs", "depmod"),
    program("xz-utils", Group::Guest, "unpacks kernel modules", "xz"),
    program("chromium", Group::Browser, "shows the dashboard in its tests", "chromium"),
    program("nodejs", Group::Parties, "runs the dashboard's tests, and MCP servers", "node"),
    program("npm", Group::Parties, "fetches what drives Chromium, and MCP servers", "npm"),
    program("erlang-base", Group::Parties, "decodes the tool runner's answers in its tests", "erl"),
    program("bubblewrap", Group::Bench, "`bench launch` compares with it", "bwrap"),
    package("python3-venv", Group::Parties, "keeps the Python SDKs apart that the tests run"),
    program("util-linux", Group::Guest, "ends the guest with its caller", "setpriv"),
];

/// Installs the missing packages of some groups, as root or by sudo.
pub(crate) fn install(groups: &[Group]) -> Result<()> {
    let missing: Vec<&Package> =
        missing().into_iter().filter(|package| groups.contains(&package.group)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    for package in &missing {
        say(&format!("needed: Debian package {}: {}", package.name, package.why));
    }
    let names: Vec<&str> = missing.iter().map(|package| package.name).collect();
    let install = || {
        let mut command = as_root("apt-get")?;
        command.args(["install", "--yes", "--no-install-recommends"]).args(&names);
        quietly(command.env("DEBIAN_FRONTEND", "noninteractive"))
    };
    let what = format!("installing {}", names.join(" "));
    // The lists may be absent or name versions that the mirror has dropped: update once, then try again.
    let known = names.iter().all(|name| quietly(Command::new("apt-cache").args(["show", name])).is_ok());
    if known && step(&what, install).is_ok() {
        return Ok(());
    }
    step("updating the package lists", || quietly(as_root("apt-get")?.arg("update")))?;
    step(&what, install).context(
        "Debian 12 has these packages (rustc-web and llvm-22-dev are in bookworm-security and bookworm-updates); \
         on another system install their likes by hand",
    )?;
    Ok(())
}

/// One line for each missing package that the tests need.
pub(crate) fn missing_lines() -> Vec<String> {
    let line = |package: &Package| format!("Debian package {}: {}", package.name, package.why);
    missing().into_iter().filter(|package| package.group != Group::Bench).map(line).collect()
}

/// A command that runs as root: directly, or by sudo.
pub(crate) fn as_root(program: &str) -> Result<Command> {
    if rustix::process::geteuid().is_root() {
        return Ok(Command::new(program));
    }
    if !has_program("sudo") {
        bail!("`{program}` must run as root, and there is no sudo: run this as root, or install sudo");
    }
    let mut command = Command::new("sudo");
    command.args(["--preserve-env=DEBIAN_FRONTEND", "--", program]);
    Ok(command)
}

pub(crate) fn has_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // sbin is not in every user's PATH, and depmod and mke2fs live there.
    std::env::split_paths(&path)
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|dir| dir.join(name).is_file())
}

fn missing() -> Vec<&'static Package> {
    // Whoever has a whole toolchain keeps it.
    let own_toolchain = find().is_ok();
    let wanted: Vec<&Package> = PACKAGES.iter().filter(|package| !(package.ebpf && own_toolchain)).collect();
    let installed = installed(&wanted);
    wanted
        .into_iter()
        .filter(|package| {
            !installed.iter().any(|name| name == package.name) && !package.program.is_some_and(has_program)
        })
        .collect()
}

fn installed(packages: &[&Package]) -> Vec<String> {
    let mut query = Command::new("dpkg-query");
    query.args(["--show", "--showformat", "${Package} ${db:Status-Status}\n"]);
    query.args(packages.iter().map(|package| package.name));
    // dpkg-query fails if one of them is unknown, and still prints the others.
    let Ok(output) = query.output() else { return Vec::new() };
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| line.strip_suffix(" installed"))
        .map(str::to_owned)
        .collect()
}
