#!/usr/bin/python3
"""Implements `make demo-wire`: unmodified RDMA programs between containers of two hosts, beside
TCP.

The hosts are network namespaces of this machine, each with a daemon of its own."""

import os
import re
import sys
import time

from demo import ROOT, begin, conclude, measure, say_host, view
from report import RULE, fact, paragraph, quiet, say, shell

sys.path.insert(0, str(ROOT / "tests"))
sys.dont_write_bytecode = True

from harness import client_server, process  # noqa: E402
from harness.case import Failure  # noqa: E402
from harness.simulated_host import Hosts  # noqa: E402
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


WHY = ("both ends and both daemons share this machine's {cpus} processors, and TCP passes a veth "
       "in pieces of up to 64 KiB that no cable carries, where each packet of RoCE v2 has 1 KiB")


def main():
    reasons = begin(__doc__)
    started = time.monotonic()
    say(RULE)
    say("Omniverb: unmodified RDMA programs between two hosts, over RoCE v2")
    say(RULE)
    paragraph("Debian's perftest between containers of two hosts, each a set of network namespaces "
              "with a daemon of its own: RDMA travels as RoCE v2 packets. TCP goes over the same "
              "veth.")
    say()
    say_host()
    stage = Stage(with_programs=False)
    try:
        with Hosts(stage) as hosts:
            describe(hosts)
            view(hosts.server)
            show_path(hosts)
            found = measure(hosts, ROWS, 10_000, reasons)
            reasons.say(usual=WHY.format(cpus=os.cpu_count()))
            conclude(found, "between two hosts, over a network that knows nothing of RDMA.")
    finally:
        stage.close()
        process.end_descendants()
    say(f"\n{time.monotonic() - started:.0f} seconds. The same against raw UDP: make bench")


def describe(hosts):
    """What the two hosts are."""
    fact("hosts", f"a and b, joined by a veth with an MTU of {hosts.a.switch.mtu}; on each a "
                  f"bridge, "
                  "a daemon, and a container run by crun, without any privilege")
    fact("containers", f"{hosts.server.address} on a, {hosts.client.address} on b")
    fact("programs", "Debian's ibverbs-utils and perftest, started with `omniverb run --`; TCP is "
                     "measured by qperf")


def show_path(hosts):
    """What `omniverb status` says of a connection between the two."""
    running = client_server.Duet(hosts, ["ib_send_lat", "-F", "-D", "3"])
    try:
        time.sleep(1.5)
        daemon = hosts.a.daemon
        text = process.run([*daemon.prefix, daemon.stage.dist / "bin" / "omniverb", "status"],
                           env={**os.environ, "OMNIVERB_SOCKET": str(daemon.socket)})
    finally:
        running.abort()
    lines = text.splitlines()
    at = next((at for at, line in enumerate(lines) if line.lstrip().startswith("QP ")), None)
    if at is not None:
        paths = [re.split(r"\s{2,}", line.strip()) for line in lines[at:at + 2]]
        # The connection: its peer, its path and the reason.
        shell("a", "omniverb status      (of a connection: its path, its peer, and why)",
              ["  ".join(f"{words[at]:24}" for at in (0, 3, 4, -1)).rstrip() for words in paths])


if __name__ == "__main__":
    try:
        process.become_subreaper()
        with quiet():
            main()
    except Failure as failure:
        process.end_descendants()
        sys.exit(f"demo: {failure}")
