//! The table of every way into the kernel (`coverage.toml`), and what of a kernel it does not name.
//!
//! The agent asks it about the kernel it runs on, `cargo xtask tidy` compares it with the programs, and
//! `cargo xtask coverage` renders it. The file itself says how it is written.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

/// The table as it ships.
pub const TEXT: &str = include_str!("../coverage.toml");

/// Kernel functions behind LSM hooks that a BPF program can be attached to are named so.
const HOOK: &str = "bpf_lsm_";
/// Entry functions of the 64-bit system calls are named so.
const CALL: &str = "__x64_sys_";
/// The entry of every number that is no system call.
const HOLE: &str = "ni_syscall";

/// The whole table.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Table {
    /// Functions that are named like hooks and are none.
    pub not_hooks: BTreeSet<String>,
    /// Entry functions that no number of the 64-bit table leads to.
    pub not_calls: BTreeSet<String>,
    /// LSM hooks, in groups.
    #[serde(rename = "hook")]
    pub hooks: Vec<Group>,
    /// System calls, in groups.
    #[serde(rename = "call")]
    pub calls: Vec<Group>,
    /// Address families of sockets, in groups.
    #[serde(rename = "family")]
    pub families: Vec<Group>,
    /// By program, the VM test that fails without it.
    #[serde(default)]
    pub shown: BTreeMap<String, String>,
    /// By program without which no VM test fails: why.
    #[serde(default)]
    pub covered: BTreeMap<String, Covered>,
}

/// Why no VM test fails without a program.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Covered {
    /// The VM test that passes without it.
    pub case: String,
    /// Who refuses the same.
    pub why: String,
}

/// Ways in that are held alike.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Group {
    /// What they are.
    pub about: String,
    /// Who decides: programs by their names, `seccomp`. Empty: nobody has to.
    #[serde(default)]
    pub by: Vec<String>,
    /// Why that is enough.
    pub why: String,
    /// The VM test that shows it.
    pub case: Option<String>,
    /// Names, each with the kernels that have it where not all do.
    pub names: Vec<Name>,
}

/// A name, and the kernels that have it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Name {
    /// The name.
    pub name: String,
    /// `6.2..`, `..6.8`; empty: every supported kernel.
    pub kernels: String,
}

impl TryFrom<String> for Name {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let (name, kernels) = text.split_once(' ').unwrap_or((&text, ""));
        let version = |part: &str| part.split('.').all(|number| number.parse::<u32>().is_ok());
        let good = kernels.is_empty()
            || kernels.split_once("..").is_some_and(|(from, to)| {
                (from.is_empty() || version(from))
                    && (to.is_empty() || version(to))
                    && from.len() + to.len() > 0
            });
        if name.is_empty() || !good {
            return Err(format!("`{text}` is not a name, or a name and a range of kernels such as `6.2..`"));
        }
        Ok(Self { name: name.to_owned(), kernels: kernels.to_owned() })
    }
}

/// What a kernel has that the table does not name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unknown {
    /// LSM hooks.
    pub hooks: Vec<String>,
    /// System calls, by the names of their entry functions.
    pub calls: Vec<String>,
}

impl Unknown {
    /// Whether everything is in the table.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hooks.is_empty() && self.calls.is_empty()
    }
}

impl Table {
    /// Reads a table.
    ///
    /// # Errors
    /// What is wrong with it, with the line.
    pub fn parse(text: &str) -> Result<Self, toml::de::Error> {
        toml::from_str(text)
    }

    /// What of a kernel, whose functions are given by name, the table does not name.
    pub fn unknown<'a>(&self, symbols: impl IntoIterator<Item = &'a str>) -> Unknown {
        let known = |groups: &[Group]| -> BTreeSet<String> {
            groups.iter().flat_map(|group| &group.names).map(|name| name.name.clone()).collect()
        };
        let (hooks, calls) = (known(&self.hooks), known(&self.calls));
        let (mut other_hooks, mut other_calls) = (BTreeSet::new(), BTreeSet::new());
        for symbol in symbols {
            if let Some(hook) = symbol.strip_prefix(HOOK) {
                if !hooks.contains(hook) && !self.not_hooks.contains(hook) {
                    other_hooks.insert(hook.to_owned());
                }
            } else if let Some(call) = symbol.strip_prefix(CALL)
                && call != HOLE
                && !calls.contains(call)
                && !self.not_calls.contains(call)
            {
                other_calls.insert(call.to_owned());
            }
        }
        Unknown { hooks: other_hooks.into_iter().collect(), calls: other_calls.into_iter().collect() }
    }
}

#[cfg(test)]
mod tests;
