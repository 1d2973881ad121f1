//! What a container has so much of: bytes that it may send, the line to the auditor. Memory: `memory.rs`.

use crate::{
    servers::Server,
    support::{A, Core, PATIENCE, eventually, is_refused, local, rest_of, say, wait_until},
};
use ringfence_wire::{
    conn::Conn,
    egress::{
        EgressCause, EgressOutcome, EgressRecord, EgressReport, EgressReports, FromEgress, MAX_QUESTION,
        MAX_REPORTS, NameOptions, Names, ToEgress,
    },
    frame::read_message,
};
use rustix::net::sockopt;
use std::{
    io::{Read, Write},
    net::Shutdown,
    os::{fd::AsFd, unix::net::UnixStream},
    sync::{
        Arc, Barrier,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};

fn sent(record: &EgressRecord) -> u64 {
    if let EgressRecord::Connection { sent, .. } = record { *sent } else { 0 }
}

#[test]
fn many_connections_at_once_send_no_more_than_one_may() {
    const MANY: usize = 16;
    let got = Arc::new(AtomicU64::new(0));
    let (counted, all) = (Arc::clone(&got), Arc::new(Barrier::new(MANY)));
    let server = Server::new(move |mut stream| {
        // None is read before all wait: what is on its way is counted, too.
        sockopt::set_socket_recv_buffer_size(&stream, 4096).unwrap();
        all.wait();
        thread::sleep(Duration::from_millis(200));
        let mut bytes = vec![0; 65_536];
        while let Ok(count @ 1..) = stream.read(&mut bytes) {
            counted.fetch_add(count as u64, Ordering::SeqCst);
        }
    });
    let options = NameOptions { max_upload: Some(1_000_000), ..NameOptions::default() };
    let rule = format!("tcp:localhost:{}", server.port);
    let core = Core::start(Names { options, ..local(&[&rule]) });
    let address = core.ask("localhost", A).1.unwrap();
    thread::scope(|scope| {
        for _ in 0..MANY {
            let stream = core.connect(address, server.port);
            scope.spawn(move || {
                say(&stream, &vec![7; 400_000]);
                let _ = stream.shutdown(Shutdown::Write);
                let _ = rest_of(&stream);
            });
        }
    });
    core.recorded(EgressOutcome::Ended, Some(EgressCause::TooMuch));
    wait_until("all are on record", || core.all_connections() == MANY as u64);
    let recorded: u64 = core.connections().iter().map(sent).sum();
    assert!(recorded <= 1_000_000, "{recorded}");
    assert!((1..=recorded).contains(&got.load(Ordering::SeqCst)), "{got:?} of {recorded}");
}

#[test]
fn a_worker_that_dies_gives_nothing_back_of_what_may_be_sent() {
    const MOST: u64 = 100_000;
    let got = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&got);
    let server = Server::new(move |mut stream| {
        let mut bytes = vec![0; 65_536];
        while let Ok(count @ 1..) = stream.read(&mut bytes) {
            counted.fetch_add(count as u64, Ordering::SeqCst);
        }
    });
    let options = NameOptions { max_upload: Some(MOST), ..NameOptions::default() };
    let names = Names { options, ..local(&[&format!("tcp:localhost:{}", server.port)]) };
    // What the core has heard of, which it reads after the worker's end.
    let heard = |core: &Core| {
        let said = core.heard().into_iter().filter_map(|said| match said {
            FromEgress::Uploads(said) => Some(said),
            _ => None,
        });
        said.flatten().max_by_key(|upload| upload.bytes)
    };
    let mut before = Vec::new();
    for _ in 0..3 {
        let was = got.load(Ordering::SeqCst);
        let mut core = Core::start_after(names.clone(), false, true, before.clone());
        let stream = core.open("localhost", server.port);
        say(&stream, &[7; 30_000]);
        wait_until("it went", || got.load(Ordering::SeqCst) == was + 30_000);
        core.kill();
        let last = eventually("it was said", || {
            heard(&core).filter(|upload| upload.bytes >= got.load(Ordering::SeqCst))
        });
        assert_eq!(last.host, "localhost");
        before = vec![last];
    }
    assert!((90_000..MOST).contains(&before[0].bytes), "{before:?}");
    let core = Core::start_after(names, false, true, before);
    let _line = core.line();
    let stream = core.open("localhost", server.port);
    say(&stream, &[7; 30_000]);
    let _ = rest_of(&stream);
    let record = core.recorded(EgressOutcome::Ended, Some(EgressCause::TooMuch));
    // What of it the server has read before the connection was broken off is another matter.
    assert!((1..=10_000).contains(&sent(&record)), "{record:?}");
    assert!(got.load(Ordering::SeqCst) <= MOST, "{got:?}");
}

#[test]
fn what_reached_a_server_is_on_record_however_the_connection_ends() {
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let (tell, told) = std::sync::mpsc::channel::<u64>();
    let both = std::sync::Mutex::new((gone, tell));
    let server = Server::new(move |mut stream| {
        let (gone, tell) = &*both.lock().unwrap();
        gone.recv().unwrap();
        // The worker learns that its client is gone when there is something to say to it.
        let _ = stream.write_all(b"x");
        thread::sleep(Duration::from_millis(100));
        let _ = stream.write_all(b"y");
        let mut got = 0;
        let mut bytes = vec![0; 65_536];
        while let Ok(count @ 1..) = stream.read(&mut bytes) {
            got += count as u64;
        }
        tell.send(got).unwrap();
    });
    let rule = format!("tcp:localhost:{}", server.port);
    let core = Core::start(local(&[&rule]));
    let mut stream = core.open("localhost", server.port);
    // Until nothing more has room anywhere.
    stream.set_write_timeout(Some(Duration::from_millis(500))).unwrap();
    while stream.write(&[7; 65_536]).is_ok() {}
    sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
    drop(stream);
    go.send(()).unwrap();
    let got = told.recv_timeout(PATIENCE).unwrap();
    let record = eventually("it is on record", || core.connections().pop());
    assert!(got > 100_000 && sent(&record) >= got, "the server has {got} bytes: {record:?}");
}

#[test]
fn what_waits_when_the_worker_ends_is_whole() {
    // It gives up what it cannot say within two seconds: where this machine is too slow, once more.
    for _ in 0..10 {
        let server = Server::echo();
        let rule = format!("tcp:localhost:{}", server.port);
        let mut core = Core::start_mute(local(&[&rule, "*.w.example"]), false);
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        sockopt::set_socket_send_buffer_size(&theirs, 4096).unwrap();
        let link = core.link();
        Conn::new(link, PATIENCE, MAX_QUESTION)
            .send_with_descriptors(&ToEgress::Line, &[theirs.as_fd()])
            .unwrap();
        drop(theirs);
        let mut stream = core.open("localhost", server.port);
        stream.write_all(b"x").unwrap();
        stream.read_exact(&mut [0]).unwrap();
        for at in 0..120 {
            core.ask(&format!("{at}.w.example"), A);
        }
        // It is in the middle of a frame: nobody reads.
        let mut first = [0];
        ours.read_exact(&mut first).unwrap();
        core.order(&ToEgress::Stop);
        assert!(is_refused(&stream));
        let mut line = std::io::Cursor::new(first).chain(ours);
        let mut reports: Vec<EgressReport> = Vec::new();
        let error = loop {
            match read_message::<EgressReports>(&mut line, MAX_REPORTS) {
                Ok(more) => reports.extend(more.reports),
                Err(error) => break error,
            }
        };
        core.ended();
        assert!(!matches!(error, ringfence_wire::frame::FrameError::Json(_)), "{error}");
        let ended = reports.iter().any(|report| {
            matches!(report.record, EgressRecord::Connection { outcome: EgressOutcome::Ended, .. })
        });
        if ended {
            return assert_eq!(reports.len(), 123, "121 names' addresses, and what was open, twice");
        }
        eprintln!("only {} reports, and {error}", reports.len());
    }
    panic!("never all of it");
}

#[test]
fn no_name_leads_to_the_host_from_a_network_of_its_own() {
    let server = Server::echo();
    let rule = format!("tcp:localhost:{}", server.port);
    for audit in [false, true] {
        let core = Core::start_in(local(&[&rule]), audit, false);
        let _line = core.line();
        let stream = core.open("localhost", server.port);
        say(&stream, b"\0");
        assert!(is_refused(&stream));
        core.recorded(EgressOutcome::Refused, Some(EgressCause::NotPublic));
        assert_eq!(server.connections(), 0);
    }
    let core = Core::start_in(local(&[&rule]), false, true);
    let mut stream = core.open("localhost", server.port);
    stream.write_all(b"x").unwrap();
    stream.read_exact(&mut [0]).unwrap();
}
