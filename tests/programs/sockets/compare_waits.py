"""Ways of `compare_with_kernel.py`: what waits, and what listens."""

import ctypes
import fcntl
import os
import pathlib
import resource
import select
import socket
import threading
import time

from lock_step_processes import LOOPBACK, tried


def _epoll_of(number):
    return select.epoll.fromfd(number)


def _sets_server(role):
    """A set by its duplicates: of all kinds, and whichever is closed."""
    role.pair()
    number = role.end.fileno()
    kinds = {"dup": os.dup, "dup2": lambda one: os.dup2(one, 200), "fcntl": _fcntl_dup}
    for name, duplicate in kinds.items():
        for joins_by, waits_by in ((0, 1), (1, 0), (1, 1)):
            first = select.epoll()
            both = [first, _epoll_of(duplicate(first.fileno()))]
            both[joins_by].register(number, select.EPOLLIN)
            role.meet()
            role.say(name, joins_by, waits_by, both[waits_by].poll(10) == [(number, 1)])
            other = 1 - waits_by
            both[other].close()
            role.say("one is closed", both[waits_by].poll(10) == [(number, 1)])
            role.say(role.end.recv(9))
            role.say("nothing", both[waits_by].poll(0.01))
            both[waits_by].modify(number, select.EPOLLIN | select.EPOLLOUT)
            role.say("changed", both[waits_by].poll(1) == [(number, 4)])
            both[waits_by].unregister(number)
            role.say("out", both[waits_by].poll(0.01))
            both[waits_by].close()
            role.meet()


def _sets_client(role):
    role.pair()
    for _ in range(9):
        role.end.sendall(b"some")
        role.meet()
        role.meet()


def _fcntl_dup(number):
    return fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 100)


def _time_left(number, seconds):
    """How many descriptors `select` tells of, and whether it says what is left of its time."""
    bits, left = (ctypes.c_uint64 * 16)(), (ctypes.c_long * 2)(seconds, 0)
    bits[number // 64] |= 1 << number % 64
    told = ctypes.CDLL(None).select(number + 1, bits, None, None, left)
    return told, 0 < left[0] * 1_000_000 + left[1] < seconds * 1_000_000


def _nested_server(role):
    """A set in a set, and a set that `poll` and `select` wait for."""
    role.pair()
    number = role.end.fileno()
    inner, middle, outer = select.epoll(), select.epoll(), select.epoll()
    poll = select.poll()
    inner.register(number, select.EPOLLIN)
    middle.register(inner.fileno(), select.EPOLLIN)
    outer.register(middle.fileno(), select.EPOLLIN)
    poll.register(inner.fileno(), select.POLLIN)
    sets = [one.fileno() for one in (inner, middle, outer)]

    def shown():
        told = [one.poll(0.02) for one in (inner, middle, outer)]
        wanted = [(number, 1)], [(sets[0], 1)], [(sets[1], 1)]
        return ([one == want for one, want in zip(told, wanted)], [len(one) for one in told],
                [event for _, event in poll.poll(20)], len(select.select(sets, [], [], 0.02)[0]))

    role.say("nothing", shown())
    role.meet()
    role.say("waits", outer.poll(10) == [(sets[1], 1)])
    role.say("something", shown())
    role.say(role.end.recv(9), shown())
    role.meet()
    role.say("by poll", [event for _, event in poll.poll(10_000)], role.end.recv(9))
    role.meet()
    role.say("time left", _time_left(number, 10))
    role.say("by select", select.select([sets[1]], [], [], 10)[0] == [sets[1]], role.end.recv(9))
    middle.modify(sets[0], select.EPOLLIN | select.EPOLLONESHOT)
    role.meet()
    role.say("once", middle.poll(10) == [(sets[0], 1)], middle.poll(0.02))
    middle.modify(sets[0], select.EPOLLIN | select.EPOLLONESHOT)
    role.say("anew", middle.poll(10) == [(sets[0], 1)], role.end.recv(9))
    middle.unregister(sets[0])
    middle.register(sets[0], select.EPOLLIN)
    role.meet()
    role.say("joined", outer.poll(10) == [(sets[1], 1)])
    inner.close()
    role.say("closed", outer.poll(0.02), role.end.recv(9))


def _nested_client(role):
    role.pair()
    for _ in range(5):
        role.meet()
        # The other one may sleep by then.
        time.sleep(0.05)
        role.end.sendall(b"some")


def _arrivals_server(role):
    """A listening socket in sets: level, edge, once, in several, by duplicates, from before."""
    role.pair()
    other = socket.socket()
    other.bind((LOOPBACK, 0))
    early = select.epoll()
    early.register(other.fileno(), select.EPOLLIN)
    # Tells that it does not listen.
    early.poll(0)
    other.listen(9)
    role.meet(b"%d" % other.getsockname()[1])
    role.say("early", early.poll(10) == [(other.fileno(), 1)])
    other.accept()[0].close()
    number, twin = other.fileno(), os.dup(other.fileno())
    sets = [select.epoll() for _ in range(5)]
    flags = (0, select.EPOLLET, select.EPOLLONESHOT, select.EPOLLEXCLUSIVE, 0)
    for one, flag in zip(sets, flags):
        one.register(twin if one is sets[4] else number, select.EPOLLIN | flag)

    def told():
        return [[] if one.closed else [event for _, event in one.poll(0.02)] for one in sets]

    role.say("none", told())
    role.meet()
    sets[0].poll(10)
    role.say("one", told(), told())
    role.meet()
    _waits(lambda: sets[1].poll(0.02))
    role.say("another", told())
    sets[2].modify(number, select.EPOLLIN | select.EPOLLONESHOT)
    sets[1].modify(number, select.EPOLLIN | select.EPOLLET)
    role.say("asked anew", told(), told())
    sets[0].close()
    for _ in range(2):
        other.accept()[0].close()
    role.say("accepted", told())
    sets[4].unregister(twin)
    os.close(twin)
    role.meet()
    sets[3].poll(10)
    role.say("the rest", [[event for _, event in one.poll(0.02)] for one in sets[1:4]])
    other.close()
    role.say("closed", [[event for _, event in one.poll(0.02)] for one in sets[1:]])


def _waits(ready):
    for _ in range(2000):
        if ready():
            return
        time.sleep(0.005)
    raise AssertionError("nothing comes")


def _arrivals_client(role):
    role.pair()
    port = int(role.meet())
    ends = [socket.create_connection((LOOPBACK, port))]
    for _ in range(3):
        role.meet()
        ends.append(socket.create_connection((LOOPBACK, port)))


def _stops_server(role):
    """A listening socket that is shut down, under a thread that sleeps there, and listens again."""
    role.pair()
    gave = []

    def accepts():
        gave.append(tried(role.listener.accept))

    def polls():
        poll = select.poll()
        poll.register(role.listener, select.POLLIN)
        gave.append([hex(event) for _, event in poll.poll(20_000)])

    def epolls():
        with select.epoll() as epoll:
            epoll.register(role.listener, select.EPOLLIN)
            gave.append([hex(event) for _, event in epoll.poll(20)])

    for what in (accepts, polls, epolls):
        thread = threading.Thread(target=what)
        thread.start()
        task = pathlib.Path(f"/proc/self/task/{thread.native_id}/stat")
        _waits(lambda: task.read_text().rsplit(")", 1)[1].split()[0] == "S")
        role.say("down", tried(role.listener.shutdown, socket.SHUT_RDWR))
        thread.join(20)
        role.say(what.__name__, gave.pop() if gave else "nothing", thread.is_alive())
        role.say("then", tried(role.listener.accept))
        role.meet()
        role.meet()
        # Its port was not asked for, so it may have another one now.
        role.listener.listen(5)
        role.meet(b"%d" % role.listener.getsockname()[1])
        with role.listener.accept()[0] as end:
            role.say("listens again", end.recv(9))
        role.meet()


def _stops_client(role):
    role.pair()
    for _ in range(3):
        role.meet()
        role.say("to what is down", tried(role.connect))
        role.meet()
        role.port = int(role.meet())
        with role.connect() as end:
            end.sendall(b"hello")
            role.meet()


def _full(role):
    """At the limit of descriptors, with one that waits."""
    role.pair()
    if role.name == "client":
        role.meet()
        end = role.connect()
        role.say(end.send(b"x"))
        role.meet()
        role.meet()
        role.say(end.recv(9))
        return
    role.meet()
    poll = select.poll()
    poll.register(role.listener, select.POLLIN)
    role.say("waits", [event for _, event in poll.poll(10_000)])
    least = os.dup(0)
    os.close(least)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (least, before[1]))
    role.say(tried(socket.socket), tried(role.listener.accept), tried(os.dup, 0))
    role.listener.setblocking(False)
    role.say(tried(role.listener.accept), [event for _, event in poll.poll(0)])
    resource.setrlimit(resource.RLIMIT_NOFILE, before)
    role.meet()
    end = role.listener.accept()[0]
    end.setblocking(True)
    role.say(end.recv(9))
    end.sendall(b"there")
    role.meet()


def _full_early(role):
    """At the limit of descriptors before any connection has come."""
    role.pair()
    if role.name == "client":
        role.meet()
        end = role.connect()
        role.say(end.send(b"x"))
        role.meet()
        role.meet()
        role.say(end.recv(9))
        return
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    least = os.dup(0)
    os.close(least)
    resource.setrlimit(resource.RLIMIT_NOFILE, (least, before[1]))
    role.say("nothing waits", tried(role.listener.accept))
    role.meet()
    role.meet()
    role.say("one waits", tried(role.listener.accept))
    resource.setrlimit(resource.RLIMIT_NOFILE, before)
    role.meet()
    role.listener.setblocking(True)
    end = role.listener.accept()[0]
    end.setblocking(True)
    role.say(end.recv(9))
    end.sendall(b"there")


WAYS = {
    "sets": (_sets_server, _sets_client),
    "nested": (_nested_server, _nested_client),
    "arrivals": (_arrivals_server, _arrivals_client),
    "stops": (_stops_server, _stops_client),
    "full": (_full, _full),
    "full_early": (_full_early, _full_early),
}
