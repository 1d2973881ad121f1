//! Rules that change while a request is under way.

use crate::{
    clients::trusting,
    requests::ask_for_websocket,
    site::Site,
    support::{HOST, PATIENCE, Proxy, Rules},
};
use ringfence_test_support::wait::wait_until;
use ringfence_wire::{
    credentials::{FromCredentials, ToCredentials},
    egress::EgressCause,
};
use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    thread,
};

/// Puts rules in force that have this one alone.
fn only(proxy: &Proxy, id: u64, rule: &'static str) {
    let hosts = vec![Rules { allow: vec![rule], ..Rules::default() }.at(proxy.port)];
    proxy.order(&ToCredentials::Rules { id, hosts });
    wait_until("the rules", || proxy.heard.lock().unwrap().contains(&FromCredentials::InForce { id }));
}

/// Whether a connection ends without a byte more.
fn is_over(stream: &mut impl Read) -> bool {
    !matches!(stream.read(&mut [0]), Ok(1..))
}

#[test]
fn a_websocket_that_was_being_opened_is_none() {
    let (opens, may_open) = mpsc::channel::<()>();
    let may_open = std::sync::Mutex::new(may_open);
    let site = Site::new(HOST, move |_, stream| {
        may_open.lock().unwrap().recv().unwrap();
        write!(
            stream,
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
        )?;
        stream.write_all(&[0x81, 2, b'h', b'i'])?;
        stream.flush()?;
        let mut word = [0; 4];
        while stream.read_exact(&mut word).is_ok() {}
        Ok(false)
    });
    let proxy = Proxy::start(&Rules::default(), site.port, &site.root);
    for (id, rule, is_opened) in [(1, "GET /with/ws", true), (2, "GET /with/other", false)] {
        let before = site.asked().len();
        let mut stream = trusting(&proxy);
        ask_for_websocket(&mut stream, &proxy, "/with/ws");
        wait_until("the server is asked", || site.asked().len() > before);
        only(&proxy, id, rule);
        opens.send(()).unwrap();
        assert_eq!(!is_over(&mut stream), is_opened, "{rule}");
    }
    assert!(proxy.refused(EgressCause::Revoked).contains("profile was changed"));
}

/// A server that says how many bytes of an endless body it has read, and one that sends one.
fn endless() -> (TcpListener, Arc<AtomicUsize>) {
    (TcpListener::bind("127.0.0.1:0").unwrap(), Arc::default())
}

#[test]
fn a_body_that_is_sent_ends_with_its_rule() {
    // Bytes as the network has them: whatever they mean, there are no more.
    let (relay, count) = endless();
    let site = Site::answering(HOST, |asked| asked.target.clone());
    let (port, at, counted) = (relay.local_addr().unwrap().port(), site.port, Arc::clone(&count));
    thread::spawn(move || relayed(&relay, at, &counted, &AtomicBool::new(true)));
    let proxy = Proxy::start(&Rules::default(), port, &site.root);
    let mut stream = trusting(&proxy);
    write!(stream, "POST /with/up HTTP/1.1\r\nHost: {HOST}:{}\r\nContent-Type: x/y\r\nTransfer-Encoding: chunked\r\n\r\n", proxy.port)
        .unwrap();
    let mut say = |until: usize| {
        wait_until("it comes to the server", || {
            stream.write_all(b"400\r\n").unwrap();
            stream.write_all(&[b'x'; 1024]).unwrap();
            stream.write_all(b"\r\n").unwrap();
            count.load(Ordering::SeqCst) > until
        });
    };
    say(10_000);
    only(&proxy, 1, "POST /with/up");
    say(count.load(Ordering::SeqCst) + 10_000);
    only(&proxy, 2, "GET /with/up");
    let _ = stream.write_all(&[b'x'; 1024]);
    assert!(is_over(&mut stream), "the control went on");
    proxy.refused(EgressCause::Revoked);
    assert!(site.asked().is_empty(), "no request came to its end");
}

#[test]
fn an_answer_without_an_end_ends_with_its_rule() {
    let site = Site::new(HOST, |_, stream| {
        write!(stream, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
        loop {
            stream.write_all(b"9\r\ndata: {}\n\r\n")?;
            stream.flush()?;
            thread::sleep(std::time::Duration::from_millis(5));
        }
    });
    let proxy = Proxy::start(&Rules::default(), site.port, &site.root);
    let mut stream = trusting(&proxy);
    write!(stream, "GET /with/watch HTTP/1.1\r\nHost: {HOST}:{}\r\n\r\n", proxy.port).unwrap();
    let mut some = [0; 1000];
    stream.read_exact(&mut some).unwrap();
    only(&proxy, 1, "GET /with/watch");
    for _ in 0..20 {
        stream.read_exact(&mut some).unwrap();
    }
    only(&proxy, 2, "GET /with/other");
    let mut rest = Vec::new();
    let _ = stream.read_to_end(&mut rest);
    proxy.refused(EgressCause::Revoked);
    assert_eq!(site.asked().len(), 1);
}

#[test]
fn a_request_that_was_judged_before_is_judged_again_when_the_server_is_there() {
    let site = Site::answering(HOST, |asked| asked.target.clone());
    for (rule, is_asked) in [("GET /with/a", true), ("GET /with/other", false)] {
        let relay = TcpListener::bind("127.0.0.1:0").unwrap();
        let (port, at) = (relay.local_addr().unwrap().port(), site.port);
        let (goes, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let (may_go, counted) = (Arc::clone(&goes), Arc::clone(&count));
        thread::spawn(move || relayed(&relay, at, &counted, &may_go));
        let proxy = Proxy::start(&Rules::default(), port, &site.root);
        let before = site.asked().len();
        let mut stream = trusting(&proxy);
        write!(stream, "GET /with/a HTTP/1.1\r\nHost: {HOST}:{}\r\nConnection: close\r\n\r\n", proxy.port)
            .unwrap();
        // The ClientHello is there: the request was judged, and waits.
        wait_until("the handshake", || count.load(Ordering::SeqCst) > 0);
        only(&proxy, 1, rule);
        goes.store(true, Ordering::SeqCst);
        let mut said = String::new();
        let _ = stream.read_to_string(&mut said);
        assert_eq!(said.ends_with("/with/a"), is_asked, "{said}");
        assert_eq!(said.contains("no rule of"), !is_asked, "{said}");
        assert_eq!(site.asked().len() > before, is_asked);
    }
}

/// Passes one connection on to a port of loopback: what comes back once it may, and what goes there is counted.
fn relayed(relay: &TcpListener, to: u16, count: &AtomicUsize, may_go: &AtomicBool) {
    let (client, server) = (relay.accept().unwrap().0, TcpStream::connect(("127.0.0.1", to)).unwrap());
    for stream in [&client, &server] {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut chunk = [0; 4096];
            while let Ok(read @ 1..) = (&client).read(&mut chunk) {
                count.fetch_add(read, Ordering::SeqCst);
                wait_until("it may go on", || may_go.load(Ordering::SeqCst));
                if (&server).write_all(&chunk[..read]).is_err() {
                    break;
                }
            }
            let _ = server.shutdown(std::net::Shutdown::Both);
        });
        let mut chunk = [0; 4096];
        while let Ok(read @ 1..) = (&server).read(&mut chunk) {
            if (&client).write_all(&chunk[..read]).is_err() {
                break;
            }
        }
        let _ = client.shutdown(std::net::Shutdown::Both);
    });
}
