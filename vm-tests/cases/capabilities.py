"""The families `capability` and `syscall`: what root may do by a capability, and what nobody may do by any."""

import ctypes
import os
import resource
import struct
import subprocess
import time

from attack import AT_FDCWD, LIBC, NR, b, in_thread, int80, put, raw, read
from case import DOCKER, FULL, Family, profile_text
from files_read import receive
from services import FDS

BASE = "/srv/rf/capability"
MOUNTS = []

NR.update({
    "mount_setattr": 442, "open_tree_attr": 467, "swapoff": 168, "delete_module": 176, "reboot": 169, "iopl": 172,
    "ioperm": 173, "clock_settime": 227, "settimeofday": 164, "adjtimex": 159, "clock_adjtime": 305, "sethostname": 170,
    "setdomainname": 171, "vhangup": 153, "syslog": 103, "kexec_file_load": 320, "mlock": 149, "quotactl": 179, "swapon": 167,
    "quotactl_fd": 443,
})


def locate(p):
    """Nothing is forbidden here by its path."""
    p.dir = f"{BASE}/{p.run}"
    p.target = p.dir + "/target"
    p.mine = p.dir + "/mine"
    p.mount = p.dir + "/read-only"
    p.fds_socket = FDS


def setup(p):
    """Files, and a mount that is read-only."""
    for path in (p.dir, p.mine, p.mount):
        os.makedirs(path, exist_ok=True)
        os.chmod(path, 0o777)
    put(p.target, p.token)


def text(capabilities):
    """A profile that grants what the attacks need and these capabilities."""

    def profile(_places, here):
        return profile_text("vm test: capabilities", [here, "/run/rf-cases", BASE, "/proc"], [BASE, "/proc/self"], net=[f"unix:{FDS}"],
                            kernel=f'capabilities = {capabilities}\naudit = "denied"')

    return profile


def finish():
    """Takes the mounts away."""
    for path in MOUNTS:
        subprocess.run(["umount", path], check=False)
    MOUNTS.clear()


def own(p):
    """What a capability of the default set is for."""
    os.chown(p.target, 65534, 65534)
    assert os.stat(p.target).st_uid == 65534
    return "done"


# The task has every capability, as in a privileged container of an engine, and is enrolled while it runs.
HELD = Family("capability", text('["default"]'), locate=locate, setup=setup, effect=lambda p, v: v == "done", who=(FULL, DOCKER),
              events=lambda p: [("capability", "")], enrolled=True)


def held(name, **options):
    """A case about a capability that the container has and its profile does not name."""
    return HELD.case(name, quiet=(DOCKER,), control=own, **options)


@held("nice", hook="capable")
def nice(_p):
    """a higher priority than the host's other processes have (CAP_SYS_NICE)"""
    os.setpriority(os.PRIO_PROCESS, 0, -5)
    return "done"


@held("limits")
def limits(_p):
    """a hard limit raised again (CAP_SYS_RESOURCE)"""
    most = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    lower = 5000 if most == resource.RLIM_INFINITY else most - 1
    resource.setrlimit(resource.RLIMIT_NPROC, (lower, lower))
    raw("prlimit64", 0, resource.RLIMIT_NPROC, struct.pack("<QQ", lower + 1, lower + 1), 0)
    return "done"


@held("locked-memory", errno=(1, 12))
def locked_memory(_p):
    """memory locked beyond the limit (CAP_IPC_LOCK)"""
    resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))
    buffer = ctypes.create_string_buffer(65536)
    raw("mlock", ctypes.addressof(buffer), 65536)
    return "done"


@held("namespaces", kinds=("uts", "net", "mount"))
def namespaces(p):
    """new namespaces (CAP_SYS_ADMIN)"""
    raw("unshare", {"uts": 0x04000000, "net": 0x40000000, "mount": 0x20000}.get(p.kind, 0x04000000))
    return "done"


@held("ambient")
def ambient(p):
    """the same through an exec with ambient capabilities, as another user"""
    LIBC.prctl(8, 1, 0, 0, 0)  # PR_SET_KEEPCAPS
    os.setgid(65534)
    os.setuid(65534)
    mask = (1 << 23) - 1 + (1 << 23)
    raw("capset", struct.pack("<Ii", 0x20080522, 0), struct.pack("<IIIIII", mask, mask, mask, 0, 0, 0))
    if LIBC.prctl(47, 2, 23, 0, 0) != 0:  # PR_CAP_AMBIENT_RAISE, CAP_SYS_NICE
        raise OSError(ctypes.get_errno(), "ambient")
    return "done" if subprocess.run(["/usr/bin/nice", "-n", "-5", "/usr/bin/true"], capture_output=True, check=False).stderr == b"" else fail()


def fail():
    """The program's own refusal."""
    raise PermissionError(1, "nice was refused")


# The task has every capability and its profile names them all.
CALLS = Family("syscall", text('["all"]'), locate=locate, setup=setup, finish=finish, effect=lambda p, v: v == "done", who=(FULL, DOCKER),
               events=lambda p: [("syscall", "")])


def call(name, **options):
    """A case about a system call that no capability opens."""
    options.setdefault("control", own)
    return CALLS.case(name, quiet=(DOCKER,), **options)


def mounted(p):
    """A read-only mount outside."""
    setup(p)
    subprocess.run(["mount", "-t", "tmpfs", "rf", p.mount], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro,nosuid,noexec", p.mount], check=True)
    MOUNTS.append(p.mount)


def written(p):
    """Whether a file can be made in the mount that was read-only."""
    put(p.mount + "/new", "x")
    return "done"


@call("mount-setattr", setup=mounted, hook="all")
def mount_setattr(p):
    """mount_setattr: a read-only mount of the host made writable"""
    raw("mount_setattr", AT_FDCWD, b(p.mount), 0, struct.pack("<QQQQ", 0, 1 | 2 | 8, 0, 0), 32)
    return written(p)


@call("mount-setattr-descriptor", setup=mounted)
def mount_setattr_descriptor(p):
    """the same by an O_PATH descriptor, for all mounts below it"""
    fd = os.open(p.mount, os.O_PATH)
    raw("mount_setattr", fd, b"", 0x1000 | 0x8000, struct.pack("<QQQQ", 0, 1, 0, 0), 32)
    return written(p)


@call("fsopen", hook="all")
def fsopen(_p):
    """fsopen, fsconfig, fsmount: a file system of one's own"""
    context = raw("fsopen", b"tmpfs", 0)
    raw("fsconfig", context, 6, 0, 0, 0)  # FSCONFIG_CMD_CREATE
    raw("fsmount", context, 0, 0)
    return "done"


@call("fsconfig-create", hook="all")
def fsconfig(p):
    """fsconfig(CREATE) of a context that somebody outside prepared"""
    raw("fsconfig", receive(p, "fsopen:tmpfs"), 6, 0, 0, 0)
    return "done"


@call("fsconfig-reconfigure", hook="sb_remount", setup=mounted)
def reconfigure(p):
    """fsconfig(RECONFIGURE) of a mounted file system that somebody outside picked"""
    raw("fsconfig", receive(p, f"fspick:{p.mount}"), 7, 0, 0, 0)
    return "done"


@call("fsmount-passed")
def fsmount(p):
    """fsmount of a file system that somebody outside made"""
    raw("fsmount", receive(p, "fsmount:tmpfs"), 0, 0)
    return "done"


@call("fspick", setup=mounted)
def fspick(p):
    """fspick: a mounted file system, to be reconfigured"""
    raw("fspick", AT_FDCWD, b(p.mount), 0)
    return "done"


@call("open-tree-clone")
def open_tree(p):
    """open_tree with OPEN_TREE_CLONE: a copy of mounts"""
    raw("open_tree", AT_FDCWD, b(p.dir), 1 | 0x8000)
    return "done"


@call("open-tree-attr", native=(38,))
def open_tree_attr(p):
    """open_tree_attr (6.15 and newer): a copy with other flags"""
    raw("open_tree_attr", AT_FDCWD, b(p.dir), 1, struct.pack("<QQQQ", 0, 0, 0, 0), 32)
    return "done"


@call("setns", hook="all")
def setns(_p):
    """setns, even into a namespace that one is in"""
    raw("setns", os.open("/proc/self/ns/uts", os.O_RDONLY), 0)
    return "done"


@call("swap", native=(22,))
def swap(p):
    """swapon of a file, swapoff"""
    put(p.mine + "/swap", "x" * 40960)
    raw("swapon", b(p.mine + "/swap"), 0)
    return "done"


@call("swapoff", native=(22,))
def swapoff(p):
    """swapoff"""
    raw("swapoff", b(p.target))
    return "done"


@call("init-module", native=(8, 14, 22))
def init_module(_p):
    """init_module: code in the kernel"""
    raw("init_module", b"\x7fELF" + bytes(100), 104, b"")
    return "done"


@call("finit-module", native=(8, 14, 22))
def finit_module(p):
    """finit_module: the same from a file"""
    raw("finit_module", os.open(p.target, os.O_RDONLY), b"", 0)
    return "done"


@call("delete-module", native=(2, 11, 16))
def delete_module(_p):
    """delete_module"""
    raw("delete_module", b"no_such_module", 0o4000)
    return "done"


@call("kexec-load", native=(22, 14, 16, 99))
def kexec_load(_p):
    """kexec_load: another kernel"""
    raw("kexec_load", 0, 17, 0, 0)
    return "done"


@call("kexec-file-load", native=(9, 8, 22))
def kexec_file_load(_p):
    """kexec_file_load: another kernel, from a file"""
    raw("kexec_file_load", -1, -1, 0, 0, 0)
    return "done"


@call("reboot", native=(22,))
def reboot(_p):
    """reboot: asked with numbers that mean nothing, so that nothing happens where it may be asked"""
    raw("reboot", 1, 2, 3, 0)
    return "done"


@call("io-ports", kinds=("iopl", "ioperm"))
def ports(p):
    """iopl and ioperm: devices past the kernel"""
    if p.kind == "ioperm":
        raw("ioperm", 0x80, 1, 1)
    else:
        raw("iopl", 3)
    return "done"


@call("clock", kinds=("settime", "settimeofday", "adjust", "adjust-clock"))
def clock(p):
    """the host's clock, in four ways"""
    now = time.clock_gettime(time.CLOCK_REALTIME)
    if p.kind == "settimeofday":
        raw("settimeofday", struct.pack("<qq", int(now), 0), 0)
    elif p.kind == "adjust":
        raw("adjtimex", struct.pack("<I", 0x4000) + bytes(84) + struct.pack("<q", 10000) + bytes(120))
    elif p.kind == "adjust-clock":
        raw("clock_adjtime", 0, struct.pack("<I", 0x4000) + bytes(84) + struct.pack("<q", 10000) + bytes(120))
    else:
        raw("clock_settime", 0, struct.pack("<qq", int(now), int(now % 1 * 1e9)))
    return "done"


@call("host-name", kinds=("host", "domain"))
def host_name(p):
    """sethostname and setdomainname"""
    name = os.uname().nodename if p.kind != "domain" else "(none)"
    raw("setdomainname" if p.kind == "domain" else "sethostname", name.encode(), len(name))
    return "done"


@call("vhangup")
def vhangup(_p):
    """vhangup: the terminal taken from those who use it"""
    raw("vhangup")
    return "done"


@call("fanotify")
def fanotify(_p):
    """fanotify_init: a say in what every process of the host opens"""
    raw("fanotify_init", 4, 0)
    return "done"


@call("userfaultfd")
def userfaultfd(_p):
    """userfaultfd: the kernel halted in the middle of its work"""
    raw("userfaultfd", 0)
    return "done"


@call("kernel-log", hook="syslog")
def kernel_log(_p):
    """syslog(2): the kernel's log"""
    raw("syslog", 3, ctypes.create_string_buffer(4096), 4096)
    return "done"


@call("thread", setup=mounted)
def thread(p):
    """mount_setattr by a thread that is not the first"""
    in_thread(lambda: raw("mount_setattr", AT_FDCWD, b(p.mount), 0, struct.pack("<QQQQ", 0, 1, 0, 0), 32))
    return written(p)


@call("i386", hook="all")
def i386(_p):
    """iopl by int 0x80: the number of another table"""
    int80(110, 3)
    return "done"


@CALLS.case("i386-numbers", who=(FULL,), kinds=(), native=False, events=lambda p: [])
def i386_numbers(p):
    """not an evasion: a number that is refused in one table is not refused in the other (212 is chown32 on i386)"""
    result = int80(212, b(p.target), 65534, 65534)
    assert result == 0 and os.stat(p.target).st_uid == 65534, result
    return "done"


@CALLS.case("own-namespaces", who=(FULL,), kinds=(), native=False, events=lambda p: [])
def own_namespaces(p):
    """not an evasion: who has CAP_SYS_ADMIN by the profile may make namespaces; what is in them stays governed (family `out`)"""
    raw("unshare", 0x04000000)
    assert read(p.target) == p.token
    return "done"
