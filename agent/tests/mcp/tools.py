"""A server whose answers to `tools/list` stand in a file: one line, with the request's id in the place of ID.

Its arguments: that file, and one to keep the calls in that it receives. A request whose method is `x/line` is answered with
its params' `line`, as it is, so that a test says what the server says.
"""

import json
import os
import sys

for line in sys.stdin.buffer:
    message = json.loads(line)
    if "id" not in message or "method" not in message:
        continue
    call, method = json.dumps(message["id"]), message["method"]
    if method == "tools/list":
        page = (message.get("params") or {}).get("cursor", "")
        with open(sys.argv[1] + page, "rb") as answers:
            answer = answers.read().replace(b"ID", call.encode())
    elif method == "initialize":
        info = {"name": "tools.py", "version": os.environ.get("TOOLS_VERSION", "1")}
        result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
        answer = json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode() + b"\n"
    else:
        if method == "tools/call":
            with open(sys.argv[2], "ab") as kept:
                kept.write(message["params"]["name"].encode() + b"\n")
        answer = b'{"jsonrpc":"2.0","id":%s,"result":{}}\n' % call.encode()
    sys.stdout.buffer.write(answer)
    sys.stdout.buffer.flush()
