"""Scenes of outbound names: what a container reaches by name, where the kernel, the core and an egress worker hold it to that."""

import ctypes
import glob
import json
import os
import signal
import socket
import ssl
import struct
import subprocess
import threading

from case import NOBODY, profile_text, scene
from harness import HERE, PYTHON
from system import (BASE, BECOME, DAEMON_LOG, PATIENCE, daemon_log, kill_role, put, reload, ringfence, role_pids, said, start_daemon, wait_event,
                    wait_for)

PLACE = f"{BASE}/egress"
# Public, and in this guest nobody's: it has no way out.
SERVER = "20.9.8.7"
PRIVATE = "10.1.2.3"
SERVERS = "rf-servers"
PROFILES = "/etc/ringfence/profiles"
CERTIFIED = ["granted.rf.test", "other.rf.test", "later.rf.test", "a.wild.rf.test", "b.c.wild.rf.test", "inner.rf.test"]
NAMES = {"inner.rf.test": PRIVATE, **{name: SERVER for name in [*CERTIFIED[:-1], "plain.rf.test", "banner.rf.test"]}}
GRANTED = ["granted.rf.test:443", "plain.rf.test:80", "*.wild.rf.test:443", "tcp:banner.rf.test:2222", "inner.rf.test:443"]

# Stands in an answer for the name that was asked for.
ASKED = b"\xc0\x0c"


class Resolver:
    """The host's DNS: answers for NAMES, over UDP, and remembers what it was asked."""

    def __init__(self):
        self.asked = []
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 53))
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            query, peer = self.socket.recvfrom(4096)
            labels, at = [], 12
            while query[at]:
                labels.append(query[at + 1:at + 1 + query[at]].decode())
                at += 1 + query[at]
            name, kind = ".".join(labels).lower(), struct.unpack(">H", query[at + 1:at + 3])[0]
            self.asked.append(name)
            question = query[12:at + 5]
            known, records = self.answers(name, kind)
            answers = b"".join(owner + struct.pack(">HHIH", of, 1, 5, len(data)) + data for owner, of, data in records)
            head = query[:2] + struct.pack(">HHHHH", 0x8180 | (0 if known else 3), 1, len(records), 0, 0)
            self.socket.sendto(head + question + answers, peer)

    def answers(self, name, kind):
        """Whether there is such a name, and the records for a question about it: whose, type and data of each."""
        address = NAMES.get(name)
        return bool(address), [(ASKED, kind, socket.inet_aton(address))] if address and kind == 1 else []


class Servers:
    """TLS, HTTP and something that speaks first, at one address. `reached`: what each connection said or is called."""

    def __init__(self):
        self.reached, self.resolver = [], None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(f"{PLACE}/server.pem", f"{PLACE}/server.key")
        # At both addresses: what must not be reached is there.
        for address in (SERVER, PRIVATE):
            self.listen(address, 443, lambda one: self.http(context.wrap_socket(one, server_side=True), "https"))
            self.listen(address, 80, lambda one: self.http(one, "http"))
            self.listen(address, 2222, self.banner)

    def listen(self, address, port, serve):
        """Serves each connection in a thread of its own."""
        listener = elsewhere(lambda: socket.create_server((address, port)))

        def accept():
            while True:
                threading.Thread(target=self.guarded, args=(serve, listener.accept()[0]), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()

    def guarded(self, serve, one):
        with one:
            try:
                serve(one)
            except OSError as error:
                self.reached.append(f"broken {error}")

    def http(self, one, what):
        head = b""
        while b"\r\n\r\n" not in head:
            part = one.recv(4096)
            if not part:
                return
            head += part
        host = next(line for line in head.decode().split("\r\n") if line.lower().startswith("host:")).split(":")[1].strip()
        self.reached.append(f"{what} {host}")
        body = f"hello {host}"
        one.sendall(f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode())
        one.close()

    def banner(self, one):
        self.reached.append("banner")
        one.sendall(b"SSH-2.0-rf\r\n")
        one.recv(100)


# Does what each line says, under the profile, for as long as it is told.
CLIENT = r'''
import json, os, socket, ssl, sys

def https(address, name, host, port=443):
    context = ssl.create_default_context(cafile=sys.argv[1])
    with socket.create_connection((address, port), 60) as plain, context.wrap_socket(plain, server_hostname=name) as one:
        one.sendall(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        return rest(one), one.getpeername()[:2]

def http(address, host):
    with socket.create_connection((address, 80), 60) as one:
        one.sendall(f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        return rest(one)

def rest(one):
    told = b""
    while part := one.recv(4096):
        told += part
    return told.decode()

def resolve(name, kind=socket.SOCK_STREAM):
    return sorted({entry[4][0] for entry in socket.getaddrinfo(name, None, type=kind)})

def banner(address):
    with socket.create_connection((address, 2222), 60) as one:
        return one.recv(100).decode()

def datagram(address, port):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        return one.sendto(b"x", (address, port))

print(os.getpid(), flush=True)
for line in sys.stdin:
    word, *given = json.loads(line)
    try:
        print(json.dumps(["ok", globals()[word](*given)]), flush=True)
    except Exception as error:
        print(json.dumps(["failed", f"{type(error).__name__}: {error}"]), flush=True)
'''


class Client:
    """A process that reaches for names; `before` is what it is started by."""

    def __init__(self, *before, under=("ringfence", "run", "--profile", "rf-egress", "--")):
        command = [*before, *under, PYTHON, "-E", "-s", "-S", "-B", "-u", f"{PLACE}/client.py", f"{PLACE}/server.pem"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd="/")
        first = self.process.stdout.readline()
        assert first.strip(), f"the client did not start: {self.process.stderr.read()[-2000:]}; {log()}"
        self.pid = int(first)

    def told(self, *words):
        """What came of it: `ok` or `failed`, and what."""
        self.process.stdin.write(json.dumps(words) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer.strip(), f"the client ended: {self.process.stderr.read()[-2000:]}"
        return json.loads(answer)

    def does(self, *words):
        """The same, which has to be done."""
        how, what = self.told(*words)
        assert how == "ok", f"{words}: {what}; {egress()}; {log()}"
        return what

    def fails(self, *words, why=""):
        """The same, which must not be."""
        how, what = self.told(*words)
        assert how == "failed" and why in what, f"{words} gave {how}: {what}"
        return what

    def address(self, name):
        """The one that stands for a name."""
        found, = self.does("resolve", name)
        assert found.startswith(("198.18.", "198.19.")), found
        return found

    def fetch(self, name):
        """A page by name, as any client would."""
        page, peer = self.does("https", name, name, name)
        assert page.endswith(f"hello {name}"), page
        return peer

    def stop(self):
        """Ends it."""
        self.process.stdin.close()
        self.process.wait(PATIENCE)


def log():
    """The end of what the daemon said, where it says that to a file."""
    return daemon_log() if os.path.exists(DAEMON_LOG) else "(in the journal)"


def run(command, **options):
    """Runs something that has to succeed."""
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=PATIENCE, **options)
    assert done.returncode == 0, f"{command}: {said(done)}"
    return done.stdout


def write_profile(net, deny=()):
    """The profile `rf-egress`, whose tables are the guest's own files."""
    text = profile_text("vm test: egress", ["/usr", "/etc", "/bin", "/lib", "/lib64", "/proc", HERE, PLACE], (), ["/usr/bin", HERE], net,
                        {"net": list(deny)} if deny else None, 'capabilities = ["default"]\naudit = "denied"')
    os.makedirs(PROFILES, exist_ok=True)
    put(f"{PROFILES}/rf-egress.toml", text)


def servers_network():
    """A network namespace for the servers, by a route: no name may lead to an address of the host's own."""
    if not os.path.exists(f"/run/netns/{SERVERS}"):
        run(["ip", "netns", "add", SERVERS])
        run(["ip", "link", "add", "rf-host", "type", "veth", "peer", "name", "rf-servers", "netns", SERVERS])
        run(["ip", "addr", "add", "10.254.0.1/30", "dev", "rf-host"])
        run(["ip", "link", "set", "rf-host", "up"])
        inside = ["ip", "-n", SERVERS]
        run([*inside, "addr", "add", "10.254.0.2/30", "dev", "rf-servers"])
        run([*inside, "link", "set", "rf-servers", "up"])
        run([*inside, "link", "set", "lo", "up"])
        for address in (SERVER, PRIVATE):
            run([*inside, "addr", "add", f"{address}/32", "dev", "lo"])
            run(["ip", "route", "add", f"{address}/32", "via", "10.254.0.2"])


def elsewhere(do):
    """Does something in the servers' network namespace, which is a thread's."""
    done = []

    def work():
        with open(f"/run/netns/{SERVERS}") as namespace:
            if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), 0):
                done.append(OSError(ctypes.get_errno(), "setns"))
                return
        try:
            done.append(do())
        except OSError as error:
            done.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if isinstance(done[0], OSError):
        raise done[0]
    return done[0]


def prepare(resolver=Resolver):
    """Servers with a certificate of their own, beside the host, and the host's resolver."""
    os.makedirs(PLACE, exist_ok=True)
    os.chmod(PLACE, 0o755)
    names = ",".join(f"DNS:{name}" for name in CERTIFIED)
    run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=rf test",
         "-addext", f"subjectAltName={names}", "-keyout", f"{PLACE}/server.key", "-out", f"{PLACE}/server.pem"])
    with open(f"{PLACE}/client.py", "w") as file:
        file.write(CLIENT)
    run(["ip", "link", "set", "lo", "up"])
    servers_network()
    put("/etc/resolv.conf", "nameserver 127.0.0.1\n")
    write_profile(GRANTED)
    servers = Servers()
    servers.resolver = resolver()
    return servers, servers.resolver


def containers():
    """Those of the profile, as `status` has them."""
    shown = json.loads(ringfence("status", "--json").stdout)
    return [one for one in shown["containers"] if one["profile"] == "rf-egress"]


def egress():
    """What serves the only container's names."""
    found = containers()
    return found[0].get("egress") if len(found) == 1 else found


def connection(name, outcome):
    """For `wait_event`: a connection by name that is over."""
    return lambda event: event["op"] == "net.connection" and event.get("name") == name and event["connection"]["outcome"] == outcome


@scene("system/egress", limit=240, hook="inet_conn_established")
def names():
    """a container reaches the names that it was granted and no other; its worker, killed, is followed by another; names come and go"""
    servers, resolver = prepare()
    assert rewriters() == 0, "nobody has names, and everybody would pay for the programs"
    client = Client(*BECOME[NOBODY])
    assert rewriters() == 8
    state = egress()
    assert state["state"] == "running" and state["pid"] in role_pids("egress-worker"), state
    with open(f"/proc/{state['pid']}/status") as file:
        status = dict(line.split(":\t", 1) for line in file.read().splitlines() if ":\t" in line)
    assert status["Uid"].split() == [str(state["uid"])] * 4 and int(status["CapEff"], 16) == 0, status
    # What is granted, at its own address, which is the one that the client goes on to see.
    address = client.address("granted.rf.test")
    block = address.rsplit(".", 1)[0]
    assert state["block"] == f"{block}.0/24", state
    assert client.fetch("granted.rf.test") == [address, 443]
    assert "hello plain.rf.test" in client.does("http", "plain.rf.test", "plain.rf.test")
    assert client.fetch("a.wild.rf.test")[0].startswith(f"{block}.")
    client.fetch("b.c.wild.rf.test")
    assert client.does("banner", "banner.rf.test").startswith("SSH-2.0-rf")
    wait_event(lambda event: connection("granted.rf.test", "passed")(event) and event["tgid"] == client.pid)

    # And nothing else, of which the host's resolver hears nothing.
    client.fails("resolve", "other.rf.test", why="gaierror")
    client.fails("resolve", "data-in-a-label.other.rf.test", why="gaierror")
    client.fails("resolve", "wild.rf.test", why="gaierror")
    assert "granted.rf.test" in resolver.asked and not any("other" in name for name in resolver.asked), resolver.asked
    wait_event(lambda event: event["op"] == "net.name" and event["addr"] == "other.rf.test" and event["verdict"] == "denied")
    reached = len(servers.reached)
    for name, host in (("other.rf.test", "other.rf.test"), ("a.wild.rf.test", "a.wild.rf.test")):
        client.fails("https", address, name, host)
    client.fails("https", SERVER, "granted.rf.test", "granted.rf.test", why="PermissionError")
    client.fails("https", f"{block}.99", "granted.rf.test", "granted.rf.test", why="PermissionError")
    client.fails("https", address, "granted.rf.test", "granted.rf.test", 8443, why="PermissionError")
    client.fails("https", "198.19.254.1", "granted.rf.test", "granted.rf.test", why="PermissionError")
    client.fails("datagram", address, 443, why="PermissionError")
    client.fails("https", "inner.rf.test", "inner.rf.test", "inner.rf.test")
    # The other name's Host where the connection is not encrypted.
    assert "hello" not in str(client.told("http", "plain.rf.test", "granted.rf.test"))
    assert len(servers.reached) == reached, servers.reached[reached:]
    wait_event(lambda event: connection("inner.rf.test", "refused")(event) and event["connection"]["cause"] == "not_public")
    wait_event(lambda event: connection("granted.rf.test", "refused")(event) and event["connection"]["cause"] == "other_name")
    client.fetch("granted.rf.test")

    # Whoever else is on this host does not get to the container's worker.
    for port in listening(state["pid"]):
        try:
            with socket.create_connection(("127.0.0.1", port), PATIENCE):
                raise AssertionError("an ungoverned process was served")
        except PermissionError:
            pass

    # A worker that dies takes its connections with it, and what waited at its sockets: the next one has sockets of its own.
    os.kill(state["pid"], signal.SIGKILL)
    wait_for(lambda: egress()["state"] == "running" and egress()["pid"] != state["pid"], "another worker")
    assert client.fetch("granted.rf.test") == [address, 443]
    assert egress()["restarts"] == 1 and egress()["block"] == state["block"], egress()

    # Names come and go with the profile, for a process that runs.
    write_profile([*GRANTED, "later.rf.test:443"])
    reload()
    wait_for(lambda: client.told("resolve", "later.rf.test")[0] == "ok", "the name that was added")
    later = client.address("later.rf.test")
    wait_for(lambda: client.told("https", "later.rf.test", "later.rf.test", "later.rf.test")[0] == "ok", "a connection there")
    write_profile(GRANTED, deny=["plain.rf.test"])
    reload()
    wait_for(lambda: client.told("resolve", "later.rf.test")[0] == "failed", "the name to be gone")
    client.fails("https", later, "later.rf.test", "later.rf.test")
    client.fails("http", "plain.rf.test", "plain.rf.test")
    client.fetch("granted.rf.test")
    worker = egress()["pid"]
    write_profile(["127.0.0.9:9"])
    reload()
    wait_for(lambda: egress() is None and worker not in role_pids("egress-worker"), "the last name to be gone, and the worker")
    client.fails("https", address, "granted.rf.test", "granted.rf.test", why="PermissionError")
    write_profile(GRANTED)
    reload()
    wait_for(lambda: (egress() or {}).get("state") == "running", "names again")
    client.fetch("granted.rf.test")
    worker = egress()["pid"]
    client.stop()
    wait_for(lambda: not containers() and worker not in role_pids("egress-worker"), "the container and its worker to end")
    wait_for(lambda: rewriters() == 0, "the programs to be detached")
    os.unlink(f"{PROFILES}/rf-egress.toml")


def rewriters():
    """How many of the programs that change addresses are attached."""
    names = [f"{what}{family}" for what in ("connect", "sendmsg", "recvmsg", "getpeername") for family in (4, 6)]
    return sum(len(glob.glob(f"/sys/fs/bpf/ringfence/links/[0-9]*/{name}")) for name in names)


def listening(pid):
    """Ports of 127.0.0.1 at which a process has listening TCP sockets."""
    inodes = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            inodes.add(os.readlink(f"/proc/{pid}/fd/{name}").removeprefix("socket:[").removesuffix("]"))
        except FileNotFoundError:
            pass
    with open("/proc/net/tcp") as file:
        rows = [line.split() for line in file.read().splitlines()[1:]]
    ports = [int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and row[9] in inodes]
    assert len(ports) == 2, f"those for connections and for questions: {ports}"
    return ports


def engine_network():
    """A network namespace with a resolver of its own address, and what starts a command in there."""
    run(["ip", "netns", "add", "rf-egress"])
    os.makedirs("/etc/netns/rf-egress", exist_ok=True)
    with open("/etc/netns/rf-egress/resolv.conf", "w") as file:
        file.write("nameserver 127.0.0.11\noptions ndots:0\n")
    return ("ip", "netns", "exec", "rf-egress")


@scene("system/egress-own-network", limit=240)
def own_network():
    """a container engine's network namespace with a resolver of its own address, as Docker's: names are served there, also by the next daemon"""
    prepare()
    inside = engine_network()
    try:
        # It has no way to anywhere, and its loopback comes up after the container is there.
        client = Client(*inside)
        run([*inside, "ip", "link", "set", "lo", "up"])
        first = egress()
        address = client.address("granted.rf.test")
        assert client.fetch("granted.rf.test") == [address, 443]
        client.fails("resolve", "other.rf.test", why="gaierror")
        # One on the host's network beside it: each has addresses of its own, which are nobody else's.
        beside = Client()
        wait_for(lambda: len(containers()) == 2, "both")
        blocks = {one["egress"]["block"] for one in containers()}
        assert len(blocks) == 2, blocks
        beside.fetch("granted.rf.test")
        beside.fails("https", address, "granted.rf.test", "granted.rf.test", why="PermissionError")
        beside.stop()
        # A tree that runs already.
        tree = Client(*inside, under=())
        tree.fails("resolve", "granted.rf.test")
        result = ringfence("enroll", "--pid", str(tree.pid), "--profile", "rf-egress")
        assert result.returncode == 0, said(result)
        tree.fetch("granted.rf.test")
        tree.fails("resolve", "other.rf.test", why="gaierror")
        tree.stop()
        wait_for(lambda: len(containers()) == 1, "the others to end")

        # Between two daemons nobody serves, and nothing passes.
        kill_role("daemon")
        wait_for(lambda: not role_pids("egress-worker"), "its worker to end with it")
        assert rewriters() == 8
        client.fails("https", address, "granted.rf.test", "granted.rf.test")
        client.fails("resolve", "granted.rf.test", why="gaierror")
        client.fails("https", SERVER, "granted.rf.test", "granted.rf.test", why="PermissionError")
        start_daemon()
        wait_for(lambda: (egress() or {}).get("state") == "running", "the next daemon's worker")
        assert egress()["block"] == first["block"] and egress()["pid"] != first["pid"], (first, egress())
        assert client.fetch("granted.rf.test") == [address, 443]
        # An orderly end is the same.
        kill_role("daemon", number=signal.SIGTERM)
        client.fails("https", address, "granted.rf.test", "granted.rf.test")
        start_daemon()
        wait_for(lambda: (egress() or {}).get("state") == "running", "the last daemon's worker")
        assert client.fetch("granted.rf.test") == [address, 443]
        client.stop()
    finally:
        subprocess.run(["ip", "netns", "del", "rf-egress"], stdin=subprocess.DEVNULL, check=False)
    os.unlink(f"{PROFILES}/rf-egress.toml")


@scene("system/egress-refused", limit=120)
def refused():
    """where a worker cannot serve, nothing is started under the profile, and the reason is said"""
    prepare()
    client = Client()
    client.fetch("granted.rf.test")
    client.stop()
    # One exact name too many for a block.
    write_profile([f"n{number}.rf.test:443" for number in range(128)])
    result = ringfence("run", "--profile", "rf-egress", "--", "/usr/bin/echo", "started")
    assert result.returncode == 125 and "started" not in result.stdout and "127" in result.stderr, said(result)
    wait_for(lambda: not role_pids("egress-worker"), "every worker to end")
    os.unlink(f"{PROFILES}/rf-egress.toml")
