"""Scenes of the tool server where the daemon runs: what its tools start is governed, whatever they do."""

import json
import os
import shutil
import stat
import subprocess

from case import scene
from harness import PYTHON
from system import PATIENCE, wait_event

HOME = "/srv/rf/tools"
INSIDE, OUTSIDE = f"{HOME}/in", f"{HOME}/out"

# Runs a program from memory: a copy of the file that the first argument names.
MEMFD = """
import os, sys
memory = os.memfd_create("copy")
os.write(memory, open(sys.argv[1], "rb").read())
os.execve(memory, sys.argv[1:], {})
"""


def grant(exec_, **rest):
    """A grant of some programs; reads are free, writes are not."""
    axes = {"fs_read": "all", "fs_write": {"only": [INSIDE]}, "exec": {"only": exec_}, "net": {"only": []},
            "max_calls": "unlimited", "valid_for_generation": "all"}
    return json.dumps({**axes, **rest})


def session(given, calls):
    """A whole session of the tool server: each call's text, its envelope where there is one; and what was said on stderr."""
    lines = [json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call",
                         "params": {"name": "shell", "arguments": {**arguments, "timeout_secs": PATIENCE}}})
             for number, arguments in enumerate(calls)]
    environment = {"PATH": "/usr/bin:/bin", "HOME": HOME, "RINGFENCE_GRANT": given}
    done = subprocess.run([shutil.which("ringfence"), "tools", "--workdir", INSIDE], input="\n".join(lines) + "\n", capture_output=True, text=True,
                          timeout=PATIENCE * 2, cwd="/", env=environment)
    answers = {}
    for line in done.stdout.splitlines():
        answer = json.loads(line)
        answers[answer["id"]] = answer["result"]["content"][0]["text"]
    assert len(answers) == len(calls), f"{len(answers)} answers to {len(calls)} calls, status {done.returncode}: {done.stderr[-1500:]}"
    return [answers[number] for number in range(len(calls))], done.stderr


def sh(script):
    return {"program": "sh", "args": ["-c", script]}


def places():
    """Directories and files of these scenes; anyone could write them, but for the grant."""
    for directory in (INSIDE, OUTSIDE):
        os.makedirs(directory, exist_ok=True)
        with open(f"{directory}/file", "w") as file:
            file.write("content\n")
        os.chmod(f"{directory}/file", 0o644)


@scene("system/tools-exec")
def execs():
    """a granted program starts nothing that is not granted: by find, xargs, env, sh, git, the loader, a copy in memory"""
    places()
    loader = os.path.realpath("/lib64/ld-linux-x86-64.so.2")
    python = os.path.realpath(PYTHON)
    # Each way with a program that is not granted, and the same way with one that is.
    ways = [
        ("find", lambda program: {"program": "find", "args": [f"{INSIDE}/file", "-exec", program, "{}", ";"]}),
        ("xargs", lambda program: sh(f"echo {INSIDE}/file | xargs {program}")),
        ("env", lambda program: {"program": "env", "args": [program, f"{INSIDE}/file"]}),
        ("sh", lambda program: sh(f"{program} {INSIDE}/file")),
        ("git", lambda program: {"program": "git", "args": ["-c", f"alias.x=!{program} {INSIDE}/file", "x"]}),
        ("grandchild", lambda program: sh(f"sh -c 'sh -c \"{program} {INSIDE}/file\"'")),
    ]
    calls = [way(program) for _, way in ways for program in ("/usr/bin/wc", "/usr/bin/cat")]
    calls.append(sh(f"{loader} /usr/bin/wc {INSIDE}/file"))
    calls.append({"program": python, "args": ["-c", MEMFD, "/usr/bin/wc", f"{INSIDE}/file"]})
    calls.append({"program": python, "args": ["-c", f"print(open('{INSIDE}/file').read())"]})
    given = grant(["find", "xargs", "env", "sh", "git", "/usr/bin/cat", python])
    answers, errors = session(given, calls)
    for number, (name, _) in enumerate(ways):
        refused, control = (json.loads(text) for text in answers[2 * number:2 * number + 2])
        assert "file" not in refused["stdout"], f"{name} ran wc: {refused}"
        assert "content" in control["stdout"], f"{name} did not run cat: {control}; {errors[-800:]}"
        assert control["enforcement"]["exec"] == "kernel", control
    by_loader, from_memory, control = (json.loads(text) for text in answers[-3:])
    assert "file" not in by_loader["stdout"], f"the loader ran wc: {by_loader}"
    assert "file" not in from_memory["stdout"], f"a copy in memory ran: {from_memory}"
    assert "content" in control["stdout"], f"python did not run: {control}"
    container = errors.split("container ")[1].split(",")[0]
    for path in ("/usr/bin/wc", "memfd"):
        wait_event(lambda event, path=path: event["verdict"] == "denied" and path in str(event.get("path")) and container in str(event))


@scene("system/tools-change")
def changes():
    """a mode outside of what may be written stays; so do files, and sockets are not made to the outside"""
    places()
    server = "import socket; socket.create_connection(('127.0.0.1', 9))"
    calls = [
        {"program": "chmod", "args": ["600", f"{INSIDE}/file"]},
        {"program": "chmod", "args": ["600", f"{OUTSIDE}/file"]},
        sh(f"echo more > {INSIDE}/new"),
        sh(f"sh -c 'echo more > {OUTSIDE}/new'"),
        {"program": os.path.realpath(PYTHON), "args": ["-c", server]},
    ]
    answers, errors = session(grant(["chmod", "sh", os.path.realpath(PYTHON)]), calls)
    results = [json.loads(text) for text in answers]
    assert [result["exit_code"] == 0 for result in results] == [True, False, True, False, False], f"{results} {errors[-800:]}"
    assert stat.S_IMODE(os.stat(f"{INSIDE}/file").st_mode) == 0o600
    assert stat.S_IMODE(os.stat(f"{OUTSIDE}/file").st_mode) == 0o644, "the mode of a file outside was changed"
    assert os.path.exists(f"{INSIDE}/new") and not os.path.exists(f"{OUTSIDE}/new")
    # Refused, and not merely unanswered: nobody listens on that port.
    assert "PermissionError" in results[4]["stderr"], results[4]
    assert results[1]["enforcement"] == {"exec": "kernel", "fs_read": "none", "fs_write": "kernel", "net": "kernel"}, results[1]


@scene("system/tools-profile")
def by_profile():
    """a profile that is named holds with its denies; the tools of one session are one container, and it ends with them"""
    places()
    path = "/etc/ringfence/profiles/rf-tools.toml"
    with open(path, "w") as file:
        file.write(f"""[grant]
fs_read = {{ only = ["{HOME}"] }}
fs_write = {{ only = [] }}
exec = {{ only = ["cat", "sh"] }}
net = {{ only = [] }}
max_calls = "unlimited"
valid_for_generation = "all"
[deny]
fs_read = ["{OUTSIDE}"]
""")
    try:
        lines = "".join(json.dumps({"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": {"name": "shell", "arguments": call}}) + "\n"
                        for number, call in enumerate([sh(f"cat {INSIDE}/file"), sh(f"cat {OUTSIDE}/file")]))
        done = subprocess.run([shutil.which("ringfence"), "tools", "--profile", "rf-tools", "--workdir", INSIDE], input=lines, capture_output=True,
                              text=True, timeout=PATIENCE, cwd="/", env={"PATH": "/usr/bin:/bin", "HOME": HOME})
        results = {}
        for line in done.stdout.splitlines():
            answer = json.loads(line)
            results[answer["id"]] = json.loads(answer["result"]["content"][0]["text"])
        assert results[0]["stdout"] == "content\n", f"{results} {done.stderr[-800:]}"
        assert results[1]["exit_code"] == 1 and not results[1]["stdout"], results
        event = wait_event(lambda event: event["verdict"] == "denied" and event.get("path") == f"{OUTSIDE}/file" and event["profile"] == "rf-tools")
        assert event["op"] == "open", event
    finally:
        os.remove(path)
        shutil.rmtree(HOME, ignore_errors=True)
