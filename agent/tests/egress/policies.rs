//! Policies that change while connections are open: what was let through for another reason than holds now is ended.

use crate::{
    servers::{Http, Server, Tls, answer},
    support::{A, Core, is_refused, local, rest_of, say},
    tls::hello_with_ech,
};
use ringfence_wire::egress::{EgressCause, EgressOutcome, NameOptions, Names, ToEgress};
use std::{
    io::{Read, Write},
    net::TcpStream,
};

fn goes_round(mut stream: &TcpStream) {
    stream.write_all(b"\0ping").unwrap();
    let mut back = [0; 5];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"\0ping");
}

#[test]
fn what_audit_mode_let_through_ends_with_it_and_nothing_else() {
    let (http, server) = (Http::new(), Server::echo());
    let rules = [format!("localhost:{}", http.port()), format!("localhost:{}", server.port)];
    let names = local(&[&rules[0], &rules[1]]);
    let core = Core::start_audit(names.clone());
    let address = core.ask("localhost", A).1.unwrap();
    let get = |host: &str| format!("GET /x HTTP/1.1\r\nHost: {host}:{}\r\n\r\n", http.port());
    // Neither TLS nor HTTP; a request for another host; and one that is as it should be.
    let tunnel = core.connect(address, server.port);
    goes_round(&tunnel);
    let other = core.connect(address, http.port());
    say(&other, get("victim.example").as_bytes());
    assert_eq!(answer(&other).1, "/x");
    let clean = core.connect(address, http.port());
    say(&clean, get("localhost").as_bytes());
    assert_eq!(answer(&clean).1, "/x");
    // Audit mode goes on.
    core.order(&ToEgress::Policy { names: names.clone(), audit: true });
    goes_round(&tunnel);
    core.order(&ToEgress::Policy { names, audit: false });
    assert!(is_refused(&tunnel), "it was never looked at");
    assert!(is_refused(&other));
    say(&clean, get("localhost").as_bytes());
    assert_eq!(answer(&clean).1, "/x", "the control");
    core.recorded(EgressOutcome::Ended, Some(EgressCause::Revoked));
    say(&clean, get("victim.example").as_bytes());
    let _ = rest_of(&clean);
    core.recorded(EgressOutcome::Ended, Some(EgressCause::OtherName));
    assert_eq!(http.heads().iter().filter(|head| head.contains("victim")).count(), 1, "in audit mode");
}

#[test]
fn what_was_not_looked_at_ends_when_it_would_be() {
    let (server, other) = (Server::echo(), Server::echo());
    let [one, two] = [server.port, other.port].map(|port| format!("localhost:{port}"));
    let any = |rule: &str| format!("tcp:{rule}");
    let core = Core::start(local(&[&any(&one), &any(&two)]));
    let (first, second) = (core.open("localhost", server.port), core.open("localhost", other.port));
    goes_round(&first);
    goes_round(&second);
    core.order(&ToEgress::Policy { names: local(&[&one, &any(&two)]), audit: false });
    assert!(is_refused(&first));
    goes_round(&second);
    core.recorded(EgressOutcome::Ended, Some(EgressCause::Revoked));
}

#[test]
fn an_encrypted_hello_ends_with_its_switch() {
    let tls = Tls::new(&["localhost"]);
    let names = |ech| {
        let options = NameOptions { ech, ..NameOptions::default() };
        Names { options, ..local(&[&format!("localhost:{}", tls.server.port)]) }
    };
    let core = Core::start(names(true));
    let mut stream = core.open("localhost", tls.server.port);
    say(&stream, &hello_with_ech(&tls));
    stream.read_exact(&mut [0]).unwrap();
    let plain = core.open("localhost", tls.server.port);
    let mut client = tls.client("localhost");
    say(&plain, &Tls::hello(&mut client));
    (&plain).read_exact(&mut [0]).unwrap();
    core.order(&ToEgress::Policy { names: names(false), audit: false });
    let _ = rest_of(&stream);
    core.recorded(EgressOutcome::Ended, Some(EgressCause::Revoked));
    assert_eq!(core.connections().len(), 1, "the other goes on");
}
