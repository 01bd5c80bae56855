"""Runs groups of tests, each group in a process of its own, each test under a time limit.

Groups run side by side as far as the machine bears it: two that mostly wait beside anything, three
that poll, or one and another that crowds, on two processors; what is measured or floods alone
(`case.WAITS` and the others). After a test failed its process ends, and its group goes on in a new
one, with a fresh fixture.
"""

import asyncio
import collections
import contextlib
import itertools
import multiprocessing
import os
import signal
import sys
import time
import traceback

import pytest

from . import disk_space, flaky_cases, notes, process
from .case import POLLS, WAITS
from .machine_disturbance import Machine

_FIXTURE_LIMIT = 60.0
_GRACE = 15.0
# So many groups that wait run beside whatever else does.
_BESIDE = 2
_SPACE = 2 * max(2, os.cpu_count() or 2) + POLLS
# How often to look whether a process has ended.
_LOOK = 0.02


def _interrupt(*_):
    """Ends the run as ^C does, also where a shell has begun it with that ignored."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.raise_signal(signal.SIGINT)


def _limit(test):
    mark = test.get_closest_marker("limit")
    return mark.args[0] if mark else 60.0


def _weight(tests):
    mark = tests[0].get_closest_marker("weight")
    return mark.args[0] if mark else POLLS


def _load(weights):
    """What groups of these weights are for the machine together."""
    return sum(weights) - min(weights.count(WAITS), _BESIDE)


async def _hear(pipe, seconds):
    """What a process says in that time."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(pipe.fileno(), ready.set)
    try:
        await asyncio.wait_for(ready.wait(), seconds)
        return pipe.recv()
    finally:
        loop.remove_reader(pipe.fileno())


async def _report(test, when, pipe, child):
    """What the process says of a phase of a test, or that it does not."""
    limit, sections = _limit(test) + (0 if when == "call" else _FIXTURE_LIMIT), ()
    try:
        return await _hear(pipe, limit)
    except TimeoutError:
        child.terminate()
        reason = f"not done after {limit:g} s"
        with contextlib.suppress(TimeoutError, EOFError):
            sections = (await _hear(pipe, _GRACE)).sections
    except EOFError:
        child.kill()  # it may only have closed the pipe
        child.join()
        reason = f"the test process died: {process.how(child.exitcode)}"
    return pytest.TestReport(test.nodeid, test.location, {}, "failed", reason, when, sections,
                             lost=True)


class Run:
    """One run, with what is known of its tests.

    A test that fails is tried once more, so that it is known whether it fails always. One that
    passes then is flaky, which is a failure, too, but if the machine had stood still
    (machine_disturbance.py) or if that is known of it (flaky_cases.py), or if it passes alone at
    the end `--confirm` times in a row."""

    def __init__(self, session):
        self.session, self.option = session, session.config.option
        self.print = session.config.pluginmanager.get_plugin("terminalreporter").write_line
        self.machine, self.turn = Machine(), asyncio.Condition()
        # Of what runs.
        self.weights = []
        # Of tests that failed and are tried once more: why that is no fault of their own, or empty,
        # for each time, and what they said.
        self.excuses, self.before = collections.defaultdict(list), collections.defaultdict(list)
        # Flaky ones with their reports, and lines for the end.
        self.flaky, self.notes = [], []

    async def everything(self):
        """Runs all that was chosen, the tests of one group one at a time."""
        process.become_subreaper()
        signal.signal(signal.SIGTERM, _interrupt)
        groups = [list(group) for _, group in
                  itertools.groupby(self.session.items, lambda test: test.parent)]
        # First the largest, of equals those that may last longest.
        groups.sort(key=lambda group: (-_weight(group), -sum(map(_limit, group))))
        await asyncio.gather(*map(self._group, groups))
        for test, reports in self.flaky:
            await self._confirm(test, reports)

    async def _group(self, tests):
        """Runs a group, as soon as there is room beside what runs."""
        weight = _weight(tests)
        async with self.turn:
            await self.turn.wait_for(
                lambda: not self.weights or _load([*self.weights, weight]) <= _SPACE)
            self.weights.append(weight)
        while tests:
            await self._process(tests, self._ended)
        async with self.turn:
            self.weights.remove(weight)
            self.turn.notify_all()

    async def _process(self, tests, ended):
        """Runs tests of a group in a process until one fails. Takes those that have ended off the
        list, but if `ended` says that one is tried once more."""
        sys.stdout.flush()
        pipe, there = multiprocessing.Pipe(duplex=False)
        child = multiprocessing.get_context("fork").Process(target=_run, args=(tests, there))
        child.start()
        there.close()
        try:
            failed = False
            while tests and not failed:
                test, mark = tests[0], self.machine.mark()
                reports = [await _report(test, "setup", pipe, child)]
                if reports[0].passed:
                    reports.append(await _report(test, "call", pipe, child))
                if not hasattr(reports[-1], "lost"):
                    reports.append(await _report(test, "teardown", pipe, child))
                self.notes += [f"{test.title}: {note}" for report in reports
                               for note in getattr(report, "notes", ())]
                failed = any(report.failed for report in reports)
                if not ended(test, reports, mark):
                    del tests[0]
        except BaseException:
            child.terminate()
            raise
        finally:
            until = time.monotonic() + _GRACE
            while child.is_alive():
                with contextlib.suppress(TimeoutError, EOFError):
                    await _hear(pipe, _LOOK)
                if time.monotonic() > until:
                    child.kill()
            pipe.close()
            process.end_descendants(but=[one.pid for one in multiprocessing.active_children()])

    def _ended(self, test, reports, mark):
        """Notes how a test ended. Whether it is tried once more."""
        last = [report for report in reports if report.when != "teardown"][-1]
        excuses = self.excuses[test]
        if last.failed and len(excuses) + 1 < flaky_cases.tries(test.title):
            excuses.append(flaky_cases.KNOWN.get(test.title) or self.machine.trouble(mark))
            self.before[test] += [("Failed before", last.longreprtext), *last.sections]
            self._say(f"AGAIN {test.title}", last)
            return True
        last.sections = self.before[test] + list(last.sections)
        if excuses and last.skipped:
            last.outcome, last.longrepr = "failed", "it failed, and skipped itself when tried " \
                f"again: {last.longrepr[2]}"
        elif excuses and last.passed and not excuses[-1]:
            self.flaky.append((test, reports))
            return False
        elif excuses and last.passed:
            self.notes.append(f"passed only when tried again: {test.title} "
                              f"(excused: {excuses[-1]})")
        self._tell(test, reports)
        return False

    async def _confirm(self, test, reports):
        """Runs a flaky test alone, until it fails or has passed as often as is asked for."""
        left = [test] * self.option.confirm

        def ended(_test, reports, _mark):
            passed = all(report.passed for report in reports)
            self.print(f"CONFIRM {'PASSED' if passed else 'FAILED'} {test.title}")
            return not passed

        if left:
            await self._process(left, ended)
        if self.option.confirm and not left:
            self.notes.append(f"FLAKY, and let pass: {test.title} (then it passed alone, "
                              f"{self.option.confirm} times in a row)")
        else:
            self.notes.append(f"FLAKY, so counted as failed: {test.title}")
            reports[1].outcome = "failed"
            reports[1].longrepr = "it passed only when tried again"
        self._tell(test, reports)

    def _tell(self, test, reports):
        """Tells pytest how a test ended."""
        test.ihook.pytest_runtest_logstart(nodeid=test.nodeid, location=test.location)
        for report in reports:
            test.ihook.pytest_runtest_logreport(report=report)
        test.ihook.pytest_runtest_logfinish(nodeid=test.nodeid, location=test.location)
        for report in [report for report in reports if report.failed]:
            self._say("", report)
        if self.session.shouldfail:
            raise self.session.Failed(self.session.shouldfail)

    def _say(self, line, report):
        """Prints the beginning of why a test failed. All is told at the end."""
        if trouble := disk_space.full():
            report.longrepr = f"{trouble}\n{report.longreprtext}"
        reason = [one.strip()[:180] for one in report.longreprtext.splitlines() if one.strip()]
        self.print("\n".join([*filter(None, [line]), *(f"     {one}" for one in reason[:6])]))

    def pytest_terminal_summary(self):
        """Prints what has to be known beside the counts."""
        for note in self.notes:
            self.print(note)


class _Teller:
    """Plug-in of a process of tests: tells its parent how they end."""

    def __init__(self, pipe):
        self.pipe, self.failed = pipe, False

    def pytest_runtest_logreport(self, report):
        """Called for each phase of each test."""
        report.sections = [(title, disk_space.shorten(text)) for title, text in report.sections]
        report.notes = notes.take()
        self.pipe.send(report)
        self.failed |= report.failed


def _run(tests, pipe):
    """A process of tests."""
    status = 1
    try:
        process.become_subreaper()
        os.setsid()
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
        process.die_with_parent(signal.SIGTERM)
        plugins, teller = tests[0].config.pluginmanager, _Teller(pipe)
        plugins.unregister(name="terminalreporter")
        plugins.register(teller)
        # A file of its own takes what is printed.
        plugins.get_plugin("capturemanager").stop_global_capturing()
        plugins.get_plugin("capturemanager").start_global_capturing()
        for test, following in zip(tests, [*tests[1:], None]):
            test.ihook.pytest_runtest_protocol(item=test, nextitem=following)
            if teller.failed:
                break
        tests[0].session._setupstate.teardown_exact(None)
        status = 0
    except SystemExit:
        pass  # told to end
    except BaseException:  # noqa: B036 - the process ends here, whatever it is
        traceback.print_exc()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        process.end_descendants()
        os._exit(status)
