#!/usr/bin/python3
"""A light server, and an honest client of it, beside whom somebody lies
(`hostile_channel_peer.py`).

`honest_light_server.py serves PORT`, with the library, sends back what comes: at PORT by a set of
epoll, at the port behind that by threads that sleep in their calls. `honest_light_server.py asks
PORT FILE`, with it, has a connection to each and looks at every byte that comes back, until FILE is
there.
"""

import os
import random
import select
import socket
import sys
import threading
import time

# How long an answer may take.
_ANSWER = 10


def serves(port):
    """Until it is killed."""
    sleeper = socket.create_server(("127.0.0.1", port + 1), backlog=200)
    threading.Thread(target=accepts, args=[sleeper], daemon=True).start()
    listener = socket.create_server(("127.0.0.1", port), backlog=200)
    listener.setblocking(False)
    members, ends = select.epoll(), {}
    members.register(listener, select.EPOLLIN)
    while True:
        for number, _ in members.poll():
            if number == listener.fileno():
                accept_one(listener, members, ends)
            else:
                answer(members, ends, number)


def accept_one(listener, members, ends):
    """Somebody has come, or has gone again."""
    try:
        end = listener.accept()[0]
    except OSError:
        return
    end.setblocking(False)
    ends[end.fileno()] = [end, b""]
    members.register(end, select.EPOLLIN)


def answer(members, ends, number):
    """Sends back what there is, as far as there is room."""
    one = ends[number]
    end, rest = one
    try:
        if not rest:
            rest = end.recv(20_000)
        if not rest:
            raise ConnectionResetError
        try:
            rest = rest[end.send(rest):]
        except BlockingIOError:
            pass
        one[1] = rest
        members.modify(end, select.EPOLLOUT if rest else select.EPOLLIN)
    except BlockingIOError:
        pass
    except OSError:
        members.unregister(end)
        del ends[number]
        end.close()


def accepts(listener):
    """A thread for each."""
    while True:
        end = listener.accept()[0]
        threading.Thread(target=answers, args=[end], daemon=True).start()


def answers(end):
    """Sleeps until something comes, and until there is room."""
    try:
        with end:
            while part := end.recv(20_000):
                end.sendall(part)
    except OSError:
        pass


def asks(port, file):
    """What goes comes back."""
    pick, count, longest = random.Random(1), 0, 0.0
    ends = [socket.create_connection(("127.0.0.1", port + which)) for which in (0, 1)]
    for end in ends:
        end.settimeout(_ANSWER)
    while not os.path.exists(file):
        end = ends[count % 2]
        sent = pick.randbytes(pick.choice([1, 100, 5000, 40_000]))
        begun = time.monotonic()
        end.sendall(sent)
        got = b""
        while len(got) < len(sent):
            part = end.recv(len(sent) - len(got))
            assert part, "the end"
            got += part
        assert got == sent, f"{count}: other bytes"
        longest = max(longest, time.monotonic() - begun)
        count += 1
    print(f"{count} answers, the longest after {longest * 1000:.0f} ms")
    assert count > 20, "hardly any"


if __name__ == "__main__":
    {"serves": serves, "asks": asks}[sys.argv[1]](int(sys.argv[2]), *sys.argv[3:])
