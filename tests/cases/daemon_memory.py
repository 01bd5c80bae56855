"""Tests the daemon's resident memory while tenants make it keep as much as they can.

Victims stand still (programs/daemon_memory_hoard.c), a neighbour sends packets by hand: no
Omniverb, which would slow down when it is asked to."""

import contextlib
import json
import pathlib
import signal
import subprocess
import sys
import time

from harness import process, roce_packets
from harness.case import ALONE, Case, Group, check
from harness.daemon import environment
from harness.simulated_host import Host
from harness.network import Namespace

_OWN = "10.77.0.250"
# The whole that the configuration allows; the engine keeps a sixteenth of it, its parts say
# docs/budgets.md. What else may come: rings of links, and what the allocator has not given back
# yet.
_WHOLE = 2048
_KEPT = _WHOLE // 16
_WAITING = _WHOLE // 32
_TABLES = _WHOLE // 8
_CAPTURES = _WHOLE // 16
_BESIDE = 48
_CAPTURED = 60  # an operator's connection each, of 64
_BACK = 64  # MiB more than in the beginning, ten seconds later
_AFTER = 10
_PAYLOAD = 4000

_SEND = r"""
import json, sys, time
order = json.loads(sys.argv[1])
sys.path.insert(0, order["harness"])
import roce_packets
sender, packets = roce_packets.Sender(), []
for target in order["targets"]:
    for source in range(order["sources"]):
        packets.append(roce_packets.packet(
            order["own"], target["address"], roce_packets.UD_SEND, target["qpn"], 0,
            roce_packets.deth(0x11223344, 0x900 + source), bytes(order["bytes"])))
# First one of each, so that links are made before much comes.
end = time.monotonic() + order["seconds"]
for packet in packets:
    sender.send(packet)
time.sleep(0.5)
while time.monotonic() < end or sender.count < order["least"]:
    for packet in packets:
        sender.send(packet)
print(sender.count, flush=True)
"""


class _Crowd:
    """A host with so many vNICs, and a neighbour on its network."""

    def __init__(self, stage, count):
        self.stage, self.count = stage, count
        settings = stage.folder("resident") / "omniverbd.toml"
        settings.write_text(f'memory_max_mib = {_WHOLE}\ndatapath = "forwarded"\n')
        self.host = Host(stage, "crowd", mtu=9000, arguments=["--config", settings])
        try:
            self.namespaces = [self._plug(f"10.77.1.{number}") for number in range(1, count + 1)]
            self.sender = self._plug(_OWN)
        except BaseException:
            self.host.close()
            raise

    def _plug(self, address):
        namespace = self.host.keep(Namespace())
        self.host.switch.plug(namespace, f"{address}/16")
        namespace.address = address
        return namespace

    @property
    def daemon(self):
        """The daemon of them all."""
        return self.host.daemon

    def resident(self):
        """What it has in memory, in MiB."""
        text = pathlib.Path(f"/proc/{self.daemon.pid}/status").read_text()
        return next(int(line.split()[1]) for line in text.splitlines()
                    if line.startswith("VmRSS")) / 1024

    @contextlib.contextmanager
    def captured(self, namespace):
        """Packets of this vNIC are captured."""
        path = self.stage.folder("captures") / "packets.pcapng"
        command = [*self.daemon.prefix, self.stage.dist / "bin" / "omniverb", "capture",
                   "-i", f"pid:{namespace.pid}", "-w", path]
        running = process.start(command, env=environment(OMNIVERB_SOCKET=self.daemon.socket),
                                stderr=subprocess.PIPE, text=True)
        try:
            process.until(lambda: path.exists() and path.stat().st_size, 20, "a capture to begin")
            yield
            running.send_signal(signal.SIGINT)
            text = running.communicate(timeout=30)[1]
            check(running.returncode == 0, f"omniverb capture failed: {text}")
            check(int(text.split()[0]) > 0, f"nothing was captured: {text}")
        finally:
            process.end(running)
            path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def hoards(self, *words, peers=False):
        """One that stands still in each vNIC, by its namespace: its queue pair."""
        running = []
        try:
            for namespace in self.namespaces:
                place = self.host.bare(namespace, namespace.address)
                if peers:
                    there = self.host.bare(namespace, namespace.address).at()
                    place = self.host.bare(self.sender, _OWN, TEST_PEERS=there)
                running.append(place.start("/opt/programs/daemon_memory_hoard", *words,
                                           stdin=subprocess.PIPE,
                                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                           text=True))
            said = [one.stdout.readline() for one in running]
            check(all(line.startswith("kept ") for line in said), f"{said}")
            yield [int(line.split()[1]) for line in said]
        finally:
            for one in running:
                one.kill()
                one.wait()
            process.end_descendants(but=[self.daemon.pid, *self._holders()])

    def _holders(self):
        return [part.pid for part in [self.host.switch, self.sender, *self.namespaces]]

    def send(self, qpns, seconds, sources=8, payload=_PAYLOAD, least=0):
        """Sends datagrams to these queue pairs, all that can be sent, and `least` MiB."""
        targets = [{"address": namespace.address, "qpn": qpn}
                   for namespace, qpn in zip(self.namespaces, qpns)]
        count = max((least << 20) // payload, int(1000 * seconds) + 1)
        order = {"targets": targets, "own": _OWN, "sources": sources, "bytes": payload,
                 "seconds": seconds, "least": count,
                 "harness": str(pathlib.Path(roce_packets.__file__).parent)}
        text = process.run([*self.sender.enter(), sys.executable, "-B", "-c", _SEND,
                            json.dumps(order)], limit=seconds + 90)
        return int(text) * payload >> 20

    @contextlib.contextmanager
    def stays_small(self, most, back=_BACK):
        """The daemon grows by no more than that, and is small again when all is over."""
        before, peak = self.resident(), []

        def look():
            peak.append(self.resident())

        yield look
        ended = time.monotonic()
        look()
        grown = max(peak) - before
        process.until(lambda: self.resident() < before + back, _AFTER + 5,
                      lambda: f"less than {self.resident():.0f} MiB, {before:.0f} at first")
        print(f"MiB: {before:.0f}, at most {grown:.0f} more, back within {back} after "
              f"{time.monotonic() - ended:.1f} s")
        check(grown < most, f"the daemon grew by {grown:.0f} MiB, not {most} at most")
        check(self.daemon.process.poll() is None, "the daemon ended")


def _fixture(count):
    @contextlib.contextmanager
    def fixture(stage):
        crowd = _Crowd(stage, count)
        try:
            yield crowd
        finally:
            crowd.host.close()
    return fixture


def _rings(links, request, response):
    """MiB of so many links' rings, both ways."""
    return links * 2 * (request + response) / 1024


def _backlogs(crowd):
    """Datagrams for receivers that do not receive; what is old goes though they stand still."""
    beside = _BESIDE + _rings(8 * crowd.count, 64, 4)
    with crowd.hoards("datagrams") as qpns:
        with crowd.stays_small(_KEPT + beside) as look:
            sent = crowd.send(qpns, 3 + crowd.count / 5, least=2 * _KEPT + 1)
            look()
        check(sent > 2 * _KEPT, f"only {sent} MiB were sent")


def _early(crowd):
    """Packets for queue pairs that are not there: kept for a moment, and no longer, though no
    further ones come."""
    most = min(_KEPT, 2 * crowd.count) + _BESIDE
    with crowd.hoards("datagrams"), crowd.stays_small(most, back=crowd.count) as look:
        crowd.send([0xABCDE] * crowd.count, 4)
        look()


def _delayed(crowd):
    """Packets that a bad network delays."""
    with crowd.hoards("datagrams"):
        for namespace in crowd.namespaces:
            crowd.daemon.set_vnic(namespace, "--faults", "delay=10s,limit=100000")
        try:
            with crowd.stays_small(_KEPT + _BESIDE) as look:
                crowd.send([0xABCDE] * crowd.count, 4)
                look()
                for namespace in crowd.namespaces:
                    crowd.daemon.set_vnic(namespace, "--faults", "none")
        finally:
            for namespace in crowd.namespaces:
                crowd.daemon.set_vnic(namespace, "--faults", "none")


def _answers(crowd):
    """READs whose data the asker does not take."""
    # As many as have room for their rings in the whole, both ends of each.
    links = max(1, 100 // crowd.count)
    most = _KEPT / 4 + _BESIDE + 2 * crowd.count * _rings(links, 256, 256)
    with crowd.stays_small(most) as look:
        with crowd.hoards("reads", links, peers=True):
            time.sleep(3)
            look()


def _captured(crowd):
    """Captures, to which all that comes to a vNIC is copied: of as many as operators may have."""
    beside = _KEPT + _BESIDE + _rings(8 * crowd.count, 64, 4)
    # Links of receivers stay until these end, which is before the daemon is to be small again.
    with crowd.stays_small(_CAPTURES + beside) as look, crowd.hoards("datagrams") as qpns:
        with contextlib.ExitStack() as captures:
            for namespace in crowd.namespaces[:_CAPTURED]:
                captures.enter_context(crowd.captured(namespace))
            crowd.send(qpns, 3)
            look()


def _clients(name, most=_WAITING):
    """Clients that ask and take nothing, come without end, or make much, in each vNIC."""
    def run(crowd):
        with crowd.stays_small(most + _BESIDE) as look, contextlib.ExitStack() as stack:
            for namespace in crowd.namespaces:
                place = crowd.host.bare(namespace, namespace.address)
                running = place.start("/usr/bin/python3", "/opt/programs/run_attack.py", name, "8",
                                      stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
                stack.callback(process.end, running)
            for _ in range(10):
                time.sleep(1)
                look()
    return run


def groups():
    """Twenty vNICs; a hundred with --slow."""
    found = []
    for count, slow in ((20, False), (100, True)):
        name = "resident.many" if slow else "resident"
        cases = [Case(f"{name}.backlogs", _backlogs, 120, slow=slow),
                 Case(f"{name}.early", _early, 120, slow=slow),
                 Case(f"{name}.delayed", _delayed, 120, slow=slow),
                 Case(f"{name}.answers", _answers, 180, slow=slow),
                 Case(f"{name}.captures", _captured, 180, slow=slow),
                 Case(f"{name}.messages", _clients("answers_not_read"), 120, slow=slow),
                 Case(f"{name}.connections", _clients("connections_come_and_go"), 120, slow=slow),
                 Case(f"{name}.half_open", _clients("silent_connections"), 120, slow=slow),
                 Case(f"{name}.tables", _clients("rows_pile_up", _TABLES), 180, slow=slow)]
        found.append(Group(name, cases, _fixture(count), weight=ALONE))
    return found
