#!/usr/bin/python3
"""Goes on using a channel to another network namespace after its end.

    ended_channel_user.py ADDRESS PORT OWN BROKER FLAGS HOW

A server (`unread_count_liar.py serves`) does commands there, one a line. Some come `early`, by a
connection of a channel: HOW `lane`, by a ring of its own; otherwise by frames. As the first byte of
the file FLAGS says, the server is rung for nothing (1), or is sent `late` commands from then on
(2); HOW `opens`: by new connections, too."""

import random
import struct
import sys
import time

import foreign_broker_client
from hostile_channel_peer import Channel
from broker_channels import Broker

_DATA, _LANE = 2, 7
_LANE_WORDS, _LANES, _LANE_LINES, _LANE_RING = 0x85000, 16, 512, 64 << 10
_CHANNEL, _SECONDS = 23, 60
# How far the server has written frames.
_THEIRS = 1024
_EARLY, _LATE = 20, 40


class Sender:
    """A connection of a channel, and commands by it."""

    def __init__(self, channel, own, address, port):
        self.channel, self.names, self.count = channel, (own, address, port), 0
        self.open()
        self.at, self.head = None, 0

    def open(self):
        """Another connection."""
        own, address, port = self.names
        self.number, self.count = 2 * self.count, self.count + 1
        names = foreign_broker_client.mapped(own) + foreign_broker_client.mapped(address)
        ports = struct.pack("HHI", 40000 + self.count, port, 0)
        self.channel.put(1, self.number, 40, names + ports)

    def has_lane(self):
        """What comes next goes by the first lane."""
        self.channel.put(_LANE, self.number, 0)
        self.at = _LANE_WORDS + 2 * _LANES * _LANE_LINES

    def send(self, text):
        """A command; the other end is woken in any case."""
        if self.at is None:
            self.channel.put(_DATA, self.number, len(text), text)
        else:
            start = self.at + self.head
            self.channel.memory[start:start + len(text)] = text
            self.head += len(text)
            self.channel.word(_LANE_WORDS, self.head)
        self.channel.say()


def _until(flags, value):
    until = time.monotonic() + _SECONDS
    while not flags.read_value() >= value:
        assert time.monotonic() < until
        time.sleep(0.01)


class Flags:
    """What the test says."""

    def __init__(self, path):
        self.path = path

    def read_value(self):
        """The first byte."""
        with open(self.path, "rb") as file:
            return (file.read(1) or b"\0")[0]


def main(address, port, own, path, flags, how):
    """See above."""
    port, flags = int(port), Flags(flags)
    broker = Broker(path)
    foreign_broker_client.seen(broker, address, port, own, b"tick\n", b"+")
    kind, _, _, given = foreign_broker_client.reach(broker, 3, address, port, own)
    assert kind == _CHANNEL, kind
    channel = Channel(0, random.Random(1), *given)
    sender = Sender(channel, own, address, port)
    for number in range(_EARLY):
        if number == _EARLY // 2 and how == "lane":
            # Once it was accepted, and answered.
            until = time.monotonic() + _SECONDS
            while struct.unpack_from("Q", channel.memory, _THEIRS)[0] < 24:
                assert time.monotonic() < until
                time.sleep(0.01)
            sender.has_lane()
        sender.send(b"early %d\n" % (number + 1))
        time.sleep(0.01)
    print("going", flush=True)
    _until(flags, 1)
    channel.ring()
    print("rung", flush=True)
    _until(flags, 2)
    for number in range(_LATE):
        if how == "opens":
            sender.open()
        sender.send(b"late %d\n" % number)
        if number == _LATE // 2:
            print("wrote", flush=True)
            time.sleep(0.5)
        time.sleep(0.005)
    print("tried", flush=True)
    time.sleep(_SECONDS)


if __name__ == "__main__":
    main(*sys.argv[1:])
