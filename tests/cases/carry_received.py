"""Carried sockets: what each kind of call receives, and tells, while the other end computes."""

from cases import carry
from harness.case import WAITS, Case, Group, check


def _arrived(name):
    def run(ways):
        """What has come by memory, or by the kernel, for calls of each kind."""
        program = ways.program("arrived")
        for family in ("4", "6"):
            for way in (False, True):
                ways.reports()
                text = ways.run(way, program, name, *(["6"] if family == "6" else []))
                check(text == "ok\n", text)
            check(sum(count for _, count in ways.reports()), "nothing was carried")
    return run


def groups():
    """All wait."""
    waits = [Case(f"carry.arrived.{name}", _arrived(name), 90)
             for name in ("counted", "left", "option", "joins", "masked", "closed", "reset")]
    return [Group("carry.received", waits, carry.Carried, weight=WAITS)]
