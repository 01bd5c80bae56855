"""Tests that a sibling library shares the process's daemon session and progress thread."""

import os
import signal
import subprocess

from cases import c_programs
from harness import process, staging
from harness.case import Case, Group, check

# Need somebody who kills the daemon, or stops it.
_OUTLIVES = "outlives_the_daemon"
_WAITS = "waits_as_long_as_the_owner"


def _processes(pair):
    return len(pair.daemon.programs())


def _outlives(pair):
    """The daemon dies, and there is another."""
    _with_daemon(pair, _OUTLIVES, pair.daemon.kill, pair.daemon.start)


def _waits(pair):
    """The daemon is stopped, and goes on."""
    def tell(number):
        return lambda: os.kill(pair.daemon.pid, number)
    try:
        _with_daemon(pair, _WAITS, tell(signal.SIGSTOP), tell(signal.SIGCONT))
    finally:
        tell(signal.SIGCONT)()


def _with_daemon(pair, test, take, give):
    """Runs a test that wants the daemon taken away, and given back; the daemon knows of one process
    with one connection before and afterwards."""
    running = pair.server.start("/opt/programs/sibling_library", test, stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def reached(what):
        line = running.stdout.readline()
        while line and line.strip() != what:
            print(line, end="")
            line = running.stdout.readline()
        check(line, f"ended before it was {what}")

    def go_on():
        running.stdin.write("g")
        running.stdin.flush()

    try:
        reached("connected")
        check(_processes(pair) == 1, f"{pair.daemon.status()}")
        take()
        go_on()
        reached("alone")
        give()
        go_on()
        reached("again")
        check(_processes(pair) == 1, f"{pair.daemon.status()}")
        text = running.communicate("g", timeout=20)[0]
        check(running.returncode == 0, text)
    finally:
        process.end(running)


def _without_owner(pair):
    """Beside another libibverbs the sibling library does not load, and says why."""
    text = pair.server.run("/opt/programs/sibling_library", "watches", plain=True, accept=(1,))
    check("OMNIVERB_PRIVATE_1" in text, text)


def _no_accident(_pair):
    """A program that names a function of the node, and not the node, does not link."""
    program = staging.SIBLING / "private_node_misuse.c"
    text = process.run(["gcc", "-o", "/dev/null", program, staging.LIBRARY], accept=(1,))
    check("undefined reference to `omniverb_private_version'" in text, text)


def groups():
    """In containers, and as an ordinary user."""
    tests = [test for test in c_programs.tests_of("sibling_library") if test not in (_OUTLIVES,
                                                                                    _WAITS)]
    found = []
    for setting, fixture in c_programs.SETTINGS:
        cases = [c_programs.case(setting, f"sibling_library.{test}", [], 60) for test in tests]
        cases += [Case(f"{setting}.owner.{_OUTLIVES}", _outlives, 60),
                  Case(f"{setting}.owner.{_WAITS}", _waits, 60)]
        if setting == "user":
            cases += [Case("user.owner.beside_another_libibverbs", _without_owner, 30),
                      Case("user.owner.no_program_is_bound_by_accident", _no_accident, 30)]
        found.append(Group(f"{setting}.owner", cases, fixture))
    return found
