//! Connections that wait for a person, against a real auditor: a worker's line as the core makes it, and what commands decide.

#![expect(clippy::expect_used, reason = "a test fails by panicking")]

mod auditor_support;

use auditor_support::{Core, PATIENCE, manifest, uid};
use ringfence_test_support::wait::{eventually, wait_until};
use ringfence_wire::{
    conn::Conn,
    egress::EgressLine,
    egress_asks::{EgressAsk, EgressDecision, EgressSaid, MOST_QUESTIONS},
    mcp::{McpReply, McpRequest},
};
use serde_json::Value;
use std::{fs, sync::atomic::Ordering};

const CONTAINER: &str = "0123456789ab";

/// The daemon is root, and so has to be who plays it.
fn is_root() -> bool {
    uid() == 0
}

fn started() -> Core {
    let mut core = Core::idle();
    core.spawn();
    core.announce(manifest(0x1005, CONTAINER, "coder", uid()));
    core.settle_hello();
    core
}

fn of(container: u64, public: &str) -> EgressLine {
    EgressLine {
        container,
        public: public.into(),
        profile: "coder".into(),
        uid: uid(),
        created: 0,
        block: "198.18.3.0/24".parse().expect("a block"),
        within: None,
    }
}

fn line_of(core: &Core, container: u64, public: &str) -> Conn {
    line_for(core, of(container, public))
}

fn line_for(core: &Core, line: EgressLine) -> Conn {
    let mut conn = Conn::connect(&core.dir.path().join("mcp.sock"), PATIENCE).expect("connects");
    conn.send(&McpRequest::Egress(line)).expect("asks");
    assert_eq!(conn.receive::<McpReply>().expect("answers"), McpReply::Linked);
    conn
}

fn line(core: &Core) -> Conn {
    line_of(core, 0x1005, CONTAINER)
}

fn say(worker: &mut Conn, ask: EgressAsk) {
    worker.send(&EgressSaid { asks: vec![ask], ..EgressSaid::default() }).expect("says");
}

fn ask(worker: &mut Conn, question: u64, name: &str, port: u16) {
    say(worker, EgressAsk::Ask { question, name: name.into(), port, wait_ms: 600_000 });
}

fn answer(worker: &mut Conn) -> EgressDecision {
    worker.receive().expect("an answer")
}

fn decision(question: u64, approve: bool, by: &str, stands: bool) -> EgressDecision {
    EgressDecision { question, approve, by: by.into(), stands, full: false }
}

fn ok(core: &Core, args: &[&str]) -> String {
    let (out, err, ok) = core.run(args);
    assert!(ok, "{args:?}: {err}");
    out
}

fn refused(core: &Core, args: &[&str]) -> String {
    let (out, err, ok) = core.run(args);
    assert!(!ok, "{args:?}: {out}");
    err
}

/// What waits, once it is so many.
fn waiting(core: &Core, count: usize) -> Vec<Value> {
    eventually(&format!("{count} wait"), || {
        let out = ok(core, &["approvals", "--json"]);
        let found: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
        (found.len() == count).then_some(found)
    })
}

fn id(call: &Value) -> String {
    call["id"].as_str().expect("an id").to_owned()
}

#[test]
fn a_connection_waits_among_calls_and_a_person_decides_once() {
    if !is_root() {
        return;
    }
    let core = started();
    let mut worker = line(&core);
    ask(&mut worker, 1, "api.example.org", 443);
    let call = &waiting(&core, 1)[0];
    assert_eq!((&call["server"], &call["tool"]), (&"api.example.org".into(), &"net.connect".into()));
    assert_eq!(call["arguments"], r#"{"host":"api.example.org","port":443}"#);
    assert_eq!((&call["score"], &call["reasons"][0]), (&61.into(), &"name_not_granted".into()));
    let connection = &call["connection"];
    assert_eq!((&connection["container"], &connection["profile"]), (&CONTAINER.into(), &"coder".into()));
    let text = ok(&core, &["approvals"]);
    assert!(
        text.contains("api.example.org: net.connect")
            && text.contains("container 0123456789ab, profile coder"),
        "{text}"
    );
    // Nothing of a container decides.
    core.governed.store(true, Ordering::SeqCst);
    for args in [
        &["approvals", "approve", &id(call)][..],
        &["approvals", "approve", &id(call), "--scope", "container"],
    ] {
        let why = refused(&core, args);
        assert!(why.contains("belongs to a container"), "{why}");
    }
    core.governed.store(false, Ordering::SeqCst);
    let told = ok(&core, &["approvals", "approve", &id(call)[..8]]);
    let whereto = format!("approved {}: api.example.org at port 443, for container 0123456789ab\n", id(call));
    assert_eq!(told, whereto);
    assert_eq!(answer(&mut worker), decision(1, true, "uid 0", false));
    waiting(&core, 0);
    // Once is once: the same is asked again, and may be denied.
    ask(&mut worker, 2, "api.example.org", 443);
    ok(&core, &["approvals", "deny", &id(&waiting(&core, 1)[0])]);
    assert_eq!(answer(&mut worker), decision(2, false, "uid 0", false));
    // Its worker takes it away, and so does the worker's end.
    ask(&mut worker, 3, "b.example.org", 80);
    let late = id(&waiting(&core, 1)[0]);
    say(&mut worker, EgressAsk::Gone { question: 3 });
    waiting(&core, 0);
    assert!(refused(&core, &["approvals", "approve", &late]).contains("waits for approval"));
    ask(&mut worker, 4, "c.example.org", 80);
    waiting(&core, 1);
    drop(worker);
    waiting(&core, 0);
}

#[test]
fn an_approval_for_the_container_answers_that_host_and_port_there_and_nowhere_else() {
    if !is_root() {
        return;
    }
    let mut core = started();
    core.announce(manifest(0x2006, "ffeeddccbbaa", "coder", uid()));
    let mut worker = line(&core);
    ask(&mut worker, 1, "api.example.org", 443);
    let call = id(&waiting(&core, 1)[0]);
    for scope in ["session", "tool", "arguments"] {
        let why = refused(&core, &["approvals", "approve", &call, "--scope", scope]);
        assert!(why.contains("--scope container"), "{why}");
    }
    let given = ok(&core, &["approvals", "approve", &call, "--scope", "container"]);
    assert!(given.contains("until the end of its container"), "{given}");
    let EgressDecision { question: 1, approve: true, by, stands: true, full: false } = answer(&mut worker)
    else {
        panic!("another answer")
    };
    let approval = by.strip_prefix("uid 0, approval ").expect("it is named").to_owned();
    // Also by another auditor, and another worker of the container's.
    core.kill();
    core.spawn();
    core.settle_hello();
    let mut worker = line(&core);
    ask(&mut worker, 1, "api.example.org", 443);
    assert_eq!(answer(&mut worker), decision(1, true, &format!("approval {approval} of uid 0"), true));
    ask(&mut worker, 2, "api.example.org", 80);
    ask(&mut worker, 3, "www.api.example.org", 443);
    waiting(&core, 2);
    let mut other = line_of(&core, 0x2006, "ffeeddccbbaa");
    ask(&mut other, 1, "api.example.org", 443);
    waiting(&core, 3);
    let standing = ok(&core, &["approvals", "standing", "--json"]);
    let standing: Value = serde_json::from_str(standing.trim()).expect("one");
    assert_eq!((&standing["scope"], &standing["uses"]), (&"container".into(), &1.into()));
    assert_eq!(
        (&standing["server_name"], &standing["session_id"]),
        (&"api.example.org".into(), &CONTAINER.into())
    );
    let log = ok(&core, &["approvals", "log"]);
    assert!(
        log.contains("container of tool=net.connect server=api.example.org container=0123456789ab"),
        "{log}"
    );
    ok(&core, &["approvals", "revoke", &approval]);
    ask(&mut worker, 4, "api.example.org", 443);
    waiting(&core, 4);
}

#[test]
fn rules_and_exceptions_of_the_database_decide_by_name() {
    if !is_root() {
        return;
    }
    let core = started();
    let rules = ["mcp", "rules", "add"];
    let block = ["no_ads", "--tool", "net.connect", "--server", "*.ads.example", "--action", "block"];
    ok(&core, &[&rules[..], &block].concat());
    ok(&core, &["mcp", "rules", "add", "others_tools", "--tool", "write_*", "--action", "block"]);
    ok(&core, &["mcp", "rules", "except", "our_api", "--connection", "api.example.org:443", "--yes"]);
    let mut worker = line(&core);
    ask(&mut worker, 1, "x.ads.example", 443);
    assert_eq!(answer(&mut worker), decision(1, false, "rule no_ads", false));
    ask(&mut worker, 2, "api.example.org", 443);
    assert_eq!(answer(&mut worker), decision(2, true, "exception our_api", true));
    ask(&mut worker, 3, "api.example.org", 8443);
    ask(&mut worker, 4, "ads.example", 443);
    waiting(&core, 2);
    // A rule that asks for a person does so whatever is excepted, and says why.
    ok(&core, &["mcp", "rules", "add", "look", "--server", "api.*", "--action", "pause"]);
    ask(&mut worker, 5, "api.example.org", 443);
    let calls = waiting(&core, 3);
    let paused = calls.iter().find(|call| call["rules"] == serde_json::json!(["look"])).expect("it waits");
    assert_eq!(paused["connection"]["port"], 443);
}

#[test]
fn what_a_worker_may_ask_is_bounded_and_sound() {
    if !is_root() {
        return;
    }
    let core = started();
    let mut worker = line(&core);
    for question in 0..=MOST_QUESTIONS as u64 {
        ask(&mut worker, question, &format!("{question}.evil.example"), 443);
    }
    let too_many = answer(&mut worker);
    assert_eq!((too_many.question, too_many.approve, too_many.full), (MOST_QUESTIONS as u64, false, true));
    assert!(too_many.by.contains("too many"), "{too_many:?}");
    waiting(&core, MOST_QUESTIONS);
    // Who gives up and asks again and again is not shown each time.
    let mut shown = MOST_QUESTIONS;
    for question in 100..200 {
        say(&mut worker, EgressAsk::Gone { question: question - 1 });
        if question == 100 {
            (0..MOST_QUESTIONS as u64).for_each(|question| say(&mut worker, EgressAsk::Gone { question }));
        }
        ask(&mut worker, question, "again.evil.example", 443);
        shown += 1;
    }
    let denied = answer(&mut worker);
    assert!(!denied.approve && denied.full && denied.question < 199, "{denied:?} of {shown}");
    for (name, port, wait_ms) in [
        ("a b.org", 443, 1),
        ("A.org", 443, 1),
        ("intranet", 443, 1),
        ("a.org", 0, 1),
        ("a.org", 443, 600_001),
    ] {
        let mut worker = line(&core);
        say(&mut worker, EgressAsk::Ask { question: 1, name: name.into(), port, wait_ms });
        assert!(worker.receive::<EgressDecision>().is_err(), "{name}:{port}: its line is ended");
    }
    // Another's: nobody is shown any more of this one's.
    let mut worker = line_of(&core, 0x2006, "ffeeddccbbaa");
    ask(&mut worker, 1, "a.org", 443);
    ask(&mut worker, 1, "b.org", 443);
    assert!(worker.receive::<EgressDecision>().is_err(), "a number that is used twice");
    let mut worker = line(&core);
    worker.send(&EgressSaid::default()).expect("sent");
    assert!(worker.receive::<EgressDecision>().is_err(), "nothing at all");
}

#[test]
fn an_approval_into_the_profile_changes_its_file_and_lets_the_connection_go() {
    if !is_root() {
        return;
    }
    let core = started();
    let profiles = core.dir.path().join("profiles");
    let (config, file) = (core.dir.path().to_str().expect("text").to_owned(), profiles.join("coder.toml"));
    fs::create_dir(&profiles).expect("made");
    let text = "# ours\n[grant]\nfs_read = { only = [] }\nfs_write = { only = [] }\nexec = { only = [] }\nnet = { only = [\n  \"a.org:443\", # a\n] }\n\
                max_calls = \"unlimited\"\nvalid_for_generation = \"all\"\n\n[net]\nask = true\n";
    fs::write(&file, text).expect("written");
    let into = |call: &str| {
        let mut command = core.command(&["approvals", "approve", call, "--into-profile"]);
        auditor_support::output(command.env("RINGFENCE_CONFIG_DIR", &config))
    };
    let mut worker = line(&core);
    ask(&mut worker, 1, "api.example.org", 8443);
    let call = id(&waiting(&core, 1)[0]);
    let (out, err, ok) = into(&call);
    assert!(ok, "{err}");
    assert!(out.contains("added to grant.net"), "{out}");
    assert_eq!(answer(&mut worker), decision(1, true, "uid 0", false));
    let added = text.replace("# a\n", "# a\n  \"api.example.org:8443\",\n");
    assert_eq!(fs::read_to_string(&file).expect("read"), added);
    // Nor what would be too much for a profile that extends it.
    let hosts: Vec<String> = (0..125).map(|at| format!("\"h{at}.org:443\"")).collect();
    let extends = format!("extends = \"coder\"\n[grant]\nnet = {{ add = [{}] }}\n", hosts.join(", "));
    fs::write(profiles.join("wide.toml"), extends).expect("written");
    ask(&mut worker, 7, "one-more.example.org", 443);
    let call = id(&waiting(&core, 1)[0]);
    let (_, err, ok) = into(&call);
    assert!(!ok && err.contains("would not be valid: wide"), "{err}");
    assert_eq!(fs::read_to_string(&file).expect("read"), added);
    fs::remove_file(profiles.join("wide.toml")).expect("removed");
    let (_, err, ok) = into(&call);
    assert!(ok, "the control: {err}");
    assert_eq!(answer(&mut worker), decision(7, true, "uid 0", false));
    // Nor is any profile changed for what runs within a container: it chose that profile.
    let within = EgressLine { within: Some("00000000000a".into()), ..of(0x1005, CONTAINER) };
    let mut inner = line_for(&core, within);
    ask(&mut inner, 1, "inner.example.org", 443);
    let call = id(&waiting(&core, 1)[0]);
    let (text, _, _) = core.run(&["approvals"]);
    assert!(
        text.contains(&format!("container {CONTAINER} within container 00000000000a, profile coder")),
        "{text}"
    );
    let (_, err, ok) = into(&call);
    assert!(!ok && err.contains("within container 00000000000a"), "{err}");
    assert!(!fs::read_to_string(&file).expect("read").contains("inner"));
    drop(inner);
    waiting(&core, 0);
    // What would be no profile changes nothing, and the connection waits on.
    fs::write(&file, "net = 1\n[grant]\n").expect("written");
    ask(&mut worker, 2, "b.example.org", 443);
    let call = id(&waiting(&core, 1)[0]);
    let (_, err, ok) = into(&call);
    assert!(!ok && err.contains("is left as it was"), "{err}");
    assert_eq!(fs::read_to_string(&file).expect("read"), "net = 1\n[grant]\n");
    waiting(&core, 1);
    // Of a profile of the binary there is no file.
    fs::remove_file(&file).expect("removed");
    let (_, err, ok) = into(&call);
    assert!(!ok && err.contains("coder"), "{err}");
    wait_until("nothing was decided", || waiting(&core, 1).len() == 1);
}
