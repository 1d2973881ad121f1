//! Rules about documents: what they claim must be there.

use super::{Source, find};
use crate::Cli;
use clap::Parser;

/// The list of evasions: a row that says `stopped` names the case that shows it.
const BYPASSES: &str = "docs/bypasses.md";

/// What there is to protect, from whom, and the test that shows it.
const THREATS: &str = "SECURITY.md";
/// The heading above that table.
const THREAT_MODEL: &str = "## Threat model";

/// `cases` are the names of the VM tests.
pub(super) fn check(files: &[Source], cases: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    bypasses(files, cases, &mut found);
    threats(files, cases, &mut found);
    profiles(files, &mut found);
    dependencies(files, &mut found);
    for file in files.iter().filter(|file| file.has_extension("md")) {
        commands(file, files, &mut found);
        links(file, files, &mut found);
    }
    found
}

/// Each row whose second cell is `stopped` has, in its third, names that `vm-tests/run --list` prints.
fn bypasses(files: &[Source], cases: &[String], found: &mut Vec<String>) {
    let Some(list) = find(files, BYPASSES) else { return };
    for (number, line) in list.text.lines().enumerate() {
        let cells: Vec<&str> = line.trim().trim_matches('|').split('|').map(str::trim).collect();
        let stopped = cells.get(1).is_some_and(|verdict| verdict.trim_matches(['`', '*']) == "stopped");
        if !line.trim_start().starts_with('|') || !stopped {
            continue;
        }
        let names: Vec<&str> =
            cells.get(2).into_iter().flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
        if names.is_empty() {
            found.push(format!("{BYPASSES}:{}: says stopped, but names no case", number + 1));
        }
        if cells.first().is_none_or(|evasion| evasion.is_empty()) {
            found.push(format!("{BYPASSES}:{}: does not say what is stopped", number + 1));
        }
        for name in names.iter().filter(|name| !cases.iter().any(|case| case == *name)) {
            found.push(format!(
                "{BYPASSES}:{}: there is no case `{name}` in `vm-tests/run --list`",
                number + 1
            ));
        }
    }
}

/// Each row of the threat model ends with the names of tests: cases of the VM, functions in Rust or Python, tests in Node.
fn threats(files: &[Source], cases: &[String], found: &mut Vec<String>) {
    let Some(file) = find(files, THREATS) else { return };
    let mut inside = false;
    for (number, line) in file.text.lines().enumerate() {
        if line.starts_with("## ") {
            inside = line == THREAT_MODEL;
        }
        // The head of the table and the line below it have no names to check.
        let is_row = line.starts_with('|') && !line.starts_with("| asset |") && !line.starts_with("|---");
        if !inside || !is_row {
            continue;
        }
        let cells: Vec<&str> = line.trim().trim_matches('|').split('|').map(str::trim).collect();
        let names: Vec<&str> =
            cells.get(3).into_iter().flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect();
        if cells.len() != 4 || names.is_empty() {
            found.push(format!("{THREATS}:{}: not asset, adversary, what holds and test", number + 1));
        }
        for name in names.iter().filter(|name| !is_test(name, files, cases)) {
            found.push(format!("{THREATS}:{}: there is no test `{name}`", number + 1));
        }
    }
}

/// Whether a case of the VM has this name, or a function or a test in a file of tests.
fn is_test(name: &str, files: &[Source], cases: &[String]) -> bool {
    if name.contains('/') {
        return cases.iter().any(|case| case == name);
    }
    let (rust, python) = (format!("fn {name}("), format!("def {name}("));
    let node = format!("test(\"{name}\", ");
    files.iter().any(|file| match file.path.extension().and_then(|extension| extension.to_str()) {
        Some("rs") => {
            file.text.contains(&rust)
                && ["#[test]", "#[tokio::test"].iter().any(|mark| file.text.contains(mark))
        }
        Some("py") => file.path.starts_with("tests") && file.text.contains(&python),
        Some("mjs") => file.path.starts_with("tests") && file.text.contains(&node),
        _ => false,
    })
}

/// Every shipped profile is presented to users.
fn profiles(files: &[Source], found: &mut Vec<String>) {
    let shown = ["README.md", "docs/profiles.md"].map(|path| find(files, path).map_or("", |file| &file.text));
    for file in
        files.iter().filter(|file| file.path.parent().is_some_and(|dir| dir.as_os_str() == "profiles"))
    {
        let Some(name) = file.path.file_stem().filter(|_| file.has_extension("toml")) else { continue };
        let mention = format!("`{}`", name.to_string_lossy());
        if !shown.iter().any(|text| text.contains(&mention)) {
            found.push(format!("{}: neither README.md nor docs/profiles.md mentions {mention}", file.name()));
        }
    }
}

/// Every dependency has its reason in ARCHITECTURE.md.
fn dependencies(files: &[Source], found: &mut Vec<String>) {
    let (Some(manifest), Some(architecture)) = (find(files, "Cargo.toml"), find(files, "ARCHITECTURE.md"))
    else {
        return;
    };
    let reasons = architecture.text.split("## Dependencies").nth(1).unwrap_or_default();
    let listed = manifest.text.split("[workspace.dependencies]").nth(1).unwrap_or_default();
    for line in listed.lines().take_while(|line| !line.starts_with('[')) {
        let Some((name, _)) = line.split_once('=').filter(|_| !line.starts_with('#')) else { continue };
        let name = name.trim();
        if !name.starts_with("ringfence-") && !reasons.contains(&format!("| {name} |")) {
            found.push(format!("ARCHITECTURE.md: no reason for the dependency `{name}` under Dependencies"));
        }
    }
}

/// Commands in documents parse: xtask's with all their options, ringfence's by subcommand.
fn commands(file: &Source, files: &[Source], found: &mut Vec<String>) {
    for (number, line) in file.text.lines().enumerate() {
        for command in candidates(line) {
            let words: Vec<&str> = command.split_whitespace().take_while(|word| *word != "#").collect();
            let place = || format!("{}:{}", file.name(), number + 1);
            if let ["cargo", "xtask", rest @ ..] = words.as_slice() {
                // A form such as `vm-test [--kernel K]` or an elided `bench ...` is not a command line.
                let is_form = rest
                    .iter()
                    .any(|word| word.contains(['[', '<', '|', '>', '"', '\'', '&']) || word.contains(".."));
                let parsed = Cli::try_parse_from(std::iter::once("cargo xtask").chain(rest.iter().copied()));
                if let (false, Err(error)) = (is_form, parsed)
                    && error.use_stderr()
                {
                    let why = error.to_string();
                    let why = why.lines().next().unwrap_or_default();
                    found.push(format!("{}: `{}` is not a command: {why}", place(), words.join(" ")));
                }
            } else if let ["ringfence", verb, ..] = words.as_slice()
                && verb.chars().all(|letter| letter.is_ascii_lowercase())
                && !is_subcommand(verb, files)
            {
                found.push(format!("{}: ringfence has no subcommand `{verb}`", place()));
            }
        }
    }
}

/// What stands in backticks, or is a whole indented line of code.
fn candidates(line: &str) -> Vec<&str> {
    let mut all: Vec<&str> = line.split('`').skip(1).step_by(2).collect();
    if line.starts_with("    ") || line.starts_with("$ ") {
        all.push(line.trim().trim_start_matches("$ ").trim_start_matches("sudo "));
    }
    all
}

/// ringfence's subcommands are the variants of an enum in its command line.
fn is_subcommand(verb: &str, files: &[Source]) -> bool {
    let Some(cli) = find(files, "agent/src/cli/mod.rs") else { return true };
    let mut variant = verb.to_owned();
    if let Some(first) = variant.get_mut(0..1) {
        first.make_ascii_uppercase();
    }
    cli.text.contains(&format!("    {variant}("))
}

/// Links within the repository lead somewhere.
fn links(file: &Source, files: &[Source], found: &mut Vec<String>) {
    for (number, line) in file.text.lines().enumerate() {
        for link in line.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = link.split('#').next().unwrap_or_default();
            if target.is_empty() || target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let path = normal(&file.path.parent().unwrap_or(std::path::Path::new("")).join(target));
            if !files.iter().any(|other| other.path == path || other.path.starts_with(&path)) {
                found.push(format!("{}:{}: the link to {link} leads nowhere", file.name(), number + 1));
            }
        }
    }
}

/// A relative path without `.` and `..`.
fn normal(path: &std::path::Path) -> std::path::PathBuf {
    let mut normal = std::path::PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::ParentDir => {
                normal.pop();
            }
            std::path::Component::CurDir => {}
            other => normal.push(other),
        }
    }
    normal
}

#[cfg(test)]
mod tests {
    use super::{Source, check};

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<Source> =
            files.iter().map(|(path, text)| Source { path: path.into(), text: (*text).to_owned() }).collect();
        check(&files, &["exec/absolute".to_owned()])
    }

    #[test]
    fn a_stopped_evasion_names_a_case_that_exists() {
        let row = |row| found(&[("docs/bypasses.md", row)]).len();
        assert_eq!(row("| absolute path | stopped | `exec/absolute` | |\n"), 0);
        assert_eq!(row("| absolute path | `stopped` | `exec/absolute` | |\n"), 0);
        assert_eq!(row("|  | stopped | `exec/absolute` | |\n"), 1);
        assert_eq!(row("| i386 | open | | not yet |\n"), 0);
        assert_eq!(row("| absolute path | stopped | | |\n"), 1);
        assert_eq!(row("| absolute path | `stopped` | `exec/magic` | `exec/absolute` |\n"), 1);
    }

    #[test]
    fn a_row_of_the_threat_model_names_tests_that_exist() {
        let head = "## Threat model\n\n| asset | adversary | what holds | test |\n|---|---|---|---|\n";
        let rust = ("agent/src/x.rs", "//! x\n#[test]\nfn holds() {}\n");
        let python = ("tests/mcp/x.py", "def test_holds():\n    pass\n");
        let node = ("tests/page/x.mjs", "test(\"a page, and its key\", async () => {});\n");
        let row = |row: &str| {
            let text = format!("{head}{row}");
            found(&[("SECURITY.md", text.as_str()), rust, python, node])
                .iter()
                .filter(|line| line.contains("SECURITY"))
                .count()
        };
        assert_eq!(row("| a key | a tool | the kernel | `exec/absolute`, `holds`, `test_holds` |\n"), 0);
        assert_eq!(row("| a key | a page | the browser | `a page, and its key` |\n"), 0);
        assert_eq!(row("| a key | a page | the browser | `a page` |\n"), 1);
        assert_eq!(row("| a key | a tool | the kernel | `exec/magic`, `hold` |\n"), 2);
        assert_eq!(row("| a key | a tool | the kernel | |\n"), 1);
        assert_eq!(row("| a key | a tool | `holds` |\n"), 1);
        assert_eq!(row("\n## Other\n\n| role | user | keeps | why |\n"), 0);
    }

    #[test]
    fn commands_in_documents_exist() {
        let cli = ("agent/src/cli/mod.rs", "enum Command {\n    Run(run::Args),\n}\n");
        let text = |text| [("README.md", text), cli];
        assert!(
            found(&text("Try `cargo xtask vm --kernel 6.1 -- true` or `ringfence run -- ls`.\n")).is_empty()
        );
        assert!(found(&text("    cargo xtask test --quick   # minutes\n")).is_empty());
        assert_eq!(found(&text("`cargo xtask tset`\n")).len(), 1);
        assert_eq!(found(&text("`cargo xtask vm --kernel 5.4`\n")).len(), 1);
        assert_eq!(found(&text("    ringfence fly --now\n")).len(), 1);
    }

    #[test]
    fn links_profiles_and_dependencies_are_followed() {
        assert_eq!(found(&[("README.md", "[a](docs/none.md)\n")]).len(), 1);
        assert!(
            found(&[("README.md", "[a](docs/a.md#b) [c](https://example.org/x)\n"), ("docs/a.md", "x\n")])
                .is_empty()
        );
        assert_eq!(found(&[("profiles/coder.toml", "\n"), ("README.md", "x\n")]).len(), 1);
        assert!(found(&[("profiles/coder.toml", "\n"), ("README.md", "`coder`\n")]).is_empty());
        let manifest = ("Cargo.toml", "[workspace.dependencies]\nnix = \"1\"\n");
        assert_eq!(found(&[manifest, ("ARCHITECTURE.md", "## Dependencies\n")]).len(), 1);
        assert!(
            found(&[manifest, ("ARCHITECTURE.md", "## Dependencies\n| nix | system calls |\n")]).is_empty()
        );
    }
}
