//! Plans for policies made by hand.

use super::*;
use ringfence_policy::compiled::{NetRule, RuleSource};
use ringfence_wire::egress::NameRule;

const ALL: Enforcers = Enforcers { landlock_abi: 7, seccomp: true, open_unix: false, proxy: None };
const HOMES: &[&Path] = &[];
const NOTHING: Enforcers = Enforcers { landlock_abi: 0, seccomp: false, open_unix: false, proxy: None };

fn policy() -> CompiledPolicy {
    CompiledPolicy {
        profile: "test".into(),
        audit_mode: false,
        initial: 0,
        record: 0,
        inet: false,
        capabilities: ringfence_policy::Capabilities::NONE,
        flags: 0,
        places: Vec::new(),
        nets: Vec::new(),
        names: Default::default(),
        rules: Vec::new(),
    }
}

fn rule(policy: &mut CompiledPolicy, id: &str, built_in: bool) -> RuleId {
    let file = (!built_in).then(|| PathBuf::from("/p.toml"));
    policy.rules.push(RuleSource { id: id.into(), file, line: 1, key: id.into(), text: id.into() });
    policy.rules.len() as RuleId - 1
}

fn place(policy: &mut CompiledPolicy, place: Place, kind: Kind, allow: u16, deny: u16, reset: u16) {
    let id = rule(policy, &format!("{place:?}"), false);
    let at = |bits: u16| std::array::from_fn(|bit| (bits & 1 << bit != 0).then_some(id));
    let reset_rule = (reset != 0).then_some(id);
    policy.places.push(PlaceRule {
        place,
        kind,
        allow,
        deny,
        reset,
        allow_rules: at(allow),
        deny_rules: at(deny),
        reset_rule,
    });
}

fn path(text: &str) -> Place {
    Place::Path(text.as_bytes().to_vec())
}

fn held(plan: &Plan, part: Partial) -> &Held {
    plan.parts.iter().find(|held| held.part == part).unwrap()
}

fn gaps(plan: &Plan, part: Partial) -> String {
    held(plan, part).gaps.join("; ")
}

#[test]
fn a_grant_of_nothing_is_held_but_for_what_landlock_cannot_see() {
    let plan = without_ebpf(&policy(), HOMES, ALL);
    assert_eq!(gaps(&plan, Partial::FsRead), "");
    assert_eq!(gaps(&plan, Partial::FsWrite), "");
    assert_eq!(held(&plan, Partial::FsWrite).by, ["Landlock (ABI 7)", "seccomp"]);
    assert_eq!(gaps(&plan, Partial::Net), "");
    assert_eq!(held(&plan, Partial::Net).by, ["seccomp"]);
    assert!(gaps(&plan, Partial::Exec).contains("ld.so"));
    assert_eq!(plan.seccomp, [When::NoInet, When::NoUnix, When::NoWrite]);
    let refused: Vec<Partial> = plan.refused(&[]).map(|held| held.part).collect();
    assert_eq!(refused, [Partial::Exec]);
    assert_eq!(plan.refused(&[Partial::Exec]).count(), 0);
}

#[test]
fn without_any_enforcer_every_axis_is_open() {
    let plan = without_ebpf(&policy(), HOMES, NOTHING);
    assert!(plan.parts.iter().all(|held| held.by.is_empty() && !held.gaps.is_empty()), "{:?}", plan.parts);
    assert!(plan.seccomp.is_empty());
}

#[test]
fn an_axis_that_is_all_needs_no_enforcer() {
    let mut policy = policy();
    policy.initial = axis::ALL;
    policy.inet = true;
    let any = NetRule { addr: std::net::Ipv6Addr::UNSPECIFIED, prefix: 0, port: None, allow: true, rule: 0 };
    policy.nets.push(any);
    let plan = without_ebpf(&policy, HOMES, NOTHING);
    assert!(plan.parts.iter().all(|held| held.gaps.is_empty()), "{:?}", plan.parts);
    assert_eq!(plan.landlock.restricted, Access::default());
}

#[test]
fn what_a_tree_cannot_say_is_a_gap() {
    let mut policy = policy();
    place(&mut policy, path("/srv"), Kind::Tree, axis::READ, 0, 0);
    assert_eq!(gaps(&without_ebpf(&policy, HOMES, ALL), Partial::FsRead), "");
    for named in
        [Place::Name(b".ssh".to_vec()), Place::Prefix(b"id_".to_vec()), Place::Suffix(b".pem".to_vec())]
    {
        let mut policy = policy.clone();
        place(&mut policy, named, Kind::Tree, 0, axis::READ, 0);
        assert!(gaps(&without_ebpf(&policy, HOMES, ALL), Partial::FsRead).contains("denied inside an allow"));
    }
    place(&mut policy, path("/opt"), Kind::Children, axis::READ, 0, 0);
    assert!(gaps(&without_ebpf(&policy, HOMES, ALL), Partial::FsRead).contains("only a part"));
}

#[test]
fn a_name_at_any_depth_is_open_at_home_and_said_to_be_closed_elsewhere() {
    let mut policy = policy();
    place(&mut policy, Place::Name(b".gitconfig".to_vec()), Kind::Tree, axis::READ, 0, 0);
    let plan = super::without_ebpf(&policy, &[Path::new("/root"), Path::new("/srv/app")], ALL);
    let paths: Vec<&Path> = plan.landlock.hierarchies.iter().map(|tree| tree.path.as_path()).collect();
    assert_eq!(paths, [Path::new("/root/.gitconfig"), Path::new("/srv/app/.gitconfig")]);
    assert!(
        plan.landlock.restricted.read && plan.landlock.hierarchies.iter().all(|tree| tree.may_be_missing)
    );
    assert_eq!(gaps(&plan, Partial::FsRead), "");
    assert_eq!(plan.narrowed.len(), 1);
}

#[test]
fn a_protected_place_is_a_gap_only_where_an_allow_reaches_it() {
    let mut policy = policy();
    place(&mut policy, path("/proc/sys"), Kind::Tree, 0, 0, axis::READ);
    place(&mut policy, path("/srv"), Kind::Tree, axis::READ, 0, 0);
    assert_eq!(gaps(&without_ebpf(&policy, HOMES, ALL), Partial::FsRead), "");
    place(&mut policy, path("/proc"), Kind::Tree, axis::READ, 0, 0);
    assert!(gaps(&without_ebpf(&policy, HOMES, ALL), Partial::FsRead).contains("/proc/sys"));
    assert_eq!(gaps(&without_ebpf(&policy, HOMES, ALL), Partial::FsWrite), "");
}

#[test]
fn what_may_be_written_may_be_changed_and_only_base_does_not_count() {
    let mut policy = policy();
    place(&mut policy, path("/dev/null"), Kind::Exact, axis::WRITE, 0, 0);
    policy.rules[0].file = None;
    assert_eq!(gaps(&without_ebpf(&policy, HOMES, ALL), Partial::FsWrite), "");
    place(&mut policy, path("/srv"), Kind::Tree, axis::WRITE, 0, 0);
    let plan = without_ebpf(&policy, HOMES, ALL);
    assert!(gaps(&plan, Partial::FsWrite).contains("mode, owner"));
    assert!(!plan.seccomp.contains(&When::NoWrite));
}

#[test]
fn ports_are_held_and_addresses_are_a_gap() {
    let mut policy = policy();
    policy.inet = true;
    let addr = "::ffff:127.0.0.1".parse().unwrap();
    policy.nets.push(NetRule { addr, prefix: 128, port: Some(443), allow: true, rule: 0 });
    let plan = without_ebpf(&policy, HOMES, ALL);
    assert_eq!(plan.landlock.tcp, Some([443].into()));
    assert!(gaps(&plan, Partial::Net).contains("addresses"));
    assert!(plan.seccomp.contains(&When::TcpPorts));
    let old = without_ebpf(&policy, HOMES, Enforcers { landlock_abi: 3, ..ALL });
    assert!(gaps(&old, Partial::Net).contains("ABI 4"));
    assert!(!old.seccomp.contains(&When::TcpPorts));
    policy.nets[0].port = None;
    assert_eq!(without_ebpf(&policy, HOMES, ALL).landlock.tcp, None);
}

#[test]
fn a_granted_unix_socket_opens_no_other_unless_that_is_accepted() {
    let mut policy = policy();
    place(&mut policy, path("/run/x.sock"), Kind::Exact, axis::UNIX, 0, 0);
    for landlock_abi in 1..landlock::ABI_UNIX_PATH {
        let plan = without_ebpf(&policy, HOMES, Enforcers { landlock_abi, ..ALL });
        assert_eq!(gaps(&plan, Partial::Unix), "", "{landlock_abi}");
        assert!(plan.seccomp.contains(&When::NoUnix), "{landlock_abi}: closed");
        assert!(plan.closed[0].contains("--accept-partial unix"), "and said: {:?}", plan.closed);
        let open = without_ebpf(&policy, HOMES, Enforcers { landlock_abi, open_unix: true, ..ALL });
        assert!(!open.seccomp.contains(&When::NoUnix) && open.closed.is_empty());
        assert!(gaps(&open, Partial::Unix).contains("every unix socket"), "{landlock_abi}");
        assert_eq!(gaps(&open, Partial::Net), "", "the network is another matter");
        // Nothing could close them: then it is a gap, whether it is accepted or not.
        let none = without_ebpf(&policy, HOMES, Enforcers { landlock_abi, seccomp: false, ..ALL });
        assert!(gaps(&none, Partial::Unix).contains("every unix socket"), "{landlock_abi}");
        assert_eq!(none.refused(&[Partial::Net]).filter(|held| held.part == Partial::Unix).count(), 1);
    }
    let by_path = without_ebpf(&policy, HOMES, Enforcers { landlock_abi: 9, ..ALL });
    assert_eq!(gaps(&by_path, Partial::Unix), "");
    assert!(!by_path.seccomp.contains(&When::NoUnix) && by_path.closed.is_empty());
    place(&mut policy, path("/srv"), Kind::Below, axis::UNIX, 0, 0);
    let finer = without_ebpf(&policy, HOMES, Enforcers { landlock_abi: 9, ..ALL });
    assert!(gaps(&finer, Partial::Unix).contains("only a part"));
}

#[test]
fn an_abstract_socket_that_is_granted_opens_no_other_unless_that_is_accepted() {
    let mut policy = policy();
    place(&mut policy, Place::Abstract(b"name".to_vec()), Kind::Exact, axis::UNIX, 0, 0);
    let newest = Enforcers { landlock_abi: 9, ..ALL };
    let plan = without_ebpf(&policy, HOMES, newest);
    assert!(plan.landlock.scope_abstract && plan.closed[0].contains("abstract"), "{:?}", plan.closed);
    assert_eq!(gaps(&plan, Partial::Unix), "");
    let open = without_ebpf(&policy, HOMES, Enforcers { open_unix: true, ..newest });
    assert!(!open.landlock.scope_abstract && open.closed.is_empty());
    assert!(gaps(&open, Partial::Unix).contains("abstract"));
}

#[test]
fn a_working_directory_that_is_or_holds_the_home_is_a_gap_where_the_profile_grants_it_as_such() {
    let mut policy = policy();
    place(&mut policy, path("/home/u"), Kind::Tree, axis::READ, 0, 0);
    let homes = [PathBuf::from("/nonexistent"), PathBuf::from("/home/u")];
    assert_eq!(home(&policy, Path::new("/home/u"), &homes), None, "it is granted by its own name");
    policy.rules[0].text = "${WORKDIR}".into();
    for (workdir, word) in [("/home/u", " is it"), ("/home", " holds it"), ("/", " holds it")] {
        let held = home(&policy, Path::new(workdir), &homes).unwrap();
        assert_eq!(held.part, Partial::Home);
        // `/` holds either home; the first is named.
        let named = workdir == "/" || held.gaps[0].contains("/home/u");
        assert!(named && held.gaps[0].contains(word), "{:?}", held.gaps);
    }
    for workdir in ["/home/u/work", "/home/u2", "/srv"] {
        assert_eq!(home(&policy, Path::new(workdir), &homes), None, "{workdir}");
    }
    policy.initial = axis::ALL;
    assert_eq!(home(&policy, Path::new("/home/u"), &homes), None, "everything is granted");
}

#[test]
fn names_are_closed_without_the_daemon_and_their_ports_open_beside_it() {
    let mut policy = policy();
    for (host, port) in [("example.org", Some(443)), ("*.pypi.org", Some(80))] {
        let rule = rule(&mut policy, &format!("net:{host}"), false);
        policy.names.rules.push(NameRule { host: host.into(), port, tcp: false, rule });
    }
    let plan = without_ebpf(&policy, HOMES, ALL);
    assert_eq!(plan.landlock.tcp, Some(BTreeSet::new()), "no port of theirs is open to every address");
    assert!(plan.seccomp.contains(&When::NoInet), "{:?}", plan.seccomp);
    assert_eq!(gaps(&plan, Partial::Net), "", "nothing is open");
    assert!(plan.closed[0].contains("net:*.pypi.org, net:example.org"), "{:?}", plan.closed);
    assert_eq!(
        (plan.names.as_deref(), plan.needed().as_str()),
        (Some("net:*.pypi.org, net:example.org"), "exec,net")
    );
    assert_eq!(landlock_rules(&policy, HOMES).tcp, Some(BTreeSet::from([53, 80, 443])));
    policy.names.rules[0].port = None;
    assert_eq!(landlock_rules(&policy, HOMES).tcp, None, "any port");
    policy.names.rules.clear();
    assert_eq!(landlock_rules(&policy, HOMES).tcp, Some(BTreeSet::new()), "the control");
    let plan = without_ebpf(&policy, HOMES, ALL);
    assert!(plan.closed.is_empty() && plan.names.is_none() && plan.needed() == "exec");
    policy.names.options.ask = Some(60);
    let plan = without_ebpf(&policy, HOMES, ALL);
    assert_eq!((plan.names.as_deref(), plan.needed().as_str()), (Some("net.ask"), "exec,net"), "nobody asks");
    assert_eq!(plan.landlock.tcp, Some(BTreeSet::new()));
    assert_eq!(landlock_rules(&policy, HOMES).tcp, None, "any port may be asked for");
}

#[test]
fn where_a_proxy_reaches_names_its_port_is_all_that_is_open() {
    let mut policy = policy();
    let of_name = rule(&mut policy, "net:example.org", false);
    policy.names.rules.push(NameRule {
        host: "example.org".into(),
        port: Some(443),
        tcp: false,
        rule: of_name,
    });
    let proxied = Enforcers { proxy: Some(40_000), ..ALL };
    let plan = without_ebpf(&policy, HOMES, proxied);
    assert_eq!((plan.landlock.tcp.as_ref(), plan.landlock.no_bind), (Some(&[40_000].into()), true));
    for when in [When::NoUdp, When::NoListen, When::TcpPorts] {
        assert!(plan.seccomp.contains(&when), "{when:?}: {:?}", plan.seccomp);
    }
    assert!(!plan.seccomp.contains(&When::NoInet) && plan.names.is_none());
    let names = held(&plan, Partial::Names);
    assert!(
        names.gaps.len() == 1 && names.gaps[0].contains("at any address, at the TCP port of"),
        "{names:?}"
    );
    assert_eq!((plan.needed().as_str(), gaps(&plan, Partial::Net).as_str()), ("exec,names", ""));
    let is_refused = |part: Partial| {
        let accepted = [Partial::Exec, part];
        plan.refused(&accepted).next().is_some()
    };
    assert!(is_refused(Partial::Net) && !is_refused(Partial::Names), "it has to be accepted by its own name");
    let old = without_ebpf(&policy, HOMES, Enforcers { landlock_abi: 5, ..proxied });
    assert!(gaps(&old, Partial::Names).contains("to end it by a signal"), "{old:?}");
    assert!(plan.closed.iter().any(|line| line.contains("HTTPS_PROXY")), "{:?}", plan.closed);
    let says_nobody_is_asked =
        |plan: &Plan| plan.closed.iter().any(|line| line.contains("nobody is asked about others"));
    assert!(!says_nobody_is_asked(&plan), "{:?}", plan.closed);
    policy.names.options.ask = Some(60);
    let asking = without_ebpf(&policy, HOMES, proxied);
    assert!(says_nobody_is_asked(&asking) && asking.landlock.tcp == plan.landlock.tcp, "{:?}", asking.closed);
    policy.names.options.ask = None;
    policy.names.options.ask = Some(60);
    let asking = without_ebpf(&policy, HOMES, proxied);
    assert_eq!((&asking.landlock, &asking.seccomp, &asking.names), (&plan.landlock, &plan.seccomp, &None));
    assert!(asking.closed.iter().any(|line| line.contains("nobody is asked about others")), "{asking:?}");
    policy.names.options.ask = None;
    // The port of a run's model is no address of the profile's.
    let of_run = rule(&mut policy, "net:127.0.0.1:41000", false);
    policy.rules[of_run as usize].file = Some(PathBuf::from(OF_RUN));
    let addr = "::ffff:127.0.0.1".parse().unwrap();
    policy.inet = true;
    policy.nets.push(NetRule { addr, prefix: 128, port: Some(41_000), allow: true, rule: of_run });
    let plan = without_ebpf(&policy, HOMES, proxied);
    assert_eq!((plan.landlock.tcp.as_ref(), plan.landlock.no_bind), (Some(&[40_000, 41_000].into()), true));
    assert!(plan.seccomp.contains(&When::NoUdp) && gaps(&plan, Partial::Net).contains("of its model"));
    assert_eq!(plan.needed(), "exec,net,names");
    // With addresses of the profile's, what those leave open is open as ever, and said.
    policy.nets[0].rule = of_name;
    let plan = without_ebpf(&policy, HOMES, proxied);
    assert!(!plan.landlock.no_bind && !plan.seccomp.contains(&When::NoUdp));
    assert!(gaps(&plan, Partial::Net).contains("and UDP") && gaps(&plan, Partial::Names).contains("port of"));
    policy.nets[0].port = None;
    assert!(gaps(&without_ebpf(&policy, HOMES, proxied), Partial::Names).contains("without it"));
}

#[test]
fn where_nothing_keeps_a_command_to_a_proxy_names_are_closed_as_before() {
    let mut policy = policy();
    let of_name = rule(&mut policy, "net:example.org", false);
    policy.names.rules.push(NameRule {
        host: "example.org".into(),
        port: Some(443),
        tcp: false,
        rule: of_name,
    });
    for unable in [Enforcers { landlock_abi: 3, ..ALL }, Enforcers { seccomp: false, ..ALL }] {
        let proxied = Enforcers { proxy: Some(40_000), ..unable };
        assert_eq!(without_ebpf(&policy, HOMES, proxied), without_ebpf(&policy, HOMES, unable));
    }
    // A unix socket of its own is listened at, and so may be a port.
    place(&mut policy, path("/run/x.sock"), Kind::Exact, axis::UNIX, 0, 0);
    let by_path = Enforcers { landlock_abi: 9, proxy: Some(40_000), ..ALL };
    let plan = without_ebpf(&policy, HOMES, by_path);
    assert!(!plan.seccomp.contains(&When::NoListen) && gaps(&plan, Partial::Names).contains("listens at"));
    policy.names.rules.clear();
    let plan = without_ebpf(&policy, HOMES, Enforcers { proxy: Some(40_000), ..ALL });
    assert!(
        plan.landlock.tcp == Some(BTreeSet::new()) && plan.seccomp.contains(&When::NoInet),
        "no name, no proxy"
    );
}
