"""Plug-in of pytest: collects tables of cases, and runs groups of tests side by side
(group_runner.py).

A file in cases/ defines `groups()` (case.py), or plain tests of pytest with the marks `weight` and
`limit`; those of one module or class are a group, too.
"""

import asyncio
import contextlib
import pathlib

import pytest

from . import disk_space, process, staging
from .case import Failure
from .group_runner import Run

_TESTS = staging.ROOT / "tests"


def pytest_addoption(parser):
    """Options of our own."""
    own = parser.getgroup("omniverb")
    own.addoption("--list", action="store_true", help="print the names, run nothing")
    own.addoption("--slow", action="store_true",
                  help="the long versions only, as make soak does")
    own.addoption("--confirm", type=int, default=0, metavar="N",
                  help="a test that passed only when tried again passes, if it does so N times "
                       "more, alone at the end")
    own.addoption("--lean", action="store_true",
                  help="remove what was built as soon as no test needs it any more")


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    """Words that are no paths are parts of names."""
    words = config.args if config.args_source == config.ArgsSource.ARGS else []
    paths = [word for word in words if "/" in word or word.partition("::")[0].endswith(".py")
             or pathlib.Path(word).resolve() == _TESTS]
    config.option.parts = [word for word in words if word not in paths]
    config.args = paths or [str(_TESTS / "cases")]
    if config.option.list:
        config.option.verbose = -2
    if config.option.lean:
        disk_space.be_lean()


def pytest_report_header(config):
    """Says so if the disk may be too small for all."""
    return [] if config.option.parts else disk_space.short().splitlines()


def pytest_collection_modifyitems(config, items):
    """Drops what was not asked for."""
    option, chosen = config.option, []
    for test in items:
        test.title = getattr(test, "title", f"{test.path.stem}.{test.name.removeprefix('test_')}")
        if option.slow == bool(test.get_closest_marker("slow")) and (
                not option.parts or any(part in test.title for part in option.parts)):
            chosen.append(test)
    config.hook.pytest_deselected(items=list(set(items) - set(chosen)))
    items[:] = chosen


def pytest_pycollect_makeitem(collector, name, obj):
    """The tables of a module."""
    if name != "groups" or not isinstance(collector, pytest.Module):
        return None
    return [_Group.from_parent(collector, name=group.name, group=group) for group in obj()]


class _Group(pytest.Collector):
    """Cases that share a fixture."""

    def __init__(self, group, **where):
        super().__init__(**where)
        self.group, self.shared = group, None
        self.add_marker(pytest.mark.weight(group.weight))

    def collect(self):
        """Its cases."""
        return [_Case.from_parent(self, name=case.name, case=case) for case in self.group.cases]

    def setup(self):
        """Called before its first case, in a process of its own."""
        stack = contextlib.ExitStack()
        self.addfinalizer(stack.close)
        self.shared = stack.enter_context(self.group.fixture(self.session.stage))


class _Case(pytest.Item):
    """A row of a table."""

    def __init__(self, case, **where):
        super().__init__(**where)
        self.case, self.title = case, case.name
        self.fixturenames = ["stage"] if self.parent.group.staged else []
        self.add_marker(pytest.mark.limit(case.limit))
        if case.slow:
            self.add_marker("slow")

    def runtest(self):
        """Called in the process of its group."""
        self.case.run(self.parent.shared)

    def reportinfo(self):
        """Where its body is."""
        code = getattr(getattr(self.case.run, "func", self.case.run), "__code__", None)
        place = (code.co_filename, code.co_firstlineno - 1) if code else (self.path, None)
        return *place, f"{self.parent.name}: {self.name}"


@pytest.fixture(scope="session")
def stage(request):
    """What is tested, for plain tests: a staging.Stage."""
    return request.session.stage


def pytest_sessionstart(session):
    """Nothing is staged yet."""
    session.stage = None


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    """Runs what was chosen."""
    config = session.config
    if config.option.list:
        print("\n".join(test.title for test in session.items), flush=True)
        config.pluginmanager.unregister(name="terminalreporter")
        return True
    if session.testsfailed or config.option.collectonly:
        return None  # as pytest does
    if any("stage" in test.fixturenames for test in session.items):
        try:
            session.stage = staging.Stage()
        except Failure as failure:
            pytest.exit(str(failure), 1)
    # Everything that is tested was built, and lies in the stage.
    disk_space.give_back("target/release", "target/shim", "target/dist")
    if config.option.usepdb:
        return None  # one after the other, in this process
    run = Run(session)
    config.pluginmanager.register(run)
    try:
        asyncio.run(run.everything())
    finally:
        process.end_descendants()
    return True


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(call):
    """Of a Failure its message says all, of other exceptions where they were below us."""
    if call.excinfo:
        call.excinfo.traceback = call.excinfo.traceback.cut(path=__file__)
    report = (yield).get_result()
    if report.failed and isinstance(call.excinfo.value, Failure):
        report.longrepr = str(call.excinfo.value)


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_sessionfinish(session, exitstatus):
    """Below everything else comes one plain line."""
    yield
    if session.stage:
        session.stage.close()
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if terminal and not session.config.option.collectonly:
        passed, *failed = (len(terminal.stats.get(kind, ()))
                           for kind in ("passed", "failed", "error"))
        # Or something else than a test went wrong.
        failed = sum(failed) or int(exitstatus not in (0, pytest.ExitCode.NO_TESTS_COLLECTED))
        terminal.write_line(f"{passed} passed, {failed} failed")
