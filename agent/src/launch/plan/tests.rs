//! Plans for policies made by hand.

use super::*;
use crate::profile::compiled::{NetRule, RuleSource};

const ALL: Enforcers = Enforcers { landlock_abi: 7, seccomp: true };
const HOMES: &[&Path] = &[];
const NOTHING: Enforcers = Enforcers { landlock_abi: 0, seccomp: false };

fn policy() -> CompiledPolicy {
    CompiledPolicy {
        profile: "test".into(),
        audit_mode: false,
        initial: 0,
        record: 0,
        inet: false,
        capabilities: crate::profile::Capabilities::NONE,
        setuid_files: false,
        places: Vec::new(),
        nets: Vec::new(),
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

fn held(plan: &Plan, axis: Axis) -> &Held {
    plan.axes.iter().find(|held| held.axis == axis).unwrap()
}

fn gaps(plan: &Plan, axis: Axis) -> String {
    held(plan, axis).gaps.join("; ")
}

#[test]
fn a_grant_of_nothing_is_held_but_for_what_landlock_cannot_see() {
    let plan = without_ebpf(&policy(), HOMES, ALL);
    assert_eq!(gaps(&plan, Axis::FsRead), "");
    assert_eq!(gaps(&plan, Axis::FsWrite), "");
    assert_eq!(held(&plan, Axis::FsWrite).by, ["Landlock (ABI 7)", "seccomp"]);
    assert_eq!(gaps(&plan, Axis::Net), "");
    assert_eq!(held(&plan, Axis::Net).by, ["seccomp"]);
    assert!(gaps(&plan, Axis::Exec).contains("ld.so"));
    assert_eq!(plan.seccomp, [When::NoInet, When::NoUnix, When::NoWrite]);
    let refused: Vec<Axis> = plan.refused(&[]).map(|held| held.axis).collect();
    assert_eq!(refused, [Axis::Exec]);
    assert_eq!(plan.refused(&[Axis::Exec]).count(), 0);
}

#[test]
fn without_any_enforcer_every_axis_is_open() {
    let plan = without_ebpf(&policy(), HOMES, NOTHING);
    assert!(plan.axes.iter().all(|held| held.by.is_empty() && !held.gaps.is_empty()), "{:?}", plan.axes);
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
    assert!(plan.axes.iter().all(|held| held.gaps.is_empty()), "{:?}", plan.axes);
    assert_eq!(plan.landlock.restricted, Access::default());
}

#[test]
fn what_a_tree_cannot_say_is_a_gap() {
    let mut policy = policy();
    place(&mut policy, path("/srv"), Kind::Tree, axis::READ, 0, 0);
    assert_eq!(gaps(&without_ebpf(&policy, HOMES, ALL), Axis::FsRead), "");
    place(&mut policy, Place::Name(b".ssh".to_vec()), Kind::Tree, 0, axis::READ, 0);
    assert!(gaps(&without_ebpf(&policy, HOMES, ALL), Axis::FsRead).contains("denied inside an allow"));
    place(&mut policy, path("/opt"), Kind::Children, axis::READ, 0, 0);
    assert!(gaps(&without_ebpf(&policy, HOMES, ALL), Axis::FsRead).contains("only a part"));
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
    assert_eq!(gaps(&plan, Axis::FsRead), "");
    assert_eq!(plan.narrowed.len(), 1);
}

#[test]
fn a_protected_place_is_a_gap_only_where_an_allow_reaches_it() {
    let mut policy = policy();
    place(&mut policy, path("/proc/sys"), Kind::Tree, 0, 0, axis::READ);
    place(&mut policy, path("/srv"), Kind::Tree, axis::READ, 0, 0);
    assert_eq!(gaps(&without_ebpf(&policy, HOMES, ALL), Axis::FsRead), "");
    place(&mut policy, path("/proc"), Kind::Tree, axis::READ, 0, 0);
    assert!(gaps(&without_ebpf(&policy, HOMES, ALL), Axis::FsRead).contains("/proc/sys"));
    assert_eq!(gaps(&without_ebpf(&policy, HOMES, ALL), Axis::FsWrite), "");
}

#[test]
fn what_may_be_written_may_be_changed_and_only_base_does_not_count() {
    let mut policy = policy();
    place(&mut policy, path("/dev/null"), Kind::Exact, axis::WRITE, 0, 0);
    policy.rules[0].file = None;
    assert_eq!(gaps(&without_ebpf(&policy, HOMES, ALL), Axis::FsWrite), "");
    place(&mut policy, path("/srv"), Kind::Tree, axis::WRITE, 0, 0);
    let plan = without_ebpf(&policy, HOMES, ALL);
    assert!(gaps(&plan, Axis::FsWrite).contains("mode, owner"));
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
    assert!(gaps(&plan, Axis::Net).contains("addresses"));
    assert!(plan.seccomp.contains(&When::TcpPorts));
    let old = without_ebpf(&policy, HOMES, Enforcers { landlock_abi: 3, ..ALL });
    assert!(gaps(&old, Axis::Net).contains("ABI 4"));
    assert!(!old.seccomp.contains(&When::TcpPorts));
    policy.nets[0].port = None;
    assert_eq!(without_ebpf(&policy, HOMES, ALL).landlock.tcp, None);
}

#[test]
fn a_granted_unix_socket_opens_the_others_before_abi_9() {
    let mut policy = policy();
    place(&mut policy, path("/run/x.sock"), Kind::Exact, axis::UNIX, 0, 0);
    let plan = without_ebpf(&policy, HOMES, ALL);
    assert!(gaps(&plan, Axis::Net).contains("ABI 9"));
    assert!(!plan.seccomp.contains(&When::NoUnix));
    assert_eq!(gaps(&without_ebpf(&policy, HOMES, Enforcers { landlock_abi: 9, ..ALL }), Axis::Net), "");
}
