"""What scenes of agents under the daemon share: a scripted model, agents, their runtime, the socket's frames, the trace."""

import array
import functools
import http.server
import json
import os
import signal
import socket
import socketserver
import struct
import subprocess
import sys
import threading
import traceback

import case
from harness import HERE
import system
from system import BASE, put, reload, ringfence, said

SYSTEM = "/etc/ringfence/profiles"
RUNTIME = f"{HERE}/bin/ringfence-runtime"
KEY = "sk-scene-0123456789abcdef"


def scene(name, limit, hook=None):
    """A scene that, where it hangs, says what the daemon said too. With a `hook`, for every kernel."""

    def told(*_):
        raise AssertionError(f"hung: {''.join(traceback.format_stack()[-6:])}; {daemon_log()}; {loopback()}")

    def wrap(run):
        @functools.wraps(run)
        def timed():
            signal.signal(signal.SIGALRM, told)
            run()

        return case.scene(name, limit=limit, hook=hook)(timed)

    return wrap


def wait_for(condition, what, seconds=system.PATIENCE, about=lambda: ""):
    """Polls a condition; what there is to say about a failure is found out when there is one."""
    try:
        system.wait_for(condition, what, seconds)
    except AssertionError as error:
        raise AssertionError(f"{error}: {about()}; {daemon_log()}; {loopback()}") from None


def daemon_log():
    """The end of what the daemon said, where it writes to a file."""
    for path in (system.DAEMON_LOG, "/var/log/ringfence-daemon.log"):
        if os.path.exists(path):
            with open(path, errors="replace") as file:
                return file.read()[-2000:]
    return ""


def loopback():
    """How the guest's own network fares: what a provider's silence may come from."""
    lines = ["loopback:"]
    for path in ("/proc/net/netstat", "/proc/net/snmp"):
        with open(path) as file:
            rows = [line.split() for line in file]
        for (kind, *names), (_, *values) in zip(rows[::2], rows[1::2]):
            lines.append(" ".join([kind, *(f"{name}={value}" for name, value in zip(names, values) if value != "0")]))
    for path in ("/proc/net/sockstat", "/proc/net/softnet_stat", "/proc/net/route", "/proc/net/fib_trie", "/proc/net/tcp"):
        with open(path) as file:
            lines.append(path + "\n" + file.read()[:3000])
    # With what was learned of routes by ICMP.
    done = subprocess.run("ip -s route get 127.0.0.1; ip -s route show cache; ip -s link show lo", shell=True, capture_output=True, text=True, check=False)
    lines.append(done.stdout + done.stderr)
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            with socket.create_server((address, 0), family=family) as server:
                socket.create_connection(server.getsockname()[:2], timeout=5).close()
            lines.append(f"{address} can be connected to")
        except OSError as error:
            lines.append(f"{address}: {error}")
    return "\n".join(lines)


def sse(*pairs):
    """A stream of events, as Anthropic's API sends it."""
    return b"".join(f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n".encode() for kind, data in pairs)


def answer(blocks, stop):
    """One answer of the model: texts (a string) and tool calls (id, name, input)."""
    out = [("message_start", {"message": {"id": "m", "type": "message", "role": "assistant", "content": [], "model": "m",
                                          "stop_reason": None, "usage": {"input_tokens": 3, "output_tokens": 1}}})]
    for index, block in enumerate(blocks):
        if isinstance(block, str):
            start, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": block}
        else:
            number, name, given = block
            start = {"type": "tool_use", "id": number, "name": name, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(given)}
        out += [("content_block_start", {"index": index, "content_block": start}),
                ("content_block_delta", {"index": index, "delta": delta}), ("content_block_stop", {"index": index})]
    out += [("message_delta", {"delta": {"stop_reason": stop}, "usage": {"output_tokens": 5}}), ("message_stop", {})]
    return sse(*out)


class Server(socketserver.ThreadingTCPServer):
    """Not `HTTPServer`, which asks for the host's name, and here nobody answers that."""

    daemon_threads = True

    def handle_error(self, request, client_address):
        """A worker that a scene kills resets its connections: that is no error to look at."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class Provider:
    """A scripted model: the newest user's text names the calls, as JSON; their results end the message."""

    def __init__(self):
        self.asked = []
        self.connections = 0
        self.held = threading.Event()
        self.held.set()
        provider = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self):
                provider.connections += 1
                super().setup()

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                provider.asked.append((dict(self.headers), body))
                provider.held.wait()
                last = body["messages"][-1]["content"]
                if isinstance(last, str):
                    last = [{"type": "text", "text": last}]
                text = next((block["text"] for block in last if block["type"] == "text"), "")
                if any(block["type"] == "tool_result" for block in last) or not text.startswith("["):
                    out = answer(["Done."], "end_turn")
                else:
                    out = answer([tuple(call) for call in json.loads(text)], "tool_use")
                head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {len(out)}\r\n\r\n"
                self.wfile.write(head.encode() + out)

            def log_message(self, *_):
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.port = self.server.server_address[1]


def agent(name, provider, extra="", grant=True, reach=(), programs=(), kernel=""):
    """Writes an agent's profile, whose container may also connect to `reach` and run `programs`, with more lines of its table
    `kernel`; waits until its worker serves its socket."""
    box = f"{BASE}/box/{name}"
    os.makedirs(box, exist_ok=True)
    os.chmod(box, 0o777)
    key = f"{BASE}/{name}.key"
    with open(key, "w") as file:
        file.write(KEY)
    os.chmod(key, 0o600)
    text = f"""{extra}
[llm.mock]
provider = "anthropic"
model = "m"
api_key_file = "{key}"
base_url = "http://127.0.0.1:{provider.port}"
"""
    if grant:
        text = case.profile_text("an agent of a scene", [box, HERE, "/proc", *programs], [box], ["/usr/bin", HERE, *programs],
                                 [f"unix:{path}" for path in (sock(name), *reach)], kernel=f'audit = "all"\n{kernel}', head=text)
    path = f"{SYSTEM}/{name}.toml"
    put(path, text)
    reload()
    wait_for(lambda: (known(name) or {}).get("state") == "running", f"the worker of {name}", about=lambda: known(name))
    return path, box


def known(name):
    """What `status` says of an agent."""
    result = ringfence("status", "--json")
    return next((one for one in json.loads(result.stdout or "{}").get("agents", []) if one["name"] == name), None)


def counted(name, **expected):
    """Waits until the worker reported these counts: it tells the core twice a second, after the fact."""

    def reported():
        counts = (known(name) or {}).get("counts", {})
        return all(counts.get(what) == number for what, number in expected.items())

    wait_for(reported, f"{name} to have counted {expected}", about=lambda: known(name))


def sock(name):
    return f"/run/ringfence/sockets/{name}/agent.sock"


class Runtime:
    """The runtime as it ships, in the agent's container."""

    def __init__(self, name, box):
        with open(f"{box}/prompt.md", "w") as file:
            file.write("You are a scene.")
        command = ["ringfence", "run", "--profile", name, "--", RUNTIME, "--system-prompt", f"{box}/prompt.md",
                   "--tools", "bash,read_file", "--socket", sock(name)]
        self.log = open(f"{BASE}/{name}.runtime.log", "w+")
        self.process = subprocess.Popen(command, cwd=box, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        wait_for(lambda: (known(name) or {}).get("counts", {}).get("runtime"), f"the runtime of {name}", about=self.said)

    def said(self):
        self.log.flush()
        with open(self.log.name) as file:
            return file.read()[-1500:]

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()


class Conn:
    """A connection that speaks the socket's frames."""

    def __init__(self, name, made=None):
        """A connection to an agent's socket, or the one that another process `made`."""
        self.sock = made or socket.socket(socket.AF_UNIX)
        self.sock.settimeout(system.PATIENCE)
        if made is None:
            self.sock.connect(sock(name))

    def say(self, method, params, number=None, pidfd=None):
        message = {"jsonrpc": "2.0", "method": method, "params": params}
        if number is not None:
            message["id"] = number
        body = json.dumps(message).encode()
        rights = [] if pidfd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [pidfd]))]
        self.sock.sendmsg([struct.pack(">I", len(body)) + body], rights)

    def hear(self):
        """The next message; `None` at the end. Not a byte more is read: the next one may be there already."""
        head = self.exactly(4)
        body = head and self.exactly(struct.unpack(">I", head)[0])
        return body and json.loads(body)

    def exactly(self, count):
        """So many bytes; `None` at the end."""
        data = b""
        while len(data) < count:
            part = self.sock.recv(count - len(data))
            if not part:
                return None
            data += part
        return data

    def until(self, wanted):
        while True:
            message = self.hear()
            assert message is not None, "the connection ended"
            if wanted(message):
                return message

    def answer(self, number):
        return self.until(lambda message: message.get("id") == number and ("result" in message or "error" in message))


def send(name, text, about=lambda: ""):
    """Sends a message as the owner does, and waits until the agent is done with it."""
    try:
        result = ringfence_send(name, text)
    except (OSError, AssertionError) as error:
        raise AssertionError(f"no end of {text[:80]!r}: {error!r}; {known(name)}; {about()}; {daemon_log()}") from None
    assert result == "end_turn", f"{result}: {known(name)}; {about()}; {daemon_log()}"


def ringfence_send(name, text):
    conn = Conn(name)
    conn.say("send", {"content": [{"type": "text", "text": text}]}, 1)
    reply = conn.answer(1)
    if "error" in reply:
        return reply["error"]["message"]
    last = conn.until(lambda message: message.get("method") in ("end_turn", "error"))
    return "end_turn" if last["method"] == "end_turn" else last["params"]["message"]


def trace(*args):
    """What `ringfence events trace --json` shows."""
    result = ringfence("trace", "--json", *args)
    assert result.returncode == 0, f"trace: {said(result)}"
    return json.loads(result.stdout)


def is_told(traced, calls):
    """Whether the newest message's end is on record, with so many calls that ended."""
    last = traced["intents"][-1] if traced["intents"] else None
    return bool(last and last["ended"] and len(last["calls"]) == calls and all(call["ended"] for call in last["calls"]))


def remove(path, name):
    """Removes an agent; waits until its worker has ended and its socket is gone."""
    os.unlink(path)
    reload()
    wait_for(lambda: known(name) is None and not os.path.exists(sock(name)), f"{name} to be gone", about=lambda: known(name))
