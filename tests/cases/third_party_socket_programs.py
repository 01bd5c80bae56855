"""Tests that third-party programs behave as on the kernel's sockets, with the library at either
end.

A table: scenarios (`harness/scenarios`) by ways. Each scenario is run natively, with the library at
both ends, at the server's and at the client's only, in a namespace of its own each time; what is
seen must be the same. `sockets.programs` has calls passed on, `carry.programs` may carry, and
`light.programs` may have light connections."""

import contextlib
import pathlib
import shutil
import tempfile
import time

from cases import carried_sockets, light_connections, preloaded_sockets
from harness import scenarios
from harness.case import WAITS, Case, Failure, Group, check
from harness.scenarios import (web_server_chain, postgresql, python_and_node_servers,
                               epoll_program, event_loops, ssh, key_value_stores, throughput_tools,
                               command_line_tools, web_servers)

_MODULES = [epoll_program, throughput_tools, key_value_stores, web_servers, postgresql, ssh,
            python_and_node_servers, event_loops, web_server_chain, command_line_tools]
# Times that a scenario is run until bytes were carried: on a busy machine a short one may be over
# before there is a link.
_TURNS = 6
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
            plain = _place(preloaded_sockets.Ways, stage, (False, False), kept)
            with plain as place, _timed("natively"):
                expected = scenario.run(place)
            print(expected)
            for name in _WAYS:
                for _ in range(_TURNS):
                    if _is_same(scenario, name, _place(kind, stage, _WAYS[name], kept), expected):
                        break
                else:
                    raise Failure(f"the library {name}: it is not carried as it should be")
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


def _is_same(scenario, name, at, expected):
    """What is seen must be what is expected. Whether bytes were carried as is known of it."""
    with at as place, _named(name), _timed(name):
        seen = scenario.run(place)
    check(seen == expected, f"the library {name}: {seen}\nnatively: {expected}")
    if not isinstance(place.ways, carried_sockets.Carried):
        return True
    reports = place.ways.reports()
    count = sum(count for _, count in reports)
    print(f"the library {name}: {sum(links for links, _ in reports)} links, {count} bytes carried")
    wanted = scenario.carried
    if isinstance(place.ways, light_connections.Light):
        wanted = scenario.light or None
    is_known = all(_WAYS[name]) and wanted is not None
    return not is_known or (count > 0) == wanted


def groups():
    """All wait. A scenario has up to four runs."""
    everything = [one for module in _MODULES for one in module.SCENARIOS]
    return [Group(family, [Case(f"{family}.{one.name}", _three_ways(one, kind), 4 * one.limit,
                                slow=not one.daily) for one in everything
                           if kind is not light_connections.Light or one.light is not None],
                  weight=WAITS)
            for family, kind in (("sockets.programs", preloaded_sockets.Ways),
                                 ("carry.programs", carried_sockets.Carried),
                                 ("light.programs", light_connections.Light))]
