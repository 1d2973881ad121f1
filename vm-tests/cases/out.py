"""The family `out`: getting out of scope: other processes, namespaces, cgroups, the kernel's own doors."""

import ctypes
import fcntl
import os
import signal
import socket
import struct
import time

from attack import LIBC, begun, drain, in_child, raw, read, spawn
from case import DOCKER, FULL, NOBODY, Family, Refused, profile_text

BASE = "/srv/rf/out"
VICTIMS = {}


def locate(p):
    """`pid` is a process outside, or (allowed) one of the container's own, made by the attack itself."""
    p.dir = f"{BASE}/{'allow' if p.kind == 'allow' else 'deny'}/{p.run}"
    p.target = p.dir + "/target"
    p.mine = f"{BASE}/allow/{p.run}.mine"
    p.pid = p.addr = p.fd = 0


def victim(token):
    """Forks a process that holds the token in memory and in a file; its pid, the address, the descriptor."""
    out_r, out_w = os.pipe()
    child = os.fork()
    if child == 0:
        secret = ctypes.create_string_buffer(token.encode())
        fd = raw("memfd_create", b"victim", 0)
        os.write(fd, token.encode())
        LIBC.prctl(0x59616D61, ctypes.c_ulong(2**64 - 1), 0, 0, 0)  # PR_SET_PTRACER: yama lets anyone
        signal.signal(signal.SIGUSR1, lambda *_: os._exit(0))
        os.write(out_w, struct.pack("<QI", ctypes.addressof(secret), fd))
        os.close(out_w)
        time.sleep(900)
        os._exit(0)
    os.close(out_w)
    address, fd = struct.unpack("<QI", os.read(out_r, 12))
    os.close(out_r)
    return child, address, fd


def setup(p):
    """Files, and for a forbidden target a victim outside."""
    for path in (p.dir, p.mine):
        os.makedirs(path, exist_ok=True)
        os.chmod(path, 0o777)
    with open(p.target, "w") as file:
        file.write(p.token)
    os.chmod(p.target, 0o666)


def outside(p):
    """A victim of this case's own."""
    setup(p)
    if p.kind != "allow":
        p.pid, p.addr, p.fd = victim(p.token)
        VICTIMS[p.pid] = p


def finish():
    """No victim outlives the family."""
    for pid in VICTIMS:
        try:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
    VICTIMS.clear()


def whom(p):
    """The victim: outside, or a child of the attacker."""
    if not p.pid:
        p.pid, p.addr, p.fd = victim(p.token)
        time.sleep(0.02)
    return p.pid


def profile(_places, here):
    """The profile's text."""
    return profile_text("vm test: out", [here, "/run/rf-cases", f"{BASE}/allow", "/proc", "/sys"],
                        [f"{BASE}/allow", "/proc/self", "/sys/fs/cgroup"])


OUT = Family("out", profile, locate=locate, setup=setup, finish=finish, events=lambda p: [("open", p.target)])


def process(name, op="ptrace", **options):
    """A case about another process: root with all capabilities, or capabilities alone would refuse."""
    options.setdefault("who", (FULL, DOCKER))
    options.setdefault("quiet", (DOCKER,))
    return OUT.case(name, setup=outside, events=lambda p: [(op, "")], **options)


@process("ptrace-attach", hook="ptrace_access_check")
def ptrace_attach(p):
    """PTRACE_ATTACH and PEEKDATA"""
    pid = whom(p)
    raw("ptrace", 16, pid, 0, 0)
    os.waitpid(pid, 0)
    word = ctypes.c_long()
    text = b""
    for offset in range(0, (len(p.token) + 8) // 8 * 8, 8):
        raw("ptrace", 2, pid, p.addr + offset, ctypes.byref(word))
        text += struct.pack("<q", word.value)
    raw("ptrace", 17, pid, 0, 0)
    return text.decode("latin-1")


@process("ptrace-seize")
def ptrace_seize(p):
    """PTRACE_SEIZE"""
    raw("ptrace", 0x4206, whom(p), 0, 0)
    return p.token


@process("process-vm-readv")
def process_vm_readv(p):
    """process_vm_readv"""
    pid = whom(p)
    buffer = ctypes.create_string_buffer(len(p.token))
    local = struct.pack("<QQ", ctypes.addressof(buffer), len(p.token))
    remote = struct.pack("<QQ", p.addr, len(p.token))
    raw("process_vm_readv", pid, local, 1, remote, 1, 0)
    return buffer.raw.decode()


@process("process-vm-writev")
def process_vm_writev(p):
    """process_vm_writev"""
    pid = whom(p)
    buffer = ctypes.create_string_buffer(b"y" * len(p.token))
    local = struct.pack("<QQ", ctypes.addressof(buffer), 4)
    remote = struct.pack("<QQ", p.addr, 4)
    raw("process_vm_writev", pid, local, 1, remote, 1, 0)
    return p.token


@process("move-pages", hook="task_movememory")
def move_pages(p):
    """move_pages: on which node another process's memory lies, or shall lie"""
    pid = whom(p)
    raw("move_pages", pid, 1, struct.pack("<Q", p.addr & ~4095), 0, ctypes.create_string_buffer(4), 0)
    return p.token


@process("proc-pid-mem")
def proc_mem(p):
    """/proc/PID/mem"""
    pid = whom(p)
    fd = os.open(f"/proc/{pid}/mem", os.O_RDONLY)
    return os.pread(fd, len(p.token), p.addr).decode()


@process("proc-pid-environ")
def proc_environ(p):
    """/proc/PID/environ: another process's secrets"""
    read(f"/proc/{whom(p)}/environ")
    return p.token


@process("proc-pid-fd")
def proc_fd(p):
    """/proc/PID/fd/N: another process's open files"""
    pid = whom(p)
    os.readlink(f"/proc/{pid}/fd/{p.fd}")
    return read(f"/proc/{pid}/fd/{p.fd}")


@process("proc-pid-root-and-cwd", control=lambda p: os.readlink(f"/proc/{whom(p)}/cwd"))
def proc_root(p):
    """/proc/PID/root and cwd of a process outside"""
    os.stat(f"/proc/{whom(p)}/root/etc/passwd")
    return p.token


@process("pidfd-getfd")
def pidfd_getfd(p):
    """pidfd_getfd: a descriptor out of another process"""
    pidfd = raw("pidfd_open", whom(p), 0)
    fd = raw("pidfd_getfd", pidfd, p.fd, 0)
    return os.pread(fd, 200, 0).decode()


@process("kcmp")
def kcmp(p):
    """kcmp: a look at another process's kernel objects"""
    raw("kcmp", os.getpid(), whom(p), 0, 0, 0)
    return p.token


def controlled(name, **options):
    """A case about limits and scheduling of a process outside: with them it can be starved or killed."""
    return OUT.case(name, setup=outside, events=lambda p: [("control", "")], effect=lambda p, v: v == "set", **options)


@controlled("prlimit", hook="task_setrlimit", who=(DOCKER, FULL))
def prlimit(p):
    """prlimit of a process outside: a limit of CPU time kills it"""
    raw("prlimit64", whom(p), 4, struct.pack("<QQ", 0, 0), 0)
    return "set"


@controlled("setpriority", hook="task_setnice", who=(FULL, DOCKER), quiet=(DOCKER,))
def setpriority(p):
    """setpriority of a process outside"""
    os.setpriority(os.PRIO_PROCESS, whom(p), 15)
    return "set"


@controlled("sched-setscheduler", hook="task_setscheduler", who=(FULL, DOCKER), quiet=(DOCKER,))
def setscheduler(p):
    """sched_setscheduler of a process outside"""
    os.sched_setscheduler(whom(p), os.SCHED_IDLE, os.sched_param(0))
    return "set"


@controlled("sched-setaffinity", who=(FULL, DOCKER), quiet=(DOCKER,))
def setaffinity(p):
    """sched_setaffinity of a process outside"""
    os.sched_setaffinity(whom(p), {0})
    return "set"


@controlled("ioprio-set", hook="task_setioprio", who=(FULL, DOCKER), quiet=(DOCKER,))
def ioprio(p):
    """ioprio_set of a process outside"""
    raw("ioprio_set", 1, whom(p), 3 << 13)
    return "set"


def gone(p, value):
    """The victim is dead."""
    if p.kind == "allow" or not p.pid:
        return value == "gone"
    # Where it has to die it may take a moment.
    end = time.monotonic() + (60 if p.mode == "native" else 0)
    while True:
        try:
            with open(f"/proc/{p.pid}/stat") as file:
                if file.read().rsplit(")", 1)[1].split()[0] in "ZX":
                    return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        if time.monotonic() >= end:
            return False
        time.sleep(0.05)


def signalled(name, **options):
    """A case about signals to a process outside."""
    return OUT.case(name, setup=outside, events=lambda p: [("signal", "")], who=(DOCKER, FULL), effect=gone, **options)


def wait_gone(p):
    """What a control returns once its own child is dead."""
    if p.kind == "allow":
        os.waitpid(p.pid, 0)
        return "gone"
    time.sleep(0.1)
    return "sent"


@signalled("kill", hook="task_kill")
def kill(p):
    """kill(2) of a process outside"""
    os.kill(whom(p), signal.SIGKILL)
    return wait_gone(p)


@signalled("kill-usr1")
def kill_usr1(p):
    """a signal that the victim handles"""
    os.kill(whom(p), signal.SIGUSR1)
    return wait_gone(p)


@signalled("sigqueue")
def sigqueue(p):
    """rt_sigqueueinfo"""
    pid = whom(p)
    info = struct.pack("<iii4xii", signal.SIGKILL, 0, -1, os.getpid(), os.getuid()) + bytes(104)
    raw("rt_sigqueueinfo", pid, signal.SIGKILL, info)
    return wait_gone(p)


@signalled("tgkill")
def tgkill(p):
    """tgkill"""
    pid = whom(p)
    raw("tgkill", pid, pid, signal.SIGKILL)
    return wait_gone(p)


@signalled("pidfd-send-signal")
def pidfd_kill(p):
    """pidfd_send_signal"""
    pidfd = raw("pidfd_open", whom(p), 0)
    raw("pidfd_send_signal", pidfd, signal.SIGKILL, 0, 0)
    return wait_gone(p)


def owned(owner, signal_number=signal.SIGUSR1):
    """Two sockets; what is sent to the second sends the signal to the owner of the first."""
    one, two = socket.socketpair()
    owner(one)
    fcntl.fcntl(one, 10, signal_number)  # F_SETSIG
    fcntl.fcntl(one, 4, os.O_ASYNC | os.O_NONBLOCK)
    two.send(b"x")


def own_owner(_p):
    """A process of its own may be the owner: it has the signal."""
    arrived = []
    signal.signal(signal.SIGUSR1, lambda *_: arrived.append(1))
    owned(lambda one: fcntl.fcntl(one, 8, os.getpid()))  # F_SETOWN
    assert arrived, "no signal"


@OUT.case("fd-owner-signal", setup=outside, events=lambda p: [("signal", "")], effect=gone, who=(DOCKER, FULL), control=own_owner,
          hook="file_fcntl")
def fcntl_owner(p):
    """F_SETOWN and F_SETSIG: the kernel sends the signal"""
    owned(lambda one: fcntl.fcntl(one, 8, whom(p)))  # F_SETOWN
    return wait_gone(p)


@OUT.case("fd-owner-ex-signal", setup=outside, events=lambda p: [("signal", "")], effect=gone, who=(DOCKER, FULL), control=own_owner)
def fcntl_owner_ex(p):
    """F_SETOWN_EX: the same for a thread, a process or a group"""
    owned(lambda one: fcntl.fcntl(one, 15, struct.pack("<ii", 1, whom(p))))  # F_OWNER_PID
    return wait_gone(p)


@OUT.case("ptrace-traceme", setup=setup, events=lambda p: [], native=False, kinds=(), effect=lambda p, v: v == "traced",
          who=(FULL,), hook="ptrace_traceme")
def traceme(p):
    """not an evasion: a governed parent traces its own child"""
    child = os.fork()
    if child == 0:
        raw("ptrace", 0, 0, 0, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    os.waitpid(child, 0)
    raw("ptrace", 17, child, 0, 0)
    os.waitpid(child, 0)
    return "traced"


@OUT.case("ptrace-traceme-orphan", events=lambda p: [], effect=lambda p, v: v == "traced", control=traceme, who=(DOCKER, FULL, NOBODY))
def traceme_orphan(p):
    """PTRACE_TRACEME by an orphan: the parent that may then read and write it is one outside"""
    here, there = os.pipe()
    child = os.fork()
    if child == 0:
        parent = os.getpid()
        if os.fork() != 0:
            os._exit(0)
        while os.getppid() == parent:
            time.sleep(0.01)
        try:
            raw("ptrace", 0, 0, 0, 0)
            os.write(there, b"0")
        except OSError as error:
            os.write(there, str(error.errno).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(there)
    number = int(os.read(here, 16))
    if number:
        raise OSError(number, os.strerror(number))
    return "traced"


@OUT.case("bpf", hook="bpf", who=(FULL, DOCKER), quiet=(DOCKER,), events=lambda p: [("bpf", "")], control=lambda p: read(p.target))
def bpf(p):
    """bpf(2): a map of one's own"""
    raw("bpf", 0, struct.pack("<IIIII", 2, 4, 4, 1, 0) + bytes(100), 72)
    return p.token


@OUT.case("bpf-object-get", who=(FULL,), events=lambda p: [("bpf", "")], control=lambda p: read(p.target), native=(2, 13, 20, 21))
def bpf_get(p):
    """bpf(BPF_OBJ_GET) of Ringfence's own pinned maps"""
    path = ctypes.create_string_buffer(b"/sys/fs/bpf/ringfence")
    raw("bpf", 7, struct.pack("<QII", ctypes.addressof(path), 0, 0) + bytes(100), 72)
    return p.token


@OUT.case("bpf-map-by-id", who=(FULL,), events=lambda p: [("bpf", "")], control=lambda p: read(p.target), native=(2,))
def bpf_by_id(p):
    """bpf(BPF_MAP_GET_NEXT_ID): find the policy's maps and write them"""
    raw("bpf", 12, struct.pack("<III", 0, 0, 0) + bytes(100), 72)
    return p.token


@OUT.case("perf-event-open", hook="perf_event_open", who=(FULL, DOCKER), quiet=(DOCKER,), events=lambda p: [("perf_event_open", "")],
          control=lambda p: read(p.target))
def perf(p):
    """perf_event_open"""
    attributes = struct.pack("<IIQ", 1, 128, 0) + bytes(112)
    raw("perf_event_open", attributes, -1, 0, -1, 0)
    return p.token


@OUT.case("user-namespace", hook="userns_create", who=(DOCKER, NOBODY, FULL), events=lambda p: [("userns_create", "")],
          control=lambda p: read(p.target))
def userns(p):
    """unshare of a user namespace: all capabilities in it"""
    raw("unshare", 0x10000000)
    return p.token


@OUT.case("clone-user-namespace", who=(DOCKER, NOBODY), events=lambda p: [("userns_create", "")], control=lambda p: read(p.target))
def clone_userns(p):
    """clone3 with CLONE_NEWUSER"""
    arguments = struct.pack("<QQQQQ", 0x10000000, 0, 0, 0, signal.SIGCHLD) + bytes(48)
    child = raw("clone3", arguments, 88)
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return p.token


def still(name, action, who=(FULL,), **options):
    """A case that a step gets through, and that must leave the task governed: it then opens what is denied."""

    @OUT.case(name, who=who, **options)
    def attack(p):
        action(p)
        return read(p.target)

    attack.__doc__ = (action.__doc__ or name).strip()


def namespaces(*flags):
    """A step into new namespaces."""

    def step(p):
        for flag in flags:
            raw("unshare", flag)

    return step


still("unshare-net", namespaces(0x40000000))
still("unshare-ipc-uts-cgroup", namespaces(0x08000000, 0x04000000, 0x02000000))
still("unshare-time", namespaces(0x80))


@OUT.case("unshare-pid", who=(FULL,))
def unshare_pid(p):
    """a pid namespace: its init opens the file"""
    raw("unshare", 0x20000000)
    return in_child(lambda: read(p.target))


def setns(p, name):
    """setns to a namespace of init's, by path or by pidfd."""
    raw("setns", os.open(f"/proc/1/ns/{name}", os.O_RDONLY), 0)


@OUT.case("setns-mount", who=(FULL,), events=lambda p: [("ptrace", "")], control=lambda p: read(p.target))
def setns_mount(p):
    """setns to init's mount namespace, then the file"""
    setns(p, "mnt")
    return read(p.target)


@OUT.case("setns-pidfd", who=(FULL,), events=lambda p: [("ptrace", "")], control=lambda p: read(p.target))
def setns_pidfd(p):
    """setns by pidfd to several of init's namespaces at once"""
    raw("setns", raw("pidfd_open", 1, 0), 0x04000000 | 0x08000000)
    return read(p.target)


def leave_cgroup(p):
    """Writes its own pid to the root cgroup."""
    with open("/sys/fs/cgroup/cgroup.procs", "w") as file:
        file.write(str(os.getpid()))


@OUT.case("leave-cgroup", who=(FULL,))
def cgroup(p):
    """own pid to another cgroup, where the grant allows even that: governed all the same"""
    leave_cgroup(p)
    return read(p.target)


@OUT.case("clone-into-cgroup", who=(FULL,))
def clone_into_cgroup(p):
    """clone3 with CLONE_INTO_CGROUP: a child is born elsewhere"""
    fd = os.open("/sys/fs/cgroup", os.O_RDONLY | os.O_DIRECTORY)
    arguments = struct.pack("<QQQQQQQQQQQ", 0x200000000, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, fd)
    return in_child(lambda: read(p.target), lambda: raw("clone3", arguments, 88))


@OUT.case("double-fork-exec", errno=None)
def double_fork(p):
    """setsid, double fork, and a program that reads"""

    def action():
        if os.fork():
            os.wait()
            os._exit(0)
        os.setsid()
        if os.fork():
            os.wait()
            os._exit(0)
        os.execv("/usr/bin/cat", ["cat", p.target])

    text = spawn(action)
    if p.token not in text:
        raise Refused(text)
    return text


@OUT.case("many-forks", limit=60)
def many_forks(p):
    """two hundred children at once, each of which tries"""
    pipes = [begun(lambda: read(p.target)) for _ in range(200)]
    texts = [drain(out) for out in pipes]
    for text in texts:
        if p.token in text:
            assert p.kind != "allow" or len(set(texts)) == 1, "not all could read"
            return text
    raise OSError(int(texts[0][6:]), "in every child")
