"""The table of every way into the kernel (ebpf/coverage/coverage.toml), held against the kernel that runs."""

import json
import os
import re
import socket
import subprocess
import sys
import tomllib

from case import scene
from harness import HERE, PYTHON
from surface import expected, hooks, system_calls, version
from system import profile, ringfence, said

# The families that a profile may be granted; no other one's sockets are made.
GRANTABLE = {"AF_UNIX", "AF_INET", "AF_INET6"}

# In the container: which families of sockets can be made, by any type. EPERM and EACCES are Ringfence's, all else is the
# kernel's word that it has no such thing.
TRY_FAMILIES = """
import errno, json, socket, sys
made, refused = [], []
for family in range(64):
    for kind in (1, 2, 3, 4, 5, 6, 10):
        try:
            socket.socket(family, kind, 0).close()
            made.append(family)
        except PermissionError:
            refused.append(family)
        except OSError:
            pass
json.dump([sorted(set(made)), sorted(set(refused))], sys.stdout)
"""


def table():
    """The table, as the runner put it into the guest."""
    with open(f"{HERE}/coverage.toml", "rb") as file:
        return tomllib.load(file)


def running():
    """The kernel's version, `(6, 12)`."""
    return version(re.match(r"\d+\.\d+", os.uname().release).group())


def differences(groups, found, what):
    """Lines too many and too few."""
    wanted = expected(groups, running())
    return [f"{what} {name}: the kernel has it, the table does not name it" for name in sorted(found - wanted)] + [
        f"{what} {name}: the table names it for this kernel, which does not have it" for name in sorted(wanted - found)
    ]


@scene("kernel/surface", hook="all")
def surface():
    """every LSM hook and system call of the running kernel is in the table, and the table has no other"""
    known = table()
    problems = differences(known["hook"], hooks() - set(known["not_hooks"]), "hook")
    problems += differences(known["call"], set(system_calls().values()), "system call")
    assert not problems, "\n".join(problems)
    # The comparison sees what is missing: without one line each, it says so.
    assert differences(known["hook"][1:], hooks() - set(known["not_hooks"]), "hook"), "a missing group of hooks went unnoticed"
    assert differences(known["call"][1:], set(system_calls().values()), "system call"), "missing calls went unnoticed"


@scene("kernel/socket-families", hook="all")
def families():
    """of all address families a container makes the sockets of those that the table says are granted, and no other"""
    named = {name for group in table()["family"] for name in group["names"]}
    # Some numbers have two names.
    numbers = {getattr(socket, name, None) for name in named}
    unnamed = [name for name in dir(socket) if name.startswith("AF_") and getattr(socket, name) not in numbers]
    assert not unnamed, f"the table does not name {unnamed}"
    path = profile("rf-families")
    with open(path) as file:
        text = file.read()
    with open(path, "w") as file:
        file.write(text.replace("net = { only = [] }", 'net = { only = ["127.0.0.1:9", "[::1]:9"] }'))
    result = ringfence("run", "--profile", path, "--", PYTHON, "-IS", "-c", TRY_FAMILIES)
    assert result.returncode == 0, said(result)
    made, refused = json.loads(result.stdout)
    assert made == sorted(int(getattr(socket, name)) for name in GRANTABLE), f"made: {made}"
    # The control: outside, sockets of other families are made.
    plain = subprocess.run([sys.executable, "-IS", "-c", TRY_FAMILIES], capture_output=True, text=True, check=True)
    beyond = set(json.loads(plain.stdout)[0]) - set(made)
    assert beyond and beyond <= set(refused), f"made outside: {beyond}, refused inside: {refused}"
