"""Runs groups of cases, each group in a process of its own, each case under a time limit.

Groups run side by side as far as the machine bears it: two that mostly wait beside anything, three
that poll, or one and another that crowds, on two processors; what is measured or floods alone
(`case.WAITS` and the others). After a case failed its group goes on with a fresh fixture, in a new
process.
"""

import json
import os
import select
import signal
import time
import traceback

from . import flaky, process
from .case import POLLS, WAITS, Failure, Skip
from .machine import Machine
from .report import Report

_FIXTURE_LIMIT = 60.0
_GRACE = 15.0
# So many groups that wait run beside whatever else does.
_BESIDE = 2
# How often to look whether a process has ended that was told to.
_LOOK = 0.02


def run_groups(groups, stage, report: Report, confirm=0):
    """Runs everything, the cases of one group one at a time.

    A case that fails is tried once more, with a fresh fixture, so that it is known whether it fails
    always. One that passes then is flaky, which is a failure, too, but if the machine had stood
    still (machine.py) or if that is known of it (flaky.py), or if it passes alone at the end
    `confirm` times in a row, where that is asked for."""
    process.become_subreaper()
    signal.signal(signal.SIGTERM, _stop)
    room = 2 * max(2, os.cpu_count() or 2) + POLLS
    machine = Machine()
    # First the largest, of equals those that may last longest.
    groups = sorted(groups, key=lambda group: (-group.weight, -sum(c.limit for c in group.cases)))
    waiting = [(group, list(group.cases)) for group in groups if group.cases]
    running, tried = [], {}
    try:
        while waiting or running:
            for at in _fitting(waiting, running, room):
                running.append(_Running(*waiting.pop(at), stage, report, tried, machine))
            _wait(running)
            for group in [group for group in running if group.is_over(running)]:
                running.remove(group)
                if group.left:
                    waiting.insert(0, (group.group, group.left))
        for group, case in [(group, case) for group in groups for case in group.cases
                            if confirm and case.name in report.flaky]:
            again = _Confirming(group, [case] * confirm, stage, report, {}, machine)
            running.append(again)
            while not again.is_over(running):
                _wait(running)
            running.remove(again)
            report.confirmed(case.name, again.passed, confirm)
    except BaseException:
        for group in running:
            group.interrupt()
        process.end_descendants()
        raise


def _fitting(waiting, running, room):
    """Yields places of the list of groups that may start, the first that fits each time."""
    while True:
        weights = [one.group.weight for one in running]
        fits = (at for at, (group, _) in enumerate(waiting)
                if _load([*weights, group.weight]) <= room)
        at = next(fits, 0 if waiting and not running else None)
        if at is None:
            return
        yield at


def _load(weights):
    """What groups of these weights are for the machine together."""
    return sum(weights) - min(weights.count(WAITS), _BESIDE)


def _wait(running):
    """Until something is there to be read, or some time is over."""
    until = min(one.next_at() for one in running)
    # Of the others nothing is expected, and the end of a pipe would be told for ever.
    pipes = [one.pipe for one in running if one.gone_by is None]
    ready, _, _ = select.select(pipes, [], [], max(0.0, until - time.monotonic()))
    for one in running:
        one.look(one.pipe in ready)


class _Running:
    """A group whose process runs, or is about to be gone."""

    def __init__(self, group, cases, stage, report, tried, machine):
        self.group, self.left, self.report, self.tried = group, cases, report, tried
        self.machine, self.mark = machine, machine.mark()
        here, there = os.pipe()
        self.child = os.fork()
        if self.child == 0:
            os.close(here)
            _child(group, cases, stage, there, report)
        os.close(there)
        os.set_blocking(here, False)
        self.pipe, self.rest = here, b""
        self.begun = self.started = time.monotonic()
        self.limit = cases[0].limit + _FIXTURE_LIMIT
        # When its process is killed, once no case is expected of it any more; and whether all have
        # ended well, so that what its fixture says at its end counts.
        self.gone_by, self.closing = None, False

    def next_at(self):
        """When to look at the latest."""
        if self.gone_by is None:
            return self.started + self.limit
        return time.monotonic() + _LOOK

    def look(self, readable):
        """Takes what the process says; notes when it says nothing for too long."""
        if self.closing:
            self.rest += _rest(self.pipe)
        if self.gone_by is not None:
            return
        if readable or time.monotonic() > self.next_at():
            self._read()
        if self.gone_by is None and time.monotonic() > self.next_at():
            self._result("FAIL", f"not done after {self.limit:g} s")
            os.kill(self.child, signal.SIGTERM)

    def _read(self):
        try:
            more = os.read(self.pipe, 65536)
        except BlockingIOError:
            return
        self.rest += more
        while self.gone_by is None and b"\n" in self.rest:
            line, _, self.rest = self.rest.partition(b"\n")
            self._result(*json.loads(line))
        if not more and self.gone_by is None:
            self._result("FAIL", "the test process died")

    def _result(self, verdict, reason):
        """The next case has ended."""
        now = time.monotonic()
        name, seconds = self.left[0].name, now - self.started
        tries = self.tried[name] = self.tried.get(name, 0) + 1
        if verdict == "FAIL" and tries < flaky.tries(name):
            excuse = flaky.KNOWN.get(name) or self.machine.trouble(self.mark)
            self.report.again(name, seconds, reason, excuse)
        else:
            self.report.add(self.left.pop(0).name, verdict, seconds, reason)
        self.started, self.mark = now, self.machine.mark()
        self.closing = verdict != "FAIL" and not self.left
        if self.closing:
            self.gone_by = now + _FIXTURE_LIMIT
        elif verdict == "FAIL":
            self.gone_by = now + _GRACE
        else:
            self.limit = self.left[0].limit

    def _closed(self, how):
        """The fixture has ended, or had to be (`how` is empty), all cases having passed. What it
        says then is a failure of its own."""
        self.rest += _rest(self.pipe)
        reason = how or f"not done after {_FIXTURE_LIMIT:g} s"
        if how == process.how(0):
            reason = ""
        if self.rest:
            _, reason = json.loads(self.rest.partition(b"\n")[0])
        if reason:
            self.report.add(f"{self.group.name}, when it ended", "FAIL",
                            time.monotonic() - self.started, reason)

    def is_over(self, running):
        """Whether its process is gone, and all that it left behind."""
        if self.gone_by is None:
            return False
        pid, status, used = os.wait4(self.child, os.WNOHANG)
        killed = pid == 0
        if killed:
            if time.monotonic() <= self.gone_by:
                return False
            os.kill(self.child, signal.SIGKILL)
            _, _, used = os.wait4(self.child, 0)
        if self.closing:
            self._closed("" if killed else process.how(os.waitstatus_to_exitcode(status)))
        self.report.group(self.group.name, time.monotonic() - self.begun,
                          used.ru_utime + used.ru_stime)
        os.close(self.pipe)
        process.end_descendants(but=[one.child for one in running if one is not self])
        return True

    def interrupt(self):
        """Lets its process clean up."""
        try:
            os.kill(self.child, signal.SIGTERM)
            deadline = time.monotonic() + _GRACE
            while os.waitpid(self.child, os.WNOHANG)[0] == 0 and time.monotonic() < deadline:
                time.sleep(_LOOK)
        except (ProcessLookupError, ChildProcessError):
            pass


class _Confirming(_Running):
    """One case again and again, until it fails."""

    passed = 0

    def _result(self, verdict, reason):
        print(f"CONFIRM {verdict} {self.left.pop(0).name}{': ' if reason else ''}{reason[:500]}",
              flush=True)
        self.started = time.monotonic()
        self.passed += verdict == "PASS"
        if verdict != "PASS" or not self.left:
            self.gone_by = self.started + _GRACE


def _rest(pipe):
    """What is still in a pipe."""
    found = b""
    try:
        while more := os.read(pipe, 65536):
            found += more
    except BlockingIOError:
        pass
    return found


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
