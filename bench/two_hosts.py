#!/usr/bin/env python3
"""`make bench`, second part: Omniverb between two hosts against raw UDP and TCP over the same veth;
and light connections by gateways (docs/decisions/0063) beside TCP by the same program.

In: dist/, raw_udp.c, stream_between_hosts.c, perftest, qperf, iperf3; root, since the hosts are
network namespaces (see tests/harness/simulated_host.py), each with a daemon of its own. Out: a
table on stdout and target/bench/wire.json. Every round takes one sample of everything. A missed
threshold is shown, it does not fail the run; an Omniverb measurement that could not be taken does.
docs/benchmarks.md.
"""
import argparse
import json
import subprocess
import sys
import time
from contextlib import ExitStack, closing
from pathlib import Path

import compare_builds
import machine_info
import program_runs
import measurement_plan as plan
import report

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
sys.dont_write_bytecode = True

from harness import client_server, process  # noqa: E402
from harness.case import Failure  # noqa: E402
from harness.simulated_host import Hosts  # noqa: E402
from harness.staging import Stage  # noqa: E402

SMALL, LARGE = 8, 65536
# A datagram of the yardstick: as long as the RoCE packet of a WRITE of 8 bytes.
DATAGRAM = 12 + 16 + SMALL + 4
RAW_PORT, IPERF_PORT, QPERF_PORT = 9001, 9002, 9003
# Of who serves light connections, and who serves the kernel's.
FAR_PORT, PLAIN_PORT = 9004, 9005

# key: (yardstick or None for the value itself, acceptance, goal).
THRESHOLDS = {
    "omv_write_lat": ("raw_lat", 3, 2), "omv_send_lat": ("raw_lat", 3, 2),
    "omv_write_64k": ("raw_stream", 0.5, 0.8),
    "omv_write_rate": (None, 0.5e6, 2e6), "omv_send_rate": (None, 0.5e6, 2e6),
}
YARDSTICKS = {"lat": "raw_lat", "64k": "raw_stream"}


class Places:
    """Two hosts, a namespace on each instead of a container, and the servers that stay."""

    def __init__(self, stage, mtu, folder):
        self.hosts = Hosts(stage, mtu)
        self.stage, self.mtu = stage, mtu
        self.server = self._bare(self.hosts.a, self.hosts.server)
        self.client = self._bare(self.hosts.b, self.hosts.client)
        self.raw = folder / "raw_udp"
        process.run(["cc", "-O2", "-Wall", "-o", self.raw, ROOT / "bench/raw_udp.c"], limit=60)
        self.far = folder / "far"
        process.run(["cc", "-O2", "-Wall", "-o", self.far,
                     ROOT / "bench/stream_between_hosts.c"], limit=60)
        self.library = stage.dist / "lib/libomniverb_sockets.so"
        self.kept = []

    def encrypt(self, folder):
        """Has both daemons encrypt what passes between the hosts."""
        key = folder / "tenant.key"
        key.touch(mode=0o600)
        key.write_text("5a" * 16)
        for daemon in self.hosts.daemons:
            daemon.omniverb("tenant", "create", "default", "--encryption", "psp",
                            "--key-file", key)

    @staticmethod
    def _bare(host, container):
        return host.bare(container.namespace, container.address)

    def keep(self, *argv):
        """Starts a server that stays."""
        self.kept.append(self.server.start(*argv, plain=True, stdout=subprocess.DEVNULL,
                                           stderr=subprocess.DEVNULL))

    def light(self, *argv):
        """In front of a program whose connections are to be light."""
        return ["env", "OMNIVERB_SOCKETS=light", f"LD_PRELOAD={self.library}", *argv]

    def serve_far(self):
        """Starts gateways, who serves light connections, and who serves the kernel's."""
        if not self.library.exists():
            return
        for place in (self.server, self.client):
            self.kept.append(place.start(
                self.stage.dist / "bin/omniverb", "gateway", "0.0.0.0/0", plain=True,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        self.keep(*self.light(self.far, "serve", self.server.address, FAR_PORT))
        self.keep(self.far, "serve", self.server.address, PLAIN_PORT)

    def far_away(self, what, is_light, size):
        """Nanoseconds there and back, or messages a second; the kernel's, or light ones."""
        def sample(count):
            if not is_light:
                return float(self.client.run(self.far, what, self.server.address, PLAIN_PORT,
                                             count, size, plain=True, limit=60))
            line = self.light(self.far, what, self.server.address, FAR_PORT, count, size, "light")
            return float(self.client.run(*line, plain=True, limit=60))
        return sample

    def close(self):
        """Ends everything."""
        for running in self.kept:
            process.end(running)
        self.hosts.close()

    def raw_udp(self, *arguments):
        """A client of the yardstick."""
        kind, *rest = arguments
        return float(self.client.run(self.raw, kind, self.server.address, RAW_PORT, *rest,
                                     plain=True))

    def perftest(self, program, size, iterations, *options):
        """The numbers of perftest's only row."""
        atomic = "atomic" in program
        sizes = [] if atomic else ["-s", str(size)]
        outcome = client_server.run(self, program, "-F", "-n", str(iterations), *sizes, *options,
                                    limit=60)
        table = client_server.rows(outcome.client, 5)
        if len(table) != 1:
            raise Failure(f"cannot read this output of {program}:\n{outcome.client}")
        return next(iter(table.values()))

    def qperf(self, test, size):
        """TCP: latency in ns (half a round trip) or bytes a second."""
        text = self.client.run("qperf", self.server.address, "-lp", QPERF_PORT, "-t", "1", "-m",
                               size, test, plain=True)
        value = program_runs.qperf_value(text)
        if value is None:
            raise Failure(f"cannot read this output of qperf:\n{text}")
        return value

    def iperf3(self):
        """TCP: bytes a second that arrived."""
        text = self.client.run("iperf3", "-c", self.server.address, "-p", IPERF_PORT, "-t", "1",
                               "-J", plain=True)
        return json.loads(text)["end"]["sum_received"]["bits_per_second"] / 8


def encrypted(places):
    """The same between two hosts whose packets are encrypted."""
    few, many, large = (1000, (500, 100_000)), (20_000, (2000, 5_000_000)), (500, (200, 100_000))
    rows = [("lat", "ib_write_lat", "8 B", "ns", SMALL, 4, 1000, few),
            ("rate", "ib_write_bw", "8 B", "msg/s", SMALL, 4, 1e6, many),
            ("64k", "ib_write_bw", "64 KiB", "B/s", LARGE, 3, 2**20, large)]
    return [plan.Measurement(
        f"psp_write_{key}", f"encrypted {program} {text}", unit,
        lambda n, row=(program, size, column, factor):
            places.perftest(row[0], row[1], n)[row[2]] * row[3],
        iterations=iterations, limits=limits, size=size)
        for key, program, text, unit, size, column, factor, (iterations, limits) in rows]


def measurements(places):
    """What is measured, in the order of the table."""
    def of(key, label, unit, sample, **more):
        return plan.Measurement(key, label, unit, sample, **more)

    def lat(program, *options):
        return lambda n: places.perftest(program, SMALL, n, *options)[4] * 1000

    def rate(program, *options):
        return lambda n: places.perftest(program, SMALL, n, *options)[4] * 1e6

    def width(program, *options):
        return lambda n: places.perftest(program, LARGE, n, *options)[3] * 2**20

    few = {"limits": (500, 100_000), "iterations": 1000}
    many = {"limits": (2000, 5_000_000), "iterations": 20_000}
    large = {"limits": (200, 100_000), "iterations": 500, "size": LARGE}
    segment = places.mtu - 28
    def away(what, size=SMALL):
        return [(f"{key}_{what}_{size}", f"{label}, {size} B", places.far_away(what, light, size))
                for key, label, light in (("tcp", "TCP", False), ("gateway", "light", True))]

    small = {"limits": (2000, 20_000_000), "iterations": 20_000}
    bulk = [(SMALL, small), (1024, small), (LARGE, {**large, "size": LARGE})]
    ferried = [of(key, f"{label}, there and back", "ns", sample, **few)
               for key, label, sample in away("rtt")]
    ferried += [of(key, f"{label}, one way", "msg/s", sample, **more)
                for size, more in bulk for key, label, sample in away("rate", size)]
    return [
        of("raw_lat", f"raw UDP {DATAGRAM} B, half a round trip", "ns",
           lambda n: places.raw_udp("lat", DATAGRAM, n) / 2, **few),
        of("raw_stream", f"raw UDP stream, GSO, {segment} B", "B/s",
           lambda _: places.raw_udp("stream", segment, 500), size=LARGE),
        of("omv_write_lat", "Omniverb ib_write_lat 8 B", "ns", lat("ib_write_lat"), **few),
        of("omv_send_lat", "Omniverb ib_send_lat 8 B", "ns", lat("ib_send_lat"), **few),
        of("omv_read_lat", "Omniverb ib_read_lat 8 B", "ns", lat("ib_read_lat"), **few),
        of("omv_atomic_lat", "Omniverb ib_atomic_lat", "ns", lat("ib_atomic_lat"), **few),
        of("omv_ud_lat", "Omniverb ib_send_lat 8 B, UD", "ns", lat("ib_send_lat", "-c", "UD"),
           **few),
        of("omv_write_rate", "Omniverb ib_write_bw 8 B", "msg/s", rate("ib_write_bw"), **many),
        of("omv_send_rate", "Omniverb ib_send_bw 8 B", "msg/s", rate("ib_send_bw"), **many),
        of("omv_write_64k", "Omniverb ib_write_bw 64 KiB", "B/s", width("ib_write_bw"), **large),
        of("omv_send_64k", "Omniverb ib_send_bw 64 KiB", "B/s", width("ib_send_bw"), **large),
        of("omv_read_64k", "Omniverb ib_read_bw 64 KiB", "B/s", width("ib_read_bw"), **large),
        of("tcp_lat", "TCP 8 B (qperf)", "ns", lambda _: places.qperf("tcp_lat", SMALL)),
        of("tcp_64k", "TCP 64 KiB (qperf)", "B/s", lambda _: places.qperf("tcp_bw", LARGE),
           size=LARGE),
        of("tcp_iperf_64k", "TCP (iperf3)", "B/s", lambda _: places.iperf3(), size=LARGE),
        *ferried,
    ]


def judge(key, value, rows):
    """(ratio to the yardstick, acceptance, goal); the texts are empty where nothing is demanded."""
    yardstick = YARDSTICKS.get(key.rpartition("_")[2])
    base = rows.get(yardstick, {}).get("median")
    ratio = value / base if base and key != yardstick else None
    if key not in THRESHOLDS:
        return ratio, "", ""
    against, *marks = THRESHOLDS[key]
    seen = ratio if against else value
    lower = key.endswith("_lat")
    texts = []
    for mark in marks:
        bound = (f"{mark}x" if lower else f"{mark:.0%}") if against else f"{mark / 1e6:g} M/s"
        met = seen is not None and (seen <= mark if lower else seen >= mark)
        texts.append(f"{'<=' if lower else '>='} {bound} {'met' if met else 'MISSED'}")
    return ratio, *texts


def results(items):
    """One dictionary a measurement."""
    rows = {}
    for item in items:
        entry = report.entry_of(item)
        if item.samples:
            ratio, acceptance, goal = judge(item.key, entry["median"], rows)
            entry.update({"ratio_to_raw": ratio, "acceptance": acceptance, "goal": goal})
        rows[item.key] = entry
    return rows


def lines(rows):
    """The table."""
    yield ("{:38} {:>10} {:>10} {:>10} {:>7}  {:18} {}").format(
        "between two hosts", "median", "min", "max", "to raw", "acceptance", "goal").rstrip()
    for entry in rows.values():
        if "median" not in entry:
            yield f"{entry['label']:38} not measured: {entry.get('error', 'no sample')}"
            continue
        cells = [report.show(entry[column], entry["unit"]) for column in ("median", "min", "max")]
        ratio = entry["ratio_to_raw"]
        if ratio is None:
            ratio = ""
        else:
            ratio = f"{ratio:.2f}x" if entry["unit"] == "ns" else f"{ratio:.0%}"
        yield (f"{entry['label']:38} {cells[0]:>10} {cells[1]:>10} {cells[2]:>10} {ratio:>7}  "
               f"{entry['acceptance']:18} {entry['goal']}").rstrip()
        if "error" in entry:
            yield f"    failed once: {entry['error']}"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="samples of everything (default 5)")
    parser.add_argument("--quick", action="store_const", dest="rounds", const=0,
                        help="one short sample of everything, to see that it works")
    parser.add_argument("--only", default="", help="measure only keys that contain this text, and "
                        "the yardsticks")
    parser.add_argument("--mtu", type=int, default=1500, help="of the veth (default 1500)")
    parser.add_argument("--against", type=Path, metavar="DIST",
                        help="another build: measure both, and nothing but Omniverb")
    parser.add_argument("--out", type=Path, default=ROOT / "target/bench/wire.json")
    return parser.parse_args()


def measure(chosen):
    """Samples of everything, those of two builds beside each other."""
    with ExitStack() as stack:
        places = opened(ROOT / "dist", chosen.mtu, stack)
        serve_yardsticks(places)
        items = measurements(places)
        if not chosen.against:
            apart = opened(ROOT / "dist", chosen.mtu, stack)
            apart.encrypt(apart.stage.path)
            items += encrypted(apart)
        if chosen.against:
            items = [item for item in items if not item.key.startswith("tcp_")]
            other = measurements(opened(chosen.against, chosen.mtu, stack))
            ours = [item for item in other if item.key.startswith("omv_")]
            items = compare_builds.both(items, ours)
        items = [item for item in items
                 if chosen.only in item.key or item.key.startswith("raw_")]
        plan.sample_all(items, chosen.rounds, (Failure, ValueError, ZeroDivisionError))
    return items


def opened(dist, mtu, stack):
    """Two hosts for a build."""
    stage = stack.enter_context(closing(Stage(with_programs=False, dist=dist)))
    return stack.enter_context(closing(Places(stage, mtu, stage.path)))


def serve_yardsticks(places):
    """Starts the servers of what Omniverb is compared with."""
    places.keep(places.raw, "serve", RAW_PORT)
    places.serve_far()
    places.keep("iperf3", "-s", "-p", IPERF_PORT)
    places.keep("qperf", "-lp", QPERF_PORT)
    for port in (IPERF_PORT, QPERF_PORT):
        process.until(lambda port=port: process.listens(places.server.pid, port), 5,
                      f"a server on port {port}")


def main():
    chosen = arguments()
    known = machine_info.facts(ROOT)
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    started, before = time.monotonic(), machine_info.cpu_times()
    try:
        items = measure(chosen)
    finally:
        process.end_descendants()
    known["stolen_by_other_machines"] = machine_info.stolen_since(before)
    rows = results(items)
    chosen.out.write_text(json.dumps({"machine": known, "mtu": chosen.mtu, "rounds": chosen.rounds,
                                      "seconds": time.monotonic() - started, "results": rows},
                                     indent=1) + "\n")
    print(*machine_info.lines(known), sep="\n")
    print(f"MTU {chosen.mtu}; rounds: {chosen.rounds}; stolen by other virtual machines: "
          f"{known['stolen_by_other_machines']:.1%}\n")
    print(*lines(rows), sep="\n")
    if chosen.against:
        print("", *compare_builds.lines(rows), sep="\n")
    print("\nBoth hosts, programs and daemons, run on this one machine.")
    print(f"Details: {chosen.out}")
    failed = [key for key, row in rows.items() if key.startswith(("omv_", compare_builds.OTHER))
              and "error" in row and (chosen.rounds or "median" not in row)]
    if failed:
        print(f"bench: not (well) measured: {', '.join(failed)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    process.become_subreaper()
    try:
        sys.exit(main())
    except Failure as problem:
        process.end_descendants()
        sys.exit(f"bench: {problem}")
