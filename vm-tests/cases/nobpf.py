"""Group `nobpf` (a boot whose lsm= list lacks bpf): nothing pretends to enforce."""

import json
import os
import re
import socket
import subprocess

from case import scene
from system import BASE, profile, ringfence, said, targets


@scene("nobpf/boot-is-the-right-one", group="nobpf")
def right_boot():
    """not a test of Ringfence: this boot has BPF LSM off and Landlock on"""
    with open("/sys/kernel/security/lsm") as file:
        names = file.read().split(",")
    assert "bpf" not in names and "landlock" in names, names


@scene("nobpf/daemon-refuses", group="nobpf")
def daemon():
    """the daemon refuses to start and says what is missing, with the line to boot with"""
    result = ringfence("daemon")
    assert result.returncode not in (0, None), f"it started: {said(result)}"
    assert "lsm=" in result.stderr and "bpf" in result.stderr, f"it does not say what is missing: {said(result)}"
    assert not os.path.exists("/sys/fs/bpf/ringfence") or not os.listdir("/sys/fs/bpf/ringfence"), "it left pins"


@scene("nobpf/doctor-explains", group="nobpf")
def doctor():
    """doctor says that this is partial, per axis, and gives the whole lsm= line"""
    result = ringfence("doctor")
    assert result.returncode in (1, 2), said(result)
    with open("/sys/kernel/security/lsm") as file:
        present = set(file.read().strip().split(",")) - {"capability"}  # always there, listed or not
    lines = re.findall(r"lsm=([a-z_,]+)", result.stdout)
    assert lines and set(lines[0].split(",")) - {"capability"} == present | {"bpf"}, f"no line to boot with: {said(result)}"
    for axis in ("fs_read", "fs_write", "exec", "net"):
        assert axis in result.stdout, f"nothing about {axis}: {said(result)}"
    as_json = ringfence("doctor", "--json")
    assert as_json.returncode == result.returncode and json.loads(as_json.stdout), said(as_json)


@scene("nobpf/run-refuses", group="nobpf")
def refuses():
    """run refuses what only eBPF could hold, and names the axes"""
    allowed, _ = targets("nobpf")
    path = fallback("rf-nobpf")
    result = ringfence("run", "--profile", path, "--", "/usr/bin/cat", allowed)
    assert result.returncode == 125 and "secret" not in result.stdout, said(result)
    assert "exec" in result.stderr and "accept" in result.stderr, f"it does not say how to go on: {said(result)}"


def fallback(name):
    """A profile that lets Landlock and seccomp step in."""
    path = profile(name)
    with open(path) as file:
        text = file.read()
    with open(path, "w") as file:
        file.write(text.replace('seccomp = "off"', 'seccomp = "default"').replace('landlock = "off"', 'landlock = "fallback"'))
    return path


@scene("nobpf/accepted-partial-holds-what-it-says", group="nobpf")
def accepted():
    """with the gaps accepted, Landlock holds what it can: files are denied and granted"""
    allowed, forbidden = targets("partial")
    path = fallback("rf-partial")
    result = ringfence("run", "--profile", path, "--accept-partial", "fs_read,fs_write,exec,net", "--", "/usr/bin/cat", allowed, forbidden)
    assert result.stdout.count("secret") == 1 and result.returncode == 1, said(result)
    assert "Permission denied" in result.stderr, said(result)


# Connects to the socket it is given, also by a pair of datagram sockets, which need no call of socket().
CONNECT = """
import socket, sys
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    try:
        if kind == socket.SOCK_STREAM:
            socket.socket(socket.AF_UNIX, kind).connect(sys.argv[1])
        else:
            socket.socketpair(socket.AF_UNIX, kind)[0].sendto(b"x", sys.argv[1] + ".dgram")
        print("reached", flush=True)
    except OSError:
        pass
"""


@scene("nobpf/unix-sockets-stay-closed", group="nobpf")
def unix_sockets():
    """with the flags that the refusal prints, an ordinary user's command reaches no unix socket outside; one of its own, once accepted"""
    with open(fallback("rf-unix")) as file:
        text = file.read()
    # Where an ordinary user can read it.
    path = f"{BASE}/rf-unix.toml"
    work, outside = f"{BASE}/allow/work", "/tmp/rf-outside.sock"
    os.makedirs(work, exist_ok=True)
    with open(path, "w") as file:
        file.write(text.replace("net = { only = [] }", 'net = { only = ["unix:${WORKDIR}"] }'))
    os.chmod(path, 0o644)
    sockets = []
    for place in (outside, f"{work}/inside.sock"):
        for kind, name in ((socket.SOCK_STREAM, place), (socket.SOCK_DGRAM, place + ".dgram")):
            if os.path.exists(name):
                os.unlink(name)
            sockets.append(socket.socket(socket.AF_UNIX, kind))
            sockets[-1].bind(name)
            os.chmod(name, 0o777)
            if kind == socket.SOCK_STREAM:
                sockets[-1].listen()
    user = {"user": 65534, "group": 65534, "extra_groups": []}
    python = ["/usr/bin/python3", "-Ic", CONNECT]
    free = subprocess.run([*python, outside], capture_output=True, text=True, **user)
    assert free.stdout == "reached\nreached\n", free

    run = ["run", "--profile", path, "--workdir", work]
    refused = ringfence(*run, "--", "/usr/bin/true", **user)
    assert refused.returncode == 125 and "--accept-partial" in refused.stderr, said(refused)
    flags = refused.stderr[refused.stderr.rindex("--accept-partial"):].split()
    # Landlock tells sockets apart by path from its ABI 9 on: what is open then is less, and may be accepted with the rest.
    by_path = "unix      held in part by Landlock" in refused.stderr
    assert ("unix" in flags[1]) == by_path, said(refused)
    closed = ringfence(*run, *flags, "--", *python, outside, **user)
    assert closed.returncode == 0 and closed.stdout == "", said(closed)
    opened = ringfence(*run, flags[0], flags[1] + ("" if by_path else ",unix"), "--", *python, f"{work}/inside.sock", **user)
    assert opened.stdout == "reached\nreached\n", said(opened)
    for one in sockets:
        one.close()


@scene("nobpf/events-say-there-is-no-daemon", group="nobpf")
def events():
    """events and status say that no daemon runs, and fail"""
    for command in (["events"], ["status"]):
        result = ringfence(*command)
        assert result.returncode != 0 and "daemon" in result.stderr, f"{command}: {said(result)}"
