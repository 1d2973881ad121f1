#!/usr/bin/env python3
"""What `cargo xtask bench doors` runs in a guest with systemd: one hour of everything at once, beside those who behave well.

    main.py MINUTES [QUIET_SECONDS]

Hostile containers, users, an owner of agents, a provider and pages press every door of the daemon; an agent, an MCP session whose calls
its user decides, a reader of the dashboard and a user of the command line go on beside them, first alone and then among them. Prints what
each waited, in the guest's seconds, and ends with 1 where anything was lost or wrong: an answer, a decision, a row, an event's call, a
denial that is nowhere, a process, memory.
"""

import json
import os
import shutil
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import places  # noqa: E402
from places import BASE, EVIL_OWNER, GOOD, GOOD_SERVER, HERE, HOSTILE, LOUD, OWNER, PYTHON, RAW, RUNTIME, SECRET, STRANGER, TOOLS, WEB  # noqa: E402
import agents  # noqa: E402
import good  # noqa: E402
import record  # noqa: E402
import watch  # noqa: E402

PROVIDER_PORT = 4200
KEY = "sk-doors-0123456789abcdef"
# What an operator gives those whom nobody trusts: SECURITY.md leaves processors and memory to cgroups, and disk to file systems and quotas.
# As much of the processors as system.slice has, where the daemon and the well-behaved are; MiB of a file system for the users' homes.
MEMORY, TASKS, DISK = "330M", "1500", 512
SLICE = "hostile.slice"


def model_of(name, port):
    """The part of an agent's profile about its model."""
    key = f"{BASE}/{name}.key"
    good.put(key, KEY)
    os.chmod(key, 0o600)
    return f'[llm.mock]\nprovider = "anthropic"\nmodel = "m"\napi_key_file = "{key}"\nbase_url = "http://127.0.0.1:{port}"\ntimeout = 40\nruntime_timeout = 60\n'


def bounded(place):
    """A file system of their own for the hostile users, who fill what they are given."""
    os.makedirs(place)
    with open(f"{place}.image", "wb") as file:
        file.truncate(DISK << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", f"{place}.image"], check=True)
    subprocess.run(["modprobe", "loop"], check=True)
    subprocess.run(["mount", "-o", "loop,nosuid,nodev", f"{place}.image", place], check=True)
    os.chmod(place, 0o777)


def prepare(port):
    """Files, users' ids and profiles."""
    shutil.rmtree(BASE, ignore_errors=True)
    for name in (GOOD, GOOD_SERVER, TOOLS, RAW, *LOUD):
        os.makedirs(places.box(name))
        os.chmod(places.box(name), 0o777)
        good.put(f"{places.box(name)}/granted", "granted\n")
    os.chown(places.box(GOOD), OWNER, OWNER)
    bounded(f"{BASE}/users")
    os.makedirs(SECRET)
    for name in ("file", "wide", *(f"flood-{number}" for number in range(250))):
        good.put(f"{SECRET}/{name}", "secret\n")
    # Modes let everybody do everything here: it is the profiles that refuse.
    os.chmod(SECRET, 0o777)
    with open("/etc/subuid", "a") as file:
        file.write(f"{places.SUBORDINATE}:{places.SUBORDINATE_IDS}:65536\n")
    for name, owner, where, audit in ((GOOD, OWNER, port, "all"), (TOOLS, EVIL_OWNER, PROVIDER_PORT, "denied"), (RAW, EVIL_OWNER, PROVIDER_PORT, "denied")):
        mine = places.box(name)
        head = f"socket_owner = {owner}"
        places.write_profile(name, places.profile_text([mine], [mine], [f"unix:{places.sock(name)}"], audit, head=head, llm=model_of(name, where)))
    web = f"http = true\nhttp_port = {places.WEB_PORT}\n{model_of(WEB, PROVIDER_PORT)}"
    places.write_profile(WEB, f'description = "its API is on loopback"\n{web}')
    places.write_profile(GOOD_SERVER, places.profile_text([BASE + "/server.py"], [], []))
    places.write_profile("rf-doors-small", places.profile_text([], [], []))
    for name, capabilities in zip(LOUD, ("all", "default")):
        mine = places.box(name)
        places.write_profile(name, places.profile_text([mine], [mine], [], capabilities=capabilities))


class Hostile:
    """One of them, within what the slice has; its standard input is its life."""

    made = []

    def __init__(self, name, *words, become=(), often=False):
        self.name, self.words = name, [*become, *words]
        # How often it was started; and whether its own tools end it, which may be often.
        self.times, self.often = 0, often
        self.errors = f"{BASE}/{name}.errors"
        self.output = f"{BASE}/{name}.output"
        self.start()
        Hostile.made.append(self)

    def start(self):
        """Starts it, behind what it said before."""
        # One process that is killed for want of memory ends no other of them.
        scope = ["systemd-run", "--quiet", "--scope", f"--slice={SLICE}", "--property=OOMPolicy=continue", f"--unit=doors-{self.name}-{self.times}"]
        self.process = subprocess.Popen([*scope, *self.words], stdin=subprocess.PIPE, stdout=open(self.output, "a"), stderr=open(self.errors, "a"),
                                        cwd="/", env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/", "LANG": "C.UTF-8"})
        self.times += 1

    def lives(self):
        """Whether it is there; else it is started again: it may have killed itself, or taken all the memory that the hostile have."""
        alive = self.process.poll() is None
        if not alive:
            print(f"# {self.gone()}", flush=True)
            self.start()
        return alive

    def gone(self):
        """That it ended, in words."""
        with open(self.errors, errors="replace") as file:
            return f"{self.name} ended with {self.process.returncode}: {file.read()[-600:]}"

    def was_there(self, minutes):
        """Whether it was there for most of the time: one that ends is started again within about a minute."""
        return self.process.poll() is None and (self.often or self.times <= 2 + minutes / 6)

    def lines(self):
        """What it said so far."""
        with open(self.output, errors="replace") as file:
            return [json.loads(line) for line in file if line.startswith("{") and line.endswith("\n")]

    def problems(self):
        """What it was given that it must not have, and whether it was there at all."""
        said = self.lines()
        with open(self.errors, errors="replace") as file:
            errors = file.read()[-600:]
        for line in said:
            if line.get("forbidden"):
                yield f"{self.name}: {line}"
        secret, granted = (sum(line.get(key, 0) for line in said) for key in ("secret", "granted"))
        if secret:
            yield f"{self.name} read what is denied {secret} times"
        if granted:
            yield f"{self.name} was refused what is granted {granted} times"
        did = [line[key] for line in said for key in ("round", "rounds", "requests", "sent") if key in line]
        if not did or 0 in did:
            yield f"{self.name} did nothing: {said[-20:]}; it ended with {self.process.poll()}: {errors}"


def begin():
    """Starts every hostile party."""
    good.put(f"/run/systemd/system/{SLICE}", f"[Slice]\nCPUWeight=100\nMemoryMax={MEMORY}\nTasksMax={TASKS}\n")
    hostile = f"{HERE}/doors/hostile"
    plain = [PYTHON, "-E", "-s", "-S", "-B", "-u"]
    group = str(places.grp.getgrnam("ringfence").gr_gid)
    Hostile("provider", *plain, f"{hostile}/provider.py", str(PROVIDER_PORT), places.box(TOOLS), places.box(GOOD), become=places.as_user(STRANGER))
    good.put(f"{places.box(TOOLS)}/prompt.md", "You are hostile.")
    tools = [RUNTIME, "--system-prompt", f"{places.box(TOOLS)}/prompt.md", "--tools", "bash,read_file,write_file", "--tool-timeout", "20", "--socket",
             places.sock(TOOLS)]
    # One of its commands kills the runtime, which has no tag: that is allowed.
    Hostile("tools", "ringfence", "run", "--profile", TOOLS, "--", *tools, often=True)
    Hostile("runtime", "ringfence", "run", "--profile", RAW, "--", *plain, f"{hostile}/runtime.py", places.sock(RAW), places.box(RAW))
    for name in LOUD:
        Hostile(name, "ringfence", "run", "--profile", name, "--", *plain, f"{hostile}/container.py", places.box(name), SECRET, places.sock(GOOD))
    Hostile("owner", *plain, f"{hostile}/owner.py", str(EVIL_OWNER), places.sock(TOOLS), places.sock(RAW))
    Hostile("users", *plain, f"{hostile}/user.py", str(HOSTILE), str(places.SUBORDINATE), str(places.SUBORDINATE_IDS), group, places.TOLD, f"{BASE}/users")
    Hostile("page", *plain, f"{hostile}/page.py", str(places.DASHBOARD), str(places.WEB_PORT), become=places.as_user(STRANGER))


def finish():
    """Ends the hostile, but for containers that are still to be counted."""
    kept = {"tools", "runtime", *LOUD}
    for one in Hostile.made:
        if one.name in kept:
            try:
                one.process.stdin.write(b"stop\n")
                one.process.stdin.flush()
            except OSError:
                pass
        else:
            one.process.stdin.close()
    until = time.monotonic() + 150
    for one in Hostile.made:
        if one.name not in kept:
            try:
                one.process.wait(max(1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                subprocess.run(["systemctl", "kill", "--signal=KILL", f"doors-{one.name}-{one.times - 1}.scope"], check=False)
    time.sleep(20)


def table(ledger):
    """What each waited, alone and among them."""
    print(f"{'seconds of the guest':38} {'':>6} {'p50':>8} {'p99':>8} {'max':>8}", flush=True)
    for what in sorted({what for what, _ in ledger.took}):
        for phase in ("quiet", "loud"):
            took = sorted(ledger.took.get((what, phase), []))
            if took:
                at = [took[min(len(took) - 1, int(len(took) * share))] for share in (0.5, 0.99)] + [took[-1]]
                print(f"{what if phase == 'quiet' else '  among them':38} {len(took):6} " + " ".join(f"{one:8.2f}" for one in at), flush=True)


def kernel():
    """The kernel's complaints, as the VM tests read them, and whom it killed for want of memory."""
    import zz_kernel

    text = subprocess.run(["dmesg"], capture_output=True, text=True, errors="replace").stdout
    killed = [line for line in text.splitlines() if "Killed process" in line]
    print(json.dumps({"killed_for_memory": len(killed), "last": killed[-2:]}), flush=True)
    found = zz_kernel.complaints()
    found += [line for line in killed if "(ringfence)" in line and "Memory cgroup" not in line]
    return found + [line for line in text.splitlines() if "segfault" in line]


def tell(begun):
    """A line about how it goes."""
    shown = watch.measure()
    with open("/proc/meminfo") as file:
        free = next(int(line.split()[1]) // 1024 for line in file if line.startswith("MemAvailable"))
    own = " ".join(f"{one['role']}={one['own_mib']}/{one['descriptors']}" for one in shown)
    disks = " and ".join(str(os.statvfs(place).f_bavail * os.statvfs(place).f_frsize >> 20) for place in ("/", f"{BASE}/users"))
    print(f"# {time.monotonic() - begun:6.0f} s, {free} MiB free, {disks} of the disks, {watch.written()}; own MiB and descriptors: {own}; seconds of processors since: {watch.busy()}; "
          f"{watch.flow()}; {watch.backlog()}; {sum(one.lives() for one in Hostile.made)} hostile parties; {watch.pauses()}", flush=True)


def main():
    """Sets up, goes quiet, goes loud, sums up."""
    minutes, quiet = float(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 60
    # The verifier takes minutes on a machine that has much else to do.
    os.makedirs(f"/etc/systemd/system/{watch.UNIT}.d")
    good.put(f"/etc/systemd/system/{watch.UNIT}.d/doors.conf", "[Service]\nTimeoutStartSec=1000\n")
    print("# installing", flush=True)
    installed = subprocess.run(["ringfence", "install"], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=1000)
    assert installed.returncode == 0, good.said(installed)
    ledger = good.Ledger()
    model = good.Model(ledger)
    prepare(model.port)
    subprocess.run(["systemctl", "reload", watch.UNIT], check=True)
    for name in (GOOD, TOOLS, RAW, WEB):
        agents.wait_for(lambda: (agents.known(name) or {}).get("state") == "running", f"the worker of {name}", about=lambda: agents.known(name))
    turns = good.Turns(ledger, model)
    agents.wait_for(lambda: agents.known(GOOD)["counts"]["runtime"], "the good runtime", about=lambda: agents.known(GOOD))
    session, reader, traces = good.Session(ledger), good.Reader(ledger), record.Traces(ledger)
    steady = [ledger.every(good.TURNS, turns.turn), ledger.every(good.APPROVALS, session.round), ledger.every(good.QUESTIONS, reader.ask),
              ledger.every(good.COMMANDS, good.questions(ledger))]
    begun = time.monotonic()
    print(f"# quiet for {quiet:.0f} s", flush=True)
    time.sleep(quiet)
    before, first = watch.measure(), watch.restarts()
    tell(begun)
    ledger.phase = "loud"
    begin()
    end = time.monotonic() + minutes * 60
    gathered = time.monotonic()
    while time.monotonic() < end:
        time.sleep(min(60, max(1, end - time.monotonic())))
        try:
            tell(begun)
            if time.monotonic() - gathered > 300:
                gathered = time.monotonic()
                traces.gather()
        except Exception as error:  # the finding is told, and the rest goes on
            ledger.wrong(f"how it goes cannot be said: {error!r}")
    gone = [f"{one.name} was not there: {one.times} starts; {one.gone()}" for one in Hostile.made if not one.was_there(minutes)]
    print(json.dumps({"starts": {one.name: one.times for one in Hostile.made}}), flush=True)
    ledger.stopping.set()
    until = time.monotonic() + 60
    for thread in steady:
        thread.join(max(0, until - time.monotonic()))
    print("# the hostile end", flush=True)
    finish()
    print("# the hostile have ended", flush=True)
    for thread in steady:
        thread.join(good.LOST)
    if session.client:
        session.end()
    record.settle()
    print("# the record is read", flush=True)
    ledger.problems += gone
    sum_up(ledger, turns, session, traces, before, first)


def sum_up(ledger, turns, session, traces, before, first):
    """Everything that can be wrong, and what each waited."""
    traces.gather()
    table(ledger)
    for one in Hostile.made:
        print(json.dumps({one.name: one.lines()[-20:]})[:3000], flush=True)
    found, wrong = record.add_up((GOOD, TOOLS, RAW, *LOUD))
    print(*(json.dumps(one) for one in found), sep="\n", flush=True)
    wrong += traces.problems(turns.sent)
    wrong += record.events(turns.sent)
    wrong += record.calls(session.expected)
    for one in Hostile.made:
        wrong += one.problems() if one.name != "tools" else []
    after = watch.measure()
    print(json.dumps({"before": before, "after": after}), flush=True)
    wrong += watch.problems(before, after, first, watch.restarts())
    wrong += kernel()
    wrong += ledger.problems
    for one in watch.status()["agents"]:
        print(json.dumps({one["name"]: one["counts"]}), flush=True)
        if one["restarts"]:
            wrong.append(f"the worker of {one['name']} was started again: {one}")
        if one["name"] in (TOOLS, RAW) and not one["counts"]["tags"]:
            wrong.append(f"{one['name']} never had a call's process: {one}")
    print(json.dumps({"turns": turns.sent, "answered": turns.answered, "mcp_calls": len(session.expected), "minutes": sys.argv[1]}), flush=True)
    print(f"{len(wrong)} problems", *wrong[:100], sep="\n", flush=True)
    if wrong:
        print(*watch.inside(), json.dumps(watch.status()["store"]), watch.flow(), sep="\n", flush=True)
        log = subprocess.run(["journalctl", "--unit", watch.UNIT, "--no-pager", "--output", "cat"], capture_output=True, text=True).stdout
        known = ("turned away", "is refused to process", "`send` refused", "audit head")
        print(*[line for line in log.splitlines() if not any(word in line for word in known)][-80:], sep="\n", flush=True)
    sys.stdout.flush()
    os._exit(1 if wrong else 0)


main()
