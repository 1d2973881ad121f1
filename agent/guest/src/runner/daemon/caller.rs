//! Who may use v1: its tools are the daemon's children, so a caller borrows what the daemon may do.
//!
//! A caller that belongs to a tool call would lose its tag by that, and one with less authority would gain some. A
//! container cannot read the kernel's tags, so this goes by what it can see: a tool call's processes descend from
//! `ringfence-runtime`, which is the subreaper above all they start, and whatever confined a caller shows in its credentials,
//! capabilities, seccomp filters, namespaces and security label. A caller must hold all that the daemon holds. Landlock shows
//! nowhere, so whoever could have entered it without privilege is refused.

use crate::runner::pipeline_end;
use rustix::process::Pid;
use std::{fs, path::PathBuf};

/// What `/proc/PID/status` has about a process's authority.
#[derive(Debug, PartialEq, Eq)]
struct Credentials {
    uid: u32,
    effective: u64,
    bounding: u64,
    no_new_privileges: u64,
    filters: u64,
}

/// Why a caller may not, with what it can do instead.
pub(super) fn refusal(why: &str) -> String {
    format!(
        "{why}: v1 runs tools as the daemon's children, for untagged callers with the daemon's own authority; use a shim or v2"
    )
}

/// Whether a caller may; if not, why.
pub(super) fn may_borrow(caller: i32) -> Result<(), String> {
    let refused = |why: &str| Err(refusal(why));
    // 0: a process of another PID namespace.
    let Some(pid) = Pid::from_raw(caller) else { return refused("the caller cannot be seen from here") };
    let (Some(own), Some(its)) = (credentials("self"), credentials(&caller.to_string())) else {
        return refused("the caller cannot be seen from here");
    };
    if let Some(what) = lacks(&its, &own) {
        return refused(&format!("the caller {what}"));
    }
    for link in ["ns/user", "ns/mnt", "ns/pid", "ns/net"] {
        let read = |who: &str| fs::read_link(PathBuf::from(format!("/proc/{who}/{link}"))).ok();
        if read(&caller.to_string()).is_none_or(|its| Some(its) != read("self")) {
            return refused("the caller is in a namespace of its own");
        }
    }
    let label = |who: &str| fs::read(format!("/proc/{who}/attr/current")).unwrap_or_default();
    if label(&caller.to_string()) != label("self") {
        return refused("the caller has another security label");
    }
    match pipeline_end::is_below_runtime(pid) {
        Some(false) => Ok(()),
        Some(true) => refused("the caller belongs to a tool call"),
        None => refused("the caller's ancestors cannot be seen from here"),
    }
}

/// What of `own` the other lacks.
fn lacks(its: &Credentials, own: &Credentials) -> Option<&'static str> {
    if its.uid != 0 && its.uid != own.uid {
        return Some("is another user");
    }
    if own.effective & !its.effective != 0 || own.bounding & !its.bounding != 0 {
        return Some("has fewer capabilities than the daemon");
    }
    if its.no_new_privileges > own.no_new_privileges || its.filters > own.filters {
        return Some("is confined more than the daemon");
    }
    // Landlock shows nowhere. Without no_new_privs it takes CAP_SYS_ADMIN; with it, it is anybody's to enter, and the
    // daemon's own no_new_privs says nothing about the caller.
    if its.no_new_privileges != 0 {
        return Some("has no_new_privs, and may be confined by Landlock, which nobody can see");
    }
    None
}

fn credentials(who: &str) -> Option<Credentials> {
    parse(&fs::read_to_string(format!("/proc/{who}/status")).ok()?)
}

fn parse(status: &str) -> Option<Credentials> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let number = |name: &str| field(name)?.trim().parse::<u64>().ok();
    let set = |name: &str| u64::from_str_radix(field(name)?.trim(), 16).ok();
    Some(Credentials {
        // Real, effective, saved, file system.
        uid: field("Uid")?.split_ascii_whitespace().nth(1)?.parse().ok()?,
        effective: set("CapEff")?,
        bounding: set("CapBnd")?,
        no_new_privileges: number("NoNewPrivs")?,
        // Before 5.9 there is only the mode: 0, or 2 with any number of filters.
        filters: number("Seccomp_filters").or_else(|| number("Seccomp"))?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\tcat\nUid:\t1000\t1000\t1000\t1000\nCapEff:\t00000000a80425fb\nCapBnd:\t00000000a80425fb\n\
                          NoNewPrivs:\t0\nSeccomp:\t2\nSeccomp_filters:\t1\n";

    #[test]
    fn a_status_is_read() {
        let held = parse(STATUS).unwrap();
        assert_eq!((held.uid, held.effective, held.filters), (1000, 0xa804_25fb, 1));
        assert_eq!(parse(&STATUS.replace("Seccomp_filters:\t1\n", "")).unwrap().filters, 2);
        assert_eq!(parse("Name:\tcat\n"), None);
    }

    #[test]
    fn a_caller_with_less_is_told_what() {
        let own = parse(STATUS).unwrap();
        let with = |from: &str, to: &str| lacks(&parse(&STATUS.replace(from, to)).unwrap(), &own);
        assert_eq!(with("", ""), None);
        assert_eq!(with("CapEff:\t00000000a8", "CapEff:\t00000000b8"), None);
        assert_eq!(with("Uid:\t1000\t1000", "Uid:\t1000\t0"), None);
        assert_eq!(with("Uid:\t1000\t1000", "Uid:\t1000\t1001"), Some("is another user"));
        assert!(with("CapEff:\t00000000a8", "CapEff:\t0000000028").unwrap().contains("capabilities"));
        assert!(with("filters:\t1", "filters:\t2").unwrap().contains("confined"));
        assert!(with("NoNewPrivs:\t0", "NoNewPrivs:\t1").unwrap().contains("confined"));
        let both = parse(&STATUS.replace("NoNewPrivs:\t0", "NoNewPrivs:\t1")).unwrap();
        assert!(lacks(&both, &both).unwrap().contains("Landlock"), "as the daemon, and perhaps more");
    }

    #[test]
    fn this_process_may_and_nobody_may_not() {
        let own = i32::try_from(std::process::id()).unwrap();
        assert_eq!(may_borrow(own), Ok(()));
        assert!(may_borrow(0).unwrap_err().contains("cannot be seen"));
    }
}
