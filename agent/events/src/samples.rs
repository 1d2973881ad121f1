//! Samples for tests of this crate and of those that use it.

use super::{
    decode::Decoded,
    egress::{Egress, Told},
};
use ringfence_common::event::{op, rule, verdict};
use ringfence_wire::{
    egress::{EgressOutcome, NameOutcome},
    event::{Connection, Question},
};
use std::net::Ipv4Addr;

/// A denied open of /etc/shadow by cat.
pub fn decoded() -> Decoded {
    Decoded {
        op: op::OPEN,
        verdict: verdict::DENIED,
        flags: 0,
        time: 5_000_000_000,
        container: 0x1005,
        call: 0,
        start: 4_000_000_000,
        lineage: [0; 4],
        generation: 1,
        pid: 101,
        tgid: 100,
        ppid: 99,
        uid: 1000,
        detail: 0,
        repeats: 1,
        rule_kind: rule::DEFAULT,
        rule: 0,
        axes: 1,
        family: 0,
        port: 0,
        addr: [0; 16],
        target: 0,
        path: Some("/etc/shadow".into()),
        path2: None,
        exe: "/usr/bin/cat".into(),
        egress: None,
    }
}

/// The same process renames a file.
pub fn renamed(from: &str, to: &str) -> Decoded {
    Decoded { op: op::RENAME, path: Some(from.into()), path2: Some(to.into()), ..decoded() }
}

/// The same process connected to a host, by the first address of its container's block.
pub fn connection(name: &str, port: u16) -> Decoded {
    let address = Ipv4Addr::new(198, 18, 3, 1);
    let connection = Connection {
        outcome: EgressOutcome::Passed,
        cause: None,
        reason: None,
        address: Some(address),
        dialled: Some(([93, 184, 216, 34], port).into()),
        tls: true,
        sent: 517,
        received: 4_096,
        duration_us: 120_000,
    };
    Decoded {
        op: op::NET_CONNECTION,
        verdict: verdict::ALLOWED,
        axes: 0,
        family: 2,
        port,
        addr: address.to_ipv6_mapped().octets(),
        path: None,
        exe: String::new(),
        egress: Some(Box::new(Egress { name: name.into(), told: Told::Connection(connection) })),
        ..decoded()
    }
}

/// Somebody in the container asked for the address of a host that is not granted.
pub fn question(name: &str) -> Decoded {
    let question = Question { kind: "A".into(), outcome: NameOutcome::Refused, address: None };
    Decoded {
        op: op::NET_NAME,
        verdict: verdict::DENIED,
        axes: 0,
        path: None,
        exe: String::new(),
        egress: Some(Box::new(Egress { name: name.into(), told: Told::Question(question) })),
        ..decoded()
    }
}
