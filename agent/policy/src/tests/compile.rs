//! What profiles compile to, inside roots that are made for it.

use super::{Lab, toml};
use crate::{
    compiled::CompiledPolicy,
    decide::{Decider, Why},
    problem::Wrong,
    *,
};
use ringfence_common::policy::axis::{EXEC, MAP, READ, UNIX, WRITE};
use std::fs;

fn allowed(policy: &CompiledPolicy, axis: u16, path: &str) -> bool {
    Decider::new(policy).path(axis, path.as_bytes()).allowed()
}

/// What decided, and the rule's id.
fn why(policy: &CompiledPolicy, axis: u16, path: &str) -> (Why, String) {
    let decision = Decider::new(policy).path(axis, path.as_bytes());
    (decision.why, decision.rule.map(|r| policy.rules[r as usize].id.clone()).unwrap_or_default())
}

#[test]
fn links_are_resolved_inside_the_root() {
    let lab = Lab::new();
    lab.program("usr/bin/dash");
    lab.link("usr/bin/sh", "dash");
    lab.link("bin", "usr/bin");
    lab.dir("data/real");
    lab.link("alias", "/data/real");
    let policy = lab.compile(&toml(
        "fs_read = { only = [\"/alias\"] }\nexec = { only = [\"/bin/sh\"] }",
        "fs_write = [\"/alias/x\"]",
        "none",
    ));
    assert!(allowed(&policy, READ, "/data/real/f"));
    assert!(!allowed(&policy, READ, "/alias/f"), "the kernel never sees the link's name");
    assert!(!allowed(&policy, READ, "/data/realm"));
    assert_eq!(why(&policy, EXEC, "/usr/bin/dash"), (Why::Allowed, "exec:/bin/sh".to_owned()));
    assert!(allowed(&policy, MAP, "/usr/bin/dash"));
    // A deny also stands where the link is: it may be replaced by a directory.
    assert_eq!(why(&policy, WRITE, "/data/real/x").0, Why::Denied);
    assert_eq!(why(&policy, WRITE, "/alias/x").0, Why::Denied);
}

#[test]
fn what_all_rules_lead_through_is_bounded_and_the_asker_is_told() {
    let lab = Lab::new();
    lab.dir("work/d");
    // One link that somebody made, for all rules: what is left of the path behind it is as long as a path may be.
    lab.link("work/l", &format!("d{}", "/x".repeat(1900)));
    lab.link("work/k", "l");
    let rules = |way: &str, many: usize| {
        let rules: Vec<String> = (0..many).map(|n| format!("\"/work/{way}/{n}\"")).collect();
        format!("[{}]", rules.join(", "))
    };
    let granted = |way: &str, many| toml(&format!("fs_read = {{ only = {} }}", rules(way, many)), "", "none");
    let denied = |way: &str, many| toml("", &format!("fs_read = {}", rules(way, many)), "none");
    let (few, most) = (30, 1000);
    for text in [granted("k", few), denied("k", few), granted("d", most), denied("d", most)] {
        lab.compile(&text);
    }
    for text in [granted("k", most), denied("k", most)] {
        let problems = lab.try_compile(&text, None).unwrap_err();
        assert!(matches!(problems.0[..], [Problem { what: Wrong::TooMuchFollowed(_), .. }]), "{problems}");
    }
}

#[test]
fn a_link_that_the_container_may_write_is_not_followed() {
    let lab = Lab::new();
    lab.dir("own");
    lab.dir("secret");
    lab.link("own/out", "/secret");
    lab.link("out", "/secret");
    let read = |path: &str| {
        toml(&format!("fs_read = {{ only = [\"{path}\"] }}\nfs_write = {{ only = [\"/own\"] }}"), "", "none")
    };
    let (policy, notes) = lab.try_compile(&read("/own/out"), None).unwrap();
    assert!(!allowed(&policy, READ, "/secret/key"));
    assert!(notes.iter().any(|n| n.contains("may change")), "{notes:?}");
    let (policy, notes) = lab.try_compile(&read("/out"), None).unwrap();
    assert!(allowed(&policy, READ, "/secret/key"), "the control: a link elsewhere is followed");
    assert_eq!(notes, Vec::<String>::new());
}

#[test]
fn bare_names_are_what_path_finds() {
    let lab = Lab::new();
    lab.program("usr/bin/git");
    lab.program("tmp/git");
    let (policy, notes) =
        lab.try_compile(&toml("exec = { only = [\"git\", \"nothere\"] }", "", "none"), None).unwrap();
    assert!(allowed(&policy, EXEC, "/usr/bin/git"));
    assert!(!allowed(&policy, EXEC, "/tmp/git"));
    assert!(notes.iter().any(|n| n.contains("nothere")));
    let policy = lab.compile(&toml("exec = \"all\"", "exec = [\"git\", \"later\"]", "none"));
    for denied in ["/usr/bin/git", "/usr/local/bin/git", "/bin/later", "/usr/bin/later"] {
        assert_eq!(why(&policy, EXEC, denied).0, Why::Denied, "{denied}");
        assert_eq!(why(&policy, MAP, denied).0, Why::Denied, "{denied}");
    }
    assert!(allowed(&policy, EXEC, "/usr/bin/other"));
}

#[test]
fn a_deny_at_any_depth_beats_every_allow() {
    let lab = Lab::new();
    let policy = lab.compile(&toml(
        "fs_read = { only = [\"/srv\", \"/srv/a/b/c\"] }",
        "fs_read = [\"/srv/a\", \"**/.env\"]",
        "none",
    ));
    assert_eq!(why(&policy, READ, "/srv/x"), (Why::Allowed, "fs_read:/srv".to_owned()));
    assert_eq!(why(&policy, READ, "/srv/a/b/c/d"), (Why::Denied, "deny.fs_read:/srv/a".to_owned()));
    assert_eq!(why(&policy, READ, "/srv/x/.env/y"), (Why::Denied, "deny.fs_read:**/.env".to_owned()));
    assert!(allowed(&policy, READ, "/srv/x/.envrc"), "names are whole components");
    assert_eq!(why(&policy, READ, "/other").0, Why::Default);
}

#[test]
fn broad_rules_do_not_reach_protected_places_and_naming_them_does() {
    let lab = Lab::new();
    for dir in ["proc/sys", "sys", "dev", "run", "tmp"] {
        lab.dir(dir);
    }
    lab.link("var", "usr");
    lab.dir("usr");
    let policy = lab.compile(&toml("fs_read = \"all\"\nfs_write = \"all\"\nnet = \"all\"", "", "userland"));
    for path in [
        "/proc/sys/kernel/core_pattern",
        "/proc/sysrq-trigger",
        "/sys/x",
        "/dev/sda",
        "/dev/mem",
        "/etc/cron.d/x",
        "/run/ringfence/state",
        "/var/lib/ringfence/audit.db",
    ] {
        let path = path.replace("/var/", "/usr/");
        assert_eq!(why(&policy, WRITE, &path).0, Why::Protected, "{path}");
    }
    assert_eq!(why(&policy, READ, "/etc/shadow"), (Why::Protected, "protected:/etc/shadow".to_owned()));
    assert!(allowed(&policy, READ, "/proc/sys/vm/overcommit_memory"));
    for socket in [
        "/run/docker.sock",
        "/run/dbus/system_bus_socket",
        "/tmp/tmux-0/default",
        "/home/u/.gnupg/S.gpg-agent",
        "/srv/docker.sock",
    ] {
        assert_eq!(why(&policy, UNIX, socket).0, Why::Protected, "{socket}");
    }
    assert!(allowed(&policy, UNIX, "/srv/app.sock"));
    assert!(!Decider::new(&policy).abstract_socket(UNIX, b"containerd-shim").allowed());
    assert!(allowed(&policy, WRITE, "/dev/shm/x") && allowed(&policy, READ, "/dev/shm/x"));
    assert!(allowed(&policy, WRITE, "/srv/x") && !allowed(&policy, WRITE, "/proc/1/oom_score_adj"));

    let named = lab.compile(&toml(
        "fs_read = { only = [\"/\"] }\nfs_write = { only = [\"/\", \"/proc/sys/vm\", \"/dev\"] }\nnet = { only = [\"unix:/run/docker.sock\", \"unix:@x\"] }",
        "",
        "none",
    ));
    assert!(allowed(&named, WRITE, "/proc/sys/vm/x") && !allowed(&named, WRITE, "/proc/sys/kernel/x"));
    assert!(allowed(&named, WRITE, "/dev/console") && !allowed(&named, WRITE, "/dev/mem"));
    assert!(allowed(&named, UNIX, "/run/docker.sock") && !allowed(&named, UNIX, "/run/other.sock"));
    assert!(Decider::new(&named).abstract_socket(UNIX, b"x").allowed());
    assert_eq!(why(&named, WRITE, "/dev/shm/x"), (Why::Allowed, "fs_write:/".to_owned()));
}

#[test]
fn the_base_is_what_programs_need_and_no_more() {
    let lab = Lab::new();
    lab.dir("usr/lib");
    lab.link("lib", "usr/lib");
    lab.dir("usr/bin");
    lab.dir("dev/pts");
    lab.dir("proc");
    for file in ["dev/null", "dev/random", "etc/passwd", "etc/shadow"] {
        lab.program(file);
    }
    let policy = lab.compile(&toml("", "", "userland"));
    assert!(allowed(&policy, READ, "/usr/lib/x.so") && allowed(&policy, MAP, "/usr/lib/x.so"));
    assert!(!allowed(&policy, EXEC, "/usr/lib/x.so") && !allowed(&policy, EXEC, "/usr/bin/id"));
    assert!(!allowed(&policy, MAP, "/usr/bin/id"));
    assert!(allowed(&policy, WRITE, "/dev/null") && !allowed(&policy, WRITE, "/dev/random"));
    assert!(allowed(&policy, WRITE, "/dev/pts/3") && !allowed(&policy, READ, "/dev/sda"));
    assert!(allowed(&policy, READ, "/etc/passwd") && !allowed(&policy, READ, "/etc/shadow"));
    assert!(allowed(&policy, READ, "/proc/1/status") && !allowed(&policy, READ, "/proc/kcore"));
    assert!(!allowed(&policy, WRITE, "/proc/1/oom_score_adj") && !allowed(&policy, READ, "/root/x"));
    let none = lab.compile(&toml("", "", "none"));
    assert!(none.places.is_empty() && none.nets.is_empty() && none.initial == 0 && !none.inet);
}

#[test]
fn workdir_is_put_in_and_must_not_be_a_way_around() {
    let lab = Lab::new();
    lab.dir("home/u/repo[1]");
    lab.dir("etc/cron.d");
    lab.dir("dev");
    lab.link("home/u/dev", "/dev");
    let text = toml(
        "fs_write = { only = [\"${WORKDIR}\", \"${WORKDIR}/x/**\"] }\nnet = { only = [\"unix:${WORKDIR}/s\"] }",
        "",
        "none",
    );
    let (policy, _) = lab.try_compile(&text, Some("/home/u/repo[1]")).unwrap();
    assert_eq!(why(&policy, WRITE, "/home/u/repo[1]/f"), (Why::Allowed, "fs_write:${WORKDIR}".to_owned()));
    assert!(allowed(&policy, UNIX, "/home/u/repo[1]/s") && !allowed(&policy, WRITE, "/home/u/repo"));
    let (policy, notes) = lab.try_compile(&text, None).unwrap();
    assert!(policy.places.iter().all(|r| r.allow == 0), "no working directory, nothing granted");
    assert_eq!(notes.iter().filter(|n| n.contains("nothing is granted")).count(), 3, "{notes:?}");
    for dir in ["relative", "/home/../etc"] {
        let refused = lab.try_compile(&text, Some(dir)).unwrap_err();
        assert!(
            matches!(refused.0[..], [Problem { what: Wrong::BadWorkdir { .. }, .. }]),
            "{dir}: {refused}"
        );
    }
    for dir in ["/", "/etc/cron.d/x", "/dev", "/home/u/dev", "/proc/1", "/run/ringfence"] {
        let (policy, notes) = lab.try_compile(&text, Some(dir)).unwrap();
        assert!(policy.places.iter().all(|r| r.allow == 0), "{dir}");
        assert_eq!(notes.iter().filter(|n| n.contains("nothing is granted")).count(), 3, "{notes:?}");
    }
    // A deny holds all the same.
    let text = toml("fs_write = \"all\"", "fs_write = [\"${WORKDIR}/x\"]", "none");
    let (policy, _) = lab.try_compile(&text, Some("/")).unwrap();
    assert_eq!(why(&policy, WRITE, "/x").0, Why::Denied);
    let refused = lab.try_compile(&text, None).unwrap_err();
    assert!(matches!(refused.0[..], [Problem { what: Wrong::NoWorkdir(_), .. }]), "{refused}");
}

#[test]
fn many_rules_compile_and_too_many_are_refused() {
    let lab = Lab::new();
    let list =
        |n: usize| (0..n).map(|i| format!("\"/srv/{}/f{i}\"", i % 100)).collect::<Vec<_>>().join(",\n");
    let policy = lab.compile(&toml(
        &format!("fs_read = {{ only = [{}] }}", list(10_000).replace('\n', "")),
        "",
        "none",
    ));
    assert!(policy.places.len() >= 10_000);
    assert!(allowed(&policy, READ, "/srv/99/f9999") && !allowed(&policy, READ, "/srv/99/f9998"));
    let text = toml("", &format!("fs_read = [{}]", list(100_000)), "none");
    // Each of these ranges is split into 96, around the one of IPv4.
    let ranges = (1..=700).map(|port| format!("\"[::/0]:{port}\"")).collect::<Vec<_>>().join(",");
    let errors =
        lab.try_compile(&toml(&format!("net = {{ only = [{ranges}] }}"), "", "none"), None).unwrap_err();
    assert!(matches!(errors.0[..], [Problem { what: Wrong::TooManyPlaces(67_200, _), .. }]), "{errors}");
    let file = lab.dir.path().join("many.toml");
    fs::write(&file, text).unwrap();
    let errors = load(file.to_str().unwrap(), &Dirs::system()).unwrap_err();
    assert!(matches!(errors.0[..], [Problem { what: Wrong::TooManyRules(100_000, _), .. }]), "{errors}");
}

#[test]
fn all_means_every_address_and_a_deny_is_left_out() {
    let lab = Lab::new();
    let policy =
        lab.compile(&toml("net = \"all\"", "net = [\"169.254.169.254\", \"10.0.0.0/8:22\"]", "none"));
    let decider = Decider::new(&policy);
    let at = |addr: &str, port| decider.address(addr.parse().unwrap(), port).allowed();
    assert!(at("8.8.8.8", 53) && at("2001:db8::1", 443) && at("10.1.1.1", 80));
    assert!(!at("169.254.169.254", 80) && !at("::ffff:169.254.169.254", 80) && !at("10.1.1.1", 22));
    assert!(policy.inet);
}
