"""Puts what the demo's agent tried beside what the kernel recorded: one readable screen.

The status is 1 if anything was allowed that should have been refused, refused that should have been allowed, or refused
without a record.
"""

import fnmatch
import json
import os
import subprocess
import sys
import time

# Events are stored in batches; the last may take a moment.
PATIENCE = 120.0


def main():
    tried_path, started, *options = sys.argv[1:]
    color = "--color" in options
    with open(tried_path, encoding="utf-8", errors="replace") as file:
        tried = [line.rstrip("\n").split("\t") for line in file]
    if not tried:
        raise SystemExit("the agent tried nothing; something is wrong with the demo")
    events = denials(started, [about for _, _, about, _, _ in tried if about != "-"])

    def paint(code, text):
        return f"\033[{code}m{text}\033[0m" if color else text

    print()
    print(f"  An agent's programs under the profile {paint(1, 'coder')}, on Linux {os.uname().release}")
    print()
    wrong = 0
    for program, what, about, status, said in tried:
        program = os.path.basename(program)
        program = "ld.so" if program.startswith("ld-linux") else program
        event = events.get(about)
        good = (status == "0") if about == "-" else (status != "0" and event is not None)
        wrong += not good
        verdict = "allowed" if status == "0" else "denied "
        shade = {"allowed": 32, "denied ": 31}[verdict] if good else 33
        said_shortly = "" if status == "0" else said.rsplit(": ", 1)[-1]
        said_shortly = "Permission denied" if "Permission denied" in said else said_shortly
        print(f"  {paint(shade, verdict)}  {program:8} {what:30} {said_shortly}".rstrip())
        if event is not None:
            print(paint(2, f"           kernel: {event['op']} {about_what(event)}"))
            print(paint(2, f"           rule:   {why(event)}"))
        if not good:
            print(f"           not what should happen: status {status}, {said}")
    print()
    print("  `ringfence events` lists what happened, `ringfence events why NUMBER` explains one of it.")
    print()
    return 1 if wrong else 0


def denials(started, wanted):
    """The first denied event for each of the wanted patterns."""
    deadline = time.monotonic() + PATIENCE
    while True:
        lines = subprocess.run(
            ["ringfence", "events", "--denied", "--json", "--since", started], capture_output=True, check=True, text=True
        ).stdout
        found = {}
        for event in map(json.loads, lines.splitlines()):
            if event["profile"] != "coder" or event["verdict"] != "denied":
                continue
            text = f"{event['op']} {about_what(event)} by {event['exe']}"
            for pattern in wanted:
                if fnmatch.fnmatchcase(text, pattern):
                    found.setdefault(pattern, event)
        if set(found) >= set(wanted) or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


def about_what(event):
    """The path or address; where there is none, what is known of it."""
    return event.get("path") or event.get("addr") or " ".join(event["flags"])


def why(event):
    """The rule that decided and where it stands, or the reason where no rule did."""
    done = subprocess.run(["ringfence", "why", str(event["id"]), "--json"], capture_output=True, check=True, text=True)
    explained = json.loads(done.stdout)
    rule = explained.get("rule")
    if rule is None:
        return explained["reason"]
    place = f"{os.path.basename(rule['file'])}:{rule['line']}" if rule["file"] else "built in"
    return f"{rule['key']} \"{rule['text']}\"  ({place})"


sys.exit(main())
