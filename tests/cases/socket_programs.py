"""Programs of others behave as they do on the kernel's sockets, whoever of the two has the library.

A table: scenarios (`harness/scenarios`) by ways. Each scenario is run natively, with the library at
both ends, at the server's and at the client's only, in a namespace of its own each time; what is
seen must be the same. `sockets.programs` has calls passed on, `carry.programs` may carry.
"""

import contextlib
import pathlib
import shutil
import tempfile
import time

from cases import carry, sockets
from harness import scenarios
from harness.case import WAITS, Case, Failure, Group, check
from harness.scenarios import (chain, database, interpreters, own, shell, stores, streams, tools,
                               web)

_MODULES = [own, streams, stores, web, database, shell, interpreters, chain, tools]
# Server and client.
_WAYS = {"at both ends": (True, True), "at the server's end": (True, False),
         "at the client's end": (False, True)}


def _three_ways(scenario, kind):
    """The case of a scenario; `kind` makes the namespace of those with the library."""
    def run(stage):
        scenario.look_for_programs()
        kept = pathlib.Path(tempfile.mkdtemp(prefix="scenario-", dir=stage.path))
        kept.chmod(0o755)
        try:
            with _place(sockets.Ways, stage, (False, False), kept) as place, _timed("natively"):
                expected = scenario.run(place)
            print(expected)
            for name, way in _WAYS.items():
                with _place(kind, stage, way, kept) as place, _named(name), _timed(name):
                    seen = scenario.run(place)
                check(seen == expected, f"the library {name}: {seen}\nnatively: {expected}")
                if kind is carry.Carried:
                    _count(scenario, name, place.ways.reports())
        finally:
            shutil.rmtree(kept, ignore_errors=True)
    return run


@contextlib.contextmanager
def _place(kind, stage, way, kept):
    with kind(stage) as ways:
        place = scenarios.Place(ways, *way, kept)
        yield place
        place.empty()
    shutil.rmtree(ways.folder / "place", ignore_errors=True)


@contextlib.contextmanager
def _timed(way):
    began = time.monotonic()
    yield
    print(f"{way}: {time.monotonic() - began:.1f} s", flush=True)


@contextlib.contextmanager
def _named(way):
    try:
        yield
    except Failure as failure:
        raise Failure(f"the library {way}: {failure}") from None


def _count(scenario, way, reports):
    """Without another end nothing is carried; with both, what is known of the scenario."""
    count = sum(count for _, count in reports)
    print(f"the library {way}: {sum(links for links, _ in reports)} links, {count} bytes carried")
    if all(_WAYS[way]) and scenario.carried is not None:
        check((count > 0) == scenario.carried, f"{count} bytes carried: {reports}")


def groups():
    """All wait. A scenario has up to four runs."""
    everything = [one for module in _MODULES for one in module.SCENARIOS]
    return [Group(family, [Case(f"{family}.{one.name}", _three_ways(one, kind), 4 * one.limit,
                                slow=not one.daily) for one in everything], weight=WAITS)
            for family, kind in (("sockets.programs", sockets.Ways),
                                 ("carry.programs", carry.Carried))]
