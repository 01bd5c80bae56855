"""Tests that each script of bench/ runs with `--quick` and prints its rows.

Nothing is asked of the numbers."""

import functools
import json

from harness import process
from harness.case import POLLS, Case, Group, check
from harness.staging import ROOT

# Script, its options, words that its tables have, seconds that it may take.
_SCRIPTS = [
    ("bench", ["--only", "lat"], ["ib_write_lat 8 B", "ib_atomic_lat", "UCX", "TCP"], 240),
    ("two_hosts", ["--only", "lat"], ["ib_send_lat", "raw UDP"], 240),
    ("rate_limits", ["--only", "steady"], ["vNICs at 20 Mbit/s each"], 120),
    ("dma_api", [], ["memcpy", "after idling"], 240),
    ("tcp_applications", ["--only", "redis"], ["redis", "times better"], 240),
    ("tcp_native_and_carried", ["--only", "open"], ["connections made and closed", "carried"], 240),
    ("tenant_cost_and_rates", [],
     ["pacing a packet", "equal rates: greatest deviation", "s, group", "s, hostile", "s, single",
      "memory of a policy", "memory of a vNIC without processes",
      "100 QPs to RTS in each of 4 processes", "each QP, tenant", "ib_send_lat -c UD",
      "ib_send_bw -c UD"], 180),
    ("object_costs", [], ["queue pair, destroyed", "memory region beside queue pairs"], 120),
    ("many_pairs", ["--settings", "direct"], ["containers", "pairs"], 120),
]
# In machines whose processors may be emulated.
_OF_MACHINES = [
    ("rdma_rxe_in_vm", [], ["rxe"], 900),
    ("virtual_machines", ["--only", "two machines"], ["two machines"], 900),
    ("rate_limits", [], ["changed to", "flood of 4791, noise", "a connection"], 600),
    ("many_pairs", [], ["containers", "forwarded"], 600),
    ("tcp_applications", [], ["nginx", "iperf3"], 900),
    ("tcp_native_and_carried", [], ["8 B and back, 10 connections in turn", "at rest"], 900),
    ("bench", [], ["ib_write_bw 1 MiB"], 900),
    ("two_hosts", [], ["ib_write_bw"], 900),
]


def _measures(script, options, wanted, limit, stage):
    out = stage.folder("measured") / "out.json"
    text = process.run(["/usr/bin/python3", "-B", ROOT / "bench" / f"{script}.py", "--quick",
                        "--out", out, *options], limit=limit)
    print(text)
    for words in wanted:
        check(words in text, f"there is no {words!r} in\n{text}")
    check(json.loads(out.read_text()), "no details")


def _case(name, row, is_slow):
    script, options, wanted, limit = row
    run = functools.partial(_measures, script, options, wanted, limit)
    return Case(f"bench.{name}", run, limit + 20, slow=is_slow)


def groups():
    """A few rows of each every day, all rows and machines with `--slow`."""
    cases = [_case(row[0], row, False) for row in _SCRIPTS]
    cases += [_case(row[0], row, True) for row in _OF_MACHINES]
    return [Group("bench", cases, weight=POLLS)]
