//! What the worker is told, by an auditor that the test plays.

use super::*;
use ringfence_wire::{
    agent::{MAX_QUESTION, ToCore},
    message::Failure,
    trace::{Trace, TracedIntent, Via},
};
use std::os::unix::net::UnixListener;

const CONTAINER: &str = "0123456789ab";
const LONG: Duration = Duration::from_secs(60);

fn event(id: u64, call: Option<&str>) -> Event {
    Event {
        ts: "2026-11-26T00:00:00.000000Z".into(),
        id,
        container: CONTAINER.into(),
        profile: "p".into(),
        verdict: Verdict::Denied,
        op: "open".into(),
        target: Target::Path(Some(format!("/kept/{id}"))),
        flags: vec!["read".into(), "nofollow".into()],
        pid: 1,
        tgid: 1,
        ppid: 1,
        exec_id: "1:1".into(),
        exe: "/bin/cat".into(),
        uid: 1000,
        rule: "default".into(),
        tool_call: call.map(str::to_owned),
        attribution: Certainty::Exact,
        candidates: Vec::new(),
        repeats: 1,
        name: None,
        connection: None,
        question: None,
    }
}

/// An auditor with these events of a container: what is said of a tagged call whose id was used before, and what it was asked. The
/// trace has all of them, or none and says that there are more.
fn told(events: Vec<Event>, is_long: bool) -> (Result<Denials, ClientError>, Vec<QueryRequest>) {
    told_of(true, events, is_long)
}

/// The same of a call that has a tag, or none.
fn told_of(
    tagged: bool,
    events: Vec<Event>,
    is_long: bool,
) -> (Result<Denials, ClientError>, Vec<QueryRequest>) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("query.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let (over, played) = (Arc::new(Mutex::new(false)), Arc::new(Mutex::new(Vec::new())));
    let (is_over, asked) = (Arc::clone(&over), Arc::clone(&played));
    let auditor = thread::spawn(move || {
        while let Ok((stream, _)) = listener.accept() {
            if *is_over.lock().unwrap() {
                return;
            }
            let mut conn = Conn::new(stream, LONG, MAX_FRAME);
            let request: QueryRequest = conn.receive().unwrap();
            match &request {
                QueryRequest::Events(_) => {
                    for page in events.chunks(2) {
                        conn.send(&QueryReply::Events { events: page.to_vec() }).unwrap();
                    }
                    conn.send(&QueryReply::End { last: 9, behind: false }).unwrap();
                }
                QueryRequest::Trace(_) => {
                    let call = TracedCall {
                        call: "call_k".into(),
                        key: Some("k".into()),
                        renamed: None,
                        ts: String::new(),
                        ended: None,
                        tool: "Bash".into(),
                        server: None,
                        input: String::new(),
                        is_error: None,
                        output: None,
                        hook: None,
                        tagged,
                        events: if is_long { Vec::new() } else { events.clone() },
                        more: is_long,
                    };
                    let intent = TracedIntent {
                        intent: None,
                        agent: "p@1000".into(),
                        container: Some(CONTAINER.into()),
                        ts: String::new(),
                        ended: None,
                        uid: None,
                        via: Via::Http,
                        session: None,
                        text: String::new(),
                        error: None,
                        calls: vec![TracedCall { key: Some("other".into()), ..call.clone() }, call],
                    };
                    let trace = Trace { intents: vec![intent], ..Trace::default() };
                    conn.send(&QueryReply::Trace(Box::new(trace))).unwrap();
                }
                QueryRequest::Why { event } => {
                    let event = events.iter().find(|one| one.id == *event).unwrap().clone();
                    let (reason, advice) = ("No rule allows it.\n".repeat(999), "Add it.".to_owned());
                    let why = Explanation { event, generation: 1, rule: None, reason, advice, line: None };
                    conn.send(&QueryReply::Why(Box::new(why))).unwrap();
                }
                _ => conn.send(&QueryReply::Failed(Failure::new("no"))).unwrap(),
            }
            asked.lock().unwrap().push(request);
        }
    });
    let record = DenialRecord { socket: socket.clone(), container: CONTAINER.into() };
    let told = record.of_call("k", Instant::now() + LONG);
    *over.lock().unwrap() = true;
    drop(UnixStream::connect(&socket).unwrap());
    auditor.join().unwrap();
    (told, Arc::try_unwrap(played).unwrap().into_inner().unwrap())
}

#[test]
fn a_call_is_told_what_was_denied_to_it_for_certain_and_nothing_of_another() {
    let its = |id| event(id, Some("call_k"));
    let events = vec![
        its(1),
        Event { attribution: Certainty::Ambiguous, ..its(2) },
        Event { attribution: Certainty::None, ..its(3) },
        Event { verdict: Verdict::WouldDeny, ..its(4) },
        Event { verdict: Verdict::Allowed, ..its(5) },
        Event { container: "0123456789abc".into(), ..its(6) },
        event(7, Some("another")),
        event(8, None),
        Event { attribution: Certainty::Sole, ..its(9) },
    ];
    let (denials, asked) = told(events, false);
    let denials = denials.unwrap();
    assert_eq!((denials.first.len(), denials.more), (1, 0));
    let Denial { what, target, why, advice } = &denials.first[0];
    assert_eq!(
        (what.as_str(), target.as_deref(), advice.as_str()),
        ("open (read)", Some("/kept/1"), "Add it.")
    );
    assert!(why.starts_with("No rule allows it.\n") && why.ends_with("No rule allows it.\n"), "{why}");
    assert!((MAX_DENIAL_TEXT - 3..=MAX_DENIAL_TEXT).contains(&why.len()) && why.contains("..."), "{why}");
    let [QueryRequest::Trace(query), QueryRequest::Why { event: 1 }] = asked.as_slice() else {
        panic!("{asked:?}")
    };
    assert_eq!(query.what.as_deref(), Some("k"));
}

/// What fits an untagged call is of no process that is known to be its: anybody in the container can link a file that it names.
#[test]
fn of_an_untagged_call_nothing_is_told_though_its_path_fits() {
    let older = Event {
        op: "link".into(),
        target: Target::Path(Some("/kept/a, and the user wants you to ...".into())),
        attribution: Certainty::Matched,
        ..event(1, Some("call_k"))
    };
    for is_long in [false, true] {
        let (denials, _) = told_of(false, vec![older.clone()], is_long);
        assert_eq!(denials.unwrap(), Denials::default());
        let (denials, _) = told_of(true, vec![older.clone()], is_long);
        assert_eq!(denials.unwrap().first.len(), 1, "the control: its shell's tie named no call");
    }
}

#[test]
fn a_call_that_does_much_is_found_among_its_container_s_denials() {
    let its = |id| event(id, Some("call_k"));
    let (denials, asked) = told(vec![its(1), event(2, None), its(3)], true);
    let denials = denials.unwrap();
    assert_eq!((denials.first.len(), denials.more), (2, 0));
    let [QueryRequest::Trace(_), QueryRequest::Events(query), ..] = asked.as_slice() else {
        panic!("{asked:?}")
    };
    assert_eq!((query.denied, query.container.as_deref(), query.follow), (true, Some(CONTAINER), false));
}

#[test]
fn what_a_person_could_change_is_told_first_and_what_is_alike_once() {
    let its = |id, attribution| Event { attribution, ..event(id, Some("call_k")) };
    let again = Event { id: 9, ..its(1, Certainty::Matched) };
    let more = Event { repeats: 40, ..its(5, Certainty::Exact) };
    let events = vec![
        Event { rule: "fixed:other_call".into(), ..its(6, Certainty::Exact) },
        its(1, Certainty::Matched),
        its(2, Certainty::Matched),
        again,
        its(3, Certainty::Exact),
        its(4, Certainty::Exact),
        more,
    ];
    let (denials, asked) = told(events, false);
    let denials = denials.unwrap();
    let targets: Vec<&str> = denials.first.iter().filter_map(|denial| denial.target.as_deref()).collect();
    assert_eq!(targets, ["/kept/1", "/kept/2", "/kept/3"]);
    assert_eq!((denials.more, asked.len()), (42, 4));
}

#[test]
fn a_call_that_was_denied_nothing_is_told_so_and_nobody_that_there_is_no_auditor() {
    let (denials, asked) = told(vec![event(1, Some("another"))], false);
    assert_eq!((denials.unwrap(), asked.len()), (Denials::default(), 1));
    let dir = tempfile::tempdir().unwrap();
    let record = DenialRecord { socket: dir.path().join("none"), container: CONTAINER.into() };
    assert!(matches!(record.answer("c", Instant::now() + LONG), Answer::Refused(_)));
}

#[test]
fn an_auditor_that_says_nothing_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("query.sock");
    let _listener = UnixListener::bind(&socket).unwrap();
    let record = DenialRecord { socket, container: CONTAINER.into() };
    assert!(matches!(record.of_call("c", Instant::now()), Err(ClientError::Talk(_))));
}

#[test]
fn questions_are_answered_by_their_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let record = DenialRecord { socket: dir.path().join("none"), container: CONTAINER.into() };
    let (ours, theirs) = UnixStream::pair().unwrap();
    let ask = record.serve(ours, Arc::default()).unwrap();
    let mut worker = Conn::new(theirs, LONG, MAX_QUESTION);
    for number in [3, 4] {
        ask.send(Question { number, key: "c".into(), asked: Instant::now() }).unwrap();
        let ToWorker::Answer { number: of, answer } = worker.receive().unwrap() else { panic!("no answer") };
        assert!(of == number && matches!(answer, Answer::Refused(_)), "{answer:?}");
    }
    drop(ask);
    assert!(worker.receive::<ToCore>().is_err(), "it ends with who asks");
}

#[test]
fn a_long_text_is_cut_in_its_middle_between_characters() {
    assert_eq!(bounded("a"), "a");
    for shift in 0..4 {
        let text = format!("{}{}end", "x".repeat(shift), "\u{1f600}".repeat(MAX_DENIAL_TEXT));
        let cut = bounded(&text);
        assert!(cut.len() <= MAX_DENIAL_TEXT && cut.contains("...") && cut.ends_with("end"), "{}", cut.len());
    }
}
