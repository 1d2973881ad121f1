"""Mounts: names for files that the rules do not know."""

import os

from attack import AT_FDCWD, b, put, raw, read
from case import DOCKER, FULL, leaked
from files import FILES, setup

MS_BIND, MS_MOVE, MS_REMOUNT, MS_RDONLY, MS_REC, MS_PRIVATE = 4096, 8192, 32, 1, 16384, 1 << 18


def mounting(name, op="mount", where=lambda p: p.mine + "/m", **options):
    """A case that no grant allows: the control is that the file beside it can be read."""
    options.setdefault("who", (FULL,))
    options.setdefault("kinds", ("deny",))
    options.setdefault("control", lambda p: read(p.target))
    return FILES.case(name, events=lambda p: [(op, where(p))], **options)


def there(p):
    """A directory of the attacker's own, to mount on."""
    path = p.mine + "/m"
    os.makedirs(path, exist_ok=True)
    return path


@mounting("bind-mount", hook="sb_mount", who=(DOCKER, FULL), unable=(DOCKER,), kinds=("deny", "sealed", "named"))
def bind(p):
    """a bind mount of the directory into an allowed one"""
    raw("mount", b(p.dir), b(there(p)), 0, MS_BIND, 0)
    return read(there(p) + "/target")


@mounting("recursive-bind-of-root")
def bind_root(p):
    """the whole root, bound below an allowed directory"""
    raw("mount", b"/", b(there(p)), 0, MS_BIND | MS_REC, 0)
    return read(there(p) + p.target)


@mounting("overlay-mount", native=(19,))
def overlay(p):
    """an overlay with the directory as its lower layer"""
    for name in ("up", "work"):
        os.mkdir(p.mine + "/" + name)
    text = f"lowerdir={p.dir},upperdir={p.mine}/up,workdir={p.mine}/work"
    raw("mount", b"overlay", b(there(p)), b"overlay", 0, b(text))
    return read(there(p) + "/target")


def elsewhere(p):
    """A mount of somebody else's, to be moved."""
    setup(p)
    os.mkdir(p.mine + "/elsewhere")
    raw("mount", b"tmpfs", b(p.mine + "/elsewhere"), b"tmpfs", 0, 0)
    put(p.mine + "/elsewhere/file", p.token)


@mounting("move-mount", op="move_mount", where=lambda p: p.mine[1:] + "/m", hook="move_mount", setup=elsewhere)
def move_mount(p):
    """move_mount of what is mounted elsewhere"""
    raw("move_mount", AT_FDCWD, b(p.mine + "/elsewhere"), AT_FDCWD, b(there(p)), 0)
    return read(there(p) + "/file")


@mounting("detached-tree", op="syscall", where=lambda p: "", hook="capable")
def detached(p):
    """a detached clone (open_tree), read without being attached anywhere"""
    tree = raw("open_tree", AT_FDCWD, b(p.dir), 1)
    return read("target", dir_fd=tree)


@mounting("detached-file-system", op="syscall", where=lambda p: "", kinds=("deny",))
def detached_fs(p):
    """fsopen and fsmount: a file system that was never attached"""
    context = raw("fsopen", b"tmpfs", 0)
    raw("fsconfig", context, 6, 0, 0, 0)
    tree = raw("fsmount", context, 0, 0)
    fd = os.open("x", os.O_CREAT | os.O_RDWR, dir_fd=tree)
    os.write(fd, p.token.encode())
    return os.pread(fd, 100, 0).decode()


@mounting("tmpfs-over-denied", where=lambda p: p.dir)
def tmpfs_over(p):
    """a tmpfs over the denied directory"""
    raw("mount", b"tmpfs", b(p.dir), b"tmpfs", 0, 0)
    put(p.target, p.token)
    return read(p.target)


@mounting("proc-mount")
def proc_mount(p):
    """a second procfs, which protected places do not name"""
    raw("mount", b"proc", b(there(p)), b"proc", 0, 0)
    assert os.path.exists(there(p) + "/sysrq-trigger")
    return p.token


@mounting("bpffs-mount")
def bpffs(p):
    """a file system of the kernel's own"""
    raw("mount", b"bpf", b(there(p)), b"bpf", 0, 0)
    return p.token


@mounting("remount", where=lambda p: "")
def remount(p):
    """a remount with other flags"""
    raw("mount", 0, b"/", 0, MS_BIND | MS_REMOUNT, 0)
    return p.token


@mounting("mount-propagation", where=lambda p: "")
def propagation(p):
    """a change of propagation, as container tools start with"""
    raw("mount", 0, b"/", 0, MS_REC | MS_PRIVATE, 0)
    return p.token


def mounted(p):
    """A mount to take away: the forbidden file lies under it."""
    setup(p)
    if p.kind == "deny":
        raw("mount", b"tmpfs", b(p.dir), b"tmpfs", 0, 0)


def bared(p, value):
    """The file was read, or nothing lies over it any more (which is not seen of a native run's own mounts)."""
    return leaked(p, value) or p.mode == "attack" and not os.path.ismount(p.dir)


@mounting("umount", op="umount", where=lambda p: p.dir, hook="sb_umount", setup=mounted, effect=bared)
def umount(p):
    """umount of what lies over a file"""
    raw("umount2", b(p.dir), 2)
    return read(p.target)


@mounting("pivot-root", op="pivot_root", where=lambda p: "", hook="sb_pivotroot")
def pivot_root(p):
    """pivot_root(2)"""
    old = p.mine + "/old"
    os.mkdir(old)
    # A mount point to pivot to; where mounts are refused the call still reaches its hook, with a bad argument.
    try:
        raw("mount", b(p.mine), b(p.mine), 0, MS_BIND, 0)
    except OSError:
        raw("pivot_root", b"/", b"/")
    os.chdir(p.mine)
    raw("pivot_root", b".", b"old")
    return read("/old" + p.target)


@mounting("mount-in-user-namespace", op="userns_create", where=lambda p: "", who=(DOCKER,))
def mount_in_userns(p):
    """a user namespace, in which mounts are one's own"""
    raw("unshare", 0x10000000 | 0x20000)
    raw("mount", b(p.dir), b(there(p)), 0, MS_BIND, 0)
    return read(there(p) + "/target")
