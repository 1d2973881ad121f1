"""Scenes about the record itself: each denial is in an event or in a count of losses, and a flood hides nobody's."""

import json
import os
import signal
import subprocess

from case import DOCKER, FULL, NOBODY, scene
from harness import PYTHON
from system import BASE, BECOME, Worker, denied, events, kill_role, profile, ringfence, said, start_daemon, targets, wait_event, wait_for

# Twenty acts, with floods of other names before, between and behind them.
FLOOD_AND_ACT = """
import sys
def touch(name):
    try:
        open(f"{sys.argv[1]}/{name}", "w")
    except PermissionError:
        return
    raise SystemExit(f"{name} was written")
def flood():
    for name in range(200):
        for _ in range(3):
            touch(f"flood{name}")
print("up", flush=True)
sys.stdin.readline()
flood()
for act in range(20):
    touch(f"act{act}")
    flood()
print("done", flush=True)
sys.stdin.readline()
"""


@scene("system/record-adds-up", limit=120, hook="all")
def record_adds_up():
    """flood, act, flood, while the core is stopped and then killed: each denial is in an event or counted as lost, and another container's only denial is in an event"""
    allowed, forbidden = targets("record-quiet")
    # The files' modes let everybody write.
    flooded = f"{BASE}/deny/flooded"
    os.makedirs(flooded, exist_ok=True)
    os.chmod(flooded, 0o777)
    quiet = Worker(profile("rf-record-quiet"))
    quiet.check(allowed, forbidden, "before")
    loud = {}
    for who in (DOCKER, FULL, NOBODY):
        command = [*BECOME[who], "ringfence", "run", "--profile", profile(f"rf-record-{who}", who=who), "--",
                   PYTHON, "-E", "-s", "-S", "-B", "-u", "-c", FLOOD_AND_ACT, flooded]
        loud[who] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/")
        assert loud[who].stdout.readline() == "up\n", who
    kill_role("daemon", number=signal.SIGSTOP)
    for one in loud.values():
        one.stdin.write("go\n")
        one.stdin.flush()
    for who, one in loud.items():
        assert one.stdout.readline() == "done\n", f"{who}: the flood was not denied"
    with open(f"{BASE}/deny/only", "w") as file:
        file.write("x")
    quiet.check(allowed, f"{BASE}/deny/only", "while the core is stopped")
    kill_role("daemon")
    start_daemon()
    wait_event(denied(f"{BASE}/deny/only"))
    for who, one in loud.items():
        seen = {}
        try:
            wait_for(lambda: adds_up(f"rf-record-{who}", seen), f"the sum of {who}", seconds=120)
        except AssertionError as error:
            raise AssertionError(f"it does not add up for {who}: {seen}") from error
        assert seen["denied"] >= 21 * 600 + 20, f"{who}: not every one was denied: {seen}"
        assert seen["acts"] + seen["lost"] >= 20, f"{who}: acts that are nowhere: {seen}"
        one.stdin.close()
        one.wait(60)
    quiet.stop()


def adds_up(name, seen):
    """Whether the denials of a profile's only container are those of its events and those that are counted as lost; fills `seen`."""
    result = ringfence("status", "--json")
    assert result.returncode in (0, 2), f"status: {said(result)}"
    shown = json.loads(result.stdout)
    container = next(one for one in shown["containers"] if one["profile"] == name)
    counts = container["counts"]
    lost = counts["lost_denied"]
    lost += sum(one["missing_denied"] for one in (shown["store"] or {"lost": []})["lost"] if one["container"] == container["id"])
    told = [event for event in events("--container", container["id"]) if event["verdict"] == "denied"]
    acts = sum(event["repeats"] for event in told if "/flooded/act" in (event["path"] or ""))
    seen.update(denied=counts["denied"], lost=lost, told=sum(event["repeats"] for event in told), acts=acts)
    return seen["denied"] == seen["told"] + seen["lost"]
