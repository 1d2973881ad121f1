"""What a case is. Light on purpose: the governed process imports this too.

A case is one evasion. Its attack is one function over a `Place`; the harness runs it three times:

- ungoverned on a forbidden target: it must succeed for each account, or the attack is not one;
- governed on a forbidden target: it must fail, without effect, with a denied event;
- governed on an allowed target: it must succeed (the positive control), so that a broken test cannot pass.
"""

import errno as _errno
import json as _json
from types import SimpleNamespace

# Accounts an attack is run under: root with Docker's default capabilities, root with all, an ordinary user.
DOCKER = "docker"
FULL = "full"
NOBODY = "nobody"

# Limits find what hangs; how fast a machine with other work is, they do not judge. Those of cases and scenes are for a quiet
# one, and are taken so many times.
BUSY = 4

# What a refused caller may see.
REFUSED = (_errno.EACCES, _errno.EPERM)

FAMILIES = {}


class Refused(Exception):
    """The attack was refused in another way than by an errno (a program's exit status, a missing answer)."""


class Place(SimpleNamespace):
    """One run's surroundings: `dir`, `target` (in it), `mine` (a directory of its own), `token`, `kind`, `who`."""


def leaked(place, value):
    """The default effect: the secret is in what the attack brought back."""
    return place.token in str(value)


def returned(_place, _value):
    """For attacks whose success is that they return."""
    return True


# What most programs need to start.
USUAL = ("/usr", "/etc", "/proc", "/bin", "/lib", "/lib64")


def profile_text(about, fs_read, fs_write=(), fs_exec=("/usr/bin",), net=(), deny=None, kernel='audit = "denied"', head=""):
    """A profile of these grants, lists or "all", and of these denies by axis. Seccomp and Landlock are off: the hooks are tested.
    `head` stands before its tables, `kernel` is the rest of that one."""

    def listed(entries):
        return _json.dumps(list(entries), ensure_ascii=False)

    grants = {"fs_read": fs_read, "fs_write": fs_write, "exec": fs_exec, "net": net}
    granted = "\n".join(f"{axis} = " + ('"all"' if of == "all" else f"{{ only = {listed(of)} }}") for axis, of in grants.items())
    denied = "\n".join(["[deny]", *(f"{axis} = {listed(of)}" for axis, of in deny.items())]) if deny else ""
    return f"""
description = "{about}"
{head}
[grant]
{granted}
max_calls = "unlimited"
valid_for_generation = "all"
{denied}
[kernel]
seccomp = "off"
landlock = "off"
{kernel}
"""


class Case:
    """One evasion; see the module's description for how it is run."""

    def __init__(self, family, name, attack, options):
        self.family = family
        self.short = name
        self.name = f"{family.name}/{name}"
        self.attack = attack
        self.about = (attack.__doc__ or "").strip().split("\n")[0]
        # LSM hook that this case stands for on the other kernels.
        self.hook = options.pop("hook", None)
        # Forbidden kinds of target; see the family's `locate`.
        self.kinds = options.pop("kinds", family.kinds)
        self.who = options.pop("who", family.who)
        # Accounts that another part of the kernel refuses before the hook runs: no event is expected.
        self.quiet = options.pop("quiet", ())
        # Accounts that would fail ungoverned, too, but are refused by the hook first, with an event.
        self.unable = options.pop("unable", ())
        # (op, part of path or addr) of each event that a denied run must leave.
        self.events = options.pop("events", family.events)
        # errno values that the caller may see; None: any failure is one.
        self.errno = options.pop("errno", family.errno)
        self.setup = options.pop("setup", family.setup)
        self.effect = options.pop("effect", family.effect)
        # Replaces the attack on an allowed target, where nothing of the kind can be allowed.
        self.control = options.pop("control", None)
        # Whether the attack succeeds where nothing governs it; a tuple of errno: it may also fail so (missing module).
        self.native = options.pop("native", True)
        # A known gap: the governed attack succeeds, and the case fails when it does not (docs/bypasses.md says `open`).
        self.gap = options.pop("gap", False)
        # Called by the harness, outside, while the attack runs; the place's `over` is set when that has a result.
        self.during = options.pop("during", None)
        # Seconds before the case is called hung.
        self.limit = options.pop("limit", 25) * BUSY
        if options:
            raise TypeError(f"{self.name}: unknown options {sorted(options)}")


class Family:
    """Cases that share one profile and one governed process."""

    def __init__(self, name, profile, **options):
        self.name = name
        self.profile = profile
        self.kinds = options.pop("kinds", ("deny",))
        self.who = options.pop("who", (DOCKER,))
        self.errno = options.pop("errno", REFUSED)
        self.events = options.pop("events", None)
        self.setup = options.pop("setup", None)
        self.effect = options.pop("effect", leaked)
        # locate(place): sets dir, target, mine by kind.
        self.locate = options.pop("locate")
        # prepare(): once, ungoverned, before everything; finish() after.
        self.prepare = options.pop("prepare", None)
        self.finish = options.pop("finish", None)
        self.group = options.pop("group", "default")
        # Its process runs already when it is enrolled, with everything that the launcher would have taken from it.
        self.enrolled = options.pop("enrolled", False)
        self.cases = {}
        if options:
            raise TypeError(f"{name}: unknown options {sorted(options)}")
        FAMILIES[name] = self

    def case(self, name, **options):
        """Declares the decorated function to be the attack of case `name`."""

        def declare(attack):
            if name in self.cases:
                raise ValueError(f"{self.name}/{name} twice")
            self.cases[name] = Case(self, name, attack, options)
            return attack

        return declare


# Cases that drive the daemon and the command line themselves: a function that raises when it fails.
SCENES = {}


class Scene:
    """A test with a course of its own: no attack and target, but the whole system."""

    def __init__(self, name, run, group, limit, hook):
        self.name = name
        self.run = run
        self.group = group
        self.limit = limit * BUSY
        self.hook = hook
        self.about = (run.__doc__ or "").strip().split("\n")[0]


def scene(name, group="default", limit=60, hook=None):
    """Declares the decorated function to be the scene `name`."""

    def declare(run):
        if name in SCENES:
            raise ValueError(f"{name} twice")
        SCENES[name] = Scene(name, run, group, limit, hook)
        return run

    return declare
