//! A stored event as the JSON users see: names for numbers. The list of words is `docs/events.md`.

use super::{
    attribute::Attribution,
    decode::{self, Decoded},
    egress::Told,
    manifests::Decider,
};
use nix::libc;
use ringfence_base::clock;
use ringfence_common::{
    event::{self, Fixed, Op, op, verdict},
    ioctls,
};
use ringfence_policy::Capabilities;
use ringfence_wire::event::{Certainty, Event, Target, Verdict};
use std::net::{Ipv6Addr, SocketAddr};

/// An event with everything around it, as the store gives it back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    /// Row id.
    pub id: u64,
    /// µs since 1970.
    pub ts: i64,
    /// The container's public id.
    pub container: String,
    /// Its profile.
    pub profile: String,
    /// The provider's id of the tool call that its process tree was tagged for, where that is known.
    pub call: Option<String>,
    /// How sure that is.
    pub tie: Tie,
    /// What decided.
    pub decider: Decider,
    /// The host that the record's address stands for in this container, as far as its egress worker told.
    pub name: Option<String>,
    /// The record.
    pub record: Decoded,
}

/// How sure it is that a tag is of the call that it is said to be of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Tie {
    /// Sure, as far as the call's agent knows.
    #[default]
    Exact,
    /// Nothing named the call; the process runs what it alone says.
    Matched,
    /// Another process says that it is the call's.
    Contested,
}

/// The event for the world.
pub fn event(stored: &Stored) -> Event {
    let record = &stored.record;
    // What of a record has a key: a new field is an error here.
    let Decoded {
        op,
        verdict,
        call,
        start,
        pid,
        tgid,
        ppid,
        uid,
        repeats,
        exe,
        egress,
        // In `flags` and `target`, or with the rule that decided.
        flags: record_flags,
        detail: _,
        rule_kind: _,
        rule: _,
        axes: _,
        family: _,
        port: _,
        addr: _,
        target: _,
        path: _,
        path2: _,
        // As the store has them.
        time: _,
        container: _,
        lineage: _,
        generation: _,
    } = record;
    let mut event = Event {
        ts: clock::rfc3339(stored.ts),
        id: stored.id,
        container: stored.container.clone(),
        profile: stored.profile.clone(),
        verdict: match *verdict {
            verdict::ALLOWED => Verdict::Allowed,
            verdict::WOULD_DENY => Verdict::WouldDeny,
            _ => Verdict::Denied,
        },
        op: Op::of(*op).map_or("unknown", Op::name).to_owned(),
        target: target(record),
        flags: flags(record),
        pid: *pid,
        tgid: *tgid,
        ppid: *ppid,
        exec_id: format!("{tgid}:{start}"),
        exe: exe.clone(),
        uid: *uid,
        rule: rule(&stored.decider),
        tool_call: None,
        attribution: Certainty::None,
        candidates: Vec::new(),
        repeats: *repeats,
        name: stored.name.clone(),
        connection: None,
        question: None,
    };
    if let Some(egress) = egress {
        event.name = Some(egress.name.clone()).filter(|name| !name.is_empty());
        match egress.told.clone() {
            Told::Connection(connection) => event.connection = Some(connection),
            Told::Question(question) => event.question = Some(question),
        }
    }
    if *call != 0 && egress.is_some() && stored.call.is_none() {
        // The tag is the worker's word, and this container has no call of which it is.
        attribute(&mut event, Attribution::Ambiguous(Vec::new()));
    } else if *call != 0 {
        let call = stored.call.clone().unwrap_or_else(|| format!("tag:{call:x}"));
        let is_debugged = record_flags & event::FLAG_DEBUGGED != 0;
        let attribution = match stored.tie {
            _ if is_debugged => Attribution::Ambiguous(vec![call]),
            Tie::Contested => Attribution::Ambiguous(vec![call]),
            Tie::Matched => Attribution::Matched(call),
            Tie::Exact => Attribution::Exact(call),
        };
        attribute(&mut event, attribution);
    }
    event
}

/// Most candidates that an event names.
const MOST_CANDIDATES: usize = 50;

/// Puts an event's call into it.
pub fn attribute(event: &mut Event, attribution: Attribution) {
    event.attribution = attribution.certainty();
    match attribution {
        Attribution::Exact(call) | Attribution::Sole(call) | Attribution::Matched(call) => {
            event.tool_call = Some(call);
        }
        Attribution::Ambiguous(mut calls) => {
            calls.truncate(MOST_CANDIDATES);
            event.candidates = calls;
        }
        Attribution::None => {}
    }
}

/// The `rule` of an event.
pub fn rule(decider: &Decider) -> String {
    match decider {
        Decider::Rule(rule) => rule.id.clone(),
        Decider::Default => "default".to_owned(),
        Decider::All => "all".to_owned(),
        Decider::Fixed(number) => format!("fixed:{}", Fixed::of(*number).map_or("unknown", Fixed::name)),
        Decider::Unknown => "unknown".to_owned(),
    }
}

/// What it was done to.
pub fn target(record: &Decoded) -> Target {
    if let Some(egress) = &record.egress {
        return Target::Addr(egress.target(record));
    }
    if !decode::is_socket(record.op) {
        return Target::Path(record.path.clone());
    }
    Target::Addr(match i32::from(record.family) {
        libc::AF_INET | libc::AF_INET6 if record.op != op::SOCKET => Some(socket_address(record).to_string()),
        _ => record.path.as_ref().map(|path| format!("unix:{path}")),
    })
}

/// The internet address, v4 as v4 however it was written.
pub(crate) fn socket_address(record: &Decoded) -> SocketAddr {
    SocketAddr::new(Ipv6Addr::from(record.addr).to_canonical(), record.port)
}

fn flags(record: &Decoded) -> Vec<String> {
    let mut out = Vec::new();
    let detail = record.detail;
    let mut words = |table: &[(u32, &str)]| {
        out.extend(table.iter().filter(|(bit, _)| detail & bit != 0).map(|(_, word)| (*word).to_owned()));
    };
    match Op::of(record.op) {
        Some(Op::Open) => {
            let access: &[&str] = match detail & libc::O_ACCMODE as u32 {
                0 => &["read"],
                1 => &["write"],
                _ => &["read", "write"],
            };
            out.extend(access.iter().map(|word| (*word).to_owned()));
            out.extend(open_words(detail));
        }
        Some(Op::Create | Op::Mknod | Op::Mkdir | Op::Chmod) => {
            if let Some(kind) = file_type(detail) {
                out.push(format!("type={kind}"));
            }
            out.push(format!("mode={:04o}", detail & 0o7777));
        }
        Some(Op::MapExec | Op::ProtectExec) => words(&[(1, "read"), (2, "write"), (4, "exec")]),
        Some(Op::Mount) => words(&[(1, "readonly"), (32, "remount"), (4096, "bind"), (8192, "move")]),
        Some(Op::Rename) => words(&[(1, "noreplace"), (2, "exchange"), (4, "whiteout")]),
        Some(Op::Socket | Op::Connect | Op::Bind | Op::Listen | Op::Send) => out.extend(socket_words(record)),
        Some(Op::Ptrace | Op::Control) => out.push(format!("target={}", record.target)),
        Some(Op::Signal) => {
            out.push(format!("target={}", record.target));
            out.push(format!("signal={detail}"));
        }
        Some(Op::Bpf) => out.push(format!("command={detail}")),
        Some(Op::Ioctl) => out.push(match ioctls::name(detail) {
            Some(name) => format!("command={name}"),
            None => format!("command={detail:#x}"),
        }),
        Some(Op::Setsockopt) => {
            out.extend(socket_words(record));
            out.push(format!("level={}", record.target >> 16));
            out.push(format!("option={}", record.target & 0xffff));
        }
        Some(Op::Capability) => {
            let name = Capabilities::name(detail).map_or_else(|| detail.to_string(), str::to_owned);
            out.push(format!("capability={name}"));
            out.push(format!("syscall={}", record.target));
        }
        Some(Op::Ipc) => {
            let kind = ["message_queue", "semaphores", "shared_memory"].get(detail as usize);
            out.extend(kind.map(|kind| format!("type={kind}")));
            out.push(format!("id={}", record.target));
        }
        Some(Op::Key) => out.push(format!("serial={}", record.target)),
        Some(Op::Receive) => out.extend(socket_words(record)),
        Some(Op::NetConnection | Op::NetName) => {
            out.extend(record.egress.iter().flat_map(|egress| egress.words()));
        }
        Some(Op::Syscall) => out.push(format!("number={detail}")),
        // Their target says it all.
        Some(
            Op::Exec
            | Op::Truncate
            | Op::Unlink
            | Op::Link
            | Op::Rmdir
            | Op::Symlink
            | Op::Chown
            | Op::Utimes
            | Op::Setxattr
            | Op::MoveMount
            | Op::PivotRoot
            | Op::Chroot
            | Op::Perf
            | Op::Userns
            | Op::Umount,
        )
        | None => {}
    }
    if let Some(to) = &record.path2 {
        out.push(format!("to={to}"));
    }
    let marks = [
        (event::FLAG_CUT, "cut"),
        (event::FLAG_EXE_CUT, "exe_cut"),
        (event::FLAG_RACED, "raced"),
        (event::FLAG_OUTSIDE, "outside"),
        (event::FLAG_UNLINKED, "unlinked"),
        (event::FLAG_DEBUGGED, "debugged"),
    ];
    out.extend(marks.iter().filter(|(bit, _)| record.flags & bit != 0).map(|(_, word)| (*word).to_owned()));
    out
}

fn open_words(flags: u32) -> Vec<String> {
    // O_TMPFILE contains O_DIRECTORY's bit.
    let tmpfile = flags & libc::O_TMPFILE as u32 == libc::O_TMPFILE as u32;
    [
        (libc::O_APPEND, "append"),
        (libc::O_CREAT, "create"),
        (libc::O_EXCL, "exclusive"),
        (libc::O_TRUNC, "truncate"),
        (libc::O_DIRECTORY, if tmpfile { "tmpfile" } else { "directory" }),
        (libc::O_NOFOLLOW, "nofollow"),
    ]
    .iter()
    .filter(|(bit, _)| flags & *bit as u32 != 0)
    .map(|(_, word)| (*word).to_owned())
    .collect()
}

fn file_type(mode: u32) -> Option<&'static str> {
    Some(match mode & libc::S_IFMT {
        libc::S_IFREG => "file",
        libc::S_IFIFO => "fifo",
        libc::S_IFSOCK => "socket",
        libc::S_IFCHR => "char",
        libc::S_IFBLK => "block",
        _ => return None,
    })
}

/// `family=` and `type=` of a socket; numbers where there is no common name.
fn socket_words(record: &Decoded) -> Vec<String> {
    let family = match record.detail >> 16 {
        0 => u32::from(record.family),
        family => family,
    };
    let kind = record.detail & 0xffff;
    let mut out = Vec::new();
    if family != 0 {
        let name = i32::try_from(family).ok().and_then(family_name);
        out.push(name.map_or_else(|| format!("family={family}"), |n| format!("family={n}")));
    }
    if kind != 0 {
        let name = match kind as i32 {
            libc::SOCK_STREAM => Some("stream"),
            libc::SOCK_DGRAM => Some("dgram"),
            libc::SOCK_RAW => Some("raw"),
            libc::SOCK_SEQPACKET => Some("seqpacket"),
            10 => Some("packet"),
            _ => None,
        };
        out.push(name.map_or_else(|| format!("type={kind}"), |n| format!("type={n}")));
    }
    out
}

fn family_name(family: i32) -> Option<&'static str> {
    Some(match family {
        libc::AF_UNIX => "unix",
        libc::AF_INET => "inet",
        libc::AF_INET6 => "inet6",
        libc::AF_NETLINK => "netlink",
        libc::AF_PACKET => "packet",
        libc::AF_ALG => "alg",
        libc::AF_VSOCK => "vsock",
        libc::AF_BLUETOOTH => "bluetooth",
        libc::AF_TIPC => "tipc",
        libc::AF_XDP => "xdp",
        libc::AF_KEY => "key",
        libc::AF_RDS => "rds",
        libc::AF_CAN => "can",
        libc::AF_IB => "ib",
        libc::AF_NFC => "nfc",
        libc::AF_IUCV => "iucv",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::samples;

    fn stored(record: Decoded) -> Stored {
        Stored {
            id: 42,
            ts: 1_763_631_399_000_050,
            container: "0123456789ab".into(),
            profile: "coder".into(),
            call: None,
            tie: Tie::Exact,
            decider: Decider::Default,
            name: None,
            record,
        }
    }

    fn flags_of(op: u8, detail: u32) -> String {
        flags(&Decoded { op, detail, ..samples::decoded() }).join(" ")
    }

    #[test]
    fn the_json_has_the_promised_keys_in_their_order() {
        let json = serde_json::to_string(&event(&stored(samples::decoded()))).expect("serialises");
        assert_eq!(
            json,
            r#"{"ts":"2025-11-20T09:36:39.000050Z","id":42,"container":"0123456789ab","profile":"coder","#
                .to_owned()
                + r#""verdict":"denied","op":"open","path":"/etc/shadow","flags":["read"],"pid":101,"tgid":100,"#
                + r#""ppid":99,"exec_id":"100:4000000000","exe":"/usr/bin/cat","uid":1000,"rule":"default","#
                + r#""tool_call":null,"attribution":"none","repeats":1}"#
        );
    }

    #[test]
    fn the_manual_has_every_key_operation_and_fixed_rule() {
        let manual = include_str!("../../../docs/events.md");
        let has = |name: &str| assert!(manual.contains(&format!("`{name}`")), "docs/events.md has no {name}");
        let json = serde_json::to_value(event(&stored(samples::decoded()))).expect("serialises");
        for key in json.as_object().expect("an object").keys() {
            has(key);
        }
        for record in [samples::connection("example.org", 443), samples::question("example.org")] {
            let json = serde_json::to_value(event(&stored(record))).expect("serialises");
            let about = [&json["connection"], &json["question"]].into_iter().filter_map(|it| it.as_object());
            json.as_object()
                .expect("an object")
                .keys()
                .chain(about.flat_map(|it| it.keys()))
                .for_each(|key| has(key));
        }
        for op in (0..=u8::MAX).filter_map(Op::of) {
            has(op.name());
        }
        for fixed in (0..=u32::from(u8::MAX)).filter_map(Fixed::of) {
            has(&format!("fixed:{}", fixed.name()));
        }
    }

    #[test]
    fn a_tagged_event_is_exactly_its_calls() {
        let tagged = Decoded { call: 0x2a, ..samples::decoded() };
        let known = event(&Stored { call: Some("toolu_1".into()), ..stored(tagged.clone()) });
        assert_eq!((known.tool_call.as_deref(), known.attribution), (Some("toolu_1"), Certainty::Exact));
        let unknown = event(&stored(tagged));
        assert_eq!((unknown.tool_call.as_deref(), unknown.attribution), (Some("tag:2a"), Certainty::Exact));
    }

    #[test]
    fn a_matched_event_names_its_call_and_says_how() {
        let mut event = event(&stored(samples::decoded()));
        attribute(&mut event, Attribution::Matched("toolu_1".into()));
        assert_eq!(event.attribution.to_string(), "matched");
        assert_eq!((event.tool_call.as_deref(), event.attribution), (Some("toolu_1"), Certainty::Matched));
        assert!(event.candidates.is_empty());
    }

    #[test]
    fn a_tag_is_as_sure_as_its_tie() {
        let tagged = Decoded { call: 0x2a, ..samples::decoded() };
        let of = |tie| super::event(&Stored { call: Some("toolu_1".into()), tie, ..stored(tagged.clone()) });
        let matched = of(Tie::Matched);
        assert_eq!(
            (matched.tool_call.as_deref(), matched.attribution),
            (Some("toolu_1"), Certainty::Matched)
        );
        let contested = of(Tie::Contested);
        assert_eq!((contested.tool_call, contested.attribution), (None, Certainty::Ambiguous));
        assert_eq!(contested.candidates, ["toolu_1"]);
        assert_eq!(of(Tie::Exact).attribution, Certainty::Exact, "the control");
        let steered = Decoded { flags: event::FLAG_DEBUGGED, ..tagged.clone() };
        let steered =
            super::event(&Stored { call: Some("toolu_1".into()), tie: Tie::Matched, ..stored(steered) });
        assert_eq!(steered.attribution, Certainty::Ambiguous);
    }

    #[test]
    fn what_another_call_may_have_steered_is_ambiguous() {
        let tagged = Decoded { call: 0x2a, flags: event::FLAG_DEBUGGED, ..samples::decoded() };
        let known = super::event(&Stored { call: Some("toolu_1".into()), ..stored(tagged.clone()) });
        assert_eq!((known.tool_call, known.attribution), (None, Certainty::Ambiguous));
        assert_eq!(known.candidates, ["toolu_1"]);
        assert!(known.flags.contains(&"debugged".to_owned()), "{:?}", known.flags);
        assert_eq!(super::event(&stored(tagged)).candidates, ["tag:2a"]);
    }

    #[test]
    fn events_survive_the_wire() {
        let mut record = samples::decoded();
        for (op, path) in
            [(op::OPEN, Some("/a")), (op::CONNECT, None), (op::CONNECT, Some("@x")), (op::BPF, None)]
        {
            (record.op, record.path) = (op, path.map(str::to_owned));
            let event = event(&stored(record.clone()));
            let json = serde_json::to_string(&event).expect("serialises");
            assert_eq!(serde_json::from_str::<Event>(&json).expect("parses"), event);
        }
    }

    #[test]
    fn a_host_is_the_target_and_an_unknown_tag_is_no_call() {
        let record = Decoded { call: 0x2a, ..samples::connection("example.org", 443) };
        let unknown = event(&stored(record.clone()));
        assert_eq!(unknown.target, Target::Addr(Some("example.org:443".into())));
        assert_eq!((unknown.op.as_str(), unknown.name.as_deref()), ("net.connection", Some("example.org")));
        assert_eq!((unknown.tool_call, unknown.attribution), (None, Certainty::Ambiguous));
        assert_eq!(unknown.flags, ["outcome=passed", "tls"]);
        let known = event(&Stored { call: Some("toolu_1".into()), ..stored(record) });
        assert_eq!(
            (known.tool_call.as_deref(), known.attribution.clone()),
            (Some("toolu_1"), Certainty::Exact)
        );
        let asked = event(&stored(samples::question("example.org")));
        assert_eq!(asked.target, Target::Addr(Some("example.org".into())));
        assert_eq!(asked.flags, ["type=A", "outcome=refused"]);
        for event in [known, asked] {
            let json = serde_json::to_string(&event).expect("serialises");
            assert_eq!(serde_json::from_str::<Event>(&json).expect("parses"), event);
        }
    }

    #[test]
    fn addresses_are_written_as_rules_write_them() {
        let v4 = std::net::Ipv4Addr::new(93, 184, 216, 34).to_ipv6_mapped().octets();
        let mut record = Decoded { op: op::CONNECT, family: 10, port: 443, addr: v4, ..samples::decoded() };
        record.path = None;
        assert_eq!(target(&record), Target::Addr(Some("93.184.216.34:443".into())));
        record.addr = Ipv6Addr::LOCALHOST.octets();
        assert_eq!(target(&record), Target::Addr(Some("[::1]:443".into())));
        (record.family, record.path) = (1, Some("/run/docker.sock".into()));
        assert_eq!(target(&record), Target::Addr(Some("unix:/run/docker.sock".into())));
        record.path = Some("@dbus".into());
        assert_eq!(target(&record), Target::Addr(Some("unix:@dbus".into())));
        (record.op, record.family, record.path) = (op::SOCKET, 2, None);
        assert_eq!(target(&record), Target::Addr(None));
    }

    #[test]
    fn details_have_words() {
        assert_eq!(flags_of(op::OPEN, 0), "read");
        assert_eq!(flags_of(op::OPEN, 0o1 | 0o100 | 0o1000), "write create truncate");
        assert_eq!(flags_of(op::OPEN, 0o2 | 0o2000), "read write append");
        assert_eq!(flags_of(op::OPEN, 0o200000), "read directory");
        assert_eq!(flags_of(op::OPEN, 0o20200000 | 0o2), "read write tmpfile");
        assert_eq!(flags_of(op::MKNOD, 0o020600), "type=char mode=0600");
        assert_eq!(flags_of(op::CHMOD, 0o4755), "mode=4755");
        assert_eq!(flags_of(op::MOUNT, 4096 | 32 | 1), "readonly remount bind");
        assert_eq!(flags_of(op::MAP_EXEC, 5), "read exec");
        assert_eq!(flags_of(op::BPF, 5), "command=5", "the programs put it into `detail`");
        assert_eq!(flags_of(op::SOCKET, 17 << 16 | 3), "family=packet type=raw");
        assert_eq!(flags_of(op::SOCKET, 999 << 16 | 1), "family=999 type=stream");
        let rename = Decoded { op: op::RENAME, detail: 2, path2: Some("/b".into()), ..samples::decoded() };
        assert_eq!(flags(&rename), ["exchange", "to=/b"]);
        let marked =
            Decoded { op: op::EXEC, flags: event::FLAG_OUTSIDE | event::FLAG_UNLINKED, ..samples::decoded() };
        assert_eq!(flags(&marked), ["outside", "unlinked"]);
    }
}
