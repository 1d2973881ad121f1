"""Paths that are hard to read: long, deep, with strange bytes."""

import os
import time

from attack import O_PATH, b, put, raw, read
from case import DOCKER
from files import FILES, setup

DEEP = 60


def descend(base, names):
    """A descriptor of the directory at the end of `names`, one step at a time: the whole may be too long for a call."""
    fd = os.open(base, O_PATH | os.O_DIRECTORY)
    for name in names:
        inner = os.open(name, O_PATH | os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = inner
    return fd


def build(base, names, text):
    """Makes the chain and a file `target` at its end."""
    os.makedirs(base, exist_ok=True)
    fd = os.open(base, os.O_RDONLY | os.O_DIRECTORY)
    for name in names:
        try:
            os.mkdir(name, dir_fd=fd)
        except FileExistsError:
            pass
        inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = inner
    file = os.open("target", os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o666, dir_fd=fd)
    os.write(file, text.encode())
    os.close(file)
    os.close(fd)


def chain(p, count, length):
    """Names below the target's directory so that the file `target` has `count` components in all."""
    return ["d" * length] * (count - 1 - p.dir.count("/"))


def deep(p):
    """A file 60 components deep."""
    setup(p)
    build(p.dir, chain(p, DEEP, 3), p.token)


@FILES.case("sixty-levels-deep", setup=deep, kinds=("deny", "sealed", "named"),
            events=lambda p: [("open", "/".join([p.dir, *chain(p, DEEP, 3), "target"]))])
def sixty(p):
    """60 components: still exact"""
    return read("/".join([p.dir, *chain(p, DEEP, 3), "target"]))


def too_deep(p):
    """70 components, more than are looked at."""
    setup(p)
    build(p.dir, chain(p, 70, 3), p.token)


@FILES.case("too-deep", setup=too_deep, kinds=("allow2", "deny"), events=lambda p: [("open", "target")],
            control=lambda p: read(p.target))
def seventy(p):
    """70 components: refused even where the directory is allowed"""
    return read("/".join([p.dir, *chain(p, 70, 3), "target"]))


OVERLAY = "/srv/rf/overlay"


def beside_overlay(p):
    """The same, with an overlay on the same file system: the kernel itself mounts that once more."""
    too_deep(p)
    layers = [f"{OVERLAY}/{name}" for name in ("lower", "upper", "work", "merged")]
    for path in layers:
        os.makedirs(path, exist_ok=True)
    if not os.path.ismount(layers[3]):
        options = "lowerdir={},upperdir={},workdir={}".format(*layers)
        raw("mount", b"overlay", b(layers[3]), b"overlay", 0, b(options))


def deepest(p):
    """The file, by steps: its path is long."""
    return descend(p.dir, chain(p, 70, 3))


def old(p, _value):
    """The file's time is the one that the attack sets."""
    return int(os.stat("target", dir_fd=deepest(p)).st_mtime) == 1000000000


@FILES.case("too-deep-utimes", setup=beside_overlay, kinds=("allow2", "deny", "ro"), effect=old, hook="inode_setattr",
            events=lambda p: [("utimes", "target")], control=lambda p: os.utime(p.target, (1000000000, 1000000000)))
def utimes_deep(p):
    """utimensat of a file 70 components deep, with an overlay on the same file system"""
    os.utime("target", (1000000000, 1000000000), dir_fd=deepest(p))


@FILES.case("too-deep-setxattr", setup=beside_overlay, kinds=("allow2", "deny", "ro"), hook="inode_setxattr",
            effect=lambda p, v: "user.rf" in os.listxattr(os.open("target", os.O_RDONLY, dir_fd=deepest(p))),
            events=lambda p: [("setxattr", "target")], control=lambda p: os.setxattr(p.target, "user.rf", b"x"))
def setxattr_deep(p):
    """setxattr of a file 70 components deep, with an overlay on the same file system"""
    os.chdir(deepest(p))
    os.setxattr("target", "user.rf", b"x")


def too_long(p):
    """Over 4096 bytes, by names of 250."""
    setup(p)
    build(p.dir, ["n" * 250] * 18, p.token)


@FILES.case("too-long", setup=too_long, kinds=("allow2", "deny"), events=lambda p: [("open", "target")],
            control=lambda p: read(p.target))
def long_path(p):
    """a path over 4096 bytes, reached step by step: refused even where the directory is allowed"""
    return read("target", dir_fd=descend(p.dir, ["n" * 250] * 18))


def longest(p):
    """Under 4096 bytes in all."""
    setup(p)
    build(p.dir, ["n" * 250] * 15, p.token)


@FILES.case("long-but-readable", setup=longest, kinds=("deny", "sealed", "named"), events=lambda p: [("open", "n" * 250 + "/target")])
def long_but_readable(p):
    """a path just under 4096 bytes: judged like any other"""
    return read("target", dir_fd=descend(p.dir, ["n" * 250] * 15))


def strange(name):
    """A setup that makes a file of that name in the target's directory."""

    def make(p):
        setup(p)
        with open(os.path.join(b(p.dir), name), "wb") as file:
            file.write(p.token.encode())

    return make


def named(label, name, shown):
    """A case about one strange name."""

    @FILES.case(label, setup=strange(name), kinds=("deny", "sealed", "named"), events=lambda p: [("open", p.dir + "/" + shown)])
    def attack(p):
        with open(os.path.join(b(p.dir), name), "rb") as file:
            return file.read().decode("latin-1")

    attack.__doc__ = label


named("name-with-newline", b"a\nb", "a\\x0ab")
named("name-with-invalid-utf8", b"a\xff\xfeb", "a\\xff\\xfeb")
named("name-with-escape", b"a\x1b[31mb", "a\\x1b[31mb")
named("name-of-255-bytes", b"n" * 255, "n" * 255)
named("name-of-one-byte", b"n", "n")


@FILES.case("component-boundary", kinds=("beside",), who=(DOCKER,))
def boundary(p):
    """a grant of /a/allow says nothing of /a/allowed"""
    return read(p.target)


def swapped(p):
    """A symlink in an allowed directory that the harness turns from an allowed file to the target and back."""
    setup(p)
    put(p.mine + "/good", "good")


def swap(p):
    """The turning, from outside, for as long as the attack tries."""
    number = 0
    while not p.over.is_set():
        os.symlink(p.target if number % 2 else p.mine + "/good", p.mine + "/next")
        os.rename(p.mine + "/next", p.mine + "/turning")
        number += 1


@FILES.case("symlink-race", setup=swapped, during=swap, kinds=("sealed",))
def symlink_race(p):
    """a symlink that changes between check and use: the kernel judges what it opened"""
    end = time.monotonic() + 4
    refused = None
    # As often as four seconds let it, and until it was pointed at the target at all: the case's limit ends that.
    while refused is None or time.monotonic() < end:
        try:
            text = read(p.mine + "/turning")
        except (FileNotFoundError, IsADirectoryError):  # ext4 empties a symlink that is going away
            continue
        except PermissionError as error:
            refused = error
            continue
        if p.token in text:
            return text
    raise refused
