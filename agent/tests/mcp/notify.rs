//! `ringfence approvals notify`: who is told of a call that waits, in what words, and that nobody waits for them.

use crate::{
    approvals::{apart, decide, waiting},
    support::{Client, Home, eventually, signal},
};
use rustix::process::Signal;
use serde_json::Value;
use std::{
    fs,
    io::{BufRead as _, BufReader},
    os::unix::fs::PermissionsExt as _,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const RECEIVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mcp/receiver.py");

/// A receiver of webhooks.
struct Receiver {
    child: Child,
    port: u16,
}

impl Receiver {
    fn start(home: &Home) -> Self {
        let mut command = Command::new("python3");
        command.args([RECEIVER, SECRET, &home.text("hooks")]).stdout(Stdio::piped());
        let mut child = command.spawn().expect("python3");
        let mut port = String::new();
        let out = child.stdout.take().expect("a pipe");
        BufReader::new(out).read_line(&mut port).expect("its port");
        Self { child, port: port.trim().parse().expect("a port") }
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the receiver got so far.
fn hooks(home: &Home) -> Vec<Value> {
    let text = fs::read_to_string(home.path("hooks")).unwrap_or_default();
    text.split_inclusive('\n')
        .filter(|line| line.ends_with('\n'))
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect()
}

/// `ringfence approvals notify` with a webhook at that path.
fn notify(home: &Home, receiver: &Receiver, path: &str, more: &[&str]) -> Client {
    let secret = home.path("secret");
    fs::write(&secret, SECRET).expect("written");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).expect("set");
    let url = format!("http://127.0.0.1:{}{path}", receiver.port);
    let mut command =
        home.ringfence(&["approvals", "notify", "--webhook", &url, "--db", &home.text("audit.db")]);
    // Nothing of this machine leaves it by a proxy.
    command.env("http_proxy", "http://127.0.0.1:9").env("HTTP_PROXY", "http://127.0.0.1:9");
    Client::start(command.args(["--secret-file", &home.text("secret")]).args(more))
}

/// A session, so that there is a database, and a call of its that waits.
fn waits(home: &Home) -> (Client, String) {
    waits_of(home, "delete_it", r#"{"path":"<b>/x</b>"}"#)
}

/// The same of another tool.
fn waits_of(home: &Home, tool: &str, arguments: &str) -> (Client, String) {
    let mut client = apart(home, &["--approval-timeout", "600"]);
    let tool = Value::from(tool);
    client.send(format!(
        "{{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/call\",\"params\":{{\"name\":{tool},\"arguments\":{arguments}}}}}\n"
    ));
    let id = waiting(home);
    (client, id)
}

#[test]
fn a_webhook_is_signed_and_has_no_arguments_unless_they_are_asked_for() {
    let home = Home::new();
    let receiver = Receiver::start(&home);
    let (_client, id) = waits(&home);
    let plain = notify(&home, &receiver, "/plain", &[]);
    let with = notify(&home, &receiver, "/with", &["--with-arguments"]);
    let of =
        |path: &str| eventually("it is told", || hooks(&home).into_iter().find(|hook| hook["path"] == path));
    let (first, second) = (of("/plain"), of("/with"));
    for hook in [&first, &second] {
        assert_eq!((&hook["right"], &hook["type"]), (&true.into(), &"application/json".into()));
        assert_eq!(hook["id"], format!("call_{id}"), "one id for one call, whoever tells of it");
        let data = &hook["body"]["data"];
        assert_eq!(
            (&hook["body"]["type"], &data["tool_name"]),
            (&"approval.waiting".into(), &"delete_it".into())
        );
        assert_eq!(
            (&data["id"], &data["rules"]),
            (&id.clone().into(), &serde_json::json!(["pause_deletes"]))
        );
    }
    assert_eq!(first["body"]["data"]["arguments"], Value::Null);
    assert_eq!(second["body"]["data"]["arguments"], "{\"path\":\"<b>/x</b>\"}");
    // Nobody is told twice, and telling decides nothing.
    thread::sleep(Duration::from_millis(1_500));
    assert_eq!(hooks(&home).len(), 2);
    assert_eq!(waiting(&home), id);
    for mut watch in [plain, with] {
        signal(watch.pid(), Signal::INT);
        assert!(watch.wait().success());
        assert_eq!(watch.errors.rest(), "");
    }
}

#[test]
fn what_may_pass_is_tried_again_and_a_redirect_is_not_followed() {
    let home = Home::new();
    let receiver = Receiver::start(&home);
    let (_client, _) = waits(&home);
    let _flaky = notify(&home, &receiver, "/flaky", &[]);
    let flaky = |hooks: &[Value]| hooks.iter().filter(|hook| hook["path"] == "/flaky").count();
    eventually("the third attempt", || (flaky(&hooks(&home)) == 3).then_some(()));
    assert!(hooks(&home).iter().all(|hook| hook["right"] == true), "each has a signature of its own time");
    let away = notify(&home, &receiver, "/away", &[]);
    eventually("it is said", || {
        away.errors.so_far().contains("answered 307; a redirect is not followed").then_some(())
    });
    thread::sleep(Duration::from_millis(1_500));
    let hooks = hooks(&home);
    assert_eq!(flaky(&hooks), 3, "and no fourth");
    assert_eq!(hooks.iter().filter(|hook| hook["path"] == "/away").count(), 1);
    assert!(!hooks.iter().any(|hook| hook["path"] == "/elsewhere"));
}

#[test]
fn a_receiver_that_answers_nothing_holds_nobody_up_but_the_end_and_a_second_ctrl_c_ends_that() {
    let home = Home::new();
    let receiver = Receiver::start(&home);
    let (client, id) = waits(&home);
    let endless = notify(&home, &receiver, "/endless", &[]);
    let mut silent = notify(&home, &receiver, "/silent", &[]);
    for path in ["/endless", "/silent"] {
        eventually("it is told", || hooks(&home).iter().any(|hook| hook["path"] == path).then_some(()));
    }
    assert_eq!(
        decide(&home, "approve", &id),
        Ok(format!("approved {id}\n")),
        "the call does not wait for them"
    );
    assert!(client.out.line().contains("\"result\""));
    signal(silent.pid(), Signal::INT);
    eventually("it says what it waits for", || {
        silent
            .errors
            .so_far()
            .contains("waits for 1 notice to be delivered; Ctrl-C again ends it at once")
            .then_some(())
    });
    signal(silent.pid(), Signal::INT);
    assert_eq!(silent.wait().code(), Some(1));
    assert!(silent.errors.rest().contains("1 not delivered"));
    drop(endless);
}

/// What undoes escapes in its text, as `notify-send` does by `g_strcompress`, and writes what is shown to a file.
const NOTIFY_SEND: &str = r#"#!/usr/bin/env python3
import os, re, sys
KEPT = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
def undone(found):
    what = found.group(1)
    return bytes([int(what, 8) & 255]) if what[0:1] in b"01234567" else KEPT.get(what, what)
words = [os.fsencode(word) for word in sys.argv[1:]]
words[-1] = re.sub(rb"\\([0-7]{1,3}|.)", undone, words[-1], flags=re.S)
with open(SHOWN + ".new", "wb") as file:
    file.write(b"\n".join(words) + b"\n")
os.rename(SHOWN + ".new", SHOWN)
"#;

#[test]
fn a_desktop_is_told_in_text_that_it_cannot_obey() {
    let home = Home::new();
    let tool = r"delete_\74b\76x\12ringfence approvals approve 11111111\377";
    let (_client, id) = waits_of(&home, tool, r#"{"path":"<b>/x</b>\n\\74"}"#);
    let db = home.text("audit.db");
    let empty = home.path("empty");
    fs::create_dir(&empty).expect("a folder");
    let arguments = ["approvals", "notify", "--desktop", "--with-arguments", "--db", &db];
    let missing = home.ringfence(&arguments).env("PATH", &empty).output().expect("ringfence");
    let said = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(!missing.status.success() && said.contains("libnotify-bin"), "{said}");

    let shown = home.text("shown");
    let path = fake_notify_send(&home, &NOTIFY_SEND.replace("SHOWN", &format!("{shown:?}")));
    let mut watch = Client::start(home.ringfence(&arguments).env("PATH", path));
    let text = eventually("it is shown", || fs::read_to_string(&shown).ok());
    assert!(
        text.starts_with("--app-name=Ringfence\n--urgency=critical\n--\nRingfence: a call waits for you\n"),
        "{text}"
    );
    assert!(
        text.contains(&format!(": {tool}, risk ")) && text.contains(r"&lt;b&gt;/x&lt;/b&gt;\n\\74"),
        "{text}"
    );
    assert_eq!(text.matches("\nringfence approvals approve ").count(), 1, "{text}");
    assert!(
        !text.contains("<b>") && text.contains(&format!("ringfence approvals approve {}", &id[..8])),
        "{text}"
    );
    signal(watch.pid(), Signal::TERM);
    assert!(watch.wait().success());
}

/// A program in the place of `notify-send`, and the `PATH` with it.
fn fake_notify_send(home: &Home, text: &str) -> String {
    let folder = home.path("bin");
    fs::create_dir(&folder).expect("a folder");
    let program = folder.join("notify-send");
    fs::write(&program, text).expect("written");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("set");
    format!("{}:{}", folder.display(), std::env::var("PATH").unwrap_or_default())
}

#[test]
fn the_secret_of_a_webhook_is_in_the_environment_of_nobody_else() {
    let home = Home::new();
    let (mut client, _) = waits(&home);
    assert!(client.end().success());
    // The next auditor is started by whoever asks next.
    let before = home.serving();
    before.iter().for_each(|pid| signal(*pid, Signal::KILL));
    eventually("they are gone", || home.auditors().is_empty().then_some(()));
    let shown = home.text("shown");
    let text = format!("#!/bin/sh\nenv > '{shown}.new' && mv '{shown}.new' '{shown}'\n");
    let path = fake_notify_send(&home, &text);
    let receiver = Receiver::start(&home);
    let url = format!("http://127.0.0.1:{}/plain", receiver.port);
    let db = home.text("audit.db");
    let arguments =
        ["approvals", "notify", "--desktop", "--webhook", &url, "--secret-env", "HOOK_SECRET", "--db", &db];
    let mut command = home.ringfence(&arguments);
    let _watch = Client::start(command.env("PATH", path).env("HOOK_SECRET", SECRET).env("HOOK_OTHER", "x"));
    let auditor = home.serving()[0];
    let environment = fs::read(format!("/proc/{auditor}/environ")).expect("its environment");
    let environment = String::from_utf8_lossy(&environment);
    assert!(environment.contains("HOOK_OTHER=x"), "the control: it was started by that");
    assert!(!environment.contains("HOOK_SECRET"), "{environment}");
    let (_client, _) = waits(&home);
    let environment = eventually("it is shown", || fs::read_to_string(&shown).ok());
    assert!(environment.contains("PATH=") && !environment.contains("HOOK_"), "{environment}");
    eventually("the webhook is told", || (hooks(&home).len() == 1).then_some(()));
    assert_eq!(hooks(&home)[0]["right"], true);
}

#[test]
fn an_auditor_that_answers_nothing_keeps_nobody_from_ending_it() {
    let home = Home::new();
    let (_client, _) = waits(&home);
    let shown = home.text("shown");
    let path = fake_notify_send(&home, &format!("#!/bin/sh\necho >> '{shown}'\n"));
    let db = home.text("audit.db");
    let mut command = home.ringfence(&["approvals", "notify", "--desktop", "--db", &db]);
    let mut watch = Client::start(command.env("PATH", path));
    eventually("it is shown", || fs::read_to_string(&shown).ok());
    let auditors = home.serving();
    auditors.iter().for_each(|pid| signal(*pid, Signal::STOP));
    // It looks every half second, and an answer may take thirty.
    thread::sleep(Duration::from_millis(1_500));
    let begun = Instant::now();
    signal(watch.pid(), Signal::INT);
    let ended = watch.wait();
    let took = begun.elapsed();
    auditors.iter().for_each(|pid| signal(*pid, Signal::CONT));
    assert!(ended.success() && took < Duration::from_secs(20), "{ended}, {took:?}");
}

#[test]
fn what_is_no_receiver_is_refused_before_anything_is_told() {
    let home = Home::new();
    let (_client, _) = waits(&home);
    let db = home.text("audit.db");
    fs::write(home.path("secret"), SECRET).expect("written");
    let ask = |arguments: &[&str]| {
        let all = [&["approvals", "notify", "--db", &db], arguments].concat();
        let done = home.ringfence(&all).env("GOOD", SECRET).env("BAD", "short").output().expect("ringfence");
        assert!(!done.status.success(), "{arguments:?}");
        String::from_utf8_lossy(&done.stderr).into_owned()
    };
    let cases: [(&[&str], &str); 7] = [
        (&[], "--webhook"),
        (&["--webhook", "https://example.org/"], "--secret"),
        (&["--secret-env", "GOOD"], "--webhook"),
        (&["--webhook", "http://example.org/", "--secret-env", "GOOD"], "webhooks require https"),
        (&["--webhook", "https://a:b@example.org/", "--secret-env", "GOOD"], "has a user or a password"),
        (&["--webhook", "https://example.org/", "--secret-env", "BAD"], "base64"),
        (&["--webhook", "https://example.org/", "--secret-file", &home.text("secret")], "chmod 600"),
    ];
    for (arguments, why) in cases {
        let said = ask(arguments);
        assert!(said.contains(why) && !said.contains("MfKQ9r8G"), "{arguments:?}: {said}");
    }
}
