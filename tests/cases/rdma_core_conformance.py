"""Runs the test suite of rdma-core's newest release, unmodified, against our library.

`make conformance` fetches and builds it (tests/conformance/fetch-rdma-core) and runs these cases;
with `--slow` they run where it has been. What does not run is in a list with its reason, as in
cases/pyverbs.py."""

import contextlib
import functools

from harness import staging
from harness.case import WAITS, Case, Group, Skip
from harness.containers import Pair
from harness.rdma_core_suites import Suite, judge
from harness.unprivileged_daemon import PlainPair

from cases.pyverbs import under_faults

_RELEASE = "release-65"
_FETCHED = staging.BUILT / "conformance" / _RELEASE
_AT_LEAST = 170
_ABSENT = "`make conformance` fetches and builds the suite"


@contextlib.contextmanager
def _suite(stage, pair):
    if not (_FETCHED / "complete").exists():
        yield None
        return
    with pair(stage) as made:
        made.suite = Suite(stage, _RELEASE, _FETCHED / "tests", _FETCHED / "python",
                           sorted((_FETCHED / "lib").iterdir()))
        yield made


def _run(pair):
    if not pair:
        raise Skip(_ABSENT)
    judge(pair.suite.run(pair.server, limit=400), f"skipped-{_RELEASE}.toml", _AT_LEAST)


def _run_under_faults(pair):
    if not pair:
        raise Skip(_ABSENT)
    under_faults(pair, f"skipped-{_RELEASE}.toml", _AT_LEAST, 500)


def groups():
    """As root in a container, and as an ordinary user; and in a container whose network is bad."""
    container = functools.partial(Pair, count=1)
    settings = (("containers", container, _run, 420), ("user", PlainPair, _run, 420),
                ("faults", container, _run_under_faults, 520))
    return [Group(f"conformance.{setting}",
                  [Case(f"conformance.{setting}", run, limit, slow=True)],
                  functools.partial(_suite, pair=pair), weight=WAITS)
            for setting, pair, run, limit in settings]
