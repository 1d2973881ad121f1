"""The daemon's processes: that each lives on, how much memory and how many descriptors it has."""

import json
import os
import subprocess
import time

import good
from places import GOOD, RAW, RUN, TOOLS

UNIT = "ringfence.service"
# How much a process may have grown by the end, MiB of memory that is its own, beside what it had after the quiet minute. The store keeps
# 16 MiB of the database for each of its connections; a worker its conversation, in the form in which it is sent, which is as long as its
# agent makes it: a hostile one's is bounded at 1 GiB for it alone.
GROWTH = {"daemon": 24, "auditor": 128, GOOD: 32, TOOLS: 400, RAW: 400}
# Descriptors that a process may have more of, once those who came are gone.
DESCRIPTORS = 24


def field(pid, name):
    """A number from a process's status, kB."""
    with open(f"/proc/{pid}/status") as file:
        return next((int(line.split()[1]) for line in file if line.startswith(name + ":")), 0)


def roles():
    """Each process of the daemon's: its pid and role."""
    shown = subprocess.run(["systemctl", "show", "--property", "ControlGroup", "--value", UNIT], capture_output=True, text=True).stdout.strip()
    found = {}
    places = [f"/sys/fs/cgroup{shown}"]
    for place in places:
        places += [entry.path for entry in os.scandir(place) if entry.is_dir(follow_symlinks=False)]
        with open(f"{place}/cgroup.procs") as file:
            pids = [int(pid) for pid in file.read().split()]
        for pid in pids:
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    words = file.read().split(b"\0")
            except OSError:
                continue
            found[pid] = words[1].decode(errors="replace") if len(words) > 1 else "?"
    return found


def descriptors(pid):
    """How many a process has, but for those of the database: SQLite keeps as many as it ever had at once, and uses them again."""
    found = 0
    for number in os.listdir(f"/proc/{pid}/fd"):
        try:
            found += "/audit.db" not in os.readlink(f"/proc/{pid}/fd/{number}")
        except OSError:
            continue
    return found


def measure():
    """Memory and descriptors of each."""
    shown = []
    names = {one["pid"]: one["name"] for one in status()["agents"]}
    for pid, role in sorted(roles().items()):
        role = names.get(pid, role)
        try:
            shown.append({"role": role, "pid": pid, "own_mib": round(field(pid, "RssAnon") / 1024, 1), "rss_mib": round(field(pid, "VmRSS") / 1024, 1),
                          "peak_mib": round(field(pid, "VmHWM") / 1024, 1), "threads": field(pid, "Threads"),
                          "descriptors": descriptors(pid)})
        except OSError:
            continue
    return shown


USED = {}


def busy():
    """Seconds of processors that the daemon's threads, by name, and all else took since the last look: the most first."""
    ticks = os.sysconf("SC_CLK_TCK")
    now = {}
    for pid, role in roles().items():
        # With its threads that have ended.
        try:
            with open(f"/proc/{pid}/stat") as file:
                now[role] = now.get(role, 0) + sum(map(int, file.read().rsplit(")", 1)[1].split()[11:13])) / ticks
        except OSError:
            continue
        for thread in os.listdir(f"/proc/{pid}/task"):
            try:
                with open(f"/proc/{pid}/task/{thread}/stat") as file:
                    head, tail = file.read().rsplit(")", 1)
            except OSError:
                continue
            name = f"{role}/{head.split('(', 1)[1]}"
            now[name] = now.get(name, 0) + sum(map(int, tail.split()[11:13])) / ticks
    with open("/proc/stat") as file:
        user, nice, system, idle = map(int, file.readline().split()[1:5])
    now["everything"], now["nothing"] = (user + nice + system) / ticks, idle / ticks
    took = sorted(((count - USED.get(name, 0), name) for name, count in now.items()), reverse=True)
    USED.clear()
    USED.update(now)
    return " ".join(f"{name}={count:.1f}" for count, name in took[:12] if count >= 0.1)


# The threads by which a record comes into the store: out of the rings, to the auditor, into the database.
RECORD = (("daemon", "records"), ("auditor", "ringfence"), ("auditor", "store"))


def threads():
    """The threads of the record: which, and where the kernel tells of them."""
    for pid, role in roles().items():
        for thread in os.listdir(f"/proc/{pid}/task"):
            try:
                with open(f"/proc/{pid}/task/{thread}/comm") as file:
                    name = (role, file.read().strip())
            except OSError:
                continue
            if name in RECORD:
                yield "/".join(name), f"/proc/{pid}/task/{thread}"


def pauses():
    """What the threads of the record wait for, in looks a tenth of a second apart: how often at each of the kernel's functions."""
    found, seen = list(threads()), {}
    for _ in range(30):
        for name, place in found:
            try:
                with open(f"{place}/stack") as stack, open(f"{place}/stat") as stat:
                    state = stat.read().rsplit(")", 1)[1].split()[0]
                    at = " ".join(line.split("] ")[-1].split("+")[0] for line in stack.read().splitlines()[:3])
            except OSError:
                continue
            key = f"{name} {state} {at if state != 'R' else ''}"
            seen[key] = seen.get(key, 0) + 1
        time.sleep(0.1)
    return ", ".join(f"{count} {at}" for at, count in sorted(seen.items(), key=lambda one: -one[1])[:12])


def flow():
    """How far the record is: what the core has sent to the auditor, and what of it is not acknowledged."""
    auditor = status()["auditor"]
    return f"{auditor['records']} records sent, {auditor['unacknowledged']} of them not stored"


def backlog():
    """How many wait to be accepted at each of the daemon's sockets at which somebody does."""
    lines = [line.split() for line in subprocess.run(["ss", "-xlnH"], capture_output=True, text=True).stdout.splitlines()]
    found = [f"{words[4].rsplit('/', 1)[-1]}={words[2]}" for words in lines if words[4].startswith(RUN) and words[2] != "0"]
    return f"waiting to be accepted: {' '.join(found) or 0}"


def calls():
    """What the auditor's threads are in: the number of a system call, or a futex and where it is; the most first."""
    seen = {}
    for pid in (pid for pid, role in roles().items() if role == "auditor"):
        for thread in os.listdir(f"/proc/{pid}/task"):
            try:
                with open(f"/proc/{pid}/task/{thread}/syscall") as call, open(f"/proc/{pid}/task/{thread}/comm") as name:
                    words, name = call.read().split(), name.read().strip()
            except OSError:
                continue
            key = f"{name} {' '.join(words[: 2 if words[0] == '202' else 1])}"
            seen[key] = seen.get(key, 0) + 1
    return [f"{count} {at}" for at, count in sorted(seen.items(), key=lambda one: -one[1])[:12]]


def written():
    """MiB of what the daemon keeps."""
    shown = subprocess.run(["du", "-sm", "/var/lib/ringfence", "/var/lib/ringfence-agents"], capture_output=True, text=True).stdout
    return " and ".join(line.split()[0] for line in shown.splitlines()) + " MiB kept by the daemon"


def inside():
    """What the core's and the auditor's threads wait for, and what is open there, for a diagnosis."""
    for pid, role in roles().items():
        if role not in ("daemon", "auditor"):
            continue
        for thread in sorted(os.listdir(f"/proc/{pid}/task"), key=int):
            try:
                with open(f"/proc/{pid}/task/{thread}/comm") as name, open(f"/proc/{pid}/task/{thread}/stack") as stack:
                    yield f"{role} {thread} {name.read().strip()}: " + " ".join(line.split("] ")[-1].split("+")[0] for line in stack.read().splitlines()[:7])
            except OSError:
                continue
        held = {}
        for number in os.listdir(f"/proc/{pid}/fd"):
            try:
                target = os.readlink(f"/proc/{pid}/fd/{number}").split(":")[0]
            except OSError:
                continue
            held[target] = held.get(target, 0) + 1
        yield f"{role}: {held}"


def restarts():
    """How often systemd has started it again, and its first process."""
    text = subprocess.run(["systemctl", "show", "--property", "NRestarts,MainPID,ActiveState", UNIT], capture_output=True, text=True).stdout
    return dict(line.split("=", 1) for line in text.splitlines())


def status():
    """What `ringfence status --json` says."""
    result = good.command(0, "status", "--json")
    assert result.stdout, f"no status: {good.said(result)}"
    return json.loads(result.stdout)


def problems(before, after, first, last):
    """What is wrong with the processes: those that went or came, and those that grew. `first` and `last` are what systemd says."""
    if first != last:
        yield f"the unit was {first} and is {last}"
    old, new = ({one["pid"]: one for one in them} for them in (before, after))
    for pid in sorted(old.keys() | new.keys()):
        if pid not in new:
            yield f"{old[pid]} is gone"
        elif pid not in old:
            yield f"{new[pid]} was not there before"
        else:
            grown = new[pid]["own_mib"] - old[pid]["own_mib"]
            if grown > GROWTH.get(new[pid]["role"], 16):
                yield f"{new[pid]['role']} has {grown:.1f} MiB more than before: {old[pid]}, {new[pid]}"
            if new[pid]["descriptors"] > old[pid]["descriptors"] + DESCRIPTORS:
                yield f"{new[pid]['role']} has descriptors left: {old[pid]}, {new[pid]}"
