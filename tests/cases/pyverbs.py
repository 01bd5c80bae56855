"""rdma-core's own test suite (Debian's python3-pyverbs), unmodified, against our library.

What does not run is in a list with its reason (tests/conformance): nothing else may skip itself,
and none may fail. All of it runs as root in a container and as an ordinary user.
"""

import contextlib
import functools

from harness.case import WAITS, Case, Group
from harness.containers import Pair
from harness.plain import PlainPair
from harness.suites import Suite, debian, judge

from cases.forwarded import forwarding

_STORED = "debian-44.toml"


@contextlib.contextmanager
def _suite(stage, pair, forwarded=False):
    arguments = forwarding(stage) if forwarded else ()
    with pair(stage, daemon_arguments=arguments) as made:
        made.suite = Suite(stage, "debian-44", debian())
        yield made


def _case(name, least, parts=()):
    def run(pair):
        judge(pair.suite.run(pair.server, parts), _STORED, least, parts)
    return Case(f"pyverbs.{name}", run, 250)


_SETTINGS = (("containers", functools.partial(Pair, count=1)), ("user", PlainPair))


def groups():
    """The suite in each setting."""
    return [Group(f"pyverbs.{setting}", [_case(setting, 129)],
                  functools.partial(_suite, pair=pair), weight=WAITS)
            for setting, pair in _SETTINGS]
