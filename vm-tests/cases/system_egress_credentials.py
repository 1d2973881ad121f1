"""Scenes of credentials that are put into requests outside of a container: who has them, what they are put into, and what is left of them inside."""

import grp
import json
import os
import re
import socket
import ssl
import subprocess
import threading

from case import profile_text, scene
from harness import HERE, PYTHON
from system import PATIENCE, kill_role, put, reload, ringfence, role_pids, said, wait_for
from system_egress import PROFILES, SERVER, Resolver, elsewhere, log, run, servers_network

PLACE = "/srv/rf/system/egress-credentials"
HOST, OTHER, PLAIN = "api.rf-secret.test", "other.rf-secret.test", "plain.rf-secret.test"
NAMES = (HOST, OTHER, PLAIN)
SECRET, OTHERS = "ghp_0123456789+abcdefSECRET", "glpat-OTHER-0123456789zyx"
BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
RULES = ["GET /repos/**", "POST /repos/acme/*/issues"]


class Upstream(Resolver):
    """The host's resolver: all names are at one address."""

    def answers(self, name, kind):
        known = name in NAMES
        return known, [(b"\xc0\x0c", 1, socket.inet_aton(SERVER))] if known and kind == 1 else []


class Server:
    """Answers with what it was asked, the credential in it, and remembers it."""

    def __init__(self):
        self.asked = []
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(f"{PLACE}/server.pem", f"{PLACE}/server.key")
        listener = elsewhere(lambda: socket.create_server((SERVER, 443)))

        def accept():
            while True:
                threading.Thread(target=self.serve, args=(context, listener.accept()[0]), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()

    def serve(self, context, plain):
        try:
            with context.wrap_socket(plain, server_side=True) as one:
                head = b""
                while b"\r\n\r\n" not in head:
                    part = one.recv(4096)
                    if not part:
                        return
                    head += part
                text = head.split(b"\r\n\r\n")[0].decode()
                self.asked.append(text)
                body = text.encode()
                one.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\nX-Echo: %s\r\n\r\n%s"
                            % (len(body), self.value(text).encode(), body))
        except OSError:
            pass

    @staticmethod
    def value(text):
        """The credential of a request, if it has any."""
        return next((line.split(": ", 1)[1] for line in text.split("\r\n") if line.lower().startswith("authorization:")), "none")


class Shell:
    """A shell in the container, which does what it is told."""

    def __init__(self, *before):
        command = [*before, "ringfence", "run", "--profile", "rf-credentials", "--", "/bin/sh"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd="/",
                                        env={**os.environ, "RF_TOKEN": SECRET})

    def does(self, command):
        """What it printed."""
        self.process.stdin.write(f"{{ {command}\n}} </dev/null 2>&1; echo; echo over $?\n")
        self.process.stdin.flush()
        lines = []
        while not lines or not lines[-1].startswith("over "):
            line = self.process.stdout.readline()
            assert line, f"the shell ended after {lines}; {log()}"
            lines.append(line.rstrip("\n"))
        return "\n".join(lines[:-1])

    def fetch(self, path, *more, host=HOST):
        """The status and the body of an answer, head included."""
        return self.does(f"curl -sS -i --path-as-is --max-time 60 {' '.join(more)} 'https://{host}{path}'")

    def stop(self):
        self.process.stdin.close()
        self.process.wait(PATIENCE)


def write_profile(rules=RULES, file=True):
    text = profile_text("vm test: credentials", ["/usr", "/etc", "/bin", "/lib", "/lib64", "/proc", HERE, PLACE], (), ["/usr/bin", "/bin", HERE],
                        [f"{name}:443" for name in NAMES], None, 'capabilities = ["default"]\naudit = "denied"')
    text += f'\n[net.credentials."{HOST}"]\ntoken_env = "RF_TOKEN"\nallow = {json.dumps(rules)}\n'
    if file:
        text += f'[net.credentials."{OTHER}"]\ntoken_file = "{PLACE}/token"\nheader = "PRIVATE-TOKEN"\nallow = ["* /**"]\n'
    os.makedirs(PROFILES, exist_ok=True)
    put(f"{PROFILES}/rf-credentials.toml", text)


def prepare():
    os.makedirs(PLACE, exist_ok=True)
    os.chmod(PLACE, 0o755)
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    run(["openssl", "req", "-x509", *key, "-days", "2", "-subj", "/CN=rf secret test CA", "-keyout", f"{PLACE}/ca.key", "-out", f"{PLACE}/ca.pem"])
    run(["openssl", "req", *key, "-subj", "/CN=rf secret test", "-keyout", f"{PLACE}/server.key", "-out", f"{PLACE}/server.csr"])
    put(f"{PLACE}/ext", "subjectAltName=" + ",".join(f"DNS:{name}" for name in NAMES) + "\nbasicConstraints=CA:FALSE\n")
    run(["openssl", "x509", "-req", "-in", f"{PLACE}/server.csr", "-CA", f"{PLACE}/ca.pem", "-CAkey", f"{PLACE}/ca.key", "-CAcreateserial",
         "-days", "2", "-extfile", f"{PLACE}/ext", "-out", f"{PLACE}/server.pem"])
    os.makedirs(os.path.dirname(BUNDLE), exist_ok=True)
    with open(f"{PLACE}/ca.pem") as ca, open(BUNDLE, "a") as bundle:
        bundle.write(ca.read())
    put(f"{PLACE}/token", OTHERS + "\n")
    os.chmod(f"{PLACE}/token", 0o600)
    run(["ip", "link", "set", "lo", "up"])
    servers_network()
    put("/etc/resolv.conf", "nameserver 127.0.0.1\n")
    write_profile()
    resolver = Upstream()
    return Server(), resolver


@scene("system/egress-credentials", limit=300)
def credentials():
    """requests bear a credential that is nowhere in their container, by their rules alone; its process, killed, is followed by another"""
    server, _resolver = prepare()
    shell = Shell()
    # It is put in, and does not come back.
    answer = shell.fetch("/repos/acme/tool", "-H", "'Authorization: Bearer mine'")
    assert "200 OK" in answer, f"{answer}; {log()}"
    assert server.value(server.asked[-1]) == f"Bearer {SECRET}", server.asked[-1]
    assert "mine" not in server.asked[-1], server.asked[-1]
    assert SECRET not in answer and "***" in answer, answer
    bundle = shell.does("echo $SSL_CERT_FILE").strip()
    assert re.fullmatch(r"/run/ringfence/ca/[0-9a-f]{12}/bundle.pem", bundle), bundle
    # The other host has its own, where its table says.
    shell.fetch("/x", host=OTHER)
    assert f"private-token: {OTHERS}" in server.asked[-1].lower().replace(OTHERS.lower(), OTHERS), server.asked[-1]
    # A host without a table is what it was.
    shell.fetch("/x", "-H", "'Authorization: Bearer mine'", host=PLAIN)
    assert server.value(server.asked[-1]) == "Bearer mine", server.asked[-1]
    python = f"{PYTHON} -I -c 'import ssl,os,urllib.request as r; print(r.urlopen(\"https://{HOST}/repos/p\", context=ssl.create_default_context(" \
             "cafile=os.environ[\"SSL_CERT_FILE\"]), timeout=60).status)'"
    assert shell.does(python).strip() == "200"

    # What no rule allows reaches nobody.
    before = len(server.asked)
    for path, more in (("/user", ()), ("/repos/acme/tool", ("-X", "DELETE")), ("/repos/../user", ()), ("/repos/..%2Fuser", ()),
                       ("/repos/x%2F..%2F..%2Fuser", ()), ("/repos//user", ()), ("/repos/x", ("-X", "TRACE"))):
        answer = shell.fetch(path, *more)
        assert "200 OK" not in answer.split("\n")[0], f"{path}: {answer}"
    assert len(server.asked) == before, server.asked[before:]

    # It is nowhere inside. Each look has a control: what it would find it with.
    planted = "rf-planted-control"
    look = lambda what: (f"cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n' | grep -cF -e {what}; "
                         f"grep -rsF -e {what} /etc /run/ringfence /tmp {PLACE} 2>/dev/null | head -3")
    shell.does(f"export RF_CONTROL={planted}; sleep 600 >/dev/null & sleeps=$!")
    assert not shell.does(look(planted)).startswith("0"), "the control"
    for secret in (SECRET, OTHERS):
        found = shell.does(look(secret))
        assert secret not in found and found.startswith("0"), found
    launcher = shell.process.pid
    with open(f"/proc/{launcher}/environ") as file:
        assert SECRET in file.read(), "the control: whoever started it has it"
    for what in (f"/proc/{launcher}/environ", f"/proc/{launcher}/fd/0", f"{PLACE}/token"):
        answer = shell.does(f"cat {what}")
        assert "denied" in answer or "No such file" in answer, f"{what}: {answer}"
    assert "200 OK" in shell.does(f"cat {PLACE}/server.pem >/dev/null && echo 200 OK"), "the control"
    for pid in role_pids("egress-credentials"):
        for what in ("environ", "mem", "fd"):
            answer = shell.does(f"ls /proc/{pid}/{what}/ 2>&1; cat /proc/{pid}/{what} 2>&1")
            assert SECRET not in answer, answer
        with open(f"/proc/{pid}/status") as file:
            status = dict(line.split(":\t", 1) for line in file.read().splitlines() if ":\t" in line)
        assert int(status["CapEff"], 16) == 0 and status["Uid"].split()[0] not in ("0", "65534"), status

    # Killed, it is followed by another, which programs trust that read the bundle before.
    first = role_pids("egress-credentials")
    assert len(first) == 1, first
    kill_role("egress-credentials")
    answers = []

    def again():
        answers.append(shell.fetch("/repos/again"))
        return "200 OK" in answers[-1]

    wait_for(again, "requests are served again")
    assert server.value(server.asked[-1]) == f"Bearer {SECRET}" and role_pids("egress-credentials") != first

    # Read again: other rules.
    write_profile(rules=["GET /user"])
    reload()
    wait_for(lambda: "200 OK" in shell.fetch("/user"), "the new rule is in force")
    assert "403" in shell.fetch("/repos/acme/tool").split("\n")[0]

    # What nobody hands over is refused: a process that runs, and a profile that names a token that is not there.
    sleeper = subprocess.Popen(["sleep", "600"])
    taken = ringfence("enroll", "--pid", str(sleeper.pid), "--profile", "rf-credentials")
    assert taken.returncode != 0 and "hand over" in taken.stderr, said(taken)
    sleeper.kill()
    missing = ringfence("run", "--profile", "rf-credentials", "--", "/bin/true", env={k: v for k, v in os.environ.items() if k != "RF_TOKEN"})
    assert missing.returncode != 0 and "RF_TOKEN" in missing.stderr, said(missing)
    nested = shell.does("ringfence run --profile rf-credentials -- /bin/true")
    assert SECRET not in nested
    shown = ringfence("profile", "show", "rf-credentials")
    assert "the variable RF_TOKEN" in shown.stdout and SECRET not in shown.stdout, said(shown)

    shell.does("kill $sleeps")
    shell.stop()
    wait_for(lambda: not role_pids("egress-credentials") and not os.path.exists(bundle), "nothing is left of it")


@scene("system/egress-credentials-user", limit=200)
def users():
    """the credential of an ordinary user's run is put in, and is not to be had by their own processes inside, nor by their other runs"""
    server, _resolver = prepare()
    write_profile(file=False)
    group = grp.getgrnam("ringfence").gr_gid
    user = ["setpriv", "--reuid=65534", "--regid=65534", f"--groups={group}"]
    shell, other = Shell(*user), Shell(*user)
    answer = shell.fetch("/repos/acme/tool")
    assert "200 OK" in answer and SECRET not in answer, f"{answer}; {log()}"
    assert server.value(server.asked[-1]) == f"Bearer {SECRET}", server.asked[-1]
    assert "403" in shell.fetch("/user").split("\n")[0]
    assert shell.does("id -u").strip() == "65534"
    # The control: the user's processes read each other's environments where nothing is in the way, inside and outside.
    shell.does("env RF_CONTROL=rf-planted-control sleep 600 >/dev/null & sleeps=$!")
    look = "cat /proc/{}/environ | tr '\\0' '\\n' | grep -c -e {}"
    wait_for(lambda: shell.does(look.format("$sleeps", "rf-planted-control")).strip() == "1", "the control")
    launcher = shell.process.pid
    outside = subprocess.run([*user, "sh", "-c", look.format(launcher, SECRET)], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert outside.stdout.strip() == "1", f"the control: {said(outside)}"
    for one in (shell, other):
        for what in ("environ", "mem", "fd/0", "maps"):
            answer = one.does(f"cat /proc/{launcher}/{what}")
            assert "denied" in answer or "No such file" in answer, f"{what}: {answer}"
        assert one.does("env | grep -c RF_TOKEN").strip() == "0"
    # Each run has a process of its own, of a user that is nobody else's; neither is one that the other could stop.
    pids = role_pids("egress-credentials")
    assert len(pids) == 2, pids
    owners = {os.stat(f"/proc/{pid}").st_uid for pid in pids}
    assert len(owners) == 2 and not owners & {0, 65534}, owners
    for pid in pids:
        assert "0" not in other.does(f"kill -9 {pid} && echo 0"), pid
    assert role_pids("egress-credentials") == pids
    shell.does("kill $sleeps")
    shell.stop()
    assert "200 OK" in other.fetch("/repos/acme/tool"), "the other goes on"
    other.stop()
    wait_for(lambda: not role_pids("egress-credentials"), "nothing is left of them")
