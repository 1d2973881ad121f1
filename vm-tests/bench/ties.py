"""What `cargo xtask bench tags` measures of a run's agents: what it takes to tie a tool's shell to its call.

A shell starts `ringfence-runtime tie` before its command; beside it, in other shells of the same container, `true` in its place.
Each from the fork of the program to its end, in executed instructions, by who ran meanwhile.
"""

import collections
import json
import os
import re
import subprocess

from agents import Provider, trace, wait_for
from harness import HERE
from system_kit import prepare, run_claude
from system_ties import AGENT

CALLS = 50
# The first calls fill caches, and the kernel patches code.
WARM_UP = 10
TRACE = "/sys/kernel/tracing/instances/rf-ties"
LINE = re.compile(r"^\s*.*-(\d+)\s+\[\d+\]\s+\S+\s+(\d+)\.(\d{6}): (\w+)(?:\(|: |:|\s)(.*)$")
PROGRAM = "/usr/local/bin/ringfence-runtime"
ROLES = ("launcher", "worker", "core")
PARTS = ("the program", *ROLES, "others")


def write(name, text):
    """A file of the trace's."""
    with open(f"{TRACE}/{name}", "w") as file:
        file.write(text)


def start_trace():
    """Records every change of the task that runs, and the programs' beginnings and ends."""
    os.mkdir(TRACE)
    write("trace_clock", "mono")
    write("buffer_size_kb", "32768")
    for event in ("sched_switch", "sched_process_fork", "sched_process_exec", "sched_process_exit"):
        write(f"events/sched/{event}/enable", "1")


def lines():
    """The trace: task, microseconds, event, the rest."""
    with open(f"{TRACE}/trace", errors="replace") as file:
        for line in file:
            found = LINE.match(line)
            if found:
                pid, seconds, micros, event, rest = found.groups()
                yield int(pid), int(seconds) * 1_000_000 + int(micros), event, rest


def programs(roles):
    """Of each program that a shell started: its path, and microseconds from its fork to its end by who ran meanwhile."""
    under_way, is_program, since, found = {}, {}, 0, []
    for pid, at, event, rest in lines():
        number = lambda name: int(re.search(rf"\b{name}=(\d+)", rest).group(1))
        for child, parts in under_way.items():
            part = "idle" if pid == 0 else "the program" if pid == child else roles.get(pid, "others")
            parts[part] += at - since
        since = at
        if event == "sched_process_fork" and "comm=bash" in rest:
            under_way[number("child_pid")] = collections.Counter()
        elif event == "sched_process_exec":
            is_program[number("pid")] = re.search(r"filename=(\S+)", rest).group(1)
        elif event == "sched_process_exit" and number("pid") in under_way:
            parts, program = under_way.pop(number("pid")), is_program.pop(number("pid"), None)
            if program is not None:
                found.append((program, parts))
    return found


def tasks():
    """Which role of Ringfence's each task has."""
    roles = {}
    for one in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{one}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
            if os.path.basename(words[0]) != b"ringfence":
                continue
            role = {b"run": "launcher", b"daemon": "core", b"llm-worker": "worker"}.get(words[1])
            roles.update({int(task): role for task in os.listdir(f"/proc/{one}/task")} if role else {})
        except (OSError, IndexError):
            continue
    return roles


def middle(figures):
    """The median."""
    return sorted(figures)[len(figures) // 2]


def measure():
    """Prints `name instructions`."""
    home, repository, key = prepare(AGENT)
    subprocess.run(["install", "-m", "755", f"{HERE}/bin/ringfence-runtime", PROGRAM], check=True)
    provider = Provider()
    calls = [(f"toolu_{number}", ":") for number in range(CALLS)]
    tied = [["bash", "-c", f"{PROGRAM} tie {call}\n{command}"] for call, command in calls]
    bare = [["bash", "-c", f"/usr/bin/true tie {call}\n{command}"] for call, command in calls]
    plan = {"calls": [[call, "Bash", {"command": command}] for call, command in calls],
            "steps": [step for pair in zip(tied, bare) for step in ([pair[0]], [pair[1]])]}
    start_trace()
    run = subprocess.Popen([*run_claude(home, key, provider), "first", "second", "third"], cwd=repository)
    with open(f"{repository}/plan-first.new", "w") as file:
        json.dump(plan, file)
    os.rename(f"{repository}/plan-first.new", f"{repository}/plan-first")
    wait_for(lambda: os.path.exists(f"{repository}/ran-first") or run.poll() is not None, "the calls")
    write("tracing_on", "0")
    roles = tasks()
    open(f"{repository}/end-first", "w").close()
    wait_for(lambda: any(intent["ended"] for intent in trace("claude")["intents"]), "the record")
    called = [call for intent in trace("claude")["intents"] for call in intent["calls"]]
    assert len(called) == CALLS and all(call["tagged"] for call in called), called
    run.kill()
    run.wait()
    found = programs(roles)
    for name, program in (("tie", PROGRAM), ("true_in_its_place", "/usr/bin/true")):
        own = [parts for path, parts in found if path == program]
        assert len(own) == CALLS, f"{len(own)} of {CALLS} starts of {program} in the trace"
        own = own[WARM_UP:]
        # While nobody runs, no instruction is executed and only the clock goes on.
        whole = [sum(parts.values()) - parts["idle"] for parts in own]
        print(f"{name} {middle(whole) * 1000}")
        if program == PROGRAM:
            print(f"tie_on_its_way {middle([sum(parts[part] for part in PARTS[:-1]) for parts in own]) * 1000}")
            for part in PARTS:
                print(f"tie:_{part.replace(' ', '_')} {middle([parts[part] for parts in own]) * 1000}")
