"""Defines what is measured, and which results are good enough.

A Measurement knows how to take one sample with a given number of iterations; the driver decides
how often and in which order. Samples are in base units: ns, messages a second, bytes a second."""
import contextlib
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Callable

import program_runs
from program_runs import Failure, Pair

SMALL = 8
LARGE = 1 << 20
# Seconds one sample should take; the first, discarded sample finds out how many iterations.
SAMPLE = 0.35
# Seconds that starting two programs and their handshake take.
START = 0.3


@dataclass
class Measurement:
    key: str
    label: str
    unit: str                       # "ns", "msg/s", "/s", "B/s" or "times"
    sample: Callable[[int], float]
    iterations: int = 5000
    limits: tuple = (2000, 20_000_000)
    size: int = SMALL
    samples: list = field(default_factory=list)
    error: str = ""

    def adapt(self, value, wall):
        """Chooses the iterations of the next sample from the value of this one.

        A run that took much longer than its value says (connections are set up, pages are moved on
        a machine that has other things to do) is shortened, but no further than it was too long:
        what happens once must not become the whole of what is measured.
        """
        seconds = {"ns": 2e-9 * value, "B/s": self.size / value}.get(self.unit, 1 / value)
        wanted = SAMPLE / seconds
        excess = (wall - START) / (4 * SAMPLE)
        if excess > 1:
            wanted = min(wanted, self.iterations / excess)
        low, high = self.limits
        self.iterations = int(min(max(wanted, low), high))


def sample_all(items, rounds, failures, setup=0.0):
    """Interleaved rounds; round 0 warms up and finds the iterations. `failures` are what a sample
    may raise, `setup` the seconds that connecting takes beyond START. No rounds: one sample each,
    as short as may be (`--quick`).

    Every other round goes backwards: what is measured right after something heavy, or right after
    a rest, is slower or faster for that, by a third where four threads share two processors."""
    for item in items if rounds == 0 else ():
        item.iterations = item.limits[0]
    for number in range(rounds + 1):
        started = time.monotonic()
        for item in items if number % 2 else reversed(items):
            # Nothing is asked again that could not be done at all.
            if item.error and number > 1 and not item.samples:
                continue
            begun = time.monotonic()
            try:
                value = item.sample(item.iterations)
                item.adapt(value, time.monotonic() - begun - setup)
                if number or rounds == 0:
                    item.error = item.error if item.samples else ""  # not the warm-up's
                    item.samples.append(value)
            except failures as failure:
                item.error = str(failure).split("\n", 1)[0] or type(failure).__name__
        name = f"round {number} of {rounds}" if number else "warm-up"
        print(f"{name}: {time.monotonic() - started:.0f} s", file=sys.stderr)


def perftest_plan(prefix, label, pair, tsc):
    """perftest's programs as a user runs them, no option that changes the data path."""
    def lat(program, *options):
        return lambda n: program_runs.perftest_lat(pair, program, SMALL, n, tsc, *options)

    def rate(program, *options):
        return lambda n: program_runs.perftest_bw(pair, program, SMALL, n, *options)[0]

    def width(program):
        return lambda n: program_runs.perftest_bw(pair, program, LARGE, n)[1]

    def of(key, text, unit, sample, **more):
        return Measurement(f"{prefix}_{key}", f"{label} {text}", unit, sample, **more)

    large = {"iterations": 3000, "limits": (200, 100_000), "size": LARGE}
    latency = {"limits": (2000, 1_000_000)}
    return [
        of("write_lat", "ib_write_lat 8 B", "ns", lat("ib_write_lat"), **latency),
        of("send_lat", "ib_send_lat 8 B", "ns", lat("ib_send_lat"), **latency),
        of("read_lat", "ib_read_lat 8 B", "ns", lat("ib_read_lat"), **latency),
        of("atomic_lat", "ib_atomic_lat", "ns", lat("ib_atomic_lat"), **latency),
        of("ud_lat", "ib_send_lat 8 B, UD", "ns", lat("ib_send_lat", "-c", "UD"), **latency),
        of("write_rate", "ib_write_bw 8 B", "msg/s", rate("ib_write_bw"), iterations=500_000),
        of("send_rate", "ib_send_bw 8 B", "msg/s", rate("ib_send_bw"), iterations=50_000),
        of("read_rate", "ib_read_bw 8 B", "msg/s", rate("ib_read_bw"), iterations=500_000),
        of("ud_rate", "ib_send_bw 8 B, UD", "msg/s", rate("ib_send_bw", "-c", "UD"),
           iterations=50_000),
        of("write_1m", "ib_write_bw 1 MiB", "B/s", width("ib_write_bw"), **large),
        of("send_1m", "ib_send_bw 1 MiB", "B/s", width("ib_send_bw"), **large),
        of("read_1m", "ib_read_bw 1 MiB", "B/s", width("ib_read_bw"), **large),
    ]


def exact_plan(pair, tsc):
    """perftest's WRITE between two vNICs that do not trust each other; nothing is demanded."""
    name = "Omniverb, two vNICs, exact: "
    return [
        Measurement("exact_write_lat", name + "WRITE 8 B", "ns",
                    lambda n: program_runs.perftest_lat(pair, "ib_write_lat", SMALL, n, tsc),
                    iterations=1000, limits=(500, 20_000)),
        Measurement("exact_write_rate", name + "8 B", "msg/s",
                    lambda n: program_runs.perftest_bw(pair, "ib_write_bw", SMALL, n)[0],
                    iterations=20_000, limits=(2000, 1_000_000)),
        Measurement("exact_write_1m", name + "1 MiB", "B/s",
                    lambda n: program_runs.perftest_bw(pair, "ib_write_bw", LARGE, n)[1],
                    iterations=200, limits=(200, 10_000), size=LARGE),
    ]


def null_plan(library, cpus, tsc):
    """perftest on the null device: how fast perftest itself is."""
    pair = Pair(cpus, {"LD_LIBRARY_PATH": str(library.parent)})
    echo = Pair(cpus, {"LD_LIBRARY_PATH": str(library.parent)},
                ({"NULL_VERBS_ECHO": "server"}, {"NULL_VERBS_ECHO": "client"}))
    latency = {"limits": (2000, 1_000_000)}
    rate = {"iterations": 1_000_000}
    name = "perftest alone, "
    return [
        Measurement("null_write_lat", name + "ib_write_lat 8 B", "ns",
                    lambda n: program_runs.perftest_lat(echo, "ib_write_lat", SMALL, n, tsc),
                    **latency),
        Measurement("null_send_lat", name + "ib_send_lat 8 B", "ns",
                    lambda n: program_runs.perftest_lat(pair, "ib_send_lat", SMALL, n, tsc),
                    **latency),
        Measurement("null_write_rate", name + "ib_write_bw 8 B", "msg/s",
                    lambda n: program_runs.perftest_bw(pair, "ib_write_bw", SMALL, n)[0], **rate),
        Measurement("null_send_rate", name + "ib_send_bw 8 B", "msg/s",
                    lambda n: program_runs.perftest_bw(pair, "ib_send_bw", SMALL, n)[0], **rate),
    ]


def ucx_plan(cpus):
    """The peer to beat: UCX over POSIX shared memory."""
    pair = Pair(cpus, {"UCX_TLS": "posix,self", "UCX_WARN_UNUSED_ENV_VARS": "n"})

    def lat(*test):
        return lambda n: program_runs.ucx_lat(pair, SMALL, n, *test)

    def rate(*test):
        return lambda n: program_runs.ucx_bw(pair, SMALL, n, *test)[0]

    def width(*test):
        return lambda n: program_runs.ucx_bw(pair, LARGE, n, *test)[1]

    uct = ("-d", "memory", "-x", "posix")
    large = {"iterations": 3000, "limits": (200, 100_000), "size": LARGE}
    latency = {"limits": (2000, 1_000_000)}
    return [
        Measurement("ucx_put_lat", "UCX put 8 B", "ns", lat("-t", "ucp_put_lat"), **latency),
        Measurement("ucx_tag_lat", "UCX tag 8 B", "ns", lat("-t", "tag_lat"), **latency),
        Measurement("ucx_am_lat", "UCX (UCT) message 8 B", "ns", lat(*uct, "-t", "am_lat"),
                    **latency),
        Measurement("ucx_put_rate", "UCX put 8 B, rate", "msg/s", rate("-t", "ucp_put_bw"),
                    iterations=50_000),
        Measurement("ucx_tag_rate", "UCX tag 8 B, rate", "msg/s", rate("-t", "tag_bw"),
                    iterations=50_000),
        Measurement("ucx_am_rate", "UCX (UCT) message 8 B, rate", "msg/s",
                    rate(*uct, "-t", "am_bw"), iterations=50_000),
        Measurement("ucx_put_1m", "UCX put 1 MiB", "B/s", width("-t", "ucp_put_bw"), **large),
        Measurement("ucx_tag_1m", "UCX tag 1 MiB", "B/s", width("-t", "tag_bw"), **large),
        Measurement("ucx_get_1m", "UCX get 1 MiB", "B/s", width("-t", "ucp_get"), **large),
    ]


def tcp_plan(cpus):
    """What a program without RDMA gets on this machine. qperf counts in whole seconds."""
    pair = Pair(cpus)
    return [
        Measurement("tcp_lat", "TCP 8 B", "ns",
                    lambda n: program_runs.qperf(pair, "tcp_lat", SMALL)),
        Measurement("tcp_rate", "TCP 8 B stream", "msg/s",
                    lambda n: program_runs.qperf(pair, "tcp_bw", SMALL) / SMALL),
        Measurement("tcp_1m", "TCP 1 MiB", "B/s",
                    lambda n: program_runs.qperf(pair, "tcp_bw", LARGE),
                    size=LARGE),
    ]


def said(environment, program, *words, limit=60):
    """What a measuring program of bench/ printed."""
    try:
        answer = subprocess.run([program, *map(str, words)], env=environment, text=True,
                                timeout=limit, capture_output=True)
    except subprocess.TimeoutExpired:
        raise Failure(f"{program.name} hung for {limit} s") from None
    if answer.returncode != 0:
        raise Failure(program_runs.last_line(answer.stderr))
    return answer.stdout


def connect_plan(program, environment):
    """ibv_create_qp to RTS; the two processes share the CPUs as the kernel likes."""
    def sample(_):
        answer = json.loads(said(environment, program, 200, limit=30))
        return answer["create_to_rts_us"]["median"] * 1000
    return [Measurement("omv_connect", "Omniverb ibv_create_qp to RTS", "ns", sample)]


# Of how many processes 100 queue pairs each are brought up at once.
CROWDS = (1, 4, 16)


def crowd_rows(key, name, run):
    """100 queue pairs in each of several processes, all at once: what each of them took, by what
    many_qps_to_rts says (`run`) of so many processes."""
    def sample(processes):
        return lambda _: json.loads(run(processes))["each_us"] * 1000

    return [Measurement(f"{key}_crowd_{count}", f"{name} 100 QPs to RTS, {count} process"
                        f"{'' if count == 1 else 'es'}", "ns", sample(count)) for count in CROWDS]


def crowd_plan(program, environment):
    """The same between processes of this machine."""
    return crowd_rows("omv", "Omniverb", lambda count: said(environment, program, count))


def by_address_plan(environment):
    """1000 connections by rdma_cm, all asked for at once: how many come up in a second."""
    return [Measurement("omv_cmtime", "Omniverb cmtime, 1000 connections", "/s",
                        lambda _: program_runs.cmtime(environment))]


def idle_plan(program, environment):
    """What a poll costs that finds nothing, with few and with many connections."""
    def sample(pairs_, key):
        def run(_):
            return json.loads(said(environment, program, pairs_))[key]
        return run

    return [Measurement(f"omv_idle_{count}_{key}", f"Omniverb empty poll, {count} pairs{after}",
                        "ns", sample(count, f"{key}_ns"))
            for count in (1, 1000) for key, after in (("fresh", ""), ("used", ", used"))]


# What the target's program does, and what the requester's does; see bench/served_write_latency.c.
ATTENTION = [("look", "look"), ("500", "look"), ("500", "sleep"), ("sleep", "look"),
             ("sleep", "sleep"), ("never", "look")]


def attention_plan(program, environment):
    """A WRITE that the target has to serve, by what both programs do meanwhile."""
    def sample(target, requester, **more):
        def run(_):
            told = said({**environment, **more}, program, target, requester, 500)
            return json.loads(told)["median"] * 1000
        return run

    kept = {"OMNIVERB_ADOPTION": "off"}
    says = {"look": "looks", "sleep": "sleeps", "never": "never looks", "500": "looks each 500 us"}
    return [Measurement(f"omv_attention_{target}_{requester}",
                        f"Omniverb mediated WRITE, target {says[target]}, requester "
                        f"{says[requester]}", "ns", sample(target, requester, **kept))
            for target, requester in ATTENTION] + [
                Measurement("omv_attention_apart", "Omniverb mediated WRITE, both look, in "
                            "containers", "ns", sample("look", "look", SEPARATE="1"))]


# MiB of a region that is registered, mapped by a peer and given back.
REGISTERED = 1024


def registration_plan(program, environment):
    """What a region that a peer maps costs its owner; all of it is found out by one run."""
    results = {}

    def sample(name):
        def run(_):
            # Each of a run's results is taken once.
            if name not in results:
                with memory_cgroup() as folder:
                    results.update(json.loads(said({**environment, "OWNER_CGROUP": folder}, program,
                                                   REGISTERED)))
            return results.pop(name) * (1e6 if name.endswith("_ms") else 1)
        return run

    label = f"Omniverb, a region of {REGISTERED} MiB"
    rows = [("register_ms", "register"), ("map_ms", "until all is mapped"), ("fork_ms", "fork"),
            ("deregister_ms", "deregister"), ("resident", "resident at most, to its size")]
    with memory_cgroup() as folder:
        if folder:
            rows.append(("charged", "charged at most, to its size"))
    return [Measurement(f"omv_region_{name.removesuffix('_ms')}", f"{label}: {text}",
                        "ns" if name.endswith("_ms") else "times", sample(name))
            for name, text in rows]


@contextlib.contextmanager
def memory_cgroup():
    """The folder of a new memory cgroup without a limit; "" where none can be made."""
    for root, file in (("/sys/fs/cgroup/memory", "memory.max_usage_in_bytes"),
                       ("/sys/fs/cgroup", "memory.peak")):
        folder = Path(root) / f"omniverb-bench-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            if (folder / file).exists():
                yield str(folder)
                return
        finally:
            remove_cgroup(folder)
    yield ""


def remove_cgroup(folder):
    """What ended in it takes a moment to go."""
    for _ in range(50):
        try:
            return folder.rmdir()
        except OSError:
            time.sleep(0.1)


# Which raw limit a measurement is held against. A latency is half a round trip of one line
# (perftest's READ and atomic latencies are whole operations: a whole round trip).
LIMIT_OF = {
    "write_lat": "half", "send_lat": "half", "ud_lat": "half", "put_lat": "half",
    "tag_lat": "half", "am_lat": "half", "lat": "half", "read_lat": "round",
    "atomic_lat": "round", "write_rate": "ring", "send_rate": "ring", "ud_rate": "ring",
    "read_rate": "ring",
    "put_rate": "ring", "tag_rate": "ring", "am_rate": "ring", "rate": "ring",
    "write_1m": "memcpy", "send_1m": "memcpy", "read_1m": "memcpy", "put_1m": "memcpy",
    "tag_1m": "memcpy", "get_1m": "memcpy", "1m": "memcpy",
}

# key: (what is compared, acceptance, goal); "ratio" is to the raw limit, "value" in base units.
THRESHOLDS = {
    "omv_write_lat": ("ratio", 1.5, 1.1),
    "omv_send_lat": ("ratio", 2.0, 1.2),
    "omv_write_rate": ("value", 10e6, 40e6),
    "omv_send_rate": ("value", 10e6, 40e6),
    "omv_write_1m": ("ratio", 0.80, 0.95),
    "omv_send_1m": ("ratio", 0.50, None),
    "omv_connect": ("value", 200e3, None),
}

# The same job done by UCX: the best of these.
PEERS = {
    "omv_write_lat": ["ucx_put_lat"], "omv_send_lat": ["ucx_tag_lat", "ucx_am_lat"],
    "omv_write_rate": ["ucx_put_rate"], "omv_send_rate": ["ucx_tag_rate", "ucx_am_rate"],
    "omv_write_1m": ["ucx_put_1m"], "omv_send_1m": ["ucx_tag_1m"], "omv_read_1m": ["ucx_get_1m"],
}

# The same perftest program on the null device.
ALONE = {
    "omv_write_lat": "null_write_lat", "omv_send_lat": "null_send_lat",
    "omv_write_rate": "null_write_rate", "omv_send_rate": "null_send_rate",
}
