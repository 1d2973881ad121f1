"""Scenes of agents where the daemon runs: tool calls tied to kernel events, tags that are refused."""

import json
import os
import subprocess

from agents import KEY, Conn, Provider, Runtime, agent, counted, daemon_log, is_told, known, remove, scene, send, sock, trace, wait_for
from harness import PYTHON
from system import BASE, PATIENCE, events, ringfence


@scene("system/llm-five-calls", limit=300, hook="task_alloc")
def five_calls():
    """five shell calls at once, each of which forks, daemonises and touches files: every event has the right tool call"""
    provider = Provider()
    path, box = agent("rf-five", provider)
    runtime = Runtime("rf-five", box)
    calls = []
    for n in range(5):
        mine = f"{box}/call-{n}"
        script = (f"mkdir -p {mine}; echo a > {mine}/own; (echo b > {mine}/child; cat {mine}/own > /dev/null; "
                  f"(setsid sh -c 'sleep 0.5; echo c > {mine}/daemon; cat /etc/shadow {mine}/daemon; sleep 1; echo d > {mine}/late' "
                  f"> /dev/null 2>&1 &) ) & cat {mine}/own; wait; sleep 0.3; echo e > {mine}/end")
        calls.append([f"toolu_{n}", "bash", {"command": script}])
    send("rf-five", json.dumps(calls))
    wait_for(lambda: all(os.path.exists(f"{box}/call-{n}/late") for n in range(5)), "the daemons of the calls", about=runtime.said)
    seen = {}

    def whole():
        seen.clear()
        for event in events():
            for n in range(5):
                if event["profile"] == "rf-five" and f"/call-{n}" in str(event.get("path")):
                    seen.setdefault(n, []).append(event)
        return len(seen) == 5 and all(not missing(mine) for mine in seen.values())

    def missing(mine):
        return {"own", "child", "daemon", "late", "end"} - {os.path.basename(str(one.get("path"))) for one in mine}

    wait_for(whole, "the events of all calls", about=lambda: {n: missing(mine) for n, mine in seen.items()})
    unsure = 0
    for n, mine in seen.items():
        for event in mine:
            if event["attribution"] == "exact":
                assert event["tool_call"] == f"toolu_{n}", f"a wrong tool call: {event}"
            else:
                unsure += 1
                assert event["attribution"] == "ambiguous", f"neither sure nor unsure: {event}"
                assert event["tool_call"] is None
    # Before 6.2 a tag can be lost at a fork.
    if tuple(int(part) for part in os.uname().release.split(".")[:2]) >= (6, 2):
        assert unsure == 0, f"{unsure} events are not sure"
    shadow = []

    def refused():
        newest = events("--denied")
        shadow[:] = [event for event in newest if event.get("path") == "/etc/shadow" and event["profile"] == "rf-five"]
        return len(shadow) >= 5

    wait_for(refused, "the refused reads of all calls", about=lambda: shadow)
    assert {event["tool_call"] for event in shadow} >= {f"toolu_{n}" for n in range(5)} or unsure, shadow
    # What the worker tells the auditor is stored a little after it happened.
    wait_for(lambda: is_told(trace("rf-five"), 5), "the message's end and its calls' on record", about=lambda: trace("rf-five"))
    intent = trace("rf-five")["intents"][-1]
    assert intent["agent"] == "rf-five" and intent["uid"] == 0 and intent["ended"] and not intent["error"], intent
    assert [call["call"] for call in intent["calls"]] == [f"toolu_{n}" for n in range(5)]
    for n, call in enumerate(intent["calls"]):
        assert call["tagged"] and call["is_error"] is False and call["tool"] == "bash", call
        assert call["events"] and all(event["tool_call"] == f"toolu_{n}" for event in call["events"] if event["attribution"] == "exact")
        assert not any(f"/call-{other}" in str(event.get("path")) for event in call["events"] for other in range(5) if other != n)
    one = trace("toolu_3")["intents"]
    assert [call["call"] for call in one[0]["calls"]] == ["toolu_3"], one
    shown = ringfence("trace", intent["intent"][:6]).stdout
    assert "toolu_4" in shown and "[exact]" in shown and "/etc/shadow" in shown, shown[-1500:]
    counted("rf-five", tags=5, refused_tags=0)
    key = provider.asked[0][0].get("x-api-key") or provider.asked[0][0].get("X-Api-Key")
    assert key == KEY, "the provider was not given the key"
    runtime.stop()
    remove(path, "rf-five")


HOSTILE = r'''
import array, ctypes, json, os, socket, struct, sys, threading, time
# Without a limit: with one Python makes the socket non-blocking, and MSG_WAITALL gives what is there.
sock = socket.socket(socket.AF_UNIX); sock.connect(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)

def say(method, params, number=None, fd=None):
    message = {"jsonrpc": "2.0", "method": method, "params": params}
    if number is not None: message["id"] = number
    body = json.dumps(message).encode()
    rights = [] if fd is None else [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
    sock.sendmsg([struct.pack(">I", len(body)) + body], rights)

def hear():
    head = sock.recv(4, socket.MSG_WAITALL)
    return json.loads(sock.recv(struct.unpack(">I", head)[0], socket.MSG_WAITALL))

def answer(number):
    while True:
        message = hear()
        if message.get("id") == number: return message

made = []
def fork(then):
    read, write = os.pipe()
    pid = os.fork()
    made.append(pid)
    if pid == 0:
        os.close(read)
        then(write)
        time.sleep(900)
        os._exit(0)
    os.close(write)
    os.read(read, 1)
    return os.pidfd_open(pid), pid

def ready(write): os.write(write, b"x")
def threaded(write):
    threading.Thread(target=time.sleep, args=(900,)).start(); ready(write)
def grandchild(write):
    pid = os.fork()
    if pid == 0:
        time.sleep(900); os._exit(0)
    with open(sys.argv[2] + "/grandchild", "w") as file: file.write(str(pid))
    ready(write)
def execs(write):
    os.dup2(write, 1)
    os.execv("/usr/bin/sh", ["sh", "-c", "echo x; exec sleep 900"])

say("register", {"role": "runtime"})
while hear().get("method") != "human_message": pass
say("turn", {"system": "s", "tools": [{"name": "bash", "parameters": {"type": "object"}}], "messages": [{"role": "user", "content": [{"type": "text", "text": sys.argv[3]}]}]}, 1)
turn = answer(1)["result"]
out = {"tags": turn.get("tags")}
number = 1
def tag(name, fd, call):
    global number
    number += 1
    say("tag", {"call": call}, number, fd)
    out[name] = answer(number)
child, _ = fork(ready)
tag("unknown id", child, "toolu_none")
tag("no pidfd", None, "toolu_a")
tag("a file", os.open("/dev/null", os.O_RDONLY), "toolu_a")
tag("itself", os.pidfd_open(os.getpid()), "toolu_a")
tag("its parent", os.pidfd_open(os.getppid()), "toolu_a") if os.getppid() > 1 else None
fd, _ = fork(threaded); tag("threaded", fd, "toolu_a")
fd, _ = fork(execs); tag("exec'd", fd, "toolu_a")
fd, _ = fork(grandchild)
made.append(int(open(sys.argv[2] + "/grandchild").read()))
tag("a grandchild", os.pidfd_open(made[-1]), "toolu_a")
tag("right", child, "toolu_a")
tag("a second for one call", fork(ready)[0], "toolu_a")
tag("tagged already", child, "toolu_b")
say("turn", {"messages": [{"role": "tool", "tool_call_id": name, "content": [{"type": "text", "text": "x"}]} for name in ("toolu_a", "toolu_b")]}, 99)
answer(99)
tag("answered", fork(ready)[0], "toolu_b")
other = socket.socket(socket.AF_UNIX); other.connect(sys.argv[1])
sock = other
say("send", {"content": [{"type": "text", "text": "do what I say"}]}, 7)
out["send from inside"] = answer(7)
for pid in made: os.kill(pid, 9)
print(json.dumps(out), flush=True)
'''


APART = r'''
import ctypes, json, os, subprocess, sys, time
libc = ctypes.CDLL(None, use_errno=True)
box = sys.argv[1]

def made(name):
    while not os.path.exists(f"{box}/{name}"): time.sleep(0.05)
    with open(f"{box}/{name}") as file: return int(file.read())

def field(pid, key):
    with open(f"/proc/{pid}/status") as file:
        return next(line.split()[1] for line in file if line.startswith(key + ":"))

# This call's process is a fork of the runtime, which has its name still.
above = os.getpid()
while field(above, "Name") != "ringfence-runti": above = int(field(above, "PPid"))
targets = {"own": subprocess.Popen(["/usr/bin/sleep", "600"]).pid, "other": made("other.pid"), "runtime": int(field(above, "PPid"))}

def call(result):
    if result < 0: raise OSError(ctypes.get_errno(), "")
    return result

class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]

def readable(pid):
    with open(f"/proc/{pid}/maps") as file:
        return int(next(line for line in file if " r" in line).split("-")[0], 16)

def attach(pid):
    call(libc.ptrace(16, pid, None, None))
    os.waitpid(pid, 0)
    call(libc.ptrace(17, pid, None, None))
def memory(pid):
    with open(f"/proc/{pid}/mem", "rb", 0) as file:
        file.seek(readable(pid)); file.read(1)
def vm_read(pid):
    # Of an address that nobody has: who may not is told before it is looked at.
    here = ctypes.create_string_buffer(8)
    mine, its = Vector(ctypes.addressof(here), 8), Vector(0x1000, 8)
    try: call(libc.process_vm_readv(pid, ctypes.byref(mine), 1, ctypes.byref(its), 1, 0))
    except OSError as error:
        if error.errno != 14: raise
def descriptor(pid): os.close(call(libc.syscall(438, os.pidfd_open(pid), 1, 0)))
def descriptors(pid): os.listdir(f"/proc/{pid}/fd"); os.readlink(f"/proc/{pid}/fd/1")
def environment(pid):
    with open(f"/proc/{pid}/environ") as file: file.read()
def signal(pid): os.kill(pid, 18)
def limit(pid):
    import resource
    resource.prlimit(pid, resource.RLIMIT_CORE, resource.prlimit(pid, resource.RLIMIT_CORE))
def nice(pid): os.setpriority(os.PRIO_PROCESS, pid, 19)

out = {}
for act in (attach, memory, vm_read, descriptor, descriptors, environment, signal, limit, nice):
    for name, pid in targets.items():
        try: act(pid); out[f"{act.__name__} {name}"] = 0
        except OSError as error: out[f"{act.__name__} {name}"] = error.errno
os.kill(targets["own"], 9)
with open(f"{box}/out.new", "w") as file: json.dump(out, file)
os.rename(f"{box}/out.new", f"{box}/out.json")
'''


BYSTANDERS = ("toolu_b1", "toolu_b2", "toolu_b3")


def beside_each_other(name, kernel, then):
    """One call tries everything on another's process, on the runtime and on a child of its own: what came of it, by `ACT TARGET`,
    the pid of the other's process, and what the calls' events were attributed to after that. Ends with `then(runtime, pid)`."""
    provider = Provider()
    path, box = agent(name, provider, kernel=kernel)
    with open(f"{box}/apart.py", "w") as file:
        file.write(APART)
    yama = "/proc/sys/kernel/yama/ptrace_scope"
    scope = None
    if os.path.exists(yama):  # which would refuse some of it by itself
        with open(yama) as file:
            scope = file.read()
        with open(yama, "w") as file:
            file.write("0")
    runtime = Runtime(name, box)
    try:
        after = f"while [ ! -e {box}/out.json ]; do sleep 0.2; done; echo a > {box}"
        calls = [["toolu_other", "bash", {"command": f"echo a > {box}/toolu_other.before; echo $$ > {box}/other.new; "
                                          f"mv {box}/other.new {box}/other.pid; {after}/toolu_other.after; exec sleep 600"}],
                 ["toolu_apart", "bash", {"command": f"{PYTHON} -E -s -S -B {box}/apart.py {box}; {after}/toolu_apart.after"}]]
        calls += [[call, "bash", {"command": f"{after}/{call}.after"}] for call in BYSTANDERS]
        conn = Conn(name)
        conn.say("send", {"content": [{"type": "text", "text": json.dumps(calls)}]}, 1)
        assert "result" in conn.answer(1)
        wait_for(lambda: os.path.exists(f"{box}/out.json"), "what the call tried", about=runtime.said)
        with open(f"{box}/out.json") as file:
            out = json.load(file)
        own = {act: errno for act, errno in out.items() if act.endswith(" own") and errno}
        assert not own, f"the control, its own child: {own}"
        seen = {}

        def whole():
            for event in events():
                told = os.path.basename(str(event.get("path")))
                if event["profile"] == name and told.endswith((".before", ".after")):
                    seen[told] = (event["attribution"], event["tool_call"], event.get("candidates", []))
            return len(seen) == 3 + len(BYSTANDERS)

        wait_for(whole, "the events of all calls", about=lambda: seen)
        with open(f"{box}/other.pid") as file:
            other = int(file.read())
        then(runtime, other)
    finally:
        runtime.stop()
        if scope is not None:
            with open(yama, "w") as file:
                file.write(scope)
    remove(path, name)
    return out, other, seen


@scene("system/llm-calls-apart", limit=300, hook="ptrace_access_check")
def calls_apart():
    """a tool call neither traces, reads, signals nor limits another's processes, nor traces or reads the runtime; its own it does"""

    def then(runtime, other):
        def told():
            denied = {event["op"] for event in events("--denied") if event["profile"] == "rf-apart" and event["rule"] == "fixed:other_call"}
            return {"ptrace", "signal", "control"} <= denied

        wait_for(told, "the refusals as events")
        assert os.path.exists(f"/proc/{other}"), "the other call's process"
        runtime.stop()
        wait_for(lambda: not os.path.exists(f"/proc/{other}"), "the runtime to end its calls")

    out, _, seen = beside_each_other("rf-apart", "", then)
    # The runtime may be signalled and limited, as every process of the container that no call began.
    passes = ("signal runtime", "limit runtime", "nice runtime")
    reached = {act: errno for act, errno in out.items() if not act.endswith(" own") and act not in passes and errno not in (1, 13)}
    assert not reached, f"what the call reached: {reached}"
    unsure = {told: what for told, what in seen.items() if what[:2] != ("exact", told.split(".")[0])}
    assert not unsure, f"nobody reached another, and these are not sure: {unsure}"


@scene("system/llm-calls-debugged", limit=300)
def calls_debugged():
    """with `debug_between_calls` a call traces, reads and signals another's processes, whose events are `ambiguous` from then on"""

    def then(_runtime, other):
        def told():
            mine = [event for event in events() if event["profile"] == "rf-debugged" and event["rule"] == "fixed:other_call"]
            crossed = {event["op"] for event in mine if event["verdict"] == "allowed" and f"target={other}" in event["flags"]
                       and event["tool_call"] == "toolu_apart"}
            return {"ptrace", "signal"} <= crossed and any(event["verdict"] == "denied" for event in mine)

        wait_for(told, "what crossed as events of the call that reached over")
        number = next(event["id"] for event in events() if event["profile"] == "rf-debugged" and "debugged" in event["flags"])
        why = ringfence("why", str(number)).stdout
        assert "debug_between_calls" in why, why

    out, _, seen = beside_each_other("rf-debugged", "debug_between_calls = true", then)
    crossing = ("attach", "memory", "vm_read", "descriptor", "descriptors", "environment", "signal")
    refused = {act: errno for act, errno in out.items() if act.endswith(" other") and act.split()[0] in crossing and errno}
    assert not refused, f"the profile allows it: {refused}"
    passes = ("signal runtime", "limit runtime", "nice runtime", *(f"{act} other" for act in crossing))
    reached = {act: errno for act, errno in out.items() if not act.endswith(" own") and act not in passes and errno not in (1, 13)}
    assert not reached, f"what no key opens: {reached}"
    assert seen["toolu_other.before"] == ("exact", "toolu_other", []), seen
    assert seen["toolu_other.after"] == ("ambiguous", None, ["toolu_other"]), seen
    # Tags share 512 places: three neighbours at once are not taken for the other.
    assert any(seen[f"{call}.after"] == ("exact", call, []) for call in BYSTANDERS), seen


UNTAGGING = r'''
import json, os, socket, struct, subprocess, sys, time
sock = socket.socket(socket.AF_UNIX); sock.connect(sys.argv[1])
box = sys.argv[2]

def say(method, params, number=None):
    message = {"jsonrpc": "2.0", "method": method, "params": params}
    if number is not None: message["id"] = number
    body = json.dumps(message).encode()
    sock.sendall(struct.pack(">I", len(body)) + body)

def hear():
    head = sock.recv(4, socket.MSG_WAITALL)
    return json.loads(sock.recv(struct.unpack(">I", head)[0], socket.MSG_WAITALL))

def touch(name): subprocess.run(["/usr/bin/touch", f"{box}/{name}"], check=True)
def text(said): return [{"type": "text", "text": said}]

say("register", {"role": "runtime"})
number = 0
while True:
    message = hear()
    if message.get("method") != "human_message": continue
    touch("before-" + str(number))
    say("turn", {"system": "s", "tools": [{"name": "bash", "parameters": {"type": "object"}}],
                 "messages": [{"role": "user", "content": message["params"]["content"]}]}, number)
    while (answer := hear()).get("id") != number: pass
    number += 1
    calls = answer["result"].get("tool_calls", [])
    for call in calls: touch(call["id"])
    say("turn", {"messages": [{"role": "tool", "tool_call_id": call["id"], "content": text("x")} for call in calls]}, number)
    while (answer := hear()).get("id") != number: pass
    number += 1
'''


@scene("system/llm-untagged", limit=240)
def untagged():
    """a runtime that does not tag: an event's call is `sole`, one of several `ambiguous`, or `none`, and never a wrong one"""
    provider = Provider()
    path, box = agent("rf-untagged", provider)
    script = f"{box}/untagging.py"
    with open(script, "w") as file:
        file.write(UNTAGGING)
    log = open(f"{BASE}/rf-untagged.log", "w+")
    process = subprocess.Popen(["ringfence", "run", "--profile", "rf-untagged", "--", PYTHON, "-E", "-s", "-S", "-B", script,
                                sock("rf-untagged"), box], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/")
    wait_for(lambda: known("rf-untagged")["counts"]["runtime"], "the runtime", about=lambda: known("rf-untagged"))
    send("rf-untagged", json.dumps([["toolu_alone", "bash", {}]]))
    send("rf-untagged", json.dumps([["toolu_one", "bash", {}], ["toolu_two", "bash", {}]]))
    send("rf-untagged", json.dumps([["toolu_last", "bash", {}]]))
    seen = {}

    def whole():
        if not is_told(trace("rf-untagged"), 1):
            return False
        seen.clear()
        for event in events():
            name = os.path.basename(str(event.get("path")))
            if event["profile"] == "rf-untagged" and os.path.dirname(str(event.get("path"))) == box and not name.endswith(".py"):
                seen.setdefault(name, []).append((event["attribution"], event.get("tool_call")))
        return {"before-0", "toolu_alone", "before-2", "toolu_one", "toolu_two", "before-4", "toolu_last"} <= set(seen)

    wait_for(whole, "the events of all calls", about=lambda: seen)
    assert set(seen["toolu_alone"]) == {("sole", "toolu_alone")} and set(seen["toolu_last"]) == {("sole", "toolu_last")}, seen
    for name in ("toolu_one", "toolu_two"):
        assert set(seen[name]) == {("ambiguous", None)}, seen
    # Between two messages nothing was in flight.
    assert set(seen["before-0"]) | set(seen["before-2"]) | set(seen["before-4"]) == {("none", None)}, seen
    counted("rf-untagged", tags=0, refused_tags=0)
    process.terminate()
    process.wait(PATIENCE)
    remove(path, "rf-untagged")


@scene("system/llm-tags-refused", limit=360)
def tags_refused():
    """a tag is refused for anything but a fresh fork of the runtime and a call that waits; `send` from inside is refused"""
    provider = Provider()
    path, box = agent("rf-hostile", provider)
    script = f"{box}/hostile.py"
    with open(script, "w") as file:
        file.write(HOSTILE)
    calls = json.dumps([["toolu_a", "bash", {}], ["toolu_b", "bash", {}]])
    process = subprocess.Popen(["ringfence", "run", "--profile", "rf-hostile", "--", PYTHON, "-E", "-s", "-S", "-B", script,
                                sock("rf-hostile"), box, calls], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, cwd="/")
    wait_for(lambda: known("rf-hostile")["counts"]["runtime"], "the hostile runtime", about=lambda: known("rf-hostile"))
    conn = Conn("rf-hostile")
    conn.say("send", {"content": [{"type": "text", "text": "go"}]}, 1)
    line = process.stdout.readline()
    assert line, f"the hostile runtime ended: {process.stderr.read()[-1500:]}, {daemon_log()}"
    out = json.loads(line)
    process.kill()
    assert out.pop("tags") is True
    assert "result" in out.pop("right"), "the positive control"
    expected = {"unknown id": "no tool call", "no pidfd": "none came", "a file": "pidfd", "itself": "not a child",
                "its parent": "", "threaded": "2 threads", "exec'd": "exec'd already", "a grandchild": "not a child",
                "a second for one call": "tagged for it", "tagged already": "tool call already", "answered": "no tool call",
                "send from inside": "never from a container"}
    for name, reply in out.items():
        assert "error" in reply and expected[name] in reply["error"]["message"], f"{name}: {reply}"
    counted("rf-hostile", tags=1, refused_tags=len(out) - 1)

    def recorded():
        refusals = trace("rf-hostile")["refusals"]
        return {one["what"] for one in refusals} >= {"tag", "send"} and all(one["container"] and one["pid"] for one in refusals)

    wait_for(recorded, "the refusals on record", about=lambda: trace("rf-hostile"))
    # Register from outside the container, and a second user's send.
    conn = Conn("rf-hostile")
    conn.say("register", {"role": "runtime"})
    reply = conn.hear()
    assert "in none" in reply["error"]["message"], reply
    remove(path, "rf-hostile")
