#!/usr/bin/env python3
"""Ninth part of `make bench`: what tenants cost, and how exactly each is held to its rate.

A sixth of the tenants begins at once, more every few seconds; two thirds stop in two steps; the
rates of the others are raised by 53 %, by one `omniverb reload`; all stop. In: dist/,
tests/programs, bench/many_qps_to_rts.c, perftest; root. Out: rows on stdout and
target/bench/tenants.json. A missed threshold is shown, it does not fail the run; a lost message, or
what could not be measured, does. docs/benchmarks.md."""
import argparse
import json
import os
import re
import sys
import time
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import machine_info

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
sys.dont_write_bytecode = True

from harness import client_server, process, rate_limited_traffic  # noqa: E402
from harness.case import Failure  # noqa: E402
from harness.network import Namespace  # noqa: E402
from harness.simulated_host import Host  # noqa: E402
from harness.staging import Stage  # noqa: E402

# What was published of a NIC that did this: so many tenants.
PUBLISHED = 300
TENANTS, RATE, STEP = 30, 4_000_000, 2
QUICK_TENANTS, QUICK_STEP = 6, 1
RAISED = 1.53
# A window is judged from so many seconds after a change on.
SETTLED, WINDOW, EXACT = 0.2, 1.0, 0.01
MESSAGE, DEPTH, BURST = 1024, 32, 16384
# A sender that always has far more under way than it may have.
HOSTILE_MESSAGE, HOSTILE_DEPTH = 2048, 64
OBJECTS, QUICK_OBJECTS = 10_000, 200
PROCESSES, QUICK_PROCESSES, QPS = (1, 2, 4, 8, 16), (1, 4), 100
# Queue pair numbers of a tenant's vNIC: enough for all of these, which 1024 are not.
QPNS = 2048
# Of a tenant's vNIC beside a flat one: QP set-up, datagrams; over the number of processes.
SET_UP, DATAGRAM, FLAT = 1.05, 1.03, 1.25
POLICY_BYTES, VNIC_BYTES = 2 << 10, 32 << 10
# Nanoseconds that the pacer may take for a packet.
PACKET = 150
PACKET_COST = ROOT / "target/release/examples/packet_cost"


class Row:
    """A figure beside what is wanted of it."""

    def __init__(self, label, value, wanted, met):
        self.label, self.value, self.wanted, self.met = label, value, wanted, met

    def line(self):
        """For people."""
        return f"{self.label:66} {self.value:>16} {self.wanted:>14} {self.verdict()}"

    def verdict(self):
        """Whether it is good enough; nothing, where nothing is wanted."""
        return "" if self.met is None else "met" if self.met else "MISSED"

    def details(self):
        """For the file."""
        return {"label": self.label, "value": self.value, "wanted": self.wanted,
                "acceptance": self.verdict()}


class Member:
    """A tenant of a timeline: its rate, senders that share it, and how they behave."""

    def __init__(self, rate, senders=1, is_hostile=False):
        self.rate, self.senders, self.is_hostile = rate, senders, is_hostile
        self.ends = []

    def sent(self, begin, end):
        """Bits a second of all of its senders."""
        return sum(one.rate(begin, end) for one in self.ends)

    def kind(self):
        """In a word."""
        return "hostile" if self.is_hostile else "group" if self.senders > 1 else "single"


class Scene(rate_limited_traffic.Limited):
    """A host with two namespaces for each sender, partners side by side."""

    def __init__(self, stage, members):
        self.file = stage.folder("tenants") / "omniverbd.toml"
        self.file.write_text("")
        self.host = Host(stage, "h", arguments=["--config", self.file])
        self.members, self.namespaces = members, []
        try:
            for number in range(2 * sum(member.senders for member in members)):
                namespace = self.host.keep(Namespace())
                address = f"10.78.{number // 200}.{1 + number % 200}/16"
                self.host.switch.plug(namespace, address)
                self.namespaces.append(namespace)
        except BaseException:
            self.host.close()
            raise

    def begin(self):
        """Starts a process in each namespace; all of them, and their addresses."""
        ends, number = [], 0
        for member in self.members:
            size = (HOSTILE_MESSAGE, HOSTILE_DEPTH) if member.is_hostile else (MESSAGE, DEPTH)
            for _ in range(member.senders):
                two = [rate_limited_traffic.End(self.host, number + n, self.namespaces[number + n],
                                                *size) for n in range(2)]
                member.ends.append(two[0])
                ends += two
                number += 2
        return ends, [end.read() for end in ends]

    def describe(self, ends, factor):
        """Has the daemon read what holds for each tenant: all at once."""
        names = {vnic["namespace"]: vnic["name"] for vnic in self.host.daemon.vnics()}
        text, at = [], 0
        for number, member in enumerate(self.members):
            text.append(f'[tenant.t{number}]\n[policy.p{number}]\n'
                        f'rate = "{round(member.rate * factor)}bit"\nburst = "{BURST}"\n'
                        f'mode = "shared"\n')
            for end in ends[at:at + 2 * member.senders]:
                text.append(f'[vnic."{names[end.inode]}"]\ntenant = "t{number}"\n')
                if end in member.ends:
                    text.append(f'policies = ["p{number}"]\n')
            at += 2 * member.senders
        self.file.write_text("".join(text))
        self.host.daemon.omniverb("reload")


class Timeline:
    """What happened to tenants, and when."""

    def __init__(self, stage, members, step):
        self.members, self.changes = members, []
        scene = Scene(stage, members)
        try:
            self.ends, addresses = scene.begin()
            scene.describe(self.ends, 1)
            scene.connect(self.ends, addresses)
            self._run(scene, step)
            self.cpu_seconds = process.cpu_seconds(scene.host.daemon.pid)
        finally:
            scene.close()

    def _run(self, scene, step):
        count = len(self.members)
        for partner in self.ends[1::2]:
            partner.write(0)
        # The last sixth begins at 5 steps.
        stops = [7 * step, 9 * step, 13 * step]
        raised, begun = 11 * step - step / 2, time.monotonic()
        group = max(1, -(-count // 6))
        for first in range(0, count, group):
            at = first // group * step
            time.sleep(max(0, begun + at - time.monotonic()))
            self.changes.append(time.monotonic())
            for number in range(first, min(first + group, count)):
                for sender in self.members[number].ends:
                    sender.write(stops[3 * number // count] - at)
        self.changes += [begun + stop for stop in stops[:2]]
        time.sleep(max(0, begun + raised - time.monotonic()))
        at = time.monotonic()
        scene.describe(self.ends, RAISED)
        self.reload = time.monotonic() - at
        self.raised = at + self.reload
        self.changes += [at, self.raised]
        self.over = begun + stops[2]
        time.sleep(max(0, self.over - time.monotonic()))
        scene.finish(self.ends)

    def windows(self):
        """Beginnings of windows with nothing changed in them, nor just before."""
        changes = sorted(self.changes)
        for begin, end in zip(changes, [*changes[1:], self.over]):
            at = begin + SETTLED
            while at + WINDOW <= end - 0.02:
                yield at
                at += WINDOW / 2

    def deviations(self):
        """For each window and tenant that sent all the while: how far it was from its rate."""
        for at in self.windows():
            for member in self.members:
                first = max(end.start for end in member.ends)
                last = min(end.end for end in member.ends)
                if first + SETTLED <= at and at + WINDOW <= last - 0.05:
                    wanted = member.rate * (RAISED if at >= self.raised else 1)
                    yield member.sent(at, at + WINDOW) / wanted - 1, member

    def rows(self, label):
        """What came of it."""
        found = list(self.deviations())
        if not found:
            raise Failure("no window was measured")
        count = len(self.members)
        yield Row(f"{label}: {count} tenants, {count / PUBLISHED:.0%} of those published, "
                  f"{sum(m.rate for m in self.members) / 1e6:g} Mbit/s",
                  f"{len(found)} windows", "", None)
        for kind in sorted({member.kind() for member in self.members}):
            ours = sorted(abs(off) for off, member in found if member.kind() == kind)
            if not ours:
                yield Row(f"{label}: greatest deviation in {WINDOW:g} s, {kind}", "no window",
                          f"<= {EXACT:.0%}", False)
                continue
            over = max(off for off, member in found if member.kind() == kind)
            beyond = sum(1 for off in ours if off > EXACT)
            yield Row(f"{label}: greatest deviation in {WINDOW:g} s, {kind} "
                      f"(median {median(ours):.2%}, most above {over:+.2%}, {beyond} of "
                      f"{len(ours)} beyond)", f"{ours[-1]:.2%}", f"<= {EXACT:.0%}",
                      ours[-1] <= EXACT)
        # A lost message has failed the run by now.
        yield Row(f"{label}: daemon {self.cpu_seconds:.1f} s of processor, reload of all rates",
                  f"{self.reload:.2f} s", "", None)


def equal(stage, chosen):
    """Every tenant has the same rate."""
    members = [Member(chosen.rate) for _ in range(chosen.tenants)]
    yield from Timeline(stage, members, chosen.step).rows("equal rates")


def mixed(stage, chosen):
    """Different rates, some shared by two vNICs, some senders that ask for far too much."""
    count = chosen.tenants
    members = [Member(chosen.rate * (count + 2 * n) // (2 * count), 2 if n % 5 == 1 else 1,
                      n % 10 == 3) for n in range(count)]
    yield from Timeline(stage, members, chosen.step).rows("different rates")


def resident(pid):
    """Bytes of memory of a process's own."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return 1024 * sum(int(kib) for kib in re.findall(r"^Private_\w+: +(\d+) kB", text, re.M))


def memory(stage, chosen):
    """Bytes of the daemon's for each policy, and for each vNIC that no process uses."""
    count = QUICK_OBJECTS if chosen.quick else OBJECTS
    file = stage.folder("objects") / "omniverbd.toml"
    kinds = {
        "policy": (lambda n: f'[policy.p{n}]\nrate="{n + 1}mbit"\n', POLICY_BYTES),
        "vNIC without processes": (lambda n: f'[vnic.v{n}]\npolicies=["p{n}"]\n', VNIC_BYTES),
    }
    file.write_text("")
    host, text = Host(stage, "m", arguments=["--config", file]), ""
    try:
        # What reading such a file leaves behind counts once.
        before = resident(host.daemon.pid)
        for name, (write, most) in kinds.items():
            text += "".join(write(n) for n in range(count))
            file.write_text(text)
            begun = time.monotonic()
            host.daemon.omniverb("reload")
            took = time.monotonic() - begun
            after = resident(host.daemon.pid)
            each = max(0, after - before) / count
            yield Row(f"memory of a {name}, of {count} (reload {took:.2f} s)", f"{each:.0f} B",
                      f"<= {most >> 10} KiB", each <= most)
            before = after
    finally:
        host.close()


class Sides:
    """Two pairs of namespaces of one host: flat ones, and those of a tenant with virtual GIDs."""

    def __init__(self, stage):
        self.host, self.mounts = Host(stage, "s"), []
        folder = stage.folder("key")
        key = folder / "key"
        key.write_text("f0" * 16 + "\n")
        key.chmod(0o600)
        omniverb = self.host.daemon.omniverb
        try:
            omniverb("tenant", "create", "blue", "--key-file", key, "--underlay", "127.0.0.1")
            self.pairs = {}
            for name, numbers in (("flat", (1, 2)), ("tenant", (3, 4))):
                places = []
                for number in numbers:
                    namespace = self.host.plug(number)
                    address = f"10.77.0.{number}"
                    places.append(self.host.bare(namespace, address))
                    if name == "tenant":
                        path = folder / f"namespace-{number}"
                        path.touch()
                        process.run(["mount", "--bind", namespace.path, path])
                        self.mounts.append(path)
                        omniverb("vnic", "create", f"blue{number}", "--tenant", "blue",
                                 "--address", address, "--attach", path, "--qpns",
                                 str(QPNS))
                self.pairs[name] = SimpleNamespace(server=places[0], client=places[1])
        except BaseException:
            self.close()
            raise

    def gid(self, name):
        """The index of a GID that both have."""
        return 0 if name == "tenant" else client_server.gid_index(self.pairs[name].server)

    def close(self):
        """Ends everything."""
        for path in self.mounts:
            process.run(["umount", path])
        self.host.close()


def set_up(stage, chosen):
    """What a queue pair takes from ibv_create_qp to RTS, in a tenant beside a flat vNIC."""
    process.run(["cc", "-O2", "-pthread", "-o", stage.programs / "many_qps_to_rts",
                 ROOT / "bench/many_qps_to_rts.c", "-libverbs"], limit=60)
    counts = QUICK_PROCESSES if chosen.quick else PROCESSES
    sides, found = Sides(stage), {}
    try:
        gids = {name: sides.gid(name) for name in sides.pairs}
        for number in range(1 if chosen.quick else 5):
            order = list(sides.pairs.items())
            for count in counts:
                for name, pair in order if number % 2 else reversed(order):
                    text = pair.server.run("/opt/programs/many_qps_to_rts", str(count),
                                           str(QPS), str(gids[name]), limit=60)
                    found.setdefault((name, count), []).append(json.loads(text)["each_us"])
    finally:
        sides.close()
    middle = {key: median(samples) for key, samples in found.items()}
    for count in counts:
        flat, tenant = middle["flat", count], middle["tenant", count]
        yield Row(f"{QPS} QPs to RTS in each of {count} processes, each: flat {flat:.1f} us, "
                  f"tenant {tenant:.1f} us", f"{tenant / flat:.3f}", f"<= {SET_UP}",
                  tenant <= SET_UP * flat)
    for name in sides.pairs:
        growth = middle[name, counts[-1]] / middle[name, counts[0]]
        yield Row(f"{counts[-1]} processes beside one, each QP, {name}", f"{growth:.2f}",
                  f"<= {FLAT}", growth <= FLAT)


def datagrams(stage, chosen):
    """UD SEND in a tenant beside flat: latency, and messages a second."""
    sides = Sides(stage)
    programs = {"ib_send_lat": (6, 4, 200 if chosen.quick else 2000),
                "ib_send_bw": (5, 4, 1000 if chosen.quick else 20_000)}
    found = {}
    try:
        gids = {name: sides.gid(name) for name in sides.pairs}
        for number in range(1 if chosen.quick else 3):
            order = list(sides.pairs.items())
            for program, (columns, column, count) in programs.items():
                for name, pair in order if number % 2 else reversed(order):
                    outcome = client_server.run(pair, program, "-F", "-c", "UD", "-s", "8", "-n",
                                                str(count), "-x", str(gids[name]))
                    row = client_server.rows(outcome.client, columns)[8]
                    found.setdefault((program, name), []).append(row[column])
    finally:
        sides.close()
    for program in programs:
        flat, tenant = (median(found[program, name]) for name in ("flat", "tenant"))
        is_time = program.endswith("lat")
        times, unit = (tenant / flat, "us") if is_time else (flat / tenant, "Mmsg/s")
        yield Row(f"{program} -c UD 8 B: flat {flat:.3f} {unit}, tenant {tenant:.3f} {unit}",
                  f"{times:.3f}", f"<= {DATAGRAM}", times <= DATAGRAM)


def pacer(stage, chosen):
    """What the pacer takes for a packet, by the program of its own."""
    if not PACKET_COST.exists():
        yield Row("pacing a packet: not built (cargo build --release -p omniverb_pacer --example "
                  "packet_cost)", "-", f"<= {PACKET} ns", False)
        return
    words = ["vNICs, tenants'", "--json"] if chosen.quick else ["--json"]
    for line in process.run([PACKET_COST, *words], limit=120).splitlines():
        found = json.loads(line)
        # An operation is paced before its packet.
        most = PACKET * (2 if "operations" in found["case"] else 1)
        yield Row(f"pacing a packet, {found['nodes']} nodes: {found['case']} (first decile "
                  f"{found['decile_ns']:.0f} ns)", f"{found['median_ns']:.0f} ns",
                  f"<= {most} ns", found["median_ns"] <= most)


PARTS = {"pacer": pacer, "equal": equal, "mixed": mixed, "memory": memory, "set-up": set_up,
         "datagrams": datagrams}


def arguments():
    """Those of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tenants", type=int, help=f"how many (default {TENANTS})")
    parser.add_argument("--rate", type=int, default=RATE,
                        help=f"bits a second of each (default {RATE})")
    parser.add_argument("--step", type=int, help=f"seconds between changes (default {STEP})")
    parser.add_argument("--only", default="", help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="a few tenants: to see it work")
    parser.add_argument("--out", type=Path, default=ROOT / "target/bench/tenants.json")
    chosen = parser.parse_args()
    chosen.tenants = chosen.tenants or (QUICK_TENANTS if chosen.quick else TENANTS)
    chosen.step = chosen.step or (QUICK_STEP if chosen.quick else STEP)
    return chosen


def main():
    """All of it."""
    chosen = arguments()
    known, started = machine_info.facts(ROOT), time.monotonic()
    before = machine_info.cpu_times()
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    stage, rows, errors = Stage(), [], {}
    print(*machine_info.lines(known), sep="\n")
    print(f"load average before: {os.getloadavg()[0]:.1f}", flush=True)
    try:
        for name, part in PARTS.items():
            if chosen.only not in name:
                continue
            begun = time.monotonic()
            try:
                for row in part(stage, chosen):
                    rows.append(row)
                    print(row.line(), flush=True)
            except Failure as problem:
                errors[name] = str(problem)
                print(f"bench: {name} not measured: {problem}", file=sys.stderr)
            print(f"{name}: {time.monotonic() - begun:.0f} s", file=sys.stderr)
    finally:
        stage.close()
        process.end_descendants()
    known["stolen_by_other_machines"] = machine_info.stolen_since(before)
    chosen.out.write_text(json.dumps({"machine": known, "seconds": time.monotonic() - started,
                                      "rows": [row.details() for row in rows],
                                      "errors": errors}, indent=1) + "\n")
    print(f"stolen by other virtual machines: {known['stolen_by_other_machines']:.1%}")
    print(f"Details: {chosen.out}")
    return 1 if errors else 0


if __name__ == "__main__":
    process.become_subreaper()
    try:
        sys.exit(main())
    except Failure as problem:
        process.end_descendants()
        sys.exit(f"bench: {problem}")
