"""Ways of `compare_with_kernel.py`: `poll` and `select` at their limits."""

import ctypes
import errno
import os
import pathlib
import re
import resource
import select
import socket

from lock_step_processes import LIBC

_WORD = 64
# One more than the descriptors that a set of the C library has room for.
_MANY = 2048


def _selects(end, seconds, **asked):
    """What `select` of so many descriptors says: how many, the bits that are set, the time left."""
    sets = {name: (ctypes.c_uint64 * (max(end, _MANY) // _WORD + 1))()
            for name in ("read", "write", "rest")}
    for name, numbers in asked.items():
        for number in numbers:
            sets[name][number // _WORD] |= 1 << number % _WORD
    time = (ctypes.c_long * 2)(int(seconds), int(seconds % 1 * 1_000_000))
    told = LIBC.select(end, *sets.values(), time)
    if told < 0:
        return errno.errorcode[ctypes.get_errno()]
    return told, {name: [_WORD * place + bit for place, word in enumerate(words) if word
                         for bit in range(_WORD) if word >> bit & 1]
                  for name, words in sets.items()}


def _named(said, names):
    """The same with names for numbers."""
    if isinstance(said, str):
        return said
    told, sets = said
    return told, {name: sorted(names.get(number, "another") for number in numbers)
                  for name, numbers in sets.items()}


def _moved(number, to):
    """A duplicate far away, which is the only one then."""
    os.dup2(number, to)
    os.close(number)
    return to


def _wide_server(role):
    """`select` of more descriptors than the C library's sets have room for."""
    role.pair()
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(limit, 4096), limit))
    out, into = os.pipe()
    out = _moved(out, 1500)
    number = role.end.fileno()
    for place in ("low", "high"):
        if place == "high":
            number = _moved(role.end.detach(), 1600)
            role.end = socket.socket(fileno=number)
        names = {number: "end", out: "pipe"}

        def shown(seconds=0, end=_MANY, names=names, number=number):
            role.say(_named(_selects(end, seconds, read=[number, out]), names),
                     _named(_selects(end, 0, read=[out], write=[number]), names),
                     _named(_selects(end, 0, read=[number], write=[into]), {**names, into: "in"}))

        role.say(place)
        shown()
        shown(0.02)
        os.write(into, b"x")
        shown(10)
        role.meet()
        role.say(_named(_selects(_MANY, 10, read=[number]), names))
        shown()
        os.read(out, 1)
        shown()
        role.say(role.end.recv(9))
        shown()
    os.close(out)
    role.say("closed", _selects(_MANY, 0, read=[role.end.fileno(), out]))



def _wide_client(role):
    role.pair()
    for _ in range(2):
        role.meet()
        role.end.sendall(b"some")


def _bits_server(role):
    """Bits beyond the table, closed descriptors, and an end that was not asked for."""
    role.pair()
    number = role.end.fileno()
    # The library's own descriptors make the table larger.
    status = pathlib.Path("/proc/self/status").read_text(encoding="ascii")
    beyond = int(re.search(r"FDSize:\s*(\d+)", status)[1]) + 10
    end = beyond + 1
    names = {number: "end", beyond: "beyond", 50: "closed"}
    role.say(_named(_selects(end, 0, read=[number, beyond], rest=[beyond]), names))
    role.say(_named(_selects(end, 0, read=[50], write=[number, beyond]), names))
    role.say(_named(_selects(end, 0, write=[number], rest=[beyond]), names))
    role.meet()
    role.say(_named(_selects(end, 10, read=[number, beyond]), names), role.end.recv(9))
    role.meet()
    role.meet()
    role.end.shutdown(socket.SHUT_RDWR)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    role.say("ended", _named(_selects(end, 0.3, rest=[number]), names))
    role.say("sleeps", resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before < 50)
    role.say(_named(_selects(end, 10, read=[number], rest=[number]), names))


def _bits_client(role):
    role.pair()
    role.meet()
    role.end.sendall(b"some")
    role.meet()
    role.end.close()
    role.meet()


def _unused_server(role):
    """`poll` of as many entries as there may be descriptors, of which most are none; and more of
    `select` than that limit."""
    role.pair()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    out, into = os.pipe()
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
    entries = (ctypes.c_uint64 * 256)(*[0xFFFF_FFFF] * 256)
    wanted = {3: role.end.fileno(), 100: out, 255: role.end.fileno()}
    for place, number in wanted.items():
        entries[place] = number | select.POLLIN << 32

    def shown(wait):
        told = LIBC.poll(entries, ctypes.c_ulong(256), wait)
        role.say(told if told >= 0 else errno.errorcode[ctypes.get_errno()],
                 {place: one >> 48 for place, one in enumerate(entries) if one >> 48})

    shown(0)
    shown(20)
    os.write(into, b"x")
    shown(10_000)
    os.read(out, 1)
    role.meet()
    shown(10_000)
    role.say(role.end.recv(9))
    shown(0)
    limit = 8
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    pipes = [out, into]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)
    for _ in range(8):
        pipes += os.pipe()
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    names = {role.end.fileno(): "end"}
    asked = [role.end.fileno(), *pipes[::2], *pipes[1::2]]
    role.say("above the limit", _named(_selects(200, 0, read=asked), names))
    role.say("and waits", _named(_selects(200, 0.02, read=asked), names))
    role.meet()
    role.say("and is told", _named(_selects(200, 10, read=asked), names))
    resource.setrlimit(resource.RLIMIT_NOFILE, before)
    role.say(role.end.recv(9))


def _unused_client(role):
    role.pair()
    for _ in range(2):
        role.meet()
        role.end.sendall(b"some")



WAYS = {
    "wide": (_wide_server, _wide_client),
    "bits": (_bits_server, _bits_client),
    "unused": (_unused_server, _unused_client),
}
