#!/usr/bin/env python3
"""What `cargo xtask bench stress` runs in a guest with the daemon: stress-ng in a governed container, class by class, round after round.

    stress.py MINUTES

The container meanwhile opens a granted and a denied file, twice a second and once more at the end. Prints what went by and what it came to;
ends with 1 where the kernel complained, the denied file was read, the granted one not, or the record does not add up.
"""

import json
import os
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TOOL = "/opt/stress-ng"
BASE = "/srv/stress"
PROFILES = "/run/stress"
# Those that ask the kernel for most come first.
CLASSES = ("filesystem", "network", "os", "security", "scheduler", "pipe", "interrupt", "device", "memory", "vm", "cpu", "cpu-cache")
# Of the whole time, the most that one class may take in a round: each has its turn.
SHARE = 1 / len(CLASSES)
# Seconds for one stressor of a class.
EACH = 1
# Seconds that reading the record and counting may take behind the last event.
SETTLE = 300

PROFILE = f"""
description = "stress"
[grant]
fs_read = {{ only = ["{TOOL}", "{HERE}", "/usr", "/lib", "/lib64", "/etc", "/proc", "/sys", "/dev", "{BASE}"] }}
fs_write = {{ only = ["{BASE}/work", "/dev/null", "/dev/zero", "/dev/full", "/dev/shm"] }}
exec = {{ only = ["/usr/bin", "{TOOL}", "{BASE}/work"] }}
net = {{ only = ["127.0.0.1", "[::1]", "unix:{BASE}/work"] }}
max_calls = "unlimited"
valid_for_generation = "all"
[deny]
fs_read = ["{BASE}/denied"]
fs_write = ["{BASE}/denied"]
[kernel]
seccomp = "off"
landlock = "off"
audit = "denied"
"""

ENVIRONMENT = {"LD_LIBRARY_PATH": f"{TOOL}/usr/lib/x86_64-linux-gnu:{TOOL}/lib/x86_64-linux-gnu", "PATH": "/usr/bin", "LANG": "C"}


def opens(path):
    """Whether a file can be read."""
    try:
        with open(path) as file:
            return file.read() == "text\n"
    except PermissionError:
        return False


def inside(seconds):
    """In the container: runs the classes until the time is over, and looks at the two files."""
    end = time.monotonic() + seconds
    looks = {"looks": 0, "denied_was_read": 0, "granted_was_not": 0}

    def look():
        looks["looks"] += 1
        looks["denied_was_read"] += opens(f"{BASE}/denied")
        looks["granted_was_not"] += not opens(f"{BASE}/granted")

    def say(message):
        print(json.dumps(message), flush=True)

    rounds = 0
    while time.monotonic() < end:
        rounds += 1
        for name in CLASSES:
            if time.monotonic() >= end:
                break
            begun = time.monotonic()
            enough = min(end, begun + seconds * SHARE)
            command = [f"{TOOL}/usr/bin/stress-ng", "--class", name, "--sequential", "2", "--timeout", str(EACH), "--temp-path",
                       f"{BASE}/work", "--oomable", "--no-rand-seed", "--verbose"]
            with open(f"{BASE}/work/said", "w") as said:
                process = subprocess.Popen(command, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True)
                while process.poll() is None:
                    look()
                    if time.monotonic() >= enough:
                        os.killpg(process.pid, 9 if time.monotonic() >= enough + 60 else 15)
                    time.sleep(0.5)
            with open(f"{BASE}/work/said", errors="replace") as said:
                started = {line.split("] ")[1].split(":")[0] for line in said if ": started [" in line}
            say({"class": name, "round": rounds, "seconds": round(time.monotonic() - begun), "stressors": len(started)})
    look()
    say({"done": looks, "rounds": rounds})
    sys.stdin.readline()


def ringfence(*args):
    """The command line's output."""
    return subprocess.run(["ringfence", *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=False).stdout


def record(profile):
    """What the daemon counted and what it told of the container of this profile."""
    shown = json.loads(ringfence("status", "--json"))
    container = next(one for one in shown["containers"] if one["profile"] == profile)
    counts = container["counts"]
    missing = sum(one["missing_denied"] for one in (shown["store"] or {"lost": []})["lost"] if one["container"] == container["id"])
    told, events = 0, 0
    lines = subprocess.Popen(["ringfence", "events", "--json", "--container", container["id"]], stdout=subprocess.PIPE, text=True,
                             errors="replace")
    for line in lines.stdout:
        event = json.loads(line)
        if event["verdict"] == "denied":
            events, told = events + 1, told + event["repeats"]
    lines.wait()
    return {"denials": counts["denied"], "events": events, "told_with_repeats": told, "lost": counts["lost_denied"] + missing,
            "adds_up": counts["denied"] == told + counts["lost_denied"] + missing}


def complaints():
    """The kernel's complaints, as the VM tests read them."""
    sys.path[:0] = [os.path.dirname(HERE) + "/lib", os.path.dirname(HERE) + "/cases"]
    import zz_kernel

    return zz_kernel.complaints()


def main():
    """Starts the container, listens to it, and sums up."""
    shutil.rmtree(BASE, ignore_errors=True)
    for path in (f"{BASE}/work", PROFILES):
        os.makedirs(path)
    os.chmod(f"{BASE}/work", 0o777)
    for name in ("granted", "denied"):
        with open(f"{BASE}/{name}", "w") as file:
            file.write("text\n")
    assert opens(f"{BASE}/denied"), "outside it can be read"
    with open(f"{PROFILES}/rf-stress.toml", "w") as file:
        file.write(PROFILE)
    command = ["ringfence", "run", "--profile", f"{PROFILES}/rf-stress.toml", "--", os.path.realpath("/usr/bin/python3"), "-IS", "-u",
               os.path.abspath(__file__), "inside", sys.argv[1]]
    container = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/")
    done = None
    for line in container.stdout:
        print(line.strip(), flush=True)
        message = json.loads(line)
        if "done" in message:
            done = message["done"]
            break
    problems = [] if done else [f"the container ended early, status {container.wait()}"]
    if done:
        problems += [f"{key}: {done[key]} times" for key in ("denied_was_read", "granted_was_not") if done[key]]
        end = time.monotonic() + SETTLE
        while not (figures := record("rf-stress"))["adds_up"] and time.monotonic() < end:
            time.sleep(2)
        print(json.dumps(figures), flush=True)
        problems += [] if figures["adds_up"] else ["the record does not add up"]
        container.stdin.close()
        container.wait(120)
    problems += complaints()
    print(f"{len(problems)} problems", *problems, sep="\n", flush=True)
    return 1 if problems else 0


if __name__ == "__main__":
    if sys.argv[1] == "inside":
        inside(float(sys.argv[2]) * 60)
    else:
        sys.exit(main())
