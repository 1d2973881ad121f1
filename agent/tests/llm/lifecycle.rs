//! The daemon: many agents, reload, stopping, a second one; and the commands that talk to it.

use crate::{
    mock::{Answer, Gate, Mock, says},
    support::{Client, Home, eventually, is_closed, text_of, turn, user},
};
use nix::sys::signal::Signal;
use serde_json::json;
use std::{
    fs,
    io::Write,
    os::unix::fs::{FileTypeExt, PermissionsExt},
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

#[test]
fn sockets_are_private_and_where_the_seed_has_them() {
    let home = Home::with(&Mock::new());
    let daemon = home.start();
    let real = home.path(".config/ringfence/sockets/a/agent.sock");
    let mode = |path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&real), mode(&home.path(".config/ringfence/sockets/a"))), (0o600, 0o700));
    assert!(fs::metadata(&real).unwrap().file_type().is_socket());
    assert_eq!(fs::canonicalize(home.socket("a")).unwrap(), fs::canonicalize(&real).unwrap());
    daemon.stop();
    assert!(!real.exists() && home.socket("a").symlink_metadata().is_err(), "nothing is left behind");
}

#[test]
fn no_core_and_no_process_of_the_user_gets_at_what_the_service_holds() {
    use std::os::unix::{fs::MetadataExt, process::CommandExt};
    let home = Home::with(&Mock::new());
    let mut command = home.ringfence(&["agent", "start"]);
    let is_root = home.is_an_ordinary_users(&mut command);
    // The control: what another process of this user looks like.
    let mut other = Command::new("sleep");
    if is_root {
        other.uid(1234).gid(1234);
    }
    let mut other = other.arg("1000").spawn().unwrap();
    eventually("the control's exec", || {
        let name = fs::read_to_string(format!("/proc/{}/comm", other.id())).unwrap();
        (name == "sleep\n").then_some(())
    });
    let mine = if is_root { 1234 } else { nix::unistd::geteuid().as_raw() };
    assert_eq!(fs::metadata(format!("/proc/{}/environ", other.id())).unwrap().uid(), mine);
    other.kill().unwrap();
    other.wait().unwrap();
    let daemon = home.started(&mut command);
    is_closed(daemon.pid());
    daemon.stop();
}

#[test]
fn the_service_writes_nowhere_but_in_its_own_directories() {
    let home = Home::with(&Mock::new());
    let daemon = home.start();
    if daemon.log().contains("no Landlock") {
        return;
    }
    let profile = fs::read_to_string(home.path(".config/ringfence/agents/a.toml")).unwrap();
    let error_of = |name: &str| {
        home.profile(name, &profile);
        eventually(name, || {
            let listed = home.run(&["agent", "list", "--json"]);
            let listed: serde_json::Value = serde_json::from_str(&listed.out).ok()?;
            let agents = listed.as_array().or_else(|| listed["agents"].as_array())?.clone();
            let agent = agents.into_iter().find(|agent| agent["name"] == name)?;
            Some(agent["error"].as_str().unwrap_or_default().to_owned())
        })
    };
    assert_eq!(error_of("b"), "", "the control");
    // Wherever a path of its own is made to lead by then.
    let (logs, elsewhere) = (home.path(".local/share/ringfence/logs"), home.path("elsewhere"));
    fs::create_dir(&elsewhere).unwrap();
    fs::rename(&logs, home.path("logs")).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &logs).unwrap();
    let error = error_of("c");
    assert!(error.contains("Permission denied"), "{error}");
    assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 0);
}

#[test]
fn a_containers_user_may_register_and_not_send() {
    use std::os::unix::process::CommandExt;
    let home = Home::with(&Mock::new());
    let text = fs::read_to_string(home.path(".config/ringfence/agents/a.toml")).unwrap();
    home.profile("a", &format!("socket_owner = 12345\n{text}"));
    let _daemon = home.start();
    let mode = |path: &str| fs::metadata(home.path(path)).unwrap().permissions().mode() & 0o777;
    assert_eq!(
        mode(".config/ringfence/sockets/a/agent.sock"),
        0o660,
        "the group class stands for the named user"
    );
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    // As a container has it: the socket's directory, mounted somewhere that this user can reach.
    for dir in ["", ".config", ".config/ringfence", ".config/ringfence/sockets"] {
        fs::set_permissions(home.path(dir), fs::Permissions::from_mode(0o755)).unwrap();
    }
    let send_as = |uid: u32| {
        let mut command = home.ringfence(&["agent", "send", "a", "I am your user"]);
        let output = command.uid(uid).gid(uid).output().unwrap();
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(send_as(0).contains("runtime not connected"), "the control: a message that would be delivered");
    let refused = send_as(12345);
    assert!(
        refused.contains("only the user who runs the agent's worker"),
        "it can connect, and not send: {refused}"
    );
    assert!(send_as(12346).contains("cannot be reached"), "nobody else can connect");
}

#[test]
fn a_subscriber_that_does_not_read_delays_nobody() {
    let big = "x".repeat(100_000);
    let pieces: Vec<&str> = vec![&big; 300];
    let mock = Mock::with([says(&pieces), says(&["next"])]);
    let home = Home::with(&mock);
    let (daemon, mut runtime) = home.serve();
    let _deaf = Client::sender(&home.socket("a"), "1");
    runtime.human();
    runtime.write(&turn(1, json!([user("1")])));
    let (answer, streamed) = runtime.answer();
    // 30 MB are more than a frame holds: the stream came, the answer is an error that says so.
    assert_eq!(text_of(&streamed).len(), 30_000_000);
    assert!(answer["error"]["message"].as_str().unwrap().contains("most of a frame"), "{}", answer["error"]);
    assert_eq!(runtime.says(2, "2")["result"]["content"][0]["text"], "next");
    eventually("the second turn is counted", || (daemon.status("a")["worker"]["turns"] == 2).then_some(()));
    assert_eq!(daemon.status("a")["worker"]["slow_peers"], 1);
}

#[test]
fn a_second_daemon_is_refused_and_takes_nothing() {
    let mock = Mock::with([says(&["still here"])]);
    let home = Home::with(&mock);
    let (_daemon, mut runtime) = home.serve();
    let second = home.run(&["agent", "start"]);
    assert!(!second.status);
    assert!(second.err.contains("runs already"), "{}", second.err);
    assert_eq!(runtime.says(1, "x")["result"]["content"][0]["text"], "still here");
}

#[test]
fn profiles_are_read_again() {
    let mock = Mock::new();
    let home = Home::with(&mock);
    home.agent("b", &mock, "");
    let (daemon, mut runtime) = home.serve();
    // A new one appears.
    home.agent("c", &mock, "");
    let mut new = Client::runtime(&home.socket("c"));
    // One that is gone ends, with a word to whoever is there.
    let mut gone = Client::runtime(&home.socket("b"));
    fs::remove_file(home.path(".config/ringfence/agents/b.toml")).unwrap();
    assert!(gone.next().is_none());
    eventually("its socket is gone", || (!home.path(".config/ringfence/sockets/b").exists()).then_some(()));
    // A broken one changes nothing but what is said of it.
    home.profile("a", "[llm.m]\nprovider = \"nobody\"\n");
    let status = eventually("the mistake is told", || {
        let status = daemon.status("a");
        status["error"].is_string().then_some(status)
    });
    assert_eq!(status["state"], "running");
    assert!(status["error"].as_str().unwrap().contains("a.toml:2:"), "{status}");
    mock.then([says(&["as before"]), says(&["new"])]);
    assert_eq!(runtime.says(1, "x")["result"]["content"][0]["text"], "as before");
    assert_eq!(mock.last().body["model"], "model-of-a");
    assert_eq!(new.says(1, "x")["result"]["content"][0]["text"], "new");
    // A right one is in force without a new connection.
    home.agent("a", &mock, "max_tokens = 5");
    eventually("the profile is in force", || {
        mock.then([says(&["x"])]);
        runtime.says(2, "x");
        (mock.last().body["max_tokens"] == 5).then_some(())
    });
    assert!(daemon.status("a")["error"].is_null());
}

#[test]
fn a_broken_registry_changes_nothing_and_sighup_reads_credentials_again() {
    let mock = Mock::with([says(&["1"]), says(&["2"])]);
    let home = Home::empty();
    home.write("key", "sk-first-key");
    let key = home.path("key");
    home.profile(
        "a",
        &format!(
            "[llm.m]\nprovider = \"anthropic\"\nmodel = \"m\"\napi_key_file = \"{}\"\nbase_url = \"{}\"\n",
            key.display(),
            mock.url
        ),
    );
    let (daemon, mut runtime) = home.serve();
    home.write(".config/ringfence/registry.toml", "[llm.x\n");
    eventually("the mistake is told", || {
        home.run(&["status"]).out.contains("registry cannot be used").then_some(())
    });
    let listed = home.run(&["agent", "list"]).out;
    assert!(
        listed.contains("! the registry cannot be used: ") && listed.contains("registry.toml:1: "),
        "{listed}"
    );
    runtime.says(1, "x");
    assert_eq!(mock.last().header("x-api-key"), Some("sk-first-key"));
    fs::remove_file(home.path(".config/ringfence/registry.toml")).unwrap();
    home.write("key", "sk-second-key");
    daemon.signal(Signal::SIGHUP);
    eventually("the new key is in use", || {
        mock.then([says(&["x"])]);
        runtime.says(2, "x");
        (mock.last().header("x-api-key") == Some("sk-second-key")).then_some(())
    });
}

#[test]
fn stopping_lets_what_is_under_way_finish() {
    let gate = Arc::new(Gate::default());
    let events = crate::mock::anthropic_events(&[crate::mock::text_block(&["the end"])], "end_turn");
    let mock = Mock::with([Answer::Gated(events[..2].concat(), Arc::clone(&gate), events[2..].concat())]);
    let home = Home::with(&mock);
    let (mut daemon, mut runtime) = home.serve();
    let mut sender = Client::delivered(&home.socket("a"), "x", &mut runtime);
    runtime.write(&turn(1, json!([user("x")])));
    mock.wait_asked(1);
    let stopped = home.run(&["agent", "stop", "--all"]);
    assert!(stopped.status, "{}", stopped.err);
    std::thread::sleep(Duration::from_millis(300));
    gate.open();
    assert_eq!(runtime.answer().0["result"]["content"][0]["text"], "the end");
    assert_eq!(text_of(&[sender.expect()]), "the end");
    assert_eq!(sender.expect()["method"], "end_turn");
    assert!(runtime.next().is_none());
    daemon.wait();
    let ran = home.run(&["agent", "stop", "--all"]);
    assert!(!ran.status && ran.err.contains("no `ringfence agent start` runs"), "{}", ran.err);
}

#[test]
fn whoever_says_stop_hears_that_it_was_heard() {
    for _ in 0..5 {
        let home = Home::with(&Mock::new());
        let mut daemon = home.start();
        assert!(home.run(&["agent", "stop", "a"]).status);
        eventually("it is stopped", || (daemon.status("a")["state"] == "stopped").then_some(()));
        // Nothing is left to finish, so that it ends at once.
        let ran = home.run(&["agent", "stop", "--all"]);
        assert!(ran.status && ran.out.contains("is stopping"), "{}{}", ran.out, ran.err);
        daemon.wait();
        let ran = home.run(&["status"]);
        assert!(!ran.status, "{}", ran.out);
        assert!(
            ran.err.contains("daemon") && ran.err.contains("no `ringfence agent start` runs"),
            "{}",
            ran.err
        );
    }
}

#[test]
fn one_agent_is_stopped_and_started_again() {
    let mock = Mock::new();
    let home = Home::with(&mock);
    home.agent("b", &mock, "");
    let daemon = home.start();
    assert!(home.run(&["agent", "stop", "a"]).status);
    eventually("it is stopped", || (daemon.status("a")["state"] == "stopped").then_some(()));
    assert_eq!(daemon.status("b")["state"], "running");
    let unknown = home.run(&["agent", "stop", "nobody"]);
    assert!(!unknown.status && unknown.err.contains("those that do: b"), "{}", unknown.err);
    assert!(home.run(&["agent", "stop", "b"]).status);
    let again = home.run(&["agent", "stop", "b"]);
    assert!(!again.status && again.err.contains("no agent \"b\" runs; none does"), "{}", again.err);
    daemon.signal(Signal::SIGHUP);
    eventually("it runs again", || (daemon.status("a")["state"] == "running").then_some(()));
}

#[test]
fn the_commands_send_and_show() {
    let mock = Mock::with([says(&["Hello ", "z\u{fc}rich"])]);
    let home = Home::with(&mock);
    let daemon = home.start();
    let ran = home.run(&["agent", "send", "a", "hi"]);
    assert!(!ran.status && ran.err.contains("runtime not connected"), "{}", ran.err);
    let ran = home.run(&["agent", "send", "nobody", "hi"]);
    assert!(
        !ran.status && ran.err.contains("no profile named \"nobody\"") && ran.err.contains("there are: a"),
        "{}",
        ran.err
    );
    home.profile("unserved", "[llm");
    let ran = home.run(&["agent", "send", "unserved", "hi"]);
    assert!(!ran.status && ran.err.contains("cannot be reached: nothing serves it"), "{}", ran.err);
    let ran = home.run(&["agent", "send", "unserved", "- a list\n- of things", "--no-wait"]);
    assert!(ran.err.contains("cannot be reached"), "a message may begin like a flag: {}", ran.err);
    let ran = home.run(&["agent", "send", "nobody", "--no-wait"]);
    assert!(ran.err.contains("<MESSAGE>"), "and a flag is none: {}", ran.err);
    // Noticed or not by now, it is not for `status` to complain of below.
    fs::remove_file(home.path(".config/ringfence/agents/unserved.toml")).unwrap();
    eventually("the broken profile is forgotten", || daemon.status("unserved").is_null().then_some(()));
    let mut runtime = Client::runtime(&home.socket("a"));
    let mut sending = home.ringfence(&["agent", "send", "a", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    sending.stdin.take().unwrap().write_all(b"from a pipe").unwrap();
    assert_eq!(runtime.human()[0]["text"], "from a pipe");
    runtime.says(1, "from a pipe");
    let sent = sending.wait_with_output().unwrap();
    assert!(sent.status.success());
    assert_eq!(String::from_utf8(sent.stdout).unwrap(), "Hello z\u{fc}rich\n");
    let ran = home.run(&["agent", "send", "a", "hi", "--no-wait"]);
    assert_eq!((ran.status, ran.out.as_str()), (true, "delivered\n"), "{}", ran.err);
    let ran = home.run(&["agent", "send", "a", "again", "--no-wait"]);
    assert_eq!(ran.out, "queued\n");
    let waiting = home.ringfence(&["agent", "send", "a", "third"]).spawn().unwrap();
    eventually("it waits", || home.run(&["agent", "list"]).out.contains("  2  ").then_some(()));
    drop(runtime);
    let failed = waiting.wait_with_output().unwrap();
    assert!(!failed.status.success());
    assert!(String::from_utf8(failed.stderr).unwrap().contains("agent disconnected"));
    let logs = home.run(&["agent", "logs", "a"]);
    assert_eq!(logs.out, fs::read_to_string(home.log("a")).unwrap());
    assert!(!home.run(&["agent", "logs", "nobody"]).status);
    let status = home.run(&["status"]);
    assert!(status.status && status.out.contains("anthropic/model-of-a"), "{}{}", status.out, status.err);
    let json: serde_json::Value = serde_json::from_str(&home.run(&["status", "--json"]).out).unwrap();
    assert_eq!(json["user"]["agents"][0]["name"], "a");
    assert_eq!(home.run(&["version"]).out, concat!("ringfence ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn a_full_disk_behind_standard_output_is_not_the_logs() {
    let mock = Mock::with([says(&["one"])]);
    let home = Home::with(&mock);
    let _daemon = home.start();
    Client::runtime(&home.socket("a")).says(1, "1");
    for command in
        [["agent", "logs", "a"].as_slice(), &["status"], &["agent", "show", "a"], &["agent", "list"]]
    {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let output = home.ringfence(command).stdout(full).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(
            !output.status.success() && error.contains("standard output cannot be written: No space left"),
            "{error}"
        );
        assert!(home.run(command).status, "the control: {command:?}");
    }
}

#[test]
fn a_log_is_followed() {
    let mock = Mock::with([says(&["one"]), says(&["two"])]);
    let home = Home::with(&mock);
    let (_daemon, mut runtime) = home.serve();
    runtime.says(1, "1");
    let mut following = home.ringfence(&["agent", "logs", "a", "--follow"]).spawn().unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(following.stdout.take().unwrap()));
    let mut next = || lines.next().unwrap().unwrap();
    assert!(next().contains("\"1\"") && next().contains("one"));
    runtime.says(2, "2");
    assert!(next().contains("\"2\"") && next().contains("two"));
    following.kill().unwrap();
    following.wait().unwrap();
}

#[test]
fn the_users_service_is_installed_and_removed() {
    let home = Home::with(&Mock::new());
    // A systemctl that writes down what it is asked. Another process makes it: a child of another test, forked while we write,
    // would keep the file busy.
    home.write("systemctl", "#!/bin/sh\necho \"$@\" >> \"$HOME/asked\"\n");
    fs::create_dir(home.path("bin")).unwrap();
    let mut install = Command::new("install");
    install.args(["-m", "755"]).arg(home.path("systemctl")).arg(home.path("bin/systemctl"));
    assert!(install.status().unwrap().success());
    let run = |arguments: &[&str]| {
        let path = format!("{}:/usr/bin:/bin", home.path("bin").display());
        let output = home.ringfence(arguments).env("PATH", path).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let unit = home.path(".config/systemd/user/ringfence.service");
    run(&["init"]);
    let text = fs::read_to_string(&unit).unwrap();
    assert!(!text.contains("Environment"), "there is nothing that its manager does not know: {text}");
    assert!(text.contains(&format!("ExecStart=\"{}\" start\n", env!("CARGO_BIN_EXE_ringfence"))), "{text}");
    run(&["init", "--uninstall"]);
    assert!(!unit.exists());
    run(&["init"]);
    run(&["stop"]);
    assert!(!unit.exists(), "`stop` uninstalls, as in the seed");
    let asked = fs::read_to_string(home.path("asked")).unwrap();
    assert!(
        asked.contains(&format!("--user enable {}\n", unit.display()))
            && asked.contains("--user disable --now ringfence.service"),
        "{asked}"
    );
}
