"""Light mode: connections that have no socket of the kernel's give what the kernel's give.

As in carry.py there is a daemon in each group's namespace. What is handed on (to a child, to
another program) is left out: light connections cannot be.
"""

from cases import sockets
from cases.carry import Carried, pairs
from harness.case import WAITS, Case, Group, check

_SEQUENCES, _SLOWLY = 100, 10_000


class Light(Carried):
    """The namespace, for processes in light mode."""

    mode = "light"


def _both(run):
    """With both ends in light mode connections are light; with one of them, and with none, they
    are the kernel's, and the program does the same."""
    def all_ways(ways):
        for server, client in [(True, False), (False, True), (True, True)]:
            ways.reports()
            run(ways, server, client)
            reports = ways.reports()
            print(f"carried by each process: {reports}")
            count = sum(count for _, count in reports)
            check((count > 0) == (server and client), f"{reports}")
    return all_ways


def _by_itself(ways):
    """nginx has upstreams that are its own workers: these connections are light, whoever asks."""
    for server, client in [(False, True), (True, False), (True, True)]:
        sockets.nginx(ways, server, client)
    check(sum(count for _, count in ways.reports()) > 0, "nothing was carried")


def _suite(*words):
    """Tests of others give the same, most of which talk to themselves: that is the kernel's."""
    return sockets.suite(*words)


def groups():
    """All wait."""
    programs = {"redis": sockets.redis, "nc": sockets.nc(30), "iperf3": sockets.iperf(),
                "iperf3-more": sockets.iperf("-P", 4, "-R", "-Z")}
    cases = [Case(f"light.{name}", _both(run), 90) for name, run in programs.items()]
    cases += [Case("light.nginx", _by_itself, 90)]
    cases += [Case(f"light.python.{name}", _suite(name), 200) for name in ("epoll", "select")]
    cases += [Case(f"light.python.{name}", _suite(name), 400, slow=True)
              for name in ("poll", "socket", "selectors", "socketserver", "asyncore", "httplib")]
    return [
        Group("light", cases, Light, weight=WAITS),
        Group("light.sequences",
              [Case("light.pairs", pairs(0, _SEQUENCES, "light"), 200),
               Case("light.pairs.sets", pairs(0, _SEQUENCES // 2, "light-sets"), 200),
               Case("light.pairs.long", pairs(10_000, _SLOWLY, "light"), 3000, slow=True),
               Case("light.pairs.sets.long", pairs(10_000, _SLOWLY, "light-sets"), 3000,
                    slow=True)],
              Light),
    ]
