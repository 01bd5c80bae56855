"""Floods both ends of a connection between two hosts with unwanted packets.

For tests and for `make bench`."""

import contextlib
import subprocess
import sys

from . import process
from .case import check
from .client_server import ENDLESS

# Port and kind of packets. Nobody reads what arrives at the sink: that is what it costs to be
# flooded at all.
SINK, NOISE, ALIKE = (4790, 1), (4791, 0), (4791, 1)

_LISTEN = ("import socket, time\n"
           "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
           f"s.bind(('0.0.0.0', {SINK[0]}))\n"
           "print(flush=True)\n"
           "time.sleep(86400)")


@contextlib.contextmanager
def sinks(hosts):
    """A socket on both sides that nobody reads."""
    with contextlib.ExitStack() as stack:
        for place in (hosts.server, hosts.client):
            running = process.start([*place.namespace.enter(), sys.executable, "-c", _LISTEN],
                                    stdout=subprocess.PIPE)
            stack.callback(process.end, running)
            running.stdout.read(1)
        yield


@contextlib.contextmanager
def flood(hosts, attacker, kind, rate):
    """So many packets a second from the namespace `attacker` to either side, from the first moment
    to the last."""
    port, alike = kind
    running = []
    try:
        for place in (hosts.server, hosts.client):
            running.append(process.start(
                [*attacker.enter(), hosts.stage.programs / "udp_flood", "datagrams", place.address,
                 ENDLESS, rate, alike, port], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True))
        for one in running:
            check(one.stdout.readline() == "begun\n", "the flood does not begin")
        yield
        check(all(one.poll() is None for one in running), "the flood ended too soon")
    finally:
        for one in running:
            process.end(one)
