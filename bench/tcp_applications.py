#!/usr/bin/env python3
"""Sixth part of `make bench`: programs over TCP, unchanged, with and without carried sockets.

In: dist/, programs of others (those that are not installed are left out, and named); root, since
each run has a network namespace and a daemon of its own. Out: a table on stdout and
target/bench/applications.json. Each round takes one sample of everything, first natively, then
carried, or the other way round. docs/benchmarks.md."""
import argparse
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile
import time
from contextlib import contextmanager, nullcontext
from statistics import median

import machine_info
import report

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
sys.dont_write_bytecode = True

# pylint: disable=wrong-import-position
from cases import carried_sockets  # noqa: E402
from harness import scenarios  # noqa: E402
from harness.case import Failure, Skip  # noqa: E402
from harness.scenarios import (  # noqa: E402
    key_value_stores, postgresql, web_server_chain, web_servers)
from harness.staging import Stage  # noqa: E402

# Seconds of a run that is told how long to last.
SECONDS = 2
MIB = 1 << 20


class Load:
    """A server, what asks it, and what that says of speed."""

    def __init__(self, name, serve, runs, needs):
        self.name, self.serve, self.runs, self.needs = name, serve, runs, needs


def nothing(_):
    """No server that stays."""
    return nullcontext()


def number(pattern, text, times=1.0):
    """What is written there."""
    found = re.search(pattern, text, re.MULTILINE)
    if not found:
        raise Failure(f"no {pattern} in {text[-500:]}")
    return float(found[1]) * times


# ---- streams ----

def nc(place):
    """200 MiB from one to the other, who counts them."""
    size = 200 * MIB
    line = "nc -N -l 127.0.0.1 7001 | wc -c"
    with place.serve(7001, "sh", "-c", line) as running:
        began = time.monotonic()
        place.shell(f"head -c {size} /dev/zero | nc -N 127.0.0.1 7001")
        running.wait(20)
        return {"200 MiB (B/s)": size / (time.monotonic() - began)}


def iperf(*options):
    """Bytes a second as the receiver sees them."""
    def run(place):
        with place.serve(7003, "iperf3", "-s", "-1", "-p", 7003) as server:
            text = place.ask("iperf3", "-c", "127.0.0.1", "-p", 7003, "--json", "-t", SECONDS,
                             *options)
            server.wait(10)
        rate = json.loads(text)["end"]["sum_received"]["bits_per_second"] / 8
        return {" ".join(map(str, options)) + " (B/s)": rate}
    return run


def sockperf(place):
    """Latency of a message and its answer, halved, and of streams of small ones."""
    words = ["--tcp", "-i", "127.0.0.1", "-p", 7004]
    found = {}
    with place.serve(7004, "sockperf", "sr", *words):
        # It has places for so many messages a second, and ends where there are more (600,000 unless
        # it is told).
        text = place.ask("sockperf", "pp", *words, "-m", 14, "-t", SECONDS, "--mps", 5_000_000)
        found["ping-pong p50 (ns)"] = number(r"percentile 50.000 = +([\d.]+)", text, 1e3)
        found["ping-pong p99 (ns)"] = number(r"percentile 99.000 = +([\d.]+)", text, 1e3)
        text = place.ask("sockperf", "tp", *words, "-m", 64, "-t", SECONDS)
        found["64 B (msg/s)"] = number(r"Message Rate is (\d+)", text)
    return found


# ---- stores ----

def redis(connections, pipeline, requests):
    """SET and GET."""
    def run(place):
        text = place.ask("redis-benchmark", "-p", 7010, "-t", "set,get", "-c", connections, "-P",
                         pipeline, "-n", requests, "--csv")
        found = {}
        for name, rate, _, _, middle, *_, high, _ in re.findall(
                r'^"([A-Z]+)","([\d.]+)","([\d.]+)","([\d.]+)","([\d.]+)","([\d.]+)","([\d.]+)",'
                r'"([\d.]+)"', text, re.MULTILINE):
            of = f"{name} -c {connections} -P {pipeline}"
            found |= {f"{of} (/s)": float(rate), f"{of} p50 (ns)": float(middle) * 1e6,
                      f"{of} p99 (ns)": float(high) * 1e6}
        return found
    return run


@contextmanager
def memcached(place):
    """One that is nobody's."""
    with place.serve(7020, "memcached", "-u", "root", "-p", 7020, "-l", "127.0.0.1"):
        yield


def memcaslap(place):
    """GET and SET as it mixes them."""
    text = place.ask("memcaslap", "-s", "127.0.0.1:7020", "-T", 1, "-c", 8, "-t", f"{SECONDS}s")
    return {"memcaslap -c 8 (/s)": number(r"TPS: (\d+)", text)}


# ---- the web ----

@contextmanager
def nginx(place):
    """Files at 7013, and a server before it at 7014."""
    command = web_servers.nginx_configuration(place, web_servers.pages(place), background=False)
    with place.serve(7014, *command):
        yield


def wrk(title, url, connections):
    """Requests a second and their latency."""
    def run(place):
        text = place.ask("wrk", "-t", 1, "-c", connections, "-d", SECONDS, "--latency", url)
        scale = {"us": 1e3, "ms": 1e6, "s": 1e9}
        found = {f"{title} -c {connections} (/s)": number(r"Requests/sec: +([\d.]+)", text)}
        for part in (50, 99):
            value, unit = re.search(rf"^ +{part}% +([\d.]+)(us|ms|s)", text, re.MULTILINE).groups()
            found[f"{title} -c {connections} p{part} (ns)"] = float(value) * scale[unit]
        return found
    return run


@contextmanager
def behind(place):
    """haproxy before two applications of Python before redis."""
    configuration = web_servers.haproxy_configuration(place, [7071, 7072])
    program = [scenarios.PYTHON, "-Bc", web_server_chain.APPLICATION]
    with key_value_stores.served(place), place.serve(7071, *program, 7071), \
            place.serve(7072, *program, 7072), \
            place.serve(7021, "haproxy", "-db", "-f", configuration):
        key_value_stores.cli(place, 7010, "set", "/page", "x" * 100)
        yield


# ---- databases ----

def pgbench(*words):
    """Queries a second."""
    def run(place):
        text = postgresql.pgbench(place, "-n", "-S", "-T", SECONDS, *words)
        return {f"pgbench -S {' '.join(map(str, words))} (/s)": number(r"^tps = ([\d.]+)", text),
                f"pgbench -S {' '.join(map(str, words))} mean (ns)":
                    number(r"^latency average = ([\d.]+)", text, 1e6)}
    return run


LOADS = [
    Load("nc", nothing, [nc], {"nc": "netcat-openbsd"}),
    Load("iperf3", nothing, [iperf(), iperf("-P", 4), iperf("-R"), iperf("-l", "8K")],
         {"iperf3": "iperf3"}),
    Load("sockperf", nothing, [sockperf], {"sockperf": "sockperf"}),
    Load("redis", key_value_stores.served, [redis(1, 1, 20_000), redis(20, 1, 50_000),
                                  redis(1, 16, 100_000)],
         {"redis-server": "redis-server", "redis-benchmark": "redis-tools"}),
    Load("memcached", memcached, [memcaslap],
         {"memcached": "memcached", "memcaslap": "libmemcached-tools"}),
    Load("nginx", nginx, [wrk("file of 100 B", "http://127.0.0.1:7013/small", 1),
                          wrk("file of 100 B", "http://127.0.0.1:7013/small", 16),
                          wrk("file of 30 kB", "http://127.0.0.1:7013/middle", 16),
                          wrk("proxied", "http://127.0.0.1:7014/small", 16)],
         {"nginx": "nginx-light", "wrk": "wrk"}),
    Load("PostgreSQL", postgresql.served,
         [pgbench("-c", 1), pgbench("-c", 8), pgbench("-c", 4, "-C")], postgresql.NEEDS),
    Load("chain", behind, [wrk("chain", "http://127.0.0.1:7021/page", 8)],
         {"haproxy": "haproxy", "wrk": "wrk", "redis-server": "redis-server"}),
]


def take(stage, kept, load, carried):
    """One sample of all that a load has; and how many bytes were carried."""
    with carried_sockets.Carried(stage) as ways:
        place = scenarios.Place(ways, carried, carried, kept)
        found = {}
        with load.serve(place):
            for run in load.runs:
                found |= {f"{load.name} {key}": value for key, value in run(place).items()}
        place.empty()
        bytes_carried = sum(count for _, count in ways.reports())
    shutil.rmtree(ways.folder, ignore_errors=True)
    return found, bytes_carried


def missing(load):
    """Packages that it lacks."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    return sorted({package for name, package in load.needs.items()
                   if not shutil.which(name, path=path)})


def is_time(key):
    """Less is better."""
    return key.endswith("(ns)")


def show(key, value):
    """A value and its unit."""
    return report.show(value, key.rpartition("(")[2][:-1])


def lines(samples, failures):
    """The table: natively, carried, how many times better."""
    yield f"{'':40}  {'natively':>10}  {'carried':>10}  times better"
    for key, (native, carried) in samples.items():
        name = key.rpartition(" (")[0]
        if not native or not carried:
            continue
        one, other = median(native), median(carried)
        better = one / other if is_time(key) else other / one
        worse = "" if better >= 0.97 else "  WORSE"
        yield f"{name:40}  {show(key, one):>10}  {show(key, other):>10}  {better:10.2f}{worse}"
    for name, failure in failures.items():
        yield f"{name}: {failure}"


def main():
    """All of it."""
    parser = argparse.ArgumentParser(description="Measures programs over TCP, carried and not.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true",
                        help="one run of each load, once, to see that it works")
    parser.add_argument("--only", default="", help="only loads whose name contains this")
    parser.add_argument("--first", type=int, help="only so many runs of each load")
    parser.add_argument("--out", type=pathlib.Path,
                        default=ROOT / "target/bench/applications.json")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.rounds, chosen.first = 1, 1
    samples, carried_bytes, failures, left_out = {}, {}, {}, {}
    began, ticks = time.monotonic(), machine_info.cpu_times()
    stage = Stage()
    kept = pathlib.Path(tempfile.mkdtemp(prefix="kept-", dir=stage.path))
    kept.chmod(0o755)
    loads = [load for load in LOADS if chosen.only in load.name]
    for load in loads:
        load.runs = load.runs[:chosen.first]
    try:
        for load in loads:
            if lacks := missing(load):
                left_out[load.name] = f"left out, since there is no {', '.join(lacks)}"
        for turn in range(chosen.rounds):
            for load in loads:
                if load.name in failures or load.name in left_out:
                    continue
                for way in (turn % 2, 1 - turn % 2):
                    try:
                        found, count = take(stage, kept, load, bool(way))
                    except (Failure, Skip) as failure:
                        failures[load.name] = f"{'carried' if way else 'natively'}: {failure}"
                        break
                    for key, value in found.items():
                        samples.setdefault(key, ([], []))[way].append(value)
                    if way:
                        carried_bytes.setdefault(load.name, []).append(count)
            print(f"round {turn + 1} of {chosen.rounds}: {time.monotonic() - began:.0f} s",
                  file=sys.stderr)
    finally:
        stage.close()
    known = {**machine_info.facts(ROOT),
             "stolen_by_other_machines": machine_info.stolen_since(ticks)}
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps({"machine": known, "samples": samples, "carried bytes":
                                      carried_bytes, "failures": failures}, indent=1) + "\n")
    print(*machine_info.lines(known), sep="\n")
    print(*lines(samples, {**left_out, **failures}), sep="\n")
    for name, counts in carried_bytes.items():
        print(f"bytes carried, {name}: {median(counts):.0f}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
