//! Connections by name against a real auditor: a line as the core makes it, and what commands show of what comes on it.

#![expect(clippy::expect_used, reason = "a test fails by panicking")]

mod auditor_support;

use auditor_support::{Core, Made, PATIENCE, denied, ids, manifest, uid};
use ringfence_common::event::op;
use ringfence_test_support::wait::wait_until;
use ringfence_wire::{
    audit::{AgentReport, Manifest, Payload},
    conn::Conn,
    egress::{
        EgressCause, EgressLine, EgressOutcome, EgressRecord, EgressReport, EgressReports, Flow, NameOutcome,
    },
    event::RuleText,
    mcp::{McpReply, McpRequest},
};
use serde_json::Value;

/// The daemon is root, and so has to be who plays it.
fn is_root() -> bool {
    uid() == 0
}

fn whose(container: u64, public: &str, third: u8) -> EgressLine {
    EgressLine {
        container,
        public: public.into(),
        profile: "coder".into(),
        uid: uid(),
        created: 0,
        block: format!("198.18.{third}.0/24").parse().expect("a block"),
        within: None,
    }
}

fn line(core: &Core, whose: EgressLine) -> Conn {
    let mut conn = Conn::connect(&core.dir.path().join("mcp.sock"), PATIENCE).expect("connects");
    conn.send(&McpRequest::Egress(whose)).expect("asks");
    assert_eq!(conn.receive::<McpReply>().expect("answers"), McpReply::Linked);
    conn
}

fn now() -> i64 {
    ringfence_base::clock::now_micros()
}

fn connection(name: &str, outcome: EgressOutcome, cause: Option<EgressCause>, call: u64) -> EgressReport {
    EgressReport {
        at: now() - 10_000,
        flow: Some(Flow {
            address: [198, 18, 3, 1].into(),
            port: 443,
            call,
            pid: 11,
            tgid: 10,
            start: 900_000_000,
            uid: 1000,
        }),
        record: EgressRecord::Connection {
            name: name.into(),
            port: 443,
            dialled: (outcome == EgressOutcome::Passed).then(|| ([151, 101, 0, 223], 443).into()),
            tls: outcome == EgressOutcome::Passed,
            sent: 2101,
            received: 48_210,
            duration_us: 10_000,
            outcome,
            cause,
            reason: cause.map(|_| "the client said \"nothing\"".into()),
            rule: Some(0),
        },
    }
}

fn question(name: &str, outcome: NameOutcome, address: Option<[u8; 4]>) -> EgressReport {
    let address = address.map(Into::into);
    let record = EgressRecord::Name { name: name.into(), kind: "A".into(), outcome, address, repeats: 2 };
    EgressReport { at: now(), flow: None, record }
}

/// A core whose auditor knows the rule `pypi.org:443` of container 0x1005.
fn started() -> Core {
    let mut core = Core::idle();
    core.spawn();
    let rule = RuleText {
        id: "net:pypi.org:443".into(),
        file: Some("/etc/ringfence/profiles/coder.toml".into()),
        line: 7,
        key: "grant.net".into(),
        text: "pypi.org:443".into(),
    };
    core.announce(Manifest { rules: vec![rule], ..manifest(0x1005, "0123456789ab", "coder", uid()) });
    core
}

/// What `ringfence events` with these arguments prints, once it has so many lines.
fn events(core: &Core, count: usize, args: &[&str]) -> Vec<Value> {
    let mut found = Vec::new();
    wait_until("the events are stored", || {
        let (out, err, ok) = core.run(&[&["events"], args].concat());
        assert!(ok, "{err}");
        found = out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        found.len() >= count
    });
    assert_eq!(found.len(), count, "{found:?}");
    found
}

#[test]
fn what_is_told_is_listed_found_by_its_host_and_explained() {
    if !is_root() {
        return;
    }
    let mut core = started();
    core.records([denied("/etc/shadow")]);
    core.settle();
    let mut worker = line(&core, whose(0x1005, "0123456789ab", 3));
    let not_tls = Some(EgressCause::NotTls);
    let reports = vec![
        question("pypi.org", NameOutcome::Answered, Some([198, 18, 3, 1])),
        connection("pypi.org", EgressOutcome::Passed, None, 0),
        question("secrets.evil.example", NameOutcome::Refused, None),
        connection("git.example.org", EgressOutcome::Refused, not_tls, 0),
    ];
    worker.send(&EgressReports { reports }).expect("tells");
    let all = events(&core, 5, &["--json"]);
    let of = |key: &str| all.iter().map(|event| event[key].clone()).collect::<Vec<_>>();
    assert_eq!(of("op")[1..], ["net.name", "net.connection", "net.name", "net.connection"]);
    assert_eq!(of("verdict")[1..], ["allowed", "allowed", "denied", "denied"]);
    assert_eq!(of("addr")[1..], ["pypi.org", "pypi.org:443", "secrets.evil.example", "git.example.org:443"]);
    assert_eq!(of("rule")[1..], ["unknown", "net:pypi.org:443", "default", "default"]);
    assert_eq!((&all[3]["repeats"], &all[0]["name"]), (&3.into(), &Value::Null));
    let connection = &all[2]["connection"];
    assert_eq!((&connection["sent"], &connection["dialled"]), (&2101.into(), &"151.101.0.223:443".into()));
    let found = |args: &[&str]| ids(&core.run(&[&["events", "--json"], args].concat()).0);
    assert_eq!(found(&["--egress"]), [2, 3, 4, 5]);
    assert_eq!(found(&["--name", "pypi.org"]), [2, 3]);
    assert_eq!(found(&["--name", "*.evil.example"]), [4]);
    assert_eq!(found(&["--egress", "--denied"]), [4, 5]);
    assert_eq!(found(&["--egress", "--container", "ffff"]), [0u64; 0]);
    assert_eq!(found(&["--since", "1h", "--egress"]), [2, 3, 4, 5]);

    let (table, _, _) = core.run(&["events", "--egress"]);
    let rows: Vec<Vec<&str>> =
        table.lines().skip(1).map(|row| row.split_whitespace().skip(2).collect()).collect();
    assert_eq!(
        rows[0],
        [
            "0123456789ab/coder",
            "allowed",
            "net.name",
            "x3",
            "pypi.org",
            "A",
            "->",
            "198.18.3.1",
            "unknown",
            "2"
        ]
    );
    assert!(
        table.contains("  pypi.org:443 -> 151.101.0.223:443 (2101 B sent, 48210 B received)  "),
        "{table}"
    );

    let why = |event: &str| core.run(&["events", "why", event]).0;
    let refused = why("4");
    assert!(
        refused.ends_with("\n      [grant]\n      net = { only = [\"secrets.evil.example:443\"] }\n"),
        "{refused}"
    );
    assert!(!refused.contains("(pid 0"), "nobody knows who asked: {refused}");
    let refused = why("5");
    assert!(
        refused.ends_with("\n      [grant]\n      net = { only = [\"tcp:git.example.org:443\"] }\n"),
        "{refused}"
    );
    assert!(refused.contains("worker      \"the client said \"nothing\"\""), "{refused}");
    let passed = why("3");
    assert!(
        passed.contains("defined in  /etc/ringfence/profiles/coder.toml:7  grant.net pypi.org:443"),
        "{passed}"
    );
    assert!(passed.contains("connected   to 198.18.3.1, 10ms"), "{passed}");

    let ocsf = events(&core, 4, &["--ocsf"]);
    let classes: Vec<_> = ocsf.iter().map(|event| event["class_uid"].clone()).collect();
    assert_eq!(classes, [4003, 4001, 4003, 4001]);
}

#[test]
fn an_address_of_the_kernel_s_events_has_its_host() {
    if !is_root() {
        return;
    }
    let mut core = started();
    let mut worker = line(&core, whose(0x1005, "0123456789ab", 3));
    let reports = vec![question("pypi.org", NameOutcome::Answered, Some([198, 18, 3, 1]))];
    worker.send(&EgressReports { reports }).expect("tells");
    events(&core, 1, &["--json", "--egress"]);
    // At this moment: records have their time since boot.
    let refused = |container| Made {
        op: op::CONNECT,
        container,
        axes: 0,
        family: 2,
        port: 8080,
        addr: std::net::Ipv4Addr::new(198, 18, 3, 1).to_ipv6_mapped().octets(),
        time: ringfence_base::clock::since_boot(),
        path: Vec::new(),
        ..denied("/")
    };
    core.announce(manifest(0x2006, "ffeeddccbbaa", "reader", uid()));
    core.records([refused(0x1005), refused(0x2006)]);
    let all = events(&core, 3, &["--json"]);
    assert_eq!((&all[1]["addr"], &all[1]["name"]), (&"198.18.3.1:8080".into(), &"pypi.org".into()));
    assert_eq!(all[2]["name"], Value::Null, "another container's address is another host's");
    let (table, _, _) = core.run(&["events", "--denied"]);
    assert!(table.contains("  198.18.3.1:8080 (pypi.org)  "), "{table}");
    let (why, _, _) = core.run(&["events", "why", "2"]);
    assert!(why.ends_with("\n      [grant]\n      net = { only = [\"pypi.org:8080\"] }\n"), "{why}");
    assert!(why.contains("198.18.3.1 stands for pypi.org in this container"), "{why}");
    let (why, _, _) = core.run(&["events", "why", "3"]);
    assert!(why.ends_with("net = { only = [\"198.18.3.1:8080\"] }\n"), "the control: {why}");
}

#[test]
fn a_call_is_believed_where_the_core_tagged_the_container_for_it() {
    if !is_root() {
        return;
    }
    let mut core = started();
    core.announce(manifest(0x2006, "ffeeddccbbaa", "coder", uid()));
    let report = |payload| AgentReport { agent: "coder".into(), uid: 0, container: None, at: 1, payload };
    let said = |text: &str| {
        let json = serde_json::value::RawValue::from_string(text.to_owned()).expect("JSON");
        report(Payload::Event(json))
    };
    core.reports([
        said(r#"{"said":"call","key":"k","id":"toolu_1","intent":null,"tool":"bash","server":null,"input":"{}","moment":1}"#),
        report(Payload::Tagged { tag: 7, container: "0123456789ab".into() }),
        said(r#"{"said":"tagged","key":"k","tag":7}"#),
    ]);
    core.settle();
    let tell = |container, public, third| {
        let mut worker = line(&core, whose(container, public, third));
        let mut report = connection("pypi.org", EgressOutcome::Passed, None, 7);
        if let Some(flow) = &mut report.flow {
            flow.address = [198, 18, third, 1].into();
        }
        worker.send(&EgressReports { reports: vec![report] }).expect("tells");
    };
    tell(0x1005, "0123456789ab", 3);
    events(&core, 1, &["--json"]);
    tell(0x2006, "ffeeddccbbaa", 4);
    let all = events(&core, 2, &["--json"]);
    assert_eq!((&all[0]["tool_call"], &all[0]["attribution"]), (&"toolu_1".into(), &"exact".into()));
    assert_eq!((&all[1]["tool_call"], &all[1]["attribution"]), (&Value::Null, &"ambiguous".into()));
    let (trace, err, ok) = core.run(&["events", "trace", "toolu_1"]);
    assert!(ok, "{err}");
    assert!(trace.contains("net.connection pypi.org:443 -> 151.101.0.223:443"), "{trace}");
    assert_eq!(trace.matches("net.connection").count(), 1, "{trace}");
}

#[test]
fn what_is_lost_is_in_the_status_and_what_was_told_outlives_the_auditor() {
    if !is_root() {
        return;
    }
    let mut core = started();
    let mut worker = line(&core, whose(0x1005, "0123456789ab", 3));
    let lost = EgressReport { at: now(), flow: None, record: EgressRecord::Lost { count: 41 } };
    let reports = vec![question("a.example", NameOutcome::Refused, None), lost];
    worker.send(&EgressReports { reports }).expect("tells");
    wait_until("the loss is stored", || core.status().lost.iter().any(|lost| lost.egress == 41));
    // An auditor that is started anew has no line; the next is as good as the first.
    core.kill();
    core.spawn();
    core.settle_hello();
    let over =
        worker.send(&EgressReports { reports: vec![question("b.example", NameOutcome::Refused, None)] });
    assert!(over.is_err() || worker.receive::<McpReply>().is_err());
    let mut worker = line(&core, whose(0x1005, "0123456789ab", 3));
    let reports = vec![question("c.example", NameOutcome::Refused, None)];
    worker.send(&EgressReports { reports }).expect("tells");
    let all = events(&core, 2, &["--json", "--egress"]);
    let names: Vec<_> = all.iter().map(|event| event["name"].clone()).collect();
    assert_eq!(names, ["a.example", "c.example"]);
    // What it told is stored before it ends.
    let many = EgressReports { reports: vec![question("d.example", NameOutcome::Refused, None); 64] };
    worker.send(&many).expect("tells");
    events(&core, 66, &["--json", "--egress"]);
    let (well, log) = core.stop();
    assert!(well, "{log}");
}

#[test]
fn a_worker_cannot_speak_for_another_and_does_not_outlast_its_patience() {
    let core = started();
    let mut conn = Conn::connect(&core.dir.path().join("mcp.sock"), PATIENCE).expect("connects");
    conn.send(&McpRequest::Egress(EgressLine { public: "x".into(), ..whose(0x1005, "0123456789ab", 3) }))
        .expect("asks");
    assert!(matches!(conn.receive::<McpReply>().expect("answers"), McpReply::Failed(_)));
    if !is_root() {
        let mut conn = Conn::connect(&core.dir.path().join("mcp.sock"), PATIENCE).expect("connects");
        conn.send(&McpRequest::Egress(whose(0x1005, "0123456789ab", 3))).expect("asks");
        assert!(matches!(conn.receive::<McpReply>().expect("answers"), McpReply::Failed(_)));
        return;
    }
    let mut worker = line(&core, whose(0x1005, "0123456789ab", 3));
    // Another container's first message, in the middle of this one's line.
    worker.send(&McpRequest::Egress(whose(0x2006, "ffeeddccbbaa", 4))).expect("sent");
    assert!(worker.receive::<McpReply>().is_err(), "its line is ended");
    // Half a message, and no more.
    let worker = line(&core, whose(0x1005, "0123456789ab", 3));
    let mut stream = worker.into_stream();
    std::io::Write::write_all(&mut stream, &[0, 0, 1, 0, b'{']).expect("sent");
    let mut worker = Conn::new(stream, PATIENCE, 4096);
    assert!(worker.receive::<McpReply>().is_err());
    assert!(core.run(&["events", "--json", "--egress"]).0.is_empty());
}
