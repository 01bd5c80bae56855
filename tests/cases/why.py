"""OMNIVERB_LOG=warn: the library says why it refused, once for each place and reason; else it says
nothing."""

from harness.case import WAITS, Case, Group, check
from harness.plain import PlainPair

_PROGRAM = ["/opt/programs/manners", "attributes_that_drivers_take_and_refuse"]
# What that program is refused, in parts of lines.
_REASONS = ["ibv_modify_qp: a value", "a work request is refused", "max_rd_atomic 0",
            "ibv_create_qp: type 0 is not offered"]


def _lines(pair, *before):
    output = pair.server.run(*before, *_PROGRAM, limit=60)
    return [line for line in output.splitlines() if line.startswith("omniverb: ")]


def _said(pair):
    lines = _lines(pair, "/usr/bin/env", "OMNIVERB_LOG=warn")
    for reason in _REASONS:
        check(sum(reason in line for line in lines) == 1, f"{reason}: {lines}")
    check(len(lines) == len(set(lines)), f"said twice: {lines}")


def _silent(pair):
    lines = _lines(pair) + _lines(pair, "/usr/bin/env", "OMNIVERB_LOG=nothing")
    check(not lines, f"{lines}")


def groups():
    """A user's daemon and processes."""
    cases = [Case("why.reasons_are_said_once", _said, 70),
             Case("why.silent_otherwise", _silent, 130)]
    return [Group("why", cases, PlainPair, weight=WAITS)]
