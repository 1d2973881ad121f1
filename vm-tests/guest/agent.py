"""The guest's side of `cargo xtask vm`: starts the daemon, runs one command, and carries its bytes to the host.

One virtio port carries frames in both directions: a kind byte, a little-endian u32 length, the bytes. The kinds are
those of xtask/src/vm/frames.rs. When the host is gone, so is the reason to run: the agent ends and init powers off.
"""

import errno
import fcntl
import json
import os
import pty
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import time

HERE = "/run/ringfence-guest"
PORT_NAME = "ringfence.io"
DAEMON_LOG = "/var/log/ringfence-daemon.log"
CHUNK = 32768
# What the command has not read yet; beyond it the host's frames wait.
STDIN_LIMIT = 256 * 1024

TO_GUEST = {"stdin": b"i", "size": b"w", "bye": b"b"}
TO_HOST = {"ready": b"r", "stdout": b"o", "stderr": b"e", "exit": b"x", "failed": b"f"}


class HostGone(Exception):
    """The host closed its end of the port."""


class Port:
    """Frames over the virtio port."""

    def __init__(self, path):
        self.fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        self.received = b""

    def send(self, kind, payload=b""):
        frame = TO_HOST[kind] + struct.pack("<I", len(payload)) + payload
        while frame:
            frame = frame[os.write(self.fd, frame) :]

    def receive(self):
        """What came, as a list of (kind, payload)."""
        data = os.read(self.fd, CHUNK)
        if not data:
            raise HostGone
        self.received += data
        frames = []
        while len(self.received) >= 5:
            (length,) = struct.unpack_from("<I", self.received, 1)
            if len(self.received) < 5 + length:
                break
            frames.append((self.received[:1], self.received[5 : 5 + length]))
            self.received = self.received[5 + length :]
        return frames


def find_port():
    for _ in range(600):
        for entry in os.listdir("/sys/class/virtio-ports") if os.path.isdir("/sys/class/virtio-ports") else []:
            with open(f"/sys/class/virtio-ports/{entry}/name", encoding="ascii") as name:
                if name.read().strip() == PORT_NAME:
                    return f"/dev/{entry}"
        time.sleep(0.1)
    raise SystemExit("guest: no virtio port named " + PORT_NAME)


def install():
    """Makes the users, groups and folders that ringfence needs, as on any host."""
    done = subprocess.run(
        ["ringfence", "install", "--no-start"], stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    if done.returncode != 0:
        return "`ringfence install --no-start` failed:\n" + (done.stdout + done.stderr).decode(errors="replace")
    return None


def start_daemon(job):
    """Starts the daemon and waits until it says that it is ready, as it says it to systemd."""
    path = "/run/ringfence-guest/notify"
    notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
    notify.bind(path)
    notify.settimeout(0.2)
    with open(DAEMON_LOG, "wb") as log:
        daemon = subprocess.Popen(
            ["ringfence", "daemon"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "NOTIFY_SOCKET": path},
            start_new_session=True,
        )
    deadline = time.monotonic() + job["daemon_seconds"]
    while time.monotonic() < deadline:
        try:
            if b"READY=1" in notify.recv(4096).split(b"\n"):
                return None
        except socket.timeout:
            pass
        if daemon.poll() is not None:
            return f"the daemon ended with status {daemon.returncode} before it was ready:\n" + tail(DAEMON_LOG)
    return f"the daemon was not ready after {job['daemon_seconds']} s:\n" + tail(DAEMON_LOG)


def tail(path):
    with open(path, encoding="utf-8", errors="replace") as file:
        return "".join(file.readlines()[-30:])


def spawn(job):
    """Starts the command; returns (pid, {fd to read: frame kind}, fd to write or None, whether it has a terminal)."""
    environment = {**os.environ, **job["env"]}
    argv = job["argv"]
    if job["terminal"]:
        pid, master = pty.fork()
        if pid == 0:
            execute(argv, environment)
        set_size(master, job["size"])
        return pid, {master: "stdout"}, master
    stdin, stdout, stderr = os.pipe(), os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.dup2(stdin[0], 0)
        os.dup2(stdout[1], 1)
        os.dup2(stderr[1], 2)
        execute(argv, environment)
    for fd in (stdin[0], stdout[1], stderr[1]):
        os.close(fd)
    return pid, {stdout[0]: "stdout", stderr[0]: "stderr"}, stdin[1]


def execute(argv, environment):
    """In the child: becomes the command, or says why not, with the shell's statuses."""
    for number in (signal.SIGPIPE, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.chdir(environment.get("HOME", "/"))
        os.execvpe(argv[0], argv, environment)
    except OSError as error:
        os.write(2, f"vm: cannot run {argv[0]}: {error.strerror}\n".encode())
        os._exit(127 if error.errno in (errno.ENOENT, errno.ENOTDIR) else 126)


def set_size(fd, size):
    rows, columns = size
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def carry(port, job):
    """Runs the command to its end; returns its status as a shell counts it."""
    # The end of a child wakes the select: no polling, which would show in counted instructions.
    woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    pid, outputs, writer = spawn(job)
    os.set_blocking(writer, False)
    pending, closing, status = b"", False, None
    is_terminal = job["terminal"]
    # A pipe that a process left behind holds open must not keep the guest: once the command is gone, only what is
    # already there is read.
    while True:
        readers = [woken, *outputs] + ([port.fd] if len(pending) < STDIN_LIMIT else [])
        writers = [writer] if writer is not None and (pending or closing) else []
        readable, writable, _ = select.select(readers, writers, [], None if status is None else 0)
        if woken in readable:
            os.read(woken, 4096)
        if port.fd in readable:
            for kind, payload in port.receive():
                if kind == TO_GUEST["stdin"]:
                    pending, closing = pending + payload, closing or not payload
                elif kind == TO_GUEST["size"] and is_terminal:
                    set_size(writer, struct.unpack("<HH", payload))
        if writable:
            try:
                pending = pending[os.write(writer, pending) :] if pending else pending
            except BlockingIOError:
                pass
            except OSError:
                pending, closing = b"", True
            if closing and not pending and not is_terminal:
                os.close(writer)
                writer = None
            closing = closing and writer is not None and not is_terminal
        for fd in [fd for fd in readable if fd in outputs]:
            try:
                data = os.read(fd, CHUNK)
            except OSError as error:
                # The last process with the terminal is gone.
                data = b"" if error.errno == errno.EIO else None
            if data:
                port.send(outputs[fd], data)
            elif data == b"":
                del outputs[fd]
        if status is None:
            ended, raw = os.waitpid(pid, os.WNOHANG)
            status = raw if ended else None
        elif not [fd for fd in readable if fd in outputs]:
            break
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def reap_nothing_and_wait_for_bye(port):
    """The host says when it has everything; only then may the guest vanish."""
    while True:
        for kind, _ in port.receive():
            if kind == TO_GUEST["bye"]:
                return


def quiet_console():
    """Until here the kernel says all on the console, to show where it hangs; from here on what is at least an error."""
    with open("/proc/sys/kernel/printk", "w", encoding="ascii") as file:
        file.write("4")


def main():
    quiet_console()
    with open(f"{HERE}/job.json", encoding="utf-8") as file:
        job = json.load(file)
    port = Port(find_port())
    try:
        trouble = install() if job["install"] else None
        if job["daemon"]:
            trouble = trouble or start_daemon(job)
        if trouble is not None and job["daemon"]:
            port.send("failed", trouble.encode())
        else:
            port.send("ready")
            if trouble is not None:
                # Without a daemon the guest is for trying things by hand; what failed is said, and the command runs.
                port.send("stderr", f"vm: {trouble}\n".encode())
            port.send("exit", struct.pack("<I", carry(port, job)))
        reap_nothing_and_wait_for_bye(port)
    except HostGone:
        print("guest: the host closed its end", file=sys.stderr)


main()
