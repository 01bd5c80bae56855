"""`run_as_systemd_unit.py UNIT PROGRAM...`: runs a program with the capabilities and system calls
that a unit of systemd leaves it, and no others. What systemd would answer with EPERM ends it
here."""

import ctypes
import os
import re
import struct
import subprocess
import sys

_LIBC = ctypes.CDLL(None, use_errno=True)
_CAPBSET_DROP, _SET_NO_NEW_PRIVS, _SET_SECCOMP = 24, 38, 22
_ALLOW, _KILL = 0x7FFF0000, 0x80000000


def _settings(unit, name):
    text = open(unit).read().replace("\\\n", " ")
    return [word for line in re.findall(rf"^{name}=(.*)$", text, re.M) for word in line.split()]


def _defined(header, prefix):
    """Names and numbers that a header of the kernel defines."""
    text = subprocess.run(["cc", "-dM", "-E", "-"], input=f"#include <{header}>\n", text=True,
                          capture_output=True, check=True).stdout
    return {name: int(number)
            for name, number in re.findall(rf"#define {prefix}(\w+) (\d+)$", text, re.M)}


def _group(name):
    lines = subprocess.run(["systemd-analyze", "syscall-filter", name], text=True,
                           capture_output=True, check=True).stdout.split("\n")[1:]
    for word in (line.strip() for line in lines):
        if word.startswith("@"):
            yield from _group(word)
        elif word and not word.startswith("#"):
            yield word


def _allowed(unit):
    for word in _settings(unit, "SystemCallFilter"):
        yield from _group(word) if word.startswith("@") else [word]


def _filter(numbers):
    code = struct.pack("HBBI", 0x20, 0, 0, 0)  # the number of the call
    for number in sorted(numbers):
        code += struct.pack("HBBI", 0x15, 0, 1, number) + struct.pack("HBBI", 0x06, 0, 0, _ALLOW)
    return code + struct.pack("HBBI", 0x06, 0, 0, _KILL)


def main():
    """Gives up what the unit does not have, and becomes the program."""
    unit, *argv = sys.argv[1:]
    keep = {word.removeprefix("CAP_") for word in _settings(unit, "CapabilityBoundingSet")}
    capabilities = _defined("linux/capability.h", "CAP_")
    calls = _defined("sys/syscall.h", "__NR_")
    numbers = {calls[name] for name in _allowed(unit) if name in calls}
    for name, number in capabilities.items():
        if name not in keep and name != "LAST_CAP":
            _LIBC.prctl(_CAPBSET_DROP, number, 0, 0, 0)
    _LIBC.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    code = ctypes.create_string_buffer(_filter(numbers))
    program = struct.pack("HxxxxxxP", len(_filter(numbers)) // 8, ctypes.addressof(code))
    if _LIBC.prctl(_SET_SECCOMP, 2, program, 0, 0):
        sys.exit(f"seccomp: {os.strerror(ctypes.get_errno())}")
    os.execv(argv[0], argv)


main()
