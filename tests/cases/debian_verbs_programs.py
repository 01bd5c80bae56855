"""Tests Debian's own RDMA programs, unmodified: ibverbs-utils and perftest."""

import contextlib
import os
import pathlib
import signal
import time

from harness import client_server, process
from harness.case import Case, Group, check
from harness.containers import Pair
from harness.unprivileged_daemon import PlainPair


@contextlib.contextmanager
def _containers(stage):
    with Pair(stage) as pair:
        pair.gid_index = client_server.gid_index(pair.server)
        yield pair


@contextlib.contextmanager
def _processes(stage):
    with PlainPair(stage) as pair:
        pair.gid_index = client_server.gid_index(pair.server)
        yield pair


# ---- pingpongs ----

def pingpongs():
    """Program, message size, options."""
    for program, sizes in (("rc", (1, 8, 4096, 65537, 1 << 20)), ("uc", (1, 8, 4096, 1 << 20)),
                           ("srq", (1, 8, 4096, 1 << 20)), ("ud", (1, 64, 1000, "mtu"))):
        for size in sizes:
            yield program, size, []
        for size in (sizes[1], sizes[-1]):  # sleep is the same whatever one is woken for
            yield program, size, ["-e"]


def pingpong(program, size, events):
    def run(pair):
        bytes_ = mtu(pair.server) if size == "mtu" else size
        words = [f"ibv_{program}_pingpong", "-g", pair.gid_index, "-c", "-s", bytes_, "-n", 100]
        unreliable = program in ("uc", "ud")
        outcome = client_server.patiently(client_server.run, pair, *words, *events,
                                          limit=20 if unreliable else 60,
                                 unreliable=unreliable)
        for text in (outcome.server, outcome.client):
            check("invalid data" not in text and "iters in" in text, text)
    return run


def xrc_pingpong(events):
    """The program ends with 0 only if all its messages arrived."""
    def run(pair):
        client_server.run(pair, "ibv_xsrq_pingpong", "-g", pair.gid_index, "-n", 100, *events)
    return run


def mtu(place):
    """The active MTU of a place's device."""
    text = place.run("ibv_devinfo")
    return int(text.split("active_mtu:")[1].split()[0])


# ---- perftest ----

_ALL_SIZES = [1 << n for n in range(1, 24)]


def perftests(slow=False):
    """Program, options, expected sizes (None: just one row); less of the large ones where data
    takes a slow way."""
    bw, lat = "bw", "lat"
    for verb, transports in (("send", ("RC", "UC", "UD")), ("write", ("RC", "UC")),
                             ("read", ("RC",))):
        for transport in transports:
            for kind in (lat, bw):
                program, options = f"ib_{verb}_{kind}", ["-c", transport]
                sizes = "mtu" if transport == "UD" else _ALL_SIZES
                # Few round trips: where CPUs are scarce each may take a turn of the scheduler.
                few, many = ("20", "1000") if kind == lat else ("100", "20000")
                yield program, [*options, "-a", "-n", "8" if slow else few], sizes
                yield program, [*options, "-s", "8", "-n", many], [8]
                if verb != "write":  # perftest has no events there
                    yield program, [*options, "-s", "64", "-e", "-n", "1000"], [64]
                if verb != "read":
                    yield program, [*options, "-s", "16", "-I", "32", "-n", "1000"], [16]
            yield f"ib_{verb}_bw", ["-c", transport, "-q", "8", "-s", "1024", "-n", "2000"], [1024]
            events = [] if verb == "write" else ["-e"]
            yield (f"ib_{verb}_bw", ["-c", transport, "-b", "-q", "4", *events, "-s", "256", "-n",
                                     "1000"], [256])
    for kind in (lat, bw):
        yield f"ib_send_{kind}", ["--use-srq", "-s", "512", "-n", "1000"], [512]
        for atomic in ("FETCH_AND_ADD", "CMP_AND_SWAP"):
            yield f"ib_atomic_{kind}", ["-A", atomic, "-n", "1000"], [8]
        yield f"ib_atomic_{kind}", ["-e", "-n", "1000"], [8]
    yield "ib_send_bw", ["--use-srq", "-q", "8", "-s", "512", "-n", "2000"], [512]
    yield "ib_send_bw", ["--use-srq", "-q", "4", "-b", "-e", "-s", "512", "-n", "1000"], [512]
    yield "ib_atomic_bw", ["-q", "8", "-n", "2000"], [8]
    yield "ib_atomic_bw", ["-b", "-n", "2000"], [8]
    for verb in ("send", "write", "read", "atomic"):
        size = 8 if verb == "atomic" else 4096
        sized = [] if verb == "atomic" else ["-s", "4096"]
        yield f"ib_{verb}_bw", ["-c", "XRC", *sized, "-n", "1000"], [size]
        yield f"ib_{verb}_lat", ["-c", "XRC", *sized, "-n", "100"], [size]
    yield "ib_send_bw", ["-c", "XRC", "-q", "4", "-b", "-e", "-s", "256", "-n", "1000"], [256]
    for verb in ("send", "write"):
        yield f"ib_{verb}_bw", ["-b", "-a", "-n", "8" if slow else "100"], _ALL_SIZES


def perftest(program, options, sizes):
    latency = program.endswith("_lat")
    unreliable = "UC" in options or "UD" in options
    # With -a, a second for each size to measure the clock (a latency), or a third; on a busy
    # machine UC with all of them took half a minute, and lost nothing.
    limit = 60 if not unreliable or "-a" in options else 20

    def run(pair):
        outcome = client_server.patiently(client_server.run, pair, program, "-F", *options,
                                          limit=limit,
                                 unreliable=unreliable)
        wanted = sizes
        if sizes == "mtu":
            wanted = [s for s in _ALL_SIZES if s <= mtu(pair.server)]
        found = client_server.check_typical(outcome.client, latency)
        check(found == wanted, f"rows for {found}, not {wanted}\n{outcome.client}")
    return run


def title(options):
    """A short name of the options."""
    return " ".join(options).replace(" -n", " n").split(" n ")[0] or "default"


# How much of the matrix runs where. Everything: where data takes a way of its own. Each once: where
# only the way in differs (an ordinary user), or the way is that of another setting without its
# network (forwarded). And which run with all sizes: perftest measures the clock for each of the 23,
# which takes a second for a latency and a quarter for a bandwidth. The others run with one large
# size, if they are about bandwidth, and with all of them in `make soak`.
EVERYTHING, EACH_ONCE = "everything", "each once"
MATRIX = {"containers": (EVERYTHING, ()),
          "user": (EACH_ONCE, ()),
          "wire": (EVERYTHING, (("ib_send_bw", "RC"),)),
          "forwarded": (EACH_ONCE, (("ib_write_bw", "UC"),)),
          "wire-jumbo": (EVERYTHING, (("ib_write_bw", "RC"),)),
          "wire-routed": (EVERYTHING, (("ib_read_bw", "RC"),))}
_LARGE = 1 << 20


def cases(setting, slow=False):
    """The matrix as cases of `setting`, as far as it runs there; `slow`: data takes a slow way."""
    much, with_all_sizes = MATRIX[setting]
    everything = list(perftests(slow))
    chosen = [one for one in map(lambda one: _shorter(one, with_all_sizes), everything) if one]
    if setting == "user":
        # For XRC perftest opens a file of one name in /tmp, which may be another user's.
        chosen = [one for one in chosen if "XRC" not in one[1]]
    if much == EACH_ONCE:
        chosen = _each_once(chosen)
    found = [Case(f"{setting}.ibv_{program}_pingpong {size}{' -e' if events else ''}",
                  pingpong(program, size, events), 190) for program, size, events in pingpongs()]
    found += [Case(f"{setting}.ibv_xsrq_pingpong{' -e' if events else ''}",
                   xrc_pingpong(events), 60) for events in ([], ["-e"])]
    found += [_perftest_case(setting, one) for one in chosen]
    if setting == "containers":
        found += [_perftest_case(setting, one, soak=True) for one in everything
                  if "-a" in one[1] and one not in chosen]
    return found


def _shorter(one, with_all_sizes):
    """The same with one large size instead of all, but for those; None for other latencies."""
    program, options, _ = one
    service = options[1] if "-c" in options else None
    if "-a" not in options or (program, service) in with_all_sizes:
        return one
    if program.endswith("_lat"):
        return None
    size = 1024 if service == "UD" else _LARGE
    at = options.index("-a")
    return program, [*options[:at], "-s", str(size), *options[at + 1:]], [size]


def _perftest_case(setting, one, soak=False):
    program, options, sizes = one
    return Case(f"{setting}.{program} {title(options)}", perftest(program, options, sizes), 190,
                soak)


def _each_once(matrix):
    """Few cases, in which every program is there with every transport, and with every option."""
    def meets(program, options):
        transport = options[1] if options[0] == "-c" else "RC"
        flags = [word for word in options if word.startswith("-") and word not in ("-c", "-n")]
        return {(program, transport)} | {(program, flag) for flag in flags}

    left = set().union(*(meets(program, options) for program, options, _ in matrix))
    chosen = []
    while left:
        best = max(matrix, key=lambda one: len(meets(one[0], one[1]) & left))
        left -= meets(best[0], best[1])
        chosen.append(best)
    return [one for one in matrix if one in chosen]


def _waited(pids):
    """Seconds that these have been ready to run, without a processor."""
    waited = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            waited += int(pathlib.Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    return waited


def _spins_on_memory(pair):
    """Where containers do not trust each other these WRITEs are mediated, while their targets poll
    for a moment and then look at memory: one turn of the progress thread for each would be some
    milliseconds. Where the programs have to wait for processors that is no measure."""
    for place in (pair.server, pair.client):
        pair.daemon.set_vnic(place.namespace, "--adoption", "exact")
    running = client_server.Duet(pair, ["ib_write_lat", "-F", "-s", "8", "-n", "2000"])
    begun, waited = time.monotonic(), 0
    while running.client.poll() is None and time.monotonic() < begun + 150:
        programs = process.descendants(running.server.pid) + process.descendants(running.client.pid)
        waited = max(waited, _waited(programs))
        time.sleep(0.01)
    took = time.monotonic() - begun
    text = running.finish(20).client
    client_server.check_typical(text, True)
    typical = client_server.rows(text, 6)[8][4]
    print(f"{typical} microseconds, {waited:.2f} s without a processor of {took:.2f}")
    is_fast = typical < 1000 or not client_server.knows_the_time(text)
    check(is_fast or waited > took / 10, f"{typical} microseconds, {waited} s of {took}\n{text}")


def _away(pair):
    """Who receives is kept from its processor again and again, in the middle of long messages of
    UC, which nobody repeats: on one host none is lost, or perftest would wait for it for ever."""
    running = client_server.Duet(pair, ["ib_send_bw", "-F", "-c", "UC", "-s", str(_LARGE), "-n",
                                        "3000"])
    receiver = process.descendants(running.server.pid)
    # It is let go on for a moment at first, since a fast machine needs no longer for all of it.
    stops, going = 0, 0.02
    while running.client.poll() is None and stops < 20:
        for number, pause in ((signal.SIGSTOP, 0.2), (signal.SIGCONT, going)):
            for pid in receiver:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            time.sleep(pause)
        stops, going = stops + 1, going * 1.3
    outcome = running.finish(120)
    print(f"{stops} times")
    check(stops > 3 and _LARGE in client_server.rows(outcome.client, 5),
          f"{stops}: {outcome.client}")


def groups():
    """The matrix in both settings."""
    yield Group("containers.mediated", [
        Case("containers.mediated.ib_write_lat", _spins_on_memory, 240),
        Case("containers.away.ib_send_bw -c UC", _away, 190)], _containers)
    yield from [Group(f"{setting}.programs", cases(setting), fixture)
                for setting, fixture in (("containers", _containers), ("user", _processes))]
