//! docs/cli.md: what it lists is what the command line has.

use super::{OLDER, each};
use crate::cli::{exit, help, visible};
use std::{fmt::Write as _, fs};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/cli.md");

/// The commands by task, as a tree.
fn commands() -> String {
    let root = visible();
    let mut text = String::new();
    for (task, names) in help::GROUPS {
        let _ = write!(text, "### {task}\n\n```text\n");
        for name in names {
            let command = root.find_subcommand(name).expect("the overview has commands only");
            each(command, name, &mut |command, words| {
                let about = command.get_about().map(ToString::to_string).unwrap_or_default();
                let indent = "  ".repeat(words.matches(' ').count());
                let _ = writeln!(text, "{:<16}{about}", format!("{indent}{}", command.get_name()));
            });
        }
        text += "```\n\n";
    }
    text.truncate(text.trim_end().len());
    text
}

fn older() -> String {
    let mut rows: Vec<String> =
        OLDER.iter().map(|(old, new, _)| format!("| `ringfence {old}` | `ringfence {new}` |\n")).collect();
    rows.push("| `ringfence version` | `ringfence --version` |\n".to_owned());
    rows.dedup();
    format!("| older name | command |\n|---|---|\n{}", rows.concat().trim_end())
}

fn statuses() -> String {
    let rows: String = exit::rows().map(|(status, meaning)| format!("| {status} | {meaning} |\n")).collect();
    format!("| status | meaning |\n|---|---|\n{}", rows.trim_end())
}

/// Replaces what stands between the markers of a section.
fn with(page: &str, section: &str, text: &str) -> String {
    let (begin, end) = (format!("<!-- {section} -->\n"), format!("\n<!-- end of {section} -->"));
    let (before, rest) = page.split_once(&begin).unwrap_or_else(|| panic!("docs/cli.md has no {begin}"));
    let (_, after) = rest.split_once(&end).unwrap_or_else(|| panic!("docs/cli.md has no {end}"));
    format!("{before}{begin}{text}{end}{after}")
}

#[test]
fn the_page_lists_the_commands_and_exit_statuses() {
    let page = fs::read_to_string(PAGE).unwrap();
    let sections = [("commands", commands()), ("older names", older()), ("exit statuses", statuses())];
    let current = sections.iter().fold(page.clone(), |page, (section, text)| with(&page, section, text));
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(PAGE, &current).unwrap();
    } else {
        assert!(
            page == current,
            "docs/cli.md is out of date; UPDATE_DOCS=1 cargo test -p ringfence the_page_lists writes it"
        );
    }
}
