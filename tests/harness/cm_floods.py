"""Floods a host with connection requests from a neighbour.

For tests and for `make bench`."""

import contextlib
import json
import subprocess
import sys

from . import process, roce_packets
from .case import check
from .client_server import ENDLESS


@contextlib.contextmanager
def requests(hosts, attacker, ports, rate=20_000):
    """So many requests a second to these ports of the first host's container, from a namespace with
    the address 9 of the second host's. What comes of it says whether the flood goes on."""
    own = hosts.b.addresses(9)[0].partition("/")[0]
    target = {"address": hosts.server.address, "ports": ports}
    order = {"kind": "requests", "seconds": ENDLESS, "targets": [target], "own": own, "rate": rate}
    running = process.start([*attacker.enter(), sys.executable, roce_packets.__file__,
                             json.dumps(order)],
                            stdout=subprocess.DEVNULL)

    def goes_on():
        check(running.poll() is None, "the flood ended too soon")
    try:
        yield goes_on
        goes_on()
    finally:
        process.end(running)
