"""A scene of what a tool call leaves running, while the next one is in flight and no process is tied to either."""

import json
import os
import pwd
import subprocess

from agents import Provider, trace, wait_for
from case import scene
from system import PATIENCE, denied, wait_event
from system_kit import USER, prepare, run_claude
from system_ties import AGENT


@scene("system/kit-left-behind", limit=400)
def left_behind():
    """a program that a call's leftover starts while another call is in flight is not that call's; its own shell's is"""
    home, repository, key = prepare(AGENT)
    uid = pwd.getpwnam(USER).pw_uid
    secrets = {name: f"{home}/.ssh/secret-{name}" for name in ("left", "own")}
    for path in secrets.values():
        with open(path, "w") as file:
            file.write("PRIVATE")
        os.chown(path, uid, -1)
    # Each waits for a file, so that it happens in the order that is meant on any machine.
    until = lambda path: f"until test -e {path}; do sleep 0.1; done"
    leave = f"setsid sh -c '{until('go-on')}; cat {secrets['left']}; touch is-over' > /dev/null 2>&1 & true"
    follow = f"touch go-on; {until('is-over')}; cat {secrets['own']}; true"
    plays = {"leave": ("toolu_leave", leave), "follow": ("toolu_follow", follow), "end": ("toolu_end", "true")}
    run = subprocess.Popen([*run_claude(home, key, Provider()), *plays], cwd=repository, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True)
    about = lambda: (trace(), run.poll())
    try:
        for name, (call, command) in plays.items():
            plan = {"calls": [[call, "Bash", {"command": command}]], "steps": [[["bash", "-c", command]]]}
            with open(f"{repository}/plan-{name}.new", "w") as file:
                json.dump(plan, file)
            os.rename(f"{repository}/plan-{name}.new", f"{repository}/plan-{name}")
            wait_for(lambda: os.path.exists(f"{repository}/ran-{name}"), f"the {name} step", about=about)
            open(f"{repository}/end-{name}", "w").close()
    except BaseException:
        run.kill()
        raise
    out, _ = run.communicate(timeout=PATIENCE)
    assert run.returncode == 0, out
    left, own = (wait_event(denied(secrets[name])) for name in ("left", "own"))
    assert (left["attribution"], left["tool_call"], left.get("candidates")) == ("ambiguous", None, ["toolu_follow"]), left
    assert (own["attribution"], own["tool_call"]) == ("sole", "toolu_follow"), own
