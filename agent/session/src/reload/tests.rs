//! Rule files that change, and what counts as looser.

use super::{Change, LONGEST, RuleFileWatch, difference, loosened, loosens};
use crate::{
    conditions::{Facts, covers_plainly},
    risk,
    rules::{self, MOST_RULES, RuleSpec, SHIPPED},
};
use proptest::{prelude::Strategy, prop_assert, prop_assert_eq, sample::select};
use ringfence_wire::{mcp::RuleFile, tool_call::Action};
use serde_json::json;
use std::fs;

#[test]
fn only_what_covers_every_old_rule_is_no_looser() {
    let old = rules::read(SHIPPED).expect("rules");
    assert_eq!(loosened(&old, &old), None);
    let with = |from: &str, to: &str| {
        let new = rules::read(&SHIPPED.replacen(from, to, 1)).expect("rules");
        loosened(&old, &new).map(str::to_owned)
    };
    assert_eq!(with("action: pause", "action: block"), None);
    assert_eq!(with("min_risk_score: 80", "min_risk_score: 10"), None);
    assert_eq!(with("action: pause", "action: flag"), Some("pause_deletes".into()));
    assert_eq!(with("min_risk_score: 80", "min_risk_score: 90"), Some("block_bulk_destructive".into()));
    assert_eq!(with("\"send_*,post_*\"", "\"send_*\""), Some("flag_external_messages".into()));
    assert_eq!(with("[write, delete, execute]", "[write]"), Some("pause_sql_mutations".into()));
    let off = SHIPPED.replacen("action: pause", "action: pause\n    enabled: false", 1);
    assert_eq!(loosened(&old, &rules::read(&off).expect("rules")), Some("pause_deletes"));
}

#[test]
fn a_changed_file_is_taken_held_or_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("rules.yaml");
    // Others may write it, so that it does not count as root's where root runs the tests.
    let write = |text: &str| {
        fs::write(&file, text).expect("written");
        fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o666)).expect("mode");
    };
    write(SHIPPED);
    let mut watch = RuleFileWatch::new(file.clone(), SHIPPED.to_owned()).expect("rules");
    assert!(watch.poll().is_none());
    write(&format!("{SHIPPED}\n  - {{name: more, tool_pattern: 'x*', action: block}}\n"));
    assert!(matches!(watch.poll(), Some(Change::Taken(rules)) if rules.len() == 7));
    assert!(watch.poll().is_none());
    let strict = watch.offer();
    write("rules: []");
    assert!(matches!(watch.poll(), Some(Change::Held(_))));
    assert_eq!(watch.offer().text, "rules: []");
    assert!(!watch.offer().trusted);
    write(&strict.text);
    assert!(matches!(watch.poll(), Some(Change::Back)));
    assert!(watch.is_of(&strict.path) && !watch.is_of("/elsewhere/rules.yaml"));
    let confirmed = watch.put_in_force("rules: []").expect("rules");
    assert!(confirmed.is_some_and(|rules| rules.is_empty()));
    assert!(watch.put_in_force("rules: 3").is_err());
    write("rules: [] # the same");
    assert!(matches!(watch.poll(), Some(Change::Taken(_))));
    write("rules: 3 # broken");
    assert!(matches!(watch.poll(), Some(Change::Refused(_))));
    fs::remove_file(&file).expect("removed");
    assert!(matches!(watch.poll(), Some(Change::Refused(_))));
    // One that was written between the reading and the watch is noticed.
    write("rules: []");
    let mut watch = RuleFileWatch::new(file.clone(), SHIPPED.to_owned()).expect("rules");
    assert!(matches!(watch.poll(), Some(Change::Held(_))));
    assert!(watch.poll().is_none());
    fs::remove_file(&file).expect("removed");
    // And one that was not there at the start, when it comes.
    let mut watch = RuleFileWatch::new(file.clone(), SHIPPED.to_owned()).expect("rules");
    assert!(watch.poll().is_none());
    write("rules: []");
    assert!(matches!(watch.poll(), Some(Change::Held(_))));
}

#[test]
fn what_is_no_file_in_the_place_of_one_is_waited_for_by_nobody() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("rules.yaml");
    fs::write(&file, SHIPPED).expect("written");
    let mut watch = RuleFileWatch::new(file.clone(), SHIPPED.to_owned()).expect("rules");
    fs::remove_file(&file).expect("removed");
    let made = std::process::Command::new("mkfifo").arg(&file).status().expect("mkfifo");
    assert!(made.success());
    assert!(matches!(watch.poll(), Some(Change::Refused(why)) if why.contains("not a regular file")));
    // The control: a link to a file is one.
    fs::remove_file(&file).expect("removed");
    fs::write(folder.path().join("elsewhere"), SHIPPED).expect("written");
    std::os::unix::fs::symlink("elsewhere", &file).expect("a link");
    assert!(matches!(watch.poll(), Some(Change::Back)));
}

#[test]
fn only_roots_own_files_in_its_own_directories_are_trusted() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("rules.yaml");
    fs::write(&file, SHIPPED).expect("written");
    assert!(!super::only_roots(&file), "everybody can put another one into the temporary directory");
    assert!(super::only_roots("/etc/passwd".as_ref()));
    // Who may make a link chooses where it leads, now and in a moment.
    let link = folder.path().join("link");
    std::os::unix::fs::symlink("/etc/passwd", &link).expect("a link");
    assert!(!super::only_roots(&link));
}

/// As the comparison is meant, rule by rule.
fn loosened_slowly<'a>(old: &'a [RuleSpec], new: &[RuleSpec]) -> Option<&'a str> {
    let covers = |new: &RuleSpec, old: &RuleSpec| {
        new.enabled && new.action >= old.action && covers_plainly(&new.conditions, &old.conditions)
    };
    let held = old.iter().filter(|old| old.enabled && old.action > Action::Pass);
    held.into_iter().find(|old| !new.iter().any(|new| covers(new, old))).map(|old| old.name.as_str())
}

#[test]
fn whatever_the_texts_are_they_are_compared_in_little_time() {
    // Pair by pair it would not end.
    let rule = |n: usize, more: &str| format!("- {{name: r{n}, action: flag{more}}}\n");
    let file = |many: usize, more: &dyn Fn(usize) -> String| {
        (0..many).fold("rules:\n".to_owned(), |text, n| text + &rule(n, &more(n)))
    };
    // As many as fit in the longest file that is read. More than anybody has: not compared, but held.
    let most = file(20_000, &|_| ", tool_pattern: a".into());
    assert!(most.len() < LONGEST as usize);
    let other = file(20_000, &|_| ", tool_pattern: b".into());
    assert_eq!(loosens(&most, &other).as_deref(), Some("(a text that cannot be compared)"));
    // Operations that are named again and again.
    let names = "write".to_owned() + &",read".repeat(180);
    let wide = file(MOST_RULES, &|n| format!(", tool_pattern: t{n}, operation_types: '{names}'"));
    let same =
        file(MOST_RULES, &|n| format!(", tool_pattern: t{}, operation_types: '{names}'", MOST_RULES - 1 - n));
    assert!(wide.len() < LONGEST as usize && wide.len() > LONGEST as usize * 3 / 4);
    assert_eq!(loosens(&wide, &same), None, "the order of rules is nothing");
    assert_eq!(loosens(&wide, &same.replacen("flag", "pass", 1)).as_deref(), Some("r999"));
    // Lines, all of them others.
    let lines = |digit: &str| digit.to_owned() + &format!("\n{digit}").repeat((LONGEST as usize - 1) / 2);
    assert!(!difference(&lines("1"), &lines("2")).is_empty());
}

#[test]
fn what_is_longer_than_any_rule_file_is_neither_read_nor_compared() {
    let long = format!("rules: []{}", " ".repeat(LONGEST as usize));
    assert!(loosens("rules: []", &long).is_some_and(|why| why.contains("too long")));
    assert!(loosens(&long, "rules: []").is_some());
    assert!(difference(&long, "rules: []").len() < 100);
    let offer = |path: &str, text: &str| {
        super::too_long(&RuleFile { path: path.into(), text: text.into(), trusted: false })
    };
    assert_eq!(offer("/rules.yaml", &long[..LONGEST as usize]), None, "the control");
    assert!(offer("/rules.yaml", &long).is_some_and(|why| why.contains("1048576")));
    assert!(offer(&"x".repeat(5000), "rules: []").is_some_and(|why| why.contains("path")));
}

#[test]
fn operations_that_nobody_knows_are_covered_by_all_and_cover_nothing() {
    let file = |operations: &str| format!("rules: [{{name: a, action: flag{operations}}}]");
    let [every, odd, read] = ["", ", operation_types: [fly]", ", operation_types: [read]"].map(file);
    assert_eq!(loosens(&odd, &every), None);
    for (old, new) in [(&every, &odd), (&read, &odd), (&odd, &read), (&odd, &(odd.clone() + " "))] {
        assert_eq!(loosens(old, new).as_deref(), Some("a"), "{old} {new}");
    }
    assert_eq!(loosens(&odd, &odd), None, "nothing changed");
}

fn rule() -> impl Strategy<Value = String> {
    let maybe = |values: &'static [&'static str]| proptest::option::of(select(values));
    (
        maybe(&["delete_*", "*_x", "read_*,delete_*", "*"]),
        maybe(&["fs", "db*"]),
        proptest::option::of(proptest::sample::subsequence(vec!["read", "write", "delete"], 1..3)),
        select(&[0u8, 20, 50, 90][..]),
        select(&["flag", "pause", "block"][..]),
        proptest::bool::weighted(0.9),
    )
        .prop_map(|(tools, servers, operations, score, action, enabled)| {
            let mut text = format!("action: {action}, min_risk_score: {score}, enabled: {enabled}");
            for (key, value) in [("tool_pattern", tools), ("server_pattern", servers)] {
                text.extend(value.map(|value| format!(", {key}: '{value}'")));
            }
            text.extend(operations.map(|list| format!(", operation_types: [{}]", list.join(", "))));
            text
        })
}

fn file() -> impl Strategy<Value = String> {
    proptest::collection::vec(rule(), 0..4).prop_map(|rules| {
        let named = rules.iter().enumerate().map(|(n, rule)| format!("  - {{name: r{n}, {rule}}}\n"));
        if rules.is_empty() {
            "rules: []".to_owned()
        } else {
            "rules:\n".to_owned() + &named.collect::<String>()
        }
    })
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(2000))]
    #[test]
    fn the_quick_comparison_says_what_the_plain_one_says(old in file(), new in file()) {
        let (old, new) = (rules::read(&old).expect("rules"), rules::read(&new).expect("rules"));
        prop_assert_eq!(loosened(&old, &new), loosened_slowly(&old, &new));
    }

    #[test]
    fn what_loosens_nothing_judges_no_call_more_mildly(old in file(), new in file()) {
        if loosens(&old, &new).is_none() {
            let (old, new) = (rules::parse(&old).expect("rules"), rules::parse(&new).expect("rules"));
            for server in ["fs", "db1", "other"] {
                for tool in ["read_x", "delete_x", "delete_it", "write_x", "odd"] {
                    for arguments in [json!({}), json!({"sql": "DELETE FROM t"}), json!({"password": 1})] {
                        let risk = risk::assess(tool, &arguments, false);
                        let action = |rules| rules::judge(rules, Facts::new(server, tool, &risk)).action;
                        prop_assert!(action(&new) >= action(&old), "{server} {tool} {arguments}");
                    }
                }
            }
        }
    }
}
