"""Unix sockets: pathname and abstract, stream and datagram."""

import os
import socket

from attack import O_PATH
from case import DOCKER, NOBODY, returned
from net import NETWORK, talk

UNIX, STREAM, DGRAM, SEQPACKET = socket.AF_UNIX, socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET


def unix(name, label="stream", op="connect", **options):
    """A case whose event names the socket file."""
    options.setdefault("events", lambda p: [(op, f"{p.dir}/{label}")])
    return NETWORK.case(name, **options)


@unix("unix-stream", hook="unix_stream_connect", who=(DOCKER, NOBODY))
def stream(p):
    """connect to a socket file"""
    talk(socket.socket(UNIX, STREAM), p.dir + "/stream", p)


@unix("unix-seqpacket", "seqpacket")
def seqpacket(p):
    """connect to a sequenced-packet socket file"""
    talk(socket.socket(UNIX, SEQPACKET), p.dir + "/seqpacket", p)


@unix("unix-relative-path")
def relative(p):
    """connect by relative path"""
    os.chdir(p.dir)
    talk(socket.socket(UNIX, STREAM), "stream", p)


@unix("unix-symlink")
def symlink(p):
    """connect by a symlink in an allowed directory"""
    os.symlink(p.dir + "/stream", p.mine + "/link")
    talk(socket.socket(UNIX, STREAM), p.mine + "/link", p)


@unix("unix-proc-self-root")
def proc_root(p):
    """connect by /proc/self/root"""
    talk(socket.socket(UNIX, STREAM), "/proc/self/root" + p.dir + "/stream", p)


@unix("unix-o-path")
def o_path(p):
    """connect by /proc/self/fd of an O_PATH descriptor of the socket"""
    fd = os.open(p.dir + "/stream", O_PATH)
    talk(socket.socket(UNIX, STREAM), f"/proc/self/fd/{fd}", p)


@NETWORK.case("unix-hard-link", events=lambda p: [("link", p.dir + "/stream")])
def hard_link(p):
    """connect by a hard link of the socket file in an allowed directory"""
    os.link(p.dir + "/stream", p.mine + "/alias")
    talk(socket.socket(UNIX, STREAM), p.mine + "/alias", p)


@NETWORK.case("unix-rename", events=lambda p: [("rename", p.dir)], kinds=("deny",), native=False,
              control=lambda p: os.rename(p.mine, p.mine + "2"))
def rename(p):
    """rename of the socket's directory into an allowed one"""
    os.rename(p.dir, p.mine + "/moved")
    talk(socket.socket(UNIX, STREAM), p.mine + "/moved/stream", p)


@unix("unix-dgram-sendto", "dgram", op="send", hook="unix_may_send")
def dgram(p):
    """a datagram to a socket file"""
    socket.socket(UNIX, DGRAM).sendto(p.token.encode(), p.dir + "/dgram")


@unix("unix-dgram-connect", "dgram", events=None)
def dgram_connect(p):
    """a datagram socket connected to a socket file"""
    talk(socket.socket(UNIX, DGRAM), p.dir + "/dgram", p)


@unix("unix-dgram-readdressed", "dgram", op="send")
def dgram_readdressed(p):
    """a datagram socket connected to a granted peer, sent to another"""
    one = socket.socket(UNIX, DGRAM)
    one.connect(p.dir.replace("deny", "allow") + "/dgram")
    one.sendto(p.token.encode(), p.dir + "/dgram")


def abstract(name, label, action, op):
    """A case about a name that is no file."""

    @NETWORK.case(name, events=lambda p: [(op, f"rf-deny-{label}")])
    def attack(p):
        action(p, f"\0rf-{p.name}-{label}")

    attack.__doc__ = name.replace("-", " ")


abstract("unix-abstract-stream", "stream", lambda p, name: talk(socket.socket(UNIX, STREAM), name, p), "connect")
abstract("unix-abstract-seqpacket", "seqpacket", lambda p, name: talk(socket.socket(UNIX, SEQPACKET), name, p), "connect")
abstract("unix-abstract-dgram", "dgram", lambda p, name: socket.socket(UNIX, DGRAM).sendto(p.token.encode(), name), "send")


@NETWORK.case("unix-abstract-bind", events=lambda p: [("bind", "rf-bind-deny")], effect=lambda p, v: v == "bound")
def abstract_bind(p):
    """a listener of one's own under an abstract name that somebody else may look for"""
    socket.socket(UNIX, STREAM).bind(f"\0rf-bind-{p.name}")
    return "bound"


@NETWORK.case("unix-socketpair", kinds=(), native=False, effect=returned)
def socketpair(p):
    """not an evasion: a socketpair and a socket of one's own work"""
    one, two = socket.socketpair()
    one.sendall(b"x")
    assert two.recv(1) == b"x"
