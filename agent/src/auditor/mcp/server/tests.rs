//! Connections that have to go.

use super::*;
use crate::mcp::reload::LONGEST;
use crate::{
    auditor::mcp::sessions::Serving,
    quota::{Bounds, Owners, Permits},
};
use ringfence_wire::mcp::RuleFile;

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
    let news = serde_json::to_vec(&SessionNews::RuleFile { number: 1, file }).expect("JSON");
    assert!(news.len() <= MAX_NEWS, "{} bytes", news.len());
}

#[test]
fn a_journal_that_was_left_behind_and_is_broken_is_marked() {
    use crate::mcp::journal::{Entry as Line, Journal};
    let (folder, sessions) = sessions();
    let marks = |bad: bool| {
        let session = uuid::Uuid::new_v4().to_string();
        let path = folder.path().join(&session);
        let start = Line::Start {
            session: session.clone(),
            at: 1,
            server_name: "fs".into(),
            server_command: vec!["fs".into()],
            pid: 1,
            version: "1".into(),
        };
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
            McpRequest::Session { session: session(), journal: journal() },
            McpRequest::Journal { session: session(), journal: journal() },
        ] {
            assert_eq!(why(&request).contains("4096 bytes"), refused, "{}", why(&request));
        }
    }
}
