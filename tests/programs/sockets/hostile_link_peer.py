#!/usr/bin/python3
"""Runs a victim that has connections, and a liar at their other ends.

`hostile_link_peer.py victim PORT`, with the library: takes connections, sends and receives on each;
nothing that comes of that may be anything but an answer of these calls. `hostile_link_peer.py liar
PORT BROKER COUNT FLIP`, without it: offers its ends by hand, and writes into the memory that it is
given; with every other link the program FLIP (`corrupt_link_memory.c`) does, which is faster.

`hostile_link_peer.py waiter PORT`, with the library: receives when it is told that there is
something, by calls that would sleep otherwise, until its connection is reset. `hostile_link_peer.py
shower PORT BROKER` shows it bytes and takes them away again."""

import array
import mmap
import os
import random
import select
import socket
import struct
import subprocess
import sys
import time

from broker_channels import decode, encode

WORDS, RING = 4096, 1 << 16
BYTES = 2 * WORDS + 2 * RING
_TURNS = 400
# Connections of the shower.
_SHOWN = 10


def victim(port):
    """Until one says so."""
    listener = socket.create_server(("127.0.0.1", port))
    while True:
        far = listener.accept()[0]
        far.setblocking(False)
        first = b""
        for turn in range(_TURNS):
            try:
                far.send(b"y" * (1 + turn * 37 % 5000))
                got = far.recv(3 + turn * 91 % 7000, socket.MSG_PEEK if turn % 5 == 0 else 0)
                first = first or got
                if not got:
                    break
            except BlockingIOError:
                poll = select.poll()
                poll.register(far, select.POLLIN)
                poll.poll(1)
                select.select([far], [far], [], 0)
            except OSError:
                break
        far.close()
        if first[:3] == b"end":
            return


def waiter(port):
    """Never sleeps where it was told of bytes."""
    listener = socket.create_server(("127.0.0.1", port))
    while not is_reset(listener.accept()[0]):
        pass


def is_reset(far):
    """How a connection of the waiter's has ended."""
    poll, members = select.poll(), select.epoll()
    poll.register(far, select.POLLIN)
    members.register(far, select.EPOLLIN)
    ways = [lambda: poll.poll(0), lambda: members.poll(0),
            lambda: select.select([far], [], [], 0)[0]]
    turn = 0
    try:
        while True:
            while not ways[turn % 3]():
                pass
            # By then it is taken away.
            time.sleep(0.002)
            if not far.recv(100):
                return False
            turn += 1
    except ConnectionResetError:
        return True


def shower(port, broker):
    """Until one of its connections is reset. One of which the other end has seen that it is
    nonsense before it was told of anything is the kernel's, and no such."""
    for _ in range(_SHOWN):
        if shows(port, broker):
            return
    raise AssertionError("nobody has reset it")


def shows(port, broker):
    """Whether a connection was reset soon."""
    with socket.create_connection(("127.0.0.1", port)) as near:
        near.send(b"a")
        words, file = link(broker, near)
        assert words, "no link"
        memory, side = mmap.mmap(file, BYTES), words[3]
        place, head = (1 - side) * WORDS, side * WORDS + 0x80
        until = time.monotonic() + 2
        near.setblocking(False)
        while time.monotonic() < until:
            for shown, time_of in ((5, 0.00003), (0, 0.001)):
                position = struct.unpack_from("Q", memory, place)[0] & (1 << 62) - 1
                struct.pack_into("Q", memory, head, position + shown)
                later = time.monotonic() + time_of
                while time.monotonic() < later:
                    pass
            try:
                near.recv(1)
            except BlockingIOError:
                continue
            except ConnectionResetError:
                return True
    return False


def link(broker, end):
    """The memory of a link, if one comes."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as calls, \
            socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as diagnosis:
        calls.connect(broker)
        calls.settimeout(2)
        send(calls, [1], diagnosis)
        receive(calls)
        send(calls, [2, 7, 0, 0], end)
        words, file = receive(calls)
        if words and words[0] == 20:  # It waits for the other end.
            words, file = receive(calls)
    return (words, file) if words and words[0] == 18 else (None, None)


def send(calls, words, what):
    """A message with a descriptor."""
    rights = array.array("i", [what.fileno()])
    calls.sendmsg([encode(words)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])


def receive(calls):
    """A message, and its descriptor."""
    try:
        data, rights, _, _ = calls.recvmsg(128, 64)
        if data[:1] == b"\x16":  # A ledger, which we keep none of.
            data, rights, _, _ = calls.recvmsg(128, 64)
    except TimeoutError:
        return None, None
    files = array.array("i", rights[0][2][:4]) if rights else [None]
    return decode(data), files[0]


def lie(memory, pick):
    """Some of the words that a correct side would never write; sometimes only nearly wrong ones."""
    words = [side + word for side in (0, WORDS)
             for word in (0x00, 0x80, 0x100, 0x108, 0x180, 0x200)]
    values = [pick.getrandbits(64), pick.randrange(1 << 18), 1 << 63, 1 << 62, 3 << 62, 0,
              (1 << 62) - 1, pick.randrange(1 << 18) | 1 << 63]
    for _ in range(pick.randrange(1, 4)):
        struct.pack_into("Q", memory, pick.choice(words), pick.choice(values))
    if pick.random() < 0.1:
        memory[2 * WORDS:2 * WORDS + 64] = pick.randbytes(64)


def liar(port, broker, count, flip):
    """So many connections, and one that says it is over."""
    links = 0
    for seed in range(count):
        pick = random.Random(seed)
        with socket.create_connection(("127.0.0.1", port)) as near:
            near.setblocking(False)
            near.send(b"a")
            _, file = link(broker, near)
            if file is None:
                continue
            links += 1
            memory = mmap.mmap(file, BYTES)
            flipping = subprocess.Popen([flip, str(file), str(seed)], pass_fds=[file]) \
                if seed % 2 else None
            os.close(file)
            until = time.monotonic() + 0.1
            while time.monotonic() < until:
                if not flipping:
                    lie(memory, pick)
                try:
                    near.send(b"b" * pick.randrange(1, 300))
                    near.recv(100_000)
                except OSError:
                    pass
            if flipping:
                assert flipping.poll() is None, "it has ended"
                flipping.kill()
                flipping.wait()
    with socket.create_connection(("127.0.0.1", port)) as near:
        near.send(b"end")
        time.sleep(0.1)
    assert links > count // 2, f"{links} of {count} links"


if __name__ == "__main__":
    if sys.argv[1] == "victim":
        victim(int(sys.argv[2]))
    elif sys.argv[1] == "waiter":
        waiter(int(sys.argv[2]))
    elif sys.argv[1] == "shower":
        shower(int(sys.argv[2]), sys.argv[3])
    else:
        liar(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5])
