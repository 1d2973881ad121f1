//! The socket, with a supervisor, a core and a container that the test plays.

use super::*;
use crate::{calls::CallKey, service::OrderAssembler};
use ringfence_wire::{
    agent::{Answer, MAX_QUESTION, ToCore, ToWorker},
    conn::Conn,
};
use rustix::process::geteuid;
use serde_json::{json, value::RawValue};
use std::{
    os::unix::net::UnixStream as StdStream,
    sync::{Mutex, atomic::AtomicU64},
    thread,
};
use tokio::sync::mpsc;

const PARENT: u32 = 77;
const LONG: Duration = Duration::from_secs(60);

/// What the core said, and what it was told.
#[derive(Default)]
struct Core {
    /// It refuses.
    refuses: Option<NotTied>,
    /// The next question alone.
    refuses_once: Option<NotTied>,
    asked: Vec<&'static str>,
    said: Vec<AgentEvent>,
}

struct Rig {
    outstanding: Arc<Outstanding>,
    core: Arc<Mutex<Core>>,
    /// While it is locked, the core answers nothing.
    pause: Arc<tokio::sync::Mutex<()>>,
    /// How many command lines were read.
    read: Arc<AtomicU64>,
    arguments: Arc<Mutex<Vec<String>>>,
    path: std::path::PathBuf,
    _dir: tempfile::TempDir,
}

fn pair() -> (UnixStream, Conn) {
    let (near, far) = StdStream::pair().unwrap();
    near.set_nonblocking(true).unwrap();
    (UnixStream::from_std(near).unwrap(), Conn::new(far, LONG, MAX_QUESTION))
}

impl Rig {
    fn new(uid: u32) -> Self {
        let (link, mut supervisor) = pair();
        let (orders, _) = mpsc::channel(1);
        let (counts, _) = mpsc::channel(1);
        let tokens = [(); 2].map(|()| CancellationToken::new());
        let [stop, gone] = tokens;
        let host = CoreClient::of_user(link, OrderAssembler::new(orders, counts), stop, gone);
        let (line, mut end) = pair();
        assert!(host.report_to(line));
        let arguments = Arc::new(Mutex::new(Vec::<String>::new()));
        let told = Arc::clone(&arguments);
        let read = Arc::<AtomicU64>::default();
        let reading = Arc::clone(&read);
        thread::spawn(move || {
            while let Ok((said, beside)) = supervisor.receive_with_descriptors::<ToCore>() {
                let ToCore::CommandLine { number } = said else { panic!("{said:?}") };
                assert_eq!(beside.len(), 1);
                let answer = Answer::CommandLine { pid: PARENT, arguments: told.lock().unwrap().clone() };
                supervisor.send(&ToWorker::Answer { number, answer }).unwrap();
                reading.fetch_add(1, Ordering::Relaxed);
            }
        });
        let core = Arc::<Mutex<Core>>::default();
        let playing = Arc::clone(&core);
        let pause = Arc::<tokio::sync::Mutex<()>>::default();
        let paused = Arc::clone(&pause);
        thread::spawn(move || {
            while let Ok((said, beside)) = end.receive_with_descriptors::<ToCore>() {
                let mut core = playing.lock().unwrap();
                let (number, parent, answer) = match said {
                    ToCore::Report(json) => {
                        core.said.push(serde_json::from_str(json.get()).unwrap());
                        continue;
                    }
                    ToCore::Tie { number, parent } => {
                        core.asked.push("tie");
                        (number, parent, Answer::Tagged { tag: 42, container: "0123456789ab".into() })
                    }
                    ToCore::CouldBeTied { number, parent } => {
                        core.asked.push("could be tied");
                        (number, parent, Answer::CouldBeTied)
                    }
                    other => panic!("{other:?}"),
                };
                assert_eq!((parent, beside.len()), (PARENT, 1));
                drop(core);
                let _paused = paused.blocking_lock();
                let mut core = playing.lock().unwrap();
                let refused = core.refuses_once.take().or(core.refuses);
                drop(core);
                let answer =
                    refused.map_or(answer, |kind| Answer::NotTied { kind, why: "the core says no".into() });
                end.send(&ToWorker::Answer { number, answer }).unwrap();
            }
        });
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tie.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let outstanding = Arc::<Outstanding>::default();
        let ties = Ties { host, outstanding: Arc::clone(&outstanding), uid };
        tokio::spawn(ties.serve(listener));
        Self { outstanding, core, pause, read, arguments, path, _dir: dir }
    }

    fn waits(&self, id: &str, command: &str) -> (CallKey, Waiting) {
        let key = CallKey::mint();
        let input = RawValue::from_string(json!({ "command": command }).to_string()).unwrap();
        let waiting = self.outstanding.add(&key, id, &input);
        (key, waiting)
    }

    /// A shell that runs a text says a line; what it hears, or nothing.
    async fn say(&self, script: &str, said: &[u8]) -> Option<Heard> {
        *self.arguments.lock().unwrap() = ["bash", "-c", script].map(str::to_owned).to_vec();
        let mut stream = UnixStream::connect(&self.path).await.unwrap();
        let _ = stream.write_all(said).await;
        serde_json::from_slice(&line(&mut stream).await?).ok()
    }

    async fn tie(&self, script: &str, call: Option<&str>) -> Option<Heard> {
        let mut said = serde_json::to_vec(&Said::Tie { call: call.map(str::to_owned) }).unwrap();
        said.push(b'\n');
        self.say(script, &said).await
    }

    async fn done(&self, said: Done) -> Option<Heard> {
        let mut said = serde_json::to_vec(&Said::Done(said)).unwrap();
        said.push(b'\n');
        self.say("", &said).await
    }

    async fn until(&self, is: impl Fn(&Self) -> bool) {
        while !is(self) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until the core was told so much.
    fn told(&self, many: usize) -> Vec<AgentEvent> {
        loop {
            let said = self.core.lock().unwrap().said.clone();
            if said.len() >= many {
                return said;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

fn script(call: &str, command: &str) -> String {
    format!("/usr/bin/ringfence-runtime tie {call}\n{command}")
}

fn is_refused(heard: Option<&Heard>) -> bool {
    matches!(heard, Some(Heard::Refused(_)))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_is_tied_once_and_a_second_shell_makes_it_unsure() {
    let rig = Rig::new(geteuid().as_raw());
    let (key, _waiting) = rig.waits("toolu_1", "make");
    let key = key.as_str().to_owned();
    assert_eq!(rig.tie(&script("toolu_1", "make"), Some("toolu_1")).await, Some(Heard::Tied(Sure::Exact)));
    assert_eq!(rig.told(1), [AgentEvent::Tagged { key: key.clone(), tag: 42, matched: false }]);
    // Whoever does not run it changes nothing, and nobody is asked.
    assert!(is_refused(rig.tie(&script("toolu_1", "true"), Some("toolu_1")).await.as_ref()));
    assert!(matches!(&rig.told(2)[1], AgentEvent::Refused(refusal) if refusal.what == "tie"));
    assert_eq!(rig.core.lock().unwrap().asked, ["tie"]);
    // What works for a call already says nothing of this one.
    rig.core.lock().unwrap().refuses = Some(NotTied::Excused);
    assert!(is_refused(rig.tie(&script("toolu_1", "make"), Some("toolu_1")).await.as_ref()));
    assert!(matches!(&rig.told(3)[2], AgentEvent::Refused(_)));
    rig.core.lock().unwrap().refuses = None;
    assert!(is_refused(rig.tie(&script("toolu_1", "make"), Some("toolu_1")).await.as_ref()));
    assert!(rig.told(5).contains(&AgentEvent::Contested { key }));
    assert_eq!(rig.core.lock().unwrap().asked, ["tie", "could be tied", "could be tied"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_shell_that_cannot_be_tied_makes_it_unsure_too() {
    let rig = Rig::new(geteuid().as_raw());
    let (key, _waiting) = rig.waits("toolu_1", "make");
    assert_eq!(rig.tie(&script("toolu_1", "make"), Some("toolu_1")).await, Some(Heard::Tied(Sure::Exact)));
    rig.core.lock().unwrap().refuses = Some(NotTied::Unfit);
    assert!(is_refused(rig.tie(&script("toolu_1", "make"), Some("toolu_1")).await.as_ref()));
    assert!(rig.told(3).contains(&AgentEvent::Contested { key: key.as_str().to_owned() }));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_core_refuses_is_not_taken() {
    let rig = Rig::new(geteuid().as_raw());
    let (key, _waiting) = rig.waits("toolu_1", "make");
    rig.core.lock().unwrap().refuses = Some(NotTied::Excused);
    assert!(is_refused(rig.tie(&script("toolu_1", "make"), Some("toolu_1")).await.as_ref()));
    rig.core.lock().unwrap().refuses = None;
    let unnamed = rig.tie("/usr/bin/ringfence-runtime tie\nmake", None).await;
    assert_eq!(unnamed, Some(Heard::Tied(Sure::Matched)));
    let key = key.as_str().to_owned();
    assert!(rig.told(2).contains(&AgentEvent::Tagged { key, tag: 42, matched: true }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shell_that_is_tagged_too_late_has_the_call_and_makes_it_unsure() {
    let rig = Rig::new(geteuid().as_raw());
    let (key, _waiting) = rig.waits("toolu_1", "make");
    rig.core.lock().unwrap().refuses = Some(NotTied::Late(43));
    assert!(is_refused(rig.tie(&script("toolu_1", "make"), Some("toolu_1")).await.as_ref()));
    let key = key.as_str().to_owned();
    let said =
        [AgentEvent::Tagged { key: key.clone(), tag: 43, matched: false }, AgentEvent::Contested { key }];
    assert_eq!(rig.told(2)[..2], said, "what has the tag is known to be the call's, perhaps");
    rig.core.lock().unwrap().refuses = None;
    assert!(is_refused(rig.tie(&script("toolu_1", "make"), Some("toolu_1")).await.as_ref()));
    assert_eq!(rig.core.lock().unwrap().asked, ["tie", "could be tied"], "it is not given back");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shell_waits_for_what_becomes_of_another_with_its_words() {
    for refused in [Some(NotTied::Unfit), None] {
        let rig = Arc::new(Rig::new(geteuid().as_raw()));
        let (key, _waiting) = rig.waits("toolu_1", "make");
        rig.core.lock().unwrap().refuses_once = refused;
        let paused = rig.pause.lock().await;
        let tie = |rig: Arc<Rig>| async move { rig.tie(&script("toolu_1", "make"), Some("toolu_1")).await };
        let first = tokio::spawn(tie(Arc::clone(&rig)));
        rig.until(|rig| !rig.core.lock().unwrap().asked.is_empty()).await;
        let second = tokio::spawn(tie(Arc::clone(&rig)));
        rig.until(|rig| rig.read.load(Ordering::Relaxed) == 2).await;
        drop(paused);
        let (first, second) = (first.await.unwrap(), second.await.unwrap());
        let contested = AgentEvent::Contested { key: key.as_str().to_owned() };
        match refused {
            Some(_) => {
                assert!(is_refused(first.as_ref()));
                assert_eq!(second, Some(Heard::Tied(Sure::Exact)));
                assert!(!rig.told(2).contains(&contested));
            }
            None => {
                assert_eq!(first, Some(Heard::Tied(Sure::Exact)));
                assert!(is_refused(second.as_ref()) && rig.told(3).contains(&contested));
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_says_ends_the_connection() {
    let rig = Rig::new(geteuid().as_raw());
    let (_, _waiting) = rig.waits("toolu_1", "make");
    let mut long = br#"{"tie":{"call":""#.to_vec();
    long.resize(MAX_LINE + 1, b'a');
    for said in [&b"\n"[..], b"{}\n", b"[]\n", b"{\"tie\":7}\n", b"{\"tag\":{}}\n", b"\xff\n", &long] {
        assert_eq!(rig.say(&script("toolu_1", "make"), said).await, None);
    }
    let long = "a".repeat(MAX_ID + 1);
    for call in ["", long.as_str()] {
        assert!(is_refused(rig.tie(&script("toolu_1", "make"), Some(call)).await.as_ref()));
    }
    assert!(rig.core.lock().unwrap().asked.is_empty());
    assert_eq!(rig.tie(&script("toolu_1", "make"), Some("toolu_1")).await, Some(Heard::Tied(Sure::Exact)));
}

#[tokio::test(flavor = "multi_thread")]
async fn who_says_nothing_takes_nobody_s_place_and_who_spoke_says_no_more() {
    let rig = Rig::new(geteuid().as_raw());
    let (_, _waiting) = rig.waits("toolu_1", "make");
    let mut silent = Vec::new();
    for _ in 0..CONNECTIONS * 2 {
        silent.push(UnixStream::connect(&rig.path).await.unwrap());
    }
    assert_eq!(rig.tie(&script("toolu_1", "make"), Some("toolu_1")).await, Some(Heard::Tied(Sure::Exact)));
    // The oldest are gone, unheard.
    assert_eq!(line(&mut silent[0]).await, None);
    let mut stream = UnixStream::connect(&rig.path).await.unwrap();
    let mut said = serde_json::to_vec(&Said::Tie { call: None }).unwrap();
    said.push(b'\n');
    stream.write_all(&said.repeat(2)).await.unwrap();
    assert!(line(&mut stream).await.is_some());
    assert_eq!(line(&mut stream).await, None, "one line for each connection");
}

#[tokio::test(flavor = "multi_thread")]
async fn another_user_is_not_heard() {
    let rig = Rig::new(geteuid().as_raw() + 1);
    let (_, _waiting) = rig.waits("toolu_1", "make");
    assert_eq!(rig.tie(&script("toolu_1", "make"), Some("toolu_1")).await, None);
    assert!(rig.core.lock().unwrap().asked.is_empty());
}

fn done(call: &str) -> Done {
    Done { call: call.to_owned(), tool: "Edit".into(), session: Some("s".into()), failed: Some(false) }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_hook_says_is_reported_of_the_call_that_it_names_and_once() {
    let rig = Rig::new(geteuid().as_raw());
    let (key, waiting) = rig.waits("toolu_1", "make");
    let (late, answered) = rig.waits("toolu_2", "make");
    drop(answered);
    assert_eq!(rig.done(done("toolu_1")).await, Some(Heard::Noted {}));
    let said = rig.told(1);
    let AgentEvent::HookDone { key: of, session, failed, moment } = &said[0] else { panic!("{said:?}") };
    assert_eq!((of.as_str(), session.as_deref(), *failed), (key.as_str(), Some("s"), Some(false)));
    assert!(*moment > 0);
    drop(waiting);
    assert!(is_refused(rig.done(done("toolu_1")).await.as_ref()));
    let long = Done { session: Some("s".repeat(MAX_SESSION + 1)), failed: None, ..done("toolu_2") };
    assert_eq!(rig.done(long).await, Some(Heard::Noted {}));
    let said = rig.told(2);
    let AgentEvent::HookDone { key: of, session: None, failed: None, .. } = &said[1] else {
        panic!("{said:?}")
    };
    assert_eq!(of, late.as_str());
    assert!(rig.core.lock().unwrap().asked.is_empty(), "nothing is asked for it");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_hooks_say_of_calls_that_no_model_wanted_is_refused_and_recorded_nowhere() {
    let rig = Rig::new(geteuid().as_raw());
    let (_, _one) = rig.waits("same", "make");
    let (_, _two) = rig.waits("same", "make");
    for said in [done("same"), done(""), done(&"a".repeat(MAX_ID + 1))] {
        assert!(is_refused(rig.done(said).await.as_ref()));
    }
    for said in [&b"{\"done\":{}}\n"[..], b"{\"done\":{\"call\":\"a\"}}\n", b"{\"done\":[]}\n"] {
        assert_eq!(rig.say("", said).await, None);
    }
    for n in 0..100 {
        let refused = Some(Heard::Refused("no call of this name".to_owned()));
        assert_eq!(rig.done(done(&n.to_string())).await, refused);
    }
    // The control, behind which nothing else was said.
    let (key, _waiting) = rig.waits("toolu_1", "make");
    assert_eq!(rig.done(done("toolu_1")).await, Some(Heard::Noted {}));
    let said = rig.told(1);
    assert!(matches!(&said[..], [AgentEvent::HookDone { key: of, .. }] if of == key.as_str()), "{said:?}");
}
