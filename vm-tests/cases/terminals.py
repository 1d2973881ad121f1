"""The family `terminal`: pseudo-terminals that a container neither opened nor was given."""

import fcntl
import os
import pty
import select
import signal
import socket
import subprocess
import termios
import time

from attack import spawn
from case import DOCKER, FULL, NOBODY, Family, profile_text, scene
from files_read import receive
from harness import PYTHON
from system import denied, profile as scene_profile, wait_event

TIOCSCTTY = 0x540E
BASE = "/srv/rf/terminal"
# Masters and sessions of somebody else, by run.
VICTIMS = {}


def locate(p):
    """`pts` is another's terminal, or (allowed) none: the attack opens one of its own."""
    p.pts = ""
    p.fds_socket = "/srv/rf/fds.sock"


def setup(p):
    """Somebody types the token into a terminal that anybody may open, as far as modes go."""
    if p.kind == "allow":
        return
    master, slave = os.openpty()
    p.pts = os.ttyname(slave)
    os.chmod(p.pts, 0o666)
    if p.who == NOBODY:
        os.chown(p.pts, 65534, -1)
    os.write(master, p.token.encode() + b"\n")
    VICTIMS[p.run] = [master, slave]


def in_session(p):
    """The same, and the terminal is the controlling one of a session."""
    setup(p)
    if p.kind != "allow":
        child = os.fork()
        if child == 0:
            os.setsid()
            fcntl.ioctl(VICTIMS[p.run][1], TIOCSCTTY, 0)
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
            time.sleep(900)
            os._exit(0)
        VICTIMS[p.run].append(child)


def finish():
    """No terminal outlives the family."""
    for master, slave, *children in VICTIMS.values():
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        os.close(master)
        os.close(slave)
    VICTIMS.clear()


def profile(_places, here):
    """The profile's text: terminals are the base's."""
    return profile_text("vm test: terminal", [here, "/run/rf-cases"], ["/dev/pts"], net=["unix:/srv/rf/fds.sock"])


TERMINAL = Family("terminal", profile, locate=locate, setup=setup, finish=finish, who=(DOCKER, NOBODY, FULL),
                  events=lambda p: [("open", p.pts)])


def path(p):
    """Another's terminal; or one's own, into which the token was typed."""
    if not p.pts:
        p.master, p.slave = os.openpty()
        os.write(p.master, p.token.encode() + b"\n")
        return os.ttyname(p.slave)
    return p.pts


@TERMINAL.case("read", hook="file_open")
def read(p):
    """what somebody types on another terminal"""
    return os.read(os.open(path(p), os.O_RDONLY | os.O_NOCTTY), 200).decode()


def printed(master):
    """What a terminal shows."""
    text = b""
    while select.select([master], [], [], 0)[0]:
        text += os.read(master, 4096)
    return text.decode(errors="replace")


def shown(p, value):
    """The prompt is on the terminal."""
    return f"prompt {p.token}" in value + (printed(VICTIMS[p.run][0]) if p.run in VICTIMS else "")


@TERMINAL.case("write", hook="file_open", effect=shown)
def write(p):
    """a false prompt on another terminal"""
    fd = os.open(path(p), os.O_WRONLY | os.O_NOCTTY)
    os.write(fd, f"prompt {p.token}\n".encode())
    return "" if p.pts else printed(p.master)


@TERMINAL.case("access-mode-3")
def mode_3(p):
    """another terminal, opened for ioctl only"""
    termios.tcgetattr(os.open(path(p), 3 | os.O_NOCTTY))
    return p.token


@TERMINAL.case("o-path-reopen")
def o_path(p):
    """an O_PATH descriptor of another terminal, reopened by /proc/self/fd"""
    fd = os.open(path(p), os.O_PATH)
    return os.read(os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NOCTTY), 200).decode()


@TERMINAL.case("steal", who=(FULL,), setup=in_session, hook="file_open")
def steal(p):
    """TIOCSCTTY: another session's terminal becomes one's own"""
    where = path(p)
    child = 0
    if not p.pts:  # one's own, in a session of one's own
        child = os.fork()
        if child == 0:
            os.setsid()
            fcntl.ioctl(p.slave, TIOCSCTTY, 0)
            signal.pause()
        deadline = time.monotonic() + 60
        while os.tcgetpgrp(p.master) == 0 and time.monotonic() < deadline:
            time.sleep(0.01)

    def take():
        os.setsid()
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        fd = os.open(where, os.O_RDWR | os.O_NOCTTY)
        fcntl.ioctl(fd, TIOCSCTTY, 1)
        os.close(os.open("/dev/tty", os.O_RDWR))
        print(p.token, flush=True)

    try:
        return spawn(take)
    finally:
        if child:
            os.kill(child, signal.SIGKILL)


@TERMINAL.case("received-slave", hook="file_receive", errno=None)
def received(p):
    """another terminal that a process outside hands in"""
    if not p.pts:
        return read(p)
    return os.read(receive(p, p.pts), 200).decode()


@TERMINAL.case("received-master", errno=None, events=lambda p: [("open", "ptmx")])
def received_master(p):
    """the other end of a terminal that a process outside opened"""
    if not p.pts:
        return read(p)
    os.ttyname(receive(p, "pty"))
    return p.token


@TERMINAL.case("received-tty", errno=None, events=lambda p: [("open", "/dev/tty")])
def received_tty(p):
    """the /dev/tty of another session, which has no path of a terminal"""
    if not p.pts:
        return read(p)
    return os.read(receive(p, f"tty:{p.pts}"), 200).decode()


def mode(p, value):
    """The mode is the attacker's choice."""
    return value == "changed" if p.kind == "allow" else os.stat(p.pts).st_mode & 0o777 == 0o642


@TERMINAL.case("chmod", hook="path_chmod", events=lambda p: [("chmod", p.pts)], effect=mode)
def chmod(p):
    """another terminal, opened to everybody"""
    where = path(p)
    os.chmod(where, 0o642)
    return "changed" if os.stat(where).st_mode & 0o777 == 0o642 else "unchanged"


@TERMINAL.case("chown", who=(DOCKER, FULL), events=lambda p: [("chown", p.pts)],
               effect=lambda p, v: v == "changed" if p.kind == "allow" else os.stat(p.pts).st_uid == 12)
def chown(p):
    """another terminal, given to another user"""
    where = path(p)
    os.chown(where, 12, -1)
    return "changed" if os.stat(where).st_uid == 12 else "unchanged"


def on_terminal(*command):
    """Runs a command on a terminal of its own, as a person would; what it showed."""
    pid, master = pty.fork()
    if pid == 0:
        os.chdir("/")
        os.execvp(command[0], command)
    text = b""
    while True:
        try:
            part = os.read(master, 4096)
        except OSError:  # EIO: nobody has the other end any more
            break
        if not part:
            break
        text += part
    os.close(master)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return status, text.decode(errors="replace")


# A session of its own on the terminal, that runs a command and then says what was typed for it to read.
OUTSIDE = """
import fcntl, os, subprocess, sys, termios
modes = termios.tcgetattr(0)
modes[3] &= ~(termios.ICANON | termios.ECHO)
termios.tcsetattr(0, termios.TCSANOW, modes)
status = subprocess.run(sys.argv[1:], timeout=170).returncode
os.set_blocking(0, False)
try:
    typed = os.read(0, 100)
except BlockingIOError:
    typed = b""
print("status", status, "typed", typed.decode(), ".", flush=True)
"""

# In the container, or not: what it may and may not do with the terminal that it was given.
INSIDE = """
import errno, fcntl, os, struct, sys, termios
def attempt(what, act):
    try:
        act()
        print(what, "ok", flush=True)
    except OSError as error:
        print(what, errno.errorcode[error.errno], flush=True)
def steal():
    fcntl.ioctl(0, 0x540E, 1)
    # Given back, so that the one outside has it again.
    fcntl.ioctl(0, 0x5422, 0)
for fd in (0, 1, 2):
    attempt(f"type-{fd}", lambda: fcntl.ioctl(fd, 0x5412, b"x"))
attempt("modes", lambda: termios.tcsetattr(0, termios.TCSANOW, termios.tcgetattr(0)))
attempt("size", lambda: fcntl.ioctl(0, 0x5414, fcntl.ioctl(0, 0x5413, bytes(8))))
attempt("reopen", lambda: os.open(os.ttyname(0), os.O_RDWR | os.O_NOCTTY))
attempt("controlling", lambda: os.open("/dev/tty", os.O_RDWR))
def signals(fd, act):
    act(fd)
    fcntl.fcntl(fd, 4, fcntl.fcntl(fd, 3) & ~os.O_ASYNC)
    fcntl.fcntl(fd, 10, 0)
def by_flag(fd):
    fcntl.fcntl(fd, 4, fcntl.fcntl(fd, 3) | os.O_ASYNC)
def by_ioctl(fd):
    fcntl.ioctl(fd, 0x5452, struct.pack("i", 1))
def number(fd):
    fcntl.fcntl(fd, 10, 9)
for where, fd in (("", 0), ("-own", os.openpty()[1])):
    for act in (by_flag, by_ioctl, number):
        attempt(f"signals-{act.__name__}{where}", lambda: signals(fd, act))
child = os.fork()
if child == 0:
    os.setsid()
    fcntl.ioctl(os.openpty()[1], 0x540E, 0)
    tty = os.open("/dev/tty", os.O_RDWR)
    for act in (by_flag, by_ioctl, number):
        attempt(f"signals-{act.__name__}-own-tty", lambda: signals(tty, act))
    os._exit(0)
os.waitpid(child, 0)
tty = os.open("/dev/tty", os.O_RDWR)
attempt("signals-by_flag-tty", lambda: signals(tty, by_flag))
# The flag is there, and nothing is asked for yet.
attempt("signals-opened", lambda: by_flag(os.open(os.ttyname(0), os.O_RDWR | os.O_NOCTTY | os.O_ASYNC)))
attempt("flags", lambda: fcntl.fcntl(0, 4, fcntl.fcntl(0, 3)))
attempt("mode", lambda: os.chmod(os.ttyname(0), 0o622))
child = os.fork()
if child == 0:
    os.setsid()
    attempt("reopen-elsewhere", lambda: os.open(os.ttyname(0), os.O_RDWR | os.O_NOCTTY))
    if "steal" in sys.argv:
        attempt("steal", steal)
    os._exit(0)
os.waitpid(child, 0)
"""


@scene("terminal/given", limit=240, hook="file_ioctl")
def given():
    """the terminal that a command was given: used, and neither typed into nor taken away"""
    subprocess.run(["sysctl", "-q", "-w", "dev.tty.legacy_tiocsti=1"], check=False)  # 6.2 and newer
    inside = [PYTHON, "-c", INSIDE]
    status, text = on_terminal(PYTHON, "-c", OUTSIDE, *inside)
    assert status == 0 and "typed xxx" in text and "mode ok" in text and "signals-by_flag ok" in text and "signals-opened ok" in text, f"typing does not work even ungoverned: {text}"
    where = scene_profile("rf-given", write=["/dev/pts"])
    status, text = on_terminal(PYTHON, "-c", OUTSIDE, "ringfence", "run", "--profile", where, "--", *inside, "steal")
    assert status == 0 and "status 0 typed  ." in text, f"something was typed, or it failed: {text}"
    for line in ("type-0 EPERM", "type-1 EPERM", "type-2 EPERM", "steal EPERM", "mode EACCES", "modes ok", "size ok", "reopen ok",
                 "controlling ok", "reopen-elsewhere ok", "signals-by_flag EPERM", "signals-by_ioctl EPERM", "signals-number EPERM",
                 "signals-by_flag-own-tty ok", "signals-by_ioctl-own-tty ok", "signals-number-own-tty ok", "signals-by_flag-tty EPERM",
                 "signals-opened EPERM",
                 "signals-by_flag-own ok", "signals-by_ioctl-own ok", "signals-number-own ok", "flags ok"):
        assert line in text, f"not {line}: {text}"
    wait_event(lambda event: denied("pts/", "ioctl")(event) and "TIOCSTI" in str(event["flags"]) and event["profile"] == "rf-given")
    wait_event(lambda event: denied("pts/", "ioctl")(event) and "TIOCSCTTY" in str(event["flags"]) and event["profile"] == "rf-given")
    where = scene_profile("rf-given-audit", mode="audit")
    on_terminal(PYTHON, "-c", OUTSIDE, "ringfence", "run", "--profile", where, "--", *inside)
    wait_event(lambda event: event["verdict"] == "would_deny" and event["op"] == "ioctl" and event["profile"] == "rf-given-audit")


# Opens a terminal, closes it, then opens what it is told.
REUSE = """
import os, sys
master, slave = os.openpty()
name = os.ttyname(slave)
os.close(os.open(name, os.O_RDWR | os.O_NOCTTY))
os.close(slave)
os.close(master)
print(name, flush=True)
for line in sys.stdin:
    try:
        os.close(os.open(line.rstrip("\\n"), os.O_RDWR | os.O_NOCTTY))
        print("opened", flush=True)
    except OSError as error:
        print(f"errno {error.errno}", flush=True)
"""


@scene("terminal/number-reused", limit=240, hook="inode_alloc_security")
def reused():
    """a terminal that has the number of one that the container opened and closed"""
    where = scene_profile("rf-reuse")
    with subprocess.Popen(["ringfence", "run", "--profile", where, "--", PYTHON, "-c", REUSE], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True, cwd="/") as worker:
        name = worker.stdout.readline().strip()
        assert name.startswith("/dev/pts/"), name
        same = 0
        for _ in range(40):
            master, slave = os.openpty()
            now = os.ttyname(slave)
            same += now == name
            worker.stdin.write(now + "\n")
            worker.stdin.flush()
            answer = worker.stdout.readline().strip()
            os.close(slave)
            os.close(master)
            assert answer == "errno 13", f"{now}, opened by somebody else: {answer}"
        assert same, f"no terminal had the number of {name}"
        worker.stdin.close()


# Real programs on terminals; each line that begins with "bad" is a failure.
WORK = r"""
set -u
cd "$1"
check() { "$@" >out 2>&1 || { echo "bad: $*"; cat out; }; }
check stty -a
check tty
check script -qec "stty -a; echo in-script" /dev/null
grep -q in-script out || echo "bad: script shows nothing"
check python3 -c 'import pty, sys; sys.exit(pty.spawn(["/usr/bin/stty", "-a"]))'
check python3 -c '
import os, pty
pid, master = pty.fork()
if pid == 0:
    os.execv("/usr/bin/bash", ["bash", "--norc", "-ic", "tty; set -m; sleep 0 & wait; fg; jobs; echo interactive"])
text = b""
try:
    while True:
        text += os.read(master, 4096)
except OSError:
    pass
os.waitpid(pid, 0)
assert b"interactive" in text and b"job control" not in text and b"terminal process group" not in text, text
'
check python3 -c '
import os, stat
master = os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY)
import fcntl, struct
number = struct.unpack("<i", fcntl.ioctl(master, 0x80045430, bytes(4)))[0]
fcntl.ioctl(master, 0x40045431, bytes(4))
os.open(f"/dev/pts/{number}", os.O_RDWR | os.O_NOCTTY)
'
check python3 -c 'import getpass, os, sys; os.isatty(0) or sys.exit(1)'
echo text >file
check cp --reflink=auto file copy
command -v lsattr >/dev/null && check lsattr file
check git init -q repository
check git -C repository -c user.name=x -c user.email=x@x commit -q --allow-empty -m first
check git -C repository log
echo done
"""


@scene("terminal/programs-work", limit=300, hook="file_ioctl")
def programs():
    """stty, script, an interactive bash, Python's terminals, cp and git go on working"""
    work = f"{BASE}/work"
    os.makedirs(work, exist_ok=True)
    where = scene_profile("rf-work", read=[BASE, "/etc"], write=[BASE])
    status, text = on_terminal("ringfence", "run", "--profile", where, "--", "/usr/bin/bash", "-c", WORK, "work", work)
    assert status == 0 and "done" in text and "bad:" not in text, f"status {status}: {text}"


@scene("terminal/shell", limit=240)
def shell():
    """`ringfence run` on a terminal gives an interactive shell with job control"""
    where = scene_profile("rf-shell")
    pid, master = pty.fork()
    if pid == 0:
        os.chdir("/")
        os.execvp("ringfence", ["ringfence", "run", "--profile", where, "--", "/usr/bin/bash", "--norc", "-i"])
    os.write(master, b"sleep 900 &\nkill %1; wait; echo sum $((40+2)); tty; exit\n")
    text = b""
    end = time.monotonic() + 170
    while time.monotonic() < end and select.select([master], [], [], end - time.monotonic())[0]:
        try:
            text += os.read(master, 4096)
        except OSError:
            break
    os.waitpid(pid, 0)
    shown_text = text.decode(errors="replace")
    assert "sum 42" in shown_text and "/dev/pts/" in shown_text, shown_text
    for complaint in ("no job control", "cannot set terminal process group", "Operation not permitted", "Permission denied"):
        assert complaint not in shown_text, shown_text


# With its standard input and error at the two ends of a pair: turns signals on that another made itself the owner of, and
# has one sent. Then the same of a pair of its own.
OWNED = r"""
import errno, fcntl, os, signal, socket, struct
def attempt(what, act):
    try:
        act()
        print(what, "ok", flush=True)
    except OSError as error:
        print(what, errno.errorcode[error.errno], flush=True)
arrived = []
signal.signal(signal.SIGUSR1, lambda *_: arrived.append(1))
def number(fd): fcntl.fcntl(fd, 10, signal.SIGUSR1)
def by_flag(fd): fcntl.fcntl(fd, 4, fcntl.fcntl(fd, 3) | os.O_ASYNC)
def by_ioctl(fd): fcntl.ioctl(fd, 0x5452, struct.pack("i", 1))
def lease(fd): fcntl.fcntl(fd, 1024, 2)
one, two = socket.socketpair()
fcntl.fcntl(one, 8, os.getpid())
for where, fd in (("own", one.fileno()), ("other", 0)):
    for act in (number, by_flag, by_ioctl):
        attempt(f"{act.__name__}-{where}", lambda: act(fd))
attempt("lease-other", lambda: lease(0))
attempt("flags-other", lambda: fcntl.fcntl(0, 4, fcntl.fcntl(0, 3) | os.O_NONBLOCK))
two.send(b"x")
os.write(2, b"x")
print("arrived", bool(arrived), flush=True)
"""


@scene("terminal/inherited-owner", limit=240, hook="file_fcntl")
def inherited_owner():
    """signals of a descriptor that a process outside owns: neither turned on nor chosen by a container that was given it"""
    path = scene_profile("rf-inherited-owner")

    def owned(*command):
        """What a command said that was given the pair, and how the owner fared."""
        one, two = socket.socketpair()
        with subprocess.Popen(["/usr/bin/sleep", "300"]) as owner, one, two:
            fcntl.fcntl(one, 8, owner.pid)  # F_SETOWN
            result = subprocess.run([*command, PYTHON, "-c", OWNED], stdin=one, stdout=subprocess.PIPE, stderr=two, text=True, timeout=120)
            try:
                status = owner.wait(2 if command else 120)
            except subprocess.TimeoutExpired:
                status = None
            owner.kill()
        return result.stdout.splitlines(), status

    own = ["number-own ok", "by_flag-own ok", "by_ioctl-own ok", "arrived True"]
    lines, status = owned()
    assert set(own) | {"number-other ok", "by_flag-other ok", "by_ioctl-other ok"} <= set(lines), f"ungoverned: {lines}"
    assert status == -signal.SIGUSR1, f"ungoverned, the owner ended with {status}: {lines}"
    lines, status = owned("ringfence", "run", "--profile", path, "--")
    refused = {"number-other EPERM", "by_flag-other EPERM", "by_ioctl-other EPERM", "lease-other EPERM", "flags-other ok"}
    assert refused | set(own) <= set(lines), f"governed: {lines}"
    assert status is None, f"a signal of the container's ended the owner: {status}"
    wait_event(lambda event: event["op"] == "signal" and event["verdict"] == "denied" and event["profile"] == "rf-inherited-owner")
