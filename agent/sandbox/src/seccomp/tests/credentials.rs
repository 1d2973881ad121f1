//! The own list of the process that has a container's credentials.

use super::*;

#[test]
fn who_has_credentials_makes_no_socket_and_opens_no_file() {
    let list = Policy::credentials_list().unwrap().signalling_only(7);
    let list = Program::of(&list);
    let refused = errno(Errno::EPERM as i32);
    for (call, args, answer) in [
        ("read", [3, 0, 1], ALLOW),
        ("recvmsg", [3, 0, 0], ALLOW),
        ("lseek", [3, 0, 0], ALLOW),
        ("ioctl", [3, 0x5421, 0], ALLOW),
        ("ioctl", [3, 0x5412, 0], refused),
        ("socketpair", [1, 1 | 0x80000, 0], ALLOW),
        ("socketpair", [1, 2 | 0x80000, 0], refused),
        ("tgkill", [7, 8, 0], ALLOW),
        ("tgkill", [8, 8, 0], refused),
        ("socket", [2, 1, 0], refused),
        ("socket", [1, 1, 0], refused),
        ("connect", [3, 0, 16], refused),
        ("bind", [3, 0, 16], refused),
        ("listen", [3, 1, 0], refused),
        ("accept4", [3, 0, 0], refused),
        ("openat", [0, 0, 0], refused),
        ("open", [0, 0, 0], refused),
        ("clone", [0x0001_0000, 0, 0], refused),
        ("clone3", [0, 0, 0], refused),
        ("execve", [0, 0, 0], refused),
        ("ptrace", [0, 0, 0], refused),
        ("splice", [3, 0, 4], refused),
    ] {
        assert_eq!(list.call(call, &args), answer, "{call} {args:?}");
    }
}
