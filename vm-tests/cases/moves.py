"""The family `moves`: new names for files and directories, whose rules are better ones than those of the old names."""

import errno
import mmap
import os
import shutil
import socket
import stat
import subprocess

import uring
from attack import AT_FDCWD, b, place_program, put, raw, read, spawn
from case import DOCKER, FULL, NOBODY, USUAL, Family, profile_text, returned, scene
from system import ringfence, said

BASE = "/srv/rf/moves"
EXCHANGE = 2
# What keeps sockets and fifos of the setups alive.
KEPT = []


def locate(p):
    """Each run has a directory `root` of its own, and moves `dir` in it."""
    p.root = f"{BASE}/{p.run}"
    p.dir = p.root + ("/.rf-moved" if p.kind == "named" else "/d")
    p.target = p.dir + "/target"


def setup(p):
    """A directory with a file, a program, a fifo and two sockets; an empty one."""
    for path in (p.root, p.dir, p.dir + "/x", p.root + "/place"):
        os.makedirs(path, exist_ok=True)
        os.chmod(path, 0o777)
    put(p.target, p.token + "\n")
    os.chmod(p.target, 0o666)
    place_program(p.dir + "/program", p.token)
    os.chmod(p.dir + "/program", 0o777)


def with_sockets(p):
    """The same, with sockets that somebody outside listens on."""
    setup(p)
    for name in ("/stream", "/x/stream"):
        one = socket.socket(socket.AF_UNIX)
        one.bind(p.dir + name)
        os.chmod(p.dir + name, 0o777)
        one.listen(8)
        KEPT.append(one)


def with_fifo(p):
    """The same, with a fifo that holds the token."""
    setup(p)
    os.mkfifo(p.dir + "/fifo")
    os.chmod(p.dir + "/fifo", 0o666)
    fd = os.open(p.dir + "/fifo", os.O_RDWR)
    os.write(fd, p.token.encode())
    KEPT.append(fd)


def prepare():
    """Once."""
    shutil.rmtree(BASE, ignore_errors=True)
    os.makedirs(BASE)


def finish():
    """After all."""
    for one in KEPT:
        os.close(one if isinstance(one, int) else one.detach())
    KEPT.clear()


def profile(places, here):
    """The profile's text: by the kind of each place, what is granted or denied at one of two names."""
    rules = {"read": [], "write": [], "exec": [], "net": [], "deny": ["**/.rf-moved"], "deny_exec": []}
    for p in places:
        rules["write"].append(p.root)
        rules["read"].append(p.root + ("/place/**" if p.kind == "unreadable" else ""))
        wanted = {
            "children": [("deny", f"{p.root}/d/*")],
            "below": [("deny", f"{p.root}/d/**")],
            "inside": [("deny", f"{p.root}/d/target")],
            "sockets": [("net", f"unix:{p.root}/place/*")],
            "sockets-below": [("net", f"unix:{p.root}/place/**")],
            "socket-inside": [("net", f"unix:{p.root}/place/stream"), ("net", f"unix:{p.root}/place/x/stream")],
            "programs": [("exec", f"{p.root}/place/**")],
            "allow": [("net", f"unix:{p.root}"), ("exec", p.root), ("deny_exec", f"{p.root}/narrow/**")],
        }
        for key, entry in wanted.get(p.kind, []):
            rules[key].append(entry)
    return profile_text("vm test: moves", [here, "/run/rf-cases", *USUAL, *rules["read"]], rules["write"], ["/usr/bin", *rules["exec"]],
                        rules["net"], {"fs_read": rules["deny"], "exec": rules["deny_exec"]})


MOVES = Family("moves", profile, locate=locate, setup=setup, prepare=prepare, finish=finish, errno=(errno.EXDEV,),
               who=(DOCKER, FULL, NOBODY), events=lambda p: [("rename", p.dir)])
DENIED = ("children", "below", "named", "inside")


def connect(path, p):
    """Reaches the listener."""
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(60)
        one.connect(path)
    return p.token


def run(path):
    """What the program prints."""
    return spawn(lambda: os.execv(path, [path]))


@MOVES.case("denied-children", kinds=DENIED, hook="path_rename")
def denied_children(p):
    """`mv /a/d /a/e` where `/a/d/*`, `/a/d/**`, something below it or the name of `d` is denied"""
    os.rename(p.dir, p.root + "/e")
    return read(p.root + "/e/target")


@MOVES.case("denied-children-over-empty", kinds=DENIED)
def over_empty(p):
    """the same, in place of an empty directory"""
    os.rename(p.dir, p.root + "/place")
    return read(p.root + "/place/target")


@MOVES.case("denied-children-exchange", kinds=DENIED, hook="path_rename")
def exchange(p):
    """the same by RENAME_EXCHANGE with another directory"""
    raw("renameat2", AT_FDCWD, b(p.root + "/place"), AT_FDCWD, b(p.dir), EXCHANGE)
    return read(p.root + "/place/target")


@MOVES.case("denied-children-io-uring", kinds=("children",))
def io_uring(p):
    """the same by IORING_OP_RENAMEAT"""
    uring.rename(p.dir, p.root + "/e")
    return read(p.root + "/e/target")


@MOVES.case("denied-children-in-two-steps", kinds=DENIED,
            events=lambda p: [("rename", p.root + "/place/.rf-moved" if p.kind == "named" else p.dir)])
def two_steps(p):
    """the same, first into another directory, then to another name there"""
    os.rename(p.dir, p.root + "/place/" + os.path.basename(p.dir))
    os.rename(p.root + "/place/" + os.path.basename(p.dir), p.root + "/place/e")
    return read(p.root + "/place/e/target")


@MOVES.case("sockets", kinds=("sockets", "sockets-below", "socket-inside"), setup=with_sockets, hook="path_rename")
def sockets(p):
    """`mv closed granted`: sockets below it become `unix:/d/*`, `unix:/d/**` or `unix:/d/socket`"""
    os.rename(p.dir, p.root + "/place")
    return connect(p.root + "/place/stream", p)


@MOVES.case("sockets-deeper", kinds=("sockets-below", "socket-inside"), setup=with_sockets)
def sockets_deeper(p):
    """the same for a socket two levels down"""
    os.rename(p.dir, p.root + "/place")
    return connect(p.root + "/place/x/stream", p)


@MOVES.case("socket-file", kinds=("sockets", "sockets-below", "socket-inside"), setup=with_sockets,
            events=lambda p: [("rename", p.dir + "/stream")])
def socket_file(p):
    """the socket's file alone, moved to where sockets are granted"""
    os.rename(p.dir + "/stream", p.root + "/place/stream")
    return connect(p.root + "/place/stream", p)


@MOVES.case("programs", kinds=("programs",), hook="path_rename")
def programs(p):
    """a directory of programs, moved to where programs may be executed"""
    os.rename(p.dir, p.root + "/place")
    return run(p.root + "/place/program")


@MOVES.case("program-file", kinds=("programs",), events=lambda p: [("rename", p.dir + "/program")])
def program_file(p):
    """one program, moved there: it may be setuid, or not readable by its mode, which a copy could not be"""
    os.rename(p.dir + "/program", p.root + "/place/program")
    return run(p.root + "/place/program")


@MOVES.case("program-link", kinds=("programs",), hook="path_link", events=lambda p: [("link", p.dir + "/program")])
def program_link(p):
    """a hard link of the program there"""
    os.link(p.dir + "/program", p.root + "/place/program")
    return run(p.root + "/place/program")


@MOVES.case("program-mapped", kinds=("programs",))
def program_mapped(p):
    """a directory moved to where files may be mapped executable"""
    os.rename(p.dir, p.root + "/place")
    fd = os.open(p.root + "/place/program", os.O_RDONLY)
    return mmap.mmap(fd, 0, prot=mmap.PROT_READ | mmap.PROT_EXEC)[:].decode("latin-1")


@MOVES.case("file-into-readable", kinds=("unreadable",), events=lambda p: [("rename", p.target)])
def file_into_readable(p):
    """a file that may be written and not read, moved to where files may be read"""
    os.rename(p.target, p.root + "/place/target")
    return read(p.root + "/place/target")


@MOVES.case("fifo-into-readable", kinds=("unreadable",), setup=with_fifo, events=lambda p: [("rename", p.dir + "/fifo")])
def fifo_into_readable(p):
    """the same for a fifo"""
    os.rename(p.dir + "/fifo", p.root + "/place/fifo")
    return os.read(os.open(p.root + "/place/fifo", os.O_RDWR | os.O_NONBLOCK), 200).decode()


@MOVES.case("mv-copies", kinds=(), native=False, effect=returned)
def mv_copies(p):
    """not an evasion: where a move is answered with EXDEV, mv copies, and within one grant everything moves"""
    narrow = p.root + "/narrow"
    os.mkdir(narrow)
    os.rename(p.dir, narrow + "/d")
    try:
        os.rename(narrow + "/d", p.root + "/wide")
        raise AssertionError("a denial of exec was left behind")
    except OSError as error:
        assert error.errno == errno.EXDEV, error
    done = subprocess.run(["/usr/bin/mv", narrow + "/d", p.root + "/wide"], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert read(p.root + "/wide/target") == p.token + "\n" and not os.path.exists(narrow + "/d")
    assert stat.S_IMODE(os.stat(p.root + "/wide/program").st_mode) & 0o111
    os.rename(p.root + "/wide", p.root + "/place/deeper")
    os.link(p.root + "/place/deeper/target", p.root + "/linked")
    os.symlink("nowhere", p.root + "/link")
    os.rename(p.root + "/link", narrow + "/link")
    os.rename(narrow + "/link", p.root + "/link")
    return p.token


WORK = """set -eu
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
git init --quiet . && mkdir -p a/b && echo one > a/b/f
git add . && git commit --quiet --message one
git mv a c && mv c/b d && mv d c/b && git add . && git commit --quiet --message two
git checkout --quiet HEAD^ && git checkout --quiet - && git gc --quiet
git clone --quiet . ${1}/clone && mv ${1}/clone moved && git -C moved status --short
mkdir -p node/.pkg-1 && echo x > node/.pkg-1/x && mv node/.pkg-1 node/pkg && ln node/pkg/x linked
cat moved/c/b/f
"""


@scene("system/git-under-coder", limit=120, hook="path_rename")
def git_under_coder():
    """git's moves, mv and package managers' renames work under the profile coder"""
    work, scratch = f"{BASE}-work", "/var/tmp/rf-moves"
    for path in (work, scratch):
        shutil.rmtree(path, ignore_errors=True)
        os.makedirs(path)
    done = ringfence("run", "--profile", "coder", "--workdir", work, "--", "bash", "-c", WORK, "work", scratch)
    assert done.returncode == 0 and done.stdout == "one\n", said(done)
