//! The egress worker's own list.

use super::*;

#[test]
fn an_egress_worker_listens_nowhere_and_writes_no_file() {
    let list = Policy::egress_list().unwrap().signalling_only(7).opening_to_read_only();
    let list = Program::of(&list);
    let refused = errno(Errno::EPERM as i32);
    const NETLINK: u64 = 12;
    const INTERNET: u64 = 16;
    const CLOEXEC: u64 = 0x80000;
    const NONBLOCK: u64 = 0x800;
    for (call, args, answer) in [
        ("bind", [3, 0, NETLINK], ALLOW),
        ("bind", [3, 0, INTERNET], refused),
        ("bind", [3, 0, 28], refused),
        ("listen", [3, 1, 0], refused),
        ("splice", [3, 0, 4], ALLOW),
        ("socket", [2, 1, 0], ALLOW),
        ("socket", [1, 1, 0], refused),
        ("socket", [10, 2 | CLOEXEC, 17], ALLOW),
        ("socket", [2, 2, 1], refused),
        ("socket", [2, 1, 262], refused),
        ("socket", [16, 3 | CLOEXEC, 0], ALLOW),
        ("socket", [16, 3 | CLOEXEC, 4], refused),
        ("socket", [16, 3 | CLOEXEC, 12], refused),
        ("socketpair", [1, 1 | CLOEXEC, 0], ALLOW),
        ("socketpair", [1, 1 | CLOEXEC | NONBLOCK, 0], ALLOW),
        ("socketpair", [1, 2 | CLOEXEC, 0], refused),
        ("socketpair", [1, 5, 0], refused),
        ("openat", [0, 0, 0], ALLOW),
        ("openat", [0, 0, 1], refused),
        ("openat", [0, 0, 0o100], refused),
        ("ioctl", [3, 0x541b, 0], ALLOW),
        ("ioctl", [3, 0x5412, 0], refused),
        ("clone", [17, 0, 0], refused),
        ("execve", [0, 0, 0], refused),
        ("tgkill", [7, 8, 0], ALLOW),
        ("tgkill", [8, 8, 0], refused),
        ("unlinkat", [0, 0, 0], refused),
        ("ptrace", [0, 0, 0], refused),
    ] {
        assert_eq!(list.call(call, &args), answer, "{call} {args:?}");
    }
}
