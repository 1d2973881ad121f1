//! Rule files that are read, refused and applied.

use super::{Action, Facts, Judgement, MOST_RULES, Rule, SHIPPED, parse};
use crate::risk::{Risk, assess};
use serde_json::json;

fn judge(rules: &[Rule], server: &str, tool: &str, risk: &Risk) -> Judgement {
    super::judge(rules, Facts::new(server, tool, risk))
}

fn verdict(server: &str, tool: &str, arguments: serde_json::Value) -> (Action, Vec<String>) {
    let rules = parse(SHIPPED).expect("the shipped rules");
    let Judgement { action, rules } = judge(&rules, server, tool, &assess(tool, &arguments, false));
    (action, rules)
}

#[test]
fn shipped_rules_do_what_they_say() {
    assert_eq!(verdict("fs", "read_file", json!({})), (Action::Pass, vec![]));
    assert_eq!(verdict("fs", "create_x", json!({})), (Action::Flag, vec!["flag_all_writes".into()]));
    assert_eq!(verdict("fs", "delete_x", json!({})), (Action::Pause, vec!["pause_deletes".into()]));
    assert_eq!(verdict("x", "run_tests", json!({})), (Action::Pause, vec!["pause_shell_execution".into()]));
    assert_eq!(verdict("x", "post_note", json!({})).0, Action::Flag);
    assert_eq!(
        verdict("Postgres", "insert_row", json!({})),
        (Action::Pause, vec!["pause_sql_mutations".into()])
    );
    let everything = json!({"sql": "DELETE FROM users", "password": "x"});
    assert_eq!(
        verdict("x", "delete_all", everything),
        (Action::Block, vec!["block_bulk_destructive".into()])
    );
}

#[test]
fn operations_are_a_list_or_a_text_with_commas() {
    let list =
        parse("rules:\n  - {name: a, operation_types: [delete, write], action: pause}").expect("rules");
    let text =
        parse("rules:\n  - {name: a, operation_types: 'delete, write', action: pause}").expect("rules");
    for (tool, expected) in
        [("delete_x", Action::Pause), ("create_x", Action::Pause), ("read_x", Action::Pass)]
    {
        let risk = assess(tool, &json!({}), false);
        for rules in [&list, &text] {
            assert_eq!(judge(rules, "s", tool, &risk).action, expected, "{tool}");
        }
    }
}

#[test]
fn a_mild_rule_does_not_soften_a_high_score() {
    let rules = parse("rules:\n  - {name: a, operation_types: [delete], action: flag}").expect("rules");
    let risk = assess("delete_x", &json!({"sql": "DELETE FROM t", "token": 1}), false);
    assert_eq!(judge(&rules, "s", "delete_x", &risk), Judgement { action: Action::Block, rules: vec![] });
}

#[test]
fn patterns_fold_case_width_and_slashes() {
    let rules = parse("rules:\n  - {name: a, tool_pattern: 'DROP_*', action: block}").expect("rules");
    for tool in ["drop_table", "DROP_x/y", "ｄｒｏｐ_table", "mcp__db__drop_it"] {
        assert_eq!(
            judge(&rules, "s", tool, &assess(tool, &json!({}), false)).action,
            Action::Block,
            "{tool}"
        );
    }
    assert_ne!(judge(&rules, "s", "raindrop_x", &assess("x", &json!({}), false)).action, Action::Block);
}

#[test]
fn patterns_fold_the_case_of_every_script() {
    for (pattern, tool) in
        [("LÖSCHE_*", "lösche_alles"), ("удали*", "УДАЛИТЬ"), ("stra\u{df}e", "STRASSE"), ("ΟΣ", "ος")]
    {
        let rules = parse(&format!("rules:\n  - {{name: a, tool_pattern: '{pattern}', action: block}}"));
        let rules = rules.expect("rules");
        let action = judge(&rules, "s", tool, &assess(tool, &json!({}), false)).action;
        assert_eq!(action, Action::Block, "{pattern} {tool}");
    }
}

#[test]
fn what_is_wrong_is_found_in_its_line() {
    let cases = [
        (
            "rules:\n  - name: a\n    action: flag\n    operation_types:\n      - read\n      - fly\n",
            "line 6: ",
        ),
        ("rules:\n  - name: a\n    action: flag\n\n  - action: flag\n    name: a\n", "line 6: "),
        ("rules:\n  - name: a\n    action: flag\n    min_risk_score: 101\n", "line 4: "),
        ("rules:\n  - name: a\n    tool_pattern: '['\n    action: flag\n", "line 3: "),
        ("rules:\n  - name: a\n    server_pattern: '['\n    action: flag\n", "line 3: "),
        ("rules:\n  - name: a\n    operation_types: 'read, fly'\n    action: flag\n", "line 3: "),
        ("rules:\n  - name: a\n    action: flag\n    operation_types: []\n", "line 4: "),
        ("rules:\n  - name: a\n    action: flag\n    operation_types: 7\n", "line 4"),
        ("rules:\n  - name: a\n    action: pass\n", "line 3: "),
        ("rules:\n  - name: a\n    action: explode\n", "line 3"),
    ];
    for (text, line) in cases {
        let error = parse(text).expect_err(text).to_string();
        assert!(error.contains(line), "{text:?}: {error}");
    }
}

#[test]
fn bad_files_are_refused_by_name() {
    let cases = [
        ("rules: 3", "rule file"),
        ("rules:\n  - {name: a, action: explode}", "explode"),
        ("rules:\n  - {name: a, action: flag, colour: red}", "colour"),
        ("rules:\n  - {name: a, action: pass}", "action"),
        ("rules:\n  - {name: a, action: flag, operation_types: [fly]}", "fly"),
        ("rules:\n  - {name: a, action: flag, tool_pattern: '['}", "tool_pattern"),
        ("rules:\n  - {name: a, action: flag, tool_pattern: ' , '}", "tool_pattern"),
        ("rules:\n  - {name: a, action: flag, min_risk_score: 101}", "min_risk_score"),
        ("rules:\n  - {name: a, action: flag}\n  - {name: a, action: flag}", "rule 2"),
        ("", "rule file"),
    ];
    for (text, named) in cases {
        let error = parse(text).expect_err(text).to_string();
        assert!(error.contains(named), "{text:?}: {error}");
    }
}

#[test]
fn a_file_of_more_rules_than_anybody_writes_is_refused() {
    let file = |many: usize| {
        let each = (0..many).map(|n| format!("  - {{name: r{n}, tool_pattern: 't{n}', action: flag}}\n"));
        each.fold("rules:\n".to_owned(), |text, rule| text + &rule)
    };
    assert_eq!(parse(&file(MOST_RULES)).expect("the control").len(), MOST_RULES);
    let error = parse(&file(MOST_RULES + 1)).expect_err("one more").to_string();
    assert!(error.contains("more than 1000 rules"), "{error}");
}
