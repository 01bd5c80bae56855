"""Speaks to the broker of another network namespace without the library.

    foreign_broker_client.py ADDRESS PORT OTHER_PORT OWN BROKER FILTERED

Somebody with the library serves both ports at the address; the network brings connections from OWN
to the first only, and to the other one nobody asks it to. It says what goes wrong, or `sound`. The
file FILTERED is there once the network brings nobody to the first port either."""

import os
import random
import socket
import struct
import sys
import time

from hostile_channel_peer import Channel
from broker_channels import Broker

_PAGE, _RING, _SIDE, _TAIL = 4096, 256 << 10, 1024, 128
_OPEN, _DATA, _CREDIT, _END, _CLOSE = range(1, 6)
_OFFER, _REACH, _CHANNEL_ENDED, _STILL = 2, 7, 8, 10
_CHANNEL, _KNOWN, _NOBODY, _SEEN = 23, 24, 25, 29
# As long as the network is believed, in seconds.
_KEPT = 10


def mapped(address):
    """As one of IPv6."""
    return bytes(10) + b"\xff\xff" + socket.inet_aton(address)


def _words(address):
    return struct.unpack("2Q", mapped(address))


class Far:
    """A channel, with what goes through it."""

    def __init__(self, words, files):
        self.channel, self.read, self.id = Channel(0, random.Random(1), words, files), 0, 0

    def open(self, own, address, port):
        """A connection; whether it was refused, as far as that is seen soon."""
        self.id += 2
        names = mapped(own) + mapped(address) + struct.pack("HHI", 40000, port, 0)
        self.channel.put(_OPEN, self.id, 40, names)
        self.channel.put(_DATA, self.id, 5, b"hello")
        self.channel.say()
        until = time.monotonic() + 5
        while time.monotonic() < until:
            for kind, number, body in self.frames():
                if number == self.id and kind == _DATA:
                    assert body == b"hello", body
                    return "answered"
                if number == self.id and kind == _CLOSE:
                    return "refused"
            time.sleep(0.001)
        return "nothing"

    def frames(self):
        """What has come."""
        memory = self.channel.memory
        head = struct.unpack_from("Q", memory, _SIDE)[0]
        while self.read < head:
            word = self._bytes(self.read, 8)
            kind, count, number = word[0], int.from_bytes(word[1:4], "little"), word[4:]
            length = count if kind in (_OPEN, _DATA) else 0
            yield kind, int.from_bytes(number, "little"), self._bytes(self.read + 8, length)
            self.read += 8 + (length + 7 & ~7)
        self.channel.word(_TAIL, self.read)

    def _bytes(self, at, length):
        place = _PAGE + _RING
        whole = [self.channel.memory[place + (at + step) % _RING] for step in range(length)]
        return bytes(whole)


def reach(broker, tag, address, port, own):
    """All that is said to that: kinds, the name, until when; and descriptors."""
    broker.say([_REACH, tag, *_words(address), port, *_words(own)])
    words, files = broker.hear()
    # What was offered may be answered as well.
    while words[0] not in (_CHANNEL, _KNOWN, _NOBODY):
        for file in files:
            os.close(file)
        words, files = broker.hear()
    if words[0] == _CHANNEL:
        known, _ = broker.hear()
        assert known[:3] == (_KNOWN, tag, words[2]), known
        return words[0], words[2], known[3], (words, files)
    return words[0], words[2], words[3], None


def seen(broker, address, port, own, asks=b"hello", answer=b"hello"):
    """Connects, and shows that to the broker, until it says that it was seen."""
    for tag in range(100):
        with socket.create_connection((address, port), 10, (own, 0)) as end:
            broker.say([_OFFER, tag, 0, 0], end)
            end.sendall(asks)
            assert end.recv(5) == answer
            time.sleep(0.1)
            broker.calls.setblocking(False)
            try:
                while True:
                    words, files = broker.hear()
                    for file in files:
                        os.close(file)
                    if words[0] == _SEEN:
                        assert words[1:] == (*_words(address), port), words
                        return
            except BlockingIOError:
                pass
            finally:
                broker.calls.settimeout(20)
    raise AssertionError("it is not seen")


def main(address, port, other, own, path, filtered):
    """Each way that is none."""
    port, other = int(port), int(other)
    broker = Broker(path)
    assert reach(broker, 1, address, port, own)[0] == _NOBODY, "nobody has been seen"
    seen(broker, address, port, own)
    for to, where, source in ((address, other, own), (address, port, "10.0.0.77"),
                              (address, port, address), ("10.0.0.78", port, own)):
        assert reach(broker, 2, to, where, source)[0] == _NOBODY, (to, where, source)
    kind, name, until, given = reach(broker, 3, address, port, own)
    assert kind == _CHANNEL, kind
    left = until / 1e9 - time.monotonic()
    assert 0 < left <= _KEPT, left
    far = Far(*given)
    assert reach(broker, 4, address, port, own)[:2] == (_KNOWN, name)
    assert far.open(own, address, port) == "answered"
    for source, to, where in ((own, address, other), ("10.0.0.77", address, port),
                              (address, address, port), (own, own, port),
                              ("127.0.0.1", "127.0.0.1", port)):
        assert far.open(source, to, where) == "refused", (source, to, where)
    assert far.open(own, address, port) == "answered"
    # What one says of a channel that nobody gave harms who says it.
    stranger = Broker(path)
    stranger.say([_STILL, name, *_words(own), *_words(address)])
    stranger.say([_STILL, name ^ 1, *_words(own), *_words(address)])
    stranger.say([_CHANNEL_ENDED, name, 0, 0])
    # When that has been heard.
    assert reach(stranger, 6, address, port, "10.0.0.77")[0] == _NOBODY
    assert far.open(own, address, port) == "answered"
    assert reach(broker, 7, address, port, own)[:2] == (_KNOWN, name), "it has been forgotten"
    # One that the network has brought there now proves nothing later.
    held = socket.create_connection((address, port), 10, (own, 0))
    print("going", flush=True)
    while not os.path.exists(filtered):
        time.sleep(0.05)
    last = time.monotonic() + 2 * _KEPT
    while reach(broker, 5, address, port, own)[0] != _NOBODY and time.monotonic() < last:
        time.sleep(0.2)
    assert time.monotonic() < last, "nobody was seen for long"
    assert far.open(own, address, port) == "refused", "nobody was seen for long"
    broker.say([_OFFER, 1000, 0, 0], held)
    held.sendall(b"hello")
    assert held.recv(5) == b"hello"
    time.sleep(0.5)
    assert reach(broker, 8, address, port, own)[0] == _NOBODY, "an old connection proves it"
    print("sound", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
