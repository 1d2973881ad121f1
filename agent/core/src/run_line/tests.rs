//! Lines over a real socket: who gets one, what may be said there, how it ends.

use super::*;
use crate::{
    server::{
        SocketKind,
        tests::{Fixture, root},
    },
    state::tests::Sleeper,
};
use ringfence_base::client;
use ringfence_bpf::ContainerId;
use ringfence_wire::message::EnrollRequest;
use serde_json::value::{RawValue, to_raw_value};
use std::{os::unix::net::UnixStream, path::Path};

const LONG: Duration = Duration::from_secs(60);

fn said(text: &str) -> ToCore {
    ToCore::Report(to_raw_value(text).unwrap())
}

/// Enrols a child, which stays until it is dropped, and asks for its line.
fn enrolled(socket: &Path) -> (Sleeper, Enrolled, Result<UnixStream, client::ClientError>) {
    let child = Sleeper::start();
    let (enrolled, line) =
        client::enroll_reporting(socket, child.pidfd().as_fd(), "p", None, false, client::Beside::default())
            .unwrap();
    let line = line.map(|(line, takes)| {
        assert!(takes.counts_denials);
        line
    });
    (child, enrolled, line)
}

fn on(line: UnixStream) -> Conn {
    Conn::new(line, LONG, 1 << 20)
}

/// Waits until so many reports have come: container, agent, user, what.
fn reports(fixture: &Fixture, many: usize) -> Vec<(Option<String>, String, u32, Payload)> {
    let until = Instant::now() + LONG;
    let mut all = Vec::new();
    while all.len() < many {
        assert!(Instant::now() < until, "{all:?}");
        let link = fixture.server.state().link.clone();
        all.extend(link.take_reports().into_iter().map(|it| (it.container, it.agent, it.uid, it.payload)));
        thread::sleep(Duration::from_millis(5));
    }
    all
}

fn is_event(payload: &Payload, text: &str) -> bool {
    matches!(payload, Payload::Event(json) if json.get() == format!("{text:?}"))
}

fn is_over(conn: &mut Conn) -> bool {
    matches!(conn.receive::<Box<RawValue>>(), Err(FrameError::Closed | FrameError::Io(_)))
}

#[test]
fn who_enrolled_a_container_reports_of_that_one() {
    if !root() {
        return;
    }
    let fixture = Fixture::start(SocketKind::Enroll);
    let (_one, first, line_of_first) = enrolled(&fixture.socket);
    let (_other, second, line_of_second) = enrolled(&fixture.socket);
    assert_ne!(first.container, second.container);
    let (mut one, mut other) = (on(line_of_first.unwrap()), on(line_of_second.unwrap()));
    one.send(&said("first")).unwrap();
    other.send(&said("second")).unwrap();
    let all = reports(&fixture, 4);
    for (container, text) in [(&first.container, "first"), (&second.container, "second")] {
        let its: Vec<_> = all.iter().filter(|(of, ..)| of.as_ref() == Some(container)).collect();
        assert!(its.iter().all(|(_, agent, uid, _)| agent == "p@0" && *uid == 0), "{its:?}");
        assert!(matches!(its[0].3, Payload::LineOpened) && is_event(&its[1].3, text), "{its:?}");
        assert_eq!(its.len(), 2);
    }
    drop(one);
    let last = reports(&fixture, 1);
    assert!(matches!(last[0].3, Payload::LineClosed { .. }), "{last:?}");
    assert_eq!(last[0].0, Some(first.container));
}

#[test]
fn nobody_reports_who_has_enrolled_nothing_or_is_in_a_container() {
    let fixture = Fixture::start(SocketKind::Enroll);
    let mut conn = Conn::connect(&fixture.socket, LONG).unwrap();
    conn.send(&EnrollRequest::Report).unwrap();
    let refused = conn.receive::<Reply<Reporting>>().unwrap().into_result().unwrap_err();
    assert!(refused.error.contains("after that"), "{refused}");
    assert!(is_over(&mut conn));
    if !root() {
        return;
    }
    // The control, and from the same process as before once it is in a container.
    let (child, _, line) = enrolled(&fixture.socket);
    line.unwrap();
    let mut conn = Conn::connect(&fixture.socket, LONG).unwrap();
    let request = EnrollRequest::Enroll { profile: "p".into(), workdir: None, audit: false };
    let fresh = Sleeper::start();
    conn.send_with_descriptors(&request, &[fresh.pidfd().as_fd()]).unwrap();
    conn.receive::<Reply<Enrolled>>().unwrap().into_result().unwrap();
    fixture.kernel.with(|inner| inner.caller = Some(ContainerId::from_raw(4097)));
    conn.send(&EnrollRequest::Report).unwrap();
    let refused = conn.receive::<Reply<Reporting>>().unwrap().into_result().unwrap_err();
    assert!(refused.error.contains("in a container"), "{refused}");
    drop(child);
}

#[test]
fn a_container_that_was_refused_has_no_line() {
    let fixture = Fixture::start(SocketKind::Enroll);
    let mut conn = Conn::connect(&fixture.socket, LONG).unwrap();
    let request = EnrollRequest::Enroll { profile: "p".into(), workdir: None, audit: false };
    conn.send(&request).unwrap();
    assert!(conn.receive::<Reply<Enrolled>>().unwrap().into_result().is_err());
    let _ = conn.send(&EnrollRequest::Report);
    assert!(is_over(&mut conn));
}

#[test]
fn what_is_no_report_ends_the_line() {
    if !root() {
        return;
    }
    let fixture = Fixture::start(SocketKind::Enroll);
    let stranger = to_raw_value(&serde_json::json!({"request": "enroll", "profile": "p"})).unwrap();
    for wrong in [
        to_raw_value(&ToCore::Ready).unwrap(),
        to_raw_value(&ToCore::Speaker { number: 1 }).unwrap(),
        to_raw_value(&ToCore::Tag { number: 1 }).unwrap(),
        to_raw_value(&ToCore::DenialsOf { number: 1, key: "c".into() }).unwrap(),
        to_raw_value(&EnrollRequest::Report).unwrap(),
        to_raw_value(&said(&"x".repeat(MAX_REPORT * 2))).unwrap(),
        stranger,
    ] {
        let (_child, _, line) = enrolled(&fixture.socket);
        let mut line = on(line.unwrap());
        line.send(&said("the control")).unwrap();
        // Descriptors are closed, whatever they are.
        let file = std::fs::File::open("/dev/null").unwrap();
        line.send_with_descriptors(&said("beside it"), &[file.as_fd()]).unwrap();
        line.send(&wrong).unwrap();
        let all = reports(&fixture, 4);
        assert!(is_event(&all[1].3, "the control") && is_event(&all[2].3, "beside it"), "{all:?}");
        assert!(matches!(all[3].3, Payload::LineClosed { .. }) && all.len() == 4, "{all:?}");
        assert!(is_over(&mut line));
    }
}

#[test]
fn a_line_ends_soon_after_its_container() {
    if !root() {
        return;
    }
    let fixture = Fixture::start(SocketKind::Enroll);
    let (_child, ended, line) = enrolled(&fixture.socket);
    let (_other, _, others) = enrolled(&fixture.socket);
    let (mut line, mut others) = (on(line.unwrap()), on(others.unwrap()));
    reports(&fixture, 2);
    {
        let mut state = fixture.server.state();
        let kernel_id =
            state.registry.iter().find(|one| one.record.id == ended.container).unwrap().record.kernel_id;
        state.registry.remove(kernel_id).unwrap();
    }
    let all = reports(&fixture, 1);
    assert!(matches!(all[0].3, Payload::LineClosed { .. }), "{all:?}");
    assert_eq!(all[0].0, Some(ended.container));
    assert!(is_over(&mut line));
    others.send(&said("still there")).unwrap();
    assert!(is_event(&reports(&fixture, 1)[0].3, "still there"), "the control");
}

/// Since when reports are lost, as the record is told.
fn lost_since(payload: &Payload) -> Option<u64> {
    let Payload::Event(json) = payload else { return None };
    match serde_json::from_str(json.get()) {
        Ok(AgentEvent::Lost { from, to: None, .. }) => Some(from),
        _ => None,
    }
}

#[test]
fn what_waits_at_the_other_end_when_the_line_ends_is_lost_on_record() {
    if !root() {
        return;
    }
    let fixture = Fixture::start(SocketKind::Enroll);
    for (since, lost) in [(vec![Some(5)], Some(5)), (vec![Some(5), None], None), (vec![], None)] {
        let (_child, _, line) = enrolled(&fixture.socket);
        let mut line = on(line.unwrap());
        since.iter().for_each(|since| line.send(&ToCore::Behind { since: *since }).unwrap());
        drop(line);
        let all = reports(&fixture, 2 + usize::from(lost.is_some()));
        assert!(matches!(all.last().unwrap().3, Payload::LineClosed { .. }), "{all:?}");
        assert_eq!(all.iter().find_map(|report| lost_since(&report.3)), lost, "{all:?}");
    }
}

#[test]
fn what_nobody_reads_after_the_container_s_end_is_lost_on_record() {
    if !root() {
        return;
    }
    let fixture = Fixture::start(SocketKind::Enroll);
    let (_child, ended, line) = enrolled(&fixture.socket);
    let mut line = on(line.unwrap());
    reports(&fixture, 1);
    // More than is read.
    let floods = thread::spawn(move || while line.send(&said("more")).is_ok() {});
    let mut state = fixture.server.state();
    let kernel_id =
        state.registry.iter().find(|one| one.record.id == ended.container).unwrap().record.kernel_id;
    state.registry.remove(kernel_id).unwrap();
    drop(state);
    let mut all = Vec::new();
    while !all.last().is_some_and(|payload| matches!(payload, Payload::LineClosed { .. })) {
        all.extend(reports(&fixture, 1).into_iter().map(|report| report.3));
    }
    assert!(is_event(&all[0], "more"), "the control");
    assert_eq!(lost_since(&all[all.len() - 2]), Some(0));
    floods.join().unwrap();
}

#[test]
fn who_gets_no_line_has_the_container_all_the_same() {
    if !root() {
        return;
    }
    let fixture = Fixture::start(SocketKind::Enroll);
    let held: Vec<_> = (0..LINES).map(|_| fixture.server.lines.take(0, || ()).unwrap()).collect();
    assert!(held.iter().all(ringfence_base::quota::Permit::busy));
    let (_child, enrolled_, line) = enrolled(&fixture.socket);
    assert!(line.is_err() && enrolled_.container.len() == 12);
    drop(held);
    let (_child, _, line) = enrolled(&fixture.socket);
    line.unwrap();
}

#[test]
fn a_line_is_read_at_its_pace() {
    let begun = Instant::now();
    let mut pace = Pace::new(BURST, PER_SECOND, begun);
    let at_once = (0..BURST * 2).take_while(|_| pace.step(begun).is_zero()).count();
    assert_eq!(at_once as u32, BURST - 1);
    assert_eq!(pace.step(begun), Duration::from_secs(1) / PER_SECOND);
    let later = begun + Duration::from_secs(2);
    let filled = (0..BURST * 2).take_while(|_| pace.step(later).is_zero()).count();
    assert!((PER_SECOND..PER_SECOND * 2 + 1).contains(&(filled as u32)), "{filled}");
    let (much_later, mut more) = (begun + LONG, 0);
    while pace.step(much_later).is_zero() {
        more += 1;
    }
    assert_eq!(more, BURST - 1, "no more than at first");
    // A clock that stands still, or goes back.
    assert!(!pace.step(begun).is_zero());
}

#[test]
fn a_line_is_told_how_much_was_denied_in_its_own_container() {
    if !root() {
        return;
    }
    let fixture = Fixture::start(SocketKind::Enroll);
    let (_one, first, line) = enrolled(&fixture.socket);
    let (_other, second, others) = enrolled(&fixture.socket);
    let (mut line, mut others) = (on(line.unwrap()), on(others.unwrap()));
    let kernel_id = |enrolled: &Enrolled| {
        let state = fixture.server.state();
        state.registry.iter().find(|one| one.record.id == enrolled.container).unwrap().record.kernel_id
    };
    for (enrolled, denied) in [(&first, 3), (&second, 5)] {
        let id = kernel_id(enrolled);
        fixture.kernel.with(|inner| inner.counters.entry(id).or_default().denied = denied);
    }
    let ask = |line: &mut Conn, number| {
        line.send(&ToCore::DeniedSoFar { number }).unwrap();
        let ToWorker::Answer { number, answer } = line.receive().unwrap() else { panic!("no answer") };
        (number, answer)
    };
    assert_eq!(ask(&mut line, 7), (7, Answer::DeniedSoFar(3)));
    assert_eq!(ask(&mut others, 7), (7, Answer::DeniedSoFar(5)));
    let id = kernel_id(&first);
    fixture.server.state().registry.remove(id).unwrap();
    assert!(matches!(ask(&mut line, 8), (8, Answer::Refused(why)) if why.contains("ended")));
    assert_eq!(ask(&mut others, 8), (8, Answer::DeniedSoFar(5)), "the control");
}
