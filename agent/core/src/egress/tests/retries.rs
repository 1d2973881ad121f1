//! What is tried again that failed, with nobody who asks for it.

use super::*;
use std::{
    io::{BufRead, BufReader},
    sync::atomic::{AtomicU32, Ordering},
};

/// Pauses that a test waits for. The one that is too long is not to come.
const SHORT: Pauses = Pauses {
    first: Duration::from_millis(1),
    longest: Duration::from_millis(20),
    given_up: Duration::from_secs(3600),
};

/// Workers that come to nothing `failures` times, and serve from then on.
fn unlucky(failures: u32, pauses: Pauses, failure: fn() -> io::Result<Process>) -> Opener {
    let left = AtomicU32::new(failures);
    let spawn = move |_uid| match left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1))
    {
        Ok(_) => failure(),
        Err(_) => spawn_that("serve"),
    };
    Opener { spawn: Arc::new(spawn), pauses, ..opener(Path::new("/nonexistent"), "serve") }
}

#[test]
fn a_worker_that_the_host_cannot_start_is_tried_until_it_can() {
    let none = || Err(io::Error::from_raw_os_error(nix::libc::EAGAIN));
    let service = service(&unlucky(7, SHORT, none), &["example.org"]);
    wait_for("it serves", || state_of(&service) == AgentState::Running);
    let status = service.supervisor.status();
    assert_eq!((status.restarts, status.retry_s), (7, None));
    assert!(status.last_exit.unwrap().contains("cannot be started"));
    assert_eq!(answer(to(port(&service))).2, ["example.org"]);
    drop(service);

    // Whoever enrols is told at once, and waits for nothing.
    let service = super::service(&unlucky(1, PAUSES, none), &["example.org"]);
    let error = service.wait_until_ready().unwrap_err().to_string();
    assert!(error.contains("cannot be started"), "{error}");
    let status = service.supervisor.status();
    assert!(status.state == AgentState::Failed && status.retry_s.is_some_and(|s| s <= 5), "{status:?}");
    // Whoever has profiles read again has it tried at once.
    service.replace(&names(&["example.org"]), false);
    wait_for("it serves", || state_of(&service) == AgentState::Running);
}

#[test]
fn a_worker_that_ends_again_and_again_is_tried_once_in_a_while() {
    let pauses = Pauses { given_up: Duration::from_millis(700), ..SHORT };
    let service = service(&unlucky(8, pauses, || spawn_that("die")), &["example.org"]);
    wait_for("it is given up", || state_of(&service) == AgentState::Quarantined);
    wait_for("it serves", || state_of(&service) == AgentState::Running);
    assert_eq!(service.supervisor.status().restarts, 8);
}

#[test]
fn sockets_that_cannot_be_had_are_asked_for_until_they_can() {
    // A network namespace of its own, whose ports that are free to choose from are as many as it says.
    let ports = "/proc/sys/net/ipv4/ip_local_port_range";
    let script =
        format!("echo there; while read range; do echo \"$range\" > {ports} && echo done || echo no; done");
    let mut command = Command::new("unshare");
    command.args(["-n", "sh", "-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    if line != "there\n" {
        // Who may not make one.
        child.wait().unwrap();
        return;
    }
    let mut stdin = child.stdin.take().unwrap();
    let mut range = |range: &str| {
        writeln!(stdin, "{range}").unwrap();
        line.clear();
        said.read_line(&mut line).unwrap();
        line == "done\n"
    };
    let names = names(&["example.org"]);
    let whose = Whose { container: "aaaaaaaaaaaa", profile: "p", names: &names, audit: false };
    let opener = unlucky(0, SHORT, || unreachable!());
    let task = pidfd(child.id());
    let service = opener.open(whose, opener.take_block(0).unwrap(), task.as_fd()).unwrap();
    service.wait_until_ready().unwrap();
    if !range("40000 40000") {
        // Who may not change that: /proc is read-only.
        child.kill().unwrap();
        child.wait().unwrap();
        return;
    }
    let first = service.supervisor.status().pid.unwrap();
    let first = rustix::process::Pid::from_raw(first.try_into().unwrap()).unwrap();
    rustix::process::kill_process(first, rustix::process::Signal::KILL).unwrap();
    wait_for("it was tried often", || service.supervisor.status().restarts > 7);
    let status = service.supervisor.status();
    assert!(status.last_exit.unwrap().contains("cannot listen"));
    assert!(range("32768 60999"));
    wait_for("it serves", || state_of(&service) == AgentState::Running);
    drop(service);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_complaint_that_is_over_is_not_shown_any_more() {
    let service = service(&opener(Path::new("/nonexistent"), "mend"), &["example.org"]);
    service.wait_until_ready().unwrap();
    let complaint = || service.supervisor.status().error;
    assert_eq!(complaint().as_deref(), Some("no room"));
    drop(connect(port(&service)));
    wait_for("it says more", || service.supervisor.status().counts.names == 1);
    assert_eq!(complaint().as_deref(), Some("no room"), "another was over");
    drop(connect(port(&service)));
    wait_for("it is over", || complaint().is_none());
    assert_eq!(service.supervisor.status().restarts, 0, "by the very worker");
}

fn make_due(fixture: &mut Fixture, raw: u64) -> Duration {
    let container = fixture.state.registry.by_kernel_id_mut(raw).unwrap();
    let Egress::Closed { retry: Some(retry), .. } = &mut container.egress else {
        panic!("{:?}", container.egress)
    };
    retry.at = Instant::now();
    retry.pause
}

/// A container without names, that a reload is to give some.
fn unnamed(fixture: &mut Fixture, child: &Sleeper) -> u64 {
    profile(fixture, "\"203.0.113.7:443\"");
    let (_, raw) = admit(fixture, child).unwrap();
    set_tasks(fixture, raw, 1, 0);
    // From now on its tasks are looked for.
    fixture.state.sweep();
    assert!(fixture.only().first.is_none());
    profile(fixture, EXAMPLE);
    log(fixture);
    raw
}

fn is_served(fixture: &Fixture, raw: u64) {
    let (block, port) = redirect(fixture, raw).unwrap();
    assert_eq!(answer(to(port)).2, ["example.org"]);
    let policy = fixture.kernel.with(|inner| inner.containers[&raw].1.clone().unwrap());
    let first = Ipv4Addr::from_bits(block.to_bits() + 1).to_ipv6_mapped();
    assert!(policy.nets.iter().any(|rule| rule.allow && rule.addr == first), "its addresses are granted");
    let record = &fixture.only().record;
    assert_eq!(record.egress.as_ref().unwrap().block.network(), block);
    assert_eq!(Some(record.generation), fixture.kernel.generation(ContainerId::from_raw(raw)));
    assert_eq!((status(fixture.only()).state, status(fixture.only()).retry_s), (AgentState::Running, None));
}

#[test]
fn names_that_a_reload_found_no_block_for_are_served_once_there_is_one() {
    let mut fixture = Fixture::new();
    let child = Sleeper::start();
    let raw = unnamed(&mut fixture, &child);
    let all: Vec<_> = std::iter::from_fn(|| fixture.state.opener.take_block(0).ok()).collect();
    let notes = fixture.state.reload().notes;
    assert!(notes.iter().any(|note| note.contains("in use") && note.contains("tried again")), "{notes:?}");
    assert_eq!(log(&fixture), ["install 1"]);
    let told = status(fixture.only());
    assert!(told.state == AgentState::Failed && told.retry_s.is_some_and(|s| s <= 5), "{told:?}");
    drop(all);
    fixture.state.sweep();
    assert_eq!(log(&fixture), Vec::<String>::new(), "it is not time for it yet");
    make_due(&mut fixture, raw);
    fixture.state.sweep();
    assert_eq!(log(&fixture), ["redirect", "install 1"]);
    is_served(&fixture, raw);
}

#[test]
fn names_that_a_reload_found_no_task_for_are_served_once_there_is_one() {
    let mut fixture = Fixture::new();
    let child = Sleeper::start();
    let raw = unnamed(&mut fixture, &child);
    let tags = fixture.kernel.with(|inner| std::mem::take(&mut inner.tags));
    fixture.state.reload();
    assert!(status(fixture.only()).error.unwrap().contains("no live task"));
    log(&fixture);
    // In vain, after pauses that grow; no profile that is the same is installed for that.
    let pause = make_due(&mut fixture, raw);
    fixture.state.sweep();
    assert_eq!(make_due(&mut fixture, raw), pause * 2);
    // Not looked for is not missing.
    fixture.kernel.with(|inner| (inner.tags, inner.no_lookups) = (tags, Some(nix::libc::EMFILE)));
    fixture.state.sweep();
    assert_eq!(make_due(&mut fixture, raw), pause * 4);
    let why = status(fixture.only()).error.unwrap();
    assert!(why.contains("cannot be looked for") && !why.contains("no live task"), "{why}");
    assert_eq!(log(&fixture), Vec::<String>::new());
    assert_eq!(fixture.state.opener.take_block(0).unwrap().net().network().octets()[..2], [198, 18]);
    fixture.kernel.with(|inner| inner.no_lookups = None);
    fixture.state.sweep();
    is_served(&fixture, raw);
}

#[test]
fn a_profile_that_is_broken_meanwhile_is_no_reason_to_try_without_end() {
    let mut fixture = Fixture::new();
    let child = Sleeper::start();
    let raw = unnamed(&mut fixture, &child);
    let tags = fixture.kernel.with(|inner| std::mem::take(&mut inner.tags));
    fixture.state.reload();
    let pause = make_due(&mut fixture, raw);
    fixture.kernel.with(|inner| inner.tags = tags);
    fs::write(fixture.dir.path().join("profiles/n.toml"), "[grant]\nfs_raed = 1\n").unwrap();
    fixture.state.sweep();
    assert!(fixture.only().reload_error.as_ref().is_some_and(|error| error.contains("fs_raed")));
    assert_eq!(make_due(&mut fixture, raw), pause * 2);
    profile(&fixture, EXAMPLE);
    fixture.state.sweep();
    is_served(&fixture, raw);
    assert_eq!(fixture.only().reload_error, None);
}
