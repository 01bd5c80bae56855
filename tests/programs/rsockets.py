"""Sockets over RDMA, of datagrams, and where something breaks: `PART ADDRESS`; in one line each
what came of a call."""

import concurrent.futures
import ctypes
import errno
import os
import select
import socket
import struct
import sys
import time

_PORT = 7471
_SOL_RDMA, _ROUTE = 0x10000, 4
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


def _path(number, ip):
    """What RDMA_ROUTE says of the way to the peer."""
    room, length = ctypes.create_string_buffer(200), ctypes.c_uint(200)
    wrong = _RDMA.rgetsockopt(number, _SOL_RDMA, _ROUTE, room, ctypes.byref(length))
    to = socket.inet_ntoa(room.raw[16 + 12:16 + 16])
    print("path", wrong, length.value, to == ip)
    length.value = 71
    _say("shorter", _RDMA.rgetsockopt(number, _SOL_RDMA, _ROUTE, room, ctypes.byref(length)))


def client(ip):
    """Connects, sends, and receives until the end."""
    while True:
        number = _RDMA.rsocket(socket.AF_INET, socket.SOCK_STREAM, 0)
        if _RDMA.rconnect(number, _address(ip), 16) == 0:
            break
        _RDMA.rclose(number)
        time.sleep(0.05)
    _path(number, ip)
    _say("rsend", _RDMA.rsend(number, b"hello", 5, 0))
    for _ in range(2):
        _say("rrecv", _RDMA.rrecv(number, ctypes.create_string_buffer(8), 8, 0))


_SIZES = [0, 1, 500, 1016, 1017, 1500, 2032]


def _contents(number, size):
    return bytes((number + at) % 251 for at in range(size))


def _datagrams(ip):
    number = _RDMA.rsocket(socket.AF_INET, socket.SOCK_DGRAM, 0)
    if ip:
        _say("rbind", _RDMA.rbind(number, _address(ip), 16))
    return number


def _take(number, size=4096, flags=0):
    """What came, and from whom; None: nothing within a second."""
    file = struct.pack("=ihh", number, select.POLLIN, 0)
    if _RDMA.rpoll(ctypes.create_string_buffer(file, 8), 1, 1000) <= 0:
        return None
    room, name = ctypes.create_string_buffer(size), ctypes.create_string_buffer(16)
    length = ctypes.c_uint(16)
    count = _RDMA.rrecvfrom(number, room, size, flags, name, ctypes.byref(length))
    return None if count < 0 else (room.raw[:min(count, size)], name.raw[:length.value], count)


def echoes(ip):
    """Returns every datagram to who has sent it, until one says that it is the last."""
    number = _datagrams(ip)
    count = 0
    while True:
        taken = _take(number)
        if taken is None:
            continue
        data, name, _ = taken
        if data == b"end":
            break
        count += 1
        _RDMA.rsendto(number, data, len(data), 0, name, len(name))
    _say("echoed some", int(count > 0))
    _say("rclose", _RDMA.rclose(number))


def asks(ip):
    """Datagrams of all sizes come back as they were, from two sockets, one of them connected."""
    to = _address(ip)
    plain, connected = _datagrams(None), _datagrams(None)
    _say("rconnect", _RDMA.rconnect(connected, to, 16))
    right = 0
    for turn in range(60):
        size = _SIZES[turn % len(_SIZES)]
        for number in (plain, connected):
            data = _contents(turn, size)
            while True:  # a datagram may get lost, and be sent again
                if number == plain:
                    sent = _RDMA.rsendto(number, data, size, 0, to, 16)
                else:
                    sent = _RDMA.rsend(number, data, size, 0)
                taken = _take(number)
                if sent != size or taken is not None and taken[0] == data:
                    break
            right += taken is not None and taken[1][:8] == to[:8]
    _say("right", right)
    _shapes(plain, to)
    _says_end(connected)


def _shapes(number, to):
    """What is longer than the room, what is only looked at, what is too long."""
    def asked(data, *options):
        while True:
            _RDMA.rsendto(number, data, len(data), 0, to, 16)
            taken = _take(number, *options)
            if taken is not None:
                return taken
    while _take(number) is not None:  # what was sent twice
        pass
    _say("cut", int(asked(b"abcdef", 4)[0] == b"abcd"))
    while _take(number) is not None:
        pass
    _say("whole length", asked(b"abcdef", 4, socket.MSG_TRUNC)[2])
    while _take(number) is not None:
        pass
    _say("looked at", int(asked(b"once", 8, socket.MSG_PEEK)[0] == b"once"))
    _say("still there", int(_take(number, 8)[0] == b"once"))
    _say("too long", _RDMA.rsendto(number, bytes(4096), 4096, 0, to, 16))
    _say("to nobody", _RDMA.rsend(number, b"x", 1, 0))
    _say("listens", _RDMA.rlisten(number, 1))


def _says_end(number):
    for _ in range(20):
        _RDMA.rsend(number, b"end", 3, 0)
    _say("rclose", _RDMA.rclose(number))


def _change(number, operation, fd, events=0, data=0):
    """What repoll_ctl says: not -1, but the number of what is wrong."""
    event = ctypes.create_string_buffer(struct.pack("=IQ", events, data), 12)
    wrong = _RDMA.repoll_ctl(number, operation, fd, event)
    return errno.errorcode[wrong] if wrong else 0


def _happened(number, timeout, room=8):
    """The events of a set: of what, which."""
    events = ctypes.create_string_buffer(12 * room)
    count = _RDMA.repoll_wait(number, events, room, timeout)
    if count < 0:
        return errno.errorcode[ctypes.get_errno()]
    return sorted((data, bits) for bits, data in struct.iter_unpack("=IQ", events.raw[:12 * count]))


_ADD, _DELETE, _MODIFY = 1, 2, 3


def repolls(ip):
    """A listener, a connection and a pipe in one set, which changes while somebody waits."""
    number = _RDMA.repoll_create(os.O_CLOEXEC | os.O_NONBLOCK)
    _say("set", int(number >= 0))
    _say("flags", int(not os.get_inheritable(number) and not os.get_blocking(number)))
    listener, (reads, writes) = _listen(ip), os.pipe()
    print("wrong", _change(number, _ADD, -1), _change(number, _ADD, number),
          _change(reads, _ADD, listener), _change(number, 9, listener),
          _change(number, _MODIFY, listener), _change(number, _DELETE, listener))
    print("added", _change(number, _ADD, listener, select.EPOLLIN, 1),
          _change(number, _ADD, listener, select.EPOLLIN, 1))
    print("nothing", _happened(number, 0), _happened(number, 20), _happened(number, 0, 0),
          _happened(reads, 0), flush=True)
    print("asked", _happened(number, -1))
    connection = _RDMA.raccept(listener, None, None)
    _change(number, _ADD, connection, select.EPOLLIN, 2)
    _change(number, _ADD, reads, select.EPOLLIN, 3)
    first, again = _happened(number, -1), _happened(number, -1)
    print("came", first, again)
    os.write(writes, b"x")
    print("both", _happened(number, -1), "one each", len(_happened(number, -1, 1)))
    _change(number, _MODIFY, connection, select.EPOLLOUT, 4)
    print("changed", _happened(number, -1))
    _change(number, _MODIFY, connection, select.EPOLLIN, 2)
    _say("rrecv", _RDMA.rrecv(connection, ctypes.create_string_buffer(8), 8, 0))
    os.read(reads, 1)
    _changes_while_waited(number, listener, connection, (reads, writes))
    os.close(reads)  # and nothing is told of it any more
    os.close(writes)
    print("closed", _happened(number, 0), _change(number, _DELETE, reads))
    print("busy", errno.errorcode[_RDMA.rclose(number)])
    for fd in (listener, connection):
        _change(number, _DELETE, fd)
        _say("rclose", _RDMA.rclose(fd))
    _say("rclose", _RDMA.rclose(number))
    print("gone", _happened(number, 0), flush=True)


def _changes_while_waited(number, listener, connection, pipe):
    """Two wait without end for a set in which nothing happens."""
    for fd in (listener, connection, pipe[0]):
        _change(number, _DELETE, fd)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        waits = [pool.submit(_happened, number, -1) for _ in range(2)]
        time.sleep(0.2)
        _change(number, _ADD, pipe[0], select.EPOLLIN, 5)
        _change(number, _ADD, connection, select.EPOLLIN, 2)
        time.sleep(0.2)
        print("still waits", [wait.done() for wait in waits])
        _change(number, _MODIFY, connection, select.EPOLLOUT, 6)
        print("told", [wait.result(30) for wait in waits])
    _change(number, _MODIFY, connection, select.EPOLLIN, 2)
    _change(number, _ADD, listener, select.EPOLLIN, 1)


def names(ip):
    """A socket that was refused says how long its address is, to a caller without room for it, as
    librspreload asks before it goes on by TCP."""
    number = _RDMA.rsocket(socket.AF_INET, socket.SOCK_STREAM, 0)
    _say("rconnect", _RDMA.rconnect(number, _address(ip), 16))
    length = ctypes.c_uint(0)
    _say("rgetsockname", _RDMA.rgetsockname(number, None, ctypes.byref(length)))
    print("length", length.value)
    _say("rclose", _RDMA.rclose(number))


_PARTS = {"echoes": echoes, "asks": asks, "names": names, "receives": receives, "accepts": accepts,
          "forks": forks, "client": client, "repolls": repolls}
_PARTS[sys.argv[1]](sys.argv[2])
