"""The record at the end: each turn, call, decision and event of the well-behaved, exactly once and as it was; and denials that add up."""

import json
import os
import subprocess
import time

import good
from good import LOST, command, said
from places import GOOD, GOOD_SERVER, OWNER, SECRET, USER, box

# Seconds that reading the record and counting may take behind the last event.
SETTLE = 400


def lines(*words, uid=0):
    """What a command says, a JSON object a line. It may be much: it is read as it comes."""
    prefix = good.as_user(uid) if uid else []
    process = subprocess.Popen([*prefix, "ringfence", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               errors="replace", cwd="/", env=good.environment(uid) if uid else None)
    for line in process.stdout:
        yield json.loads(line)
    errors = process.stderr.read()
    if process.wait():
        raise AssertionError(f"{words}: status {process.returncode}, {errors[-1000:]}")


class Traces:
    """What `ringfence events trace` tells of the good agent, gathered while it goes on: it shows the newest two hundred messages."""

    def __init__(self, ledger):
        self.ledger = ledger
        self.intents = {}

    def gather(self):
        """Another look. One that has ended does not change any more."""
        result = good.patiently(self.ledger, 0, "trace", GOOD, "--limit", "200", "--json")
        if result.returncode:
            self.ledger.wrong(f"trace: {said(result)}")
            return
        for intent in json.loads(result.stdout)["intents"]:
            self.intents[intent["intent"]] = {**intent, "calls": [{**call, "events": len(call["events"])} for call in intent["calls"]]}
            for call in intent["calls"]:
                for event in call["events"]:
                    if event["profile"] != GOOD:
                        self.ledger.wrong(f"{call['call']} has an event of another container: {event}")

    def problems(self, sent):
        """What is not on record once and whole, of so many turns."""
        texts = {}
        for intent in self.intents.values():
            texts.setdefault(intent["text"], []).append(intent)
        for number in range(sent):
            found = texts.pop(f"turn {number} of the steady one", [])
            if len(found) != 1:
                yield f"turn {number} is on record {len(found)} times"
                continue
            (intent,) = found
            wanted = list(good.calls(number))
            if intent["error"] or not intent["ended"] or intent["uid"] != OWNER or intent["agent"] != GOOD:
                yield f"turn {number} is on record as {intent}"
            if [(call["call"], call["tool"], json.loads(call["input"])) for call in intent["calls"]] != wanted:
                yield f"turn {number} has other calls on record: {intent['calls']}"
                continue
            for call, word in zip(intent["calls"], (f"refused-{number}", "what is there")):
                if call["is_error"] is not False or word not in (call["output"] or "") or not call["ended"] or not call["tagged"]:
                    yield f"turn {number} has a call on record as {call}"
        for text, intents in texts.items():
            yield f"{len(intents)} messages on record that were never sent: {text[:200]!r}"


def events(sent):
    """What is wrong with the kernel's events of the good agent. Each turn's are those of its own call, and all are exact."""
    own = {f"{box(GOOD)}/t/{number}": number for number in range(sent)}
    own |= {f"{SECRET}/good-{number}": number for number in range(sent)}
    seen = {}
    for event in lines("events", "--json", "--container", GOOD):
        number = own.get(event.get("path"))
        if number is None:
            if event["attribution"] == "exact" and not str(event["tool_call"]).startswith("toolu_g_"):
                yield f"an event of the good agent is another's: {event}"
            continue
        if (event["attribution"], event["tool_call"]) != ("exact", f"toolu_g_{number}_0"):
            yield f"turn {number} has an event that is not its call's: {event}"
        seen.setdefault(number, []).append((event["verdict"], os.path.dirname(event["path"])))
    for number in range(sent):
        found = seen.get(number, [])
        if found.count(("denied", SECRET)) != 1 or ("allowed", f"{box(GOOD)}/t") not in found:
            yield f"turn {number} has these events: {found}"


def calls(expected):
    """What is wrong with the record of the MCP calls."""
    found = {}
    for row in lines("audit", "export", "--format", "ndjson", uid=USER):
        if row["tool_name"] in ("read_file", "delete_thing"):
            found.setdefault(row["arguments"]["path"], []).append(row)
    for path, (tool, state) in expected.items():
        rows = found.pop(path, [])
        if state == "lost":
            continue
        if len(rows) != 1:
            yield f"the call about {path} is on record {len(rows)} times"
            continue
        (row,) = rows
        # One that was denied never reached the server, so nothing responded.
        whole = row["tool_name"] == tool and bool(row["responded_at"]) == (state != "denied")
        if state == "read":
            whole &= row["decision"] is None
        else:
            whole &= row["decision"] == state and str(USER) in str(row["decided_by"])
            whole &= bool(row["approved_by"]) == (state == "approved")
        if not whole:
            yield f"the call about {path}, {state}, is on record as {row}"
    if found:
        yield f"calls on record that were never made: {list(found)[:10]}"
    ties = {}
    for event in lines("events", "--json", "--denied", "--container", GOOD_SERVER):
        if str(event.get("path")).startswith(f"{SECRET}/steady-"):
            ties.setdefault(event["path"], []).append(event["attribution"])
    # Past ones have no name by profile any more where their session has ended; those that are found are of one call alone.
    for path, found in ties.items():
        if path in expected and found != ["sole"]:
            yield f"the denial of {path} is {found}"
    missing = [path for path, (_, state) in expected.items() if state == "read" and path not in ties]
    if missing:
        yield f"{len(missing)} denials of the MCP server are in no event, of {missing[:3]}"
    result = command(USER, "audit", "verify")
    if result.returncode:
        yield f"the journals' chain: {said(result)}"


def sums(wanted):
    """For each container of these profiles: what was denied, what events tell, what is counted as lost."""
    shown = json.loads(command(0, "status", "--json").stdout)
    missing = (shown["store"] or {"lost": []})["lost"]
    for container in shown["containers"]:
        if container["profile"] not in wanted:
            continue
        counts = container["counts"]
        told, number = 0, 0
        for event in lines("events", "--json", "--denied", "--container", container["id"]):
            if event["verdict"] == "denied":
                told, number = told + event["repeats"], number + 1
        lost = counts["lost_denied"] + sum(one["missing_denied"] for one in missing if one["container"] == container["id"])
        yield {"profile": container["profile"], "id": container["id"], "denied": counts["denied"], "events": number, "told": told, "lost": lost,
               "adds_up": counts["denied"] == told + lost}


def add_up(wanted):
    """Waits until the denials of these profiles' containers add up; the sums, and what is wrong with them."""
    end = time.monotonic() + SETTLE
    while True:
        found = list(sums(wanted))
        if all(one["adds_up"] for one in found) or time.monotonic() > end:
            break
        time.sleep(3)
    wrong = [f"denials do not add up: {one}" for one in found if not one["adds_up"]]
    wrong += [f"a denial of the good one is lost: {one}" for one in found if one["profile"] in (GOOD, GOOD_SERVER) and one["lost"]]
    wrong += [f"{name} has no container to count" for name in wanted if name not in {one["profile"] for one in found}]
    return found, wrong


def settle():
    """Waits until a question about the whole record is answered at once: what is on its way is stored by then."""
    end = time.monotonic() + LOST
    while time.monotonic() < end:
        begun = time.monotonic()
        command(0, "status")
        if time.monotonic() - begun < 2:
            return
        time.sleep(1)
