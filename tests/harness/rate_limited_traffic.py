"""Runs processes that send as fast as their vNICs' rate limits let them.

For tests and for `make bench`."""

import bisect
import os
import subprocess
import time

from . import process
from .case import Failure, check
from .client_server import ENDLESS
from .simulated_host import Host

# Steps in which a change of rate is looked for.
_STEP = 0.01
_FRAMING = 14 + 20 + 8  # Ethernet, IPv4 and UDP around a packet: they count too, as with tc(8)


class End:
    """A process of programs/rate_limited_writer.c in a namespace."""

    def __init__(self, host, number, namespace, message, depth):
        self.host, self.namespace, self.message = host, namespace, message
        self.inode = os.stat(namespace.path).st_ino
        place = host.bare(namespace, "")
        self.process = place.start("/opt/programs/rate_limited_writer", "one_end", message, depth,
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True)
        self.number = number
        self.start, self.end, self.posted = 0.0, 0.0, 0
        # When messages completed, and how many bytes had by then.
        self.instants, self.totals = [], []
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

    def stop(self):
        """Sends no more."""
        self.write(0)

    def results(self):
        """Reads what it has measured."""
        start, milliseconds, *slices = self.read().split()
        length = int(milliseconds) / 1e3
        self.start = int(start) / 1e9
        self.end = self.start + len(slices) * length
        self.instants, self.totals, total = [self.start], [0], 0
        for number, count in enumerate(map(int, slices)):
            if count:
                total += count
                self.instants.append(self.start + (number + 0.5) * length)
                self.totals.append(total)
        self.posted = int(self.read())

    def count(self, status):
        """Takes from the daemon's status how many bytes of frames, acknowledgements included, went
        with each byte that the program sent."""
        vnic = next(vnic for vnic in status["vnics"] if vnic["namespace"] == self.inode)
        packets = vnic["processes"][0]["qps"][0]["peers"][0]["packets"]
        self.overhead, self.packets = 1, packets or {}  # of a direct link
        if self.posted and packets:
            frames = packets["sent_bytes"] + _FRAMING * packets["sent"]
            self.overhead = frames / (self.posted * self.message)
            # A packet has 16 bytes of headers and 1 KiB at most, the first 16 more.
            least = 1 + (self.message / 1024 * (_FRAMING + 16) + 16) / self.message
            # On a busy machine answers are late, and some packets are sent again.
            again = packets["resent"] * (1024 + 16 + _FRAMING) / (self.posted * self.message)
            check(least <= self.overhead < 1.15 + again,
                  f"{self.overhead} bytes of frames for each byte, {again} of them again")

    def _total(self, at):
        """Bytes until then. Several messages complete with one acknowledgement, but have left one
        by one: so many as there is time between it and the one before."""
        after = bisect.bisect_right(self.instants, at)
        if after == len(self.instants):
            return self.totals[-1]
        share = (at - self.instants[after - 1]) / (self.instants[after] - self.instants[after - 1])
        return self.totals[after - 1] + share * (self.totals[after] - self.totals[after - 1])

    def rate(self, begin, end):
        """Bits of frames a second between two instants of time.monotonic()."""
        check(self.start <= begin < end <= self.end, "not in the time measured")
        sent = self._total(end) - self._total(begin)
        return sent * self.overhead * 8 / (end - begin)


class Limited:
    """A host with many namespaces on its bridge, partners side by side."""

    def __init__(self, stage, count):
        self.host = Host(stage, "h")
        try:
            self.namespaces = [self.host.plug(number) for number in range(1, count + 1)]
        except BaseException:
            self.host.close()
            raise

    def ends(self, count, message=16384, depth=16):
        """Processes, connected in pairs, that wait for their time."""
        ends = [End(self.host, number, namespace, message, depth)
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
        time.sleep(0.3)  # counters are shown that often
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


    def close(self):
        """Ends everything."""
        self.host.close()


def steady(limited, count, rate, seconds):
    """What `count` vNICs get that may all send `rate` bits a second: the rates, and the processor
    seconds that the daemon took, all told."""
    ends, addresses = limited.ends(count)
    for end in ends:
        limited.limit(end, "--rate", f"{rate}bit", "--burst", "64k")
    limited.connect(ends, addresses)
    for end in ends:
        end.write(ENDLESS)
    time.sleep(seconds + 3)
    for end in ends:
        end.stop()
    limited.finish(ends)
    begin = max(end.start for end in ends) + 1.5
    rates = sorted(end.rate(begin, begin + seconds) for end in ends)
    return rates, process.cpu_seconds(limited.host.daemon.pid)


class Change:
    """A change of rate under way: how long it took, what came of it."""

    WINDOW = 0.3

    def __init__(self, end, at, rate):
        self.wanted = rate
        # The first moment from which on the new rate was seen.
        for step in range(100):
            begin = at + step * _STEP
            if abs(end.rate(begin, begin + self.WINDOW) / rate - 1) < 0.05:
                self.took = step * _STEP
                break
        else:
            self.took = float("inf")
        self.got = end.rate(at + 0.1, at + 1.1)


def changes(limited, rates):
    """Changes the rate of one vNIC again and again while it sends; how each went, and how many
    operations there were. Fails if one of them is lost."""
    ends, addresses = limited.ends(2, message=4096, depth=32)
    for end in ends:
        limited.limit(end, "--rate", "20mbit", "--burst", "64k")
    limited.connect(ends, addresses)
    ends[0].write(ENDLESS)
    ends[1].write(0)
    made = []
    time.sleep(1.5)
    for rate in rates:
        made.append((time.monotonic(), rate))
        limited.limit(ends[0], "--rate", f"{rate}bit", "--burst", "64k")
        time.sleep(1.5)
    ends[0].stop()
    limited.finish(ends)
    return [Change(ends[0], at, rate) for at, rate in made], ends[0].posted
