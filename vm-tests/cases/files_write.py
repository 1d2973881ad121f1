"""Changing what may not be changed: contents, names, attributes."""

import ctypes
import os
import resource
import socket
import stat
import struct
import time

import uring
from attack import AT_EMPTY_PATH, AT_FDCWD, O_PATH, O_TMPFILE, b, put, raw
from case import DOCKER, FULL, NOBODY, Refused
from files import FILES, LOCKED, setup


def content(p):
    """What the target holds now, or None when it is no such file any more."""
    try:
        with open(p.target) as file:
            return file.read()
    except OSError:
        return None


def changed(p, _value):
    """The target's contents are others, or it is gone."""
    return content(p) != p.token + "\n"


def made(p, _value):
    """The new name exists."""
    return os.path.lexists(p.dir + "/new")


def mode(p, _value):
    """The target's mode is the one that the attack sets."""
    return stat.S_IMODE(os.lstat(p.target).st_mode) == 0o751


def owner(p, _value):
    """The target belongs to who the attack gives it to."""
    return os.lstat(p.target).st_uid == 12345


def times(p, _value):
    """The target's time is the one that the attack sets."""
    return int(os.lstat(p.target).st_mtime) == 1000000000


def locked(name, op, effect=changed, where=lambda p: p.target, **options):
    """A case whose targets are forbidden to be written in each way."""
    options.setdefault("kinds", LOCKED)
    return FILES.case(name, effect=effect, events=lambda p: [(op, where(p))], **options)


def new(p):
    """A name that does not exist yet, in the forbidden directory."""
    return p.dir + "/new"


@locked("write-open", "open", who=(DOCKER, FULL, NOBODY))
def write_open(p):
    """open for writing"""
    put(p.target, "x", flags=os.O_WRONLY)


@locked("write-read-write", "open")
def write_rdwr(p):
    """open for reading and writing"""
    put(p.target, "x", flags=os.O_RDWR)


@locked("append", "open")
def append(p):
    """open for appending"""
    put(p.target, "x", flags=os.O_WRONLY | os.O_APPEND)


@locked("open-truncate-read-only", "open")
def open_trunc(p):
    """O_RDONLY | O_TRUNC: truncates though it does not write"""
    os.close(os.open(p.target, os.O_RDONLY | os.O_TRUNC))


@locked("reopen-with-more-rights", "open", kinds=("ro",))
def reopen_more(p):
    """a descriptor opened for reading, reopened for writing by /proc/self/fd"""
    fd = os.open(p.target, os.O_RDONLY)
    put(f"/proc/self/fd/{fd}", "x", flags=os.O_WRONLY)


@locked("reopen-o-path-for-writing", "open")
def reopen_path(p):
    """an O_PATH descriptor, reopened for writing"""
    fd = os.open(p.target, O_PATH)
    put(f"/proc/self/fd/{fd}", "x", flags=os.O_WRONLY)


@locked("truncate", "truncate", hook="path_truncate", who=(DOCKER, NOBODY))
def truncate(p):
    """truncate(2)"""
    os.truncate(p.target, 0)


@locked("truncate-by-fd-path", "truncate")
def truncate_fd(p):
    """truncate(2) by /proc/self/fd of an O_PATH descriptor"""
    fd = os.open(p.target, O_PATH)
    os.truncate(f"/proc/self/fd/{fd}", 0)


def move_in(p):
    """Outside: moves the attacker's open file over the target."""
    while not os.path.exists(p.mine + "/opened") and not p.over.is_set():
        time.sleep(0.05)
    if not p.over.is_set():
        os.rename(p.mine + "/file", p.target)


@locked("ftruncate-after-move", "truncate", during=move_in,
        effect=lambda p, v: v == "done" if p.kind == "allow" else os.path.getsize(p.target) == 1)
def ftruncate_moved(p):
    """ftruncate(2) by a descriptor from when the file lay where it may be written (a hook of its own since 6.2)"""
    fd = os.open(p.mine + "/file", os.O_RDWR | os.O_CREAT, 0o666)
    os.write(fd, p.token.encode())
    put(p.mine + "/opened", "")
    while os.path.exists(p.mine + "/file"):
        time.sleep(0.05)
    os.ftruncate(fd, 1)
    return "done"


@locked("unlink", "unlink", hook="path_unlink", who=(DOCKER, NOBODY))
def unlink(p):
    """unlink(2)"""
    os.unlink(p.target)


@locked("unlinkat", "unlink")
def unlinkat(p):
    """unlinkat(2) from an O_PATH descriptor of the directory"""
    os.unlink("target", dir_fd=os.open(p.dir, O_PATH))


@locked("io-uring-unlinkat", "unlink")
def uring_unlinkat(p):
    """IORING_OP_UNLINKAT"""
    text = ctypes.create_string_buffer(b(p.target))
    uring.submit(uring.OP_UNLINKAT, AT_FDCWD, ctypes.addressof(text), 0, 0)


def empty(p):
    """An empty directory beside the target."""
    setup(p)
    os.mkdir(p.dir + "/empty")
    os.chmod(p.dir + "/empty", 0o777)


@locked("rmdir", "rmdir", hook="path_rmdir", where=lambda p: p.dir + "/empty", setup=empty,
        effect=lambda p, v: not os.path.exists(p.dir + "/empty"))
def rmdir(p):
    """rmdir(2)"""
    os.rmdir(p.dir + "/empty")


@locked("rename-away", "rename", hook="path_rename")
def rename_away(p):
    """rename of the file out of its directory"""
    os.rename(p.target, p.mine + "/moved")


@locked("rename-over", "rename", where=lambda p: p.mine + "/source", who=(DOCKER, NOBODY))
def rename_over(p):
    """rename of an allowed file over it"""
    put(p.mine + "/source", "x")
    os.rename(p.mine + "/source", p.target)


@locked("rename-exchange", "rename", where=lambda p: p.mine + "/source")
def rename_exchange(p):
    """renameat2 RENAME_EXCHANGE with an allowed file"""
    put(p.mine + "/source", "x")
    raw("renameat2", AT_FDCWD, b(p.mine + "/source"), AT_FDCWD, b(p.target), 2)


@locked("rename-whiteout", "rename", who=(FULL,))
def rename_whiteout(p):
    """renameat2 RENAME_WHITEOUT"""
    raw("renameat2", AT_FDCWD, b(p.target), AT_FDCWD, b(p.mine + "/moved"), 4)


@locked("rename-directory-write", "rename", where=lambda p: p.dir, effect=lambda p, v: not os.path.exists(p.dir))
def rename_dir(p):
    """rename of the directory"""
    os.rename(p.dir, p.mine + "/moved")


@locked("hard-link-then-write", "link")
def link_write(p):
    """a hard link in a writable directory, written by that name"""
    os.link(p.target, p.mine + "/alias")
    put(p.mine + "/alias", "x", flags=os.O_WRONLY)


@locked("chmod", "chmod", mode, hook="path_chmod", who=(DOCKER, FULL))
def chmod(p):
    """chmod(2)"""
    os.chmod(p.target, 0o751)


@locked("fchmodat-o-path", "chmod", mode)
def fchmodat(p):
    """chmod by /proc/self/fd of an O_PATH descriptor"""
    fd = os.open(p.target, O_PATH)
    os.chmod(f"/proc/self/fd/{fd}", 0o751)


@locked("fchmod-read-only-fd", "chmod", mode, kinds=("ro",))
def fchmod(p):
    """fchmod of a descriptor opened for reading only"""
    os.fchmod(os.open(p.target, os.O_RDONLY), 0o751)


@locked("fchmodat2", "chmod", mode, native=(38,))
def fchmodat2(p):
    """fchmodat2 with AT_EMPTY_PATH (6.6 and newer)"""
    fd = os.open(p.target, O_PATH)
    raw("fchmodat2", fd, b"", 0o751, AT_EMPTY_PATH)


@locked("chown", "chown", owner, hook="path_chown", who=(DOCKER, FULL))
def chown(p):
    """chown(2)"""
    os.chown(p.target, 12345, 12345)


@locked("fchownat-empty-path", "chown", owner)
def fchownat(p):
    """fchownat with AT_EMPTY_PATH on an O_PATH descriptor"""
    fd = os.open(p.target, O_PATH)
    raw("fchownat", fd, b"", 12345, 12345, AT_EMPTY_PATH)


@locked("utimes", "utimes", times, hook="inode_setattr")
def utimes(p):
    """utimensat(2) with a time of the attacker's choice"""
    os.utime(p.target, (1000000000, 1000000000))




@locked("utimes-empty-path", "utimes", times)
def utimes_fd(p):
    """utimensat by /proc/self/fd of an O_PATH descriptor"""
    fd = os.open(p.target, O_PATH)
    os.utime(f"/proc/self/fd/{fd}", (1000000000, 1000000000))


def has_attribute(p, _value):
    """The attribute is there."""
    return "user.rf" in os.listxattr(p.target)


@locked("setxattr", "setxattr", has_attribute, hook="inode_setxattr", who=(DOCKER, NOBODY))
def setxattr(p):
    """setxattr(2)"""
    os.setxattr(p.target, "user.rf", b"x")


@locked("fsetxattr-read-only-fd", "setxattr", has_attribute, kinds=("ro",))
def fsetxattr(p):
    """fsetxattr of a descriptor opened for reading only"""
    os.setxattr(os.open(p.target, os.O_RDONLY), "user.rf", b"x")


def with_attribute(p):
    """A target that has an attribute."""
    setup(p)
    os.setxattr(p.target, "user.rf", b"x")


@locked("removexattr", "setxattr", lambda p, v: not has_attribute(p, v), hook="inode_removexattr", setup=with_attribute)
def removexattr(p):
    """removexattr(2)"""
    os.removexattr(p.target, "user.rf")


# Everything for the owner, user 65534, the group, the mask, others.
ENTRIES = [(1, 7, 0xFFFFFFFF), (2, 7, 65534), (4, 7, 0xFFFFFFFF), (0x10, 7, 0xFFFFFFFF), (0x20, 7, 0xFFFFFFFF)]
ACCESS_LIST = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in ENTRIES)


def has_acl(p, _value):
    """The access list is there."""
    return "system.posix_acl_access" in os.listxattr(p.target)


@locked("set-acl", "setxattr", has_acl, hook="inode_set_acl", native=(95,))
def set_acl(p):
    """a POSIX access list (an attribute with a hook of its own since 6.2)"""
    os.setxattr(p.target, "system.posix_acl_access", ACCESS_LIST)


def with_acl(p):
    """The target has an access list."""
    setup(p)
    os.setxattr(p.target, "system.posix_acl_access", ACCESS_LIST)


@locked("remove-acl", "setxattr", lambda p, v: not has_acl(p, v), hook="inode_remove_acl", setup=with_acl)
def remove_acl(p):
    """a POSIX access list, removed (a hook of its own since 6.2, too)"""
    os.removexattr(p.target, "system.posix_acl_access")


@locked("create", "create", made, new, hook="path_mknod", who=(DOCKER, NOBODY))
def create(p):
    """open with O_CREAT"""
    put(new(p), "x")


@locked("create-io-uring", "create", made, new)
def create_uring(p):
    """IORING_OP_OPENAT with O_CREAT"""
    uring.openat(new(p), os.O_CREAT | os.O_WRONLY)


@locked("mkdir", "mkdir", made, new, hook="path_mkdir")
def mkdir(p):
    """mkdir(2)"""
    os.mkdir(new(p))


@locked("mkfifo", "create", made, new)
def mkfifo(p):
    """mknod of a fifo"""
    os.mkfifo(new(p))


@locked("symlink", "symlink", made, new, hook="path_symlink")
def symlink(p):
    """symlink(2)"""
    os.symlink("/etc/passwd", new(p))


@locked("link-into", "link", made, lambda p: p.mine + "/source", hook="path_link")
def link_into(p):
    """a hard link of an allowed file, made in the forbidden directory"""
    put(p.mine + "/source", "x")
    os.link(p.mine + "/source", new(p))


@locked("tmpfile-linkat", "link", made, lambda p: "", control=lambda p: put(p.mine + "/y", "x") or os.link(p.mine + "/y", new(p)))
def tmpfile(p):
    """O_TMPFILE in an allowed directory, then linkat into the forbidden one"""
    fd = os.open(p.mine, O_TMPFILE | os.O_RDWR, 0o666)
    os.write(fd, b"x")
    raw("linkat", AT_FDCWD, b(f"/proc/self/fd/{fd}"), AT_FDCWD, b(new(p)), 0x400)


@locked("tmpfile-in", "open", lambda p, v: v == "written", lambda p: "")
def tmpfile_in(p):
    """O_TMPFILE in the forbidden directory itself: writing to its file system under no name"""
    fd = os.open(p.dir, O_TMPFILE | os.O_RDWR, 0o666)
    os.write(fd, b"x")
    return "written"


@locked("bind-socket-file", "create", made, new)
def bind_socket(p):
    """bind of a unix socket creates a file"""
    socket.socket(socket.AF_UNIX).bind(new(p))


@locked("mknod-device", "mknod", made, new, kinds=("deny", "sealed", "allow2"), who=(DOCKER, FULL),
        control=lambda p: os.mkfifo(new(p)))
def mknod_device(p):
    """a device node: refused even where files may be created"""
    os.mknod(new(p), 0o600 | stat.S_IFBLK, os.makedev(259, 0))


@locked("mknod-char-device", "mknod", made, new, kinds=("allow2",), control=lambda p: os.mkfifo(new(p)))
def mknod_char(p):
    """/dev/mem under another name"""
    os.mknod(new(p), 0o600 | stat.S_IFCHR, os.makedev(1, 1))


@locked("fallocate-by-reopen", "open")
def fallocate(p):
    """a descriptor for fallocate and ftruncate needs an open for writing"""
    fd = os.open(p.target, os.O_RDWR)
    os.ftruncate(fd, 0)


def core_there(p, _value):
    """A core file lies in the directory."""
    return any(name.startswith("core") for name in os.listdir(p.dir))


@locked("core-dump", "create", core_there, lambda p: p.dir[1:] + "/core", errno=None, kinds=("deny", "sealed", "ro"))
def core_dump(p):
    """a crash: the kernel writes the core file for the process"""
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CORE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        os.chdir(p.dir)
        os.abort()
    _, status = os.waitpid(child, 0)
    if not os.WCOREDUMP(status):
        raise Refused("no core was dumped")


@locked("process-accounting", "syscall", lambda p, v: v == "on", where=lambda p: "", who=(FULL,), control=lambda p: put(p.target, "x"))
def accounting(p):
    """acct(2): the kernel writes to the file from then on"""
    raw("acct", b(p.target))
    raw("acct", 0)
    return "on"
