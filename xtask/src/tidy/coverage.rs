//! Rules about the table of every way into the kernel: it names the programs that there are, and cases that exist.

use super::{Source, find};
use crate::coverage::{RENDERED, render};
use ringfence_common::egress::REWRITERS;
use ringfence_common::hooks::HOOKS;
use ringfence_common::net::EGRESS;
use ringfence_coverage::{Group, Table};
use std::collections::BTreeSet;

const TABLE: &str = "ebpf/coverage/coverage.toml";
/// Whoever decides beside the programs for hooks: the default list of system calls, the programs that see packets and
/// change addresses.
const OTHERS: [&str; 2] = ["seccomp", "egress"];
/// The tag of cases that run on every kernel and are no hook's.
const EVERY_KERNEL: &str = "all";

/// `cases` are the names of the VM tests.
pub(super) fn check(files: &[Source], cases: &[String]) -> Vec<String> {
    let programs: Vec<&str> = HOOKS.iter().map(|hook| hook.name).collect();
    let Some(file) = find(files, TABLE) else { return Vec::new() };
    let table = match Table::parse(&file.text) {
        Ok(table) => table,
        Err(error) => return vec![format!("{TABLE}: {error}")],
    };
    let mut found = against(&table, &programs, cases);
    if find(files, RENDERED).is_none_or(|rendered| rendered.text != render(&table)) {
        found.push(format!("{RENDERED}: not what {TABLE} says; run `cargo xtask coverage`"));
    }
    found
}

fn against(table: &Table, programs: &[&str], cases: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    let groups = || table.hooks.iter().chain(&table.calls).chain(&table.families);
    for Group { about, by, case, .. } in groups() {
        for by in by.iter().filter(|by| !OTHERS.contains(&by.as_str()) && !programs.contains(&by.as_str())) {
            found.push(format!("{TABLE}: {about}: there is no program for a hook `{by}`"));
        }
        if let Some(case) = case
            && !cases.contains(case)
        {
            found.push(format!("{TABLE}: {about}: there is no case `{case}` in `vm-tests/run --list`"));
        }
    }
    // A program's own hook is in a group that says so.
    let decided: BTreeSet<&str> = table
        .hooks
        .iter()
        .filter(|group| !group.by.is_empty())
        .flat_map(|group| group.names.iter().filter(|name| group.by.contains(&name.name)))
        .map(|name| name.name.as_str())
        .collect();
    for program in programs.iter().filter(|program| !decided.contains(*program)) {
        found.push(format!("{TABLE}: the hook `{program}` has a program, and no group of hooks says so"));
    }
    found.extend(needed(table, programs, cases));
    found
}

/// On the kernels on which only tagged cases run (`--hooks-only`), each program has one: `tags` are theirs.
pub(super) fn tags(tags: &[String]) -> Vec<String> {
    let programs: BTreeSet<&str> = HOOKS.iter().map(|hook| hook.name).chain(of_cgroups()).collect();
    let tags: BTreeSet<&str> = tags.iter().map(String::as_str).filter(|tag| *tag != EVERY_KERNEL).collect();
    let untagged =
        programs.difference(&tags).map(|hook| format!("vm-tests/cases: no case is tagged `{hook}`"));
    let unknown =
        tags.difference(&programs).map(|tag| format!("vm-tests/cases: no program is named `{tag}`"));
    untagged.chain(unknown).collect()
}

/// The programs that are attached to the root of cgroup v2.
fn of_cgroups() -> impl Iterator<Item = &'static str> {
    [EGRESS].into_iter().chain(REWRITERS)
}

/// What shows that each program is needed: one entry for each, in `shown` or in `covered`.
fn needed(table: &Table, programs: &[&str], cases: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    let entries: Vec<(&String, &String)> = (table.shown.iter())
        .chain(table.covered.iter().map(|(program, covered)| (program, &covered.case)))
        .collect();
    for (program, case) in &entries {
        if !of_cgroups().any(|name| name == **program) && !programs.contains(&program.as_str()) {
            found.push(format!("{TABLE}: there is no program `{program}` to be shown or covered"));
        }
        if !cases.contains(case) {
            found.push(format!("{TABLE}: {program}: there is no case `{case}` in `vm-tests/run --list`"));
        }
    }
    for program in programs {
        let count = entries.iter().filter(|(name, _)| name == program).count();
        if count != 1 {
            found.push(format!("{TABLE}: `{program}` is {count} times in `shown` and `covered`, not once"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::{EVERY_KERNEL, HOOKS, against, of_cgroups, tags};
    use ringfence_coverage::Table;

    const TEXT: &str = r#"
not_hooks = []
not_calls = []
call = []
family = []
[[hook]]
about = "Opening"
by = ["file_open", "seccomp"]
why = "It is judged."
case = "files/open"
names = ["file_open", "file_post_open"]
[shown]
file_open = "files/open"
[covered]
"#;

    #[test]
    fn programs_and_cases_are_those_that_there_are() {
        let table = Table::parse(TEXT).unwrap();
        let cases = ["files/open".to_owned()];
        assert!(against(&table, &["file_open"], &cases).is_empty());
        assert_eq!(
            against(&table, &["file_open"], &[]).len(),
            2,
            "no such case, of a group and of a program"
        );
        assert_eq!(against(&table, &["file_open", "bpf"], &cases).len(), 2, "a program that no group names");
        assert_eq!(against(&table, &[], &cases).len(), 2, "a group that names a program that there is not");
    }

    #[test]
    fn every_program_has_a_tagged_case() {
        let mut all: Vec<String> = HOOKS.iter().map(|hook| hook.name.to_owned()).collect();
        all.extend(of_cgroups().chain([EVERY_KERNEL]).map(str::to_owned));
        assert!(tags(&all).is_empty());
        assert!(tags(&all[1..])[0].contains(HOOKS[0].name));
        all.push("coffee_brew".to_owned());
        assert!(tags(&all)[0].contains("coffee_brew"));
    }

    #[test]
    fn a_program_is_shown_or_covered_and_not_both() {
        let covered = r#"file_open = { case = "files/open", why = "Another." }"#;
        let cases = ["files/open".to_owned()];
        let both = Table::parse(&format!("{TEXT}{covered}")).unwrap();
        assert_eq!(against(&both, &["file_open"], &cases).len(), 1);
        let one =
            Table::parse(&format!("{}{covered}", TEXT.replace("file_open = \"files/open\"", ""))).unwrap();
        assert!(against(&one, &["file_open"], &cases).is_empty());
    }
}
