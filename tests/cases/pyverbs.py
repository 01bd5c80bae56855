"""rdma-core's own test suite (Debian's python3-pyverbs), unmodified, against our library.

What does not run is in a list with its reason (tests/conformance): nothing else may skip itself,
and none may fail. All of it runs as root in a container, direct and forwarded, and as an ordinary
user; forwarded for that one what goes by another way then.
"""

import contextlib
import functools

from harness.case import WAITS, Case, Group
from harness.containers import Pair
from harness.plain import PlainPair
from harness.suites import Suite, debian, judge

from cases.forwarded import forwarding

_STORED = "debian-44.toml"
_CONTAINER = functools.partial(Pair, count=1)
# How many of all must run.
_RUN = 142
# Name, fixture, forwarded, tests (all), how many must run.
_SETTINGS = (
    ("containers", _CONTAINER, False, (), _RUN),
    ("user", PlainPair, False, (), _RUN),
    ("containers.forwarded", _CONTAINER, True, (), _RUN),
    ("user.forwarded", PlainPair, True,
     ("test_atomic", "test_cq_events", "test_cqex", "test_qpex", "test_rdmacm"), 35),
)


@contextlib.contextmanager
def _suite(stage, pair, forwarded):
    arguments = forwarding(stage) if forwarded else ()
    with pair(stage, daemon_arguments=arguments) as made:
        made.suite = Suite(stage, "debian-44", debian())
        yield made


def _case(name, parts, least):
    def run(pair):
        judge(pair.suite.run(pair.server, parts), _STORED, least, parts)
    return Case(f"pyverbs.{name}", run, 250)


def groups():
    """The suite in each setting."""
    return [Group(f"pyverbs.{name}", [_case(name, parts, least)],
                  functools.partial(_suite, pair=pair, forwarded=forwarded), weight=WAITS)
            for name, pair, forwarded, parts, least in _SETTINGS]
