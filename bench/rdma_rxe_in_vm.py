#!/usr/bin/env python3
"""Third part of `make bench`: Omniverb against Linux's rdma_rxe inside one virtual machine.

In: dist/, perftest, rdmacm-utils, QEMU and a kernel that has rdma_rxe (see
tests/harness/rxe_guest.py). Out: a table on stdout and target/bench/guest.json; where there is no
such kernel, a failure that says so. Without hardware virtualisation the processors are emulated:
only the ratio means anything.
"""
import argparse
import functools
import json
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import program_runs
import measurement_plan as plan
import report

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
sys.dont_write_bytecode = True

from harness import rdma_cm_client_server, client_server, guest_image, process  # noqa: E402
from harness.case import Failure, Skip  # noqa: E402
from harness.rxe_guest import Guest, programs  # noqa: E402
from harness.network import Switch  # noqa: E402

# rxe listens on UDP port 4791 of the machine's first namespace, so Omniverb gets one of its own.
NAMESPACE = "omniverb"
DIRECTORY = "/opt/omniverb"
DAEMONS = {"direct": "", "forwarded": 'datapath = "forwarded"\n'}
COMMANDS = [
    ("write_lat", "ib_write_lat 8 B", "ns", "ib_write_lat"),
    ("send_lat", "ib_send_lat 8 B", "ns", "ib_send_lat"),
    ("write_rate", "ib_write_bw 8 B", "msg/s", "ib_write_bw"),
    ("send_rate", "ib_send_bw 8 B", "msg/s", "ib_send_bw"),
]
CONNECTIONS = 200
# At least twice the message rate, and no worse latency, of what a user gets by default.
FASTER = {"ns": 1, "msg/s": 2}
ACCEPTED = [key for key, *_ in COMMANDS]


class Machine:
    """The guest with rxe, and Omniverb's daemons in it."""

    def __init__(self):
        self.switch = Switch()
        self.guest = None
        self.folder = tempfile.TemporaryDirectory(prefix="omniverb-bench-")
        try:
            wanted = programs([program_runs.compiled("many_qps_to_rts", Path(self.folder.name))])
            wanted.update({f"{DIRECTORY}/{name}": ROOT / "dist" / name for name in
                           ("bin/omniverbd", "lib/libibverbs.so.1", "lib/librdmacm.so.1")})
            self.guest = Guest(self.switch, guest_image.archive(wanted), "10.77.0.200/24",
                               processors=2)
            self._start_daemons()
        except BaseException:
            self.close()
            raise

    def _start_daemons(self):
        guest = self.guest
        guest.run("sh", "-c", "mkdir -p /run/netns /var/run /etc/omniverb")
        guest.run("ip", "netns", "add", NAMESPACE)
        guest.run("ip", "netns", "exec", NAMESPACE, "ip", "link", "set", "lo", "up")
        for name, text in DAEMONS.items():
            guest.run("sh", "-c", f"echo '{text.strip()}' > /tmp/{name}.toml")
            guest.start("ip", "netns", "exec", NAMESPACE, f"{DIRECTORY}/bin/omniverbd", "--socket",
                        f"/tmp/{name}.sock", "--config", f"/tmp/{name}.toml")
        time.sleep(2)
        text = guest.run("sh", "-c", "ls /tmp")
        if any(f"{name}.sock" not in text for name in DAEMONS):
            raise Failure(f"omniverbd does not start in the guest: {text}")

    def _command(self, setting, program):
        """Where a program runs, and how it is called there."""
        if setting == "rxe":
            return self.guest, [program]
        return _Inside(self.guest), [
            "ip", "netns", "exec", NAMESPACE, "sh", "-c",
            f"LD_LIBRARY_PATH={DIRECTORY}/lib OMNIVERB_SOCKET=/tmp/{setting}.sock "
            'exec "$0" "$@"', program]

    def crowd(self, setting, processes):
        """What many_qps_to_rts says of so many processes."""
        _, command = self._command(setting, "/opt/programs/many_qps_to_rts")
        # The first address of rxe is one of IPv6 that comes and goes with the link.
        gid_index = 1 if setting == "rxe" else 0
        return self.guest.run(*command, processes, 100, gid_index, limit=60)

    def connections(self, setting):
        """Connections a second by rdma_cm."""
        place, command = self._command(setting, "cmtime")
        sides = SimpleNamespace(server=place, client=place)
        command += ["-c", CONNECTIONS]
        _, text = rdma_cm_client_server.both(sides, command, [*command, "-s", place.address], 120,
                                  True)
        return program_runs.cmtime_rate(text, CONNECTIONS)

    def sample(self, setting, program, iterations):
        """The numbers of perftest's row."""
        place, command = self._command(setting, program)
        sides = SimpleNamespace(server=place, client=place)
        running = Patient(sides, [*command, "-F", "-x", "1", "-s", "8", "-n", str(iterations)])
        table = client_server.rows(running.finish(60).client, 5)
        if len(table) != 1:
            raise Failure(f"cannot read this output of {program}")
        return next(iter(table.values()))

    def close(self):
        """Switches it off."""
        if self.guest:
            self.guest.close()
        self.switch.close()
        self.folder.cleanup()


class _Inside:
    """The guest, seen from the namespace that only has a loopback interface."""

    address = "127.0.0.1"

    def __init__(self, guest):
        self.guest = guest

    def start(self, *argv, **options):
        """See Guest.start."""
        return self.guest.start(*argv, **options)


class Patient(client_server.Duet):
    """Gives the server a moment instead of looking for it: looking costs the guest something."""

    def listens(self):
        time.sleep(1.5)
        return True


def measurements(machine):
    """Everything, rxe first."""
    found = []
    for key, text, unit, program in COMMANDS:
        for setting in ("rxe", *DAEMONS):
            def sample(n, setting=setting, program=program, unit=unit):
                row = machine.sample(setting, program, n)
                return row[4] * (1000 if unit == "ns" else 1e6)
            name = "rdma_rxe" if setting == "rxe" else f"Omniverb {setting}"
            limits = (200, 50_000) if unit == "ns" else (1000, 500_000)
            found.append(plan.Measurement(f"{setting}_{key}", f"{name}, {text}", unit, sample,
                                          iterations=limits[0], limits=limits))
    return found + set_up(machine)


def set_up(machine):
    """What it takes until there is something to measure: queue pairs, connections."""
    found = []
    for setting in ("rxe", "direct"):  # where data go later does not matter here
        name = "rdma_rxe" if setting == "rxe" else "Omniverb"
        found += plan.crowd_rows(setting, f"{name},",
                                 functools.partial(machine.crowd, setting))

        def connections(_, setting=setting):
            return machine.connections(setting)
        found.append(plan.Measurement(f"{setting}_cmtime",
                                      f"{name}, cmtime, {CONNECTIONS} connections", "/s",
                                      connections))
    return found


def results(items):
    """One dictionary a measurement."""
    rows = {}
    for item in items:
        entry = report.entry_of(item)
        if item.samples:
            setting, _, key = item.key.partition("_")
            other = rows.get(f"rxe_{key}", {}).get("median")
            if setting != "rxe" and other:
                lower = item.unit == "ns"
                times = other / entry["median"] if lower else entry["median"] / other
                entry["times_as_fast_as_rxe"] = times
                if setting == "direct" and key in ACCEPTED:
                    met = times >= FASTER[item.unit]
                    entry["acceptance"] = f">= {FASTER[item.unit]}x {'met' if met else 'MISSED'}"
        rows[item.key] = entry
    return rows


def lines(rows):
    """The table."""
    yield f"{'inside one virtual machine':38} {'median':>10} {'min':>10} {'max':>10}  against rxe"
    for entry in rows.values():
        if "median" not in entry:
            yield f"{entry['label']:38} not measured: {entry.get('error', 'no sample')}"
            continue
        cells = [report.show(entry[column], entry["unit"]) for column in ("median", "min", "max")]
        times = entry.get("times_as_fast_as_rxe")
        times = "" if times is None else f"{times:.1f}x as fast"
        yield (f"{entry['label']:38} {cells[0]:>10} {cells[1]:>10} {cells[2]:>10}  {times:14} "
               f"{entry.get('acceptance', '')}").rstrip()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="samples of everything (default 5)")
    parser.add_argument("--quick", action="store_const", dest="rounds", const=0,
                        help="one short sample of everything, to see that it works")
    parser.add_argument("--out", type=Path, default=ROOT / "target/bench/guest.json")
    chosen = parser.parse_args()
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    try:
        machine = Machine()
    except Skip as skip:
        print(f"bench: Omniverb against rdma_rxe was not measured: {skip}", file=sys.stderr)
        return 1
    try:
        items = measurements(machine)
        plan.sample_all(items, chosen.rounds, (Failure, ZeroDivisionError), setup=2)
    finally:
        machine.close()
        process.end_descendants()
    rows = results(items)
    chosen.out.write_text(json.dumps({"rounds": chosen.rounds, "results": rows}, indent=1) + "\n")
    print(*lines(rows), sep="\n")
    print(f"Details: {chosen.out}")
    failed = [key for key, row in rows.items() if "median" not in row]
    if failed:
        print(f"bench: not measured: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    process.become_subreaper()
    try:
        sys.exit(main())
    except Failure as problem:
        process.end_descendants()
        sys.exit(f"bench: {problem}")
