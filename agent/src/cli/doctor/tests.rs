//! Reports on hosts made by hand.

use super::*;

fn good() -> Facts {
    Facts {
        release: "6.12.1".into(),
        unsupported: None,
        lsm: LsmList::Known(["capability", "landlock", "yama", "bpf"].map(str::to_owned).into()),
        btf: Ok(()),
        bpf_lsm: BpfLsm::Permitted,
        landlock_abi: 6,
        seccomp: true,
        cgroup2: Some("/sys/fs/cgroup".into()),
        lockdown: Some("none".into()),
        beyond: Some(Unknown::default()),
        daemon: Daemon::Running,
        names: None,
    }
}

fn advice(facts: &Facts) -> String {
    report(facts).checks.into_iter().filter_map(|check| check.advice).collect::<Vec<_>>().join("\n")
}

#[test]
fn a_host_with_everything_is_full() {
    let report = report(&good());
    assert_eq!(report.verdict, Verdict::Full);
    assert!(report.axes.iter().all(|axis| axis.full && axis.by == ["ebpf"]));
    assert_eq!(advice(&good()), "");
}

#[test]
fn without_bpf_in_the_list_the_whole_line_is_given() {
    let lsm = LsmList::Known(["capability", "lockdown", "yama", "apparmor"].map(str::to_owned).into());
    let facts = Facts { lsm, daemon: Daemon::NotRunning, ..good() };
    assert_eq!(report(&facts).verdict, Verdict::Partial);
    assert!(advice(&facts).contains("`lsm=landlock,lockdown,yama,apparmor,bpf`"), "{}", advice(&facts));
    assert!(advice(&facts).contains("GRUB_CMDLINE_LINUX"));
}

#[test]
fn each_thing_that_ebpf_needs_is_told_when_it_is_missing() {
    for (facts, expected) in [
        (Facts { btf: Err("No such file or directory".into()), ..good() }, "CONFIG_DEBUG_INFO_BTF"),
        (Facts { bpf_lsm: BpfLsm::Unsupported, ..good() }, "CONFIG_BPF_LSM"),
        (Facts { bpf_lsm: BpfLsm::Refused("Operation not permitted".into()), ..good() }, "VM of your own"),
        (Facts { lockdown: Some("confidentiality".into()), ..good() }, "lockdown=integrity"),
        (Facts { cgroup2: None, ..good() }, "mount -t cgroup2"),
    ] {
        assert_eq!(report(&facts).verdict, Verdict::Partial, "{expected}");
        assert!(advice(&facts).contains(expected), "{}", advice(&facts));
        let axes = report(&facts).axes;
        assert!(axes.iter().all(|axis| !axis.full && !axis.open.is_empty()), "{axes:?}");
    }
}

#[test]
fn containers_that_reach_no_name_are_told_with_what_becomes_of_them() {
    assert!(!text(&report(&good())).contains("by name"), "of a host where none may reach any");
    let mut names = Names { containers: 3, amiss: Vec::new() };
    let facts = Facts { names: Some(names.clone()), ..good() };
    assert_eq!(advice(&facts), "");
    assert!(
        text(&report(&facts)).contains("ok  names      3 containers may reach"),
        "{}",
        text(&report(&facts))
    );
    names.amiss =
        vec!["container a: it reaches no name; it is tried again in 5 s".into(), "container b".into()];
    let facts = Facts { names: Some(names), ..good() };
    assert_eq!(report(&facts).verdict, Verdict::Full, "it is no fault of the host's");
    let text = text(&report(&facts));
    assert!(
        text.contains("--  names      3 containers may reach hosts by name, and 2 reach none now"),
        "{text}"
    );
    assert!(
        text.contains("container a: it reaches no name; it is tried again in 5 s (and 1 more:"),
        "{text}"
    );
}

#[test]
fn what_the_table_does_not_name_is_told_by_name() {
    let beyond = Unknown { hooks: vec!["coffee_brew".into()], calls: vec!["brew".into()] };
    let facts = Facts { beyond: Some(beyond), ..good() };
    assert_eq!(report(&facts).verdict, Verdict::Full, "the unknown is refused");
    let text = text(&report(&facts));
    assert!(text.contains("hook coffee_brew, system call brew") && text.contains("report it"), "{text}");
}

#[test]
fn what_was_not_looked_at_is_unknown_and_nothing_is_promised() {
    for (facts, expected) in [
        (Facts { bpf_lsm: BpfLsm::NotChecked, daemon: Daemon::NotRunning, ..good() }, "as root"),
        (Facts { bpf_lsm: BpfLsm::NotChecked, daemon: Daemon::NotPermitted, ..good() }, "as root"),
        (Facts { lsm: LsmList::Unknown, ..good() }, "securityfs"),
    ] {
        let report = report(&facts);
        assert_eq!(report.verdict, Verdict::Unknown);
        assert!(advice(&facts).contains(expected), "{}", advice(&facts));
        assert!(report.axes.iter().all(|axis| !axis.full), "{:?}", report.axes);
        let text = text(&report);
        assert!(
            text.contains("unknown: ") && text.contains("\n??  ") && text.contains("\nUnknown: "),
            "{text}"
        );
    }
    // What is known to be missing is not made better by what is not known.
    let facts =
        Facts { bpf_lsm: BpfLsm::NotChecked, btf: Err("gone".into()), daemon: Daemon::NotRunning, ..good() };
    assert_eq!(report(&facts).verdict, Verdict::Partial);
    // A daemon that answers has its programs in the kernel.
    assert_eq!(report(&Facts { bpf_lsm: BpfLsm::NotChecked, ..good() }).verdict, Verdict::Full);
}

#[test]
fn with_no_enforcer_at_all_it_is_none() {
    let facts = Facts { bpf_lsm: BpfLsm::Unsupported, landlock_abi: 0, seccomp: false, ..good() };
    assert_eq!(report(&facts).verdict, Verdict::None);
}

#[test]
fn an_unsupported_host_is_one_sentence() {
    let facts = Facts { unsupported: Some("Ringfence needs Linux.".into()), ..good() };
    assert_eq!(report(&facts).verdict, Verdict::None);
    assert_eq!(text(&report(&facts)), "Ringfence needs Linux.\n");
}
