"""Reading what may not be read, by every road to a file."""

import ctypes
import errno
import os
import socket
import struct
import time

import uring
from attack import AT_FDCWD, O_PATH, b, in_child, in_thread, int80, raw, read, spawn, take
from case import FULL, DOCKER, NOBODY, Refused
from files import FILES, fresh


@FILES.case("open-absolute", hook="file_open", who=(DOCKER, FULL, NOBODY))
def open_absolute(p):
    """open(2) by absolute path"""
    return read(p.target)


@FILES.case("open-relative", who=(DOCKER, NOBODY))
def open_relative(p):
    """open by relative path from inside the directory"""
    os.chdir(p.dir)
    return read("target")


@FILES.case("open-dotdot")
def open_dotdot(p):
    """a way through .. from an allowed directory"""
    return read(p.mine + "/" + "../" * p.mine.count("/") + p.target)


@FILES.case("open-slashes")
def open_slashes(p):
    """doubled slashes and dots"""
    return read("//" + p.target.replace("/", "//.//"))


@FILES.case("open-symlink", who=(DOCKER, NOBODY))
def open_symlink(p):
    """a symlink in an allowed directory"""
    os.symlink(p.target, p.mine + "/link")
    return read(p.mine + "/link")


@FILES.case("open-symlink-directory")
def open_symlink_directory(p):
    """a symlink to the directory"""
    os.symlink(p.dir, p.mine + "/link")
    return read(p.mine + "/link/target")


@FILES.case("open-proc-self-root")
def open_proc_root(p):
    """/proc/self/root"""
    return read("/proc/self/root" + p.target)


@FILES.case("open-proc-self-cwd")
def open_proc_cwd(p):
    """/proc/self/cwd"""
    os.chdir(p.dir)
    return read("/proc/self/cwd/target")


@FILES.case("open-dev-fd")
def open_dev_fd(p):
    """/dev/fd of the directory, opened O_PATH"""
    fd = os.open(p.dir, O_PATH | os.O_DIRECTORY)
    return read(f"/dev/fd/{fd}/target")


@FILES.case("openat-o-path-directory")
def openat_o_path(p):
    """openat from an O_PATH descriptor of the directory"""
    fd = os.open(p.dir, O_PATH | os.O_DIRECTORY)
    return read("target", dir_fd=fd)


@FILES.case("o-path-reopen", who=(DOCKER, NOBODY))
def o_path_reopen(p):
    """O_PATH (which fires no hook), then reopen by /proc/self/fd"""
    fd = os.open(p.target, O_PATH)
    return read(f"/proc/self/fd/{fd}")


@FILES.case("openat2-in-root")
def openat2_in_root(p):
    """openat2 with RESOLVE_IN_ROOT: the path looks like /target"""
    fd = os.open(p.dir, O_PATH | os.O_DIRECTORY)
    how = struct.pack("<QQQ", os.O_RDONLY, 0, 0x10)
    return take(raw("openat2", fd, b"/target", how, 24))


@FILES.case("openat2-beneath")
def openat2_beneath(p):
    """openat2 with RESOLVE_BENEATH and RESOLVE_NO_SYMLINKS"""
    fd = os.open(p.dir, O_PATH | os.O_DIRECTORY)
    how = struct.pack("<QQQ", os.O_RDONLY, 0, 0x0C)
    return take(raw("openat2", fd, b"target", how, 24))


@FILES.case("open-mode-3")
def open_mode_3(p):
    """access mode 3: neither read nor write, but a descriptor for ioctl"""
    fd = os.open(p.target, 3)
    os.close(fd)
    return p.token


@FILES.case("open-noatime")
def open_noatime(p):
    """O_NOATIME, O_DIRECT and friends change nothing"""
    return read(p.target, os.O_NOATIME | os.O_NOFOLLOW | os.O_NONBLOCK)


@FILES.case("list-directory", events=lambda p: [("open", p.dir)])
def list_directory(p):
    """the names in a directory"""
    assert os.listdir(p.dir) == ["target"]
    return p.token


@FILES.case("io-uring-openat")
def io_uring_openat(p):
    """IORING_OP_OPENAT"""
    return take(uring.openat(p.target))


@FILES.case("io-uring-worker")
def io_uring_worker(p):
    """IORING_OP_OPENAT in a kernel worker thread (IOSQE_ASYNC)"""
    return take(uring.openat(p.target, sqe_flags=16))


@FILES.case("io-uring-sqpoll")
def io_uring_sqpoll(p):
    """IORING_OP_OPENAT in the kernel's polling thread"""
    return take(uring.openat(p.target, setup=uring.SETUP_SQPOLL))


@FILES.case("open-by-handle", who=(FULL,))
def open_by_handle(p):
    """open_by_handle_at: no path at all"""
    handle = ctypes.create_string_buffer(struct.pack("<Ii", 128, 0) + bytes(128))
    mount = ctypes.c_int()
    raw("name_to_handle_at", AT_FDCWD, b(p.target), handle, ctypes.byref(mount), 0)
    fd = os.open(p.mine, os.O_RDONLY | os.O_DIRECTORY)
    return take(raw("open_by_handle_at", fd, handle, os.O_RDONLY))


@FILES.case("mmap-read")
def mmap_read(p):
    """open and map"""
    import mmap

    fd = os.open(p.target, os.O_RDONLY)
    return mmap.mmap(fd, 0, prot=mmap.PROT_READ)[:].decode()


@FILES.case("child-after-daemonizing")
def daemonize(p):
    """double fork and setsid: a child of a child"""

    def fork():
        if child := os.fork():
            return child
        os.setsid()
        parent = os.getpid()
        if os.fork():
            os._exit(0)
        while os.getppid() == parent:  # until it is gone and init has taken over
            time.sleep(0.01)
        return 0

    return in_child(lambda: read(p.target), fork)


@FILES.case("thread")
def thread(p):
    """another thread of the process"""
    return in_thread(lambda: read(p.target))


@FILES.case("after-exec", errno=None)
def after_exec(p):
    """a program exec'd by the governed process"""
    return spawn(lambda: os.execv("/usr/bin/cat", ["cat", p.target]))


@FILES.case("hard-link-alias", who=(DOCKER, NOBODY), events=lambda p: [("link", p.target)])
def hard_link_alias(p):
    """a hard link in an allowed directory"""
    os.link(p.target, p.mine + "/alias")
    return read(p.mine + "/alias")


@FILES.case("hard-link-by-fd", events=lambda p: [("link", p.target)])
def hard_link_by_fd(p):
    """a hard link made from an O_PATH descriptor by /proc/self/fd"""
    fd = os.open(p.target, O_PATH)
    raw("linkat", AT_FDCWD, b(f"/proc/self/fd/{fd}"), AT_FDCWD, b(p.mine + "/alias"), 0x400)
    return read(p.mine + "/alias")


@FILES.case("rename-out", who=(DOCKER, NOBODY), events=lambda p: [("rename", p.target)])
def rename_out(p):
    """rename of the file into an allowed directory"""
    os.rename(p.target, p.mine + "/moved")
    return read(p.mine + "/moved")


@FILES.case("rename-directory", events=lambda p: [("rename", p.dir)])
def rename_directory(p):
    """rename of the directory itself"""
    os.rename(p.dir, p.mine + "/moved")
    return read(p.mine + "/moved/target")


@FILES.case("rename-exchange-directory", events=lambda p: [("rename", p.dir)])
def rename_exchange(p):
    """renameat2 RENAME_EXCHANGE of the directory with an allowed one"""
    os.mkdir(p.mine + "/other")
    raw("renameat2", AT_FDCWD, b(p.mine + "/other"), AT_FDCWD, b(p.dir), 2)
    return read(p.mine + "/other/target")


@FILES.case("rename-parent", kinds=("pinned",), errno=(errno.EXDEV,), events=lambda p: [("rename", p.parent)])
def rename_parent(p):
    """rename of an allowed ancestor of a denied path (the rule must not be left behind)"""
    os.rename(p.parent, p.mine + "/moved")
    return read(p.mine + "/moved/sealed/target")


@FILES.case("rename-parent-exchange", kinds=("pinned",), errno=(errno.EXDEV,), events=lambda p: [("rename", p.parent)])
def rename_parent_exchange(p):
    """an allowed ancestor of a denied path exchanged with another directory"""
    os.mkdir(p.mine + "/other")
    raw("renameat2", AT_FDCWD, b(p.mine + "/other"), AT_FDCWD, b(p.parent), 2)
    return read(p.mine + "/other/sealed/target")


@FILES.case("created-later", kinds=("later",), during=lambda p: fresh(p), events=lambda p: [("open", p.target)])
def created_later(p):
    """a denied name that did not exist at enrolment"""
    # The case's limit ends it, where the harness makes no file. It is there before it is written.
    while not os.path.exists(p.target) or not os.path.getsize(p.target):
        time.sleep(0.05)
    return read(p.target)


@FILES.case("chroot-then-open", kinds=("sealed",), who=(DOCKER, FULL))
def chroot_then_open(p):
    """chroot to an allowed directory, so that the path reads differently"""
    os.chroot(p.root)
    return read(p.target[len(p.root):])


@FILES.case("chroot-into", hook="path_chroot", events=lambda p: [("chroot", p.dir)])
def chroot_into(p):
    """chroot to the denied directory"""
    os.chroot(p.dir)
    return read("/target")


@FILES.case("chroot-escape", kinds=("sealed",))
def chroot_escape(p):
    """the classic: chroot deeper, then out by a kept working directory"""
    os.makedirs(p.mine + "/jail", exist_ok=True)
    os.chdir("/")
    os.chroot(p.mine + "/jail")
    return read("." + p.target)


@FILES.case("mount-namespace", who=(FULL,), errno=None,
            events=lambda p: [], control=lambda p: read(p.target))
def mount_namespace(p):
    """unshare of the mount namespace: its mounts are copies, none is the saved root"""
    raw("unshare", 0x20000)
    return read(p.target)


@FILES.case("proc-pid-root", who=(FULL,), events=lambda p: [("ptrace", "")], control=lambda p: read(p.target))
def proc_pid_root(p):
    """/proc/1/root: another process's root"""
    return read("/proc/1/root" + p.target)


def receive(p, what):
    """A descriptor from a process outside, by SCM_RIGHTS."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(p.fds_socket)
        peer.send(what.encode())
        _, fds, _, _ = socket.recv_fds(peer, 16, 1)
    if not fds:
        raise Refused("no descriptor arrived")
    return fds[0]


@FILES.case("passed-descriptor", hook="file_receive", errno=None)
def passed_descriptor(p):
    """an open descriptor that a process outside hands in"""
    return take(receive(p, p.target))


@FILES.case("passed-o-path-descriptor")
def passed_o_path(p):
    """an O_PATH descriptor from outside (which says nothing yet), reopened by /proc/self/fd"""
    return read(f"/proc/self/fd/{receive(p, 'path:' + p.target)}")


@FILES.case("posix-spawn")
def posix_spawn(p):
    """posix_spawn (a vfork) with the file as the child's standard input"""
    out_r, out_w = os.pipe()
    child = os.posix_spawn("/usr/bin/cat", ["cat"], {}, file_actions=[
        (os.POSIX_SPAWN_OPEN, 0, p.target, os.O_RDONLY, 0), (os.POSIX_SPAWN_DUP2, out_w, 1)])
    os.close(out_w)
    text = os.read(out_r, 4000).decode()
    os.waitpid(child, 0)
    return text


@FILES.case("i386-open")
def i386_open(p):
    """open by int 0x80: the 32-bit system call table"""
    return take(int80(5, b(p.target), os.O_RDONLY, 0))  # open
