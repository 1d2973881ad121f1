//! Who gets names, what a worker may have, and what holds where names cannot be served.

use super::*;

#[test]
fn a_user_s_worker_may_have_less_than_root_s() {
    let opener = opener(Path::new("/nonexistent"), "serve");
    let own = pidfd(std::process::id());
    let names = names(&["example.org"]);
    let data_of = |owner| {
        let whose = Whose { container: "aaaaaaaaaaaa", profile: "p", names: &names, audit: false };
        let service = opener.open(whose, opener.take_block(owner).unwrap(), own.as_fd()).unwrap();
        service.wait_until_ready().unwrap();
        let pid = service.supervisor.status().pid.unwrap();
        let limits = fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
        let line = limits.lines().find(|line| line.starts_with("Max data size")).unwrap();
        line.split_ascii_whitespace().rev().nth(1).unwrap().to_owned()
    };
    assert_eq!(data_of(1000), (64 << 20).to_string());
    assert_ne!(data_of(0), data_of(1000), "the control");
}

#[test]
fn who_is_not_in_the_daemon_s_network_and_could_not_enter_it_gets_no_names() {
    let peer = |pid: u32, uid| Peer { pid, uid, pidfd: pidfd(pid) };
    let here = std::process::id();
    assert!(may_use_our_network(&peer(here, 1000)).is_ok(), "the control");
    let mut command = Command::new("unshare");
    command.args(["-n", "sh", "-c", "echo; exec sleep 600"]).stdout(Stdio::piped());
    let mut child = command.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let is_there = child.stdout.take().unwrap().read(&mut [0]).unwrap() == 1;
    if is_there {
        let error = may_use_our_network(&peer(child.id(), 1000)).unwrap_err();
        assert!(matches!(error, EnrollError::Egress(EgressError::OtherNetwork(1000))), "{error}");
        assert!(may_use_our_network(&peer(child.id(), 0)).is_ok(), "root could");
        child.kill().unwrap();
    }
    child.wait().unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-sys_admin", "unshare", "-Un", "sh", "-c", "echo; exec sleep 600"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let Ok(mut child) = command.spawn() else { return };
    if child.stdout.take().unwrap().read(&mut [0]).unwrap() == 1 {
        let error = may_use_our_network(&peer(child.id(), 0)).unwrap_err();
        assert!(matches!(error, EnrollError::Egress(EgressError::OtherNetwork(0))), "{error}");
        child.kill().unwrap();
    }
    child.wait().unwrap();
}

#[test]
fn a_policy_that_adds_names_which_nobody_can_serve_takes_away_what_it_takes_away_all_the_same() {
    let mut fixture = Fixture::new();
    profile(&fixture, "\"203.0.113.7:443\"");
    let child = Sleeper::start();
    let (id, raw) = admit(&mut fixture, &child).unwrap();
    set_tasks(&fixture, raw, 1, 0);
    log(&fixture);
    // No block is left.
    let all: Vec<_> = std::iter::from_fn(|| fixture.state.opener.take_block(0).ok()).collect();
    profile(&fixture, EXAMPLE);
    let outcome = fixture.state.reload();
    assert_eq!((outcome.changed.as_slice(), outcome.errors.len()), ([id.clone()].as_slice(), 0));
    assert!(outcome.notes.iter().any(|note| note.contains("none of its names")), "{:?}", outcome.notes);
    assert_eq!(log(&fixture), ["install 1"]);
    let grants = |address: &str| {
        let policy = fixture.kernel.with(|inner| inner.containers[&raw].1.clone().unwrap());
        let address = address.parse::<Ipv4Addr>().unwrap().to_ipv6_mapped();
        policy.nets.iter().any(|rule| rule.allow && rule.addr == address)
    };
    assert!(!grants("203.0.113.7"), "what it had is gone");
    let told = status(fixture.only());
    assert!(told.state == AgentState::Failed && told.error.unwrap().contains("in use"));
    // Asked again, it is the same, and nothing is installed for that.
    assert!(fixture.state.reload().changed.is_empty());
    assert_eq!(log(&fixture), Vec::<String>::new());
    // There is one, and the kernel does not take its sockets.
    drop(all);
    fixture.kernel.with(|inner| inner.no_redirects = true);
    assert_eq!(fixture.state.reload().changed, [id.as_str()]);
    assert!(redirect(&fixture, raw).is_none());
    let block = fixture.only().record.egress.as_ref().unwrap().block;
    assert!(matches!(&fixture.only().egress, Egress::Closed { block: Some(its), .. } if its.net() == block));
    // It is tried again by itself, after a while, and then after a longer one.
    let set_due = |state: &mut crate::state::State<FakeKernel>| {
        let container = state.registry.by_kernel_id_mut(raw).unwrap();
        let Egress::Closed { retry: Some(retry), .. } = &mut container.egress else {
            panic!("{:?}", container.egress)
        };
        let pause = retry.pause;
        retry.at = Instant::now();
        pause
    };
    log(&fixture);
    fixture.state.sweep();
    assert_eq!(log(&fixture), Vec::<String>::new(), "it is not time for it yet");
    let first = set_due(&mut fixture.state);
    fixture.state.sweep();
    assert_eq!(log(&fixture), ["redirect nowhere"]);
    assert_eq!(set_due(&mut fixture.state), first * 2);
    fixture.kernel.with(|inner| inner.no_redirects = false);
    fixture.state.sweep();
    let (again, port) = redirect(&fixture, raw).unwrap();
    assert_eq!((again, answer(to(port)).2), (block.network(), vec!["example.org".to_owned()]));
    assert!(grants(&Ipv4Addr::from_bits(block.network().to_bits() + 1).to_string()));
}

#[test]
fn after_a_worker_s_end_the_next_one_waits_until_the_kernel_knows_its_sockets() {
    let mut fixture = Fixture::new();
    profile(&fixture, EXAMPLE);
    let child = Sleeper::start();
    let (_, raw) = admit(&mut fixture, &child).unwrap();
    set_tasks(&fixture, raw, 1, 0);
    let (block, before) = redirect(&fixture, raw).unwrap();
    assert_eq!(answer(to(before)).2, ["example.org"]);
    log(&fixture);
    fixture.state.sweep();
    assert_eq!(log(&fixture), Vec::<String>::new(), "the control: nothing is to be told");
    connect(before).write_all(b"die").unwrap();
    let renewed = |fixture: &Fixture| match &fixture.only().egress {
        Egress::Served(service) => service.renewed().is_some(),
        other => panic!("{other:?}"),
    };
    wait_for("it has others", || renewed(&fixture));
    assert!(status(fixture.only()).pid.is_none());
    // Nobody else gets the port as long as the kernel sends connections there.
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, before)).unwrap_err();
    assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
    fixture.state.sweep();
    assert_eq!(log(&fixture), ["redirect nowhere", "redirect"]);
    let (again, port) = redirect(&fixture, raw).unwrap();
    assert!(again == block && port != before);
    assert_eq!(answer(to(port)).2, ["example.org"]);
    assert!(status(fixture.only()).pid.is_some() && !renewed(&fixture));
}

#[test]
fn who_had_no_network_when_it_was_enrolled_is_given_none_by_its_profile_later() {
    let mut fixture = Fixture::new();
    profile(&fixture, "\"203.0.113.7:443\"");
    let child = Sleeper::start();
    let (id, raw) = admit(&mut fixture, &child).unwrap();
    fixture.state.registry.by_kernel_id_mut(raw).unwrap().record.elsewhere = true;
    profile(&fixture, EXAMPLE);
    assert_eq!(fixture.state.reload().changed, [id.as_str()]);
    assert!(redirect(&fixture, raw).is_none());
    let told = status(fixture.only());
    assert!(told.error.unwrap().contains("another network namespace"));
    assert_eq!(told.retry_s, None, "it never changes by itself");
    fixture.state.registry.by_kernel_id_mut(raw).unwrap().record.elsewhere = false;
    assert_eq!(fixture.state.reload().changed, [id.as_str()]);
    assert!(redirect(&fixture, raw).is_some(), "the control");
}
