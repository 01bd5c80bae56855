"""Attacks by claiming names of other processes as soon as there is a daemon.

Usage: attack_claimed_names.py PEER NUMBER... : the first number's owner is at the address PEER."""

import os
import struct
import sys
import time

import daemon_protocol


class Liar(daemon_protocol.Client):
    """A client that says it had a daemon before."""

    def __init__(self):
        body = daemon_protocol.body

        def resuming(name, /, **values):
            if name == "Hello":
                values["resume"] = 1
            return body(name, **values)

        daemon_protocol.body = resuming
        try:
            super().__init__(b"liar", timeout=10)
        finally:
            daemon_protocol.body = body


def _refused(client, name, **values):
    try:
        client.call(name, **values)
    except daemon_protocol.Refused as refused:
        return str(refused) == os.strerror(1)
    return False


def _connected():
    for _ in range(2000):
        try:
            return Liar()
        except (OSError, daemon_protocol.Refused):
            time.sleep(0.005)
    raise TimeoutError("no daemon")


def main(peer, *numbers):
    """Says how many of its lies were refused, and goes on holding what it got."""
    print("ready", flush=True)
    client = _connected()
    numbers = [int(number) for number in numbers]
    kinds = [daemon_protocol.constant(name) for name in ("QP_RC", "QP_UD")]
    tried = refused = 0
    for number in numbers:
        for kind in kinds:
            for ticket in (b"", struct.pack("QQ", number, 1), os.urandom(16)):
                tried += 1
                refused += _refused(client, "CreateQp", qp_type=kind, pd=1, qpn=number,
                                    issued=time.monotonic_ns(), ticket=ticket)
    own = client.call("CreateQp", qp_type=kinds[0], pd=1)["qpn"]
    sgid = next(gid for gid in client.gids() if gid[:12] == daemon_protocol.gid("0.0.0.0")[:12])
    for number in numbers:
        tried += 1
        refused += _refused(client, "ConnectQp", qpn=own, dest_qpn=number, sgid=sgid,
                            dgid=daemon_protocol.gid(peer), resume=1)
        # Not as something that survived it may be said, to no effect.
        client.call("ConnectQp", qpn=own, dest_qpn=number, sgid=sgid,
                    dgid=daemon_protocol.gid(peer))
    print(f"refused {refused} of {tried}", flush=True)
    sys.stdin.read()


main(*sys.argv[1:])
