"""Group `systemd` (a boot with systemd as the first process): the unit that `ringfence install` writes, as systemd runs it."""

import json
import os
import socket
import subprocess
import urllib.error
import urllib.request

import system_egress
from agents import Conn, Provider, Runtime, agent, known, remove, send, sock
from case import scene
from harness import PYTHON
from system import PATIENCE, Worker, denied, governed, kill_role, profile, ringfence, role_pids, said, targets, wait_event, wait_for

UNIT = "ringfence.service"
# Seconds for a start, most of which the verifier takes: what the unit allows it, and a little more.
LONG = 400


def systemctl(*args, timeout=LONG):
    """Runs systemctl; its result, output as text."""
    return subprocess.run(["systemctl", *args], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=timeout)


def shown(name):
    """One of the unit's properties."""
    return systemctl("show", "--property", name, "--value", UNIT).stdout.strip()


def journal():
    """The end of what the unit said."""
    result = subprocess.run(["journalctl", "--unit", UNIT, "--no-pager", "--lines", "40"], capture_output=True, text=True)
    return result.stdout


@scene("systemd/install-starts-it", group="systemd", limit=300)
def install():
    """`ringfence install` starts the unit, which says when it is ready; a second time nothing changes"""
    with open("/proc/1/comm") as file:
        assert file.read().strip() == "systemd", "this boot has another first process"
    result = ringfence("install", timeout=LONG)
    assert result.returncode == 0 and "the daemon runs" in result.stdout, f"{said(result)}\n{journal()}"
    # Type=notify: systemctl returned when the daemon had said that it is ready.
    assert shown("ActiveState") == "active" and shown("SubState") == "running", journal()
    assert systemctl("is-enabled", UNIT).stdout.strip() == "enabled"
    status = ringfence("status", "--json")
    assert status.returncode == 0, f"{said(status)}\n{journal()}"
    with open("/etc/systemd/system/ringfence.service") as file:
        before = file.read()
    again = ringfence("install", timeout=LONG)
    assert again.returncode == 0 and "installed already" in again.stdout, said(again)
    with open("/etc/systemd/system/ringfence.service") as file:
        assert file.read() == before
    verified = subprocess.run(["systemd-analyze", "verify", f"/etc/systemd/system/{UNIT}"], capture_output=True, text=True)
    assert verified.returncode == 0 and "ringfence" not in verified.stderr, verified.stderr


@scene("systemd/governs", group="systemd", limit=120)
def governs():
    """under the unit's own restrictions a container is governed, and its denial is stored"""
    allowed, forbidden, worker = governed("systemd")
    wait_event(denied(forbidden))
    worker.stop()


@scene("systemd/egress-own-network", group="systemd", limit=120)
def own_network():
    """under the unit's own restrictions the core enters a container's network namespace, and serves names there"""
    system_egress.prepare()
    inside = system_egress.engine_network()
    try:
        subprocess.run([*inside, "ip", "link", "set", "lo", "up"], stdin=subprocess.DEVNULL, check=True)
        client = system_egress.Client(*inside)
        assert client.fetch("granted.rf.test")[0].startswith("198.1")
        client.fails("resolve", "other.rf.test", why="gaierror")
        client.stop()
    finally:
        subprocess.run(["ip", "netns", "del", "rf-egress"], stdin=subprocess.DEVNULL, check=False)
    os.unlink(f"{system_egress.PROFILES}/rf-egress.toml")


def oom_score(pid):
    """How soon the kernel ends a process when memory runs out."""
    with open(f"/proc/{pid}/oom_score_adj") as file:
        return int(file.read())


@scene("systemd/keeps-what-it-says", group="systemd")
def least():
    """the core runs with the capabilities of the unit and no more, the auditor with none"""
    (core,) = role_pids("daemon")
    auditor = role_pids("auditor")[0]
    effective = {}
    for pid in (core, auditor):
        with open(f"/proc/{pid}/status") as file:
            effective[pid] = int(next(line for line in file if line.startswith("CapEff")).split()[1], 16)
    assert effective[auditor] == 0, f"the auditor has {effective[auditor]:x}"
    assert [oom_score(pid) for pid in (core, auditor)] == [-900, -900], "whoever fills the memory ends the daemon"
    with open("/proc/self/status") as file:
        mine = int(next(line for line in file if line.startswith("CapEff")).split()[1], 16)
    assert not effective[core] >> 21 & 1, "CAP_SYS_ADMIN is in force where no network namespace is entered"
    assert 0 < bin(effective[core]).count("1") < bin(mine).count("1"), f"the core has {effective[core]:x}"


@scene("systemd/dashboard", group="systemd")
def dashboard():
    """the dashboard answers on loopback, with its token and not without"""
    result = ringfence("dashboard")
    assert result.returncode == 0, f"{said(result)}\n{journal()}"
    link = result.stdout.split()[0]
    place, token = link.split("/#token=") if "/#token=" in link else (link, None)
    assert place.startswith("http://127.0.0.1:") and token, link
    request = urllib.request.Request(f"{place}/api/stats", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
        assert answer.status == 200, answer.status
    try:
        urllib.request.urlopen(f"{place}/api/stats", timeout=PATIENCE)
    except urllib.error.HTTPError as error:
        assert error.code == 401, error.code
    else:
        raise AssertionError("it answers without a token")


@scene("systemd/reload", group="systemd", limit=120)
def reload():
    """`systemctl reload` puts an edited profile in force"""
    allowed, forbidden = targets("systemd-reload")
    path = profile("rf-systemd-reload", where="/etc/ringfence/profiles")
    worker = Worker("rf-systemd-reload")
    worker.check(allowed, forbidden, "before")
    profile("rf-systemd-reload", deny_read=[allowed], where="/etc/ringfence/profiles")
    result = systemctl("reload", UNIT)
    assert result.returncode == 0, f"{result.stderr}\n{journal()}"
    wait_for(lambda: worker.open(allowed) == "errno 13", "the new deny")
    worker.stop()
    os.unlink(path)


@scene("systemd/restart-and-kill", group="systemd", limit=400)
def restart():
    """restarted, and killed and started again by systemd: a container stays governed all the while and is adopted"""
    allowed, forbidden, worker = governed("systemd-restart")
    result = systemctl("restart", UNIT)
    assert result.returncode == 0, f"{result.stderr}\n{journal()}"
    worker.check(allowed, forbidden, "after a restart")
    first = role_pids("daemon")
    kill_role("daemon")
    worker.check(allowed, forbidden, "with the core dead")
    wait_for(lambda: role_pids("daemon") not in ([], first) and ringfence("status").returncode in (0, 2), "systemd's restart", LONG)
    worker.check(allowed, forbidden, "after systemd's restart")
    listed = json.loads(ringfence("status", "--json").stdout)
    assert any(one["profile"].startswith("rf-systemd-restart") for one in listed["containers"]), listed["containers"]
    late = f"{os.path.dirname(forbidden)}/late"
    with open(late, "w") as file:
        file.write("x")
    worker.check(allowed, late, "and again")
    wait_event(denied(late))
    worker.stop()


def touch(path):
    """Makes a file that something waits for."""
    with open(path, "w"):
        pass


def exactly(one, count):
    """So many bytes, in how many pieces they may come."""
    data = b""
    while len(data) < count and (part := one.recv(count - len(data))):
        data += part
    return data


# Says that it is there; for each line that it reads: connects to the agent's socket, says that it did, and then what it is answered to a `send`.
SENDER = r"""
import json, socket, struct, sys
body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "send", "params": {"content": [{"type": "text", "text": "obey"}]}}).encode()
print("ready", flush=True)
for line in sys.stdin:
    # Without a limit: with one Python makes the socket non-blocking, and MSG_WAITALL gives what is there.
    made = socket.socket(socket.AF_UNIX)
    made.connect(sys.argv[1])
    made.sendall(struct.pack(">I", len(body)) + body)
    print("connected", flush=True)
    head = made.recv(4, socket.MSG_WAITALL)
    print(made.recv(struct.unpack(">I", head)[0], socket.MSG_WAITALL).decode(), flush=True)
"""


@scene("systemd/sockets-survive", group="systemd", limit=600)
def sockets():
    """who connects to an agent while the daemon restarts, or was killed, waits, is judged and answered; after a stop nobody waits"""
    settings = f"/run/systemd/system/{UNIT}.d"
    os.makedirs(settings, exist_ok=True)
    # There is no daemon until the scene says so, however long the machine takes for what is to be shown meanwhile.
    may_start = "/run/rf-cases/may-start"
    touch(may_start)
    with open(f"{settings}/scene.conf", "w") as file:
        file.write(f"[Service]\nTimeoutStopSec=900\nExecStopPost=/bin/sh -c 'until [ -e {may_start} ]; do sleep 0.2; done'\n")
    assert systemctl("daemon-reload").returncode == 0
    assert systemctl("restart", UNIT).returncode == 0, journal()
    provider = Provider()
    api = "/run/ringfence/sockets/rf-stays/http.sock"
    path, box = agent("rf-stays", provider, extra="http = true")
    other, _ = agent("rf-goes", provider, grant=False, extra="socket_owner = 1234\nhttp = true\nhttp_port = 4118")
    script = f"{box}/sender.py"
    with open(script, "w") as file:
        file.write(SENDER)
    runtime = Runtime("rf-stays", box)
    send("rf-stays", "hello")
    assert oom_score(known("rf-stays")["pid"]) == 0, "how much memory a worker has is its agent's doing"
    inside = subprocess.Popen(["ringfence", "run", "--profile", "rf-stays", "--", PYTHON, "-E", "-s", "-S", "-B", script, sock("rf-stays")],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/")
    assert inside.stdout.readline() == "ready\n", "a second container of the agent's did not start"
    files = [sock("rf-stays"), api, sock("rf-goes")]

    def inodes():
        return [os.stat(file).st_ino for file in files]

    def wait_away():
        wait_for(lambda: not role_pids("daemon") and not role_pids("llm-worker"), "the daemon and its workers to be gone")

    def wait_back():
        wait_for(lambda: (known("rf-stays") or {}).get("counts", {}).get("runtime"), "the agent and its runtime to be back", LONG)

    def token():
        try:
            with open("/var/lib/ringfence-agents/rf-goes/state/http-token") as file:
                return file.read()
        except FileNotFoundError:
            return None

    wait_for(token, "the token of the HTTP endpoint")
    first = inodes()
    for how in ("restart", "kill"):
        open_before, token_before = Conn("rf-stays"), token()
        restarting = None
        os.unlink(may_start)
        if how == "restart":
            restarting = subprocess.Popen(["systemctl", "restart", UNIT], stdin=subprocess.DEVNULL)
        else:
            kill_role("daemon")
        wait_away()
        waiting = Conn("rf-stays")
        waiting.sock.settimeout(LONG)
        waiting.say("send", {"content": [{"type": "text", "text": f"said during a {how}"}]}, 1)
        inside.stdin.write("go\n")
        inside.stdin.flush()
        assert inside.stdout.readline() == "connected\n", f"{how}: the container's process did not connect"
        with socket.create_connection(("127.0.0.1", 4118), timeout=LONG) as loopback:
            loopback.sendall(b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1:4118\r\nConnection: close\r\n\r\n")
            assert not role_pids("daemon"), "the daemon was back too soon: nothing was shown"
            touch(may_start)
            answered = waiting.answer(1)
            # 401: it has no token, and is told so by who knows that.
            assert exactly(loopback, 12) == b"HTTP/1.1 401", how
        # A runtime that is back in time has it, else it hears that there is none: answered it is.
        told = answered.get("result", {}).get("status") or answered["error"]["message"]
        assert told in ("delivered", "queued", "runtime not connected"), answered
        # The kernel kept who connected: a container does not get to give orders because nobody was there to ask.
        refused = json.loads(inside.stdout.readline())
        assert refused["error"]["code"] == -32003 and "never from a container" in refused["error"]["message"], refused
        if restarting:
            assert restarting.wait(LONG) == 0, journal()
        wait_back()
        try:
            while open_before.hear() is not None:
                pass
        except ConnectionResetError:
            pass
        assert inodes() == first, f"{how}: bound anew\n{journal()}"
        assert (os.stat(sock("rf-stays")).st_mode & 0o777, os.stat(sock("rf-stays")).st_uid) == (0o600, 0)
        send("rf-stays", f"after a {how}")
        # An ordinary user's listener, too; and who learned the last token has nothing of it.
        wait_for(lambda: token() not in (None, token_before), "another token")
        theirs = [os.stat(file) for file in (sock("rf-goes"), os.path.dirname(sock("rf-goes")))]
        assert [(it.st_uid, it.st_mode & 0o777) for it in theirs] == [(1234, 0o600), (1234, 0o700)], theirs
    # Without the store: nobody waits, and everything is bound anew.
    assert systemctl("stop", UNIT).returncode == 0, journal()
    for file in files:
        with socket.socket(socket.AF_UNIX) as one:
            assert one.connect_ex(file) != 0, f"{file} is listened on, and no daemon runs"
    # This one's profile goes meanwhile, and its socket's file with the next start.
    os.unlink(other)
    assert systemctl("start", UNIT).returncode == 0, journal()
    wait_back()
    assert not os.path.exists(os.path.dirname(sock("rf-goes"))), "the socket of an agent that is no more"
    files.pop()
    assert not set(inodes()) & set(first), "nobody kept them, and they are the same"
    send("rf-stays", "after a stop")
    inside.stdin.close()
    inside.wait(PATIENCE)
    runtime.stop()
    remove(path, "rf-stays")
    wait_for(lambda: shown("NFileDescriptorStore") == "1", "the manager to have nothing of ours but the witness")
    os.unlink(f"{settings}/scene.conf")
    assert systemctl("daemon-reload").returncode == 0


@scene("systemd/stop-loses-nothing", group="systemd", limit=400)
def stop():
    """what happened just before `systemctl stop` is in the store, and enforcement outlives it"""
    allowed, forbidden, worker = governed("systemd-stop")
    result = systemctl("stop", UNIT)
    assert result.returncode == 0 and not role_pids("daemon") and not role_pids("auditor"), f"{result.stderr}\n{journal()}"
    worker.check(allowed, forbidden, "stopped")
    result = systemctl("start", UNIT)
    assert result.returncode == 0, f"{result.stderr}\n{journal()}"
    wait_event(denied(forbidden))
    refused = ringfence("uninstall")
    assert refused.returncode != 0 and "rf-systemd-stop" in refused.stderr, said(refused)
    worker.check(allowed, forbidden, "after the refused uninstall")
    worker.stop()


@scene("systemd/uninstall", group="systemd", limit=200)
def uninstall():
    """uninstall stops the unit, removes it and every pin; a second time nothing is there to do"""
    wait_for(lambda: not json.loads(ringfence("status", "--json").stdout)["containers"], "the last container to end")
    result = ringfence("uninstall", timeout=LONG)
    assert result.returncode == 0, f"{said(result)}\n{journal()}"
    assert not role_pids("daemon") and not os.path.exists(f"/etc/systemd/system/{UNIT}")
    assert not os.path.exists("/sys/fs/bpf/ringfence") or not os.listdir("/sys/fs/bpf/ringfence"), "pins are left"
    assert systemctl("is-active", UNIT).stdout.strip() in ("inactive", "unknown", "failed")
    again = ringfence("uninstall", timeout=LONG)
    assert again.returncode == 0, said(again)
    _, forbidden = targets("systemd-after")
    assert subprocess.run(["cat", forbidden], capture_output=True).returncode == 0, "an ungoverned task is denied"
