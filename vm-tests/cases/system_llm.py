"""Scenes of agents where the daemon runs: workers of their own, what becomes of them, the commands about them."""

import json
import os
import signal

from agents import KEY, SYSTEM, Conn, Provider, Runtime, agent, known, remove, scene, send, sock, wait_for
from system import events, is_gone, kill_role, reload, ringfence, role_pids, said, start_daemon


@scene("system/llm-worker", limit=160)
def worker():
    """an agent's worker: a user of its own, no privilege, nothing of its memory to read, its socket and log its own"""
    provider = Provider()
    path, _ = agent("rf-worker", provider)
    shown = known("rf-worker")
    pid, uid = shown["pid"], shown["uid"]
    with open(f"/proc/{pid}/status") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    assert status["Uid"].split() == [str(uid)] * 4 and uid >= 70000, status["Uid"]
    assert status["Groups"].strip() == "", status["Groups"]
    for kind in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        assert int(status[kind], 16) == 0, f"{kind} {status[kind]}"
    assert status["NoNewPrivs"] == "1" and status["Seccomp"] == "2", status
    # Not dumpable: what it has in /proc is root's.
    assert os.stat(f"/proc/{pid}/mem").st_uid == 0
    for secret in (f"/proc/{pid}/environ", f"/proc/{pid}/cmdline"):
        with open(secret, "rb") as file:
            assert KEY.encode() not in file.read(), secret
    directory = os.stat(os.path.dirname(sock("rf-worker")))
    file = os.stat(sock("rf-worker"))
    assert (directory.st_uid, directory.st_mode & 0o777) == (0, 0o700) and (file.st_uid, file.st_mode & 0o777) == (0, 0o600)
    log = os.stat("/var/lib/ringfence-agents/rf-worker")
    assert (log.st_uid, log.st_mode & 0o777) == (uid, 0o700)
    assert os.path.realpath("/run/ringfence/sockets/rf-worker.sock") == sock("rf-worker")
    other, _ = agent("rf-worker-two", provider, grant=False)
    assert known("rf-worker-two")["uid"] != uid, "two agents share a user"
    remove(other, "rf-worker-two")
    assert known("rf-worker")["pid"] == pid, "another agent's end took this one's worker"
    remove(path, "rf-worker")


def occurrences(pid, text):
    """How often a text is in what can be read of a process's memory."""
    found = 0
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb") as memory:
        for region in maps:
            span, mode = region.split()[:2]
            # What the kernel maps for its clocks and BPF maps is not in the file.
            if mode[0] != "r" or "[v" in region or "anon_inode:" in region:
                continue
            start, end = (int(at, 16) for at in span.split("-"))
            memory.seek(start)
            found += memory.read(end - start).count(text.encode())
    return found


@scene("system/llm-key", limit=240)
def key():
    """an agent's key is in its worker's memory once, and once more for each connection to the provider; the core never has it"""
    provider = Provider()
    path, box = agent("rf-key", provider)
    pid = known("rf-key")["pid"]
    assert occurrences(pid, KEY) == 1, occurrences(pid, KEY)
    runtime = Runtime("rf-key", box)
    for text in ("one marker", "two markers", "three markers"):
        send("rf-key", text, about=runtime.said)
    found = occurrences(pid, KEY)
    assert 1 <= found <= 1 + provider.connections, f"{found} times, {provider.connections} connections"
    assert provider.connections < len(provider.asked), "a connection for each turn says nothing about copies for each"
    assert occurrences(pid, "two markers"), "the scan misses what is there"
    for core in role_pids("daemon"):
        assert occurrences(core, KEY) == 0 and occurrences(core, "rf-key"), "the core has the key, or was not looked through"
    runtime.stop()
    remove(path, "rf-key")


@scene("system/llm-kill", limit=300)
def kills():
    """kill -9 of the worker and of the core in mid-turn: the sender hears of it, the agent is usable again, nothing is lost"""
    provider = Provider()
    path, box = agent("rf-kill", provider)
    runtime = Runtime("rf-kill", box)
    send("rf-kill", "hello")
    log = "/var/lib/ringfence-agents/rf-kill/log/conversation.ndjson"
    with open(log) as file:
        before = file.read()
    assert before.count("\n") == 2, before
    for role in ("llm-worker", "daemon"):
        provider.held.clear()
        asked = len(provider.asked)
        conn = Conn("rf-kill")
        conn.say("send", {"content": [{"type": "text", "text": f"before the end of {role}"}]}, 1)
        assert conn.answer(1)["result"]["status"] == "delivered"
        wait_for(lambda: len(provider.asked) > asked, "the turn")
        old = role_pids("llm-worker")
        kill_role(role)
        assert conn.hear() is None, "the sender's connection lives on"
        provider.held.set()
        if role == "daemon":
            wait_for(lambda: all(is_gone(pid) for pid in old), "the workers of a dead core to end")
            start_daemon()

        def is_back():
            # What a dead worker said last may be shown for a moment.
            shown = known("rf-kill") or {}
            return shown.get("pid") and shown["pid"] not in old and shown["counts"]["runtime"]

        wait_for(is_back, "the runtime to come back", about=lambda: (known("rf-kill"), runtime.said()))
        assert not set(old) & set(role_pids("llm-worker"))
        send("rf-kill", f"after the end of {role}", about=runtime.said)
        call = [f"toolu_{role}", "bash", {"command": f"echo x > {box}/{role}; cat {box}/{role}"}]
        send("rf-kill", json.dumps([call]), about=runtime.said)
        wait_for(lambda: any(event.get("tool_call") == f"toolu_{role}" and event["attribution"] == "exact" for event in events()),
                 "an event of the call")
    with open(log) as file:
        after = file.read()
    assert after.startswith(before), "what was acknowledged is not there any more"
    for line in after.splitlines():
        json.loads(line)
    runtime.stop()
    remove(path, "rf-kill")


@scene("system/llm-commands", limit=240)
def commands():
    """`ringfence agent` and its short forms for the daemon's agents: shown, read as the worker's user, stopped, started again"""
    provider = Provider()
    path, box = agent("rf-commands", provider)
    runtime = Runtime("rf-commands", box)
    sent = ringfence("send", "rf-commands", "hello")
    assert sent.returncode == 0 and sent.stdout == "Done.\n", said(sent)

    def says(*args, status=0):
        result = ringfence(*args)
        assert result.returncode == status, f"{args}: {said(result)}"
        return result.stdout

    logged = [json.loads(line) for line in says("logs", "rf-commands").splitlines()]
    assert [line["role"] for line in logged] == ["user", "assistant"], logged
    shown = says("show", "rf-commands")
    assert sock("rf-commands") in shown and f"{SYSTEM}/rf-commands.toml" in shown and KEY not in shown, shown
    assert "rf-commands: ok" in says("agent", "check", "rf-commands")
    assert says("agent", "pin", "rf-commands") == "no MCP tool was used yet\n"
    listed = json.loads(says("agent", "ls", "--json"))["daemon"]
    assert [one["state"] for one in listed if one["name"] == "rf-commands"] == ["running"], listed
    # Its directory is the worker's, who may be anybody's by now: root follows it nowhere.
    log = "/var/lib/ringfence-agents/rf-commands/log/conversation.ndjson"
    os.rename(log, log + ".kept")
    os.symlink("/etc/shadow", log)
    refused = ringfence("logs", "rf-commands")
    assert refused.returncode == 1 and "ermission denied" in refused.stderr and not refused.stdout, said(refused)
    os.rename(log + ".kept", log)
    says("agent", "stop", "rf-commands")
    wait_for(lambda: known("rf-commands")["state"] == "stopped" and not os.path.exists(sock("rf-commands")), "it to stop",
             about=lambda: known("rf-commands"))
    assert "stopped" in says("agent", "ls")
    says("agent", "stop", "rf-none", status=1)
    reload()
    wait_for(lambda: (known("rf-commands") or {}).get("counts", {}).get("runtime"), "it to come back with its runtime",
             about=lambda: (known("rf-commands"), runtime.said()))
    send("rf-commands", "and again", about=runtime.said)
    runtime.stop()
    remove(path, "rf-commands")


@scene("system/llm-quarantine", limit=360)
def quarantine():
    """a worker that cannot live is given up and shown, the others go on; a reload tries it again"""
    provider = Provider()
    good, box = agent("rf-good", provider)
    pid = known("rf-good")["pid"]
    bad = f"{SYSTEM}/rf-bad.toml"
    with open(bad, "w") as file:
        file.write('[llm.mock]\nprovider = "anthropic"\nmodel = "m"\napi_key_file = "/srv/rf/no-such-key"\n')
    reload()
    wait_for(lambda: (known("rf-bad") or {}).get("state") == "failed", "rf-bad to be given up", about=lambda: known("rf-bad"))
    shown = ringfence("status")
    assert shown.returncode == 2 and "no-such-key" in shown.stdout, said(shown)
    assert known("rf-good")["pid"] == pid and known("rf-good")["state"] == "running"
    assert not os.path.exists(sock("rf-bad")), "a socket that nobody serves"
    # One that crashes: its log is a directory.
    os.makedirs("/var/lib/ringfence-agents/rf-good", exist_ok=True)
    with open("/srv/rf/no-such-key", "w") as file:
        file.write(KEY)
    os.chmod("/srv/rf/no-such-key", 0o600)
    reload()
    wait_for(lambda: (known("rf-bad") or {}).get("state") == "running", "rf-bad to run", about=lambda: known("rf-bad"))

    def is_given_up():
        shown = known("rf-bad")
        # One that is still being told what to do has not crashed: it was not started.
        if shown["state"] == "running" and shown["pid"]:
            try:
                os.kill(shown["pid"], signal.SIGKILL)
            except ProcessLookupError:
                pass
        return shown["state"] == "quarantined"

    wait_for(is_given_up, "rf-bad in quarantine", about=lambda: known("rf-bad"))
    assert known("rf-good")["pid"] == pid and known("rf-good")["state"] == "running"
    os.unlink(bad)
    remove(good, "rf-good")
