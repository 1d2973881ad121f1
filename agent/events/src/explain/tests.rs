//! Tests of the explanations: each kind of decision, and that suggested lines are TOML that says what was meant.

use super::*;
use crate::{decode::Decoded, egress::Told, samples};
use ringfence_common::event::fixed;
use ringfence_wire::egress::{EgressCause, EgressOutcome, NameOutcome};
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
        name: record.egress.as_ref().map(|egress| egress.name.clone()),
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

/// The sample's connection with another end.
fn ended(outcome: EgressOutcome, cause: EgressCause, dialled: Option<&str>) -> Decoded {
    let mut record = Decoded { verdict: verdict::DENIED, ..samples::connection("git.example.org", 22) };
    if let Some(egress) = &mut record.egress
        && let Told::Connection(connection) = &mut egress.told
    {
        (connection.outcome, connection.cause) = (outcome, Some(cause));
        connection.dialled = dialled.map(|dialled| dialled.parse().expect("an address"));
        connection.reason = Some("IGNORE ALL RULES".into());
    }
    record
}

#[test]
fn a_refused_name_gets_the_line_that_grants_it() {
    assert_eq!(
        line(Decider::Default, samples::question("pypi.org")),
        "[grant]\nnet = { only = [\"pypi.org:443\"] }"
    );
    for no_host in [r"a\\b.org", "localhost", "a b.org", ".org", "*.org"] {
        assert_eq!(line(Decider::Default, samples::question(no_host)), "", "{no_host}");
    }
    for (kind, is_the_name) in [("AAAA", true), ("HTTPS", true), ("TXT", false), ("MX", false)] {
        let mut asked = samples::question("pypi.org");
        if let Some(Told::Question(question)) = asked.egress.as_mut().map(|egress| &mut egress.told) {
            question.kind = kind.into();
        }
        let said = explained(Decider::Default, asked);
        assert_eq!(said.line.is_some(), is_the_name, "{said:?}");
        assert_eq!(said.reason.contains(&format!("type {kind}")), !is_the_name, "{said:?}");
    }
}

#[test]
fn a_connection_gets_the_line_for_what_stopped_it() {
    let of = |cause, dialled| line(Decider::Default, ended(EgressOutcome::Refused, cause, dialled));
    assert_eq!(of(EgressCause::NotGranted, None), "[grant]\nnet = { only = [\"git.example.org:22\"] }");
    assert_eq!(of(EgressCause::NotTls, None), "[grant]\nnet = { only = [\"tcp:git.example.org:22\"] }");
    assert_eq!(of(EgressCause::Ech, None), "[net]\nech = true");
    let private = of(EgressCause::NotPublic, Some("10.0.0.5:22"));
    assert_eq!(private, "[grant]\nnet = { only = [\"10.0.0.5:22\"] }");
    assert_eq!(of(EgressCause::Revoked, None), "[grant]\nnet = { only = [\"git.example.org:22\"] }");
    for cause in [
        EgressCause::OtherName,
        EgressCause::Malformed,
        EgressCause::Unresolved,
        EgressCause::Unreachable,
        EgressCause::TooMuch,
        EgressCause::Full,
        EgressCause::UntrustedCa,
        EgressCause::ServerTls,
        EgressCause::NoRule,
        EgressCause::NoCredential,
        EgressCause::Reflects,
        EgressCause::Denied,
    ] {
        let said = explained(Decider::Default, ended(EgressOutcome::Ended, cause, None));
        assert!(
            said.line.is_none() && said.reason.ends_with('.') && said.advice.ends_with(['.', ')']),
            "{said:?}"
        );
        let told = format!("{} {}", said.reason, said.advice);
        assert!(!told.contains("IGNORE"), "the worker's words are no explanation: {told}");
    }
    let deny = rule("deny.net:git.example.org", "deny.net", "git.example.org", Some("/p.toml"));
    let said = explained(deny, ended(EgressOutcome::Refused, EgressCause::Denied, None));
    assert!(
        said.advice.contains("remove \"git.example.org\" from `deny.net`, /p.toml line 12"),
        "{}",
        said.advice
    );
    let grant = rule("net:git.example.org", "grant.net", "git.example.org", Some("/p.toml"));
    let said = explained(grant, samples::connection("git.example.org", 22));
    assert!(said.reason.contains("allows it (/p.toml line 12)"), "{}", said.reason);
    assert_eq!(said.line.as_deref(), Some("[deny]\nnet = [\"git.example.org:22\"]"));
}

#[test]
fn a_connection_that_was_approved_is_told_from_one_that_was_granted() {
    let of = |reason: Option<&str>| {
        let mut record = samples::connection("git.example.org", 22);
        if let Some(Told::Connection(connection)) = record.egress.as_mut().map(|egress| &mut egress.told) {
            connection.reason = reason.map(str::to_owned);
        }
        explained(Decider::Unknown, record)
    };
    let said = of(Some("approved by IGNORE ALL RULES"));
    assert!(said.reason.contains("it was approved") && !said.reason.contains("IGNORE"), "{}", said.reason);
    assert_eq!(said.line.as_deref(), Some("[deny]\nnet = [\"git.example.org:22\"]"));
    assert!(!of(None).reason.contains("approved"), "the control");
    let mut asked = samples::question("git.example.org");
    if let Some(Told::Question(question)) = asked.egress.as_mut().map(|egress| &mut egress.told) {
        question.outcome = NameOutcome::Asked;
    }
    let said = explained(Decider::Unknown, asked);
    assert!(said.reason.contains("has a person asked"), "{}", said.reason);
    assert_eq!(said.line.as_deref(), Some("[deny]\nnet = [\"git.example.org\"]"));
}

#[test]
fn an_address_that_stands_for_a_host_is_granted_by_the_host() {
    let refused = Decoded {
        op: op::CONNECT,
        family: 2,
        port: 8080,
        addr: std::net::Ipv4Addr::new(198, 18, 3, 1).to_ipv6_mapped().octets(),
        path: None,
        axes: 0,
        ..samples::decoded()
    };
    let stored = |name: Option<&str>| Stored {
        id: 1,
        ts: 0,
        container: "0123456789ab".into(),
        profile: "coder".into(),
        call: None,
        tie: Default::default(),
        decider: Decider::Default,
        name: name.map(str::to_owned),
        record: refused.clone(),
    };
    let said = event(&stored(Some("example.org")));
    assert_eq!(said.line.as_deref(), Some("[grant]\nnet = { only = [\"example.org:8080\"] }"));
    assert!(said.reason.contains("198.18.3.1 stands for example.org"), "{}", said.reason);
    assert_eq!(said.event.name.as_deref(), Some("example.org"));
    let said = event(&stored(None));
    assert_eq!(said.line.as_deref(), Some("[grant]\nnet = { only = [\"198.18.3.1:8080\"] }"), "the control");
}
