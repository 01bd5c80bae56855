#!/usr/bin/env python3
"""Fourth part of `make bench`: how exactly rate limits hold, and how soon changes take effect.

In: dist/, tests/programs, perftest; root. Out: tables on stdout and target/bench/limits.json. A
missed threshold is shown, it does not fail the run; what could not be measured does, and so does a
lost operation. docs/benchmarks.md."""
import argparse
import contextlib
import json
import sys
import time
from pathlib import Path

import machine_info
import program_runs
import report

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
sys.dont_write_bytecode = True

from cases import tenant_attacks  # noqa: E402
from harness import cm_floods, client_server, packet_floods, process  # noqa: E402
from harness import rate_limited_traffic  # noqa: E402
from harness.rdma_cm_client_server import both  # noqa: E402
from harness.case import Failure  # noqa: E402
from harness.simulated_host import Hosts  # noqa: E402
from harness.staging import Stage  # noqa: E402

CONNECTED = 100
CONNECTIONS = {"none": "no flood", "requests": "flood of 20,000 requests/s"}
VNICS, RATE, SECONDS = 50, 20_000_000, 10
QUICK_VNICS = 4
CHANGES = [100_000_000, 10_000_000, 300_000_000, 50_000_000]
# What is demanded: within this share of the rate, this soon (seconds); of the bandwidth of somebody
# who is flooded elsewhere, this share.
EXACT, SOON, KEPT = 0.02, 0.1, 0.5
FLOODS = {"idle": None, "sink": packet_floods.SINK, "noise": packet_floods.NOISE,
          "alike": packet_floods.ALIKE}
LABELS = {"idle": "no flood", "sink": "flood of another port", "noise": "flood of 4791, noise",
          "alike": "flood of 4791, like RoCE"}


def verdict(met):
    """What a threshold came to."""
    return "met" if met else "MISSED"


def steady(stage, vnics, length):
    """So many vNICs, each with the same limit, for so many seconds."""
    limited = rate_limited_traffic.Limited(stage, vnics)
    try:
        found, seconds = rate_limited_traffic.steady(limited, vnics, RATE, length)
    finally:
        limited.close()
    return {"vnics": vnics, "rate": RATE, "seconds": length, "rates": found,
            "daemon_cpu_seconds": seconds,
            "acceptance": verdict(all(abs(one / RATE - 1) < EXACT for one in found))}


def changes(stage, wanted):
    """One vNIC whose limit changes to each of these while it sends."""
    limited = rate_limited_traffic.Limited(stage, 2)
    try:
        made, operations = rate_limited_traffic.changes(limited, wanted)
    finally:
        limited.close()
    took = [{"rate": one.wanted, "seconds": one.took, "got": one.got} for one in made]
    return {"changes": took, "operations": operations, "lost": 0,
            "acceptance": verdict(all(one.took <= SOON for one in made))}


def flooded(stage, rate, rounds):
    """What ib_write_bw gets while both its ends are flooded, by what they are flooded with."""
    samples = {name: [] for name in FLOODS}
    with Hosts(stage) as hosts:
        attacker = hosts.a.plug(66)
        with packet_floods.sinks(hosts):
            for number in range(rounds + 1):
                for name, kind in FLOODS.items():
                    value = bandwidth(hosts, attacker, kind, rate)
                    if number or rounds == 0:  # the first of several warms up
                        samples[name].append(value)
    rows = {name: {"label": LABELS[name], **report.summary(taken)}
            for name, taken in samples.items()}
    for row in rows.values():
        row["to_idle"] = row["median"] / rows["idle"]["median"]
        row["to_sink"] = row["median"] / rows["sink"]["median"]
    kept = min(rows[name]["to_sink"] for name in ("noise", "alike"))
    return {"packets_a_second": 2 * rate, "rows": rows, "acceptance": verdict(kept >= KEPT)}


def bandwidth(hosts, attacker, kind, rate):
    """Bytes a second."""
    def measure():
        outcome = client_server.run(hosts, "ib_write_bw", "-F", "-D", "1", "-s", "65536", limit=40)
        return next(iter(client_server.rows(outcome.client, 5).values()))[3] * 2**20
    if kind is None:
        return measure()
    with packet_floods.flood(hosts, attacker, kind, rate):
        time.sleep(0.2)
        return measure()


def connected(stage, rounds):
    """How long a connection between two hosts takes, while a stranger asks the server's side for
    others without end, and while nobody does: milliseconds."""
    samples = {name: [] for name in CONNECTIONS}
    with Hosts(stage) as hosts:
        attacker = hosts.b.plug(9)
        for number in range(rounds + 1):
            for name in CONNECTIONS:
                flood = cm_floods.requests(hosts, attacker, [7174, 9999])
                with flood if name == "requests" else contextlib.nullcontext():
                    line = ["cmtime", "-c", str(CONNECTED)]
                    text = both(hosts, line, [*line, "-s", hosts.server.address], 60,
                                endless=True)[1]
                if number or rounds == 0:  # the first of several warms up
                    samples[name].append(1000 / program_runs.cmtime_rate(text, CONNECTED))
    return {name: {"label": CONNECTIONS[name], **report.summary(taken)}
            for name, taken in samples.items()}


def lines(found):
    """The tables."""
    if "steady" in found:
        one = found["steady"]
        low, middle, high = (one["rates"][at] / one["rate"] for at in (0, one["vnics"] // 2, -1))
        yield (f"{one['vnics']} vNICs at {one['rate'] / 1e6:g} Mbit/s each, over "
               f"{one['seconds']} s: least {low:.2%}, median {middle:.2%}, greatest {high:.2%}; "
               f"within {EXACT:.0%} {one['acceptance']}")
    if "changes" in found:
        one = found["changes"]
        for change in one["changes"]:
            yield (f"changed to {change['rate'] / 1e6:g} Mbit/s: after {change['seconds']:.2f} s; "
                   f"{change['got'] / 1e6:.1f} Mbit/s from 0.1 to 1.1 s after")
        yield (f"within {SOON:g} s {one['acceptance']}; {one['lost']} of {one['operations']} "
               "operations lost")
    for one in found.get("floods", []):
        yield ""
        yield ("{:38} {:>10} {:>10} {:>10} {:>8} {:>14}").format(
            "ib_write_bw 64 KiB between two hosts,", "median", "min", "max", "to idle",
            "to other port")
        yield f"{one['packets_a_second']} packets/s at its ends"
        for row in one["rows"].values():
            cells = [report.show(row[column], "B/s") for column in ("median", "min", "max")]
            yield (f"{row['label']:38} {cells[0]:>10} {cells[1]:>10} {cells[2]:>10} "
                   f"{row['to_idle']:>8.0%} {row['to_sink']:>14.0%}")
        yield f"at least {KEPT:.0%} of what a flood of another port leaves: {one['acceptance']}"
    if "connections" in found:
        yield ""
        head = f"a connection (of {CONNECTED} at a time), ms"
        yield ("{:38}" + "{:>10}" * 3).format(head, "median", "min", "max")
        for row in found["connections"].values():
            yield f"{row['label']:38}" + "".join(f"{row[column]:10.2f}"
                                                 for column in ("median", "min", "max"))
    if "attacks" in found:
        yield from waits(found["attacks"])


def attacked(stage):
    """How many milliseconds each of the others took at worst, by attack."""
    found = {}
    with tenant_attacks.scene(stage) as scene:
        for row in tenant_attacks.TABLE:
            tenant_attacks.under_attack(scene, row)
            found[row.name + row.title] = {name: one.total.milliseconds
                                           for name, one in scene.observers.all.items()}
    return found


def waits(found):
    """The table of that."""
    names = list(found["nothing"])
    yield ("{:38}" + "{:>11}" * len(names)).format("longest wait under attack, ms", *names)
    for attack, one in found.items():
        yield f"{attack:38}" + "".join(f"{one[name]:11.1f}" for name in names)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="",
                        help="steady, changes, floods, connections or attacks")
    parser.add_argument("--rounds", type=int, default=5, help="samples of each flood (default 5)")
    parser.add_argument("--quick", action="store_true",
                        help="few vNICs, one sample of a small flood, no attacks: to see it work")
    parser.add_argument("--rates", type=int, nargs="+", default=[20_000, 50_000],
                        help="packets a second at either end (default 20000 50000)")
    parser.add_argument("--out", type=Path, default=ROOT / "target/bench/limits.json")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.rounds, chosen.rates = 0, [1000]
    return chosen


def main():
    chosen = arguments()
    known, before, started = machine_info.facts(ROOT), machine_info.cpu_times(), time.monotonic()
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    stage, found, errors = Stage(), {}, {}
    vnics, seconds = (QUICK_VNICS, 1) if chosen.quick else (VNICS, SECONDS)
    parts = {"steady": lambda: steady(stage, vnics, seconds),
             "changes": lambda: changes(stage, CHANGES[:1] if chosen.quick else CHANGES),
             "floods": lambda: [flooded(stage, rate, chosen.rounds) for rate in chosen.rates],
             "connections": lambda: connected(stage, chosen.rounds),
             **({} if chosen.quick else {"attacks": lambda: attacked(stage)})}
    try:
        for name, part in parts.items():
            try:
                if chosen.only in name:
                    found[name] = part()
            except Failure as problem:
                errors[name] = str(problem)
    finally:
        stage.close()
        process.end_descendants()
    known["stolen_by_other_machines"] = machine_info.stolen_since(before)
    chosen.out.write_text(json.dumps({"machine": known, "seconds": time.monotonic() - started,
                                      **found, "errors": errors}, indent=1) + "\n")
    print(*machine_info.lines(known), sep="\n")
    print(f"stolen by other virtual machines: {known['stolen_by_other_machines']:.1%}\n")
    print(*lines(found), sep="\n")
    print(f"Details: {chosen.out}")
    for name, problem in errors.items():
        print(f"bench: {name} not measured: {problem}", file=sys.stderr)
    return 1 if errors else 0


if __name__ == "__main__":
    process.become_subreaper()
    try:
        sys.exit(main())
    except Failure as problem:
        process.end_descendants()
        sys.exit(f"bench: {problem}")
