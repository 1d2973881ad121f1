"""The family `broad`: a profile that grants everything, and the places that are denied nevertheless."""

import errno
import os
import socket
import subprocess

from attack import put, read
from case import DOCKER, FULL, Family, profile_text

BASE = "/srv/rf/broad"
SOCKETS = {}


def locate(p):
    """Only a directory of the attacker's own."""
    p.dir = f"{BASE}/{p.run}"
    p.target = p.dir + "/target"
    p.mine = p.dir


def setup(p):
    """A file and a socket that are nobody's secret."""
    os.makedirs(p.dir, exist_ok=True)
    os.chmod(p.dir, 0o777)
    put(p.target, p.token)


def prepare():
    """Devices and file systems that exist only when asked for, as far as this kernel has them."""
    for name in ("loop", "tun", "msr", "binfmt_misc"):
        subprocess.run(["modprobe", "-q", name], check=False)
    if not os.path.exists("/proc/sys/fs/binfmt_misc/register"):
        subprocess.run(["mount", "-t", "binfmt_misc", "binfmt_misc", "/proc/sys/fs/binfmt_misc"], stderr=subprocess.DEVNULL, check=False)


def listen(path):
    """A socket file where a service's would be; what was there stays."""
    if os.path.exists(path) or path in SOCKETS or path.startswith("/run/ringfence/"):
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    one = socket.socket(socket.AF_UNIX)
    one.bind(path)
    os.chmod(path, 0o666)
    one.listen(16)
    SOCKETS[path] = one


def finish():
    """No made-up service stays behind."""
    for path, one in SOCKETS.items():
        one.close()
        os.unlink(path)
    SOCKETS.clear()


def profile(_places, _here):
    """The profile's text."""
    return profile_text("vm test: broad", "all", "all", "all", "all")


BROAD = Family("broad", profile, locate=locate, setup=setup, prepare=prepare, finish=finish, who=(FULL, DOCKER))


def writing(name, path, **options):
    """Opening a place of the kernel's or the host's for writing. Only the open: nothing is written."""
    options.setdefault("native", (2, 6, 30, 22, 26))  # not on every kernel

    @BROAD.case(name, events=lambda p: [("open", path)], control=lambda p: put(p.target, "x"), **options)
    def attack(p):
        os.close(os.open(path, os.O_WRONLY))
        return p.token

    attack.__doc__ = f"{path} for writing"


def reading(name, path, **options):
    """Reading a place."""
    options.setdefault("native", (2, 6, 1, 5))

    @BROAD.case(name, events=lambda p: [("open", path)], control=lambda p: read(p.target), **options)
    def attack(p):
        os.close(os.open(path, os.O_RDONLY))
        return p.token

    attack.__doc__ = f"{path} for reading"


def making(name, path, op="create", **options):
    """Creating a file where another program would act on it."""

    def cleared(p):
        setup(p)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if os.path.exists(path):
            os.unlink(path)

    @BROAD.case(name, setup=cleared, events=lambda p: [(op, path)], control=lambda p: put(p.dir + "/new", "x"),
                effect=lambda p, v: v == p.token if p.mode == "native" else os.path.exists(path), **options)
    def attack(p):
        put(path, "x")
        os.unlink(path)
        return p.token

    attack.__doc__ = f"a new {path}"


def connecting(name, path, **options):
    """Connecting to a service that would do more than the container may."""

    def served(p):
        setup(p)
        listen(path)
        listen(p.dir + "/service")

    real = os.path.realpath

    @BROAD.case(name, setup=served, events=lambda p: [("connect", real(path))],
                control=lambda p: socket.socket(socket.AF_UNIX).connect(p.dir + "/service"), **options)
    def attack(p):
        socket.socket(socket.AF_UNIX).connect(path)
        return p.token

    attack.__doc__ = f"the socket {path}"


writing("core-pattern", "/proc/sys/kernel/core_pattern")
writing("modprobe-path", "/proc/sys/kernel/modprobe")
writing("hostname-sysctl", "/proc/sys/kernel/hostname")
writing("yama-sysctl", "/proc/sys/kernel/yama/ptrace_scope")
writing("sysrq-trigger", "/proc/sysrq-trigger")
writing("binfmt-misc-register", "/proc/sys/fs/binfmt_misc/register")
writing("uevent-helper", "/sys/kernel/uevent_helper")
writing("sys-power-state", "/sys/power/state")
writing("sys-transparent-hugepage", "/sys/kernel/mm/transparent_hugepage/enabled")
writing("cgroup-procs", "/sys/fs/cgroup/cgroup.procs")
writing("cgroup-subtree-control", "/sys/fs/cgroup/cgroup.subtree_control")
writing("block-device-write", "/dev/nvme0n1")
reading("block-device-read", "/dev/nvme0n1")
writing("nvme-admin-device", "/dev/nvme0")
writing("nvme-generic-device", "/dev/ng0n1")
reading("loop-device", "/dev/loop0", native=(2, 6))
reading("loop-control", "/dev/loop-control", native=(2, 6, 22))
reading("tun-device", "/dev/net/tun", native=(2, 6, 19))
reading("msr-device", "/dev/cpu/0/msr", native=(2, 6, 19))
reading("hibernation-snapshot", "/dev/snapshot", native=(2, 6, 16, 1))
writing("irq-affinity", "/proc/irq/default_smp_affinity")
writing("pci-config", "/proc/bus/pci/00/00.0")
writing("oom-score-of-init", "/proc/1/oom_score_adj")
writing("kprobe-events", "/sys/kernel/tracing/kprobe_events")
writing("apparmor-policy", "/sys/kernel/security/apparmor/.load")
reading("kcore", "/proc/kcore")
reading("dev-mem", "/dev/mem")
reading("dev-port", "/dev/port")
reading("kmsg", "/dev/kmsg")
reading("ringfence-database", "/var/lib/ringfence/audit.db")
reading("ringfence-state", "/run/ringfence/containers")
making("ringfence-profile", "/etc/ringfence/profiles/rf-evil.toml")
making("cron-d", "/etc/cron.d/rf-evil")
making("crontab", "/var/spool/cron/crontabs/root")
making("at-job", "/var/spool/cron/atjobs/a0000101")
making("systemd-unit", "/etc/systemd/system/rf-evil.service")
making("systemd-run-unit", "/run/systemd/system/rf-evil.service")
making("ld-so-preload", "/etc/ld.so.preload")
connecting("docker-socket", "/run/docker.sock")
connecting("containerd-socket", "/run/containerd/containerd.sock")
connecting("podman-socket", "/run/podman/podman.sock")
connecting("crio-socket", "/run/crio/crio.sock")
connecting("dbus-system-bus", "/run/dbus/system_bus_socket")
connecting("systemd-private", "/run/systemd/private")
connecting("systemd-notify", "/run/systemd/notify")
connecting("dbus-session-bus", "/run/user/1000/bus")
connecting("systemd-user-private", "/run/user/1000/systemd/private")
connecting("tmux-server", "/tmp/tmux-0/default")
connecting("screen-server", "/run/screen/S-root/1.tty")
connecting("ssh-agent", "/tmp/ssh-rftest/agent.1")
connecting("gpg-agent", "/run/user/1000/gnupg/S.gpg-agent")
connecting("editor-server", "/run/user/1000/vscode-ipc-rf.sock")
connecting("ringfence-admin-socket", "/run/ringfence/admin.sock")
connecting("ringfence-enrolment-socket", "/run/ringfence/enroll.sock", native=True)
connecting("ringfence-query-socket", "/run/ringfence/query.sock")


@BROAD.case("ringfence-binary", events=lambda p: [("rename", "/usr/local/bin/ringfence")], native=False,
            control=lambda p: os.rename(p.target, p.target + "2"))
def binary(p):
    """another program in the place of Ringfence's own"""
    os.rename(p.target, "/usr/local/bin/ringfence")
    return p.token


def pins(p):
    """The first of Ringfence's pins."""
    setup(p)
    found = [os.path.join(base, name) for base, _, names in os.walk("/sys/fs/bpf/ringfence") for name in sorted(names)]
    p.pin = found[0] if found else "/sys/fs/bpf/ringfence/nothing-is-pinned"


@BROAD.case("pin-unlink", setup=pins, events=lambda p: [("unlink", p.pin)], native=False,
            control=lambda p: os.unlink(p.target))
def pin_unlink(p):
    """unlink of one of Ringfence's pins in bpffs"""
    os.unlink(p.pin)
    return p.token


@BROAD.case("pins-rename", events=lambda p: [("rename", "/sys/fs/bpf/ringfence")], native=False,
            control=lambda p: os.rename(p.target, p.target + "2"))
def pins_rename(p):
    """rename of Ringfence's directory in bpffs"""
    os.rename("/sys/fs/bpf/ringfence", "/sys/fs/bpf/gone")
    return p.token


@BROAD.case("pins-rmdir", events=lambda p: [("rmdir", "/sys/fs/bpf/ringfence")], native=False,
            control=lambda p: os.mkdir(p.dir + "/d") or os.rmdir(p.dir + "/d"))
def pins_rmdir(p):
    """rmdir of Ringfence's directory in bpffs"""
    os.rmdir("/sys/fs/bpf/ringfence")
    return p.token


@BROAD.case("run-directory-rename", events=lambda p: [("rename", "/run/ringfence")], native=False, who=(FULL, DOCKER),
            control=lambda p: os.rename(p.target, p.target + "2"))
def run_rename(p):
    """rename of Ringfence's runtime directory, to put another in its place"""
    os.rename("/run/ringfence", "/run/rf-gone")
    return p.token


@BROAD.case("parent-of-protected-rename", events=lambda p: [("rename", "/var/lib")], native=False, who=(FULL,),
            errno=(errno.EXDEV,), control=lambda p: os.rename(p.target, p.target + "2"))
def parent_rename(p):
    """rename of a directory that holds a protected one: the protection must not be left behind"""
    os.rename("/var/lib", "/var/lib2")
    os.rename("/var/lib2", "/var/lib")
    return p.token
