"""Runs a family: sets its targets up, attacks them ungoverned and governed, and judges what came of it."""

import itertools
import json
import os
import queue
import subprocess
import threading
import time

from case import FULL, REFUSED, Place
from events import about, brief

HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SPECS = "/run/rf-cases"
PYTHON = os.path.realpath("/usr/bin/python3")
# Seconds that `ringfence run` and the start of Python may take on a slow machine.
START = 300
# What is said of an attack that was not refused, and of one that no event tells of.
THROUGH = "THE ATTACK HAD ITS EFFECT"
SAW = "the caller saw"
UNTOLD = "no denied event"
# And where what is allowed is refused.
CONTROL = "the positive control failed"


class Run:
    """One attempt: an attack on one place, and what came of it."""

    def __init__(self, number, case, mode, place):
        self.number = number
        self.case = case
        self.mode = mode
        self.place = place
        self.result = None

    def label(self):
        """What a diagnosis calls it."""
        return f"{self.mode}, {self.place.kind} target, as {self.place.who}"

    def spec(self):
        """For the agent."""
        return {"id": self.number, "case": self.case.name, "mode": self.mode, "limit": self.case.limit,
                "place": {k: v for k, v in vars(self.place).items()}}


def plan(family, cases, hooks_only, first=False):
    """Every run of these cases; `first`: one attempt for each, by the account that the fewest others than Ringfence refuse."""
    runs = []

    def add(case, mode, kind, who):
        number = len(runs)
        name = f"{case.short}-{number}"
        place = Place(case=case.name, kind=kind, who=who, run=name, mode=mode, token=f"token-{family.name}-{name}-{os.urandom(4).hex()}")
        family.locate(place)
        runs.append(Run(number, case, mode, place))

    for case in cases:
        kinds = case.kinds[:1] if hooks_only or first else case.kinds
        accounts = case.who
        if first:
            accounts = (FULL,) if FULL in case.who else case.who[:1]
        if case.native is not False:
            for who in accounts:
                if who not in case.quiet + case.unable:
                    add(case, "native", kinds[0], who)
        for who in accounts:
            for kind in kinds:
                add(case, "attack", kind, who)
            add(case, "control", "allow", who)
    return runs


class Agent:
    """One process that makes the attempts."""

    def __init__(self, family, runs, name, prefix):
        self.runs = {run.number: run for run in runs}
        self.lines = queue.Queue()
        spec = f"{SPECS}/{name}.json"
        with open(spec, "w") as file:
            json.dump({"modules": modules(), "family": family.name, "runs": [run.spec() for run in runs]}, file)
        self.log = open(f"{SPECS}/{name}.log", "w+")
        command = [*prefix, PYTHON, "-E", "-s", "-S", "-B", f"{HERE}/lib/agent.py", spec]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.log,
                                        cwd="/", start_new_session=True, pass_fds=())
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            self.lines.put(line)
        self.lines.put(None)

    def collect(self):
        """Takes results until the agent is done, is silent for too long, or dies."""
        patience = START
        helpers = []
        while True:
            try:
                line = self.lines.get(timeout=patience)
            except queue.Empty:
                self._end(f"silent for {patience} s")
                break
            if line is None:
                self._end(f"ended early, status {self.process.wait()}")
                break
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if "begin" in message:
                run = self.runs[message["begin"]]
                patience = run.case.limit + 15
                if run.case.during:
                    run.place.over = threading.Event()
                    helpers.append(threading.Thread(target=run.case.during, args=(run.place,), daemon=True))
                    helpers[-1].start()
            elif "id" in message:
                run = self.runs[message["id"]]
                run.result = message
                if run.case.during:
                    run.place.over.set()
                patience = START
            elif "done" in message:
                break
        for run in self.runs.values():
            # What ended without a result is over, too.
            if hasattr(run.place, "over"):
                run.place.over.set()
        for helper in helpers:
            helper.join(60)
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self._end("did not leave")
        self.log.close()

    def _end(self, why):
        """Kills the session; runs without a result get the reason."""
        try:
            os.killpg(self.process.pid, 9)
        except OSError:
            pass
        self.process.kill()
        self.log.flush()
        self.log.seek(0)
        tail = self.log.read()[-1500:]
        text = f"the agent process {why}; it said: {tail}"
        for run in self.runs.values():
            if run.result is None:
                run.result = {"ok": False, "broken": text, "pid": 0}
                text = f"the agent process {why}, as said above"


def modules():
    """Names of all case modules."""
    return sorted(name[:-3] for name in os.listdir(f"{HERE}/cases") if name.endswith(".py") and name != "__init__.py")


def run_family(family, cases, follower, hooks_only, ungoverned_only, first=False):
    """Runs the cases; a list of (case, problems, why skipped). `first`: one attempt, and of it only the first problem."""
    os.makedirs(f"{SPECS}/profiles", exist_ok=True)
    runs = plan(family, cases, hooks_only, first)
    problems = {case.name: {} for case in cases}
    try:
        if family.prepare:
            family.prepare()
        for run in runs:
            if run.case.setup:
                run.case.setup(run.place)
    except Exception as error:  # every case of the family fails, with the reason
        return [(case, [f"setup failed: {error!r}"], None) for case in cases]
    profile = f"{SPECS}/profiles/rf-{family.name}.toml"
    with open(profile, "w") as file:
        file.write(with_capabilities(family.profile([run.place for run in runs], HERE)))
    native = [run for run in runs if run.mode == "native"]
    governed = [run for run in runs if run.mode != "native"]
    if native:
        Agent(family, native, f"{family.name}-native", []).collect()
    if not ungoverned_only:
        prefix = ["ringfence", "run", "--profile", profile, "--"]
        if family.enrolled:
            prefix = ["/usr/bin/sh", "-c", 'ringfence enroll --profile "$0" --pid $$ >&2 && exec "$@"', profile]
        Agent(family, governed, f"{family.name}-governed", prefix).collect()
    skipped = {}
    for run in runs:
        if run.result is not None:
            if run.mode == "attack" and is_missing(run, runs):
                skipped[run.case.name] = f"not on this kernel: {run.result['error']}"
                continue
            for text in itertools.islice(judge(run, follower), 1 if first else None):
                labels = problems[run.case.name].setdefault(text, [])
                labels.append(run.label())
    if family.finish:
        family.finish()
    return [(case, [f"{'; '.join(labels)}: {text}" for text, labels in problems[case.name].items()], skipped.get(case.name))
            for case in cases]


def with_capabilities(profile):
    """A profile that leaves root every capability, unless it says otherwise: what is tested is what the other hooks refuse."""
    if "capabilities" in profile:
        return profile
    assert "[kernel]\n" in profile, "a family's profile has a [kernel] table"
    return profile.replace("[kernel]\n", '[kernel]\ncapabilities = ["all"]\n')


def is_missing(run, runs):
    """Whether the attack failed as it does ungoverned, because this kernel lacks what is attacked."""
    missing = set(run.case.native) - set(REFUSED) if isinstance(run.case.native, tuple) else ()
    if run.result.get("errno") not in missing:
        return False
    return any(one.mode == "native" and one.case is run.case and one.result["ok"] is False
               and one.result.get("errno") == run.result.get("errno") for one in runs)


def judge(run, follower):
    """What is wrong with one run."""
    case, result, place = run.case, run.result, run.place
    if "broken" in result or "hung" in result:
        yield result.get("broken") or result["hung"]
        return
    try:
        happened = bool(case.effect(place, result.get("value", "")))
    except Exception as error:  # an effect that cannot be seen is a problem of its own
        happened = f"unknown: {error!r}"
    shown = result.get("value") if result["ok"] else f"errno {result['errno']} {result['error']}"
    if run.mode == "native":
        if isinstance(case.native, tuple) and result.get("errno") in case.native:
            return
        if not result["ok"] or happened is not True:
            yield f"the attack does not work even ungoverned: {shown}, effect {happened}"
        return
    if case.gap and run.mode == "attack":
        if not result["ok"] or happened is not True:
            yield f"a gap that docs/bypasses.md calls open is closed: {shown}, effect {happened}{seen(run, follower)}"
        return
    if run.mode == "control":
        if not result["ok"] or (happened is not True and not case.control):
            yield f"{CONTROL}: {shown}, effect {happened}{seen(run, follower)}"
        return
    if happened is not False and (case.effect.__name__ != "leaked" or result["ok"]):
        yield f"{THROUGH}: {shown}, effect {happened}"
    if result["ok"]:
        yield f"{SAW} success: {shown}"
    elif case.errno is not None and result["errno"] not in case.errno:
        yield f"{SAW} {shown}, not one of {case.errno}"
    if place.who in case.quiet or not case.events:
        return
    for op, what in case.events(place):
        if not Patience.wait(follower, lambda event: event_of(event, run, op, what)):
            yield f"{UNTOLD} {op} about {what or 'pid ' + str(result['pid'])}{seen(run, follower)}"


class Patience:
    """Seconds to wait for missing events: many for the first, few once it is plain that they do not come."""

    left = 120.0

    @classmethod
    def wait(cls, follower, wanted):
        """Waits for an event within what is left."""
        begun = time.monotonic()
        found = follower.wait(wanted, seconds=max(0.5, cls.left))
        if not found:
            cls.left -= time.monotonic() - begun
        return found


def event_of(event, run, op, what):
    """Whether this is the denied event of that run."""
    if event.get("verdict") != "denied" or event.get("op") != op or event.get("profile") != f"rf-{run.case.family.name}":
        return False
    if not what:
        return run.result["pid"] in (event.get("tgid"), event.get("ppid"))
    return about(event, what)


def seen(run, follower):
    """Events of that run's process, for a diagnosis."""
    if not follower:
        return ""
    pid = run.result.get("pid")
    found = follower.having(lambda event: pid in (event.get("tgid"), event.get("ppid")) and event.get("verdict") != "allowed")
    return "".join("\n  event: " + brief(event) for event in found[-6:]) or "\n  (no denied event of that process at all)"
