"""Attacks by descriptors that block a process that closes, empties or polls them."""

import ctypes
import fcntl
import itertools
import os
import select
import socket
import struct
import time

import daemon_protocol
from attack_helpers import attach, attack, datagrams, going_on, leave, link, send_and_forget
from daemon_protocol import Client, message

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
    yield daemon_protocol.memory(1 << 32)
    yield daemon_protocol.memory(0)


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
        except (OSError, daemon_protocol.Refused):
            continue
        sent += send_and_forget(to, data, [ours.fileno() for ours, _ in pairs],
                                 [ours for ours, _ in pairs] + [to])
        time.sleep(0.02)
    return sent


@attack
def lingering_before_hello():
    """With a first message that is none."""
    return _over(daemon_protocol.connect, b"no message")


@attack
def lingering_with_hello():
    """With the first message, where a descriptor was expected once, and more than one."""
    data = message("Hello", role=daemon_protocol.constant("ROLE_VERBS"))
    return _over(daemon_protocol.connect, data)


@attack
def lingering_in_the_backlog():
    """On connections that are closed before they are accepted."""
    sent, kept = 0, []
    while going_on():
        waiting = []
        for _ in range(20):
            ours, theirs = lingering()
            kept.append(theirs)
            to = daemon_protocol.connect()
            sent += send_and_forget(to, b"x", [ours.fileno()], [ours])
            waiting.append(to)
        for to in waiting:
            to.close()
    return sent


# Where a session that is open can send, and what.
_CHANNELS = (("calls", message("QueryGids")), ("events", message("Adopted", token=7)))


def _in_a_session(client, channel, data, files):
    """Beside a message of a session; what was tried, and a session to go on with."""
    try:
        client = client or Client()
        return attach(getattr(client, channel), data, files), client
    except (OSError, daemon_protocol.Refused):
        if client:
            client.close()
        return 0, None


@attack
def lingering_with_calls():
    """Beside calls and answers of a session that is open."""
    sent, kept, client = 0, [], None
    while going_on():
        for channel, data in _CHANNELS:
            ours, theirs = lingering()
            kept.append(theirs)
            tried, client = _in_a_session(client, channel, data, [ours.fileno()])
            sent += tried
            leave(ours)
        time.sleep(0.02)
    return sent


@attack
def other_descriptors():
    """Every kind of descriptor there is, everywhere one can be sent."""
    sent, client = 0, None
    hello = message("Hello", role=daemon_protocol.constant("ROLE_VERBS"))
    while going_on():
        for file in others():
            for data in (hello, b"no message"):
                with daemon_protocol.connect() as first:
                    sent += send_and_forget(first, data, [file], [])
            for channel, data in _CHANNELS:
                tried, client = _in_a_session(client, channel, data, [file])
                sent += tried
            os.close(file)
    return sent


# ---- what a link brings ----

def _try_all(file, ours):
    """What one can do to a descriptor that came down, so that others who use it may wait."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
        os.dup2(file, to.fileno())  # whatever it is
        yield lambda: attach(to, b"x", [ours.fileno()])
    for command, word in ((fcntl.F_SETFL, 0), (fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK),
                          (fcntl.F_SETOWN, os.getpid()), (fcntl.F_ADD_SEALS, 0x1f),
                          (fcntl.F_SETPIPE_SZ, 4096), (fcntl.F_SETLEASE, fcntl.F_WRLCK)):
        yield lambda: fcntl.fcntl(file, command, word)
    yield lambda: fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    yield lambda: os.ftruncate(file, 0)
    yield lambda: _LIBC.fallocate(file, 3, ctypes.c_long(0), ctypes.c_long(1 << 20))  # a hole
    yield lambda: os.set_blocking(file, False)
    yield lambda: [os.write(file, struct.pack("Q", (1 << 64) - 2)) for _ in range(50)]
    yield lambda: os.read(file, 8)


def _nest(file, ours, polls):
    """The same, with epoll: what came down is watched, and made to watch."""
    with socket.socket(fileno=os.dup(ours.fileno())) as slow:
        for one, other in ((polls[-1], file), (file, polls[0]), (file, slow.fileno()),
                           (file, file)):
            yield lambda: _watch(one, other)
    for poll in polls:
        yield lambda: _watch(poll.fileno(), file)


def _watch(poll, file):
    """EPOLL_CTL_ADD, of any descriptor to any."""
    event = struct.pack("=IQ", select.EPOLLIN | select.EPOLLOUT, 0)
    poll = poll if isinstance(poll, int) else poll.fileno()
    file = file if isinstance(file, int) else file.fileno()
    if _LIBC.epoll_ctl(poll, 1, file, event):
        raise OSError(ctypes.get_errno(), "epoll_ctl")


@attack
def lingering_over_links(source, destination, peer):
    """Whatever can be tried with what came with a link to somebody, or to the engine: to send over
    it, to lock, fill, empty, change and nest it, to close it."""
    tried, worked, kept = 0, 0, []
    while going_on():
        client = Client()
        _, files = link(client, source, datagrams(client), destination, int(peer))
        polls = [select.epoll() for _ in range(50)]
        for _ in range(3):
            ours, theirs = lingering()
            kept.append(theirs)
            for file in files:
                for act in itertools.chain(_try_all(file, ours), _nest(file, ours, polls)):
                    tried += 1
                    try:
                        act()
                        worked += 1
                    except OSError:
                        pass
            leave(ours)
        for poll in polls:
            poll.close()
        for file in files:
            os.close(file)
        time.sleep(0.05)
        client.close()
    if worked == 0:
        raise RuntimeError("nothing can be done with what a link brings")
    return tried
