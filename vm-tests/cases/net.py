"""The family `net`: talking to addresses that were not granted."""

import ctypes
import os
import socket
import struct
import time

import uring
from attack import raw
from case import DOCKER, FULL, NOBODY, Family, profile_text
from services import ALLOWED_PORT, DENIED_PORT, NET, Services

AF_INET, AF_INET6 = socket.AF_INET, socket.AF_INET6
STREAM, DGRAM = socket.SOCK_STREAM, socket.SOCK_DGRAM
FASTOPEN = 0x20000000


def locate(p):
    """`port` and `socket` are granted or not; `mine` is a directory of the attacker's own."""
    p.port = ALLOWED_PORT if p.kind == "allow" else DENIED_PORT
    p.name = "allow" if p.kind == "allow" else "deny"
    p.dir = f"{NET}/{p.name}"
    p.target = f"{NET}/{p.name}/stream"
    p.mine = f"{NET}/allow/{p.run}.mine"
    p.fds_socket = "/srv/rf/fds.sock"
    # An address whose port is granted, on another host.
    p.other = "127.0.0.1" if p.kind == "allow" else "127.0.0.2"


def setup(p):
    """The attacker's own directory."""
    os.makedirs(p.mine, exist_ok=True)
    os.chmod(p.mine, 0o777)


def arrived(p, _value):
    """The token reached a listener."""
    end = time.monotonic() + (60 if p.mode != "attack" else 0)
    while p.token.encode() not in bytes(Services.arrived):
        if time.monotonic() >= end:
            return False
        time.sleep(0.05)
    return True


def profile(_places, here):
    """The profile's text."""
    net = [f"127.0.0.1:{ALLOWED_PORT}", f"[::1]:{ALLOWED_PORT}", f"unix:{NET}/allow", "unix:/srv/rf/fds.sock", "unix:@rf-allow-stream",
           "unix:@rf-allow-dgram", "unix:@rf-allow-seqpacket", "unix:@rf-bind-allow", "127.0.0.1:7100", "127.77.0.0/16:7001"]
    return profile_text("vm test: net", [here, "/run/rf-cases", NET], [f"{NET}/allow"], ["/usr/bin/python3"], net,
                        {"net": ["127.77.1.0/24"]})


NETWORK = Family("net", profile, locate=locate, setup=setup, effect=arrived)


def to(address, op="connect"):
    """The event about an internet address; `{port}` is the place's."""
    return lambda p: [(op, address.format(port=p.port, other=p.other))]


V4 = "127.0.0.1:{port}"
V6 = "[::1]:{port}"


def talk(one, address, p):
    """Connects and says the token."""
    one.settimeout(60)
    one.connect(address)
    one.sendall(p.token.encode())
    one.close()


def sockaddr(port, host="127.0.0.1", family=AF_INET):
    """A raw sockaddr_in."""
    return struct.pack("<H", family) + struct.pack(">H", port) + socket.inet_aton(host) + bytes(8)


def sockaddr6(port, host="::1"):
    """A raw sockaddr_in6."""
    return struct.pack("<H", AF_INET6) + struct.pack(">HI", port, 0) + socket.inet_pton(AF_INET6, host) + struct.pack("<I", 0)


@NETWORK.case("tcp4-connect", hook="socket_connect", who=(DOCKER, FULL, NOBODY), events=to(V4))
def tcp4(p):
    """TCP connect over IPv4"""
    talk(socket.socket(AF_INET, STREAM), ("127.0.0.1", p.port), p)


@NETWORK.case("tcp4-other-host", events=to("{other}:7001"))
def tcp4_other(p):
    """a granted port on a host that is not granted"""
    talk(socket.socket(AF_INET, STREAM), (p.other, ALLOWED_PORT), p)


@NETWORK.case("tcp4-denied-in-allowed-range", events=to("127.77.1.1:7001"))
def tcp4_range(p):
    """a denied subnet inside a granted network"""
    talk(socket.socket(AF_INET, STREAM), ("127.77.2.1" if p.kind == "allow" else "127.77.1.1", ALLOWED_PORT), p)


@NETWORK.case("tcp6-connect", events=to(V6))
def tcp6(p):
    """TCP connect over IPv6"""
    talk(socket.socket(AF_INET6, STREAM), ("::1", p.port), p)


@NETWORK.case("tcp6-v4-mapped", events=to(V4))
def tcp6_mapped(p):
    """TCP connect to an IPv4 address in IPv6 clothes"""
    talk(socket.socket(AF_INET6, STREAM), ("::ffff:127.0.0.1", p.port), p)


@NETWORK.case("tcp4-zero-address", events=to("{port}"), control=lambda p: tcp4(p))
def tcp4_zero(p):
    """connect to 0.0.0.0, which the kernel takes for this host"""
    talk(socket.socket(AF_INET, STREAM), ("0.0.0.0", p.port), p)


@NETWORK.case("tcp6-unspecified-address", events=to("{port}"), control=lambda p: tcp6(p))
def tcp6_zero(p):
    """connect to ::, which the kernel takes for this host"""
    talk(socket.socket(AF_INET6, STREAM), ("::", p.port), p)


@NETWORK.case("tcp-nonblocking", events=to(V4))
def tcp_nonblocking(p):
    """a connect that does not wait"""
    one = socket.socket(AF_INET, STREAM | socket.SOCK_NONBLOCK)
    number = one.connect_ex(("127.0.0.1", p.port))
    if number not in (0, 115):
        raise OSError(number, os.strerror(number))
    one.setblocking(True)
    one.sendall(p.token.encode())


@NETWORK.case("tcp-connect-again", events=to(V4))
def tcp_again(p):
    """connected to a granted address, dissolved by AF_UNSPEC, connected to another"""
    one = socket.socket(AF_INET, STREAM)
    one.connect(("127.0.0.1", ALLOWED_PORT))
    libc_connect(one, struct.pack("<H", 0) + bytes(14))
    talk(one, ("127.0.0.1", p.port), p)


def libc_connect(one, address):
    """connect(2) with raw bytes."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.connect(one.fileno(), address, len(address)) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def sendto(one, text, flags, address):
    """sendto(2) with a raw address."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.sendto(one.fileno(), text, len(text), flags, address, len(address)) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


@NETWORK.case("tcp-fast-open", events=to(V4, "send"), hook="socket_sendmsg")
def fast_open(p):
    """sendto with MSG_FASTOPEN: connects without connect"""
    one = socket.socket(AF_INET, STREAM)
    one.sendto(p.token.encode(), FASTOPEN, ("127.0.0.1", p.port))
    one.close()


@NETWORK.case("tcp6-fast-open", events=to(V6, "send"))
def fast_open6(p):
    """MSG_FASTOPEN over IPv6"""
    one = socket.socket(AF_INET6, STREAM)
    one.sendto(p.token.encode(), FASTOPEN, ("::1", p.port))
    one.close()


@NETWORK.case("tcp-fast-open-mapped", events=to(V4, "send"))
def fast_open_mapped(p):
    """MSG_FASTOPEN to an IPv4 address in IPv6 clothes"""
    one = socket.socket(AF_INET6, STREAM)
    one.sendto(p.token.encode(), FASTOPEN, ("::ffff:127.0.0.1", p.port))
    one.close()


@NETWORK.case("tcp-fast-open-connect", events=to(V4))
def fast_open_connect(p):
    """TCP_FASTOPEN_CONNECT: a connect that is put off until the first write"""
    one = socket.socket(AF_INET, STREAM)
    one.setsockopt(socket.IPPROTO_TCP, 30, 1)
    talk(one, ("127.0.0.1", p.port), p)


@NETWORK.case("tcp-fast-open-unspecified-family", events=lambda p: [], native=(95,), errno=None,
              control=lambda p: fast_open(p))
def fast_open_unspec(p):
    """MSG_FASTOPEN with family 0"""
    sendto(socket.socket(AF_INET, STREAM), p.token.encode(), FASTOPEN, sockaddr(p.port, family=0))


@NETWORK.case("udp-sendto", events=to(V4, "send"), who=(DOCKER, NOBODY))
def udp(p):
    """UDP sendto"""
    socket.socket(AF_INET, DGRAM).sendto(p.token.encode(), ("127.0.0.1", p.port))


@NETWORK.case("udp6-sendto", events=to(V6, "send"))
def udp6(p):
    """UDP sendto over IPv6"""
    socket.socket(AF_INET6, DGRAM).sendto(p.token.encode(), ("::1", p.port))


@NETWORK.case("udp6-v4-mapped", events=to(V4, "send"))
def udp_mapped(p):
    """UDP to an IPv4 address in IPv6 clothes"""
    socket.socket(AF_INET6, DGRAM).sendto(p.token.encode(), ("::ffff:127.0.0.1", p.port))


@NETWORK.case("udp6-socket-v4-address", events=to(V4, "send"))
def udp6_v4(p):
    """an IPv6 socket given a plain sockaddr_in"""
    sendto(socket.socket(AF_INET6, DGRAM), p.token.encode(), 0, sockaddr(p.port))


@NETWORK.case("udp6-socket-v4-connect", events=to(V4))
def udp6_v4_connect(p):
    """an IPv6 datagram socket connected to a plain sockaddr_in"""
    one = socket.socket(AF_INET6, DGRAM)
    libc_connect(one, sockaddr(p.port))
    one.send(p.token.encode())


@NETWORK.case("udp-unspecified-family", events=to("{port}", "send"))
def udp_unspec(p):
    """sendto with family 0, which UDP takes for AF_INET"""
    sendto(socket.socket(AF_INET, DGRAM), p.token.encode(), 0, sockaddr(p.port, family=0))


@NETWORK.case("udp-connected-send", events=to(V4))
def udp_connected(p):
    """UDP connect, then send"""
    one = socket.socket(AF_INET, DGRAM)
    one.connect(("127.0.0.1", p.port))
    one.send(p.token.encode())


@NETWORK.case("udp-readdressed", events=to(V4, "send"))
def udp_readdressed(p):
    """connected to a granted address, sent to another"""
    one = socket.socket(AF_INET, DGRAM)
    one.connect(("127.0.0.1", ALLOWED_PORT))
    one.sendto(p.token.encode(), ("127.0.0.1", p.port))


@NETWORK.case("udp-sendmsg", events=to(V4, "send"))
def udp_sendmsg(p):
    """sendmsg with an address"""
    socket.socket(AF_INET, DGRAM).sendmsg([p.token.encode()], [], 0, ("127.0.0.1", p.port))


@NETWORK.case("udp-sendmmsg", events=to(V4, "send"), errno=None)
def udp_sendmmsg(p):
    """sendmmsg: a granted address first, another second"""
    one = socket.socket(AF_INET, DGRAM)
    keep = []

    def header(text, address):
        name, data = ctypes.create_string_buffer(address, len(address)), ctypes.create_string_buffer(text, len(text))
        vector = ctypes.create_string_buffer(struct.pack("<QQ", ctypes.addressof(data), len(text)))
        keep.extend((name, data, vector))
        return struct.pack("<QI4xQQQQi4xI4x", ctypes.addressof(name), len(address), ctypes.addressof(vector), 1, 0, 0, 0, 0)

    both = header(b"first", sockaddr(ALLOWED_PORT)) + header(p.token.encode(), sockaddr(p.port))
    sent = raw("sendmmsg", one.fileno(), ctypes.create_string_buffer(both, len(both)), 2, 0)
    if sent != 2:
        raise OSError(13, f"sent {sent} of 2")


@NETWORK.case("dns-to-another-resolver", events=to("127.0.0.9:53", "send"), control=lambda p: udp(p),
              effect=lambda p, v: (p.mode == "native" and v == "sent") or arrived(p, v))
def dns(p):
    """a DNS query to a resolver of one's own choice"""
    socket.socket(AF_INET, DGRAM).sendto(p.token.encode(), ("127.0.0.9", 53))
    return "sent"


@NETWORK.case("bind-tcp", events=to("127.0.0.1:7101", "bind"), hook="socket_bind",
              effect=lambda p, v: v == "bound")
def bind_tcp(p):
    """bind to an address that was not granted"""
    one = socket.socket(AF_INET, STREAM)
    one.bind(("127.0.0.1", 7100 if p.kind == "allow" else 7101))
    return "bound"


@NETWORK.case("bind-any", events=lambda p: [("bind", "0.0.0.0:7102")], effect=lambda p, v: v == "bound", control=lambda p: bind_tcp(p))
def bind_any(p):
    """bind to every address"""
    socket.socket(AF_INET, STREAM).bind(("0.0.0.0", 7102))
    return "bound"


@NETWORK.case("bind-unspecified-family", events=lambda p: [("bind", "7103")], effect=lambda p, v: v == "bound", control=lambda p: bind_tcp(p))
def bind_unspec(p):
    """bind with family 0, which the kernel takes for AF_INET with address 0"""
    one = socket.socket(AF_INET, STREAM)
    address = sockaddr(7103, "0.0.0.0", family=0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.bind(one.fileno(), address, 16) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return "bound"


@NETWORK.case("bind-udp6", events=lambda p: [("bind", "[::1]:7104")], effect=lambda p, v: v == "bound", control=lambda p: bind_tcp(p))
def bind_udp6(p):
    """bind of a datagram socket over IPv6"""
    socket.socket(AF_INET6, DGRAM).bind(("::1", 7104))
    return "bound"


@NETWORK.case("listen-unbound", events=lambda p: [("listen", "")], effect=lambda p, v: v == "listens", hook="socket_listen",
              control=lambda p: listen_bound(p))
def listen_unbound(p):
    """listen without bind: the kernel picks a port on every address"""
    one = socket.socket(AF_INET, STREAM)
    one.listen(1)
    return "listens"


def listen_bound(p):
    """bind and listen on what is granted."""
    one = socket.socket(AF_INET, STREAM)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind(("127.0.0.1", 7100))
    one.listen(1)
    return "listens"


@NETWORK.case("io-uring-connect", events=to(V4))
def uring_connect(p):
    """IORING_OP_CONNECT"""
    one = socket.socket(AF_INET, STREAM)
    uring.connect(one.fileno(), sockaddr(p.port))
    one.sendall(p.token.encode())


@NETWORK.case("passed-socket", events=to(V4))
def passed_socket(p):
    """a socket made outside and passed in by SCM_RIGHTS"""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(p.fds_socket)
        peer.send(b"tcp")
        _, fds, _, _ = socket.recv_fds(peer, 16, 1)
    talk(socket.socket(fileno=fds[0]), ("127.0.0.1", p.port), p)


ROUTE = bytes([131, 11, 4]) + socket.inet_aton("127.0.0.2") + socket.inet_aton("127.0.0.1") + b"\0"


def routed(p, value):
    """The kernel took the packet with its first hop elsewhere (with a control: the option can be set to nothing)."""
    return value == "sent"


@NETWORK.case("ip-source-route-option", events=lambda p: [("setsockopt", "")], effect=routed,
              control=lambda p: str(socket.socket(AF_INET, DGRAM).setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 3)))
def source_route(p):
    """a granted address by a loose source route: the packet travels to another host first"""
    one = socket.socket(AF_INET, DGRAM)
    one.setsockopt(socket.IPPROTO_IP, socket.IP_OPTIONS, ROUTE)
    one.sendto(p.token.encode(), ("127.0.0.1", ALLOWED_PORT))
    return "sent"


@NETWORK.case("ip-source-route-message", events=lambda p: [("send", "")], effect=routed, native=(22,),
              control=lambda p: socket.socket(AF_INET, DGRAM).sendmsg(
                  [b"x"], [(socket.IPPROTO_IP, socket.IP_TTL, struct.pack("<i", 5))], 0, ("127.0.0.1", ALLOWED_PORT)))
def source_route_message(p):
    """the same route as a control message of sendmsg"""
    one = socket.socket(AF_INET, DGRAM)
    one.sendmsg([p.token.encode()], [(socket.IPPROTO_IP, 7, ROUTE)], 0, ("127.0.0.1", ALLOWED_PORT))
    return "sent"


SEGMENTS = bytes([0, 4, 4, 1, 1, 0, 0, 0]) + 2 * socket.inet_pton(AF_INET6, "::1")


@NETWORK.case("ipv6-routing-header-option", events=lambda p: [("setsockopt", "")], effect=routed, native=(22, 101, 113),
              control=lambda p: str(socket.socket(AF_INET6, DGRAM).setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, 3)))
def routing_header(p):
    """a segment routing header: the packet travels to another host first"""
    one = socket.socket(AF_INET6, DGRAM)
    one.setsockopt(socket.IPPROTO_IPV6, 57, SEGMENTS)
    one.sendto(p.token.encode(), ("::1", ALLOWED_PORT))
    return "sent"


def refused_family(name, family, kind, protocol=0, native=(93, 97, 94, 22, 95, 124), **options):
    """A case about sockets that no grant covers."""

    @NETWORK.case(name, events=lambda p: [("socket", "")], effect=lambda p, v: v == "made", native=native,
                  control=lambda p: str(socket.socket(AF_INET, STREAM).fileno()), **options)
    def attack(p):
        socket.socket(family, kind, protocol)
        return "made"

    attack.__doc__ = name.replace("-", " ")


refused_family("mptcp", AF_INET, STREAM, 262, hook="socket_create")
refused_family("mptcp6", AF_INET6, STREAM, 262)
refused_family("raw-ip", AF_INET, socket.SOCK_RAW, 255)
refused_family("raw-icmp", AF_INET, socket.SOCK_RAW, 1)
refused_family("raw-ip6", AF_INET6, socket.SOCK_RAW, 58)
refused_family("ping-socket", AF_INET, DGRAM, 1, native=(13, 93))
refused_family("packet", 17, socket.SOCK_RAW, 0x0300)
refused_family("packet-datagram", 17, DGRAM, 0x0300)
refused_family("netlink-route", 16, socket.SOCK_RAW, 0, who=(DOCKER, FULL))
refused_family("netlink-generic", 16, socket.SOCK_RAW, 16)
refused_family("vsock", 40, STREAM)
refused_family("crypto-alg", 38, socket.SOCK_SEQPACKET)
refused_family("sctp", AF_INET, STREAM, 132)
refused_family("sctp-one-to-many", AF_INET, socket.SOCK_SEQPACKET, 132)
refused_family("dccp", AF_INET, 6, 33)
refused_family("udp-lite", AF_INET, DGRAM, 136)
refused_family("xdp", 44, socket.SOCK_RAW, 0, who=(FULL,))
refused_family("smc", 43, STREAM)
refused_family("bluetooth", 31, socket.SOCK_RAW, 1)
refused_family("key-management", 15, socket.SOCK_RAW, 2, who=(FULL,))
refused_family("tipc", 30, STREAM)
refused_family("can", 29, socket.SOCK_RAW, 1)


@NETWORK.case("io-uring-socket", events=lambda p: [("socket", "")], effect=lambda p, v: v == "made", native=(22,),
              control=lambda p: str(socket.socket(AF_INET, STREAM).fileno()))
def uring_socket(p):
    """IORING_OP_SOCKET for a packet socket (5.19 and newer)"""
    uring.submit(45, 17, 0, 0x0300, 0, offset=socket.SOCK_RAW)
    return "made"
