"""What the running kernel offers: the LSM hooks that a BPF program can be attached to, and its table of system calls.

Both are read from the kernel itself, not from a header: the hooks from its BTF, the system calls from the table that
`/proc/kcore` shows.
"""

import struct

BTF = "/sys/kernel/btf/vmlinux"
PREFIX = "bpf_lsm_"
# Kinds of BTF types, and how many bytes follow each `struct btf_type`: fixed, and for each of its `vlen` members.
FUNC = 12
TRAILING = {1: (4, 0), 3: (12, 0), 4: (0, 12), 5: (0, 12), 6: (0, 8), 13: (0, 8), 14: (4, 0), 15: (0, 12), 17: (4, 0), 19: (0, 12)}


def functions(path=BTF):
    """Names of the functions that have a type in the kernel's BTF."""
    with open(path, "rb") as file:
        data = file.read()
    magic, _, _, head, types_at, types_len, strings_at, strings_len = struct.unpack_from("<HBBIIIII", data)
    if magic != 0xEB9F:
        raise ValueError(f"{path} is no BTF")
    strings = data[head + strings_at : head + strings_at + strings_len]
    at, end = head + types_at, head + types_at + types_len
    names = []
    while at < end:
        name, info, _ = struct.unpack_from("<III", data, at)
        kind, members = info >> 24 & 0x1F, info & 0xFFFF
        fixed, each = TRAILING.get(kind, (0, 0))
        at += 12 + fixed + each * members
        if kind == FUNC:
            names.append(strings[name : strings.index(b"\0", name)].decode())
    return names


def hooks():
    """LSM hooks that the kernel offers to BPF, and a few functions that are named like them."""
    return {name.removeprefix(PREFIX) for name in functions() if name.startswith(PREFIX)}


def symbols():
    """Addresses by name, and names by address, of the kernel's text and data."""
    by_name, by_address = {}, {}
    with open("/proc/kallsyms") as file:
        for line in file:
            address, _, name, *module = line.split()
            if not module:
                by_name.setdefault(name, int(address, 16))
                by_address.setdefault(int(address, 16), []).append(name)
    return by_name, by_address


def system_calls():
    """Entry function (`__x64_sys_NAME` without its prefix) by number, as the 64-bit table has it; without the holes."""
    by_name, by_address = symbols()
    table = by_name["sys_call_table"]
    hole = by_name.get("__x64_sys_ni_syscall")
    found = {}
    with open("/proc/kcore", "rb") as core:
        for number in range(1024):
            entry = read_word(core, table + number * 8)
            names = [name for name in by_address.get(entry, ()) if name.startswith("__x64_sys_")]
            if not names:
                break  # the end of the table
            if entry != hole:
                found[number] = sorted(names)[0].removeprefix("__x64_sys_")
    return found


def read_word(core, address):
    """A word of kernel memory, by the segments of the core file."""
    core.seek(0)
    header = core.read(64)
    at, size, count = struct.unpack_from("<Q", header, 32)[0], *struct.unpack_from("<HH", header, 54)
    for index in range(count):
        core.seek(at + index * size)
        kind, _, offset, start, _, length = struct.unpack_from("<IIQQQQ", core.read(56))
        if kind == 1 and start <= address < start + length:
            core.seek(offset + address - start)
            return struct.unpack("<Q", core.read(8))[0]
    raise ValueError(f"{address:#x} is in no segment of /proc/kcore")



def version(text):
    """`6.12` as something to compare."""
    return tuple(int(part) for part in text.split("."))


def expected(groups, running):
    """Names in the table that a kernel of this version should have."""
    names = set()
    for group in groups:
        for entry in group["names"]:
            name, _, kernels = entry.partition(" ")
            first, _, last = kernels.partition("..")
            if (not first or version(first) <= running) and (not last or running <= version(last)):
                names.add(name)
    return names
