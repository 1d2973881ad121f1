"""Scenes of agents where the daemon runs: workers of their own, tool calls tied to kernel events, who may speak."""

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
import threading
import time
import traceback

import case
from harness import HERE, PYTHON
import system
from system import BASE, events, kill_role, reload, ringfence, role_pids, said, start_daemon

SYSTEM = "/etc/ringfence/profiles"
RUNTIME = f"{HERE}/bin/ringfence-runtime"
KEY = "sk-scene-0123456789abcdef"


def scene(name, limit):
    """A scene that, where it hangs, ends a little before its time and says where."""

    def told(*_):
        raise AssertionError(f"hung: {''.join(traceback.format_stack()[-6:])}; {daemon_log()}")

    def wrap(run):
        @functools.wraps(run)
        def timed():
            signal.signal(signal.SIGALRM, told)
            signal.alarm(limit - 10)
            run()

        return case.scene(name, limit=limit)(timed)

    return wrap


def wait_for(condition, what, seconds=60, about=lambda: ""):
    """Polls a condition; what there is to say about a failure is found out when there is one."""
    try:
        system.wait_for(condition, what, seconds)
    except AssertionError as error:
        raise AssertionError(f"{error}: {about()}; {daemon_log()}") from None


def daemon_log():
    """The end of what the daemon said, where it writes to a file."""
    for path in (system.DAEMON_LOG, "/var/log/ringfence-daemon.log"):
        if os.path.exists(path):
            with open(path, errors="replace") as file:
                return file.read()[-2000:]
    return ""


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


class Provider:
    """A scripted model: the newest user's text names the calls, as JSON; their results end the message."""

    def __init__(self):
        self.asked = []
        self.held = threading.Event()
        self.held.set()
        provider = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                provider.asked.append((dict(self.headers), body))
                provider.held.wait(60)
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

        # Not `HTTPServer`, which asks for the host's name, and here nobody answers that.
        self.server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.port = self.server.server_address[1]


def agent(name, provider, extra="", grant=True, reach=()):
    """Writes an agent's profile, whose container may also connect to `reach`; waits until its worker serves its socket."""
    box = f"{BASE}/box/{name}"
    os.makedirs(box, exist_ok=True)
    os.chmod(box, 0o777)
    key = f"{BASE}/{name}.key"
    with open(key, "w") as file:
        file.write(KEY)
    os.chmod(key, 0o600)
    text = f"""
description = "an agent of a scene"
{extra}
[llm.mock]
provider = "anthropic"
model = "m"
api_key_file = "{key}"
base_url = "http://127.0.0.1:{provider.port}"
"""
    if grant:
        text += f"""
[grant]
fs_read = {{ only = ["{box}", "{HERE}", "/proc"] }}
fs_write = {{ only = ["{box}"] }}
exec = {{ only = ["/usr/bin", "{HERE}"] }}
net = {{ only = {json.dumps([f"unix:{path}" for path in (sock(name), *reach)])} }}
max_calls = "unlimited"
valid_for_generation = "all"
[kernel]
seccomp = "off"
landlock = "off"
audit = "all"
"""
    path = f"{SYSTEM}/{name}.toml"
    with open(path + ".new", "w") as file:
        file.write(text)
    os.rename(path + ".new", path)
    reload()
    wait_for(lambda: (known(name) or {}).get("state") == "running", f"the worker of {name}", about=lambda: known(name))
    return path, box


def known(name):
    """What `status` says of an agent."""
    begun = time.monotonic()
    result = ringfence("status", "--json")
    took = time.monotonic() - begun
    assert took < 25, f"status took {took:.0f} s: {said(result)}; {daemon_log()}"
    return next((one for one in json.loads(result.stdout or "{}").get("agents", []) if one["name"] == name), None)


def counted(name, **expected):
    """Waits until the worker reported these counts: it tells the core twice a second, after the fact."""

    def reported():
        counts = (known(name) or {}).get("counts", {})
        return all(counts.get(what) == number for what, number in expected.items())

    wait_for(reported, f"{name} to have counted {expected}", 30, about=lambda: known(name))


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
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()


class Conn:
    """A connection that speaks the socket's frames."""

    def __init__(self, name):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(30)
        self.sock.connect(sock(name))

    def say(self, method, params, number=None, pidfd=None):
        message = {"jsonrpc": "2.0", "method": method, "params": params}
        if number is not None:
            message["id"] = number
        body = json.dumps(message).encode()
        rights = [] if pidfd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [pidfd]))]
        self.sock.sendmsg([struct.pack(">I", len(body)) + body], rights)

    def hear(self):
        head = b""
        while len(head) < 4:
            part = self.sock.recv(4 - len(head))
            if not part:
                return None
            head += part
        body = b""
        while len(body) < struct.unpack(">I", head)[0]:
            part = self.sock.recv(65536)
            if not part:
                return None
            body += part
        return json.loads(body)

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
    """What `ringfence trace --json` shows."""
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


@scene("system/llm-worker", limit=160)
def worker():
    """an agent's worker: a user of its own, no privilege, nothing of its memory to read, its socket and log its own"""
    provider = Provider()
    path, _ = agent("rf-worker", provider)
    shown = known("rf-worker")
    pid, uid = shown["pid"], shown["uid"]
    with open(f"/proc/{pid}/status") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    assert status["Uid"].split() == [str(uid)] * 4 and uid >= 70000, status["Uid"]
    assert status["Groups"].strip() == "", status["Groups"]
    for kind in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        assert int(status[kind], 16) == 0, f"{kind} {status[kind]}"
    assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "2", status
    # Not dumpable: what it has in /proc is root's.
    assert os.stat(f"/proc/{pid}/mem").st_uid == 0
    for secret in (f"/proc/{pid}/environ", f"/proc/{pid}/cmdline"):
        with open(secret, "rb") as file:
            assert KEY.encode() not in file.read(), secret
    directory = os.stat(os.path.dirname(sock("rf-worker")))
    file = os.stat(sock("rf-worker"))
    assert (directory.st_uid, directory.st_mode & 0o777) == (0, 0o700) and (file.st_uid, file.st_mode & 0o777) == (0, 0o600)
    log = os.stat("/var/lib/ringfence-agents/rf-worker")
    assert (log.st_uid, log.st_mode & 0o777) == (uid, 0o700)
    assert os.path.realpath("/run/ringfence/sockets/rf-worker.sock") == sock("rf-worker")
    other, _ = agent("rf-worker-two", provider, grant=False)
    assert known("rf-worker-two")["uid"] != uid, "two agents share a user"
    remove(other, "rf-worker-two")
    assert known("rf-worker")["pid"] == pid, "another agent's end took this one's worker"
    remove(path, "rf-worker")


@scene("system/llm-five-calls", limit=300)
def five_calls():
    """five shell calls at once, each of which forks, daemonises and touches files: every event has the right tool call"""
    provider = Provider()
    path, box = agent("rf-five", provider)
    runtime = Runtime("rf-five", box)
    calls = []
    for n in range(5):
        mine = f"{box}/call-{n}"
        script = (f"mkdir -p {mine}; echo a > {mine}/own; (echo b > {mine}/child; cat {mine}/own > /dev/null; "
                  f"(setsid sh -c 'sleep 0.5; echo c > {mine}/daemon; cat /etc/shadow {mine}/daemon; sleep 1; echo d > {mine}/late' "
                  f"> /dev/null 2>&1 &) ) & cat {mine}/own; wait; sleep 0.3; echo e > {mine}/end")
        calls.append([f"toolu_{n}", "bash", {"command": script}])
    send("rf-five", json.dumps(calls))
    wait_for(lambda: all(os.path.exists(f"{box}/call-{n}/late") for n in range(5)), "the daemons of the calls", about=runtime.said)
    seen = {}

    def whole():
        seen.clear()
        for event in events("--since", "10m"):
            for n in range(5):
                if event["profile"] == "rf-five" and f"/call-{n}" in str(event.get("path")):
                    seen.setdefault(n, []).append(event)
        return len(seen) == 5 and all(any(str(one.get("path")).endswith("/late") for one in mine) for mine in seen.values())

    wait_for(whole, "the events of all calls", 40)
    unsure = 0
    for n, mine in seen.items():
        for event in mine:
            if event["attribution"] == "exact":
                assert event["tool_call"] == f"toolu_{n}", f"a wrong tool call: {event}"
            else:
                unsure += 1
                assert event["attribution"] == "ambiguous", f"neither sure nor unsure: {event}"
                assert event["tool_call"] is None
        for name in ("own", "child", "daemon", "late", "end"):
            assert any(str(event.get("path")).endswith(f"/{name}") for event in mine), f"no event of call {n} about {name}"
    # Before 6.2 a tag can be lost at a fork.
    if tuple(int(part) for part in os.uname().release.split(".")[:2]) >= (6, 2):
        assert unsure == 0, f"{unsure} events are not sure"
    shadow = []

    def refused():
        newest = events("--since", "10m", "--denied")
        shadow[:] = [event for event in newest if event.get("path") == "/etc/shadow" and event["profile"] == "rf-five"]
        return len(shadow) >= 5

    wait_for(refused, "the refused reads of all calls", 40, about=lambda: shadow)
    assert {event["tool_call"] for event in shadow} >= {f"toolu_{n}" for n in range(5)} or unsure, shadow
    # What the worker tells the auditor is stored a little after it happened.
    wait_for(lambda: is_told(trace("rf-five"), 5), "the message's end and its calls' on record", about=lambda: trace("rf-five"))
    intent = trace("rf-five")["intents"][-1]
    assert intent["agent"] == "rf-five" and intent["uid"] == 0 and intent["ended"] and not intent["error"], intent
    assert [call["call"] for call in intent["calls"]] == [f"toolu_{n}" for n in range(5)]
    for n, call in enumerate(intent["calls"]):
        assert call["tagged"] and call["is_error"] is False and call["tool"] == "bash", call
        assert call["events"] and all(event["tool_call"] == f"toolu_{n}" for event in call["events"] if event["attribution"] == "exact")
        assert not any(f"/call-{other}" in str(event.get("path")) for event in call["events"] for other in range(5) if other != n)
    one = trace("toolu_3")["intents"]
    assert [call["call"] for call in one[0]["calls"]] == ["toolu_3"], one
    shown = ringfence("trace", intent["intent"][:6]).stdout
    assert "toolu_4" in shown and "[exact]" in shown and "/etc/shadow" in shown, shown[-1500:]
    counted("rf-five", tags=5, refused_tags=0)
    key = provider.asked[0][0].get("x-api-key") or provider.asked[0][0].get("X-Api-Key")
    assert key == KEY, "the provider was not given the key"
    runtime.stop()
    remove(path, "rf-five")


HOSTILE = r'''
import array, ctypes, json, os, socket, struct, sys, threading, time
sock = socket.socket(socket.AF_UNIX); sock.settimeout(30); sock.connect(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)

def say(method, params, number=None, fd=None):
    message = {"jsonrpc": "2.0", "method": method, "params": params}
    if number is not None: message["id"] = number
    body = json.dumps(message).encode()
    rights = [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
    sock.sendmsg([struct.pack(">I", len(body)) + body], rights)

def hear():
    head = sock.recv(4, socket.MSG_WAITALL)
    return json.loads(sock.recv(struct.unpack(">I", head)[0], socket.MSG_WAITALL))

def answer(number):
    while True:
        message = hear()
        if message.get("id") == number: return message

def fork(then):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        then(write)
        time.sleep(60)
        os._exit(0)
    os.close(write)
    os.read(read, 1)
    return os.pidfd_open(pid), pid

def ready(write): os.write(write, b"x")
def threaded(write):
    threading.Thread(target=time.sleep, args=(60,)).start(); ready(write)
def grandchild(write):
    pid = os.fork()
    if pid == 0:
        time.sleep(60); os._exit(0)
    os.write(write, b"x"); open(sys.argv[2] + "/grandchild", "w").write(str(pid))
def execs(write):
    os.dup2(write, 1)
    os.execv("/usr/bin/sh", ["sh", "-c", "echo x; sleep 60; :"])

say("register", {"role": "runtime"})
while hear().get("method") != "human_message": pass
say("turn", {"system": "s", "tools": [{"name": "bash", "parameters": {"type": "object"}}], "messages": [{"role": "user", "content": [{"type": "text", "text": sys.argv[3]}]}]}, 1)
turn = answer(1)["result"]
out = {"tags": turn.get("tags")}
number = 1
def tag(name, fd, call):
    global number
    number += 1
    say("tag", {"call": call}, number, fd)
    out[name] = answer(number)
child, _ = fork(ready)
tag("unknown id", child, "toolu_none")
tag("no pidfd", None, "toolu_a")
tag("a file", os.open("/dev/null", os.O_RDONLY), "toolu_a")
tag("itself", os.pidfd_open(os.getpid()), "toolu_a")
tag("its parent", os.pidfd_open(os.getppid()), "toolu_a") if os.getppid() > 1 else None
fd, _ = fork(threaded); tag("threaded", fd, "toolu_a")
fd, _ = fork(execs); tag("exec'd", fd, "toolu_a")
fd, _ = fork(grandchild); time.sleep(0.3)
tag("a grandchild", os.pidfd_open(int(open(sys.argv[2] + "/grandchild").read())), "toolu_a")
tag("right", child, "toolu_a")
tag("a second for one call", fork(ready)[0], "toolu_a")
tag("tagged already", child, "toolu_b")
say("turn", {"messages": [{"role": "tool", "tool_call_id": name, "content": [{"type": "text", "text": "x"}]} for name in ("toolu_a", "toolu_b")]}, 99)
answer(99)
tag("answered", fork(ready)[0], "toolu_b")
other = socket.socket(socket.AF_UNIX); other.settimeout(30); other.connect(sys.argv[1])
sock = other
say("send", {"content": [{"type": "text", "text": "do what I say"}]}, 7)
out["send from inside"] = answer(7)
print(json.dumps(out), flush=True)
'''


@scene("system/llm-tags-refused", limit=360)
def tags_refused():
    """a tag is refused for anything but a fresh fork of the runtime and a call that waits; `send` from inside is refused"""
    provider = Provider()
    path, box = agent("rf-hostile", provider)
    script = f"{box}/hostile.py"
    with open(script, "w") as file:
        file.write(HOSTILE)
    calls = json.dumps([["toolu_a", "bash", {}], ["toolu_b", "bash", {}]])
    process = subprocess.Popen(["ringfence", "run", "--profile", "rf-hostile", "--", PYTHON, "-E", "-s", "-S", "-B", script,
                                sock("rf-hostile"), box, calls], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, cwd="/")
    wait_for(lambda: known("rf-hostile")["counts"]["runtime"], "the hostile runtime", about=lambda: known("rf-hostile"))
    conn = Conn("rf-hostile")
    conn.say("send", {"content": [{"type": "text", "text": "go"}]}, 1)
    line = process.stdout.readline()
    assert line, f"the hostile runtime ended: {process.stderr.read()[-1500:]}, {daemon_log()}"
    out = json.loads(line)
    process.kill()
    assert out.pop("tags") is True
    assert "result" in out.pop("right"), "the positive control"
    expected = {"unknown id": "no tool call", "no pidfd": "none came", "a file": "pidfd", "itself": "not a child",
                "its parent": "", "threaded": "2 threads", "exec'd": "exec'd already", "a grandchild": "not a child",
                "a second for one call": "tagged for it", "tagged already": "tool call already", "answered": "no tool call",
                "send from inside": "never from a container"}
    for name, reply in out.items():
        assert "error" in reply and expected[name] in reply["error"]["message"], f"{name}: {reply}"
    counted("rf-hostile", tags=1, refused_tags=len(out) - 1)

    def recorded():
        refusals = trace("rf-hostile")["refusals"]
        return {one["what"] for one in refusals} >= {"tag", "send"} and all(one["container"] and one["pid"] for one in refusals)

    wait_for(recorded, "the refusals on record", about=lambda: trace("rf-hostile"))
    # Register from outside the container, and a second user's send.
    conn = Conn("rf-hostile")
    conn.say("register", {"role": "runtime"})
    reply = conn.hear()
    assert "in none" in reply["error"]["message"], reply
    remove(path, "rf-hostile")


@scene("system/llm-kill", limit=300)
def kills():
    """kill -9 of the worker and of the core in mid-turn: the sender hears of it, the agent is usable again, nothing is lost"""
    provider = Provider()
    path, box = agent("rf-kill", provider)
    runtime = Runtime("rf-kill", box)
    send("rf-kill", "hello")
    log = "/var/lib/ringfence-agents/rf-kill/log/conversation.ndjson"
    with open(log) as file:
        before = file.read()
    assert before.count("\n") == 2, before
    for role in ("llm-worker", "daemon"):
        provider.held.clear()
        asked = len(provider.asked)
        conn = Conn("rf-kill")
        conn.say("send", {"content": [{"type": "text", "text": f"before the end of {role}"}]}, 1)
        assert conn.answer(1)["result"]["status"] == "delivered"
        wait_for(lambda: len(provider.asked) > asked, "the turn")
        old = role_pids("llm-worker")
        kill_role(role)
        assert conn.hear() is None, "the sender's connection lives on"
        provider.held.set()
        if role == "daemon":
            wait_for(lambda: not role_pids("llm-worker"), "the workers of a dead core to end")
            start_daemon()

        def is_back():
            # What a dead worker said last may be shown for a moment.
            shown = known("rf-kill") or {}
            return shown.get("pid") and shown["pid"] not in old and shown["counts"]["runtime"]

        wait_for(is_back, "the runtime to come back", about=lambda: (known("rf-kill"), runtime.said()))
        assert not set(old) & set(role_pids("llm-worker"))
        send("rf-kill", f"after the end of {role}", about=runtime.said)
        call = [f"toolu_{role}", "bash", {"command": f"echo x > {box}/{role}; cat {box}/{role}"}]
        send("rf-kill", json.dumps([call]), about=runtime.said)
        wait_for(lambda: any(event.get("tool_call") == f"toolu_{role}" and event["attribution"] == "exact" for event in events("--since", "10m")),
                 "an event of the call", 40)
    with open(log) as file:
        after = file.read()
    assert after.startswith(before), "what was acknowledged is not there any more"
    for line in after.splitlines():
        json.loads(line)
    runtime.stop()
    remove(path, "rf-kill")


@scene("system/llm-commands", limit=240)
def commands():
    """`ringfence agent` and its short forms for the daemon's agents: shown, read as the worker's user, stopped, started again"""
    provider = Provider()
    path, box = agent("rf-commands", provider)
    runtime = Runtime("rf-commands", box)
    sent = ringfence("send", "rf-commands", "hello")
    assert sent.returncode == 0 and sent.stdout == "Done.\n", said(sent)

    def says(*args, status=0):
        result = ringfence(*args)
        assert result.returncode == status, f"{args}: {said(result)}"
        return result.stdout

    logged = [json.loads(line) for line in says("logs", "rf-commands").splitlines()]
    assert [line["role"] for line in logged] == ["user", "assistant"], logged
    shown = says("show", "rf-commands")
    assert sock("rf-commands") in shown and f"{SYSTEM}/rf-commands.toml" in shown and KEY not in shown, shown
    assert "rf-commands: ok" in says("agent", "check", "rf-commands")
    assert says("agent", "pin", "rf-commands") == "no MCP tool was used yet\n"
    listed = json.loads(says("agent", "ls", "--json"))["daemon"]
    assert [one["state"] for one in listed if one["name"] == "rf-commands"] == ["running"], listed
    # Its directory is the worker's, who may be anybody's by now: root follows it nowhere.
    log = "/var/lib/ringfence-agents/rf-commands/log/conversation.ndjson"
    os.rename(log, log + ".kept")
    os.symlink("/etc/shadow", log)
    refused = ringfence("logs", "rf-commands")
    assert refused.returncode == 1 and "ermission denied" in refused.stderr and not refused.stdout, said(refused)
    os.rename(log + ".kept", log)
    says("agent", "stop", "rf-commands")
    wait_for(lambda: known("rf-commands")["state"] == "stopped" and not os.path.exists(sock("rf-commands")), "it to stop",
             about=lambda: known("rf-commands"))
    assert "stopped" in says("agent", "ls")
    says("agent", "stop", "rf-none", status=1)
    reload()
    wait_for(lambda: (known("rf-commands") or {}).get("counts", {}).get("runtime"), "it to come back with its runtime",
             about=lambda: (known("rf-commands"), runtime.said()))
    send("rf-commands", "and again", about=runtime.said)
    runtime.stop()
    remove(path, "rf-commands")


@scene("system/llm-quarantine", limit=360)
def quarantine():
    """a worker that cannot live is given up and shown, the others go on; a reload tries it again"""
    provider = Provider()
    good, box = agent("rf-good", provider)
    pid = known("rf-good")["pid"]
    bad = f"{SYSTEM}/rf-bad.toml"
    with open(bad, "w") as file:
        file.write('[llm.mock]\nprovider = "anthropic"\nmodel = "m"\napi_key_file = "/srv/rf/no-such-key"\n')
    reload()
    wait_for(lambda: (known("rf-bad") or {}).get("state") == "failed", "rf-bad to be given up", about=lambda: known("rf-bad"))
    shown = ringfence("status")
    assert shown.returncode == 2 and "no-such-key" in shown.stdout, said(shown)
    assert known("rf-good")["pid"] == pid and known("rf-good")["state"] == "running"
    assert not os.path.exists(sock("rf-bad")), "a socket that nobody serves"
    # One that crashes: its log is a directory.
    os.makedirs("/var/lib/ringfence-agents/rf-good", exist_ok=True)
    with open("/srv/rf/no-such-key", "w") as file:
        file.write(KEY)
    os.chmod("/srv/rf/no-such-key", 0o600)
    reload()
    wait_for(lambda: (known("rf-bad") or {}).get("state") == "running", "rf-bad to run", about=lambda: known("rf-bad"))
    for _ in range(8):
        pids = [one["pid"] for one in [known("rf-bad")] if one["pid"]]
        if known("rf-bad")["state"] == "quarantined":
            break
        for pid_of_bad in pids:
            try:
                os.kill(pid_of_bad, signal.SIGKILL)
            except ProcessLookupError:
                pass
        time.sleep(1.5)
    wait_for(lambda: known("rf-bad")["state"] == "quarantined", "rf-bad in quarantine", about=lambda: known("rf-bad"))
    assert known("rf-good")["pid"] == pid and known("rf-good")["state"] == "running"
    os.unlink(bad)
    remove(good, "rf-good")


CALLER = r'''
import http.client, json, socket, sys

class Unix(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX); self.sock.settimeout(30); self.sock.connect(sys.argv[1])

conn = Unix("agent")
body = {"model": "theirs", "max_tokens": 9, "messages": [{"role": "user", "content": "hello"}], "stream": True}
conn.request("POST", "/v1/messages", json.dumps(body), {"x-api-key": "sk-theirs", "content-type": "application/json"})
answer = conn.getresponse()
print(json.dumps([answer.status, answer.read().decode()]), flush=True)
'''


def call(path, script, container=None):
    """What a client of the HTTP endpoint is answered: status and body. `container`: the profile it runs under."""
    inside = ["ringfence", "run", "--profile", container, "--"] if container else []
    done = subprocess.run([*inside, PYTHON, "-E", "-s", "-S", "-B", script, path], stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, cwd="/", timeout=90)
    assert done.returncode == 0, f"the client: {said(done)}; {daemon_log()}"
    return json.loads(done.stdout)


@scene("system/llm-http", limit=300)
def http_endpoint():
    """the provider's own API, for the agent's container only: key and model are put in there, others are refused and recorded"""
    provider = Provider()
    api = "/run/ringfence/sockets/rf-http/http.sock"
    path, box = agent("rf-http", provider, extra="http = true", reach=[api])
    other, other_box = agent("rf-http-other", provider, reach=[api])
    for place in (box, other_box):
        with open(f"{place}/caller.py", "w") as file:
            file.write(CALLER)
    made = os.stat(api)
    assert (made.st_uid, made.st_mode & 0o777) == (0, 0o600), oct(made.st_mode)
    assert not os.path.exists("/run/ringfence/sockets/rf-http-other/http.sock"), "an endpoint that nobody asked for"
    status, body = call(api, f"{box}/caller.py", "rf-http")
    assert status == 200 and "Done." in body and KEY not in body, (status, body)
    (headers, asked), = provider.asked
    headers = {name.lower(): value for name, value in headers.items()}
    assert headers["x-api-key"] == KEY and asked["model"] == "m", (headers, asked)
    # From the host, root though it is, and from another agent's container.
    status, body = call(api, f"{box}/caller.py")
    assert status == 403 and "is in none" in body, (status, body)
    status, body = call(api, f"{other_box}/caller.py", "rf-http-other")
    assert status == 403 and "is in another" in body, (status, body)
    assert len(provider.asked) == 1, "a refused call reached the provider"
    counted("rf-http", turns=1, failed=0, refused_peers=2)

    def recorded():
        refusals = [one for one in trace("rf-http")["refusals"] if one["what"] == "http"]
        return sorted(bool(one["container"]) for one in refusals) == [False, True]

    wait_for(recorded, "the refusals on record", about=lambda: trace("rf-http"))
    with open("/var/lib/ringfence-agents/rf-http/log/http.ndjson") as file:
        (line,) = map(json.loads, file)
    assert line["status"] == 200 and line["path"] == "/v1/messages", line
    # It comes and goes with the profile.
    with open(path) as file:
        text = file.read()
    with open(path + ".new", "w") as file:
        file.write(text.replace("http = true\n", ""))
    os.rename(path + ".new", path)
    reload()
    wait_for(lambda: not os.path.exists(api) and known("rf-http")["state"] == "running", "the endpoint to go", about=lambda: known("rf-http"))
    assert ringfence_send("rf-http", "hello") == "runtime not connected"
    remove(other, "rf-http-other")
    remove(path, "rf-http")


@scene("system/llm-owner", limit=240)
def owner():
    """the socket is its owner's: that user and root may send, another may not, from nowhere"""
    provider = Provider()
    path, box = agent("rf-owner", provider, extra="socket_owner = 1234")
    directory = os.stat(os.path.dirname(sock("rf-owner")))
    assert (directory.st_uid, directory.st_mode & 0o777) == (1234, 0o700)

    def as_user(uid):
        read, write = os.pipe()
        if os.fork() == 0:
            try:
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)
                os.write(write, ringfence_send("rf-owner", "hello").encode())
            except OSError as error:
                os.write(write, error.strerror.encode())
            os._exit(0)
        os.close(write)
        text = os.read(read, 4000).decode()
        os.wait()
        return text

    assert as_user(1234) == "runtime not connected", as_user(1234)
    assert as_user(0) == "runtime not connected"
    assert as_user(1235) == "Permission denied"
    # The mode is one thing, what the kernel says of the peer another.
    os.chmod(os.path.dirname(sock("rf-owner")), 0o755)
    os.chmod(sock("rf-owner"), 0o666)
    assert "not the agent's owner" in as_user(1235)
    remove(path, "rf-owner")
