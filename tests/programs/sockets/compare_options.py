"""Ways of `compare_with_kernel.py`: options, states and names of sockets."""

import array
import ctypes
import fcntl
import os
import select
import socket
import struct
import time

from lock_step_processes import LOOPBACK, called, is_light, tried

_S, _T, _I, _SIX = socket.SOL_SOCKET, socket.IPPROTO_TCP, socket.IPPROTO_IP, socket.IPPROTO_IPV6
_NEITHER = struct.pack("ii", 0, 0)
# Names that a client chooses.
_BOUND = (("0.0.0.0", 20321), (LOOPBACK, 20322))
# Options with values that are taken, rounded or refused.
_VALUES = [
    (_S, socket.SO_KEEPALIVE, [1, 7, 0]), (_S, socket.SO_REUSEADDR, [1]),
    (_S, socket.SO_BROADCAST, [1]), (_S, socket.SO_OOBINLINE, [1]),
    (_S, socket.SO_DONTROUTE, [1, 0]), (_S, socket.SO_PRIORITY, [3, -1]),
    (_S, socket.SO_SNDBUF, [1, 100_001, 1 << 30]), (_S, socket.SO_RCVBUF, [1, 70_001]),
    (_S, socket.SO_LINGER, [struct.pack("ii", 1, 5), struct.pack("ii", 7, 0), _NEITHER, b"1"]),
    (_S, socket.SO_RCVTIMEO,
     [struct.pack("qq", 2, 300_001), struct.pack("qq", 0, 1 << 40), bytes(16)]),
    (_S, socket.SO_SNDTIMEO, [struct.pack("qq", 1, 1), struct.pack("qq", -1, 0), bytes(16), b"12"]),
    (_S, socket.SO_RCVLOWAT, [0, 6, -1, 1]), (_S, 46, [50, -1]),
    (_T, socket.TCP_NODELAY, [1, 0, 5]), (_T, socket.TCP_CORK, [1, 0]),
    (_T, socket.TCP_QUICKACK, [0, 1]),
    (_T, socket.TCP_KEEPIDLE, [77, 0, 40_000]), (_T, socket.TCP_KEEPINTVL, [7, 0]),
    (_T, socket.TCP_KEEPCNT, [4, 200]), (_T, socket.TCP_SYNCNT, [3, 0]),
    (_T, socket.TCP_LINGER2, [9, -4]), (_T, socket.TCP_USER_TIMEOUT, [5000, -1]),
    (_T, socket.TCP_CONGESTION, [b"reno", b"none such"]),
    (_T, 25, [4096]), (_I, socket.IP_TOS, [16, 255, 300]), (_I, socket.IP_TTL, [33, 0, 256]),
    (_SIX, socket.IPV6_UNICAST_HOPS, [9, 300]), (_SIX, 67, [8]), (_T, 99, [1]), (77, 1, [1]),
]


def _asked(end, level, name, value):
    size = len(value) if isinstance(value, bytes) else 4
    return tried(end.getsockopt, level, name, max(size, 4))


def _options(role, family):
    role.pair(family=family)
    ends = [role.end] if role.listener is None else [role.end, role.listener]
    for level, name, values in _VALUES:
        for end in ends:
            # What it is while nobody has set it is as the kernel has it just now.
            if (level, name) != (_T, socket.TCP_QUICKACK):
                role.say(level, name, "new", _asked(end, level, name, values[0]))
            for value in values:
                role.say(value, tried(end.setsockopt, level, name, value),
                         _asked(end, level, name, value))
    role.say("still", tried(role.end.getsockopt, _T, socket.TCP_KEEPIDLE))
    role.meet()


def _four(role):
    _options(role, socket.AF_INET)


def _six(role):
    _options(role, socket.AF_INET6)


# The last of these says what the kernel does just now.
_OTHERWISE = [(_S, socket.SO_RCVLOWAT), (_S, socket.SO_RCVTIMEO), (_T, socket.TCP_QUICKACK)]
# What is set before there is a connection: one by one, and together.
_GIVEN = [(level, name, next((one for one in values if one), 0)) for level, name, values in _VALUES
          if (level, name) not in _OTHERWISE and level != _SIX]


def _inherited(role):
    """By those that are accepted, and by connections of what had them before."""
    role.pair()
    several = _GIVEN[:6], _GIVEN[6:14], _GIVEN[10:20]
    for given in [*([one] for one in _GIVEN), *several]:
        def prepare(end, given=given):
            for level, name, value in given:
                tried(end.setsockopt, level, name, value)
        if role.name == "server":
            role.listen(prepare)
            role.meet(b"%d" % role.port)
            # Those that were set when it listened count as well.
            role.listener.setsockopt(_S, socket.SO_RCVTIMEO, struct.pack("qq", 20, 0))
            role.meet()
            end = role.listener.accept()[0]
        else:
            role.port = int(role.meet())
            role.meet()
            end = role.connect(prepare)
        for level, name, value in [*given, (_S, socket.SO_RCVTIMEO, bytes(16))]:
            role.say(level, name, value, _asked(end, level, name, value))
        end.sendall(b"hello")
        role.say(end.recv(5, socket.MSG_WAITALL))
        role.meet()
        end.close()
        if role.name == "server":
            role.listener.close()


def _others(role):
    """Options that light connections cannot have, before there is one: it is TCP's. Then they do
    what they do."""
    role.pair()
    for option in ((_S, 29), (_S, 35), (_S, 37), (_S, 60), (_T, 36), (_T, socket.TCP_DEFER_ACCEPT)):
        def prepare(end, option=option):
            tried(end.setsockopt, *option, 1)
        if role.name == "server":
            role.listen(prepare)
            role.meet(b"%d" % role.port)
            role.meet()
            end = role.listener.accept()[0]
        else:
            role.port = int(role.meet())
            end = role.connect()
            end.sendall(b"abc")
            role.meet()
        role.say(option, tried(end.getsockopt, *option), is_light(end.fileno()))
        if role.name == "server":
            end.setblocking(True)
            got, control, _, _ = end.recvmsg(10, 200)
            role.say(got, [(level, kind, len(data)) for level, kind, data in control])
        role.meet()
        end.close()
        if role.name == "server":
            role.listener.close()


def _state(end):
    """When the other one's kernel has answered."""
    while (state := end.getsockopt(_T, socket.TCP_INFO, 104)[0]) in (4, 11):
        time.sleep(0.01)
    return state


def _states(role):
    """As TCP's, when either end goes first, and both."""
    for first in ("server", "client", "both"):
        role.pair()
        role.say("new", _state(role.end), len(role.end.getsockopt(_T, socket.TCP_INFO, 104)))
        role.meet()
        is_first = role.name == first
        if is_first or first == "both":
            role.end.shutdown(socket.SHUT_WR)
        role.meet()
        if not is_first:
            role.say("the end", role.end.recv(9))
        role.meet()
        role.say("half", _state(role.end) if first != "both" else "")
        role.meet()
        if not is_first and first != "both":
            role.end.sendall(b"more")
            role.end.close()
        role.meet()
        if is_first:
            role.say(role.end.recv(9), role.end.recv(9), _state(role.end),
                     tried(role.end.getpeername))
        role.meet()
        if role.listener:
            role.listener.close()


def _least(role):
    """`SO_RCVLOWAT`: what is told of, and what calls wait for."""
    role.pair()
    if role.name == "client":
        for piece in (b"123", b"456", b"789", b"0", b"abc", b"def"):
            role.meet()
            role.end.sendall(piece)
            role.meet()
        role.meet()
        role.end.sendall(b"last")
        role.end.close()
        return
    role.end.setsockopt(_S, socket.SO_RCVLOWAT, 6)
    poll, epoll = select.poll(), select.epoll()
    poll.register(role.end, select.POLLIN)
    epoll.register(role.end, select.EPOLLIN)

    def told():
        return [poll.poll(50) != [], epoll.poll(0.05) != [],
                select.select([role.end], [], [], 0.05)[0] != []]

    def more():
        role.meet()
        role.meet()

    more()
    role.say("three", told(), role.end.recv(9, socket.MSG_DONTWAIT | socket.MSG_PEEK))
    more()
    role.say("six", told(), role.end.recv(9))
    more()
    role.say("three", tried(role.end.recv, 3))
    more()
    role.end.setsockopt(_S, socket.SO_RCVTIMEO, struct.pack("qq", 0, 100_000))
    role.say("one, in time", tried(role.end.recv, 9))
    more()
    role.end.setsockopt(_S, socket.SO_RCVLOWAT, 1)
    role.say("again", told(), role.end.recv(9))
    role.end.setsockopt(_S, socket.SO_RCVLOWAT, 100)
    more()
    role.say("less", told())
    role.meet()
    role.say("the end", poll.poll(5000) != [], role.end.recv(100), role.end.recv(9))


def _requests(role):
    """`ioctl` and `fcntl`."""
    role.pair()
    number = role.end.fileno()

    def words(request, given=0):
        place = array.array("i", [given])
        return tried(fcntl.ioctl, number, request, place), place[0]

    if role.name == "client":
        role.end.sendall(b"four")
    role.meet()
    if role.name == "server":
        select.select([role.end], [], [], 10)
    while words(0x5411)[1]:
        time.sleep(0.01)
    role.say("queued", words(0x541b), words(0x5411), words(0x894b), words(0x8905))
    role.meet()
    for request, given in ((0x5421, 1), (0x5421, 0), (0x5452, 0), (0x1234, 0), (0x5401, 0)):
        role.say(hex(request), words(request, given)[0],
                 fcntl.fcntl(number, fcntl.F_GETFL) & os.O_NONBLOCK)
    for request in (0x5451, 0x5450):
        role.say(hex(request), tried(fcntl.ioctl, number, request, 0),
                 fcntl.fcntl(number, fcntl.F_GETFD))
    interface = struct.pack("16sH14s", b"lo", 0, b"")
    role.say("lo", struct.unpack_from("16xH", tried(fcntl.ioctl, number, 0x8913, interface)))
    role.say(tried(role.end.send, b"x", 0x2000000),
             tried(role.end.recv, 9, socket.MSG_DONTWAIT | 0x2000))
    role.meet()


def _names(role):
    """Before there is a connection, with one, and when it is undone."""
    if role.name == "server":
        role.listen()
        role.meet(b"%d" % role.port)
        for _ in range(3):
            with role.listener.accept()[0] as end:
                role.say(end.getpeername()[0], end.getsockname()[1] == role.port)
                role.meet()
                role.meet()
                role.say(tried(end.recv, 9))
        # What `bind` chose stays when a connection is undone.
        for _ in range(2 * len(_BOUND)):
            with role.listener.accept()[0] as end:
                role.say(end.getpeername())
                role.meet()
        return
    role.port = int(role.meet())
    for kind in (0, socket.SOCK_NONBLOCK, socket.SOCK_CLOEXEC):
        end = socket.socket(socket.AF_INET, socket.SOCK_STREAM | kind)
        end.setsockopt(_S, socket.SO_KEEPALIVE, 1)
        role.say(end.getsockname(), tried(end.getpeername))
        role.say(called("connect", end.fileno(), _address(role.port), 16) in (0, "EINPROGRESS"))
        select.select([], [end], [], 10)
        role.meet()
        role.say(end.getsockname()[0], end.getpeername() == (LOOPBACK, role.port))
        role.say(called("connect", end.fileno(), _address(role.port), 16) in (0, "EISCONN"),
                 called("connect", end.fileno(), _address(role.port), 16))
        role.say("undone", called("connect", end.fileno(), bytes(16), 16), tried(end.getpeername),
                 end.getsockname()[0], end.getsockopt(_S, socket.SO_KEEPALIVE),
                 tried(end.send, b"x", socket.MSG_NOSIGNAL) in ("EPIPE", "ECONNRESET"),
                 end.getblocking(), os.get_inheritable(end.fileno()))
        role.meet()
        end.close()
    for name in _BOUND:
        with socket.socket() as end:
            end.setsockopt(_S, socket.SO_REUSEADDR, 1)
            end.bind(name)
            for _ in range(2):
                role.say(end.connect_ex((LOOPBACK, role.port)), end.getsockname())
                role.meet()
                role.say(called("connect", end.fileno(), bytes(16), 16), end.getsockname())


def _address(port):
    return struct.pack("!HH4s8x", socket.htons(socket.AF_INET), port, bytes([127, 0, 0, 1]))


def _shares(role):
    """Connections to a port that several sockets listen at are spread."""
    count, ends = 120, []
    if role.name == "server":
        listeners = []
        for _ in range(3):
            one = socket.socket()
            one.setsockopt(_S, socket.SO_REUSEPORT, 1)
            one.bind((LOOPBACK, listeners[0].getsockname()[1] if listeners else 0))
            one.listen(count)
            listeners.append(one)
        role.meet(b"%d" % listeners[0].getsockname()[1])
        role.meet()
        counts = []
        for one in listeners:
            one.settimeout(0.5)
            ends = []
            while isinstance(end := tried(one.accept), tuple):
                ends.append(end)
            counts.append(len(ends))
        role.say(sum(counts), min(counts) >= count // 8)
        return
    role.port = int(role.meet())
    ends = [role.connect() for _ in range(count)]
    role.meet()
    role.say(len(ends))


def _abrupt(role):
    """`SO_LINGER` without time, of an end and of a listening socket."""
    def linger(end):
        end.setsockopt(_S, socket.SO_LINGER, struct.pack("ii", 1, 0))

    for prepare, by in ((None, linger), (linger, None)):
        role.pair(prepare)
        if role.name == "server":
            if by:
                by(role.end)
            role.end.close()
            role.meet()
            role.listener.close()
        else:
            role.meet()
            role.say(tried(role.end.recv, 9), tried(role.end.recv, 9))


WAYS = {
    "four": (_four, _four), "six": (_six, _six), "inherited": (_inherited, _inherited),
    "others": (_others, _others), "states": (_states, _states), "least": (_least, _least),
    "requests": (_requests, _requests), "names": (_names, _names), "shares": (_shares, _shares),
    "abrupt": (_abrupt, _abrupt),
}
