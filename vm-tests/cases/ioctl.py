"""The family `ioctl`: commands to files, sockets and devices that no grant covers."""

import ctypes
import errno
import fcntl
import os
import select
import shutil
import socket
import struct
import subprocess
import tty

import uring
from attack import LIBC, int80, put, spawn
from case import DOCKER, FULL, NOBODY, Family, profile_text, returned

BASE = "/srv/rf/ioctl"
TIOCSTI, TIOCSETD, TIOCEXCL, TIOCSCTTY = 0x5412, 0x5423, 0x540C, 0x540E
GETFLAGS, SETFLAGS = 0x80086601, 0x40086602
NODUMP = 0x40
EVERYBODY = (DOCKER, NOBODY, FULL)


def locate(p):
    """`target` is a file that is granted for writing, or for reading only."""
    p.dir = f"{BASE}/{'allow' if p.kind == 'allow' else 'ro'}/{p.run}"
    p.target = p.dir + "/target"


def setup(p):
    """The file, open to all as far as modes go."""
    os.makedirs(p.dir, exist_ok=True)
    os.chmod(p.dir, 0o777)
    put(p.target, p.token + "\n")
    os.chmod(p.target, 0o666)
    if p.who == NOBODY:
        os.chown(p.target, 65534, 65534)


def prepare():
    """Once. From 6.2 on a setting says whether TIOCSTI needs a capability."""
    shutil.rmtree(BASE, ignore_errors=True)
    subprocess.run(["sysctl", "-q", "-w", "dev.tty.legacy_tiocsti=1"], check=False, stderr=subprocess.DEVNULL)


def profile(_places, here):
    """The profile's text."""
    return profile_text("vm test: ioctl", [here, "/run/rf-cases", BASE], [f"{BASE}/allow"], net=["127.0.0.1:7001"],
                        kernel='audit = "denied"\nioctl = ["SIOCGIFMAP", "/dev/zero"]')


IOCTL = Family("ioctl", profile, kinds=("ro",), locate=locate, setup=setup, prepare=prepare, effect=returned)


def never(name, control, where=lambda p: "", **options):
    """A command that is refused on every file: the control is one that reads what this one would change."""
    options.setdefault("hook", "file_ioctl")
    options.setdefault("who", (FULL, DOCKER))
    return IOCTL.case(name, control=control, events=lambda p: [("ioctl", where(p))], effect=lambda p, v: v == p.token, **options)


def flags_of(path):
    """A file's flags."""
    fd = os.open(path, os.O_RDONLY)
    try:
        return struct.unpack("<q", fcntl.ioctl(fd, GETFLAGS, bytes(8)))[0]
    finally:
        os.close(fd)


@IOCTL.case("file-flags", hook="file_ioctl", who=EVERYBODY, events=lambda p: [("ioctl", p.target)],
            effect=lambda p, v: bool(flags_of(p.target) & NODUMP))
def file_flags(p):
    """FS_IOC_SETFLAGS (chattr) on a file that is granted for reading only"""
    fd = os.open(p.target, os.O_RDONLY)
    flags = struct.unpack("<q", fcntl.ioctl(fd, GETFLAGS, bytes(8)))[0]
    fcntl.ioctl(fd, SETFLAGS, struct.pack("<q", flags | NODUMP))


@never("file-project", lambda p: flags_of(p.target), lambda p: p.target)
def file_project(p):
    """FS_IOC_FSSETXATTR: the project whose quota a file counts against"""
    fd = os.open(p.target, os.O_RDONLY)
    fcntl.ioctl(fd, 0x401C5820, fcntl.ioctl(fd, 0x801C581F, bytes(28)))
    return p.token


@never("freeze", lambda p: flags_of(p.target), lambda p: BASE, unable=(DOCKER,))
def freeze(p):
    """FIFREEZE: the whole file system of the host stands still"""
    fd = os.open(BASE, os.O_RDONLY)
    fcntl.ioctl(fd, 0xC0045877, 0)
    fcntl.ioctl(fd, 0xC0045878, 0)
    return p.token


def query(family=socket.AF_UNIX):
    """Reads an interface's packet size: what programs ask, and may."""
    with socket.socket(family, socket.SOCK_DGRAM) as one:
        return fcntl.ioctl(one, 0x8921, struct.pack("<16s16x", b"lo"))


def interface(name, **options):
    """A case about the host's network, by a socket. Most need CAP_NET_ADMIN."""
    options.setdefault("unable", (DOCKER,))
    return never(name, lambda p: query(), **options)


@interface("interface-mtu")
def mtu(p):
    """SIOCSIFMTU by a unix socket, where no address is granted"""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        fcntl.ioctl(one, 0x8922, query())
    return p.token


@interface("interface-address")
def address(p):
    """SIOCSIFADDR: an address of another host made this one's"""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        request = struct.pack("<16sHH4s8x", b"lo", socket.AF_INET, 0, socket.inet_aton("127.0.0.1"))
        fcntl.ioctl(one, 0x8916, request)
    return p.token


def route_to(network):
    """A `struct rtentry`: this network, by the loopback device; and the name that it points to."""
    device = ctypes.create_string_buffer(b"lo")
    addresses = [struct.pack("<HH4s8x", socket.AF_INET, 0, socket.inet_aton(one)) for one in (network, "0.0.0.0", "255.255.255.0")]
    text = bytes(8) + b"".join(addresses) + struct.pack("<Hh4xQQh6x", 1, 0, 0, 0, 0)
    return text + struct.pack("<QQQH6x", ctypes.addressof(device), 0, 0, 0), device


@interface("route")
def route(p):
    """SIOCADDRT: a route"""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        entry, _device = route_to("198.51.100.0")
        fcntl.ioctl(one, 0x890B, entry)
        fcntl.ioctl(one, 0x890C, entry)
    return p.token


@interface("neighbour", native=(errno.ENXIO, errno.EINVAL, errno.ENODEV))
def neighbour(p):
    """SIOCSARP: the hardware address of another host"""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        internet = struct.pack("<HH4s8x", socket.AF_INET, 0, socket.inet_aton("127.0.0.9"))
        hardware = struct.pack("<H6s8x", 772, bytes(6))
        # ATF_PERM | ATF_COM, with the address that it has. All of the loopback's hosts share one entry, and one that is not
        # permanent is asked for again after a while, which nobody answers: then the guest has no 127.0.0.1 any more.
        fcntl.ioctl(one, 0x8955, internet + hardware + struct.pack("<i16x16s", 6, b"lo"))
    return p.token


def request(number):
    """Asks about the loopback device."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        fcntl.ioctl(one, number, struct.pack("<16sQ16x", b"lo", 0))


@never("unnamed-command", lambda p: request(0x8970), who=EVERYBODY, native=(errno.EOPNOTSUPP, errno.EFAULT))
def unnamed(p):
    """SIOCETHTOOL, where `kernel.ioctl` names another command"""
    request(0x8946)
    return p.token


@interface("signal-owner", who=EVERYBODY, unable=())
def owner(p):
    """FIOSETOWN: signals on input, to whomever"""
    a, b = socket.socketpair()
    with a, b:
        fcntl.ioctl(a, 0x8901, struct.pack("<i", os.getppid()))
    return p.token


def terminal():
    """A pseudo-terminal of the attacker's own, without line editing."""
    master, slave = os.openpty()
    tty.setraw(slave)
    return master, slave


def modes(_p):
    """What stty reads."""
    return tty.tcgetattr(terminal()[1])


def typing(p, act):
    """`act` on a terminal of the attacker's own, which needs no capability if it is the one that controls the session; whether it typed."""

    def in_session():
        os.setsid()
        _master, slave = terminal()
        fcntl.ioctl(slave, TIOCSCTTY, 0)
        act(slave)
        os.write(1, p.token.encode() if select.select([slave], [], [], 0)[0] else b"nothing was typed")

    return spawn(in_session)


@never("tiocsti", modes, lambda p: "pts/", who=EVERYBODY)
def tiocsti(p):
    """TIOCSTI: types into a terminal"""
    return typing(p, lambda slave: fcntl.ioctl(slave, TIOCSTI, b"x"))


@never("tiocsti-high-bits", modes, lambda p: "pts/", who=EVERYBODY)
def tiocsti_high(p):
    """TIOCSTI with bits above the 32 that the kernel looks at"""

    def act(slave):
        if LIBC.syscall(ctypes.c_long(16), ctypes.c_long(slave), ctypes.c_ulong(0x1_0000_0000 | TIOCSTI), ctypes.c_char_p(b"x")) < 0:
            raise OSError(ctypes.get_errno(), "ioctl")

    return typing(p, act)


@never("tiocsti-i386", modes, lambda p: "pts/", who=EVERYBODY, hook="file_ioctl_compat")
def tiocsti_i386(p):
    """TIOCSTI by int 0x80: the 32-bit system call table"""

    def act(slave):
        int80(54, slave, TIOCSTI, b"x")

    return typing(p, act)


@never("line-discipline", modes, lambda p: "pts/", who=EVERYBODY)
def discipline(p):
    """TIOCSETD: another line discipline, for which the kernel may load a module"""
    _master, slave = terminal()
    fcntl.ioctl(slave, TIOCSETD, struct.pack("<i", 0))
    return p.token


@never("exclusive", modes, lambda p: "pts/", who=EVERYBODY)
def exclusive(p):
    """TIOCEXCL: nobody else may open the terminal"""
    _master, slave = terminal()
    fcntl.ioctl(slave, TIOCEXCL, 0)
    return p.token


def to_named_device(p):
    """The same to a device that `kernel.ioctl` names: what the driver says of it, and nobody else."""
    try:
        fcntl.ioctl(os.open("/dev/zero", os.O_RDWR), 0x12345678, 0)
    except OSError as error:
        if error.errno != errno.ENOTTY:
            raise
    return p.token


@never("unknown-command", to_named_device, lambda p: "/dev/null", who=EVERYBODY, native=(errno.ENOTTY,))
def unknown(p):
    """a command that no table knows, to a device"""
    fd = os.open("/dev/null", os.O_RDWR)
    fcntl.ioctl(fd, 0x12345678, 0)
    return p.token


@never("uring-command", lambda p: uring.openat(p.target), lambda p: "/dev/null", who=EVERYBODY, hook="uring_cmd",
       native=(errno.EOPNOTSUPP,))
def uring_command(p):
    """IORING_OP_URING_CMD: a command to a device, without ioctl(2)"""
    fd = os.open("/dev/null", os.O_RDWR)
    uring.submit(46, fd, 0, 0, 0)
    return p.token
