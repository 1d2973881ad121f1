"""Scenes of the command line under governance: statuses, modes, events, enrolment, rules by the thousand."""

import grp
import json
import os
import shutil
import subprocess

from case import DOCKER, FULL, NOBODY, scene
from harness import PYTHON
from system import BASE, BECOME, PATIENCE, Worker, denied, events, governed, profile, ringfence, said, targets, wait_event, wait_for


@scene("system/ungoverned-sees-nothing", limit=240)
def ungoverned():
    """a process that nothing governs is never denied and never recorded"""
    allowed, forbidden = targets("ungoverned")
    children = []
    for number in range(40):
        path = (allowed, forbidden)[number % 2]
        with subprocess.Popen(["cat", path], stdout=subprocess.PIPE, text=True) as one:
            assert one.stdout.read().startswith("secret-"), "an ungoverned process was refused"
            children.append(one.pid)
    worker = Worker(profile("rf-beside"))
    worker.check(allowed, forbidden, "governed")
    worker.stop()
    wait_event(denied(forbidden))
    found = [event for event in events() if event["tgid"] in children or event["pid"] in children]
    assert not found, f"events of ungoverned processes: {found[:3]}"
    # Of all scenes and cases so far.
    recorded = [json.loads(line) for line in ringfence("events", "--json", timeout=900).stdout.splitlines()]
    # Those of profiles that have a name of their own: what ships (system/git-under-coder, system/kit), and the other container of a tie.
    strangers = [event for event in recorded if not event["profile"].startswith("rf-") and event["profile"] not in ("claude", "coder", "tie-other")]
    assert not strangers, f"events of no container of these tests: {strangers[:3]}"


@scene("system/statuses")
def statuses():
    """exit statuses pass through: 0, 7, a signal, 127 for a missing command, 126 for one that may not run"""
    path = profile("rf-status", read=["/srv/rf/plain"])
    os.makedirs(f"{BASE}/deny", exist_ok=True)
    for name in ("/srv/rf/plain", f"{BASE}/deny/program"):
        with open(name, "w") as file:
            file.write("#!/usr/bin/sh\necho ran\n")
    os.chmod("/srv/rf/plain", 0o644)
    os.chmod(f"{BASE}/deny/program", 0o755)
    for command, expected in ((["/usr/bin/true"], 0), (["/usr/bin/sh", "-c", "exit 7"], 7), (["/usr/bin/sh", "-c", "kill -9 $$"], 137),
                              (["/srv/rf/no-such-command"], 127), (["no-such-command"], 127), (["/srv/rf/plain"], 126),
                              ([f"{BASE}/deny/program"], 126)):
        result = ringfence("run", "--profile", path, "--", *command)
        assert result.returncode == expected, f"{command} should give {expected}: {said(result)}"
        assert "ran" not in result.stdout, f"{command} ran"
        assert expected not in (126, 127) or result.stderr, f"{command}: no word of what is wrong"
    wait_event(denied(f"{BASE}/deny/program", "exec"))


@scene("system/audit-mode")
def audit_mode():
    """mode = "audit" denies nothing and records what it would have denied"""
    allowed, forbidden = targets("audit-mode")
    worker = Worker(profile("rf-audit", mode="audit"))
    for path in (allowed, forbidden):
        answer = worker.open(path)
        assert answer == "read secret-audit-mode", f"{path} in audit mode gave {answer}"
    worker.stop()
    event = wait_event(lambda event: event["op"] == "open" and event.get("path") == forbidden and event["profile"] == "rf-audit")
    assert event["verdict"] == "would_deny", event


@scene("system/audit-classes")
def audit_classes():
    """[kernel] audit chooses which allowed events are recorded; denials always are"""
    allowed, forbidden = targets("classes")
    for name, executed, opened in (("denied", False, False), ("exec", True, False), ("all", True, True)):
        path = profile(f"rf-class-{name}", audit=name)
        result = ringfence("run", "--profile", path, "--", "/usr/bin/cat", allowed, forbidden)
        assert "secret-classes" in result.stdout and result.returncode == 1, said(result)
        wait_event(lambda event: denied(forbidden)(event) and event["profile"] == f"rf-class-{name}")
        wait_for(lambda: recorded(name, allowed) == (executed, opened), f"class {name} to record {(executed, opened)}")


def recorded(name, allowed):
    """Whether an allowed exec of cat and an allowed open of the file were recorded."""
    mine = [event for event in events() if event["profile"] == f"rf-class-{name}" and event["verdict"] == "allowed"]
    return (any(event["op"] == "exec" and event["path"] == "/usr/bin/cat" for event in mine),
            any(event["op"] == "open" and event["path"] == allowed for event in mine))


@scene("system/event-fields", hook="bprm_committed_creds")
def event_fields():
    """an event's JSON has its documented keys, and they are true"""
    _, forbidden = targets("fields")
    path = profile("rf-fields")
    child = subprocess.run(["ringfence", "run", "--profile", path, "--", "/usr/bin/cat", forbidden], capture_output=True, text=True)
    assert child.returncode == 1, said(child)
    event = wait_event(denied(forbidden))
    expected = {"ts", "id", "container", "profile", "verdict", "op", "path", "flags", "pid", "tgid", "ppid", "exec_id", "exe", "uid",
                "rule", "tool_call", "attribution", "repeats"}
    assert expected <= set(event), f"missing keys {expected - set(event)} in {event}"
    assert event["profile"] == "rf-fields" and event["exe"] == "/usr/bin/cat" and event["uid"] == 0, event
    assert event["tool_call"] is None and event["attribution"] == "none" and event["repeats"] == 1, event
    assert event["exec_id"].startswith(f"{event['tgid']}:") and len(event["container"]) == 12, event
    mine = events("--container", event["container"])
    assert mine and all(one["container"] == event["container"] for one in mine), "--container shows others"
    assert all(one["verdict"] in ("denied", "would_deny") for one in events("--denied")), "--denied shows what was not"
    why = ringfence("why", str(event["id"]))
    assert why.returncode == 0 and forbidden in why.stdout and "fs_read" in why.stdout, f"why: {said(why)}"


@scene("system/why-names-the-rule")
def why_rule():
    """why names the deny rule, its file and its line"""
    allowed, _ = targets("why")
    path = profile("rf-why", deny_read=[allowed])
    ringfence("run", "--profile", path, "--", "/usr/bin/cat", allowed)
    event = wait_event(denied(allowed))
    assert event["rule"].startswith("deny.fs_read"), event
    with open(path) as file:
        lines = file.read().splitlines()
    line = lines.index("fs_read = " + json.dumps([allowed])) + 1
    why = ringfence("why", str(event["id"]))
    assert why.returncode == 0 and f"rf-why.toml:{line}" in why.stdout, f"why, line {line}: {said(why)}"


@scene("system/ten-thousand-rules", limit=90)
def ten_thousand():
    """10,000 rules: the first, the middle and the last hold, and so does what none of them names"""
    base = f"{BASE}/many"
    os.makedirs(base, exist_ok=True)
    names = [f"{base}/f{number}" for number in range(10_000)]
    for name in (names[0], names[5000], names[9999], f"{base}/f10000"):
        with open(name, "w") as file:
            file.write("many")
    worker = Worker(profile("rf-many", read=names))
    for name in (names[0], names[5000], names[9999]):
        worker.check(name, f"{base}/f10000", "with 10,000 rules")
    worker.stop()
    wait_event(denied(f"{base}/f10000"))


@scene("system/hundred-thousand-rules", limit=120)
def hundred_thousand():
    """100,000 rules either hold or are refused in one clear sentence; the command never runs ungoverned"""
    allowed, forbidden = targets("huge")
    path = profile("rf-huge", read=[f"{BASE}/huge/f{number}" for number in range(100_000)])
    result = ringfence("run", "--profile", path, "--", "/usr/bin/cat", allowed, forbidden, timeout=400)
    assert "secret" not in result.stdout.replace("secret-huge", "", 1), f"both were read: {said(result)}"
    if result.returncode != 1:
        assert "secret" not in result.stdout and "rule" in result.stderr, f"no clear error: {said(result)}"


@scene("system/enroll-running-process")
def enroll():
    """a process that runs already is governed from the enrolment on, with its children"""
    allowed, forbidden = targets("enroll")
    worker = subprocess.Popen(["/usr/bin/sh", "-c", "while read path; do cat $path 2>&1 | head -c 100; echo; done"],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(path):
        worker.stdin.write(path + "\n")
        worker.stdin.flush()
        text = worker.stdout.readline()
        while worker.stdout.readline().strip():
            pass
        return text

    assert "secret" in ask(forbidden), "not even ungoverned"
    result = ringfence("enroll", "--pid", str(worker.pid), "--profile", profile("rf-enroll"))
    assert result.returncode == 0, f"enroll: {said(result)}"
    assert "secret" not in ask(forbidden), "the enrolled process reads what is denied"
    assert "secret" in ask(allowed), "the enrolled process cannot read what is granted"
    worker.stdin.close()
    worker.wait(PATIENCE)
    wait_event(denied(forbidden))


# A launcher that does as little as it must: it has its child enrolled, which then becomes the rest of the command line.
LAUNCHER = """
import array, ctypes, json, os, socket, struct, sys
gains, profile, command = sys.argv[1] == "gains", sys.argv[2], sys.argv[3:]
reads, writes = os.pipe()
child = os.fork()
if child == 0:
    if not gains:
        assert ctypes.CDLL(None).prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    print("ready", flush=True)
    os.read(reads, 1)
    os.execv(command[0], command)
if profile:
    sys.stdin.readline()
    door = socket.socket(socket.AF_UNIX)
    door.connect("/run/ringfence/enroll.sock")
    text = json.dumps({"request": "enroll", "profile": profile}).encode()
    beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [os.pidfd_open(child)]))]
    door.sendmsg([struct.pack(">I", len(text)) + text], beside)
    length, = struct.unpack(">I", door.recv(4, socket.MSG_WAITALL))
    print("answer", door.recv(length, socket.MSG_WAITALL).decode(), flush=True)
os.write(writes, b"x")
os.waitpid(child, 0)
"""


@scene("system/enrolment-gains-nothing")
def enrolment_gains_nothing():
    """an ordinary user puts no process under a profile that could gain privileges; its launcher's own do not"""
    path = profile("rf-gains", where="/etc/ringfence/profiles")
    setuid = "/usr/bin/rf-id"
    shutil.copy("/usr/bin/id", setuid)
    os.chmod(setuid, 0o4755)

    def enrolled(how, name):
        command = [*BECOME[NOBODY], PYTHON, "-c", LAUNCHER, how, name, setuid, "-u"]
        launcher = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/")
        assert launcher.stdout.readline() == "ready\n"
        return launcher.communicate("go\n", timeout=PATIENCE)[0]

    try:
        assert enrolled("gains", "") == "0\n", "not even ungoverned is it root's program"
        refused = enrolled("gains", "rf-gains")
        assert "could gain privileges" in refused and '"container"' not in refused, refused
        taken = enrolled("keeps", "rf-gains")
        assert '"container"' in taken and taken.endswith("65534\n"), taken
        # The launcher itself does it right.
        result = subprocess.run([*BECOME[NOBODY], "ringfence", "run", "--profile", "rf-gains", "--", setuid, "-u"],
                                capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL, cwd="/")
        assert result.stdout == "65534\n", said(result)
        # Of root's asking it is root's to know.
        root = subprocess.run(["ringfence", "run", "--profile", path, "--", setuid, "-u"], capture_output=True, text=True,
                              timeout=PATIENCE, stdin=subprocess.DEVNULL, cwd="/")
        assert root.stdout == "0\n", said(root)
    finally:
        os.unlink(setuid)
        os.unlink(path)


@scene("system/vanished-cgroup")
def vanished():
    """enrolment of a cgroup or process that is gone: a clear error, no container left"""
    path = profile("rf-gone")
    gone = "/sys/fs/cgroup/rf-gone"
    os.makedirs(gone, exist_ok=True)
    os.rmdir(gone)
    for args in (["--cgroup", gone], ["--pid", "4194000"]):
        result = ringfence("enroll", *args, "--profile", path)
        assert result.returncode != 0 and result.stderr.strip(), f"{args}: {said(result)}"
        assert "panic" not in result.stderr, f"{args}: {said(result)}"
    assert "rf-gone" not in ringfence("status").stdout, "a container is left"


@scene("system/unprivileged-user", limit=90)
def unprivileged():
    """an ordinary user of group ringfence governs a child of their own, under a root-owned profile only"""
    allowed, forbidden = targets("user")
    profile("rf-user", where="/etc/ringfence/profiles")
    os.makedirs("/tmp/rf-user", exist_ok=True)
    own = profile("rf-own", where="/tmp/rf-user")
    os.chown(own, 65534, 65534)
    group = grp.getgrnam("ringfence").gr_gid
    become = ["setpriv", "--reuid=65534", "--regid=65534", f"--groups={group}", "ringfence", "run"]
    worker = Worker("rf-user", command=become)
    worker.check(allowed, forbidden, "as an ordinary user")
    worker.stop()
    event = wait_event(denied(forbidden))
    assert event["uid"] == 65534 and event["profile"] == "rf-user", event
    for name, command in (("a profile of their own", [*become, "--profile", own]),
                          ("without the group", ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "ringfence", "run", "--profile", "rf-user"])):
        result = subprocess.run([*command, "--", "/usr/bin/cat", allowed], capture_output=True, text=True, timeout=PATIENCE)
        assert "secret" not in result.stdout and result.returncode == 125, f"{name}: {said(result)}"
    os.unlink("/etc/ringfence/profiles/rf-user.toml")


@scene("system/inherited-descriptors")
def inherited():
    """descriptors of the caller do not reach the command, but for the three standard ones"""
    _, forbidden = targets("inherited")
    path = profile("rf-inherited")
    fd = os.open(forbidden, os.O_RDONLY)
    os.set_inheritable(fd, True)
    script = f"import os\ntry:\n print(os.pread({fd}, 100, 0))\nexcept OSError as e:\n print('errno', e.errno)"
    bare = subprocess.run([PYTHON, "-c", script], pass_fds=[fd], capture_output=True, text=True)
    assert "secret" in bare.stdout, f"not even ungoverned: {bare}"
    result = subprocess.run(["ringfence", "run", "--profile", path, "--", PYTHON, "-E", "-s", "-S", "-c", script], pass_fds=[fd],
                            capture_output=True, text=True, timeout=PATIENCE)
    assert result.stdout.strip() == "errno 9", said(result)


@scene("system/environment")
def environment():
    """the environment is an allowlist"""
    path = profile("rf-environment")
    result = ringfence("run", "--profile", path, "--env", "RF_WANTED", "--", "/usr/bin/env",
                       env={**os.environ, "RF_SECRET": "x", "RF_WANTED": "y", "LD_PRELOAD": ""})
    assert "RF_WANTED=y" in result.stdout and "RF_SECRET" not in result.stdout and "LD_PRELOAD" not in result.stdout, said(result)


@scene("system/hostile-names-in-events")
def hostile():
    """names with newlines, escapes and invalid UTF-8 cannot forge or break a line of events"""
    base = os.fsencode(f"{BASE}/deny/")
    names = [b"x\n{\"verdict\":\"allowed\"}", b"x\x1b[2J", b"x\xff\xfe", b"x\"y\\z", b"x\x7f"]
    os.makedirs(base, exist_ok=True)
    script = "import os,sys\nfor n in eval(sys.argv[1]):\n try: os.open(n, 0)\n except OSError as e: print(e.errno)"
    for name in names:
        with open(base + name, "w"):
            pass
    path = profile("rf-hostile")
    result = ringfence("run", "--profile", path, "--", PYTHON, "-E", "-s", "-S", "-c", script, repr([base + name for name in names]))
    assert result.stdout.split() == ["13"] * len(names), said(result)
    wait_for(lambda: len([event for event in events() if event["profile"] == "rf-hostile"]) >= len(names), "the events")
    shown = ringfence("events", "--since", "5m").stdout + ringfence("events", "--json", "--since", "5m").stdout
    assert "\x1b" not in shown and "\ufffd" not in shown, "raw bytes reach the terminal"


@scene("system/shells-in-shells", limit=60)
def deep_shell():
    """a governed shell five shells deep is governed like the first"""
    allowed, forbidden = targets("deep")
    command = f"cat {allowed}; cat {forbidden}; echo done"
    for _ in range(5):
        command = f"sh -c {json.dumps(command)}".replace("$", "\\$")
    result = ringfence("run", "--profile", profile("rf-deep"), "--", "/usr/bin/sh", "-c", command)
    assert result.stdout.count("secret") == 1 and "done" in result.stdout, said(result)
    wait_event(denied(forbidden))


@scene("system/terminated-container-is-forgotten", hook="task_free")
def forgotten():
    """when the last process is gone, so is the container"""
    allowed, forbidden, worker = governed("forgotten")
    assert "rf-forgotten" in ringfence("status").stdout, "status does not show it"
    worker.stop()
    wait_for(lambda: "rf-forgotten" not in ringfence("status").stdout, "the container to be forgotten")


LIMITS = "/sys/fs/cgroup/rf-limits"
FORKS = """
import os, sys, time
made = 0
for _ in range(60):
    try:
        if os.fork() == 0:
            time.sleep(600)
    except BlockingIOError:
        break
    made += 1
print(made, open("/proc/self/cgroup").read().strip().splitlines()[-1], flush=True)
os.killpg(0, 9) if len(sys.argv) > 1 else os._exit(0)
"""


def removed():
    """Removes the cgroup and those below it, once nobody is in them."""
    try:
        for name in os.listdir(LIMITS):
            if name.startswith("ringfence-"):
                os.rmdir(f"{LIMITS}/{name}")
        os.rmdir(LIMITS)
    except OSError:
        return False
    return True


@scene("system/caller-limits", limit=120)
def caller_limits():
    """pids.max and memory.max of the cgroup that `ringfence run` is started in hold for the command"""
    for controller in ("pids", "memory"):
        with open("/sys/fs/cgroup/cgroup.subtree_control", "w") as file:
            file.write(f"+{controller}")
    for who in (DOCKER, FULL, NOBODY):
        limits_hold(who)


def limits_hold(who):
    """The same for one account, which root put below the limits."""
    path = profile("rf-limits", read=["/proc"], who=who)
    os.makedirs(LIMITS, exist_ok=True)

    def limited(*command):
        enter = f'echo $$ > {LIMITS}/cgroup.procs && exec "$@"'
        return subprocess.run(["/usr/bin/sh", "-c", enter, "sh", *BECOME[who], "ringfence", "run", "--profile", path, "--", *command],
                              capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL, cwd="/")

    forks = [PYTHON, "-c", FORKS, "kill"]
    try:
        result = limited(*forks)
        assert result.stdout.startswith("60 "), f"{who}: without a limit: {said(result)}"
        assert limited(PYTHON, "-c", "print(len(bytearray(200 << 20)))").returncode == 0, f"{who}: not even without a limit"
        for name, value in (("pids.max", "20"), ("memory.max", str(50 << 20)), ("memory.swap.max", "0")):
            if os.path.exists(f"{LIMITS}/{name}"):
                with open(f"{LIMITS}/{name}", "w") as file:
                    file.write(value)
        result = limited(*forks)
        made, where = result.stdout.split(maxsplit=1)
        assert int(made) < 20, f"{who}: {made} processes under pids.max = 20: {said(result)}"
        # Who may make no cgroup there has the command in the launcher's.
        below = "0::/rf-limits" if who == NOBODY else "0::/rf-limits/ringfence-rf-limits-"
        assert where.startswith(below), f"{who}: {where}"
        result = limited(PYTHON, "-c", "print(len(bytearray(200 << 20)))")
        assert result.returncode == 137, f"{who}: 200 MiB under memory.max = 50 MiB: {said(result)}"
    finally:
        wait_for(removed, "the cgroups to be empty")


# On a terminal, in a group that is not in the foreground, beside a process of the user's.
STOPS = """
import ctypes, os, signal, sys
outside = int(sys.argv[2])
how = sys.argv[1]
def report(text):
    os.write(1, (text + "\\n").encode())
if how == "read":
    report("reading")
    os.read(0, 1)
elif how == "join":
    child = os.fork()
    if child == 0:
        try:
            os.setpgid(0, outside)
        except OSError as error:
            os.write(1, f"refused {error.errno}\\n".encode())
            os._exit(0)
        os.kill(0, signal.SIGSTOP)
        os._exit(0)
    os.waitpid(child, os.WUNTRACED)
    report("tried")
elif how == "own":
    first = os.fork()
    if first == 0:
        os.setpgid(0, 0)
        signal.pause()
    os.setpgid(first, first)
    second = os.fork()
    if second == 0:
        try:
            os.setpgid(0, first)
            os.write(1, b"joined\\n")
        except OSError as error:
            os.write(1, f"refused {error.errno}\\n".encode())
        os._exit(0)
    os.waitpid(second, 0)
    os.killpg(first, 9)
    report("done")
"""


def beside_a_job(who, prefix, how, until):
    """Runs STOPS on a terminal, in the group of a process outside of the same account; what it printed, and that process's state."""
    import pty
    import select
    import signal
    import termios

    pid, terminal = pty.fork()
    if pid == 0:  # the user's shell, in the foreground; its background group is beside's
        os.chdir("/")  # where every account may be
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        beside = os.fork()
        if beside == 0:
            os.setpgid(0, 0)
            outside = [*BECOME[who], "/usr/bin/sleep", "600"]
            os.execvp(outside[0], outside)
        try:
            os.setpgid(beside, beside)
        except OSError:
            pass
        if os.fork() == 0:
            os.setpgid(0, beside)
            command = [*prefix, PYTHON, "-c", STOPS, how, str(beside)]
            os.execvp(command[0], command)
        os.write(1, f"beside {beside}\n".encode())
        signal.pause()
    attributes = termios.tcgetattr(terminal)
    attributes[3] &= ~termios.TOSTOP
    termios.tcsetattr(terminal, termios.TCSANOW, attributes)
    text, beside = "", None
    try:

        def look():
            nonlocal text, beside
            while select.select([terminal], [], [], 0)[0]:
                text += os.read(terminal, 4096).decode(errors="replace")
            for line in text.splitlines():
                if line.startswith("beside "):
                    beside = int(line.split()[1])
            return beside is not None and until(text, beside)

        try:
            wait_for(look, f"{how} under {prefix} to come to something")
        except AssertionError as error:
            raise AssertionError(f"{error}; it printed {text!r}") from None
        return text, state_of(beside)
    finally:
        for one in descendants(pid):
            try:
                os.kill(one, signal.SIGKILL)
            except ProcessLookupError:
                pass
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(terminal)


def state_of(pid):
    """The letter of a process's state."""
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rsplit(")", 1)[1].split()[0]


def descendants(pid):
    """Processes below one, the deepest last."""
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        children = [int(word) for word in file.read().split()]
    return children + [one for child in children for one in descendants(child)]


@scene("system/terminal-stops", hook="task_setpgid", limit=240)
def terminal_stops():
    """what stops its whole process group (reading the terminal in the background, SIGSTOP to group 0) stops no job outside"""
    for who in (DOCKER, FULL, NOBODY):
        stops_nobody(who)


def stops_nobody(who):
    """The same for one account, ungoverned first."""
    path = profile(f"rf-stops-{who}", read=["/proc"], who=who)
    governed = [*BECOME[who], "ringfence", "run", "--profile", path, "--"]

    def both_stopped(_text, beside):
        """The command, and the launcher, which learns of it."""
        with open(f"/proc/{beside}/stat") as file:
            session = file.read().rsplit(")", 1)[1].split()[3]
        return len([one for one in descendants(int(session)) if state_of(one) == "T"]) > 1

    _, state = beside_a_job(who, BECOME[who], "read", lambda text, beside: state_of(beside) == "T")
    assert state == "T", "reading in the background stops nobody even ungoverned"
    text, state = beside_a_job(who, governed, "read", lambda text, beside: "reading" in text and both_stopped(text, beside))
    assert state == "S", f"reading the terminal stopped a process outside: {text}"
    text, state = beside_a_job(who, BECOME[who], "join", lambda text, beside: state_of(beside) == "T")
    assert "refused" not in text, text
    text, state = beside_a_job(who, governed, "join", lambda text, beside: "tried" in text)
    assert "refused 1" in text and state == "S", f"{state}: {text}"
    text, _ = beside_a_job(who, governed, "own", lambda text, beside: "done" in text)
    assert "joined" in text and "refused" not in text, f"a job of two processes: {text}"
    wait_event(lambda event: event["op"] == "control" and event["profile"] == f"rf-stops-{who}" and event["verdict"] == "denied")
