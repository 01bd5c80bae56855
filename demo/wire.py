#!/usr/bin/python3
"""`make demo-wire`: unmodified RDMA programs between containers of two hosts, beside TCP over the
same veth. The hosts are network namespaces of this machine, each with a daemon of its own."""

import os
import sys
import time

from demo import ROOT, RULE, cpu, kernel_rdma, measure, read_options, say, view

sys.path.insert(0, str(ROOT / "tests"))
sys.dont_write_bytecode = True

from harness import duet, process  # noqa: E402
from harness.case import Failure  # noqa: E402
from harness.host import Hosts  # noqa: E402
from harness.staging import Stage  # noqa: E402

# Row: title, perftest's name for the operation, options, columns that apply (see demo.py). A UD
# message has at most 1024 bytes where packets have 1500.
ROWS = [
    ("RC SEND", "send", ["-c", "RC"], (0, 1, 2, 3, 4)),
    ("RC WRITE", "write", ["-c", "RC"], (0, 1, 2, 3, 4)),
    ("RC READ", "read", [], (0, 1, 2, 3, 4)),
    ("RC atomic", "atomic", [], (0, 2)),
    ("UD SEND", "send", ["-c", "UD"], (0, 2)),
]


def main():
    read_options(__doc__)
    if os.geteuid() != 0:
        sys.exit("the demo makes containers: run it as root")
    started = time.monotonic()
    say(RULE)
    say("Omniverb: unmodified RDMA programs between two hosts, over RoCE v2")
    say(RULE)
    say(f"machine     {cpu()}, {os.cpu_count()} CPUs, Linux {os.uname().release}")
    say(f"RDMA here   {kernel_rdma()}")
    stage = Stage(with_programs=False)
    try:
        with Hosts(stage) as hosts:
            describe(hosts)
            view(hosts.server)
            show_path(hosts)
            say(f"\nThe programs and daemons of both hosts share this machine's {os.cpu_count()} "
                "CPUs.")
            measure(hosts, ROWS, 10_000)
    finally:
        stage.close()
        process.end_descendants()
    say(f"\n{time.monotonic() - started:.0f} seconds. The same against raw UDP: make bench")


def describe(hosts):
    """What the two hosts are."""
    say(f"hosts       a and b: network namespaces, joined by a veth of {hosts.a.switch.mtu} bytes;"
        " on each")
    say("            a bridge, a daemon, and one container run by crun, without any privilege")
    say(f"containers  {hosts.server.address} on a, {hosts.client.address} on b")
    say("programs    Debian's ibverbs-utils and perftest, started with `omniverb run --`")


def show_path(hosts):
    """What `omniverb status` says of a connection between the two."""
    running = duet.Duet(hosts, ["ib_send_lat", "-F", "-D", "3"])
    try:
        time.sleep(1.5)
        daemon = hosts.a.daemon
        text = process.run([*daemon.prefix, daemon.stage.dist / "bin" / "omniverb", "status"],
                           env={**os.environ, "OMNIVERB_SOCKET": str(daemon.socket)})
    finally:
        running.abort()
    say("\na$ omniverb status")
    for line in text.splitlines():
        if line.strip():
            say("    " + line)


if __name__ == "__main__":
    try:
        process.become_subreaper()
        main()
    except Failure as failure:
        process.end_descendants()
        sys.exit(f"demo: {failure}")
