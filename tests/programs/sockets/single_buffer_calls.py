#!/usr/bin/python3
"""Calls with one piece of memory, by a connection that is busy: `single_buffer_calls.py WAY`, in
two processes.

* `flags`: what calls say and do that find nothing, too little, more than they want, or an end.
* `slow`: the other end reads little at a time, with pauses, and then for long not at all; a call
  with a limit of time ends by then, though the other end reads on.
* `owes`: who does nothing but send by one connection says that others have ended, too.
"""

import os
import select
import socket
import struct
import sys
import threading
import time

from busy_connection_lanes import BUSY, busy, echo, main

# Messages of eight bytes; so many are read without a pause.
_MESSAGES, _ROW = 40_000, 1500
_LIMIT = 0.1
_OTHERS, _WAIT = 4, 20
# More than is read while a call may wait, and than there is room for.
_LARGE = 64 << 20


def get(end, count):
    """So many bytes, or what there is before the end."""
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


class Way:
    """One connection that is busy, and maybe more."""

    def server(self, listener):
        """It has answered when it goes on."""
        with listener.accept()[0] as end:
            echo(end, BUSY)
            self.serve(end, listener)

    def client(self, port):
        """It was answered when it goes on."""
        with socket.create_connection(("127.0.0.1", port)) as end:
            busy(end)
            self.ask(end)


class Flags(Way):
    """The server sends all back."""

    def serve(self, end, _):
        """Until the end."""
        while part := end.recv(1 << 16):
            end.sendall(part)

    def ask(self, end):
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


class Slow(Way):
    """The server says how much it has read."""

    def __init__(self):
        self.goes = os.pipe()

    def serve(self, end, _):
        """Messages, then nothing for a while, then all."""
        for at in range(_MESSAGES):
            assert get(end, 8) == b"%08d" % at
            if at % _ROW == 0:
                time.sleep(0.0003)
        end.send(b"y")
        while end.recv(1 << 14)[-1:] != b"a":
            time.sleep(0.001)
        end.send(b"y")
        os.read(self.goes[0], 1)
        total = 0
        while part := end.recv(1 << 16):
            assert part == b"z" * len(part)
            total += len(part)
        end.send(b"%08d" % total)

    def ask(self, end):
        """It waits as long as it may."""
        for at in range(_MESSAGES):
            assert end.send(b"%08d" % at) == 8
        assert get(end, 1) == b"y"
        limit(end, socket.SO_SNDTIMEO, _LIMIT)
        began = time.monotonic()
        sent = end.send(bytes(_LARGE))
        assert sent < _LARGE and _LIMIT / 2 < time.monotonic() - began < _LIMIT + 2
        limit(end, socket.SO_SNDTIMEO, 0)
        end.send(b"a")
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


class Owes(Way):
    """The server reads when it is told to, and says when it has come to all ends."""

    def __init__(self):
        self.goes, self.ended = os.pipe(), os.pipe()

    def serve(self, end, listener):
        """One thread reads what is sent all the time, and one the others."""
        others = [listener.accept()[0] for _ in range(_OTHERS)]
        os.read(self.goes[0], 1)

        def drain():
            for other in others:
                while other.recv(1 << 16):
                    pass
                other.close()
            os.write(self.ended[1], b"e")
        threading.Thread(target=drain).start()
        while end.recv(1 << 16):
            pass

    def ask(self, end):
        """It fills what all have in common, closes the others, and sends."""
        others = [socket.create_connection(end.getpeername()) for _ in range(_OTHERS)]
        for other in others:
            other.setblocking(False)
            try:
                while True:
                    other.send(b"x" * 4096)
            except BlockingIOError:
                pass
            other.close()
        os.set_blocking(self.ended[0], False)
        os.write(self.goes[1], b"g")
        until = time.monotonic() + _WAIT
        while True:
            end.send(b"question")
            try:
                assert os.read(self.ended[0], 1) == b"e"
                return
            except BlockingIOError:
                assert time.monotonic() < until, "the others' ends were not said"


if __name__ == "__main__":
    main({"flags": Flags, "slow": Slow, "owes": Owes}[sys.argv[1]]())
