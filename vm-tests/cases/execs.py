"""The family `exec`: running what may not be run."""

import ctypes
import errno
import mmap
import os
import shutil

from attack import AT_EMPTY_PATH, LIBC, O_PATH, O_TMPFILE, execveat, in_thread, memfd, place_program, raw, read, spawn, tiny_program
from case import DOCKER, FULL, NOBODY, REFUSED, Family, Refused, profile_text

BASE = "/srv/rf/exec"


def locate(p):
    """Forbidden: not granted, denied by path, denied by name. `mine` is writable; executable where `kind` is allow."""
    base = {"deny": f"{BASE}/deny", "sealed": f"{BASE}/allow/sealed"}.get(p.kind, f"{BASE}/allow")
    p.parent = f"{base}/{p.run}"
    p.dir = p.parent + ("/.rf-sealed" if p.kind == "named" else "/bin")
    p.target = p.dir + "/target"
    p.mine = f"{BASE}/allow/{p.run}.mine" if p.kind == "allow" else f"{BASE}/scratch/{p.run}"
    p.granted = f"{BASE}/allow/{p.run}.granted"
    p.library = p.dir + "/library.so"


def setup(p):
    """A program that prints the token, an allowed directory for scripts, a writable one."""
    for path in (p.dir, p.mine, p.granted):
        os.makedirs(path, exist_ok=True)
        os.chmod(path, 0o777)
    place_program(p.target, p.token)


def prepare():
    """Once."""
    shutil.rmtree(BASE, ignore_errors=True)
    for name in ("allow/sealed", "deny", "scratch"):
        os.makedirs(f"{BASE}/{name}", exist_ok=True)
        os.chmod(f"{BASE}/{name}", 0o777)


def profile(_places, here):
    """The profile's text."""
    return profile_text("vm test: exec", [here, "/run/rf-cases", BASE], [f"{BASE}/allow", f"{BASE}/scratch"],
                        [f"{BASE}/allow", "/usr/bin/python3", "/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", "/usr/bin/dash"],
                        deny={"exec": [f"{BASE}/allow/sealed", "**/.rf-sealed"]})


EXEC = Family("exec", profile, kinds=("deny", "sealed", "named"), locate=locate, setup=setup, prepare=prepare,
              events=lambda p: [("exec", p.target)])


# A process that was taken in while it ran: its first exec is not the launcher's.
RUNNING = Family("running", profile, kinds=("deny", "sealed", "named"), locate=locate, setup=setup, prepare=prepare, enrolled=True,
                 who=(DOCKER, FULL, NOBODY), events=lambda p: [("exec", p.target)])


def run(path):
    """The output of a program."""
    return spawn(lambda: os.execv(path, [path]))


@EXEC.case("absolute", hook="bprm_check_security", who=(DOCKER, FULL, NOBODY))
def absolute(p):
    """execve by absolute path"""
    return run(p.target)


@RUNNING.case("exec")
def running_exec(p):
    """the same by a process that `ringfence enroll` took in"""
    return run(p.target)


@EXEC.case("relative")
def relative(p):
    """execve by relative path"""
    os.chdir(p.dir)
    return run("./target")


@EXEC.case("symlink", who=(DOCKER, NOBODY))
def symlink(p):
    """a symlink in an allowed directory"""
    os.symlink(p.target, p.granted + "/link")
    return run(p.granted + "/link")


# EXDEV: a better answer under the new name; `mv` and `ln` fall back to copying, which reading would have to be granted for.
MOVED = (*REFUSED, errno.EXDEV)


@EXEC.case("hard-link", events=lambda p: [("link", p.target)], errno=MOVED)
def hard_link(p):
    """a hard link in an allowed directory"""
    os.link(p.target, p.granted + "/alias")
    return run(p.granted + "/alias")


@EXEC.case("renamed", events=lambda p: [("rename", p.target)], errno=MOVED)
def renamed(p):
    """moved into an allowed directory"""
    os.rename(p.target, p.granted + "/moved")
    return run(p.granted + "/moved")


@EXEC.case("copy", kinds=("deny",), events=lambda p: [("exec", p.mine + "/copy")])
def copy(p):
    """a copy in a writable directory"""
    shutil.copy(p.target, p.mine + "/copy")
    return run(p.mine + "/copy")


def dynamic(p):
    """A program that needs the loader: echo."""
    setup(p)
    shutil.copy("/usr/bin/echo", p.target)


LOADER = "/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"


@EXEC.case("loader", setup=dynamic, errno=None, events=lambda p: [("map_exec", p.target)], hook="mmap_file", who=(DOCKER, NOBODY))
def loader(p):
    """ld.so PROGRAM, where ld.so itself may be executed"""
    return spawn(lambda: os.execv(LOADER, [LOADER, p.target, p.token]))


def library(p):
    """A shared library that is the system's own, under another name."""
    setup(p)
    shutil.copy("/usr/lib/x86_64-linux-gnu/libutil.so.1", p.library)
    shutil.copy("/usr/bin/cat", p.granted + "/cat")


def mapped(p, maps):
    """The token, if the library is mapped executable."""
    if any(p.library in line and "x" in line.split()[1] for line in maps.splitlines()):
        return p.token
    raise Refused("the library is not mapped")


@EXEC.case("preload-option", setup=library, errno=None, events=lambda p: [("map_exec", p.library)])
def preload_option(p):
    """ld.so --preload of a library that may not be mapped"""
    return mapped(p, spawn(lambda: os.execv(LOADER, [LOADER, "--preload", p.library, p.granted + "/cat", "/proc/self/maps"])))


@EXEC.case("preload-environment", setup=library, errno=None, events=lambda p: [("map_exec", p.library)])
def preload_environment(p):
    """LD_PRELOAD of a library that may not be mapped"""
    cat = p.granted + "/cat"
    return mapped(p, spawn(lambda: os.execve(cat, [cat, "/proc/self/maps"], {"LD_PRELOAD": p.library})))


@EXEC.case("dlopen", setup=library, errno=None, events=lambda p: [("map_exec", p.library)], who=(DOCKER, NOBODY))
def dlopen(p):
    """dlopen, as an interpreter loads an extension"""
    try:
        ctypes.CDLL(p.library)
    except OSError as error:
        raise Refused(str(error)) from None
    return mapped(p, open("/proc/self/maps").read())


@EXEC.case("script-interpreter")
def script(p):
    """an allowed script whose interpreter is denied"""
    script_at = p.granted + "/script"
    write_script(script_at, p.target)
    return run(script_at)


def write_script(path, interpreter):
    """A file that begins with #!."""
    with open(path, "w") as file:
        file.write(f"#!{interpreter}\n")
    os.chmod(path, 0o755)


@EXEC.case("script-chain")
def script_chain(p):
    """an allowed script, interpreted by an allowed script, interpreted by the denied program"""
    write_script(p.granted + "/inner", p.target)
    write_script(p.granted + "/outer", p.granted + "/inner")
    return run(p.granted + "/outer")


def denied_script(p):
    """A script, forbidden itself, for an allowed interpreter."""
    setup(p)
    with open(p.target, "w") as file:
        file.write(f"#!/usr/bin/dash\necho {p.token}\n")


@EXEC.case("denied-script", setup=denied_script)
def script_denied(p):
    """a denied script whose interpreter is allowed"""
    return run(p.target)


@EXEC.case("allowed-interpreter", errno=None, who=(DOCKER, NOBODY))
def interpreter(p):
    """an allowed shell that runs the denied program"""
    return spawn(lambda: os.execv("/usr/bin/dash", ["sh", "-c", p.target]))


@EXEC.case("shell-exec", errno=None)
def shell_exec(p):
    """an allowed shell that becomes the denied program"""
    return spawn(lambda: os.execv("/usr/bin/dash", ["sh", "-c", f"exec {p.target}"]))


@EXEC.case("execveat")
def execveat_dir(p):
    """execveat from an O_PATH descriptor of the directory"""
    fd = os.open(p.dir, O_PATH)
    return spawn(lambda: execveat(fd, "target", ["x"], 0))


@EXEC.case("execveat-empty-path")
def execveat_fd(p):
    """execveat of an O_PATH descriptor of the program (fexecve)"""
    fd = os.open(p.target, O_PATH)
    return spawn(lambda: execveat(fd, "", ["x"], AT_EMPTY_PATH))


@EXEC.case("proc-self-fd")
def proc_self_fd(p):
    """execve of /proc/self/fd/N"""
    fd = os.open(p.target, O_PATH)
    return run(f"/proc/self/fd/{fd}")


def nameless(name, **options):
    """A case about a program without a name: nothing of the kind can be allowed, so the control runs an allowed one."""
    options.setdefault("events", lambda p: [("exec", "")])
    return EXEC.case(name, kinds=("deny",), control=lambda p: execveat_fd(p), **options)


@nameless("memfd", who=(DOCKER, NOBODY))
def memfd_exec(p):
    """memfd_create and fexecve"""
    fd = memfd(tiny_program(p.token))
    return spawn(lambda: execveat(fd, "", ["x"], AT_EMPTY_PATH))


@nameless("memfd-proc-fd")
def memfd_proc(p):
    """a memfd by /proc/self/fd"""
    fd = memfd(tiny_program(p.token))
    return spawn(lambda: os.execv(f"/proc/self/fd/{fd}", ["x"]))


@nameless("memfd-interpreter")
def memfd_interpreter(p):
    """a memfd as the interpreter of a script"""
    fd = memfd(tiny_program(p.token))
    write_script(p.mine + "/script", f"/proc/self/fd/{fd}")
    here = os.open(p.mine + "/script", os.O_RDONLY)
    raw_script = memfd(read(p.mine + "/script").encode())
    os.close(here)
    return spawn(lambda: execveat(raw_script, "", ["x"], AT_EMPTY_PATH))


@nameless("memfd-loader", errno=None, events=lambda p: [("map_exec", "")])
def memfd_loader(p):
    """a memfd that holds a dynamic program, by ld.so"""
    with open("/usr/lib/x86_64-linux-gnu/libutil.so.1", "rb") as file:
        fd = memfd(file.read())
    mapping = mmap.mmap(fd, 4096, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC)
    return p.token if mapping[:4] == b"\x7fELF" else ""


@nameless("deleted-file")
def deleted(p):
    """a deleted file by /proc/self/fd"""
    place_program(p.mine + "/gone", p.token)
    fd = os.open(p.mine + "/gone", os.O_RDONLY)
    os.unlink(p.mine + "/gone")
    return run(f"/proc/self/fd/{fd}")


@nameless("deleted-in-allowed-directory")
def deleted_allowed(p):
    """a file deleted from a directory where programs may run: its last name is not its name"""
    place_program(p.granted + "/gone", p.token)
    fd = os.open(p.granted + "/gone", os.O_RDONLY)
    os.unlink(p.granted + "/gone")
    return run(f"/proc/self/fd/{fd}")


@nameless("tmpfile")
def tmpfile(p):
    """O_TMPFILE, executed by descriptor"""
    fd = os.open(p.granted, O_TMPFILE | os.O_RDWR, 0o755)
    os.write(fd, tiny_program(p.token))
    again = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    os.close(fd)
    return spawn(lambda: execveat(again, "", ["x"], AT_EMPTY_PATH))


@EXEC.case("mmap-exec", events=lambda p: [("map_exec", p.target)], who=(DOCKER, NOBODY))
def mmap_exec(p):
    """mmap PROT_EXEC of the program: to jump into it"""
    fd = os.open(p.target, os.O_RDONLY)
    mapping = mmap.mmap(fd, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC)
    return mapping[:].decode("latin-1")


def map_file(p, prot=1):
    """An address where the program is mapped for reading."""
    LIBC.mmap.restype = ctypes.c_void_p
    fd = os.open(p.target, os.O_RDONLY)
    address = LIBC.mmap(None, ctypes.c_size_t(4096), prot, 2, fd, 0)
    if address == ctypes.c_void_p(-1).value:
        number = ctypes.get_errno()
        raise OSError(number, f"mmap: {os.strerror(number)}")
    return address


@EXEC.case("mprotect-exec", events=lambda p: [("protect_exec", p.target)], hook="file_mprotect", who=(DOCKER, NOBODY))
def mprotect(p):
    """mmap for reading, then mprotect to PROT_EXEC"""
    address = map_file(p)
    if LIBC.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(4096), 5) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")
    return p.token


@EXEC.case("pkey-mprotect-exec", events=lambda p: [("protect_exec", p.target)])
def pkey_mprotect(p):
    """pkey_mprotect to PROT_EXEC"""
    raw("pkey_mprotect", map_file(p), 4096, 5, -1)
    return p.token


@EXEC.case("read-implies-exec", events=lambda p: [("map_exec", p.target)])
def read_implies_exec(p):
    """personality READ_IMPLIES_EXEC: a mapping for reading becomes executable"""
    raw("personality", 0x0400000)
    address = map_file(p)
    line = next(line for line in open("/proc/self/maps") if line.startswith(f"{address:x}-") or line.startswith(f"{address:08x}-"))
    if "x" not in line.split()[1]:
        raise Refused(f"not executable: {line}")
    return p.token


@EXEC.case("posix-spawn")
def posix_spawn(p):
    """posix_spawn (vfork underneath)"""
    out_r, out_w = os.pipe()
    child = os.posix_spawn(p.target, ["x"], {}, file_actions=[(os.POSIX_SPAWN_DUP2, out_w, 1)])
    os.close(out_w)
    text = os.read(out_r, 4000).decode()
    os.waitpid(child, 0)
    return text


@EXEC.case("thread-exec")
def thread_exec(p):
    """execve from a thread that is not the leader"""

    def action():
        in_thread(lambda: os.execv(p.target, ["x"]))

    return spawn(action)


@EXEC.case("grandchild-after-setsid")
def grandchild(p):
    """a child of a child, after setsid and double fork"""

    def action():
        os.setsid()
        child = os.fork()
        if child == 0:
            os.setsid()
            try:
                os.execv(p.target, ["x"])
            except OSError as error:
                os._exit(error.errno)
        _, status = os.waitpid(child, 0)
        if status:
            raise OSError(os.waitstatus_to_exitcode(status), "in the grandchild")
        os._exit(0)

    return spawn(action)


@EXEC.case("after-chroot", kinds=("sealed",), who=(DOCKER, FULL))
def after_chroot(p):
    """chroot to an allowed directory, then execve by the path that is left"""

    def action():
        os.chroot(BASE + "/allow")
        os.chdir("/")
        path = p.target[len(BASE + "/allow"):]
        os.execv(path, [path])

    return spawn(action)


@EXEC.case("new-mount", kinds=("deny",), who=(FULL,), events=lambda p: [("mount", p.granted)], control=lambda p: run(p.target))
def new_mount(p):
    """the program's directory bound over an allowed one"""
    raw("mount", os.fsencode(p.dir), os.fsencode(p.granted), 0, 4096, 0)
    return run(p.granted + "/target")


@EXEC.case("tmpfs-with-copy", kinds=("deny",), who=(FULL,), events=lambda p: [("mount", p.granted)], control=lambda p: run(p.target))
def tmpfs_copy(p):
    """a tmpfs of one's own over an allowed directory"""
    raw("mount", b"tmpfs", os.fsencode(p.granted), b"tmpfs", 0, 0)
    place_program(p.granted + "/copy", p.token)
    return run(p.granted + "/copy")


def setuid_program(p):
    """A setuid root program."""
    setup(p)
    os.chown(p.target, 0, 0)
    os.chmod(p.target, 0o4755)


@EXEC.case("setuid-program", setup=setuid_program, who=(NOBODY, DOCKER))
def setuid(p):
    """a setuid file"""
    return run(p.target)


@EXEC.case("write-into-allowed", kinds=("deny",), events=lambda p: [("exec", p.mine + "/a")], control=lambda p: run(p.target))
def overwrite(p):
    """an allowed name that is a symlink to a writable copy"""
    place_program(p.mine + "/a", p.token)
    os.symlink(p.mine + "/a", p.granted + "/b")
    return run(p.granted + "/b")
