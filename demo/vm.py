#!/usr/bin/python3
"""Implements `make demo-vm`: a virtual machine, a container and a plain process on one host."""

import contextlib
import math
import os
import sys
import time
from types import SimpleNamespace

from demo import ROOT, number, only_row, say_host
from report import RULE, Reasons, fact, paragraph, quiet, read_options, say

sys.path.insert(0, str(ROOT / "tests"))
sys.dont_write_bytecode = True

from harness import client_server, guest_image, process  # noqa: E402
from harness.virtual_machines import ADDRESS, Both, Device, Machine, Stranger  # noqa: E402
from harness.virtual_machines import files as device_files  # noqa: E402
from harness.case import Failure, Skip  # noqa: E402
from harness.rxe_guest import programs  # noqa: E402
from harness.simulated_host import Host  # noqa: E402
from harness.staging import Stage  # noqa: E402

# Iterations of a latency, and of a bandwidth where a machine is at one end; seconds that one figure
# of TCP, and bandwidth without a machine, are measured.
ITERATIONS, FEW, SECONDS = 1000, 400, 1
QUICK_ITERATIONS = 50
HOST_ADDRESS = "10.77.0.254"
# Column: heading, perftest's program and options, its row's place and what that is multiplied with,
# qperf's test of the same.
COLUMNS = [
    ("SEND 8 B, us", "ib_send_lat", ["-s", "8"], (6, 5), 1,
     ("tcp_lat", 8)),
    ("WRITE 8 B, us", "ib_write_lat", ["-s", "8"], (6, 5), 1,
     ("tcp_lat", 8)),
    ("SEND 64 KiB, MB/s", "ib_send_bw", ["-s", "65536"], (5, 3), 1.048576,
     ("tcp_bw", 65536)),
    ("READ 64 KiB, MB/s", "ib_read_bw", ["-s", "65536"], (5, 3), 1.048576,
     ("tcp_bw", 65536)),
]
WIDTH = 19
LIMIT = 60
WHY_EXACT = ("a WRITE of perftest goes to memory that may be written from afar but not read. "
             "Between vNICs that do not trust each other, which is the default, the target's "
             "process places such data and is woken for it. With adoption = \"trusting\" the "
             "initiator does it by itself: see `make demo`")
WHY_EMULATED = ("the machine's processors are emulated: each instruction of the library takes some "
                "twenty, where TCP leaves most of its work to the host")
WHY_FORWARDED = ("the machine shares memory with one neighbour here (--neighbours 1); data of "
                 "others goes by way of the daemon")


def main():
    global ITERATIONS, FEW
    is_quick = read_options(__doc__)
    if is_quick:
        ITERATIONS = FEW = QUICK_ITERATIONS
    if os.geteuid() != 0:
        sys.exit("the demo makes containers and machines: run it as root")
    started = time.monotonic()
    say(RULE)
    say("Omniverb: unmodified RDMA programs in a virtual machine, a container, and a process")
    say(RULE)
    paragraph("Debian's perftest between each two of a virtual machine, a container and a "
              "process of one host, none of which has RDMA hardware; beside TCP, and beside "
              "Linux's rdma_rxe in the machine.")
    say()
    say_host()
    reasons = Reasons(is_quick)
    stage = Stage(with_programs=False)
    try:
        with contextlib.closing(Lab(stage)) as lab:
            emulated = describe(lab)
            measure(lab, reasons)
            explain(reasons, emulated)
    except Skip as skip:
        sys.exit(f"demo-vm: no virtual machine can be started here: {skip}")
    finally:
        stage.close()
        process.end_descendants()
    say(f"\n{time.monotonic() - started:.0f} seconds.")


class Lab:
    """The host, and the three on its bridge."""

    def __init__(self, stage):
        self.host = Host(stage, "demo")
        try:
            switch = self.host.switch
            switch.ip("addr", "add", f"{HOST_ADDRESS}/24", "dev", "bridge")
            self.container = self.host.add(1)
            self.process = self.host.bare(switch, HOST_ADDRESS)
            wanted = {**programs(), **device_files(stage, ["qperf"])}
            archive = guest_image.archive(wanted, (*guest_image.RXE, *guest_image.DAX), "demo")
            self.machine = self.host.keep(Stranger(stage, self.host, archive, processors=2))
            self.device = Device(self.machine)
        except BaseException:
            self.close()
            raise

    def close(self):
        """Ends everything."""
        self.host.close()


def describe(lab):
    """What the three are."""
    with open(f"/proc/{lab.machine.machine.pid}/cmdline", "rb") as file:
        emulated = b"tcg" in file.read()
    fact("machine", f"{ADDRESS}: stock QEMU, Debian's kernel {guest_image.Kernel().version}, "
                    f"virtio-net and "
                    "a window of 64 MiB; started by `omniverb vm run`, in it `omniverb agent`")
    if emulated:
        fact("", "Its processors are EMULATED, since KVM is missing or does not work here. Only "
                 "rows of the same pair can be compared, and none with a real machine.")
    fact("container", f"{lab.container.address}: run by crun, without any privilege")
    fact("process", f"{HOST_ADDRESS}: a plain process in the host's network")
    fact("programs", "Debian's perftest, started with `omniverb run --`; TCP is measured by qperf")
    say()
    paragraph("Latency is half a round trip, the mean. Beside a figure: how many times better than "
              "TCP between the same two it is. The last word of a row says where data went. A "
              "dash: the program's clock, that of an emulated processor, stood still meanwhile.")
    say()
    return emulated


def explain(reasons, emulated):
    """Why figures are worse than TCP's, and what is to be concluded."""
    mine = [] if not emulated else [(title, WHY_EMULATED) for title in (
        "machine, both ends", "machine - container", "machine - process")]
    if not emulated:
        mine = [("machine - process", WHY_FORWARDED)]
    reasons.say([*mine, (("container - process", "WRITE 8 B"), WHY_EXACT)])
    say()
    paragraph("So: programs that know nothing of Omniverb do RDMA between a virtual machine, a "
              "container and a process, with stock QEMU and a stock kernel. \"direct\" is memory "
              "that both share, \"forwarded\" goes by way of the daemon. TCP with both ends in "
              "the machine is its loopback.")


def measure(lab, reasons):
    """The table: TCP and rxe first, since rxe and our device want the same UDP port. Whoever
    measures is outside of the machine where that can be: clocks of emulated processors stand still
    now and then."""
    machine, device = lab.machine, lab.device
    pairs = [
        ("machine, both ends", machine, machine, device, device),
        ("machine - container", machine, lab.container, device, lab.container),
        ("machine - process", machine, lab.process, device, lab.process),
        ("container - process", lab.process, lab.container, lab.process, lab.container),
    ]
    say(f"{'':28}" + "".join(f"{heading:>{WIDTH}}" for heading, *_ in COLUMNS))
    found = {}
    for title, server, client, *_ in pairs:
        found[title] = tcp(title, server, client)
    machine.rxe()
    rxe("machine, both ends", machine, machine, machine, found["machine, both ends"])
    # Our device in the container.
    ours = SimpleNamespace(address=lab.container.address, start=lab.container.start,
                           pid=lab.container.pid)
    rxe("machine - container", machine, ours, machine, found["machine - container"])
    machine.omniverb()
    for title, _, _, server, client in pairs:
        omniverb(lab, title, server, client, found[title], reasons)


def show(title, kind, cells, more=""):
    """A row."""
    say(f"{title:20}{kind:8}", end="")
    for cell in cells:
        say(f"{cell:>{WIDTH}}", end="")
    say(f"  {more() if callable(more) else more}".rstrip())


def tcp(title, server, client):
    """The row of TCP, which is returned."""
    values = []

    def cells():
        with listening(server):
            for *_, (test, size) in COLUMNS:
                values.append(qperf(client, server.address, test, size))
                yield number(values[-1])
    show(title, "TCP", cells())
    return values


@contextlib.contextmanager
def listening(place):
    """qperf's other side."""
    server = place.start("qperf", plain=True)
    try:
        process.until(lambda: place.listens(19765) if isinstance(place, Machine)
                      else process.listens(place.pid, 19765), 20, "qperf to listen")
        yield
    finally:
        if isinstance(place, Machine):
            server.kill()
        else:
            for pid in [*process.descendants(server.pid), server.pid]:
                process.kill(pid)
            server.wait()


_UNITS = {"ns": 1e-3, "us": 1, "ms": 1e3, "bytes/sec": 1e-6, "KB/sec": 1e-3, "MB/sec": 1,
          "GB/sec": 1e3}


def qperf(client, address, test, size):
    """One figure of TCP: us, or MB a second."""
    text = client.run("qperf", address, "-t", SECONDS, "-m", size, test, plain=True, limit=LIMIT)
    words = [line.split("=") for line in text.splitlines() if "=" in line]
    value, unit = words[0][1].split()
    return float(value.replace(",", "")) * _UNITS[unit]


def rxe(title, server, client, machine, before):
    """The row of rdma_rxe in the machine, whose GID with the IPv4 address is the second."""
    def cells():
        for column, (_, name, options, *_) in enumerate(COLUMNS):
            line = [name, "-F", *options, *length(name, True)]
            there, here = ([*line, "-x", "1"] if side is machine else line
                           for side in (server, client))
            sides = SimpleNamespace(server=server, client=client)
            running = client_server.Duet(sides, here, server_argv=there)
            yield factor(column, running.finish(LIMIT).client, before)[0]
    show(title, "rxe", cells(), "" if client is machine else "by RoCE v2 to our device")


def length(program, in_machine):
    """How long to measure, in perftest's words: a number, where an end is in a machine, of which
    a second may be over before both sides have begun."""
    if program.endswith("_lat"):
        return ["-n", str(ITERATIONS)]
    return ["-n", str(FEW)] if in_machine else ["-D", str(SECONDS)]


def omniverb(lab, title, server, client, before, reasons):
    """The row of our device, and by which way data went."""
    ways = set()

    def cells():
        for column, (_, name, options, *_) in enumerate(COLUMNS):
            line = [name, "-F", *options, *length(name, lab.device in (server, client))]
            running = Both(SimpleNamespace(server=server, client=client), line)
            until = time.monotonic() + LIMIT
            # Not more often than it takes to see one way: looking takes time from what is measured.
            while running.client.poll() is None and time.monotonic() < until:
                ways.update(qp["path"] for qp in lab.host.daemon.queue_pairs()
                            if qp.get("path") not in (None, "none"))
                time.sleep(0.3)
            text, times = factor(column, running.finish(LIMIT).client, before)
            if times is not None:
                reasons.see(title, COLUMNS[column][0].partition(",")[0], times)
            yield text
    show(title, "RDMA", cells(), lambda: ", ".join(sorted(ways)))


def factor(column, text, before):
    """A figure of perftest with how many times better than TCP it is, and that; a dash, if the
    clock stood still."""
    _, _, _, (columns, at), unit, _ = COLUMNS[column]
    value = only_row(text, columns)[at] * unit
    if not math.isfinite(value) or value <= 0:
        return "-", None
    times = before[column] / value if column < 2 else value / before[column]
    return f"{number(value)} {times:.{1 if times < 9.95 else 0}f}x", times


if __name__ == "__main__":
    try:
        process.become_subreaper()
        with quiet():
            main()
    except Failure as failure:
        process.end_descendants()
        sys.exit(f"demo-vm: {failure}")
