"""Sockets over RDMA, where something breaks: `server PART` and `client`, in one line each what came
of a call."""

import ctypes
import errno
import os
import socket
import struct
import sys
import time

_PORT = 7471
_RDMA = ctypes.CDLL("librdmacm.so.1", use_errno=True)


def _address(ip):
    return struct.pack("=H", socket.AF_INET) + struct.pack("!H4s8x", _PORT, socket.inet_aton(ip))


def _say(what, result):
    if result < 0:
        result = errno.errorcode[ctypes.get_errno()]
    print(what, result, flush=True)


def _listen(ip):
    listener = _RDMA.rsocket(socket.AF_INET, socket.SOCK_STREAM, 0)
    _say("rbind", _RDMA.rbind(listener, _address(ip), 16))
    _say("rlisten", _RDMA.rlisten(listener, 5))
    return listener


def _accept(ip):
    """A connection that has been used."""
    number = _RDMA.raccept(_listen(ip), None, None)
    _say("first", _RDMA.rrecv(number, ctypes.create_string_buffer(8), 8, 0))
    return number


def receives(ip):
    """Waits for what does not come any more."""
    number = _accept(ip)
    _say("rrecv", _RDMA.rrecv(number, ctypes.create_string_buffer(8), 8, 0))
    _say("rclose", _RDMA.rclose(number))


def accepts(ip):
    """Waits for whom nobody sends any more."""
    listener = _listen(ip)
    for _ in range(2):
        _say("raccept", _RDMA.raccept(listener, None, None))


def forks(ip):
    """A child closes what it inherited; the connection stays its parent's."""
    number = _accept(ip)
    child = os.fork()
    if child == 0:
        os._exit(0 if _RDMA.rclose(number) == 0 else 1)
    _say("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    _say("rsend", _RDMA.rsend(number, b"more", 4, 0))
    _say("rclose", _RDMA.rclose(number))


def client(ip):
    """Connects, sends, and receives until the end."""
    while True:
        number = _RDMA.rsocket(socket.AF_INET, socket.SOCK_STREAM, 0)
        if _RDMA.rconnect(number, _address(ip), 16) == 0:
            break
        _RDMA.rclose(number)
        time.sleep(0.05)
    _say("rsend", _RDMA.rsend(number, b"hello", 5, 0))
    for _ in range(2):
        _say("rrecv", _RDMA.rrecv(number, ctypes.create_string_buffer(8), 8, 0))


_PARTS = {"receives": receives, "accepts": accepts, "forks": forks, "client": client}
_PARTS[sys.argv[1]](sys.argv[2])
