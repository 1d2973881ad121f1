"""What attacks are made of: raw system calls, tiny programs, children, capability sets."""

import ctypes
import errno
import os
import struct

from case import Refused

LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.syscall.restype = ctypes.c_long

AT_FDCWD = -100
AT_EMPTY_PATH = 0x1000
O_PATH = 0o10000000
O_TMPFILE = 0o20200000

# x86_64 system call numbers that Python has no name for.
NR = {
    "ptrace": 101, "personality": 135, "pivot_root": 155, "mount": 165, "umount2": 166, "init_module": 175,
    "remap_file_pages": 216, "kexec_load": 246, "move_pages": 279, "unshare": 272, "openat": 257, "renameat2": 316,
    "perf_event_open": 298, "name_to_handle_at": 303, "open_by_handle_at": 304, "setns": 308, "sendmmsg": 307,
    "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "finit_module": 313, "memfd_create": 319,
    "bpf": 321, "execveat": 322, "userfaultfd": 323, "pkey_mprotect": 329, "pidfd_send_signal": 424,
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "pidfd_open": 434, "clone3": 435, "openat2": 437,
    "pidfd_getfd": 438, "process_madvise": 440, "mount_setattr": 442, "fchmodat2": 452, "utimensat": 280,
    "mknodat": 259, "fanotify_init": 300, "fanotify_mark": 301, "inotify_init1": 294, "inotify_add_watch": 254,
    "acct": 163, "chroot": 161, "rt_sigqueueinfo": 129, "tgkill": 234, "prctl": 157, "capset": 126, "prlimit64": 302,
    "linkat": 265, "sendmsg": 46, "ioprio_set": 251, "fchownat": 260, "setxattrat": 463,
}


def raw(name, *args):
    """A system call by name; bytes go as pointers. Raises OSError."""
    given = []
    for arg in args:
        if isinstance(arg, int):
            arg = ctypes.c_long(arg)
        elif isinstance(arg, bytes):
            arg = ctypes.c_char_p(arg)
        elif isinstance(arg, ctypes.Structure):
            arg = ctypes.byref(arg)
        given.append(arg)
    result = LIBC.syscall(ctypes.c_long(NR[name]), *given)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def int80(number, *args):
    """A system call by its number in the 32-bit table, `int 0x80`; bytes go as pointers, up to five arguments. Raises OSError."""
    LIBC.mmap.restype = ctypes.c_void_p
    low = LIBC.mmap(None, ctypes.c_size_t(4096), 7, 0x62, -1, 0)  # MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT
    assert low and low < 2**32, hex(low or 0)
    free = 256
    code = b"\x53\xb8" + struct.pack("<I", number)  # push rbx; mov eax, number
    for register, arg in zip(b"\xbb\xb9\xba\xbe\xbf", args):  # mov ebx, ecx, edx, esi, edi
        if isinstance(arg, bytes):
            ctypes.memmove(low + free, arg, len(arg))
            arg, free = low + free, free + (len(arg) + 15) // 16 * 16
        code += bytes([register]) + struct.pack("<I", arg & 0xFFFFFFFF)
    code += b"\xcd\x80\x48\x98\x5b\xc3"  # int 0x80; cdqe; pop rbx; ret
    ctypes.memmove(low, code, len(code))
    result = ctypes.CFUNCTYPE(ctypes.c_long)(low)()
    if result < 0:
        raise OSError(-result, f"int 0x80: {os.strerror(-result)}")
    return result


def b(path):
    """A path as the kernel takes it."""
    return os.fsencode(path)


def read(path, flags=0, dir_fd=None):
    """The beginning of a file, as text."""
    fd = os.open(path, os.O_RDONLY | flags, dir_fd=dir_fd)
    try:
        return take(fd)
    finally:
        os.close(fd)


def take(fd):
    """What can be read from a descriptor at its beginning, as text."""
    return os.pread(fd, 4000, 0).decode("latin-1")


def put(path, text, flags=os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode=0o666):
    """Writes a file."""
    fd = os.open(path, flags, mode)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def spawn(action):
    """Runs `action` (which should exec) in a child; its output, or its errno as OSError, or Refused."""
    out_r, out_w = os.pipe()
    err_r, err_w = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.dup2(out_w, 1)
            os.dup2(out_w, 2)
            action()
            os._exit(0)
        except OSError as error:
            os.write(err_w, str(error.errno or errno.EIO).encode())
        except BaseException as error:  # the child must never return into the caller
            os.write(1, repr(error).encode())
        os._exit(120)
    os.close(out_w)
    os.close(err_w)
    text = drain(out_r)
    number = drain(err_r)
    _, status = os.waitpid(child, 0)
    if number:
        raise OSError(int(number), os.strerror(int(number)))
    if status != 0:
        raise Refused(f"exit status {status:#x}, output {text!r}")
    return text


def in_child(action, fork=os.fork):
    """What the action returns or raises in a child."""
    text = drain(begun(action, fork))
    if text.startswith("errno "):
        raise OSError(int(text[6:]), "in the child")
    return text


def begun(action, fork=os.fork):
    """Starts a child that does it; a descriptor, from which comes what it returns, or the errno."""
    out, back = os.pipe()
    if fork() == 0:
        try:
            os.write(back, action().encode())
        except OSError as error:
            os.write(back, f"errno {error.errno}".encode())
        os._exit(0)
    os.close(back)
    return out


def in_thread(action):
    """What the action returns or raises in another thread."""
    import threading

    outcome = []

    def work():
        try:
            outcome.append(action())
        except OSError as error:
            outcome.append(error)

    one = threading.Thread(target=work)
    one.start()
    one.join()
    if isinstance(outcome[0], OSError):
        raise outcome[0]
    return outcome[0]


def drain(fd):
    """Everything from a descriptor until its end; closes it."""
    parts = []
    while True:
        part = os.read(fd, 65536)
        if not part:
            break
        parts.append(part)
    os.close(fd)
    return b"".join(parts).decode("latin-1")


def tiny_program(text):
    """A static x86_64 ELF program that prints `text` and leaves: needs no loader and no library."""
    data = text.encode()
    code = b"\xb8\x01\x00\x00\x00" + b"\xbf\x01\x00\x00\x00"  # mov eax, 1 (write); mov edi, 1
    code += b"\x48\x8d\x35" + struct.pack("<i", 16)  # lea rsi, [rip + 16]
    code += b"\xba" + struct.pack("<I", len(data)) + b"\x0f\x05"  # mov edx, len; syscall
    code += b"\xb8\x3c\x00\x00\x00\x31\xff\x0f\x05"  # mov eax, 60 (exit); xor edi, edi; syscall
    base = 0x400000
    size = 64 + 56 + len(code) + len(data)
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, base + 120, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, base, base, size, size, 0x1000)
    return header + segment + code + data


def place_program(path, text):
    """Writes a tiny program, executable by all."""
    with open(path, "wb") as file:
        file.write(tiny_program(text))
    os.chmod(path, 0o755)


def memfd(data, name=b"x"):
    """A memory file that holds `data`."""
    fd = raw("memfd_create", name, 0)
    os.write(fd, data)
    return fd


def execveat(fd, path, argv, flags):
    """execveat(2)."""
    array = (ctypes.c_char_p * (len(argv) + 1))(*[b(a) for a in argv], None)
    env = (ctypes.c_char_p * 1)(None)
    raw("execveat", fd, b(path), array, env, flags)


# chown dac_override fowner fsetid kill setgid setuid setpcap net_bind_service net_raw sys_chroot mknod audit_write setfcap
DOCKER_CAPABILITIES = (0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31)


def become(who):
    """Turns this process into one of the accounts of `case`."""
    if who == "docker":
        for number in range(41):
            if number not in DOCKER_CAPABILITIES:
                LIBC.prctl(24, number, 0, 0, 0)  # PR_CAPBSET_DROP
        mask = sum(1 << n for n in DOCKER_CAPABILITIES)
        header = struct.pack("<Ii", 0x20080522, 0)
        data = struct.pack("<IIIIII", mask & 0xFFFFFFFF, mask & 0xFFFFFFFF, 0, mask >> 32, mask >> 32, 0)
        raw("capset", header, data)
    elif who == "nobody":
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        LIBC.prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: /proc/self stays usable after the change of user


def has_capability(number):
    """Whether this process has an effective capability."""
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("CapEff:"):
                return bool(int(line.split()[1], 16) >> number & 1)
    return False
