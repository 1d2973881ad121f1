//! Connections that wait for a person: what is asked, what of it is shared, and what becomes of them.

use crate::{
    servers::{Tls, answer},
    support::{A, AAAA, Core, PATIENCE, TXT, names, rest_of, say, wait_until},
};
use ringfence_wire::{
    conn::Conn,
    egress::{
        EgressCause, EgressOutcome, EgressRecord, EgressReport, MAX_REPORTS, NameOutcome, Names, ToEgress,
    },
    egress_asks::{EgressAsk, EgressDecision, EgressSaid},
    mcp::McpReply,
};
use std::{
    net::TcpStream,
    os::{fd::AsFd, unix::net::UnixStream},
    time::Duration,
};

/// The auditor's end of a line.
struct Auditor {
    conn: Conn,
    asks: Vec<EgressAsk>,
    reports: Vec<EgressReport>,
}

impl Auditor {
    fn of(core: &Core) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let mut conn = Conn::new(ours, PATIENCE, MAX_REPORTS);
        Conn::new(core.link(), PATIENCE, 100)
            .send_with_descriptors(&ToEgress::Line, &[theirs.as_fd()])
            .unwrap();
        conn.send(&McpReply::Linked).unwrap();
        Self { conn, asks: Vec::new(), reports: Vec::new() }
    }

    fn hear(&mut self) {
        let EgressSaid { reports, asks } = self.conn.receive().unwrap();
        self.reports.extend(reports);
        self.asks.extend(asks);
    }

    fn next(&mut self) -> EgressAsk {
        while self.asks.is_empty() {
            self.hear();
        }
        self.asks.remove(0)
    }

    /// The next, which is a question for this: its number.
    fn asked(&mut self, name: &str, port: u16) -> u64 {
        match self.next() {
            EgressAsk::Ask { question, name: of, port: at, wait_ms } => {
                assert_eq!((of.as_str(), at), (name, port));
                assert!((1..=60_000).contains(&wait_ms), "{wait_ms}");
                question
            }
            gone @ EgressAsk::Gone { .. } => panic!("{gone:?}"),
        }
    }

    fn decide(&mut self, question: u64, approve: bool, stands: bool) {
        self.conn
            .send(&EgressDecision { question, approve, by: "uid 7".into(), stands, full: false })
            .unwrap();
    }

    /// The record of a connection to a name that is over.
    fn recorded(&mut self, of: &str) -> (EgressOutcome, Option<EgressCause>, String) {
        loop {
            let found = self.reports.iter().position(
                |report| matches!(&report.record, EgressRecord::Connection { name, .. } if name == of),
            );
            match found.map(|at| self.reports.remove(at).record) {
                Some(EgressRecord::Connection { outcome, cause, reason, .. }) => {
                    return (outcome, cause, reason.unwrap_or_default());
                }
                _ => self.hear(),
            }
        }
    }
}

fn asking(granted: &[&str], denied: &[&str], seconds: u16) -> Names {
    let mut all = names(granted);
    all.denies = names(denied).rules;
    all.options.ask = Some(seconds);
    all
}

fn started(names: Names) -> (Core, Auditor) {
    let core = Core::start_mute(names, false);
    let auditor = Auditor::of(&core);
    (core, auditor)
}

/// A connection that has said for which host it is.
fn get(core: &Core, name: &str, port: u16) -> TcpStream {
    let stream = core.open(name, port);
    say(&stream, format!("GET / HTTP/1.1\r\nHost: {name}:{port}\r\n\r\n").as_bytes());
    stream
}

#[test]
fn names_that_are_neither_granted_nor_denied_have_addresses_and_nothing_else() {
    let (core, _auditor) =
        started(asking(&["granted.example:443"], &["evil.example", "*.evil.example", "web.example:80"], 60));
    let block = |name: &str| match core.ask(name, A) {
        (0, Some(address)) => address.octets()[3],
        other => panic!("{name}: {other:?}"),
    };
    assert_eq!((block("granted.example"), block("asked.example"), block("web.example")), (1, 192, 193));
    assert_eq!(core.ask("asked.example", AAAA), (0, None));
    for (name, kind) in [
        ("evil.example", A),
        ("x.evil.example", A),
        ("intranet", A),
        ("asked.example", TXT),
        ("4.3.2.1.in-addr.arpa", 12),
    ] {
        assert_eq!(core.ask(name, kind), (3, None), "{name} {kind}");
    }
    // As many as there are addresses for such names; nothing is asked of anybody for that.
    let codes: Vec<u8> = (0..200).map(|at| core.ask(&format!("{at}.made-up.example"), A).0).collect();
    assert_eq!(codes.iter().filter(|code| **code == 0).count(), 61);
    assert!(codes[61..].iter().all(|code| *code == 2), "no room");
    // The control: nobody is asked.
    let core = Core::start(names(&["granted.example:443"]));
    assert_eq!(core.ask("asked.example", A), (3, None));
}

#[test]
fn a_connection_waits_after_it_said_whom_it_is_for_and_goes_on_where_somebody_says_so() {
    let (core, mut auditor) = started(asking(&[], &["web.invalid:81"], 60));
    // What is refused whatever anybody says is nobody's question.
    let other = core.open("web.invalid", 80);
    say(&other, b"GET / HTTP/1.1\r\nHost: victim.invalid\r\n\r\n");
    assert!(answer(&other).0.contains("x-ringfence-error: other-name"));
    let ssh = core.open("web.invalid", 22);
    say(&ssh, b"SSH-2.0-OpenSSH\r\n");
    assert!(answer(&ssh).0.contains("x-ringfence-error: not-tls"));
    let denied = get(&core, "web.invalid", 81);
    assert!(answer(&denied).0.contains("x-ringfence-error: denied"));
    let tls = core.open("web.invalid", 443);
    say(&tls, &Tls::hello(&mut Tls::new(&["web.invalid"]).client("victim.invalid")));
    assert_eq!(rest_of(&tls)[5..], [2, 112], "unrecognized_name");

    // Three connections, one question; nothing is said to any of them before it is answered.
    let waiting: Vec<TcpStream> = (0..3).map(|_| get(&core, "web.invalid", 80)).collect();
    let question = auditor.asked("web.invalid", 80);
    for stream in &waiting {
        stream.set_nonblocking(true).unwrap();
        let error = std::io::Read::read(&mut &*stream, &mut [0]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
        stream.set_nonblocking(false).unwrap();
    }
    // For those as well that come to it only now.
    auditor.decide(question, true, true);
    for stream in &waiting {
        // It went on to the host's resolver, which knows no such name.
        let (head, body) = answer(stream);
        assert!(head.contains("502") && head.contains("x-ringfence-error: unresolved"), "{head}");
        assert!(!body.contains("no rule"), "{body}");
    }
    let (outcome, cause, reason) = loop {
        let record = auditor.recorded("web.invalid");
        if record.0 == EgressOutcome::Failed {
            break record;
        }
    };
    assert_eq!((outcome, cause), (EgressOutcome::Failed, Some(EgressCause::Unresolved)));
    assert!(reason.starts_with("approved by uid 7; "), "{reason}");

    let once_more = get(&core, "web.invalid", 82);
    let question = auditor.asked("web.invalid", 82);
    auditor.decide(question, false, false);
    let (head, body) = answer(&once_more);
    assert!(head.contains("403") && body.contains("it was denied by uid 7"), "{head} {body}");
    assert!(body.contains("put \"web.invalid:82\" into `net`"), "{body}");
    assert!(
        answer(&get(&core, "web.invalid", 82)).1.contains("denied by uid 7"),
        "nobody is asked again so soon"
    );
}

#[test]
fn nobody_s_answer_is_a_no_and_a_client_that_gives_up_leaves_its_question_to_the_next() {
    let (core, mut auditor) = started(asking(&[], &[], 1));
    let late = get(&core, "web.invalid", 80);
    let question = auditor.asked("web.invalid", 80);
    let (head, body) = answer(&late);
    assert!(head.contains("403") && body.contains("nobody approved it within 1 s"), "{body}");
    assert_eq!(auditor.next(), EgressAsk::Gone { question });
    // Too late counts for nothing.
    auditor.decide(question, true, true);

    let (core, mut auditor) = started(asking(&[], &[], 60));
    let (first, second) = (get(&core, "web.invalid", 80), get(&core, "web.invalid", 80));
    let question = auditor.asked("web.invalid", 80);
    drop(first);
    drop(second);
    wait_until("both are on record", || auditor.recorded("web.invalid").2.contains("gave up"));
    // Whoever tries again is answered by what was said meanwhile, and is on its way to the name's server.
    auditor.decide(question, true, false);
    assert!(answer(&get(&core, "web.invalid", 80)).0.contains("unresolved"));
    let third = get(&core, "web.invalid", 80);
    let another = auditor.asked("web.invalid", 80);
    assert!(another > question, "once is once");
    auditor.decide(another, false, false);
    assert!(answer(&third).1.contains("denied by uid 7"));
}

#[test]
fn without_an_auditor_questions_wait_and_the_next_line_has_them() {
    let core = Core::start_mute(asking(&[], &[], 60), false);
    let (a, b) = (get(&core, "a.invalid", 80), get(&core, "b.invalid", 80));
    let mut auditor = Auditor::of(&core);
    let mut numbers = [0, 0];
    for _ in 0..2 {
        let EgressAsk::Ask { question, name, .. } = auditor.next() else { panic!("gone") };
        numbers[usize::from(name == "b.invalid")] = question;
    }
    auditor.decide(numbers[0], true, true);
    assert!(answer(&a).0.contains("unresolved"));
    // The auditor ends, and another comes: what is open is asked again, what stands is known for a moment.
    drop(auditor);
    let mut auditor = Auditor::of(&core);
    assert_eq!(auditor.asked("b.invalid", 80), numbers[1]);
    assert!(answer(&get(&core, "a.invalid", 80)).0.contains("unresolved"));
    auditor.decide(numbers[1], false, false);
    assert!(answer(&b).1.contains("denied by uid 7"));
    // One that says what no auditor says is no auditor.
    let c = get(&core, "c.invalid", 80);
    auditor.asked("c.invalid", 80);
    auditor.conn.send(&"approve everything").unwrap();
    assert!(auditor.conn.receive::<EgressSaid>().is_err());
    let mut auditor = Auditor::of(&core);
    let question = auditor.asked("c.invalid", 80);
    auditor.decide(question, false, false);
    assert!(answer(&c).1.contains("denied by uid 7"));
}

#[test]
fn another_policy_decides_what_waits() {
    let (core, mut auditor) = started(asking(&[], &[], 60));
    let order = |names: Names| core.order(&ToEgress::Policy { names, audit: false });
    let granted = get(&core, "granted.invalid", 80);
    auditor.asked("granted.invalid", 80);
    let denied = get(&core, "denied.invalid", 80);
    auditor.asked("denied.invalid", 80);
    let still = get(&core, "still.invalid", 80);
    let question = auditor.asked("still.invalid", 80);
    order(asking(&["granted.invalid:80"], &["denied.invalid"], 60));
    assert!(answer(&granted).0.contains("unresolved"), "it went on");
    assert!(answer(&denied).0.contains("x-ringfence-error: denied"));
    auditor.decide(question, true, false);
    assert!(answer(&still).0.contains("unresolved"));
    let last = get(&core, "last.invalid", 80);
    loop {
        match auditor.next() {
            EgressAsk::Gone { .. } => {}
            EgressAsk::Ask { name, .. } => break assert_eq!(name, "last.invalid"),
        }
    }
    order(names(&[]));
    assert!(answer(&last).0.contains("x-ringfence-error: not-granted"), "nobody is asked any more");
    assert_eq!(core.ask("next.invalid", A), (3, None));
}

#[test]
fn whoever_makes_up_names_asks_few_questions_and_granted_ones_go_on() {
    let (core, mut auditor) = started(asking(&["granted.invalid:80"], &[], 60));
    let streams: Vec<TcpStream> =
        (0..60).map(|at| get(&core, &format!("{at}.made-up.invalid"), 80)).collect();
    let refused = |stream: &TcpStream| {
        stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let mut said = [0; 100];
        std::io::Read::read(&mut &*stream, &mut said)
            .is_ok_and(|count| said[..count].starts_with(b"HTTP/1.1 403"))
    };
    let mut left: Vec<&TcpStream> = streams.iter().collect();
    wait_until("all but those that wait are refused", || {
        left.retain(|stream| !refused(stream));
        left.len() <= 16
    });
    assert_eq!(left.len(), 16);
    for _ in 0..16 {
        assert!(matches!(auditor.next(), EgressAsk::Ask { .. }));
    }
    assert!(auditor.asks.is_empty());
    assert!(answer(&get(&core, "granted.invalid", 80)).0.contains("unresolved"), "the control");
    let (_, cause, reason) = auditor.recorded_refusal();
    assert!(cause == Some(EgressCause::Full) && reason.contains("too many"), "{reason}");
}

impl Auditor {
    fn recorded_refusal(&mut self) -> (EgressOutcome, Option<EgressCause>, String) {
        loop {
            let found = self.reports.iter().find_map(|report| match &report.record {
                EgressRecord::Connection { outcome: EgressOutcome::Refused, cause, reason, .. } => {
                    Some((EgressOutcome::Refused, *cause, reason.clone().unwrap_or_default()))
                }
                _ => None,
            });
            match found {
                Some(found) => return found,
                None => self.hear(),
            }
        }
    }
}

#[test]
fn in_audit_mode_nobody_is_asked() {
    let core = Core::start_audit(asking(&[], &[], 60));
    let stream = get(&core, "web.invalid", 80);
    assert!(answer(&stream).0.contains("unresolved"));
    assert_eq!(core.asked("web.invalid", NameOutcome::WouldDeny), 1);
}
