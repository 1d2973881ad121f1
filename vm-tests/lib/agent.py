"""Runs attacks, one child each, in the process that the harness started (governed or not), and prints the results.

`agent.py SPEC`: SPEC is a JSON file: `{"modules": [...], "runs": [{"id", "case", "mode", "limit", "place"}, ...]}`.
One line per happening: `{"begin": id}`, then `{"id", "ok", "value" | "errno", "error" | "broken" | "hung"}`.
"""

import json
import os
import select
import signal
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(os.path.dirname(HERE), "cases")]

from attack import become, raw  # noqa: E402
from case import FAMILIES, Place, Refused  # noqa: E402


def say(message):
    """One line to the harness."""
    os.write(REPORT, (json.dumps(message) + "\n").encode())


def attempt(case, run):
    """What one run came to. In the child."""
    place = Place(**run["place"])
    action = case.control if run["mode"] == "control" and case.control else case.attack
    try:
        os.chdir("/")
        os.umask(0)
        if run["mode"] == "native":  # what the attack mounts stays its own
            raw("unshare", 0x20000)
            raw("mount", 0, b"/", 0, 0x44000, 0)
        become(place.who)
        value = action(place)
        return {"ok": True, "value": str(value)[:3000]}
    except OSError as error:
        return {"ok": False, "errno": error.errno, "error": str(error)}
    except Refused as error:
        return {"ok": False, "errno": None, "error": str(error)}
    except BaseException as error:  # a mistake in the case is not a refusal
        line = error.__traceback__
        while line.tb_next:
            line = line.tb_next
        return {"ok": False, "broken": f"{error!r} at {line.tb_frame.f_code.co_filename}:{line.tb_lineno}"}


def supervise(case, run):
    """Runs one attempt in a process group of its own, for so long and no longer."""
    pipe_r, pipe_w = os.pipe()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        os.close(pipe_r)
        os.write(pipe_w, (json.dumps(attempt(case, run)) + "\n").encode())
        os._exit(0)
    os.close(pipe_w)
    end = time.monotonic() + run["limit"]
    text = b""
    # Until the line is whole, not until the end of the pipe: a descendant of the attack may hold it open.
    while not text.endswith(b"\n"):
        left = end - time.monotonic()
        if left <= 0 or not select.select([pipe_r], [], [], left)[0]:
            text = json.dumps({"ok": False, "hung": f"no result in {run['limit']} s"}).encode()
            break
        part = os.read(pipe_r, 65536)
        if not part:
            text = json.dumps({"ok": False, "broken": "the attack died without a result"}).encode()
            break
        text += part
    os.close(pipe_r)
    try:
        os.killpg(child, signal.SIGKILL)
    except OSError:
        pass
    os.waitpid(child, 0)
    return json.loads(text) | {"pid": child}


def main():
    """Every run of the spec, in order."""
    with open(sys.argv[1]) as file:
        spec = json.load(file)
    for module in spec["modules"]:
        __import__(module)
    for run in spec["runs"]:
        say({"begin": run["id"]})
        family, short = run["case"].split("/", 1)
        say(supervise(FAMILIES[family].cases[short], run) | {"id": run["id"]})
    say({"done": True})


if __name__ == "__main__":
    # Attacks may write to standard output; the report has a descriptor of its own, which they do not know.
    REPORT = os.dup(1)
    os.dup2(2, 1)
    main()
