"""Tests connections by address when things go wrong: no listener, a bad network.

A peer that dies: rdma_cm_deaths.py."""

import collections
import contextlib
import pathlib
import re
import signal
import subprocess
import tempfile
import time

from harness import cm_floods, pcap_files, process
from harness.rdma_cm_client_server import Side, both
from harness.case import CROWDS, Case, Group, check
from harness.containers import Pair
from harness.daemon import environment
from harness.simulated_host import Hosts

from cases.hostile_packets import daemons_stay_well
from cases.rdma_cm import daemons, quiet

_FAULTS = "loss=10%,duplicate=5%,reorder=5%,seed=5"
_LISTENED, _NOT_LISTENED = 7174, 9999


def _nobody_listens(pair):
    # With a device, but nobody at that port.
    beside = Side(pair.server, ["rping", "-s", "-a", pair.server.address, "-p", _NOT_LISTENED + 1])
    try:
        process.until(lambda: daemon_of_server(pair).programs(), 60, "a device")
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
            daemon.set_vnic(place.namespace, "--faults", _FAULTS)
        try:
            words = [[word.format(server=hosts.server.address) for word in side]
                     for side in (server, client)]
            said, text = both(hosts, *words, 60)
            check(re.search(expected, text), f"{text}\n--- server ---\n{said}")
        finally:
            for daemon, place in ends:
                daemon.set_vnic(place.namespace, "--faults", "none")
        quiet(hosts)
    return run


# What a request for a connection is called in its MAD, and where; where it names itself.
_REQUEST, _ATTRIBUTE, _COMMUNICATION_ID = 0x10, slice(16, 18), slice(24, 28)
# How often one who asks may have to ask while others flood. (Fifteen times are usual.) Once is
# enough as a rule: that was a machine whose processors others had.
_ASKS = 4


@contextlib.contextmanager
def _captured(host, place):
    """The packets of a container's device, once it is over."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "packets")
        running = process.start(
            [*host.switch.enter(), host.stage.dist / "bin" / "omniverb", "capture", "-i",
             f"pid:{place.namespace.pid}", "-w", path],
            env=environment(OMNIVERB_SOCKET=host.daemon.socket), stderr=subprocess.PIPE, text=True)
        try:
            process.until(lambda: path.exists() and path.stat().st_size, 10, "a capture")
            yield found
            running.send_signal(signal.SIGINT)
            check(running.communicate(timeout=20)[1].endswith("\n0 packets dropped\n"), "dropped")
        finally:
            process.end(running)
        found += pcap_files.read(path)


def _requests(found, source):
    """How often each request for a connection was sent by an address."""
    return collections.Counter(
        packet.payload[_COMMUNICATION_ID] for packet in found
        if packet.source == source and packet.qpn == 1 and packet.service == pcap_files.UD
        and int.from_bytes(packet.payload[_ATTRIBUTE], "big") == _REQUEST)


def _flood(hosts):
    """Requests without end, to who listens and to who does not: others connect meanwhile as if
    there was none, all of them and without having to ask again and again, and what it costs is
    bounded."""
    attacker = hosts.b.plug(9)
    with daemons_stay_well(hosts):
        # It accepts one, and waits for that to be there.
        idle = Side(hosts.server, ["rdma_server", "-p", _LISTENED])
        try:
            with cm_floods.requests(hosts, attacker, [_LISTENED, _NOT_LISTENED]) as goes_on:
                def taken():  # the first, by who listens
                    goes_on()
                    return hosts.a.daemon.totals().get("qps")
                process.until(taken, 20, lambda: f"a stranger's request\n{idle.text()}")
                _connect(hosts)
        finally:
            idle.end()


def _connect(hosts):
    """Twenty connections, none of which has to ask again and again."""
    began = time.monotonic()
    with _captured(hosts.b, hosts.client) as found:
        _, text = both(hosts, ["ucmatose", "-c", "20"],
                       ["ucmatose", "-c", "20", "-s", hosts.server.address], 60)
    print(f"20 connections in {time.monotonic() - began:.1f} s")
    check("return status 0" in text, text)
    asked = _requests(found, hosts.client.address)
    print("requests:", sorted(asked.values()))
    check(len(asked) >= 20, f"{len(asked)} requests for 20 connections")
    check(max(asked.values()) <= _ASKS, f"asked {sorted(asked.values())} times")


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
# Sent, and disconnected at once.
_LAST = ["/opt/programs/message_before_disconnect", "{server}"]


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
                      Case("wire.rdma_cm.lossy_last_message",
                           _lossy([*_LAST, "s"], [*_LAST, "c"], "end"), 200),
                      Case("wire.rdma_cm.flood", _flood, 240)]
        found.append(Group(f"{setting}.rdma_cm.faults", cases, fixture, weight=CROWDS))
    return found
