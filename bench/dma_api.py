#!/usr/bin/env python3
"""Fifth part of `make bench`: the second API (omniverb/dma.h).

In: dist/, bench/dma_speed.c; root. Out: tables on stdout and target/bench/dma.json. Nothing is
demanded; what could not be measured fails the run. docs/benchmarks.md."""
import argparse
import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path

import machine_info
import report

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
sys.dont_write_bytecode = True

from harness import process  # noqa: E402
from harness.case import Failure, check  # noqa: E402
from harness.containers import Pair  # noqa: E402
from harness.simulated_host import Hosts  # noqa: E402
from harness.unprivileged_daemon import PlainPair  # noqa: E402
from harness.staging import Stage  # noqa: E402

PLACES = {"processes": PlainPair, "containers": Pair, "hosts": Hosts}
LARGE = ["512k", "1024k", "2048k", "4096k", "8192k"]
SINGLE = ["8", "4096", "65536", "524288", "1048576", "8388608"]
WAITS = ["mixed", "spin", "sleep"]


def build(stage):
    """Into the folder of programs, which containers see."""
    process.run(["cc", "-O2", "-Wall", "-I", ROOT / "dist/include", "-o",
                 stage.programs / "dma_speed", ROOT / "bench/dma_speed.c", "-L",
                 ROOT / "dist/lib", "-lomniverb_dma", "-lrdmacm", "-libverbs"], limit=60)


@contextlib.contextmanager
def node(place):
    """The other side; its port."""
    running = place.start("/opt/programs/dma_speed", "serve", stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        line = running.stdout.readline()
        check(line.startswith("port "), f"the node: {line}")
        yield line.split()[1]
    finally:
        process.end(running)


def once(pair):
    """All figures of a run: value and unit by name."""
    with node(pair.server) as port:
        text = pair.client.run("/opt/programs/dma_speed", pair.server.address, port, limit=300)
    words = [line.split() for line in text.splitlines()]
    return {name: (float(value), unit) for name, value, unit in (w for w in words if len(w) == 3)}


def measure(stage, chosen):
    """Samples of every figure, by place."""
    found = {}
    with contextlib.ExitStack() as stack:
        pairs = {name: stack.enter_context(contextlib.closing(PLACES[name](stage)))
                 for name in chosen.places}
        for _ in range(chosen.rounds):
            for place, pair in pairs.items():
                for name, (value, unit) in once(pair).items():
                    row = found.setdefault(place, {}).setdefault(name, {"unit": unit,
                                                                        "samples": []})
                    row["samples"].append(value)
    for rows in found.values():
        for row in rows.values():
            row.update(report.summary(row["samples"]))
    return found


def lines(found):
    """The tables."""
    for place, rows in found.items():
        def cell(name, rows=rows):
            return report.show(rows[name]["median"], rows[name]["unit"])

        def to(name, raw, rows=rows):
            return f"{rows[name]['median'] / rows[raw]['median']:.2f}x"

        yield f"between two {place}"
        yield f"{'bytes':>10} {'alloc':>10} {'free':>10} {'mmap':>10}"
        for size in LARGE:
            names = [f"{what}_{size}" for what in ("alloc", "free", "mmap")]
            yield f"{size:>10} " + " ".join(f"{cell(name):>10}" for name in names)
        yield (f"{'bytes':>10} {'write':>10} {'read':>10} {'memcpy':>10} {'write to it':>12} "
               f"{'read to it':>12}")
        for size in SINGLE:
            names = [f"{what}_{size}" for what in ("write", "read", "memcpy")]
            yield (f"{size:>10} " + " ".join(f"{cell(name):>10}" for name in names)
                   + f" {to(names[0], names[2]):>12} {to(names[1], names[2]):>12}")
        yield f"{'blocks':>10} {'1 GiB':>10} {'memcpy':>10} {'to it':>12}"
        for size in LARGE:
            names = [f"burst_{size}", f"memcpy_burst_{size}"]
            yield f"{size:>10} {cell(names[0]):>10} {cell(names[1]):>10} {to(*names):>12}"
        yield f"{'waits':>10} {'call':>10} {'after idling':>14}"
        for name in WAITS:
            call, idle = f"callback_{name}", f"callback_{name}_idle"
            yield f"{name:>10} {cell(call):>10} {cell(idle):>14}"
        yield ""


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="runs of each (default 5)")
    parser.add_argument("--quick", action="store_true",
                        help="one run between two processes, to see that it works")
    parser.add_argument("--places", nargs="+", choices=PLACES, default=["processes", "containers"])
    parser.add_argument("--out", type=Path, default=ROOT / "target/bench/dma.json")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.rounds, chosen.places = 1, ["processes"]
    return chosen


def main():
    chosen = arguments()
    known, before, started = machine_info.facts(ROOT), machine_info.cpu_times(), time.monotonic()
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    stage = Stage(with_programs=False)
    try:
        build(stage)
        found = measure(stage, chosen)
    finally:
        stage.close()
        process.end_descendants()
    known["stolen_by_other_machines"] = machine_info.stolen_since(before)
    chosen.out.write_text(json.dumps({"machine": known, "seconds": time.monotonic() - started,
                                      "places": found}, indent=1) + "\n")
    print(*machine_info.lines(known), sep="\n")
    print(f"stolen by other virtual machines: {known['stolen_by_other_machines']:.1%}\n")
    print(*lines(found), sep="\n")
    print(f"Details: {chosen.out}")
    return 0


if __name__ == "__main__":
    process.become_subreaper()
    try:
        sys.exit(main())
    except Failure as problem:
        process.end_descendants()
        sys.exit(f"bench: {problem}")
