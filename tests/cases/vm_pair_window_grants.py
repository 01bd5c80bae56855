"""Tests grants between a virtual machine's process and one outside, in their pair window.

They run in the one machine of cases/virtual_machines.py; two machines, in those of its last
group."""

import itertools

from harness import process
from harness.rdma_cm_client_server import Side
from harness.case import Case, Failure, check
from harness.virtual_machines import Device

from cases.programs_by_placement import elsewhere, listens

# Of an emulated machine, in which stopping threads that compute takes up to a second.
_CYCLES = 12
# What peers do before the pages have moved is mediated: a machine's owner needs long for that, and
# a peer outside does much meanwhile.
_MORE, _MUCH_MORE = 30, 400
_KILLS = 2
# Of the 3000 operations after a region's pages are mapped, by a thread of the peer's that may be
# late to say so to the queue pair: until then they are mediated.
_MAPPED_AT_LEAST = 2700
_ports = itertools.count(17900)


def _operations(lab, count):
    """How many operations of processes that have ended were mapped, and how many were mediated, by
    vNIC, once so many processes have a device: all others are counted as of those that have ended.
    Of a machine's processes the daemon hears that a moment later."""
    def seen():
        found = lab.host.daemon.vnics()
        return found if sum(vnic["processes"] for vnic in found) == count else None

    vnics = process.until(seen, 30, lambda: f"{count} processes: {lab.host.daemon.vnics()}")
    return {vnic["name"]: [vnic["ended"][f"operations_{kind}"] for kind in ("mapped", "mediated")]
            for vnic in vnics}


def _used(lab):
    return lab.machine.row()["pairs"]["used"]


def all_back(lab, used=_used, left=0):
    """All pieces have come back to the window that they share."""
    process.until(lambda: used(lab) <= left, 30,
                  lambda: f"the pieces to come back: {lab.machine.row()}")


def run(lab, sides, program, test, *arguments, limit=150):
    """Runs a test whose owner is the client, and whose peer is the server: a count of operations
    that were mapped, and of those that were mediated."""
    # What is counted of a network namespace is not shown when nobody there has a device, and is
    # forgotten some time after: so one has all the time, and nobody else before or afterwards.
    process.until(lambda: not any(vnic["processes"] for vnic in lab.host.daemon.vnics()), 30,
                  "programs that ran before to be gone")
    watch = Side(lab.container, ["ibv_asyncwatch"])
    try:
        before = _operations(lab, 1)
        elsewhere(sides, program, test, *arguments, limit=limit)
        after = _operations(lab, 1)
        mapped, mediated = (sum(counts[kind] for counts in after.values()) -
                            sum(counts[kind] for counts in before.values()) for kind in (0, 1))
    finally:
        watch.end()
    print(f"{mapped} operations were mapped, {mediated} mediated: {before} {after}", flush=True)
    return mapped, mediated


def stores(lab, sides, limit=150):
    """Threads store while pages move to the window and back, and a peer writes and reads there."""
    more = _MUCH_MORE if isinstance(sides.client, Device) else _MORE
    # Where others compute the peer hears late that pages have moved: then it does more.
    for times in (1, 8):
        mapped, mediated = run(lab, sides, "page_adoption", "no_store_is_lost", _CYCLES, 7,
                               more * times, limit=limit)
        if mapped >= 3:
            return
    raise Failure(f"{mapped} of {mapped + mediated} were mapped")


def deregistered(lab, sides, limit=150):
    """After ibv_dereg_mr no peer reaches the memory, whatever it keeps."""
    mapped, _ = run(lab, sides, "pair_window_mappings", "what_is_deregistered_no_peer_reaches",
                    limit=limit)
    check(mapped >= _MAPPED_AT_LEAST, f"{mapped} operations were mapped")
    mapped, mediated = run(lab, sides, "pair_window_mappings", "what_may_only_be_read_stays",
                           limit=limit)
    check(mapped == 0 and mediated >= 1000, f"{mapped} were mapped, {mediated} mediated")


def _killed(lab, sides, victim):
    """One of the two is killed while the other one's memory, or its own, is granted."""
    port = next(_ports)
    words = ["/opt/programs/pair_window_mappings", "for_ever"]
    peer = Side(sides.server, ["env", f"TEST_ELSEWHERE={port}", *words])
    try:
        process.until(lambda: listens(sides.server, port), 60, peer.text)
        there = f"{sides.server.address}={port}"
        owner = Side(sides.client, ["env", f"TEST_ELSEWHERE={there}", *words])
        try:
            process.until(lambda: "us: WRITE" in peer.text() or not peer.is_there(), 90,
                          lambda: f"{peer.text()}\n{owner.text()}")
            dies, lives = (owner, peer) if victim == "owner" else (peer, owner)
            dies.end()
            status = lives.wait(60)
            check(status > 0, f"{process.how(status)}\n{lives.text()}")
        finally:
            owner.end()
    finally:
        peer.end()
    all_back(lab)


def _kills(lab, sides):
    for victim in ("owner", "peer") * _KILLS:
        _killed(lab, sides, victim)


def _case(name, what, owner, peer, limit):
    def test(lab):
        all_back(lab)
        what(lab, lab.sides(peer, owner))
        all_back(lab)
    return Case(f"machines.neighbours.{name}, of the {owner}", test, limit)


def cases():
    """Between a process of the machine and one of the first container."""
    for owner, peer in (("machine", "container"), ("container", "machine")):
        yield _case("no store is lost", stores, owner, peer, 240)
        yield _case("deregistered", deregistered, owner, peer, 200)
        yield _case("killed", _kills, owner, peer, 400)


def groups():
    """None of its own."""
    return []
