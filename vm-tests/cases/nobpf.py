"""Group `nobpf` (a boot whose lsm= list lacks bpf): nothing pretends to enforce."""

import base64
import ctypes
import json
import os
import re
import shlex
import shutil
import socket
import ssl
import subprocess
import threading
import urllib.parse

from case import scene
from harness import PYTHON
from system import BASE, profile, ringfence, said, targets
from system_egress import PROFILES, SERVER, elsewhere
from system_egress_clients import COMMANDS, GRANTED, OTHER, PLACE, Served, Site, Upstream, attempt, prepare


@scene("nobpf/boot-is-the-right-one", group="nobpf")
def right_boot():
    """not a test of Ringfence: this boot has BPF LSM off and Landlock on"""
    with open("/sys/kernel/security/lsm") as file:
        names = file.read().split(",")
    assert "bpf" not in names and "landlock" in names, names


@scene("nobpf/daemon-refuses", group="nobpf")
def daemon():
    """the daemon refuses to start and says what is missing, with the line to boot with"""
    result = ringfence("daemon")
    assert result.returncode not in (0, None), f"it started: {said(result)}"
    assert "lsm=" in result.stderr and "bpf" in result.stderr, f"it does not say what is missing: {said(result)}"
    assert not os.path.exists("/sys/fs/bpf/ringfence") or not os.listdir("/sys/fs/bpf/ringfence"), "it left pins"


@scene("nobpf/doctor-explains", group="nobpf")
def doctor():
    """doctor says that this is partial, per axis, and gives the whole lsm= line"""
    result = ringfence("doctor")
    assert result.returncode in (1, 2), said(result)
    with open("/sys/kernel/security/lsm") as file:
        present = set(file.read().strip().split(",")) - {"capability"}  # always there, listed or not
    lines = re.findall(r"lsm=([a-z_,]+)", result.stdout)
    assert lines and set(lines[0].split(",")) - {"capability"} == present | {"bpf"}, f"no line to boot with: {said(result)}"
    for axis in ("fs_read", "fs_write", "exec", "net"):
        assert axis in result.stdout, f"nothing about {axis}: {said(result)}"
    as_json = ringfence("doctor", "--json")
    assert as_json.returncode == result.returncode and json.loads(as_json.stdout), said(as_json)


@scene("nobpf/run-refuses", group="nobpf")
def refuses():
    """run refuses what only eBPF could hold, and names the axes"""
    allowed, _ = targets("nobpf")
    path = fallback("rf-nobpf")
    result = ringfence("run", "--profile", path, "--", "/usr/bin/cat", allowed)
    assert result.returncode == 125 and "secret" not in result.stdout, said(result)
    assert "exec" in result.stderr and "accept" in result.stderr, f"it does not say how to go on: {said(result)}"


def fallback(name):
    """A profile that lets Landlock and seccomp step in."""
    path = profile(name)
    with open(path) as file:
        text = file.read()
    with open(path, "w") as file:
        file.write(text.replace('seccomp = "off"', 'seccomp = "default"').replace('landlock = "off"', 'landlock = "fallback"'))
    return path


@scene("nobpf/accepted-partial-holds-what-it-says", group="nobpf")
def accepted():
    """with the gaps accepted, Landlock holds what it can: files are denied and granted"""
    allowed, forbidden = targets("partial")
    path = fallback("rf-partial")
    result = ringfence("run", "--profile", path, "--accept-partial", "fs_read,fs_write,exec,net", "--", "/usr/bin/cat", allowed, forbidden)
    assert result.stdout.count("secret") == 1 and result.returncode == 1, said(result)
    assert "Permission denied" in result.stderr, said(result)


# Those of the guest's own clients that know proxies.
PROXIED = ("curl, HTTP/1.1", "curl, by SOCKS", "wget", "wget, without TLS", "busybox wget, without TLS", "perl HTTP::Tiny, without TLS", "git clone",
           "apt's https method", "Python urllib", "pip")
BY_SOCKS = 'curl -sS --fail ${RINGFENCE_SOCKS_PROXY:+--proxy $RINGFENCE_SOCKS_PROXY} --cacert CA -o OUT https://HOST/data'
# Everything that leads past a proxy, to the address that it is given: a line for each that succeeded.
PAST = """
import os, resource, socket, sys
def attempt(name, way):
    try:
        way()
        print(name)
    except OSError:
        pass
def listens():
    with socket.socket() as one:
        one.listen()
attempt("connect", lambda: socket.create_connection((sys.argv[1], 80), 60))
attempt("mapped", lambda: socket.socket(socket.AF_INET6).connect(("::ffff:" + sys.argv[1], 80)))
attempt("fast open", lambda: socket.socket().sendto(b"x", socket.MSG_FASTOPEN, (sys.argv[1], 80)))
attempt("datagram", lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", (sys.argv[1], 53)))
attempt("mptcp", lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262).connect((sys.argv[1], 80)))
attempt("netlink", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW))
attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 6))
attempt("listen", listens)
attempt("resolve", lambda: socket.getaddrinfo(sys.argv[2], 80))
attempt("limit", lambda: resource.prlimit(os.getppid(), resource.RLIMIT_CPU))
"""


def landlock_abi():
    """What of Landlock the kernel has (landlock_create_ruleset asks for its version)."""
    return ctypes.CDLL(None).syscall(444, None, 0, 1)


@scene("nobpf/accepted-partial-holds-names-by-a-proxy", group="nobpf", limit=900)
def by_proxy():
    """with the gaps accepted, clients reach a granted name through the run's proxy, no other, and nothing past it; before Landlock ABI 4 nothing at all"""
    prepare()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(f"{PLACE}/server.pem", f"{PLACE}/server.key")
    for port, secured in ((80, None), (443, context)):
        server = elsewhere(lambda port=port: Served((SERVER, port), Site))
        server.context = secured
        threading.Thread(target=server.serve_forever, daemon=True).start()
    upstream = Upstream()
    path = f"{PROFILES}/rf-clients.toml"
    with open(path) as file:
        text = file.read()
    with open(path, "w") as file:
        file.write(text.replace('seccomp = "off"', 'seccomp = "default"').replace('landlock = "off"', 'landlock = "fallback"'))

    refused = ringfence("run", "--profile", "rf-clients", "--", "/usr/bin/true")
    assert refused.returncode == 125 and "--accept-partial" in refused.stderr, said(refused)
    under = ["ringfence", "run", "--profile", "rf-clients", "--accept-partial", refused.stderr.rsplit("--accept-partial ", 1)[1].strip(), "--"]
    past = f"{PYTHON} -I -c {shlex.quote(PAST)} {SERVER} {GRANTED}"
    control = subprocess.run(["sh", "-c", past], capture_output=True, text=True, check=True).stdout.split("\n")
    assert {"connect", "mapped", "datagram", "netlink", "raw", "listen", "resolve", "limit"} <= set(control), control
    upstream.asked.clear()
    if landlock_abi() < 4:
        assert "which only the daemon can hold" in refused.stderr, said(refused)
        for command in (COMMANDS["curl, HTTP/1.1"], "env | grep -q PROXY && cp /srv/rf/none OUT"):
            works, brought, what = attempt(command, GRANTED, *under)
            assert not works and not brought, what
        assert not upstream.asked, upstream.asked
        return
    assert "whoever listens, at any address, at the TCP port of the run's proxy" in refused.stderr, said(refused)

    commands = {name: BY_SOCKS if name == "curl, by SOCKS" else COMMANDS[name] for name in PROXIED}
    outcomes = {name: attempt(command, OTHER) for name, command in commands.items()}
    problems = [f"{name}: the control, free: {what}" for name, (works, _, what) in outcomes.items() if not works]
    upstream.asked.clear()
    Site.seen.clear()
    for name, command in commands.items():
        works, _, what = attempt(command, GRANTED, *under)
        if not works:
            problems.append(f"{name}: {GRANTED}: {what}")
        works, brought, what = attempt(command, OTHER, *under)
        if works or brought or what.startswith("status 0"):
            problems.append(f"{name}: {OTHER} is not refused: {what}")
    assert not problems, "\n".join(problems)
    assert any(GRANTED in line for line in Site.seen) and not any(OTHER in line for line in Site.seen), Site.seen
    # The host's resolver is asked by the worker, and for nothing that is not granted.
    assert set(upstream.asked) == {GRANTED}, upstream.asked

    # Without the password in its address it serves nobody.
    script = f'curl -sS -o /dev/null -w "%{{http_code}}" --proxy "http://${{http_proxy#*@}}" http://{GRANTED}/data'
    done = subprocess.run([*under, "sh", "-c", f"unset HTTPS_PROXY; {script}"], capture_output=True, text=True, cwd="/")
    assert done.stdout == "407", said(done)

    for user in ({}, {"user": 65534, "group": 65534, "extra_groups": []}):
        done = subprocess.run([*under, "sh", "-c", past], capture_output=True, text=True, cwd="/", **user)
        assert done.returncode == 0 and done.stdout == "", f"{user}: {said(done)}"
        url = f"https://{OTHER}/data"
        done = subprocess.run([*under, "curl", "-sS", url], capture_output=True, text=True, cwd="/", **user)
        wanted = f'refused {OTHER}:443: no rule of the profile grants {OTHER} at port 443', f'net = {{ only = ["{OTHER}:443"] }}'
        assert done.returncode == 56 and all(part in done.stderr for part in wanted), said(done)
        assert "enforcement: kernel" not in done.stderr
    # Nor does it serve another user, who has the password and keeps the places of 600, or hear what that one says.
    script = f'echo "$https_proxy"; read line; curl -sS -o /dev/null -w "%{{http_code}}" http://{GRANTED}/data'
    user = {"user": 65534, "group": 65534, "extra_groups": []}
    run = subprocess.Popen([*under, "sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/", **user)
    proxy = urllib.parse.urlsplit(run.stdout.readline().strip())
    secret = base64.b64encode(f"{proxy.username}:{proxy.password}".encode()).decode()
    others = [socket.create_connection((proxy.hostname, proxy.port), 60) for _ in range(600)]
    heard = []
    for number, other in enumerate(others):
        try:
            other.sendall(b"G" if number else f"CONNECT {GRANTED}:443 HTTP/1.1\r\nProxy-Authorization: Basic {secret}\r\n\r\n".encode())
        except OSError:
            pass
    output, errors = run.communicate("go\n", timeout=300)
    assert output == "200", f"{output} {errors}"
    for other in others:
        try:
            heard.append(other.recv(100))
        except OSError:
            pass
        other.close()
    assert not any(heard), heard

    # Whoever accepted the network alone has no proxy, and no network.
    closed = [word.replace("names", "net") for word in under]
    done = subprocess.run([*closed, "sh", "-c", f"env | grep PROXY; {past}"], capture_output=True, text=True, cwd="/")
    assert done.returncode == 0 and done.stdout == "" and "no host is reached by name" in done.stderr, said(done)
    os.unlink(path)
    shutil.rmtree(f"{PLACE}/work", ignore_errors=True)


# Connects to the socket it is given, also by a pair of datagram sockets, which need no call of socket().
CONNECT = """
import socket, sys
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    try:
        if kind == socket.SOCK_STREAM:
            socket.socket(socket.AF_UNIX, kind).connect(sys.argv[1])
        else:
            socket.socketpair(socket.AF_UNIX, kind)[0].sendto(b"x", sys.argv[1] + ".dgram")
        print("reached", flush=True)
    except OSError:
        pass
"""


@scene("nobpf/unix-sockets-stay-closed", group="nobpf")
def unix_sockets():
    """with the flags that the refusal prints, an ordinary user's command reaches no unix socket outside; one of its own, once accepted"""
    with open(fallback("rf-unix")) as file:
        text = file.read()
    # Where an ordinary user can read it.
    path = f"{BASE}/rf-unix.toml"
    work, outside = f"{BASE}/allow/work", "/tmp/rf-outside.sock"
    os.makedirs(work, exist_ok=True)
    with open(path, "w") as file:
        file.write(text.replace("net = { only = [] }", 'net = { only = ["unix:${WORKDIR}"] }'))
    os.chmod(path, 0o644)
    sockets = []
    for place in (outside, f"{work}/inside.sock"):
        for kind, name in ((socket.SOCK_STREAM, place), (socket.SOCK_DGRAM, place + ".dgram")):
            if os.path.exists(name):
                os.unlink(name)
            sockets.append(socket.socket(socket.AF_UNIX, kind))
            sockets[-1].bind(name)
            os.chmod(name, 0o777)
            if kind == socket.SOCK_STREAM:
                sockets[-1].listen()
    user = {"user": 65534, "group": 65534, "extra_groups": []}
    python = ["/usr/bin/python3", "-Ic", CONNECT]
    free = subprocess.run([*python, outside], capture_output=True, text=True, **user)
    assert free.stdout == "reached\nreached\n", free

    run = ["run", "--profile", path, "--workdir", work]
    refused = ringfence(*run, "--", "/usr/bin/true", **user)
    assert refused.returncode == 125 and "--accept-partial" in refused.stderr, said(refused)
    flags = refused.stderr[refused.stderr.rindex("--accept-partial"):].split()
    # Landlock tells sockets apart by path from its ABI 9 on: what is open then is less, and may be accepted with the rest.
    by_path = "unix      held in part by Landlock" in refused.stderr
    assert ("unix" in flags[1]) == by_path, said(refused)
    closed = ringfence(*run, *flags, "--", *python, outside, **user)
    assert closed.returncode == 0 and closed.stdout == "", said(closed)
    opened = ringfence(*run, flags[0], flags[1] + ("" if by_path else ",unix"), "--", *python, f"{work}/inside.sock", **user)
    assert opened.stdout == "reached\nreached\n", said(opened)
    for one in sockets:
        one.close()


@scene("nobpf/events-say-there-is-no-daemon", group="nobpf")
def events():
    """events and status say that no daemon runs, and fail"""
    for command in (["events"], ["status"]):
        result = ringfence(*command)
        assert result.returncode != 0 and "daemon" in result.stderr, f"{command}: {said(result)}"
