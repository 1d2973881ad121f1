//! Names and numbers of system calls on x86_64: libseccomp's, and those that are newer than it.

use libseccomp::ScmpSyscall;

/// x86_64 system calls that libseccomp 2.5.4 (Linux 5.17) does not know. A deny list that names one must deny it.
const NEWER: &[(&str, i32)] = &[
    ("uretprobe", 335),
    ("uprobe", 336),
    ("cachestat", 451),
    ("fchmodat2", 452),
    ("map_shadow_stack", 453),
    ("futex_wake", 454),
    ("futex_wait", 455),
    ("futex_requeue", 456),
    ("statmount", 457),
    ("listmount", 458),
    ("lsm_get_self_attr", 459),
    ("lsm_set_self_attr", 460),
    ("lsm_list_modules", 461),
    ("mseal", 462),
    ("setxattrat", 463),
    ("getxattrat", 464),
    ("listxattrat", 465),
    ("removexattrat", 466),
    ("open_tree_attr", 467),
    ("file_getattr", 468),
    ("file_setattr", 469),
    ("listns", 470),
    ("rseq_slice_yield", 471),
];

/// The last number in use on the newest kernel that the shipped lists were made for, Linux 7.2.
#[cfg(test)]
pub(super) const LAST: i32 = 471;

/// Every system call of x86_64 up to that, in the order of their numbers.
#[cfg(test)]
pub(super) fn all() -> Vec<(i32, String)> {
    use libseccomp::ScmpArch;
    let name = |number: i32| {
        let newer = NEWER.iter().find(|(_, newer)| *newer == number).map(|(name, _)| (*name).to_owned());
        newer.or_else(|| ScmpSyscall::from_raw_syscall(number).get_name_by_arch(ScmpArch::X8664).ok())
    };
    // 337 to 423 were never given out, so that all architectures have the same numbers from there on.
    let numbers = (0..337).chain(424..=LAST);
    numbers.map(|number| (number, name(number).unwrap_or_else(|| panic!("nobody knows {number}")))).collect()
}

/// What a name means here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Named {
    /// A system call of this architecture.
    Here(ScmpSyscall),
    /// A system call of other architectures only: nothing to allow or deny here.
    Elsewhere,
    /// No system call that libseccomp or our own table knows.
    Unknown,
}

/// Looks a name up.
pub(super) fn named(name: &str) -> Named {
    if let Some((_, number)) = NEWER.iter().find(|(newer, _)| *newer == name) {
        return Named::Here(ScmpSyscall::from_raw_syscall(*number));
    }
    // libseccomp gives a call that another architecture has a negative number of its own making.
    match ScmpSyscall::from_name(name) {
        Ok(call) if call.as_raw_syscall() >= 0 => Named::Here(call),
        Ok(call) if call.is_error() => Named::Unknown,
        Ok(_) => Named::Elsewhere,
        Err(_) => Named::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(name: &str) -> Option<i32> {
        match named(name) {
            Named::Here(call) => Some(call.as_raw_syscall()),
            Named::Elsewhere | Named::Unknown => None,
        }
    }

    #[test]
    fn names_of_all_three_kinds() {
        assert_eq!(number("read"), Some(0));
        assert_eq!(number("openat2"), Some(437));
        assert_eq!(number("fchmodat2"), Some(452), "newer than libseccomp, so from our table");
        assert_eq!(named("vm86"), Named::Elsewhere, "i386 only");
        assert_eq!(named("opne"), Named::Unknown);
        assert_eq!(named(""), Named::Unknown);
        assert_eq!(named("read\0"), Named::Unknown);
    }

    #[test]
    fn our_table_agrees_with_libseccomp_where_both_know_a_name() {
        for (name, number) in NEWER {
            if let Ok(theirs) = ScmpSyscall::from_name(name) {
                assert!(theirs.as_raw_syscall() == *number || theirs.is_error(), "{name}");
            }
        }
        let mut numbers: Vec<i32> = NEWER.iter().map(|(_, number)| *number).collect();
        numbers.dedup();
        assert_eq!(numbers.len(), NEWER.len());
    }
}
