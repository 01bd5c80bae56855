#!/usr/bin/env python3
"""Implements `make bench-scale`: many pairs of `ib_write_bw` at a time.

What all pairs move together is compared with what two pairs move.

In: dist/, perftest, crun; QEMU for machines; root. Out: a table on stdout and
target/bench/scale.json. Kinds of pairs: two containers; a container and a machine; two machines.
Settings: direct (memory that both vNICs trust each other with) as far as it goes, and forwarded by
the daemon. A machine shares memory with a few others only, so beside each row stands how many of
its pairs are direct, as the daemon says. Machines are as many as --machines says, and are emulated
where there is no KVM; those that idle while few pairs are measured take processor time from these.
"""
import argparse
import contextlib
import itertools
import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import machine_info
import report

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
sys.dont_write_bytecode = True

from harness import guest_image, process  # noqa: E402
from harness.virtual_machines import Both, Device, Machine, files  # noqa: E402
from harness.case import Failure, Skip, check  # noqa: E402
from harness.simulated_host import Host  # noqa: E402
from harness.staging import Stage  # noqa: E402

SIZE = 131072
SETTINGS = {"direct": 'adoption = "trusting"\n',
            "forwarded": 'adoption = "trusting"\ndatapath = "forwarded"\n'}
KINDS = {"containers": (0, 0), "half and half": (0, 1), "machines": (1, 1)}
# Megabytes that a machine has, its kernel and 48 MiB of programs in memory among them.
MEMORY = 320


class Neighbour(Machine):
    """A machine that shares memory with another one, if that may be."""

    most_neighbours = 2


class Crowd:
    """A host with as many pairs as were asked for so far."""

    def __init__(self, stage, kind, setting):
        self.stage, self.ends = stage, KINDS[kind]
        file = stage.folder("configuration") / "omniverbd.toml"
        file.write_text(SETTINGS[setting])
        self.host = Host(stage, "crowd", arguments=["--config", file])
        self.numbers, self.pairs = itertools.count(1), []

    def grow(self, count):
        """There are so many pairs then, or more."""
        while len(self.pairs) < count:
            pair = SimpleNamespace(server=self._place(self.ends[0]),
                                   client=self._place(self.ends[1]))
            if self.ends == KINDS["machines"]:
                # Two machines share memory from their second connection on.
                Both(pair, ["ib_write_bw", "-F", "-n", "5"]).finish(60)
            self.pairs.append(pair)

    def _place(self, kind):
        number = next(self.numbers)
        if kind == 0:
            return self.host.add(number)
        archive = guest_image.archive(files(self.stage, ["ib_write_bw"]), guest_image.DAX, "scale")
        return Device(self.host.keep(Neighbour(self.stage, self.host, archive, memory=MEMORY,
                                               name=f"vm-{number}", address=f"10.77.0.{number}")))

    def sample(self, setting, count, seconds):
        """Bytes a second of the first `count` pairs, all of them busy, and how many are direct."""
        running = []
        try:
            for pair in self.pairs[:count]:
                running.append(Both(pair, ["ib_write_bw", "-F", "-s", str(SIZE),
                                           "--run_infinitely", "-D", "600"]))
            before, _ = self._moved()

            def all_move():
                self._alive(running)
                return sum(now > before.get(qpn, 0) for qpn, now in self._moved()[0].items())
            process.until(lambda: all_move() >= count, 60 + 2 * count, "all pairs to be busy")
            ways = [row.get("path") for row in self.host.daemon.queue_pairs()]
            # What containers can do they have to.
            wanted = {setting} if self.ends == KINDS["containers"] else {setting, "forwarded"}
            check(set(ways) <= wanted, f"data goes {', '.join(map(str, set(ways)))}")
            first, started = self._moved()
            time.sleep(seconds)
            last, ended = self._moved()
            self._alive(running)
            moved = sum(now - first.get(qpn, 0) for qpn, now in last.items())
        finally:
            for both in running:
                both.abort()
        process.until(lambda: not self.host.daemon.queue_pairs(), 60, "all to be gone")
        return moved / (ended - started), ways.count("direct") // 2

    def _moved(self):
        """Bytes that each queue pair has sent, and when that was asked."""
        asked = time.monotonic()
        rows = self.host.daemon.queue_pairs()
        now = (asked + time.monotonic()) / 2
        return {row["qpn"]: row["bytes_sent"] for row in rows}, now

    @staticmethod
    def _alive(running):
        for both in running:
            for side in (both.client, both.server):
                if side.poll() is not None:
                    raise Failure(f"a pair has ended: {both.text(0)}\n{both.text(1)}")

    def close(self):
        """Ends everything."""
        self.host.close()


def measure(stage, kind, setting, counts, chosen):
    """Rows by number of pairs."""
    rows = {}
    if not counts:
        raise Skip("there are to be fewer than two pairs")
    with contextlib.closing(Crowd(stage, kind, setting)) as crowd:
        for count in counts:
            crowd.grow(count)
        for number in range(chosen.rounds):
            for count in counts:
                begun = time.monotonic()
                rows.setdefault(count, []).append(crowd.sample(setting, count, chosen.seconds))
                print(f"{kind}, {setting}, round {number + 1} of {chosen.rounds}, {count} pairs: "
                      f"{report.show(rows[count][-1][0], 'B/s').strip()}, "
                      f"{time.monotonic() - begun:.0f} s", file=sys.stderr, flush=True)
    return {count: {**report.summary([speed for speed, _ in samples]),
                    "direct": [direct for _, direct in samples][-1]}
            for count, samples in rows.items()}


def lines(found):
    """The table."""
    yield (f"{'pairs of':16} {'setting':10} {'pairs':>6} {'direct':>6} {'all together':>13} "
           f"{'to that of two':>15}")
    for (kind, setting), rows in found.items():
        if isinstance(rows, str):
            yield f"{kind:16} {setting:10} not measured: {rows}"
            continue
        for count, row in rows.items():
            yield (f"{kind:16} {setting:10} {count:>6} {row['direct']:>6} "
                   f"{report.show(row['median'], 'B/s'):>13} "
                   f"{row['median'] / rows[min(rows)]['median']:>15.3f}")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="samples of each (default 5)")
    parser.add_argument("--quick", action="store_true",
                        help="one short sample of two pairs of containers, to see that it works")
    parser.add_argument("--seconds", type=float, default=3, help="length of one (default 3)")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--containers", type=int, default=32,
                        help="pairs of containers at most (default 32; 64 have addresses)")
    parser.add_argument("--machines", type=int, default=8, help="machines at most (default 8)")
    parser.add_argument("--out", type=Path, default=ROOT / "target/bench/scale.json")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.rounds, chosen.seconds, chosen.kinds, chosen.containers = 1, 0.2, ["containers"], 2
    return chosen


def counts(kind, chosen):
    """2, 4, 8, ... pairs, as many as there may be."""
    machines = sum(KINDS[kind])
    most = chosen.machines // machines if machines else chosen.containers
    return [count for count in (2, 4, 8, 16, 32, 64) if count <= most]


def main():
    chosen = arguments()
    known = machine_info.facts(ROOT)
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("OMNIVERB_LOG", "error")
    stage, found = Stage(with_programs=False), {}
    try:
        for kind, setting in itertools.product(chosen.kinds, chosen.settings):
            try:
                found[kind, setting] = measure(stage, kind, setting, counts(kind, chosen), chosen)
            except (Skip, Failure) as reason:
                found[kind, setting] = str(reason)[:500]
    finally:
        stage.close()
        process.end_descendants()
    chosen.out.write_text(json.dumps({"machine": known, "results": [
        {"pairs_of": kind, "setting": setting, "rows": rows}
        for (kind, setting), rows in found.items()]}, indent=1) + "\n")
    print(*machine_info.lines(known), *lines(found), sep="\n")
    print(f"Details: {chosen.out}")
    return 1 if any(isinstance(rows, str) for rows in found.values()) else 0


if __name__ == "__main__":
    process.become_subreaper()
    try:
        sys.exit(main())
    except Failure as problem:
        process.end_descendants()
        sys.exit(f"bench: {problem}")
