"""Rate limits: vNICs held to their rates, changed while traffic runs. How exactly they are held,
and fifty of them, is measured by bench/limits.py."""

import contextlib

from harness import duet
from harness.case import Case, Group, check
from harness.containers import Pair
from harness.host import Hosts
from harness.rates import Limited, changes


@contextlib.contextmanager
def _fixture(stage):
    limited = Limited(stage, 2)
    try:
        yield limited
    finally:
        limited.close()


def _changed_under_way(limited):
    """A change while traffic runs: it counts, and nothing is lost. How soon, bench/limits.py says:
    that means something on a machine that does nothing else."""
    made, operations = changes(limited, [100_000_000, 10_000_000, 50_000_000])
    for change in made:
        print(f"{change.wanted / 1e6:.0f} Mbit/s wanted, {change.got / 1e6:.1f} got")
    check(operations > 1000 and made[1].got < 1.5 * made[1].wanted < made[0].got,
          "a change does not count")


def _nothing_twice(rate, seconds, both):
    """What takes its time because of a limit is not sent again."""
    def run(limited):
        ends, addresses = limited.ends(2)
        for end in ends:
            limited.limit(end, "rate", rate)
        limited.connect(ends, addresses)
        ends[0].write(seconds)
        ends[1].write(seconds if both else 0)
        limited.finish(ends)
        for end in ends[:2 if both else 1]:
            sent, resent = end.packets["sent"], end.packets["resent"]
            print(f"{sent} packets, {resent} of them again")
            # A busy machine may hold up an answer for longer than any network.
            check(sent > 200 and resent <= sent / 10, f"{resent} of {sent} packets twice")
    return Case(f"limits.nothing_twice {rate}{' both' if both else ''}", run)


def _taken_away(limited):
    """Without a limit again, new connections are as fast as ever."""
    ends, addresses = limited.ends(2)
    for rate in ("20mbit", "none"):
        for end in ends:
            limited.limit(end, "rate", rate)
    limited.connect(ends, addresses)
    for end in ends:
        end.write(2)
    limited.finish(ends)
    rates = [end.rate(end.start + 0.5, end.start + 1.5) / 1e6 for end in ends]
    print(f"without a limit: {rates[0]:.0f} and {rates[1]:.0f} Mbit/s")
    check(min(rates) > 60, f"still limited: {rates} Mbit/s")


@contextlib.contextmanager
def _slow(pair, daemon):
    with pair as pair:
        pair.gid_index = duet.gid_index(pair.server)
        daemon(pair).set_vnic(pair.server.namespace, "rate", "8kbit", "burst", "1500")
        yield pair


def _slow_neighbour(stage):
    return _slow(Pair(stage), lambda pair: pair.daemon)


def _slow_host(stage):
    return _slow(Hosts(stage), lambda hosts: hosts.a.daemon)


def _finishes(name):
    """Each answer takes a second, and retries are over after half of one."""
    def run(pair):
        for program, size in (("ib_read_lat", 1024), ("ib_write_bw", 4096)):
            duet.run(pair, program, "-x", pair.gid_index, "-s", size, "-n", 5, limit=60)
    return Case(f"limits.8kbit_finishes {name}", run, 130)


def groups():
    """One host, one daemon; at the slowest rate also two."""
    slow = [Group("limits.8kbit", [_finishes("container")], _slow_neighbour),
            Group("limits.8kbit hosts", [_finishes("host")], _slow_host)]
    return slow + [Group("limits", [
        Case("limits.changed_under_way", _changed_under_way),
        Case("limits.taken_away", _taken_away),
        _nothing_twice("10mbit", 2, False), _nothing_twice("10mbit", 2, True),
        _nothing_twice("2mbit", 1, False),
    ], _fixture)]
