"""The family `shared`: files in /dev/shm under `shared_memory = true`. What the container made there is its own, the rest is closed."""

import os
import stat

from case import DOCKER, FULL, NOBODY, USUAL, Family, profile_text, scene
from harness import PYTHON
from system import BASE, BECOME, ringfence, said

SHM = "/dev/shm"
DENIED = f"{SHM}/rf-denied"


def locate(p):
    """A file of somebody outside, whose mode lets everybody do everything."""
    p.dir = SHM
    p.target = f"{SHM}/rf-{p.run}"


def setup(p):
    """Made by the harness, as by another program of the user's."""
    with open(p.target, "w") as file:
        file.write(p.token)
    os.chmod(p.target, 0o666)
    if p.who == NOBODY:
        os.chown(p.target, 65534, 65534)


def profile(_places, here):
    """Nothing below /dev/shm is granted."""
    return profile_text("vm test: shared", [here, "/run/rf-cases", *USUAL], deny={"fs_write": [DENIED]},
                        kernel='shared_memory = true\naudit = "denied"')


SHARED = Family("shared", profile, locate=locate, setup=setup, who=(DOCKER, FULL, NOBODY), events=lambda p: [("open", p.target)])


def read(path):
    """A file's text."""
    with open(path) as file:
        return file.read()


def mine(p, text=""):
    """A file of the container's own, made as shm_open(3) and sem_open(3) do; its path."""
    path = f"{SHM}/rf-own-{p.run}"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    os.write(fd, text.encode())
    os.close(fd)
    return path


def own(act):
    """The control: the same on a file of one's own, which is then removed."""

    def control(p):
        path = mine(p, p.token)
        try:
            return act(path)
        finally:
            for name in (path, path + ".other"):
                if os.path.lexists(name):
                    os.unlink(name)

    return control


def on_others(name, act, effect, **options):
    """One act on the file of somebody outside, refused, and on one of one's own, allowed."""

    def attack(p):
        return act(p.target)

    attack.__doc__ = act.__doc__
    SHARED.case(name, effect=effect, control=own(act), **options)(attack)


def written(p, _value):
    """The file has what was written."""
    return os.path.exists(p.target) and p.token not in read(p.target)


def write(path):
    """a file that another program made in /dev/shm, written"""
    with open(path, "r+") as file:
        file.write("planted, " * 9)


def create(path):
    """the same, opened with O_CREAT"""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    os.write(fd, b"planted, " * 9)
    os.close(fd)


def reading(path):
    """a file that another program made in /dev/shm, read"""
    return read(path)


def truncate(path):
    """the same, truncated"""
    fd = os.open(path, os.O_RDWR)
    os.ftruncate(fd, 0)
    os.close(fd)


def unlink(path):
    """the same, removed: the next to make it is believed to be its owner"""
    os.unlink(path)


def link(path):
    """the same, given another name, as sem_open(3) does with its own"""
    os.link(path, path + ".other")


on_others("read", reading, lambda p, value: p.token in str(value), hook="file_open")
on_others("write", write, written, hook="file_open")
on_others("create", create, written)
on_others("truncate", truncate, written, hook="file_truncate")
on_others("unlink", unlink, lambda p, _: not os.path.exists(p.target), events=lambda p: [("unlink", p.target)], hook="path_unlink")
on_others("link", link, lambda p, _: os.path.exists(p.target + ".other"), events=lambda p: [("link", p.target)], hook="path_link")


@SHARED.case("chmod", effect=lambda p, _: stat.S_IMODE(os.stat(p.target).st_mode) == 0o600, events=lambda p: [("chmod", p.target)],
             control=own(read))
def chmod(p):
    """a file that another program made in /dev/shm, its mode changed; of one's own it is refused as well (docs/profiles.md)"""
    os.chmod(p.target, 0o600)


def rename(path):
    """a file that another program made in /dev/shm, moved away"""
    os.rename(path, path + ".other")


on_others("rename", rename, lambda p, _: os.path.exists(p.target + ".other"), events=lambda p: [("rename", p.target)])


@SHARED.case("replace", effect=written, events=lambda p: [("rename", f"{SHM}/rf-own-{p.run}.other")], control=own(lambda path: replace(path, path)))
def replaced(p):
    """the same, replaced by a file of one's own"""
    replace(f"{SHM}/rf-own-{p.run}", p.target)


def replace(path, other):
    """A file takes another's place, whose name may be its own."""
    fresh = os.open(path + ".other", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    os.write(fresh, b"planted")
    os.close(fresh)
    os.rename(path + ".other", other)


@SHARED.case("symlink", effect=lambda p, _: os.path.islink(p.target + ".way"), events=lambda p: [("symlink", p.target + ".way")], control=own(read))
def symlink(p):
    """a symbolic link in /dev/shm, for another program to follow"""
    os.symlink("/etc/shadow", p.target + ".way")


@SHARED.case("fifo", effect=lambda p, _: os.path.exists(p.target + ".fifo"), events=lambda p: [("create", p.target + ".fifo")], control=own(read))
def fifo(p):
    """a fifo in /dev/shm: files only are made there"""
    os.mkfifo(p.target + ".fifo")


def below(p):
    """A directory of somebody's, open to everybody."""
    setup(p)
    os.makedirs(p.target + ".d", exist_ok=True)
    os.chmod(p.target + ".d", 0o777)


@SHARED.case("below", setup=below, effect=lambda p, _: os.path.exists(p.target + ".d/x"), events=lambda p: [("create", p.target + ".d/x")],
             control=own(read))
def in_directory(p):
    """a file in a directory of /dev/shm"""
    os.close(os.open(p.target + ".d/x", os.O_RDWR | os.O_CREAT, 0o600))


def no_denied(_p):
    """Attacks of all accounts begin without it."""
    if os.path.exists(DENIED):
        os.unlink(DENIED)


@SHARED.case("denied", setup=no_denied, effect=lambda p, v: v == "made", events=lambda p: [("create", DENIED)], control=own(read))
def denied(_p):
    """a file in /dev/shm by a name that the profile denies"""
    os.close(os.open(DENIED, os.O_RDWR | os.O_CREAT, 0o666))
    os.unlink(DENIED)
    return "made"


# What Python's multiprocessing needs of /dev/shm: a semaphore behind each lock and queue, shared memory by name.
POOL = """
import multiprocessing, sys
from multiprocessing import shared_memory
def double(number):
    return 2 * number
if __name__ == "__main__":
    multiprocessing.set_start_method("fork")
    with multiprocessing.Pool(2) as pool:
        assert pool.map(double, range(100)) == list(range(0, 200, 2))
    queue, lock = multiprocessing.Queue(), multiprocessing.Lock()
    made = shared_memory.SharedMemory(create=True, size=4096)
    def fill(name):
        block = shared_memory.SharedMemory(name)
        with lock:
            block.buf[0] = 7
        block.close()
        queue.put("done")
    child = multiprocessing.Process(target=fill, args=(made.name,))
    child.start()
    assert queue.get(timeout=150) == "done"
    child.join()
    assert made.buf[0] == 7
    made.close()
    made.unlink()
    print("whole")
"""


@scene("system/multiprocessing", limit=240, hook="file_open")
def multiprocessing():
    """Python's multiprocessing under `coder`: locks, queues and shared memory work, as root and as an ordinary user"""
    work = f"{BASE}/multiprocessing"
    os.makedirs(work, exist_ok=True)
    os.chmod(work, 0o777)
    script = f"{work}/pool.py"
    with open(script, "w") as file:
        file.write(POOL)
    for who in (DOCKER, NOBODY):
        before = set(os.listdir(SHM))
        result = ringfence("run", "--profile", "coder", "--workdir", work, "--", PYTHON, "-B", script, become=BECOME[who])
        assert result.returncode == 0 and "whole" in result.stdout, f"{who}: {said(result)}"
        assert set(os.listdir(SHM)) == before, f"{who}: it left {set(os.listdir(SHM)) - before}"
