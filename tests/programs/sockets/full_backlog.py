#!/usr/bin/python3
"""Runs a light server that does not accept for a while, an honest client, and a greedy peer.

`full_backlog.py serves PORT FOLDER BACKLOG [ADDRESS]`, with the library, listens, accepts nothing
until FOLDER/go is there, answers then whatever is asked, says where each connection comes from, and
ends when FOLDER/end is there. It writes its own memory (kilobytes) to FOLDER/memory.

`full_backlog.py asks PORT FOLDER COUNT`, with the library, opens so many connections at a time,
each of which is to be answered.

`full_backlog.py opens PORT BROKER FOLDER`, `full_backlog.py fills ...` and `full_backlog.py names
...` are the peer, without the library: it opens connections without end and reads no answer; sends
as much as it may and more to hundreds that are not accepted; names addresses that are not this
host's."""

import os
import pathlib
import random
import re
import select
import socket
import struct
import sys
import time

from hostile_channel_peer import (_ACCEPTED, _CLOSE, _HEAD, _OPEN, _PAGE, _RING, _SIDE, Channel,
                                  reached)
from broker_channels import Broker

# How long anything may take.
_LIMIT = 60
# Opens of the peer: more than its ring of answers has room for.
_OPENS = 45_000
# Connections that are filled, and bytes for each.
_FILLED, _BYTES = 600, 128 << 10
_PART = 16384


def memory():
    """Kilobytes of this process's own."""
    status = pathlib.Path("/proc/self/status").read_text(encoding="ascii")
    return int(re.search(r"RssAnon:\s+(\d+)", status)[1])


def serves(port, folder, backlog, address="0.0.0.0"):
    """See above."""
    folder = pathlib.Path(folder)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    dual = {"dualstack_ipv6": True} if address == "::" else {}
    listener = socket.create_server((address, port), family=family, backlog=int(backlog), **dual)
    listener.setblocking(False)
    wanted, ends, accepted = select.epoll(), {}, 0
    while not (folder / "end").exists():
        # What has come is looked at, and not accepted.
        select.select([listener], [], [], 0)
        if not ends and not (folder / "go").exists():
            write(folder / "memory", memory())
            time.sleep(0.002)
            continue
        try:
            while True:
                end, name = listener.accept()
                accepted += 1
                print(name[0], flush=True)
                end.setblocking(False)
                ends[end.fileno()] = end
                wanted.register(end, select.EPOLLIN)
        except BlockingIOError:
            pass
        for number, _ in wanted.poll(0.02):
            answers(wanted, ends, number)
        write(folder / "memory", memory())
    print(f"{accepted} accepted", flush=True)


def write(path, what):
    """In one step."""
    path.with_suffix(".new").write_text(str(what), encoding="ascii")
    path.with_suffix(".new").rename(path)


def answers(wanted, ends, number):
    """As much as came."""
    end = ends[number]
    try:
        if part := end.recv(1 << 16):
            if part[:1] == b"?":
                end.send(b"!")
            return
    except BlockingIOError:
        return
    except OSError:
        pass
    wanted.unregister(end)
    del ends[number]
    end.close()


def asks(port, folder, count):
    """All at a time: those that wait do so together."""
    until, ends = time.monotonic() + _LIMIT, []
    for _ in range(int(count)):
        end = socket.create_connection(("127.0.0.1", port), timeout=_LIMIT)
        end.settimeout(_LIMIT)
        end.sendall(b"?")
        ends.append(end)
    (pathlib.Path(folder) / "asked").touch()
    for end in ends:
        assert end.recv(1) == b"!", "no answer"
    assert time.monotonic() < until
    for end in ends:
        end.close()
    print(f"{count} answers")


def taken(channel, limit=_LIMIT):
    """The server has taken out all that was put."""
    until = time.monotonic() + limit
    while time.monotonic() < until:
        if channel.is_taken(0.2):
            return True
        if channel.ring() < 0:
            return False
    return False


def opens(channel, folder):
    """Until the server takes no more: the answers are not read."""
    done = 0
    while done < _OPENS:
        for _ in range(1000):
            channel.open(2 * done, channel.port)
            done += 1
        channel.say()
        if not taken(channel, 3):
            break
    print(f"{done} opened", flush=True)
    (folder / "full").touch()
    # Then it does so again and again.
    while True:
        channel.ring()
        time.sleep(0.05)


def fills(channel, folder):
    """As many bytes as a connection could have."""
    for number in range(0, 2 * _FILLED, 2):
        channel.open(number, channel.port)
        channel.say()
        for part in range(_BYTES // _PART):
            channel.data(number, _PART)
            channel.say()
            if part % 8 == 7:
                assert taken(channel), "the channel is gone"
        taken(channel)
        channel.read()
    print("filled", flush=True)
    (folder / "full").touch()
    time.sleep(10 * _LIMIT)


def heard(channel, number, accepted):
    """What the server says of a connection: whether it was refused. `accepted`: the next one
    waits to be accepted, so all before it were heard of."""
    head = struct.unpack_from("Q", channel.memory, _SIDE + _HEAD)[0]
    said = {}
    for at in range(0, min(head, _RING), 8):
        word = struct.unpack_from("Q", channel.memory, _PAGE + _RING + at)[0]
        said[word >> 32] = word & 0xff
    assert accepted in said, said
    return said.get(number) == _CLOSE


def names(channel, folder):
    """Of the connections that it opens only the last may come."""
    del folder
    mapped = lambda address: bytes(10) + b"\xff\xff" + socket.inet_aton(address)
    six = lambda address: socket.inet_pton(socket.AF_INET6, address)
    wrong = [(mapped("8.8.8.8"),) * 2, (mapped("0.0.0.0"),) * 2, (six("2001:db8::1"),) * 2,
             (six("::"),) * 2, (six("::127.0.0.1"),) * 2, (mapped("255.255.255.255"),) * 2,
             (mapped("224.0.0.1"),) * 2, (six("fe80::1"),) * 2, (six("::8.8.8.8"),) * 2,
             (mapped("8.8.8.8"), mapped("127.0.0.1")), (six("::1"), mapped("127.0.0.1"))]
    right = (mapped("127.0.0.9"), mapped("127.0.0.1"))
    for number, (source, to) in enumerate([*wrong, right]):
        ports = struct.pack("HHI", 40009, channel.port, 0)
        channel.put(_OPEN, 2 * number, 40, source + to + ports)
    channel.say()
    until = time.monotonic() + _LIMIT
    last = 2 * len(wrong)
    while time.monotonic() < until:
        try:
            came = [number for number in range(len(wrong)) if not heard(channel, 2 * number, last)]
            break
        except AssertionError:
            channel.ring()
            time.sleep(0.05)
    else:
        raise AssertionError("the last one was not accepted")
    assert not came, f"{came} came"
    print("ok")


if __name__ == "__main__":
    what, port, *rest = sys.argv[1:]
    if what in ("serves", "asks"):
        {"serves": serves, "asks": asks}[what](int(port), *rest)
    else:
        broker, folder = rest
        attack = Channel(int(port), random.Random(1), *reached(Broker(broker), int(port)))
        {"opens": opens, "fills": fills, "names": names}[what](attack, pathlib.Path(folder))
