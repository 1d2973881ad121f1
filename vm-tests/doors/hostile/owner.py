"""The owner of hostile agents: messages without a pause, listeners that do not read, and a socket that is swapped for a link.

    owner.py UID SOCKET... until standard input ends.
"""

import json
import os
import select
import socket
import struct
import sys
import time

os.setgroups([])
os.setresgid(*(int(sys.argv[1]),) * 3)
os.setresuid(*(int(sys.argv[1]),) * 3)
SOCKETS = sys.argv[2:]
COUNTS = {"sent": 0, "ended": 0, "failed": 0, "refused": 0}


def connect(place):
    """A connection to an agent."""
    one = socket.socket(socket.AF_UNIX)
    one.settimeout(3)
    one.connect(place)
    return one


def send(place, seconds):
    """A message; whether its end came in that time."""
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "send", "params": {"content": [{"type": "text", "text": "go " + "g" * 300}]}}).encode()
    with connect(place) as one:
        one.sendall(struct.pack(">I", len(body)) + body)
        COUNTS["sent"] += 1
        end, seen = time.monotonic() + seconds, b""
        while time.monotonic() < end:
            try:
                part = one.recv(65536)
            except TimeoutError:
                continue
            if not part:
                COUNTS["refused"] += 1
                return
            seen = (seen + part)[-200_000:]
            for word, name in ((b'"method":"end_turn"', "ended"), (b'"method":"error"', "failed"), (b'"error":{', "refused")):
                if word in seen:
                    COUNTS[name] += 1
                    return


def swap(place):
    """Its directory is its own: open to all, and the socket a link for a moment."""
    directory = os.path.dirname(place)
    os.chmod(directory, 0o777)
    os.rename(place, f"{place}.kept")
    os.symlink("/etc/shadow", place)
    time.sleep(0.3)
    os.unlink(place)
    os.rename(f"{place}.kept", place)


def main():
    """In turns."""
    held = []
    number = 0
    while not select.select([sys.stdin], [], [], 0.2)[0]:
        number += 1
        for place in SOCKETS:
            try:
                send(place, 25)
                if number % 5 == 0:
                    swap(place)
                if number % 3 == 0:
                    held.append(connect(place))
                    held[-1].sendall(b"\0\0\0\2{")
            except OSError:
                pass
        while len(held) > 40:
            held.pop(0).close()
    print(json.dumps(COUNTS), flush=True)


main()
