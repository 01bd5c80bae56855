"""Tests programs that bring a renamed libibverbs along, as wheels by auditwheel do."""

import functools

from harness.case import Case, Group, check
from harness.containers import Pair
from harness.unprivileged_daemon import PlainPair

_FOLDER = "/opt/programs/bundled"
_EXTENSION = f"{_FOLDER}/package/extension.so"
_FOUND = "first device: omv0, private: 48, ours: 1\n"
_CTYPES = f"""
import ctypes
module = ctypes.CDLL("{_EXTENSION}", ctypes.RTLD_GLOBAL)
module.first_device.restype = ctypes.c_char_p
print(module.first_device().decode(), module.private_number())
"""


def _same(text, wanted):
    check(text == wanted, f"{text!r} is not {wanted!r}")


def _copy_is_used_otherwise(pair):
    """Without Omniverb the program's own copy serves it: the cases below test something."""
    for program in (["linked"], ["opens", _EXTENSION]):
        text = pair.server.run(f"{_FOLDER}/{program[0]}", *program[1:], plain=True)
        _same(text, "first device: no device, private: 48, ours: 0\n")


def _opened(pair):
    """By what a module needs of what it needs, when it is opened."""
    _same(pair.server.run(f"{_FOLDER}/opens", _EXTENSION), _FOUND)
    path = f"{_FOLDER}/package.libs/libmodule-0a1b2c3d.so"
    _same(pair.server.run(f"{_FOLDER}/opens", path), _FOUND)


def _opened_by_threads(pair):
    """At once: none has the copy before ours is there."""
    for _ in range(20):
        _same(pair.server.run(f"{_FOLDER}/opens", _EXTENSION, 8), _FOUND)


def _by_python(pair):
    script = _CTYPES
    if pair.server.address == "127.0.0.1":
        script = script.replace("/opt/programs", str(pair.stage.programs))
    _same(pair.server.run("/usr/bin/python3", "-c", script), "omv0 48\n")


def _linked(pair):
    """When the program begins; and so its children do."""
    _same(pair.server.run(f"{_FOLDER}/linked"), _FOUND)
    words = f"{_FOLDER}/linked; exec {_FOLDER}/linked"
    if pair.server.address == "127.0.0.1":
        words = words.replace("/opt/programs", str(pair.stage.programs))
    _same(pair.server.run("sh", "-c", words), 2 * _FOUND)


def _not_needed(pair):
    """What brings none loads no library more, and finds its modules by its own search path."""
    _same(pair.server.run(f"{_FOLDER}/opens", "libplain.so"),
          "first device: nothing, private: 0, ours: 0\n")
    path = f"{_FOLDER}/package.libs/libplain.so"
    _same(pair.server.run(f"{_FOLDER}/opens", path), "first device: nothing, private: 0, ours: 0\n")
    maps = pair.server.run("cat", "/proc/self/maps")
    check("libomniverb_paths" in maps and "libibverbs" not in maps, maps)


def _finding(pair, program):
    text = pair.server.run("omniverb", "doctor", program, plain=True, accept=(0, 1))
    name = program.split("/")[-1]
    found = [line for line in text.splitlines() if f"/{name} " in line and "socket" not in line]
    check(found, text)
    return found[0]


def _doctor(pair):
    line = _finding(pair, f"{_FOLDER}/linked")
    check(line.startswith("ok") and "libibverbs-1de1263b.so.1.14.48.0" in line, line)
    line = _finding(pair, f"{_FOLDER}/static")
    check(line.startswith("BAD") and "built in" in line, line)
    line = _finding(pair, f"{_FOLDER}/opens")
    check(line.startswith("note") and "later" in line, line)
    line = _finding(pair, "/usr/bin/ibv_devices")
    check(line.startswith("ok") and "would load" in line, line)


def groups():
    """In a container and as an ordinary user."""
    cases = [("copy_is_used_otherwise", _copy_is_used_otherwise), ("opened", _opened),
             ("opened_by_threads", _opened_by_threads), ("by_python", _by_python),
             ("linked", _linked), ("not_needed", _not_needed)]
    doctor = [("doctor", _doctor)]
    return [Group(f"bundled.{setting}",
                  [Case(f"bundled.{setting}.{name}", run) for name, run in [*cases, *more]],
                  fixture)
            for setting, fixture, more in (("container", functools.partial(Pair, count=1), doctor),
                                           ("user", PlainPair, []))]
