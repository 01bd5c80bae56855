"""Defines a test case.

A file in tests/cases/ defines `groups()`, which returns Group objects; pytest_plugin.py makes tests
of pytest of them. The cases of one group share a fixture (two containers, a daemon, ...), which is
set up once, in a process of its own, and set up afresh after a case failed."""

import contextlib
import unittest
from dataclasses import dataclass, field
from typing import Any, Callable

# What a group is for its neighbours, roughly in threads that want a processor at once. One that
# waits bears any: no polling, no losses, no limits of a second or two. One that polls has a program
# at each end. One that is carried has a daemon between them. One that crowds has two hosts:
# programs and daemons poll. One alone is measured, or floods, or has short limits.
WAITS, POLLS, CARRIED, CROWDS, ALONE = 1, 2, 3, 4, 1000


class Failure(Exception):
    """The case found something wrong. The message says what."""


class Late(Failure):
    """Something did not end in time. `paths`: those of its queue pairs, where that is known."""

    paths = frozenset()


class Skip(unittest.SkipTest):
    """The machine cannot run this case. The message says why."""


@dataclass(frozen=True)
class Case:
    """One thing to check: `run(fixture)` returns, or raises Failure or Skip."""

    name: str
    run: Callable[[Any], None]
    limit: float = 60.0
    slow: bool = False  # only with --slow


@dataclass(frozen=True)
class Group:
    """Cases that share what `fixture(stage)` (a context manager) yields."""

    name: str
    cases: list = field(default_factory=list)
    fixture: Callable = contextlib.nullcontext
    staged: bool = True  # needs dist/ and the test programs
    weight: int = POLLS  # what may run beside it


def check(condition, message):
    """Fails the case unless `condition` holds."""
    if not condition:
        raise Failure(message)
