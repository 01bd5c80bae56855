#!/usr/bin/python3
"""Connections to two addresses of one server, which may be carried in different ways, in a process
and in children that it makes: `two_address_server.py serves PORT`, `two_address_server.py asks PORT
KIND`.

KIND says how children are made: `fork`, or `raw`, by the bare system call, which a library may not
see. Each child has connections of its own to both addresses while the parent goes on with its own.
"""

import ctypes
import os
import select
import socket
import sys
import threading

ADDRESSES = "127.0.0.1", "127.0.0.2"
CHILDREN, MESSAGES = 4, 150
_SYS_FORK = 57


def echo(far):
    """Sends back what comes."""
    with far:
        while part := far.recv(4096):
            far.sendall(part)


def serve(port):
    """A thread for each connection, until all are over."""
    threads = []
    with socket.create_server(("0.0.0.0", port)) as listener:
        for _ in range(2 + 2 * CHILDREN):
            threads.append(threading.Thread(target=echo, args=listener.accept()[:1]))
            threads[-1].start()
    for one in threads:
        one.join()


def connected(port):
    """A connection to each address."""
    return [socket.create_connection((address, port)) for address in ADDRESSES]


def talk(both, turns, waits):
    """All that is sent comes back, by whichever way of waiting."""
    for at in range(turns):
        sent = [bytes([at % 251, which]) * (1 + at % 700) for which in range(2)]
        for one, what in zip(both, sent):
            one.sendall(what)
        got = [b"", b""]
        while any(len(g) < len(s) for g, s in zip(got, sent)):
            for which in waits(both):
                got[which] += both[which].recv(4096)
        assert got == sent, at


def by_poll(both):
    """Which of the two can be read."""
    poll = select.poll()
    for one in both:
        poll.register(one, select.POLLIN)
    numbers = [number for number, _ in poll.poll()]
    return [which for which, one in enumerate(both) if one.fileno() in numbers]


def by_select(both):
    """The same."""
    ready = select.select(both, [], [])[0]
    return [which for which, one in enumerate(both) if one in ready]


def by_set(both):
    """The same, of a set that is made for each time."""
    with select.epoll() as own:
        for which, one in enumerate(both):
            own.register(one, select.EPOLLIN)
        numbers = [number for number, _ in own.poll()]
    return [which for which, one in enumerate(both) if one.fileno() in numbers]


def fork(kind):
    """The child's number, or 0 in the child."""
    return os.fork() if kind == "fork" else ctypes.CDLL(None).syscall(_SYS_FORK)


def own_descriptors():
    """How many there are that Python knows nothing of."""
    return sum(int(name) > 100 for name in os.listdir("/proc/self/fd"))


def child(port, parents):
    """Has its own."""
    both = connected(port)
    for waits in (by_select, by_set, by_poll):
        talk(both, MESSAGES, waits)
    # It has not kept its parent's besides.
    assert own_descriptors() <= parents + 1, (parents, own_descriptors())
    for one in both:
        one.close()


def ask(port, kind):
    """Talks, and makes children that do."""
    both = connected(port)
    for waits in (by_poll, by_select, by_set):
        talk(both, MESSAGES, waits)
    for turn in range(CHILDREN):
        own = own_descriptors()
        pid = fork(kind)
        if not pid:
            child(port, own)
            # A raw child's library of threads takes itself for its parent's.
            os._exit(0) if kind == "raw" or turn % 2 else sys.exit(0)
        talk(both, MESSAGES, (by_set, by_poll)[turn % 2])
        assert os.waitpid(pid, 0)[1] == 0
        talk(both, MESSAGES, by_select)
    print("ok")


if __name__ == "__main__":
    if sys.argv[1] == "serves":
        serve(int(sys.argv[2]))
    else:
        ask(int(sys.argv[2]), sys.argv[3])
