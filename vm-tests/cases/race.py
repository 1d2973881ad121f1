"""Group `preempt` (a boot with preempt=full): verdicts while renames, mounts and other walks run beside them."""

import json
import os
import shutil
import subprocess

from case import scene
from system import denied, hammer, profile, ringfence, said, wait_event

BASE = "/srv/rf/race"
# Opens of the denied file. Under emulation a million take some minutes; `RINGFENCE_RACE_OPENS` asks for fewer.
OPENS = int(os.environ.get("RINGFENCE_RACE_OPENS", "1000000"))
# Seconds of renames beside: more than any scene has.
UNTIL_KILLED = "100000"


def arena():
    """Two denied places that one rename moves a directory between; a walk that mixes the two reads an allowed path."""
    # A helper that was killed between the two leaves its mount.
    while os.path.ismount(f"{BASE}/mount"):
        subprocess.run(["umount", "--lazy", f"{BASE}/mount"], check=True)
    shutil.rmtree(BASE, ignore_errors=True)
    for name in ("a/p", "b", "steady/1/2/3/4", "mount"):
        os.makedirs(f"{BASE}/{name}")
    for name, text in (("a/p/secret", "secret"), ("steady/1/2/3/4/file", "plain")):
        with open(f"{BASE}/{name}", "w") as file:
            file.write(text)
    return profile("rf-race", read=[BASE], deny_read=[f"{BASE}/a/p", f"{BASE}/b/q"])


def race(path, count):
    """Nine threads open by descriptor; what they counted, denied and allowed."""
    result = ringfence("run", "--profile", path, "--", hammer(), "race", f"{BASE}/a/p/secret",
                       f"{BASE}/steady/1/2/3/4/file", str(count), timeout=6000)
    assert result.returncode == 0, said(result)
    counted = json.loads(result.stdout)
    return counted["denied"], counted["allowed"]


@scene("race/preempted-walks", group="preempt", limit=1600)
def preempted():
    """a million opens of a denied file by nine tasks at once, renames and mounts beside them: not one succeeds"""
    path = arena()
    quiet_denied, quiet_allowed = race(path, 20_000)
    assert quiet_denied["opened"] == 0 and quiet_denied["tried"] >= 20_000, f"without renames: {quiet_denied}"
    assert quiet_allowed["opened"] == quiet_allowed["tried"] > 10_000, f"granted opens failed without renames: {quiet_allowed}"
    churn = subprocess.Popen([hammer(), "churn", f"{BASE}/a/p", f"{BASE}/b/q", f"{BASE}/mount", UNTIL_KILLED],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        refused, granted = race(path, OPENS)
        assert churn.poll() is None, f"the renames stopped: {churn.communicate()}"
    finally:
        churn.kill()
        churn.wait()
    assert refused["tried"] >= OPENS and refused["opened"] == 0, f"denied opens succeeded: {refused}"
    assert granted["opened"] > 1000, f"no granted open succeeded beside the renames: {granted}"
    share = granted["opened"] / granted["tried"]
    print(f"# race: {refused['tried']} denied opens, none succeeded; of {granted['tried']} granted ones {share:.4%} did", flush=True)


@scene("race/forks-and-execs", group="preempt", limit=300)
def forks():
    """identity while tasks fork and exec without pause: no child is ever ungoverned"""
    path = arena()
    script = f"""
i=0
while [ $i -lt 60 ]; do
  ( ( cat {BASE}/a/p/secret; cat {BASE}/steady/1/2/3/4/file ) 2>/dev/null & wait ) &
  ( cat {BASE}/a/p/secret 2>/dev/null ) &
  wait
  i=$((i+1))
done
"""
    running = [subprocess.Popen(["ringfence", "run", "--profile", path, "--", "/usr/bin/sh", "-c", script],
                                stdout=subprocess.PIPE, text=True) for _ in range(3)]
    texts = [one.communicate()[0] for one in running]
    for text in texts:
        assert "secret" not in text, f"a child read the secret: {text[:200]!r}"
        assert text.count("plain") == 60, f"{text.count('plain')} of 60 granted reads"


@scene("race/exec-by-threads", group="preempt", limit=200)
def exec_threads():
    """a denied program, exec'd while its directory is renamed"""
    path = arena()
    shutil.copy("/usr/bin/echo", f"{BASE}/a/p/program")
    path = profile("rf-race-exec", read=[BASE])
    churn = subprocess.Popen([hammer(), "churn", f"{BASE}/a/p", f"{BASE}/b/q", f"{BASE}/mount", UNTIL_KILLED], stderr=subprocess.PIPE)
    script = f"i=0; while [ $i -lt 400 ]; do {BASE}/a/p/program ran; {BASE}/b/q/program ran; i=$((i+1)); done 2>/dev/null"
    try:
        result = ringfence("run", "--profile", path, "--", "/usr/bin/sh", "-c", script, timeout=700)
    finally:
        churn.kill()
        churn.wait()
    assert "ran" not in result.stdout, f"the denied program ran: {said(result)}"
    wait_event(lambda event: event["op"] == "exec" and event["verdict"] == "denied" and event["profile"] == "rf-race-exec")


@scene("race/denials-are-recorded", group="preempt", limit=150)
def recorded():
    """after all that an ordinary denial is still recorded"""
    path = arena()
    ringfence("run", "--profile", path, "--", "/usr/bin/cat", f"{BASE}/a/p/secret")
    wait_event(denied(f"{BASE}/a/p/secret"))
