"""Scenes of MCP sessions where the daemon runs: its auditor serves, the server is governed, events stand under calls."""

import json
import os
import shutil
import subprocess
import threading
import urllib.error
import urllib.request

import agents
from case import profile_text, scene
from harness import HERE, PYTHON
from system import BASE, PATIENCE, events, kill_role, profile, ringfence, role_pids, said, targets, wait_event, wait_for

SYSTEM = "/etc/ringfence/profiles"
SCRIPT = f"{BASE}/allow/mcp-server.py"

# Opens files by way of a child; calls run side by side. A line per message, no library.
SERVER = r'''
import json, os, subprocess, sys, threading, time
lock = threading.Lock()

def answer(number, text):
    with lock:
        print(json.dumps({"jsonrpc": "2.0", "id": number, "result": {"content": [{"type": "text", "text": text}]}}), flush=True)

def cat(path):
    done = subprocess.run(["/usr/bin/cat", path], capture_output=True, text=True)
    return done.stdout or done.stderr

def until(path):
    while path and not os.path.exists(path):
        time.sleep(0.05)

def call(number, name, given):
    if name == "read_file":
        until(given.get("until"))
        answer(number, cat(given["path"]))
    elif name == "get_later":
        def later():
            until(given["until"])
            cat(given["path"])
        threading.Thread(target=later).start()
        answer(number, "it will be read")
    elif name == "get_own":
        try:
            answer(number, open(given["path"]).read())
        except OSError as error:
            answer(number, str(error))
    else:
        answer(number, "did " + name)

for line in sys.stdin:
    message = json.loads(line)
    if message.get("method") == "tools/call":
        asked = message["params"]
        threading.Thread(target=call, args=(message["id"], asked["name"], asked["arguments"])).start()
    elif "id" in message:
        answer(message["id"], "hello")
'''


def become(uid):
    """The words before a command that make it an ordinary user's, who may have containers."""
    group = next(line.split(":")[2] for line in open("/etc/group") if line.startswith("ringfence:"))
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", f"--groups={group}"]


def home(uid):
    """A home of a user's own; the environment in which it is one."""
    path = f"/tmp/rf-mcp-{uid}"
    os.makedirs(path, exist_ok=True)
    os.chown(path, uid, uid)
    return {"HOME": path, "PATH": os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin")}


class Client:
    """An MCP client: a shell that starts the interceptor, so that this process descends from no client."""

    def __init__(self, name, profile_name, uid=0, own=False, options=()):
        with open(SCRIPT, "w") as file:
            file.write(SERVER)
        os.chmod(SCRIPT, 0o644)
        words = ["ringfence", "mcp", "--server-name", name, *(["--profile", profile_name] if profile_name else []), *options,
                 "--", PYTHON, "-E", "-s", "-S", "-B", "-u", SCRIPT]
        # With `own`, this very process is the client.
        words = words if own else ["sh", "-c", '"$@"; exit $?', "client", *words]
        self.process = subprocess.Popen([*(become(uid) if uid else []), *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, cwd="/", env=home(uid))
        self.errors = []
        self.hearing = threading.Thread(target=lambda: self.errors.extend(self.process.stderr), daemon=True)
        self.hearing.start()
        self.answers = {}
        self.changed = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()
        self.number = 0
        self.wait(self.send("initialize", {}))

    def _read(self):
        for line in self.process.stdout:
            message = json.loads(line)
            with self.changed:
                self.answers[message.get("id")] = message
                self.changed.notify_all()
        with self.changed:
            self.answers[None] = "ended"
            self.changed.notify_all()

    def send(self, method, params):
        """Asks; the request's id."""
        self.number += 1
        line = json.dumps({"jsonrpc": "2.0", "id": self.number, "method": method, "params": params})
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.number

    def ask(self, tool, **given):
        """Calls a tool; the request's id."""
        return self.send("tools/call", {"name": tool, "arguments": given})

    def wait(self, number, seconds=PATIENCE):
        """The answer."""
        with self.changed:
            self.changed.wait_for(lambda: number in self.answers or None in self.answers, seconds)
        assert number in self.answers, f"no answer to {number}: {self.answers.get(None)}; stderr {self.errors[-10:]}"
        return self.answers[number]

    def call(self, tool, **given):
        """Calls a tool; what it answered."""
        return self.wait(self.ask(tool, **given))

    def interceptor(self):
        """The interceptor's process id."""
        if len(children(self.process.pid)) == 1 and b"mcp" in open(f"/proc/{children(self.process.pid)[0]}/cmdline", "rb").read().split(b"\0"):
            return children(self.process.pid)[0]
        return self.process.pid

    def stop(self):
        """Ends the session. What was said on standard error is read by then."""
        self.process.stdin.close()
        self.process.wait(PATIENCE)
        self.hearing.join(PATIENCE)


def children(pid):
    """Children of a process."""
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(one) for one in file.read().split()]


def calls(*args, uid=0):
    """What `ringfence mcp calls --json` tells a user."""
    return rows("calls", *args, uid=uid)


def rows(*args, uid=0):
    """What a command tells a user, a JSON object a line."""
    result = command(uid, *args, "--json")
    assert result.returncode == 0, f"{args}: {said(result)}"
    return [json.loads(line) for line in result.stdout.splitlines()]


def command(uid, *args):
    """Runs the command line as a user."""
    words = [*(become(uid) if uid else []), "ringfence", *args]
    return subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL, cwd="/", env=home(uid), timeout=PATIENCE)


def recorded(tool, uid=0, **given):
    """Calls of a tool with such arguments, whole: rows are made from the journal a little after the client has its answer."""
    found = []

    def are_whole():
        found[:] = [one for one in calls("--limit", "500", uid=uid)
                    if one["tool_name"] == tool and given.items() <= one["arguments"].items()]
        return found and all(one["responded_at"] for one in found)

    wait_for(are_whole, f"{tool} {given} on record, with its answer")
    return found


def call_of(tool, path, uid=0):
    """The one call of a tool about a path."""
    found = recorded(tool, uid, path=path)
    assert len(found) == 1, f"{tool} of {path}: {found}"
    return found[0]


def attributed(path, word):
    """The denied open of a path, once it is attributed so: how far a journal was read is a part of that, and of what is
    behind it an event is not sure yet."""
    seen = []

    def is_so():
        seen[:] = [wait_event(denial(path))]
        return seen[0]["attribution"] == word

    try:
        wait_for(is_so, f"{path} to be {word}")
    except AssertionError as error:
        raise AssertionError(f"{error}: {seen}") from None
    return seen[0]


def touch(path):
    """Makes a file that a call waits for."""
    with open(path, "w"):
        pass


def denial(path):
    """For `wait_event`: a denied open."""
    return lambda event: event["op"] == "open" and event.get("path") == path and event["verdict"] == "denied"


def forbidden_files(name, count):
    """Files that no profile of these scenes grants."""
    paths = []
    for number in range(count):
        _, path = targets(f"{name}-{number}")
        paths.append(path)
    return paths


@scene("system/mcp-sole", limit=120)
def sole():
    """a denied file opened by a child of the only call in flight is that call's, for root and for an ordinary user"""
    profile("rf-mcp", where=SYSTEM)
    for uid in (0, 65534):
        allowed, _ = targets("mcp-sole")
        first, second = forbidden_files(f"mcp-sole-{uid}", 2)
        client = Client("files", "rf-mcp", uid)
        assert "secret-mcp-sole" in json.dumps(client.call("read_file", path=allowed))
        for path in (first, second):
            assert "ermission denied" in json.dumps(client.call("read_file", path=path))
        for path in (first, second):
            call = call_of("read_file", path, uid)
            event = attributed(path, "sole")
            assert event["tool_call"] == call["id"], f"{event} is not {call['id']}'s"
            assert event["uid"] == uid and event["container"] == call["container"], (event, call)
            shown = rows("calls", call["id"], uid=uid)[0]
            paths = [one.get("path") for one in shown["events"] if one["attribution"] == "sole"]
            assert path in paths, shown
            assert shown["enforcement"] == "kernel" and shown["profile"] == "rf-mcp", shown
        client.stop()
        assert any("enforcement: kernel" in line for line in client.errors), client.errors
    os.unlink(f"{SYSTEM}/rf-mcp.toml")


@scene("system/mcp-ambiguous-and-none", limit=120)
def ambiguous():
    """two calls in flight: ambiguous with both; the server itself: ambiguous with the one; nothing in flight: none"""
    profile("rf-mcp-two", where=SYSTEM)
    both, own, later = forbidden_files("mcp-ambiguous", 3)
    allowed, _ = targets("mcp-ambiguous")
    client = Client("files", "rf-mcp-two")
    # Each waits for a file, so that what is in flight at once is so on any machine.
    both_over, later_begins = (f"{BASE}/allow/mcp-{name}" for name in ("both-over", "later-begins"))
    for path in (both_over, later_begins):
        if os.path.exists(path):
            os.unlink(path)
    slow = client.ask("read_file", path=allowed, until=both_over)
    client.call("read_file", path=both)
    assert slow not in client.answers, "the other call is over"
    touch(both_over)
    client.wait(slow)
    client.call("get_own", path=own)
    client.call("get_later", path=later, until=later_begins)
    # The answer is on record: nothing is in flight.
    call_of("get_later", later)
    touch(later_begins)
    two = {call_of("read_file", both)["id"], call_of("read_file", allowed)["id"]}
    event = attributed(both, "ambiguous")
    assert set(event["candidates"]) == two and event["tool_call"] is None, event
    only = call_of("get_own", own)["id"]
    event = attributed(own, "ambiguous")
    assert event["candidates"] == [only], event
    event = attributed(later, "none")
    assert event["tool_call"] is None and not event.get("candidates"), event
    client.stop()
    os.unlink(f"{SYSTEM}/rf-mcp-two.toml")


@scene("system/mcp-approvals", limit=180)
def approvals():
    """another uid, a governed process and what the client started approve nothing; the right user does"""
    uid, other = 65534, 65533
    # A call that nobody decides is refused after a time: not while this scene is on its way to it.
    waits = ("--approval-timeout", "3600")
    client = Client("files", None, uid, options=waits)
    number = client.ask("delete_thing", path="/x")
    wait_for(lambda: rows("approvals", uid=uid), "the call to wait")
    waiting = rows("approvals", uid=uid)[0]["id"]
    assert not rows("approvals", uid=other), "another user sees it"
    result = command(other, "approve", waiting)
    assert result.returncode != 0 and f"uid {uid}" in result.stderr, said(result)
    # Granted the socket, and nothing else stands in its way.
    with open(f"{SYSTEM}/rf-mcp-peer.toml", "w") as file:
        file.write(profile_text("vm test scene", "all", ["/tmp"], "all", ["unix:/run/ringfence/mcp.sock"], kernel=""))
    ringfence_path = subprocess.run(["sh", "-c", "command -v ringfence"], capture_output=True, text=True).stdout.strip()
    for verb in ("approve", "deny"):
        result = command(uid, "run", "--profile", "rf-mcp-peer", "--env", "HOME", "--", ringfence_path, verb, waiting)
        assert result.returncode != 0 and "belongs to a container" in result.stderr, said(result)
    result = command(uid, "run", "--profile", "rf-mcp-peer", "--env", "HOME", "--", ringfence_path, "dashboard")
    assert result.returncode != 0 and "belongs to a container" in result.stderr and "token" not in result.stdout, said(result)
    assert rows("approvals", uid=uid), "a refusal decided it"
    result = command(uid, "approve", waiting)
    assert result.returncode == 0, said(result)
    assert "did delete_thing" in json.dumps(client.wait(number))
    result = command(uid, "approve", waiting)
    assert result.returncode != 0, "it counted twice"
    client.stop()
    # This process is the client now.
    client = Client("files", None, own=True, options=waits)
    number = client.ask("delete_thing", path="/y")
    wait_for(lambda: rows("approvals"), "the call to wait")
    waiting = rows("approvals")[0]["id"]
    for verb in (("approve", waiting), ("deny", waiting), ("dashboard",)):
        result = command(0, *verb)
        assert result.returncode != 0 and "does not approve its own calls" in result.stderr, said(result)
    client.stop()
    os.unlink(f"{SYSTEM}/rf-mcp-peer.toml")


# The end of a line of a hundred and fifty processes: forty questions of one user at once that only the core can answer.
DEEP = r'''
import json, os, socket, struct, sys
for _ in range(150):
    child = os.fork()
    if child:
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
question = json.dumps({"request": sys.argv[1]}).encode()
held, answers = [], []
for _ in range(40):
    held.append(socket.socket(socket.AF_UNIX))
    held[-1].settimeout(100)
    held[-1].connect("/run/ringfence/mcp.sock")
    held[-1].sendall(struct.pack(">I", len(question)) + question)
for one in held:
    answers.append(one.makefile("rb").read().decode(errors="replace"))
assert all("64 ancestors" in answer or "try again" in answer for answer in answers), answers
'''


@scene("system/mcp-crowd", limit=240)
def crowd():
    """forty questions from below a hundred and fifty processes are refused, and stop nobody's approvals, dashboard or sessions"""
    uid, hostile = 65534, 65533
    targets("mcp-crowd")
    client = Client("files", None, uid, options=("--approval-timeout", "3600"))
    number = client.ask("delete_thing", path="/x")
    wait_for(lambda: rows("approvals", uid=uid), "the call to wait")
    waiting = rows("approvals", uid=uid)[0]["id"]
    deep = [*become(hostile), PYTHON, "-c", DEEP, "dashboard"]
    started = subprocess.Popen(deep, cwd="/", stderr=subprocess.PIPE, text=True)
    # Beside them, and then after them: the same auditor.
    auditor = role_pids("auditor")
    result = command(uid, "dashboard")
    assert result.returncode == 0 and "token=" in result.stdout, said(result)
    _, errors = started.communicate(timeout=PATIENCE)
    assert started.returncode == 0, errors
    second = Client("more", None, uid)
    second.stop()
    result = command(uid, "approve", waiting)
    assert result.returncode == 0, said(result)
    assert "did delete_thing" in json.dumps(client.wait(number))
    assert role_pids("auditor") == auditor, "it was started anew"
    # The control: the hostile user from an ordinary place.
    result = command(hostile, "dashboard")
    assert result.returncode == 0 and "token=" in result.stdout, said(result)
    client.stop()


@scene("system/mcp-kill", limit=180)
def kill():
    """kill -9 of the auditor, the core and the interceptor: each forwarded call is on record afterwards"""
    profile("rf-mcp-kill", where=SYSTEM)
    allowed, _ = targets("mcp-kill")
    client = Client("files", "rf-mcp-kill")
    names = []

    def read(count):
        for _ in range(count):
            names.append(f"{len(names)}")
            client.call("get_own", path=allowed, name=names[-1])

    read(20)
    old = kill_role("auditor")
    read(20)
    wait_for(lambda: role_pids("auditor") and not set(role_pids("auditor")) & set(old), "another auditor")
    read(20)
    session = max(recorded("get_own", name=names[-1]), key=lambda one: one["requested_at"])["session_id"]

    def of_session(tool):
        return [one for one in calls("--session", session, "--limit", "500") if one["tool_name"] == tool]

    number = client.ask("read_file", path=allowed, until=f"{BASE}/allow/never")
    wait_for(lambda: of_session("read_file"), "the call to be forwarded")
    pid = client.interceptor()
    server = [one for one in descendants(pid) if SCRIPT.encode() in open(f"/proc/{one}/cmdline", "rb").read()]
    assert server, f"no server below {pid}"
    os.kill(pid, 9)
    wait_for(lambda: not any(os.path.exists(f"/proc/{one}") and alive(one) for one in server), "the server to be gone")
    client.process.wait(PATIENCE)
    assert number not in client.answers
    # What the interceptor left is read after its end.
    wait_for(lambda: next(one for one in rows("sessions") if one["id"] == session)["ended_at"], "the session's end on record")
    found = of_session("get_own")
    assert sorted(one["arguments"]["name"] for one in found) == sorted(names), f"{len(found)} of {len(names)} are on record"
    cut = of_session("read_file")
    assert len(cut) == 1 and cut[0]["responded_at"] is None, cut
    verified = ringfence("audit", "verify", env=home(0))
    assert verified.returncode == 0, said(verified)
    os.unlink(f"{SYSTEM}/rf-mcp-kill.toml")


def descendants(pid):
    """All processes below one."""
    found = children(pid)
    return found + [one for child in found for one in descendants(child)]


def alive(pid):
    """Whether a process has not ended."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


@scene("system/mcp-dashboard", limit=120)
def dashboard():
    """a user's link opens that user's rows and no others; root's opens all"""
    for uid in (65534, 65533):
        client = Client(f"of-{uid}", None, uid)
        client.call("get_things", path=f"/of/{uid}")
        client.stop()
        call_of("get_things", f"/of/{uid}", uid)
    seen = {}
    for uid in (0, 65534, 65533):
        link = command(uid, "dashboard")
        assert link.returncode == 0, said(link)
        address, token = link.stdout.strip().split("/#token=")
        seen[uid] = (address, token)
        listed = get(address, token, "/api/tool-calls?limit=1000")
        servers = {one["server_name"] for one in listed}
        if uid:
            assert f"of-{uid}" in servers and {one["uid"] for one in listed} == {uid}, f"uid {uid} sees {servers}"
            assert {one["uid"] for one in get(address, token, "/api/sessions?limit=1000")} == {uid}
        else:
            assert {"of-65534", "of-65533"} <= servers, servers
    assert len({token for _, token in seen.values()}) == 3, "tokens are shared"
    theirs = call_of("get_things", "/of/65533", 65533)["id"]
    for path, expected in ((f"/api/tool-calls/{theirs}", 404), ("/metrics", 403)):
        try:
            get(*seen[65534], path)
            raise AssertionError(f"{path} of another user was answered")
        except urllib.error.HTTPError as error:
            assert error.code == expected, f"{path}: {error.code}"
    status = json.loads(ringfence("status", "--json").stdout)
    assert status["store"]["mcp"]["dashboard"] > 0, status["store"]


def get(address, token, path):
    """A GET with the token."""
    request = urllib.request.Request(address + path, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        return json.load(answer)


# A tool's way to a server: one call, which names the tool's own call. Its input ends once there is an answer: a server that
# is still starting then is not given long.
ASK = r"""{ printf '%s\n' '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"'$2'","arguments":{},"_meta":{"agent/toolUseId":"'$1'"}}}'
  until [ -e $3/$1 ]; do sleep 0.1; done; } \
    | HOME=$3 RINGFENCE mcp --server-name notes -- PYTHON -E -s -S -B -u $3/server.py \
    | { read -r answer; : > $3/$1; printf '%s\n' "$answer"; }"""


@scene("system/mcp-runtime", limit=300)
def runtime():
    """calls that tools of a runtime make over MCP, each naming its own call, are one intent for each message of the owner's"""
    provider = agents.Provider()
    binary = shutil.which("ringfence")
    path, box = agents.agent("rf-asked", provider, reach=["/run/ringfence/mcp.sock"], programs=[binary])
    for name, text in (("ask.sh", ASK.replace("PYTHON", PYTHON).replace("RINGFENCE", binary)), ("server.py", SERVER)):
        with open(f"{box}/{name}", "w") as file:
            file.write(text)
    ran = agents.Runtime("rf-asked", box)

    def asks(number, *tools):
        """A message of the owner's that makes the model ask for so many calls; the message."""
        text = json.dumps([[f"toolu_asked_{number}_{tool}", "bash", {"command": f"sh {box}/ask.sh toolu_asked_{number}_{tool} {tool} {box}"}]
                           for tool in tools])
        agents.send("rf-asked", text, about=ran.said)
        return text

    def of(tool):
        found = recorded(tool)
        assert len(found) == 1, f"{tool}: {found}; {provider.asked[-1][1]['messages'][-1]}"
        return rows("calls", found[0]["id"])[0]

    first, second = asks(1, "get_one", "get_two"), asks(2, "get_three")
    one, two, three = of("get_one"), of("get_two"), of("get_three")
    for call, text in ((one, first), (two, first), (three, second)):
        assert call["intent_source"] == "runtime" and call["human_prompt"] == text and "did get_" in json.dumps(call["result"]), call
    assert one["intent_id"] == two["intent_id"] != three["intent_id"], (one, two, three)
    ran.stop()
    agents.remove(path, "rf-asked")


@scene("system/mcp-profile-errors", limit=90)
def profile_errors():
    """a missing profile, a broken one and a missing server: an answer for the client, and a clear status"""
    profile("rf-mcp-good", where=SYSTEM)
    with open(f"{SYSTEM}/rf-mcp-broken.toml", "w") as file:
        file.write("[grnt]\n")
    request = '{"jsonrpc":"2.0","id":7,"method":"initialize","params":{}}\n'
    for name, server, status, word in (("rf-no-such", PYTHON, 125, "rf-no-such"), ("rf-mcp-broken", PYTHON, 125, "grnt"),
                                       ("rf-mcp-good", "no-such-server", 127, "not found"),
                                       ("rf-mcp-good", f"{HERE}/lib/case.py", 126, "executable")):
        result = subprocess.run(["ringfence", "mcp", "--profile", name, "--", server], input=request, capture_output=True, text=True,
                                cwd="/", env=home(0), timeout=PATIENCE)
        assert result.returncode == status, f"{name} {server}: {said(result)}"
        answer = json.loads(result.stdout)
        assert answer["id"] == 7 and word in answer["error"]["message"], answer
    for name in ("good", "broken"):
        os.unlink(f"{SYSTEM}/rf-mcp-{name}.toml")
    assert events("--limit", "1") is not None
