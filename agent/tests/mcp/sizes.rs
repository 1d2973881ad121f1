//! Long lines: what peers may send passes, what nobody should send ends in an error and not in memory.

use crate::support::{Client, Home, answered};
use serde_json::Value;
use std::{
    fs,
    io::Read,
    process::{Command, Stdio},
};

/// Most memory of the interceptor that a line of 1 GiB may cost, bytes: the limit on lines, a buffer that doubles, and room.
const BOUND: u64 = 224 << 20;

/// The most memory that a process ever had, bytes.
fn peak(pid: i32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("its peak");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") << 10
}

fn long_call(id: &str, length: usize) -> String {
    let text = "y".repeat(length);
    format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":{id},\"method\":\"tools/call\",\"params\":{{\"name\":\"read_it\",\"arguments\":{{\"a\":\"{text}\"}}}}}}\n"
    )
}

#[test]
fn ten_mebibytes_pass() {
    let (home, mut client) = Home::with_client(&[], &[]);
    let line = long_call("1", 10 << 20);
    client.send(&line);
    assert_eq!(client.out.line(), answered("1"));
    client.works("2");
    assert!(client.end().success());
    let received = home.received();
    assert!(received.starts_with(line.as_bytes()), "every byte of it");
    assert_eq!(home.calls(&[]).len(), 2);
    // The other way: an echo of the same line.
    let mut echo = Client::start(home.interceptor(&["--"]).arg("cat"));
    echo.send(&line);
    assert!(echo.out.bytes(line.len()) == line.as_bytes());
    assert!(echo.end().success());
}

#[test]
fn a_longer_line_than_the_limit_is_refused_and_the_next_passes() {
    let (home, mut client) = Home::with_client(&["--max-line", "4096"], &[]);
    let fits = long_call("1", 3900);
    assert!((3900..=4096).contains(&fits.len()), "the control");
    client.send(&fits);
    assert_eq!(client.out.line(), answered("1"));
    client.send(long_call("2", 4096));
    let answer = client.out.line();
    assert!(answer.contains("a line longer than 4096 bytes cannot be judged"), "{answer}");
    client.works("3");
    assert!(client.end().success());
    let received = String::from_utf8(home.received()).expect("text");
    assert_eq!(received, fits + &crate::support::call("3", "read_it"));
    let noted = home
        .journal()
        .iter()
        .any(|entry| entry["text"].as_str().is_some_and(|t| t.contains("not forwarded")));
    assert!(noted, "it is on record");
}

#[test]
fn a_server_s_own_request_that_is_too_long_is_answered() {
    const SERVER: &str = r#"printf '{"method":"sampling/createMessage","params":{"x":"'; head -c 4096 /dev/zero | tr '\0' x
        printf '"},"jsonrpc":"2.0","id":9}\n'; cat"#;
    let home = Home::new();
    let mut client = Client::start(&mut home.interceptor(&["--max-line", "1024", "--", "sh", "-c", SERVER]));
    // What it is told, as it says itself.
    let told: Value = serde_json::from_str(&client.out.line()).expect("JSON");
    assert_eq!((&told["id"], &told["error"]["code"]), (&9.into(), &(-32603).into()), "{told}");
    assert!(client.end().success());
}

#[test]
fn a_gibibyte_from_the_client_is_refused_in_bounded_memory() {
    let (home, mut client) = Home::with_client(&[], &[]);
    let piece = "z".repeat(1 << 20);
    for _ in 0..1024 {
        client.send(&piece);
    }
    client.send("\n");
    let answer = client.out.line();
    assert!(answer.contains("a line longer than 67108864 bytes cannot be judged"), "{answer}");
    client.works("2");
    let peak = peak(client.pid());
    assert!(peak < BOUND, "{} MiB", peak >> 20);
    assert!(client.end().success());
    assert_eq!(String::from_utf8_lossy(&home.received()), crate::support::call("2", "read_it"));
}

#[test]
fn a_gibibyte_from_the_server_passes_in_bounded_memory() {
    const SERVER: &str = r#"head -c 1073741824 /dev/zero | tr '\0' x; echo; cat"#;
    let home = Home::new();
    let mut command: Command = home.interceptor(&["--", "sh", "-c", SERVER]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a process");
    let mut output = child.stdout.take().expect("a pipe");
    let mut chunk = vec![0; 1 << 20];
    let mut count = 0_usize;
    loop {
        let n = output.read(&mut chunk).expect("bytes");
        assert!(n > 0, "it ended after {count} bytes");
        count += n;
        let end = chunk[..n].iter().position(|byte| *byte != b'x');
        assert!(end.is_none_or(|at| chunk[at] == b'\n' && at + 1 == n));
        if end.is_some() {
            break;
        }
    }
    assert_eq!(count, (1 << 30) + 1);
    let peak = peak(i32::try_from(child.id()).expect("a pid"));
    assert!(peak < BOUND, "{} MiB", peak >> 20);
    drop(child.stdin.take());
    assert!(child.wait().expect("an end").success());
}
