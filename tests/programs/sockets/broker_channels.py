#!/usr/bin/python3
"""Processes that are brought together by a channel, without the library: they talk to the broker
by hand.

`broker_channels.py listens PORT BROKER` listens at all addresses and says so; what comes by the
socket of its channel goes back, and what is in the channel's memory is changed. It closes its
listener when it is told to. `broker_channels.py reaches PORT BROKER` is at the other end, and kills
it at last. `broker_channels.py elsewhere PORT BROKER PROCESS` is in another network namespace than
these, PROCESS being one of theirs.
"""

import array
import ctypes
import mmap
import os
import signal
import socket
import struct
import sys
import time

BYTES = 4096 + 2 * (256 << 10) + (16 << 10) + 2 * 16 * (512 + (64 << 10))
_HELLO, _LISTEN, _UNLISTEN, _REACH = 1, 5, 6, 7
_CHANNEL, _KNOWN, _NOBODY, _LISTENS, _UNHEARD, _BY = 23, 24, 25, 26, 30, 31
_ELSEWHERE = 2
_CLONE_NEWNET = 0x40000000
_VERSION = 0x4f565307 << 32


def encode(words):
    """A message (sockets/formats/src/broker_message.rs)."""
    kind, *fields = words
    return struct.pack("16Q", kind | _VERSION, *fields, *[0] * (15 - len(fields)))


def decode(data):
    """The first words of one."""
    kind, *fields = struct.unpack("4Q", data[:32])
    assert kind >> 32 == _VERSION >> 32, kind
    return kind & 0xffffffff, *fields


class Broker:
    """A connection to it."""

    def __init__(self, path):
        self.calls = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.calls.connect(path)
        self.calls.settimeout(20)
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as diagnosis:
            self.say([_HELLO], diagnosis)
        # Its page, and a ledger, of no use here.
        for _ in range(2):
            os.close(self.hear()[1][0])

    def say(self, words, what=None):
        """A message, some with a descriptor."""
        files = array.array("i", [what.fileno()] if what else [])
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)] if what else []
        self.calls.sendmsg([encode(words)], rights)

    def hear(self):
        """Its words, and its descriptors."""
        while True:
            data, rights, _, _ = self.calls.recvmsg(128, 64)
            files = array.array("i", rights[0][2] if rights else b"").tolist()
            words = decode(data)
            # Which socket it is, and that something was heard.
            if words[0] not in (_BY, _UNHEARD):
                return words, files

    def listens(self, tag, listener):
        """What it says of that; 0: it is well."""
        self.say([_LISTEN, tag, 0, 0], listener)
        (kind, said, _, why), files = self.hear()
        assert (kind, said, files) == (_LISTENS, tag, [])
        return why

    def reach(self, tag, address, port):
        """What it says of that, and its descriptors."""
        mapped = bytes(10) + b"\xff\xff" + socket.inet_aton(address)
        self.say([_REACH, tag, *struct.unpack("2Q", mapped), port])
        words, files = self.hear()
        assert words[1] == tag, words
        return words, files


def share(files):
    """A channel's memory, and its socket."""
    memory, end = files
    assert os.fstat(memory).st_size == BYTES
    return mmap.mmap(memory, BYTES), socket.socket(fileno=end)


def listens(port, path):
    """Until it is killed."""
    listener, broker = socket.create_server(("0.0.0.0", port)), Broker(path)
    assert broker.listens(6, listener) == 0
    broker.calls.settimeout(None)
    (kind, tag, _, side), files = broker.hear()
    assert (kind, tag, side) == (_CHANNEL, 6, 1)
    memory, end = share(files)
    end.setblocking(True)
    while True:
        got = end.recv(1)
        if got == b"c":
            listener.close()
        memory[-8:] = struct.pack("Q", os.getpid())
        end.sendall(got)


def reaches(port, path):
    """All that there is between the two."""
    broker = Broker(path)
    until = time.monotonic() + 20
    words, files = broker.reach(1, "127.0.0.1", port)
    while words[0] == _NOBODY and time.monotonic() < until:
        time.sleep(0.01)
        words, files = broker.reach(1, "127.0.0.1", port)
    assert words[0] == _CHANNEL and words[3] == 0, words
    name = words[2]
    memory, end = share(files)
    try:
        assert not end.recv(1)
        raise AssertionError("it is closed")
    except BlockingIOError:
        end.setblocking(True)
    assert memory[:] == bytes(BYTES)
    end.sendall(b"x")
    assert end.recv(1) == b"x"
    process = struct.unpack("Q", memory[-8:])[0]
    assert process not in (0, os.getpid()), process
    assert broker.reach(2, "127.0.0.1", port)[0] == (_KNOWN, 2, name, 0)
    end.sendall(b"c")
    assert end.recv(1) == b"c"
    # What the broker was sent has been closed, too.
    assert broker.reach(3, "127.0.0.1", port)[0] == (_NOBODY, 3, 0, 0)
    socket.create_server(("0.0.0.0", port)).close()
    os.kill(process, signal.SIGKILL)
    assert end.recv(1) == b""


def elsewhere(port, path, process):
    """Somebody listens at the same port here, too."""
    broker = Broker(path)
    listener = socket.create_server(("0.0.0.0", port))
    assert broker.reach(1, "127.0.0.1", port) == ((_NOBODY, 1, 1, 0), [])
    assert broker.listens(2, listener) == 0
    assert broker.reach(3, "127.0.0.1", port) == ((_NOBODY, 3, 1, 0), []), "itself"
    # There, with a socket of there.
    with open(f"/proc/{process}/ns/net", "rb") as there:
        assert ctypes.CDLL(None).setns(there.fileno(), _CLONE_NEWNET) == 0
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert broker.listens(4, listener) == _ELSEWHERE
    assert broker.reach(5, "127.0.0.1", port) == ((_NOBODY, 5, 0, 0), [])


if __name__ == "__main__":
    {"listens": listens, "reaches": reaches, "elsewhere": elsewhere}[sys.argv[1]](
        int(sys.argv[2]), *sys.argv[3:])
