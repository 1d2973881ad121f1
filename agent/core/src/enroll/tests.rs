//! Who may be enrolled, under what.

use super::*;
use std::{fs, os::fd::AsFd, os::unix::fs::PermissionsExt};

fn alone<'a>(root: BorrowedFd<'a>, dirs: &'a Dirs) -> Surroundings<'a> {
    Surroundings { outer: &[], root, mounts: None, dirs, history: None, past: None }
}

fn id(raw: u64) -> ContainerId {
    ContainerId::from_raw(raw)
}

fn inside(raw: u64) -> Option<Membership> {
    Some(Membership { container: Some(id(raw)), next: None })
}

fn process() -> Process {
    Process { pid: 20, parent: 10, uids: [1000; 4], threads: 1, tracer: 0, is_fork: true }
}

fn peer(uid: u32) -> Peer {
    Peer { pid: 10, uid, pidfd: std::fs::File::open("/dev/null").unwrap().into() }
}

#[test]
fn only_a_fresh_child_of_the_same_user_is_taken() {
    check_child(&peer(1000), &process()).unwrap();
    let grandchild = Process { parent: 11, ..process() };
    assert!(matches!(check_child(&peer(1000), &grandchild), Err(EnrollError::NotChild { .. })));
    let threaded = Process { threads: 2, ..process() };
    assert!(matches!(check_child(&peer(1000), &threaded), Err(EnrollError::Threads { .. })));
    for n in 0..4 {
        let mut other = process();
        other.uids[n] = 0;
        assert!(matches!(check_child(&peer(1000), &other), Err(EnrollError::OtherUser { .. })));
        check_child(&peer(0), &other).unwrap();
    }
}

#[test]
fn peer_and_child_are_in_one_place() {
    assert_eq!(container_of((10, None), (20, None)).unwrap(), None);
    assert_eq!(container_of((10, inside(5)), (20, inside(5))).unwrap(), Some(id(5)));
    assert!(container_of((10, None), (20, inside(5))).is_err());
    assert!(container_of((10, inside(5)), (20, inside(6))).is_err());
    assert!(container_of((10, inside(5)), (20, None)).is_err());
    let pending = Some(Membership { container: None, next: Some(id(5)) });
    assert!(container_of((10, None), (20, pending)).is_err());
    let twice = Some(Membership { container: Some(id(5)), next: Some(id(6)) });
    assert!(container_of((10, inside(5)), (20, twice)).is_err());
}

#[test]
fn who_is_not_root_gets_root_s_profiles_by_name_only() {
    let dir = tempfile::tempdir().unwrap();
    let profiles = dir.path().join("profiles");
    fs::create_dir(&profiles).unwrap();
    let file = profiles.join("p.toml");
    fs::write(&file, "description = \"nothing\"\n").unwrap();
    let dirs = Dirs { system: profiles, user: None };
    let path = file.to_str().unwrap();
    assert!(matches!(load(path, 1000, &dirs), Err(EnrollError::PathNotRoot(..))));
    assert!(matches!(load("p.toml", 1000, &dirs), Err(EnrollError::PathNotRoot(..))));
    load(path, 0, &dirs).unwrap();
    if rustix::process::geteuid().is_root() {
        load("p", 1000, &dirs).unwrap();
    }
    fs::set_permissions(&file, fs::Permissions::from_mode(0o664)).unwrap();
    rustix::fs::chown(&file, None, Some(rustix::fs::Gid::from_raw(12345))).ok();
    assert!(matches!(load("p", 1000, &dirs), Err(EnrollError::NotRoots { .. })));
}

#[test]
fn anyone_may_take_less_by_a_grant() {
    let dirs = Dirs { system: "/nonexistent".into(), user: None };
    let grant = Grant {
        exec: ringfence_grant::Scope::only(["/bin/true".parse().unwrap()]),
        net: ringfence_grant::Scope::only(["example.com".parse().unwrap(), "10.0.0.1".parse().unwrap()]),
        ..Grant::top()
    };
    let asked = format!("{GRANT}{}", serde_json::to_string(&grant).unwrap());
    let profile = load(&asked, 1000, &dirs).unwrap();
    assert!(!profile::is_name(&profile.name), "{}", profile.name);
    assert_eq!(profile.mode, Mode::Enforce);
    let held = profile.grant(None);
    assert_eq!(held.exec, grant.exec);
    assert_eq!(held.net, ringfence_grant::Scope::only(["10.0.0.1".parse().unwrap()]));
    let root = host_root().unwrap();
    let request = Request { asked, workdir: None, audit: false, uid: 1000, home: None };
    compile(&request, alone(root.as_fd(), &dirs)).unwrap();
    for wrong in ["grant:", "grant:{}", "grant:[]"] {
        assert!(matches!(load(wrong, 1000, &dirs), Err(EnrollError::Grant(_))), "{wrong}");
    }
}

#[test]
fn audit_mode_is_root_s_to_ask_for() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("p.toml"), "mode = \"enforce\"\n").unwrap();
    fs::write(dir.path().join("a.toml"), "mode = \"audit\"\n").unwrap();
    let dirs = Dirs { system: dir.path().to_owned(), user: None };
    let root = host_root().unwrap();
    let ask = |asked: &str, uid, audit, outer: &[Outer]| {
        let request = Request { asked: asked.into(), workdir: None, audit, uid, home: None };
        compile(&request, Surroundings { outer, ..alone(root.as_fd(), &dirs) })
    };
    if rustix::process::geteuid().is_root() {
        assert!(matches!(ask("p", 1000, true, &[]), Err(EnrollError::AuditNotRoot(_))));
        assert!(ask("a", 1000, true, &[]).unwrap().policy.audit_mode);
    }
    assert!(ask("p", 0, true, &[]).unwrap().policy.audit_mode);
    assert!(!ask("p", 0, false, &[]).unwrap().policy.audit_mode);
    // Inside a container that enforces, asking changes nothing.
    let around = Outer {
        id: "0123456789ab".into(),
        asked: "p".into(),
        workdir: None,
        audit: false,
        home: None,
        history: History::default(),
    };
    assert!(!ask("a", 0, true, &[around]).unwrap().policy.audit_mode);
}

#[test]
fn no_policy_comes_from_what_its_container_could_have_written() {
    let dir = tempfile::tempdir().unwrap();
    let (work, away) = (dir.path().join("work"), dir.path().join("away"));
    fs::create_dir(&work).unwrap();
    fs::create_dir(&away).unwrap();
    let file = work.join("p.toml");
    let profile = |extends: &str| {
        let grant = format!(
            "[grant]\nfs_read = \"all\"\nfs_write = {{ only = [{:?}] }}\nexec = \"all\"\nnet = \"all\"\nmax_calls = \
             \"unlimited\"\nvalid_for_generation = \"all\"\n",
            work.to_str().unwrap()
        );
        fs::write(&file, format!("{extends}{grant}")).unwrap();
    };
    profile("");
    let dirs = Dirs { system: "/nonexistent".into(), user: None };
    let (root, mounts) = (host_root().unwrap(), mounts::of("self").unwrap());
    let asked = file.to_str().unwrap().to_owned();
    let request = Request { asked, workdir: None, audit: false, uid: 0, home: None };
    let around = Surroundings { mounts: Some(&mounts), ..alone(root.as_fd(), &dirs) };
    let first = compile(&request, around).unwrap();
    let decider = ringfence_policy::decide::Decider::new(&first.policy);
    let may_write = |path: &Path| {
        use std::os::unix::ffi::OsStrExt;
        decider.path(ringfence_common::policy::axis::WRITE, path.as_os_str().as_bytes()).allowed()
    };
    assert!(may_write(&work.join("other")) && !may_write(&file));
    let mut history = History { fixed: first.fixed.clone(), ..History::default() };
    history.written.add(&first.policy);
    let again = Surroundings { history: Some(&history), ..around };
    compile(&request, again).unwrap();
    // A file that root has it extend now: from where the container writes, and from elsewhere.
    fs::write(work.join("parent.toml"), "description = \"x\"").unwrap();
    fs::copy(work.join("parent.toml"), away.join("parent.toml")).unwrap();
    profile("extends = \"parent\"\n");
    let error = compile(&request, again).unwrap_err();
    assert!(matches!(&error, EnrollError::Writable { file, .. } if file.ends_with("parent.toml")), "{error}");
    profile(&format!("extends = {:?}\n", away.join("parent.toml").to_str().unwrap()));
    compile(&request, again).unwrap();
    // By a second name it could have been written before it was closed.
    fs::hard_link(&file, work.join("alias.toml")).unwrap();
    assert!(matches!(compile(&request, around), Err(EnrollError::Linked { names: 2, .. })));
    fs::remove_file(work.join("alias.toml")).unwrap();
    compile(&request, around).unwrap();
}

#[test]
fn the_host_s_root_is_known_by_its_mount() {
    let (_, host) = root_of(std::process::id()).unwrap();
    assert!(host);
    let tmp = open_dir(Path::new("/tmp")).unwrap();
    assert!(!is_host_root(&tmp).unwrap());
}

#[test]
fn an_endpoint_is_the_address_of_a_listening_socket_of_loopback_that_comes_with_it() {
    use std::net::{TcpListener, TcpStream, UdpSocket};
    let endpoint = Some("127.0.0.1:4180".parse().unwrap());
    let plain = Asked { endpoint: None, tie: None, profile: "coder" };
    assert_eq!(Asked::parse("coder").unwrap(), plain);
    let asked = Asked::parse("endpoint:127.0.0.1:4180:claude").unwrap();
    assert_eq!(asked, Asked { endpoint, tie: None, profile: "claude" });
    assert_eq!(Asked::parse("endpoint:127.0.0.1:4180:/etc/a:b.toml").unwrap().profile, "/etc/a:b.toml");
    for odd in [
        "endpoint:",
        "endpoint:claude",
        "endpoint:127.0.0.1:claude",
        "endpoint:127.0.0.1:4180",
        "endpoint:[::1]:1:c",
        "endpoint:e.org:1:c",
    ] {
        assert!(matches!(Asked::parse(odd), Err(EnrollError::Endpoint)), "{odd}");
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    check_listener(&listener, address).unwrap();
    let is_refused = |socket: &dyn AsFd, address| {
        matches!(check_listener(socket.as_fd(), address), Err(EnrollError::Endpoint))
    };
    assert!(is_refused(&listener, "127.0.0.1:1".parse().unwrap()), "another's address");
    assert!(is_refused(&TcpStream::connect(address).unwrap(), address), "one that does not listen");
    assert!(is_refused(&UdpSocket::bind(address).unwrap(), address), "of another protocol");
    let everywhere = TcpListener::bind("0.0.0.0:0").unwrap();
    let port = everywhere.local_addr().unwrap().port();
    assert!(
        is_refused(&everywhere, ([127, 0, 0, 1], port).into()),
        "what listens everywhere listens there, too"
    );
    assert!(is_refused(&everywhere, everywhere.local_addr().unwrap()), "what is no loopback");
    assert!(is_refused(&std::fs::File::open("/dev/null").unwrap(), address), "what is no socket");
}

/// The name of a socket of ties.
fn name_of_ties(first: char) -> String {
    format!("{}{first}{}", tie::NAME, "0".repeat(tie::DIGITS - 1))
}

#[test]
fn ties_have_a_listening_socket_of_their_name_that_comes_with_it() {
    use std::os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr, UnixDatagram, UnixListener, UnixStream},
    };
    let name = name_of_ties('a');
    let text = format!("endpoint:127.0.0.1:4180:@{name}:/etc/a:b.toml");
    let asked = Asked::parse(&text).unwrap();
    assert_eq!((asked.tie, asked.profile), (Some(name.as_str()), "/etc/a:b.toml"));
    for odd in ["@", "@x:claude", "@ringfence-:claude", &format!("@{name}"), &format!("@/{name}:claude")] {
        let odd = format!("endpoint:127.0.0.1:4180:{odd}");
        assert!(matches!(Asked::parse(&odd), Err(EnrollError::Tie)), "{odd}");
    }
    // A test of its own: the name is the whole host's.
    let [own, another] = ["own", "another"].map(|of| format!("ringfence-test-{of}-{}", std::process::id()));
    let address = |name: &str| SocketAddr::from_abstract_name(name).unwrap();
    let listener = UnixListener::bind_addr(&address(&own)).unwrap();
    check_tie(&listener, &own).unwrap();
    let is_refused = |socket: &dyn AsFd| matches!(check_tie(socket.as_fd(), &own), Err(EnrollError::Tie));
    assert!(is_refused(&UnixListener::bind_addr(&address(&another)).unwrap()), "another name");
    assert!(is_refused(&UnixStream::connect_addr(&address(&own)).unwrap()), "one that does not listen");
    assert!(is_refused(&UnixDatagram::unbound().unwrap()), "of another kind");
    let dir = tempfile::tempdir().unwrap();
    assert!(is_refused(&UnixListener::bind(dir.path().join(&own)).unwrap()), "a path");
    assert!(is_refused(&std::net::TcpListener::bind("127.0.0.1:0").unwrap()), "of another family");
    assert!(is_refused(&std::fs::File::open("/dev/null").unwrap()), "what is no socket");
}

#[test]
fn a_socket_of_ties_is_granted_beside_an_endpoint_and_nothing_else_is() {
    let dirs = Dirs { system: tempfile::tempdir().unwrap().path().to_owned(), user: None };
    let name = name_of_ties('b');
    let rules = |asked: &str| {
        let profile = load(asked, 1000, &dirs).unwrap();
        let of = |rules: &AxisRules| rules.listed().iter().map(|rule| rule.text.clone()).collect::<Vec<_>>();
        [
            of(&profile.rules.net),
            of(&profile.rules.exec),
            of(&profile.rules.fs_read),
            of(&profile.rules.fs_write),
        ]
    };
    let plain = rules("endpoint:127.0.0.1:4180:claude");
    let tied = rules(&format!("endpoint:127.0.0.1:4180:@{name}:claude"));
    assert_eq!(tied[0][plain[0].len()..], [format!("unix:@{name}")]);
    // The program is the daemon's own, where there is one beside it.
    let program = tie_program().map(|program| program.display().to_string());
    for axis in [1, 2] {
        assert_eq!(tied[axis][plain[axis].len()..], program.iter().cloned().collect::<Vec<_>>());
    }
    assert_eq!(tied[3], plain[3]);
}

#[test]
fn an_endpoint_is_granted_beside_a_profile_with_a_kit_and_no_other() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("plain.toml"), "description = \"no kit\"\n").unwrap();
    let dirs = Dirs { system: dir.path().to_owned(), user: None };
    let granted = |asked: &str| {
        let profile = load(asked, 0, &dirs).unwrap();
        profile.rules.net.listed().iter().any(|rule| rule.text == "127.0.0.1:4180")
    };
    assert!(granted("endpoint:127.0.0.1:4180:claude") && !granted("claude"));
    assert!(!granted("plain"), "the control");
    let refused = load("endpoint:127.0.0.1:4180:plain", 0, &dirs).unwrap_err();
    assert!(matches!(refused, EnrollError::NoKit(name) if name == "plain"));
    // A user has a profile in the binary by its name, and no path.
    assert!(load("endpoint:127.0.0.1:4180:claude", 1000, &dirs).is_ok());
    let path = format!("endpoint:127.0.0.1:4180:{}", dir.path().join("plain.toml").display());
    assert!(matches!(load(&path, 1000, &dirs), Err(EnrollError::PathNotRoot(..))));
}

#[test]
fn a_program_that_others_can_change_is_not_granted() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(tie_program_in(dir.path()), None, "it is not there");
    let program = dir.path().join(tie::PROGRAM);
    fs::write(&program, "").unwrap();
    let with_mode = |mode| {
        fs::set_permissions(&program, fs::Permissions::from_mode(mode)).unwrap();
        tie_program_in(dir.path())
    };
    assert_eq!(with_mode(0o757), None);
    // The control: whoever runs the tests has made it.
    let is_root = rustix::process::geteuid().is_root();
    assert_eq!(with_mode(0o755), is_root.then(|| program.clone()));
}
