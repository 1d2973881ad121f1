//! What this host's kernel offers: facts only; `ringfence-launch` and `ringfence doctor` draw the conclusions.

#![expect(unsafe_code, reason = "lsm_list_modules and Landlock's version query have no safe wrapper")]

use nix::{errno::Errno, libc};
use std::{fs, io, path::PathBuf};

/// Where the LSM list was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LsmList {
    /// Active modules, in order.
    Known(Vec<String>),
    /// Neither securityfs nor lsm_list_modules (6.8+) could tell.
    Unknown,
}

impl LsmList {
    /// Whether a module is active; `None`: not known.
    pub fn has(&self, name: &str) -> Option<bool> {
        match self {
            LsmList::Known(names) => Some(names.iter().any(|module| module == name)),
            LsmList::Unknown => None,
        }
    }
}

/// The running kernel's release, as `uname -r` prints it.
pub fn release() -> String {
    nix::sys::utsname::uname()
        .map_or_else(|_| String::new(), |name| name.release().to_string_lossy().into_owned())
}

/// The active LSMs, from securityfs or, where that is not mounted, from the kernel itself.
pub fn lsm_list() -> LsmList {
    match fs::read_to_string("/sys/kernel/security/lsm") {
        Ok(list) if !list.trim().is_empty() => {
            LsmList::Known(list.trim().split(',').map(str::to_owned).collect())
        }
        _ => lsm_list_modules().map_or(LsmList::Unknown, LsmList::Known),
    }
}

/// lsm_list_modules(2), Linux 6.8.
fn lsm_list_modules() -> Option<Vec<String>> {
    const SYS_LSM_LIST_MODULES: libc::c_long = 461;
    /// Ids of the kernel's uapi/linux/lsm.h.
    const NAMES: &[(u64, &str)] = &[
        (100, "capability"),
        (101, "selinux"),
        (102, "smack"),
        (103, "tomoyo"),
        (104, "apparmor"),
        (105, "yama"),
        (106, "loadpin"),
        (107, "safesetid"),
        (108, "lockdown"),
        (109, "bpf"),
        (110, "landlock"),
        (111, "ima"),
        (112, "evm"),
        (113, "ipe"),
    ];
    let mut ids = [0u64; 32];
    let mut size = size_of_val(&ids) as u32;
    // SAFETY: the kernel writes at most `size` bytes to `ids` and the needed size to `size`; both live through the
    // call, are aligned for u64 and u32, and any bit pattern is valid for them. Flags must be 0.
    let count =
        unsafe { libc::syscall(SYS_LSM_LIST_MODULES, ids.as_mut_ptr(), &raw mut size, 0 as libc::c_uint) };
    let ids = ids.get(..usize::try_from(count).ok()?)?;
    let name = |id: &u64| {
        NAMES
            .iter()
            .find(|(known, _)| known == id)
            .map_or_else(|| format!("lsm{id}"), |(_, name)| (*name).into())
    };
    Some(ids.iter().map(name).collect())
}

/// Landlock's ABI version; 0: not built in, or not in the LSM list.
pub fn landlock_abi() -> u32 {
    const LANDLOCK_CREATE_RULESET_VERSION: libc::c_uint = 1;
    // SAFETY: with this flag and no attributes (a null pointer of size 0) landlock_create_ruleset(2) reads and writes
    // no memory, creates no descriptor and returns the version.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::null::<libc::c_void>(),
            0 as libc::size_t,
            LANDLOCK_CREATE_RULESET_VERSION,
        )
    };
    u32::try_from(version).unwrap_or(0)
}

/// Whether the kernel describes its own types, which the eBPF programs need.
pub fn btf() -> io::Result<()> {
    fs::File::open("/sys/kernel/btf/vmlinux").map(|_| ())
}

/// Where cgroup v2 is mounted.
pub fn cgroup2() -> Option<PathBuf> {
    cgroup2_mount(&fs::read_to_string("/proc/self/mountinfo").ok()?)
}

/// The first cgroup2 mount of a mountinfo text: `id parent dev root mountpoint options [tags] - type ...`.
fn cgroup2_mount(mountinfo: &str) -> Option<PathBuf> {
    mountinfo.lines().find_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let path = mount.split(' ').nth(4)?;
        // A mount point with a space is written as \040; no cgroup mount has one.
        (kind.split(' ').next()? == "cgroup2" && !path.contains('\\')).then(|| path.into())
    })
}

/// The kernel's lockdown mode: `none`, `integrity` or `confidentiality`; `None`: not known.
pub fn lockdown() -> Option<String> {
    let modes = fs::read_to_string("/sys/kernel/security/lockdown").ok()?;
    let (_, rest) = modes.split_once('[')?;
    rest.split_once(']').map(|(mode, _)| mode.to_owned())
}

/// Whether seccomp filters can be loaded.
pub fn seccomp() -> bool {
    fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail")
        .is_ok_and(|actions| actions.contains("errno"))
}

/// The error of a failed call as text, without the number that the standard library adds.
pub fn errno_text(error: &io::Error) -> String {
    error.raw_os_error().map_or_else(|| error.to_string(), |number| Errno::from_raw(number).desc().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup2_is_found_among_other_mounts() {
        let hybrid = "\
            30 24 0:26 / /sys/fs/cgroup ro,nosuid shared:9 - tmpfs tmpfs ro,mode=755\n\
            31 30 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
            32 30 0:28 / /sys/fs/cgroup/unified rw,nosuid shared:10 master:1 - cgroup2 cgroup2 rw\n";
        assert_eq!(cgroup2_mount(hybrid), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(cgroup2_mount("31 30 0:27 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"), None);
        assert_eq!(cgroup2_mount("nonsense"), None);
        assert_eq!(cgroup2_mount(""), None);
    }

    #[test]
    fn an_unknown_list_is_not_an_absent_module() {
        let list = LsmList::Known(vec!["capability".into(), "bpf".into()]);
        assert_eq!(list.has("bpf"), Some(true));
        assert_eq!(list.has("landlock"), Some(false));
        assert_eq!(LsmList::Unknown.has("bpf"), None);
    }
}
