"""What scenes share: profiles, the command line, a governed worker, the daemon."""

import glob
import json
import os
import signal
import subprocess
import time

from case import DOCKER, FULL, NOBODY, profile_text
from events import about
from harness import HERE, PYTHON

BASE = "/srv/rf/system"
PROFILES = "/run/rf-cases/profiles"
DAEMON_LOG = "/run/rf-cases/daemon.log"
# When this scene began, as `--since` takes it: the floods of those before it are not read again.
BEGUN = "10m"


def hammer():
    """The native helper, wherever the runner put it."""
    for path in (os.environ.get("RINGFENCE_HAMMER", ""), f"{HERE}/bin/hammer", f"{HERE}/hammer"):
        if path and os.path.exists(path):
            return path
    raise AssertionError("no native helper: vm-tests/bin/hammer is missing in the guest")


def targets(name):
    """An allowed and a denied file of this scene's own."""
    paths = []
    for kind in ("allow", "deny"):
        path = f"{BASE}/{kind}/{name}"
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(f"secret-{name}\n")
        os.chmod(path, 0o666)
        paths.append(path)
    return paths


# How root becomes an account of the cases: an ordinary user who may govern. Root's capabilities are the profile's to say.
BECOME = {DOCKER: [], FULL: [], NOBODY: ["setpriv", "--reuid=65534", "--regid=65534", "--groups=ringfence"]}


def put(path, text):
    """Writes a file as an editor does: another one in its place."""
    with open(f"{path}.new", "w") as file:
        file.write(text)
    os.rename(f"{path}.new", path)


def profile(name, read=(), deny_read=(), mode="enforce", audit="denied", write=(), where=PROFILES, who=DOCKER):
    """Writes a profile, which leaves root the capabilities of `who`; what `who` calls it: its path or, who is not root, its name."""
    where = "/etc/ringfence/profiles" if who == NOBODY else where
    kernel = f'capabilities = ["{"all" if who == FULL else "default"}"]\naudit = "{audit}"'
    text = profile_text("vm test scene", [f"{BASE}/allow", HERE, *read], write, ["/usr/bin", HERE], deny={"fs_read": deny_read}, kernel=kernel,
                        head=f'mode = "{mode}"')
    os.makedirs(where, exist_ok=True)
    path = f"{where}/{name}.toml"
    put(path, text)
    return name if who == NOBODY else path


# Seconds that a command, an event or a condition may take on a machine that has much else to do. A scene's limit is longer.
PATIENCE = 180


def ringfence(*args, timeout=PATIENCE, become=(), **options):
    """Runs the command line, as the account that `become` makes of root; its result, output as text."""
    return subprocess.run([*become, "ringfence", *args], capture_output=True, text=True, errors="replace", timeout=timeout,
                          stdin=subprocess.DEVNULL, cwd="/", **options)


def said(result):
    """A result in words, for a diagnosis."""
    return f"status {result.returncode}, stdout {result.stdout[-1500:]!r}, stderr {result.stderr[-1500:]!r}"


def events(*args):
    """What `ringfence events --json` tells of this scene's time."""
    result = ringfence("events", "--json", "--since", BEGUN, *args)
    assert result.returncode == 0, f"events: {said(result)}"
    return [json.loads(line) for line in result.stdout.splitlines()]


def wait_event(wanted, seconds=PATIENCE):
    """Polls until there is such an event among the newest: in a flood, reading them all takes longer than a case has."""
    end = time.monotonic() + seconds
    newest = ("--limit", "2000")
    while True:
        found = [event for event in events(*newest) if wanted(event)]
        if found:
            return found[-1]
        assert time.monotonic() < end, f"no such event; the last ones: {events(*newest)[-5:]}"
        time.sleep(0.5)


def denied(path, op="open"):
    """For `wait_event`: the denied event about a path."""
    return lambda event: event["verdict"] == "denied" and event["op"] == op and about(event, path)


LOOP = """
import os, sys
for line in sys.stdin:
    try:
        fd = os.open(line.rstrip("\\n"), os.O_RDONLY)
        print("read " + os.read(fd, 100).decode().strip(), flush=True)
        os.close(fd)
    except OSError as error:
        print(f"errno {error.errno}", flush=True)
"""


class Worker:
    """A governed process that opens what it is told to."""

    def __init__(self, profile_path, command=("ringfence", "run")):
        self.process = subprocess.Popen([*command, "--profile", profile_path, "--", PYTHON, "-E", "-s", "-S", "-B", "-u", "-c", LOOP],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/")

    def open(self, path):
        """`read TEXT` or `errno N`."""
        self.process.stdin.write(path + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline().strip()
        if not answer:
            raise AssertionError(f"the governed worker ended: {self.process.stderr.read()[-1500:]}")
        return answer

    def check(self, allowed, forbidden, when):
        """Both the denial and its positive control."""
        answer = self.open(forbidden)
        assert answer in ("errno 13", "errno 1"), f"{when}: {forbidden} gave {answer!r}"
        answer = self.open(allowed)
        assert answer.startswith("read "), f"{when}: {allowed}, which is granted, gave {answer!r}"

    def stop(self):
        """Ends it."""
        self.process.stdin.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()


def governed(name):
    """A scene's targets, and a worker to which they are allowed and forbidden."""
    allowed, forbidden = targets(name)
    worker = Worker(profile(f"rf-{name}"))
    worker.check(allowed, forbidden, "before")
    return allowed, forbidden, worker


def role_pids(role):
    """Pids of `ringfence ROLE`. Not of a child on its way from fork to exec, which bears its parent's name until then."""
    found = []
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            with open(path, "rb") as file:
                words = file.read().split(b"\0")
        except OSError:
            continue
        if len(words) > 1 and words[0].rsplit(b"/", 1)[-1] == b"ringfence" and words[1] == role.encode():
            found.append(int(path.split("/")[2]))
    return [pid for pid in found if parent(pid) not in found]


def parent(pid):
    """A process's parent; none where it is gone."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return int(file.read().rsplit(")", 1)[1].split()[1])
    except (FileNotFoundError, ProcessLookupError):
        return None


def is_gone(pid):
    """Whether nothing of a process runs. Its first thread is a zombie while others still hold its sockets and locks."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return True
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/stat") as file:
                if file.read().rsplit(")", 1)[1].split()[0] not in "ZX":
                    return False
        except (FileNotFoundError, ProcessLookupError):
            continue
    return True


def kill_role(*roles, number=signal.SIGKILL):
    """Signals the processes of some roles and waits until killed ones are gone, with all that they held; their pids."""
    pids = [pid for role in roles for pid in role_pids(role)]
    assert pids, f"no process `ringfence {' or '.join(roles)}`"
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:  # some end with those before them
            pass
    if number in (signal.SIGKILL, signal.SIGTERM):
        wait_for(lambda: all(is_gone(pid) for pid in pids), f"{' and '.join(roles)} to be gone")
    return pids


def wait_for(condition, what, seconds=PATIENCE):
    """Polls a condition."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(0.2)


def start_daemon():
    """Starts the daemon as its own session and waits until it answers."""
    with open(DAEMON_LOG, "ab") as log:
        process = subprocess.Popen(["ringfence", "daemon"], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                   start_new_session=True, cwd="/")
    end = time.monotonic() + 400
    # 2 is a daemon that answers and has something to complain of: a scene may be about just that.
    while ringfence("status").returncode not in (0, 2):
        assert process.poll() is None, f"the daemon ended with {process.returncode}: {daemon_log()}"
        assert time.monotonic() < end, f"the daemon does not answer: {daemon_log()}"
        time.sleep(0.3)
    return process


def daemon_log():
    """The end of what the daemon said."""
    with open(DAEMON_LOG, errors="replace") as file:
        return file.read()[-3000:]


def reload():
    """Asks for a reload, as `systemctl reload` does."""
    kill_role("daemon", number=signal.SIGHUP)
