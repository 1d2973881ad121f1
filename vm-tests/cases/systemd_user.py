"""Group `systemd`: `ringfence agent init` and `stop` under an ordinary user's own systemd."""

import json
import os
import pwd
import shutil
import signal
import subprocess

from case import scene
from system import PATIENCE, said, wait_for

USER = pwd.getpwnam("user") if "user" in {entry.pw_name for entry in pwd.getpwall()} else None
UNIT = "ringfence.service"
PROFILE = """\
[llm.nobody]
provider = "anthropic"
model = "m"
base_url = "http://127.0.0.1:9"
"""


def environment(**more):
    """What a login gives the user."""
    return {"HOME": USER.pw_dir, "USER": USER.pw_name, "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8",
            "XDG_RUNTIME_DIR": f"/run/user/{USER.pw_uid}", **more}


def as_user(*words, env=None, timeout=PATIENCE):
    """Runs a command as the user; its result, output as text."""
    become = ["setpriv", f"--reuid={USER.pw_uid}", f"--regid={USER.pw_gid}", "--init-groups"]
    return subprocess.run([*become, *words], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=timeout,
                          cwd="/", env=env or environment())


def succeeds(*words, env=None):
    """A user's command that has to succeed; what it printed."""
    result = as_user(*words, env=env)
    assert result.returncode == 0, f"{words}: {said(result)}\n{journal()}"
    return result.stdout


def shown(name):
    """One of the user unit's properties."""
    return succeeds("systemctl", "--user", "show", "--property", name, "--value", UNIT).strip()


def journal():
    """The end of what the user's manager and the service said."""
    words = ["journalctl", "--no-pager", "--lines", "40", f"_UID={USER.pw_uid}"]
    return subprocess.run(words, capture_output=True, text=True, errors="replace").stdout


def served(env=None):
    """What `ringfence agent start` of the user serves: its process and its agents' names; `None` where there is none."""
    result = as_user("ringfence", "agent", "ls", "--json", env=env)
    if result.returncode:
        return None
    status = json.loads(result.stdout)
    return status["pid"], [agent["name"] for agent in status["agents"]]


def write(path, text):
    """A file of the user's, with the directories to it."""
    succeeds("sh", "-c", 'umask 077; mkdir -p "$(dirname "$1")" && printf %s "$2" >"$1"', "sh", path, text)


def log_in():
    """Starts the user's manager, as lingering does; pam_systemd, which the guest has not, would tell it where its directory is."""
    drop_in = f"/run/systemd/system/user@{USER.pw_uid}.service.d/directory.conf"
    os.makedirs(os.path.dirname(drop_in), exist_ok=True)
    with open(drop_in, "w") as file:
        file.write("[Service]\nEnvironment=XDG_RUNTIME_DIR=/run/user/%i\n")
    subprocess.run(["systemctl", "daemon-reload"], check=True)
    lingers = subprocess.run(["loginctl", "enable-linger", USER.pw_name], capture_output=True, text=True)
    assert lingers.returncode == 0, said(lingers)
    wait_for(lambda: as_user("systemctl", "--user", "is-system-running").stdout.strip() in ("running", "degraded"),
             "the user's manager")


@scene("systemd/user-init", group="systemd", limit=500)
def init():
    """a user's `ringfence agent init` serves the agents, also after a kill; `stop` and `init --uninstall` leave nothing of it"""
    unit = f"{USER.pw_dir}/.config/systemd/user/{UNIT}"
    sockets = f"{USER.pw_dir}/.config/ringfence/sockets"
    write(f"{USER.pw_dir}/.config/ringfence/agents/first.toml", PROFILE)
    # As behind `su`: there is no manager, and nothing is written.
    refused = as_user("ringfence", "init", env={key: value for key, value in environment().items() if key != "XDG_RUNTIME_DIR"})
    assert refused.returncode == 1 and "nothing was changed" in refused.stderr and not os.path.exists(unit), said(refused)
    log_in()
    assert "the service runs" in succeeds("ringfence", "init")
    # Type=notify: systemctl returned when the agents were served.
    assert shown("ActiveState") == "active" and shown("SubState") == "running", journal()
    assert succeeds("systemctl", "--user", "is-enabled", UNIT).strip() == "enabled"
    pid, agents = served()
    assert str(pid) == shown("MainPID") and agents == ["first"], (pid, agents, shown("MainPID"))
    with open(f"/proc/{pid}/status") as file:
        assert f"Uid:\t{USER.pw_uid}\t{USER.pw_uid}" in file.read()
    verified = as_user("systemd-analyze", "--user", "verify", unit)
    assert verified.returncode == 0 and "ringfence" not in verified.stderr, said(verified)
    assert "first  running" in succeeds("ringfence", "status")
    # Another one beside the service is refused and leaves it as it is.
    second = as_user("ringfence", "start")
    assert second.returncode == 1 and f"pid {pid}" in second.stderr, said(second)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: (served() or (pid,))[0] != pid, "systemd to start it again")
    pid, agents = served()
    assert str(pid) == shown("MainPID") and agents == ["first"], (pid, agents)
    write(f"{USER.pw_dir}/.config/ringfence/agents/second.toml", PROFILE)
    succeeds("systemctl", "--user", "reload", UNIT)
    wait_for(lambda: served() == (pid, ["first", "second"]), "the new agent")
    assert "the service runs" in succeeds("ringfence", "init"), "a second time"
    assert served()[1] == ["first", "second"]
    stopped = succeeds("ringfence", "stop")
    assert "the service is stopped and removed" in stopped, stopped
    assert served() is None and not os.path.exists(unit), "it is still there"
    assert as_user("systemctl", "--user", "is-active", UNIT).stdout.strip() in ("inactive", "unknown"), journal()
    assert not [name for name in os.listdir(sockets) if not name.startswith(".")], os.listdir(sockets)
    wanted = f"{os.path.dirname(unit)}/default.target.wants"
    assert not os.path.exists(wanted) or not os.listdir(wanted), os.listdir(wanted)
    again = as_user("ringfence", "stop")
    assert again.returncode == 1 and "ringfence agent start" in again.stderr, said(again)
    succeeds("ringfence", "init")
    assert served() and "stopped and removed" in succeeds("ringfence", "init", "--uninstall")
    assert served() is None and not os.path.exists(unit)
    assert "no service was installed" in succeeds("ringfence", "init", "--uninstall")


@scene("systemd/user-init-elsewhere", group="systemd", limit=300)
def elsewhere():
    """where XDG_CONFIG_HOME and XDG_DATA_HOME of the login say, the service looks too, though its manager has no such variables"""
    log_in()
    there = environment(XDG_CONFIG_HOME=f"{USER.pw_dir}/my config", XDG_DATA_HOME=f"{USER.pw_dir}/my data")
    write(f"{USER.pw_dir}/my config/ringfence/agents/there.toml", PROFILE)
    assert "the service runs" in succeeds("ringfence", "init", env=there)
    (_, agents) = served(there) or (None, None)
    assert agents == ["there"], (agents, journal())
    assert os.path.exists(f"{USER.pw_dir}/my data/ringfence/logs/there/conversation.ndjson")
    assert "the service is stopped and removed" in succeeds("ringfence", "stop", env=there)
    assert served(there) is None and not os.path.exists(f"{USER.pw_dir}/my config/systemd/user/{UNIT}")
    assert as_user("systemctl", "--user", "is-enabled", UNIT).returncode != 0, "a link of it is left"
    for name in ("my config", "my data"):
        shutil.rmtree(f"{USER.pw_dir}/{name}")
