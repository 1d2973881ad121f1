"""Scenes in which a container turns what its policy is made of, or where its paths lead: its rights stay what they were."""

import os
import shutil
import subprocess

from case import DOCKER, FULL, NOBODY, profile_text, scene
from harness import HERE, PYTHON
from system import BASE, BECOME, Worker, denied, kill_role, put, reload, ringfence, said, start_daemon, wait_event, wait_for

ACTS = """
import os, sys
for line in sys.stdin:
    act, _, rest = line.rstrip("\\n").partition(" ")
    try:
        if act == "read":
            with open(rest) as file:
                print("read " + file.read(100).strip(), flush=True)
            continue
        exec(rest)
        print("done", flush=True)
    except OSError as error:
        print(f"errno {error.errno}", flush=True)
"""


class Actor(Worker):
    """A governed process that reads, and runs the Python that it is told."""

    def __init__(self, profile, workdir, who=DOCKER):
        command = [*BECOME[who], "ringfence", "run", "--profile", profile, "--workdir", workdir, "--",
                   PYTHON, "-E", "-s", "-S", "-B", "-u", "-c", ACTS]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/")

    def read(self, path):
        """`read TEXT` or `errno N`."""
        return self.open(f"read {path}")

    def act(self, python):
        """`done` or `errno N`."""
        return self.open(f"act {python}")


def lab(name, who=DOCKER):
    """A work tree of this scene's own, the actor's as far as modes go, with a profile beside it, and a secret; their paths."""
    work, secret = f"{BASE}/{name}/work", f"{BASE}/{name}/secret"
    shutil.rmtree(f"{BASE}/{name}", ignore_errors=True)
    for path in (f"{work}/d", f"{work}/real", secret):
        os.makedirs(path)
    for path, text in ((f"{work}/d/x", "mine"), (f"{work}/real/x", "real"), (f"{secret}/x", "key")):
        with open(path, "w") as file:
            file.write(text)
    for path in (work, f"{work}/d", f"{work}/d/x", f"{work}/real"):
        os.chown(path, *((65534, 65534) if who == NOBODY else (0, 0)))
    return work, secret


def grant(paths, write=None, extra=(), head="", who=DOCKER):
    """A profile's text, which leaves root the capabilities of `who`."""
    return profile_text("vm test scene", [HERE, *paths, *extra], paths if write is None else write, ["/usr/bin", HERE],
                        kernel=f'capabilities = ["{"all" if who == FULL else "default"}"]', head=head)


REFUSED = ("errno 13", "errno 1", "errno 18")


@scene("system/profile-in-work-tree", limit=120, hook="path_rename")
def profile_in_work_tree():
    """a profile in the work tree, and the one that it extends: the container neither writes, replaces, renames, removes, links nor shadows them; root's edits are put in force"""
    # An ordinary user may name root's profiles only, which lie where only root writes.
    for who in (DOCKER, FULL):
        attack_sources(who)


def attack_sources(who):
    """The same with root's capabilities as of Docker's default set, and with all."""
    work, secret = lab("profile-in-work-tree")
    profile, parent, way = f"{work}/p.toml", f"{work}/sub/base.toml", f"{work}/way"
    os.makedirs(f"{work}/sub")
    os.symlink(f"{work}/sub", way)
    put(parent, 'description = "what it extends"\n')
    head = f'extends = "{way}/base.toml"'
    put(profile, grant([work], head=head, who=who))
    evil = repr(grant([work, secret], who=who))
    actor = Actor(profile, work)
    assert actor.read(f"{work}/d/x") == "read mine"
    assert actor.read(f"{secret}/x") == "errno 13"
    for file in (profile, parent):
        for attack in (f"open({file!r}, 'w').write({evil})",
                       f"os.truncate({file!r}, 0)",
                       f"os.unlink({file!r})",
                       f"os.rename({file!r}, {work + '/d/away'!r})",
                       f"open({work + '/d/evil'!r}, 'w').write({evil}); os.rename({work + '/d/evil'!r}, {file!r})",
                       f"os.link({file!r}, {work + '/d/alias'!r})",
                       f"os.chmod({file!r}, 0o666)"):
            answer = actor.act(attack)
            assert answer in REFUSED, f"{attack[:80]}: {answer!r}"
    for attack in (f"os.rename({work!r}, {work + '.old'!r})", f"os.rename({work + '/sub'!r}, {work + '/sub.old'!r})",
                   f"os.unlink({way!r})", f"os.rename({way!r}, {work + '/way.old'!r})",
                   f"os.symlink({work + '/d'!r}, {work + '/way.new'!r}); os.rename({work + '/way.new'!r}, {way!r})"):
        answer = actor.act(attack)
        assert answer in REFUSED, f"{attack}: {answer!r}"
    wait_event(denied(profile))
    # What is beside them is the container's as before.
    assert actor.act(f"open({work + '/sub/other'!r}, 'w').write('x'); os.rename({work + '/sub/other'!r}, {work + '/moved'!r})") == "done"
    reload()
    later = f"{secret}/later"
    with open(later, "w") as file:
        file.write("granted later")
    put(profile, grant([work], extra=[later], head=head, who=who))
    reload()
    wait_for(lambda: actor.read(later) == "read granted later", "root's edit to be in force")
    assert actor.read(f"{secret}/x") == "errno 13"
    actor.stop()


@scene("system/profile-that-the-container-wrote", limit=120)
def planted_parent():
    """a file that the container wrote is never read as a part of its policy, though root names it; the last good policy stays, and status says so"""
    work, secret = lab("planted-parent")
    profile = "/etc/ringfence/profiles/rf-planted.toml"
    put(profile, grant([work]))
    actor = Actor("rf-planted", work)
    text = grant([work, secret])
    assert actor.act(f"open({work + '/base.toml'!r}, 'w').write({text!r})") == "done"
    put(profile, f'extends = "{work}/base.toml"\n')
    reload()
    wait_for(lambda: "of which its policy would be made" in ringfence("status", "--json").stdout, "status to tell")
    assert actor.read(f"{secret}/x") == "errno 13"
    assert actor.read(f"{work}/d/x") == "read mine"
    outside = f"{BASE}/planted-parent/base.toml"
    shutil.copy(f"{work}/base.toml", outside)
    put(profile, f'extends = "{outside}"\n')
    reload()
    wait_for(lambda: actor.read(f"{secret}/x") == "read key", "the control: the same text from where only root writes")
    actor.stop()
    # A second name of a profile, which a container may write, is none that a policy comes from.
    os.link(outside, f"{work}/alias.toml")
    result = ringfence("run", "--profile", "rf-planted", "--", "/usr/bin/echo", "started")
    assert result.returncode == 125 and "hard links" in result.stderr and "started" not in result.stdout, said(result)
    os.unlink(f"{work}/alias.toml")
    result = ringfence("run", "--profile", "rf-planted", "--", "/usr/bin/echo", "started")
    assert "started" in result.stdout, said(result)
    os.unlink(profile)


def turned(name, profile_text, workdir, paths, told, who=DOCKER):
    """The container turns each of `paths` into a link to the secret: it stays closed over reload, restart and new start."""
    work, secret = lab(name, who)
    profile = f"/etc/ringfence/profiles/rf-{name}.toml"
    link = f"{BASE}/{name}/link"
    os.symlink(f"{work}/real", link)
    put(profile, profile_text(work, link))
    actor = Actor(f"rf-{name}", workdir(work), who)
    assert actor.read(f"{work}/d/x") == "read mine"
    assert actor.read(f"{work}/real/x") == "read real", "the control: a link of root's is followed"
    for path in paths(work):
        answer = actor.act(f"os.unlink({path + '/x'!r}); os.rmdir({path!r}); os.symlink({secret!r}, {path!r})")
        assert answer == "done", f"the attack itself: {answer}"
    # Root's own link leads elsewhere, too.
    os.unlink(link)
    os.symlink(secret, link)

    def closed(when):
        for path in (f"{secret}/x", f"{work}/d/x", f"{link}/x"):
            answer = actor.read(path)
            assert answer in REFUSED, f"{when}: {path} gave {answer!r}"
        assert actor.read(f"{work}/real/x") == "read real", f"{when}: what the link meant is not granted any more"

    closed("before the reload")
    reload()
    wait_for(lambda: told in ringfence("status", "--json").stdout, "status to tell of the link")
    closed("after a reload")
    put(profile, profile_text(work, link) + "# edited\n[match]\nname = [\"x\"]\n")
    reload()
    closed("after an edit")
    kill_role("daemon")
    start_daemon()
    reload()
    closed("after a restart of the daemon")
    # A new container goes where root's link leads then. It is the directory of the first one that must not be followed.
    os.unlink(link)
    os.symlink(f"{work}/real", link)
    second = Actor(f"rf-{name}", workdir(work), who) if workdir(work) != f"{work}/d" else None
    if second:
        for path in (f"{secret}/x", f"{work}/d/x"):
            assert second.read(path) in REFUSED, f"the next start: {path}"
        assert second.read(f"{link}/x") == "read real", "the next start: the control"
        second.stop()
    actor.stop()
    if second:
        third = Actor(f"rf-{name}", workdir(work), who)
        assert third.read(f"{link}/x") == "read real", "the next start when the first is over: the control"
        assert third.read(f"{work}/d/x") in REFUSED, "the next start when the first is over"
        third.stop()
    os.unlink(profile)


@scene("system/granted-directory-turned", limit=300)
def granted_directory_turned():
    """a granted directory, removed and made a link to a secret one: the grant does not follow, by reload, edit, restart or next start"""
    for who in (DOCKER, FULL, NOBODY):
        turned(f"turned-{who}", lambda work, link: grant([f"{work}/d", f"{link}"], write=[f"{work}/d"], who=who),
               lambda work: "/", lambda work: [f"{work}/d"], "led to", who)


@scene("system/workdir-turned", limit=300)
def workdir_turned():
    """the working directory, removed and made a link to a secret one: `${WORKDIR}` does not follow, by reload, edit or restart"""
    for who in (DOCKER, FULL, NOBODY):
        turned(f"workdir-turned-{who}", lambda work, link: grant(["${WORKDIR}"], extra=[link], who=who),
               lambda work: f"{work}/d", lambda work: [f"{work}/d"], "led to", who)
