"""Ways of `compare_with_kernel.py`: calls that move bytes."""

import ctypes
import select
import socket

from lock_step_processes import called, is_light


class Piece(ctypes.Structure):
    """`struct iovec`."""
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


class Message(ctypes.Structure):
    """`struct msghdr`."""
    _fields_ = [("name", ctypes.c_void_p), ("name_length", ctypes.c_uint32),
                ("pieces", ctypes.POINTER(Piece)), ("count", ctypes.c_size_t),
                ("control", ctypes.c_void_p), ("control_length", ctypes.c_size_t),
                ("flags", ctypes.c_int)]


class Several(ctypes.Structure):
    """`struct mmsghdr`."""
    _fields_ = [("message", Message), ("length", ctypes.c_uint)]


def pieces(count, length=1, base=None):
    """So many, of so many bytes, and the memory."""
    room = ctypes.create_string_buffer(b"abcdefgh" * (count * length // 8 + 1))
    start = ctypes.addressof(room) if base is None else base
    return (Piece * count)(*[Piece(start + at * length, length) for at in range(count)]), room


def _vectors_server(role):
    role.pair()
    for count in (64, 65, 600, 1024):
        all_of, room = pieces(count)
        role.meet()
        role.say(count, called("readv", role.end.fileno(), all_of, count), room.raw[:8])
        role.meet()
    role.say("rest", len(role.end.recv(1 << 16)))


def _vectors_client(role):
    role.pair()
    number = role.end.fileno()
    for count in (64, 65, 600, 1024):
        all_of, _ = pieces(count)
        role.say("writev", count, called("writev", number, all_of, count))
        role.meet()
        role.meet()
    many, room = pieces(1025)
    for count in (1025, -1, 0):
        role.say("writev", count, called("writev", number, many, count))
        role.say("readv", count, called("readv", number, many, count))
    message = Message(None, 0, many, 1025, None, 0, 0)
    role.say("sendmsg", called("sendmsg", number, ctypes.byref(message), 0))
    role.say("recvmsg", called("recvmsg", number, ctypes.byref(message), 0x40))
    nowhere = (Piece * 1)(Piece(None, 5))
    role.say("nowhere", called("writev", number, nowhere, 1), called("writev", number, None, 1))
    message.count = 1024
    role.say("sendmsg", called("sendmsg", number, ctypes.byref(message), 0), len(room))


_TRUNC = 0x20


def _truncated_server(role):
    role.pair()
    number = role.end.fileno()

    def drops(length, flags, buffer=None):
        return called("recv", number, buffer, ctypes.c_size_t(length), flags | _TRUNC)

    role.say("none", drops(1 << 20, socket.MSG_DONTWAIT), drops(0, socket.MSG_DONTWAIT))
    role.meet()
    role.meet()
    role.say("peeked", drops(4, socket.MSG_PEEK), drops(100, socket.MSG_PEEK))
    role.say("four", drops(4, 0), role.end.recv(3))
    message = Message(None, 0, pieces(2, 2)[0], 2, None, 0, 0)
    role.say("by a message", called("recvmsg", number, ctypes.byref(message), _TRUNC))
    role.say("from", called("recvfrom", number, None, ctypes.c_size_t(2), _TRUNC, None, None))
    role.say("rest", drops(1 << 20, socket.MSG_DONTWAIT), drops(9, socket.MSG_DONTWAIT))
    role.meet()
    role.say("all", drops(200_000, socket.MSG_WAITALL), role.end.recv(5, socket.MSG_WAITALL))
    role.meet()
    role.say("the end", drops(10, 0))


def _truncated_client(role):
    role.pair()
    role.meet()
    role.end.sendall(b"0123456789abcdef")
    role.meet()
    role.meet()
    role.end.sendall(bytes(200_000) + b"final")
    role.meet()
    role.end.close()


def _several(count, length):
    all_of = (Several * count)()
    rooms = []
    for one in all_of:
        parts, room = pieces(1, length)
        rooms.append((parts, room))
        one.message.pieces, one.message.count = parts, 1
    return all_of, rooms


def _several_server(role):
    role.pair()
    number = role.end.fileno()
    all_of, rooms = _several(4, 4)
    role.meet()
    for flags in (0, 0x10000, socket.MSG_DONTWAIT):
        got = called("recvmmsg", number, all_of, 2, flags, None)
        role.say("recvmmsg", hex(flags), got, [one.length for one in all_of],
                 [room.raw[:4] for _, room in rooms])
    role.say("none", called("recvmmsg", number, all_of, 2, socket.MSG_DONTWAIT, None))
    role.meet()
    role.meet()
    role.say("the end", called("recvmmsg", number, all_of, 3, 0, None),
             [one.length for one in all_of])


def _several_client(role):
    role.pair()
    number = role.end.fileno()
    all_of, _ = _several(5, 4)
    role.say("sendmmsg", called("sendmmsg", number, all_of, 5, 0), [one.length for one in all_of])
    role.say("none", called("sendmmsg", number, all_of, 0, 0))
    role.meet()
    role.meet()
    role.end.close()
    role.meet()


# Numbers of x86-64.
_READ, _WRITE, _POLL, _WRITEV, _SENDTO, _RECVFROM, _EPOLL_WAIT, _EPOLL_PWAIT = \
    0, 1, 7, 20, 44, 45, 232, 281
_GETSOCKNAME, _SENDMMSG, _SHUTDOWN = 51, 307, 48


def _numbered(role):
    """Calls by number."""
    role.pair()
    number = role.end.fileno()
    if role.name == "client":
        all_of, _ = pieces(100)
        role.say(called("syscall", _WRITE, number, b"abcd", ctypes.c_size_t(4)),
                 called("syscall", _WRITEV, number, all_of, 100),
                 called("syscall", _SENDTO, number, b"efgh", ctypes.c_size_t(4), 0, None, 0))
        role.meet()
        role.meet()
        role.say(called("syscall", _SHUTDOWN, number, 1))
        role.meet()
        return
    role.meet()
    place = ctypes.create_string_buffer(200)
    role.say(called("syscall", _READ, number, place, ctypes.c_size_t(4)), place.value)
    role.say(called("syscall", _RECVFROM, number, place, ctypes.c_size_t(104), 0, None, None))
    role.say(called("syscall", _RECVFROM, number, place, ctypes.c_size_t(9), 0x40, None, None))
    epoll = select.epoll()
    epoll.register(number, select.EPOLLIN)
    event = ctypes.create_string_buffer(12)
    role.say(called("syscall", _EPOLL_WAIT, epoll.fileno(), event, 1, 10))
    role.meet()
    role.say(called("syscall", _EPOLL_PWAIT, epoll.fileno(), event, 1, 5000, None, 8),
             event.raw[:4])
    one = ctypes.create_string_buffer(number.to_bytes(4, "little") + b"\1\0\0\0")
    role.say(called("syscall", _POLL, one, 1, 5000), one.raw[4:8])
    role.meet()


def _ring(role):
    """A ring that a light connection cannot be given to is refused when it is asked for."""
    role.pair()
    parameters = ctypes.create_string_buffer(256)
    got = called("syscall", 425, 8, parameters)
    if is_light(role.end.fileno()):
        role.say(got == "ENOSYS")
    else:
        # As the machine has it.
        role.say(True)
    role.meet()


WAYS = {
    "vectors": (_vectors_server, _vectors_client),
    "truncated": (_truncated_server, _truncated_client),
    "several": (_several_server, _several_client),
    "numbered": (_numbered, _numbered),
    "ring": (_ring, _ring),
}
