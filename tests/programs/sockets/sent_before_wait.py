#!/usr/bin/python3
"""What was sent comes, though whoever has sent it waits for something else by now:
`sent_before_wait.py serves PORT WAITS`, `sent_before_wait.py asks PORT WAITS`.

WAITS says for what: `accepts` a connection that nobody makes before, `sends` more by another one
than there is room for. Whoever is to get it was told that it is there, and then does what has
a socket's bytes go by the kernel.
"""

import select
import socket
import struct
import sys
import time

MANY = 16 << 20
TURNS = 300
SECONDS = 5


def readable(one, seconds):
    """Whether it can be read."""
    poll = select.poll()
    poll.register(one, select.POLLIN)
    return poll.poll(1000 * seconds)


def connected(address, port):
    """A connection there."""
    return socket.create_connection((address, port))


def serve(port, waits):
    """Answers, and waits."""
    with socket.create_server(("127.0.0.1", port)) as listener, \
            socket.create_server(("127.0.0.2", port + 1)) as more:
        far = listener.accept()[0]
        other = more.accept()[0] if waits == "sends" else None
        while part := far.recv(64):
            if part == b"last":
                break
            far.send(part)
        far.send(b"left")
        if other:
            other.sendall(bytes(MANY))
        else:
            other = more.accept()[0]
        other.recv(1)


def ask(port, waits):
    """Is told, and leaves."""
    with connected("127.0.0.1", port) as near:
        other = connected("127.0.0.2", port + 1) if waits == "sends" else None
        for _ in range(TURNS):
            near.send(b"question")
            readable(near, SECONDS)
            assert near.recv(64) == b"question"
        near.send(b"last")
        until = time.monotonic() + SECONDS
        while not readable(near, 0):
            assert time.monotonic() < until, "nothing comes"
        near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", SECONDS, 0))
        near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        assert near.recv(64) == b"left"
        other = other or connected("127.0.0.2", port + 1)
        left = MANY if waits == "sends" else 0
        while left:
            left -= len(other.recv(1 << 20))
        other.send(b"x")
        other.close()
    print("ok")


if __name__ == "__main__":
    (serve if sys.argv[1] == "serves" else ask)(int(sys.argv[2]), sys.argv[3])
