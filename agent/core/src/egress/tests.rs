//! Names in the life of a container, with a kernel that is a table in memory, real sockets, and a worker that is this very test
//! program.

use super::*;
use crate::{
    containers::Container,
    enforcer::Enforcer,
    enroll::{EnrollError, Request},
    state::tests::{FakeKernel, Fixture, Sleeper, compiled, pidfd, set_tasks},
};
use ringfence_process::peer::alive;
use ringfence_supervise::child::Process;
use ringfence_wire::{
    conn::Conn,
    egress::{EgressCounts, Flow, FromEgress, MAX_ORDER, NameRule, ToEgress, Upload},
    mcp::McpRequest,
    status::AgentState,
};
use rustix::event::{PollFd, PollFlags, poll};
use std::{
    collections::HashMap,
    env, fs,
    io::{self, Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    os::{
        fd::OwnedFd,
        unix::net::{UnixListener, UnixStream},
    },
    path::Path,
    process::{Command, Stdio},
};

mod asks;
mod bounds;
pub(crate) mod credentials;
mod profiles;
mod retries;

/// How long anything may take: the machine may have much else to do.
const PATIENCE: Duration = Duration::from_secs(120);
/// What the worker of the tests is to do.
const HOW: &str = "RINGFENCE_TEST_EGRESS";

/// Workers are this program. `how`: `serve`, or what they do instead.
pub(crate) fn opener(auditor: &Path, how: &'static str) -> Opener {
    let (blocks, spawn) = (Blocks::new(0), Arc::new(move |_uid| spawn_that(how)));
    let spawn_credentials: Spawn = Arc::new(|_uid| Err(io::ErrorKind::Unsupported.into()));
    let bundles = Bundles::new(auditor.with_extension("ca"));
    let (auditor, bounds) = (auditor.to_owned(), Bounds::default());
    Opener { blocks, auditor, spawn, spawn_credentials, pauses: PAUSES, bundles, bounds }
}

fn spawn_that(how: &str) -> io::Result<Process> {
    let (ours, theirs) = UnixStream::pair()?;
    let child = Command::new(env::current_exe()?)
        .args(["--exact", "egress::tests::worker", "--ignored", "--nocapture", "--test-threads=1"])
        .env(HOW, how)
        .stdin(OwnedFd::from(theirs))
        .stdout(Stdio::null())
        .spawn()?;
    Ok(Process::new(child, ours))
}

/// Not a test: the process of a worker. Who connects to its listener is told who the core says that is and what may be reached;
/// who sends `die` first ends it, `say` as well, which has it say what it sent before; `sum` is told what it began with.
#[test]
#[ignore = "the process of a worker, which other tests start"]
fn worker() {
    let Ok(how) = env::var(HOW) else { return };
    let link = UnixStream::from(std::io::stdin().as_fd().try_clone_to_owned().unwrap());
    let mut conn = Conn::new(link, PATIENCE, MAX_ORDER);
    let (order, sockets) = conn.receive_with_descriptors::<ToEgress>().unwrap();
    let ToEgress::Start(start) = order else { panic!("{order:?}") };
    assert_eq!(sockets.len(), if start.v6 { 5 } else { 3 });
    let listener = TcpListener::from(sockets.into_iter().next().unwrap());
    match how.as_str() {
        "serve" => {}
        "die" => return,
        "complain" => return conn.send(&FromEgress::Complaint("no\nroom".into())).unwrap(),
        "mend" => {
            listener.set_nonblocking(false).unwrap();
            let complaint = "no\nroom".to_owned();
            conn.send(&FromEgress::Complaint(complaint.clone())).unwrap();
            conn.send(&FromEgress::Ready).unwrap();
            drop(listener.accept().unwrap());
            conn.send(&FromEgress::Over("of another".into())).unwrap();
            conn.send(&FromEgress::Counts(EgressCounts { names: 1, ..Default::default() })).unwrap();
            drop(listener.accept().unwrap());
            conn.send(&FromEgress::Over(complaint)).unwrap();
        }
        "strange" => return conn.send(&"what is this").unwrap(),
        "flood" => {
            conn.send(&FromEgress::Ready).unwrap();
            for id in 0.. {
                if conn.send(&FromEgress::WhoIs { id, port: 1 }).is_err() {
                    return;
                }
            }
        }
        how => panic!("{how}"),
    }
    if conn.send(&FromEgress::Ready).is_err() {
        return;
    }
    let (mut names, mut audit, mut asking) = (start.names, start.audit, HashMap::new());
    for id in 0.. {
        let mut polled = [PollFd::new(conn.stream(), PollFlags::IN), PollFd::new(&listener, PollFlags::IN)];
        poll(&mut polled, None).unwrap();
        let [told, asked] = polled.map(|fd| !fd.revents().is_empty());
        if told {
            match conn.receive_with_descriptors::<ToEgress>() {
                Ok((ToEgress::Policy { names: now, audit: is }, _)) => (names, audit) = (now, is),
                Ok((ToEgress::Flow { id, flow }, _)) => {
                    let mut stream: TcpStream = asking.remove(&id).unwrap();
                    let hosts: Vec<&str> = names.rules.iter().map(|rule| rule.host.as_str()).collect();
                    serde_json::to_writer(&mut stream, &(flow, &start.block, hosts, audit)).unwrap();
                }
                Ok((ToEgress::Line, line)) => {
                    let line = UnixStream::from(line.into_iter().next().unwrap());
                    Conn::new(line, PATIENCE, MAX_ORDER).send(&"a record").unwrap();
                }
                // It loses its first link.
                Ok((ToEgress::Credentials { id }, link)) => {
                    let mut link = UnixStream::from(link.into_iter().next().unwrap());
                    link.write_all(&id.to_be_bytes()).unwrap();
                    if id == 1 {
                        conn.send(&FromEgress::LinkEnded { id }).unwrap();
                    }
                }
                Ok((ToEgress::Stop, _)) | Err(_) => return,
                Ok((ToEgress::Start(_) | ToEgress::Proxy(_), _)) => panic!("twice"),
            }
        } else if asked {
            let (mut stream, peer) = listener.accept().unwrap();
            stream.set_nonblocking(false).unwrap();
            let mut word = [0; 3];
            stream.read_exact(&mut word).unwrap();
            match &word {
                b"die" => return,
                b"sum" => {
                    serde_json::to_writer(&mut stream, &start.uploads).unwrap();
                    continue;
                }
                b"say" => {
                    // The answer to what it asks before cannot be sent, so the rest is not heard while it lives.
                    let of = |host: &str| Upload { host: host.into(), bytes: 7 };
                    conn.stream().shutdown(Shutdown::Read).unwrap();
                    conn.send(&FromEgress::WhoIs { id, port: 1 }).unwrap();
                    conn.send(&FromEgress::Uploads(vec![of("example.org"), of("evil.example")])).unwrap();
                    return;
                }
                _ => {}
            }
            conn.send(&FromEgress::Counts(EgressCounts { connections: id, ..Default::default() })).unwrap();
            conn.send(&FromEgress::WhoIs { id, port: peer.port() }).unwrap();
            asking.insert(id, stream);
        }
    }
}

/// What the worker says to whoever connects.
type Said = (Option<Flow>, Ipv4Net, Vec<String>, bool);

fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn to(port: u16) -> TcpStream {
    ask(connect(port))
}

/// The worker waits for what a connection says first.
fn ask(mut stream: TcpStream) -> TcpStream {
    stream.write_all(b"who").unwrap();
    stream
}

fn answer(mut stream: TcpStream) -> Said {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text:?}"))
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

fn names(hosts: &[&str]) -> Names {
    let rules =
        hosts.iter().map(|host| NameRule { host: (*host).into(), port: Some(443), tcp: false, rule: 0 });
    Names { rules: rules.collect(), ..Names::default() }
}

fn flow(tgid: u32) -> Flow {
    Flow { address: [198, 18, 1, 1].into(), port: 443, call: 7, pid: tgid, tgid, start: 9, uid: 1000 }
}

fn line(block: Ipv4Net) -> EgressLine {
    let (public, profile) = ("aaaaaaaaaaaa".into(), "p".into());
    EgressLine { container: 4097, public, profile, uid: 1000, created: 7, block, within: None }
}

/// Something that serves, where this test runs.
fn service(opener: &Opener, hosts: &[&str]) -> Service {
    let own = pidfd(std::process::id());
    let names = names(hosts);
    let whose = Whose { container: "aaaaaaaaaaaa", profile: "p", names: &names, audit: false };
    opener.open(whose, opener.take_block(0).unwrap(), own.as_fd()).unwrap()
}

fn port(service: &Service) -> u16 {
    listeners::tests::at(&service.listeners().tcp).port()
}

fn state_of(service: &Service) -> AgentState {
    service.supervisor.status().state
}

#[test]
fn a_worker_is_told_whose_connections_are_its_container_s_and_nobody_else_s() {
    let dir = tempfile::tempdir().unwrap();
    let auditor = dir.path().join("auditor");
    let listening = UnixListener::bind(&auditor).unwrap();
    let service = service(&opener(&auditor, "serve"), &["example.org"]);
    service.wait_until_ready().unwrap();
    let kernel = FakeKernel::default();
    let id = ContainerId::from_raw(4097);
    service.attach(id, line(service.block()), kernel.flows(), service.listeners());
    let (taken, _) = listening.accept().unwrap();
    let mut conn = Conn::new(taken, PATIENCE, MAX_ORDER);
    assert_eq!(conn.receive::<McpRequest>().unwrap(), McpRequest::Egress(line(service.block())));
    assert_eq!(conn.receive::<String>().unwrap(), "a record", "the rest is the worker's");

    let (one, other, third) = (connect(port(&service)), connect(port(&service)), connect(port(&service)));
    let source = |stream: &TcpStream| stream.local_addr().unwrap().port();
    kernel.with(|inner| {
        inner.flows.insert((4097, source(&one)), flow(11));
        // Of another container, which has connected to its own worker from that port.
        inner.flows.insert((8194, source(&other)), flow(22));
    });
    let [one, other, third] = [one, other, third].map(ask);
    let (block, hosts) = (service.block(), vec!["example.org".to_owned()]);
    assert_eq!(answer(one), (Some(flow(11)), block, hosts.clone(), false));
    assert_eq!(answer(other), (None, block, hosts.clone(), false));
    assert_eq!(answer(third), (None, block, hosts, false));
    let left: Vec<(u64, u16)> = kernel.with(|inner| inner.flows.keys().copied().collect());
    assert!(left.len() == 1 && left[0].0 == 8194, "{left:?}");
    service.replace(&names(&["a.test", "b.test"]), true);
    let said = || answer(to(port(&service)));
    wait_for("what it was told since", || {
        let (_, _, hosts, audit) = said();
        hosts == ["a.test", "b.test"] && audit
    });
    assert!(service.supervisor.status().counts.connections > 0);
}

#[test]
fn one_that_dies_is_followed_by_another_on_sockets_of_its_own_with_what_was_said_last() {
    let dir = tempfile::tempdir().unwrap();
    let service = service(&opener(&dir.path().join("none"), "serve"), &["example.org"]);
    service.wait_until_ready().unwrap();
    let first = service.supervisor.status().pid;
    service.replace(&names(&["a.test"]), false);
    let before = port(&service);
    connect(before).write_all(b"die").unwrap();
    wait_for("it died", || service.supervisor.status().pid.is_some_and(|pid| Some(pid) != first));
    assert_ne!(port(&service), before, "nothing that the dead one did to its sockets is done to these");
    let at = SocketAddr::from((Ipv4Addr::LOCALHOST, before));
    // A child that another test starts has a copy for a moment.
    wait_for("those of before are gone", || TcpStream::connect(at).is_err());
    assert_eq!(answer(to(port(&service))).2, ["a.test"]);
    let status = service.supervisor.status();
    assert_eq!((status.restarts, &status.state), (1, &AgentState::Running));
    assert!(status.last_exit.unwrap().contains("ended"));
}

#[test]
fn what_one_sent_is_told_to_the_next() {
    let service = service(&opener(Path::new("/nonexistent"), "serve"), &["example.org"]);
    service.wait_until_ready().unwrap();
    let began_with = || {
        let mut stream = connect(port(&service));
        stream.write_all(b"sum").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        serde_json::from_str::<Vec<Upload>>(&text).unwrap()
    };
    assert!(began_with().is_empty());
    for word in [b"say", b"die"] {
        let restarts = service.supervisor.status().restarts;
        connect(port(&service)).write_all(word).unwrap();
        wait_for("it died", || {
            let status = service.supervisor.status();
            status.restarts > restarts && status.state == AgentState::Running
        });
        let before = [Upload { host: "example.org".into(), bytes: 7 }];
        assert_eq!(began_with(), before, "and nothing that it was not told of");
    }
}

#[test]
fn one_that_does_not_serve_is_given_up_with_a_reason_and_tried_again_when_profiles_are_read() {
    let none = Path::new("/nonexistent");
    for (how, why) in [("die", "ended"), ("complain", "no room"), ("strange", "broke off")] {
        let service = service(&opener(none, how), &["example.org"]);
        let error = service.wait_until_ready().unwrap_err().to_string();
        assert!(error.contains(why), "{how}: {error}");
    }
    let service = service(&opener(none, "die"), &["example.org"]);
    wait_for("it is given up", || state_of(&service) == AgentState::Quarantined);
    let status = service.supervisor.status();
    assert!(status.retry_s.is_some_and(|s| (200..=300).contains(&s)), "{status:?}");
    assert!(status.last_exit.unwrap().contains("in a row"));
    let restarts = service.supervisor.status().restarts;
    service.replace(&names(&["example.org"]), false);
    wait_for("it is tried again", || service.supervisor.status().restarts > restarts);
}

#[test]
fn a_worker_that_asks_without_end_and_never_listens_holds_up_nobody() {
    let opener = opener(Path::new("/nonexistent"), "flood");
    let service = service(&opener, &["example.org"]);
    service.wait_until_ready().unwrap();
    let pid = service.supervisor.status().pid.unwrap();
    let process = pidfd(pid);
    let begun = Instant::now();
    let supervisor = Arc::downgrade(&service.supervisor);
    service.replace(&names(&["a.test"]), false);
    drop(service.supervisor.status());
    drop(service);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    wait_for("it is ended", || !alive(process.as_fd()));
    wait_for("its block is free", || supervisor.upgrade().is_none());
}

/// A profile that grants a name, and one that grants none.
fn profile(fixture: &Fixture, net: &str) {
    let text = format!(
        "[grant]\nfs_read = {{ only = [\"/usr\"] }}\nfs_write = {{ only = [] }}\nexec = {{ only = [] }}\nnet = {{ only = [{net}] }}\n\
         max_calls = \"unlimited\"\nvalid_for_generation = \"all\"\n"
    );
    fs::write(fixture.dir.path().join("profiles/n.toml"), text).unwrap();
}

const EXAMPLE: &str = "\"example.org:443\"";

/// As the server does it.
fn admit(fixture: &mut Fixture, child: &Sleeper) -> Result<(String, u64), EnrollError> {
    let request = Request { asked: "n".into(), workdir: None, audit: false, uid: 0, home: None };
    let place = fixture.place(None);
    let mut compiled = compiled(&request, &place, &fixture.state)?;
    if !compiled.policy.names.is_empty() {
        let id = fixture.state.registry.new_id().unwrap();
        let block = fixture.state.opener.take_block(0)?;
        compiled.policy.grant_block(block.net());
        let whose = Whose { container: &id, profile: "n", names: &compiled.policy.names, audit: false };
        let service = fixture.state.opener.open(whose, block, child.pidfd().as_fd())?;
        compiled.names = Some(Prepared { id, bundle: None, service });
    }
    let enrolled = fixture.state.enroll(&request, compiled, place, child.pidfd())?;
    let raw = fixture.only().record.kernel_id;
    Ok((enrolled.container, raw))
}

fn log(fixture: &Fixture) -> Vec<String> {
    fixture.kernel.with(|inner| std::mem::take(&mut inner.log))
}

fn redirect(fixture: &Fixture, raw: u64) -> Option<(Ipv4Addr, u16)> {
    fixture.kernel.with(|inner| inner.redirects.get(&raw).copied())
}

fn status(container: &Container) -> EgressProcess {
    container.egress.status(container.record.egress.as_ref()).unwrap()
}

#[test]
fn everything_is_there_before_the_first_task_and_gone_after_the_last() {
    let mut fixture = Fixture::new();
    profile(&fixture, EXAMPLE);
    let child = Sleeper::start();
    let (_, raw) = admit(&mut fixture, &child).unwrap();
    assert_eq!(log(&fixture), ["redirect", "install 1", "enroll"]);
    let (block, port) = redirect(&fixture, raw).unwrap();
    let record = fixture.only().record.egress.clone().unwrap();
    assert_eq!((record.block.network(), record.names.rules.len()), (block, 1));
    assert_eq!(answer(to(port)).2, ["example.org"]);
    assert_eq!(status(fixture.only()).block, record.block.to_string());
    let allows = |address: Ipv4Addr| {
        let policy = fixture.kernel.with(|inner| inner.containers[&raw].1.clone().unwrap());
        let address = address.to_ipv6_mapped();
        policy.nets.iter().any(|rule| rule.allow && rule.addr == address && rule.port == Some(443))
    };
    let first = Ipv4Addr::from_bits(block.to_bits() + 1);
    assert!(allows(first), "its own addresses are granted");
    let process = pidfd(status(fixture.only()).pid.unwrap());
    let supervisor = match &fixture.only().egress {
        Egress::Served(service) => Arc::downgrade(&service.supervisor),
        other => panic!("{other:?}"),
    };
    drop(child);
    set_tasks(&fixture, raw, 0, 0);
    fixture.state.sweep();
    fixture.state.registry.by_kernel_id_mut(raw).unwrap().idle = Instant::now().checked_sub(PATIENCE);
    fixture.state.sweep();
    assert!(fixture.state.registry.iter().next().is_none());
    assert_eq!((log(&fixture), redirect(&fixture, raw)), (vec!["redirect nowhere".to_owned()], None));
    wait_for("its worker ends", || !alive(process.as_fd()));
    wait_for("and what it had", || supervisor.upgrade().is_none());
    let free: Vec<_> = std::iter::from_fn(|| fixture.state.opener.take_block(0).ok()).collect();
    assert_eq!(free.last().map(|block| block.net()), Some(record.block), "it is the last to be used again");
}

#[test]
fn a_container_without_names_has_nothing_of_this() {
    let mut fixture = Fixture::new();
    profile(&fixture, "\"203.0.113.7:443\"");
    let child = Sleeper::start();
    let (_, raw) = admit(&mut fixture, &child).unwrap();
    assert_eq!(log(&fixture), ["install 0", "enroll"]);
    assert!(redirect(&fixture, raw).is_none() && fixture.only().record.egress.is_none());
    let text = serde_json::to_string(&fixture.only().record).unwrap();
    assert!(!text.contains("egress"), "{text}");
    assert!(fixture.only().egress.status(None).is_none());
}

#[test]
fn a_nested_container_reaches_what_both_may_by_addresses_and_a_worker_of_its_own() {
    let mut fixture = Fixture::new();
    profile(&fixture, "\"example.org:443\", \"a.test:80\"");
    let outer = Sleeper::start();
    let (_, raw) = admit(&mut fixture, &outer).unwrap();
    let inside = ContainerId::from_raw(raw);
    profile(&fixture, "\"example.org\", \"b.test:80\"");
    let inner_profile = fs::read_to_string(fixture.dir.path().join("profiles/n.toml")).unwrap();
    fs::write(fixture.dir.path().join("profiles/i.toml"), inner_profile).unwrap();
    profile(&fixture, "\"example.org:443\", \"a.test:80\"");
    let child = Sleeper::start();
    let member = ringfence_bpf::Membership { container: Some(inside), next: None };
    fixture.kernel.with(|inner| inner.tags.insert(child.0.id(), member));
    let request = Request { asked: "i".into(), workdir: None, audit: false, uid: 0, home: None };
    let place = fixture.place(Some(inside));
    let mut compiled = compiled(&request, &place, &fixture.state).unwrap();
    let id = fixture.state.registry.new_id().unwrap();
    let block = fixture.state.opener.take_block(0).unwrap();
    compiled.policy.grant_block(block.net());
    let whose = Whose { container: &id, profile: "i", names: &compiled.policy.names, audit: false };
    let service = fixture.state.opener.open(whose, block, child.pidfd().as_fd()).unwrap();
    compiled.names = Some(Prepared { id: id.clone(), bundle: None, service });
    fixture.state.enroll(&request, compiled, place, child.pidfd()).unwrap();
    let find =
        |id: &str| fixture.state.registry.iter().find(|one| one.record.id == id).unwrap().record.kernel_id;
    let (outer_at, inner_at) = (redirect(&fixture, raw).unwrap(), redirect(&fixture, find(&id)).unwrap());
    assert!(outer_at.0 != inner_at.0 && outer_at.1 != inner_at.1);
    let said = answer(to(inner_at.1));
    assert_eq!((said.1.network(), said.2), (inner_at.0, vec!["example.org".to_owned()]));
    assert_eq!(answer(to(outer_at.1)).2, ["example.org", "a.test"], "the control");
    // Its policy has its own addresses, and not those around it.
    let policy = fixture.kernel.with(|inner| inner.containers[&find(&id)].1.clone().unwrap());
    let allows = |address: Ipv4Addr| {
        let address = Ipv4Addr::from_bits(address.to_bits() + 1).to_ipv6_mapped();
        policy.nets.iter().any(|rule| rule.allow && rule.addr == address)
    };
    assert!(allows(inner_at.0) && !allows(outer_at.0));
}
