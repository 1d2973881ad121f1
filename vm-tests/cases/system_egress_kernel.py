"""Scenes of outbound names, one for each program that changes addresses: what a client sees where all of them are attached."""

import os

from case import profile_text, scene
from harness import HERE, PYTHON
from system import put, ringfence, said

PROFILE = "/run/rf-cases/profiles/rf-egress-kernel.toml"
# The name need not exist: its address is the container's own, and nobody asks further until something is said there.
NAME = "granted.rf-kernel.test"
# IPv4 and IPv6 addresses of nameservers that the container has not.
SERVER, SERVER6 = ("8.8.8.8", 53), ("2001:4860:4860::8888", 53)

CLIENT = f"""
import socket, struct, time
NAME, SERVER, SERVER6 = {NAME!r}, {SERVER!r}, {SERVER6!r}
QUESTION = struct.pack(">HHHHHH", 7, 0x100, 1, 0, 0, 0) + b"".join(bytes([len(l)]) + l.encode() for l in NAME.split(".")) + bytes([0, 0, 1, 0, 1])

def sock(family, kind):
    one = socket.socket(family, kind)
    one.settimeout(60)
    return one

def address(answer):
    assert answer[:2] == QUESTION[:2] and struct.unpack(">H", answer[6:8])[0] == 1, answer
    return socket.inet_ntoa(answer[-4:])

def ask(server, family, connected=False):
    one = sock(family, socket.SOCK_DGRAM)
    if connected:
        one.connect(server)
        one.send(QUESTION)
    else:
        one.sendto(QUESTION, server)
    answer, peer = one.recvfrom(2000)
    return address(answer), peer[:2]

def by_tcp(server, family):
    one = sock(family, socket.SOCK_STREAM)
    one.connect(server)
    one.sendall(struct.pack(">H", len(QUESTION)) + QUESTION)
    answer = b""
    while len(answer) < 2 or len(answer) < 2 + struct.unpack(">H", answer[:2])[0]:
        answer += one.recv(2000)
    return address(answer[2:]), one.getpeername()[:2]
"""


def client(code):
    """Runs code that has to succeed, in a container that was granted one name."""
    put(PROFILE, profile_text("vm test: egress, kernel", ["/usr", "/etc", HERE], (), ["/usr/bin", HERE], [f"{NAME}:443"], None,
                              'capabilities = ["default"]\naudit = "denied"'))
    result = ringfence("run", "--profile", PROFILE, "--", PYTHON, "-IS", "-c", f"{CLIENT}\n{code}\nprint('done')")
    assert result.returncode == 0 and result.stdout.endswith("done\n"), said(result)
    os.unlink(PROFILE)


@scene("system/egress-connect4", hook="connect4")
def connect4():
    """connect(2) to an IPv4 nameserver, over UDP and TCP, and to the address that the name was given"""
    client("""
found, _ = ask(SERVER, socket.AF_INET, connected=True)
assert found.startswith(("198.18.", "198.19.")), found
assert by_tcp(SERVER, socket.AF_INET)[0] == found
sock(socket.AF_INET, socket.SOCK_STREAM).connect((found, 443))
""")


@scene("system/egress-connect6", hook="connect6")
def connect6():
    """the same of IPv6, and to an IPv4 address in one"""
    client("""
found, _ = ask(SERVER6, socket.AF_INET6, connected=True)
assert by_tcp(("::ffff:8.8.8.8", 53), socket.AF_INET6)[0] == found
sock(socket.AF_INET6, socket.SOCK_STREAM).connect(("::ffff:" + found, 443))
""")


@scene("system/egress-sendmsg4", hook="sendmsg4")
def sendmsg4():
    """a datagram with an address, to an IPv4 nameserver"""
    client("assert ask(SERVER, socket.AF_INET)[0].startswith('198.')")


@scene("system/egress-sendmsg6", hook="sendmsg6")
def sendmsg6():
    """the same, to an IPv6 nameserver"""
    client("assert ask(SERVER6, socket.AF_INET6)[0].startswith('198.')")


@scene("system/egress-recvmsg4", hook="recvmsg4")
def recvmsg4():
    """an answer comes from the nameserver that was asked"""
    client("assert ask(SERVER, socket.AF_INET)[1] == SERVER")


@scene("system/egress-recvmsg6", hook="recvmsg6")
def recvmsg6():
    """the same of IPv6, and of an IPv4 address in one"""
    client("""
assert ask(SERVER6, socket.AF_INET6)[1] == SERVER6
assert ask(("::ffff:8.8.8.8", 53), socket.AF_INET6)[1] == ("::ffff:8.8.8.8", 53)
""")


@scene("system/egress-getpeername4", hook="getpeername4")
def getpeername4():
    """a client is told that it is connected to where it connected to"""
    client("""
assert by_tcp(SERVER, socket.AF_INET)[1] == SERVER
found, _ = ask(SERVER, socket.AF_INET)
one = sock(socket.AF_INET, socket.SOCK_STREAM)
one.connect((found, 443))
assert one.getpeername() == (found, 443), one.getpeername()
""")


@scene("system/egress-getpeername6", hook="getpeername6")
def getpeername6():
    """the same of IPv6"""
    client("assert by_tcp(SERVER6, socket.AF_INET6)[1] == SERVER6")
