"""Scenes of credentials with clients as they are: each trusts the container's authority by the variables that the launcher sets, and is
served by a server that answers nobody without the credential, which none of them has."""

import base64
import os
import re
import shlex
import shutil
import ssl
import subprocess
import threading

from case import profile_text, scene
from harness import PYTHON
from system import put
from system_egress import PROFILES, SERVER, elsewhere, log, run, servers_network
from system_egress_clients import AIOHTTP, CLIENTS, COMMANDS, DATA, DEBIAN, GRANTED, MOMENT, PLACE, Served, Site, Upstream, certify, publish
from system_egress_credentials import BUNDLE

TOKEN = "rf_pat-0123456789abcdefSECRET"
BASIC = "Basic " + base64.b64encode(f"x-access-token:{TOKEN}".encode()).decode()
REPOSITORY = f"{PLACE}/www/repo.git"
RULES = ["GET /**", "HEAD /**", "POST /repo.git/git-upload-pack", "POST /repo.git/git-receive-pack", "PUT /npm/rf-published"]
REQUESTS = ("import sys; sys.path.insert(0, sys.argv[1]); from pip._vendor import requests; one = requests.get(sys.argv[2], timeout=120); "
            "one.raise_for_status(); open(sys.argv[3], 'wb').write(one.content)")
NAMED = "-c user.name=rf -c user.email=rf@rf.test"
PUSH = (f"git clone -q https://HOST/repo.git clone && cp clone/data OUT && cd clone && echo rf >more && git add more && git {NAMED} commit -qm more && "
        "git push -q origin HEAD:refs/heads/WHO")
# What npm wants to have before it asks at all; it goes nowhere.
PUBLISH = (f"mkdir one && cd one && cp {PLACE}/www/data data && printf '{{\"name\":\"rf-published\",\"version\":\"1.0.0\"}}' >package.json && "
           f"PATH={CLIENTS}:$PATH {CLIENTS}/node {CLIENTS}/npm/bin/npm-cli.js publish --registry https://HOST/npm/ --//HOST/npm/:_authToken=placeholder "
           "--cache ./cache --no-update-notifier --fetch-retries 0 && cp data OUT")


def plainly(command):
    """The same, with nothing that says whom to trust."""
    for said in ("--cacert CA ", "-c http.sslCAInfo=CA ", "--cert CA ", "NODE_EXTRA_CA_CERTS=CA ", "CARGO_HTTP_CAINFO=CA ", "SSL_CERT_FILE=CA "):
        command = command.replace(said, "")
    assert "CA " not in command.replace("CARGO", ""), command
    return command


WITH_CREDENTIALS = {
    **{name: plainly(COMMANDS[name]) for name in ("curl, HTTP/1.1", "pip", "node's fetch", "npm", "cargo", "go", "a static program of Go's")},
    "git clone and push": PUSH,
    "npm publish": PUBLISH,
    "Python urllib": f"{PYTHON} -I -c {shlex.quote('import sys, urllib.request as r; open(sys.argv[2], chr(119) + chr(98)).write(r.urlopen(sys.argv[1]).read())')} "
                     "https://HOST/data OUT",
    "requests": f"{PYTHON} -B -c {shlex.quote(REQUESTS)} $(echo /usr/share/python-wheels/pip-*.whl) https://HOST/data OUT",
    "aiohttp": f"PYTHONPATH={DEBIAN}/usr/lib/python3/dist-packages {PYTHON} -B -c "
               f"{shlex.quote(AIOHTTP.replace('ca, out', 'out').replace('ssl=ssl.create_default_context(cafile=ca)', 'ssl=ssl.create_default_context()'))} "
               "https://HOST/data OUT",
}


class Guarded(Site):
    """The site, for whoever has the credential; a repository that can be pushed to, and a registry that takes a package."""

    published = []

    def may(self):
        """Whether the request has the credential; if not, it is answered."""
        given = self.headers.get_all("Authorization") or []
        if given == [BASIC]:
            return True
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Basic realm="rf"')
        self.send_header("Content-Length", "0")
        self.end_headers()
        return False

    def do_GET(self):
        if self.may():
            self.backend() if self.path.startswith("/repo.git/") else super().do_GET()

    def do_HEAD(self):
        if self.may():
            super().do_HEAD()

    def do_POST(self):
        if self.may():
            self.backend()

    def do_PUT(self):
        if self.may():
            self.published.append(self.body())
            self.answer(201, [("Content-Type", "application/json")], b"{}")

    def body(self):
        """What the request brings, in whichever form."""
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def answer(self, status, headers, body):
        """An answer with a length."""
        self.send_response(status)
        for name, value in [*headers, ("Content-Length", str(len(body)))]:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def backend(self):
        """Git's own server."""
        path, _, query = self.path.partition("?")
        body = self.body()
        environment = {**os.environ, "GIT_PROJECT_ROOT": f"{PLACE}/www", "GIT_HTTP_EXPORT_ALL": "1", "PATH_INFO": path, "QUERY_STRING": query,
                       "REQUEST_METHOD": self.command, "CONTENT_TYPE": self.headers.get("Content-Type") or "", "CONTENT_LENGTH": str(len(body)),
                       "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding") or "", "HTTP_GIT_PROTOCOL": self.headers.get("Git-Protocol") or "",
                       "REMOTE_USER": "rf"}
        done = subprocess.run(["git", "-c", "safe.directory=*", "http-backend"], input=body, capture_output=True, check=False, env=environment)
        head, _, rest = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if ": " in line)
        self.answer(int(headers.pop("Status", "200").split()[0]), headers.items(), rest)


def prepare():
    """The site, the host's trust in it, and the profile `rf-clients`."""
    shutil.rmtree(PLACE, ignore_errors=True)
    os.makedirs(PLACE)
    certify()
    publish()
    os.makedirs(os.path.dirname(BUNDLE), exist_ok=True)
    with open(f"{PLACE}/ca.pem") as ca, open(BUNDLE, "a") as bundle:
        bundle.write(ca.read())
    run(["ip", "link", "set", "lo", "up"])
    servers_network()
    put("/etc/resolv.conf", "nameserver 127.0.0.1\n")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(f"{PLACE}/server.pem", f"{PLACE}/server.key")
    server = elsewhere(lambda: Served((SERVER, 443), Guarded))
    server.context = context
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.makedirs(PROFILES, exist_ok=True)
    text = profile_text("vm test: clients with credentials", "all", [f"{PLACE}/work", "/tmp", "/dev"], "all", [f"{GRANTED}:443"], None,
                        'capabilities = ["default"]\naudit = "denied"')
    rules = ", ".join(f'"{rule}"' for rule in RULES)
    put(f"{PROFILES}/rf-clients.toml", f'{text}\n[net.credentials."{GRANTED}"]\ntoken_env = "RF_TOKEN"\nuser = "x-access-token"\nallow = [{rules}]\n')
    return Upstream()


def attempt(command, folder):
    """What is wrong with a client that has to bring DATA; nothing: None."""
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    out = f"{folder}/out"
    script = command.replace("HOST", GRANTED).replace("OUT", out).replace("WHO", os.path.basename(folder))
    done = subprocess.run(["ringfence", "run", "--profile", "rf-clients", "--", "sh", "-c", script], capture_output=True, text=True, errors="replace",
                          stdin=subprocess.DEVNULL, timeout=MOMENT, cwd=folder,
                          env={**os.environ, "HOME": folder, "GIT_TERMINAL_PROMPT": "0", "RF_TOKEN": TOKEN}, check=False)
    said = f"status {done.returncode}: {(done.stdout + done.stderr)[-900:].strip()!r}"
    if TOKEN in done.stdout + done.stderr:
        return f"the credential is in what it printed: {said}"
    if done.returncode != 0:
        return f"{said}; {log()[-700:]}; {Site.seen[-4:]}"
    with open(out, "rb") as file:
        return None if file.read() == DATA else f"other data: {said}"


@scene("system/egress-credentials-clients", group="clients", limit=900)
def clients():
    """curl, git push, pip, npm publish, cargo, go, node, requests and aiohttp, told of nothing, are served where the credential is needed"""
    _upstream = prepare()
    # The control: without it nobody is.
    refused = subprocess.run(["curl", "-sS", "--cacert", f"{PLACE}/ca.pem", "-o", "/dev/null", "-w", "%{http_code}", f"https://{GRANTED}/data"],
                             capture_output=True, text=True, timeout=MOMENT, check=False)
    assert refused.stdout == "401", refused
    problems = []
    for name, command in WITH_CREDENTIALS.items():
        problem = attempt(command, f"{PLACE}/work/{re.match('[a-zA-Z]+', name)[0]}")
        if problem:
            problems.append(f"{name}: {problem}")
    assert not problems, "\n".join(problems)
    refs = run(["git", "-c", "safe.directory=*", "for-each-ref", "--format=%(refname)"], cwd=REPOSITORY)
    assert "refs/heads/git" in refs, refs
    assert len(Guarded.published) == 1 and b"rf-published" in Guarded.published[0], Guarded.published
    os.unlink(f"{PROFILES}/rf-clients.toml")
