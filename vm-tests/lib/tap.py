"""Results as TAP: one line a case, diagnoses after a `#`."""

import sys


class Tap:
    """Counts and prints."""

    def __init__(self, planned):
        self.number = 0
        self.failed = 0
        print(f"1..{planned}", flush=True)

    def result(self, name, problems, skipped=None):
        """One case: passed when there are no problems; skipped, with the reason, where there was nothing to attack."""
        self.number += 1
        if problems:
            self.failed += 1
        reason = f" # SKIP {skipped}" if skipped and not problems else ""
        lines = [f"{'not ok' if problems else 'ok'} {self.number} - {name}{reason}"]
        for problem in problems:
            lines += ["# " + line for line in str(problem).splitlines()]
        sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()

    def note(self, text):
        """A remark that is no result."""
        print("# " + text.replace("\n", "\n# "), flush=True)
