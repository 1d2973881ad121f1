//! Samples for tests of this crate and of those that use it.

use super::decode::Decoded;
use ringfence_common::event::{op, rule, verdict};

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
    }
}

/// The same process renames a file.
pub fn renamed(from: &str, to: &str) -> Decoded {
    Decoded { op: op::RENAME, path: Some(from.into()), path2: Some(to.into()), ..decoded() }
}
