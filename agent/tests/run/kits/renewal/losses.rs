//! What could lose a login: either its refresh token is not sent, or what comes for it is kept.

use super::*;
use nix::{
    sys::signal::{Signal, kill, killpg},
    unistd::Pid,
};
use std::sync::Mutex;

/// A vendor whose token endpoint answers as [`rotating`] does, once it is let.
fn waiting() -> (Vendor, mpsc::Sender<()>) {
    let ((let_it, let_go), answer) = (mpsc::channel(), rotating());
    let let_go = Mutex::new(let_go);
    let vendor = Vendor::new(move |question| {
        // A test that failed lets nothing go.
        let _ = let_go.lock().unwrap().recv_timeout(LIMIT);
        answer(question)
    });
    (vendor, let_it)
}

fn started(mut command: Command) -> Child {
    // A group of its own, so that a signal to it reaches nobody else.
    command.process_group(0).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

#[test]
fn one_that_cannot_be_renewed_is_said_and_left_as_it_is() {
    let answers = [
        (
            http("400 Bad Request", r#"{"error":"invalid_grant","error_description":"r-0"}"#),
            "400 (invalid_grant)",
        ),
        (http("401 Unauthorized", ""), "answers 401"),
        (http("429 Too Many Requests", ""), "try later"),
        (http("503 Service Unavailable", "<html>"), "try later"),
        (http("403 Forbidden", "<html>"), "try later"),
        (http("403 Forbidden", r#"{"error":"access_denied"}"#), "403 (access_denied)"),
        (http("500 Internal Server Error", "sorry"), "answers 500"),
        (
            b"HTTP/1.1 307 There\r\nlocation: https://elsewhere.example/\r\ncontent-length: 0\r\n\r\n"
                .to_vec(),
            "answers 307",
        ),
        (http("200 OK", r#"{"access_token":""}"#), "no token that can be used"),
        (http("200 OK", "<html>"), "not that of a token endpoint"),
        (
            b"HTTP/1.1 200 OK\r\ncontent-length: 900\r\n\r\n{\"access_token\":\"sk-fresh\",".to_vec(),
            "breaks off",
        ),
        (Vec::new(), "cannot be reached"),
    ];
    for (answer, why) in answers {
        let (bad, fake) = (Vendor::new(move |_| answer.clone()), Fake::renewing("", OVER));
        let said = refused(&fake.run(&bad).output().unwrap());
        assert!(said.contains("cannot be renewed") && said.contains(why) && !said.contains("r-0"), "{said}");
        assert_ne!(said.contains("log in again"), why == "try later", "{said}");
        assert_eq!((fake.login_file().as_str(), bad.questions(), bad.keys().len()), (OVER, 1, 0), "{why}");
        // Nor is it asked again only now, and what was the matter is said again.
        let said = refused(&fake.run(&bad).output().unwrap());
        assert!(said.contains(why) && said.contains("is not again"), "{said}");
        assert_eq!(bad.questions(), 0, "{why}");
        fake.has_nothing_left();
        // The control: later, with an endpoint that gives one.
        fake.forget();
        let good = Vendor::new(rotating());
        succeeds(&fake.run(&good).output().unwrap());
        assert_eq!((good.questions(), good.keys()), (1, vec!["sk-fresh-1".to_owned()]), "{why}");
    }
}

#[test]
fn nobody_looks_into_the_launcher_while_it_holds_a_refresh_token() {
    let ((vendor, let_it), fake) = (waiting(), Fake::renewing("", OVER));
    fake.host.executable("fake", b"#!/bin/bash\necho started\nread\n");
    let mut command = fake.run(&vendor);
    let mut user = nix::unistd::geteuid().as_raw();
    if user == 0 {
        // Root's own are root's either way.
        let nobody = nix::unistd::User::from_name("nobody").unwrap().unwrap();
        user = nobody.uid.as_raw();
        let mut chown = Command::new("chown");
        assert!(chown.args(["-R", "nobody"]).arg(fake.host.path("")).status().unwrap().success());
        command.uid(user).gid(nobody.gid.as_raw());
    }
    let mut run = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    vendor.questions.recv_timeout(LIMIT).unwrap();
    // What nobody else of its user may read is root's.
    let environ = format!("/proc/{}/environ", run.id());
    let owner = || fs::metadata(&environ).unwrap().uid();
    assert_eq!(owner(), 0);
    let_it.send(()).unwrap();
    let mut line = String::new();
    BufReader::new(run.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!((line.as_str(), owner()), ("started\n", user), "the control: it holds none any more");
    drop(run.stdin.take());
    run.wait().unwrap();
    assert!(fake.login_file().contains("r-1"), "{}", fake.login_file());
}

#[test]
fn an_endpoint_that_could_not_be_connected_to_is_asked_again_at_once() {
    let (vendor, fake) = (Vendor::new(rotating()), Fake::renewing("", OVER));
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let offline = fake.run(&vendor).env("HTTPS_PROXY", format!("http://{nobody}")).output().unwrap();
    let said = refused(&offline);
    assert!(said.contains("cannot be reached"), "{said}");
    assert_eq!(fake.login_file(), OVER);
    fake.has_nothing_left();
    succeeds(&fake.run(&vendor).output().unwrap());
    assert_eq!((vendor.questions(), vendor.keys()), (1, vec!["sk-fresh-1".to_owned()]));
}

#[test]
fn where_its_file_cannot_be_written_nobody_is_asked() {
    let (vendor, fake) = (Vendor::new(rotating()), Fake::renewing("", OVER));
    // What is beside it for a moment would have too long a name.
    let long = "x".repeat(250);
    fake.host.profile("long", &fake.renewing_profile(&long, ""));
    fs::rename(fake.host.path("login.json"), fake.host.path(&long)).unwrap();
    let run = |profile: &str| vendor.reached_by(fake.command(&["--profile", profile, &fake.agent()]));
    let said = refused(&run("long").output().unwrap());
    assert!(said.contains("cannot be written"), "{said}");
    assert_eq!((fs::read_to_string(fake.host.path(&long)).unwrap().as_str(), vendor.questions()), (OVER, 0));
    fs::rename(fake.host.path(&long), fake.host.path("login.json")).unwrap();
    // No file may have more than 8 KiB, as on a disk that is full soon: it itself fits, what comes may not.
    let full = run("renewing");
    let mut limited = Command::new("bash");
    limited.arg("-c").arg("trap '' XFSZ; ulimit -f 8; exec \"$0\" \"$@\"");
    limited.arg(full.get_program()).args(full.get_args()).current_dir(fake.host.path("work"));
    for (name, value) in full.get_envs() {
        match value {
            Some(value) => limited.env(name, value),
            None => limited.env_remove(name),
        };
    }
    let said = refused(&limited.output().unwrap());
    assert!(said.contains("cannot be written") && said.contains("too large"), "{said}");
    // Where the agent's own lock cannot be made.
    fs::write(fake.host.path("agent.lock"), "").unwrap();
    let said = refused(&run("renewing").output().unwrap());
    assert!(said.contains("cannot make") && said.contains("agent.lock"), "{said}");
    fs::remove_file(fake.host.path("agent.lock")).unwrap();
    // Nor a file that has no place for what comes.
    for without in
        [r#"{"oauth":{"access":"sk-old","expires":1000}}"#, r#"{"oauth":{"refresh":"r-0","expires":1000}}"#]
    {
        fake.login(without);
        refused(&run("renewing").output().unwrap());
        assert_eq!(fake.login_file(), without);
    }
    assert_eq!((vendor.questions(), vendor.keys().len()), (0, 0));
    // The control.
    fake.login(OVER);
    succeeds(&run("renewing").output().unwrap());
    assert_eq!((vendor.questions(), vendor.keys()), (1, vec!["sk-fresh-1".to_owned()]));
    fake.has_nothing_left();
}

#[test]
fn a_file_that_another_writes_meanwhile_is_left_alone() {
    for (theirs, expected) in [
        // A login of its own.
        (valid().replace("sk-old", "sk-fresh-theirs").replace("r-0", "r-theirs"), None),
        // The control: what else is in the file has nothing to do with it.
        (valid().replace("1.50", "{\"more\":2}"), Some("sk-fresh-1")),
    ] {
        let ((vendor, let_it), fake) = (waiting(), Fake::renewing("", OVER));
        let run = started(fake.run(&vendor));
        vendor.questions.recv_timeout(LIMIT).unwrap();
        for lock in ["agent.lock", "agent.lock.old"] {
            assert!(fake.host.path(lock).is_dir(), "the agent would not wait");
        }
        assert!(!fake.host.path("agent.lock.write").exists(), "the agent would wait to write");
        fake.login(&theirs);
        let_it.send(()).unwrap();
        let output = run.wait_with_output().unwrap();
        succeeds(&output);
        match expected {
            None => assert_eq!(fake.login_file(), theirs),
            Some(access) => {
                let now = fake.login_file();
                assert!(now.contains(access) && now.contains("r-1") && now.contains("{\"more\":2}"), "{now}");
            }
        }
        // The login that is there, or the one that came.
        let key = if theirs.contains("theirs") { "sk-fresh-theirs" } else { "sk-fresh-1" };
        assert_eq!(vendor.keys(), [key]);
        fake.has_nothing_left();
    }
}

#[test]
fn an_agent_that_renews_it_at_the_same_time_is_waited_for() {
    let (vendor, fake) = (Vendor::new(rotating()), Fake::renewing("", OVER));
    for lock in ["agent.lock", "agent.lock.old"] {
        fake.login(OVER);
        let held = fake.host.path(lock);
        fs::create_dir(&held).unwrap();
        let run = started(fake.run(&vendor));
        let waits = Instant::now() + LIMIT;
        // It is at it once it has the lock of runs, which keeps its number.
        let of_runs = fake.host.path(".ringfence-renewal/lock");
        while fs::read_to_string(&of_runs).unwrap_or_default().trim() != run.id().to_string() {
            assert!(Instant::now() < waits, "it does not begin");
            thread::sleep(Duration::from_millis(5));
        }
        fake.login(&valid().replace("sk-old", "sk-fresh-theirs"));
        fs::remove_dir(&held).unwrap();
        succeeds(&run.wait_with_output().unwrap());
        assert_eq!((vendor.questions(), vendor.keys()), (0, vec!["sk-fresh-theirs".to_owned()]), "{lock}");
        fake.has_nothing_left();
    }
    // One that nobody holds any more is in nobody's way, and the control.
    fake.login(OVER);
    let dir = fake.host.path("agent.lock");
    fs::create_dir(&dir).unwrap();
    let long_ago = std::time::SystemTime::now() - Duration::from_secs(60);
    fs::File::open(&dir).unwrap().set_modified(long_ago).unwrap();
    succeeds(&fake.run(&vendor).output().unwrap());
    assert_eq!((vendor.questions(), vendor.keys()), (1, vec!["sk-fresh-1".to_owned()]));
    fake.has_nothing_left();
}

#[test]
fn a_signal_while_the_agent_is_waited_for_leaves_no_lock_behind() {
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGTSTP] {
        if is_ignored(signal) {
            assert_ne!(signal, Signal::SIGTERM, "nothing is tested");
            continue;
        }
        let (vendor, fake) = (Vendor::new(rotating()), Fake::renewing("", OVER));
        let path = |name| fake.host.path(name);
        fs::create_dir(path("agent.lock.old")).unwrap();
        let run = started(fake.run(&vendor));
        let launcher = Pid::from_raw(run.id().try_into().unwrap());
        // It has the first, and waits for the second.
        let waits = Instant::now() + LIMIT;
        while !path("agent.lock").exists() {
            assert!(Instant::now() < waits, "it does not begin");
            thread::sleep(Duration::from_millis(5));
        }
        kill(launcher, signal).unwrap();
        if signal == Signal::SIGTSTP {
            while state(launcher) != Some('T') {
                assert!(Instant::now() < waits, "it does not stop");
                thread::sleep(Duration::from_millis(5));
            }
            assert!(!path("agent.lock").exists(), "the agent would wait for who is stopped");
            fs::remove_dir(path("agent.lock.old")).unwrap();
            kill(launcher, Signal::SIGCONT).unwrap();
            succeeds(&run.wait_with_output().unwrap());
            assert_eq!((vendor.questions(), vendor.keys()), (1, vec!["sk-fresh-1".to_owned()]));
        } else {
            let output = run.wait_with_output().unwrap();
            assert_eq!(output.status.signal(), Some(signal as i32), "{}", stderr(&output));
            fs::remove_dir(path("agent.lock.old")).unwrap();
            assert_eq!((vendor.questions(), fake.login_file().as_str()), (0, OVER));
        }
        fake.has_nothing_left();
    }
}

#[test]
fn whoever_else_renews_it_ends_the_wait() {
    let (vendor, fake) = (Vendor::new(rotating()), Fake::renewing("", OVER));
    let held = fake.host.path("agent.lock.old");
    fs::create_dir(&held).unwrap();
    let mut run = started(fake.run(&vendor));
    let waits = Instant::now() + LIMIT;
    while !fake.host.path("agent.lock").exists() {
        assert!(Instant::now() < waits, "it does not begin");
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(run.try_wait().unwrap(), None, "it does not wait");
    // Who has the lock wrote the file, and did not let the lock go.
    fake.login(&valid().replace("sk-old", "sk-fresh-theirs"));
    succeeds(&run.wait_with_output().unwrap());
    assert_eq!((vendor.questions(), vendor.keys()), (0, vec!["sk-fresh-theirs".to_owned()]));
    assert!(!fake.host.path("agent.lock").exists() && held.exists());
}

#[test]
fn a_signal_while_it_is_renewed_waits_until_that_is_written() {
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
        if is_ignored(signal) {
            assert_ne!(signal, Signal::SIGTERM, "nothing is tested");
            continue;
        }
        let ((vendor, let_it), fake) = (waiting(), Fake::renewing("", OVER));
        let run = started(fake.run(&vendor));
        vendor.questions.recv_timeout(LIMIT).unwrap();
        // To the process that asks the endpoint, too.
        killpg(Pid::from_raw(run.id().try_into().unwrap()), signal).unwrap();
        let_it.send(()).unwrap();
        let output = run.wait_with_output().unwrap();
        assert_eq!(output.status.signal(), Some(signal as i32), "{}", stderr(&output));
        assert!(fake.login_file().contains("r-1"), "{signal}: {}", fake.login_file());
        assert_eq!((stdout(&output).as_str(), vendor.keys().len()), ("", 0), "the agent ran");
        fake.has_nothing_left();
        succeeds(&fake.run(&vendor).output().unwrap());
        assert_eq!((vendor.questions(), vendor.keys()), (0, vec!["sk-fresh-1".to_owned()]));
    }
}

/// Whether whoever runs the tests ignores a signal, as nohup(1) does: what is started here does then, too.
fn is_ignored(signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    u64::from_str_radix(ignored.trim(), 16).unwrap() & (1 << (signal as i32 - 1)) != 0
}

#[test]
fn a_run_that_ends_while_it_is_renewed_waits_until_that_is_written() {
    let ((vendor, let_it), fake) = (waiting(), Fake::renewing("", &valid()));
    // An agent that asks, and does not wait for its answer.
    let asks =
        String::from_utf8(AGENT.to_vec()).unwrap().replace("cat <&3", "echo agent $$; exec sleep 1000");
    fake.host.executable("fake", asks.as_bytes());
    let mut run = started(fake.run(&vendor));
    let printed = BufReader::new(run.stdout.take().unwrap()).lines().map_while(Result::ok);
    let pid = printed.into_iter().find_map(|line| Some(line.strip_prefix("agent ")?.to_owned())).unwrap();
    vendor.questions.recv_timeout(LIMIT).unwrap();
    // The launcher passes it on: the agent ends, and the launcher waits for the answer.
    kill(Pid::from_raw(run.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
    let ends = Instant::now() + LIMIT;
    while fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "sleep") {
        assert!(Instant::now() < ends, "the agent still runs");
        thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(run.try_wait().unwrap(), None, "the launcher does not wait");
    let_it.send(()).unwrap();
    let output = run.wait_with_output().unwrap();
    assert_eq!(super::super::super::status(&output), 143, "{}", stderr(&output));
    assert!(fake.login_file().contains("r-1"), "{}", fake.login_file());
    fake.has_nothing_left();
}

/// The third field of /proc/PID/stat, past the name in brackets.
fn state(pid: Pid) -> Option<char> {
    fs::read_to_string(format!("/proc/{pid}/stat")).ok()?.rsplit_once(") ")?.1.chars().next()
}

/// A run that renews its login while its agent runs on, and that is to stop: its answer waits for a word.
fn stopping() -> (Fake, Vendor, mpsc::Sender<()>, Child, Pid) {
    let ((vendor, let_it), fake) = (waiting(), Fake::renewing("", &valid()));
    let asks = String::from_utf8(AGENT.to_vec()).unwrap().replace("cat <&3", "exec sleep 1000");
    fake.host.executable("fake", asks.as_bytes());
    let mut run = started(fake.run(&vendor));
    let launcher = Pid::from_raw(run.id().try_into().unwrap());
    vendor.questions.recv_timeout(LIMIT).unwrap();
    let said = BufReader::new(run.stderr.take().unwrap()).lines().map_while(Result::ok);
    let (tell, told) = mpsc::channel();
    thread::spawn(move || said.into_iter().for_each(|line| drop(tell.send(line))));
    // The command stops, and the launcher is to do as it does.
    kill(launcher, Signal::SIGTSTP).unwrap();
    while !told.recv_timeout(LIMIT).unwrap().contains("the stop waits for a login") {}
    assert_ne!(state(launcher), Some('T'), "the answer would be nobody's");
    assert_eq!(fake.login_file(), valid());
    (fake, vendor, let_it, run, launcher)
}

#[test]
fn a_stop_while_it_is_renewed_waits_until_that_is_written() {
    let (fake, vendor, let_it, mut run, launcher) = stopping();
    let_it.send(()).unwrap();
    let stops = Instant::now() + LIMIT;
    while state(launcher) != Some('T') {
        assert!(Instant::now() < stops, "it does not stop");
        thread::sleep(Duration::from_millis(5));
    }
    assert!(fake.login_file().contains("r-1"), "{}", fake.login_file());
    fake.has_nothing_left();
    // The run goes on with what came.
    kill(launcher, Signal::SIGCONT).unwrap();
    let mut keys = vec![vendor.keys.recv_timeout(LIMIT).unwrap()];
    keys.push(vendor.keys.recv_timeout(LIMIT).unwrap());
    assert_eq!(keys, ["sk-old", "sk-fresh-1"]);
    kill(launcher, Signal::SIGTERM).unwrap();
    assert_eq!(wait(&mut run), Some(143));
}

#[test]
fn a_stop_that_waited_is_none_where_it_was_taken_back_meanwhile() {
    let (fake, _vendor, let_it, mut run, launcher) = stopping();
    kill(launcher, Signal::SIGCONT).unwrap();
    let_it.send(()).unwrap();
    let ends = Instant::now() + LIMIT;
    while !fake.login_file().contains("r-1") {
        assert!(Instant::now() < ends, "it is not renewed");
        thread::sleep(Duration::from_millis(5));
    }
    // Only who is not stopped passes it on.
    kill(launcher, Signal::SIGTERM).unwrap();
    assert_eq!(wait(&mut run), Some(143));
}

impl Fake {
    /// What is beside the login's file for a moment, or for longer.
    fn beside(&self) -> Vec<PathBuf> {
        let all = self.host.dir.path().read_dir().unwrap().map(|entry| entry.unwrap().path());
        all.filter(|path| path.extension().is_some_and(|ending| ending == "new")).collect()
    }
}

#[test]
fn what_others_can_read_by_now_is_written_so_that_they_cannot() {
    let ((vendor, let_it), fake) = (waiting(), Fake::renewing("", OVER));
    let run = started(fake.run(&vendor));
    vendor.questions.recv_timeout(LIMIT).unwrap();
    let login = fake.host.path("login.json");
    fs::set_permissions(&login, fs::Permissions::from_mode(0o644)).unwrap();
    let_it.send(()).unwrap();
    succeeds(&run.wait_with_output().unwrap());
    assert_eq!(vendor.keys(), ["sk-fresh-1"]);
    assert!(fake.login_file().contains("r-1"), "{}", fake.login_file());
    assert_eq!(fs::metadata(&login).unwrap().permissions().mode() & 0o7777, 0o600);
    fake.has_nothing_left();
}

#[test]
fn what_came_and_cannot_be_written_is_this_run_s_and_stays_beside_the_file() {
    let ((vendor, let_it), fake) = (waiting(), Fake::renewing("", OVER));
    let run = started(fake.run(&vendor));
    vendor.questions.recv_timeout(LIMIT).unwrap();
    // Half of a file is nobody's login, and stays as it is.
    fake.login("{");
    let_it.send(()).unwrap();
    let output = run.wait_with_output().unwrap();
    succeeds(&output);
    assert_eq!((vendor.keys(), fake.login_file().as_str()), (vec!["sk-fresh-1".to_owned()], "{"));
    let [beside] = fake.beside().try_into().unwrap();
    let said = stderr(&output);
    let name = beside.display().to_string();
    assert!(said.contains("cannot be written there yet") && said.matches(&name).count() == 2, "{said}");
    assert_eq!(fs::metadata(&beside).unwrap().permissions().mode() & 0o7777, 0o600);
    // The token of before is none any more: where what came for it is gone, it is not sent again, however long ago that was.
    fake.login(OVER);
    let away = fake.host.path("away");
    fs::rename(&beside, &away).unwrap();
    let said = refused(&fake.run(&vendor).output().unwrap());
    assert!(said.contains("what came could not be written") && said.contains(&name), "{said}");
    fake.age();
    let said = refused(&fake.run(&vendor).output().unwrap());
    assert!(said.contains("is not sent again") && said.contains(&name), "{said}");
    assert_eq!(vendor.questions(), 0);
    // The next run puts it there, and the control.
    fs::rename(&away, &beside).unwrap();
    succeeds(&fake.run(&vendor).output().unwrap());
    assert_eq!((vendor.questions(), vendor.keys()), (0, vec!["sk-fresh-1".to_owned()]));
    assert!(fake.login_file().contains("r-1"), "{}", fake.login_file());
    fake.has_nothing_left();
}

#[test]
fn what_came_is_written_at_the_run_s_end_where_it_could_not_be_before() {
    let ((vendor, let_it), fake) = (waiting(), Fake::renewing("", OVER));
    // An agent that asks, and runs on.
    let asks = String::from_utf8(AGENT.to_vec()).unwrap().replace("cat <&3", "exec sleep 1000");
    fake.host.executable("fake", asks.as_bytes());
    let run = started(fake.run(&vendor));
    vendor.questions.recv_timeout(LIMIT).unwrap();
    fs::remove_file(fake.host.path("login.json")).unwrap();
    let_it.send(()).unwrap();
    assert_eq!(vendor.keys.recv_timeout(LIMIT).unwrap(), "sk-fresh-1");
    assert_eq!(fake.beside().len(), 1);
    fake.login(OVER);
    kill(Pid::from_raw(run.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
    run.wait_with_output().unwrap();
    assert!(fake.login_file().contains("r-1"), "{}", fake.login_file());
    fake.has_nothing_left();
}

#[test]
fn a_run_that_is_killed_while_it_is_renewed_leaves_the_file_and_tells_the_next_one() {
    let ((vendor, let_it), fake) = (waiting(), Fake::renewing("", OVER));
    let mut run = started(fake.run(&vendor));
    vendor.questions.recv_timeout(LIMIT).unwrap();
    run.kill().unwrap();
    run.wait().unwrap();
    let_it.send(()).unwrap();
    let said = refused(&fake.run(&vendor).output().unwrap());
    assert!(said.contains("it was begun, and not ended"), "{said}");
    fake.age();
    let said = refused(&fake.run(&vendor).output().unwrap());
    assert!(said.contains("is not sent again"), "{said}");
    assert_eq!((fake.login_file().as_str(), vendor.questions(), vendor.keys().len()), (OVER, 0, 0));
    // One that was killed only after its answer was on disk, with what others changed since.
    let [beside] = fake.beside().try_into().unwrap();
    fs::write(&beside, valid().replace("sk-old", "sk-fresh-1").replace("r-0", "r-1")).unwrap();
    fake.login(&OVER.replace("1.50", "2.50"));
    succeeds(&fake.run(&vendor).output().unwrap());
    assert_eq!((vendor.questions(), vendor.keys()), (0, vec!["sk-fresh-1".to_owned()]));
    let expected = valid().replace("sk-old", "sk-fresh-1").replace("r-0", "r-1").replace("1.50", "2.50");
    assert_eq!(fake.login_file(), expected);
    // What the killed one had made is nobody's before long.
    for lock in ["agent.lock", "agent.lock.old"] {
        fs::remove_dir(fake.host.path(lock)).unwrap();
    }
    fake.has_nothing_left();
    // Of another login than the one it came for, it is none.
    fake.login(&OVER.replace("r-0", "r-1"));
    let_it.send(()).unwrap();
    succeeds(&fake.run(&vendor).output().unwrap());
    assert_eq!((vendor.questions(), vendor.keys()), (1, vec!["sk-fresh-2".to_owned()]));
}
