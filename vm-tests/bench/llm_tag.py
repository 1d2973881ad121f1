"""What `cargo xtask bench llm --only tag` runs in a guest without a daemon: starts one, and an agent whose container asks
for tags as a runtime does. Prints `tag NANOSECONDS` for each; under -icount a nanosecond is an executed instruction.
Everything else goes to stderr."""

import array
import http.server
import json
import os
import shutil
import signal
import socket
import socketserver
import struct
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
NAME = "bench-tag"
SOCKET = f"/run/ringfence/sockets/{NAME}/agent.sock"
# Tool calls of the one answer; the first ones warm up.
CALLS, WARM_UP = 60, 10


def model():
    """A provider that wants all calls at once; its port."""
    events = [("message_start", {"message": {"id": "m", "role": "assistant", "content": [], "usage": {"input_tokens": 1}}})]
    for index in range(CALLS):
        block = {"type": "tool_use", "id": f"toolu_{index}", "name": "bash", "input": {}}
        events += [("content_block_start", {"index": index, "content_block": block}), ("content_block_stop", {"index": index})]
    events += [("message_delta", {"delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 1}}), ("message_stop", {})]
    body = "".join(f"event: {kind}\ndata: {json.dumps({'type': kind, **data})}\n\n" for kind, data in events).encode()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            head = f"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-length: {len(body)}\r\n\r\n"
            self.wfile.write(head.encode() + body)

        def log_message(self, *_):
            pass

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


def profile(port):
    """The agent's."""
    return f"""
description = "benchmark"
[llm.mock]
provider = "anthropic"
model = "m"
api_key = "sk-bench-0123456789"
base_url = "http://127.0.0.1:{port}"
[grant]
fs_read = {{ only = ["{HERE}", "/proc"] }}
fs_write = {{ only = [] }}
exec = {{ only = ["/usr/bin"] }}
net = {{ only = ["unix:{SOCKET}"] }}
max_calls = "unlimited"
valid_for_generation = "all"
[kernel]
seccomp = "off"
landlock = "off"
"""


def host():
    """Daemon, agent, container."""
    path = f"/etc/ringfence/profiles/{NAME}.toml"
    with open(path, "w") as file:
        file.write(profile(model()))
    os.chmod(path, 0o600)
    daemon = subprocess.Popen(["ringfence", "daemon"], stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True)
    end = time.monotonic() + 400
    while not os.path.exists(SOCKET):
        if daemon.poll() is not None or time.monotonic() > end:
            sys.exit(f"the daemon does not serve the agent: {daemon.returncode}")
        time.sleep(0.2)
    # What daemon and kernel still have to do after the start is no part of a tag.
    time.sleep(5)
    python = os.path.realpath("/usr/bin/python3")
    command = ["ringfence", "run", "--profile", NAME, "--", python, "-E", "-s", "-S", "-B", os.path.abspath(__file__), "inside"]
    status = subprocess.run(command, stdin=subprocess.DEVNULL, cwd="/", timeout=500).returncode
    os.kill(daemon.pid, signal.SIGTERM)
    sys.exit(status)


def inside():
    """The runtime: children that have not exec'd yet, each tagged for a call."""
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(120)
    sock.connect(SOCKET)

    def frame(message):
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        return struct.pack(">I", len(body)) + body

    def hear():
        head = sock.recv(4, socket.MSG_WAITALL)
        return sock.recv(struct.unpack(">I", head)[0], socket.MSG_WAITALL)

    sock.sendall(frame({"method": "register", "params": {"role": "runtime"}}))
    said = [{"role": "user", "content": [{"type": "text", "text": "go"}]}]
    tools = [{"name": "bash", "parameters": {"type": "object"}}]
    sock.sendall(frame({"id": 1, "method": "turn", "params": {"tools": tools, "messages": said}}))
    while True:
        message = json.loads(hear())
        if message.get("id") == 1:
            break
    if not message.get("result", {}).get("tags"):
        sys.exit(f"no tags here: {message}")
    for call in range(CALLS):
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(write)
            os.read(read, 1)
            os._exit(0)
        os.close(read)
        pidfd = os.pidfd_open(child)
        request = frame({"id": 2 + call, "method": "tag", "params": {"call": f"toolu_{call}"}})
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [pidfd]))]
        begin = time.monotonic_ns()
        sock.sendmsg([request], rights)
        answer = hear()
        took = time.monotonic_ns() - begin
        if b"tagged" not in answer:
            sys.exit(f"not tagged: {answer}")
        os.close(write)
        os.close(pidfd)
        os.waitpid(child, 0)
        if call >= WARM_UP:
            print(f"tag {took}", flush=True)


if sys.argv[1:] == ["inside"]:
    inside()
else:
    # The binary that is measured, where the host gave one.
    given = f"{HERE}/ringfence"
    if os.path.exists(given):
        shutil.copy2(given, "/usr/local/bin/ringfence")
    host()
