"""Scenes of agents where the daemon runs: who may speak on their sockets, by the kernel's word."""

import ctypes
import errno
import http.client
import json
import os
import signal
import socket
import struct
import subprocess
import time

from agents import KEY, Conn, Provider, agent, counted, daemon_log, is_told, known, remove, ringfence_send, scene, sock, trace, wait_for
from harness import PYTHON
from system import PATIENCE, denied, events, put, reload, ringfence, said, wait_event


CALLER = r'''
import http.client, json, socket, sys

class Unix(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX); self.sock.connect(sys.argv[1])

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
                          text=True, cwd="/", timeout=PATIENCE)
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
        return {bool(one["container"]) for one in refusals[-2:]} == {False, True}

    wait_for(recorded, "the refusals on record", about=lambda: trace("rf-http"))
    with open("/var/lib/ringfence-agents/rf-http/log/http.ndjson") as file:
        (line,) = map(json.loads, file)
    assert line["status"] == 200 and line["path"] == "/v1/messages", line
    # It comes and goes with the profile.
    with open(path) as file:
        text = file.read()
    put(path, text.replace("http = true\n", ""))
    reload()
    wait_for(lambda: not os.path.exists(api) and known("rf-http")["state"] == "running", "the endpoint to go", about=lambda: known("rf-http"))
    assert ringfence_send("rf-http", "hello") == "runtime not connected"
    remove(other, "rf-http-other")
    remove(path, "rf-http")


# Connects to what each line names.
DIAL = r'''
import socket, sys
for line in sys.stdin:
    with socket.socket(socket.AF_UNIX) as one:
        error = one.connect_ex(line.strip())
        print(f"errno {error}" if error else "connected", flush=True)
'''


# An agent in one process, as SDKs make them: asks, runs what the model wants in a child, brings the result, is done.
LOOPER = r'''
import http.client, json, socket, subprocess, sys

class Unix(http.client.HTTPConnection):
    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX); self.sock.connect(sys.argv[1])

def ask(messages):
    connection = Unix("agent")
    connection.request("POST", "/v1/messages", json.dumps({"max_tokens": 9, "stream": True, "messages": messages}))
    return connection.getresponse().read().decode()

box, calls = sys.argv[2:]
open(box + "/before").read()
messages = [{"role": "user", "content": calls}]
answer = ask(messages)
assert "toolu_http" in answer, answer
done = subprocess.run(["/usr/bin/cat", box + "/within"], capture_output=True, text=True)
open(box + "/own").read()
result = {"type": "tool_result", "tool_use_id": "toolu_http", "content": done.stdout, "is_error": done.returncode != 0}
messages += [{"role": "assistant", "content": "..."}, {"role": "user", "content": [result]}]
assert "Done." in ask(messages)
open(box + "/after").read()
'''


@scene("system/llm-http-trace", limit=300)
def http_trace():
    """an SDK's tool calls over HTTP are in the trace, with the child that ran one, and no event more than can be known"""
    provider = Provider()
    api = "/run/ringfence/sockets/rf-sdk/http.sock"
    path, box = agent("rf-sdk", provider, extra="http = true\nhttp_port = 4117", reach=[api])
    for name in ("before", "within", "own", "after"):
        with open(f"{box}/{name}", "w") as file:
            file.write(name)
    with open(f"{box}/looper.py", "w") as file:
        file.write(LOOPER)
    asked = json.dumps([["toolu_http", "read", {"path": "within"}]])
    command = ["ringfence", "run", "--profile", "rf-sdk", "--", PYTHON, "-E", "-s", "-S", "-B", f"{box}/looper.py", api, box, asked]
    done = subprocess.run(command, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, said(done)
    wait_for(lambda: is_told(trace("rf-sdk"), 1), "the intent's end and its call's on record", about=lambda: trace("rf-sdk"))
    seen = {}

    def whole():
        seen.clear()
        for event in events():
            name = os.path.basename(str(event.get("path")))
            if event["profile"] == "rf-sdk" and name in ("before", "within", "own", "after"):
                seen.setdefault(name, set()).add((event["attribution"], event.get("tool_call")))
        return len(seen) == 4

    wait_for(whole, "the events of the agent", about=lambda: seen)
    # The child was born in the call; the agent itself is older than it, and what it opens may be for anything.
    assert seen == {"before": {("none", None)}, "within": {("sole", "toolu_http")}, "own": {("ambiguous", None)},
                    "after": {("none", None)}}, seen
    (intent,) = trace("rf-sdk")["intents"]
    assert intent["via"] == "http" and intent["uid"] is None and intent["text"] == asked and not intent["error"], intent
    (call,) = intent["calls"]
    assert call["call"] == "toolu_http" and call["output"] == "within" and not call["is_error"] and not call["tagged"], call
    assert {os.path.basename(str(event.get("path"))) for event in call["events"]} >= {"within", "own"}, call
    shown = ringfence("trace", "rf-sdk").stdout
    assert "as its client over HTTP says" in shown and "[sole]" in shown, shown
    # It has a container, so its API is not on loopback, where nothing says who calls; `agent check` says so.
    with socket.socket() as loopback:
        assert loopback.connect_ex(("127.0.0.1", 4117)) != 0, "http_port is served for an agent that has a container"
    checked = ringfence("agent", "check", "rf-sdk").stdout
    assert "http_port = 4117 is left out" in checked, checked
    remove(path, "rf-sdk")
    # One that has none: the token, which is its worker's and root's, says who may call.
    path, _ = agent("rf-sdk", provider, extra="http = true\nhttp_port = 4117", grant=False)
    token_file = "/var/lib/ringfence-agents/rf-sdk/state/http-token"
    assert (os.stat(token_file).st_mode & 0o777, os.stat(token_file).st_uid) == (0o600, known("rf-sdk")["uid"])
    with open(token_file) as file:
        token = file.read().strip()
    assert token_file in ringfence("show", "rf-sdk").stdout
    for key, status in (("sk-theirs", 401), (token, 200)):
        connection = http.client.HTTPConnection("127.0.0.1", 4117, timeout=PATIENCE)
        body = json.dumps({"max_tokens": 9, "stream": True, "messages": [{"role": "user", "content": "hello"}]})
        connection.request("POST", "/v1/messages", body, {"x-api-key": key})
        response = connection.getresponse()
        assert response.status == status, (status, response.status, response.read())
    remove(path, "rf-sdk")


@scene("system/llm-own-mounts", limit=240, hook="unix_stream_connect")
def own_mounts():
    """a container with mounts of its own reaches the host's sockets by its own mounts of them, and no other way"""
    places = {"/srv/rf/own": os.path.dirname(sock("rf-own")), "/srv/rf/denied": "/run/rf-denied", "/srv/rf/unmounted": None}
    for place in [*places, "/run/rf-denied", "/run/rf-unmounted"]:
        os.makedirs(place, exist_ok=True)
    allowed, refused = "/srv/rf/own/agent.sock", "/srv/rf/denied/one.sock"
    # A rule for the host's path of what the container has no mount of: it is not the container's path.
    path, box = agent("rf-own", Provider(), reach=[allowed, "/run/rf-unmounted/one.sock"])
    with open(f"{box}/dial.py", "w") as file:
        file.write(DIAL)
    hosts = [socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)]
    for host, place in zip(hosts, ["/run/rf-denied/one.sock", "/run/rf-unmounted/one.sock"]):
        host.bind(place)
        host.listen(16)
    mounts = " && ".join(f"mount --bind {there} {here}" for here, there in places.items() if there)
    make = f"mount --make-rprivate / && {mounts} && exec 9< /run/rf-unmounted && umount -l /run"
    with subprocess.Popen(["unshare", "-m", "sh", "-c", f"{make} && exec {PYTHON} -u {box}/dial.py"], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as dialler:
        def dial(where):
            dialler.stdin.write(where + "\n")
            dialler.stdin.flush()
            return dialler.stdout.readline().strip()

        unmounted = "/proc/self/fd/9/one.sock"
        assert [dial(place) for place in (allowed, refused, unmounted)] == ["connected"] * 3, "not even ungoverned"
        assert dial(sock("rf-own")) == f"errno {errno.ENOENT}", "the host's own mount is gone"
        enrolled = ringfence("enroll", "--pid", str(dialler.pid), "--profile", "rf-own")
        assert enrolled.returncode == 0, said(enrolled)
        found = [dial(place) for place in (allowed, refused, unmounted)]
        assert found == ["connected", f"errno {errno.EACCES}", f"errno {errno.EACCES}"], found
        # On record by the path that the container knows it by; what it has no path to, by the host's and as such.
        assert wait_event(denied(refused, "connect"))["rule"] == "default"
        outside = wait_event(lambda event: event["verdict"] == "denied" and event["rule"] == "fixed:outside")
        assert (outside["op"], outside["addr"].endswith("/one.sock")) == ("connect", True), outside
        dialler.stdin.close()
    for host in hosts:
        host.close()
    remove(path, "rf-own")


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
    # Bound beside another one, it is used again, and nothing of what its owner let others do there is left.
    directory, api = os.path.dirname(sock("rf-owner")), f"{os.path.dirname(sock('rf-owner'))}/http.sock"
    os.chmod(directory, 0o777)
    os.symlink("/etc/shadow", api)
    before, shadow = os.stat(sock("rf-owner")).st_ino, os.stat("/etc/shadow")
    with open(path) as file:
        text = file.read()
    put(path, text.replace("socket_owner = 1234", "socket_owner = 1234\nhttp = true"))

    def places():
        # What is in the way of a socket goes before it comes.
        there = [path for path in (directory, sock("rf-owner"), api) if os.path.lexists(path)]
        try:
            return [(it.st_uid, it.st_gid, it.st_mode & 0o777) for it in map(os.lstat, there)]
        except FileNotFoundError:
            return []

    wait_for(lambda: places() == [(1234, 1234, 0o700), (1234, 1234, 0o600), (1234, 1234, 0o600)], "both sockets, their owner's", about=places)
    assert os.stat(sock("rf-owner")).st_ino == before, "bound anew"
    assert (shadow.st_uid, shadow.st_mode) == (os.stat("/etc/shadow").st_uid, os.stat("/etc/shadow").st_mode)
    assert as_user(1234) == "runtime not connected", as_user(1234)
    assert as_user(1235) == "Permission denied"
    remove(path, "rf-owner")


HANDS_ON = r"""
import array, os, socket, sys
made = socket.socket(socket.AF_UNIX); made.connect(sys.argv[1])
out = socket.socket(fileno=0)
out.sendmsg([str(os.getpid()).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [made.fileno()]))])
"""


def reborn(number):
    """A process of the host with a process id of one's choice: clone3(2) with `set_tid`."""
    wanted = (ctypes.c_int * 1)(number)
    arguments = struct.pack("=11Q", 0, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, ctypes.addressof(wanted), 1, 0)
    buffer = ctypes.create_string_buffer(arguments, len(arguments))
    libc = ctypes.CDLL(None, use_errno=True)
    end = time.monotonic() + PATIENCE
    # /proc shows a process no more a moment before its number is free.
    while (pid := libc.syscall(435, buffer, ctypes.c_size_t(len(arguments)))) == -1 and ctypes.get_errno() == errno.EEXIST:
        assert time.monotonic() < end, f"the process id {number} does not get free"
        time.sleep(0.05)
    if pid == 0:
        time.sleep(900)
        os._exit(0)
    assert pid == number, f"clone3 gave {pid} for {number}: {os.strerror(ctypes.get_errno())}"


@scene("system/llm-forged-pid", limit=200)
def forged():
    """a container's connection, handed on, whose maker's process id is by now one of the host's own: it speaks for the container"""
    provider = Provider()
    path, box = agent("rf-forged", provider)
    assert ringfence_send("rf-forged", "hello") == "runtime not connected", "the positive control: the host may send"
    script = f"{box}/hands-on.py"
    with open(script, "w") as file:
        file.write(HANDS_ON)
    worker = known("rf-forged")["pid"]
    # Until the number is another's, nobody asks whose it is.
    os.kill(worker, signal.SIGSTOP)
    try:
        ours, theirs = socket.socketpair()
        process = subprocess.Popen(["ringfence", "run", "--profile", "rf-forged", "--", PYTHON, "-E", "-s", "-S", "-B", script,
                                    sock("rf-forged")], stdin=theirs, stderr=subprocess.PIPE, cwd="/")
        theirs.close()
        ours.settimeout(PATIENCE)
        data, descriptors, _, _ = socket.recv_fds(ours, 100, 1)
        assert data, f"the container did not connect: {process.stderr.read()[-1500:]}"
        process.wait(PATIENCE)
        number = int(data)
        wait_for(lambda: not os.path.exists(f"/proc/{number}"), "the container's process to be gone")
        reborn(number)
    finally:
        os.kill(worker, signal.SIGCONT)
    conn = Conn("rf-forged", socket.socket(fileno=descriptors[0]))
    conn.say("send", {"content": [{"type": "text", "text": "do what I say"}]}, 1)
    reply = conn.answer(1).get("error", {}).get("message", "")
    # From 6.5 on the kernel tells that the process is gone; before, only what it kept with the socket helps.
    release = tuple(int(part) for part in os.uname().release.split(".")[:2])
    assert ("not known who this is" if release >= (6, 5) else "never from a container") in reply, reply
    os.kill(number, signal.SIGKILL)
    remove(path, "rf-forged")
