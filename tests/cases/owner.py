"""One owner of the process: a second library reaches the daemon and the progress thread through
libibverbs.so.1 (tests/programs/owner.c, tests/programs/second)."""

import contextlib
import subprocess

from cases import programs
from harness import process, staging
from harness.case import Case, Group, check
from harness.containers import Pair
from harness.plain import PlainPair

# Needs somebody who kills the daemon.
_OUTLIVES = "outlives_the_daemon"


def _processes(pair):
    return pair.daemon.totals().get("processes", 0)


def _outlives(pair):
    """The daemon knows of one process with one connection; it dies, and there is another."""
    running = pair.server.start("/opt/programs/owner", _OUTLIVES, stdin=subprocess.PIPE,
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
        pair.daemon.kill()
        go_on()
        reached("alone")
        pair.daemon.start()
        go_on()
        reached("again")
        check(_processes(pair) == 1, f"{pair.daemon.status()}")
        text = running.communicate("g", timeout=20)[0]
        check(running.returncode == 0, text)
    finally:
        process.end(running)


def _without_owner(pair):
    """Beside somebody else's libibverbs the second library does not load, and says why."""
    text = pair.server.run("/opt/programs/owner", "watches", plain=True, accept=(1,))
    check("OMNIVERB_PRIVATE_1" in text, text)


def _no_accident(_pair):
    """A program that names a function of the node, and not the node, does not link."""
    text = process.run(["gcc", "-o", "/dev/null", staging.SECOND / "unbound.c", staging.LIBRARY],
                       accept=(1,))
    check("undefined reference to `omniverb_private_version'" in text, text)


def groups():
    """In containers, and as an ordinary user."""
    tests = [test for test in programs.tests_of("owner") if test != _OUTLIVES]
    found = []
    for setting, fixture in (("containers", _container), ("user", _user)):
        cases = [programs.case(setting, f"owner.{test}", [], 60) for test in tests]
        cases.append(Case(f"{setting}.owner.{_OUTLIVES}", _outlives, 60))
        if setting == "user":
            cases += [Case("user.owner.beside_another_libibverbs", _without_owner, 30),
                      Case("user.owner.no_program_is_bound_by_accident", _no_accident, 30)]
        found.append(Group(f"{setting}.owner", cases, fixture))
    return found


@contextlib.contextmanager
def _container(stage):
    with Pair(stage, count=1) as pair:
        yield pair


@contextlib.contextmanager
def _user(stage):
    with PlainPair(stage) as pair:
        yield pair
