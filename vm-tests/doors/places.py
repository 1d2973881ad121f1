"""Who takes part in `cargo xtask bench doors`, where their things are, and what the guest's clock says."""

import grp
import os
import sys
import time

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
sys.path[:0] = [f"{HERE}/lib", f"{HERE}/cases"]
sys.dont_write_bytecode = True

import case  # noqa: E402

BASE = "/srv/rf/doors"
PROFILES = "/etc/ringfence/profiles"
PYTHON = os.path.realpath("/usr/bin/python3")
RUNTIME = f"{HERE}/bin/ringfence-runtime"
RUN = "/run/ringfence"

# The well-behaved: who owns the agent, and who uses MCP and the dashboard.
OWNER, USER = 60002, 60001
# The hostile: users one after the other, the owner of the hostile agents among them; the last have their ids from SUBORDINATE's range.
HOSTILE, EVIL_OWNER, STRANGER = 61000, 61900, 61901
SUBORDINATE, SUBORDINATE_IDS = 61001, 300000

# The agents: a good one, one whose tools are hostile, one whose runtime is, one without a container whose API is on loopback.
GOOD, TOOLS, RAW, WEB = "rf-doors-good", "rf-doors-tools", "rf-doors-raw", "rf-doors-web"
WEB_PORT = 4117
GOOD_SERVER = "rf-doors-server"
LOUD = ("rf-doors-full", "rf-doors-docker")
DASHBOARD = 8080

SECRET = f"{BASE}/secret"
# Where the good user's waiting calls are told to whom they do not belong: the worst case.
TOLD = f"{BASE}/told"


def sock(name):
    """An agent's socket."""
    return f"{RUN}/sockets/{name}/agent.sock"


def box(name):
    """A container's own directory."""
    return f"{BASE}/box/{name}"


def as_user(uid):
    """The words before a command that make it an ordinary user's, who may have containers."""
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", f"--groups={grp.getgrnam('ringfence').gr_gid}"]


def environment(uid):
    """An environment in which a user has a home of its own."""
    home = f"/home/rf-{uid}"
    os.makedirs(home, exist_ok=True)
    os.chown(home, uid, uid)
    return {"HOME": home, "PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}


def profile_text(reads, writes, reach, audit="denied", capabilities="default", head="", llm=""):
    """A profile of one of the containers. `head` stands before its tables."""
    return case.profile_text("a party of bench doors", ["/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/proc", "/dev", HERE, *reads],
                             ["/dev/null", *writes], ["/usr/bin", HERE], reach, {"fs_read": [SECRET]},
                             f'capabilities = ["{capabilities}"]\naudit = "{audit}"', f"{head}\n{llm}")


def write_profile(name, text):
    """Puts a profile in place, in one step."""
    path = f"{PROFILES}/{name}.toml"
    with open(path + ".new", "w") as file:
        file.write(text)
    os.rename(path + ".new", path)
    return path


class Pace:
    """Turns of a loop, each at least so many seconds after the one before."""

    def __init__(self, seconds):
        self.seconds = seconds
        self.next = time.monotonic()

    def wait(self):
        """Until the next turn."""
        left = self.next - time.monotonic()
        if left > 0:
            time.sleep(left)
        self.next = max(time.monotonic(), self.next) + self.seconds
