"""Scenes of outbound names under attack: other names behind a granted one's connection, tunnels, lies of DNS, and crowds."""

import os
import signal
import socket
import threading
from contextlib import contextmanager

from case import scene
from system import put, role_pids, wait_event, wait_for
from system_egress import (ASKED, CLIENT, PLACE, PRIVATE, PROFILES, SERVER, SERVERS, Client, Resolver, connection, containers, egress, elsewhere, log, prepare, run,
                           write_profile)

# A resolver of everyone's, which is at hand in this guest.
PUBLIC = "8.8.8.8"
DOH = "dns.rf-public.test"
KEPT = 8080
CROWD = 500
FLOOD = 20_000
# What a client does here beside what it does elsewhere.
MORE = r'''
import random, struct, threading
KEPT = []

def answer(one, held=None):
    """One answer of a connection that is kept: its status and body, or nothing at its end. `held`: what came after it, and after those before."""
    held = bytearray() if held is None else held
    while b"\r\n\r\n" not in held:
        part = one.recv(4096)
        if not part:
            return held.decode()
        held += part
    head, body = bytes(held).split(b"\r\n\r\n", 1)
    length = int(next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")).split(b":")[1])
    while len(body) < length:
        part = one.recv(4096)
        if not part:
            break
        body += part
    held[:] = body[length:]
    return head.split(b" ", 2)[1].decode() + " " + body[:length].decode()

def request(host, more=""):
    return f"GET / HTTP/1.1\r\nHost: {host}\r\n{more}\r\n".encode()

def each(name, port, hosts, at_once):
    """What comes of requests on one connection, one after the other or sent all at once."""
    with socket.create_connection((name, port), 60) as one:
        said, held = [], bytearray()
        if at_once:
            one.sendall(b"".join(request(host) for host in hosts))
        for host in hosts:
            try:
                if not at_once:
                    one.sendall(request(host))
                said.append(answer(one, held))
            except OSError as error:
                said.append(type(error).__name__)
        return said

def raw(name, port, text):
    with socket.create_connection((name, port), 60) as one:
        one.sendall(text.encode())
        try:
            return rest(one)
        except OSError as error:
            return type(error).__name__

def connects(address, port):
    with socket.create_connection((address, port), 60):
        return True

def outcome(name):
    """What the resolver answers: an address, or by which name getaddrinfo calls it."""
    try:
        return socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)[0][4][0]
    except socket.gaierror as error:
        return {socket.EAI_AGAIN: "again", socket.EAI_NONAME: "none"}.get(error.errno, str(error))

def outcomes(names):
    return [outcome(name) for name in names]

def question(name):
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack(">HHHHHH", random.randrange(65536), 0x100, 1, 0, 0, 0) + labels + b"\0\0\1\0\1"

def ask(server, name):
    """The code of the answer of a server."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.settimeout(60)
        one.sendto(question(name), (server, 53))
        return one.recv(2000)[3] & 15

def flood(server, name, count):
    """Asks for so many other names, as fast as they go, and reads no answer."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        one.setblocking(False)
        sent = 0
        for number in range(count):
            try:
                sent += one.sendto(question(f"n{number}.{name}"), (server, 53)) > 0
            except BlockingIOError:
                pass
        return sent

def keep(name, port, count):
    """So many connections, all open at once: how many were answered."""
    address = resolve(name)[0]
    for _ in range(count):
        KEPT.append(socket.create_connection((address, port), 120))
        KEPT[-1].sendall(request(name))
    return answered(name)

def answered(name):
    return sum(answer(one) == f"200 hello {name}" for one in KEPT)

def ask_kept(name):
    for one in KEPT:
        one.sendall(request(name))
    return answered(name)

def ends(name):
    """How each of them goes on."""
    found = set()
    for one in KEPT:
        try:
            one.sendall(request(name))
            found.add(answer(one) and "answered" or "ended")
        except OSError as error:
            found.add("ended")
        one.close()
    KEPT.clear()
    return sorted(found)
'''


def name_data(name):
    """A name in a record."""
    return b"".join(bytes([len(label)]) + label.encode() for label in name.split(".")) + b"\0"


class Liar(Resolver):
    """The host's resolver, in others' hands: `rebind` is public once; names are other names' aliases."""

    # What an alias leads to.
    aliases = {"alias.rf.test": PRIVATE, "honest.rf.test": SERVER}

    def answers(self, name, kind):
        if name in self.aliases:
            target = "target.rf.test"
            alias = (ASKED, 5, name_data(target))
            return True, [alias, (name_data(target), 1, socket.inet_aton(self.aliases[name]))] if kind == 1 else [alias]
        if name == "rebind.rf.test":
            # Each connection asks once for IPv4.
            address = SERVER if kind == 1 and self.asked_for_address() == 1 else PRIVATE
            return True, [(ASKED, 1, socket.inet_aton(address))] if kind == 1 else []
        if name == "both.rf.test":
            return True, [(ASKED, 1, socket.inet_aton(PRIVATE)), (ASKED, 1, socket.inet_aton("127.0.0.1"))] if kind == 1 else []
        if name == DOH:
            return True, [(ASKED, 1, socket.inet_aton(PUBLIC))] if kind == 1 else []
        return super().answers(name, kind)

    def asked_for_address(self):
        """How often `rebind` was asked for, with this time."""
        self.rebound = getattr(self, "rebound", 0) + 1
        return self.rebound


def kept(servers):
    """Serves a connection's requests one after the other."""

    def serve(one):
        held = b""
        while True:
            while b"\r\n\r\n" not in held:
                part = one.recv(4096)
                if not part:
                    return
                held += part
            head, held = held.split(b"\r\n\r\n", 1)
            host = next(line for line in head.decode().split("\r\n") if line.lower().startswith("host:")).split(":")[1].strip()
            servers.reached.append(f"kept {host}")
            body = f"hello {host}"
            one.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())

    return serve


def bound(address, port):
    """A datagram socket there."""
    one = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    one.bind((address, port))
    return one


def public(servers):
    """What answers at a public resolver's address, by TLS's ports and by datagrams: notes what came."""
    run(["ip", "-n", SERVERS, "addr", "replace", f"{PUBLIC}/32", "dev", "lo"])
    run(["ip", "route", "replace", f"{PUBLIC}/32", "via", "10.254.0.2"])
    for port in (443, 853, 53):
        servers.listen(PUBLIC, port, lambda one, port=port: servers.reached.append(f"public tcp {port}"))
    for port in (443, 853, 53):
        one = elsewhere(lambda port=port: bound(PUBLIC, port))

        def note(one=one, port=port):
            while True:
                one.recv(4096)
                servers.reached.append(f"public udp {port}")

        threading.Thread(target=note, daemon=True).start()


@contextmanager
def attacked(net):
    """Servers, and the host's resolver, where a profile grants what it is told, and a client attacks."""
    servers, _ = prepare(Liar)
    put(f"{PLACE}/client.py", MORE + CLIENT)
    for address in (SERVER, PRIVATE):
        servers.listen(address, KEPT, kept(servers))
    write_profile(net)
    yield servers
    os.unlink(f"{PROFILES}/rf-egress.toml")


def reached(servers, action):
    """What reached a server meanwhile."""
    before = len(servers.reached)
    action()
    return servers.reached[before:]


@scene("system/egress-fronting", limit=200)
def fronting():
    """a connection to a granted name, without TLS, carries no request for another: not the second, none in a body, none by a proxy's method"""
    plain, other, port = "plain.rf.test", "other.rf.test", KEPT
    with attacked([f"{plain}:{port}"]) as servers:
        client, free = Client(), Client(under=())
        for at_once in (False, True):
            # Controls: the server takes another host on the same connection, and a granted connection carries several requests.
            said = free.does("each", SERVER, port, [plain, other], at_once)
            assert said == [f"200 hello {plain}", f"200 hello {other}"], said
            said = client.does("each", plain, port, [plain] * 3, at_once)
            assert said == [f"200 hello {plain}"] * 3, said
            said.clear()
            got = reached(servers, lambda: said.extend(client.does("each", plain, port, [plain, other, plain], at_once)))
            assert f"hello {other}" not in str(said) and not any(other in line for line in got), (said, got)
        hidden = f"GET / HTTP/1.1\r\nHost: {other}\r\n\r\n"
        whole = f"GET / HTTP/1.1\r\nHost: {plain}\r\nConnection: close\r\n"
        for attack in (f"GET / HTTP/1.1\r\nHost: {plain}\r\nContent-Length: {len(hidden)}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}",
                       f"GET / HTTP/1.1\r\nHost: {plain}\r\nContent-Length: 0\r\nContent-Length: {len(hidden)}\r\n\r\n{hidden}",
                       f"{whole}Host: {other}\r\n\r\n", f"GET http://{other}/ HTTP/1.1\r\nHost: {plain}\r\n\r\n",
                       f"CONNECT {other}:443 HTTP/1.1\r\nHost: {plain}\r\n\r\n", f"GET / HTTP/1.1\nHost: {plain}\n\n{hidden}",
                       f"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n{hidden}", f"GET / HTTP/1.1\r\nHost : {other}\r\nHost: {plain}\r\n\r\n"):
            got = reached(servers, lambda attack=attack: client.told("raw", plain, port, attack))
            # What came of the connection before may arrive late.
            assert not any(other in line for line in got), (attack, got)
        assert client.does("each", plain, port, [plain], False) == [f"200 hello {plain}"]
        client.stop()
        free.stop()


@scene("system/egress-dns", limit=300)
def dns():
    """names are no tunnel, the host's resolver cannot lead a name inside, and no other resolver is reached, by address or by name"""
    public_name = "plain.rf.test"
    net = [f"{public_name}:80", "*.wild.rf.test:443", *(f"{name}.rf.test:80" for name in ("rebind", "alias", "honest", "both"))]
    with attacked(net) as servers:
        public(servers)
        client, free = Client(), Client(under=())

        # Rebinding: public when it was looked at, private for the next connection.
        name = "rebind.rf.test"
        assert f"hello {name}" in client.does("http", name, name)
        got = reached(servers, lambda: client.told("http", name, name))
        wait_event(lambda event: connection(name, "refused")(event) and event["connection"]["cause"] == "not_public")
        # An alias, of a name that nobody was granted, to an address inside; and one that leads out.
        assert "hello honest.rf.test" in client.does("http", "honest.rf.test", "honest.rf.test")
        for name in ("alias.rf.test", "both.rf.test"):
            got += reached(servers, lambda name=name: client.told("http", name, name))
            wait_event(lambda event, name=name: connection(name, "refused")(event) and event["connection"]["cause"] == "not_public")
        assert not got, got
        assert f"hello {name}" in free.does("http", PRIVATE, name), "the control: the private server"

        # Other resolvers.
        for port in (443, 853, 53):
            assert free.does("connects", PUBLIC, port)
            assert free.does("datagram", PUBLIC, port)
        wait_for(lambda: len({line for line in servers.reached if line.startswith("public")}) == 6, "the control: each port of the public resolver")
        assert free.does("connects", DOH, 443)
        assert DOH in servers.resolver.asked
        # Each of them is on the list before anything else is looked for there.
        wait_for(lambda: sum(line.startswith("public") for line in servers.reached) == 7, "the control: the connection by name")
        del servers.resolver.asked[:]
        before = len(servers.reached)
        for port in (443, 853):
            client.fails("connects", PUBLIC, port, why="PermissionError")
            client.fails("connects", DOH, port, why="gaierror")
            client.fails("datagram", PUBLIC, port, why="PermissionError")
        assert client.does("ask", PUBLIC, "other.rf.test") == 3
        assert client.does("ask", PUBLIC, public_name) == 0
        assert servers.reached[before:] == [], servers.reached[before:]

        # Two hundred labels with something to tell, under a name of which all are granted: an address each, until there is no more room.
        said = client.does("outcomes", [f"{number:040x}.wild.rf.test" for number in range(200)])
        given = [one for one in said if one.startswith(("198.18.", "198.19."))]
        assert len(set(given)) == 127 and said[127:] == ["again"] * 73, said
        wait_event(lambda event: event["op"] == "net.name" and event["verdict"] == "denied" and event["addr"].endswith(".wild.rf.test"))
        assert f"hello {public_name}" in client.does("http", public_name, public_name)
        assert client.does("outcome", f"{0:040x}.wild.rf.test") == said[0]
        # Nobody asked further, and to whom no name was granted no question goes.
        asked = [name for name in servers.resolver.asked if "wild" in name or "other" in name or name == DOH]
        assert public_name in servers.resolver.asked and not asked, asked
        client.stop()
        free.stop()


@scene("system/egress-crowd", limit=400)
def crowd():
    """500 connections at once, all served; a worker that is killed ends them, and others follow; a flood of questions holds up no other container"""
    plain = "plain.rf.test"
    with attacked([f"{plain}:{KEPT}", f"{plain}:80"]) as servers:
        client = Client()
        kept = client.does("keep", plain, KEPT, CROWD)
        assert kept == CROWD, f"{kept} of {CROWD}: {egress()} {log()[-1500:]}"
        assert client.does("ask_kept", plain) == CROWD
        state = egress()
        before = len(servers.reached)
        os.kill(state["pid"], signal.SIGKILL)
        assert client.does("ends", plain) == ["ended"]
        assert len(servers.reached) == before, "a connection outlived its worker"
        wait_for(lambda: egress()["state"] == "running" and egress()["pid"] != state["pid"], "another worker")
        assert f"hello {plain}" in client.does("http", plain, plain)
        assert client.does("keep", plain, KEPT, 10) == 10

        # Its own resolver is another's trouble only.
        beside = Client()
        wait_for(lambda: len(containers()) == 2, "both")
        sent = []
        flooding = threading.Thread(target=lambda: sent.append(client.does("flood", "127.0.0.1", "other.rf.test", FLOOD)))
        flooding.start()
        served = 0
        while flooding.is_alive() or served < 3:
            assert f"hello {plain}" in beside.does("http", plain, plain)
            served += 1
        flooding.join()
        assert sent and sent[0] > FLOOD / 2, sent
        # The flooder's own is served again, too, and its connections were all the time.
        assert client.does("ask_kept", plain) == 10
        wait_for(lambda: client.told("http", plain, plain)[0] == "ok", "the flooder's own resolver")
        wait_event(lambda event: event["op"] == "net.name" and event["verdict"] == "denied" and event["addr"].endswith(".other.rf.test"))
        assert not any("other" in name for name in servers.resolver.asked), servers.resolver.asked[-3:]
        beside.stop()
        client.stop()
        wait_for(lambda: not role_pids("egress-worker"), "both workers to end")
