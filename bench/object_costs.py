#!/usr/bin/env python3
"""Eighth part of `make bench`: the cost of making and destroying objects.

In: dist/, bench/object_costs.c; root. Out: a table on stdout and target/bench/objects.json. Where
there may be fewer, as many as there may be. A time that grows with their number is shown, it does
not fail the run; what could not be measured does. docs/benchmarks.md."""
import argparse
import json
import pathlib
import sys
from statistics import median

import machine_info
import report

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
sys.dont_write_bytecode = True

from harness import process  # noqa: E402
from harness.staging import Stage  # noqa: E402
from harness.unprivileged_daemon import PlainPair  # noqa: E402

COUNTS, QUICK_COUNTS = (1000, 10_000, 100_000), (10, 100)
# How many times as long it may take beside most as beside fewest: caches are missed then.
FLAT = 5
TITLES = {
    "pd": "protection domain", "mr": "memory region", "mr-local": "memory region, local",
    "mw": "memory window", "cq": "completion queue", "qp": "queue pair",
    "srq": "shared receive queue", "ah": "address handle", "xrcd": "XRC domain",
    "channel": "completion channel", "cm-id": "rdma_cm id",
    "mr-beside": "memory region beside queue pairs",
    "mw-beside": "memory window beside queue pairs",
    "mr-rereg-beside": "region that changes, beside queue pairs",
    "mr-mapped-beside": "mapped region beside queue pairs",
    "qp-reset-beside": "RESET beside bound windows",
}


def measure(place, counts, rounds):
    """(objects that there were, samples in ns) by kind, what is done, and how many were asked."""
    found = {}
    for _ in range(rounds):
        text = place.run("/opt/programs/objects", ",".join(map(str, counts)), limit=600)
        for line in text.splitlines():
            kind, count, made, make, end = line.split()
            for what, value in (("made", make), ("destroyed", end)):
                row = found.setdefault((kind, what), {}).setdefault(int(count), (int(made), []))
                row[1].append(float(value))
    return found


def lines(found):
    """The table: nanoseconds beside so many, and the last to the first."""
    counts = sorted({count for row in found.values() for count in row})
    yield f"{'':44}" + "".join(f"{count:>18}" for count in counts) + f"{'growth':>10}"
    for (kind, what), row in found.items():
        text = f"{TITLES[kind] + ', ' + what:44}"
        for count in counts:
            made, samples = row[count]
            cell = report.show(median(samples), "ns")
            text += f"{cell if made == count else f'{cell} ({made})':>18}"
        growth = median(row[counts[-1]][1]) / max(1, median(row[counts[0]][1]))
        yield text + f"{growth:>9.1f}x" + ("  GROWS" if growth > FLAT else "")
    yield "In brackets: how many there may be."


def main():
    """All of it."""
    parser = argparse.ArgumentParser(description="Measures how objects are made and destroyed.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true",
                        help="a few objects, once: to see that it works")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "target/bench/objects.json")
    chosen = parser.parse_args()
    counts, rounds = (QUICK_COUNTS, 1) if chosen.quick else (COUNTS, chosen.rounds)
    ticks = machine_info.cpu_times()
    stage = Stage(with_programs=False)
    try:
        process.run(["cc", "-O2", "-o", stage.programs / "objects", ROOT / "bench/object_costs.c",
                     "-lrdmacm", "-libverbs"], limit=60)
        with PlainPair(stage) as pair:
            found = measure(pair.server, counts, rounds)
    finally:
        stage.close()
    known = {**machine_info.facts(ROOT),
             "stolen_by_other_machines": machine_info.stolen_since(ticks)}
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    rows = {f"{kind}, {what}": row for (kind, what), row in found.items()}
    chosen.out.write_text(json.dumps({"machine": known, "rows": rows}, indent=1) + "\n")
    print(*machine_info.lines(known), sep="\n")
    print(*lines(found), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
