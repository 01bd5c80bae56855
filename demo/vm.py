#!/usr/bin/python3
"""`make demo-vm`: one host with a virtual machine, a container and a plain process; unmodified RDMA
programs between each two of them, beside TCP and beside Linux's rdma_rxe in the machine."""

import contextlib
import os
import sys
import time
from types import SimpleNamespace

from demo import ROOT, RULE, cpu, kernel_rdma, number, only_row, say

sys.path.insert(0, str(ROOT / "tests"))
sys.dont_write_bytecode = True

from harness import duet, image, process  # noqa: E402
from harness.attached import ADDRESS, Both, Device, Machine, Stranger  # noqa: E402
from harness.attached import files as device_files  # noqa: E402
from harness.case import Failure, Skip  # noqa: E402
from harness.guest import programs  # noqa: E402
from harness.host import Host  # noqa: E402
from harness.staging import Stage  # noqa: E402

# Iterations of a latency, and of a bandwidth where a machine is at one end; seconds that one figure
# of TCP, and bandwidth without a machine, are measured.
ITERATIONS, FEW, SECONDS = 1000, 400, 1
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


def main():
    if os.geteuid() != 0:
        sys.exit("the demo makes containers and machines: run it as root")
    started = time.monotonic()
    say(RULE)
    say("Omniverb: unmodified RDMA programs in a virtual machine, a container, and a process")
    say(RULE)
    say(f"host        {cpu()}, {os.cpu_count()} CPUs, Linux {os.uname().release}")
    say(f"RDMA here   {kernel_rdma()}")
    stage = Stage(with_programs=False)
    try:
        with contextlib.closing(Lab(stage)) as lab:
            describe(lab)
            measure(lab)
    except Skip as skip:
        sys.exit(f"demo-vm: there is no virtual machine here: {skip}")
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
            archive = image.archive(wanted, (*image.RXE, *image.DAX), "demo")
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
    say(f"machine     {ADDRESS}: stock QEMU, Debian's kernel {image.Kernel().version}, virtio-net")
    say("            and a window of 64 MiB; started by `omniverb vm run`, in it `omniverb agent`")
    if emulated:
        say("            ITS PROCESSORS ARE EMULATED: its figures are upper bounds for times, and")
        say("            are to be compared with those of the same pair only")
    say(f"container   {lab.container.address}: run by crun, without any privilege")
    say(f"process     {HOST_ADDRESS}: a plain process in the host's network")
    say("programs    Debian's perftest, started with `omniverb run --`; TCP by qperf")
    say("\nLatency is half a round trip, the mean. The last word of a row says where data went.")
    say("TCP with both ends in the machine is its loopback.\n")


def measure(lab):
    """The table: TCP and rxe first, since rxe and our device want the same UDP port."""
    machine, device = lab.machine, lab.device
    pairs = [
        ("machine, both ends", machine, machine, device, device),
        ("machine - container", lab.container, machine, lab.container, device),
        ("machine - process", lab.process, machine, lab.process, device),
        ("container - process", lab.process, lab.container, lab.process, lab.container),
    ]
    say(f"{'':28}" + "".join(f"{heading:>{WIDTH}}" for heading, *_ in COLUMNS))
    found = {}
    for title, server, client, *_ in pairs:
        found[title] = tcp(title, server, client)
    machine.rxe()
    rxe("machine, both ends", machine, machine, machine, found["machine, both ends"])
    ours = SimpleNamespace(address=lab.container.address, start=lab.container.start,
                           pid=lab.container.pid)
    rxe("machine - container", ours, machine, machine, found["machine - container"])
    machine.omniverb()
    for title, _, _, server, client in pairs:
        omniverb(lab, title, server, client, found[title])


def show(title, kind, cells, more=""):
    """A row."""
    print(f"{title:20}{kind:8}", end="", flush=True)
    for cell in cells:
        print(f"{cell:>{WIDTH}}", end="", flush=True)
    print(f"  {more() if callable(more) else more}".rstrip(), flush=True)


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
            there = [*line, "-x", "1"] if server is machine else line
            sides = SimpleNamespace(server=server, client=client)
            running = duet.Duet(sides, [*line, "-x", "1"], server_argv=there)
            yield factor(column, running.finish(LIMIT).client, before)
    show(title, "rxe", cells(), "" if server is machine else "by RoCE v2 to our device")


def length(program, in_machine):
    """How long to measure, in perftest's words. Its clock is of no use in a machine that is
    emulated, where a second may be over before both sides have begun."""
    if program.endswith("_lat"):
        return ["-n", str(ITERATIONS)]
    return ["-n", str(FEW)] if in_machine else ["-D", str(SECONDS)]


def omniverb(lab, title, server, client, before):
    """The row of our device, and by which way data went."""
    ways = set()

    def cells():
        for column, (_, name, options, *_) in enumerate(COLUMNS):
            line = [name, "-F", *options, *length(name, client is lab.device)]
            running = Both(SimpleNamespace(server=server, client=client), line)
            until = time.monotonic() + LIMIT
            # Not more often than it takes to see one way: looking takes time from what is measured.
            while running.client.poll() is None and time.monotonic() < until:
                ways.update(qp["path"] for qp in lab.host.daemon.queue_pairs()
                            if qp.get("path") not in (None, "none"))
                time.sleep(0.3)
            yield factor(column, running.finish(LIMIT).client, before)
    show(title, "RDMA", cells(), lambda: ", ".join(sorted(ways)))


def factor(column, text, before):
    """A figure of perftest, and how many times better than TCP it is."""
    _, _, _, (columns, at), unit, _ = COLUMNS[column]
    value = only_row(text, columns)[at] * unit
    times = before[column] / value if column < 2 else value / before[column]
    return f"{number(value)} {times:.{1 if times < 9.95 else 0}f}x"


if __name__ == "__main__":
    try:
        process.become_subreaper()
        main()
    except Failure as failure:
        process.end_descendants()
        sys.exit(f"demo-vm: {failure}")
