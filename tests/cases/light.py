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


def groups():
    """All wait."""
    return [
        Group("light", [Case("light.redis", _carried(lambda ways: sockets.redis(ways, True, True)), 90),
                        Case("light.nc", _carried(lambda ways: sockets.nc(30)(ways, True, True)), 90),
                        Case("light.iperf3", _carried(lambda ways: sockets.iperf()(ways, True, True)), 90),
                        Case("light.nginx", _carried(lambda ways: sockets.nginx(ways, True, True)), 90)],
              Light, weight=WAITS),
        Group("light.sequences", [Case("light.pairs", _carried(lambda ways: sockets.compare(
            ways, 0, 100, "pairs")), 200)], Light),
    ]
