//! What the launcher says of the enforcement: the line before the command runs, and the refusal.

use super::plan::{self, Held, Plan};
use ringfence_policy::Partial;
use std::path::PathBuf;

/// What holds the command.
pub(crate) enum Holding<'a> {
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
    pub(crate) fn enforcement(&self) -> String {
        match self {
            Self::Kernel { audit: true, .. } => "kernel (audit mode: nothing is denied)".to_owned(),
            Self::Kernel { audit: false, .. } => "kernel".to_owned(),
            Self::Others(plan) => plan.parts.iter().map(summary).collect::<Vec<_>>().join(", "),
        }
    }
}

/// What enforces, in sentences, once the command is about to run: first that, then what is closed though it is granted.
pub(crate) fn lines(profile: &str, held: &Holding<'_>, missing: &[PathBuf]) -> Vec<String> {
    let enforcement = held.enforcement();
    let mut lines = Vec::new();
    match held {
        Holding::Kernel { container, .. } => {
            lines.push(format!("container {container}, profile {profile}, enforcement: {enforcement}"));
        }
        Holding::Others(plan) => {
            lines.push(format!("profile {profile}, no events, enforcement: {enforcement}"));
            lines.extend(closed(plan));
        }
    }
    if !missing.is_empty() {
        let missing: Vec<String> = missing.iter().map(|path| path.display().to_string()).collect();
        lines.push(format!(
            "granted, but missing when the command started, so closed to it: {}; create it and run again",
            plan::listed(&missing)
        ));
    }
    lines
}

/// One axis in a word or two.
fn summary(held: &Held) -> String {
    let by = held.by.join(" + ");
    match (held.gaps.is_empty(), held.by.is_empty()) {
        (true, true) => format!("{} unrestricted", held.part),
        (true, false) => format!("{} {by}", held.part),
        (false, true) => format!("{} none", held.part),
        (false, false) => format!("{} {by} in part", held.part),
    }
}

/// The refusal: what would stay open, in sentences; what is held by what; and what to type to accept it.
/// `closed`: what would have to be accepted where no host is reached by name, and a proxy could reach them.
pub(crate) fn partial(
    profile: &str,
    why: &str,
    (plan, closed_names): (&Plan, Option<&str>),
    accepted: &[Partial],
) -> String {
    let mut text =
        format!("profile `{profile}` cannot be held in full here: {why}\nIf the command ran now,\n");
    for held in plan.refused(accepted) {
        text.push_str(&format!("  it could {}: {}\n", could(held.part), held.gaps.join("; ")));
    }
    text.push_str("What holds:\n");
    let is_shown = |held: &Held| plan.refused(accepted).any(|refused| refused == held);
    for held in &plan.parts {
        let line = if is_shown(held) { held.without_gaps() } else { held.to_string() };
        text.push_str(&format!("  {line}\n"));
    }
    for line in closed(plan) {
        text.push_str(&format!("  {line}\n"));
    }
    let missing: Vec<&str> = plan.refused(accepted).map(|h| h.part.name()).collect();
    text.push_str(&format!(
        "Not accepted: {}. `ringfence doctor` tells what the daemon needs; ",
        missing.join(", ")
    ));
    if let Some(needed) = closed_names {
        text.push_str(&format!(
            "or accept that no host is reached by name, and what else is not held: --accept-partial {needed}\n"
        ));
    }
    text.push_str(&format!("or accept exactly this: --accept-partial {}", plan.needed()));
    text
}

/// What a command could do with a gap.
fn could(part: Partial) -> &'static str {
    match part {
        Partial::FsRead => "read",
        Partial::FsWrite => "change",
        Partial::Exec => "execute",
        Partial::Net => "reach over the network",
        Partial::Names => "reach past the run's proxy for names",
        Partial::Unix => "connect to, and have whoever listens there act for it outside",
        Partial::Home => "use",
    }
}

/// What is closed though it is granted, in sentences.
fn closed(plan: &Plan) -> Vec<String> {
    let mut lines = plan.closed.clone();
    if !plan.narrowed.is_empty() {
        let names = plan::listed(&plan.narrowed);
        lines.push(format!("open in the home and the working directory only: {names}"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use ringfence_sandbox::landlock::Rules;

    #[test]
    fn a_refusal_says_what_would_stay_open_before_it_says_how_to_accept_it() {
        let part = |part, gaps: &[&str]| Held {
            part,
            by: vec!["seccomp".into()],
            gaps: gaps.iter().map(|gap| (*gap).to_owned()).collect(),
        };
        let plan = Plan {
            parts: vec![
                part(Partial::FsRead, &["secrets"]),
                part(Partial::Net, &[]),
                part(Partial::Home, &["the home"]),
            ],
            landlock: Rules::default(),
            narrowed: Vec::new(),
            closed: vec!["unix sockets are closed".into()],
            names: None,
            seccomp: Vec::new(),
        };
        let text = partial("p", "no daemon", (&plan, None), &[]);
        let at = |part: &str| text.find(part).unwrap_or_else(|| panic!("{part}: {text}"));
        assert!(
            at("it could read: secrets") < at("What holds:")
                && at("it could use: the home") < at("What holds:")
        );
        assert!(at("unix sockets are closed") < at("--accept-partial fs_read,home"));
        assert_eq!(text.matches("secrets").count(), 1, "each gap once: {text}");
        assert!(text.contains("\n  fs_read   held in part by seccomp\n"), "{text}");
        assert!(text.ends_with("--accept-partial fs_read,home"));
        // What is accepted is not said again, and stays among the flags.
        let text = partial("p", "no daemon", (&plan, Some("fs_read,net")), &[Partial::FsRead]);
        assert!(!text.contains("it could read") && text.ends_with("--accept-partial fs_read,home"), "{text}");
        assert!(
            text.contains(
                "no host is reached by name, and what else is not held: --accept-partial fs_read,net\n"
            ),
            "{text}"
        );
    }
}
