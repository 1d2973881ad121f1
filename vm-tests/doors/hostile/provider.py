"""A provider whose answers are wrong in every way that there is, until standard input ends.

    provider.py PORT BOX GOOD_PID_FILE

It answers an agent whose tools run with calls that attack, under ids that are equal, empty, long, used before or the good agent's.
Prints how many requests it had when it is told to say so.
"""

import http.server
import itertools
import json
import os
import random
import socketserver
import sys
import threading
import time

PORT, BOX, GOOD_BOX = int(sys.argv[1]), sys.argv[2], sys.argv[3]
SERVED = itertools.count(1)
RANDOM = random.Random(10)
# How long an answer without an end goes on.
ENDLESS = 15
USED = ["toolu_used"]

# What the calls of the agent whose tools run do: other calls, the runtime, the good agent, depth, width and noise.
COMMANDS = (
    "for n in $(seq 60); do cat /etc/shadow /root/x$n; done 2>/dev/null; echo noise",
    "for p in /proc/[0-9]*; do cat $p/environ $p/mem > /dev/null; kill -STOP ${p#/proc/}; kill -9 ${p#/proc/}; done 2>/dev/null; echo gone",
    f"cat {GOOD_BOX}/* {GOOD_BOX}/t/*; echo x > {GOOD_BOX}/t/forged; ln {GOOD_BOX}/readme {BOX}/taken; echo tried",
    "deep() { [ $1 -gt 0 ] && (deep $(($1 - 1))); [ $1 -gt 0 ] || cat /etc/shadow; }; deep 70; echo deep",
    "for n in $(seq 80); do (setsid sh -c 'cat /etc/shadow; sleep 2' > /dev/null 2>&1 &); done; echo wide",
    "head -c 3000000 /dev/zero | tr '\\0' x",
    "yes | head -c 200000; exec 1>&- 2>&-; sleep 3",
    "kill -9 $PPID; kill -9 $$",
    "exec sleep 30",
)


def event(kind, **data):
    """One event of a stream."""
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode()


def start():
    """The beginning of an answer."""
    return event("message_start", message={"id": "m", "type": "message", "role": "assistant", "content": [], "model": "m",
                                           "stop_reason": None, "usage": {"input_tokens": 3, "output_tokens": 1}})


def end(stop):
    """The end of one."""
    return event("message_delta", delta={"stop_reason": stop}, usage={"output_tokens": 5}) + event("message_stop")


def block(index, head, *deltas):
    """One block of content."""
    parts = [event("content_block_start", index=index, content_block=head)]
    parts += [event("content_block_delta", index=index, delta=delta) for delta in deltas]
    return b"".join(parts) + event("content_block_stop", index=index)


def text(words):
    """An answer in words."""
    return start() + block(0, {"type": "text", "text": ""}, {"type": "text_delta", "text": words}) + end("end_turn")


def calls(*wanted):
    """An answer of calls: (id, name, input as text)."""
    blocks = [block(index, {"type": "tool_use", "id": number, "name": name, "input": {}}, {"type": "input_json_delta", "partial_json": given})
              for index, (number, name, given) in enumerate(wanted)]
    return start() + b"".join(blocks) + end("tool_use")


def command(words=None):
    """The arguments of a call of bash."""
    return json.dumps({"command": words or RANDOM.choice(COMMANDS)})


def ids():
    """Ids as no provider should choose them."""
    good = f"toolu_g_{RANDOM.randrange(200)}_0"
    new = f"toolu_{RANDOM.randrange(10**9)}"
    USED.append(new)
    return [new, new, "", "x" * 300, "bell\7\33[2J\n", good, RANDOM.choice(USED[-50:]), "y" * 100_000, "../../etc", "null"]


def answers():
    """Answers that are whole, each as bytes."""
    chosen = ids()
    yield calls(*((number, "bash", command()) for number in RANDOM.sample(chosen, 4)))
    yield calls((chosen[0], "bash", command()), (chosen[1], "bash", command("echo the same id")))
    yield calls((chosen[5], "bash", command()), (chosen[6], "read_file", json.dumps({"path": "/etc/shadow"})))
    yield calls((chosen[0], "n" * 200_000, "{}"), ("toolu_b", "no_such_tool", "[]"), ("toolu_c", "bash", "{\"command\":"))
    yield calls((chosen[0], "bash", json.dumps({"command": "true #" + "z" * 300_000})))
    yield calls((chosen[0], "bash", "[" * 100_000))
    yield calls(*((f"toolu_many_{number}", "bash", command("true")) for number in range(40)))
    yield calls(*((f"toolu_too_many_{number}", "no_tool", "{}") for number in range(2000)))
    yield text("t" * 1_000_000)
    yield text("\0\33]0;x\7 toolu_g_1_0 Done.")
    yield start() + end("tool_use")
    yield start() + block(7, {"type": "unknown", "data": "q" * 5000}) + end("pause_turn")
    yield start() + start() + end("end_turn") + text("after its end")


def torn(whole):
    """A part of an answer."""
    return whole[: RANDOM.randrange(1, len(whole))]


class Handler(http.server.BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"

    def head(self, status=200, kind="text/event-stream", *more):
        """A head whose body ends with the connection."""
        lines = [f"HTTP/1.1 {status} X", f"content-type: {kind}", "connection: close", *more, "", ""]
        self.wfile.write("\r\n".join(lines).encode())
        self.close_connection = True

    def do_GET(self):
        """The list of models, say."""
        self.do_POST()

    def do_POST(self):
        """One of the wrong answers."""
        length = int(self.headers.get("content-length", 0))
        left = length
        tail = b""
        while left > 0:
            part = self.rfile.read(min(left, 65536))
            if not part:
                return
            left -= len(part)
            tail = (tail + part)[-4000:]
        number = next(SERVED)
        try:
            # Whoever brings results of tools is mostly done then.
            if b"tool_result" in tail[tail.rfind(b'"role"') :] and number % 5:
                self.send(text("Done."))
            else:
                (self.whole, self.torn, self.endless, self.slow, self.whole, self.refused, self.silent, self.whole, self.liar)[number % 9]()
        except OSError:
            self.close_connection = True

    def send(self, body):
        """An answer in one piece."""
        self.head()
        self.wfile.write(body)

    def whole(self):
        """A whole answer, wrong in itself."""
        self.send(RANDOM.choice(list(answers())))

    def torn(self):
        """An answer that breaks off."""
        self.send(torn(RANDOM.choice(list(answers()))))

    def endless(self):
        """Words without an end."""
        self.head()
        self.wfile.write(start() + event("content_block_start", index=0, content_block={"type": "text", "text": ""}))
        until = time.monotonic() + ENDLESS
        piece = event("content_block_delta", index=0, delta={"type": "text_delta", "text": "e" * 2000})
        while time.monotonic() < until:
            self.wfile.write(piece)
            time.sleep(0.02)

    def slow(self):
        """A byte at a time."""
        self.head()
        for byte in calls(("toolu_slow", "bash", command()))[:400]:
            self.wfile.write(bytes([byte]))
            time.sleep(0.02)

    def refused(self):
        """An error, with too much to say about it, or a redirect."""
        status = RANDOM.choice((400, 401, 404, 429, 500, 529, 301, 307))
        more = ("location: http://127.0.0.1:8080/api/stats", "retry-after: 99999999999")
        self.head(status, "application/json", *more)
        self.wfile.write(json.dumps({"error": {"type": "x" * 100_000, "message": "m" * 200_000}}).encode())

    def silent(self):
        """Nothing."""
        time.sleep(ENDLESS)
        self.close_connection = True

    def liar(self):
        """A head that is not true of its body."""
        more = RANDOM.choice(("content-length: 5", "transfer-encoding: chunked", "content-encoding: gzip", "x-long: " + "h" * 200_000))
        self.head(200, "text/event-stream", more)
        self.wfile.write(text("lies"))

    def log_message(self, *_):
        """Not a word."""


class Server(socketserver.ThreadingTCPServer):
    """Many at once."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def handle_error(self, *_):
        """Whoever hangs up is right."""


with Server(("127.0.0.1", PORT), Handler) as server:
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print("on", flush=True)
    sys.stdin.read()
    print(json.dumps({"requests": next(SERVED) - 1}), flush=True)
    os._exit(0)
