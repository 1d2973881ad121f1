//! Calls with what they do, labelled by hand, and how often the classifier agrees: for its test and `cargo xtask bench
//! classify`.
//!
//! The files are in `corpus/`: tools of public servers, as their packages list them, and shell commands. Those whose names
//! end in `-held` were labelled with the others and looked at only when all was done.

use crate::{
    risk::{self, Risk},
    rules,
};
use ringfence_wire::tool_call::{Action, Named as _, Operation};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A call with what it does.
#[derive(Debug, Clone)]
pub struct Case {
    /// The tool's name.
    pub tool: String,
    /// Its arguments.
    pub arguments: Value,
    /// What it does.
    pub operation: Operation,
    /// What its risk asks for.
    pub band: Action,
}

/// A part of the corpus.
#[derive(Debug, Clone)]
pub struct Part {
    /// What is in it.
    pub name: &'static str,
    /// Whether the classifier was not tuned on it.
    pub held: bool,
    /// Its calls.
    pub cases: Vec<Case>,
}

/// How often the classifier is right.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// Calls.
    pub cases: usize,
    /// Those whose operation is right.
    pub operations: usize,
    /// Those whose band is right.
    pub bands: usize,
    /// Of each operation, how often the classifier says which.
    pub confusion: BTreeMap<(Operation, Operation), usize>,
    /// Each that is wrong, as text.
    pub wrong: Vec<String>,
    /// Deletions with a score under 31, which pass unseen: as text.
    pub unseen: Vec<String>,
}

/// All of it. Lines that are none are left out; the test counts them.
pub fn parts() -> Vec<Part> {
    let part = |name, held, text: &str, read: fn(&str) -> Option<Case>| Part {
        name,
        held,
        cases: text.lines().filter(|line| !line.starts_with('#')).filter_map(read).collect(),
    };
    vec![
        part("tools", false, include_str!("../corpus/tools.tsv"), tool),
        part("tools", true, include_str!("../corpus/tools-held.tsv"), tool),
        part("shell", false, include_str!("../corpus/shell.tsv"), command),
        part("shell", true, include_str!("../corpus/shell-held.tsv"), command),
    ]
}

fn tool(line: &str) -> Option<Case> {
    let [_server, tool, arguments, operation, band] = line.split('\t').collect::<Vec<_>>()[..] else {
        return None;
    };
    let arguments = serde_json::from_str(arguments).ok()?;
    case(tool, arguments, operation, band)
}

fn command(line: &str) -> Option<Case> {
    let [operation, band, command] = line.split('\t').collect::<Vec<_>>()[..] else { return None };
    case("bash", json!({ "command": command.replace("\\n", "\n") }), operation, band)
}

fn case(tool: &str, arguments: Value, operation: &str, band: &str) -> Option<Case> {
    let (operation, band) = (Operation::from_name(operation)?, Action::from_name(band)?);
    Some(Case { tool: tool.to_owned(), arguments, operation, band })
}

/// Asks the classifier about each.
pub fn tally(cases: &[Case]) -> Tally {
    let mut tally = Tally { cases: cases.len(), ..Tally::default() };
    for case in cases {
        let Risk { operation, score, reasons } = risk::assess(&case.tool, &case.arguments, false);
        let band = rules::action_of_score(score);
        *tally.confusion.entry((case.operation, operation)).or_default() += 1;
        tally.operations += usize::from(operation == case.operation);
        tally.bands += usize::from(band == case.band);
        let told = || {
            let Case { tool, arguments, operation: right, band: asked } = case;
            format!(
                "{tool} {arguments}: {} {}, and the classifier says {} {} ({score}: {})",
                right.name(),
                asked.name(),
                operation.name(),
                band.name(),
                reasons.join(", ")
            )
        };
        if operation != case.operation || band != case.band {
            tally.wrong.push(told());
        }
        if case.operation == Operation::Delete && score < 31 {
            tally.unseen.push(told());
        }
    }
    tally
}

#[cfg(test)]
mod tests {
    use super::{parts, tally};

    /// Of each hundred calls so many are right.
    const LEAST: usize = 95;

    #[test]
    fn the_classifier_agrees_with_the_labels_and_no_deletion_passes_unseen() {
        let mut wrong = Vec::new();
        for part in parts() {
            let tally = tally(&part.cases);
            let right = |many: usize| many * 100 >= tally.cases * LEAST;
            let what = format!("{} (held out: {})", part.name, part.held);
            let fine = right(tally.operations) && right(tally.bands);
            if !fine || !tally.unseen.is_empty() {
                wrong.push(format!(
                    "{what}: {} and {} of {}; unseen: {:#?}; wrong: {:#?}",
                    tally.operations, tally.bands, tally.cases, tally.unseen, tally.wrong
                ));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn every_line_of_the_corpus_is_read() {
        let texts = [
            include_str!("../corpus/tools.tsv"),
            include_str!("../corpus/tools-held.tsv"),
            include_str!("../corpus/shell.tsv"),
            include_str!("../corpus/shell-held.tsv"),
        ];
        for (part, text) in parts().iter().zip(texts) {
            assert_eq!(part.cases.len(), text.lines().filter(|line| !line.starts_with('#')).count());
        }
    }
}
