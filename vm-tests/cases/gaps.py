"""The family `gap`: what is known to get through. Each case fails when it no longer does, so that the list stays true."""

import ctypes
import os
import struct

import files
from attack import AT_FDCWD, b, raw
from case import DOCKER, Family

GAP = Family("gap", files.profile, kinds=("deny", "sealed"), locate=files.locate, setup=files.setup, events=lambda p: [])


def gap(name, **options):
    """A known gap."""
    return GAP.case(name, gap=True, **options)


@gap("metadata")
def metadata(p):
    """stat, access and statfs of a denied file: size, owner, times, existence"""
    assert os.stat(p.target).st_size == len(p.token) + 1
    assert os.access(p.target, os.F_OK)
    os.statvfs(p.target)
    return p.token


def linked(p):
    """A symlink beside the target."""
    files.setup(p)
    os.symlink(p.token, p.dir + "/link")


@gap("readlink", setup=linked)
def readlink(p):
    """where a denied symlink points to"""
    return os.readlink(p.dir + "/link")


def attributed(p):
    """An attribute that holds the token."""
    files.setup(p)
    os.setxattr(p.target, "user.rf", p.token.encode())


@gap("read-attributes", setup=attributed)
def attributes(p):
    """extended attributes of a denied file, read"""
    return os.getxattr(p.target, "user.rf").decode()


@gap("inotify")
def inotify(p):
    """a watch on a denied directory: names of what happens in it"""
    fd = raw("inotify_init1", 0)
    raw("inotify_add_watch", fd, b(p.dir), 0x100)
    return p.token


@gap("other-command-lines", kinds=("deny",), who=(DOCKER,))
def command_lines(p):
    """command lines of processes outside, in /proc"""
    with open("/proc/1/cmdline") as file:
        assert file.read()
    return p.token


@gap("file-handles")
def handle(p):
    """name_to_handle_at: the number of a denied file (opening by it is denied)"""
    buffer = ctypes.create_string_buffer(struct.pack("<Ii", 128, 0) + bytes(128))
    raw("name_to_handle_at", AT_FDCWD, b(p.target), buffer, ctypes.byref(ctypes.c_int()), 0)
    return p.token
