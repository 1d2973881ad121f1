//! Shells, each with a program that it started and that connected here; the kernel is a table in memory.

use super::*;
use crate::{
    server::{
        SocketKind,
        tests::{Fixture, root},
    },
    state::tests::Sleeper,
};
use ringfence_base::client;
use ringfence_bpf::{ContainerId, Membership};
use ringfence_wire::{
    agent::{ToCore, ToWorker},
    audit::Payload,
    conn::Conn,
    trace::AgentEvent,
};
use std::{
    os::unix::net::UnixListener,
    process::{Child, Command, Stdio},
    time::Duration,
};

const LONG: Duration = Duration::from_secs(60);

/// A shell whose child has connected, and the connection.
struct Shell {
    shell: Child,
    connection: UnixStream,
}

impl Shell {
    /// `before`: what the shell does first.
    fn start(before: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tie.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let tie =
            "import socket, sys; one = socket.socket(socket.AF_UNIX); one.connect(sys.argv[1]); one.recv(1)";
        let shell = Command::new("sh")
            .args(["-c", &format!("{before}\npython3 -c \"$1\" \"$2\"\nread more"), "sh", tie])
            .arg(&path)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let (connection, _) = listener.accept().unwrap();
        Self { shell, connection }
    }

    fn peer(&self) -> u32 {
        Peer::of(&self.connection).unwrap().pid
    }

    fn beside(&self) -> Vec<OwnedFd> {
        vec![self.connection.try_clone().unwrap().into()]
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        let _ = self.connection.shutdown(std::net::Shutdown::Both);
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

/// A container that is enrolled, with its line.
struct Run {
    fixture: Fixture,
    _child: Sleeper,
    whose: Whose,
    id: ContainerId,
    line: Conn,
}

impl Run {
    fn start() -> Self {
        let fixture = Fixture::start(SocketKind::Enroll);
        let child = Sleeper::start();
        let (enrolled, line) = client::enroll_reporting(
            &fixture.socket,
            child.pidfd().as_fd(),
            "p",
            None,
            false,
            client::Beside::default(),
        )
        .unwrap();
        let whose = Whose { container: enrolled.container, profile: enrolled.profile, uid: 0 };
        let id = {
            let state = fixture.server.state();
            let found = state.registry.iter().find(|one| one.record.id == whose.container).unwrap();
            ContainerId::from_raw(found.record.kernel_id)
        };
        let line = Conn::new(line.unwrap().0, LONG, 1 << 20);
        Self { fixture, _child: child, whose, id, line }
    }

    /// Puts processes into a container.
    fn put(&self, pids: [u32; 2], id: ContainerId) {
        let member = Membership { container: Some(id), next: None };
        self.fixture.kernel.with(|inner| pids.map(|pid| inner.tags.insert(pid, member)));
    }

    fn tie(&self, shell: &Shell) -> Result<Answer, TieError> {
        self.fixture.server.tie(&self.whose, shell.shell.id(), shell.beside())
    }

    fn tag_of(&self, pid: u32) -> Option<u64> {
        self.fixture.kernel.with(|inner| inner.calls.get(&pid).copied())
    }
}

#[test]
fn a_shell_of_the_container_that_has_done_nothing_is_tied_once() {
    if !root() {
        return;
    }
    let run = Run::start();
    let shell = Shell::start("");
    assert!(matches!(run.tie(&shell), Err(TieError::NotOurs(_))), "an ungoverned one");
    run.put([shell.shell.id(), shell.peer()], run.id);
    let could = run.fixture.server.could_be_tied(&run.whose, shell.shell.id(), shell.beside());
    assert!(matches!(could, Ok(Answer::CouldBeTied)));
    assert_eq!(run.tag_of(shell.shell.id()), None, "only asked");
    let Ok(Answer::Tagged { tag, container }) = run.tie(&shell) else { panic!("refused") };
    assert_eq!((run.tag_of(shell.shell.id()), &container), (Some(tag), &run.whose.container));
    assert_eq!(run.tag_of(shell.peer()), None);
    assert!(matches!(run.tie(&shell), Err(TieError::Tagged(_))), "twice");
}

#[test]
fn nobody_is_tied_from_elsewhere_or_from_within_a_call() {
    if !root() {
        return;
    }
    let run = Run::start();
    let shell = Shell::start("");
    let (own, peer) = (shell.shell.id(), shell.peer());
    let other = ContainerId::from_raw(run.id.raw() + (1 << 12));
    run.put([own, peer], other);
    assert!(matches!(run.tie(&shell), Err(TieError::NotOurs(_))), "another container");
    run.put([own, own], run.id);
    assert!(matches!(run.tie(&shell), Err(TieError::NotOurs(_))), "in two");
    run.put([own, peer], run.id);
    run.fixture.kernel.with(|inner| inner.calls.insert(peer, 7));
    assert!(matches!(run.tie(&shell), Err(TieError::Tagged(pid)) if pid == peer));
    run.fixture.kernel.with(|inner| inner.calls.clear());
    let elsewhere = run.fixture.server.tie(&run.whose, own + 1, shell.beside());
    assert!(matches!(elsewhere, Err(TieError::Parent(_))), "another's words were read");
    for beside in [Vec::new(), [shell.beside(), shell.beside()].into_iter().flatten().collect()] {
        assert!(matches!(run.fixture.server.tie(&run.whose, own, beside), Err(TieError::Descriptors(_))));
    }
    let ours = UnixStream::pair().unwrap().0.into();
    assert!(run.fixture.server.tie(&run.whose, own, vec![ours]).is_err(), "no process of the container's");
    assert_eq!(run.tag_of(own), None);
    assert!(run.tie(&shell).is_ok(), "the control");
}

#[test]
fn a_shell_that_has_begun_is_not_tied() {
    if !root() {
        return;
    }
    let run = Run::start();
    let busy = Shell::start("sleep 60 & trap \"kill $!\" EXIT");
    run.put([busy.shell.id(), busy.peer()], run.id);
    assert!(matches!(run.tie(&busy), Err(TieError::Children(_))));
    let done = Shell::start("/bin/true");
    run.put([done.shell.id(), done.peer()], run.id);
    assert!(run.tie(&done).is_ok(), "what it waited for is over");
    let late = Shell::start("");
    run.put([late.shell.id(), late.peer()], run.id);
    let beside = late.beside();
    drop(late.connection.shutdown(std::net::Shutdown::Both));
    let own = late.shell.id();
    let gone = Peer::of(&late.connection).map(|peer| peer.pidfd);
    while gone.as_ref().is_ok_and(|pidfd| alive(pidfd.as_fd())) {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(run.fixture.server.tie(&run.whose, own, beside).is_err(), "nobody waits any more");
    assert_eq!(run.tag_of(own), None);
}

/// What such a shell starts has the tag: it is not nobody's, and the worker hears whose it is.
#[test]
fn a_shell_that_is_tagged_when_nobody_waits_any_more_is_on_record_with_its_tag() {
    if !root() {
        return;
    }
    let mut run = Run::start();
    let shell = Shell::start("");
    let own = shell.shell.id();
    run.put([own, shell.peer()], run.id);
    let process = Peer::of(&shell.connection).unwrap().pidfd;
    let ends = (shell.connection.try_clone().unwrap(), process);
    run.fixture.kernel.with(|inner| inner.ends_at_tag = Some(ends));
    let ask = ToCore::Tie { number: 7, parent: own };
    run.line.send_with_descriptors(&ask, &[shell.connection.as_fd()]).unwrap();
    let ToWorker::Answer { number: 7, answer: Answer::NotTied { kind: NotTied::Late(tag), .. } } =
        run.line.receive().unwrap()
    else {
        panic!("it is tied")
    };
    assert_eq!(run.tag_of(own), Some(tag));
    // What comes behind it on the line was said after it was on record.
    run.line.send_with_descriptors(&ask, &[]).unwrap();
    run.line.receive::<ToWorker>().unwrap();
    let link = run.fixture.server.state().link.clone();
    let payloads: Vec<_> = link.take_reports().into_iter().map(|report| report.payload).collect();
    let [Payload::LineOpened, Payload::Tagged { tag: told, container }] = payloads.as_slice() else {
        panic!("{payloads:?}")
    };
    assert_eq!((*told, container), (tag, &run.whose.container));
}

/// What says nothing of a call is told apart from what does, whatever else is wrong with it.
#[test]
fn only_who_is_of_elsewhere_or_works_for_a_call_is_excused() {
    if !root() {
        return;
    }
    let run = Run::start();
    let busy = Shell::start("sleep 60 & trap \"kill $!\" EXIT");
    let own = busy.shell.id();
    let kind = || {
        let could = run.fixture.server.could_be_tied(&run.whose, own, busy.beside());
        [run.tie(&busy), could].map(|result| match answer(result) {
            Answer::NotTied { kind, .. } => kind,
            answer => panic!("{answer:?}"),
        })
    };
    assert_eq!(kind(), [NotTied::Excused; 2], "an ungoverned one");
    run.put([own, busy.peer()], run.id);
    assert_eq!(kind(), [NotTied::Unfit; 2]);
    run.fixture.kernel.with(|inner| inner.calls.insert(own, 7));
    assert_eq!(kind(), [NotTied::Excused; 2], "it works for a call");
    let unfit = [
        TieError::Descriptors(0),
        PeerError::Gone.into(),
        TieError::Parent(1),
        TieError::Threads { shell: 1, threads: 2 },
        TieError::Traced(1),
        TieError::OtherUser(1),
        TaskError::Gone.into(),
    ];
    assert!(unfit.iter().all(|error| error.kind() == NotTied::Unfit));
}

#[test]
fn what_proc_says_has_to_fit() {
    let peer = Peer { pid: 20, uid: 1000, pidfd: std::fs::File::open("/dev/null").unwrap().into() };
    let shell = Process { pid: 10, parent: 1, uids: [1000; 4], threads: 1, tracer: 0, is_fork: false };
    let of_peer = Process { pid: 20, parent: 10, ..shell };
    check(&peer, &of_peer, &shell, &[20]).unwrap();
    assert!(matches!(
        check(&peer, &of_peer, &Process { threads: 2, ..shell }, &[20]),
        Err(TieError::Threads { .. })
    ));
    for uids in [[0; 4], [1000, 0, 1000, 1000], [1000, 1000, 0, 1000]] {
        assert!(matches!(
            check(&peer, &of_peer, &Process { uids, ..shell }, &[20]),
            Err(TieError::OtherUser(10))
        ));
    }
    for children in [&[][..], &[21], &[20, 21], &[20, 20]] {
        assert!(matches!(check(&peer, &of_peer, &shell, children), Err(TieError::Children(10))));
    }
    let tracer = 30;
    let traced = check(&peer, &of_peer, &Process { tracer, ..shell }, &[20]);
    assert!(matches!(traced, Err(TieError::Traced(10))), "the shell");
    let traced = check(&peer, &Process { tracer, ..of_peer }, &shell, &[20]);
    assert!(matches!(traced, Err(TieError::Traced(20))), "who connected");
}

#[test]
fn a_tie_is_answered_on_the_line_and_told_before_what_the_run_says_of_it() {
    if !root() {
        return;
    }
    let mut run = Run::start();
    let shell = Shell::start("");
    run.put([shell.shell.id(), shell.peer()], run.id);
    let ask = |run: &mut Run, what: &ToCore| {
        run.line.send_with_descriptors(what, &[shell.connection.as_fd()]).unwrap();
        let ToWorker::Answer { number, answer } = run.line.receive().unwrap() else { panic!("no answer") };
        (number, answer)
    };
    let parent = shell.shell.id();
    assert_eq!(ask(&mut run, &ToCore::CouldBeTied { number: 7, parent }), (7, Answer::CouldBeTied));
    let (number, Answer::Tagged { tag, .. }) = ask(&mut run, &ToCore::Tie { number: 8, parent }) else {
        panic!("refused")
    };
    assert_eq!(number, 8);
    let said = AgentEvent::Tagged { key: "k".into(), tag, matched: false };
    let json = serde_json::value::to_raw_value(&said).unwrap();
    run.line.send(&ToCore::Report(json)).unwrap();
    let refused = ask(&mut run, &ToCore::Tie { number: 9, parent });
    assert!(matches!(refused, (9, Answer::NotTied { kind: NotTied::Excused, .. })), "the line goes on");
    let link = run.fixture.server.state().link.clone();
    let all: Vec<_> =
        link.take_reports().into_iter().map(|report| (report.container, report.payload)).collect();
    let own = Some(run.whose.container.clone());
    assert!(all.iter().all(|(container, _)| *container == own), "{all:?}");
    let [(_, Payload::LineOpened), (_, Payload::Tagged { tag: told, container }), (_, Payload::Event(_))] =
        all.as_slice()
    else {
        panic!("{all:?}")
    };
    assert_eq!((*told, Some(container.clone())), (tag, own));
}
