#!/usr/bin/env python3
"""Implements `make bench-machines`: virtual machines with Omniverb and with Linux's rdma_rxe.

Two machines with Linux's rdma_rxe against the same two with our device; and what it costs that
memory comes out of a window and words go through an agent: the same programs in the same machine,
with a daemon of its own in it as containers have one.

In: dist/, bench/instruction_count.c, dma_speed.c, many_qps_to_rts.c, vm_wake_latency.c, perftest,
QEMU and a kernel that has rdma_rxe; root. Out: tables on stdout and target/bench/machines.json.
Where the processors are emulated only ratios mean anything. Nothing is demanded; what could not be
measured fails the run.
"""
import argparse
import contextlib
import functools
import json
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import dma_api
import machine_info
import program_runs
import measurement_plan as plan
import report
from rdma_rxe_in_vm import Patient

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
sys.dont_write_bytecode = True

from harness import client_server, guest_image, process  # noqa: E402
from harness.virtual_machines import Device, Stranger, files  # noqa: E402
from harness.case import Failure, Skip  # noqa: E402
from harness.client_server import gid_index  # noqa: E402
from harness.rxe_guest import programs  # noqa: E402
from harness.simulated_host import Host  # noqa: E402
from harness.staging import Stage  # noqa: E402

PROGRAMS = "/opt/programs"
INSIDE = "/opt/omniverb"
# rxe and the agent have the machine's first namespace.
NAMESPACE = "omniverb"
SOCKET = "/tmp/own.sock"
# key, what it is, unit, perftest's program, bytes, iterations at least and at most.
COMMANDS = [
    ("write_lat", "ib_write_lat 8 B", "ns", "ib_write_lat", 8, (200, 20_000)),
    ("send_lat", "ib_send_lat 8 B", "ns", "ib_send_lat", 8, (200, 20_000)),
    ("read_lat", "ib_read_lat 8 B", "ns", "ib_read_lat", 8, (200, 20_000)),
    ("write_64k", "ib_write_bw 64 KiB", "B/s", "ib_write_bw", 65536, (200, 5000)),
    ("send_64k", "ib_send_bw 64 KiB", "B/s", "ib_send_bw", 65536, (200, 5000)),
]
RATES = [
    ("write_rate", "ib_write_bw 8 B", "msg/s", "ib_write_bw", 8, (1000, 300_000)),
    ("send_rate", "ib_send_bw 8 B", "msg/s", "ib_send_bw", 8, (1000, 100_000)),
]
ECHOES, ECHO_PORT = 300, "omniverb.bench"
MESSAGES, WAKES = 300, 320
# Seconds until programs in machines have a connection.
LOOKS = 5
# Bytes before a window's device; tools/omniverb/src/vm/machine_window.rs DATA_OFFSET.
DATA_OFFSET = 8192


class Measured(Stranger):
    """A machine that shares windows with a few neighbours, another machine among them, and has one
    more port, by which bytes come back."""

    # Half of it is for pages: dma_speed has a buffer of 64 MiB.
    window, most_neighbours = "256m", 3

    def is_emulated(self):
        """Whether QEMU has no help of the hardware's."""
        with open(f"/proc/{self.machine.pid}/cmdline", "rb") as file:
            return b"tcg" in file.read()

    def devices(self):
        return [*super().devices(), "-device", "virtio-serial-pci,id=echoes",
                "-chardev", f"socket,id=echo,path={self._file('echo')},server=on,wait=off",
                "-device", f"virtserialport,bus=echoes.0,chardev=echo,name={ECHO_PORT}"]

    def window_file(self):
        """Its own window, as QEMU has it; how many bytes the device in it has."""
        whole = int(self.window.removesuffix("m")) << 20
        for path in Path(f"/proc/{self.machine.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if "memfd:omniverb-window" in str(path.readlink()) and path.stat().st_size == whole:
                    return path, whole - DATA_OFFSET
        raise Failure("QEMU has no window")

    @property
    def echo_socket(self):
        """Where the host's end of that port is."""
        return self._file("echo")

    def echo(self):
        """Nanoseconds until a byte has come back, from one who sleeps."""
        program = self.start("/opt/bench/echo", ECHO_PORT)
        try:
            with contextlib.closing(socket.socket(socket.AF_UNIX)) as port:
                port.settimeout(20)
                port.connect(self.echo_socket)
                times = []
                for _ in range(ECHOES):
                    begun = time.monotonic_ns()
                    port.sendall(b"?")
                    port.recv(1)
                    times.append(time.monotonic_ns() - begun)
                    time.sleep(0.002)  # Who is to be woken has to be asleep.
            return statistics.median(times[10:])
        finally:
            program.kill()


class Own:
    """The machine's second namespace, where a daemon of the machine's own gives the device."""

    address = "127.0.0.1"

    def __init__(self, guest):
        self.guest = guest

    def _line(self, argv):
        words = (f"LD_LIBRARY_PATH={INSIDE}/lib OMNIVERB_SOCKET={SOCKET} "
                 'exec "$0" "$@"')
        return ["ip", "netns", "exec", NAMESPACE, "sh", "-c", words, *argv]

    def start(self, *argv, stdout=None, stderr=None):
        """See Guest.start."""
        del stderr
        return self.guest.start(*self._line(argv), stdout=stdout)

    def run(self, *argv, **options):
        """See Guest.run."""
        return self.guest.run(*self._line(argv), **options)

    @classmethod
    def made(cls, guest):
        """Starts its daemon."""
        guest.run("sh", "-c", "mkdir -p /run/netns /var/run /etc/omniverb")
        guest.run("ip", "netns", "add", NAMESPACE)
        guest.run("ip", "netns", "exec", NAMESPACE, "ip", "link", "set", "lo", "up")
        guest.start("ip", "netns", "exec", NAMESPACE, f"{INSIDE}/bin/omniverbd", "--socket", SOCKET)
        process.until(lambda: SOCKET.rpartition("/")[2] in guest.run("sh", "-c", "ls /tmp"), 20,
                      "a daemon in the machine")
        return cls(guest)


class Places:
    """A host, a container on it, and two machines."""

    def __init__(self, stage, adoption):
        settings = stage.folder("configuration") / "omniverbd.toml"
        settings.write_text(f'adoption = "{adoption}"\n')
        self.host = Host(stage, "machines", arguments=["--config", settings])
        try:
            self.container = self.host.add(1)
            build(stage)
            names = ["ib_write_lat", "ib_send_lat", "ib_read_lat", "ib_write_bw", "ib_send_bw",
                     "qperf"]
            wanted = {**programs(), **files(stage, names),
                      f"{INSIDE}/bin/omniverbd": stage.dist / "bin/omniverbd",
                      "/opt/bench/echo": guest_image.compiled("port_echo"),
                      **{f"{PROGRAMS}/{name}": stage.programs / name
                         for name in ("instruction_count", "many_qps_to_rts", "dma_speed",
                                      "vm_wake_latency")}}
            archive = guest_image.archive(wanted, (*guest_image.RXE, *guest_image.DAX), "bench")
            self.machines = [self.host.keep(Measured(stage, self.host, archive, name=f"vm-{number}",
                                                     address=f"10.77.0.{number}", processors=2,
                                                     memory=768))
                             for number in (200, 201)]
        except BaseException:
            self.close()
            raise
        self.first = Device(self.machines[0])
        self.ways = set()

    def look(self):
        """Notes which ways data goes, once it goes."""
        until = time.monotonic() + LOOKS
        found = set()
        while not found and time.monotonic() < until:
            time.sleep(LOOKS / 100)
            found = {row["path"] for row in self.host.daemon.queue_pairs()
                     if row.get("path") not in (None, "none")}
        self.ways |= found

    def with_rxe(self):
        """The machines have rxe."""
        for one in self.machines:
            one.rxe()

    def with_device(self):
        """The machines have our device, and no rxe any more."""
        for one in self.machines:
            one.omniverb()
        self.own = Own.made(self.machines[0])

    def close(self):
        """Ends everything."""
        self.host.close()


def build(stage):
    """What is measured with."""
    for name in ("instruction_count", "many_qps_to_rts", "vm_wake_latency"):
        program_runs.compiled(name, stage.programs)
    dma_api.build(stage)


def perftest(server, client, index, program, size, iterations, look=None):
    """The numbers of perftest's only row. `look`: done once while it runs."""
    sides = SimpleNamespace(server=server, client=client)
    running = Patient(sides, [program, "-F", "-x", index, "-s", size, "-n", iterations])
    if look:
        look()
    table = client_server.rows(running.finish(90).client, 5)
    if len(table) != 1:
        raise Failure(f"cannot read this output of {program}")
    return next(iter(table.values()))


def perftests(commands, key, name, server, client, index, look=None):
    """A measurement for each command."""
    def sample(program, size, unit, count):
        row = perftest(server, client, index, program, size, count, look)
        return {"ns": row[4] * 1000, "msg/s": row[4] * 1e6, "B/s": row[3] * 2**20}[unit]

    return [plan.Measurement(f"{key}_{what}", f"{name}, {text}", unit,
                             lambda n, program=program, size=size, unit=unit:
                             sample(program, size, unit, n),
                             iterations=limits[0], limits=limits, size=size)
            for what, text, unit, program, size, limits in commands]


def qperf(server, client, test, size):
    """One figure of TCP; see bench/two_hosts.py."""
    listening = server.start("qperf")
    try:
        process.until(lambda: server.listens(19765), 20, "qperf to listen")
        text = client.run("qperf", server.address, "-t", 1, "-m", size, test, limit=60)
    finally:
        listening.kill()
    value = program_runs.qperf_value(text)
    if value is None:
        raise Failure(f"cannot read this output of qperf:\n{text}")
    return value


def between_machines(places, key):
    """Two machines: by TCP and rxe, or by our device."""
    server, client = places.machines
    if key == "rxe":
        places.with_rxe()
        return [plan.Measurement("tcp_lat", "TCP (virtio-net) 8 B", "ns",
                                 lambda _: qperf(server, client, "tcp_lat", 8)),
                plan.Measurement("tcp_64k", "TCP (virtio-net) 64 KiB", "B/s",
                                 lambda _: qperf(server, client, "tcp_bw", 65536), size=65536),
                *perftests(COMMANDS, "rxe", "rdma_rxe", server, client, 1)]
    server, client = (Device(one) for one in places.machines)
    return perftests(COMMANDS, "omv", "Omniverb", server, client, gid_index(client), places.look)


def in_one_machine(places):
    """The same within the first machine: memory out of the window and an agent, or a daemon of the
    machine's own."""
    found = []
    for key, name, place in (("own", "own daemon", places.own), ("window", "window", places.first)):
        index = gid_index(place)
        # Its own name for itself: no other address of the machine has a GID.
        found += perftests([*COMMANDS, *RATES], key, name, place, place, index)
        found += plan.crowd_rows(key, f"{name},", functools.partial(crowd, place, index))[:2]
    return found


def crowd(place, index, processes):
    """What many_qps_to_rts says of so many processes."""
    return place.run(f"{PROGRAMS}/many_qps_to_rts", processes, 100, index, limit=120)


def steps(place):
    """Instructions of each call."""
    return json.loads(place.run(f"{PROGRAMS}/instruction_count", 30, gid_index(place), limit=300))


def one_way(machine, place):
    """Nanoseconds until somebody in a machine runs whom a place has woken: on a completion channel,
    and bare."""
    device = Device(machine)
    window, size = machine.window_file()
    with tempfile.TemporaryFile("w+") as said:
        sleeper = device.start(f"{PROGRAMS}/vm_wake_latency", "sleep", ECHO_PORT, size,
                               gid_index(device), stdout=said)
        try:
            process.until(lambda: process.written(said) or sleeper.poll() is not None, 30,
                          "who sleeps")
            text = place.run("/opt/programs/vm_wake_latency", "ring", machine.address,
                             gid_index(place), machine.echo_socket, window, WAKES, limit=120)
        finally:
            sleeper.kill()
    event, bare = (float(value) for value in text.split())
    return {"event": event, "bare": bare}


def one_way_rows(places, rounds):
    """The same, `rounds` times."""
    place = places.host.bare(places.container.namespace, places.container.address)
    names = {"bare": "one way: who reads a virtio-serial port runs",
             "event": "one way: who polls a completion channel runs"}
    # The first connection may be before there is a window for it.
    one_way(places.machines[0], place)
    taken = [one_way(places.machines[0], place) for _ in range(rounds)]
    return {f"way_{key}": {"label": name, "unit": "ns",
                           **report.summary([sample[key] for sample in taken]),
                           "samples": [sample[key] for sample in taken]}
            for key, name in names.items()}


def wakes(places):
    """A byte there and back by a port of the machine, and a message there and back between one who
    sleeps in it and one who sleeps in the container."""
    def message(_):
        index = {place: gid_index(place) for place in (places.container, places.first)}
        lines = [["ibv_rc_pingpong", "-e", "-s", 8, "-n", MESSAGES, "-g", index[place]]
                 for place in (places.container, places.first)]
        sides = SimpleNamespace(server=places.first, client=places.container)
        text = Patient(sides, lines[0], server_argv=lines[1]).finish(90).client
        seen = re.search(r"([\d.]+) usec/iter", text)
        if not seen:
            raise Failure(f"cannot read this output: {text}")
        return float(seen.group(1)) * 1000

    return [plan.Measurement("wake_bare", "a byte by a virtio-serial port, and back", "ns",
                             lambda _: places.machines[0].echo()),
            plan.Measurement("wake_message", "ibv_rc_pingpong -e, container and machine", "ns",
                             message)]


def second_api(place):
    """What dma_speed says, both ends in a place: value and unit by name."""
    with tempfile.TemporaryFile("w+") as said:
        # It ends with its input.
        node = place.start("sh", "-c", f"sleep 900 | {PROGRAMS}/dma_speed serve", stdout=said)
        try:
            process.until(lambda: process.written(said) or node.poll() is not None, 30, "the node")
            first = process.written(said)
            if not first.startswith("port "):
                raise Failure(f"the node: {first}")
            port = first.split()[1]
            text = place.run(f"{PROGRAMS}/dma_speed", place.address, port, limit=600)
        finally:
            node.kill()
    words = [line.split() for line in text.splitlines()]
    return {name: (float(value), unit) for name, value, unit in (w for w in words if len(w) == 3)}


def api_rows(places, rounds):
    """The second API in the same two ways, interleaved."""
    rows = {}
    for _ in range(rounds):
        for key, place in (("own", places.own), ("window", places.first)):
            for name, (value, unit) in second_api(place).items():
                row = rows.setdefault(f"{key}_{name}", {"label": f"{key}, {name}", "unit": unit,
                                                        "samples": []})
                row["samples"].append(value)
    for row in rows.values():
        row.update(report.summary(row["samples"]))
    return rows


def factor(rows, key, other):
    """How many times better than the other a figure is; None if one is missing."""
    mine, theirs = (rows.get(name, {}).get("median") for name in (key, other))
    if not mine or not theirs:
        return None
    return theirs / mine if rows[key]["unit"] == "ns" else mine / theirs


def lines(rows, against):
    """A table; `against` has what each figure is compared with."""
    yield f"{'':44} {'median':>10} {'min':>10} {'max':>10}"
    for key, entry in rows.items():
        if "median" not in entry:
            yield f"{entry['label']:44} not measured: {entry.get('error', 'no sample')}"
            continue
        cells = [report.show(entry[column], entry["unit"]) for column in ("median", "min", "max")]
        before, _, what = key.partition("_")
        times = factor(rows, key, f"{against[before]}_{what}") if before in against else None
        than = "" if times is None else f"  {times:.2f}x as fast as {against[before]}"
        yield f"{entry['label']:44} " + " ".join(f"{cell:>10}" for cell in cells) + than


def step_lines(found):
    """Instructions of each call."""
    yield "instructions of a call          " + " ".join(f"{place:>12}" for place in found)
    for call in next(iter(found.values())):
        yield f"{call:31} " + " ".join(f"{counts[call]:>12}" for counts in found.values())
    sums = {place: sum(counts[call] for call in counts if call != "poll_empty")
            for place, counts in found.items()}
    base = sums["own"]
    yield f"{'a message, all its calls':31} " + " ".join(
        f"{count:>5} ({count / base - 1:+.1%})" for count in sums.values())


def sampled(items, rounds):
    """Samples of these, by key."""
    failures = (Failure, ZeroDivisionError, subprocess.SubprocessError)
    plan.sample_all(items, rounds, failures, setup=4)
    return {item.key: report.entry_of(item) for item in items}


def two_machines(places, chosen):
    """By rxe, then by our device: they go in this order, and only once."""
    rows = sampled(between_machines(places, "rxe"), chosen.rounds)
    places.with_device()
    rows.update(sampled(between_machines(places, "omv"), chosen.rounds))
    ways = f"ways (the first connection has no window yet): {', '.join(sorted(places.ways))}"
    return rows, [*lines(rows, {"omv": "rxe"}), ways]


def one_machine(places, chosen):
    """Memory out of the window and an agent, or a daemon of the machine's own."""
    rows = sampled(in_one_machine(places), chosen.rounds)
    return rows, lines(rows, {"window": "own"})


def dma_in_one_machine(places, chosen):
    """The second API, in the same two ways."""
    rows = api_rows(places, max(1, chosen.rounds // 2))
    return rows, lines(rows, {"window": "own"})


def wakes_by_border(places, chosen):
    """Bare and with a message."""
    rows = {**sampled(wakes(places), chosen.rounds), **one_way_rows(places, max(1, chosen.rounds))}
    times = rows["way_event"]["median"] / rows["way_bare"]["median"]
    return rows, [*lines(rows, {}), f"one way, a channel against a port: {times:.2f}x"]


def instructions(places, _chosen):
    """Of each call."""
    found = {name: steps(place) for name, place in (("own", places.own), ("window", places.first))}
    return found, step_lines(found)


# Each: what it has found, and how that is said.
PARTS = {"two machines": two_machines, "one machine": one_machine, "dma": dma_in_one_machine,
         "wakes": wakes_by_border, "instructions": instructions}


def shown(title, part, places, chosen):
    """Measures a part and prints it; gives what it has found, None if that failed."""
    print(f"\n{title}", flush=True)
    try:
        rows, text = part(places, chosen)
    except (Failure, subprocess.SubprocessError) as problem:
        rows, text = None, [f"not measured: {problem}"]
    print(*text, sep="\n", flush=True)
    return rows


def unmeasured(found):
    """Names of what is missing."""
    for title, rows in found.items():
        if rows is None:
            yield title
        elif title != "instructions":
            yield from (key for key, row in rows.items() if "median" not in row)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="samples of everything (default 5)")
    parser.add_argument("--quick", action="store_const", dest="rounds", const=0,
                        help="one short sample of everything, to see that it works")
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS),
                        help="what to measure (default: everything)")
    parser.add_argument("--adoption", choices=["exact", "trusting"], default="exact",
                        help="what vNICs may map of each other: regions that may be read and "
                             "written, or written only as well (default exact)")
    parser.add_argument("--out", type=Path, default=ROOT / "target/bench/machines.json")
    chosen = parser.parse_args()
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    known, stage = machine_info.facts(ROOT), Stage(with_programs=False)
    print(*machine_info.lines(known), sep="\n")
    try:
        with contextlib.closing(Places(stage, chosen.adoption)) as places:
            emulated = places.machines[0].is_emulated()
            if emulated:
                print("the machines' processors are EMULATED: only ratios mean anything")
            if "two machines" not in chosen.only:
                places.with_rxe()
                places.with_device()
            found = {title: shown(title, part, places, chosen)
                     for title, part in PARTS.items() if title in chosen.only}
    except Skip as skip:
        print(f"bench: there is no virtual machine here: {skip}", file=sys.stderr)
        return 1
    finally:
        stage.close()
        process.end_descendants()
    chosen.out.write_text(json.dumps({"machine": known, "rounds": chosen.rounds,
                                      "adoption": chosen.adoption,
                                      "emulated": emulated, "tables": found}, indent=1) + "\n")
    print(f"Details: {chosen.out}")
    failed = list(unmeasured(found))
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
