"""Scenes of outbound names with clients as they are: each gets what a granted name has, and nothing of another at the same address."""

import hashlib
import http.server
import os
import re
import shlex
import shutil
import socket
import ssl
import subprocess
import threading

import registries
from case import profile_text, scene
from harness import PYTHON
from registries import write
from system import PATIENCE, put, wait_for
from system_egress import PROFILES, SERVER, SERVERS, Resolver, elsewhere, log, run, servers_network

PLACE = "/srv/rf/system/egress-clients"
# What the guest's Debian has not: node, npm, cargo, a program linked with musl; and Debian's packages of others, unpacked.
CLIENTS = "/opt/clients"
DEBIAN = f"{CLIENTS}/debian"
JAVA = f"{DEBIAN}/usr/lib/jvm/java-17-openjdk-amd64/bin"
LIBRARIES = f"LD_LIBRARY_PATH={DEBIAN}/usr/lib/x86_64-linux-gnu"
GRANTED, OTHER = "web.rf-clients.test", "other.rf-clients.test"
NAMES = (GRANTED, OTHER)
DATA = hashlib.shake_256(b"rf clients").digest(300_000)
# More than one request may need on a machine with much else to do.
MOMENT = 4 * PATIENCE
# Serves the same by HTTP/2, which Python has not.
HTTP2 = f"""
const fs = require('fs');
const data = fs.readFileSync('{PLACE}/www/data');
const [key, cert] = ['key', 'pem'].map((end) => fs.readFileSync(`{PLACE}/server.${{end}}`));
const server = require('http2').createSecureServer({{ key, cert, allowHTTP1: true }});
server.on('request', (asked, answer) => {{
  console.log(`${{asked.httpVersion}} ${{asked.headers[':authority'] || asked.headers.host}}`);
  answer.end(data);
}});
server.listen(8443, '{SERVER}', () => console.log('listening'));
"""
FETCH = ("const answer = await fetch(process.argv[1]); if (!answer.ok) throw new Error(answer.status); "
         "fs.writeFileSync(process.argv[2], Buffer.from(await answer.arrayBuffer()))")
URLLIB = ("import ssl, sys, urllib.request as r; "
          "open(sys.argv[3], 'wb').write(r.urlopen(sys.argv[1], context=ssl.create_default_context(cafile=sys.argv[2]), timeout=120).read())")
HTTPLIB = ("import http.client as c, ssl, sys; one = c.HTTPSConnection(sys.argv[1], timeout=120, context=ssl.create_default_context(cafile=sys.argv[2])); "
           "one.request('GET', '/none'); assert one.getresponse().read() is not None; one.request('GET', '/data'); "
           "open(sys.argv[3], 'wb').write(one.getresponse().read())")
AIOHTTP = """
import aiohttp, asyncio, ssl, sys
async def fetch(url, ca, out):
    async with aiohttp.ClientSession(raise_for_status=True) as session, session.get(url, ssl=ssl.create_default_context(cafile=ca)) as answer:
        open(out, "wb").write(await answer.read())
asyncio.run(fetch(*sys.argv[1:]))
"""
# One client for both names: what is known of the server is its key, not its name.
SSH = (f"env {LIBRARIES} {DEBIAN}/usr/bin/ssh -F none -i {PLACE}/ssh/client -o IdentitiesOnly=yes -o BatchMode=yes -o HostKeyAlias=rf "
       f"-o UserKnownHostsFile={PLACE}/ssh/known -o ConnectTimeout=60")
TINY = "use HTTP::Tiny; my $said = HTTP::Tiny->new->mirror($ARGV[0], $ARGV[1]); die \"$said->{status} $said->{content}\\n\" unless $said->{success}"
# What each client is asked: HOST is whom, CA the file that says whom to trust, OUT where DATA has to be afterwards. Its own folder is where it runs.
COMMANDS = {
    "curl, HTTP/1.1": "curl -sS --fail --http1.1 --cacert CA -o OUT https://HOST/data",
    "curl, HTTP/2": "test 2 = \"$(curl -sS --fail --http2 --cacert CA -w '%{http_version}' -o OUT https://HOST:8443/data)\"",
    "curl, two at once on HTTP/2": "curl -sS --fail --http2 --parallel --cacert CA -o OUT https://HOST:8443/data -o two https://HOST:8443/data && cmp OUT two",
    "wget": "wget -nv --tries=1 --ca-certificate=CA -O OUT https://HOST/data",
    "wget, without TLS": "wget -nv --tries=1 -O OUT http://HOST/data",
    "busybox wget, without TLS": "busybox wget -O OUT http://HOST/data",
    "perl HTTP::Tiny, without TLS": f"perl -e {shlex.quote(TINY)} http://HOST/data OUT",
    "git clone": "git -c http.sslCAInfo=CA clone -q https://HOST/repo.git clone && cp clone/data OUT",
    "apt's https method": "/usr/lib/apt/apt-helper -o Acquire::https::CAInfo=CA -o APT::Sandbox::User=root download-file https://HOST/data OUT",
    "Python urllib": f"{PYTHON} -I -c {shlex.quote(URLLIB)} https://HOST/data CA OUT",
    "Python http.client, one connection": f"{PYTHON} -I -c {shlex.quote(HTTPLIB)} HOST CA OUT",
    "pip": f"{PYTHON} -B $(echo /usr/share/python-wheels/pip-*.whl)/pip install --disable-pip-version-check --no-cache-dir --retries 0 --cert CA "
           "--index-url https://HOST/simple --target into rf-sample && cp into/rf_sample/data OUT",
    "node's fetch": f"NODE_EXTRA_CA_CERTS=CA {CLIENTS}/node --input-type=module -e {shlex.quote('import fs from `fs`; '.replace('`', chr(34)) + FETCH)} "
                    "https://HOST/data OUT",
    "npm": f"NODE_EXTRA_CA_CERTS=CA PATH={CLIENTS}:$PATH {CLIENTS}/node {CLIENTS}/npm/bin/npm-cli.js install --registry https://HOST/npm/ --cache ./cache "
           "--prefix ./into --no-audit --no-fund --no-update-notifier --fetch-retries 0 rf-sample && cp into/node_modules/rf-sample/data OUT",
    "cargo": f"cp -r {PLACE}/cargo/. . && CARGO_HTTP_CAINFO=CA CARGO_REGISTRIES_RF_INDEX=sparse+https://HOST/cargo/ CARGO_NET_RETRY=0 "
             f"{CLIENTS}/cargo vendor -q into && cp into/rf-sample/data OUT",
    "go": f"GOROOT={DEBIAN}/usr/lib/go-1.19 GOPATH=$PWD/go GOPROXY=https://HOST/go GONOSUMDB='*' GOFLAGS='-mod=mod -modcacherw' SSL_CERT_FILE=CA "
          f"{DEBIAN}/usr/lib/go-1.19/bin/go mod download rf.test/sample@v1.0.0 && cp go/pkg/mod/rf.test/sample@v1.0.0/data OUT",
    "a static program of Go's": f"SSL_CERT_FILE=CA {DEBIAN}/usr/bin/reach-go https://HOST/data >OUT",
    "Java (Ivy)": f"{JAVA}/java -XX:TieredStopAtLevel=1 -Duser.home=$PWD -Djavax.net.ssl.trustStore={PLACE}/trust.p12 -Djavax.net.ssl.trustStorePassword=changeit "
                  f"-Drf.root=https://HOST/maven/ -jar {DEBIAN}/usr/share/java/ivy.jar -settings {PLACE}/ivy.xml -cache $PWD/cache "
                  "-dependency test.rf sample 1.0 -retrieve 'into/[artifact].[ext]' && cp into/sample.jar OUT",
    "aiohttp": f"PYTHONPATH={DEBIAN}/usr/lib/python3/dist-packages {PYTHON} -B -c {shlex.quote(AIOHTTP)} https://HOST/data CA OUT",
    "git by SSH": f"GIT_SSH_COMMAND={shlex.quote(SSH)} git clone -q ssh://root@HOST{PLACE}/www/repo.git clone && cp clone/data OUT",
    "musl's resolver, without TLS": f"{CLIENTS}/reach HOST 80 /data >OUT",
}
# What a host's resolv.conf may say, none of which is a nameserver that there is.
RESOLVERS = {
    "systemd-resolved's stub": "nameserver 127.0.0.53\noptions edns0 trust-ad\nsearch rf-clients.test\n",
    "a private address": "nameserver 10.20.30.40\n",
    "an IPv6 address": "nameserver 2001:db8::53\n",
    "two, which musl asks at once": "nameserver 10.20.30.40\nnameserver 192.0.2.53\n",
    "one of each kind": "nameserver 2001:db8::53\nnameserver 10.20.30.40\n",
    "by TCP": "nameserver 10.20.30.40\noptions use-vc\n",
    "one question at a time": "nameserver 10.20.30.40\noptions single-request-reopen ndots:5 timeout:30\nsearch example.org cluster.local\n",
    "Docker's embedded DNS": "nameserver 127.0.0.11\noptions edns0 trust-ad ndots:0\n",
    "none": "",
}


class Upstream(Resolver):
    """The host's resolver: both names are at one address."""

    def answers(self, name, kind):
        known = name in NAMES
        return known, [(b"\xc0\x0c", 1, socket.inet_aton(SERVER))] if known and kind == 1 else []


class Site(http.server.SimpleHTTPRequestHandler):
    """Serves the folder, and notes for which host it was asked."""

    protocol_version = "HTTP/1.1"
    seen = []

    def __init__(self, *given):
        super().__init__(*given, directory=f"{PLACE}/www")

    def log_message(self, *said):
        self.seen.append(f"{self.headers.get('Host') if getattr(self, 'headers', None) else ''} {said[0] % said[1:]}")


class Served(http.server.ThreadingHTTPServer):
    """Each connection in a thread of its own, where the handshake is, too."""

    context = None

    def finish_request(self, request, client_address):
        if self.context:
            request = self.context.wrap_socket(request, server_side=True)
        super().finish_request(request, client_address)

    def handle_error(self, request, client_address):
        Site.seen.append("broken")


def publish():
    """What the clients come for: a file, a repository, packages."""
    www = f"{PLACE}/www"
    write(f"{www}/data", DATA)
    registries.every(www, DATA, GRANTED)
    work = f"{PLACE}/source"
    write(f"{work}/data", DATA)
    named = ["-c", "user.name=rf", "-c", "user.email=rf@rf.test"]
    for command in (["init", "-q"], ["add", "."], [*named, "commit", "-qm", "data"], ["clone", "-q", "--bare", ".", f"{www}/repo.git"]):
        run(["git", *command], cwd=work)
    run(["git", "update-server-info"], cwd=f"{www}/repo.git")
    write(f"{PLACE}/cargo/Cargo.toml", '[package]\nname = "rf-uses"\nversion = "0.1.0"\nedition = "2021"\n[dependencies]\n'
                                       'rf-sample = { version = "1", registry = "rf" }\n')
    write(f"{PLACE}/cargo/src/lib.rs", "")
    write(f"{PLACE}/ivy.xml", '<ivysettings><settings defaultResolver="rf"/><resolvers>'
                              '<ibiblio name="rf" m2compatible="true" root="${rf.root}"/></resolvers></ivysettings>')


def certify():
    """A CA of this test's, and the server's certificate of it."""
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    run(["openssl", "req", "-x509", *key, "-days", "2", "-subj", "/CN=rf test CA", "-keyout", f"{PLACE}/ca.key", "-out", f"{PLACE}/ca.pem"])
    run(["openssl", "req", *key, "-subj", "/CN=rf test", "-keyout", f"{PLACE}/server.key", "-out", f"{PLACE}/server.csr"])
    write(f"{PLACE}/server.ext", "basicConstraints=CA:FALSE\nsubjectAltName=" + ",".join(f"DNS:{name}" for name in NAMES) + "\n")
    run(["openssl", "x509", "-req", "-in", f"{PLACE}/server.csr", "-CA", f"{PLACE}/ca.pem", "-CAkey", f"{PLACE}/ca.key", "-CAcreateserial", "-days", "2",
         "-extfile", f"{PLACE}/server.ext", "-out", f"{PLACE}/server.pem"])


def ssh_server():
    """OpenSSH, which lets the test's key in as root."""
    folder = f"{PLACE}/ssh"
    os.makedirs(folder)
    os.makedirs("/run/sshd", exist_ok=True)
    if subprocess.run(["id", "sshd"], capture_output=True, check=False).returncode != 0:
        run(["useradd", "--system", "--home-dir", "/run/sshd", "--no-create-home", "sshd"])
    for key in ("server", "client"):
        run(["env", LIBRARIES, f"{DEBIAN}/usr/bin/ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", f"{folder}/{key}"])
    shutil.copy(f"{folder}/client.pub", f"{folder}/authorized")
    with open(f"{folder}/server.pub") as file:
        write(f"{folder}/known", f"rf {file.read()}")
    write(f"{folder}/sshd.conf", f"ListenAddress {SERVER}:22\nHostKey {folder}/server\nAuthorizedKeysFile {folder}/authorized\nStrictModes no\n"
                                 "PermitRootLogin prohibit-password\nUsePAM no\nPidFile none\n")
    with open(f"{PLACE}/ssh.log", "wb") as log_file:
        subprocess.Popen(["ip", "netns", "exec", SERVERS, "env", LIBRARIES, f"{DEBIAN}/usr/sbin/sshd", "-D", "-e", "-f", f"{folder}/sshd.conf"],
                         stdin=subprocess.DEVNULL, stdout=log_file, stderr=log_file)

    def listens():
        with open(f"{PLACE}/ssh.log") as file:
            return "Server listening" in file.read()

    wait_for(listens, "the server of SSH")


def serve():
    """Starts everything; the host's resolver and what tells which hosts HTTP/2 was asked for."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(f"{PLACE}/server.pem", f"{PLACE}/server.key")
    for port, secured in ((80, None), (443, context)):
        server = elsewhere(lambda port=port: Served((SERVER, port), Site))
        server.context = secured
        threading.Thread(target=server.serve_forever, daemon=True).start()
    write(f"{PLACE}/http2.js", HTTP2)
    told = f"{PLACE}/http2.log"
    with open(told, "wb") as file:
        inside = ["ip", "netns", "exec", SERVERS]
        subprocess.Popen([*inside, f"{CLIENTS}/node", f"{PLACE}/http2.js"], stdin=subprocess.DEVNULL, stdout=file, stderr=file)

    def http2():
        with open(told) as file:
            return file.read()

    wait_for(lambda: "listening" in http2(), "the server of HTTP/2")
    ssh_server()
    return Upstream(), http2


def trust_in_java():
    """Java's settings, and its own list of authorities, with the test's."""
    # Where Debian's Java looks for its settings.
    shutil.copytree(f"{DEBIAN}/etc/java-17-openjdk", "/etc/java-17-openjdk", dirs_exist_ok=True)
    run([f"{JAVA}/keytool", "-importcert", "-noprompt", "-trustcacerts", "-alias", "rf", "-file", f"{PLACE}/ca.pem", "-keystore", f"{PLACE}/trust.p12",
         "-storetype", "PKCS12", "-storepass", "changeit"])


def prepare():
    """The site, the resolver and the profile `rf-clients`, which grants one of two names and all files."""
    shutil.rmtree(PLACE, ignore_errors=True)
    os.makedirs(PLACE)
    certify()
    publish()
    run(["ip", "link", "set", "lo", "up"])
    servers_network()
    put("/etc/resolv.conf", "nameserver 127.0.0.1\n")
    # apt's hashes are libgcrypt's, which takes instructions that the guest's processor has not (SIGILL, ungoverned as well): it is to take none.
    write("/etc/gcrypt/hwf.deny", "all\n")
    os.makedirs(PROFILES, exist_ok=True)
    put(f"{PROFILES}/rf-clients.toml", profile_text("vm test: clients", "all", "all", "all", [*(f"{GRANTED}:{port}" for port in (443, 80, 8443)), f"tcp:{GRANTED}:22"], None,
                                                    'capabilities = ["default"]\naudit = "denied"'))


def start(script, *under, cwd=PLACE, home=None):
    """Runs a script of the shell's; its result."""
    environment = {**os.environ, "HOME": home or cwd, "GIT_TERMINAL_PROMPT": "0"}
    return subprocess.run([*under, "sh", "-c", script], capture_output=True, text=True, errors="replace", stdin=subprocess.DEVNULL, timeout=MOMENT, cwd=cwd,
                          env=environment)


UNDER = ("ringfence", "run", "--profile", "rf-clients", "--")


def attempt(command, host, *under, home=None):
    """Whether a client brings DATA from a host, and what it says."""
    folder = f"{PLACE}/work"
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    out = f"{folder}/out"
    done = start(command.replace("HOST", host).replace("CA ", f"{PLACE}/ca.pem ").replace("OUT", out), *under, cwd=folder, home=home)
    brought = None
    if os.path.exists(out):
        with open(out, "rb") as file:
            brought = file.read()
    said = f"status {done.returncode}, {len(brought) if brought is not None else 'no'} bytes: {(done.stdout + done.stderr)[-700:].strip()!r}"
    return done.returncode == 0 and brought == DATA, brought, said


def problems_of(name, command, http2):
    """What is wrong with a client, ungoverned and governed; and what it prints where it is refused."""
    found = []
    works, _, said = attempt(command, OTHER)
    if not works:
        return [f"{name}: the control, ungoverned: {said}"], ""
    works, _, said = attempt(command, GRANTED, *UNDER)
    if not works:
        found.append(f"{name}: {GRANTED}: {said}; {log()[-700:]}")
    before = len(Site.seen), http2().count(OTHER)
    works, brought, said = attempt(command, OTHER, *UNDER)
    if works or brought or said.startswith("status 0"):
        found.append(f"{name}: {OTHER} is not refused: {said}")
    reached = [line for line in Site.seen[before[0]:] if OTHER in line]
    if reached or http2().count(OTHER) != before[1]:
        found.append(f"{name}: {OTHER} was reached: {reached}")
    return found, f"{name}: {said[-250:]}"


@scene("system/egress-clients", group="clients", limit=900)
def clients():
    """curl, wget, git, apt, pip, npm and others, as they are: the granted name's data is whole, another's is not to be had"""
    prepare()
    trust_in_java()
    _, http2 = serve()
    outcomes = [problems_of(name, command, http2) for name, command in COMMANDS.items()]
    problems = [problem for found, _ in outcomes for problem in found]
    assert not problems, "\n".join([*problems, "What clients print where they are refused:", *(said for _, said in outcomes if said)])
    os.unlink(f"{PROFILES}/rf-clients.toml")


@scene("system/egress-clients-resolvers", group="clients", limit=400)
def resolvers():
    """whatever nameservers resolv.conf has, glibc, musl, busybox and node get the granted name's address, and no question leaves"""
    prepare()
    upstream, _ = serve()
    node = 'require("dns").resolve4(process.argv[1], (error, found) => { if (error) throw error; console.log(found[0]) })'
    ways = {"glibc": "getent ahostsv4 HOST", "musl": f"{CLIENTS}/reach HOST", "busybox": "busybox nslookup HOST",
            "node": f"{CLIENTS}/node -e {shlex.quote(node)} HOST", "both families": "getent ahosts HOST"}
    # The search list must not matter where a name is whole; what is not granted fails by each way.
    script = "\n".join(f"echo '@ {way} {host}'; {command.replace('HOST', host)} 2>&1; echo \"= $?\"" for way, command in ways.items() for host in NAMES)
    inside = ("unshare", "--mount", "sh", "-c", f'mount --bind {PLACE}/resolv.conf /etc/resolv.conf && exec "$@"', "sh")
    problems = []
    for name, text in RESOLVERS.items():
        write(f"{PLACE}/resolv.conf", text)
        done = start(script, *inside, *UNDER)
        parts = done.stdout.split("@ ")[1:]
        if len(parts) != len(ways) * len(NAMES):
            problems.append(f"{name}: the script: {done.stdout[-1000:]!r} {done.stderr[-1000:]!r}")
        for part in parts:
            what, said = part.split("\n", 1)
            stands_for_one = re.search(r"198\.1[89]\.", said) is not None
            good = (stands_for_one, said.endswith("= 0\n")) == ((GRANTED in what),) * 2
            if not good:
                problems.append(f"{name}: {what}: {said.strip()!r}")
    # The control: the nameservers of these files are nobody's.
    write(f"{PLACE}/resolv.conf", "nameserver 10.20.30.40\noptions timeout:1 attempts:1\n")
    if start(f"getent ahostsv4 {GRANTED}", *inside).returncode == 0:
        problems.append("the control: a nameserver that is nobody's answers")
    if OTHER in upstream.asked:
        problems.append(f"the host's resolver was asked for {OTHER}")
    assert not problems, "\n".join(problems)
    os.unlink(f"{PROFILES}/rf-clients.toml")


# What installs under `coder` has to know: its caches in the home directory are read-only.
CACHES = "export npm_config_cache=/tmp/rf-npm PIP_CACHE_DIR=/tmp/rf-pip\n"
INSTALLS = ("npm", "pip", "git clone")


@scene("system/egress-clients-coder", group="clients", limit=500)
def coder():
    """npm, pip and git install under `coder` with hosts added, as docs/profiles.md says, and other hosts are not reached"""
    prepare()
    serve()
    # Where `coder` reads authorities' certificates.
    trusted = "/usr/share/ca-certificates/rf-clients.crt"
    shutil.copy(f"{PLACE}/ca.pem", trusted)
    put(f"{PROFILES}/rf-clients.toml", f'extends = "coder"\n[grant]\nnet = {{ add = ["{GRANTED}:443"] }}\n')
    problems = []
    for name in INSTALLS:
        command = CACHES + COMMANDS[name].replace("--cache ./cache ", "").replace("--no-cache-dir ", "").replace("CA ", f"{trusted} ")
        for host in NAMES:
            works, brought, said = attempt(command, host, *UNDER, home="/root")
            if works != (host == GRANTED) or brought and host == OTHER:
                problems.append(f"{name}: {host}: {said}")
    works, _, said = attempt(COMMANDS["npm"].replace("--cache ./cache ", "").replace("CA ", f"{trusted} "), GRANTED, *UNDER, home="/root")
    if works:
        problems.append(f"npm has a cache of its own where docs/profiles.md says that it has none: {said}")
    assert not problems, "\n".join(problems)
    os.unlink(trusted)
    os.unlink(f"{PROFILES}/rf-clients.toml")
