"""The tool runner in a real container, which crun makes by the steps of agent/guest/Dockerfile: the old design's acceptance test."""

import json
import os
import pty
import shutil
import subprocess
import time

from case import scene
from harness import HERE
from system import PATIENCE

BASE = "/srv/rf/runner"
ROOT = f"{BASE}/rootfs"
NAME = "rf-tools"
LARGE = "".join(f"line {number} of a large file\n" for number in range(1, 20001))


def crun(*args, timeout=PATIENCE, **options):
    """Runs crun to its end. Standard input is nobody's."""
    options = {"stdin": subprocess.DEVNULL, "capture_output": True, "text": True, **options}
    return subprocess.run(["crun", "--cgroup-manager=disabled", *args], timeout=timeout, check=False, **options)


def steps():
    """The Dockerfile's instructions after FROM, each with its words: a JSON list, or what is between spaces."""
    with open(f"{HERE}/Dockerfile") as file:
        lines = [line.strip() for line in file if line.strip() and not line.startswith("#")]
    told = [line.split(maxsplit=1) for line in lines]
    told = [(name, json.loads(rest) if rest.startswith("[") else rest.split()) for name, rest in told]
    start = [name for name, _ in told].index("FROM")
    return told[start + 1:]


def bundle(command, env, cwd):
    """Writes the container's configuration: this guest's own Debian, with /usr read-only but for /usr/local/bin."""
    mount = lambda where, kind, source, *options: {
        "destination": where, "type": kind, "source": source, "options": list(options)}
    config = {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": command,
            "env": env,
            "cwd": cwd,
        },
        "root": {"path": ROOT},
        "hostname": "tools",
        "mounts": [
            mount("/proc", "proc", "proc"),
            mount("/dev", "tmpfs", "tmpfs", "nosuid", "mode=755"),
            mount("/dev/pts", "devpts", "devpts", "newinstance", "ptmxmode=0666", "mode=0620"),
            mount("/tmp", "tmpfs", "tmpfs", "mode=1777"),
            mount("/usr", "bind", "/usr", "rbind", "ro"),
            mount("/usr/local/bin", "bind", f"{BASE}/local", "bind"),
        ],
        "linux": {"namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts", "network")]},
    }
    with open(f"{BASE}/config.json", "w") as file:
        json.dump(config, file)


def make():
    """What the Dockerfile makes: the binary, its shims, what login shells read. Leaves what its CMD starts to be run."""
    shutil.rmtree(BASE, ignore_errors=True)
    os.makedirs(f"{BASE}/local")
    for name in ("dev", "proc", "tmp", "usr", "root"):
        os.makedirs(f"{ROOT}/{name}")
    for name in ("bin", "sbin", "lib", "lib64"):
        os.symlink(f"usr/{name}", f"{ROOT}/{name}")
    os.makedirs(f"{ROOT}/etc/profile.d")
    for name in ("profile", "passwd", "group", "bash.bashrc"):
        if os.path.exists(f"/etc/{name}"):
            shutil.copy(f"/etc/{name}", f"{ROOT}/etc/{name}")
    # awk and others are links by way of /etc.
    shutil.copytree("/etc/alternatives", f"{ROOT}/etc/alternatives", symlinks=True)
    env, cwd, start = ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"], "/", None
    for name, words in steps():
        if name == "COPY":
            source, target = words
            assert os.path.dirname(target) == "/usr/local/bin", words
            shutil.copy(f"{HERE}/bin/{source}", f"{BASE}/local/{os.path.basename(target)}")
        elif name == "RUN":
            bundle(words, env, cwd)
            done = crun("run", "--bundle", BASE, f"{NAME}-build")
            assert done.returncode == 0, f"{words}: {done}"
        elif name == "ENV":
            (variable,) = words
            env = [one for one in env if one.split("=")[0] != variable.split("=")[0]] + [variable]
        elif name == "WORKDIR":
            (cwd,) = words
            os.makedirs(f"{ROOT}{cwd}", exist_ok=True)
        elif name == "CMD":
            start = words
        else:
            raise AssertionError(f"a step of the Dockerfile that is not known here: {name} {words}")
    bundle(start, env, cwd)
    with open(f"{ROOT}/app/large_file.txt", "w") as file:
        file.write(LARGE)
    with open(f"{ROOT}/app/script.sh", "w") as file:
        file.write("#!/bin/sh\ncat large_file.txt\n")
    os.chmod(f"{ROOT}/app/script.sh", 0o755)


def execute(command):
    """`docker exec container bash -lc COMMAND`."""
    return crun("exec", "--cwd=/app", NAME, "bash", "-lc", command)


def out(command):
    """Its standard output, where it succeeds without a word on standard error."""
    done = execute(command)
    assert (done.returncode, done.stderr) == (0, ""), f"{command}: {done}"
    return done.stdout


def on_terminal(command):
    """All that the command prints where its output is a terminal."""
    pid, master = pty.fork()
    if pid == 0:
        os.execvp("crun", ["crun", "--cgroup-manager=disabled", "exec", "--cwd=/app", "--tty", NAME, "bash", "-lc", command])
    data = b""
    while True:
        try:
            chunk = os.read(master, 65536)
        except OSError:
            break
        if not chunk:
            break
        data += chunk
    os.close(master)
    _, status = os.waitpid(pid, 0)
    assert status == 0, f"{command}: {status} {data!r}"
    return data.decode()


def is_cut(text):
    """Whether the text is the large file's start and one remark, which names all of it."""
    shown, _, remark = text.partition("...[truncated]")
    return LARGE.startswith(shown.rstrip("\n")) and 0 < len(shown) <= 4001 and f" {len(LARGE)} bytes, 20000 lines in all" in remark


@scene("runner/container", limit=240)
def container():
    make()
    crun("delete", "--force", NAME)
    # A detached container keeps what it was given: its log is a file.
    with open(f"{BASE}/log", "w") as log:
        started = crun("run", "--detach", "--bundle", BASE, NAME, stdout=log, stderr=log, capture_output=False)
    try:
        assert started.returncode == 0, open(f"{BASE}/log").read()
        until = time.monotonic() + PATIENCE
        while execute("RINGFENCE_STRICT=1 cat /dev/null").returncode != 0:
            assert time.monotonic() < until, f"no daemon: {open(f'{BASE}/log').read()}"
            time.sleep(0.2)
        acceptance()
        more()
        delay()
    finally:
        crun("delete", "--force", NAME)
    told = [json.loads(line) for line in open(f"{BASE}/log") if line.startswith("{")]
    cats = [run for run in told if run.get("cmd") == "cat" and run["args"] == ["large_file.txt"]]
    assert any(run.get("cut") for run in cats) and any("cut" not in run for run in cats), told


def acceptance():
    """Section 14 of the old design."""
    assert out("type -p cat") == "/app/shims/cat\n"
    assert out("echo hello") == "hello\n"
    with open("/etc/passwd") as file:
        assert out("cat /etc/passwd | grep root") == "".join(line for line in file if "root" in line)
    large = out("cat large_file.txt")
    assert is_cut(large), large[-500:]
    path = large.rstrip().rsplit(" ", 1)[1]
    assert out(f"tail -n 1 {path}; wc -c < {path}") == f"line 20000 of a large file\n{len(LARGE)}\n"


def more():
    """Statuses, what is not the end of a line, a terminal, the old protocol."""
    assert execute("cat nofile").returncode == 1
    assert execute("exit 7").returncode == 7
    assert out("cat large_file.txt | grep -c .") == "20000\n"
    assert out("./script.sh | wc -l") == "20000\n"
    assert is_cut(out("./script.sh"))
    assert is_cut(out("cat large_file.txt | cat"))
    python = "import subprocess; print(len(subprocess.check_output(['cat', 'large_file.txt'])))"
    assert out(f'python3 -c "{python}"') == f"{len(LARGE)}\n"
    assert is_cut(crun("exec", "--cwd=/app", NAME, "cat", "large_file.txt").stdout), "without a shell"
    shown = on_terminal("cat large_file.txt; test -t 1 && echo terminal").replace("\r\n", "\n")
    assert is_cut(shown) and shown.endswith("terminal\n"), shown[-500:]
    python = ("import socket; s = socket.socket(socket.AF_UNIX); s.connect('/tmp/tool_runner.sock'); "
              r"s.sendall(b'printf\\thi\\n'); print(s.makefile('rb').read().hex())")
    assert out(f'python3 -c "{python}"') == "8368036d0000000268696d000000006100\n"


def delay():
    """The shims' part of an exec. The guest's processor is emulated: seconds here are what nobody notices elsewhere."""

    def took(command):
        begun = time.monotonic()
        assert execute(command).returncode == 0
        return time.monotonic() - begun

    # Other work on the host only ever adds time, to some runs more than to others: what the shims need of themselves is in
    # the quickest of each. Where they wait for something that does not come, that is in every run.
    bare, shims = [], []
    while len(bare) < 5 or (min(shims) - min(bare) >= 3 and len(bare) < 25):
        bare.append(took("/usr/bin/cat /etc/passwd | /usr/bin/grep root"))
        shims.append(took("cat /etc/passwd | grep root"))
    assert min(shims) - min(bare) < 3, f"seconds, bare {sorted(bare)}, with shims {sorted(shims)}"
