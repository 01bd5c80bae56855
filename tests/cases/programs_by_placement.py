"""Tests every program between each two of virtual machine, container, host process and other host.

Two machines boot for all; few programs of each kind run every day, and all of them with `make
soak`.

The tables are those of containers (debian_verbs_programs.py, rdma_cm.py, rsocket.py, dma_api.py),
with less of everything: in a machine that is emulated a message takes a hundred times as long."""

import contextlib
import functools
import itertools
import time

from harness import process
from harness.rdma_cm_client_server import Side
from harness.case import CROWDS, Case, Group, check
from harness.client_server import Duet
from harness.program_placements import PEERS, Peers

from cases import debian_verbs_programs, dma_api, rdma_cm, rsocket

_ports = itertools.count(17100)
# A packet that an emulated processor takes up after half a second is not lost: that is how long a
# requester waits each time, 4.096 us to the power of 2 of this (IB 9.7.6.1.3).
_TIMEOUT = 17
# How long, in seconds, a side whose other one has failed is given to say what it knows of that.
_LAST_WORDS = 2


# ---- pingpongs and perftest ----

def _pingpong(program, *options):
    def run(pair):
        lines = [[f"ibv_{program}_pingpong", "-g", pair.index(place), "-n", 100, *options]
                 for place in (pair.client, pair.server)]
        outcome = Duet(pair, lines[0], server_argv=lines[1]).finish(60)
        if program != "xsrq":  # that one says nothing but by its exit status
            for text in (outcome.server, outcome.client):
                check("invalid data" not in text and "iters in" in text, text)
    return run


def _pingpongs():
    for program in ("rc", "uc", "srq", "ud"):
        yield from ([program, "-c"], [program, "-c", "-e"])
        yield [program, "-c", "-s", "1000" if program == "ud" else "65537"]
    yield from (["xsrq"], ["xsrq", "-e"])


def _perftests():
    for program, words, sizes in _unhurried():
        yield program, [*words, *([] if "UD" in words else ["-u", str(_TIMEOUT)])], sizes


def _unhurried():
    for verb, services in (("send", ("RC", "UC", "UD")), ("write", ("RC", "UC")),
                           ("read", ("RC",))):
        for service, kind in itertools.product(services, ("lat", "bw")):
            size = 1024 if service == "UD" else 16384 if kind == "bw" else 8
            yield f"ib_{verb}_{kind}", ["-c", service, "-s", str(size), "-n", "100"], [size]
    for kind in ("lat", "bw"):
        yield f"ib_atomic_{kind}", ["-A", "FETCH_AND_ADD", "-n", "100"], [8]
        yield f"ib_atomic_{kind}", ["-A", "CMP_AND_SWAP", "-n", "100"], [8]
        yield f"ib_send_{kind}", ["--use-srq", "-e", "-s", "512", "-n", "100"], [512]
    yield "ib_send_bw", ["-b", "-q", "4", "-s", "1024", "-n", "100"], [1024]
    yield "ib_write_bw", ["-a", "-n", "8"], [1 << n for n in range(1, 24)]


# ---- the soak ----

def elsewhere(pair, program, test, *arguments, limit):
    """A test of programs/, a side of it at each place; see spawn in programs/common.h."""
    words = [f"/opt/programs/{program}", test, *arguments]
    port = next(_ports)
    with contextlib.ExitStack() as stack:
        patient = f"TEST_TIMEOUT={_TIMEOUT}"
        child = Side(pair.server, ["env", f"TEST_ELSEWHERE={port}", patient, *words])
        stack.callback(child.end)
        process.until(lambda: not child.is_there() or listens(pair.server, port), 60,
                      child.text)
        parent = Side(pair.client,
                      ["env", f"TEST_ELSEWHERE={pair.server.address}={port}", patient, *words])
        stack.callback(parent.end)
        for side in (parent, child):
            status = side.wait(limit)
            if status != 0 and child.is_there():
                time.sleep(_LAST_WORDS)
            check(status == 0, f"{process.how(status)}\n{parent.text()}\n--- child ---\n"
                               f"{child.text()}")
        print(parent.text(), child.text(), sep="\n")


def listens(place, port):
    """Does anything at a place listen on TCP `port`?"""
    if hasattr(place, "listens"):
        return place.listens(port)
    return process.listens(place.pid, port)


def _soak(operations, *arguments, limit):
    return lambda pair: elsewhere(pair, "soak", "two_processes", operations, *arguments,
                                  limit=limit)


# ---- what is sent as a file ----

def _copies(pair):
    """rcopy: a file that arrives is the file that was sent."""
    source, target = "/usr/bin/find", f"/tmp/copy-{next(_ports)}"
    server = Side(pair.server, ["rcopy"])
    try:
        def copied():
            client = Side(pair.client, ["rcopy", source, f"{pair.server.address}:{target}"])
            try:
                return client.wait(60) == 0
            finally:
                client.end()
        process.until(copied, 60, server.text)
        pair.server.run("cmp", source, target)
    finally:
        server.end()
        pair.server.run("rm", "-f", target)
    rdma_cm.quiet(pair)


# ---- everything ----

# Every operation that carries data by the network between hosts is a frame of the machine's port.
_DAILY_SOAK = {"wire": 5000}
# How long, in seconds, a million operations may take: of those of the wire 125 to 400 a second are
# done where the processor is emulated.
_MILLION = {"wire": 12_000}
# A thousand connections of a machine's do not fit into its window.
_NOT_HERE = ("cmtime thousand", "ucmatose many", "rstream of all sizes")
# What runs each day: the ways that data takes, waking, reading, names, streams, the second API.
_DAILY = {
    "machine": ("ibv_rc_pingpong -c -e", "ib_read_lat -c RC -s 8", "rping"),
    "container": ("ib_send_bw -c RC -s 16384", "ib_read_lat -c RC -s 8", "rstream", "dma copies"),
    "process": ("ibv_rc_pingpong -c -e", "rping", "dma copies"),
    "wire": ("ibv_rc_pingpong -c -e", "ib_send_bw -c RC -s 16384", "rping"),
}


def _programs():
    """Name, what runs between two places."""
    for options in _pingpongs():
        yield f"ibv_{options[0]}_pingpong {' '.join(options[1:])}".strip(), _pingpong(*options)
    for one in _perftests():
        title = debian_verbs_programs.title(one[1])
        yield f"{one[0]} {title}", debian_verbs_programs.perftest(*one)
    for name, row in rdma_cm.PROGRAMS.items():
        yield name, row.case("", "", 90).run
    for name, row in rdma_cm.PERFTEST.items():
        yield f"perftest {name}", row.case("", "", 90).run
    for name, words in rsocket.PROGRAMS.items():
        yield name, rdma_cm.program("", "", *words, limit=90).run
    yield "rcopy", _copies
    for name, options in rsocket.PONGS.items():
        yield name, rsocket.pongs(*options)
    yield "rsockets of datagrams", rsocket.datagrams
    for test in dma_api.ELSEWHERE:
        program = "client" if test in dma_api.tests_of("client") else "teardown"
        yield f"dma {test}", functools.partial(dma_api.between, program, test)


def _at(run, peer, machine_serves):
    return lambda peers: run(peers.pair(peer, machine_serves))


def _cases():
    for number, (name, run) in enumerate(_programs()):
        if name in _NOT_HERE:
            continue
        # Each program is a server in the machine with half of its peers, and a client with the
        # others.
        for place, peer in enumerate(PEERS):
            yield Case(f"pairings.{peer}.{name}", _at(run, peer, (number + place) % 2 == 0), 300,
                       slow=name not in _DAILY[peer])
    for peer in PEERS:
        operations = _DAILY_SOAK.get(peer, 20_000)
        yield Case(f"pairings.{peer}.soak",
                   _at(_soak(operations, 1, 1, 2, limit=200), peer, True), 400)
        limit = _MILLION.get(peer, 3000)
        yield Case(f"pairings.{peer}.soak million",
                   _at(_soak(1_000_000, 2, 1, 4, limit=limit), peer, True), 2 * limit + 100,
                   slow=True)


def groups():
    """One, with two machines for all."""
    return [Group("pairings", list(_cases()), lambda stage: contextlib.closing(Peers(stage)),
                  weight=CROWDS)]
