"""Files that would give whoever runs them outside the container's rights; attributes by newer calls."""

import ctypes
import errno
import os
import stat
import struct

import files
from attack import AT_FDCWD, NR, O_TMPFILE, b, memfd, raw
from case import DOCKER, FULL, NOBODY, Family
from files import FILES, LOCKED

NR.update({"file_getattr": 468, "file_setattr": 469})

# CAP_DAC_OVERRIDE, effective: version 2, without a root id.
CAPABILITY = struct.pack("<IIIII", 0x02000001, 2, 0, 0, 0)


def own(p):
    """A file of one's own, where files may be written."""
    path = p.dir + "/own"
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o755))
    return path


def mode(p, name="own"):
    """The mode of a file that the attack made."""
    try:
        return stat.S_IMODE(os.lstat(f"{p.dir}/{name}").st_mode)
    except FileNotFoundError:
        return 0


def rights(p, _value):
    """The file is a set-user-id or set-group-id program."""
    return mode(p) & 0o4000 != 0 or mode(p) & 0o2010 == 0o2010


def giving(name, op, effect=rights, **options):
    """A case whose file may be written, but must give no rights."""
    options.setdefault("who", (DOCKER, FULL, NOBODY))
    options.setdefault("control", lambda p: os.chmod(own(p), 0o1751))
    return FILES.case(name, kinds=("allow2",), effect=effect, errno=(errno.EPERM,),
                      events=options.pop("events", lambda p: [(op, p.dir + "/own")]), **options)


@giving("setuid-chmod", "chmod", hook="path_chmod")
def setuid_chmod(p):
    """chmod u+s of a file of one's own"""
    os.chmod(own(p), 0o4755)


@giving("setgid-chmod", "chmod")
def setgid_chmod(p):
    """chmod g+s of a program of one's own, in two steps"""
    os.chmod(own(p), 0o2744)
    os.chmod(own(p), 0o2755)


@giving("setuid-create", "create", hook="path_mknod")
def setuid_create(p):
    """open with O_CREAT and a mode that has the bit"""
    os.close(os.open(p.dir + "/own", os.O_WRONLY | os.O_CREAT, 0o4755))


@giving("setuid-mknod", "create")
def setuid_mknod(p):
    """mknod of a regular file with the bit"""
    os.mknod(p.dir + "/own", stat.S_IFREG | 0o4755)


@giving("setuid-tmpfile", "open", events=lambda p: [("open", "")], hook="file_open")
def setuid_tmpfile(p):
    """O_TMPFILE with the bit, then a name for it"""
    fd = os.open(p.dir, O_TMPFILE | os.O_RDWR, 0o4755)
    raw("linkat", AT_FDCWD, b(f"/proc/self/fd/{fd}"), AT_FDCWD, b(p.dir + "/own"), 0x400)


@giving("setuid-memfd", "chmod", lambda p, v: v == "set", events=lambda p: [("chmod", "")])
def setuid_memfd(p):
    """a memfd with the bit, to be handed to a user outside"""
    os.fchmod(memfd(b"x"), 0o4755)
    return "set"


def capable(p, _value):
    """The file has capabilities."""
    return os.path.exists(p.dir + "/own") and "security.capability" in os.listxattr(p.dir + "/own")


@giving("file-capabilities", "setxattr", capable, who=(DOCKER, FULL), hook="inode_setxattr",
        control=lambda p: os.setxattr(own(p), "user.rf", b"x"))
def file_capabilities(p):
    """setxattr of security.capability"""
    os.setxattr(own(p), "security.capability", CAPABILITY)


@giving("file-capabilities-memfd", "setxattr", lambda p, v: v == "set", who=(DOCKER, FULL), events=lambda p: [("setxattr", "")],
        control=lambda p: os.setxattr(own(p), "user.rf", b"x"), native=(errno.EOPNOTSUPP,))
def capabilities_memfd(p):
    """the same of a memfd, to be handed to a user outside"""
    os.setxattr(memfd(b"x"), "security.capability", CAPABILITY)
    return "set"


def no_dump(p, _value=None):
    """The file's flag is set (chattr +d)."""
    buffer = ctypes.create_string_buffer(24)
    raw("file_getattr", AT_FDCWD, b(p.target), buffer, 24, 0)
    return struct.unpack_from("<Q", buffer)[0] & 0x80 != 0


def owned(p):
    """The file is the attacker's, as far as modes go."""
    files.setup(p)
    if p.who == NOBODY:
        os.chown(p.target, 65534, 65534)


def chattr(p):
    """The attack, on a kernel that has the call."""
    try:
        file_setattr(p)
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise


@FILES.case("file-setattr", control=chattr, kinds=LOCKED, who=(DOCKER, FULL, NOBODY), effect=no_dump, native=(errno.ENOSYS,), hook="inode_file_setattr",
            setup=owned, events=lambda p: [("setxattr", p.target)])
def file_setattr(p):
    """file_setattr(2), from 6.17 on: chattr of a file that may not be changed"""
    raw("file_setattr", AT_FDCWD, b(p.target), ctypes.create_string_buffer(struct.pack("<QIIII", 0x80, 0, 0, 0, 0)), 24, 0)


def granted(places, here):
    """The same profile, by which files may give rights."""
    return files.profile(places, here).replace("[kernel]\n", "[kernel]\nsetuid_files = true\n")


GRANTED = Family("granted", granted, kinds=(), locate=files.locate, setup=files.setup, who=(DOCKER, NOBODY),
                 events=lambda p: [])


def install(p):
    """What a package manager does."""
    path = own(p)
    os.chmod(path, 0o4755)
    os.close(os.open(path + "2", os.O_WRONLY | os.O_CREAT, 0o6755))
    if p.who == DOCKER:
        os.setxattr(path, "security.capability", CAPABILITY)
    return oct(mode(p))


@GRANTED.case("setuid-files", native=False, control=install, hook="path_chmod", effect=lambda p, v: v == "0o4755")
def setuid_files(p):
    """not an evasion: a profile lets files have setuid bits and capabilities"""
    return install(p)
