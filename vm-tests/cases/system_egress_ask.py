"""Scenes of connections by name that wait for a person."""

import json
import os
import signal
import threading

from case import NOBODY, scene
from system import BECOME, PATIENCE, kill_role, put, reload, ringfence, said, start_daemon, wait_event, wait_for
from system_egress import CLIENT, PLACE, PROFILES, Client, connection, containers, egress, prepare, rewriters, write_profile

PROFILE = f"{PROFILES}/rf-egress.toml"
GRANTED = ["granted.rf.test:443"]

# Several connections at once: what each was told.
MANY = r'''
def many(name, count):
    import threading
    told = []

    def one():
        try:
            told.append(https(name, name, name)[0].rsplit("\r\n", 1)[-1])
        except OSError as error:
            told.append(f"failed: {error}")

    threads = [threading.Thread(target=one) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return told

'''


def write(seconds=600):
    """The profile, which has a person asked."""
    write_profile(GRANTED, deny=["plain.rf.test"])
    with open(PROFILE) as file:
        text = file.read()
    put(PROFILE, f"# ours\n{text}\n[net]\nask = true # others\nask_timeout = {seconds}\n")


def write_anew(seconds):
    """The same for a container that runs: it is in force when this returns."""
    before = containers()[0]["generation"]
    write(seconds)
    reload()
    wait_for(lambda: containers()[0]["generation"] > before, "the next generation of the policy")


def waiting(count=1):
    """What waits, once it is so many."""
    def rows():
        result = ringfence("approvals", "--json")
        assert result.returncode == 0, said(result)
        return [json.loads(line) for line in result.stdout.splitlines()]

    wait_for(lambda: len(rows()) == count, f"{count} to wait")
    return rows()


class Held:
    """Connections that are made by a client, and wait."""

    def __init__(self, client, name, count=1):
        self.told = None
        self.thread = threading.Thread(target=self.run, args=(client, name, count), daemon=True)
        self.thread.start()
        call, = waiting()
        assert (call["server"], call["tool"]) == (name, "net.connect"), call
        self.call, self.id = call, call["id"]

    def run(self, client, name, count):
        self.told = client.told("many", name, count)

    def decided(self, *args, become=()):
        """What became of them when somebody decided so."""
        result = ringfence("approvals", *args, become=become)
        assert result.returncode == 0, said(result)
        return self.over()

    def over(self):
        """What became of them."""
        self.thread.join(PATIENCE)
        assert self.told and self.told[0] == "ok", self.told
        return self.told[1]


@scene("system/egress-ask", limit=400)
def ask():
    """a connection to a name that is not granted waits for a person: once, for the container, into the profile, denied, in time or not"""
    servers, resolver = prepare()
    with open(f"{PLACE}/client.py", "w") as file:
        file.write(CLIENT.replace("print(os.getpid(), flush=True)", f"{MANY}print(os.getpid(), flush=True)"))
    write()
    client = Client(*BECOME[NOBODY])
    client.fetch("granted.rf.test")
    # What is denied is refused at once, and so is what is no TCP.
    client.fails("resolve", "plain.rf.test", why="gaierror")
    address = client.address("other.rf.test")
    assert address.startswith(egress()["block"].rsplit(".", 1)[0]), address
    client.fails("datagram", address, 443, why="PermissionError")
    client.fails("https", address, "granted.rf.test", "granted.rf.test")
    waiting(0)

    # Nobody hears of the name before somebody has answered.
    reached = len(servers.reached)
    held = Held(client, "other.rf.test")
    about = held.call["connection"]
    assert (about["host"], about["port"], about["container"]) == ("other.rf.test", 443, containers()[0]["id"]), held.call
    assert len(servers.reached) == reached and not any("other" in name for name in resolver.asked), resolver.asked
    told = held.decided("approve", held.id, become=BECOME[NOBODY])
    assert told == ["hello other.rf.test"], told
    wait_event(lambda event: connection("other.rf.test", "passed")(event) and event["connection"]["reason"] == "approved by uid 65534")
    # Once is once.
    reached = len(servers.reached)
    told, = (held := Held(client, "other.rf.test")).decided("deny", held.id)
    assert told.startswith("failed"), told
    wait_event(lambda event: connection("other.rf.test", "refused")(event) and event["connection"]["reason"].endswith("denied by uid 0"))
    assert len(servers.reached) == reached, servers.reached[reached:]

    # For the container, whatever becomes of the worker, the auditor and the core. Twenty connections are one question.
    held = Held(client, "later.rf.test", 20)
    wait_for(lambda: egress()["counts"]["open"] >= 20, "all of them")
    waiting(1)
    assert held.decided("approve", held.id, "--scope", "container") == ["hello later.rf.test"] * 20
    client.fetch("later.rf.test")
    worker = egress()["pid"]
    os.kill(worker, signal.SIGKILL)
    wait_for(lambda: egress()["state"] == "running" and egress()["pid"] != worker, "another worker")
    client.fetch("later.rf.test")
    kill_role("auditor")
    wait_for(lambda: ringfence("approvals", "standing").returncode == 0, "another auditor")
    wait_for(lambda: client.told("https", "later.rf.test", "later.rf.test", "later.rf.test")[0] == "ok", "its answer")
    kill_role("daemon")
    start_daemon()
    wait_for(lambda: (egress() or {}).get("state") == "running", "the next daemon's worker")
    client.fetch("later.rf.test")
    standing = json.loads(ringfence("approvals", "standing", "--json").stdout)
    assert (standing["scope"], standing["server_name"]) == ("container", "later.rf.test") and standing["uses"] > 0, standing

    # What is approved still has to be public.
    reached = len(servers.reached)
    told, = (held := Held(client, "inner.rf.test")).decided("approve", held.id)
    assert told.startswith("failed"), told
    refused = wait_event(connection("inner.rf.test", "refused"))["connection"]
    assert refused["cause"] == "not_public" and refused["reason"].startswith("approved by uid 0; "), refused
    assert len(servers.reached) == reached, servers.reached[reached:]

    # Nobody's answer is a no.
    write_anew(5)
    told, = Held(client, "a.wild.rf.test").over()
    assert told.startswith("failed"), told
    wait_event(lambda event: connection("a.wild.rf.test", "refused")(event) and "nobody approved it within 5 s" in event["connection"]["reason"])
    waiting(0)

    # Into the profile, which stays as it was otherwise.
    write_anew(600)
    with open(PROFILE) as file:
        before = file.read()
    held = Held(client, "a.wild.rf.test")
    assert held.decided("approve", held.id, "--into-profile") == ["hello a.wild.rf.test"]
    with open(PROFILE) as file:
        after = file.read()
    assert after == before.replace('"granted.rf.test:443"', '"granted.rf.test:443", "a.wild.rf.test:443"'), after
    client.fetch("a.wild.rf.test")
    wait_event(lambda event: connection("a.wild.rf.test", "passed")(event) and event["rule"] == "net:a.wild.rf.test:443")
    waiting(0)

    client.stop()
    wait_for(lambda: not ringfence("approvals", "standing", "--json").stdout, "the container's approval to end with it")
    os.unlink(PROFILE)
    wait_for(lambda: rewriters() == 0, "the programs to be detached")
