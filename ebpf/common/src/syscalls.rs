//! System calls that no governed task gets through, whatever its capabilities: they have no LSM hook, or one that comes
//! too late, but ask for a capability before they do anything. The program for the hook `capable` refuses it to them.
//!
//! io_uring offers none of them.

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Syscall {
    /// Its name.
    pub name: &'static str,
    /// Its number on x86_64; [`NONE`]: it has none.
    pub x86_64: u32,
    /// Its number on i386 (`int 0x80`); [`NONE`]: it has none.
    pub i386: u32,
    /// What it would change.
    pub why: &'static str,
}

/// No such system call there.
pub const NONE: u32 = u32::MAX;

/// Words of a bitmap of system call numbers.
pub const WORDS: usize = 8;

const fn call(name: &'static str, x86_64: u32, i386: u32, why: &'static str) -> Syscall {
    Syscall { name, x86_64, i386, why }
}

/// All of them.
pub const REFUSED: &[Syscall] = &[
    // `mount`, `umount2`, `move_mount` and `pivot_root` have hooks of their own.
    call("fsopen", 430, 430, "prepares a file system to be mounted"),
    call(
        "fsconfig",
        431,
        431,
        "has the kernel mount a device, or reach a server, that the caller may not open",
    ),
    call("fsmount", 432, 432, "mounts what was prepared"),
    call("fspick", 433, 433, "prepares a mounted file system to be reconfigured"),
    call("open_tree", 428, 428, "copies mounts"),
    call("open_tree_attr", 467, 467, "copies mounts with other flags"),
    call("mount_setattr", 442, 442, "changes the flags of mounts: read-only, nosuid, noexec"),
    call("setns", 308, 346, "enters a namespace that somebody else made"),
    call("swapon", 167, 87, "swaps to a device or file that the caller may not open"),
    call("swapoff", 168, 115, "takes memory from the host"),
    call("quotactl", 179, 131, "changes quotas of other users"),
    call("quotactl_fd", 443, 443, "changes quotas of other users"),
    call("acct", 163, 51, "has the kernel write what every process of the host ran"),
    call("init_module", 175, 128, "runs code in the kernel"),
    call("finit_module", 313, 350, "runs code in the kernel"),
    call("delete_module", 176, 129, "takes code from the kernel"),
    call("kexec_load", 246, 283, "starts another kernel"),
    call("kexec_file_load", 320, NONE, "starts another kernel"),
    call("reboot", 169, 88, "ends everything on the host"),
    call("iopl", 172, 110, "speaks to devices past the kernel"),
    call("ioperm", 173, 101, "speaks to devices past the kernel"),
    call("settimeofday", 164, 79, "sets the host's clock"),
    call("stime", NONE, 25, "sets the host's clock"),
    call("clock_settime", 227, 264, "sets the host's clock"),
    call("clock_settime64", NONE, 404, "sets the host's clock"),
    call("clock_adjtime", 305, 343, "sets the host's clock"),
    call("clock_adjtime64", NONE, 405, "sets the host's clock"),
    call("adjtimex", 159, 124, "sets the host's clock"),
    call("sethostname", 170, 74, "names the host"),
    call("setdomainname", 171, 121, "names the host"),
    call("vhangup", 153, 111, "takes the terminal from those who use it"),
    call("lookup_dcookie", 212, 253, "names files that a profiler saw"),
    call("fanotify_init", 300, 338, "watches files of the whole host, and decides about opening them"),
    call("userfaultfd", 323, 374, "halts the kernel in the middle of its work"),
];

/// The system calls of one table as a bitmap.
pub const fn bitmap(i386: bool) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    let mut at = 0;
    while at < REFUSED.len() {
        let number = if i386 { REFUSED[at].i386 } else { REFUSED[at].x86_64 };
        if number != NONE {
            words[number as usize / 64] |= 1 << (number % 64);
        }
        at += 1;
    }
    words
}
