"""Results as TAP: one line a case, diagnoses after a `#`."""

import os
import sys
import threading
import time

# Seconds between two signs of life.
ALIVE_EVERY = 60


class Tap:
    """Counts and prints. Without a number `planned`, somebody else's lines have the plan."""

    def __init__(self, planned):
        self.number = 0
        self.failed = 0
        # What is written is whole, whichever thread it is from.
        self.whole = threading.Lock()
        if planned is not None:
            self.say(f"1..{planned}")

    def result(self, name, problems, skipped=None):
        """One case: passed when there are no problems; skipped, with the reason, where there was nothing to attack."""
        self.number += 1
        if problems:
            self.failed += 1
        reason = f" # SKIP {skipped}" if skipped and not problems else ""
        lines = [f"{'not ok' if problems else 'ok'} {self.number} - {name}{reason}"]
        for problem in problems:
            lines += ["# " + line for line in str(problem).splitlines()]
        self.say("\n".join(lines))

    def note(self, text):
        """A remark that is no result."""
        self.say("# " + text.replace("\n", "\n# "))

    def say(self, text):
        """Whole lines."""
        with self.whole:
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    def live(self):
        """Says now and then that the guest is alive: on a busy machine a family or a scene is silent for long."""

        def beat():
            while True:
                time.sleep(ALIVE_EVERY)
                with self.whole:
                    # Past Python's buffer: a scene is forked off at any moment, and has a copy of that and of its lock.
                    os.write(1, b"# ringfence-vm-tests: alive\n")

        threading.Thread(target=beat, daemon=True).start()
