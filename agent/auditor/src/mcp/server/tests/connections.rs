//! Connections that wait: who decides, how many there may be, and which are not let go by what was approved before.

use super::{
    egress::{line, whose},
    *,
};
use ringfence_test_support::wait::{eventually, wait_until};
use ringfence_wire::{
    approvals::{ApprovalScope, Standing},
    egress::EgressLine,
    egress_asks::{EgressAsk, EgressDecision, EgressSaid, MOST_QUESTIONS},
};

const UID: u32 = 1000;

fn ask(worker: &mut Conn, question: u64, name: &str) {
    let ask = EgressAsk::Ask { question, name: name.into(), port: 443, wait_ms: 600_000 };
    worker.send(&EgressSaid { asks: vec![ask], ..EgressSaid::default() }).expect("said");
}

fn asking(sessions: &Arc<Sessions>, whose: &EgressLine) -> Conn {
    let (worker, linked) = line(sessions, 0, whose);
    assert_eq!(linked, McpReply::Linked);
    worker
}

fn waiting(sessions: &Sessions, count: usize) -> Vec<WaitingCall> {
    eventually(&format!("{count} wait"), || {
        let calls = sessions.waiting.list(UID);
        (calls.len() == count).then_some(calls)
    })
}

fn id(sessions: &Sessions) -> String {
    waiting(sessions, 1).remove(0).id
}

#[test]
fn a_connection_that_waits_has_a_name_that_no_row_of_a_journal_can_have() {
    let (_folder, sessions) = sessions_of_everybody(false);
    let mut worker = asking(&sessions, &whose(UID));
    ask(&mut worker, 1, "a.org");
    let call = id(&sessions);
    assert!(!ringfence_session::journal::is_name(&call), "{call}");
    let control = uuid::Uuid::try_parse(&call).expect("a UUID").hyphenated().to_string();
    assert!(ringfence_session::journal::is_name(&control), "{control}");
}

#[test]
fn no_descendant_of_a_linked_client_lets_a_connection_go_and_each_may_deny_it() {
    let (_folder, sessions) = sessions_of_everybody(false);
    let mut worker = asking(&sessions, &whose(UID));
    ask(&mut worker, 1, "a.org");
    let call = id(&sessions);
    // The core says of whoever asks that they are below process 90.
    let (link, _theirs) = linked(&sessions, "agent", UID);
    sessions.linked.lock().expect("whole").get_mut("agent").expect("linked").client = 90;
    let request = McpRequest::Decide { call: call[..8].to_owned(), approve: true };
    let McpReply::Failed(failure) = answer(&sessions, &request).expect("an answer") else {
        panic!("an agent let a connection go")
    };
    assert!(failure.error.contains("started by the MCP client (pid 90)"), "{}", failure.error);
    waiting(&sessions, 1);
    // An orphan may have had all of a user's terminals made descendants of a client.
    ask(&mut worker, 2, "b.org");
    let b = waiting(&sessions, 2).into_iter().find(|call| call.server == "b.org").expect("it waits").id;
    let request = McpRequest::Decide { call: b.clone(), approve: false };
    assert_eq!(answer(&sessions, &request).expect("an answer"), McpReply::Decided { call: b });
    let denied: EgressDecision = worker.receive().expect("an answer");
    assert_eq!((denied.question, denied.approve), (2, false));
    drop(link);
    sessions.linked.lock().expect("whole").clear();
    let request = McpRequest::Decide { call: call[..8].to_owned(), approve: true };
    assert_eq!(answer(&sessions, &request).expect("an answer"), McpReply::Decided { call }, "the control");
    assert!(worker.receive::<EgressDecision>().expect("an answer").approve);
}

#[test]
fn containers_within_one_share_what_it_may_ask_and_leave_room_for_others() {
    let (_folder, sessions) = sessions_of_everybody(false);
    let outermost = "00000000000a";
    let within = |at: usize| EgressLine {
        public: format!("{at:012x}"),
        within: (at > 10).then(|| outermost.to_owned()),
        // Those within may be other users' there.
        ..whose(if at > 10 { 100_000 + u32::try_from(at).expect("small") } else { UID })
    };
    let waiting = |sessions: &Sessions, count: usize| {
        let all = || (sessions.waiting.list(0).len() == count).then_some(());
        eventually(&format!("{count} wait"), all);
    };
    let mut workers: Vec<Conn> = (10..16).map(|at| asking(&sessions, &within(at))).collect();
    for (at, worker) in workers.iter_mut().enumerate() {
        for question in 0..MOST_QUESTIONS as u64 {
            ask(worker, question, &format!("{at}-{question}.evil.example"));
        }
        // Each is heard before the next, so that it is known which are refused.
        let (shown, in_all) = [(16, 16), (8, 24), (0, 24), (0, 24), (0, 24), (0, 24)][at];
        for question in shown..MOST_QUESTIONS as u64 {
            let decision: EgressDecision = worker.receive().expect("an answer");
            assert_eq!((decision.question, decision.approve, decision.full), (question, false, true));
        }
        waiting(&sessions, in_all);
    }
    let mut other = asking(&sessions, &EgressLine { public: "00000000000f".into(), ..whose(UID) });
    ask(&mut other, 1, "a.org");
    waiting(&sessions, 25);
    // Nor does whoever gives up and begins anew get further than the pace.
    workers.clear();
    waiting(&sessions, 1);
    let mut again = asking(&sessions, &within(20));
    for question in 0..MOST_QUESTIONS as u64 {
        ask(&mut again, question, &format!("again-{question}.evil.example"));
    }
    let first: EgressDecision = again.receive().expect("an answer");
    assert!(first.full && (8..12).contains(&first.question), "{first:?}: 32, and one in two seconds");
}

#[test]
fn a_line_that_says_it_is_within_what_is_no_container_is_refused() {
    let (_folder, sessions) = sessions_of_everybody(false);
    for within in ["", "0123", "0123456789ab\n", "x123456789ab"] {
        let (_, reply) = line(&sessions, 0, &EgressLine { within: Some(within.into()), ..whose(UID) });
        assert!(matches!(reply, McpReply::Failed(_)), "{within:?}: {reply:?}");
    }
}

#[test]
fn what_was_approved_before_waits_while_the_rules_cannot_be_read() {
    let (folder, sessions) = sessions_of_everybody(false);
    let mut worker = asking(&sessions, &whose(UID));
    ask(&mut worker, 1, "a.org");
    let lane = || sessions.writer.wait(UID, || true).expect("the lane");
    let standing = Standing { scope: ApprovalScope::Container, until: None };
    let who = Decider::Dashboard { uid: UID };
    sessions.approve_for(&id(&sessions), &standing, &who, lane()).expect("approved");
    let receive = |worker: &mut Conn| worker.receive::<EgressDecision>().expect("an answer");
    assert!(receive(&mut worker).approve);
    ask(&mut worker, 2, "a.org");
    assert!(receive(&mut worker).stands, "the control");
    let rule = StoredRule {
        name: "no_a".into(),
        description: String::new(),
        conditions: Conditions { server_pattern: Some("a.org".into()), ..Conditions::default() },
        action: "block".into(),
        exception: None,
    };
    sessions.change_rule(Viewer(UID), &RuleChange::Add { rule }, ("a test", true), lane()).expect("added");
    let database = rusqlite::Connection::open(folder.path().join("audit.db")).expect("opens");
    let describe = |as_what: &str| {
        let text = format!("UPDATE policy_rules SET description = CAST('d' AS {as_what})");
        database.execute_batch(&text).expect("changed");
    };
    describe("BLOB");
    ask(&mut worker, 3, "a.org");
    let call = id(&sessions);
    describe("TEXT");
    ask(&mut worker, 4, "a.org");
    let decision = receive(&mut worker);
    assert_eq!((decision.question, decision.approve, decision.by.as_str()), (4, false, "rule no_a"));
    sessions.waiting.decide(&call, false, &who).expect("a person's word counts");
    wait_until("nobody waits", || sessions.waiting.count(UID) == 0);
}
