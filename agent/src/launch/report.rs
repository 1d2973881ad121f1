//! What the launcher says of the enforcement: the line before the command runs, and the refusal.

use super::plan::{self, Held, Plan};
use crate::profile::Axis;
use std::path::PathBuf;

/// What holds the command.
pub(super) enum Holding<'a> {
    /// The eBPF programs, all of it.
    Kernel {
        /// The container's public id.
        container: &'a str,
        /// Denials are recorded and not enforced.
        audit: bool,
    },
    /// Landlock and seccomp.
    Others(&'a Plan),
}

impl Holding<'_> {
    /// What enforces, in a few words.
    pub(super) fn enforcement(&self) -> String {
        match self {
            Self::Kernel { audit: true, .. } => "kernel (audit mode: nothing is denied)".to_owned(),
            Self::Kernel { audit: false, .. } => "kernel".to_owned(),
            Self::Others(plan) => plan.axes.iter().map(summary).collect::<Vec<_>>().join(", "),
        }
    }
}

/// What enforces, in sentences, once the command is about to run.
pub(super) fn lines(profile: &str, held: &Holding<'_>, missing: &[PathBuf]) -> Vec<String> {
    let enforcement = held.enforcement();
    let mut lines = Vec::new();
    match held {
        Holding::Kernel { container, .. } => {
            lines.push(format!("container {container}, profile {profile}, enforcement: {enforcement}"));
        }
        Holding::Others(plan) => {
            lines.push(format!("profile {profile}, no events, enforcement: {enforcement}"));
            if !plan.narrowed.is_empty() {
                lines.push(narrowed(plan));
            }
        }
    }
    if !missing.is_empty() {
        let missing: Vec<String> = missing.iter().map(|path| path.display().to_string()).collect();
        lines.push(format!("granted, but not there, so closed for good: {}", plan::listed(&missing)));
    }
    lines
}

/// One axis in a word or two.
fn summary(held: &Held) -> String {
    let by = held.by.join(" + ");
    match (held.gaps.is_empty(), held.by.is_empty()) {
        (true, true) => format!("{} unrestricted", held.axis),
        (true, false) => format!("{} {by}", held.axis),
        (false, true) => format!("{} none", held.axis),
        (false, false) => format!("{} {by} in part", held.axis),
    }
}

/// The refusal: what is held by what, and what to type to accept it.
pub(super) fn partial(profile: &str, why: &str, plan: &Plan, accepted: &[Axis]) -> String {
    let mut text = format!("profile `{profile}` cannot be held in full here: {why}\n");
    for held in &plan.axes {
        text.push_str(&format!("  {held}\n"));
    }
    if !plan.narrowed.is_empty() {
        text.push_str(&format!("  {}\n", narrowed(plan)));
    }
    let needed: Vec<&str> = plan.axes.iter().filter(|h| !h.gaps.is_empty()).map(|h| h.axis.name()).collect();
    let missing: Vec<&str> = plan.refused(accepted).map(|h| h.axis.name()).collect();
    text.push_str(&format!(
        "Not accepted: {}. `ringfence doctor` tells what the daemon needs; or accept exactly this: \
         --accept-partial {}",
        missing.join(", "),
        needed.join(",")
    ));
    text
}

fn narrowed(plan: &Plan) -> String {
    format!("open in the home and the working directory only: {}", plan::listed(&plan.narrowed))
}
