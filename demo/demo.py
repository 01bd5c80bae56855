#!/usr/bin/python3
"""Implements `make demo`: unmodified RDMA programs between two containers, beside TCP."""

import os
import pathlib
import re
import sys
import time

from report import RULE, Reasons, fact, paragraph, quiet, read_options, say, shell

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))
sys.dont_write_bytecode = True

from harness import client_server, process  # noqa: E402
from harness.case import Failure  # noqa: E402
from harness.containers import Pair  # noqa: E402
from harness.staging import Stage  # noqa: E402

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

EXACT_TITLE = "RC WRITE, exact"
# perftest's WRITEs go to memory that may be written from afar but not read. No page protection says
# that, so they are mapped only where both vNICs trust each other; by default ("exact") the target's
# process carries them out. Here both containers are one operator's.
CONFIGURATION = 'adoption = "trusting"\n'
EXACT = [(EXACT_TITLE, "write", ["-c", "RC"], (0, 1, 2, 3, 4))]
EXACT_ITERATIONS = 2_000
WHY_EXACT = ("the default, for tenants that do not trust each other. perftest's target may be "
             "written from afar but not read, which page protection cannot express: so the "
             "target's process places the data, and is woken for it. SEND and READ are as above.")


# Seconds that one bandwidth is measured, and one figure of TCP; or so many bytes, but no more
# messages than that, if it is to be quick.
SECONDS, QUICK_BYTES, QUICK_MESSAGES = 2, 32 << 20, 2000
IS_QUICK = False
# Iterations of a latency.
ITERATIONS = 100_000


def begin(about):
    """Reads the options of a demo of this table; gives what will know why figures are bad."""
    global IS_QUICK, SECONDS, ITERATIONS
    IS_QUICK = is_quick = read_options(about)
    if is_quick:
        SECONDS, ITERATIONS = 1, 500
    if os.geteuid() != 0:
        sys.exit("the demo makes containers: run it as root")
    return Reasons(is_quick)


def main():
    reasons = begin(__doc__)
    started = time.monotonic()
    say(RULE)
    say("Omniverb: unmodified RDMA programs between two containers of one host")
    say(RULE)
    paragraph("Debian's perftest between two containers that have no RDMA hardware, no kernel "
              "module and no privilege, beside TCP between the same two.")
    say()
    say_host()
    stage = Stage(with_programs=False)
    try:
        file = stage.folder("configuration") / "omniverbd.toml"
        file.write_text(CONFIGURATION)
        with Pair(stage, mtu=MTU, daemon_arguments=["--config", file]) as pair:
            describe(pair)
            view(pair.server)
            found = measure(pair, ROWS, ITERATIONS, reasons)
        with Pair(stage, mtu=MTU) as pair:
            fill(pair, EXACT, min(EXACT_ITERATIONS, ITERATIONS), found, reasons)
        reasons.say([(EXACT_TITLE, WHY_EXACT)])
        conclude(found, "between two containers of one host: the data goes through shared memory.")
    finally:
        stage.close()
        process.end_descendants()
    say(f"\n{time.monotonic() - started:.0f} seconds. The same against the raw limits of this "
        "machine: make bench")


def say_host():
    """What it runs on."""
    fact("host", f"{cpu()}, {os.cpu_count()} CPUs, Linux {os.uname().release}; {kernel_rdma()}")


def conclude(found, what):
    """What the table says, in words."""
    tcp = found["TCP"]
    write, read = found.get("RC WRITE", {}), found.get("RC READ", {})
    say()
    paragraph(f"So: programs that know nothing of Omniverb do RDMA {what}")
    if {0, 4} <= write.keys() and 4 in read:
        paragraph(f"In this run a WRITE of 8 B took {number(write[0])} us, and 8 B by TCP "
                  f"{number(tcp[0])} us; 1 MiB was written at {number(write[4])} GB/s and read at "
                  f"{number(read[4])} GB/s, and sent by TCP at {number(tcp[4])} GB/s. These are "
                  "figures of this machine's memory, and none of RDMA hardware.")


def describe(pair):
    """What the two containers are."""
    one, two = pair.server, pair.client
    fact("containers", f"{one.hostname} ({one.address}) and {two.hostname} ({two.address}), run by "
                       "crun, with namespaces of their own, no device, no added capability, 64 KiB "
                       f"of memlock and a seccomp filter; joined by veth and a bridge, MTU {MTU}")
    fact("trust", 'one operator\'s, who lets them trust each other: adoption = "trusting"')
    fact("programs", "Debian's ibverbs-utils and perftest, started with `omniverb run --`; TCP is "
                     "measured by qperf")


def view(container):
    """The device as a tenant sees it: some lines."""
    text = container.run("ibv_devinfo", "-v")
    keep = ("hca_id", "max_qp:", "state:", "active_mtu", "link_layer", "GID[")
    lines = [line.strip() for line in text.splitlines() if any(word in line for word in keep)]
    shell(container.hostname, "ibv_devinfo -v | grep -E 'hca_id|max_qp:|state:|mtu|layer|GID'",
          [re.sub(r"\s+", " ", line).replace(": ", ":\t", 1).expandtabs(24) for line in lines
           if "phys" not in line])


def measure(pair, rows, most, reasons):
    """Fills the table cell by cell, with at most so many iterations; returns the figures by row."""
    say()
    paragraph("Latency is half a round trip, for READ and atomics a whole one. The factor says how "
              "many times better than TCP it is: above 1x RDMA is better. Both ends of RDMA "
              "poll, so each keeps a CPU busy.")
    say()
    say(f"{'':15}{'latency, us':>13}{'':13}{'messages, M/s':>15}{'bandwidth, GB/s':>20}")
    row("", (text_cell(heading) for heading in HEADINGS))
    tcp = []
    row("TCP", (tcp_cell(pair, column, tcp) for column in range(len(SIZES))))
    found = {"TCP": tcp}
    fill(pair, rows, min(most, ITERATIONS), found, reasons)
    return found


def fill(pair, rows, iterations, found, reasons):
    """Prints rows, beside what TCP had."""
    for title, verb, options, columns in rows:
        figures = found[title] = {}

        def text(column, title=title, verb=verb, options=options, figures=figures):
            value = figures[column] = perftest(pair, verb, options, column, iterations)
            tcp = found["TCP"][column]
            times = tcp / value if column < 2 else value / tcp
            reasons.see(title, f"{HEADINGS[column]} {'latency' if column < 2 else 'rate'}", times)
            return text_cell(number(value), f"{times:.{1 if times < 9.95 else 0}f}x")
        row(title, (text(column) if column in columns else text_cell("-")
                    for column in range(len(SIZES))))


def row(title, cells):
    """Prints a row, each cell as soon as it is known."""
    say(f"{title:15}", end="")
    for text in cells:
        say(text, end="")
    say()


def text_cell(value, factor=""):
    """13 columns of the table."""
    return f"{value:>7}{factor:>6}"


def perftest(pair, verb, options, column, iterations):
    """Typical latency in us, messages in millions a second, or GB a second."""
    size = ["-s", str(SIZES[column])] if verb != "atomic" else []
    if column < 2:
        outcome = client_server.run(pair, f"ib_{verb}_lat", "-F", "-n", str(iterations), *size,
                                    *options)
        return only_row(outcome.client, 6)[4]
    length = ["-D", str(SECONDS)]
    if IS_QUICK:
        length = ["-n", str(min(QUICK_MESSAGES, QUICK_BYTES // SIZES[column]))]
    text = client_server.run(pair, f"ib_{verb}_bw", "-F", *length, *size, *options).client
    mebibytes, messages = only_row(text, 5)[3:5]
    return messages if column == 2 else mebibytes * 1048576 / 1e9


def only_row(text, columns):
    """The one row of a perftest table."""
    table = client_server.rows(text, columns)
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
    return f"the kernel has RDMA devices: {', '.join(devices)}" if devices else \
        "the kernel has no RDMA device, and none is needed"


if __name__ == "__main__":
    try:
        process.become_subreaper()
        with quiet():
            main()
    except Failure as failure:
        process.end_descendants()
        sys.exit(f"demo: {failure}")
