#!/usr/bin/env python3
"""What `cargo xtask bench tags` runs in a guest beside the daemon: what a tag takes before a tool starts, and then what a tie does.

An agent's runtime, as it ships, is asked for one tool call after the other. The kernel's own trace says when it had the
call's process (pidfd_open returns) and when it let that go on (one byte into a pipe): between the two the process was
tagged. Who ran in between comes from the scheduler's trace. Prints `name instructions`; the rest goes to stderr.
"""

import collections
import json
import os
import re
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, *(os.path.join(os.path.dirname(HERE), name) for name in ("lib", "cases"))]
sys.dont_write_bytecode = True

import ties  # noqa: E402
from agents import Provider, Runtime, agent, counted, known, remove, send  # noqa: E402
from system import role_pids  # noqa: E402

NAME = "rf-tags"
CALLS = 60
# The first calls fill caches, and the kernel patches code.
WARM_UP = 10
TRACE = "/sys/kernel/tracing/instances/rf-tags"
LINE = re.compile(r"^\s*.*-(\d+)\s+\[\d+\]\s+\S+\s+(\d+)\.(\d{6}): (\w+)(?:\(|: |:|\s)(.*)$")
WAY = ("runtime", "worker", "core")
PARTS = (*WAY, "the call's process", "others")


def write(name, text):
    """A file of the trace's."""
    with open(f"{TRACE}/{name}", "w") as file:
        file.write(text)


def start_trace(runtime):
    """Records the runtime's two system calls and every change of the task that runs."""
    os.mkdir(TRACE)
    # Nanoseconds, and so instructions; shown as microseconds.
    write("trace_clock", "mono")
    write("buffer_size_kb", "16384")
    write("events/syscalls/sys_exit_pidfd_open/filter", f"common_pid == {runtime}")
    write("events/syscalls/sys_enter_write/filter", f"common_pid == {runtime} && count == 1")
    for event in ("syscalls/sys_exit_pidfd_open", "syscalls/sys_enter_write", "sched/sched_switch"):
        write(f"events/{event}/enable", "1")


def lines():
    """The trace: task, microseconds, event, the rest."""
    with open(f"{TRACE}/trace", errors="replace") as file:
        for line in file:
            found = LINE.match(line)
            if found:
                pid, seconds, micros, event, rest = found.groups()
                yield int(pid), int(seconds) * 1_000_000 + int(micros), event, rest


def tags(of):
    """For each tag: microseconds from the process being there to its being let go, by who ran meanwhile."""
    began, since, running, parts, found = None, 0, None, {}, []
    for pid, at, event, rest in lines():
        if event == "sys_pidfd_open":
            began, since, running, parts = at, at, pid, collections.Counter()
        elif began is None:
            continue
        elif event == "sched_switch":
            parts[of(running)] += at - since
            since, running = at, int(re.search(r"next_pid=(\d+)", rest).group(1))
        elif event == "sys_write":
            parts[of(running)] += at - since
            found.append((at - began, parts))
            began = None
    return found


def middle(figures):
    """The median."""
    return sorted(figures)[len(figures) // 2]


def main():
    os.makedirs("/bench", exist_ok=True)
    shutil.copy("/bin/true", "/bench/true")
    subprocess.run([f"{HERE}/workload", "spawn"], check=True)
    provider = Provider()
    path, box = agent(NAME, provider)
    with open(f"{box}/f", "w") as file:
        file.write("x\n")
    runtime = Runtime(NAME, box)
    (pid,) = [int(one) for one in os.listdir("/proc") if one.isdigit() and is_runtime(one)]
    worker, daemons = known(NAME)["pid"], role_pids("daemon")

    def of(task):
        if task == 0:
            return "idle"
        if task == pid:
            return "runtime"
        if task == worker:
            return "worker"
        if any(os.path.exists(f"/proc/{daemon}/task/{task}") for daemon in daemons):
            return "core"
        return "the call's process" if task in children else "others"

    start_trace(pid)
    children = set()
    for number in range(CALLS):
        send(NAME, json.dumps([[f"toolu_{number}", "read_file", {"path": f"{box}/f"}]]), about=runtime.said)
    write("tracing_on", "0")
    for _, _, event, rest in lines():
        # The runtime's other tasks bear its name: they are the calls' processes.
        found = event == "sched_switch" and re.search(r"next_comm=ringfence-runti\S* next_pid=(\d+)", rest)
        if found and int(found.group(1)) != pid:
            children.add(int(found.group(1)))
    counted(NAME, tags=CALLS, refused_tags=0)
    found = tags(of)
    names = {}
    for _, _, event, rest in lines():
        if event == "sched_switch":
            comm, task = re.search(r"next_comm=(.*) next_pid=(\d+)", rest).groups()
            names[int(task)] = comm
    by_task = tags(lambda task: f"{of(task)}: {names.get(task, '?')} {task if of(task) == 'core' else ''}".strip())
    for name in sorted({name for _, parts in by_task for name in parts}):
        spent = [parts.get(name, 0) for _, parts in by_task[WARM_UP:]]
        print(f"# {name}: median {middle(spent)}, mean {sum(spent) // len(spent)} thousand", file=sys.stderr)
    assert len(found) == CALLS, f"{len(found)} of {CALLS} tags in the trace"
    found = found[WARM_UP:]
    # While nobody runs, no instruction is executed and only the clock goes on.
    whole = [took - parts["idle"] for took, parts in found]
    idle = middle([parts["idle"] for _, parts in found])
    print(f"# of {len(found)} tags: least {min(whole)}, most {max(whole)} thousand; idle meanwhile, median {idle}", file=sys.stderr)
    print(f"tag {middle(whole) * 1000}")
    # What a tool waits for wherever there is another processor for the rest.
    print(f"on_its_way {middle([sum(parts[part] for part in WAY) for _, parts in found]) * 1000}")
    for part in PARTS:
        print(f"{part.replace(' ', '_')} {middle([parts[part] for _, parts in found]) * 1000}")
    runtime.stop()
    remove(path, NAME)
    ties.measure()


def is_runtime(pid):
    """Whether a process is the runtime."""
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")) == "ringfence-runtime"
    except OSError:
        return False


if __name__ == "__main__":
    main()
