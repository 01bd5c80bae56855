#!/usr/bin/python3
"""`make demo`: unmodified RDMA programs between two containers, beside TCP between the same two."""

import argparse
import os
import pathlib
import re
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
sys.dont_write_bytecode = True

from harness import duet, process  # noqa: E402
from harness.case import Failure  # noqa: E402
from harness.containers import Pair  # noqa: E402
from harness.staging import Stage  # noqa: E402

RULE = "-" * 80

# Columns: two latencies in us, millions of messages a second, two bandwidths in GB/s.
HEADINGS = ["8 B", "4 KiB", "8 B", "64 KiB", "1 MiB"]
SIZES = [8, 4096, 8, 65536, 1 << 20]
# A datagram of 4 KiB has to fit; TCP likes large packets, too.
MTU = 9000

# Row: title, perftest's name for the operation, options, columns that apply.
ROWS = [
    ("RC SEND", "send", ["-c", "RC"], (0, 1, 2, 3, 4)),
    ("RC WRITE", "write", ["-c", "RC"], (0, 1, 2, 3, 4)),
    ("RC READ", "read", [], (0, 1, 2, 3, 4)),
    ("RC atomic", "atomic", [], (0, 2)),
    ("UD SEND", "send", ["-c", "UD"], (0, 1, 2)),
]

# perftest's WRITEs go to memory that may be written from afar but not read. No page protection says
# that, so they are mapped only where both vNICs trust each other; by default ("exact") the target's
# process carries them out. Here both containers are one operator's.
CONFIGURATION = 'adoption = "trusting"\n'
EXACT = [("RC WRITE, exact", "write", ["-c", "RC"], (0, 1, 2, 3, 4))]
EXACT_ITERATIONS = 2_000


# How long one bandwidth is measured, in perftest's words, and one figure of TCP, in seconds.
LENGTH, SECONDS = ["-D", "2"], 2
# Iterations of a latency.
ITERATIONS = 100_000


def read_options(about):
    """Those of each demo of this table."""
    global LENGTH, SECONDS, ITERATIONS
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--quick", action="store_true", help="shorter measurements, to see it work")
    if parser.parse_args().quick:
        LENGTH, SECONDS, ITERATIONS = ["-n", "2000"], 1, 500


def main():
    read_options(__doc__)
    if os.geteuid() != 0:
        sys.exit("the demo makes containers: run it as root")
    started = time.monotonic()
    say(RULE)
    say("Omniverb: unmodified RDMA programs between two containers of one host")
    say(RULE)
    say(f"host        {cpu()}, {os.cpu_count()} CPUs, Linux {os.uname().release}")
    say(f"RDMA here   {kernel_rdma()}")
    stage = Stage(with_programs=False)
    try:
        file = stage.folder("configuration") / "omniverbd.toml"
        file.write_text(CONFIGURATION)
        with Pair(stage, mtu=MTU, daemon_arguments=["--config", file]) as pair:
            describe(pair)
            for container in pair.containers:
                view(container)
            tcp = measure(pair, ROWS, ITERATIONS)
        with Pair(stage, mtu=MTU) as pair:
            fill(pair, EXACT, min(EXACT_ITERATIONS, ITERATIONS), tcp)
        say("\nexact: the default, for tenants that do not trust each other. perftest's targets of")
        say("WRITE may not be read from afar, which page protection cannot express; so the")
        say("target's process places the data, woken for it. SEND and READ are as above.")
    finally:
        stage.close()
        process.end_descendants()
    say(f"\n{time.monotonic() - started:.0f} seconds. The same against the raw limits of this "
        "machine: make bench")


def describe(pair):
    """What the two containers are."""
    one, two = pair.server, pair.client
    say(f"containers  {one.hostname} ({one.address}) and {two.hostname} ({two.address}), "
        "run by crun;")
    say("            own net, mount, pid, ipc and uts namespaces, joined by veth and a bridge")
    say(f"            with an MTU of {MTU};")
    say('            of one operator, who lets them trust each other: adoption = "trusting";')
    say("            no device, no added capability, 64 KiB of memlock, seccomp filter")
    say("programs    Debian's ibverbs-utils and perftest, started with `omniverb run --`")


def view(container):
    """The device as a tenant sees it."""
    text = container.run("ibv_devinfo", "-v")
    keep = ("hca_id", "transport", "node_guid", "max_mr_size", "max_qp:", "state", "active_mtu",
            "link_layer", "GID[")
    say(f"\n{container.hostname}$ ibv_devinfo -v   (some lines of it)")
    for line in text.splitlines():
        if any(word in line for word in keep):
            say("    " + re.sub(r"\s+", " ", line.strip()).replace(": ", ":\t", 1).expandtabs(24))


def measure(pair, rows, most):
    """Fills the table cell by cell, with at most so many iterations; returns the row of TCP."""
    say("\nBoth sides poll, so each keeps one CPU busy; TCP sleeps in the kernel. Latency")
    say("is half a round trip, for READ and atomics a whole one. The factor says how")
    say("many times better than TCP it is.\n")
    say(f"{'':15}{'latency, us':>13}{'':13}{'messages, M/s':>15}{'bandwidth, GB/s':>20}")
    row("", (text_cell(heading) for heading in HEADINGS))
    tcp = []
    row("TCP", (tcp_cell(pair, column, tcp) for column in range(len(SIZES))))
    fill(pair, rows, min(most, ITERATIONS), tcp)
    return tcp


def fill(pair, rows, iterations, tcp):
    """Prints rows, beside what TCP had."""
    for title, verb, options, columns in rows:
        row(title, (cell(pair, verb, options, column, tcp, iterations) if column in columns
                    else text_cell("-") for column in range(len(SIZES))))


def row(title, cells):
    """Prints a row, each cell as soon as it is known."""
    print(f"{title:15}", end="", flush=True)
    for text in cells:
        print(text, end="", flush=True)
    print(flush=True)


def text_cell(value, factor=""):
    """13 columns of the table."""
    return f"{value:>7}{factor:>6}"


def cell(pair, verb, options, column, tcp, iterations):
    """One measurement and its factor over TCP."""
    value = perftest(pair, verb, options, column, iterations)
    factor = tcp[column] / value if column < 2 else value / tcp[column]
    return text_cell(number(value), f"{factor:.{1 if factor < 9.95 else 0}f}x")


def perftest(pair, verb, options, column, iterations):
    """Typical latency in us, messages in millions a second, or GB a second."""
    size = ["-s", str(SIZES[column])] if verb != "atomic" else []
    if column < 2:
        outcome = duet.run(pair, f"ib_{verb}_lat", "-F", "-n", str(iterations), *size, *options)
        return only_row(outcome.client, 6)[4]
    text = duet.run(pair, f"ib_{verb}_bw", "-F", *LENGTH, *size, *options).client
    mebibytes, messages = only_row(text, 5)[3:5]
    return messages if column == 2 else mebibytes * 1048576 / 1e9


def only_row(text, columns):
    """The one row of a perftest table."""
    table = duet.rows(text, columns)
    if len(table) != 1:
        raise Failure(f"cannot read this output of perftest:\n{text}")
    return next(iter(table.values()))


_UNITS = {"ns": 1e-3, "us": 1, "ms": 1e3, "bytes/sec": 1e-9, "KB/sec": 1e-6, "MB/sec": 1e-3,
          "GB/sec": 1}


def tcp_cell(pair, column, tcp):
    """The same over TCP, by qperf: us, millions of 8 B sends a second, GB a second."""
    tcp.append(tcp_value(pair, column))
    return text_cell(number(tcp[column]))


def tcp_value(pair, column):
    """One measurement over TCP."""
    if column == 0:
        pair.server.start("qperf", plain=True)
        process.until(lambda: process.listens(pair.server.pid, 19765), 5, "qperf to listen")
    test = "tcp_lat" if column < 2 else "tcp_bw"
    text = pair.client.run("qperf", pair.server.address, "-t", SECONDS, "-m", SIZES[column], test,
                           plain=True)
    found = re.search(r"(?:latency|bw)\s*=\s*([\d.,]+) (\S+)", text)
    if not found or found.group(2) not in _UNITS:
        raise Failure(f"cannot read this output of qperf:\n{text}")
    value = float(found.group(1).replace(",", "")) * _UNITS[found.group(2)]
    return value if column != 2 else value * 1e9 / 8 / 1e6


def number(value):
    """Three significant digits or so."""
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def cpu():
    """The name of the processor."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        for line in file:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return os.uname().machine


def kernel_rdma():
    """What the kernel itself offers."""
    try:
        devices = os.listdir("/sys/class/infiniband")
    except FileNotFoundError:
        devices = []
    return "kernel devices: " + (", ".join(devices) if devices else "none")


def say(text):
    print(text, flush=True)


if __name__ == "__main__":
    try:
        process.become_subreaper()
        main()
    except Failure as failure:
        process.end_descendants()
        sys.exit(f"demo: {failure}")
