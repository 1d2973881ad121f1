"""Scenes of `ringfence run` for an agent that it knows: the model through this run, the key on the host, the profile by the kernel."""

import json
import os
import pwd
import subprocess

from agents import KEY, Provider
from case import scene
from harness import PYTHON
from system import denied, said, wait_event

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


@scene("system/kit", limit=400)
def kit():
    """`ringfence run claude` as an ordinary user: its model and its own files are there, the key and all else are not"""
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
        file.write(AGENT)
    os.chmod("/usr/local/bin/claude", 0o755)
    provider = Provider()
    command = ["ringfence", "run", "--base-url", f"http://127.0.0.1:{provider.port}", "--api-key-file", key, "claude", str(provider.port), key]
    become = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--init-groups", "env", f"HOME={home}", f"USER={USER}"]
    result = subprocess.run([*become, *command], cwd=repository, capture_output=True, text=True)
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
