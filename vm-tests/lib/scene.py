"""Runs a scene: in a child of its own, with a time limit, so that a hung one fails alone."""

import os
import select
import signal
import time
import traceback

import system


def hung(_signal, _frame):
    """Ends a scene that waits for something that does not come."""
    raise AssertionError(f"hung: {''.join(traceback.format_stack()[-8:])}")


def run_scene(one, follower):
    """The scene's problems, as a list of text."""
    limit = one.limit
    pipe_r, pipe_w = os.pipe()
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        os.close(pipe_r)
        # A little before its time is over it says itself where it hangs.
        signal.signal(signal.SIGALRM, hung)
        signal.alarm(limit - 10)
        # Clocks need not agree to the second.
        system.BEGUN = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() - 2))
        try:
            one.run()
        except BaseException as error:  # whatever it is, it is the result
            text = str(error) if isinstance(error, AssertionError) and str(error) else traceback.format_exc()
            os.write(pipe_w, text.encode()[-6000:])
        os._exit(0)
    os.close(pipe_w)
    end = time.monotonic() + limit
    parts = []
    while True:
        left = end - time.monotonic()
        if left <= 0 or not select.select([pipe_r], [], [], left)[0]:
            parts.append(f"no result in {limit} s".encode())
            break
        part = os.read(pipe_r, 65536)
        if not part:
            break
        parts.append(part)
    os.close(pipe_r)
    try:
        os.killpg(child, signal.SIGKILL)
    except OSError:
        pass
    os.waitpid(child, 0)
    text = b"".join(parts).decode(errors="replace")
    return [text] if text else []
