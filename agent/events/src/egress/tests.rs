//! What is believed of a worker, and what is not.

use super::*;
use std::net::SocketAddr;

const NOW: Now = Now { micros: 1_800_000_000_000_000, boot: 500_000_000_000 };

fn line() -> EgressLine {
    EgressLine {
        container: 0x1005,
        public: "0123456789ab".into(),
        profile: "coder".into(),
        uid: 1000,
        created: NOW.micros - 60_000_000,
        block: "198.18.3.0/24".parse().expect("a block"),
        within: None,
    }
}

fn flow(address: [u8; 4], port: u16) -> Option<Flow> {
    Some(Flow { address: address.into(), port, call: 0x2a, pid: 11, tgid: 10, start: 7, uid: 1000 })
}

fn connection(name: &str, outcome: EgressOutcome) -> EgressRecord {
    EgressRecord::Connection {
        name: name.into(),
        port: 443,
        dialled: Some(SocketAddr::from(([93, 184, 216, 34], 443))),
        tls: true,
        sent: 5,
        received: 7,
        duration_us: 2_000_000,
        outcome,
        cause: Some(EgressCause::NotTls),
        reason: Some("it said nothing".into()),
        rule: Some(3),
    }
}

fn question(name: &str, kind: &str, address: Option<[u8; 4]>) -> EgressRecord {
    EgressRecord::Name {
        name: name.into(),
        kind: kind.into(),
        outcome: NameOutcome::Refused,
        address: address.map(Into::into),
        repeats: 4,
    }
}

fn checked(at: i64, flow: Option<Flow>, record: EgressRecord) -> Option<(i64, Decoded)> {
    match check(&line(), EgressReport { at, flow, record }, NOW)? {
        Checked::Event { ts, record, .. } => Some((ts, *record)),
        Checked::Lost(_) => panic!("an event became a loss"),
    }
}

#[test]
fn a_connection_is_a_record_of_its_process_and_call() {
    let at = NOW.micros - 5_000_000;
    let (ts, record) =
        checked(at, flow([198, 18, 3, 1], 443), connection("example.org", EgressOutcome::Passed))
            .expect("taken");
    assert_eq!(ts, at + 2_000_000, "when it was over");
    assert_eq!(record.time, NOW.boot - 5_000_000_000, "when it began");
    assert_eq!((record.op, record.verdict, record.container), (op::NET_CONNECTION, verdict::ALLOWED, 0x1005));
    assert_eq!((record.call, record.pid, record.tgid, record.start), (0x2a, 11, 10, 7));
    assert_eq!((record.family, record.port), (2, 443));
    let egress = record.egress.clone().expect("what the worker tells");
    assert_eq!(egress.target(&record).as_deref(), Some("example.org:443"));
    assert_eq!(egress.cause(), None, "it passed");
    let (_, opened) = checked(at, flow([198, 18, 3, 1], 443), connection("example.org", EgressOutcome::Open))
        .expect("taken");
    assert_eq!((opened.verdict, opened.egress.and_then(|egress| egress.cause())), (verdict::ALLOWED, None));
    for (outcome, expected) in [
        (EgressOutcome::Refused, verdict::DENIED),
        (EgressOutcome::Ended, verdict::DENIED),
        (EgressOutcome::WouldDeny, verdict::WOULD_DENY),
        (EgressOutcome::Failed, verdict::ALLOWED),
    ] {
        let (_, record) = checked(at, None, connection("", outcome)).expect("taken");
        assert_eq!((record.verdict, record.call, record.pid, record.port), (expected, 0, 0, 443));
        assert_eq!(record.egress.and_then(|egress| egress.cause()), Some(EgressCause::NotTls));
    }
}

#[test]
fn a_question_is_nobody_s_and_counts_its_repeats() {
    let (ts, record) =
        checked(NOW.micros, flow([198, 18, 3, 1], 53), question("a.org", "A", None)).expect("taken");
    assert_eq!(
        (ts, record.op, record.verdict, record.repeats),
        (NOW.micros, op::NET_NAME, verdict::DENIED, 5)
    );
    assert_eq!((record.call, record.pid, record.family), (0, 0, 0));
    let (_, record) =
        checked(NOW.micros, None, question("a.org", "A", Some([198, 18, 3, 200]))).expect("taken");
    assert_eq!((record.family, &record.addr[12..]), (2, &[198, 18, 3, 200][..]));
}

#[test]
fn a_time_is_no_earlier_than_the_container_and_not_to_come() {
    for (at, expected) in [
        (i64::MIN, line().created),
        (i64::MAX, NOW.micros),
        (NOW.micros + 1, NOW.micros),
        (NOW.micros - 9, NOW.micros - 9),
    ] {
        let (ts, record) = checked(at, None, question("a.org", "A", None)).expect("taken");
        assert_eq!(ts, expected);
        assert_eq!(record.time, NOW.boot - u64::try_from(NOW.micros - expected).expect("positive") * 1000);
    }
    let long = EgressRecord::Connection {
        name: "a.org".into(),
        port: 1,
        dialled: None,
        tls: false,
        sent: u64::MAX,
        received: u64::MAX,
        duration_us: u64::MAX,
        outcome: EgressOutcome::Ended,
        cause: None,
        reason: None,
        rule: None,
    };
    assert_eq!(checked(NOW.micros - 9, None, long).expect("taken").0, NOW.micros);
    // A host that booted a moment ago, and a clock that was set since.
    let young = Now { boot: 1000, ..NOW };
    let report = EgressReport { at: 0, flow: None, record: question("a.org", "A", None) };
    let Some(Checked::Event { record, .. }) = check(&line(), report, young) else { panic!("refused") };
    assert_eq!(record.time, 1, "0 is: not kept");
}

#[test]
fn what_no_worker_says_is_refused() {
    let passes = |flow, record| checked(NOW.micros, flow, record).is_some();
    let ours = flow([198, 18, 3, 1], 443);
    assert!(passes(ours, connection("example.org", EgressOutcome::Refused)), "the control");
    assert!(
        !passes(flow([198, 18, 4, 1], 443), connection("example.org", EgressOutcome::Refused)),
        "another's block"
    );
    assert!(
        !passes(flow([198, 18, 3, 1], 80), connection("example.org", EgressOutcome::Refused)),
        "another port"
    );
    assert!(passes(None, question("a.org", "TYPE65535", Some([198, 18, 3, 128]))), "the control");
    assert!(!passes(None, question("a.org", "A", Some([10, 0, 0, 1]))), "another's address");
    for name in ["", "a\nb", "\u{1b}[2J", "\u{fc}.org", &"a".repeat(MAX_NAME + 1)] {
        assert!(!passes(None, question(name, "A", None)), "{name:?}");
        assert!(name.is_empty() || !passes(ours, connection(name, EgressOutcome::Refused)), "{name:?}");
    }
    for kind in ["", "a", "A B", "TYPE655350", "\u{1b}"] {
        assert!(!passes(None, question("a.org", kind, None)), "{kind:?}");
    }
    for reason in ["", "a\nb", &"r".repeat(MAX_SENTENCE + 1)] {
        let mut told = connection("a.org", EgressOutcome::Refused);
        if let EgressRecord::Connection { reason: said, .. } = &mut told {
            *said = Some(reason.to_owned());
        }
        assert!(!passes(ours, told), "{reason:?}");
    }
}

#[test]
fn a_name_cannot_look_like_more_than_it_is() {
    let (_, record) = checked(NOW.micros, None, question(r" a\b/c", "A", None)).expect("taken");
    assert_eq!(record.egress.expect("a name").name, r"\x20a\\b\x2fc");
}

#[test]
fn a_loss_is_bounded() {
    let lost =
        |count| check(&line(), EgressReport { at: 0, flow: None, record: EgressRecord::Lost { count } }, NOW);
    assert_eq!(lost(7), Some(Checked::Lost(7)));
    assert_eq!(lost(u64::MAX), Some(Checked::Lost(MOST_LOST)));
}

#[test]
fn a_rule_names_its_own_hosts_and_no_other() {
    let rule = |key: &str, text: &str| RuleText {
        id: "x".into(),
        file: None,
        line: 0,
        key: key.into(),
        text: text.into(),
    };
    let names = |text: &str, name: &str, port| covers(&rule("grant.net", text), name, port);
    for (text, name, port) in [
        ("example.org", "example.org", 1),
        ("example.org:443", "example.org", 443),
        ("*.example.org", "a.b.example.org", 443),
        ("tcp:git.example:22", "git.example", 22),
        ("tcp:*.example.org:22", "a.example.org", 22),
        ("Example.ORG:443", "example.org", 443),
    ] {
        assert!(names(text, name, port), "{text}");
    }
    for (text, name, port) in [
        ("example.org:443", "example.org", 80),
        ("example.org", "aexample.org", 443),
        ("*.example.org", "example.org", 443),
        ("*.example.org", ".example.org", 443),
        ("*.example.org", "aexample.org", 443),
        ("1.2.3.4:443", "example.org", 443),
        ("tcp:git.example:22", "git.example", 443),
        ("", "example.org", 443),
    ] {
        assert!(!names(text, name, port), "{text} {name}");
    }
    assert!(!covers(&rule("grant.fs_read", "example.org"), "example.org", 443));
    assert!(covers(&rule("deny.net", "example.org"), "example.org", 443));
}
