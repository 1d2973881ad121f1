"""The family `files`: where its targets lie, and the profile that forbids them."""

import os
import shutil

from attack import put
from case import USUAL, Family, profile_text

BASE = "/srv/rf/files"
# Forbidden in four ways: not granted, denied by path, denied by name, granted for reading only.
HIDDEN = ("deny", "sealed", "named")
LOCKED = ("deny", "sealed", "named", "ro")


def locate(p):
    """Places by kind. `parent` is an ordinary directory, `dir` the forbidden one in it, `target` a file in that."""
    p.root = f"{BASE}/allow"
    p.mine = f"{BASE}/allow/{p.run}.mine"
    base = {"deny": f"{BASE}/deny", "sealed": f"{BASE}/allow/sealed", "ro": f"{BASE}/ro", "beside": f"{BASE}/allowed"}.get(p.kind, f"{BASE}/allow")
    p.parent = f"{base}/{p.run}"
    p.dir = p.parent + ("/.rf-sealed" if p.kind == "named" else "/sealed")
    p.target = p.dir + "/target"
    p.fds_socket = "/srv/rf/fds.sock"


def fresh(p):
    """The directory and the file, open to all as far as modes go."""
    os.makedirs(p.dir, exist_ok=True)
    os.chmod(p.dir, 0o777)
    os.chmod(p.parent, 0o777)
    put(p.target, p.token + "\n")
    os.chmod(p.target, 0o666)


def setup(p):
    """Before a run."""
    os.makedirs(p.mine, exist_ok=True)
    os.chmod(p.mine, 0o777)
    if p.kind == "later":
        os.makedirs(p.parent, exist_ok=True)
    else:
        fresh(p)


def prepare():
    """Once."""
    shutil.rmtree(BASE, ignore_errors=True)
    for name in ("allow/sealed", "deny", "ro"):
        os.makedirs(f"{BASE}/{name}", exist_ok=True)
        os.chmod(f"{BASE}/{name}", 0o777)
    os.chmod(f"{BASE}/allow", 0o777)


def profile(places, here):
    """The profile's text."""
    deny = [f"{BASE}/allow/sealed", "**/.rf-sealed", *(p.dir for p in places if p.kind in ("pinned", "later"))]
    return profile_text("vm test: files", [here, "/run/rf-cases", f"{BASE}/allow", f"{BASE}/ro", *USUAL], [f"{BASE}/allow"],
                        net=["unix:/srv/rf/fds.sock"], deny={"fs_read": deny, "fs_write": deny})


FILES = Family("files", profile, kinds=HIDDEN, locate=locate, setup=setup, prepare=prepare,
               events=lambda p: [("open", p.target)])
