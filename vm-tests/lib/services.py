"""What listens outside for the attacks: sockets that note what arrives, and one that hands out descriptors."""

import os
import selectors
import socket
import threading
import time

from attack import raw

FDS = "/srv/rf/fds.sock"
NET = "/srv/rf/net"
ALLOWED_PORT = 7001
DENIED_PORT = 7002


class Services:
    """All of them, in one thread. What arrived is kept in `Services.arrived`."""

    arrived = bytearray()

    def __init__(self):
        os.makedirs("/srv/rf", exist_ok=True)
        os.makedirs("/run/rf-cases/profiles", exist_ok=True)
        for name in ("allow", "deny"):
            os.makedirs(f"{NET}/{name}", exist_ok=True)
            os.chmod(f"{NET}/{name}", 0o777)
        self.selector = selectors.DefaultSelector()
        self.running = True
        for port in (ALLOWED_PORT, DENIED_PORT):
            for family, host in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
                self._inet(family, host, port)
        for name in ("allow", "deny"):
            for kind, label in ((socket.SOCK_STREAM, "stream"), (socket.SOCK_DGRAM, "dgram"), (socket.SOCK_SEQPACKET, "seqpacket")):
                self._unix(f"{NET}/{name}/{label}", kind)
                self._unix(f"\0rf-{name}-{label}", kind)
        self._unix(FDS, socket.SOCK_STREAM, tag="fds")
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def _inet(self, family, host, port):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            one = socket.socket(family, kind)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            if kind == socket.SOCK_STREAM:
                one.setsockopt(socket.IPPROTO_TCP, 23, 16)  # TCP_FASTOPEN
            one.bind((host, port))
            self._add(one, kind, "arrive")

    def _unix(self, path, kind, tag="arrive"):
        if not path.startswith("\0"):
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass
        one = socket.socket(socket.AF_UNIX, kind)
        one.bind(path)
        if not path.startswith("\0"):
            os.chmod(path, 0o777)
        self._add(one, kind, tag)

    def _add(self, one, kind, tag):
        one.setblocking(False)
        if kind != socket.SOCK_DGRAM:
            # As many as the kernel lets wait: the thread that accepts may not run for long.
            one.listen(4096)
            self.selector.register(one, selectors.EVENT_READ, ("accept", tag))
        else:
            self.selector.register(one, selectors.EVENT_READ, ("data", tag))

    def _serve(self):
        while self.running:
            for key, _ in self.selector.select(0.5):
                action, tag = key.data
                try:
                    if action == "accept":
                        self._accept(key.fileobj, tag)
                    else:
                        self._data(key.fileobj, tag)
                except OSError:
                    if action == "data" and key.fileobj.type != socket.SOCK_DGRAM:
                        self._close(key.fileobj)

    def _accept(self, listener, tag):
        one, _ = listener.accept()
        one.setblocking(False)
        self.selector.register(one, selectors.EVENT_READ, ("data", tag))

    def _data(self, one, tag):
        text = one.recv(4096)
        if tag == "fds":
            if text:
                hand_out(one, text)
            self._close(one)
            return
        Services.arrived += text
        if not text and one.type != socket.SOCK_DGRAM:
            self._close(one)

    def _close(self, one):
        self.selector.unregister(one)
        one.close()

    def stop(self):
        """Ends the thread."""
        self.running = False
        self.thread.join(2)


# Ends of pairs, so that the other end goes on.
PAIRS = []
# A loose source route by way of 127.0.0.2.
ROUTE = bytes([131, 11, 4]) + socket.inet_aton("127.0.0.2") + socket.inet_aton("127.0.0.1") + b"\0"


def make(what, *words):
    """A socket as it was asked for; `None`: it is a path that was asked for."""
    inet, inet6, stream, dgram = socket.AF_INET, socket.AF_INET6, socket.SOCK_STREAM, socket.SOCK_DGRAM
    kinds = {
        "tcp": (inet, stream), "udp": (inet, dgram), "routed": (inet, dgram), "raw": (inet, socket.SOCK_RAW, 255),
        "packet": (socket.AF_PACKET, socket.SOCK_RAW), "netlink": (socket.AF_NETLINK, socket.SOCK_RAW), "unix": (socket.AF_UNIX, stream),
        "connected": (inet, stream), "connected6": (inet6, stream), "listening": (inet, stream), "datagram": (inet, dgram), "bound": (inet, dgram),
    }
    if what == "pair":
        one, other = socket.socketpair()
        PAIRS.append(other)
        return one
    if what not in kinds:
        return None
    one = socket.socket(*kinds[what])
    if what == "routed":
        one.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, ROUTE)
    if what in ("listening", "bound"):
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(("127.0.0.1", int(words[0])))
    if what == "listening":
        one.listen(1)
    if what == "datagram" and len(words) > 1:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(("127.0.0.1", int(words[1])))
    if what in ("connected", "connected6", "datagram"):
        one.connect(("::1" if what == "connected6" else "127.0.0.1", int(words[0])))
    if what == "unix":
        one.connect(words[0])
    return one


def hand_out(peer, text):
    """Answers a request with a descriptor: a socket (see `make`), a path opened for reading (after `path:`, with O_PATH), or a context
    for a file system of a type (`fsopen:TYPE`; `fsmount:TYPE`: one that was made) or for a mounted one (`fspick:PATH`), or (`pty`) the
    master of a new terminal, or (`tty:PATH`) the /dev/tty of a session that has that terminal."""
    if text.startswith(b"tty:"):
        if os.fork() == 0:
            try:
                os.setsid()
                os.open(text.removeprefix(b"tty:"), os.O_RDWR)
                socket.send_fds(peer, [b"x"], [os.open("/dev/tty", os.O_RDWR)])
                time.sleep(120)  # the session's end is its terminal's
            finally:
                os._exit(0)
        return
    if text.startswith(b"fspick:"):
        context = raw("fspick", -100, text.removeprefix(b"fspick:"), 0)
        try:
            socket.send_fds(peer, [b"x"], [context])
        finally:
            os.close(context)
        return
    if text.startswith((b"fsopen:", b"fsmount:")):
        step, name = text.split(b":")
        context = raw("fsopen", name, 0)
        try:
            if step == b"fsmount":
                raw("fsconfig", context, 6, 0, 0, 0)  # FSCONFIG_CMD_CREATE
            socket.send_fds(peer, [b"x"], [context])
        finally:
            os.close(context)
        return
    if text == b"pty":
        master, slave = os.openpty()
        try:
            socket.send_fds(peer, [b"x"], [master])
        finally:
            os.close(master)
            os.close(slave)
        return
    made = make(*text.decode().split(":"))
    if made:
        with made:
            socket.send_fds(peer, [b"x"], [made.fileno()])
    else:
        path = text.removeprefix(b"path:")
        fd = os.open(path, os.O_RDONLY | os.O_NOCTTY if path == text else os.O_PATH)
        try:
            socket.send_fds(peer, [b"x"], [fd])
        finally:
            os.close(fd)
