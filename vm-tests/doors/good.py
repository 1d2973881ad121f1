"""The well-behaved: an agent's turns, an MCP session whose calls its user decides, a reader of the dashboard, a user of the command line.

Each is a thread with a steady rhythm. What it was answered is looked at there and then; what must be on record is kept for the end.
"""

import hashlib
import http.client
import http.server
import json
import os
import select
import subprocess
import threading
import time

import agents
from places import BASE, DASHBOARD, GOOD, GOOD_SERVER, OWNER, PYTHON, RUNTIME, SECRET, TOLD, USER, Pace, as_user, box, environment, sock

# Seconds that anything may take before it is lost. Latency is told and not judged; this is no latency any more.
LOST = 600
# What a command says that gave up and did nothing, or whose end nobody heard of.
AGAIN = ("within the time allowed", "try again", "did not take the message: it is not known who this is: the daemon does not answer")
# Seconds from one turn, approval, question to the next.
TURNS, APPROVALS, QUESTIONS, COMMANDS = 6, 5, 2, 6
# The session is ended, and another one begun, after so many calls.
CALLS_EACH = 20
# Looks at the daemon's threads while a command gets no answer.
MOST_DIAGNOSED = 6

SERVER = r'''
import json, subprocess, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message: continue
    asked = message.get("params", {})
    text = "hello"
    if message.get("method") == "tools/call":
        path = asked["arguments"]["path"]
        if asked["name"] == "read_file":
            done = subprocess.run(["/usr/bin/cat", path], capture_output=True, text=True)
            text = done.stdout or done.stderr
        else:
            text = "did " + asked["name"] + " " + path
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": {"content": [{"type": "text", "text": text}]}}), flush=True)
'''


class Ledger:
    """What was done and how long it took, by the phase it was done in; what was wrong."""

    def __init__(self):
        self.lock = threading.Lock()
        self.phase = "quiet"
        self.took = {}
        self.problems = []
        self.diagnosed = 0
        self.stopping = threading.Event()

    def done(self, what, begun):
        """Something took from `begun` until now."""
        with self.lock:
            self.took.setdefault((what, self.phase), []).append(time.monotonic() - begun)

    def wrong(self, what):
        """Something is not as it should be."""
        with self.lock:
            if len(self.problems) < 200:
                self.problems.append(what[:2000])
        print(f"wrong: {what[:2000]}", flush=True)

    def diagnose(self, why):
        """What the daemon's threads do while somebody waits in vain, and what it logged: the first few times."""
        with self.lock:
            if self.diagnosed >= MOST_DIAGNOSED:
                return
            self.diagnosed += 1
        import watch  # which needs this module

        log = subprocess.run(["journalctl", "--unit", watch.UNIT, "--no-pager", "--lines", "40"], capture_output=True, text=True, errors="replace")
        told = (watch.backlog(), *watch.calls(), *watch.inside(), *log.stdout.splitlines())
        print(f"# no answer: {why}", *(f"#   {line}" for line in told), sep="\n", flush=True)

    def every(self, seconds, act):
        """A thread that acts in a rhythm until the end; an error is a problem, and not the end."""

        def run():
            pace = Pace(seconds)
            while not self.stopping.is_set():
                pace.wait()
                try:
                    act()
                except Exception as error:  # whatever it is, it is the finding
                    self.wrong(f"{getattr(act, '__qualname__', act)}: {error!r}")
                    time.sleep(1)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        return thread


def command(uid, *words):
    """Runs the command line as a user; its result."""
    return subprocess.run([*(as_user(uid) if uid else []), "ringfence", *words], capture_output=True, text=True, errors="replace",
                          stdin=subprocess.DEVNULL, cwd="/", env=environment(uid) if uid else None, timeout=LOST)


def patiently(ledger, uid, *words):
    """The same, by somebody who tries again when the command gives up because there was no answer in its time, and tells."""
    end = time.monotonic() + LOST
    while True:
        begun = time.monotonic()
        result = command(uid, *words)
        if result.returncode == 0 or time.monotonic() > end or not any(word in result.stderr for word in AGAIN):
            return result
        ledger.done(f"gave up, and was tried again: {words[0]}", begun)
        ledger.diagnose(f"{words[0]}: {result.stderr[-300:]}")


def put(path, text):
    """Makes a file; its path."""
    with open(path, "w") as file:
        file.write(text)
    return path


def said(result):
    """A result in words."""
    return f"status {result.returncode}, stdout {result.stdout[-600:]!r}, stderr {result.stderr[-600:]!r}"


class Model(agents.Provider):
    """A scripted model: two calls for a message `turn N`, then words made from their results, which it looks at."""

    def __init__(self, ledger):
        super().__init__()
        self.ledger, self.expected = ledger, {}
        model = self

        class Handler(http.server.BaseHTTPRequestHandler):
            """One request after the other."""

            protocol_version = "HTTP/1.1"

            def do_POST(self):
                """An answer in one piece."""
                out = model.answer(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {len(out)}\r\n\r\n"
                self.wfile.write(head.encode() + out)

            def log_message(self, *_):
                """Not a word."""

        self.server.RequestHandlerClass = Handler

    def answer(self, body):
        """The answer to a request."""
        last = body["messages"][-1]["content"]
        last = [{"type": "text", "text": last}] if isinstance(last, str) else last
        results = [(block["tool_use_id"], words(block["content"])) for block in last if block["type"] == "tool_result"]
        if not results:
            number = int(next(block["text"] for block in last if block["type"] == "text").split()[1])
            return agents.answer(list(calls(number)), "tool_use")
        number = int(results[0][0].split("_")[2])
        self.look(number, results)
        self.expected[number] = f"turn {number}: {hashlib.sha256(json.dumps(results).encode()).hexdigest()[:24]}"
        return agents.answer([self.expected[number]], "end_turn")

    def look(self, number, results):
        """Both results are there, in their order, and say what the tools found."""
        if [call for call, _ in results] != [call[0] for call in calls(number)]:
            self.ledger.wrong(f"turn {number}: results of other calls: {results}")
        elif results[0][1].split() != [f"token-{number}", f"refused-{number}"] or "what is there" not in results[1][1]:
            self.ledger.wrong(f"turn {number}: results that are not the tools': {results}")


def words(content):
    """The text of a block, in either of its forms."""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def calls(number):
    """The calls of a turn: a file of its own made and read, one that is denied, one that is there."""
    place = f"{box(GOOD)}/t/{number}"
    script = f"echo token-{number} > {place}; cat {place}; cat {SECRET}/good-{number} 2> /dev/null || echo refused-{number}"
    yield f"toolu_g_{number}_0", "bash", {"command": script}
    yield f"toolu_g_{number}_1", "read_file", {"path": f"{box(GOOD)}/readme"}


class Turns:
    """The agent and its owner."""

    def __init__(self, ledger, model):
        self.ledger, self.model = ledger, model
        self.sent, self.answered = 0, 0
        os.makedirs(f"{box(GOOD)}/t", exist_ok=True)
        os.chown(f"{box(GOOD)}/t", OWNER, OWNER)
        put(f"{box(GOOD)}/readme", "what is there\n")
        put(f"{box(GOOD)}/prompt.md", "You are steady.")
        self.log = open(f"{BASE}/good.runtime.log", "w+")
        words = ["ringfence", "run", "--profile", GOOD, "--", RUNTIME, "--system-prompt", f"{box(GOOD)}/prompt.md", "--tools", "bash,read_file",
                 "--socket", sock(GOOD)]
        self.runtime = subprocess.Popen([*as_user(OWNER), *words], cwd=box(GOOD), env=environment(OWNER), stdin=subprocess.DEVNULL,
                                        stdout=self.log, stderr=self.log)

    def turn(self):
        """A message, whole."""
        number, self.sent = self.sent, self.sent + 1
        put(f"{SECRET}/good-{number}", "leaked\n")
        begun = time.monotonic()
        # A message that was not taken is not sent: only then is it sent again.
        result = patiently(self.ledger, OWNER, "send", GOOD, f"turn {number} of the steady one")
        self.ledger.done("turn", begun)
        expected = self.model.expected.pop(number, None)
        if result.returncode or not expected or result.stdout.strip() != expected:
            self.ledger.wrong(f"turn {number}: {said(result)}, expected {expected!r}")
        else:
            self.answered += 1


class Session:
    """An MCP client and its user, who decides each call that waits."""

    def __init__(self, ledger):
        self.ledger = ledger
        self.number, self.rounds = 0, 0
        # What must be on record of each call, by the path that it is about. One that is lost is told when it is.
        self.expected = {}
        self.client = None
        self.script = put(f"{BASE}/server.py", SERVER)

    def begin(self):
        """A session; what its start and the first answer take."""
        begun = time.monotonic()
        words = ["ringfence", "mcp", "--server-name", "steady", "--profile", GOOD_SERVER, "--approval-timeout", "3600", "--", PYTHON, "-I", "-S", "-u",
                 self.script]
        # A shell starts it, so that this process is no client whose calls it would decide itself.
        self.client = subprocess.Popen([*as_user(USER), "sh", "-c", '"$@"; exit $?', "client", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                       stderr=open(f"{BASE}/steady.log", "a"), text=True, cwd="/", env=environment(USER))
        self.say("initialize", {})
        self.hear()
        self.ledger.done("MCP session: start to first answer", begun)

    def end(self):
        """The session's end."""
        self.client.stdin.close()
        self.client.wait(LOST)

    def say(self, method, params):
        """A request."""
        self.number += 1
        self.client.stdin.write(json.dumps({"jsonrpc": "2.0", "id": self.number, "method": method, "params": params}) + "\n")
        self.client.stdin.flush()

    def hear(self):
        """The answer to the last request."""
        while True:
            assert select.select([self.client.stdout], [], [], LOST)[0], f"no answer to {self.number} in {LOST} s"
            line = self.client.stdout.readline()
            assert line, f"the session ended: status {self.client.poll()}"
            message = json.loads(line)
            if message.get("id") == self.number:
                return json.dumps(message.get("result") or message.get("error"))

    def round(self):
        """A round of calls. Where one is lost the session is given up, so that the next round says nothing of this one."""
        try:
            self.calls()
        except Exception:
            with open(f"{BASE}/steady.log", errors="replace") as file:
                self.ledger.diagnose(f"the session's own words: {file.read()[-1500:]}")
            self.client.stdin.close()
            self.client.kill()
            self.client.wait()
            self.client, self.number = None, 0
            raise

    def calls(self):
        """A call that is read at once, and one that waits and is approved, or denied each fourth time."""
        if self.client is None or self.number >= CALLS_EACH:
            if self.client:
                self.end()
                self.number = 0
            self.begin()
        name, self.rounds = self.rounds, self.rounds + 1
        path = put(f"{SECRET}/steady-{name}", "leaked\n")
        self.expected[path] = ("read_file", "lost")
        begun = time.monotonic()
        self.say("tools/call", {"name": "read_file", "arguments": {"path": path}})
        answer = self.hear()
        self.ledger.done("MCP call that needs no approval", begun)
        if "ermission denied" not in answer:
            self.ledger.wrong(f"a read of {path}: {answer}")
        self.expected[path] = ("read_file", "read")
        path = f"/steady-{name}"
        approve = name % 4 != 3
        self.expected[path] = ("delete_thing", "lost")
        begun = time.monotonic()
        self.say("tools/call", {"name": "delete_thing", "arguments": {"path": path}})
        waiting = self.waiting(path)
        self.ledger.done("a call is seen to wait", begun)
        os.rename(put(f"{TOLD}.new", waiting), TOLD)
        # Long enough for others to try.
        time.sleep(1)
        begun = time.monotonic()
        result = patiently(self.ledger, USER, "approve" if approve else "deny", waiting)
        # Of one that gave up nobody knows whether it was heard.
        if result.returncode and not select.select([self.client.stdout], [], [], 5)[0]:
            self.ledger.wrong(f"its user's decision of {waiting}: {said(result)}")
        answer = self.hear()
        self.ledger.done("approval: decided to answered", begun)
        if (f"did delete_thing {path}" in answer) != approve:
            self.ledger.wrong(f"{path}, {'approved' if approve else 'denied'}: {answer}")
        self.expected[path] = ("delete_thing", "approved" if approve else "denied")

    def waiting(self, path):
        """The id of the call about this path, once it waits."""
        end = time.monotonic() + LOST
        while time.monotonic() < end:
            begun = time.monotonic()
            result = patiently(self.ledger, USER, "approvals", "--json")
            self.ledger.done("ringfence approvals", begun)
            if result.returncode:
                self.ledger.wrong(f"approvals: {said(result)}")
            rows = [json.loads(line) for line in result.stdout.splitlines()]
            found = [row["id"] for row in rows if path == json.loads(row["arguments"]).get("path")]
            if len(rows) > len(found):
                self.ledger.wrong(f"others' calls wait with the user's: {rows}")
            if found:
                return found[0]
            if select.select([self.client.stdout], [], [], 0.2)[0]:
                raise AssertionError(f"{path} does not wait: {self.client.stdout.readline()!r}")
            if time.monotonic() - (end - LOST) > 60:
                self.ledger.diagnose(f"{path} is not among the waiting: {rows}")
        raise AssertionError(f"{path} does not wait")


class Reader:
    """Reads the dashboard with the user's token."""

    PATHS = ("/api/stats", "/api/waiting", "/api/tool-calls?limit=50", "/api/sessions", "/api/tool-calls/flagged")

    def __init__(self, ledger):
        self.ledger = ledger
        result = command(USER, "dashboard")
        assert result.returncode == 0 and "#token=" in result.stdout, said(result)
        self.token = result.stdout.split("#token=")[1].split()[0]
        self.port = int(result.stdout.split("127.0.0.1:")[1].split("/")[0])
        assert self.port == DASHBOARD, result.stdout
        self.asked = 0

    def ask(self):
        """A question, asked again where there was no answer in its time."""
        path = self.PATHS[self.asked % len(self.PATHS)]
        self.asked += 1
        end = time.monotonic() + LOST
        while True:
            begun = time.monotonic()
            status, text = self.answer(path)
            if status != 503 or time.monotonic() > end or not any(word in text for word in AGAIN):
                break
            self.ledger.done("gave up, and was tried again: dashboard", begun)
            self.ledger.diagnose(f"the dashboard's {path}: {text[:300]}")
        self.ledger.done("dashboard", begun)
        if status != 200:
            self.ledger.wrong(f"the dashboard's {path}: {status} {text[:300]}")
        elif "/hostile-" in text:
            self.ledger.wrong(f"the dashboard's {path} has another user's rows: {text[:300]}")

    def answer(self, path):
        """Status and text, over a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LOST)
        connection.request("GET", path, headers={"Authorization": f"Bearer {self.token}"})
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        return response.status, text


def questions(ledger):
    """A user of the command line."""

    def ask():
        for words in (("calls", "--json", "--limit", "20"), ("sessions",)):
            begun = time.monotonic()
            result = patiently(ledger, USER, *words)
            ledger.done(f"ringfence {words[0]}", begun)
            if result.returncode or "/hostile-" in result.stdout:
                ledger.wrong(f"{words}: {said(result)}")
        begun = time.monotonic()
        result = patiently(ledger, 0, "status", "--json")
        ledger.done("ringfence status, as root", begun)
        if result.returncode not in (0, 2):
            ledger.wrong(f"status: {said(result)}")

    return ask
