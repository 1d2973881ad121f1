"""Group `systemd` (a boot with systemd as the first process): the unit that `ringfence install` writes, as systemd runs it."""

import json
import os
import subprocess
import urllib.error
import urllib.request

from case import scene
from system import Worker, denied, kill_role, profile, ringfence, role_pids, said, targets, wait_event, wait_for

UNIT = "ringfence.service"


def systemctl(*args, timeout=120):
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
    result = ringfence("install", timeout=280)
    assert result.returncode == 0 and "the daemon runs" in result.stdout, f"{said(result)}\n{journal()}"
    # Type=notify: systemctl returned when the daemon had said that it is ready.
    assert shown("ActiveState") == "active" and shown("SubState") == "running", journal()
    assert systemctl("is-enabled", UNIT).stdout.strip() == "enabled"
    status = ringfence("status", "--json")
    assert status.returncode == 0, f"{said(status)}\n{journal()}"
    with open("/etc/systemd/system/ringfence.service") as file:
        before = file.read()
    again = ringfence("install", timeout=280)
    assert again.returncode == 0 and "installed already" in again.stdout, said(again)
    with open("/etc/systemd/system/ringfence.service") as file:
        assert file.read() == before
    verified = subprocess.run(["systemd-analyze", "verify", f"/etc/systemd/system/{UNIT}"], capture_output=True, text=True)
    assert verified.returncode == 0 and "ringfence" not in verified.stderr, verified.stderr


@scene("systemd/governs", group="systemd", limit=120)
def governs():
    """under the unit's own restrictions a container is governed, and its denial is stored"""
    allowed, forbidden = targets("systemd")
    worker = Worker(profile("rf-systemd"))
    worker.check(allowed, forbidden, "under systemd")
    wait_event(denied(forbidden))
    worker.stop()


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
    with open("/proc/self/status") as file:
        mine = int(next(line for line in file if line.startswith("CapEff")).split()[1], 16)
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
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert answer.status == 200, answer.status
    try:
        urllib.request.urlopen(f"{place}/api/stats", timeout=20)
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
    allowed, forbidden = targets("systemd-restart")
    worker = Worker(profile("rf-systemd-restart"))
    worker.check(allowed, forbidden, "before")
    result = systemctl("restart", UNIT, timeout=300)
    assert result.returncode == 0, f"{result.stderr}\n{journal()}"
    worker.check(allowed, forbidden, "after a restart")
    first = role_pids("daemon")
    kill_role("daemon")
    worker.check(allowed, forbidden, "with the core dead")
    wait_for(lambda: role_pids("daemon") not in ([], first) and ringfence("status").returncode in (0, 2), "systemd's restart", 240)
    worker.check(allowed, forbidden, "after systemd's restart")
    listed = json.loads(ringfence("status", "--json").stdout)
    assert any(one["profile"].startswith("rf-systemd-restart") for one in listed["containers"]), listed["containers"]
    late = f"{os.path.dirname(forbidden)}/late"
    with open(late, "w") as file:
        file.write("x")
    worker.check(allowed, late, "and again")
    wait_event(denied(late))
    worker.stop()


@scene("systemd/stop-loses-nothing", group="systemd", limit=400)
def stop():
    """what happened just before `systemctl stop` is in the store, and enforcement outlives it"""
    allowed, forbidden = targets("systemd-stop")
    worker = Worker(profile("rf-systemd-stop"))
    worker.check(allowed, forbidden, "before")
    result = systemctl("stop", UNIT, timeout=120)
    assert result.returncode == 0 and not role_pids("daemon") and not role_pids("auditor"), f"{result.stderr}\n{journal()}"
    worker.check(allowed, forbidden, "stopped")
    result = systemctl("start", UNIT, timeout=300)
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
    result = ringfence("uninstall", timeout=150)
    assert result.returncode == 0, f"{said(result)}\n{journal()}"
    assert not role_pids("daemon") and not os.path.exists(f"/etc/systemd/system/{UNIT}")
    assert not os.path.exists("/sys/fs/bpf/ringfence") or not os.listdir("/sys/fs/bpf/ringfence"), "pins are left"
    assert systemctl("is-active", UNIT).stdout.strip() in ("inactive", "unknown", "failed")
    again = ringfence("uninstall", timeout=150)
    assert again.returncode == 0, said(again)
    _, forbidden = targets("systemd-after")
    assert subprocess.run(["cat", forbidden], capture_output=True).returncode == 0, "an ungoverned task is denied"
