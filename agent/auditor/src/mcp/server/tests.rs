//! Connections that have to go.

use super::*;
use crate::{
    mcp::{
        link::{Link, LinkWriter},
        peers::{CoreChannel, PeerResolver},
        session_link::released,
        sessions::{Linked, Serving},
        watchers::Change,
    },
    shared::Shared,
};
use nix::sys::eventfd::{EfdFlags, EventFd};
use ringfence_base::quota::{Bounds, Owners, Permits};
use ringfence_session::{
    journal::{Entry as Line, Journal, ListedTool},
    reload::LONGEST,
};
use ringfence_wire::{
    audit::{FromCore, PeerFacts, PeerQuestion},
    mcp::{
        Conditions, MAX_UPDATE, RuleChange, RuleFile, SessionOrder, SessionUpdate, StoredRule, WaitingCall,
    },
    message::Reply,
    packets::Packets,
};
use std::{fs::File, thread};

mod agents;
mod connections;
mod egress;

#[test]
fn who_had_to_go_gets_no_answer_to_what_it_had_written_before() {
    let folder = tempfile::tempdir().expect("a folder");
    let sessions = Arc::new(Sessions::new(folder.path().join("audit.db"), Serving::Own));
    let permits = Permits::within(Bounds::of(9, 1), Owners::default());
    let uid = 1000;
    // Somebody else of this user's is in the lane: whoever goes on waits for it.
    let lane = sessions.questions.enter(uid, Instant::now(), || true).expect("the lane is free");
    let ask = || {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let mut asking = Conn::new(theirs, LIMIT, MAX_MESSAGE);
        asking.send(&McpRequest::Sessions { limit: 1 }).expect("sent");
        (ours, asking, permits.take(uid, || ()).expect("a permit"))
    };
    let (ours, mut asking, evicted) = ask();
    let (stays, mut waits, permit) = ask();
    assert!(!evicted.is_held() && permit.is_held(), "the next one has its place");
    let ended = converse(ours, uid, &evicted, &sessions);
    assert!(matches!(ended, Err(FrameError::Closed)), "at once, not when the lane is free: {ended:?}");
    assert!(matches!(asking.receive::<McpReply>(), Err(FrameError::Closed)));
    // The control: who has its place waits for the lane, and is answered.
    let shared = Arc::clone(&sessions);
    let answers = thread::spawn(move || converse(stays, uid, &permit, &shared));
    thread::sleep(Duration::from_millis(50));
    assert!(!answers.is_finished(), "it waits");
    drop(lane);
    assert!(waits.receive::<McpReply>().is_ok());
    assert!(answers.join().expect("no panic").is_ok());
}

/// What a request is answered, of a user who has a place.
fn answer(sessions: &Arc<Sessions>, request: &McpRequest) -> Result<McpReply, FrameError> {
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    let permit = Permits::within(Bounds::of(9, 9), Owners::default()).take(1000, || ()).expect("a permit");
    let shared = Arc::clone(sessions);
    let serves = thread::spawn(move || converse(ours, 1000, &permit, &shared));
    let mut asking = Conn::new(theirs, LIMIT, MAX_MESSAGE);
    // It may hang up before it has read all.
    let _ = asking.send(request);
    let reply = asking.receive();
    let _ = serves.join().expect("no panic");
    reply
}

fn sessions() -> (tempfile::TempDir, Arc<Sessions>) {
    let folder = tempfile::tempdir().expect("a folder");
    let sessions = Arc::new(Sessions::new(folder.path().join("audit.db"), Serving::Own));
    (folder, sessions)
}

/// What a session's journal begins with.
fn start(session: &str) -> Line {
    Line::Start {
        session: session.to_owned(),
        at: 1,
        server_name: "fs".into(),
        server_command: vec!["fs".into()],
        pid: 1,
        version: "1".into(),
        client: None,
    }
}

#[test]
fn whatever_takes_the_store_s_time_waits_for_its_user_s_lane_and_what_a_person_decides_does_not() {
    let (_folder, sessions) = sessions();
    let confirm = || McpRequest::ConfirmRules { path: "/r".into(), sha256: "0".into() };
    let offer = || McpRequest::Offer { sessions: vec![] };
    let journal = || McpRequest::Journal { session: "s".into(), journal: "/j".into() };
    let ask = |request: McpRequest| {
        let shared = Arc::clone(&sessions);
        thread::spawn(move || answer(&shared, &request))
    };
    let lanes = [&sessions.questions, &sessions.journals];
    let taken = lanes.map(|lanes| lanes.enter(1000, Instant::now(), || true).expect("the lane is free"));
    let waiting: Vec<_> =
        [McpRequest::Stats, McpRequest::PendingRules, McpRequest::Heads, confirm(), offer(), journal()]
            .map(ask)
            .into();
    for request in [McpRequest::Waiting, McpRequest::Decide { call: "abcd".into(), approve: true }] {
        assert!(answer(&sessions, &request).is_ok(), "{request:?}");
    }
    thread::sleep(Duration::from_millis(100));
    assert!(waiting.iter().all(|asking| !asking.is_finished()), "they wait");
    drop(taken);
    assert!(waiting.into_iter().all(|asking| asking.join().expect("no panic").is_ok()));
}

#[test]
fn first_messages_are_short_and_the_longest_honest_one_is_among_them() {
    let (_folder, sessions) = sessions();
    let ids = vec![uuid::Uuid::new_v4().to_string(); MAX_OFFERED];
    let offered = answer(&sessions, &McpRequest::Offer { sessions: ids });
    assert!(matches!(offered, Ok(McpReply::Wanted { .. } | McpReply::Failed(_))), "{offered:?}");
    let long = |bytes: usize| McpRequest::Decide { call: "x".repeat(bytes), approve: true };
    assert!(answer(&sessions, &long(MAX_FIRST)).is_err(), "nobody reads it");
    assert!(answer(&sessions, &long(MAX_FIRST / 2)).is_ok(), "the control");
    // What a link says later may be a rule file.
    let text = "\"\n".repeat(LONGEST as usize / 2);
    let file = RuleFile { path: "/".repeat(MAX_PATH), text, trusted: false };
    let update = serde_json::to_vec(&SessionUpdate::RuleFile { number: 1, file }).expect("JSON");
    assert!(update.len() <= MAX_UPDATE, "{} bytes", update.len());
}

#[test]
fn a_journal_that_was_left_behind_and_is_broken_is_marked() {
    let (folder, sessions) = sessions();
    let marks = |bad: bool| {
        let session = uuid::Uuid::new_v4().to_string();
        let path = folder.path().join(&session);
        let start = start(&session);
        let decision = Line::Decision {
            call: if bad { "c".into() } else { session.clone() },
            at: 2,
            boot: 2,
            outcome: "denied".into(),
            by: None,
        };
        let mut journal = Journal::create(&path).expect("a journal");
        [start, decision].iter().for_each(|entry| journal.append(entry).expect("written"));
        let file = File::open(&path).expect("the journal");
        let taken = sessions.catch_up((session.clone(), "j".into()), 1000, file, &|| true);
        assert_eq!(taken.is_err(), bad, "{taken:?}");
        let reader = SessionReader::open(&sessions.db).expect("opens");
        reader.session(Viewer(1000), &session).expect("reads").expect("the session")["broken"].clone()
    };
    assert!(marks(true).as_str().is_some_and(|why| why.contains("line 2")), "{}", marks(true));
    assert!(marks(false).is_null(), "the control");
}

#[test]
fn a_journal_s_path_is_no_longer_than_a_path() {
    let (_folder, sessions) = sessions();
    let session = || uuid::Uuid::new_v4().to_string();
    let why = |request: &McpRequest| match answer(&sessions, request) {
        Ok(McpReply::Failed(why)) => why.error,
        other => panic!("{other:?}"),
    };
    for (bytes, refused) in [(MAX_PATH, false), (MAX_PATH + 1, true)] {
        let journal = || "/".repeat(bytes);
        for request in [
            McpRequest::Session { session: session(), journal: journal(), http: false },
            McpRequest::Journal { session: session(), journal: journal() },
        ] {
            assert_eq!(why(&request).contains("4096 bytes"), refused, "{}", why(&request));
        }
    }
}

/// A session of a user's that is linked, and the interceptor's side.
fn linked(sessions: &Sessions, session: &str, uid: u32) -> (Link, Conn) {
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    let link: Link = Arc::new(LinkWriter::new(ours));
    let nudge = Arc::new(EventFd::from_flags(EfdFlags::EFD_CLOEXEC).expect("a descriptor"));
    let linked = Linked { link: Arc::clone(&link), uid, client: 1, progress: Arc::default(), nudge };
    sessions.linked.lock().expect("whole").insert(session.to_owned(), linked);
    (link, Conn::new(theirs, LIMIT, MAX_MESSAGE))
}

fn rule_file(text: &str) -> RuleFile {
    RuleFile { path: "/rules".into(), text: text.into(), trusted: false }
}

const STRICT: &str = "rules: [{name: a, action: block}]";
const LOOSE: &str = "rules: []";

#[test]
fn everybody_writes_while_a_rule_file_is_compared_and_that_is_not_done_without_end() {
    let (folder, sessions) = sessions();
    let (link, mut interceptor) = linked(&sessions, "s", 5);
    link.open(&"welcome").expect("sent");
    drop(sessions.writer.lock(5, || true).expect("the lane").offer_rules(5, &rule_file(STRICT), 1));
    let database = rusqlite::Connection::open(folder.path().join("audit.db")).expect("opens");
    let change = |text: &str| {
        database.execute("UPDATE rule_files SET text = ?1", [text]).expect("changed");
    };
    // Whoever writes would wait for ever if this thread had the writer, or its user's lane to it.
    let compared = std::cell::Cell::new(0);
    let offer = |ends: bool| {
        sessions.offer_rules_by(5, (1, rule_file(LOOSE)), &link, &|| true, |reader, uid, file| {
            let compared = compared.replace(compared.get() + 1);
            let done = reader.compare_rules(uid, file);
            for uid in [5, 6] {
                drop(sessions.writer.lock(uid, || true).expect("the lane"));
            }
            // The text in force is another one by the time that it was compared with the file.
            if compared == 0 || !ends {
                change(&format!("{STRICT} # {compared}"));
            }
            done
        })
    };
    assert!(matches!(offer(true), Ok(Some(true))), "held, the second time");
    assert_eq!(compared.get(), 2);
    assert!(matches!(offer(false), Err(store::Error::ChangingRuleFile)), "and some time it ends");
    assert!(compared.get() < 100);
    assert_eq!(interceptor.receive::<String>().expect("a message"), "welcome");
    let order = interceptor.receive::<SessionOrder>().expect("one answer");
    let SessionOrder::RuleFile { answers, text, held, .. } = order else { panic!("{order:?}") };
    assert_eq!((answers, held.as_deref()), (Some(1), Some("a")));
    assert_eq!(text, format!("{STRICT} # 0"), "what is in force, and not what was at first");
}

#[test]
fn what_is_in_force_is_told_once_for_all_links_and_behind_what_was_answered_before() {
    let (_folder, sessions) = sessions();
    sessions.writer.lock(5, || true).expect("the lane").offer_rules(5, &rule_file(STRICT), 1).expect("taken");
    let links: Vec<_> = ["a", "b", "c"].map(|session| linked(&sessions, session, 5)).into();
    let (other, _) = linked(&sessions, "other", 6);
    assert!(matches!(sessions.offer_rules(5, (1, rule_file(LOOSE)), &links[0].0, &|| true), Ok(Some(true))));
    let sha256 = ringfence_session::journal::sha256(LOOSE.as_bytes());
    let confirm = |viewer: u32| {
        let lane = sessions.writer.wait(viewer, || true).expect("the lane");
        sessions.confirm_rules(viewer, ("/rules", &sha256), "a test", lane).expect("looked at")
    };
    assert!(!confirm(6), "another user's");
    assert!(confirm(0) && !confirm(0), "by root, once");
    sessions.send_rules(0).expect("sent");
    // The answer to its own offer, and what all are told, in this order; nothing goes before the first message.
    let kept: Vec<_> = links.iter().map(|(link, _)| link.kept()).collect();
    assert_eq!(kept.iter().map(Vec::len).collect::<Vec<_>>(), [3, 2, 2]);
    for (kept, ours) in kept[1..].iter().zip([&kept[0][1..]; 2]) {
        assert!(kept.iter().zip(ours).all(|(theirs, ours)| Arc::ptr_eq(theirs, ours)), "one text for all");
    }
    assert_eq!(other.kept().len(), 1, "the rules of the database alone");
    for (number, (link, mut interceptor)) in links.into_iter().enumerate() {
        link.open(&"welcome").expect("sent");
        assert_eq!(interceptor.receive::<String>().expect("a message"), "welcome");
        let mut orders: Vec<_> = (0..kept[number].len())
            .map(|_| interceptor.receive::<SessionOrder>().expect("an order"))
            .collect();
        assert!(matches!(orders.pop(), Some(SessionOrder::Rules { .. })));
        let texts = orders.iter().map(|order| match order {
            SessionOrder::RuleFile { answers, text, held, .. } => (*answers, text.as_str(), held.is_some()),
            other => panic!("{other:?}"),
        });
        let answer = (Some(1), STRICT, true);
        let wanted = [answer, (None, LOOSE, false)];
        assert_eq!(texts.collect::<Vec<_>>(), wanted[usize::from(number > 0)..]);
    }
}

#[test]
fn rules_that_cannot_be_read_keep_nobody_else_from_theirs_and_are_sent_later() {
    let (folder, sessions) = sessions();
    let rule = |name: &str| StoredRule {
        name: name.into(),
        description: String::new(),
        conditions: Conditions::default(),
        action: "flag".into(),
        exception: None,
    };
    let change = |viewer: u32, change: &RuleChange| {
        let lane = sessions.writer.wait(viewer, || true).expect("the lane");
        sessions.change_rule(Viewer(viewer), change, ("a test", true), lane)
    };
    change(5, &RuleChange::Add { rule: rule("mine") }).expect("added");
    let (first, _) = linked(&sessions, "first", 5);
    let (second, _) = linked(&sessions, "second", 6);
    let told = || [first.kept().len(), second.kept().len()];
    let database = rusqlite::Connection::open(folder.path().join("audit.db")).expect("opens");
    let describe = |as_what: &str| {
        let text = format!("UPDATE policy_rules SET description = CAST('d' AS {as_what}) WHERE uid = 5");
        database.execute_batch(&text).expect("changed");
    };
    describe("BLOB");
    let Err(error) = change(0, &RuleChange::Add { rule: rule("of_everybody") }) else {
        panic!("one of them cannot be told");
    };
    let said = chain(&error);
    assert!(said.starts_with("the change is stored, but not yet in force"), "{said}");
    assert_eq!(told(), [0, 1], "the other one has it");
    assert!(sessions.send_unsent().is_err(), "it is tried again, and fails again");
    describe("TEXT");
    sessions.send_unsent().expect("sent");
    assert_eq!(told(), [1, 1]);
    sessions.send_unsent().expect("nothing is left");
    assert_eq!(told(), [1, 1]);

    // Whoever asks for what is so already has it sent.
    let id: String = database
        .query_row("SELECT id FROM policy_rules WHERE uid = 0", [], |row| row.get(0))
        .expect("a rule");
    change(0, &RuleChange::Switch { id, version: 1, enabled: true }).expect("it is on");
    assert_eq!(told(), [2, 2]);
}

#[test]
fn a_changed_rule_is_answered_however_many_rules_others_have() {
    let (folder, sessions) = sessions();
    let change = |change: &RuleChange| {
        let lane = sessions.writer.wait(2000, || true).expect("the lane");
        sessions.change_rule(Viewer(0), change, ("a test", true), lane).expect("changed")
    };
    let rule = StoredRule {
        name: "a".into(),
        description: String::new(),
        conditions: Conditions::default(),
        action: "flag".into(),
        exception: None,
    };
    let lane = sessions.writer.wait(2000, || true).expect("the lane");
    let added = sessions.change_rule(Viewer(2000), &RuleChange::Add { rule }, ("a test", true), lane);
    let id = added.expect("added")["id"].as_str().expect("an id").to_owned();
    let database = rusqlite::Connection::open(folder.path().join("audit.db")).expect("opens");
    let others = "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 1500)
        INSERT INTO policy_rules (id, name, action, created_at, uid) SELECT n, n, 'flag', '', n / 100 + 1 FROM n";
    database.execute_batch(others).expect("inserted");
    let row = change(&RuleChange::Switch { id: id.clone(), version: 1, enabled: false });
    assert_eq!((&row["id"], &row["enabled"], &row["place"]), (&id.as_str().into(), &false.into(), &1.into()));
    assert!(change(&RuleChange::Delete { id, version: 2 }).is_null(), "the control");
}

#[test]
fn of_a_release_nobody_is_told_whose_call_did_not_wait() {
    let (_folder, sessions) = sessions();
    let (link, _interceptor) = linked(&sessions, "s", 5);
    let watcher = sessions.watch();
    let call = |id: &str| WaitingCall {
        id: id.into(),
        session: "s".into(),
        server: "fs".into(),
        tool: "t".into(),
        arguments: "{}".into(),
        arguments_bytes: None,
        score: 70,
        reasons: vec![],
        rules: vec![],
        since: 1,
        until: i64::MAX,
        connection: None,
    };
    assert!(sessions.waiting.add(call("waits"), 5, 1, link));
    for id in ["never-did", "waits", "waits"] {
        released(&sessions, id.to_owned(), ("s", 5));
    }
    let backlog = watcher.take();
    assert_eq!(backlog.users[&5].changes, [Change::Call("waits".into())]);
}

#[test]
fn an_interceptor_that_gave_up_waiting_for_its_welcome_gets_it_the_next_time() {
    let (folder, sessions) = sessions();
    let journal = folder.path().join("journal");
    std::fs::write(&journal, "").expect("written");
    let session = uuid::Uuid::new_v4().to_string();
    let permits = Permits::within(Bounds::of(9, 9), Owners::default());
    let link = || {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let (permit, shared) = (permits.take(1000, || ()).expect("a permit"), Arc::clone(&sessions));
        let serves = thread::spawn(move || converse(ours, 1000, &permit, &shared));
        let mut interceptor = Conn::new(theirs, Duration::from_secs(60), MAX_MESSAGE);
        let request = McpRequest::Session {
            session: session.clone(),
            journal: journal.display().to_string(),
            http: false,
        };
        let file = File::open(&journal).expect("opens");
        interceptor.send_with_descriptors(&request, &[std::os::fd::AsFd::as_fd(&file)]).expect("sent");
        (interceptor, serves)
    };
    // The store has other work, and the first is not answered in time.
    let busy = sessions.writer.wait(1000, || true).expect("the lane");
    let (first, ends) = link();
    while sessions.claims.is_free(&session) {
        thread::sleep(Duration::from_millis(5));
    }
    drop(first);
    let (mut second, serves) = link();
    thread::sleep(Duration::from_millis(50));
    drop(busy);
    let reply = second.receive::<McpReply>().expect("an answer");
    assert!(matches!(reply, McpReply::Welcome { .. }), "{reply:?}");
    let _ = ends.join().expect("no panic");
    // The control: a third has no business here while the second's interceptor is there.
    let (mut third, refused) = link();
    let reply = third.receive::<McpReply>().expect("an answer");
    assert!(matches!(&reply, McpReply::Failed(why) if why.error.contains("linked already")), "{reply:?}");
    let _ = refused.join().expect("no panic");
    drop(second);
    let _ = serves.join().expect("no panic");
}

#[test]
fn whoever_names_another_user_s_session_keeps_nobody_from_it() {
    let (folder, sessions) = sessions();
    let session = uuid::Uuid::new_v4().to_string();
    let path = folder.path().join(&session);
    Journal::create(&path).expect("a journal").append(&start(&session)).expect("written");
    let file = File::open(&path).expect("the journal");
    sessions.catch_up((session.clone(), "j".into()), 1000, file, &|| true).expect("on record");
    // What it would wait for with the session in its hands, for as long as it likes.
    let _busy = sessions.writer.wait(1001, || true).expect("the lane");
    let (named, journal) = (|| session.clone(), || "j".to_owned());
    for request in [
        McpRequest::Session { session: named(), journal: journal(), http: false },
        McpRequest::Journal { session: named(), journal: journal() },
    ] {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let permit =
            Permits::within(Bounds::of(9, 9), Owners::default()).take(1001, || ()).expect("a permit");
        let shared = Arc::clone(&sessions);
        let serves = thread::spawn(move || converse(ours, 1001, &permit, &shared));
        let mut asking = Conn::new(theirs, Duration::from_secs(60), MAX_MESSAGE);
        let file = File::open(&path).expect("the journal");
        asking.send_with_descriptors(&request, &[std::os::fd::AsFd::as_fd(&file)]).expect("sent");
        let reply = asking.receive::<McpReply>().expect("an answer");
        assert!(matches!(&reply, McpReply::Failed(why) if why.error.contains("another user")), "{reply:?}");
        let _ = serves.join().expect("no panic");
        assert!(sessions.claims.is_free(&session));
    }
}

#[test]
fn a_session_of_which_nobody_can_tell_whose_it_is_is_kept_from_nobody() {
    let (folder, sessions) = sessions();
    std::fs::write(folder.path().join("audit.db"), "x".repeat(8192)).expect("no database");
    let session = uuid::Uuid::new_v4().to_string();
    let path = folder.path().join(&session);
    Journal::create(&path).expect("a journal").append(&start(&session)).expect("written");
    // What it would wait for with the session in its hands, for as long as it likes.
    let _busy = sessions.writer.wait(1001, || true).expect("the lane");
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    let permit = Permits::within(Bounds::of(9, 9), Owners::default()).take(1001, || ()).expect("a permit");
    let shared = Arc::clone(&sessions);
    let serves = thread::spawn(move || converse(ours, 1001, &permit, &shared));
    let mut asking = Conn::new(theirs, Duration::from_secs(60), MAX_MESSAGE);
    let file = File::open(&path).expect("the journal");
    let request = McpRequest::Journal { session: session.clone(), journal: "j".into() };
    asking.send_with_descriptors(&request, &[std::os::fd::AsFd::as_fd(&file)]).expect("sent");
    let reply = asking.receive::<McpReply>().expect("an answer");
    assert!(matches!(reply, McpReply::Failed(_)), "{reply:?}");
    let _ = serves.join().expect("no panic");
    assert!(sessions.claims.is_free(&session));
}

/// What the daemon's auditor has, and a core by whose word whoever connects is governed, or is not.
fn sessions_of_everybody(governed: bool) -> (tempfile::TempDir, Arc<Sessions>) {
    let (core, ours) = Packets::pair().expect("a pair");
    thread::spawn(move || {
        while let Ok((PeerQuestion { number }, _)) = core.receive() {
            let facts = PeerFacts { lineage: vec![91, 90, 1], governed };
            core.send(&FromCore::Answer { number, reply: Reply::Ok(facts) }, None, None).expect("sent");
        }
    });
    let line = CoreChannel::start(ours, Owners::default(), || ()).expect("a thread");
    let (shared, _) = UnixStream::pair().expect("a pair");
    let serving = Serving::Everybody {
        peers: PeerResolver::Core(line),
        shared: Arc::new(Shared::new(shared)),
        owners: Owners::default(),
        session_bytes: 1 << 30,
    };
    let folder = tempfile::tempdir().expect("a folder");
    let sessions = Arc::new(Sessions::new(folder.path().join("audit.db"), serving));
    (folder, sessions)
}

#[test]
fn that_only_root_wrote_a_rule_file_is_believed_of_no_governed_process() {
    for governed in [false, true] {
        let (folder, sessions) = sessions_of_everybody(governed);
        let session = uuid::Uuid::new_v4().to_string();
        let path = folder.path().join(&session);
        Journal::create(&path).expect("a journal").append(&start(&session)).expect("written");
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let permit =
            Permits::within(Bounds::of(9, 9), Owners::default()).take(1000, || ()).expect("a permit");
        let shared = Arc::clone(&sessions);
        let serves = thread::spawn(move || converse(ours, 1000, &permit, &shared));
        let mut interceptor = Conn::new(theirs, Duration::from_secs(60), MAX_MESSAGE);
        let file = File::open(&path).expect("the journal");
        let request = McpRequest::Session { session, journal: "j".into(), http: false };
        interceptor.send_with_descriptors(&request, &[std::os::fd::AsFd::as_fd(&file)]).expect("sent");
        let welcome = interceptor.receive::<McpReply>().expect("an answer");
        assert!(matches!(welcome, McpReply::Welcome { .. }), "{welcome:?}");
        // Whoever started a governed one keeps nobody from deciding: it may be a process that adopted it.
        let clients: Vec<u32> =
            sessions.linked.lock().expect("whole").values().map(|linked| linked.client).collect();
        assert_eq!(clients, [if governed { crate::mcp::waiting::FIRST } else { 90 }]);
        let mut offer = |number, text: &str, trusted| {
            let file = RuleFile { trusted, ..rule_file(text) };
            interceptor.send(&SessionUpdate::RuleFile { number, file }).expect("sent");
            let order = interceptor.receive::<SessionOrder>().expect("an answer");
            let SessionOrder::RuleFile { held, .. } = order else { panic!("{order:?}") };
            held
        };
        assert_eq!(offer(1, STRICT, false), None, "nobody has seen it before");
        assert_eq!(offer(2, LOOSE, true).is_some(), governed);
        drop(interceptor);
        let _ = serves.join().expect("no panic");
    }
}

#[test]
fn a_session_for_whose_server_there_is_no_room_hears_that_nothing_is_pinned() {
    for room in [false, true] {
        let (folder, sessions) = sessions();
        drop(sessions.writer.lock(1000, || true).expect("the lane").lines("none", 1000));
        if !room {
            let many = "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 256)
                INSERT INTO mcp_servers (uid, owner, key, contained, name, command, first_seen, last_seen)
                SELECT 1000, 1000, n, 0, n, n, '9999-01-01', '9999-01-01' FROM n";
            let database = rusqlite::Connection::open(folder.path().join("audit.db")).expect("opens");
            database.execute(many, []).expect("stored");
            // A server of which nothing is pinned would make room.
            let pins = "INSERT INTO tool_pins (uid, server, name, sha256, parts, flags, since)
                SELECT uid, id, 't', 'a', '{}', '[]', first_seen FROM mcp_servers";
            database.execute(pins, []).expect("stored");
        }
        let session = uuid::Uuid::new_v4().to_string();
        let path = folder.path().join(&session);
        let mut journal = Journal::create(&path).expect("a journal");
        let key = Some("a".repeat(64));
        let listed = ListedTool {
            name: "t".into(),
            sha256: Some("b".repeat(64)),
            held: None,
            definition: Some("{}".into()),
            parts: Default::default(),
            flags: vec![],
        };
        [
            start(&session),
            Line::Server { at: 2, key, info: None },
            Line::Tools { at: 3, message: session.clone(), tools: vec![listed], more: 0, whole: None },
        ]
        .iter()
        .for_each(|entry| journal.append(entry).expect("written"));
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let permit =
            Permits::within(Bounds::of(9, 9), Owners::default()).take(1000, || ()).expect("a permit");
        let serves = thread::spawn(move || converse(ours, 1000, &permit, &sessions));
        let mut interceptor = Conn::new(theirs, Duration::from_secs(60), MAX_MESSAGE);
        let file = File::open(&path).expect("the journal");
        let request = McpRequest::Session { session, journal: "j".into(), http: false };
        interceptor.send_with_descriptors(&request, &[std::os::fd::AsFd::as_fd(&file)]).expect("sent");
        let welcome = interceptor.receive::<McpReply>().expect("an answer");
        assert!(matches!(welcome, McpReply::Welcome { tools: true, .. }), "{welcome:?}");
        interceptor.send(&SessionUpdate::Grew).expect("sent");
        let order = interceptor.receive::<SessionOrder>().expect("an order");
        let SessionOrder::Tools { tools } = order else { panic!("{order:?}") };
        assert_eq!(tools.len(), usize::from(room), "one is pinned where there is room");
        drop(interceptor);
        let _ = serves.join().expect("no panic");
    }
}
