//! What Landlock and seccomp hold, each with a positive control.

use super::*;

#[test]
fn files_outside_the_grant_are_closed() {
    let host = Host::new();
    for name in ["readable", "writable", "closed"] {
        fs::create_dir(host.path(name)).unwrap();
        fs::write(host.path(name).join("file"), name).unwrap();
    }
    let (readable, writable) = (host.path("readable"), host.path("writable"));
    host.confined(&[&readable], &[&writable], r#"{ only = [] }"#, "");
    let in_shell = |script: &str| host.in_confined(&["--", "sh", "-c", script]);
    assert_eq!(succeeds(&in_shell("cat readable/file writable/file")), "readablewritable");
    succeeds(&in_shell("echo new > writable/new && mv writable/new writable/moved && rm writable/moved"));
    for script in [
        "cat closed/file",
        "ls closed",
        "echo x > readable/file",
        "echo x > closed/new",
        "rm readable/file",
        "mv writable/file closed/",
        "ln writable/file readable/link",
        "mkdir closed/dir",
        "truncate -s 0 readable/file",
    ] {
        let output = in_shell(script);
        assert_ne!(status(&output), 0, "{script}");
        assert!(stderr(&output).contains("ermission denied"), "{script}: {}", stderr(&output));
    }
    for name in ["readable", "writable", "closed"] {
        assert_eq!(fs::read_to_string(host.path(name).join("file")).unwrap(), name);
    }
}

#[test]
fn a_name_at_any_depth_is_open_at_home_and_a_link_there_opens_nothing() {
    let host = Host::new();
    for dir in ["work/deep", "closed"] {
        fs::create_dir_all(host.path(dir)).unwrap();
    }
    for file in ["work/.notes", "work/deep/.notes", "closed/file"] {
        fs::write(host.path(file), "text").unwrap();
    }
    host.confined(&[Path::new("**/.notes")], &[], r#"{ only = [] }"#, "");
    let cat = |file: &str| host.in_confined(&["-v", "-w", "work", "--", "cat", file]);
    let output = cat(".notes");
    assert_eq!(succeeds(&output), "text");
    assert!(stderr(&output).contains("working directory only: fs_read:**/.notes"), "{}", stderr(&output));
    assert_ne!(status(&cat("deep/.notes")), 0, "Landlock cannot name it");
    fs::remove_file(host.path("work/.notes")).unwrap();
    std::os::unix::fs::symlink(host.path("closed/file"), host.path("work/.notes")).unwrap();
    assert_ne!(
        status(&cat(".notes")),
        0,
        "a command that may write here must not choose what the next may read"
    );
}

#[test]
fn attributes_are_closed_where_nothing_may_be_written() {
    let host = Host::new();
    let data = host.path("data");
    fs::create_dir(&data).unwrap();
    fs::write(data.join("file"), "").unwrap();
    fs::set_permissions(data.join("file"), fs::Permissions::from_mode(0o644)).unwrap();
    let mode = || fs::metadata(data.join("file")).unwrap().permissions().mode() & 0o777;
    host.confined(&[&data], &[], r#"{ only = [] }"#, "");
    assert_ne!(status(&host.in_confined(&["--", "chmod", "600", "data/file"])), 0);
    assert_eq!(mode(), 0o644);
    host.confined(&[], &[&data], r#"{ only = [] }"#, "");
    succeeds(&host.in_confined(&["--", "chmod", "600", "data/file"]));
    assert_eq!(mode(), 0o600);
}

#[test]
fn programs_outside_the_grant_do_not_start() {
    let host = Host::new();
    fs::create_dir(host.path("data")).unwrap();
    host.executable("data/true", &fs::read("/bin/true").unwrap());
    let data = host.path("data");
    host.confined(&[&data], &[], r#"{ only = [] }"#, "");
    succeeds(&host.in_confined(&["--", "true"]));
    let output = host.in_confined(&["--", "data/true"]);
    assert_eq!(status(&output), 126);
    assert!(stderr(&output).contains("does not grant exec"), "{}", stderr(&output));
    assert_eq!(status(&host.in_confined(&["--", "sh", "-c", "data/true"])), 126);
}

/// Connects with bash's own client, so that no further program is needed.
fn connect(port: u16) -> [String; 4] {
    ["--".into(), "bash".into(), "-c".into(), format!("echo hello > /dev/tcp/127.0.0.1/{port}")]
}

#[test]
fn the_network_is_closed_but_for_granted_ports() {
    let host = Host::new();
    let (granted, other) =
        (TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap());
    let port = |listener: &TcpListener| listener.local_addr().unwrap().port();
    let run = |port| host.in_confined(&connect(port).each_ref().map(String::as_str));

    host.confined(&[], &[], &format!(r#"{{ only = ["127.0.0.1:{}"] }}"#, port(&granted)), "");
    succeeds(&run(port(&granted)));
    let mut line = String::new();
    granted.accept().unwrap().0.read_to_string(&mut line).unwrap();
    assert_eq!(line, "hello\n");
    assert_ne!(status(&run(port(&other))), 0);

    host.confined(&[], &[], r#"{ only = [] }"#, "");
    assert_ne!(status(&run(port(&granted))), 0);
    for listener in [granted, other] {
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_err(), "nothing more arrived");
    }
}

/// A Python one-liner inside the container; what it printed. The distribution's Python, which the profile grants.
fn python(host: &Host, script: &str) -> String {
    let output = host.in_confined(&["--", "/usr/bin/python3", "-Ic", script]);
    assert_eq!(status(&output), 0, "{script}: {}", stderr(&output));
    stdout(&output).trim().to_owned()
}

/// The ABI of this kernel's Landlock, as `doctor` has it; 0: none.
fn landlock_abi() -> u32 {
    let output = std::process::Command::new(RINGFENCE).arg("doctor").output().unwrap();
    let text = stdout(&output);
    let number = text.split("ABI ").nth(1).and_then(|rest| rest.split(|c: char| !c.is_ascii_digit()).next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

#[test]
fn socket_families_are_closed_to_what_is_granted() {
    let host = Host::new();
    let attempt = |host: &Host, arguments: &str| {
        let script = format!(
            "import socket\ntry:\n  socket.{arguments}\n  print('made')\nexcept OSError as e:\n  print(e.errno)"
        );
        python(host, &script)
    };
    let closed = nix::errno::Errno::EACCES as i32;
    host.confined(&[], &[], r#"{ only = ["127.0.0.1:9"] }"#, "");
    assert_eq!(attempt(&host, "socket(socket.AF_INET)"), "made");
    assert_eq!(attempt(&host, "socketpair()"), "made");
    for arguments in [
        "socket(socket.AF_UNIX)",
        "socket(socket.AF_NETLINK, socket.SOCK_RAW)",
        "socket(socket.AF_PACKET, socket.SOCK_RAW)",
        "socket(socket.AF_VSOCK)",
        "socket(socket.AF_ALG, socket.SOCK_SEQPACKET)",
        "socket(socket.AF_INET, socket.SOCK_RAW, 1)",
        "socket(socket.AF_INET, socket.SOCK_STREAM, 262)",
        "socket(socket.AF_INET, socket.SOCK_STREAM, 132)",
        "socket(socket.AF_INET, socket.SOCK_SEQPACKET)",
    ] {
        assert_eq!(attempt(&host, arguments), closed.to_string(), "{arguments}");
    }
    // One unix socket cannot be told from another below Landlock's ABI 9: all are closed, unless all are accepted.
    let one = r#"{ only = ["unix:/nonexistent.sock"] }"#;
    host.confined(&[], &[], one, "");
    let told_apart = landlock_abi() >= 9;
    let expected = if told_apart { "made".to_owned() } else { closed.to_string() };
    assert_eq!(attempt(&host, "socket(socket.AF_UNIX)"), expected);
    host.confined(&[], &[], one, "accept_partial = [\"unix\"]");
    assert_eq!(attempt(&host, "socket(socket.AF_UNIX)"), "made");
    assert_eq!(attempt(&host, "socket(socket.AF_INET)"), closed.to_string());
}

/// Calls by number, with what the kernel answers: the error number, or 0.
fn system_call(host: &Host, number: u32, arguments: &str) -> i32 {
    let script = format!(
        "import ctypes; libc = ctypes.CDLL(None, use_errno=True); \
         r = libc.syscall({number}, {arguments}); print(ctypes.get_errno() if r == -1 else 0)"
    );
    python(host, &script).parse().unwrap()
}

#[test]
fn seccomp_default_refuses_what_no_agent_needs() {
    let host = Host::new();
    let eperm = nix::errno::Errno::EPERM as i32;
    let (unshare, bpf, keyctl, clone3) = (272, 321, 250, 435);
    const NEWUTS: &str = "0x04000000";

    host.confined(&[], &[], r#"{ only = [] }"#, "");
    assert_eq!(system_call(&host, unshare, "0x400"), 0, "CLONE_FILES is no namespace");
    assert_eq!(system_call(&host, unshare, NEWUTS), eperm);
    assert_eq!(system_call(&host, bpf, "0, 0, 0"), eperm);
    assert_eq!(system_call(&host, keyctl, "0, -1, 0"), eperm);
    assert_eq!(system_call(&host, clone3, "0, 0"), nix::errno::Errno::ENOSYS as i32);

    host.confined(&[], &[], r#"{ only = [] }"#, "seccomp = \"off\"\naccept_partial = [\"unix\"]");
    let enokey = nix::errno::Errno::ENOKEY as i32;
    assert_eq!(
        system_call(&host, keyctl, "0, -1, 0"),
        enokey,
        "the control: without the filter the kernel looks"
    );
    assert_eq!(system_call(&host, clone3, "0, 0"), nix::errno::Errno::EINVAL as i32);
}

#[test]
fn seccomp_strict_runs_ordinary_programs_and_no_more() {
    let host = Host::new();
    let work = host.path("work");
    fs::create_dir(&work).unwrap();
    host.confined(&[], &[&work], r#"{ only = [] }"#, "seccomp = \"strict\"");
    let script = "cd work && for i in 1 2 3; do echo $i; done | sort -r > list && grep -c . list && \
                  find . -name list -exec wc -l {} + && tar cf a.tar list && sleep 0.01";
    assert_eq!(succeeds(&host.in_confined(&["--", "bash", "-c", script])), "3\n3 ./list\n");
    assert_eq!(
        python(
            &host,
            "import threading, subprocess, json, hashlib, tempfile\n\
                       t = threading.Thread(target=lambda: None); t.start(); t.join()\n\
                       print(subprocess.run(['echo', 'sub'], capture_output=True).stdout.decode(), end='')"
        ),
        "sub"
    );
    let ptrace = 101;
    assert_eq!(system_call(&host, ptrace, "0, 0, 0, 0"), nix::errno::Errno::EPERM as i32);
    host.confined(&[], &[&work], r#"{ only = [] }"#, "");
    assert_eq!(system_call(&host, ptrace, "0, 0, 0, 0"), 0, "the control: `default` has it");
}

#[test]
fn a_seccomp_file_of_one_s_own_is_used() {
    let host = Host::new();
    let file = host.path("own.json");
    let kernel = format!("seccomp = {file:?}");
    let list = |name: &str| {
        format!(
            r#"{{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{{"names": ["{name}"], "action": "SCMP_ACT_ERRNO", "errnoRet": 77}}]}}"#
        )
    };
    host.confined(&[], &[], r#"{ only = [] }"#, &kernel);
    let getppid = 110;
    fs::write(&file, list("getppid")).unwrap();
    assert_eq!(system_call(&host, getppid, ""), 77);
    fs::write(&file, list("getpgrp")).unwrap();
    assert_eq!(system_call(&host, getppid, ""), 0);

    fs::write(&file, list("getppidd")).unwrap();
    let output = host.in_confined(&["--", "echo", "ran"]);
    assert_eq!((status(&output), stdout(&output)), (125, String::new()));
    assert!(stderr(&output).contains("getppidd"), "{}", stderr(&output));
    fs::remove_file(&file).unwrap();
    let output = host.in_confined(&["--", "echo", "ran"]);
    assert_eq!(status(&output), 125);
    assert!(stderr(&output).contains("own.json"), "{}", stderr(&output));
}

/// A static program of 64 bits that makes one call the i386 way: exit(42).
fn i386_program() -> Vec<u8> {
    const BASE: u64 = 0x40_0000;
    const HEADERS: u64 = 64 + 56;
    let code: [u8; 12] = [0xb8, 1, 0, 0, 0, 0xbb, 42, 0, 0, 0, 0xcd, 0x80];
    let size = HEADERS + code.len() as u64;
    let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x02\0\x3e\0\x01\0\0\0".to_vec();
    for word in [BASE + HEADERS, 64, 0] {
        elf.extend(word.to_le_bytes());
    }
    elf.extend(0u32.to_le_bytes());
    for half in [64u16, 56, 1, 0, 0, 0] {
        elf.extend(half.to_le_bytes());
    }
    elf.extend(1u32.to_le_bytes());
    elf.extend(5u32.to_le_bytes());
    for word in [0, BASE, BASE, size, size, 0x1000] {
        elf.extend(word.to_le_bytes());
    }
    elf.extend(code);
    elf
}

#[test]
fn a_call_of_a_foreign_architecture_ends_the_process() {
    let host = Host::new();
    host.executable("i386", &i386_program());
    host.profile("off", &OPEN.replace("[kernel]", "[kernel]\nseccomp = \"off\""));
    let control = host.run(&["-p", "off", "--", "./i386"]);
    if status(&control) != 42 {
        // This kernel has no i386 calls at all.
        assert_eq!(status(&control), 139);
        return;
    }
    assert_eq!(status(&host.open(&["--", "./i386"])), 128 + 31, "SIGSYS");
}

#[test]
fn no_privileges_are_gained() {
    let host = Host::new();
    let status = succeeds(&host.open(&["--", "grep", "NoNewPrivs", "/proc/self/status"]));
    assert_eq!(status, "NoNewPrivs:\t1\n");
}

#[test]
fn another_user_is_become_for_good() {
    let host = Host::new();
    let output = host.open(&["--user", "no-such-user-here", "--", "true"]);
    assert_eq!(status(&output), 125);
    assert!(stderr(&output).contains("no-such-user-here"), "{}", stderr(&output));
    if !is_root() {
        assert_eq!(status(&host.open(&["--user", "root", "--", "true"])), 125);
        return;
    }
    let nobody = nix::unistd::User::from_name("nobody").unwrap().unwrap();
    let script = "id -u; id -G; echo $HOME $USER; grep CapPrm /proc/self/status";
    let output = host.open(&["--user", "nobody", "--workdir", "/", "--", "sh", "-c", script]);
    let expected = format!(
        "{}\n{}\n{} nobody\nCapPrm:\t0000000000000000\n",
        nobody.uid,
        nobody.gid,
        nobody.dir.display()
    );
    assert_eq!(succeeds(&output), expected);
    let closed = host.open(&["--user", "nobody", "--workdir", "/root", "--", "true"]);
    assert_eq!(status(&closed), 125, "a directory that is closed to the user");
}
