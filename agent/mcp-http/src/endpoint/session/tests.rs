//! A session of the endpoint: what is open, called off, kept and resumed, and the room that this takes.

use super::*;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn session(is_stateless: bool, script: &str, rooms: &Rooms) -> Arc<Session> {
    let command = ["sh", "-c", script].map(OsString::from);
    let id = ("s".to_owned(), is_stateless, String::new());
    Arc::new(Session::start(id, &command, (1 << 20, rooms.clone()), |_| {}, Room::set, || {}).unwrap())
}

fn ask(n: i64) -> Vec<(Id, Option<Id>)> {
    vec![(Id::parse(&n.to_string()).unwrap(), None)]
}

#[test]
fn a_client_that_goes_before_its_request_is_sent_leaves_nothing_open() {
    for is_stateless in [false, true] {
        let runtime = runtime();
        let _within = runtime.enter();
        // It reads nothing: the pipe fills, and then a line waits, and another.
        let session = session(is_stateless, "exec sleep 30 2>/dev/null", &Rooms::new(64 << 20));
        runtime.block_on(async {
            let long = vec![b'x'; 1 << 20];
            let mut went = Vec::new();
            for n in 0..4 {
                let asked = session.request(long.clone(), ask(n), false);
                went.push(tokio::time::timeout(Duration::from_millis(300), asked).await);
            }
            assert!(went.iter().any(Result::is_err), "one of them was still waiting");
            for (n, sent) in went.iter().enumerate() {
                let is_open = !session.can_take(&[ask(n as i64)[0].0.clone()]);
                assert_eq!(is_open, sent.is_ok(), "{n}");
            }
        });
        session.end();
    }
}

#[test]
fn a_cancellation_waits_for_its_turn_and_is_not_lost() {
    let folder = tempfile::tempdir().unwrap();
    let (go, got) = (folder.path().join("go"), folder.path().join("got"));
    // Its output stays open: without one the session is over.
    let script =
        format!("while [ ! -e {} ]; do sleep 0.05; done; exec cat 3>&1 > {}", go.display(), got.display());
    let runtime = runtime();
    let _within = runtime.enter();
    let session = session(true, &script, &Rooms::new(64 << 20));
    runtime.block_on(async {
        let mut long = vec![b'x'; 200_000];
        long.push(b'\n');
        // One line is being written, one waits; the second client goes.
        let first = session.request(long.clone(), ask(1), false).await.unwrap();
        let second = session.request(long.clone(), ask(2), false).await.unwrap();
        drop(second);
        std::fs::write(&go, "").unwrap();
        let since = Instant::now();
        loop {
            let text = std::fs::read_to_string(&got).unwrap_or_default();
            if text.contains("\"requestId\":2") {
                break;
            }
            assert!(since.elapsed() < Duration::from_secs(60), "the cancellation is lost");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        drop(first);
    });
    session.end();
}

#[test]
fn what_was_sent_before_the_end_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let got = folder.path().join("got");
    let runtime = runtime();
    let _within = runtime.enter();
    let script = format!("exec cat 3>&1 > {}", got.display());
    let session = session(false, &script, &Rooms::new(64 << 20));
    let mut long = vec![b'x'; 200_000];
    long.push(b'\n');
    runtime.block_on(async {
        for n in 0..2 {
            session.request(long.clone(), ask(n), false).await.unwrap();
        }
        session.end();
        session.ended().await;
    });
    assert_eq!(std::fs::metadata(&got).unwrap().len(), 400_002);
}

#[test]
fn an_answer_that_a_client_waited_for_is_use_of_the_session() {
    let rooms = Rooms::new(1 << 20);
    let state = Mutex::new(State::default());
    let (live, mut items) = mpsc::channel(WAITING);
    for (number, live) in [(1, None), (2, Some(live))] {
        let mut stream = Stream::new(rooms.one(), 1);
        stream.live = live;
        lock(&state).streams.insert(number, stream);
        lock(&state).open.insert(ask(number as i64)[0].0.clone(), number);
    }
    let before = Instant::now();
    lock(&state).used = Some(before);
    let deliver = |line: &str| State::deliver(&state, line.as_bytes(), false, (rooms.one(), &Room::set));
    assert!(deliver("{\"id\":1,\"result\":{}}\n"));
    assert_eq!(lock(&state).used, Some(before), "nobody reads that");
    assert!(deliver("{\"id\":2,\"result\":{}}\n"));
    assert!(items.try_recv().is_ok() && lock(&state).used > Some(before));
}

#[test]
fn what_a_broken_stream_did_not_take_comes_on_the_next() {
    const NOTE: &[u8] = b"{\"method\":\"notifications/tools/list_changed\"}\n";
    let rooms = Rooms::new(1 << 20);
    let runtime = runtime();
    let _within = runtime.enter();
    let session = session(false, "exec sleep 30 2>/dev/null", &rooms);
    let deliver = || assert!(State::deliver(&session.state, NOTE, false, (rooms.one(), &Room::set)));
    let sent = || lock(&session.state).streams[&UNASKED].sent;
    let open = || {
        let (live, items) = mpsc::channel(WAITING);
        lock(&session.state).streams.get_mut(&UNASKED).unwrap().live = Some(live);
        items
    };
    let items = open();
    deliver();
    assert_eq!(sent(), 1, "the control");
    drop(items);
    deliver();
    assert_eq!(sent(), 1, "it was closed before");
    let items = open();
    (0..WAITING).for_each(|_| deliver());
    let all = sent();
    thread::scope(|scope| {
        let waits = scope.spawn(deliver);
        while lock(&session.state).streams[&UNASKED].replay.after(all).count() == 0 {
            thread::sleep(LOOK);
        }
        drop(items);
        waits.join().unwrap();
    });
    assert_eq!(sent(), all, "it was closed while this waited");
    assert!(session.listen(None, Room::set).unwrap().is_some());
    assert_eq!(sent(), all + 1, "it is on the next");
    session.end();
}

#[test]
fn an_answer_that_comes_when_nobody_reads_is_kept_in_the_room_that_was_found_for_it() {
    let rooms = Rooms::new(1 << 20);
    let runtime = runtime();
    let _within = runtime.enter();
    let session = session(false, "exec sleep 30 2>/dev/null", &rooms);
    lock(&session.state).streams.insert(1, Stream::new(rooms.one(), 1));
    lock(&session.state).open.insert(ask(7)[0].0.clone(), 1);
    let answer = format!("{{\"id\":7,\"result\":\"{}\"}}\n", "x".repeat(700 << 10));
    assert!(State::deliver(&session.state, answer.as_bytes(), false, (rooms.one(), &Room::set)));
    assert_eq!(lock(&session.state).streams[&1].replay.after(0).count(), 1);
    assert_eq!(rooms.one().set(400 << 10), Err(Full), "it counts");
    session.end();
}

#[test]
fn a_stream_whose_answer_is_kept_no_more_is_not_resumed() {
    let rooms = Rooms::new(1 << 20);
    let runtime = runtime();
    let _within = runtime.enter();
    let session = session(false, "exec sleep 30 2>/dev/null", &rooms);
    let asked = |last: &str| session.listen(Some(last), Room::set).unwrap().is_some();
    let push = |number: u64, open: usize, is_awaited: bool| {
        let mut state = lock(&session.state);
        let stream = state.streams.entry(number).or_insert_with(|| Stream::new(rooms.one(), open));
        stream.sent = stream.replay.push(vec![0; 9], is_awaited);
    };
    for (number, open) in [(1, 0), (2, 1), (UNASKED, 0)] {
        push(number, open, false);
        push(number, open, number != UNASKED);
    }
    for last in ["1-1", "2-1", "0-1"] {
        assert!(asked(last), "the control: {last}");
    }
    session.make_room(false);
    assert_eq!(["1-1", "1-2", "2-1", "0-1"].map(asked), [false, true, true, true]);
    session.make_room(true);
    assert_eq!(["2-1", "2-2", "0-1"].map(asked), [false, true, true], "what is said unasked goes on");
    session.end();
}

#[test]
fn streams_that_are_over_give_back_their_room() {
    let rooms = Rooms::new(1 << 20);
    let state = Mutex::new(State::default());
    let mut over = Stream::new(rooms.one(), 0);
    over.replay.push(vec![0; 900 << 10], true);
    lock(&state).streams.insert(1, over);
    let (live, mut items) = mpsc::channel(WAITING);
    let mut open = Stream::new(rooms.one(), 1);
    open.live = Some(live);
    lock(&state).streams.insert(2, open);
    lock(&state).open.insert(ask(7)[0].0.clone(), 2);
    let line = format!("{{\"id\":7,\"result\":\"{}\"}}\n", "x".repeat(400 << 10));
    let find_room = |room: &mut Room, bytes| {
        lock(&state).make_room(false);
        room.set(bytes)
    };
    assert!(State::deliver(&state, line.as_bytes(), false, (rooms.one(), &find_room)));
    assert_eq!(items.try_recv().unwrap().line, line.as_bytes());
}

#[test]
fn what_was_sent_on_open_streams_gives_back_its_room_when_there_is_no_other() {
    let rooms = Rooms::new(1 << 20);
    let mut state = State::default();
    for (number, open) in [(UNASKED, 0), (3, 1)] {
        let mut stream = Stream::new(rooms.one(), open);
        stream.sent = stream.replay.push(vec![0; 400 << 10], true);
        stream.replay.push(vec![0; 50 << 10], true);
        state.streams.insert(number, stream);
    }
    let mut room = rooms.one();
    state.make_room(false);
    assert_eq!(room.set(800 << 10), Err(Full));
    state.make_room(true);
    assert_eq!(room.set(800 << 10), Ok(()));
    for stream in state.streams.values() {
        assert_eq!(
            stream.replay.after(0).map(|(at, _)| at).collect::<Vec<_>>(),
            [2],
            "what was not sent stays"
        );
    }
}

#[test]
fn what_a_client_missed_is_not_left_out_for_want_of_room() {
    let rooms = Rooms::new(1 << 20);
    let runtime = runtime();
    let _within = runtime.enter();
    let session = session(false, "exec sleep 30 2>/dev/null", &rooms);
    let mut over = Stream::new(rooms.one(), 0);
    over.replay.push(vec![0; 500 << 10], true);
    lock(&session.state).streams.insert(1, over);
    let mut open = Stream::new(rooms.one(), 1);
    open.sent = open.replay.push(Vec::new(), false);
    open.replay.push(vec![0; 400 << 10], true);
    lock(&session.state).streams.insert(2, open);
    // Without making room, it is refused: what comes later is not sent in its place.
    assert!(session.listen(Some("2-1"), Room::set).is_err());
    assert!(!lock(&session.state).streams[&2].is_read());
    let find_room = |room: &mut Room, bytes| {
        room.set(bytes).or_else(|Full| {
            session.make_room(false);
            room.set(bytes)
        })
    };
    assert!(session.listen(Some("2-1"), find_room).unwrap().is_some());
    let state = lock(&session.state);
    assert_eq!((state.streams[&2].is_read(), state.streams[&2].sent), (false, 2), "it was dropped here");
    drop(state);
    session.end();
}

#[test]
fn a_request_that_was_called_off_is_over_and_its_id_is_free_when_no_answer_can_come() {
    let state = Mutex::new(State::default());
    let rooms = Rooms::new(1 << 20);
    let deliver = |line: &str| State::deliver(&state, line.as_bytes(), false, (rooms.one(), &Room::set));
    let id = |n: i64| ask(n)[0].0.clone();
    lock(&state).streams.insert(UNASKED, Stream::new(rooms.one(), 0));
    let mut stream = Stream::new(rooms.one(), 2);
    let (live, mut items) = mpsc::channel(WAITING);
    stream.live = Some(live);
    lock(&state).streams.insert(1, stream);
    lock(&state).open.extend([(id(1), 1), (id(2), 1)]);
    lock(&state).call_off(&[id(1), id(9)]);
    assert!(!lock(&state).are_free([id(1)].iter()) && lock(&state).are_free([id(9)].iter()));
    assert!(lock(&state).streams[&1].is_read(), "another of its batch is open");
    assert!(deliver("{\"id\":1,\"result\":{}}\n") && deliver("{\"id\":77,\"result\":{}}\n"));
    assert!(lock(&state).are_free([id(1)].iter()), "it was answered, to nobody");
    assert!(deliver("{\"id\":2,\"result\":{}}\n"));
    assert_eq!(items.try_recv().unwrap().line, b"{\"id\":2,\"result\":{}}\n", "the control");
    assert!(items.try_recv().is_err());
    assert_eq!(lock(&state).streams[&UNASKED].replay.after(0).count(), 0);
    assert!(deliver("{\"id\":null,\"error\":{}}\n"));
    assert_eq!(lock(&state).streams[&UNASKED].replay.after(0).count(), 1, "this may be anybody's");
    lock(&state).streams.insert(2, Stream::new(rooms.one(), 1));
    lock(&state).open.insert(id(3), 2);
    lock(&state).call_off(&[id(3)]);
    assert!(!lock(&state).streams.contains_key(&2));
    assert!(!lock(&state).are_free([id(3)].iter()));
    let long_ago = Instant::now().checked_sub(CALLED_OFF).unwrap();
    lock(&state).called_off.values_mut().for_each(|since| *since = long_ago);
    assert!(lock(&state).are_free([id(3)].iter()));
}
