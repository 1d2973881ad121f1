"""One reader of `ringfence events --follow --json` for the whole run."""

import json
import subprocess
import threading
import time


class Follower:
    """Collects events in the background."""

    def __init__(self, command=("ringfence", "events", "--follow", "--json")):
        self.events = []
        self.broken = []
        self.changed = threading.Condition()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace")
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                event = None
            with self.changed:
                if isinstance(event, dict):
                    self.events.append(event)
                else:
                    self.broken.append(line)
                self.changed.notify_all()
        with self.changed:
            self.broken.append(f"the reader ended: {self.process.stderr.read()!r}")
            self.changed.notify_all()

    def wait(self, wanted, seconds=15):
        """The first event that `wanted` says yes to, or None after so many seconds."""
        end = time.monotonic() + seconds
        seen = 0
        with self.changed:
            while True:
                for event in self.events[seen:]:
                    if wanted(event):
                        return event
                seen = len(self.events)
                left = end - time.monotonic()
                if left <= 0:
                    return None
                self.changed.wait(left)

    def having(self, wanted):
        """Every event so far that `wanted` says yes to."""
        with self.changed:
            return [event for event in self.events if wanted(event)]

    def forget(self):
        """Drops what came so far."""
        with self.changed:
            self.events.clear()

    def stop(self):
        """Ends the reader."""
        self.process.kill()
        self.process.wait()


def about(event, what):
    """Whether an event names a path or address: a whole path where `what` is absolute, else a part."""
    texts = [str(event[key]).removeprefix("unix:") for key in ("path", "addr") if event.get(key)]
    texts += [flag.removeprefix("to=") for flag in event.get("flags", []) if flag.startswith("to=")]
    if what.startswith("/"):
        return what in texts
    return any(what in text for text in texts)


def brief(event):
    """An event in one line, for a diagnosis."""
    return " ".join(f"{key}={event.get(key)}" for key in ("verdict", "op", "path", "addr", "flags", "exe", "tgid", "ppid", "rule") if event.get(key))
