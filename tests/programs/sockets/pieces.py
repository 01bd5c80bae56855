#!/usr/bin/python3
"""Calls with one piece of memory, by a connection that is busy: `pieces.py WAY`, in two processes.

* `flags`: what calls say and do that find nothing, too little, more than they want, or an end.
* `slow`: the other end reads little at a time, with pauses, and then for long not at all.
"""

import os
import select
import socket
import struct
import sys
import threading
import time

# As often one has to send and to be answered until it is surely busy.
_BUSY = 60
# Messages of eight bytes; so many are read without a pause.
_MESSAGES, _ROW = 40_000, 1500
_LIMIT = 0.1


def get(end, count):
    """So many bytes."""
    return end.recv(count, socket.MSG_WAITALL)


def limit(end, option, seconds):
    """How long its calls wait."""
    end.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", 0, int(seconds * 1e6)))


def refused(kind, call, *arguments):
    """It fails so."""
    try:
        got = call(*arguments)
    except kind:
        return
    raise AssertionError(f"{got!r} instead of {kind.__name__}")


def echo(end, count):
    """So many messages go back."""
    for _ in range(count):
        end.sendall(get(end, 8))


def busy(end):
    """It is, afterwards."""
    for at in range(_BUSY):
        end.sendall(b"%08d" % at)
        assert get(end, 8) == b"%08d" % at


class Flags:
    """The server sends all back."""

    def server(self, end):
        """Until the end."""
        echo(end, _BUSY)
        while part := end.recv(1 << 16):
            end.sendall(part)

    def client(self, end):
        """One after another."""
        poll, number = select.poll(), end.fileno()
        poll.register(end, select.POLLIN)
        refused(BlockingIOError, end.recv, 8, socket.MSG_DONTWAIT)
        assert os.write(number, b"12345678") == 8 and poll.poll(5000)
        assert end.recv(8, socket.MSG_PEEK) == b"12345678"
        assert end.recv(3) == b"123" and os.read(number, 100) == b"45678"
        later = threading.Timer(0.05, end.send, [b"efgh"])
        end.send(b"abcd")
        later.start()
        assert end.recv(8, socket.MSG_WAITALL) == b"abcdefgh"
        later.join()
        assert end.send(b"") == 0
        end.send(b"ABCDEFGH", socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
        assert get(end, 8) == b"ABCDEFGH"
        end.setblocking(False)
        refused(BlockingIOError, end.recv, 8)
        refused(BlockingIOError, os.read, number, 8)
        refused(BlockingIOError, end.recv, 8, socket.MSG_WAITALL)
        end.setblocking(True)
        limit(end, socket.SO_RCVTIMEO, _LIMIT)
        began = time.monotonic()
        refused(BlockingIOError, end.recv, 8)
        assert time.monotonic() - began >= 0.9 * _LIMIT
        limit(end, socket.SO_RCVTIMEO, 0)
        end.send(b"last")
        end.shutdown(socket.SHUT_WR)
        for _ in range(3):
            refused(BrokenPipeError, end.send, b"more")
            refused(BrokenPipeError, os.write, number, b"more")
        assert get(end, 8) == b"last"
        assert end.recv(8) == b"" and os.read(number, 8) == b""


class Slow:
    """The server says how much it has read."""

    def __init__(self):
        self.goes = os.pipe()

    def server(self, end):
        """Messages, then nothing for a while, then all."""
        echo(end, _BUSY)
        for at in range(_MESSAGES):
            assert get(end, 8) == b"%08d" % at
            if at % _ROW == 0:
                time.sleep(0.0003)
        end.send(b"y")
        os.read(self.goes[0], 1)
        total = 0
        while part := end.recv(1 << 16):
            assert part == b"z" * len(part)
            total += len(part)
        end.send(b"%08d" % total)

    def client(self, end):
        """It waits as long as it may."""
        for at in range(_MESSAGES):
            assert end.send(b"%08d" % at) == 8
        assert get(end, 1) == b"y"
        limit(end, socket.SO_SNDTIMEO, _LIMIT)
        total, began = 0, time.monotonic()
        try:
            while True:
                began = time.monotonic()
                total += end.send(b"z" * 4096)
        except BlockingIOError:
            assert time.monotonic() - began >= 0.9 * _LIMIT
        assert total >= 1 << 16
        os.write(self.goes[1], b"g")
        end.shutdown(socket.SHUT_WR)
        assert int(get(end, 8)) == total


def main(way):
    """A child serves."""
    way = {"flags": Flags, "slow": Slow}[way]()
    address = os.pipe()
    child = os.fork()
    if not child:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            poll = select.poll()
            poll.register(listener, select.POLLIN)
            # It is told of as one of this process.
            poll.poll(0)
            os.write(address[1], b"%d" % listener.getsockname()[1])
            with listener.accept()[0] as end:
                way.server(end)
        sys.exit(0)
    with socket.create_connection(("127.0.0.1", int(os.read(address[0], 10)))) as end:
        busy(end)
        way.client(end)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    print("ok")


main(*sys.argv[1:])
