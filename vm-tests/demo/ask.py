"""Asks the demo's second agent to summarise a repository, and shows what it was asked, what it did, and what the kernel
saw of that: `ringfence agent send` and `ringfence events trace`, as they are.

    ask.py AGENT [--color]

The status is 1 unless the key and the way out were refused, each under the tool call that tried it.
"""

import json
import subprocess
import sys
import time

# Until the agent's worker and its runtime are there, and until all is on record.
PATIENCE = 180.0
QUESTION = "Summarise this repository."


def main():
    agent, *options = sys.argv[1:]
    color = "--color" in options

    def title(text):
        print(f"  \033[1m$ {text}\033[0m" if color else f"  $ {text}")

    wait(lambda: runtime(agent), "the agent's runtime")
    title(f"ringfence agent send {agent} '{QUESTION}'")
    print()
    said = ringfence("agent", "send", agent, QUESTION)
    print(indented(said.stdout or said.stderr))
    wait(lambda: refused(agent) >= {"open", "connect"}, "the refusals on record")
    title(f"ringfence events trace {agent}")
    print()
    print(indented(ringfence("events", "trace", agent).stdout))
    return said.returncode


def runtime(agent):
    """Whether the agent's runtime is connected."""
    status = json.loads(ringfence("status", "--json").stdout or "{}")
    return any(one["name"] == agent and one["counts"]["runtime"] for one in status.get("agents", []))


def refused(agent):
    """The operations that were refused, each surely under one of the message's tool calls; none before the message's end."""
    intents = json.loads(ringfence("trace", agent, "--json").stdout or "{}").get("intents", [])
    calls = intents[-1]["calls"] if intents and intents[-1]["ended"] else []
    # Refusals may be on record before what was allowed.
    shells = [call for call in calls if call["tool"] == "bash"]
    if not all(call["ended"] for call in calls) or not all(any(event["op"] == "exec" for event in call["events"]) for call in shells):
        return set()
    return {event["op"] for call in calls for event in call["events"]
            if event["verdict"] == "denied" and event["attribution"] == "exact"}


def ringfence(*args):
    """Runs the command line."""
    return subprocess.run(["ringfence", *args], capture_output=True, text=True, stdin=subprocess.DEVNULL)


def wait(condition, what):
    """Polls a condition."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"waited {PATIENCE:.0f} s for {what}")
        time.sleep(0.2)


def indented(text):
    """Lines, further to the right."""
    return "".join(f"    {line}".rstrip() + "\n" for line in text.strip().splitlines())


sys.exit(main())
