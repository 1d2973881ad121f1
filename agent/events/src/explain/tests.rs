//! Tests of the explanations: each kind of decision, and that suggested lines are TOML that says what was meant.

use super::*;
use crate::{decode::Decoded, samples};
use ringfence_common::event::fixed;
use std::sync::Arc;

fn explained(decider: Decider, record: Decoded) -> Explanation {
    event(&Stored {
        id: 1,
        ts: 0,
        container: "0123456789ab".into(),
        profile: "coder".into(),
        call: None,
        tie: Default::default(),
        decider,
        record,
    })
}

fn rule(id: &str, key: &str, text: &str, file: Option<&str>) -> Decider {
    Decider::Rule(Arc::new(RuleText {
        id: id.into(),
        file: file.map(str::to_owned),
        line: if file.is_some() { 12 } else { 0 },
        key: key.into(),
        text: text.into(),
    }))
}

fn line(decider: Decider, record: Decoded) -> String {
    let line = explained(decider, record).line.unwrap_or_default();
    if !line.is_empty() {
        line.parse::<toml::Table>().expect("the line is TOML");
    }
    line
}

#[test]
fn a_socket_option_gets_its_name_or_why_none_helps() {
    let option = |level, option| Decoded {
        op: op::SETSOCKOPT,
        target: ringfence_common::options::target(level, option),
        ..samples::decoded()
    };
    let said = |record| explained(Decider::Fixed(fixed::OPTION), record);
    let mark = said(option(1, 36));
    assert!(mark.reason.contains("SO_MARK"), "{}", mark.reason);
    assert_eq!(mark.line.as_deref(), Some("[kernel]\nsocket_options = [\"SO_MARK\"]"));
    let group = said(option(41, 42));
    assert_eq!(group.line.as_deref(), Some("[kernel]\nsocket_options = [\"41/42\"]"));
    let route = said(option(0, 4));
    assert!(route.line.is_none() && route.advice.contains("by way of other hosts"), "{}", route.advice);
}

#[test]
fn what_no_rule_allows_gets_the_entry_to_add() {
    let record = samples::decoded();
    assert_eq!(line(Decider::Default, record.clone()), "[grant]\nfs_read = { only = [\"/etc/shadow\"] }");
    let both = Decoded { axes: 3, ..record.clone() };
    assert_eq!(
        line(Decider::Default, both),
        "[grant]\nfs_read = { only = [\"/etc/shadow\"] }\nfs_write = { only = [\"/etc/shadow\"] }"
    );
    let rename = Decoded { op: op::RENAME, axes: 2, path2: Some("/tmp/x".into()), ..record.clone() };
    assert_eq!(
        line(Decider::Default, rename),
        "[grant]\nfs_write = { only = [\"/etc/shadow\", \"/tmp/x\"] }"
    );
    let map = Decoded { op: op::MAP_EXEC, axes: 8, ..record.clone() };
    assert_eq!(line(Decider::Default, map), "[grant]\nexec = { only = [\"/etc/shadow\"] }");
    let mut net = Decoded { op: op::CONNECT, axes: 0, family: 2, port: 443, path: None, ..record };
    net.addr = std::net::Ipv4Addr::new(1, 2, 3, 4).to_ipv6_mapped().octets();
    assert_eq!(line(Decider::Default, net.clone()), "[grant]\nnet = { only = [\"1.2.3.4:443\"] }");
    let unix = Decoded { family: 1, axes: 16, path: Some("@a b".into()), ..net };
    assert_eq!(line(Decider::Default, unix), "[grant]\nnet = { only = [\"unix:@a b\"] }");
}

#[test]
fn names_that_a_profile_cannot_have_are_never_suggested() {
    let with = |path: &str, flags| Decoded { path: Some(path.into()), flags, ..samples::decoded() };
    let parent = "[grant]\nfs_read = { only = [\"/srv\"] }";
    assert_eq!(line(Decider::Default, with(r"/srv/\xff", 0)), parent);
    assert_eq!(line(Decider::Default, with("/srv/*/x", 0)), parent);
    assert_eq!(line(Decider::Default, with(r"/srv/a\x0a/b", 0)), parent);
    assert_eq!(line(Decider::Default, with(r"/\xff", 0)), "");
    assert_eq!(line(Decider::Default, with(".../a", FLAG_CUT)), "");
    assert_eq!(line(Decider::Default, with("a/b", FLAG_OUTSIDE)), "");
    // Quotes and backslashes are TOML's to quote.
    let odd = line(Decider::Default, with(r#"/srv/a"b\\c"#, 0));
    let table: toml::Table = odd.parse().expect("TOML");
    assert_eq!(table["grant"]["fs_read"]["only"][0].as_str(), Some(r#"/srv/a"b\c"#));
    // And none chooses its quotes: what is read in the advice ends where the name does.
    let said = explained(Decider::Default, with(r#"/srv/a" to `fs_read`. 'Yes"#, 0));
    assert!(said.advice.contains(r#"add "/srv/a\" to `fs_read`. 'Yes" to `fs_read`"#), "{}", said.advice);
}

#[test]
fn a_deny_names_the_line_to_remove() {
    let deny = rule(
        "deny.fs_read:/etc/shadow",
        "deny.fs_read",
        "/etc/shadow",
        Some("/etc/ringfence/profiles/coder.toml"),
    );
    let said = explained(deny, samples::decoded());
    assert!(said.advice.contains("remove \"/etc/shadow\" from `deny.fs_read`"), "{}", said.advice);
    assert!(said.advice.contains("/etc/ringfence/profiles/coder.toml line 12"), "{}", said.advice);
    assert_eq!(said.line, None);
    assert_eq!(said.rule.map(|r| r.line), Some(12));
}

#[test]
fn a_pattern_gives_way_to_a_name() {
    let deny = rule("deny.fs_read:**/*.pem", "deny.fs_read", "**/*.pem", Some("/p.toml"));
    let said = explained(deny, samples::decoded());
    assert!(said.advice.contains("grant the name") && said.advice.contains("(`**/NAME`)"), "{}", said.advice);
    assert!(
        said.advice.contains("remove the pattern from `deny.fs_read`, /p.toml line 12"),
        "{}",
        said.advice
    );
}

#[test]
fn a_protected_place_must_be_named() {
    let protected = rule("protected:/proc/sys", "protected", "/proc/sys", None);
    let record =
        Decoded { path: Some("/proc/sys/kernel/core_pattern".into()), axes: 2, ..samples::decoded() };
    let said = explained(protected, record);
    assert_eq!(
        said.line.as_deref(),
        Some("[grant]\nfs_write = { only = [\"/proc/sys/kernel/core_pattern\"] }")
    );
    assert!(said.reason.contains("does not reach in"), "{}", said.reason);
}

#[test]
fn an_allowed_event_gets_the_line_that_denies_it() {
    let allowed = Decoded { verdict: verdict::ALLOWED, ..samples::decoded() };
    assert_eq!(line(Decider::All, allowed.clone()), "[deny]\nfs_read = [\"/etc/shadow\"]");
    let grant = rule("fs_read:/etc", "grant.fs_read", "/etc", Some("/p.toml"));
    assert!(explained(grant, allowed).reason.contains("allows it (/p.toml line 12)"));
}

#[test]
fn every_fixed_reason_is_said_and_promises_no_line() {
    for number in 0..=25 {
        let said = explained(Decider::Fixed(number), samples::decoded());
        assert!(said.reason.ends_with('.') && said.advice.ends_with('.'), "{number}: {said:?}");
        assert_eq!(said.line, None, "{number}");
    }
    let socket = |detail| Decoded { op: op::SOCKET, detail, path: None, ..samples::decoded() };
    assert_eq!(explained(Decider::Fixed(fixed::FAMILY), socket(17 << 16 | 3)).line, None);
    assert!(explained(Decider::Fixed(fixed::FAMILY), socket(2 << 16 | 1)).line.is_some());
}
