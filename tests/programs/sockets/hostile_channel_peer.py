#!/usr/bin/python3
"""A liar at a channel to a light server (`honest_light_server.py`), without the library.

`hostile_channel_peer.py PORT BROKER FIRST COUNT` speaks to the broker by hand, is given channels,
and does in each what no correct process would, as the seeds FIRST.. say; then it leaves one full of
what cannot be answered, says "rests", and stays until it is killed.
"""

import os
import random
import socket
import struct
import sys
import time

from broker_channels import BYTES, Broker, share

_PAGE, _RING, _SIDE = 4096, 256 << 10, 1024
_HEAD, _TAIL, _SLEEPS = 0, 128, 256
_OPEN, _DATA, _CREDIT, _END, _CLOSE, _ACCEPTED, _LANE, _HOME = range(1, 9)
# Words of the lanes by which this side sends, and those by which the server does; rings.
_LANES, _LANE_WORDS, _LANE_LINES, _LANE_RING = 16, 0x85000, 512, 64 << 10
_LANE_TAIL, _LANE_AWAITED, _LANE_LEFT = 128, 256, 384
_CHANNEL, _KNOWN, _NOBODY, _CHANNEL_ENDED = 23, 24, 25, 8
_WINDOW, _IDS = 64 << 10, 1 << 21


class Channel:
    """One to the server, of which this is side 0."""

    def __init__(self, port, pick, words, files):
        self.port, self.pick = port, pick
        self.name = words[2]
        assert words[3] & 1 == 0, words
        self.file = files[0]
        self.memory, self.bell = share(files)
        self.bell.setblocking(False)
        self.head = 0
        self.opened = []

    def close(self):
        """Memory and socket."""
        self.memory.close()
        os.close(self.file)
        self.bell.close()

    def word(self, at, value):
        """A word of the page."""
        struct.pack_into("Q", self.memory, at, value & (1 << 64) - 1)

    def put(self, kind, number, count=0, body=b""):
        """A frame as it is, or as it would be."""
        frame = struct.pack("Q", kind | (count & 0xffffff) << 8 | (number & 0xffffffff) << 32)
        frame += body + bytes(-len(body) % 8)
        for start in range(0, len(frame), 4096):
            part = frame[start:start + 4096]
            at = self.head % _RING
            first = part[:_RING - at]
            self.memory[_PAGE + at:_PAGE + at + len(first)] = first
            self.memory[_PAGE:_PAGE + len(part) - len(first)] = part[len(first):]
            self.head += len(part)

    def open(self, number, port=None):
        """Somebody connects."""
        address = bytes(10) + b"\xff\xff\x7f\0\0\1"
        port = self.port + self.pick.randrange(2) if port is None else port
        self.put(_OPEN, number, 40, 2 * address + struct.pack("HHI", 40009, port, 0))
        self.opened.append(number)

    def data(self, number, count):
        """Bytes."""
        self.put(_DATA, number, count, bytes(count))

    def some(self):
        """An id that is likely in use."""
        return self.pick.choice(self.opened or [0])

    def say(self):
        """What was put is there."""
        self.word(_HEAD, self.head)
        self.ring()

    def ring(self, what=b"\1"):
        """Whether it has room."""
        try:
            return self.bell.send(what)
        except BlockingIOError:
            return 0
        except OSError:
            return -1

    def is_taken(self, limit=0.05):
        """All that was put is, or the server has given up."""
        until = time.monotonic() + limit
        while time.monotonic() < until:
            tail = struct.unpack_from("Q", self.memory, _SIDE + _TAIL)[0]
            if tail == self.head:
                return True
            self.ring()
            time.sleep(0.0005)
        return False

    def read(self):
        """As if all that has come was read."""
        self.word(_TAIL, struct.unpack_from("Q", self.memory, _SIDE + _HEAD)[0])


def reached(broker, port):
    """One that is new."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        words, files = broker.reach(1, "127.0.0.1", port)
        if words[0] == _CHANNEL:
            return words, files
        if words[0] == _KNOWN:
            broker.say([_CHANNEL_ENDED, words[2], 0, 0])
        time.sleep(0.01)
    raise AssertionError(f"no channel: {words}")


def noise(channel):
    """Random bytes, and a random head."""
    pick = channel.pick
    start, length = pick.randrange(_RING - 4096), pick.randrange(1, 4096)
    channel.memory[_PAGE + start:_PAGE + start + length] = pick.randbytes(length)
    channel.word(_HEAD, pick.choice([pick.getrandbits(64), pick.randrange(_RING),
                                   pick.randrange(_RING) & ~7]))


def words(channel):
    """Heads and tails that run away, go back, or are none."""
    pick = channel.pick
    channel.open(0)
    channel.say()
    for _ in range(pick.randrange(1, 20)):
        at = pick.choice([_HEAD, _TAIL, _SIDE + _HEAD, _SIDE + _TAIL, pick.randrange(512) * 8])
        value = channel.head + pick.choice([0, 8, -8, 3, _RING, _RING + 8, -_RING, 1 << 63,
                                          pick.getrandbits(64), pick.randrange(_RING)])
        channel.word(at, value)
        channel.ring()


def crossing(channel):
    """A frame that is longer than what is there."""
    channel.open(0)
    channel.put(_DATA, 0, 16384)
    channel.say()


def any_frames(channel):
    """All kinds, with any ids and counts; mostly some that could be."""
    pick = channel.pick
    is_wild = pick.random() < 0.3
    for _ in range(pick.randrange(1, 300)):
        kind = pick.choice([_OPEN, _OPEN, _DATA, _DATA, _CREDIT, _END, _CLOSE])
        if pick.random() < 0.01:
            kind = _ACCEPTED
        number = pick.getrandbits(32) if is_wild else channel.some()
        if kind == _OPEN:
            channel.open(len(channel.opened) * 2 if pick.random() < 0.95 else number,
                       None if pick.random() < 0.8 else pick.getrandbits(16))
        elif kind == _DATA:
            channel.data(number, pick.choice([1, 7, 100, pick.randrange(1, 5000)]))
        else:
            count = {_CREDIT: pick.choice([1, 4096]), _CLOSE: pick.randrange(2)}.get(kind, 0)
            channel.put(kind, number, pick.getrandbits(24) if pick.random() < 0.02 else count)
        if pick.random() < 0.1 and channel.head > _RING // 2:
            break
    channel.say()


def greedy(channel):
    """Data without credit."""
    channel.open(0)
    for _ in range(5):
        channel.data(0, 16384)
    channel.say()
    for _ in range(20):
        if not channel.is_taken(0.01):
            break
        channel.data(0, 16384)
        channel.say()


def credits(channel):
    """More credit than there can be."""
    channel.open(0)
    for _ in range(channel.pick.choice([1, 1000, 20_000])):
        channel.put(_CREDIT, 0, channel.pick.choice([1, _WINDOW, 0xffffff]))
    channel.say()


def closes(channel):
    """Close, and again, also of what waits or was never there; nonsense behind what is well."""
    pick = channel.pick
    for number in range(0, 2 * pick.randrange(1, 400), 2):
        channel.open(number)
        if pick.random() < 0.3:
            channel.data(number, pick.randrange(1, 200))
        if pick.random() < 0.2:
            channel.put(_END, number)
    channel.say()
    if pick.random() < 0.7:
        channel.is_taken()
        time.sleep(0.002)
    for number in channel.opened:
        channel.put(_CLOSE, number, pick.randrange(2))
    if pick.random() < 0.5:
        channel.put(_CLOSE, channel.some(), 0)
    channel.say()


def opens(channel):
    """Ids that are in use, are the other side's, or are too high."""
    channel.open(0)
    channel.say()
    channel.is_taken()
    number = channel.pick.choice([0, 1, _IDS - 2, _IDS, (1 << 32) - 2, _IDS - 1])
    channel.open(number)
    channel.say()


def again(channel):
    """Ids that are used again at once."""
    for _ in range(channel.pick.randrange(50)):
        channel.open(4)
        channel.data(4, 5)
        channel.put(_CLOSE, 4, 1)
        channel.say()
        if not channel.is_taken():
            break
        channel.read()
        if channel.pick.random() < 0.5:
            time.sleep(0.001)


def lanes(channel):
    """Lanes that connections have and have no more, in any order, with words that make sense or
    none."""
    pick = channel.pick
    for number in range(0, 2 * pick.randrange(1, 40), 2):
        channel.open(number)
        channel.data(number, 3)
    channel.say()
    channel.is_taken()
    heads = [0] * _LANES
    for _ in range(pick.randrange(1, 60)):
        lane = pick.randrange(_LANES)
        kind = pick.choice([_LANE, _LANE, _HOME, _DATA, _END, _CLOSE])
        if kind == _DATA:
            channel.data(channel.some(), pick.randrange(1, 500))
        else:
            count = {_LANE: lane, _HOME: pick.choice([0, 1, 100, _LANE_RING])}.get(kind, 0)
            channel.put(kind, channel.some(), count)
        if pick.random() < 0.5:
            channel.say()
        words = _LANE_WORDS + lane * _LANE_LINES
        heads[lane] += pick.choice([1, 8, 100, _LANE_RING])
        if pick.random() < 0.05:
            heads[lane] = pick.choice([_LANE_RING + 1, pick.getrandbits(64)])
        channel.word(words, heads[lane])
        theirs = words + _LANES * _LANE_LINES
        word = pick.choice([_LANE_TAIL, _LANE_AWAITED, _LANE_LEFT])
        if pick.random() < 0.2:
            channel.word(theirs + word, pick.choice([0, 1, pick.getrandbits(64)]))
        if pick.random() < 0.3:
            channel.ring()
            time.sleep(0.0005)
    channel.say()
    channel.is_taken()


def nonsense_at_the_end(channel):
    """A lane with more than it can have, of one that ends."""
    channel.open(0)
    channel.data(0, 3)
    channel.put(_LANE, 0, 5)
    channel.say()
    channel.is_taken()
    channel.word(_LANE_WORDS + 5 * _LANE_LINES, channel.pick.choice([_LANE_RING + 1, 1 << 63]))
    channel.put(*channel.pick.choice([(_END, 0), (_CLOSE, 0), (_CLOSE, 0, 1), (_HOME, 0)]))
    channel.say()
    channel.is_taken()


def backlog(channel):
    """More than may wait, faster than anybody accepts."""
    for number in range(0, 2 * channel.pick.choice([100, 1500, 3000]), 2):
        channel.open(number)
    channel.say()
    channel.is_taken(0.02)


def flood(channel):
    """Opens that are refused, whose answers are never read."""
    number = 0
    for _ in range(12):
        for _ in range(4000):
            channel.open(number, 1)
            number += 2
        channel.say()
        if not channel.is_taken(0.02):
            return


def full(channel):
    """Answers that find no room: what was sent is to come back, and is not read."""
    for number in range(0, 40, 2):
        channel.open(number)
    for _ in range(4):
        for number in range(0, 40, 2):
            channel.data(number, channel.pick.choice([1, 3000, 6000]))
        channel.say()
        if not channel.is_taken(0.01):
            break
    for number in range(0, 40, 2):
        channel.put(_CREDIT, number, 1)
        channel.put(channel.pick.choice([_END, _CREDIT, _CLOSE]), number, 0)
    channel.say()


def flags(channel):
    """Wants to be woken, all the time."""
    channel.open(0)
    channel.say()
    until = time.monotonic() + 0.03
    while time.monotonic() < until:
        channel.word(_SLEEPS, channel.pick.choice([0, 1, 2, 3, channel.pick.getrandbits(64)]))
        channel.word(_SIDE + _SLEEPS, channel.pick.choice([0, 1, 2, 3]))
        channel.data(0, 3)
        channel.say()
        channel.read()


def stuffs(channel):
    """All that the bell takes."""
    until = time.monotonic() + 0.03
    while time.monotonic() < until:
        channel.ring(bytes(channel.pick.choice([1, 65, 4096])))


def half(channel):
    """Half of the bell is closed, and things go on."""
    channel.open(0)
    channel.data(0, 100)
    channel.say()
    how = channel.pick.choice([socket.SHUT_RD, socket.SHUT_WR, socket.SHUT_RDWR])
    try:
        channel.bell.shutdown(how)
    except OSError:  # The server's end is closed already.
        return
    time.sleep(0.001)
    channel.data(0, 100)
    channel.say()


def gone(channel):
    """The bell is closed in the middle of it."""
    any_frames(channel)
    channel.bell.close()
    for _ in range(20):
        channel.data(0, 100)
        channel.word(_HEAD, channel.head)


def ones(channel):
    """All of it is 0xff, at once or behind something."""
    if channel.pick.random() < 0.5:
        channel.open(0)
        channel.say()
    channel.memory[:] = b"\xff" * BYTES
    channel.ring()


def less(channel):
    """The memory is made shorter, or longer: it cannot be."""
    for length in (4096, 2 * BYTES):
        try:
            os.ftruncate(channel.file, length)
        except PermissionError:
            continue
        raise AssertionError("it can be")


WAYS = [noise, words, crossing, any_frames, any_frames, any_frames, greedy, credits, closes, closes,
        lanes, lanes, lanes, nonsense_at_the_end, opens, again, backlog, flood, full, flags, stuffs,
        half, gone, ones, less]


def lies(port, path, first, count):
    """So many channels, and one that is left full."""
    broker, begun = Broker(path), time.monotonic()
    done = {}
    for seed in range(int(first), int(first) + int(count)):
        pick = random.Random(seed)
        channel = Channel(port, pick, *reached(broker, port))
        for way in pick.sample(WAYS, pick.choice([1, 1, 2, 3])):
            way(channel)
            done[way.__name__] = done.get(way.__name__, 0) + 1
        if pick.random() < 0.5:
            channel.ring()
            time.sleep(pick.choice([0, 0.001, 0.005]))
        broker.say([_CHANNEL_ENDED, channel.name, 0, 0])
        channel.close()
    print(f"{count} channels in {time.monotonic() - begun:.1f} s: {done}")
    channel = Channel(port, random.Random(0), *reached(broker, port))
    full(channel)
    flood(channel)
    print("rests", flush=True)
    time.sleep(600)


if __name__ == "__main__":
    lies(int(sys.argv[1]), *sys.argv[2:])
