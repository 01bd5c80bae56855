"""Runs clients of servers.py and servers.js: `clients.py PORT`.

What they find is printed."""

import hashlib
import random
import socket
import struct
import sys
import threading

ADDRESS = ("127.0.0.1", int(sys.argv[1]))
_SIZES = [0, 1, 5, 1000, 4096, 70_000, 1, 400_000]


def _connect():
    near = socket.create_connection(ADDRESS, timeout=20)
    near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return near


def _data(size):
    return bytes(random.Random(size).choices(b"abcdefghijklmnopqrstuvwxyz", k=size))


def _frame(data):
    return struct.pack("!I", len(data)) + data


def _exactly(near, size):
    got = b""
    while len(got) < size:
        part = near.recv(min(size - len(got), 100_000))
        if not part:
            raise EOFError(f"{len(got)} of {size}")
        got += part
    return got


def _answer(near, data):
    return _exactly(near, 4 + len(data)) == _frame(data.upper())


def in_turn():
    """A request, an answer."""
    with _connect() as near:
        found = []
        for size in _SIZES:
            near.sendall(_frame(_data(size)))
            found.append(_answer(near, _data(size)))
        near.shutdown(socket.SHUT_WR)
        return found, near.recv(1)


def at_once():
    """All requests by a thread while answers are read; then the end."""
    with _connect() as near:
        def send():
            for size in _SIZES * 3:
                near.sendall(_frame(_data(size)))
            near.shutdown(socket.SHUT_WR)
        sender = threading.Thread(target=send)
        sender.start()
        found = [_answer(near, _data(size)) for size in _SIZES * 3]
        sender.join()
        return all(found), near.recv(1)


def in_parts():
    """A byte at a time."""
    with _connect() as near:
        for byte in _frame(b"in parts") * 3:
            near.send(bytes([byte]))
        return [_answer(near, b"in parts") for _ in range(3)]


def many():
    """Twenty connections, used in a mixed order, closed in another."""
    nears = [_connect() for _ in range(20)]
    order = random.Random(1)
    found = 0
    for number in range(200):
        near = order.choice(nears)
        data = b"%d" % number * order.randrange(300)
        near.sendall(_frame(data))
        found += _answer(near, data)
    order.shuffle(nears)
    for near in nears:
        near.close()
    return found


def cut():
    """Some are reset, in the middle of a request or with an answer unread; others go on."""
    with _connect() as stays:
        for number in range(6):
            near = _connect()
            near.sendall(_frame(_data(200_000))[:100_000 * (1 + number % 2) + 4])
            near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            near.close()
        stays.sendall(_frame(b"still here"))
        return _answer(stays, b"still here")


def as_file():
    """Lines of stdio: a file made of the socket."""
    with _connect() as near, near.makefile("rwb") as file:
        found = []
        for size in (10, 100_000):
            file.write(_frame(_data(size)))
            file.flush()
            found.append(file.read(4 + size) == _frame(_data(size).upper()))
        return found


def peeked():
    """What is looked at stays; what waits for all waits for all; gathered and scattered."""
    with _connect() as near:
        near.settimeout(None)
        near.sendmsg([b"\0\0\0", b"\6", b"abc", b"def"])
        seen = [near.recv(10, socket.MSG_PEEK | socket.MSG_WAITALL),
                near.recv(10, socket.MSG_WAITALL)]
        near.sendall(_frame(_data(100_000)))
        one, two = bytearray(50_000), bytearray(50_004)
        seen.append([near.recvmsg_into([one, two], 0, socket.MSG_WAITALL)[0],
                     hashlib.sha256(one + two).hexdigest()])
        near.settimeout(0.05)
        try:
            near.recv(1)
        except TimeoutError as late:
            seen.append(repr(late))
        return seen


if __name__ == "__main__":
    for kind in (in_turn, at_once, in_parts, many, cut, as_file, peeked):
        print(kind.__name__, kind(), flush=True)
