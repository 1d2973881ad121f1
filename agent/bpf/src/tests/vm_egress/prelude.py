"""What the calls of `vm_egress` are made of. Each runs in a process of its own, and prints one line: `ok`, an error's name, or what else
went wrong."""

import array
import ctypes
import errno
import os
import socket
import struct
import sys
import time

sys.path.insert(0, "/opt/vm-tests/lib")

LIBC = ctypes.CDLL(None, use_errno=True)
INET, INET6, STREAM, DGRAM = socket.AF_INET, socket.AF_INET6, socket.SOCK_STREAM, socket.SOCK_DGRAM
FASTOPEN = 0x20000000
PUBLIC, PUBLIC6 = ("8.8.8.8", 53), ("2001:4860:4860::8888", 53)
MAPPED = ("::ffff:8.8.8.8", 53)


def sock(family=INET, kind=STREAM):
    one = socket.socket(family, kind)
    one.settimeout(60)
    return one


def checked(result):
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def raw4(host, port, family=INET):
    """A sockaddr_in."""
    return struct.pack("<H", family) + struct.pack(">H", port) + socket.inet_aton(host) + bytes(8)


def connect_raw(one, address):
    checked(LIBC.connect(one.fileno(), address, len(address)))


def same(found, wanted):
    if found != wanted:
        raise AssertionError(f"{found!r} is not {wanted!r}")


def answered(one, server):
    """The container's resolver answers in the name of the nameserver that was asked."""
    text, peer = one.recvfrom(200)
    same(text, b"resolver:x")
    same(peer[:2], server)


def ask(server, family=INET):
    """A query, not connected."""
    one = sock(family, DGRAM)
    one.sendto(b"x", server)
    answered(one, server)
    return one


def ask_connected(server, family=INET):
    one = sock(family, DGRAM)
    one.connect(server)
    same(one.getpeername()[:2], server)
    one.send(b"x")
    answered(one, server)
    return one


def ask_tcp(server, family=INET):
    one = sock(family)
    one.connect(server)
    same(one.getpeername()[:2], server)
    one.sendall(b"x")
    same(one.recv(200), b"resolver:x")


def heard(one):
    """All that a TCP server says."""
    parts = []
    while part := one.recv(200):
        parts.append(part)
    return b"".join(parts).decode()


def reached(one, address, port, pid=None):
    """The worker was told that this process connected to the address."""
    same(heard(one), f"{address}:{port} {pid or os.getpid()}")


def reach(address, port, family=INET, prefix=""):
    one = sock(family)
    one.connect((prefix + address, port))
    same(one.getpeername()[:2], (prefix + address, port))
    reached(one, address, port)


def closed_without_a_flow(one):
    same(heard(one), "nobody")


def control(level, kind, data):
    return [(level, kind, data)]


def pktinfo(device):
    """Control data that sends by a device."""
    return control(0, 8, struct.pack("<iII", socket.if_nametoindex(device), 0, 0))


def send_all(one, *messages):
    """sendmmsg of (address, control data); how many were sent."""
    keep, headers = [], b""
    for address, controls in messages:
        text = ctypes.create_string_buffer(b"x", 1)
        vector = ctypes.create_string_buffer(struct.pack("<QQ", ctypes.addressof(text), 1), 16)
        name = ctypes.create_string_buffer(address, len(address))
        data = b"".join(struct.pack("<Qii", 16 + len(d), level, kind) + d + bytes(-len(d) % 8) for level, kind, d in controls)
        buffer = ctypes.create_string_buffer(data, max(len(data), 1))
        keep += [text, vector, name, buffer]
        headers += struct.pack("<QI4xQQQQi4xQ", ctypes.addressof(name), len(address), ctypes.addressof(vector), 1,
                               ctypes.addressof(buffer) if data else 0, len(data), 0, 0)
    return checked(LIBC.sendmmsg(one.fileno(), headers, len(messages), 0))


def passed(path):
    """A socket that another process passes in."""
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(60)
        one.connect(path)
        _, fds, _, _ = socket.recv_fds(one, 1, 1)
    if not fds:
        raise OSError(errno.EACCES, "no descriptor came")
    got = socket.socket(fileno=fds[0])
    got.settimeout(60)
    return got


def run(calls):
    """Each call in a child."""
    for call in calls:
        here, there = os.pipe()
        child = os.fork()
        if child == 0:
            said = "ok"
            try:
                exec(call, globals())
            except OSError as error:
                said = errno.errorcode.get(error.errno, repr(error))
            except BaseException as error:
                said = repr(error)
            os.write(there, said.replace("\n", " ").encode())
            os._exit(0)
        os.close(there)
        said = b""
        while part := os.read(here, 4096):
            said += part
        os.close(here)
        os.waitpid(child, 0)
        print(said.decode() or "it died", flush=True)
