"""The family `case`: denied names by other spellings, on a file system that does not tell case apart."""

import errno
import os
import shutil
import subprocess

from attack import place_program, put, read, spawn
from case import DOCKER, FULL, NOBODY, USUAL, Family, profile_text

IMAGE = "/srv/rf/folding.img"
MOUNT = "/srv/rf/folding"
# The directory that folds case, and all below it.
BASE = MOUNT + "/d"
# KELVIN SIGN, which folds to a small k.
KELVIN = "\u212a"


def locate(p):
    """A directory `sealed`, or one of a denied name, and in it a file `key`."""
    p.parent = f"{BASE}/{'allow' if p.kind == 'allow' else 'closed'}/{p.run}"
    p.dir = p.parent + ("/.rf-sealed" if p.kind == "named" else "/sealed")
    p.target = p.dir + "/key"
    p.mine = f"{BASE}/mine/{p.run}"


def forget():
    """The kernel forgets how names were spelled when they were looked up."""
    with open("/proc/sys/vm/drop_caches", "w", encoding="ascii") as file:
        file.write("2")


def setup(p):
    """Made under the names of the rules; then nobody knows how they were spelled."""
    for path in (p.parent, p.dir, p.mine):
        os.makedirs(path, exist_ok=True)
        os.chmod(path, 0o777)
    put(p.target, p.token + "\n")
    os.chmod(p.target, 0o666)
    forget()


def prepare():
    """A file system in a file, made for this."""
    os.makedirs(MOUNT, exist_ok=True)
    with open(IMAGE, "wb") as file:
        file.truncate(32 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-O", "casefold", "-E", "encoding=utf8", IMAGE], check=True)
    subprocess.run(["modprobe", "loop"], check=True)
    subprocess.run(["mount", "-o", "loop", IMAGE, MOUNT], check=True)
    os.mkdir(BASE)
    subprocess.run(["chattr", "+F", BASE], check=True)
    for name in ("allow", "closed", "mine"):
        os.mkdir(f"{BASE}/{name}")
        os.chmod(f"{BASE}/{name}", 0o777)


def finish():
    """After all."""
    subprocess.run(["umount", "--lazy", MOUNT], check=True)
    os.remove(IMAGE)
    shutil.rmtree(MOUNT, ignore_errors=True)


def profile(places, here):
    """The profile's text: everything there is granted, but for what lies in `closed` under a denied name."""
    deny = ["**/.rf-sealed", "**/.rf-straße", *(p.dir for p in places if p.kind == "sealed")]
    return profile_text("vm test: case", [here, "/run/rf-cases", BASE, *USUAL], [BASE], ["/usr/bin", BASE],
                        deny={"fs_read": deny, "fs_write": deny, "exec": deny})


CASE = Family("case", profile, kinds=("sealed", "named"), locate=locate, setup=setup, prepare=prepare, finish=finish,
              who=(DOCKER, FULL, NOBODY), events=lambda p: [("open", p.parent[1:])])


def other(p, path=None):
    """Another spelling of what lies in the run's directory."""
    path = path or p.target
    return p.parent + path[len(p.parent):].upper()


@CASE.case("other-spelling", hook="file_open")
def other_spelling(p):
    """a denied file by capitals"""
    return read(other(p))


def poisoned(p):
    """Somebody else looks it up in capitals first."""
    setup(p)
    os.stat(other(p))


@CASE.case("spelled-by-others", setup=poisoned)
def spelled(p):
    """a denied file by its own name, after somebody outside had looked it up in capitals"""
    return read(p.target)


@CASE.case("letter-that-folds", control=lambda p: read(other(p)))
def letter(p):
    """a denied file by a letter outside ASCII that folds to one inside (no such name is opened there at all)"""
    return read(f"{p.dir}/{KELVIN}ey")


@CASE.case("other-spelling-written", effect=lambda p, _: "planted" in read(p.target))
def written(p):
    """a denied file, written by capitals"""
    with open(other(p), "w", encoding="utf-8") as file:
        file.write("planted")


@CASE.case("other-spelling-removed", events=lambda p: [("unlink", p.parent[1:])], effect=lambda p, _: not os.path.exists(p.target))
def removed(p):
    """a denied file, removed by capitals"""
    os.unlink(other(p))


@CASE.case("other-spelling-replaced", events=lambda p: [("rename", p.parent[1:])], effect=lambda p, _: "planted" in read(p.target))
def replaced(p):
    """a denied file, replaced by a rename over its capitals"""
    put(p.mine + "/new", "planted")
    os.rename(p.mine + "/new", other(p))


def with_sharp_s(p):
    """A file with a denied name of which every letter outside ASCII folds to ASCII ones."""
    setup(p)
    os.mkdir(p.dir + ("/plain" if p.kind == "allow" else "/.rf-straße"))
    put(p.dir + ("/plain" if p.kind == "allow" else "/.rf-straße") + "/key", p.token)
    forget()


@CASE.case("denied-name-that-folds", kinds=("open",), setup=with_sharp_s, control=lambda p: read(p.dir + "/PLAIN/key"))
def sharp_s(p):
    """a file in a directory whose denied name has a sharp s, by two"""
    return read(p.dir + "/.rf-strasse/KEY")


def with_program(p):
    """A program where the file would be."""
    setup(p)
    place_program(p.target, p.token)
    forget()


@CASE.case("other-spelling-executed", setup=with_program, events=lambda p: [("exec", p.parent[1:])])
def executed(p):
    """a denied program by capitals"""
    return spawn(lambda: os.execv(other(p), ["program"]))


def file_moved(p):
    """What may be moved: a file that may be read and written."""
    os.rename(p.target, p.mine + "/moved")
    return read(p.mine + "/moved")


def renames(**options):
    """A directory that is moved: none is, there, and `mv` copies."""
    return {"events": lambda p: [("rename", p.run)], "control": file_moved, "effect": lambda p, _: os.path.exists(p.mine + "/moved" + options["inside"])}


@CASE.case("directory-moved", **renames(inside="/key"))
def moved(p):
    """a denied directory, moved by its capitals"""
    os.rename(other(p, p.dir), p.mine + "/moved")


@CASE.case("above-moved", errno=(errno.EXDEV,), kinds=("sealed",), **renames(inside="/sealed/key"))
def above_moved(p):
    """the directory above a denied one, moved by capitals, so that the denial is left behind"""
    os.rename(p.parent.replace("/closed/", "/CLOSED/"), p.mine + "/moved")
