"""Scenes in which the daemon, the auditor, the disk or a profile fails: nothing enforced is loosened."""

import errno
import json
import os
import signal
import subprocess
import time

from case import scene
from system import (BASE, DAEMON_LOG, PATIENCE, Worker, daemon_log, denied, governed, hammer, kill_role, profile, reload, ringfence, role_pids, said,
                    start_daemon, targets, wait_event, wait_for)

# A million where a processor is a processor; under emulation this many take half a minute.
FLOOD = 200_000


@scene("system/reload-narrows-and-widens")
def reload_profile():
    """an edited profile is in force, for a process that already runs, after a reload"""
    allowed, forbidden = targets("reload")
    other = f"{BASE}/other"
    with open(other, "w") as file:
        file.write("other")
    path = profile("rf-reload", where="/etc/ringfence/profiles")
    worker = Worker("rf-reload")
    worker.check(allowed, forbidden, "before the reload")
    assert worker.open(other) == "errno 13"
    profile("rf-reload", read=[other], deny_read=[allowed], where="/etc/ringfence/profiles")
    reload()
    wait_for(lambda: worker.open(other).startswith("read"), "the wider grant")
    assert worker.open(allowed) == "errno 13", "the new deny does not hold"
    assert worker.open(forbidden) == "errno 13"
    worker.stop()
    os.unlink(path)


@scene("system/reload-broken-profile")
def reload_broken():
    """a profile that does not parse leaves the old one in force, and is named"""
    allowed, forbidden = targets("broken")
    path = profile("rf-broken", where="/etc/ringfence/profiles")
    worker = Worker("rf-broken")
    worker.check(allowed, forbidden, "before")
    for text in ("fs_read = [", "", "[grant]\nfs_read = \"everything\"\n", "\0\0\0", "[grnt]\n"):
        with open(path, "w") as file:
            file.write(text)
        reload()
        time.sleep(0.5)
        worker.check(allowed, forbidden, f"with the broken text {text!r}")

    def is_told():
        shown = ringfence("status", "--json").stdout
        return "rf-broken" in shown and "error" in shown

    wait_for(is_told, "status to tell of the broken profile")
    result = ringfence("run", "--profile", "rf-broken", "--", "/usr/bin/echo", "started")
    assert result.returncode != 0 and "started" not in result.stdout, f"a broken profile starts a command: {said(result)}"
    assert "rf-broken.toml" in result.stderr, f"the error does not name the file: {said(result)}"
    os.unlink(path)
    reload()
    time.sleep(0.5)
    worker.check(allowed, forbidden, "with the profile deleted")
    worker.stop()


@scene("system/reload-in-a-loop", limit=90)
def reload_loop():
    """reloads without pause while one process opens denied and another allowed files: not one wrong answer"""
    allowed, forbidden = targets("reload-loop")
    path = profile("rf-loop", where="/etc/ringfence/profiles")
    command = ["ringfence", "run", "--profile", "rf-loop", "--", hammer(), "until"]
    count = tried = had = 0
    # A slow machine takes more rounds: the scene's limit ends them.
    while count <= 20 or min(tried, had) <= 1000:
        running = [subprocess.Popen([*command, name, "12"], stdout=subprocess.PIPE, text=True) for name in (forbidden, allowed)]
        while any(one.poll() is None for one in running):
            profile("rf-loop", read=[f"/srv/rf/nothing-{count}"], where="/etc/ringfence/profiles")
            reload()
            count += 1
            time.sleep(0.1)
        refused, granted = (json.loads(one.stdout.read()) for one in running)
        tried, had = tried + refused["tried"], had + granted["tried"]
        assert refused["opened"] == 0, f"denied opens succeeded: {refused}"
        assert granted["opened"] == granted["tried"], f"granted opens failed: {granted}"
    os.unlink(path)


@scene("system/flood-with-core-stopped", limit=240)
def flood():
    """a flood of denied opens while the core is stopped: every one denied, the losses or repeats counted"""
    allowed, forbidden = targets("flood")
    path = profile("rf-flood", audit="all")
    worker = Worker(path)
    worker.check(allowed, forbidden, "before")
    begun = json.loads(ringfence("status", "--json").stdout)
    prepared = subprocess.Popen(["ringfence", "run", "--profile", path, "--", "/usr/bin/sh", "-c",
                                 f"read go; exec {hammer()} opens {forbidden} {FLOOD}"],
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    wait_event(lambda event: event["op"] == "exec" and event.get("path") == "/usr/bin/dash")
    kill_role("daemon", number=signal.SIGSTOP)
    try:
        out, _ = prepared.communicate("go\n", timeout=800)
        counted = json.loads(out)
        worker.check(allowed, forbidden, "while the core is stopped")
    finally:
        kill_role("daemon", number=signal.SIGCONT)
    assert counted["opened"] == 0 and counted["tried"] == FLOOD, f"not every open was denied: {counted}"
    wait_event(denied(forbidden))
    worker.check(allowed, forbidden, "after")
    shown = json.loads(ringfence("status", "--json").stdout)
    assert shown != begun
    worker.stop()


@scene("system/kill-core", limit=120)
def kill_core():
    """kill -9 of the core: enforcement stays, a new core adopts, what happened meanwhile is told"""
    allowed, forbidden, worker = governed("kill-core")
    kill_role("daemon")
    with open(f"{BASE}/deny/meanwhile", "w") as file:
        file.write("x")
    worker.check(allowed, f"{BASE}/deny/meanwhile", "with the core dead")
    result = ringfence("run", "--profile", "/run/rf-cases/profiles/rf-kill-core.toml", "--", "/usr/bin/echo", "started")
    assert result.returncode == 125 and "started" not in result.stdout, f"a run without the daemon: {said(result)}"
    start_daemon()
    worker.check(allowed, forbidden, "after the restart")
    shown = ringfence("status")
    assert "rf-kill-core" in shown.stdout, f"the container was not adopted: {said(shown)}"
    wait_event(denied(f"{BASE}/deny/meanwhile"))
    worker.stop()
    second = Worker("/run/rf-cases/profiles/rf-kill-core.toml")
    second.check(allowed, forbidden, "in a new container")
    second.stop()


@scene("system/kill-auditor", limit=120)
def kill_auditor():
    """kill -9 of the auditor: enforcement stays, the core starts another, events come again"""
    allowed, forbidden, worker = governed("kill-auditor")
    old = kill_role("auditor")
    worker.check(allowed, forbidden, "with the auditor dead")
    wait_for(lambda: role_pids("auditor") and not set(role_pids("auditor")) & set(old), "another auditor")
    with open(f"{BASE}/deny/later", "w") as file:
        file.write("x")
    worker.check(allowed, f"{BASE}/deny/later", "with the new auditor")
    wait_for(lambda: ringfence("events", "--json", "--limit", "1").returncode == 0, "the auditor to answer")
    wait_event(denied(f"{BASE}/deny/later"))
    worker.stop()


# Has more descriptors in flight between sockets than another process may have open.
IN_FLIGHT = """
import array, resource, socket, sys
most = int(sys.argv[1]) + 1000
resource.setrlimit(resource.RLIMIT_NOFILE, (2 * most, 2 * most))
rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0] * 253))]
pairs, sent = [], 0
while sent <= most:
    pairs.append(socket.socketpair())
    pairs[-1][0].setblocking(False)
    try:
        while sent <= most:
            pairs[-1][0].sendmsg([b"!"], rights)
            sent += 253
    except BlockingIOError:
        pass
print("in flight", flush=True)
sys.stdin.read()
"""
# Whether a process that is root in name only can send one.
SENDS = """
import resource, socket, sys
most = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
a, b = socket.socketpair()
try:
    socket.send_fds(a, [b"!"], [0])
    print("sent")
except OSError as error:
    print(error.errno)
"""


@scene("system/descriptors-in-flight", limit=120)
def descriptors_in_flight():
    """a container's root who has many descriptors in flight keeps no new auditor from being handed its sockets"""
    core, = role_pids("daemon")
    with open(f"/proc/{core}/limits") as file:
        limit = next(line for line in file if line.startswith("Max open files")).split()[3]

    def sends():
        command = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "python3", "-c", SENDS, limit]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    assert sends() == "sent"
    crowd = subprocess.Popen(["python3", "-c", IN_FLIGHT, limit], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert crowd.stdout.readline() == "in flight\n"
        assert sends() == str(errno.ETOOMANYREFS), "nobody is kept from anything"
        old = kill_role("auditor")
        wait_for(lambda: role_pids("auditor") and not set(role_pids("auditor")) & set(old), "another auditor")
        wait_for(lambda: ringfence("events", "--json", "--limit", "1").returncode == 0, "the auditor to answer")
        assert sends() == str(errno.ETOOMANYREFS), "they are not in flight any more"
    finally:
        crowd.stdin.close()
        crowd.wait()


@scene("system/kill-both", limit=120)
def kill_both():
    """kill -9 of core and auditor at once"""
    allowed, forbidden, worker = governed("kill-both")
    kill_role("daemon", "auditor")
    worker.check(allowed, forbidden, "with both dead")
    start_daemon()
    worker.check(allowed, forbidden, "after the restart")
    wait_event(denied(forbidden))
    worker.stop()


@scene("system/corrupt-database", limit=120)
def corrupt():
    """a database that is garbage is moved aside, which is said, and a new one started"""
    allowed, forbidden, worker = governed("corrupt")
    kill_role("daemon", "auditor")
    state = "/var/lib/ringfence"
    with open(f"{state}/audit.db", "r+b") as file:
        file.write(b"this is no database " * 1000)
    for name in ("audit.db-wal", "audit.db-shm"):
        if os.path.exists(f"{state}/{name}"):
            os.unlink(f"{state}/{name}")
    start_daemon()
    wait_for(lambda: ringfence("events", "--json", "--limit", "1").returncode == 0, "the auditor to answer")
    worker.check(allowed, forbidden, "with a new database")
    wait_event(denied(forbidden))
    aside = [name for name in os.listdir(state) if "corrupt" in name]
    assert aside, f"nothing was moved aside: {os.listdir(state)}"
    shown = daemon_log() + ringfence("status").stdout
    assert "corrupt" in shown, f"it is not said: {shown}"
    worker.stop()


@scene("system/full-disk", limit=120)
def full_disk():
    """a full disk: denials go on, the daemon lives, events come again when there is room"""
    allowed, forbidden = targets("full-disk")
    worker = Worker(profile("rf-full"))
    worker.check(allowed, forbidden, "before")
    fill = "/var/lib/rf-fill"
    pids = role_pids("daemon")
    try:
        size = 1 << 30
        with open(fill, "wb") as file:
            while size >= 4096:
                try:
                    os.posix_fallocate(file.fileno(), file.seek(0, 2), size)
                except OSError:
                    size //= 2
        # What is available: ext4 keeps some free blocks for itself.
        assert os.statvfs("/var/lib").f_bavail * 4096 < 1 << 20, "the disk is not full"
        for _ in range(300):
            worker.check(allowed, forbidden, "with the disk full")
        assert role_pids("daemon") == pids, f"the daemon died: {daemon_log() if os.path.exists(DAEMON_LOG) else ''}"
    finally:
        os.unlink(fill)
    with open(f"{BASE}/deny/room", "w") as file:
        file.write("x")
    time.sleep(1)
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        worker.check(allowed, f"{BASE}/deny/room", "with room again")
        try:
            wait_event(denied(f"{BASE}/deny/room"), seconds=2)
            break
        except AssertionError:
            continue
    else:
        raise AssertionError("no event came after there was room again")
    worker.stop()


@scene("system/second-daemon")
def second_daemon():
    """a second daemon says that there is one, and leaves; the first goes on"""
    allowed, forbidden = targets("second")
    worker = Worker(profile("rf-second"))
    first = role_pids("daemon")
    result = ringfence("daemon")
    assert result.returncode != 0, f"a second daemon started: {said(result)}"
    assert "running" in result.stderr or "already" in result.stderr, f"it does not say why: {said(result)}"
    assert role_pids("daemon") == first, "the first is gone"
    worker.check(allowed, forbidden, "after the second daemon")
    worker.stop()


@scene("system/uninstall-refuses")
def uninstall():
    """uninstall refuses while a container runs, and names it"""
    allowed, forbidden, worker = governed("uninstall")
    result = ringfence("uninstall")
    assert result.returncode != 0 and "rf-uninstall" in result.stdout + result.stderr, f"uninstall: {said(result)}"
    worker.check(allowed, forbidden, "after")
    worker.stop()
