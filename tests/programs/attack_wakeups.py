"""Attacks on sleeping and waking: doorbells, the kernel's lists of waiters and its locks."""

import ctypes
import mmap
import os
import random
import resource
import select
import struct
import threading
import time

from attack_helpers import attack, datagrams, going_on, link
from daemon_protocol import Client

_LIBC = ctypes.CDLL(None, use_errno=True)
_FUTEX, _FUTEX_WAITV = 202, 449  # of x86-64
_WAKE, _WAKE_BITSET, _ALL = 1, 10, 0x7fffffff
_MANY = 128  # words of one futex_waitv
_PAGE, _KICK, _RUNG = 4096, 0x00, 0x08


class _Bell:
    """The memory of a bell, as far as one can spoil it."""

    def __init__(self, file):
        self.memory = mmap.mmap(file, 2 * _PAGE)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def value(self, offset):
        """A word's low half."""
        return struct.unpack_from("=I", self.memory, offset)[0]

    def spoil(self):
        """Other words where the two sleep and want to be woken."""
        for page in (0, _PAGE):
            struct.pack_into("=Q", self.memory, page + _RUNG, random.getrandbits(64))
            struct.pack_into("=Q", self.memory, page + _KICK, random.getrandbits(1))

    def wake(self):
        """Everybody who sleeps there."""
        for page in (0, _PAGE):
            word = ctypes.c_void_p(self.address + page + _RUNG)
            _LIBC.syscall(_FUTEX, word, _WAKE, _ALL, None, None, 0)
            _LIBC.syscall(_FUTEX, word, _WAKE_BITSET, _ALL, None, None, 1)

    def wait(self, offset):
        """Sleeps there, as often as one thread can."""
        entry = struct.pack("=QQII", self.value(offset), self.address + offset, 2, 0)
        entries = ctypes.create_string_buffer(entry * _MANY)
        limit = struct.pack("=qq", int(time.monotonic()) + 1, 0)
        _LIBC.syscall(_FUTEX_WAITV, entries, _MANY, 0, limit, 1)


@attack
def bells_without_end(source, destination, peer):
    """Rings a peer's bell, and wakes whoever sleeps there, as fast as it can."""
    client = Client()
    _, files = link(client, source, datagrams(client), destination, int(peer))
    bell, did = _Bell(files[1]), 0
    threading.Thread(target=_keep, args=(bell.wake,), daemon=True).start()
    while going_on():
        bell.spoil()
        bell.wake()
        did += 1
    return did


@attack
def waiters_pile_up(source, destination, peer):
    """Many sleep where the peer sleeps, and where it wakes us: 128 times for each thread."""
    client = Client()
    _, files = link(client, source, datagrams(client), destination, int(peer))
    bell = _Bell(files[1])
    threading.stack_size(64 << 10)
    for number in range(600):
        offset = number % 2 * _PAGE + _RUNG
        threading.Thread(target=_keep, args=(bell.wait, offset), daemon=True).start()
    did = 0
    while going_on():
        bell.spoil()
        bell.wake()
        time.sleep(0.02)
        did += 1
    return did


def _keep(act, *words):
    while going_on():
        act(*words)


@attack
def nested_polls(source, destination, peer):
    """Holds the one lock that the kernel has for epoll instances that watch each other: one of them
    watches many that watch much, and threads have others watch it. Meanwhile new links are made."""
    root = select.epoll()
    ready, told = os.pipe()
    for _ in range(12):
        if os.fork() == 0:
            _watch_much(root, told)
    for _ in range(12):
        os.read(ready, 1)
    did = [0]
    for _ in range(100):
        threading.Thread(target=_keep, args=(_nest, root.fileno(), did), daemon=True).start()
    while going_on():
        client = Client()
        link(client, source, datagrams(client), destination, int(peer))
        client.close()
        time.sleep(0.1)
    return did[0]


def _watch_much(root, told):
    _LIBC.prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    poll = select.epoll()
    try:
        for _ in range(min(hard - 100, 18000)):
            poll.register(os.eventfd(0), select.EPOLLIN)
    except OSError:
        pass  # the limit of watches
    root.register(poll.fileno(), select.EPOLLIN)
    os.write(told, b"1")
    while True:
        time.sleep(1000)


def _nest(root, did):
    with select.epoll() as poll:
        event = struct.pack("=IQ", 0, 0)
        if _LIBC.epoll_ctl(poll.fileno(), 1, root, event) == 0:
            did[0] += 1
