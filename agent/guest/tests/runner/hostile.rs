//! Requests that are none: each a clear error, and nothing is run.

use crate::support::{Runner, decode, wait_until};
use std::{
    fs,
    io::{Read, Write},
    net::Shutdown,
};

/// The answer of v2 as text; v1's as its standard error, with the code checked.
fn refused(runner: &Runner, request: &[u8]) -> String {
    let answer = runner.exchange(request);
    if answer.first() == Some(&131) {
        let (out, err, code) = decode(&answer);
        assert_eq!((out.as_str(), code), ("", 1), "{err}");
        return err;
    }
    let refusal: serde_json::Value = serde_json::from_slice(&answer[4..]).unwrap();
    assert_eq!(refusal["refused"]["status"], 126);
    refusal["refused"]["message"].as_str().unwrap().to_owned()
}

#[test]
fn each_is_named_and_nothing_runs() {
    let runner = Runner::start(&[]);
    let victim = runner.work().join("victim");
    let half = format!("tee\t{}", victim.display());
    let frame = |body: &[u8]| [&u32::try_from(body.len()).unwrap().to_be_bytes()[..], body].concat();
    let long_line = [half.as_bytes(), &vec![b'x'; 300_000], b"\n"].concat();
    let nul = format!("tee\t{}\0\n", victim.display()).into_bytes();
    for (request, words) in [
        (half.into_bytes(), "half a request: the connection ended before it did; nothing was run"),
        (long_line, "more than 131072 bytes; nothing was run"),
        (nul, "has a NUL byte"),
        (b"\n".to_vec(), "names no command"),
        (b"\tx\n".to_vec(), "names no command"),
        (b"\0".to_vec(), "half a request"),
        (vec![0; 4], "a message of no bytes"),
        (vec![0, 0xff, 0xff, 0xff], "more than 131072 bytes"),
        (frame(b"\xff\xfe"), "cannot be understood"),
        (frame(b"{}"), "cannot be understood"),
        (frame(br#"{"ask":{"cmd":7,"args":[],"cwd":"/"}}"#), "invalid type: integer `7`, expected a string"),
        (frame(br#"{"ask":{"args":[],"cwd":"/"}}"#), "missing field `cmd`"),
        (frame(br#"{"ask":{"cmd":"x","args":[],"cwd":"/","as":"root"}}"#), "unknown field `as`"),
        (
            frame(
                br#"{"done":{"status":0,"signal":null,"bytes":0,"error_bytes":0,"cut":false,"spill":null}}"#,
            ),
            "`done` before `ask`",
        ),
        (frame(br#"{"run":{}}"#), "unknown variant `run`"),
        (frame(&[b'['; 100_000]), "cannot be understood"),
    ] {
        let said = refused(&runner, &request);
        assert!(said.contains(words), "{words}: {said}");
        assert!(said.contains("nothing was run"), "{said}");
    }
    assert!(!victim.exists());
    // The control: the same, whole.
    assert_eq!(decode(&runner.exchange(format!("tee\t{}\n", victim.display()).as_bytes())).2, 0);
    assert!(victim.exists());
    let log = fs::read_to_string(runner.at("log")).unwrap();
    assert_eq!(log.matches("\"refused\":").count(), 16, "{log}");
}

#[test]
fn noise_ends_nothing() {
    let runner = Runner::start(&[]);
    let mut noise: u32 = 7;
    for length in (0..200).map(|round| round * 7) {
        let bytes: Vec<u8> = (0..length)
            .map(|_| {
                noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                // Without line ends: noise is not to name a tool by chance.
                (noise >> 24).to_le_bytes()[0] | 0x80
            })
            .collect();
        runner.exchange(&bytes);
    }
    assert_eq!(decode(&runner.exchange(b"echo\thi\n")).0, "hi\n");
}

#[test]
fn a_flood_of_megabytes_still_gets_its_answer() {
    let runner = Runner::start(&[]);
    let mut stream = runner.connect();
    let chunk = vec![b'x'; 1 << 20];
    for _ in 0..8 {
        // The daemon may have answered and gone before all of it was sent.
        if stream.write_all(&chunk).is_err() {
            break;
        }
    }
    let _ = stream.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert!(decode(&answer).1.contains("more than 131072 bytes"));
}

#[test]
fn who_does_not_read_or_does_not_go_on_holds_nobody_up() {
    let runner = Runner::start(&["--truncate", "off"]);
    let fds = || fs::read_dir(format!("/proc/{}/fd", runner.daemon_pid())).unwrap().count();
    let before = fds();
    let mut deaf = runner.connect();
    deaf.write_all(b"head\t-c\t9000000\t/dev/zero\n").unwrap();
    let mut slow = runner.connect();
    slow.write_all(b"ec").unwrap();
    let half = runner.connect();
    drop(half);
    assert_eq!(decode(&runner.exchange(b"echo\thi\n")).0, "hi\n");
    // Both are dropped in the end, with the answer that nobody reads.
    wait_until("the slow one is told", || slow.read(&mut [0; 64]).unwrap() == 0);
    wait_until("both are dropped", || fds() <= before);
    drop(deaf);
}

#[test]
fn connections_are_bounded() {
    let runner = Runner::start(&["--max-tools", "1"]);
    let many: Vec<_> =
        (0..360).filter_map(|_| std::os::unix::net::UnixStream::connect(runner.socket()).ok()).collect();
    let fds = fs::read_dir(format!("/proc/{}/fd", runner.daemon_pid())).unwrap().count();
    assert!(fds <= 256 + 1 + 16, "{fds} descriptors of {} connections", many.len());
    drop(many);
    wait_until("it serves again", || decode(&runner.exchange(b"echo\thi\n")).0 == "hi\n");
}
