"""PSP by an implementation of its own, of Debian's python3-cryptography: a second opinion on what
rnic/psp sends and takes, and an attacker on its packets.

Run as a program it does what `main` says, in the network namespace that it is started in.
"""

import json
import os
import random
import select
import socket
import struct
import sys
import time

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.cmac import CMAC

PORT, ROCE_PORT = 1000, 4791
_NAME = b"OVPSP\0\x01"
_REQUEST, _ANSWER = b"\x01", b"\x02"
_NONE = bytes(12)
# What the program prints once it listens.
READY = "listens"


def _derived(key, *label):
    """A key for one purpose, from a tenant's."""
    mac = CMAC(AES(key))
    for part in label:
        mac.update(struct.pack(">I", len(part)) + part)
    return mac.finalize()


def _ends(sender, receiver):
    """Both addresses, as IPv6 has them."""
    return b"".join(bytes(10) + b"\xff\xff" + socket.inet_aton(one) for one in (sender, receiver))


def request(key, sender, receiver, salt):
    """A request of `sender` for a key of `receiver`."""
    begin = _NAME + _REQUEST + salt
    cipher = AESGCM(_derived(key, b"omniverb psp request", salt))
    return begin + cipher.encrypt(_NONE, b"", begin + _ends(sender, receiver))


def answer(key, sender, receiver, asked, spi, packet_key, salt):
    """The answer to a request that is good; None to another."""
    begin, proof = asked[:24], asked[24:]
    cipher = AESGCM(_derived(key, b"omniverb psp request", asked[8:24]))
    try:
        cipher.decrypt(_NONE, proof, begin + _ends(sender, receiver))
    except InvalidTag:
        return None
    head = _NAME + _ANSWER + salt
    cipher = AESGCM(_derived(key, b"omniverb psp answer", asked[8:24], salt))
    secret = struct.pack(">I", spi) + packet_key + struct.pack(">I", 3_600_000)
    return head + cipher.encrypt(_NONE, secret, head + asked + _ends(sender, receiver))


def read_answer(key, sender, receiver, asked, message):
    """SPI, key and lifetime in milliseconds of an answer."""
    head, sealed = message[:24], message[24:]
    cipher = AESGCM(_derived(key, b"omniverb psp answer", asked[8:24], head[8:]))
    secret = cipher.decrypt(_NONE, sealed, head + asked + _ends(sender, receiver))
    return struct.unpack(">I", secret[:4])[0], secret[4:20], struct.unpack(">I", secret[20:])[0]


def seal(packet_key, spi, number, payload, sport=0xC123):
    """A packet of PSP around a packet of RoCE."""
    head = struct.pack(">BBBBIQ", 17, 1, 0, 1, spi, number)
    inner = struct.pack(">HHHH", sport, ROCE_PORT, 8 + len(payload), 0) + payload
    return head + AESGCM(packet_key).encrypt(struct.pack(">IQ", spi, number), inner, head)


def opened(packet_key, packet):
    """The SPI, and the packet of RoCE inside."""
    head = packet[:16]
    kind, length, offset, bits, spi, number = struct.unpack(">BBBBIQ", head)
    assert (kind, length, offset, bits) == (17, 1, 0, 1), head
    inner = AESGCM(packet_key).decrypt(struct.pack(">IQ", spi, number), packet[16:], head)
    _, port, size, _ = struct.unpack(">HHHH", inner[:8])
    assert (port, size) == (ROCE_PORT, len(inner)), inner[:8]
    return spi, inner[8:]


def is_message(datagram):
    """Whether it belongs to the handshake."""
    return datagram.startswith(b"OVPSP")


class Peer:
    """A host that encrypts: `own` is its address, `other` the vNIC's."""

    def __init__(self, key, own, other):
        self.key, self.own, self.other = key, own, other
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((own, PORT))
        self.given = 7, os.urandom(16)
        self.sending = None
        self.count = 0

    def send(self, datagram):
        """To the vNIC's port of PSP."""
        self.socket.sendto(datagram, (self.other, PORT))

    def join(self):
        """Asks for a key to send with."""
        asked = request(self.key, self.own, self.other, os.urandom(16))
        self.send(asked)
        message = self.next(5, lambda one: is_message(one) and one[7:8] == _ANSWER)
        assert message, "no answer"
        self.sending = read_answer(self.key, self.own, self.other, asked, message)

    def put(self, payload):
        """Sends a packet of RoCE, encrypted; returns the datagram."""
        datagram = seal(self.sending[1], self.sending[0], self.count, payload)
        self.count += 1
        self.send(datagram)
        return datagram

    def next(self, limit, wanted):
        """The next datagram that is wanted; requests are answered meanwhile."""
        end = time.monotonic() + limit
        while (left := end - time.monotonic()) > 0:
            if not select.select([self.socket], [], [], left)[0]:
                break
            datagram = self.socket.recv(65536)
            if is_message(datagram) and datagram[7:8] == _REQUEST:
                reply = answer(self.key, self.other, self.own, datagram, *self.given,
                               os.urandom(16))
                if reply:
                    self.send(reply)
            if wanted(datagram):
                return datagram
        return None

    def get(self, limit):
        """The next packet of RoCE that comes encrypted; None if none does."""
        datagram = self.next(limit, lambda one: not is_message(one))
        if datagram is None:
            return None
        spi, packet = opened(self.given[1], datagram)
        assert spi == self.given[0], spi
        return packet


def _packets(interface, kind):
    """A packet socket, and what it gets with sender's addresses until standard input is closed and
    nothing is left to read. Says so when it listens."""
    with socket.socket(socket.AF_PACKET, kind, socket.htons(3)) as watched:
        watched.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 << 20)
        watched.bind((interface, 3))
        print(READY, flush=True)
        while True:
            readable = select.select([watched, sys.stdin], [], [])[0]
            if watched in readable:
                yield watched, *watched.recvfrom(65536)
            else:
                return


def datagrams(interface):
    """UDP that passes an interface: headers of UDP, and what follows."""
    for _, packet, _ in _packets(interface, socket.SOCK_DGRAM):
        datagram = _udp(packet)
        if datagram:
            yield datagram


def _udp(packet):
    """What follows the IP header of a UDP packet, of either version; None of another packet."""
    if packet[:1] == b"\x45" and packet[9] == 17 and len(packet) > 44:
        return packet[20:]
    if packet[:1] and packet[0] >> 4 == 6 and packet[6:7] == b"\x11" and len(packet) > 64:
        return packet[40:]
    return None


def ports(datagram):
    """The ports of a UDP header."""
    return struct.unpack(">HH", datagram[:4])


def _watch(order):
    """Counts what passes: PSP by SPI, RoCE in plain, and whether a text is readable in any."""
    spis, plain, messages, readable = {}, 0, 0, 0
    secret = bytes.fromhex(order["secret"])
    for datagram in datagrams(order["interface"]):
        body = datagram[8:]
        if ports(datagram)[1] == ROCE_PORT:
            plain += body[1] & 15 != 15  # version 15: a handshake of two Omniverbs
        elif ports(datagram)[1] == PORT and is_message(body):
            messages += 1
        elif ports(datagram)[1] == PORT:
            spi = struct.unpack(">I", body[4:8])[0]
            spis[spi] = spis.get(spi, 0) + 1
            readable += secret in body
    print(json.dumps({"spis": spis, "plain": plain, "messages": messages, "readable": readable}))


def _again(frame, rng):
    """A frame as it was, and with a bit changed behind its UDP header; with fewer hops to go."""
    whole = bytearray(frame)
    whole[22] = 63
    whole[24:26] = whole[40:42] = b"\0\0"  # checksums: of IP anew, of UDP none
    total = sum(struct.unpack(">10H", whole[14:34]))
    total = (total & 0xffff) + (total >> 16)
    whole[24:26] = struct.pack(">H", ~(total + (total >> 16)) & 0xffff)
    changed = bytearray(whole)
    changed[rng.randrange(42, len(changed))] ^= 1 << rng.randrange(8)
    return whole, changed


def _replay(order):
    """Sends again what leaves by an interface, as it was and with a bit changed; messages of the
    handshake, too."""
    rng, sent = random.Random(1), 0
    for cable, frame, address in _packets(order["interface"], socket.SOCK_RAW):
        packet = frame[14:]
        is_udp = packet[:1] == b"\x45" and packet[9] == 17 and len(packet) > 44
        if not is_udp or address[2] != socket.PACKET_OUTGOING or ports(packet[20:])[1] != PORT:
            continue
        for one in _again(frame, rng):
            try:
                sent += cable.send(one) > 0
            except OSError:
                pass  # no buffer, or a train, which is larger than a packet may be
    print(json.dumps({"sent": sent}))


def main():
    """What the first argument says: {"kind": watch | replay, "interface"}."""
    order = json.loads(sys.argv[1])
    {"watch": _watch, "replay": _replay}[order["kind"]](order)


if __name__ == "__main__":
    main()
