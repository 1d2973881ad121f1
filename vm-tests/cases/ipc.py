"""The family `ipc`: message queues, semaphores, shared memory and keys that somebody outside made."""

import ctypes
import errno
import os
import struct
import zlib

from attack import LIBC, NR, become, drain, raw
from case import DOCKER, FULL, NOBODY, USUAL, Family, Refused, profile_text

BASE = "/srv/rf/ipc"
QUEUES = "/dev/mqueue"
# What the kernel runs as root to make a key that a program asks for; here it only says that it ran.
UPCALL = "/sbin/request-key"
UPCALLS = f"{BASE}/upcalls"

NR.update({"mq_open": 240, "mq_unlink": 241, "mq_timedsend": 242, "mq_timedreceive": 243, "add_key": 248,
           "request_key": 249, "keyctl": 250, "shmget": 29, "shmat": 30, "shmctl": 31, "shmdt": 67, "semget": 64, "semop": 65,
           "semctl": 66, "msgget": 68, "msgsnd": 69, "msgrcv": 70, "msgctl": 71})

# `__FMODE_EXEC`, which mq_open takes from its caller.
EXEC_FLAG = 0x20
CREATE = 0o1000
# A queue of one message of 256 bytes: all of a user's together have a limit.
SMALL = struct.pack("<8q", 0, 1, 256, 0, 0, 0, 0, 0)
STAT, SET, REMOVE = 2, 1, 0


def locate(p):
    """A queue's name, a key for System V objects; `ident` and `serial` are of what was made outside, or 0."""
    p.queue = f"rf-{p.run}"
    p.path = f"{QUEUES}/{p.queue}"
    p.key = zlib.crc32(p.run.encode()) & 0x7FFFFFFF | 1
    p.ident = p.serial = 0


def prepare():
    """Queues have a place, as on any host; the harness has a session keyring, which all that it starts inherits."""
    os.makedirs(BASE, exist_ok=True)
    open(UPCALLS, "w").close()
    os.chmod(UPCALLS, 0o666)
    os.makedirs(QUEUES, exist_ok=True)
    if not os.path.ismount(QUEUES):
        raw("mount", b"mqueue", QUEUES.encode(), b"mqueue", 0, 0)
    raw("keyctl", 1, 0)
    # Whoever inherits it may use it, also after a change of user.
    raw("keyctl", 5, ctypes.c_int(-3), 0x3F3F3F3F)
    with open(UPCALL, "w") as file:
        file.write(f"#!/bin/sh\necho ran >> {UPCALLS}\n")
    os.chmod(UPCALL, 0o755)


def finish():
    """The guest has no such program of its own."""
    os.unlink(UPCALL)


def profile(places, here):
    """Queues are granted by their paths; for the rest there is nothing to write."""
    queues = [p.path for p in places if p.kind == "allow"]
    return profile_text("vm test: ipc", [here, "/run/rf-cases", BASE, *USUAL, *queues], queues)


IPC = Family("ipc", profile, locate=locate, prepare=prepare, finish=finish, who=(DOCKER, FULL, NOBODY),
             events=lambda p: [("ipc", "")])


# POSIX message queues

def queue(p):
    """A queue outside that holds the token."""
    fd = raw("mq_open", p.queue.encode(), os.O_RDWR | os.O_CREAT, 0o666, SMALL)
    os.fchmod(fd, 0o666)
    if p.who == NOBODY:  # the directory is sticky: a queue is removed by its owner
        os.fchown(fd, 65534, 65534)
    raw("mq_timedsend", fd, p.token.encode(), len(p.token), 0, 0)
    os.close(fd)


def take(p, flags):
    """The queue's first message."""
    fd = raw("mq_open", p.queue.encode(), flags | os.O_NONBLOCK, 0, 0)
    buffer = ctypes.create_string_buffer(8192)
    size = raw("mq_timedreceive", fd, buffer, 8192, 0, 0)
    return buffer.raw[:size].decode("latin-1")


@IPC.case("queue-open", setup=queue, events=lambda p: [("open", p.path)], hook="file_open")
def queue_open(p):
    """mq_open of a queue that somebody outside made"""
    return take(p, os.O_RDWR)


@IPC.case("queue-exec-flag", setup=queue, events=lambda p: [("open", p.path)], hook="file_open")
def queue_exec_flag(p):
    """mq_open with the flag by which the kernel marks an open for execution"""
    return take(p, os.O_RDWR | EXEC_FLAG)


@IPC.case("queue-exec-flag-read", setup=queue, events=lambda p: [("open", p.path)], hook="file_open")
def queue_exec_flag_read(p):
    """the same for reading only, as the kernel itself opens programs"""
    return take(p, os.O_RDONLY | EXEC_FLAG)


@IPC.case("queue-create", effect=lambda p, v: os.path.exists(p.path), events=lambda p: [("create", p.path)], hook="inode_create")
def queue_create(p):
    """mq_open with O_CREAT: a queue among the host's"""
    raw("mq_open", p.queue.encode(), os.O_RDWR | os.O_CREAT | EXEC_FLAG, 0o666, SMALL)


@IPC.case("queue-unlink", setup=queue, effect=lambda p, v: not os.path.exists(p.path), events=lambda p: [("unlink", p.path)],
          hook="inode_unlink")
def queue_unlink(p):
    """mq_unlink of a queue that somebody outside made"""
    raw("mq_unlink", p.queue.encode())


# System V shared memory, messages, semaphores

def attach(ident):
    """The address of a shared memory segment."""
    LIBC.shmat.restype = ctypes.c_void_p
    address = LIBC.shmat(ident, None, 0)
    if address == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "shmat")
    return address


def segment(p):
    """A segment that holds the token."""
    p.ident = raw("shmget", p.key, 4096, CREATE | 0o666)
    address = attach(p.ident)
    ctypes.memmove(address, p.token.encode(), len(p.token))
    raw("shmdt", address)


def messages(p):
    """A queue that holds the token."""
    p.ident = raw("msgget", p.key, CREATE | 0o666)
    raw("msgsnd", p.ident, struct.pack("<q", 1) + p.token.encode(), len(p.token), 0)


def semaphores(p):
    """A semaphore whose value is 5."""
    p.ident = raw("semget", p.key, 1, CREATE | 0o666)
    raw("semctl", p.ident, 0, 16, 5)


def outside(make):
    """Setup: makes the object outside, by the same user; for an allowed target the attack makes its own."""

    def setup(p):
        if p.kind == "allow":
            return
        if p.who != NOBODY:
            make(p)
            return
        here, there = os.pipe()
        child = os.fork()
        if child == 0:
            become(NOBODY)
            make(p)
            os.write(there, str(p.ident).encode())
            os._exit(0)
        os.close(there)
        p.ident = int(drain(here))
        os.waitpid(child, 0)

    return setup


def of(p, make):
    """The object to attack."""
    if not p.ident:
        make(p)
    return p.ident


def gone(control):
    """Effect: the object does not exist any more (of an allowed one the attack says so itself)."""

    def effect(p, value):
        if p.kind == "allow":
            return value == "done"
        try:
            raw(control, p.ident, *(([0] if control == "semctl" else []) + [STAT, ctypes.create_string_buffer(512)]))
        except OSError as error:
            return error.errno in (errno.EINVAL, errno.EIDRM)
        return False

    return effect


def by_key(p, call, *sizes):
    """The object, looked up by its key."""
    return raw(call, p.key, *sizes, 0)


@IPC.case("shared-memory", setup=outside(segment), hook="ipc_permission")
def shared_memory(p):
    """System V shared memory that a process outside made, by its key"""
    of(p, segment)
    return ctypes.string_at(attach(by_key(p, "shmget", 0)), 200).decode("latin-1")


@IPC.case("shared-memory-id", setup=outside(segment), hook="shm_alloc_security")
def shared_memory_id(p):
    """the same by its number, without looking it up"""
    return ctypes.string_at(attach(of(p, segment)), 200).decode("latin-1")


@IPC.case("shared-memory-remove", setup=outside(segment), effect=gone("shmctl"), hook="shm_shmctl")
def shared_memory_remove(p):
    """shmctl IPC_RMID: removes the segment"""
    raw("shmctl", of(p, segment), REMOVE, 0)
    return "done"


def receive(ident):
    """A copy of what a message queue holds first."""
    buffer = ctypes.create_string_buffer(512)
    size = raw("msgrcv", ident, buffer, 500, 0, 0o4000)
    return buffer.raw[8:8 + size].decode("latin-1")


@IPC.case("messages", setup=outside(messages), hook="msg_queue_alloc_security")
def message_receive(p):
    """msgrcv from a queue that a process outside made, by its key"""
    of(p, messages)
    return receive(by_key(p, "msgget"))


@IPC.case("messages-id", setup=outside(messages), hook="ipc_permission")
def message_receive_id(p):
    """the same by its number"""
    return receive(of(p, messages))


@IPC.case("messages-remove", setup=outside(messages), effect=gone("msgctl"), hook="msg_queue_msgctl")
def message_remove(p):
    """msgctl IPC_RMID: removes the queue"""
    raw("msgctl", of(p, messages), REMOVE, 0)
    return "done"


@IPC.case("messages-stat-any", setup=outside(messages), effect=lambda p, v: v == "1", hook="msg_queue_msgctl")
def message_stat_any(p):
    """MSG_STAT_ANY, which asks for no permission: who sent and received last, how much"""
    buffer = ctypes.create_string_buffer(512)
    ident = of(p, messages)
    raw("msgctl", ident & 0x7FFF, 13, buffer)
    return str(struct.unpack_from("<Q", buffer, 80)[0])


def value(ident):
    """A semaphore's value."""
    return raw("semctl", ident, 0, 12, 0)


@IPC.case("semaphores", setup=outside(semaphores), hook="sem_alloc_security",
          effect=lambda p, v: v == "4" if p.kind == "allow" else value(p.ident) == 4)
def semaphore_take(p):
    """semop on a set that a process outside made"""
    ident = of(p, semaphores)
    raw("semop", ident, struct.pack("<Hhh", 0, -1, 0), 1)
    return value(ident)


@IPC.case("semaphores-value", setup=outside(semaphores), effect=lambda p, v: v == "5", hook="sem_semctl")
def semaphore_value(p):
    """semctl GETVAL, by the set's key"""
    of(p, semaphores)
    return value(by_key(p, "semget", 0))


@IPC.case("semaphores-remove", setup=outside(semaphores), effect=gone("semctl"), hook="sem_free_security")
def semaphore_remove(p):
    """semctl IPC_RMID: removes the set"""
    raw("semctl", of(p, semaphores), 0, REMOVE, 0)
    return "done"


# By kind: how one is made, and how it is removed.
MAKERS = {
    "semaphores": (lambda: raw("semget", 0, 1, CREATE | 0o600), lambda ident: raw("semctl", ident, 0, REMOVE, 0)),
    "messages": (lambda: raw("msgget", 0, CREATE | 0o600), lambda ident: raw("msgctl", ident, REMOVE, 0)),
    "memory": (lambda: raw("shmget", 0, 4096, CREATE | 0o600), lambda ident: raw("shmctl", ident, REMOVE, 0)),
}


def crowd(make, remove):
    """As many objects as a container may have, then one more; the last error."""
    made = []
    try:
        while len(made) < 1100:
            made.append(make())
    except OSError as error:
        return f"{error.errno} after {len(made)}"
    finally:
        for ident in made:
            remove(ident)
    return "no end"


def share(kind):
    """What was removed is free again: the kernel frees it a little later."""
    make, remove = MAKERS[kind]
    end = crowd(make, remove)
    if end.split()[0] != str(errno.ENOSPC):
        raise Refused(end)
    for _ in range(2000):
        try:
            remove(make())
            return "a share"
        except OSError:
            LIBC.usleep(5000)
    raise Refused("what was removed is never free again")


def own_share(name, kind, hook):
    """A case of one kind of object."""

    @IPC.case(name, control=lambda p: share(kind), native=False, kinds=(), events=lambda p: [], who=(DOCKER,), hook=hook)
    def attack(p):
        """not an evasion: one container cannot take what others need, and gets back what it removes"""
        return share(kind)


own_share("share", "semaphores", "sem_free_security")
own_share("share-messages", "messages", "msg_queue_free_security")
own_share("share-memory", "memory", "shm_free_security")


# Keys

SESSION, PROCESS = -3, -2


def keyctl(option, *args):
    """keyctl(2)."""
    return raw("keyctl", option, *[ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args])


def key(p):
    """A key in the session keyring outside, that anybody may read."""
    if p.kind == "allow":
        return
    p.serial = add(p, SESSION)
    keyctl(5, p.serial, 0x3F3F3F3F)


def add(p, keyring):
    """A key that holds the token."""
    return raw("add_key", b"user", p.run.encode(), p.token.encode(), len(p.token), ctypes.c_long(keyring))


def read_key(serial):
    """What a key holds."""
    buffer = ctypes.create_string_buffer(4096)
    size = keyctl(11, serial, buffer, 4096)
    return buffer.raw[:size].decode("latin-1")


def own_key(p):
    """Keys of the container's own: made, found, read, linked, listed, revoked."""
    keyctl(1, 0)
    serial = add(p, SESSION)
    assert keyctl(10, SESSION, b"user", p.run.encode(), 0) == serial
    assert raw("request_key", b"user", p.run.encode(), 0, 0) == serial
    other = raw("add_key", b"keyring", b"rf-other", 0, 0, ctypes.c_long(PROCESS))
    keyctl(8, serial, other)
    text = read_key(serial)
    assert text == p.token and keyctl(11, other, ctypes.create_string_buffer(64), 64) == 4
    keyctl(3, serial)
    # One after another; the kernel lets go of each a little later.
    for number in range(100):
        keyctl(9, raw("add_key", b"user", b"rf-%d" % number, b"x", 1, ctypes.c_long(other)), other)
    return text


def keys(name, **options):
    """A case about keys."""
    options.setdefault("hook", "key_permission")
    return IPC.case(name, setup=key, control=own_key, events=lambda p: [("key", "")], **options)


@keys("key-read", errno=(errno.EACCES, errno.EPERM, errno.ENOKEY))
def key_read(p):
    """a key that somebody outside made, read by its number"""
    return read_key(p.serial)


@keys("key-search")
def key_search(p):
    """searched for in the session keyring that was inherited"""
    return read_key(keyctl(10, SESSION, b"user", p.run.encode(), 0))


@keys("key-request", errno=(errno.EACCES, errno.EPERM, errno.ENOKEY))
def key_request(p):
    """request_key(2), which searches all keyrings of the process"""
    return read_key(raw("request_key", b"user", p.run.encode(), 0, 0))


@keys("session-keyring-read", effect=lambda p, v: v == "listed", errno=(errno.EACCES, errno.EPERM, errno.ENOKEY))
def keyring_read(p):
    """the numbers of what is in the inherited session keyring"""
    keyctl(11, SESSION, ctypes.create_string_buffer(4096), 4096)
    return "listed"


@keys("session-keyring-add", effect=lambda p, v: v == "added")
def keyring_add(p):
    """a key of one's own put where programs outside look for theirs"""
    raw("add_key", b"user", b"rf-planted", b"x", 1, ctypes.c_long(SESSION))
    return "added"


@keys("key-link", effect=lambda p, v: v == "linked")
def key_link(p):
    """a key from outside linked into a keyring of one's own"""
    keyctl(8, p.serial, raw("add_key", b"keyring", b"rf-mine", 0, 0, ctypes.c_long(PROCESS)))
    return "linked"


@keys("key-revoke", effect=lambda p, v: v == "revoked")
def key_revoke(p):
    """a key from outside revoked"""
    keyctl(3, p.serial)
    return "revoked"


@keys("key-persistent", effect=lambda p, v: v == "got", who=(FULL,), native=(errno.EOPNOTSUPP,))
def key_persistent(p):
    """the user's persistent keyring, which all of the user's processes share"""
    keyctl(22, os.geteuid(), raw("add_key", b"keyring", b"rf-mine", 0, 0, ctypes.c_long(PROCESS)))
    return "got"


@keys("session-to-parent", effect=lambda p, v: v == "given", who=(DOCKER, FULL))
def session_to_parent(p):
    """KEYCTL_SESSION_TO_PARENT: the parent may be a process outside"""
    keyctl(1, 0)
    keyctl(18)
    return "given"


@keys("request-key-upcall", effect=lambda p, v: v == "ran", hook="key_alloc", errno=None)
def upcall(p):
    """request_key(2) for a key that nobody made: the kernel runs a program as the host's root"""
    before = os.path.getsize(UPCALLS)
    try:
        raw("request_key", b"user", b"rf-none-" + p.run.encode(), b"x", 0)
    except OSError as error:
        if os.path.getsize(UPCALLS) == before:
            raise OSError(error.errno, "no program ran") from error
    return "ran"
