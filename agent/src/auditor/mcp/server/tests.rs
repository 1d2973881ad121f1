//! Connections that have to go.

use super::*;
use crate::{
    auditor::mcp::sessions::Serving,
    quota::{Bounds, Owners, Permits},
};

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
