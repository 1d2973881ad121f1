"""Denials by how a name begins or ends: `**/NAME*`, `**/*NAME`."""

import errno
import os
import shutil

from attack import place_program, put, read, spawn
from case import DOCKER, FULL, NOBODY, USUAL, Family, profile_text

BASE = "/srv/rf/patterns"
# Longer than what a dentry holds of a name.
LONG = "x" * 60
NAMES = {"head": ".rf-env.local", "tail": "server.rf-pem", "long-head": ".rf-env." + LONG, "long-tail": LONG + ".rf-pem",
         "whole": ".rf-pem", "letter": "~", "spared": "public.rf-pem", "allow": "plain.rf-pen"}
HIDDEN = ("head", "tail", "long-head", "long-tail", "whole", "letter")


def locate(p):
    """A file with a denied name."""
    p.dir = f"{BASE}/{p.run}"
    p.mine = p.dir + "/mine"
    p.target = f"{p.dir}/{NAMES[p.kind]}"


def setup(p):
    """Before a run."""
    os.makedirs(p.mine, exist_ok=True)
    for path in (p.dir, p.mine):
        os.chmod(path, 0o777)
    put(p.target, p.token + "\n")
    os.chmod(p.target, 0o666)


def prepare():
    """Once."""
    shutil.rmtree(BASE, ignore_errors=True)
    os.makedirs(BASE)
    os.chmod(BASE, 0o777)


def profile(_places, here):
    """The profile's text."""
    deny = ["**/.rf-env.*", "**/*.rf-pem", "**/~*"]
    return profile_text("vm test: patterns", [here, "/run/rf-cases", BASE, *USUAL, "**/public.rf-pem"], [BASE], ["/usr/bin", BASE],
                        deny={"fs_read": deny, "exec": deny})


PATTERNS = Family("patterns", profile, kinds=HIDDEN, locate=locate, setup=setup, prepare=prepare,
                  who=(DOCKER, FULL, NOBODY), events=lambda p: [("open", p.target)])


@PATTERNS.case("open")
def opened(p):
    """a file whose name fits a denied pattern"""
    return read(p.target)


@PATTERNS.case("open-from-directory", who=(DOCKER,))
def opened_from(p):
    """the same, opened from its directory"""
    directory = os.open(p.dir, os.O_PATH)
    return read(os.path.basename(p.target), dir_fd=directory)


@PATTERNS.case("renamed", who=(DOCKER,), errno=(errno.EXDEV,), events=lambda p: [("rename", p.target)], effect=lambda p, _: os.path.exists(p.mine + "/x"))
def renamed(p):
    """the file, moved to a name that fits none (a deny of reading is not left behind)"""
    os.rename(p.target, p.mine + "/x")
    return read(p.mine + "/x")


@PATTERNS.case("renamed-to-spared", who=(DOCKER,), errno=(errno.EXDEV,), events=lambda p: [("rename", p.target)],
               effect=lambda p, _: os.path.exists(p.mine + "/public.rf-pem"))
def renamed_spared(p):
    """the file, moved to a name that is granted as a whole"""
    os.rename(p.target, p.mine + "/public.rf-pem")
    return read(p.mine + "/public.rf-pem")


@PATTERNS.case("linked", who=(DOCKER,), errno=(errno.EXDEV,), events=lambda p: [("link", p.target)], effect=lambda p, _: os.path.exists(p.mine + "/x"))
def linked(p):
    """a hard link to the file under a name that fits none"""
    os.link(p.target, p.mine + "/x")
    return read(p.mine + "/x")


def as_directory(p):
    """A directory with the name."""
    setup(p)
    os.remove(p.target)
    os.mkdir(p.target)
    os.chmod(p.target, 0o777)
    put(p.target + "/file", p.token)


@PATTERNS.case("below", who=(DOCKER,), setup=as_directory, events=lambda p: [("open", p.target + "/file")])
def below(p):
    """a file in a directory whose name fits"""
    return read(p.target + "/file")


def as_program(p):
    """A program with the name."""
    setup(p)
    place_program(p.target, p.token)
    os.chmod(p.target, 0o777)


@PATTERNS.case("executed", who=(DOCKER,), setup=as_program, events=lambda p: [("exec", p.target)])
def executed(p):
    """a program whose name fits"""
    return spawn(lambda: os.execv(p.target, ["program"]))


def spared(p):
    """A file whose name fits, and is granted as a whole."""
    path = p.dir + "/public.rf-pem"
    return read(path)


def with_spared(p):
    """Both."""
    setup(p)
    put(p.dir + "/public.rf-pem", p.token)
    os.chmod(p.dir + "/public.rf-pem", 0o644)


@PATTERNS.case("not-spared", who=(DOCKER,), kinds=("tail",), setup=with_spared, control=spared)
def not_spared(p):
    """a file whose name fits, beside one whose name is granted as a whole and is read"""
    return read(p.target)
