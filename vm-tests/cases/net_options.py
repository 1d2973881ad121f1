"""Socket options: what routes, redirects or chooses a port is refused, and so is what nobody has looked at."""

import ctypes
import socket
import struct
import zlib

import net
import uring
from attack import int80
from case import DOCKER, FULL, NOBODY, Family
from net import AF_INET, AF_INET6, DGRAM, NETWORK, STREAM, routed, sendto
from services import ALLOWED_PORT

EVERYBODY = (DOCKER, FULL, NOBODY)
SOL_IP, SOL_SOCKET, SOL_TCP, SOL_UDP, SOL_IPV6 = 0, 1, 6, 17, 41
LOOPBACK6 = socket.inet_pton(AF_INET6, "::1")
# One hop: a routing header of type 2, which needs no capability.
ROUTING2 = bytes([0, 2, 2, 1]) + bytes(4) + LOOPBACK6


def done(_p, value):
    """The attack came to its end."""
    return value == "done"


def ordinary(_p):
    """What curl, web servers, resolvers and QUIC libraries set; all of it must work."""
    one = struct.pack("<i", 1)
    tcp = [(SOL_SOCKET, 2, one), (SOL_SOCKET, 7, struct.pack("<i", 65536)), (SOL_SOCKET, 8, struct.pack("<i", 65536)),
           (SOL_SOCKET, 9, one), (SOL_SOCKET, 13, struct.pack("<ii", 0, 0)), (SOL_SOCKET, 15, one),
           (SOL_SOCKET, 20, struct.pack("<qq", 5, 0)), (SOL_SOCKET, 67, struct.pack("<qq", 5, 0)), (SOL_TCP, 1, one),
           (SOL_TCP, 3, one), (SOL_TCP, 4, struct.pack("<i", 60)), (SOL_TCP, 5, struct.pack("<i", 60)),
           (SOL_TCP, 6, struct.pack("<i", 5)), (SOL_TCP, 9, one), (SOL_TCP, 12, one), (SOL_TCP, 18, struct.pack("<i", 9000)),
           (SOL_TCP, 23, struct.pack("<i", 5)), (SOL_TCP, 25, struct.pack("<i", 16384))]
    udp = [(SOL_SOCKET, 6, one), (SOL_SOCKET, 12, one), (SOL_SOCKET, 29, one), (SOL_SOCKET, 37, struct.pack("<i", 8)),
           (SOL_UDP, 103, struct.pack("<i", 1200)), (SOL_UDP, 104, one)]
    four = [(SOL_IP, 1, struct.pack("<i", 16)), (SOL_IP, 2, struct.pack("<i", 64)), (SOL_IP, 8, one),
            (SOL_IP, 10, struct.pack("<i", 2)), (SOL_IP, 11, one), (SOL_IP, 13, one), (SOL_IP, 24, one), (SOL_IP, 49, one)]
    six = [(SOL_IPV6, 26, one), (SOL_IPV6, 16, struct.pack("<i", 64)), (SOL_IPV6, 23, struct.pack("<i", 2)), (SOL_IPV6, 25, one),
           (SOL_IPV6, 29, one), (SOL_IPV6, 49, one), (SOL_IPV6, 66, one), (SOL_IPV6, 67, struct.pack("<i", 16))]
    for family, kind, options in [(AF_INET, STREAM, tcp + four), (AF_INET6, STREAM, tcp + six), (AF_INET, DGRAM, udp + four),
                                  (AF_INET6, DGRAM, udp + six), (socket.AF_UNIX, STREAM, [(SOL_SOCKET, 16, one)])]:
        with socket.socket(family, kind) as made:
            for level, option, value in options:
                try:
                    made.setsockopt(level, option, value)
                except OSError as error:
                    raise OSError(error.errno, f"family {family}, type {kind}, level {level}, option {option}: {error}") from None
    return "done"


def refused(name, about, family, kind, level, option, value, **options):
    """A case of one option that is not on the list, and that nobody needs a capability for."""
    options.setdefault("who", EVERYBODY)

    @NETWORK.case(name, events=lambda p: [("setsockopt", "")], effect=done, control=ordinary, **options)
    def attack(_p):
        socket.socket(family, kind).setsockopt(level, option, value)
        return "done"

    attack.__doc__ = about


ONE = struct.pack("<i", 1)
GROUP = socket.inet_aton("224.0.0.251") + socket.inet_aton("127.0.0.1")
GROUP6 = socket.inet_pton(AF_INET6, "ff01::5") + struct.pack("<i", 1)
refused("option-multicast-membership", "a multicast group joined: the kernel sends IGMP", AF_INET, DGRAM, SOL_IP, 35, GROUP,
        hook="socket_setsockopt")
refused("option-multicast6-membership", "an IPv6 multicast group joined: the kernel sends MLD", AF_INET6, DGRAM, SOL_IPV6, 20, GROUP6)
refused("option-bind-to-device", "packets bound to a device, past the routes", AF_INET, STREAM, SOL_SOCKET, 25, b"lo\0")
refused("option-bind-to-index", "packets bound to a device by its number", AF_INET, STREAM, SOL_SOCKET, 62, ONE)
refused("option-multicast-device", "multicast packets bound to a device", AF_INET, DGRAM, SOL_IP, 32, GROUP[4:])
refused("option-unicast-device", "packets bound to a device by IP_UNICAST_IF", AF_INET, DGRAM, SOL_IP, 50, struct.pack(">i", 1))
refused("option-freebind", "IP_FREEBIND: an address that is not the host's", AF_INET, DGRAM, SOL_IP, 15, ONE)
refused("option-transparent", "IP_TRANSPARENT: the same with its packets", AF_INET, DGRAM, SOL_IP, 19, ONE,
        who=(DOCKER, FULL))
refused("option-mark", "SO_MARK: another routing table", AF_INET, DGRAM, SOL_SOCKET, 36, ONE, who=(FULL,))
refused("option-sticky-source", "IPV6_PKTINFO for good: source and device of every packet", AF_INET6, DGRAM, SOL_IPV6, 50,
        LOOPBACK6 + struct.pack("<i", 1))
refused("option-flow-info", "IPV6_FLOWINFO_SEND: labels that can hold a route", AF_INET6, DGRAM, SOL_IPV6, 33, ONE)
refused("option-repair", "TCP_REPAIR: a connection that nobody agreed to", AF_INET, STREAM, SOL_TCP, 19, ONE, who=(FULL,))
refused("option-not-in-list", "an option that no version knows", AF_INET, STREAM, SOL_SOCKET, 9999, ONE, native=(92,))


def label(number):
    """`struct in6_flowlabel_req`, and behind it control data with the routing header."""
    request = LOOPBACK6 + struct.pack(">I", number) + struct.pack("<BBHHHI", 0, 1, 1, 60, 60, 0)
    return request + struct.pack("<Qii", 16 + len(ROUTING2), SOL_IPV6, 57) + ROUTING2


@NETWORK.case("flow-label-route", events=lambda p: [("setsockopt", "")], effect=routed, control=ordinary,
              who=EVERYBODY, hook="socket_setsockopt")
def flow_label(p):
    """an IPv6 flow label that holds a routing header: packets to a granted address go to another host first"""
    one = socket.socket(AF_INET6, DGRAM)
    # A label stays somebody's for a while.
    number = 0x10000 | zlib.crc32(p.run.encode()) & 0xFFFF
    one.setsockopt(SOL_IPV6, 32, label(number))
    one.setsockopt(SOL_IPV6, 33, 1)
    address = struct.pack("<H", AF_INET6) + struct.pack(">HI", ALLOWED_PORT, number) + LOOPBACK6 + struct.pack("<I", 0)
    sendto(one, p.token.encode(), 0, address)
    return "sent"


@NETWORK.case("port-range", events=lambda p: [("setsockopt", "")], effect=done, native=(92,), control=ordinary,
              who=EVERYBODY, hook="socket_bind")
def port_range(_p):
    """IP_LOCAL_PORT_RANGE of one port, then port 0: a port of one's own choice, which bind would have been refused (6.3)"""
    one = socket.socket(AF_INET, DGRAM)
    one.setsockopt(SOL_SOCKET, socket.SO_REUSEPORT, 1)
    one.setsockopt(SOL_IP, 51, struct.pack("<I", 45105 << 16 | 45105))
    one.bind(("0.0.0.0", 0))
    return "done" if one.getsockname()[1] == 45105 else f"bound to {one.getsockname()}"


def any_port(_p):
    """Port 0 and no port at all, which is what clients do."""
    with socket.socket(AF_INET, DGRAM) as one:
        one.bind(("0.0.0.0", 0))
        one.sendto(b"x", ("127.0.0.1", ALLOWED_PORT))
    with socket.socket(AF_INET, STREAM) as one:
        one.setsockopt(SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(("0.0.0.0", 0))
        one.connect(("127.0.0.1", ALLOWED_PORT))
    return "done"


def shared(name, about, option, use):
    """A datagram socket that shares its port, and a port of the kernel's choice: one that is somebody's already."""

    @NETWORK.case(name, events=lambda p: [("bind", "")], effect=done, control=any_port, who=EVERYBODY, hook="socket_bind")
    def attack(_p):
        one = socket.socket(AF_INET, DGRAM)
        one.setsockopt(SOL_SOCKET, option, 1)
        use(one)
        return "done"

    attack.__doc__ = about


shared("shared-port-bind", "SO_REUSEADDR and port 0, tried until the kernel chooses a port that a service shares",
       socket.SO_REUSEADDR, lambda one: one.bind(("0.0.0.0", 0)))
shared("shared-port-connect", "the same by connect, which binds", socket.SO_REUSEPORT,
       lambda one: one.connect(("127.0.0.1", ALLOWED_PORT)))
shared("shared-port-send", "the same by sendto, which binds", socket.SO_REUSEPORT,
       lambda one: one.sendto(b"x", ("127.0.0.1", ALLOWED_PORT)))


@NETWORK.case("io-uring-setsockopt", events=lambda p: [("setsockopt", "")], effect=done, native=(22, 95), control=ordinary, who=EVERYBODY)
def uring_option(_p):
    """SOCKET_URING_OP_SETSOCKOPT (6.7 and newer)"""
    one = socket.socket(AF_INET, STREAM)
    value = ctypes.create_string_buffer(ONE, 4)
    rest = struct.pack("<IQ", 4, ctypes.addressof(value))
    uring.submit(46, one.fileno(), 15 << 32 | SOL_IP, 0, 0, offset=3, rest=rest)
    return "done"


@NETWORK.case("i386-setsockopt", events=lambda p: [("setsockopt", "")], effect=done, control=ordinary, who=EVERYBODY)
def i386_option(_p):
    """setsockopt by int 0x80: the 32-bit system call table"""
    one = socket.socket(AF_INET, STREAM)
    int80(366, one.fileno(), SOL_IP, 15, ONE, 4)
    return "done"


def named(places, here):
    """The same profile, by which two options are allowed, one of them by its numbers."""
    return net.profile(places, here).replace("[kernel]\n", '[kernel]\nsocket_options = ["SO_BINDTODEVICE", "1/0x5"]\n')


OPTIONS = Family("net-options", named, locate=net.locate, setup=net.setup, effect=done, who=EVERYBODY)


def on_loopback(kind=DGRAM):
    """A socket with the options that the profile names."""
    one = socket.socket(AF_INET, kind)
    one.setsockopt(SOL_SOCKET, 5, 1)
    one.setsockopt(SOL_SOCKET, 25, b"lo\0")
    return one


def by_device(_p):
    """They are set, and a granted address is talked to."""
    with on_loopback(STREAM) as one:
        one.connect(("127.0.0.1", ALLOWED_PORT))
    with on_loopback() as one:
        one.sendto(b"x", ("127.0.0.1", ALLOWED_PORT))
    return "done"


def unnamed(name, about, family, level, option, value):
    """An option that is not named where others are."""

    @OPTIONS.case(name, events=lambda p: [("setsockopt", "")], control=by_device)
    def attack(_p):
        socket.socket(family, DGRAM).setsockopt(level, option, value)
        return "done"

    attack.__doc__ = about


unnamed("unnamed", "an option, where the profile names others", AF_INET, SOL_SOCKET, 62, ONE)
unnamed("same-number", "the number of a named option, at another level", AF_INET6, SOL_IPV6, 5, ONE)


@OPTIONS.case("any-address", events=lambda p: [("connect", "")], control=by_device)
def any_address(_p):
    """a socket bound to a device and connect to 0.0.0.0, which stands for the device's address and not for loopback"""
    one = on_loopback()
    one.connect(("0.0.0.0", ALLOWED_PORT))
    return "done"


@OPTIONS.case("any-address-send", events=lambda p: [("send", "")], control=by_device)
def any_address_send(_p):
    """the same by sendto"""
    on_loopback().sendto(b"x", ("0.0.0.0", ALLOWED_PORT))
    return "done"


@OPTIONS.case("control-message", events=lambda p: [("send", "")], native=(22,), control=by_device)
def control_message(_p):
    """a named option's number in control data, which the profile does not open"""
    socket.socket(AF_INET, DGRAM).sendmsg([b"x"], [(SOL_SOCKET, 25, b"lo\0\0")], 0, ("127.0.0.1", ALLOWED_PORT))
    return "done"
