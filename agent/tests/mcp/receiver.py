"""A receiver of webhooks: keeps what it is sent, and says of each whether its signature is right, by code of its own.

Arguments: the secret, the file to keep them in. It prints its port. The path says how it behaves.
"""

import base64
import hashlib
import hmac
import json
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

KEY = base64.b64decode(sys.argv[1].removeprefix("whsec_"))
lock = threading.Lock()
seen = {}


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        sent = self.headers["webhook-id"], self.headers["webhook-timestamp"]
        signed = b".".join([sent[0].encode(), sent[1].encode(), body])
        mac = base64.b64encode(hmac.new(KEY, signed, hashlib.sha256).digest()).decode()
        late = abs(time.time() - int(sent[1])) > 120
        with lock:
            seen[sent[0]] = seen.get(sent[0], 0) + 1
            times = seen[sent[0]]
            with open(sys.argv[2], "a") as kept:
                row = {
                    "path": self.path,
                    "id": sent[0],
                    "right": hmac.compare_digest(self.headers["webhook-signature"], "v1," + mac) and not late,
                    "type": self.headers["content-type"],
                    "body": json.loads(body),
                    "times": times,
                }
                kept.write(json.dumps(row) + "\n")
        if self.path == "/flaky" and times < 3:
            self.answer(503)
        elif self.path == "/away":
            self.answer(307, "http://127.0.0.1:%d/elsewhere" % self.server.server_port)
        elif self.path == "/silent":
            time.sleep(600)
        elif self.path == "/endless":
            self.send_response(200)
            self.end_headers()
            while True:
                self.wfile.write(b"x" * 65536)
        else:
            self.answer(204)

    def answer(self, status, location=None):
        self.send_response(status)
        if location:
            self.send_header("location", location)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
server.daemon_threads = True
print(server.server_port, flush=True)
server.serve_forever()
