"""Just enough io_uring to submit one request and wait for it."""

import ctypes
import mmap
import os
import struct

from attack import raw

OP_OPENAT = 18
OP_CONNECT = 16
OP_SENDMSG = 9
OP_OPENAT2 = 28
OP_RENAMEAT = 35
OP_UNLINKAT = 36
SETUP_SQPOLL = 2
ENTER_GETEVENTS = 1
ENTER_SQ_WAKEUP = 2


def submit(opcode, fd, addr, length, op_flags, offset=0, setup=0, sqe_flags=0, rest=b""):
    """One request on a ring of its own; its result. `rest` goes behind the buffer's and personality's numbers. Raises OSError where
    the request failed."""
    params = bytearray(120)
    struct.pack_into("<I", params, 8, setup)
    buffer = (ctypes.c_char * 120).from_buffer(params)
    ring = raw("io_uring_setup", 4, buffer)
    try:
        fields = struct.unpack_from("<30I", params)
        sq_entries, cq_entries = fields[0], fields[1]
        sq_tail, sq_mask, sq_array = fields[11], fields[12], fields[16]
        cq_head, cq_tail, cq_mask, cq_cqes = fields[20], fields[21], fields[22], fields[25]
        sq = mmap.mmap(ring, sq_array + sq_entries * 4, flags=mmap.MAP_SHARED, offset=0)
        cq = mmap.mmap(ring, cq_cqes + cq_entries * 16, flags=mmap.MAP_SHARED, offset=0x8000000)
        sqes = mmap.mmap(ring, sq_entries * 64, flags=mmap.MAP_SHARED, offset=0x10000000)
        struct.pack_into("<BBHiQQII", sqes, 0, opcode, sqe_flags, 0, fd, offset, addr, length, op_flags)
        sqes[44:44 + len(rest)] = rest
        tail = struct.unpack_from("<I", sq, sq_tail)[0]
        mask = struct.unpack_from("<I", sq, sq_mask)[0]
        struct.pack_into("<I", sq, sq_array + 4 * (tail & mask), 0)
        struct.pack_into("<I", sq, sq_tail, tail + 1)
        flags = ENTER_GETEVENTS | (ENTER_SQ_WAKEUP if setup & SETUP_SQPOLL else 0)
        raw("io_uring_enter", ring, 1, 1, flags, 0, 0)
        head = struct.unpack_from("<I", cq, cq_head)[0]
        assert struct.unpack_from("<I", cq, cq_tail)[0] != head, "no completion"
        mask = struct.unpack_from("<I", cq, cq_mask)[0]
        result = struct.unpack_from("<Qi", cq, cq_cqes + 16 * (head & mask))[1]
        if result < 0:
            raise OSError(-result, f"io_uring: {os.strerror(-result)}")
        return result
    finally:
        os.close(ring)


def openat(path, flags=0, setup=0, sqe_flags=0):
    """IORING_OP_OPENAT; the new descriptor."""
    text = ctypes.create_string_buffer(os.fsencode(path))
    return submit(OP_OPENAT, -100, ctypes.addressof(text), 0, flags, setup=setup, sqe_flags=sqe_flags)


def connect(fd, address):
    """IORING_OP_CONNECT with a raw socket address."""
    data = ctypes.create_string_buffer(address, len(address))
    return submit(OP_CONNECT, fd, ctypes.addressof(data), 0, 0, offset=len(address))


def rename(old, new):
    """IORING_OP_RENAMEAT."""
    texts = [ctypes.create_string_buffer(os.fsencode(path)) for path in (old, new)]
    here = -100 & 0xFFFFFFFF
    return submit(OP_RENAMEAT, -100, ctypes.addressof(texts[0]), here, 0, offset=ctypes.addressof(texts[1]))
