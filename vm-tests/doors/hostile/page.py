"""A web page and whoever else is on loopback: wrong hosts and origins, sockets of other pages, halves of requests, thousands of connections.

    page.py PORT... until standard input ends. One line a round: how often it was answered what only a token opens.
"""

import base64
import json
import os
import random
import select
import socket
import sys
import threading
import time

PORTS = [int(port) for port in sys.argv[1:]]
RANDOM = random.Random(12)
PATHS = ("/api/stats", "/api/waiting", "/api/tool-calls", "/api/sessions", "/metrics", "/ws/live", "/v1/messages", "/v1/models")
OPENED = []
COUNTS = {"requests": 0, "connections": 0}


def over():
    """Whether it is told to stop."""
    return bool(select.select([sys.stdin], [], [], 0)[0])


def connect(port):
    """A connection."""
    COUNTS["connections"] += 1
    return socket.create_connection(("127.0.0.1", port), timeout=2)


def request(port, method="GET", path=None, host=None, extra=(), body=b""):
    """A request's bytes."""
    lines = [f"{method} {path or RANDOM.choice(PATHS)} HTTP/1.1", f"Host: {host or f'127.0.0.1:{port}'}", *extra]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def judge(text, answer):
    """No answer of success to what only a token opens."""
    COUNTS["requests"] += 1
    status = answer.split(b" ", 2)[1:2]
    if status and status[0][:1] in b"12" and status[0] and not answer.startswith(b"HTTP/1.1 100"):
        OPENED.append([text[:200].decode("latin-1"), answer[:200].decode("latin-1")])


def tries():
    """Requests that a page, a rebound name or a guesser makes."""
    token = base64.urlsafe_b64encode(os.urandom(32)).decode().rstrip("=")
    upgrade = ("Upgrade: websocket", "Connection: Upgrade", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")
    for port in PORTS:
        made = [
            request(port), request(port, host="evil.example"), request(port, host=f"evil.example:{port}", extra=("Origin: http://evil.example",)),
            request(port, extra=("Origin: http://evil.example",)), request(port, extra=(f"Authorization: Bearer {token}",)),
            request(port, extra=(f"x-api-key: {token}", "Origin: null")), request(port, path="/ws/live", extra=(*upgrade, "Origin: http://evil.example")),
            request(port, path=f"/ws/live?token={token}", extra=upgrade), request(port, "POST", "/api/rules", extra=("Content-Type: text/plain",), body=b"{}"),
            request(port, "POST", "/v1/messages", extra=("Sec-Fetch-Site: cross-site",), body=b'{"messages":[]}'),
            request(port, "OPTIONS", extra=("Origin: http://evil.example", "Access-Control-Request-Method: POST")),
            request(port, path="/" + "../" * 30 + "etc/shadow"), request(port, path="//api/stats"), request(port, path="/api/" + "x" * 5000),
            request(port, "GARBAGE" * 1000), b"\x16\x03\x01" + os.urandom(300), request(port, extra=[f"X-{n}: {'y' * 300}" for n in range(200)]),
            request(port, "POST", extra=("Transfer-Encoding: chunked", "Content-Length: 4")) + b"ffffffffff\r\n",
        ]
        for text in made:
            try:
                with connect(port) as one:
                    one.sendall(text)
                    judge(text, one.recv(4096))
            except OSError:
                pass


def crowd():
    """Hundreds of connections that say nothing, half of something or a byte at a time, and hundreds that read nothing."""
    held = []
    for port in PORTS:
        for number in range(250):
            try:
                one = connect(port)
                one.setblocking(False)
                text = (b"", request(port)[:20], b"GET / HTTP/1.1\r\nX: ", request(port, path="/app.js") * 300)[number % 4]
                one.send(text) if text else None
                held.append(one)
            except OSError:
                continue
    end = time.monotonic() + 12
    while time.monotonic() < end and not over():
        for one in held:
            try:
                one.send(b"a")
            except OSError:
                pass
        time.sleep(1)
    for one in held:
        one.close()


def again(act):
    """Time and again."""
    while not over():
        try:
            act()
        except OSError:
            pass
        time.sleep(2)


threads = [threading.Thread(target=again, args=(act,), daemon=True) for act in (tries, crowd, tries)]
for thread in threads:
    thread.start()
print("on", flush=True)
while not over():
    time.sleep(0.5)
for thread in threads:
    thread.join(60)
print(json.dumps({**COUNTS, "forbidden": OPENED[:5], "opened": len(OPENED)}), flush=True)
os._exit(0)
