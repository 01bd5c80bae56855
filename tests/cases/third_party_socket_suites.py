"""Runs third-party test suites: each test gives what it gives on the kernel's sockets.

Both ends of all their connections have the library. `sockets.suites` has calls passed on,
`carry.suites` may carry, `light.suites` may have light connections. What a test gives is compared
with a run without the library; where that differs the test is looked at again, alone, both ways:
what a busy machine does is no difference. What differs for a known reason stands, with it, in
`conformance/socket_suite_differences.toml`."""

import fnmatch
import tomllib

from cases import carried_sockets, light_connections, preloaded_sockets
from harness import staging
from harness.case import ALONE, Case, Group, check
from harness.run_third_party_socket_suites import (BACK_ENDS, Event, Ltp, Nginx, Python, Redis,
                                                   Tokio, Uv)

# How often a test that differs is looked at again.
_LOOKS = 4
# Of CPython's, beside what preloaded_sockets.py has: modules and, of each, seconds a run may take.
_PYTHON = {"asyncio": 900, "ssl": 200, "ftplib": 100, "httpservers": 60, "smtplib": 60,
           "poplib": 60, "xmlrpc": 60, "telnetlib": 60, "asynchat": 60,
           "multiprocessing_spawn": 600}
_UVLOOP = [f"tests.test_{name}" for name in
           ("tcp", "sockets", "unix", "pipes", "udp", "base", "context", "cython", "dns",
            "executors", "fs_event", "process", "regr1", "runner", "signals", "aiohttp")]


def _known(family, suite):
    """What may differ there: patterns of names."""
    differences = staging.ROOT / "tests/conformance/socket_suite_differences.toml"
    listed = tomllib.loads(differences.read_text())
    return [pattern for one in listed.get("differs", [])
            if one["suite"] == suite and family in one["families"] for pattern in one["tests"]]


def _compare(family, name, suite):
    def run(ways):
        """All tests both ways, and again those that differ."""
        native, ours = (suite.all(ways, way) for way in (False, True))
        check(native, "no test ran")
        differ = {test for test in native.keys() | ours.keys()
                  if native.get(test) != ours.get(test)}
        known = {test for test in differ for pattern in _known(family, name)
                 if fnmatch.fnmatchcase(test, pattern)}
        passed = sum(word.lower().startswith("ok") for word in native.values())
        print(f"{len(native)} tests, {passed} pass; as is known, differ: {sorted(known)}; to be "
              f"looked at again: {sorted(differ - known)}")
        found = [f"{test}: {ours.get(test)}, without the library {native.get(test)}"
                 for test in sorted(differ - known)]
        check(len(found) < max(10, len(native) // 10), "\n".join([f"{len(found)} differ", *found]))
        wrong = [said for test in sorted(differ - known)
                 if (said := _look_again(suite, ways, test))]
        check(not wrong, "\n".join(wrong))
    return run


def _look_again(suite, ways, test):
    """What a test gives, if it never gives what it gives without the library."""
    native, ours = set(), set()
    for _ in range(_LOOKS):
        native.add(suite.one(ways, False, test))
        ours.add(suite.one(ways, True, test))
        if native & ours:
            return ""
    return f"{test}: {ours}, without the library {native}"


def groups():
    """Many of these tests have limits of their own: they run alone."""
    suites = {f"python.{name}": (Python(limit, f"test.test_{name}"), 3 * limit)
              for name, limit in _PYTHON.items()}
    suites |= {"uvloop": (Python(600, *_UVLOOP, package="uvloop"), 2000), "libuv": (Uv(), 1500),
               "tokio": (Tokio(), 900), "redis": (Redis(), 3000), "nginx": (Nginx(), 3000),
               "ltp": (Ltp(), 1500)}
    suites |= {f"libevent.{name}": (Event(name), 1500) for name in BACK_ENDS}
    return [Group(f"{family}.suites",
                  [Case(f"{family}.suites.{name}", _compare(family, name, suite), limit, slow=True)
                   for name, (suite, limit) in suites.items()], kind, weight=ALONE)
            for family, kind in (("sockets", preloaded_sockets.Ways), ("carry",
                                                                       carried_sockets.Carried),
                                 ("light", light_connections.Light))]
