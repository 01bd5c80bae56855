"""Connections by address when things go wrong: nobody listens, the network loses and mixes up what
managers say to each other, strangers ask for connections without end. A peer that dies:
rdma_cm_deaths.py."""

import contextlib
import json
import re
import subprocess
import sys
import time

from harness import process, roce
from harness.by_address import Side, both
from harness.case import CROWDS, Case, Group, check
from harness.containers import Pair
from harness.host import Hosts

from cases.hostile_wire import daemons_stay_well
from cases.rdma_cm import daemons, quiet

_FAULTS = "loss=10%,duplicate=5%,reorder=5%,seed=5"
_LISTENED, _NOT_LISTENED = 7174, 9999


def _nobody_listens(pair):
    # With a device, but nobody at that port.
    beside = Side(pair.server, ["rping", "-s", "-a", pair.server.address, "-p", _NOT_LISTENED + 1])
    try:
        process.until(lambda: daemon_of_server(pair).totals().get("processes"), 10, "a device")
        side = Side(pair.client, ["rping", "-c", "-a", pair.server.address, "-p", _NOT_LISTENED])
        try:
            check(side.wait(20) != 0, "connected with nobody")
            check(re.search(r"REJECTED, error 8", side.text()), side.text())
        finally:
            side.end()
    finally:
        beside.end()
    quiet(pair)


def daemon_of_server(pair):
    """The one that the server's programs belong to."""
    return daemons(pair)[0]


def _lossy(server, client, expected):
    """What is lost is said again, what comes twice or late is no harm."""
    def run(hosts):
        ends = ((hosts.a.daemon, hosts.server), (hosts.b.daemon, hosts.client))
        for daemon, place in ends:
            daemon.set_vnic(place.namespace, "faults", _FAULTS)
        try:
            words = [[word.format(server=hosts.server.address) for word in side]
                     for side in (server, client)]
            said, text = both(hosts, *words, 60)
            check(re.search(expected, text), f"{text}\n--- server ---\n{said}")
        finally:
            for daemon, place in ends:
                daemon.set_vnic(place.namespace, "faults", "none")
        quiet(hosts)
    return run


def _flood(hosts):
    """Requests without end, to who listens and to who does not: others connect meanwhile, and what
    it costs is bounded."""
    own = hosts.b.addresses(9)[0].partition("/")[0]
    target = {"address": hosts.server.address, "ports": [_LISTENED, _NOT_LISTENED]}
    order = {"kind": "requests", "seconds": 220, "targets": [target], "own": own, "rate": 20_000}
    attacker = hosts.b.plug(9)
    with daemons_stay_well(hosts):
        # It accepts one, and waits for that to be there.
        idle = Side(hosts.server, ["rdma_server", "-p", _LISTENED])
        running = process.start([*attacker.enter(), sys.executable, roce.__file__,
                                 json.dumps(order)], stdout=subprocess.DEVNULL)
        try:
            def taken():  # the first, by who listens
                check(running.poll() is None, "the flood ended too soon")
                return hosts.a.daemon.totals().get("qps")
            process.until(taken, 20, lambda: f"a stranger's request\n{idle.text()}")
            began = time.monotonic()
            _, text = both(hosts, ["ucmatose", "-c", "20"],
                           ["ucmatose", "-c", "20", "-s", hosts.server.address], 60)
            print(f"20 connections in {time.monotonic() - began:.1f} s")
            check("return status 0" in text, text)
            check(running.poll() is None, "the flood ended too soon")
        finally:
            process.end(running)
            idle.end()


def _cycles(count):
    """Connections that come and go leave nothing, and the daemons do not grow without end. How much
    memory the allocator keeps depends on how many messages came at once, so the least after several
    crowds is compared, and more of them are tried where that has grown."""
    def run(pair):
        line = ["cmtime", "-c", "1000"]

        def once():
            both(pair, line, [*line, "-s", pair.server.address], 120, endless=True)
            quiet(pair)
            return [_resident(daemon.pid) for daemon in daemons(pair)]

        def least():
            return [min(kib) for kib in zip(*(once() for _ in range(count // 2000)))]
        floors = [least(), least()]

        def grown():
            return max(new - old for old, new in zip(*floors[-2:]))
        while grown() >= 1024 and len(floors) < 5:
            floors.append(least())
        print("KiB", floors)
        check(grown() < 1024, f"the daemon grows: {floors}")
    return run


def _resident(pid):
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        return int(re.search(r"VmRSS:\s+(\d+)", file.read()).group(1))


_RPING = ["rping", "-a", "{server}", "-C", "20", "-v", "-V"]
_MANY = ["ucmatose", "-c", "20", "-C", "3"]


@contextlib.contextmanager
def _pair(stage):
    with Pair(stage) as pair:
        yield pair


def groups():
    """On one host, and between two."""
    found = []
    for setting, fixture in (("containers", _pair), ("wire", Hosts)):
        cases = [Case(f"{setting}.rdma_cm.nobody_listens", _nobody_listens),
                 Case(f"{setting}.rdma_cm.ten_thousand", _cycles(10_000), 1800, slow=True)]
        if setting == "wire":
            cases += [Case("wire.rdma_cm.lossy_rping",
                           _lossy([*_RPING, "-s"], [*_RPING, "-c"], "rdma-ping-19:"), 200),
                      Case("wire.rdma_cm.lossy_many",
                           _lossy(_MANY, [*_MANY, "-s", "{server}"], "return status 0"), 200),
                      Case("wire.rdma_cm.flood", _flood, 240)]
        found.append(Group(f"{setting}.rdma_cm.faults", cases, fixture, weight=CROWDS))
    return found
