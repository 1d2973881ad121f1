"""The suite's own negative control: takes one program out of the kernel, and expects that its case fails.

A program is attached as long as its pinned link is there, and the daemon keeps no descriptor of it. Taking the pin away detaches the
program; attached and pinned again, it is as if nothing had happened. So nothing in the product knows of this.
"""

import ctypes
import glob
import os
import struct
import subprocess
import time
import tomllib

import harness
from attack import raw
from case import FAMILIES, SCENES, profile_text
from scene import run_scene

PINS = "/sys/fs/bpf/ringfence/links"
# The programs that judge packets and change addresses are no LSM programs: they have a cgroup. `BPF_CGROUP_*` of each.
OF_CGROUP = {"outgoing_packet": 1, "connect4": 10, "connect6": 11, "sendmsg4": 14, "sendmsg6": 15, "recvmsg4": 19, "recvmsg6": 20,
             "getpeername4": 29, "getpeername6": 30}
OF_NAMES = [hook for hook in OF_CGROUP if hook != "outgoing_packet"]
HOLDER = "/run/rf-cases/profiles/rf-held.toml"
CGROUP = "/sys/fs/cgroup"
# Those whose absence is tried in the runs of every case: one that every open passes, one for what has no path.
ALWAYS = ("file_open", "file_ioctl")
EACH = "each"
# Seconds to wait for an event, where its absence is all that there is to notice.
EVENT = 30
# What `harness.judge` says of an attack that nothing refused, that nothing told of, and (of the programs that note whose something is)
# where a container's own things are refused.
NOTICED = (harness.THROUGH, harness.SAW, harness.UNTOLD, harness.CONTROL)

OBJ_PIN, OBJ_GET, PROG_BY_ID, INFO, RAW_OPEN, LINK_CREATE, LINK_BY_ID = 6, 7, 13, 15, 17, 28, 30


def table():
    """`shown` and `covered` of ebpf/coverage/coverage.toml: what shows that a program is needed, or who does its work too."""
    for path in (f"{harness.HERE}/coverage.toml", f"{harness.HERE}/../ebpf/coverage/coverage.toml"):
        if os.path.exists(path):
            with open(path, "rb") as file:
                known = tomllib.load(file)
            return known["shown"], known["covered"]
    raise AssertionError("no coverage.toml")


def chosen(wanted):
    """Hooks of a comma-separated list, or all."""
    shown, covered = table()
    known = [*shown, *covered]
    hooks = known if wanted == EACH else wanted.split(",")
    unknown = [hook for hook in hooks if hook not in known]
    if unknown:
        raise SystemExit(f"no program {unknown}; there are {' '.join(known)}")
    return hooks


def bpf(command, text):
    """bpf(2)."""
    buffer = ctypes.create_string_buffer(text, max(len(text), 128))
    return raw("bpf", command, buffer, len(buffer))


def path_text(path):
    """A path as an attribute's pointer, and what keeps it."""
    kept = ctypes.create_string_buffer(os.fsencode(path))
    return ctypes.addressof(kept), kept


def exists(link):
    """Whether the kernel has a link of this number."""
    try:
        os.close(bpf(LINK_BY_ID, struct.pack("<I", link)))
    except FileNotFoundError:
        return False
    return True


def hold_names():
    """A container that hosts are granted to by name, until something is written to it."""
    os.makedirs(os.path.dirname(HOLDER), exist_ok=True)
    with open(HOLDER, "w") as file:
        file.write(profile_text("vm test: holds names", ["/usr", "/etc"], (), ["/usr/bin"], ["held.rf.test:443"]))
    holder = subprocess.Popen(["ringfence", "run", "--profile", HOLDER, "--", "/usr/bin/sh", "-c", "echo up; read -r _"], stdin=subprocess.PIPE,
                              stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "up\n", "no container holds the programs of names"
    return holder


class Detached:
    """A context without one program. `missing`: the kernel has no such hook."""

    def __init__(self, hook):
        self.hook = hook
        self.holder = None
        if hook in OF_NAMES:
            # They are attached as long as there is a container with names.
            self.holder = hold_names()
        found = glob.glob(f"{PINS}/[0-9]*/{hook}")
        self.missing = not found
        self.path = found[0] if found else ""
        self.program = -1

    def __enter__(self):
        address, _kept = path_text(self.path)
        link = bpf(OBJ_GET, struct.pack("<Q", address))
        info = ctypes.create_string_buffer(64)
        bpf(INFO, struct.pack("<IIQ", link, len(info), ctypes.addressof(info)))
        _, number, program = struct.unpack_from("<III", info)
        self.program = bpf(PROG_BY_ID, struct.pack("<I", program))
        os.unlink(self.path)
        os.close(link)
        # The kernel lets go of a pin after a grace period. As long as somebody holds the link, it is attached.
        end = time.monotonic() + 60
        while exists(number):
            if time.monotonic() > end:
                raise AssertionError(f"the program of {self.hook} does not go: somebody holds its link")
            time.sleep(0.05)
        return self

    def __exit__(self, *_):
        if self.hook in OF_CGROUP:
            cgroup = os.open(CGROUP, os.O_RDONLY)
            link = bpf(LINK_CREATE, struct.pack("<IIII", self.program, cgroup, OF_CGROUP[self.hook], 0))
            os.close(cgroup)
        else:
            link = bpf(RAW_OPEN, struct.pack("<QI", 0, self.program))
        address, _kept = path_text(self.path)
        bpf(OBJ_PIN, struct.pack("<QI", address, link))
        os.close(link)
        os.close(self.program)
        if self.holder:
            self.holder.communicate()


def problems_of(name, follower):
    """What a case says: problems, and why it was skipped. Whatever an attack that gets through does to the guest is the case's to bear."""
    if name in SCENES:
        return run_scene(SCENES[name], follower), None
    family, short = name.split("/", 1)
    case = FAMILIES[family].cases[short]
    # Of earlier runs nothing counts: paths are the same.
    follower.forget()
    harness.Patience.left = EVENT
    [(_, problems, skipped)] = harness.run_family(FAMILIES[family], [case], follower, False, False, first=True)
    return problems, skipped


def run(hook, follower):
    """Problems with the control, why it is skipped, and what the case noticed."""
    shown, covered = table()
    case = shown.get(hook) or covered[hook]["case"]
    detached = Detached(hook)
    if detached.missing:
        return [], "no such hook on this kernel", ""
    with detached:
        problems, skipped = problems_of(case, follower)
    if skipped:
        return [], skipped, ""
    if hook in covered:
        return [f"{case} needs the program of {hook}, which the table calls covered", *problems] if problems else [], None, covered[hook]["why"]
    noticed = [problem for problem in problems if case in SCENES or any(mark in problem for mark in NOTICED)]
    if noticed:
        # Of a traceback the end says what happened.
        line = noticed[0].strip().splitlines()[-1 if case in SCENES else 0]
        return [], None, f"{case}: {line}"
    return [f"without the program of {hook}, {case} does not fail as it should", *problems], None, ""
