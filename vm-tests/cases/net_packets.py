"""Packets that no hook sees one by one, and sockets that another process passes in."""

import ctypes
import socket
import struct

import uring
from attack import raw
from case import DOCKER, FULL, Refused
from files_read import receive
from net import (AF_INET, AF_INET6, DGRAM, NETWORK, ROUTE, V4, V6, libc_connect, sockaddr, sockaddr6,
                 to, udp)
from net_options import EVERYBODY, ROUTING2, SOL_IP, SOL_IPV6, done
from services import ALLOWED_PORT

KEEP = []


def memory(data):
    """Bytes that stay where they are; their address."""
    KEEP.append(ctypes.create_string_buffer(data, len(data)))
    return ctypes.addressof(KEEP[-1])


def header(text, address=b"", control=b""):
    """A `msghdr`."""
    vector = memory(struct.pack("<QQ", memory(text), len(text)))
    return struct.pack("<QI4xQQQQi4x", memory(address) if address else 0, len(address), vector, 1,
                       memory(control) if control else 0, len(control), 0)


def controls(level, kind, data):
    """Control data of one message, padded."""
    return struct.pack("<Qii", 16 + len(data), level, kind) + data + bytes(-len(data) % 8)


def send_all(one, *headers):
    """sendmmsg of all of them."""
    each = b"".join(one_header + bytes(8) for one_header in headers)
    sent = raw("sendmmsg", one.fileno(), ctypes.create_string_buffer(each, len(each)), len(headers), 0)
    if sent != len(headers):
        raise Refused(f"sent {sent} of {len(headers)}")
    return "done"


def plain(_p):
    """sendmmsg to one address without a route, and with the control data that programs use."""
    ttl = controls(SOL_IP, 2, struct.pack("<i", 9))
    hops = controls(SOL_IPV6, 52, struct.pack("<i", 9))
    four, six = sockaddr(ALLOWED_PORT), sockaddr6(ALLOWED_PORT)
    send_all(socket.socket(AF_INET, DGRAM), header(b"1", four), header(b"2", four), header(b"3", four, ttl))
    return send_all(socket.socket(AF_INET6, DGRAM), header(b"1", six), header(b"2", six), header(b"3", six, hops))


def sent(_p):
    """The event of a dropped packet has no address of a rule's: it is known by whose socket it was."""
    return [("send", "")]


@NETWORK.case("sendmmsg-source-route", events=sent, effect=done, errno=None, control=plain, who=(DOCKER, FULL), hook="outgoing_packet")
def mmsg_route(p):
    """sendmmsg: the second message to one granted address has a source route (LSM is not asked about it)"""
    address = sockaddr(ALLOWED_PORT)
    return send_all(socket.socket(AF_INET, DGRAM), header(b"first", address),
                    header(p.token.encode(), address, controls(SOL_IP, 7, ROUTE)))


@NETWORK.case("sendmmsg-routing-header", events=sent, effect=done, errno=None, control=plain, who=EVERYBODY, hook="outgoing_packet")
def mmsg_header(p):
    """sendmmsg: the second message to one granted address has an IPv6 routing header, for which no capability is needed"""
    address = sockaddr6(ALLOWED_PORT)
    return send_all(socket.socket(AF_INET6, DGRAM), header(b"first", address),
                    header(p.token.encode(), address, controls(SOL_IPV6, 57, ROUTING2)))


@NETWORK.case("sendmmsg-destination-options", events=sent, effect=done, errno=None, control=plain, who=(DOCKER, FULL))
def mmsg_options(p):
    """sendmmsg: the second message has a destination options header"""
    address = sockaddr6(ALLOWED_PORT)
    return send_all(socket.socket(AF_INET6, DGRAM), header(b"first", address),
                    header(p.token.encode(), address, controls(SOL_IPV6, 59, bytes([0, 0, 1, 4, 0, 0, 0, 0]))))


@NETWORK.case("ipv6-routing-header-message", events=sent, effect=done, control=plain, who=EVERYBODY)
def header_message(p):
    """a routing header as a control message of sendmsg"""
    data = header(p.token.encode(), sockaddr6(ALLOWED_PORT), controls(SOL_IPV6, 57, ROUTING2))
    one = socket.socket(AF_INET6, DGRAM)
    raw("sendmsg", one.fileno(), ctypes.create_string_buffer(data, len(data)), 0)
    return "done"


@NETWORK.case("io-uring-sendmsg", events=to(V4, "send"), who=EVERYBODY)
def uring_sendmsg(p):
    """IORING_OP_SENDMSG to an address"""
    data = header(p.token.encode(), sockaddr(p.port))
    one = socket.socket(AF_INET, DGRAM)
    uring.submit(uring.OP_SENDMSG, one.fileno(), memory(data), 1, 0)


def uring_send(p, opcode):
    """A send with an address of its own."""
    text, address = p.token.encode(), sockaddr(p.port)
    one = socket.socket(AF_INET, DGRAM)
    uring.submit(opcode, one.fileno(), memory(text), len(text), 0, offset=memory(address),
                 rest=struct.pack("<H", len(address)))


@NETWORK.case("io-uring-send", events=to(V4, "send"), native=(22, 89), control=lambda p: udp(p), who=EVERYBODY)
def uring_plain(p):
    """IORING_OP_SEND to an address (6.1 and newer)"""
    uring_send(p, 26)


@NETWORK.case("io-uring-send-zero-copy", events=to(V4, "send"), native=(22, 95), control=lambda p: udp(p), who=EVERYBODY)
def uring_zero_copy(p):
    """IORING_OP_SEND_ZC to an address (6.0 and newer)"""
    uring_send(p, 47)


def handed(name, about, what, use, **options):
    """A socket that a service outside makes and passes in; `what` is asked for, `{port}` and `{dir}` are the place's."""
    options.setdefault("errno", None)
    options.setdefault("who", EVERYBODY)

    @NETWORK.case(name, **options)
    def attack(p):
        fd = receive(p, what.format(port=p.port, dir=p.dir))
        return use(p, socket.socket(fileno=fd))

    attack.__doc__ = about


def speak(p, one):
    """Says the token to whomever it is connected to."""
    one.sendall(p.token.encode())
    one.close()


def kept(_p, one):
    """Having it is enough."""
    return "done" if one.fileno() >= 0 else ""


def pair(p):
    """One half of a pair from outside, and a connection of the container's own, passed within it."""
    with socket.socket(fileno=receive(p, "pair")) as one:
        one.sendall(b"x")
    here, there = socket.socketpair()
    with here, there, socket.create_connection(("127.0.0.1", ALLOWED_PORT)) as mine, socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 7100))
        server.listen(1)
        socket.send_fds(here, [b"x"], [mine.fileno(), server.fileno(), here.fileno()])
        _, fds, _, _ = socket.recv_fds(there, 1, 3)
        if len(fds) != 3:
            raise Refused(f"{len(fds)} of the container's own sockets came")
    return "done"


def received(p):
    """The event of a socket that no grant covers."""
    return [("receive", "")]


handed("passed-packet-socket", "a packet socket from outside", "packet", kept, events=received, effect=done, control=pair,
       hook="file_receive")
handed("passed-raw-socket", "a raw socket from outside", "raw", kept, events=received, effect=done, control=pair)
handed("passed-netlink-socket", "a netlink socket from outside", "netlink", kept, events=received, effect=done, control=pair)
handed("passed-connected-tcp", "a TCP connection from outside to a host that is denied", "connected:{port}", speak,
       events=to(V4, "receive"), hook="file_receive")
handed("passed-connected-tcp6", "the same over IPv6", "connected6:{port}", speak, events=to(V6, "receive"))
handed("passed-connected-udp", "a connected datagram socket from outside", "datagram:{port}", speak, events=to(V4, "receive"))
handed("passed-connected-unix", "a connection from outside to a socket file that is denied", "unix:{dir}/stream", speak,
       events=lambda p: [("receive", f"{p.dir}/stream")], hook="file_receive")
handed("passed-listener", "a listening socket from outside, on an address that was not granted", "listening:7106", kept,
       events=lambda p: [("receive", "127.0.0.1:7106")], effect=done,
       control=lambda p: kept(p, socket.socket(fileno=receive(p, "listening:7100"))))
handed("passed-bound-udp", "a bound datagram socket from outside", "bound:7107", kept,
       events=lambda p: [("receive", "127.0.0.1:7107")], effect=done, control=pair)


@NETWORK.case("passed-then-disconnected", events=lambda p: [("bind", "127.0.0.1:7108")], effect=done, control=pair, who=EVERYBODY)
def disconnected(p):
    """a bound datagram socket that is connected to a granted peer, disconnected: it would hear everybody on its port"""
    libc_connect(socket.socket(fileno=receive(p, f"datagram:{ALLOWED_PORT}:7108")), struct.pack("<H", 0) + bytes(14))
    return "done"


@NETWORK.case("passed-with-route", events=sent, effect=done, errno=(1,), control=plain, who=EVERYBODY, hook="outgoing_packet")
def with_route(p):
    """a socket from outside that has a source route already"""
    socket.socket(fileno=receive(p, "routed")).sendto(p.token.encode(), ("127.0.0.1", ALLOWED_PORT))
    return "done"


@NETWORK.case("accepted-passed-within", kinds=(), native=False, events=lambda p: [], effect=done, who=EVERYBODY,
              hook="socket_post_create")
def accepted_within(_p):
    """not an evasion: a server hands a connection that it accepted to another process of the container; the peer's port is in no grant"""
    here, there = socket.socketpair()
    with here, there, socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", 7100))
        server.listen(1)
        with socket.create_connection(("127.0.0.1", 7100)), server.accept()[0] as connection:
            socket.send_fds(here, [b"x"], [connection.fileno()])
            _, fds, _, _ = socket.recv_fds(there, 1, 1)
    if len(fds) != 1:
        raise Refused(f"{len(fds)} connections came")
    return "done"


@NETWORK.case("passed-by-io-uring", events=to(V4, "receive"), errno=None, who=EVERYBODY)
def uring_receive(p):
    """IORING_OP_RECVMSG of a message that carries a connection to a denied host"""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(p.fds_socket)
        peer.send(f"connected:{p.port}".encode())
        data = bytearray(header(bytes(16), control=bytes(24)))
        uring.submit(10, peer.fileno(), memory(bytes(data)), 1, 0)
        control = struct.unpack_from("<Q", data, 32)[0]
        length, _, kind, fd = struct.unpack("<Qiii", ctypes.string_at(control, 20))
    if length < 20 or kind != 1 or fd == 0:
        raise Refused("no descriptor arrived")
    speak(p, socket.socket(fileno=fd))
