"""Many local users who are silent, greedy, deaf, stopped or lie, until standard input ends. Starts as root and becomes them.

    user.py FIRST_UID SUBORDINATE_UID FIRST_SUBORDINATE_ID GROUP TOLD DIRECTORY

Each kind is a process of its own, at once. At its end it prints how often which of them came round, and what was answered that must not be.
"""

import array
import json
import os
import random
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
import time
import uuid

FIRST, OWNER, IDS, GROUP = map(int, sys.argv[1:5])
TOLD, DIRECTORY = sys.argv[5:7]
RUN = "/run/ringfence"
PORT = 8080
RANDOM = random.Random(os.getpid())
SERVER = "import sys\nfor line in sys.stdin: print('{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{}}', flush=True)"


def unix(name):
    """A connection to one of the daemon's sockets."""
    one = socket.socket(socket.AF_UNIX)
    one.settimeout(0.5)
    try:
        one.connect(f"{RUN}/{name}")
    except OSError:
        one.close()
        raise
    one.setblocking(False)
    return one


def say(one, message, *fds):
    """A frame to it."""
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    one.sendmsg([struct.pack(">I", len(body)) + body], rights)
    return one


def ask(name, message, seconds=5):
    """A question and the first part of its answer."""
    with say(unix(name), message) as one:
        one.setblocking(True)
        one.settimeout(seconds)
        return one.recv(65536)


def keep(most, make):
    """Holds as many as it gets of something, reads nothing, and opens again what is closed; for a while."""
    held = []
    end = time.monotonic() + 20
    while time.monotonic() < end:
        for one in held[:]:
            try:
                gone = one.recv(1, socket.MSG_PEEK) == b""
            except BlockingIOError:
                gone = False
            except OSError:
                gone = True
            if gone:
                held.remove(one)
                one.close()
        for _ in range(most - len(held)):
            try:
                held.append(make())
            except OSError:
                break
        # The guest is emulated, a fiftieth as fast as what it stands for: so are they.
        time.sleep(1)
    for one in held:
        one.close()


def silent():
    """Connections to each socket on which nothing is said."""
    names = ("mcp.sock", "query.sock", "enroll.sock", "admin.sock")
    keep(120, lambda: unix(RANDOM.choice(names)))


def deaf():
    """Questions whose answers are not read, some by a process that is stopped."""
    keep(12, lambda: say(unix("query.sock"), {"request": "events", "follow": True}))


def stopped():
    """The same, by a process that is stopped meanwhile."""
    child = os.fork()
    if child == 0:
        held = []
        for _ in range(60):
            try:
                held.append(say(unix("mcp.sock"), {"request": "session", "session": str(uuid.uuid4()), "journal": "/j"}, journal()))
                held.append(say(unix("query.sock"), {"request": "events", "follow": True}))
            except OSError:
                pass
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    time.sleep(15)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def journal(text=b""):
    """A file to be read as a session's journal."""
    path = f"{DIRECTORY}/{os.getuid()}.journal"
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    os.write(file, text)
    return file


def linked():
    """Sessions whose links are not read and whose journals are torn, cut, endless lines or not JSON."""
    texts = (b"", b"{", b"x" * 3_000_000, b'{"v":1,"kind":"call","id":"' + b"9" * 100_000, b"\0" * 5000 + b"\n", b"[" * 50_000 + b"\n", b'{"a":1}\n' * 20_000)

    def link():
        file = journal(RANDOM.choice(texts))
        try:
            one = say(unix("mcp.sock"), {"request": "session", "session": str(uuid.uuid4()), "journal": "/j"}, file)
            os.ftruncate(file, RANDOM.choice((0, 3, 100)))
            return one
        finally:
            os.close(file)

    keep(60, link)


def deep():
    """Questions from the end of a line of a hundred processes."""
    depth = os.fork()
    if depth:
        os.waitpid(depth, 0)
        return
    for _ in range(100):
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            os._exit(0)
    held = []
    for _ in range(30):
        try:
            held.append(say(unix("mcp.sock"), {"request": RANDOM.choice(("dashboard", "waiting", "stats"))}))
        except OSError:
            break
    end = time.monotonic() + 10
    while held and time.monotonic() < end:
        for one in select.select(held, [], [], 1)[0]:
            held.remove(one)
            one.close()
    os._exit(0)


def pipes():
    """Commands of the command line whose output nobody reads."""
    made = []
    for words in (["events", "--follow"], ["approvals", "--watch"], ["trace", "--limit", "200"]):
        made.append(subprocess.Popen(["ringfence", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL))
    time.sleep(20)
    for one in made:
        one.kill()
        one.wait()
        one.stdout.close()


def meddling():
    """Decisions of another user's calls, by their whole ids and by their beginnings; their rows."""
    for _ in range(20):
        try:
            with open(TOLD) as file:
                call = file.read().strip()
        except OSError:
            call = ""
        if call:
            for name in (call, call[:4], call[:8]):
                for approve in (True, False):
                    answer = ask("mcp.sock", {"request": "decide", "call": name, "approve": approve})
                    forbidden(b'"decided"' in answer, f"a decision of another's call: {answer!r}")
            answer = ask("mcp.sock", {"request": "call", "call": call})
            forbidden(b"delete_thing" in answer, f"another's row: {answer[:200]!r}")
        forbidden(b"delete_thing" in ask("mcp.sock", {"request": "waiting"}), "another's waiting call")
        time.sleep(0.3)


def asking():
    """Slow questions, wrong ones, and frames that are none, side by side."""
    wrong = (b"", b"{", b"\xff" * 100, b'{"request":"nothing"}', b'{"request":"calls","limit":4294967295}', b'{"request":"table","table":"x","after":0,"limit":1}',
             b'{"request":"calls","limit":100,"session":"' + b"a" * 50_000 + b'"}', b"[" * 60_000)
    for _ in range(40):
        for name in ("mcp.sock", "query.sock", "enroll.sock", "admin.sock"):
            try:
                ask(name, RANDOM.choice(wrong), 1)
            except OSError:
                pass
        time.sleep(0.1)


def sessions():
    """MCP sessions with floods, calls that wait by the dozen, lines that are too long or none; one ends in the middle of a line."""
    made = subprocess.Popen(["ringfence", "mcp", "--server-name", "flood", "--approval-timeout", "5", "--max-line", "100000", "--", "/usr/bin/python3",
                             "-I", "-S", "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def line(number, tool, arguments):
        params = {"name": tool, "arguments": arguments}
        return json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": params}).encode() + b"\n"

    text = b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}\n'
    text += b"".join(line(1 + number % 3, "read_thing", {"n": number}) for number in range(300))
    text += b"".join(line(1000 + number, "delete_thing", {"path": f"/hostile-{number}"}) for number in range(40))
    text += b"garbage\n" + b"z" * 200_000 + b"\n" + line(7, "n" * 50_000, {}) + line(8, "read_thing", {"t": "w" * 90_000}) + b'{"jsonrpc":'
    try:
        made.stdin.write(text)
        made.stdin.flush()
        time.sleep(8)
        made.stdin.close()
        made.wait(5)
    except (OSError, subprocess.TimeoutExpired):
        pass
    made.kill()
    made.wait()


def containers():
    """Containers that come and go, are enrolled wrongly, and some that stay stopped."""
    made = []
    for number in range(6):
        words = ["ringfence", "run", "--profile", "rf-doors-small", "--", "/usr/bin/sh", "-c", "cat /etc/shadow; sleep 30"]
        made.append(subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True))
        time.sleep(0.5)
        if number % 2:
            os.killpg(made[-1].pid, signal.SIGSTOP)
    for message in ({"request": "enroll", "profile": "rf-doors-small"}, {"request": "enroll", "profile": "../../etc/shadow"}):
        for held in ([os.pidfd_open(os.getppid())], [], [os.open("/dev/null", os.O_RDONLY)]):
            try:
                say(unix("enroll.sock"), message, *held).close()
            except OSError:
                pass
            for one in held:
                os.close(one)
    for one in made:
        os.killpg(one.pid, signal.SIGKILL)
        one.wait()


def subordinate():
    """Connections and tokens by many ids of one user."""
    held = []
    for number in range(60):
        read, write = os.pipe()
        if os.fork() == 0:
            try:
                os.setresgid(*(IDS + number,) * 3)
                os.setresuid(*(IDS + number,) * 3)
                for name in ("mcp.sock", "query.sock"):
                    for _ in range(6):
                        held.append(unix(name))
                for _ in range(10):
                    ask("mcp.sock", {"request": "dashboard"}, 2)
            except OSError:
                pass
            os.close(write)
            time.sleep(6)
            os._exit(0)
        os.close(write)
        select.select([read], [], [], 1)
        os.close(read)
    for _ in range(60):
        os.wait()


def spare(score):
    """How much the kernel spares this process where memory is short."""
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write(score)


def forbidden(happened, what):
    """What must not be."""
    if happened:
        print(json.dumps({"forbidden": what}), flush=True)


KINDS = (silent, deaf, stopped, linked, deep, pipes, meddling, asking, sessions, containers)


def main():
    """One process for each kind, and one for each of some kinds more; `subordinate` needs root to become the ids."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Their slice has little memory, and they end with this process: where some of it is needed, theirs goes.
    spare("-1000")
    end, ended = os.pipe()
    made = {}
    users = [(kind, FIRST + number) for number, kind in enumerate((*KINDS, silent, linked, deaf, asking))] + [(subordinate, 0)]
    for kind, uid in users:
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            spare("0")
            os.close(ended)
            os.close(read)
            if uid:
                home = f"{DIRECTORY}/{uid}"
                os.makedirs(home, exist_ok=True)
                os.chown(home, uid, uid)
                os.setgroups([GROUP])
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
                os.environ["HOME"] = home
                os.chdir(home)
            rounds, why = 0, ""
            while not select.select([end], [], [], 0)[0]:
                begun = time.monotonic()
                try:
                    kind()
                except Exception as error:  # a door that is shut is what it may find
                    why = repr(error)[:200]
                rounds += 1
                time.sleep(max(0, 1 - (time.monotonic() - begun)))
            os.write(write, json.dumps({"kind": kind.__name__, "uid": uid, "rounds": rounds, "last": why}).encode())
            os._exit(0)
        os.close(write)
        made[read] = pid
    os.close(end)
    print("on", flush=True)
    sys.stdin.read()
    os.close(ended)
    for read, pid in made.items():
        ready = select.select([read], [], [], 90)[0]
        print(os.read(read, 4096).decode() if ready else json.dumps({"kind": "?", "pid": pid, "last": "it does not end"}), flush=True)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


main()
