"""A server that keeps every byte it receives, and answers by the tool's name.

It reads bytes, not text, so that hostile lines cannot confuse it. Its arguments: the file to keep them in.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time

# Results and errors that are no objects, or say how a call went.
BARE = {
    "read_failing": '"result":{"content":[],"isError":true}',
    "read_refused": '"error":{"code":-32602,"message":"no"}',
    "read_task": '"result":{"task":{"taskId":"t1","status":"working"}}',
    "read_bare_text": '"result":"it is \\"bare\\""',
    "read_bare_null": '"result":null',
    "read_bare_number": '"result":1.50',
    "read_bare_list": '"result":["a",{"b":1.10}]',
    "read_bare_error": '"error":"it is bare"',
}
# Levels of arrays in an object in a result.
DEEP = {"read_deep": 90, "read_deeper": 125, "read_deepest": 400}
kept = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def say(text):
    data = text.encode()
    while data:
        data = data[os.write(1, data) :]


def answer(line):
    try:
        message = json.loads(line)
        call, tool = message["id"], message.get("params", {}).get("name", "")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return
    if "method" not in message:
        return
    if tool == "read_exit_7":
        sys.exit(7)
    if tool == "read_crash":
        os.kill(os.getpid(), signal.SIGKILL)
    if tool == "read_silence":
        return
    if message["method"] == "tasks/result":
        say('{"jsonrpc":"2.0","id":%s,"result":{"content":["late"]}}\n' % json.dumps(call))
        return
    if isinstance(tool, str) and tool in BARE:
        say('{"jsonrpc":"2.0","id":%s,%s}\n' % (json.dumps(call), BARE[tool]))
        return
    if isinstance(tool, str) and tool in DEEP:
        nested = "[" * DEEP[tool] + "]" * DEEP[tool]
        say('{"jsonrpc":"2.0","id":%s,"result":{"a":%s}}\n' % (json.dumps(call), nested))
        return
    if tool == "read_garbage":
        say('this is not JSON\n\n{"jsonrpc":"2.0","id":"nobody","result":{}}\n')
    if tool == "read_escapee":
        # Its parent ends at once, and it is in no group and session of ours any more.
        script = "setsid sh -c 'echo $$; exec sleep 600' & wait $!"
        escapee = subprocess.Popen(["setsid", "sh", "-c", script], stdout=subprocess.PIPE)
        pid = int(escapee.stdout.readline())
        escapee.kill()
        say('{"jsonrpc":"2.0","id":%s,"result":{"pid":%d}}\n' % (json.dumps(call), pid))
        return
    say('{"jsonrpc":"2.0","id":%s,"result":{}}\n' % json.dumps(call))


if "stderr" in sys.argv[2:]:
    line = ("x" * 79 + "\n").encode()
    for _ in range(2560):
        os.write(2, line)
if "stubborn" in sys.argv[2:]:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "signals" in sys.argv[2:]:
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(number, lambda number, _: say('{"signal":%d}\n' % number))
rest = b""
while True:
    # A signal just before a read that blocks would wait for the read's end: Python runs handlers between calls.
    while "signals" in sys.argv[2:] and not select.select([0], [], [], 0.2)[0]:
        pass
    chunk = os.read(0, 1 << 20)
    if not chunk:
        break
    view = chunk
    while view:
        view = view[os.write(kept, view) :]
    *lines, rest = (rest + chunk if len(rest) < 64 << 20 else chunk).split(b"\n")
    for line in lines:
        answer(line)
if "polite" in sys.argv[2:]:
    os.write(kept, b"end of input\n")
if "stubborn" in sys.argv[2:]:
    time.sleep(600)
