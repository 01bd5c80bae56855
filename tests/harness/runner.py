"""Runs groups of cases, each group in a process of its own, each case under a time limit."""

import contextlib
import json
import os
import select
import signal
import time
import traceback

from . import process
from .case import Failure, Skip
from .report import Report

_FIXTURE_LIMIT = 60.0
_GRACE = 15.0


def run_groups(groups, stage, report: Report):
    """Runs everything, one case at a time.

    A case that fails is tried once more, with a fresh fixture, and counts as it ends then: these
    are tests of real programs with real time limits, and the machine may have stood still. Both
    failures and second tries are printed."""
    process.become_subreaper()
    signal.signal(signal.SIGTERM, _stop)
    tried = set()
    for group in groups:
        left = list(group.cases)
        while left:
            left = _run_some(group, left, stage, report, tried)


def _run_some(group, cases, stage, report, tried):
    """Runs cases until one fails; returns those not yet run."""
    here, there = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(here)
        _child(group, cases, stage, there, report)
    os.close(there)
    left = list(cases)
    started = time.monotonic()
    verdict, reason, late = None, "", False
    with os.fdopen(here, "rb", buffering=0) as pipe, _ended(child):
        lines = _Lines(pipe)
        while left and verdict != "FAIL":
            limit = left[0].limit + (_FIXTURE_LIMIT if len(left) == len(cases) else 0)
            line = lines.next(started + limit)
            late = line is None
            if late:
                verdict, reason = "FAIL", f"not done after {limit:g} s"
            elif line == b"":
                verdict, reason = "FAIL", "the test process died"
            else:
                verdict, reason = json.loads(line)
            now = time.monotonic()
            if verdict == "FAIL" and left[0].name not in tried:
                tried.add(left[0].name)
                report.again(left[0].name, now - started, reason)
                break
            report.add(left.pop(0).name, verdict, now - started, reason)
            started = now
        _end_child(child, late)
    return left


@contextlib.contextmanager
def _ended(child):
    """If we are interrupted, so is the child."""
    try:
        yield
    except BaseException:
        _end_child(child, True)
        raise


class _Lines:
    """Lines from a pipe, with a deadline."""

    def __init__(self, pipe):
        self.pipe, self.rest = pipe, b""

    def next(self, deadline):
        """One line; b"" at the end; None when the deadline passes first."""
        while b"\n" not in self.rest:
            left = max(0.0, deadline - time.monotonic())
            if not select.select([self.pipe], [], [], left)[0]:
                return None
            more = self.pipe.read(65536)
            if not more:
                return b""
            self.rest += more
        line, _, self.rest = self.rest.partition(b"\n")
        return line


def _end_child(child, interrupt):
    """Lets the group's process clean up, then makes sure that nothing is left of it."""
    deadline = time.monotonic() + _GRACE
    if interrupt:
        os.kill(child, signal.SIGTERM)
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            break
        time.sleep(0.01)
    process.end_descendants()


def _child(group, cases, stage, pipe, report):
    """The process of a group."""
    process.become_subreaper()
    os.setsid()
    signal.signal(signal.SIGTERM, _stop)
    process.die_with_parent(signal.SIGTERM)
    status = 0
    try:
        _redirect(report.log_path(cases[0].name))
        try:
            with group.fixture(stage) as fixture:
                for number, case in enumerate(cases):
                    if number:
                        _redirect(report.log_path(case.name))
                    result = _run_case(case, fixture)
                    _tell(pipe, result)
                    if result[0] == "FAIL":
                        break
        except Skip as skip:
            for _ in cases:
                _tell(pipe, ("SKIP", str(skip)))
        except Failure as failure:
            _tell(pipe, ("FAIL", str(failure)))
    except BaseException:  # noqa: B036 - the process ends here, whatever it is
        status = 1
        try:
            _tell(pipe, ("FAIL", traceback.format_exc()))
        except OSError:
            pass
    finally:
        process.end_descendants()
        os._exit(status)


def _stop(_number, _frame):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(1)


def _run_case(case, fixture):
    try:
        case.run(fixture)
        return "PASS", ""
    except Skip as skip:
        return "SKIP", str(skip)
    except Failure as failure:
        return "FAIL", str(failure)
    except Exception:  # noqa: BLE001 - a broken case is a failed case
        return "FAIL", traceback.format_exc()


def _tell(pipe, result):
    os.write(pipe, json.dumps(result).encode() + b"\n")


def _redirect(path):
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
