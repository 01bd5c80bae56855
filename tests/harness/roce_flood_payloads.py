"""Makes payloads for UDP port 4791 that a neighbour could send.

One without any privilege has one address, one with `CAP_NET_RAW` all."""

import contextlib
import os
import random
import re
import socket
import struct
import subprocess

from . import process, roce_packets
from .case import check

_BEGINS = b"\xff\x0f" + bytes(10)
_SPORT = 0xC123
_WHOLE_PACKET = 65536  # no port of a sender (udp_flood.c)
_QP1, _QKEY_QP1 = 1, 0x80010000
# Messages of the connection manager: MRA, REJ, REP, RTU, DREQ, DREP, SIDR_REP.
_ANSWERS = (0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x18)
_REQUESTS = (0x10, 0x17)


def handshakes(_rng, _own, _to):
    """Questions and replies of numbers that nobody drew, and what only begins like them."""
    return [(0, _BEGINS + b"omniver1" + os.urandom(16) + bytes(4)),
            (0, _BEGINS + b"omniver2" + os.urandom(20)),
            (0, _BEGINS + os.urandom(28))]


def noise(rng, _own, _to):
    """Random bytes of any length."""
    return [(0, os.urandom(rng.choice([0, 1, 16, 40, 40, 64, 280])))]


def _checked(own, to, packet):
    if ":" in to:
        body = roce_packets.packet("0.0.0.0", "0.0.0.0", *packet, sport=_SPORT)[28:-4]
        return _SPORT, body + roce_packets.check6(own, to, body, _SPORT)
    return (_SPORT, roce_packets.packet(own, to, *packet, sport=_SPORT)[28:])


def management(rng, own, to):
    """Messages of connection managers: requests, and answers that nobody asked for."""
    found = []
    for attribute in (*_ANSWERS, *_REQUESTS):
        mad = struct.pack(">BBBBIQHHI", 1, 7, 2, 3, 0, rng.getrandbits(64), attribute, 0, 0)
        found.append(_checked(own, to, (roce_packets.UD_SEND, _QP1, rng.getrandbits(24),
                                        roce_packets.deth(_QKEY_QP1, 1), mad + rng.randbytes(232))))
    return found


def strangers(rng, own, to):
    """First datagrams of ever new queue pairs to numbers that may be somebody's, and first packets
    of connections."""
    qpn = rng.choice([rng.getrandbits(12), rng.getrandbits(24)])
    first = roce_packets.deth(rng.getrandbits(32), rng.getrandbits(24))
    return [_checked(own, to, (roce_packets.UD_SEND, qpn, rng.getrandbits(24), first,
                               b"\xdd" * 32)),
            _checked(own, to, (roce_packets.SEND_ONLY, qpn, rng.getrandbits(24), b"",
                               b"\xdd" * 32)),
            _checked(own, to, (roce_packets.CNP, qpn, 0, b"", bytes(16)))]


KINDS = {"handshakes": handshakes, "noise": noise, "management": management,
         "strangers": strangers}


def _address(rng, to, others):
    """One that nothing has in the network of containers, or one of these that are not its own."""
    others = [one for one in others if one != to]
    if others and rng.random() < 0.5:
        return rng.choice(others)
    return ("fd77::" if ":" in to else "10.77.0.") + str(rng.randrange(100, 250))


def _whole(own, to, sport, payload):
    """An IP packet, of version 4 with no checksums, as a raw socket takes it."""
    if ":" in to:
        return roce_packets.packet6(own, to, payload, sport or _SPORT)
    length = 28 + len(payload)
    return (struct.pack(">BBHHHBBH", 0x45, 0, length, 0, 0x4000, 64, 17, 0)
            + socket.inet_aton(own) + socket.inet_aton(to)
            + struct.pack(">HHHH", sport or _SPORT, roce_packets.PORT, length - 20, 0) + payload)


def lines(kinds, own, targets, each=256, others=()):
    """What `flood payloads` reads: many different ones of these kinds to all targets; each from
    another forged address if `own` is None, half of them from addresses of `others`."""
    rng, found = random.Random(7), []
    while len(found) < each * len(targets):
        for to in targets:
            for kind in kinds:
                source = own or _address(rng, to, others)
                for port, payload in KINDS[kind](rng, source, to):
                    if own is None:
                        port, payload = _WHOLE_PACKET, _whole(source, to, port, payload)
                    found.append(f"{to} {port} {payload.hex() or '00'}")
    # Those of one socket leave together.
    found.sort(key=lambda line: line.split()[1])
    return "\n".join(found[:4096]) + "\n\n"


@contextlib.contextmanager
def flood(stage, namespace, kinds, own, targets, rate, others=()):
    """Floods from the address `own`, or from forged ones, as `lines` has them, with so many packets
    a second in all, if the machine has the time for that."""
    running = process.start([*namespace.enter(), stage.programs / "udp_flood", "payloads", rate],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)
    try:
        running.stdin.write(lines(kinds, own, targets, others=others))
        running.stdin.flush()
        yield
        check(running.poll() is None, "the flood has ended")
        text = process.finish(running, 30)
        found = re.search(r"(\d+) packets (\d+) ms", text)
        check(found, text)
        count, milliseconds = map(int, found.groups())
        print(f"{count // milliseconds} packets a ms to {len(targets)}: {', '.join(kinds)}")
        check(count > 2 * milliseconds, f"that was no flood: {text}")
    finally:
        process.end(running)
