#!/usr/bin/python3
"""Leaves connections waiting at a process that ends, for others that have the socket.

`unaccepted_connections.py WAY COUNT`: a parent listens and makes two workers, as nginx does. COUNT
connections come to the first one, which accepts the first of them and no other; then, by WAY, it
closes its listening socket and ends, is killed, or closes it and goes on. The second one accepts
all that are left. On the kernel's sockets nobody who was not accepted notices. Some send before,
some after that and some both; some say that they send no more; some close, whose bytes the second
one has as well. The first one is lost with its process."""

import os
import select
import signal
import socket
import sys
import threading

_WAIT = 20
# Connections that are made after that.
_MORE = 5
# More than a frame has; and of all together no more than goes into the ring of a process that takes
# nothing out meanwhile.
_LONG = 20_000


def reply(text):
    """What the second worker answers."""
    return text[::-1]


def first(listener, orders, done):
    """Has its listener told of, accepts one, and goes when it is told to."""
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    poll.poll(0)
    done.send(b"t")
    one = listener.accept()[0]
    text = one.recv(100)
    done.send(b"a")
    how = orders.recv(1)
    if how == b"c":
        listener.close()
        done.send(b"c")
        # Lives on, and may be asked once more.
        orders.recv(1)
        one.sendall(reply(text))
        one.close()
    elif how == b"e":
        listener.close()
    os._exit(0)


def serve(end, totals):
    """One connection, until it has said all."""
    end.settimeout(_WAIT)
    text = bytearray()
    with end:
        while not text.endswith(b"."):
            piece = end.recv(1 << 16)
            if not piece:
                break
            text += piece
        totals.append(len(text))
        try:
            end.sendall(reply(bytes(text)))
        except OSError:
            pass  # it has closed


def second(listener, orders, count):
    """Accepts all of them; each has its answer, and all bytes are counted."""
    orders.recv(1)
    listener.settimeout(_WAIT)
    totals, threads = [], []
    for _ in range(count):
        end = listener.accept()[0]
        threads.append(threading.Thread(target=serve, args=(end, totals)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    orders.send(f"{sum(totals):10}".encode())
    os._exit(0)


def ask(port, count):
    """All of them, and what has been sent by each so far."""
    ends = []
    for at in range(count):
        end = socket.create_connection(("127.0.0.1", port), _WAIT)
        text = b"%d " % at * (1 + at % 7)
        if at % 5 == 4:
            text = text * (_LONG // len(text))
        if at % 3 != 2 or at == 0:
            end.sendall(text)
        else:
            text = b""
        ends.append((end, text))
    return ends


def main(way, count):
    """All of it, by one process that connects."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=4 * count)
    port = listener.getsockname()[1]
    workers, pipes = [], []
    for _ in range(2):
        pair = socket.socketpair()
        other = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            if workers:
                second(listener, pair[1], count - 1 + _MORE)
            first(listener, pair[1], other[1])
        workers.append(pid)
        pipes.append((pair[0], other[0]))
    listener.close()
    pid = os.fork()
    if pid:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    (orders, done), (later, _) = pipes
    done.recv(1)
    ends = ask(port, count)
    assert done.recv(1) == b"a"
    closed, total = [], 0
    for at, (end, text) in enumerate(ends[1:], 1):
        if at % 4 == 1:
            end.sendall(b".")
            ends[at] = (end, text + b".")
            if at % 8 == 1:
                closed.append(at)
                end.close()
                total += len(text) + 1
            else:
                end.shutdown(socket.SHUT_WR)
    match way:
        case "kill":
            os.kill(workers[0], signal.SIGKILL)
        case "end":
            orders.send(b"e")
        case _:
            orders.send(b"c")
            assert done.recv(1) == b"c"
    if way == "wait":
        # Sleeps when it is refused, and is to be woken by what it hears.
        poll = select.poll()
        for end, _ in ends[1:]:
            if end.fileno() >= 0:
                poll.register(end, select.POLLIN)
        later.send(b"g")
        assert poll.poll(_WAIT * 1000)
    else:
        later.send(b"g")
    more = [(socket.create_connection(("127.0.0.1", port), _WAIT), b"") for _ in range(_MORE)]
    for at, (end, text) in enumerate([*ends[1:], *more], 1):
        if at in closed:
            continue
        if not text.endswith(b"."):
            end.sendall(b"more.")
            text += b"more."
        total += len(text)
        got = bytearray()
        while piece := end.recv(1 << 16):
            got += piece
        assert got == reply(text), (at, len(got), len(text))
        end.close()
    said = int(later.recv(10))
    assert said == total, (said, total)
    if way in ("close", "wait"):
        orders.send(b"x")
        assert ends[0][0].recv(1 << 16) == reply(ends[0][1])
    else:
        # It was accepted, and nobody else answers it.
        try:
            assert ends[0][0].recv(1 << 16) == b""
        except ConnectionResetError:
            pass
    print("ok")
    sys.exit(0)


main(sys.argv[1], int(sys.argv[2]))
