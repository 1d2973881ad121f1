"""Scenes about the record itself: each denial is in an event or in a count of losses, and a flood hides nobody's."""

import json
import signal
import subprocess

from case import scene
from harness import PYTHON
from system import BASE, Worker, denied, events, kill_role, profile, ringfence, said, start_daemon, targets, wait_event, wait_for

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
    quiet = Worker(profile("rf-record-quiet"))
    quiet.check(allowed, forbidden, "before")
    loud = subprocess.Popen(["ringfence", "run", "--profile", profile("rf-record-loud"), "--", PYTHON, "-E", "-s", "-S", "-B", "-u", "-c",
                             FLOOD_AND_ACT, f"{BASE}/deny"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/")
    assert loud.stdout.readline() == "up\n"
    kill_role("daemon", number=signal.SIGSTOP)
    loud.stdin.write("go\n")
    loud.stdin.flush()
    assert loud.stdout.readline() == "done\n", "the flood was not denied"
    with open(f"{BASE}/deny/only", "w") as file:
        file.write("x")
    quiet.check(allowed, f"{BASE}/deny/only", "while the core is stopped")
    kill_role("daemon")
    start_daemon()
    wait_event(denied(f"{BASE}/deny/only"))
    seen = {}

    def adds_up():
        result = ringfence("status", "--json")
        assert result.returncode in (0, 2), f"status: {said(result)}"
        shown = json.loads(result.stdout)
        container = next(one for one in shown["containers"] if one["profile"] == "rf-record-loud")
        counts = container["counts"]
        lost = counts["lost_denied"]
        lost += sum(one["missing_denied"] for one in (shown["store"] or {"lost": []})["lost"] if one["container"] == container["id"])
        told = [event for event in events("--container", container["id"]) if event["verdict"] == "denied"]
        acts = sum(event["repeats"] for event in told if "/deny/act" in (event["path"] or ""))
        seen.update(denied=counts["denied"], lost=lost, told=sum(event["repeats"] for event in told), acts=acts)
        return seen["denied"] == seen["told"] + seen["lost"]

    try:
        wait_for(adds_up, "the sum", seconds=120)
    except AssertionError as error:
        raise AssertionError(f"it does not add up: {seen}") from error
    assert seen["denied"] >= 21 * 600 + 20, f"not every one was denied: {seen}"
    assert seen["acts"] + seen["lost"] >= 20, f"acts that are nowhere: {seen}"
    loud.stdin.close()
    loud.wait(60)
    quiet.stop()
