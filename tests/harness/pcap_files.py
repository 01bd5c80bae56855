"""Reads pcap files and checks the conversations in them."""

import ipaddress
import itertools
import struct
import zlib
from dataclasses import dataclass, field

from .case import Failure, check

# Operations, without the transport service; see the opcodes of RC.
SEND, WRITE, READ, COMPARE_SWAP, FETCH_ADD = "send", "write", "read", "compare_swap", "fetch_add"
_FIRST, _MIDDLE, _LAST, _ONLY = range(4)
_REQUESTS = {0x00: (SEND, _FIRST), 0x01: (SEND, _MIDDLE), 0x02: (SEND, _LAST), 0x03: (SEND, _LAST),
             0x04: (SEND, _ONLY), 0x05: (SEND, _ONLY), 0x06: (WRITE, _FIRST),
             0x07: (WRITE, _MIDDLE), 0x08: (WRITE, _LAST), 0x09: (WRITE, _LAST),
             0x0A: (WRITE, _ONLY), 0x0B: (WRITE, _ONLY), 0x0C: (READ, _ONLY),
             0x13: (COMPARE_SWAP, _ONLY), 0x14: (FETCH_ADD, _ONLY), 0x16: (SEND, _LAST),
             0x17: (SEND, _ONLY)}
_IMMEDIATE = (0x03, 0x05, 0x09, 0x0B)
_READ_RESPONSES = range(0x0D, 0x11)
ACKNOWLEDGE, ATOMIC_ACKNOWLEDGE = 0x11, 0x12
RC, UC, UD = 0, 1, 3


@dataclass
class Packet:
    """One packet, as it was sent."""

    time: float
    source: str
    destination: str
    port: int
    opcode: int
    solicited: bool
    qpn: int
    psn: int
    asks: bool
    headers: bytes
    payload: bytes
    length: int  # bytes of payload it had; more than `payload` has if it was cut
    cut: bool

    @property
    def service(self):
        """RC, UC or UD."""
        return self.opcode >> 5

    @property
    def operation(self):
        """The opcode without the service."""
        return self.opcode & 0x1F

    @property
    def syndrome(self):
        """Of an answer."""
        return self.headers[0]


def read(path, most=None):
    """The packets of a capture file, or the first of them; their ICRCs and lengths are right, or
    this fails."""
    frames = itertools.islice(_frames(path.read_bytes()), most)
    return [_packet(time, frame, length) for time, frame, length in frames]


def count(path):
    """How many packets a capture file has."""
    return sum(1 for _ in _frames(path.read_bytes()))


def requesters(path):
    """Who asked for anything, in a capture file of IPv4: addresses as they are in the packets."""
    frames = (frame for _, frame, _ in _frames(path.read_bytes()))
    return {frame[26:30] for frame in frames if frame[42] != 0x11}


def _frames(data):
    magic, _, _, _, _, _, link = struct.unpack_from("=IHHiIII", data)
    check((magic, link) == (0xA1B23C4D, 1), f"no such file: {magic:#x}, {link}")
    at = 24
    while at < len(data):
        seconds, nanoseconds, kept, length = struct.unpack_from("=IIII", data, at)
        frame = data[at + 16:at + 16 + kept]
        check(len(frame) == kept, "the file ends in a packet")
        at += 16 + kept
        yield seconds + nanoseconds / 1e9, frame, length


def _packet(time, frame, length):
    six = frame[12:14] == b"\x86\xdd"
    ip, udp = frame[14:54 if six else 34], frame[54 if six else 34:][:8]
    body = frame[62 if six else 42:]
    spoken = length - (62 if six else 42)
    sport, dport, udp_length, _ = struct.unpack(">HHHH", udp)
    check(dport == 4791 and sport >= 0xC000 and udp_length == spoken + 8, "wrong UDP header")
    if six:
        addresses = ip[8:24], ip[24:40]
        check(struct.unpack(">H", ip[4:6])[0] == udp_length, "wrong IP length")
    else:
        addresses = ip[12:16], ip[16:20]
        check(struct.unpack(">H", ip[2:4])[0] == udp_length + 20, "wrong IP length")
    source, destination = (str(ipaddress.ip_address(address)) for address in addresses)
    opcode, flags, _, qpn, psn = struct.unpack_from(">BBHII", body)
    behind = 12 + _extension(opcode)
    pad = flags >> 4 & 3
    cut = len(body) < spoken
    payload = body[behind:] if cut else body[behind:len(body) - 4 - pad]
    if not cut:
        check(_icrc(ip, udp, body[:-4], six) == struct.unpack("<I", body[-4:])[0], "wrong ICRC")
    return Packet(time, source, destination, sport, opcode, bool(flags & 0x80), qpn & 0xFFFFFF,
                  psn & 0xFFFFFF, bool(psn >> 31), body[12:behind], payload,
                  spoken - behind - pad - 4, cut)


def _extension(opcode):
    """Bytes of headers behind the BTH."""
    operation = opcode & 0x1F
    length = 8 if opcode >> 5 == UD else 0
    length += 16 if operation in (0x06, 0x0A, 0x0B, 0x0C) else 0
    length += 4 if operation in (*_IMMEDIATE, 0x16, 0x17, 0x0D, 0x0F, 0x10, 0x11, 0x12) else 0
    length += {0x12: 8, 0x13: 28, 0x14: 28}.get(operation, 0)
    return length


def _icrc(ip, udp, body, six):
    masked = bytearray(ip)
    if six:
        masked[0] |= 0x0F
        masked[1:4] = b"\xff\xff\xff"
        masked[7] = 0xFF
    else:
        masked[1] = masked[8] = masked[10] = masked[11] = 0xFF
    return zlib.crc32(b"\xff" * 8 + masked + udp[:6] + b"\xff\xff" + body[:4] + b"\xff" + body[5:])


@dataclass
class Message:
    """A request and what became of it."""

    kind: str
    psn: int
    count: int = 1  # packets, and so sequence numbers
    payload: bytes = b""
    immediate: bytes = None
    invalidated: int = None
    address: int = None
    length: int = None  # of a WRITE or READ, as its header says
    numbers: tuple = ()  # swap or add, and compare
    original: int = None  # what an atomic found
    syndromes: list = field(default_factory=list)

    @property
    def acknowledged(self):
        """Whether it succeeded, as far as the file says."""
        return self.syndromes[-1:] == [0x1F]


class Conversation:
    """What one queue pair asks of another: requests one way, answers the other way."""

    def __init__(self):
        self.messages, self.open, self.next, self.repeats = [], None, None, 0
        self.mtu_bytes = 1024

    def request(self, packet):
        """Takes the next packet of the requester."""
        kind, place = _REQUESTS[packet.operation]
        begins, ends = place in (_FIRST, _ONLY), place in (_LAST, _ONLY)
        if begins and self.messages and packet.psn == self.messages[-1].psn:
            # Said again, after the peer had no receive for it.
            check(0x20 <= self.messages[-1].syndromes[-1] < 0x40, "said again for no reason")
            self.repeats += 1
            self.messages.pop()
        else:
            check(self.next in (None, packet.psn), f"PSN {packet.psn:#x}, not {self.next or 0:#x}")
        check(begins == (self.open is None), f"opcode {packet.opcode:#x} in the wrong place")
        if begins:
            self.open = Message(kind, packet.psn, 0)
        message = self.open
        message.count += 1
        message.payload += packet.payload
        self._headers(message, packet)
        self.next = packet.psn + 1 & 0xFFFFFF
        if kind == READ:
            message.count = max(1, -(-message.length // self.mtu_bytes))
            self.next = packet.psn + message.count & 0xFFFFFF
        if packet.service == RC:
            check(packet.asks == ends, "an acknowledgement is asked for at the end of a message")
        if ends:
            self.messages.append(message)
            self.open = None
            if kind == WRITE and not packet.cut:
                check(len(message.payload) == message.length, "a WRITE of another length")

    def _headers(self, message, packet):
        headers = packet.headers[8:] if packet.service == UD else packet.headers
        operation = packet.operation
        if operation in (0x06, 0x0A, 0x0B, 0x0C):
            message.address, _, message.length = struct.unpack_from(">QII", headers)
            headers = headers[16:]
        if operation in _IMMEDIATE:
            message.immediate = headers[:4]
        if operation in (0x16, 0x17):
            message.invalidated = struct.unpack(">I", headers)[0]
        if operation in (0x13, 0x14):
            message.address, _, swap, compare = struct.unpack(">QIQQ", headers)
            message.numbers = (swap, compare)

    def answer(self, packet):
        """Takes the next packet of the responder: about a request that was not answered yet."""
        def concerns(message):
            inside = (packet.psn - message.psn & 0xFFFFFF) < message.count
            return inside and not message.acknowledged
        open_ones = [message for message in self.messages if concerns(message)]
        check(open_ones, f"an answer {packet.opcode:#x} to nothing, PSN {packet.psn:#x}")
        message = open_ones[-1]
        operation = packet.operation
        last = message.psn + message.count - 1 & 0xFFFFFF
        if operation in _READ_RESPONSES:
            check(message.kind == READ, "READ data for something else")
            index = packet.psn - message.psn & 0xFFFFFF
            check(packet.cut or index * self.mtu_bytes == len(message.payload), "data out of order")
            message.payload += packet.payload
            ends = operation in (0x0F, 0x10)
            check(ends == (packet.psn == last), "the end of READ data in the wrong place")
            if ends:
                message.syndromes.append(packet.syndrome)
                check(packet.cut or len(message.payload) == message.length, "READ data missing")
        elif operation == ATOMIC_ACKNOWLEDGE:
            check(message.kind in (COMPARE_SWAP, FETCH_ADD), "a result for something else")
            message.original = struct.unpack(">Q", packet.headers[4:])[0]
            message.syndromes.append(packet.syndrome)
        else:
            check(operation == ACKNOWLEDGE, f"{packet.opcode:#x} is no answer")
            if packet.syndrome == 0x1F:
                check(message.kind in (SEND, WRITE), "an acknowledgement without data")
                check(packet.psn == last, "a message is acknowledged at its end")
            message.syndromes.append(packet.syndrome)


class SharedPort(Failure):
    """Two connections have one UDP source port, which is made of their numbers (of 16384): whose an
    answer is cannot be told by that."""


def conversations(packets, mtu=1024):
    """What is asked, by (address, QPN) of who is asked: of a connected queue pair by its one peer,
    and of one for datagrams by the pair of both."""
    ends = {}  # of a connection: all its packets come from one port
    for packet in packets:
        if packet.service != UD:
            ends.setdefault(_connection(packet), set()).add((packet.destination, packet.qpn))
    if any(len(both) > 2 for both in ends.values()):
        raise SharedPort(f"two connections in one: {ends}")
    found = {}
    for packet in packets:
        key, take = (packet.destination, packet.qpn), Conversation.request
        if packet.service == UD:
            sender = struct.unpack(">I", packet.headers[4:8])[0] & 0xFFFFFF
            key = (*key, packet.source, sender)
        elif packet.operation not in _REQUESTS:
            (key,), take = ends[_connection(packet)] - {key}, Conversation.answer
        conversation = found.setdefault(key, Conversation())
        conversation.mtu_bytes = mtu
        take(conversation, packet)
    return found


def _connection(packet):
    return (frozenset([packet.source, packet.destination]), packet.port)


def in_order(packets):
    """True if no packet is older than the one before it."""
    return all(one.time <= other.time for one, other in zip(packets, packets[1:]))
