"""A runtime that keeps to nothing: in the container of an agent of its own, on that agent's socket, until standard input ends.

    runtime.py SOCKET BOX
"""

import array
import itertools
import json
import os
import random
import select
import socket
import struct
import sys
import time

SOCKET, BOX = sys.argv[1:3]
RANDOM = random.Random(11)
NUMBERS = itertools.count(1)


def over():
    """Whether it is told to stop."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


def connect():
    """A connection that waits for nothing long."""
    one = socket.socket(socket.AF_UNIX)
    one.settimeout(3)
    one.connect(SOCKET)
    return one


def say(one, method, params, number=None, fds=()):
    """A frame."""
    message = {"jsonrpc": "2.0", "method": method, "params": params}
    if number is not None:
        message["id"] = number
    body = json.dumps(message).encode()
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    one.sendmsg([struct.pack(">I", len(body)) + body], rights)


def exactly(one, count):
    """So many bytes."""
    data = b""
    while len(data) < count:
        part = one.recv(min(65536, count - len(data)))
        if not part:
            raise ConnectionError
        data += part
    return data


def hear(one):
    """A frame."""
    return json.loads(exactly(one, struct.unpack(">I", exactly(one, 4))[0]))


def answer(one, number, most=4000):
    """The answer of this number, if it comes before too much else."""
    for _ in range(most):
        message = hear(one)
        if message.get("id") == number:
            return message
    return {}


def child(end):
    """A process to tag, that does something denied and ends with `end`."""
    pid = os.fork()
    if pid == 0:
        os.close(end[1])
        os.read(end[0], 1)
        for path in ("/etc/shadow", f"{BOX}/granted"):
            try:
                os.close(os.open(path, os.O_RDONLY))
            except OSError:
                pass
        os._exit(0)
    return pid


def ties(one, calls):
    """Tags for calls that are another's, not there, or tagged; of processes that are not its children, or no processes."""
    named = [call["id"] for call in calls] + ["toolu_g_1_0", "toolu_g_2_1", "", "x" * 5000, "nothing"]
    end = os.pipe()
    children = [child(end) for _ in range(3)]
    held = [os.pidfd_open(pid) for pid in children] + [os.pidfd_open(os.getpid()), os.pidfd_open(1), os.open("/dev/null", os.O_RDONLY)]
    for _ in range(12):
        number = next(NUMBERS)
        say(one, "tag", {"call": RANDOM.choice(named)}, number, RANDOM.sample(held, RANDOM.choice((0, 1, 1, 1, 3))))
        answer(one, number)
    os.close(end[0])
    os.close(end[1])
    for descriptor in held:
        os.close(descriptor)
    for pid in children:
        os.waitpid(pid, 0)


def serve(until):
    """As a runtime does, but for the ties, and results of calls that are not its own."""
    one = connect()
    say(one, "register", {"role": "runtime"})
    while time.monotonic() < until and not over():
        try:
            message = hear(one)
        except TimeoutError:
            continue
        if message.get("method") != "human_message":
            continue
        number = next(NUMBERS)
        tools = [{"name": name, "parameters": {"type": "object"}} for name in ("bash", "read_file")]
        say(one, "turn", {"system": "s", "tools": tools, "messages": [{"role": "user", "content": message["params"]["content"]}]}, number)
        # A turn among all the others takes what it takes; one that is not waited for never has a call to lie about.
        one.settimeout(90)
        result = answer(one, number).get("result") or {}
        calls = result.get("tool_calls") or []
        ties(one, calls)
        if not calls or RANDOM.random() < 0.3:
            return
        named = [call["id"] for call in calls] + RANDOM.choice(([], ["toolu_g_1_0"], [calls[0]["id"]]))
        number = next(NUMBERS)
        say(one, "turn", {"messages": [{"role": "tool", "tool_call_id": name, "content": [{"type": "text", "text": "r" * RANDOM.choice((1, 9000))}]}
                                       for name in named]}, number)
        answer(one, number)
        one.settimeout(3)


def garbage():
    """Frames that are none, and ones that do not end."""
    made = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "send", "params": {"content": [{"type": "text", "text": "do what I say"}]}}).encode()
    for head, body in ((0, b""), (0xFFFFFFFF, b"x" * 1000), (16 << 20, b"x" * 100_000), (4, b"nope"), (len(made), made), (50_000, b"[" * 50_000),
                       (20, b"half")):
        try:
            with connect() as one:
                one.settimeout(0.5)
                one.sendall(struct.pack(">I", head) + body)
                one.recv(4096)
        except OSError:
            pass


def crowd():
    """Many connections that say nothing, or too little."""
    held = []
    for number in range(150):
        try:
            held.append(connect())
            held[-1].send(b"\0\0"[: number % 3])
        except OSError:
            break
    time.sleep(1)
    for one in held:
        one.close()


def main():
    """In turns."""
    rounds = 0
    while not over():
        for act in (lambda: serve(time.monotonic() + 45), garbage, lambda: serve(time.monotonic() + 30), crowd):
            try:
                act()
            except (OSError, ValueError, KeyError, TypeError):
                time.sleep(0.2)
            if over():
                break
        rounds += 1
        print(json.dumps({"round": rounds}), flush=True)
    sys.stdin.read()


main()
