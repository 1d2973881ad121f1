//! What the lists of roles leave to their processes.

use super::*;

#[test]
fn the_html_reader_has_its_socket_memory_and_threads_and_nothing_else() {
    let list = Program::of(&Policy::reader_list().unwrap());
    for name in ["read", "write", "mmap", "futex", "exit_group", "clock_gettime", "rt_sigreturn"] {
        assert_eq!(list.call(name, &[]), ALLOW, "{name}");
    }
    let thread = 0x0001_0000;
    assert_eq!(list.call("clone", &[thread]), ALLOW);
    assert_eq!(list.call("clone3", &[]), errno(Errno::ENOSYS as i32));
    let denied = [
        "clone",
        "fork",
        "vfork",
        "execve",
        "execveat",
        "open",
        "openat",
        "openat2",
        "socket",
        "socketpair",
        "connect",
        "bind",
        "sendto",
        "sendmsg",
        "recvmsg",
        "kill",
        "pidfd_open",
        "pidfd_send_signal",
        "ptrace",
        "process_vm_writev",
        "memfd_create",
        "unlink",
        "mount",
        "bpf",
        "io_uring_setup",
        "setrlimit",
        "prlimit64",
        "ioctl",
        "dup2",
    ];
    for name in denied {
        assert_eq!(list.call(name, &[]), errno(Errno::EPERM as i32), "{name}");
    }
}

#[test]
fn the_auditor_s_threads_may_part_their_tables_and_nothing_else() {
    let list = Program::of(&Policy::auditor_list().unwrap());
    let (files, unix, inet) = (0x400, 1, 2);
    assert_eq!(list.call("unshare", &[files]), ALLOW);
    assert_eq!(list.call("socketpair", &[unix, 1, 0, 0, 0, 0]), ALLOW);
    // Every other flag of clone(2), alone and beside it.
    for flags in (0..32).map(|bit| 1_u64 << bit).filter(|&bit| bit != files) {
        for flags in [flags, flags | files] {
            assert_ne!(list.call("unshare", &[flags]), ALLOW, "{flags:#x}");
        }
    }
    for family in [inet, 10, 16, 17] {
        assert_ne!(list.call("socketpair", &[family, 1, 0, 0, 0, 0]), ALLOW, "{family}");
    }
    for call in ["socket", "connect", "setns", "execve", "memfd_create", "pidfd_getfd"] {
        assert_ne!(list.call(call, &PLAIN), ALLOW, "{call}");
    }
}

#[test]
fn a_worker_starts_no_process_and_signals_none_and_a_user_s_service_starts_workers() {
    let (worker, user) = (Policy::worker_list().unwrap(), Policy::user_list().unwrap());
    let (worker, user) = (Program::of(&worker.signalling_only(7)), Program::of(&user));
    let refused = errno(Errno::EPERM as i32);
    const SIGCHLD: u64 = 17;
    const CLONE_THREAD: u64 = 0x0001_0000;
    const AF_UNIX: u64 = 1;
    for (call, args, of_worker, of_user) in [
        ("clone", [CLONE_THREAD, 0], ALLOW, ALLOW),
        ("clone", [SIGCHLD, 0], refused, ALLOW),
        ("clone", [0, 0], refused, refused),
        ("execve", [0, 0], refused, ALLOW),
        ("socket", [AF_UNIX, 1], refused, ALLOW),
        ("socket", [2, 1], ALLOW, ALLOW),
        ("tgkill", [7, 8], ALLOW, ALLOW),
        ("tgkill", [8, 8], refused, ALLOW),
        ("kill", [8, 9], refused, ALLOW),
        ("ptrace", [0, 0], refused, refused),
    ] {
        assert_eq!(
            (worker.call(call, &args), user.call(call, &args)),
            (of_worker, of_user),
            "{call} {args:?}"
        );
    }
}
