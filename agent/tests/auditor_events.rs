//! `ringfence events` and `ringfence events why` against a real auditor: what is shown, to whom, in which form.

mod auditor_support;

use auditor_support::{Core, Made, components, denied, ids, manifest, output, uid};
use ringfence_common::event::{FLAG_OUTSIDE, fixed, op, rule, verdict};
use std::{
    io::{BufRead, BufReader},
    os::unix::process::CommandExt,
    process::Stdio,
};

/// One of each kind that looks different.
fn samples() -> Vec<Made> {
    let base = denied("/etc/shadow");
    let mapped = |a, b, c, d| std::net::Ipv4Addr::new(a, b, c, d).to_ipv6_mapped().octets();
    vec![
        Made { rule_kind: rule::SLOT, rule: 80, ..base.clone() },
        Made { verdict: verdict::ALLOWED, rule_kind: rule::SLOT, rule: 81, ..denied("/etc/hosts") },
        Made { op: op::EXEC, axes: 4, verdict: verdict::WOULD_DENY, ..denied("/usr/bin/nc") },
        Made { op: op::RENAME, axes: 2, path2: components(b"/tmp/b"), ..denied("/srv/a") },
        Made {
            op: op::CONNECT,
            axes: 0,
            family: 2,
            port: 443,
            addr: mapped(93, 184, 216, 34),
            detail: 2 << 16 | 1,
            path: Vec::new(),
            ..base.clone()
        },
        Made { op: op::CONNECT, family: 1, axes: 16, detail: 1 << 16 | 1, ..denied("/run/docker.sock") },
        Made {
            op: op::SOCKET,
            axes: 0,
            detail: 17 << 16 | 3,
            rule_kind: rule::FIXED,
            rule: fixed::FAMILY,
            path: Vec::new(),
            ..base.clone()
        },
        Made {
            op: op::EXEC,
            axes: 4,
            flags: FLAG_OUTSIDE,
            rule_kind: rule::FIXED,
            rule: fixed::UNLINKED,
            path: vec![b"memfd:x/y".to_vec()],
            ..base
        },
    ]
}

/// The JSON with its only moving part, the time, replaced by T.
fn without_time(json: &str) -> String {
    let without = |line: &str| {
        let (before, rest) = line.split_once("\"ts\":\"")?;
        let (time, after) = rest.split_once('"')?;
        (time.len() == 27 && time.ends_with('Z')).then(|| format!("{before}\"ts\":\"T\"{after}\n"))
    };
    json.lines().map(|line| without(line).unwrap_or_else(|| format!("no time in {line}\n"))).collect()
}

#[test]
fn json_is_as_documented() {
    let mut core = Core::start();
    core.records(samples());
    // No settling: what happened before the command started is there.
    let (out, err, ok) = core.run(&["events", "--json"]);
    assert!(ok && err.is_empty(), "{err}");
    let expected = include_str!("auditor_events.golden.jsonl");
    assert_eq!(without_time(&out), expected);
}

#[test]
fn filters_choose() {
    let mut core = Core::start();
    core.announce(manifest(0x2006, "ffeeddccbbaa", "reader", uid()));
    core.records(samples());
    core.records([Made { container: 0x2006, ..denied("/etc/x") }]);
    let chosen = |args: &[&str]| {
        let (out, err, ok) = core.run(&[&["events", "--json"], args].concat());
        assert!(ok, "{err}");
        ids(&out)
    };
    assert_eq!(chosen(&[]), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(chosen(&["--denied"]), [1, 3, 4, 5, 6, 7, 8, 9]);
    assert_eq!(chosen(&["--container", "reader"]), [9]);
    assert_eq!(chosen(&["--container", "ffee"]), [9]);
    assert_eq!(chosen(&["--container", "nothing"]), [0u64; 0]);
    assert_eq!(chosen(&["--limit", "2"]), [8, 9]);
    assert_eq!(chosen(&["--limit", "2", "--container", "coder", "--denied"]), [7, 8]);
    // The records say one second after boot: long ago, unless this machine has just booted.
    assert_eq!(chosen(&["--since", "9000d"]).len(), 9);
    assert_eq!(chosen(&["--since", "2999-01-01"]), [0u64; 0]);
}

#[test]
fn hostile_names_stay_on_their_line() {
    let mut core = Core::start();
    let mut made = denied("");
    made.path =
        vec![b"a\nb".to_vec(), b"\x1b[2J\x07".to_vec(), b"\xff\xfe".to_vec(), "\u{202e}cod.exe".into()];
    core.records([made]);
    for args in
        [&["events"][..], &["events", "--json"], &["events", "why", "1"], &["events", "why", "1", "--json"]]
    {
        let (out, err, ok) = core.run(args);
        assert!(ok, "{err}");
        assert!(out.chars().all(|c| c == '\n' || !c.is_control()), "{args:?}: {out:?}");
        assert!(!out.contains('\u{202e}'), "{args:?}: {out:?}");
        assert!(out.replace("\\\\", "\\").contains(r"/a\x0ab/\x1b[2J\x07/\xff\xfe/"), "{args:?}: {out}");
    }
    assert_eq!(core.run(&["events"]).0.lines().count(), 2);
}

#[test]
fn the_table_has_its_columns() {
    let mut core = Core::start();
    core.records(samples().into_iter().take(4));
    let (out, _, ok) = core.run(&["events"]);
    assert!(ok);
    let lines: Vec<_> = out.lines().collect();
    assert!(lines[0].starts_with("TIME ") && lines[0].ends_with("EVENT"), "{}", lines[0]);
    assert!(
        lines[1].contains("0123456789ab/coder    denied      open           /etc/shadow "),
        "{}",
        lines[1]
    );
    assert!(lines[1].ends_with("deny.fs_read:/etc/shadow      1"), "{}", lines[1]);
    assert!(lines[4].contains("/srv/a -> /tmp/b"), "{}", lines[4]);
}

#[test]
fn a_reader_that_leaves_is_no_error() {
    let mut core = Core::start();
    for _ in 0..20 {
        core.records((0..500).map(|_| denied("/etc/shadow")));
    }
    // Storing so many may take longer than the command waits for it before it says so.
    core.settle();
    let mut child = core
        .command(&["events", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut first = String::new();
    // Dropping the reader closes the pipe while thousands of lines are still to come.
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut first).expect("reads");
    assert_eq!(ids(&first), [1]);
    let done = child.wait_with_output().expect("waits");
    assert!(done.status.success() && done.stderr.is_empty(), "{done:?}");
}

#[test]
fn a_user_sees_only_its_own() {
    let mut core = Core::start();
    let stranger = uid() + 7;
    core.announce(manifest(0x2006, "ffeeddccbbaa", "reader", stranger));
    core.records([denied("/etc/a"), Made { container: 0x2006, ..denied("/etc/b") }]);
    let (out, _, _) = core.run(&["events", "--json"]);
    let (why, err, _) = core.run(&["events", "why", "2", "--json"]);
    if uid() != 0 {
        assert_eq!(ids(&out), [1]);
        assert!(why.is_empty() && err.contains("no event 2"), "{err}");
        return;
    }
    assert_eq!(ids(&out), [1, 2]);
    assert!(why.contains("/etc/b"), "{why}");
    // A copy, for the binary may lie where the stranger cannot go.
    let copy = core.dir.path().join("ringfence");
    // By another process: a child of another test, forked while we write, would keep the copy busy.
    let mut cp = std::process::Command::new("cp");
    assert!(cp.arg(env!("CARGO_BIN_EXE_ringfence")).arg(&copy).status().expect("cp").success());
    let mut as_stranger = std::process::Command::new(&copy);
    as_stranger.args(["events", "--json"]).uid(stranger).gid(stranger);
    as_stranger.env("RINGFENCE_RUNTIME_DIR", core.dir.path());
    let (out, err, ok) = output(&mut as_stranger);
    assert!(ok, "{err}");
    assert_eq!(ids(&out), [2]);
}

#[test]
fn why_names_the_rule_and_the_line() {
    let mut core = Core::start();
    core.records(samples());
    let (out, err, ok) = core.run(&["events", "why", "1"]);
    assert!(ok, "{err}");
    assert!(
        out.contains("defined in  /etc/ringfence/profiles/coder.toml:12  deny.fs_read /etc/shadow"),
        "{out}"
    );
    assert!(out.contains("remove \"/etc/shadow\" from `deny.fs_read`"), "{out}");
    let (out, _, _) = core.run(&["events", "why", "5"]);
    assert!(out.ends_with("\n      [grant]\n      net = { only = [\"93.184.216.34:443\"] }\n"), "{out}");
    let (out, _, _) = core.run(&["events", "why", "last", "--json"]);
    let why: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((why["event"]["id"].as_u64(), why["line"].as_str()), (Some(8), None));
    let (out, err, ok) = core.run(&["events", "why", "999"]);
    assert!(!ok && out.is_empty() && err.contains("there is no event 999"), "{err}");
}

#[test]
fn without_a_daemon_it_says_how_to_start_one() {
    let dir = tempfile::tempdir().expect("a directory");
    for args in [&["events"][..], &["events", "why", "1"]] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_ringfence"));
        let (out, err, ok) = output(command.args(args).env("RINGFENCE_RUNTIME_DIR", dir.path()));
        assert!(!ok && out.is_empty());
        assert!(err.contains("daemon does not run") && err.contains("systemctl start ringfence"), "{err}");
        assert_eq!(err.lines().count(), 1, "{err}");
    }
}
