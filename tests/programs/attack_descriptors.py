"""Descriptors that stop whoever closes, empties or looks at them."""

import ctypes
import fcntl
import os
import socket
import struct
import time

import session
from attacking import attack, datagrams, going_on, leave, link, send_and_forget
from session import Client, message

_LIBC = ctypes.CDLL(None, use_errno=True)

def lingering(seconds=30):
    """A TCP socket with data that nobody takes; who closes it last waits."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        ours = socket.create_connection(server.getsockname())
        theirs, _ = server.accept()
    ours.setblocking(False)
    try:
        while True:
            ours.send(bytes(1 << 16))
    except BlockingIOError:
        pass
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, seconds))
    return ours, theirs


def others():
    """Descriptors of other kinds; whoever takes one for what it is not errs."""
    listener = socket.create_server(("127.0.0.1", 0))
    yield from (os.dup(file) for file in (listener.fileno(), *os.pipe(), *os.pipe()))
    for path, flags in (("/proc/self/exe", os.O_PATH), ("/", os.O_PATH), ("/tmp", os.O_RDONLY),
                        ("/dev/null", os.O_RDWR), ("/dev/zero", os.O_RDWR),
                        ("/dev/full", os.O_RDWR), ("/dev/ptmx", os.O_RDWR | os.O_NOCTTY),
                        ("/proc/self/mem", os.O_RDWR), ("/proc/self/ns/net", os.O_RDONLY),
                        ("/proc/self/maps", os.O_RDONLY)):
        try:
            yield os.open(path, flags)
        except OSError:
            pass
    yield os.pidfd_open(os.getpid())
    yield from _of_the_kernel()
    for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM, socket.SOCK_SEQPACKET):
        yield from (end.detach() for end in socket.socketpair(socket.AF_UNIX, kind))
    yield session.memory(1 << 32)
    yield session.memory(0)


def _of_the_kernel():
    for number, words in ((290, (0, 0)), (291, (0,)), (283, (1, 0)), (294, (0,)), (447, (0,))):
        file = _LIBC.syscall(number, *words)  # eventfd2, epoll, timerfd, inotify, memfd_secret
        if file >= 0:
            yield file


def _over(open_one, data):
    """Lingering sockets, one message after the other, on connections of which each is closed."""
    sent, kept = 0, []
    while going_on():
        pairs = [lingering() for _ in range(3)]
        kept += [theirs for _, theirs in pairs]
        try:
            to = open_one()
        except (OSError, session.Refused):
            continue
        sent += send_and_forget(to, data, [ours.fileno() for ours, _ in pairs],
                                 [ours for ours, _ in pairs] + [to])
        time.sleep(0.02)
    return sent


@attack
def lingering_before_hello():
    """With a first message that is none."""
    return _over(session.connect, b"no message")


@attack
def lingering_with_hello():
    """Where a statistics area is expected, and more than one."""
    data = message("Hello", role=session.constant("ROLE_VERBS"))
    return _over(session.connect, data)


@attack
def lingering_in_the_backlog():
    """On connections that are closed before they are accepted."""
    sent, kept = 0, []
    while going_on():
        waiting = []
        for _ in range(20):
            ours, theirs = lingering()
            kept.append(theirs)
            to = session.connect()
            sent += send_and_forget(to, b"x", [ours.fileno()], [ours])
            waiting.append(to)
        for to in waiting:
            to.close()
    return sent


@attack
def lingering_with_calls():
    """Beside calls and answers of a session that is open."""
    sent, kept = 0, []
    client = Client()
    while going_on():
        for to, data in ((client.calls, message("QueryGids")),
                         (client.events, message("Adopted", token=7))):
            ours, theirs = lingering()
            kept.append(theirs)
            try:
                session.send(to, data, [ours.fileno()])
                sent += 1
            except OSError:
                client = Client()
            leave(ours)
        time.sleep(0.02)
    return sent


@attack
def other_descriptors():
    """Every kind of descriptor there is, everywhere one is taken."""
    sent = 0
    while going_on():
        client = Client()
        hello = message("Hello", role=session.constant("ROLE_VERBS"))
        for file in others():
            try:
                with session.connect() as first:
                    session.send(first, hello, [file])
                session.send(client.calls, message("QueryGids"), [file])
                session.receive(client.calls)
                session.send(client.events, message("Adopted", token=7), [file])
                sent += 3
            except OSError:
                client.close()
                client = Client()
            finally:
                os.close(file)
        client.close()
    return sent


# ---- descriptors over what a link brings ----

@attack
def lingering_over_wakers(source, destination, peer):
    """Over all descriptors that came with the link to somebody, or to the engine."""
    client = Client()
    _, files = link(client, source, datagrams(client), destination, int(peer))
    sent, kept = 0, []
    while going_on():
        ours, theirs = lingering()
        kept.append(theirs)
        for file in files:
            try:
                with socket.socket(fileno=os.dup(file)) as to:
                    to.setblocking(False)
                    session.send(to, b"x", [ours.fileno()])
            except OSError:
                pass
        leave(ours)
        sent += 1
        time.sleep(0.01)
    return sent


@attack
def wakers_full(source, destination, peer):
    """Fills, empties and changes whatever came with a link, all the time."""
    client = Client()
    _, files = link(client, source, datagrams(client), destination, int(peer))
    did = 0
    while going_on():
        for file in files:
            for flags in (0, os.O_NONBLOCK):
                try:
                    fcntl.fcntl(file, fcntl.F_SETFL, os.O_NONBLOCK)
                    for _ in range(50):
                        os.write(file, struct.pack("Q", (1 << 64) - 2))
                except OSError:
                    pass
                try:
                    fcntl.fcntl(file, fcntl.F_SETFL, flags)
                except OSError:
                    pass
            did += 1
        time.sleep(0.001)
    return did
