"""Last: what the kernel thought of it all."""

import subprocess

from case import scene

BAD = ("BUG:", "WARNING:", "Oops", "general protection", "soft lockup", "detected stall", "self-detected", "refcount_t")


def complaints():
    """Lines of the kernel's log that should not be there."""
    text = subprocess.run(["dmesg"], capture_output=True, text=True, errors="replace").stdout
    lines = text.splitlines()
    return ["\n".join(lines[number : number + 25]) for number, line in enumerate(lines) if any(word in line for word in BAD)]


@scene("kernel/log-is-clean", hook="all")
def clean():
    """no warning, oops or lockup during the run"""
    found = complaints()
    assert not found, found[0]


@scene("kernel/log-is-clean-after-races", group="preempt")
def clean_races():
    """the same for the boot with preempt=full"""
    found = complaints()
    assert not found, found[0]
