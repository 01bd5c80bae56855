"""Tests rate limits: held, and changed while traffic runs.

How exactly they are held, and fifty of them, is measured by bench/rate_limits.py."""

import contextlib
import time

from harness import client_server, process
from harness.case import Case, Failure, Group, check
from harness.containers import Pair
from harness.simulated_host import Hosts
from harness.rate_limited_traffic import Limited


@contextlib.contextmanager
def _fixture(stage):
    limited = Limited(stage, 2)
    try:
        yield limited
    finally:
        limited.close()


# Bits a second, and bytes that may leave at once on top of them.
_SLOW, _FAST = 10_000_000, 100_000_000
_BURST = 256 * 1024


def _changed_under_way(pair):
    """A change while traffic runs: it counts, and nothing is lost. What is counted is what the
    bucket let pass, against what a limit lets pass in the time that was; a machine that is busy can
    only have less pass. How soon a change counts, and how exactly, bench/rate_limits.py says."""
    def limit(rate):
        for side in (pair.server, pair.client):
            pair.daemon.set_vnic(side.namespace, "--rate", f"{rate}bit", "--burst", str(_BURST))

    def passed():
        rows = [peer["packets"] for qp in pair.daemon.queue_pairs() for peer in qp["peers"]]
        return max((row["sent_bytes"] for row in rows if row), default=0)

    limit(_SLOW)
    begun = time.monotonic()

    def allowed(since):
        return _SLOW / 8 * (time.monotonic() - since) + _BURST

    with client_server.going_on(pair, "ib_write_bw", "-s", "4096", "-t", "32"):
        process.until(lambda: passed() > _BURST, 30, "anything beyond the burst")
        for _ in range(10):
            seen = passed()
            check(seen <= allowed(begun), f"{seen} bytes, not {allowed(begun)}")
            time.sleep(0.1)
        limit(_FAST)
        process.until(lambda: passed() > allowed(begun), 30, "more than the old limit lets pass")
        limit(_SLOW)

        # Half as much again as is let pass: what is shown is 0.2 s old, before and after, and more
        # if the machine is busy. Of a longer time that is a smaller part.
        for seconds in (1, 2, 4, 8, 16):
            since, before = time.monotonic(), passed()
            time.sleep(seconds)
            seen = passed() - before
            if seen <= 1.5 * allowed(since):
                return
        raise Failure(f"the limit does not hold again: {seen} bytes in {seconds} s")


# Operations a second, and how many programs ask for.
_OPS, _COUNT = 200, 400


def _operations(pair):
    """Programs take at least as long as their operations, of whatever kind and length; so they do
    when the daemon was restarted. It can take longer, not less."""
    for side in (pair.server, pair.client):
        client_server.gid_index(side)
        pair.daemon.set_vnic(side.namespace, "--rate", "none", "--ops", f"{_OPS}/s")

    def run(program, *words):
        begun = time.monotonic()
        client_server.run(pair, program, "-F", "-n", _COUNT, *words)
        took = time.monotonic() - begun
        # The first is free, and one more may have been saved up.
        check(took > (_COUNT - 2) / _OPS, f"{program} {words}: {took} s for {_COUNT} operations")

    for program, *words in (("ib_write_bw", "-s", 65536), ("ib_send_bw", "-s", 2),
                            ("ib_read_bw", "-s", 65536), ("ib_atomic_bw",),
                            ("ib_send_bw", "-c", "UC", "-s", 4096),
                            ("ib_send_bw", "-c", "UD", "-s", 64)):
        run(program, *words)
    pair.daemon.kill()
    pair.daemon.start()
    run("ib_send_bw", "-s", 64)
    shown = pair.daemon.vnic(pair.client.namespace)
    check(shown["ops"] == _OPS and shown["datapath"] == "forwarded", f"{shown}")
    shown = pair.daemon.omniverb("vnic", "list")
    check(f"{_OPS}/s" in shown, shown)


def _nothing_twice(rate, seconds, both):
    """What takes its time because of a limit is not sent again. A busy machine may hold up an
    answer for longer than any network, but not each time."""
    def once(limited):
        ends, addresses = limited.ends(2)
        for end in ends:
            limited.limit(end, "--rate", rate)
        limited.connect(ends, addresses)
        ends[0].write(seconds)
        ends[1].write(seconds if both else 0)
        limited.finish(ends)
        return [(end.packets["sent"], end.packets["resent"]) for end in ends[:2 if both else 1]]

    def run(limited):
        for _ in range(3):
            found = once(limited)
            print(f"{found}: packets, of them again")
            if all(sent > 200 and resent <= sent / 10 for sent, resent in found):
                return
        raise Failure(f"packets, and of them again: {found}")
    return Case(f"limits.nothing_twice {rate}{' both' if both else ''}", run)


def _paths(daemon):
    """Which paths two queue pairs have, once each has a peer: the daemon links them when both have
    said whom they want."""
    rows = []

    def all_are_linked():
        rows[:] = daemon.queue_pairs()
        return len(rows) == 2 and all(qp["peers"] for qp in rows)

    process.until(all_are_linked, 20, lambda: f"a peer of each: {rows}")
    return {peer["path"] for qp in rows for peer in qp["peers"]}


def _taken_away(limited):
    """Without a limit again, new connections go by no bucket any more: they are direct."""
    for rate, ways in (("20mbit", {"forwarded"}), ("none", {"direct"})):
        ends, addresses = limited.ends(2)
        for end in ends:
            limited.limit(end, "--rate", rate)
        limited.connect(ends, addresses)
        paths = _paths(limited.host.daemon)
        check(paths == ways, f"{rate}: {paths}")
        for end in ends:
            end.write(1)
        limited.finish(ends)


@contextlib.contextmanager
def _slow(pair, daemon):
    with pair as pair:
        pair.gid_index = client_server.gid_index(pair.server)
        daemon(pair).set_vnic(pair.server.namespace, "--rate", "8kbit", "--burst", "1500")
        yield pair


def _slow_neighbour(stage):
    return _slow(Pair(stage), lambda pair: pair.daemon)


def _slow_host(stage):
    return _slow(Hosts(stage), lambda hosts: hosts.a.daemon)


def _finishes(name):
    """Each answer takes a second, and retries are over after half of one."""
    def run(pair):
        for program, size in (("ib_read_lat", 1024), ("ib_write_bw", 4096)):
            client_server.run(pair, program, "-x", pair.gid_index, "-s", size, "-n", 5, limit=60)
    return Case(f"limits.8kbit_finishes {name}", run, 130)


def groups():
    """One host, one daemon; at the slowest rate also two."""
    slow = [Group("limits.8kbit", [_finishes("container")], _slow_neighbour),
            Group("limits.8kbit hosts", [_finishes("host")], _slow_host)]
    changed = Group("limits.changed", [Case("limits.changed_under_way", _changed_under_way, 150),
                                       Case("limits.operations", _operations, 150)], Pair)
    return [*slow, changed, Group("limits", [
        Case("limits.taken_away", _taken_away),
        _nothing_twice("10mbit", 2, False), _nothing_twice("10mbit", 2, True),
        _nothing_twice("2mbit", 1, False),
    ], _fixture)]
