"""Scenes of `ringfence run` for an agent that it knows: the model through this run, the key on the host, the profile by the kernel."""

import json
import os
import pwd
import subprocess

from agents import KEY, Provider, is_told, trace, wait_for
from case import scene
from harness import PYTHON
from system import PATIENCE, denied, said, wait_event

USER = "kit"
# Stands for Claude Code: what it finds, what it may do, and one question to its model.
AGENT = f"""#!{PYTHON}
import http.client, json, os, socket, sys
found = {{"arguments": sys.argv[1:], "variables": dict(os.environ), "tried": {{}}}}
def attempt(name, what):
    try:
        found["tried"][name] = str(what())
    except OSError as error:
        found["tried"][name] = type(error).__name__
def ask(token):
    host, port = os.environ["ANTHROPIC_BASE_URL"].removeprefix("http://").split(":")
    one = http.client.HTTPConnection(host, int(port))
    body = {{"model": "m", "max_tokens": 100, "stream": True, "messages": [{{"role": "user", "content": "hello"}}]}}
    one.request("POST", "/v1/messages?beta=true", json.dumps(body), {{"authorization": f"Bearer {{token}}"}})
    answer = one.getresponse()
    text = answer.read().decode()
    return answer.status if answer.status != 200 else "Done." in text
home, state, (other, secret) = os.environ["HOME"], os.environ["CLAUDE_CONFIG_DIR"], sys.argv[1:3]
attempt("ask", lambda: ask(os.environ["ANTHROPIC_AUTH_TOKEN"]))
attempt("ask as another", lambda: ask("ringfence-0"))
attempt("connect elsewhere", lambda: socket.create_connection(("127.0.0.1", int(other)), 5))
own = int(os.environ["ANTHROPIC_BASE_URL"].rsplit(":", 1)[1])
attempt("connect to the port elsewhere", lambda: socket.create_connection(("127.0.0.2", own), 5))
attempt("listen elsewhere", lambda: socket.create_server(("127.0.0.2", own)).close())
attempt("listen at the address", lambda: socket.create_server(("127.0.0.1", own)).close())
attempt("take the address for UDP", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).bind(("127.0.0.1", own)))
attempt("read the key file", lambda: open(secret).read())
attempt("read an ssh key", lambda: open(f"{{home}}/.ssh/id_ed25519").read())
attempt("read the launcher", lambda: open(f"/proc/{{os.getppid()}}/environ", "rb").read())
attempt("change a dotfile", lambda: open(f"{{home}}/.profile", "a").write("x"))
attempt("keep a file", lambda: open(f"{{state}}/kept", "w").write("kept"))
attempt("change the repository", lambda: open("made", "w").write("made"))
print(json.dumps(found))
"""


def prepare(agent):
    """A user with a repository, a key and this agent; gives the user's home and the two."""
    if subprocess.run(["id", USER], capture_output=True).returncode != 0:
        subprocess.run(["useradd", "--create-home", "--groups", "ringfence", USER], check=True)
    home = pwd.getpwnam(USER).pw_dir
    repository, key = f"{home}/project", f"{home}/key"
    for path, text in ((key, KEY), (f"{home}/.ssh/id_ed25519", "PRIVATE"), (f"{home}/.profile", "")):
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(text)
    os.makedirs(repository, exist_ok=True)
    subprocess.run(["chown", "-R", f"{USER}:", home], check=True)
    os.chmod(key, 0o600)
    with open("/usr/local/bin/claude", "w") as file:
        file.write(agent)
    os.chmod("/usr/local/bin/claude", 0o755)
    return home, repository, key


def become(home):
    """What a command of the user's begins with."""
    return ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--init-groups", "env", f"HOME={home}", f"USER={USER}"]


def run_claude(home, key, provider, *launcher):
    """A run of the agent, without its arguments."""
    return [*(launcher or become(home)), "ringfence", "run", "--base-url", f"http://127.0.0.1:{provider.port}", "--api-key-file", key, "claude"]


@scene("system/kit", limit=400)
def kit():
    """`ringfence run claude` as an ordinary user: its model and its own files are there, the key and all else are not"""
    home, repository, key = prepare(AGENT)
    provider = Provider()
    command = [*run_claude(home, key, provider), str(provider.port), key]
    result = subprocess.run(command, cwd=repository, capture_output=True, text=True)
    assert result.returncode == 0, said(result)
    found = json.loads(result.stdout)
    refused = "PermissionError"
    assert found["tried"] == {"ask": "True", "ask as another": "401", "connect elsewhere": refused, "connect to the port elsewhere": refused,
                              "listen elsewhere": refused, "listen at the address": "OSError", "take the address for UDP": "OSError",
                              "read the key file": refused, "read an ssh key": refused, "read the launcher": refused,
                              "change a dotfile": refused, "keep a file": "4", "change the repository": "4"}, found["tried"]
    assert found["variables"]["CLAUDE_CONFIG_DIR"] == f"{home}/.ringfence/claude", found["variables"]
    headers, body = provider.asked[-1]
    assert headers["x-api-key"] == KEY and body["model"] == "m" and len(provider.asked) == 1, provider.asked
    assert KEY not in result.stdout + result.stderr, "the key is shown"
    event = wait_event(lambda event: denied(f"{home}/.ssh/id_ed25519")(event) and event["profile"] == "claude")
    assert event["uid"] == pwd.getpwnam(USER).pw_uid, event
    logs = f"{home}/.local/share/ringfence/logs"
    (run,) = [name for name in os.listdir(logs) if name.startswith("claude.")]
    with open(f"{logs}/{run}/http.ndjson") as file:
        logged = file.read()
    assert "hello" in logged and KEY not in logged, logged


# Asks its model, is told to run a program, runs it as soon as it may, and says what came of it.
CALLER = f"""#!{PYTHON}
import http.client, json, os, subprocess, sys, time
name, wanted = sys.argv[1], sys.argv[2:]
call = f"toolu_{{name}}"
asked = [{{"type": "text", "text": json.dumps([[call, "Bash", {{"command": " ".join(wanted)}}]])}}, {{"type": "text", "text": "do it " + name}}]
messages = [{{"role": "user", "content": asked}}]
def ask():
    host, port = os.environ["ANTHROPIC_BASE_URL"].removeprefix("http://").split(":")
    one = http.client.HTTPConnection(host, int(port))
    body = {{"model": "m", "max_tokens": 100, "stream": True, "messages": messages}}
    one.request("POST", "/v1/messages", json.dumps(body), {{"authorization": "Bearer " + os.environ["ANTHROPIC_AUTH_TOKEN"]}})
    answer = one.getresponse()
    text = answer.read().decode()
    assert answer.status == 200, text
    return text
def wait(path):
    while not os.path.exists(path):
        time.sleep(0.1)
assert call in ask()
open(f"ready-{{name}}", "w").close()
wait("go")
done = subprocess.run(wanted, capture_output=True, text=True)
open(f"ran-{{name}}", "w").close()
wait("end")
messages.append({{"role": "assistant", "content": [{{"type": "tool_use", "id": call, "name": "Bash", "input": {{"command": " ".join(wanted)}}}}]}})
result = {{"type": "tool_result", "tool_use_id": call, "is_error": done.returncode != 0, "content": done.stderr}}
messages.append({{"role": "user", "content": [result]}})
assert "Done." in ask()
"""

# Somebody of the group who enrols a child of its own, and says what it likes of it on its line: first on one that enrolled nothing.
FORGER = """
import array, ctypes, json, os, socket, struct, sys
def say(door, what, beside=()):
    text = json.dumps(what).encode()
    door.sendmsg([struct.pack(">I", len(text)) + text], list(beside))
def heard(door):
    try:
        head = door.recv(4, socket.MSG_WAITALL)
        return door.recv(struct.unpack(">I", head)[0], socket.MSG_WAITALL).decode() if head else "closed"
    except ConnectionResetError:
        return "closed"
def connected():
    door = socket.socket(socket.AF_UNIX)
    door.connect("/run/ringfence/enroll.sock")
    return door
said = json.load(sys.stdin)
early = connected()
say(early, {"request": "report"})
print("early", heard(early))
reads, writes = os.pipe()
# Here, so that the child never runs without it.
ctypes.CDLL(None).prctl(38, 1, 0, 0, 0)
child = os.fork()
if child == 0:
    os.close(writes)
    if os.read(reads, 1):
        os.execv("/usr/bin/true", ["true"])
    os._exit(1)
door = connected()
say(door, {"request": "enroll", "profile": "claude", "workdir": sys.argv[1]}, [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [os.pidfd_open(child)]))])
print("enrolled", heard(door))
say(door, {"request": "report"})
print("line", heard(door))
for one in said:
    say(door, {"report": one})
# What no run may say ends the line.
say(door, {"speaker": {"number": 1}})
print("end", heard(door))
os.write(writes, b"x")
os.waitpid(child, 0)
"""


@scene("system/kit-trace", limit=400)
def kit_trace():
    """what a run's agent was asked and called is in the trace with its own container's events, and nobody speaks for another's"""
    home, repository, key = prepare(CALLER)
    provider = Provider()
    uid = pwd.getpwnam(USER).pw_uid
    secrets = {name: f"{home}/.ssh/secret-{name}" for name in ("one", "two")}
    for path in secrets.values():
        with open(path, "w") as file:
            file.write("PRIVATE")
        os.chown(path, uid, -1)
    runs = [subprocess.Popen([*run_claude(home, key, provider), name, "/usr/bin/cat", path], cwd=repository,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for name, path in secrets.items()]
    about = lambda: (trace(), [run.poll() for run in runs])

    def mine():
        """The intents of the two runs, by name."""
        return {one["text"].rsplit(" ", 1)[-1]: one for one in trace("claude")["intents"] if "do it" in one["text"] and one["calls"]}

    try:
        wait_for(lambda: len(mine()) == 2, "both calls on record", about=about)
        before = mine()
        assert before["one"]["container"] != before["two"]["container"], before
        # Somebody ends the calls and the intent of another's container, opens them again, and speaks for the kernel and the owner.
        target = before["one"]
        forged = {"id": "0123456789ab", "uid": 0, "text": "forged", "via": "send", "session": None, "container": target["container"]}
        said_ = [{"said": "call_ended", "key": target["calls"][0]["key"], "is_error": False, "output": "forged", "moment": 1},
                 {"said": "intent_ended", "id": target["intent"], "error": "forged", "moment": 1}, {"said": "began", "moment": 1 << 60},
                 {"said": "intent", **forged}, {"said": "intent", **{name: value for name, value in forged.items() if name != "container"}}]
        result = subprocess.run([*become(home), PYTHON, "-c", FORGER, repository], input=json.dumps(said_), capture_output=True, text=True, timeout=PATIENCE)
        assert result.returncode == 0, said(result)
        early, enrolled, line, end = result.stdout.splitlines()
        assert "failed" in early and '"container"' in enrolled and "ok" in line and "closed" in end, said(result)
        own = json.loads(enrolled.removeprefix("enrolled "))["ok"]["container"]
        forgeries = lambda: [one for one in trace("claude")["intents"] if one["text"] == "forged"]
        wait_for(forgeries, "what the forger says of its own container", about=about)
        (seen,) = forgeries()
        assert seen["container"] == own and seen["uid"] is None and seen["via"] == "http", seen
        now = mine()
        assert all(one["ended"] is None and one["error"] is None and one["calls"][0]["is_error"] is None for one in now.values()), now
    except BaseException:
        for run in runs:
            run.kill()
        raise
    open(f"{repository}/go", "w").close()
    wait_for(lambda: all(os.path.exists(f"{repository}/ran-{name}") for name in secrets), "both programs to have run", about=about)
    for name, path in secrets.items():
        event = wait_event(denied(path))
        assert (event["attribution"], event["tool_call"]) == ("sole", f"toolu_{name}"), event
    open(f"{repository}/end", "w").close()
    for run in runs:
        out, _ = run.communicate(timeout=PATIENCE)
        assert run.returncode == 0, out
    for name, path in secrets.items():
        # Attributed by its time alone, its model hears nothing: anybody in the container could have put that there.
        (told,) = [json.dumps(body) for _, body in provider.asked if f"do it {name}" in json.dumps(body) and "tool_result" in json.dumps(body)]
        assert "Permission denied" in told and "[Ringfence]" not in told, told
    wait_for(lambda: all(one["ended"] for one in mine().values()), "both intents' ends on record", about=about)
    for name, path in secrets.items():
        intent = mine()[name]
        assert intent["agent"] == f"claude@{uid}" and intent["via"] == "http" and intent["error"] is None, intent
        (call,) = intent["calls"]
        assert call["call"] == f"toolu_{name}" and call["is_error"] is True and "Permission denied" in call["output"], call
        refused = [event for event in call["events"] if event.get("path") == path]
        assert refused and all(event["attribution"] == "sole" and event["container"] == intent["container"] for event in refused), call
        assert not any(event.get("path") == other for event in call["events"] for other in secrets.values() if other != path), call
    # Who may see it: its user, and no other.
    for who, sees in ((become(home), True), (["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "env", "HOME=/"], False)):
        shown = subprocess.run([*who, "ringfence", "events", "trace", "claude"], capture_output=True, text=True, timeout=PATIENCE)
        assert ("do it one" in shown.stdout) == sees, said(shown)
    # Root's own runs are root's to see.
    os.makedirs("/root/project", exist_ok=True)
    for path, text in (("/root/key", KEY), ("/root/project/go", ""), ("/root/project/end", "")):
        with open(path, "w") as file:
            file.write(text)
    os.chmod("/root/key", 0o600)
    command = [*run_claude("/root", "/root/key", provider, "env", "HOME=/root"), "root", "/usr/bin/cat", "/etc/shadow"]
    result = subprocess.run(command, cwd="/root/project", capture_output=True, text=True, timeout=PATIENCE)
    assert result.returncode == 0, said(result)
    wait_for(lambda: is_told(trace("claude@0"), 1), "root's run on record", about=about)
    (call,) = trace("claude@0")["intents"][-1]["calls"]
    assert [event["attribution"] for event in call["events"] if event.get("path") == "/etc/shadow"] == ["sole"], call
