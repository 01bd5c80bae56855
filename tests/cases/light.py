"""Light mode: connections that have no socket of the kernel's give what the kernel's give."""

from cases import sockets
from cases.carry import Carried
from harness.case import WAITS, Case, Group, check


class Light(Carried):
    """The namespace with a daemon in it, for processes in light mode."""

    mode = "light"


def _carried(run):
    """The same; and that connections were light then."""
    def all_of(ways):
        ways.reports()
        run(ways)
        reports = ways.reports()
        print(f"carried by each process: {reports}")
        check(sum(links for links, _ in reports) > 0, "no connection was light")
        check(sum(count for _, count in reports) > 0, "nothing was carried")
    return all_of


def _both(run, *more):
    return _carried(lambda ways: run(ways, True, True, *more))


def groups():
    """All wait."""
    programs = {"redis": sockets.redis, "nc": sockets.nc(30), "iperf3": sockets.iperf(),
                "iperf3-more": sockets.iperf("-P", 4, "-R", "-Z"), "nginx": sockets.nginx}
    return [
        Group("light", [Case(f"light.{name}", _both(run), 90) for name, run in programs.items()],
              Light, weight=WAITS),
        Group("light.sequences",
              [Case("light.pairs", _carried(lambda ways: sockets.compare(ways, 0, 100, "light")),
                    200),
               Case("light.pairs.sets",
                    _carried(lambda ways: sockets.compare(ways, 0, 50, "light-sets")), 200)],
              Light),
    ]
