"""Scenes of tool calls that a run ties to their processes: a shell that says first which call it runs, and those that lie."""

import json
import os
import pwd
import subprocess

from agents import Provider, trace, wait_for
from case import profile_text, scene
from harness import HERE, PYTHON
from system import PATIENCE, denied, events, said, wait_event
from system_kit import USER, become, prepare, run_claude

# Stands for Claude Code, whose hook has each tool's shell say which call it runs. It does what the file `plan-NAME` says, in its
# order, once its model wants the calls called, and answers them when there is a file `end-NAME`. A step is a command line, or a call
# (id and command) that goes by the hook of the kit and is run as Claude Code does; after it the kit's other hook is told that it is over.
AGENT = f"""#!{PYTHON}
import http.client, json, os, subprocess, sys, time
def ask(messages):
    host, port = os.environ["ANTHROPIC_BASE_URL"].removeprefix("http://").split(":")
    one = http.client.HTTPConnection(host, int(port))
    body = {{"model": "m", "max_tokens": 100, "stream": True, "messages": messages}}
    one.request("POST", "/v1/messages", json.dumps(body), {{"authorization": "Bearer " + os.environ["ANTHROPIC_AUTH_TOKEN"]}})
    answer = one.getresponse()
    text = answer.read().decode()
    assert answer.status == 200, text
    return text
def wait(path):
    while not os.path.exists(path):
        time.sleep(0.1)
def hooked(name, matcher, call, command):
    settings = json.loads(sys.argv[sys.argv.index("--settings") + 1])
    (hook,) = [hook for of in settings["hooks"][name] if of["matcher"] == matcher for hook in of["hooks"]]
    event = {{"session_id": "s", "hook_event_name": name, "tool_name": "Bash", "tool_use_id": call, "tool_input": {{"command": command}}}}
    return subprocess.run(["sh", "-c", hook["command"]], input=json.dumps(event), capture_output=True, text=True, check=True).stdout
def shell(call, command):
    said = hooked("PreToolUse", "Bash", call, command)
    command = json.loads(said)["hookSpecificOutput"]["updatedInput"]["command"]
    quoted = command.replace("'", "'\\"'\\"'")
    return ["/bin/bash", "-c", f"source /dev/null 2>/dev/null || true && eval '{{quoted}}' < /dev/null && pwd -P >| /tmp/cwd"]
for name in sys.argv[-3:]:
    wait(f"plan-{{name}}")
    plan = json.load(open(f"plan-{{name}}"))
    asked = [{{"type": "text", "text": json.dumps(plan["calls"])}}, {{"type": "text", "text": "do it " + name}}]
    messages = [{{"role": "user", "content": asked}}]
    text = ask(messages)
    assert all(call[0] in text for call in plan["calls"]), text
    with open("tie", "w") as file:
        file.write(os.environ.get("RINGFENCE_TIE", ""))
    for together in plan["steps"]:
        lines = [words if isinstance(words, list) else shell(words["call"], words["command"]) for words in together]
        running = [subprocess.Popen(words, stdin=subprocess.DEVNULL) for words in lines]
        said = [one.wait() for one in running]
        for words in together:
            if not isinstance(words, list):
                assert hooked("PostToolUse", "*", words["call"], words["command"]) == ""
    open(f"ran-{{name}}", "w").close()
    wait(f"end-{{name}}")
    uses = [{{"type": "tool_use", "id": call[0], "name": call[1], "input": call[2]}} for call in plan["calls"]]
    results = [{{"type": "tool_result", "tool_use_id": call[0], "content": "done"}} for call in plan["calls"]]
    ask(messages + [{{"role": "assistant", "content": uses}}, {{"role": "user", "content": results}}])
"""


@scene("system/kit-ties", limit=500)
def kit_ties():
    """a shell that says first which call it runs is that call's for sure; a lie ties nothing, and none takes another's"""
    home, repository, key = prepare(AGENT)
    runtime = f"{os.path.dirname(os.path.realpath(f'/proc/{daemon()}/exe'))}/ringfence-runtime"
    is_ours = not os.path.exists(runtime)
    if is_ours:
        subprocess.run(["install", "-m", "755", f"{HERE}/bin/ringfence-runtime", runtime], check=True)
    try:
        play_and_look(home, repository, key, runtime)
    finally:
        if is_ours:
            os.unlink(runtime)


def play_and_look(home, repository, key, runtime):
    """The scene, once the program that says which call a shell runs is where it is looked for."""
    uid = pwd.getpwnam(USER).pw_uid
    secret = lambda name: f"{home}/.ssh/secret-{name}"
    for name in ("same", "inside", "claimed", "other", "twice", "unnamed", "daemon", "background", "alone", "untied", "snapshot"):
        with open(secret(name), "w") as file:
            file.write("PRIVATE")
        os.chown(secret(name), uid, -1)
    read = lambda name: f"cat {secret(name)}"
    tied = lambda call, command: ["bash", "-c", f"{runtime} tie {call}\n{command}"]
    provider = Provider()
    run = subprocess.Popen([*run_claude(home, key, provider), "first", "second", "third"], cwd=repository, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    about = lambda: (trace(), run.poll())

    def play(name, calls, steps, meanwhile=lambda: None):
        """Has the agent's model want these calls called (id and command), and the agent do these steps; gives the calls as traced."""
        plan = {"calls": [[call, "Bash", {"command": command}] for call, command in calls], "steps": steps}
        with open(f"{repository}/plan-{name}.new", "w") as file:
            json.dump(plan, file)
        os.rename(f"{repository}/plan-{name}.new", f"{repository}/plan-{name}")
        wait_for(lambda: os.path.exists(f"{repository}/ran-{name}"), f"the {name} steps", about=about)
        meanwhile()
        open(f"{repository}/end-{name}", "w").close()
        intent = lambda: next((one for one in trace("claude")["intents"] if one["text"].endswith(f"do it {name}")), None)
        wait_for(lambda: (intent() or {}).get("ended"), f"the {name} intent's end", about=about)
        return {call["call"]: call for call in intent()["calls"]}

    def attributed(name):
        """How an event about a secret is attributed, and to which call."""
        event = wait_event(denied(secret(name)))
        return event["attribution"], event["tool_call"]

    nested = f"bash -c '{runtime} tie toolu_claimed\n{read('claimed')}'"
    slow = lambda command: f"{command}\nsleep 1"
    calls = [("toolu_1", slow(read("same"))), ("toolu_2", slow(read("same"))), ("toolu_inside", f"{read('inside')}; {nested}"), ("toolu_claimed", read("claimed")),
             ("toolu_twice", read("twice")), ("toolu_unnamed", read("unnamed")), ("toolu_daemon", f"setsid sh -c 'sleep 2; {read('daemon')}' > /dev/null 2>&1 &")]

    def lies_from_outside():
        """Others than processes of the container say that they run a call: the user's own, and another container's."""
        with open(f"{repository}/tie") as file:
            name = file.read()
        assert name.startswith("@ringfence-"), name
        words = ["env", f"RINGFENCE_TIE={name}", *tied("toolu_claimed", read("claimed"))]
        result = subprocess.run([*become(home), *words], capture_output=True, text=True, timeout=PATIENCE)
        assert result.stdout == "PRIVATE" and result.stderr == "", said(result)
        path = "/etc/ringfence/profiles/tie-other.toml"
        with open(path, "w") as file:
            file.write(profile_text("another container", [home, HERE, os.path.dirname(runtime)], [], ["/usr/bin", os.path.dirname(runtime)],
                                    [f"unix:{name}"], kernel='audit = "all"', deny={"fs_read": [secret("other"), secret("claimed")]}))
        os.chmod(path, 0o644)
        result = subprocess.run([*become(home), "ringfence", "run", "--profile", "tie-other", "--workdir", home, "--", *words], capture_output=True, text=True,
                                timeout=PATIENCE)
        os.unlink(path)
        assert f"cat: {secret('claimed')}: Permission denied" in result.stderr, said(result)
        event = wait_event(lambda event: event["profile"] == "tie-other" and denied(secret("claimed"))(event))
        assert (event["attribution"], event["tool_call"]) == ("none", None), event
        # The control: it did connect there.
        assert any(event["op"] == "connect" and event["verdict"] == "allowed" and event.get("addr") == f"unix:{name}"
                   for event in events() if event["profile"] == "tie-other"), "nothing connected"

    steps = [
        # Two commands of the same words, at once.
        [tied("toolu_1", slow(read("same"))), tied("toolu_2", slow(read("same")))],
        # From within one call another is claimed.
        [tied("toolu_inside", f"{read('inside')}; {nested}")],
        # A shell that runs something else, one that does not exist, none at all.
        [tied("toolu_claimed", read("other"))], [tied("toolu_none", read("other"))], [[runtime, "tie", "toolu_claimed"]],
        [tied("toolu_daemon", calls[6][1])],
        [tied("", read("unnamed"))],
        # Two shells say that they are it.
        [tied("toolu_twice", read("twice"))], [tied("toolu_twice", read("twice"))],
        [["sleep", "3"]],
    ]
    try:
        traced = play("first", calls, steps, lies_from_outside)
    except BaseException:
        run.kill()
        raise
    same = [event for event in events() if denied(secret("same"))(event)]
    assert sorted((event["attribution"], event["tool_call"]) for event in same) == [("exact", "toolu_1"), ("exact", "toolu_2")], same
    for call in ("toolu_1", "toolu_2"):
        own = [event for event in traced[call]["events"] if event.get("path") == secret("same")]
        assert traced[call]["tagged"] and [event["attribution"] for event in own] == ["exact"], traced[call]
        # Not the shell's own start, nor what said so.
        assert not any(event["exe"].endswith("ringfence-runtime") for event in traced[call]["events"]), traced[call]
    assert attributed("inside") == ("exact", "toolu_inside")
    claimed = [event for event in events() if event["profile"] == "claude" and denied(secret("claimed"))(event)]
    assert [(event["attribution"], event["tool_call"]) for event in claimed] == [("exact", "toolu_inside")], claimed
    assert not traced["toolu_claimed"]["tagged"], traced["toolu_claimed"]
    other = [event for event in events() if denied(secret("other"))(event)]
    assert len(other) == 2 and all(event["attribution"] == "ambiguous" and "toolu_claimed" in event["candidates"] for event in other), other
    assert attributed("daemon") == ("exact", "toolu_daemon")
    assert attributed("unnamed") == ("matched", "toolu_unnamed")
    twice = [event for event in events() if denied(secret("twice"))(event)]
    assert len(twice) == 2 and all(event["attribution"] == "ambiguous" and "toolu_twice" in event["candidates"] for event in twice), twice
    refused = [one["why"] for one in trace("claude")["refusals"] if one["what"] == "tie"]
    assert any("has a process already" in why for why in refused), refused

    # The agent's own work beside a call that is tied, and beside one that is not.
    snapshot = ["bash", "-c", f"cat {secret('snapshot')}; true"]
    try:
        play("second", [("toolu_alone", slow(f"echo 'it''s' && {read('alone')}"))], [[snapshot], [{"call": "toolu_alone", "command": slow(f"echo 'it''s' && {read('alone')}")}, ["cat", secret("background")]]])
        play("third", [("toolu_untied", read("untied"))], [[["bash", "-c", read("untied")]]])
    except BaseException:
        run.kill()
        raise
    out, _ = run.communicate(timeout=PATIENCE)
    assert run.returncode == 0, out
    assert attributed("alone") == ("exact", "toolu_alone")
    for name in ("snapshot", "background"):
        expected = ("none", None) if keeps_tags() else ("ambiguous", None)
        assert attributed(name) == expected, (name, attributed(name))
    assert attributed("untied") == ("sole", "toolu_untied"), "the control"
    # What the kit's hook said after the call stands beside it; of the other one it was not told.
    traced = {call["call"]: call for intent in trace("claude")["intents"] for call in intent["calls"]}
    hook = traced["toolu_alone"].get("hook")
    assert hook is not None and (hook["failed"], hook["session"]) == (False, "s"), traced["toolu_alone"]
    assert "hook" not in traced["toolu_untied"], traced["toolu_untied"]
    result = subprocess.run(["ringfence", "events", "calls", "--json", "--agent", "claude"], capture_output=True, text=True, check=True, timeout=PATIENCE)
    by = {call["call"]: call["by"] for call in json.loads(result.stdout)["calls"]}
    assert (by["toolu_alone"], by["toolu_untied"]) == ("endpoint+hook", "endpoint"), by


def daemon():
    """The daemon's process id."""
    found = subprocess.run(["pgrep", "-o", "-f", "ringfence daemon"], capture_output=True, text=True, check=True)
    return int(found.stdout.split()[0])


def keeps_tags():
    """Whether no process loses its tag on this kernel."""
    return tuple(int(part) for part in os.uname().release.split(".")[:2]) >= (6, 2)
