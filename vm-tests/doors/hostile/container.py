"""In a governed container, with all the capabilities that its profile leaves it: everything that is denied, in floods, until standard input ends.

    container.py BOX SECRET GOOD_SOCKET

One line for each round: what was read that must not be, and whether what is granted was refused.
"""

import ctypes
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time

BOX, SECRET, GOOD = sys.argv[1:4]
LIBC = ctypes.CDLL(None, use_errno=True)
RUN = "/run/ringfence"
DOORS = ("admin.sock", "enroll.sock", "query.sock", "mcp.sock")
# mount, umount2, init_module, kexec_load, unshare, perf_event_open, finit_module, bpf, userfaultfd, setns, io_uring_setup, pidfd_getfd
CALLS = (165, 166, 175, 246, 272, 298, 313, 321, 323, 308, 425, 438)


def is_read(path):
    """Whether a file can be read."""
    try:
        with open(path) as file:
            return bool(file.read())
    except OSError:
        return False


def opens():
    """A flood of opens of many names and of one, for reading and for writing."""
    for number in range(250):
        for path in (f"{SECRET}/flood-{number}", "/etc/shadow", "/root/.ssh/id_rsa"):
            is_read(path)
        try:
            os.close(os.open(f"{SECRET}/made-{number % 50}", os.O_CREAT | os.O_WRONLY))
        except OSError:
            pass


def execs():
    """Programs that are not granted, some of its own making."""
    mine = f"{BOX}/program"
    with open(mine, "w") as file:
        file.write("#!/usr/bin/true\n")
    os.chmod(mine, 0o755)
    for number in range(40):
        for path in (mine, "/usr/sbin/chroot", f"/proc/self/fd/{number}", "/usr/local/bin/ringfence"):
            if os.fork() == 0:
                try:
                    os.execv(path, [path])
                finally:
                    os._exit(1)
            os.wait()


def connects():
    """Every socket of the daemon's, another agent's, systemd's, the dashboard and the network."""
    unix = [f"{RUN}/{name}" for name in DOORS] + [GOOD, "/run/systemd/private", "/run/dbus/system_bus_socket", "\0nothing"]
    for _ in range(40):
        for path in unix:
            with socket.socket(socket.AF_UNIX) as one:
                one.connect_ex(path)
        for place in (("127.0.0.1", 8080), ("127.0.0.1", 4117), ("203.0.113.9", 443)):
            try:
                with socket.socket() as one:
                    one.settimeout(0.05)
                    one.connect_ex(place)
            except OSError:
                pass


def others():
    """Processes that are none of this one's children or ancestors."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) not in (1, os.getpid(), MAIN)]


def signals():
    """SIGKILL and SIGSTOP to everybody else."""
    for pid in others():
        for number in (signal.SIGSTOP, signal.SIGKILL):
            # Its own container may be signalled: the other attacks go on.
            if pid in OWN or pid in family():
                continue
            try:
                os.kill(pid, number)
            except OSError:
                pass


def traces():
    """ptrace, the memory, the descriptors and the environment of everybody else."""
    buffer = ctypes.create_string_buffer(8)
    for pid in others():
        if pid in family():
            continue
        LIBC.ptrace(0x4206, pid, None, None)  # PTRACE_SEIZE
        for name in ("mem", "environ", "maps"):
            is_read(f"/proc/{pid}/{name}")
        vector = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 8)
        LIBC.process_vm_readv(pid, vector, 1, vector, 1, 0)
        try:
            held = os.pidfd_open(pid)
        except OSError:
            continue
        LIBC.syscall(438, held, 0, 0)
        os.close(held)


def family():
    """Processes of this container, as far as /proc tells: descendants of its first."""
    found, parents = {MAIN}, {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    parents[int(name)] = int(file.read().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError):
                continue
    more = True
    while more:
        grown = {pid for pid, parent in parents.items() if parent in found} - found
        found |= grown
        more = bool(grown)
    return found


def forks():
    """A deep line of processes, at whose end something is denied, and a wide one."""
    for _ in range(80):
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            os._exit(0)
    for _ in range(20):
        is_read("/etc/shadow")
        subprocess.call(["/usr/bin/true"])
    for _ in range(60):
        if os.fork() == 0:
            is_read(f"{SECRET}/wide")
            os._exit(0)
    os._exit(0)


def escapes():
    """System calls that lead out."""
    for _ in range(30):
        for number in CALLS:
            if os.fork() == 0:
                LIBC.syscall(number, 0, 0, 0, 0, 0)
                os._exit(0)
            os.wait()
        is_read("/proc/1/root/etc/shadow")
        is_read(f"{BOX}/../../../../etc/shadow")


def moves():
    """Links and names of its own for what is denied."""
    for number in range(100):
        try:
            os.symlink("/etc/shadow", f"{BOX}/link-{number}")
        except OSError:
            pass
        is_read(f"{BOX}/link-{number}")
        for act in (os.link, os.rename):
            try:
                act(f"{SECRET}/file", f"{BOX}/taken-{number}")
            except OSError:
                pass
        for path in (f"{BOX}/link-{number}",):
            try:
                os.unlink(path)
            except OSError:
                pass


ACTS = (opens, execs, connects, signals, traces, forks, escapes, moves)
# How long one act may take, on a machine that has much else to do.
LONGEST = 20
MAIN = os.getpid()
OWN = {MAIN, os.getppid()}


def run(act):
    """An act in a process group of its own."""
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        try:
            act()
        except BaseException:  # whatever became of it, the next one has its turn
            os._exit(1)
        os._exit(0)
    return pid


def main():
    """Two acts at a time."""
    # Whatever is orphaned in here ends here.
    LIBC.prctl(36, 1, 0, 0, 0)
    rounds = 0
    stopping = False
    while not stopping:
        looks = {"secret": 0, "granted": 0}
        for number in range(0, len(ACTS), 2):
            running = {run(act) for act in ACTS[number : number + 2]}
            end = time.monotonic() + LONGEST
            while running and time.monotonic() < end and not stopping:
                looks["secret"] += is_read(f"{SECRET}/file") or is_read("/etc/shadow")
                looks["granted"] += not is_read(f"{BOX}/granted")
                stopping = bool(select.select([sys.stdin], [], [], 0.5)[0])
                running -= reaped()
            for pid in family() - OWN:
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    pass
            time.sleep(0.2)
            reaped()
            if stopping:
                break
        rounds += 1
        print(json.dumps({"round": rounds, **looks}), flush=True)
    # It stays until it was counted.
    sys.stdin.read()


def reaped():
    """Children that have ended."""
    found = set()
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return found
        if pid == 0:
            return found
        found.add(pid)


main()
