"""Rate limits: many vNICs of one host, each held to its own rate, changed while traffic runs."""

import contextlib
import os
import subprocess
import time

from harness import process
from harness.case import Case, Failure, Group, check
from harness.host import Host

_COUNT = 50
_MESSAGE = 16384
_DEPTH = 16
_SLICE = 0.01
_FRAMING = 14 + 20 + 8  # Ethernet, IPv4 and UDP around a packet: they count too, as with tc(8)


class _End:
    """A process of programs/rate.c in a namespace."""

    def __init__(self, host, number, namespace):
        self.host, self.namespace = host, namespace
        self.name = f"net-{os.stat(namespace.path).st_ino}"
        place = host.bare(namespace, "")
        self.process = place.start("/opt/programs/rate", "one_end", _MESSAGE, _DEPTH,
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True)
        self.number = number
        self.start, self.slices, self.posted = 0.0, [], 0
        self.overhead, self.packets = 1, {}

    def read(self):
        """A line."""
        line = self.process.stdout.readline().strip()
        if not line or ".c:" in line:
            raise Failure(f"vNIC {self.number}: {line or 'ended'} {self.process.poll()}")
        return line

    def write(self, line):
        """A line."""
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def results(self):
        """Reads what it has measured."""
        start, _, *slices = self.read().split()
        self.start, self.slices = int(start) / 1e9, [int(n) for n in slices]
        self.posted = int(self.read())

    def count(self, status):
        """Takes from the daemon's status how many bytes of frames, acknowledgements included, went
        with each byte that the program sent."""
        vnic = next(vnic for vnic in status["vnics"] if vnic["name"] == self.name)
        packets = vnic["processes"][0]["qps"][0]["peers"][0]["packets"]
        self.overhead, self.packets = 1, packets or {}  # of a direct link
        if self.posted and packets:
            frames = packets["sent_bytes"] + _FRAMING * packets["sent"]
            self.overhead = frames / (self.posted * _MESSAGE)
            # 16 packets with 16 bytes of headers a message and 16 more in the first are the least.
            least = 1 + (16 * (_FRAMING + 16) + 16) / _MESSAGE
            check(least <= self.overhead < 1.1, f"{self.overhead} bytes of frames for each byte")

    def rate(self, begin, end):
        """Bits of frames a second between two instants of time.monotonic()."""
        first, last = round((begin - self.start) / _SLICE), round((end - self.start) / _SLICE)
        check(0 <= first < last <= len(self.slices), "not in the time measured")
        return sum(self.slices[first:last]) * self.overhead * 8 / ((last - first) * _SLICE)


class _Limited:
    """A host with many namespaces on its bridge, partners side by side."""

    def __init__(self, stage, count=_COUNT):
        self.host = Host(stage, "h")
        try:
            self.namespaces = [self.host.plug(number) for number in range(1, count + 1)]
        except BaseException:
            self.host.close()
            raise

    def ends(self, count):
        """Processes, connected in pairs, that wait for their time."""
        ends = [_End(self.host, number, namespace)
                for number, namespace in enumerate(self.namespaces[:count], 1)]
        addresses = [end.read() for end in ends]
        return ends, addresses

    @staticmethod
    def connect(ends, addresses):
        """Tells each its partner's address."""
        for end, address in zip(ends, [addresses[i ^ 1] for i in range(len(ends))]):
            end.write(address)
        for end in ends:
            check(end.read() == "ready", "not ready")

    def limit(self, end, *words):
        """`omniverb vnic set`, as the host's administrator."""
        self.host.daemon.set_vnic(end.namespace, *words)

    def finish(self, ends):
        """Lets each look at what its partner sent; all must be well."""
        for end in ends:
            end.results()
        time.sleep(0.2)  # counters are shown that often
        status = self.host.daemon.status()
        for i, end in enumerate(ends):
            end.count(status)
            end.write(ends[i ^ 1].posted)
        for end in ends:
            line = end.read()
            check(line == "well", line)
        for end in ends:
            rest = process.finish(end.process, 20)
            check(end.process.returncode == 0, f"vNIC {end.number}: {rest}")


@contextlib.contextmanager
def _fixture(stage):
    limited = _Limited(stage)
    try:
        yield limited
    finally:
        limited.host.close()


def _every_rate(limited):
    """50 vNICs at 20 Mbit/s, each sending: all within 2 % over 10 s."""
    ends, addresses = limited.ends(_COUNT)
    for end in ends:
        limited.limit(end, "rate", "20mbit", "burst", "64k")
    limited.connect(ends, addresses)
    for end in ends:
        end.write(13)
    limited.finish(ends)
    begin = max(end.start for end in ends) + 1.5
    rates = sorted(end.rate(begin, begin + 10) / 20e6 for end in ends)
    total = process.cpu_seconds(limited.host.daemon.pid)
    print(f"of 20 Mbit/s: least {rates[0]:.2%}, greatest {rates[-1]:.2%}; "
          f"{total:.1f} CPU seconds of the daemon")
    check(rates[0] > 0.98 and rates[-1] < 1.02, f"not within 2 %: {rates[0]:.2%} {rates[-1]:.2%}")


def _changed_under_way(limited):
    """A change counts within 100 ms, and nothing is lost."""
    ends, addresses = limited.ends(2)
    for end in ends:
        limited.limit(end, "rate", "20mbit", "burst", "128k")
    limited.connect(ends, addresses)
    ends[0].write(9)
    ends[1].write(0)
    changes = []
    time.sleep(1.5)
    for rate in (100, 10, 300, 50):
        limited.limit(ends[0], "rate", f"{rate}mbit")
        changes.append((time.monotonic(), rate))
        time.sleep(1.5)
    limited.finish(ends)
    wrong = []
    for at, rate in changes:
        got = ends[0].rate(at + 0.1, at + 1.1) / 1e6
        print(f"{rate} Mbit/s from 100 ms to 1.1 s after the change: {got:.1f}")
        # Packets that are sent again count against the limit too, but are not seen here.
        if not 0.9 < got / rate < 1.04:
            wrong.append((rate, got))
    check(not wrong, f"Mbit/s after a change: wanted, got: {wrong}")


def _nothing_twice(rate, seconds, both):
    """What takes its time because of a limit is not sent again."""
    def run(limited):
        ends, addresses = limited.ends(2)
        for end in ends:
            limited.limit(end, "rate", rate)
        limited.connect(ends, addresses)
        ends[0].write(seconds)
        ends[1].write(seconds if both else 0)
        limited.finish(ends)
        for end in ends[:2 if both else 1]:
            sent, resent = end.packets["sent"], end.packets["resent"]
            print(f"{sent} packets, {resent} of them again")
            # A busy machine may hold up an answer for longer than any network.
            check(sent > 200 and resent <= sent / 50, f"{resent} of {sent} packets twice")
    return Case(f"limits.nothing_twice {rate}{' both' if both else ''}", run)


def _taken_away(limited):
    """Without a limit again, new connections are as fast as ever."""
    ends, addresses = limited.ends(2)
    for rate in ("20mbit", "none"):
        for end in ends:
            limited.limit(end, "rate", rate)
    limited.connect(ends, addresses)
    for end in ends:
        end.write(2)
    limited.finish(ends)
    rates = [end.rate(end.start + 0.5, end.start + 1.5) / 1e6 for end in ends]
    print(f"without a limit: {rates[0]:.0f} and {rates[1]:.0f} Mbit/s")
    check(min(rates) > 60, f"still limited: {rates} Mbit/s")


def groups():
    """One host, one daemon."""
    return [Group("limits", [
        # Timings, which say little on a machine that does something else: only with --slow.
        Case("limits.fifty_vnics", _every_rate, 90, slow=True),
        Case("limits.changed_under_way", _changed_under_way, slow=True),
        Case("limits.taken_away", _taken_away),
        _nothing_twice("10mbit", 2, False), _nothing_twice("10mbit", 2, True),
        _nothing_twice("2mbit", 1, False),
    ], _fixture)]
