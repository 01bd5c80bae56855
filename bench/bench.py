#!/usr/bin/env python3
"""`make bench`: Omniverb against the raw limits of this machine, UCX and TCP, in one run.

In: the built library and daemon (dist/), omniverb-limits, the programs installed here. Out: a
table on stdout and target/bench/bench.json. Every round takes one sample of everything, so that
a disturbance hits all alike. A missed threshold is shown, it does not fail the run; an Omniverb
measurement that could not be taken does. See docs/benchmarks.md.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import compare_builds
import exact_adoption
import machine_info
import measurement_plan as plan
import report
import carried_sockets
from program_runs import Failure, Pair, compiled

sys.path.insert(0, str(Path(__file__).resolve().parent / "null_verbs"))
import build as null_verbs

ROOT = Path(__file__).resolve().parent.parent


def arguments():
    parser = argparse.ArgumentParser(description="Measures Omniverb against the machine's limits.")
    parser.add_argument("--rounds", type=int, default=5, help="samples of everything (default 5)")
    parser.add_argument("--quick", action="store_true",
                        help="one short sample of everything, to see that it works")
    parser.add_argument("--only", default="", help="measure only keys that contain this text")
    parser.add_argument("--pin", default="auto", help='"0,1", "auto" or "none" (default auto)')
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="what to measure")
    parser.add_argument("--against", type=Path, metavar="DIST",
                        help="another build: measure both, and nothing but Omniverb")
    parser.add_argument("--limits", type=Path, help="the omniverb-limits program")
    parser.add_argument("--out", type=Path, default=ROOT / "target/bench/bench.json")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.rounds = 0
    elif chosen.rounds < 1:
        parser.error("--rounds must be at least 1")
    return chosen


def tell(text):
    """Progress: one changing line on a terminal, nothing but the rounds elsewhere."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{text}")
        sys.stderr.flush()


def take_limits(program, pin, milliseconds=100):
    """One sample of each raw limit: (CPUs used, {name: value})."""
    answer = subprocess.run(
        [program, "--json", "--repeats", "1", "--milliseconds", str(milliseconds), "--pin", pin],
        capture_output=True, text=True, timeout=60)
    if answer.returncode != 0:
        raise Failure(answer.stderr.strip() or "omniverb-limits failed")
    told = json.loads(answer.stdout)
    return told["pin"], {name: row["median"] for name, row in told["limits"].items()}


def start_daemon(dist, folder, stack):
    """A daemon of our own, so that nothing but this build is measured; its socket."""
    # The folder for operators is made beside that of the socket.
    socket = folder / "daemon" / "omniverbd.sock"
    socket.parent.mkdir()
    log = stack.enter_context(open(folder / "omniverbd.log", "w+"))
    settings = folder / "omniverbd.toml"
    settings.write_text('sockets = true\nadoption = "exact"\n')
    line = [dist / "bin/omniverbd", "--socket", socket]
    # Another build's may not know this.
    said = subprocess.run([dist / "bin/omniverbd", "--config", settings, "--socket",
                                folder / "no/such/folder"], capture_output=True, text=True,
                               timeout=10, check=False).stderr
    if "unknown field" not in said:
        line += ["--config", settings]
    daemon = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=log,
                              stderr=subprocess.STDOUT)

    def stop():
        daemon.terminate()
        try:
            daemon.wait(5)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
    stack.callback(stop)
    deadline = time.monotonic() + 5
    while not socket.exists():
        if daemon.poll() is not None or time.monotonic() > deadline:
            log.seek(0)
            raise Failure(f"omniverbd did not start: {log.read().strip()}")
        time.sleep(0.01)
    return socket


def omniverb_plan(dist, folder, cpus, tsc, stack):
    """What is measured of a build, with a daemon of it."""
    folder.mkdir(exist_ok=True)
    library = dist / "lib/libibverbs.so.1"
    if not library.exists():
        raise Failure(f"{library} is missing (make build)")
    socket = start_daemon(dist, folder, stack)
    variables = {"LD_LIBRARY_PATH": str(library.parent), "OMNIVERB_SOCKET": str(socket)}
    connect, crowd, idle, attention, registration, streams, copies = (
        compiled(name, folder) for name in (
            "qp_to_rts", "many_qps_to_rts", "idle_poll", "served_write_latency",
            "registration_cost", "stream_throughput", "large_message_copies"))
    environment = {**os.environ, **variables}
    strangers = exact_adoption.pair(cpus, variables, stack)
    return (plan.perftest_plan("omv", "Omniverb", Pair(cpus, variables), tsc)
            + plan.connect_plan(connect, environment) + plan.crowd_plan(crowd, environment)
            + plan.by_address_plan(environment) + plan.idle_plan(idle, environment)
            + plan.attention_plan(attention, environment)
            + plan.registration_plan(registration, environment)
            + carried_sockets.plan(streams, dist, environment) + carried_sockets.copies_plan(copies)
            + (plan.exact_plan(strangers, tsc) if strangers else []))


def sample_all(measurements, limits_program, pin, rounds):
    """Interleaved rounds. Round 0 warms up and finds the iterations; its samples are dropped. No
    rounds: one sample each, as short as may be."""
    limits, is_quick = {}, rounds == 0
    for item in measurements if is_quick else ():
        item.iterations = item.limits[0]
    for number in range(rounds + 1):
        started = time.monotonic()
        _, values = take_limits(limits_program, pin, 10 if is_quick else 100)
        if number or is_quick:
            for name, value in values.items():
                limits.setdefault(name, []).append(value)
        for item in measurements:
            # Nothing is asked again that could not be done at all.
            if item.error and (number == 1 or not item.samples):
                continue
            tell(f"round {number} of {rounds}: {item.label}")
            begun = time.monotonic()
            try:
                value = item.sample(item.iterations)
                if value <= 0:
                    raise Failure("too fast to measure" if item.unit == "ns" else "no result")
                item.adapt(value, time.monotonic() - begun)
                if number or is_quick:
                    item.samples.append(value)
            except Failure as failure:
                item.error = str(failure)
        tell("")
        name = f"round {number} of {rounds}" if number else "warm-up"
        print(f"{name}: {time.monotonic() - started:.0f} s", file=sys.stderr)
    return {name: report.summary(samples) for name, samples in limits.items()}


def gather(chosen, folder, stack):
    """Everything that can be measured here, and what cannot."""
    limits_program = chosen.limits or chosen.dist / "bin/omniverb-limits"
    pin, _ = take_limits(limits_program, chosen.pin, milliseconds=10)
    cpus = None if pin == "none" else [int(cpu) for cpu in pin.split(",")]
    tsc = machine_info.tsc_mhz()
    notes = []
    measurements = []
    try:
        measurements += omniverb_plan(chosen.dist, folder, cpus, tsc, stack)
        if chosen.against:
            measurements = compare_builds.both(
                measurements, omniverb_plan(chosen.against, folder / "other", cpus, tsc, stack))
    except (Failure, OSError, subprocess.CalledProcessError) as failure:
        notes.append(f"Omniverb was not measured: {failure}")
    if not chosen.against:
        try:
            library = null_verbs.build(chosen.out.parent / "null_verbs")
            measurements += plan.null_plan(library, cpus, tsc)
        except (OSError, subprocess.CalledProcessError) as failure:
            notes.append(f"perftest alone was not measured: {failure}")
        measurements += plan.ucx_plan(cpus) + plan.tcp_plan(cpus)
    measurements = [item for item in measurements if chosen.only in item.key]
    return limits_program, pin, measurements, notes


def main():
    chosen = arguments()
    known = machine_info.facts(ROOT)
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    started, before = time.monotonic(), machine_info.cpu_times()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="omniverb-bench-")))
        try:
            program, pin, measurements, notes = gather(chosen, folder, stack)
            limits = sample_all(measurements, program, pin, chosen.rounds)
        except (Failure, OSError) as failure:
            print(f"bench: {failure}", file=sys.stderr)
            return 1
    known["stolen_by_other_machines"] = machine_info.stolen_since(before)
    rows = report.results(measurements, limits)
    chosen.out.write_text(json.dumps(
        {"machine": known, "pin": pin, "rounds": chosen.rounds, "notes": notes,
         "seconds": time.monotonic() - started, "raw": limits, "results": rows}, indent=1) + "\n")
    print(*machine_info.lines(known), sep="\n")
    print(f"CPUs of the two processes: {pin}; rounds: {chosen.rounds}; stolen by other virtual "
          f"machines: {known['stolen_by_other_machines']:.1%}\n")
    print(*report.limit_lines(limits), sep="\n")
    print()
    print(*report.result_lines(rows), sep="\n")
    print()
    for line in [*report.perftest_lines(rows), *notes]:
        print(line)
    if chosen.against:
        print(*compare_builds.lines(rows), sep="\n")
    print("Both processes run on this one machine: these are not numbers of RDMA hardware.")
    print(f"Details: {chosen.out}")
    ours = ("omv_", "exact_", compare_builds.OTHER)
    # One short sample may be beyond anything.
    failed = [key for key, row in rows.items() if key.startswith(ours) and "error" in row
              and not (chosen.quick and "median" in row)]
    if failed or notes:
        print(f"bench: not (well) measured: {', '.join(failed) or notes[0]}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
