#!/usr/bin/env python3
"""Seventh part of `make bench`: many TCP connections, and messages of all sizes, with and without
Omniverb.

In: dist/; root, since there is a network namespace and a daemon of its own. Out: a table on stdout
and target/bench/connections.json. Each round takes everything in all ways, in turns. What has a
hundred thousand connections is done once, and looked at some times. docs/benchmarks.md."""
import argparse
import json
import pathlib
import re
import resource
import sys
import time
from statistics import median

import machine_info
import report

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
sys.dont_write_bytecode = True

# pylint: disable=wrong-import-position
from cases import carried_sockets  # noqa: E402
from harness import process  # noqa: E402
from harness.case import Failure  # noqa: E402
from harness.staging import Stage  # noqa: E402

# What the library does; "unix" is a pair of UNIX sockets, where that can be had.
WAYS = ("natively", "unix", "carry", "light")
TITLES = ("TCP", "UNIX sockets", "carried", "light")
# Messages, in bytes; connections that have their turns; pairs of processes on one processor.
SIZES = (8, 64, 512, 4096, 32768, 262144, 1048576)
ROBIN = (1, 10, 100, 1000, 10_000, 100_000, 1_000_000)
CROWDS = (1, 2, 4, 8)
# Of which memory is looked at, and processors' time.
HELD, RESTING = 10_000, 1000
# From so many on a measurement is not repeated, and its processes are started once.
ONCE = 100_000
# How often it is looked at then; fewer times where one look takes a minute.
TIMES, TIMES_OF_MANY, MANY = 5, 2, 1_000_000
# Descriptors that a process has besides, those of the library included.
BESIDES = 400
# Bytes that a connection may take at both ends, with what the kernel keeps for whoever looks at
# processes' descriptors meanwhile (`/proc`).
BYTES, BYTES_OF_LIGHT = 16 << 10, 3 << 10


class Ways(carried_sockets.Carried):
    """A namespace with a daemon, where programs run in all ways."""

    def take(self, way, *words, limit=120, **variables):
        """What a program prints, as numbers."""
        self.mode = way
        words = ["env", *(f"{name}={value}" for name, value in variables.items()), *words]
        text = self.run(way not in ("natively", "unix"), *words, limit=limit)
        # What became of a connection is said besides.
        lines = re.findall(r"^[0-9. ]+$", text, re.MULTILINE)
        return [float(word) for line in lines for word in line.split()]


def built(name, folder):
    """A program of this folder."""
    program = folder / name
    process.run(["cc", "-O2", "-o", program, ROOT / "bench" / f"{name}.c", "-ldl"], limit=60)
    return program


def free():
    """Bytes that there are."""
    with open("/proc/meminfo", encoding="utf-8") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvail"))


def streams(ways, program, scale):
    """Messages there and back, and one way, of all sizes; a part of the usual number."""
    for size in SIZES:
        count = max(50, min(20_000, (32 << 20) // size) // scale)
        for what, unit in (("rtt", "ns"), ("rate", "msg/s")):
            title = "and back" if what == "rtt" else "stream"
            yield (f"{what} {size}", f"{size} B {title}", unit, WAYS,
                   lambda way, what=what, size=size, count=count: ways.take(
                       way, program, "unix" if way == "unix" else "tcp", what, count, size))


def many(ways, program, most, scale):
    """All that is about their number, up to `most` at a time; a part of the usual length."""
    tcp = tuple(way for way in WAYS if way != "unix")
    resting = RESTING // scale
    each_most = resource.getrlimit(resource.RLIMIT_NOFILE)[1] - BESIDES

    def run(way, what, number, count, times=TIMES, **variables):
        pairs = -(-number // each_most)
        if free() < number * (BYTES_OF_LIGHT if way == "light" else BYTES):
            raise Failure("there is too little memory")
        each = number // pairs
        return ways.take(way, program, what, pairs, each, count, times,
                         limit=120 + number // 1000, **variables)

    for number in ROBIN:
        if number <= most:
            times = TIMES if number < MANY else TIMES_OF_MANY
            yield (f"robin {number}", f"8 B and back, {number} connections in turn", "ns", tcp,
                   lambda way, number=number, times=times: run(
                       way, "robin", number, max(number, 10_000 // scale), times))
    for cpus, title in (("0", "one processor"), ("0,1", "two processors")):
        yield (f"open {cpus}", f"connections made and closed, {title}", "/s", tcp,
               lambda way, cpus=cpus: ways.take(way, program, "open", 1, 1, 4000 // scale, TIMES,
                                                CONNECTIONS_CPUS=cpus))
    for pairs in CROWDS:
        yield (f"crowd {pairs}", f"8 B and back, {pairs} pairs on one processor", "/s", tcp,
               lambda way, pairs=pairs: ways.take(way, program, "crowd", pairs, 1,
                                                  20_000 // scale, TIMES, CONNECTIONS_CPUS="0"))
    yield ("rest", f"processors' time, {resting} connections that rest", "ns", tcp,
           lambda way: run(way, "rest", resting, 0, 1))
    for at, whose in enumerate(("processes", "the kernel")):
        yield (f"hold {whose}", f"bytes of {whose} for a connection at rest, both ends", "B", tcp,
               lambda way, at=at: run(way, "hold", min(HELD // scale, each_most), 0, 0)[at::2])


def show(value, unit):
    """A number as people read it."""
    if unit == "B":
        return f"{value:.0f} B"
    return "none" if unit == "ns" and value == 0 else report.show(value, unit)


def lines(plan, samples, failures):
    """The table: each way, and how many times better than natively it is."""
    yield f"{'':52}" + "".join(f"{title:>22}" for title in TITLES)
    for key, label, unit, ways, _ in plan:
        row = f"{label:52}"
        native = samples.get((key, "natively"))
        for way in WAYS:
            found = samples.get((key, way))
            if way not in ways or not found:
                row += f"{'-' if way not in ways else 'failed':>22}"
                continue
            text = show(median(found), unit)
            if way != "natively" and native and median(native) and median(found):
                times = median(found) / median(native)
                times = 1 / times if unit in ("ns", "B") else times
                text += f" ({times:.2f})"
            row += f"{text:>22}"
        yield row
    yield "In brackets: how many times better than TCP natively."
    for (key, way), why in failures.items():
        yield f"{key}, {way}: {why}"


def main():
    """All of it."""
    parser = argparse.ArgumentParser(description="Measures many connections, carried and not.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true",
                        help="a hundredth of all, once, with ten connections: to see that it works")
    parser.add_argument("--only", default="", help="only what has this in its key")
    parser.add_argument("--most", type=int, default=ROBIN[-1], help="connections at a time")
    parser.add_argument("--out", type=pathlib.Path,
                        default=ROOT / "target/bench/connections.json")
    chosen = parser.parse_args()
    scale = 1
    if chosen.quick:
        chosen.rounds, chosen.most, scale = 1, 10, 100
    samples, failures = {}, {}
    began, ticks = time.monotonic(), machine_info.cpu_times()
    stage = Stage()
    try:
        with Ways(stage) as ways:
            # As many ports and connections that wait as there can be.
            ways.run(False, "sysctl", "-qw", "net.ipv4.ip_local_port_range=1024 65535",
                     "net.core.somaxconn=65535")
            plan = [*streams(ways, built("stream_throughput", ways.folder), scale),
                    *many(ways, built("many_tcp_connections", ways.folder), chosen.most, scale)]
            plan = [one for one in plan if chosen.only in one[0]]
            for turn in range(chosen.rounds):
                for key, _, _, those, take in plan:
                    if turn and key in {f"robin {count}" for count in ROBIN if count >= ONCE}:
                        continue
                    for way in (those if turn % 2 == 0 else those[::-1]):
                        if (key, way) in failures:
                            continue
                        try:
                            samples.setdefault((key, way), []).extend(take(way))
                        except Failure as failure:
                            failures[key, way] = str(failure).split("\n", 1)[0]
                print(f"round {turn + 1} of {chosen.rounds}: {time.monotonic() - began:.0f} s",
                      file=sys.stderr)
    finally:
        stage.close()
    known = {**machine_info.facts(ROOT),
             "stolen_by_other_machines": machine_info.stolen_since(ticks)}
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    said = {f"{key}, {way}": found for (key, way), found in samples.items()}
    broken = {f"{key}, {way}": why for (key, way), why in failures.items()}
    chosen.out.write_text(json.dumps({"machine": known, "samples": said, "failures": broken},
                                     indent=1) + "\n")
    print(*machine_info.lines(known), sep="\n")
    print(*lines(plan, samples, failures), sep="\n")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
