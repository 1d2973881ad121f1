//! What is built in: the base that any Linux program needs, and the places that no broad rule reaches into.

use ringfence_common::policy::axis::{EXEC, MAP, READ, UNIX, WRITE};

/// `kernel.base = "userland"`: path, axes. What is not there is left out; links are resolved.
pub(crate) const USERLAND: &[(&str, u16)] = &[
    // Programs' data and code. Executing needs a rule of its own; libraries and the loader may be mapped.
    ("/usr", READ),
    ("/bin", READ),
    ("/sbin", READ),
    ("/lib", READ | MAP),
    ("/lib32", READ | MAP),
    ("/lib64", READ | MAP),
    ("/libx32", READ | MAP),
    ("/usr/lib", MAP),
    ("/usr/lib32", MAP),
    ("/usr/lib64", MAP),
    ("/usr/libx32", MAP),
    ("/usr/local/lib", MAP),
    // The loader's configuration.
    ("/etc/ld.so.cache", READ),
    ("/etc/ld.so.conf", READ),
    ("/etc/ld.so.conf.d", READ),
    ("/etc/ld.so.preload", READ),
    ("/etc/ld-musl-x86_64.path", READ),
    ("/etc/ld-musl-aarch64.path", READ),
    // Users, hosts, names of services: no secret among them.
    ("/etc/passwd", READ),
    ("/etc/group", READ),
    ("/etc/nsswitch.conf", READ),
    ("/etc/resolv.conf", READ),
    ("/etc/hosts", READ),
    ("/etc/host.conf", READ),
    ("/etc/gai.conf", READ),
    ("/etc/services", READ),
    ("/etc/protocols", READ),
    ("/etc/shells", READ),
    ("/etc/os-release", READ),
    ("/etc/debian_version", READ),
    ("/etc/mime.types", READ),
    ("/etc/magic", READ),
    // Python's start-up file is a link into these.
    ("/etc/python3", READ),
    ("/etc/python3.9", READ),
    ("/etc/python3.10", READ),
    ("/etc/python3.11", READ),
    ("/etc/python3.12", READ),
    ("/etc/python3.13", READ),
    ("/etc/python3.14", READ),
    // Time, language, terminal.
    ("/etc/localtime", READ),
    ("/etc/timezone", READ),
    ("/etc/locale.alias", READ),
    ("/etc/locale.conf", READ),
    ("/etc/default/locale", READ),
    ("/etc/terminfo", READ),
    ("/etc/inputrc", READ),
    // Certificates of the authorities, not private keys.
    ("/etc/ssl/certs", READ),
    ("/etc/ssl/cert.pem", READ),
    ("/etc/ssl/openssl.cnf", READ),
    ("/etc/pki/tls/certs", READ),
    ("/etc/pki/ca-trust", READ),
    ("/etc/ca-certificates", READ),
    ("/etc/ca-certificates.conf", READ),
    // Which program a name stands for, and what a login shell reads.
    ("/etc/alternatives", READ),
    ("/etc/profile", READ),
    ("/etc/profile.d", READ),
    ("/etc/bash.bashrc", READ),
    ("/etc/skel", READ),
    // What a program asks about itself and the machine. Of other containers' processes the kernel shows nothing
    // that needs ptrace rights.
    ("/proc", READ),
    ("/sys/devices/system/cpu", READ),
    ("/sys/devices/system/node", READ),
    ("/sys/fs/cgroup", READ),
    ("/sys/kernel/mm/transparent_hugepage", READ),
    // Devices without state, and terminals.
    ("/dev/null", READ | WRITE),
    ("/dev/zero", READ | WRITE),
    ("/dev/full", READ | WRITE),
    ("/dev/random", READ),
    ("/dev/urandom", READ),
    ("/dev/tty", READ | WRITE),
    ("/dev/ptmx", READ | WRITE),
    ("/dev/pts", READ | WRITE),
];

/// Places that a rule must name: an allow above them does not reach in, one at or below them does.
pub(crate) const PROTECTED: &[(&str, u16)] = &[
    // Knobs of the whole machine (core_pattern, modprobe's path, sysrq, binfmt_misc, uevent helpers), and of other
    // processes: a path cannot tell whose /proc/PID it is.
    ("/proc", WRITE),
    ("/proc/sys", WRITE),
    ("/proc/sysrq-trigger", READ | WRITE),
    ("/proc/kcore", READ | WRITE),
    ("/proc/kmsg", READ | WRITE),
    ("/proc/kallsyms", READ | WRITE),
    ("/proc/irq", WRITE),
    ("/proc/bus", WRITE),
    ("/proc/acpi", WRITE),
    ("/proc/scsi", WRITE),
    ("/proc/fs", WRITE),
    ("/proc/mtrr", WRITE),
    ("/proc/driver", WRITE),
    ("/sys", WRITE),
    ("/sys/kernel/debug", READ | WRITE),
    ("/sys/kernel/tracing", READ | WRITE),
    ("/sys/kernel/security", WRITE),
    ("/sys/firmware", READ | WRITE),
    // Pins of BPF programs: Ringfence's own among them.
    ("/sys/fs/bpf", READ | WRITE),
    // Every device: disks, memory, terminals of others. The base gives back those without state.
    ("/dev", READ | WRITE),
    // Who can speak to these can have anything done: service managers, buses, container engines, agents of keys,
    // terminal multiplexers.
    ("/run", UNIX),
    ("/tmp", UNIX),
    ("/var/run", UNIX),
    ("/var/lib/docker", READ | WRITE | UNIX),
    ("/var/lib/containerd", READ | WRITE | UNIX),
    ("/run/docker", READ | WRITE | UNIX),
    ("/run/docker.sock", READ | WRITE | UNIX),
    ("/run/containerd", READ | WRITE | UNIX),
    ("/run/podman", READ | WRITE | UNIX),
    ("/run/crio", READ | WRITE | UNIX),
    ("/run/dbus", WRITE | UNIX),
    ("/run/systemd", WRITE | UNIX),
    ("/run/udev", WRITE | UNIX),
    // Who can write these has commands run later, as somebody else.
    ("/etc/crontab", WRITE),
    ("/etc/cron.d", WRITE),
    ("/etc/cron.hourly", WRITE),
    ("/etc/cron.daily", WRITE),
    ("/etc/cron.weekly", WRITE),
    ("/etc/cron.monthly", WRITE),
    ("/etc/anacrontab", WRITE),
    ("/var/spool/cron", READ | WRITE),
    ("/var/spool/at", READ | WRITE),
    ("/var/spool/anacron", WRITE),
    ("/etc/systemd", WRITE),
    ("/etc/init.d", WRITE),
    ("/etc/ld.so.preload", WRITE),
    ("/etc/sudoers", READ | WRITE),
    ("/etc/sudoers.d", READ | WRITE),
    ("/etc/pam.d", WRITE),
    ("/etc/shadow", READ | WRITE),
    ("/etc/gshadow", READ | WRITE),
    ("/usr/lib/systemd", WRITE),
    ("/usr/local/lib/systemd", WRITE),
    ("/etc/modprobe.d", WRITE),
    ("/etc/modules-load.d", WRITE),
    ("/etc/udev", WRITE),
    ("/boot", WRITE),
    ("/lib/modules", WRITE),
    // Ringfence's own.
    ("/run/ringfence", READ | WRITE | UNIX),
    ("/var/lib/ringfence", READ | WRITE | UNIX),
    ("/var/lib/ringfence-agents", READ | WRITE | UNIX),
    ("/etc/ringfence", WRITE),
    ("/usr/bin/ringfence", WRITE),
    ("/usr/local/bin/ringfence", WRITE),
];

/// Devices that stay closed where a rule names `/dev` as a whole; the block devices and terminals that are found there
/// are added.
pub(crate) const DEVICES: &[&str] = &[
    "/dev/mem",
    "/dev/kmem",
    "/dev/port",
    "/dev/kmsg",
    "/dev/nvram",
    "/dev/mapper",
    "/dev/disk",
    "/dev/block",
    "/dev/loop-control",
    "/dev/raw",
    "/dev/bsg",
    "/dev/cpu",
    "/dev/kvm",
    "/dev/vhost-net",
    "/dev/vhost-vsock",
    "/dev/uinput",
    "/dev/input",
    "/dev/net",
    "/dev/watchdog",
];

/// Shared memory and message queues: in `/dev` by name only, they follow the rule that covers `/`.
pub(crate) const SHARED_MEMORY: [&str; 2] = [POSIX_SHARED_MEMORY, "/dev/mqueue"];
/// Where POSIX shared memory and semaphores are files.
pub(crate) const POSIX_SHARED_MEMORY: &str = "/dev/shm";

/// Names below which a broad rule over unix sockets does not reach, wherever they stand.
pub(crate) const PROTECTED_SOCKETS: [&str; 7] =
    ["docker.sock", "podman.sock", "containerd.sock", ".gnupg", ".ssh", ".screen", ".docker"];

/// The axis that a bit stands for, as shown in ids.
pub(crate) fn bit_name(bit: u16) -> &'static str {
    match bit {
        READ => "fs_read",
        WRITE => "fs_write",
        EXEC => "exec",
        MAP => "map",
        _ => "net",
    }
}
