"""A process of random_call_sequences.py: does calls as it is told, by the C library's functions."""

import array
import ctypes
import errno
import json
import os
import re
import select
import socket
import stat
import struct
import sys
import zlib

LIBC = ctypes.CDLL(None, use_errno=True)
DESCRIBE = getattr(LIBC, "omniverb_sockets_describe", None)
NUMBERS = range(3, 60)
_SYSCALL = {"close": 3, "dup": 32, "fork": 57}

SENDS = ["send", "write", "writev", "sendmsg", "sendto", "sendfile"]
RECEIVES = ["recv", "read", "readv", "recvmsg", "peek"]
CLOSES = ["close", "close", "syscall", "close_range"]
DUPLICATES = ["dup", "dup2", "dup3", "F_DUPFD", "syscall"]
OPTIONS = ["SO_ERROR", "SO_TYPE", "SO_ACCEPTCONN", "FIONREAD", "getpeername", "linger", "lowat",
           "O_NONBLOCK", "F_SETOWN"]


def call(name, *arguments):
    """What it returned, and errno if that is -1."""
    ctypes.set_errno(0)
    value = getattr(LIBC, name)(*arguments)
    return [value, errno.errorcode.get(ctypes.get_errno(), "") if value == -1 else ""]


class Iovec(ctypes.Structure):
    """struct iovec."""
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]


class Message(ctypes.Structure):
    """struct msghdr."""
    _fields_ = [("name", ctypes.c_void_p), ("name_length", ctypes.c_uint),
                ("parts", ctypes.c_void_p), ("count", ctypes.c_size_t),
                ("control", ctypes.c_void_p), ("control_length", ctypes.c_size_t),
                ("flags", ctypes.c_int)]


class Event(ctypes.Structure):
    """struct epoll_event."""
    _pack_ = 1
    _fields_ = [("events", ctypes.c_uint32), ("data", ctypes.c_uint64)]


def _parts(buffer, length):
    """The buffer in two parts."""
    half, at = length // 2, ctypes.addressof(buffer)
    return (Iovec * 2)(Iovec(at, half), Iovec(at + half, length - half))


def _moved(name, number, buffer, length, flags):
    size = ctypes.c_size_t(length)
    if name in ("send", "recv"):
        return call(name, number, buffer, size, flags)
    if name == "sendto":
        return call(name, number, buffer, size, flags, None, 0)
    if name in ("read", "write"):
        return call(name, number, buffer, size)
    parts = _parts(buffer, length)
    if name in ("readv", "writev"):
        return call(name, number, parts, 2)
    message = Message(None, 0, ctypes.addressof(parts), 2, None, 0, 0)
    return call(name, number, ctypes.byref(message), flags)


def _sent_of_file(number, bytes_of):
    """By `sendfile`, of the middle of a file: what that gave, and where it says that it is then."""
    file = os.memfd_create("bytes")
    try:
        os.write(file, b"before" + bytes_of + b"behind")
        offset = ctypes.c_longlong(6)
        size = ctypes.c_size_t(len(bytes_of))
        return [*call("sendfile", number, file, ctypes.byref(offset), size), offset.value]
    finally:
        os.close(file)


class Process:
    """What it can be told to do: methods with a leading `do_`."""

    def __init__(self, control, links, spare):
        self.control, self.links, self.spare = control, links, spare
        # More than a byte of a stream repeats, so that a lost one shows.
        self.sent = 0

    def do_socket(self, is_tcp):
        answer = call("socket", socket.AF_INET if is_tcp else socket.AF_UNIX,
                      socket.SOCK_STREAM | socket.SOCK_NONBLOCK, 0)
        if is_tcp:
            # What was sent has come; it would wait for an acknowledgement, which is late or not.
            call("setsockopt", answer[0], 6, 1, struct.pack("i", 1), 4)
        return answer

    def do_listen(self, number, backlog):
        address = struct.pack("=HH4s8x", socket.AF_INET, 0, bytes([127, 0, 0, 1]))
        call("bind", number, address, len(address))
        answer = call("listen", number, backlog)
        got, length = ctypes.create_string_buffer(16), ctypes.c_uint(16)
        found = call("getsockname", number, got, ctypes.byref(length))
        is_one = answer[0] == 0 and found[0] == 0 and got.raw[0] == socket.AF_INET
        return answer, struct.unpack("!H", got.raw[2:4])[0] if is_one else 0

    def do_connect(self, number, port):
        address = struct.pack("=H", socket.AF_INET) + struct.pack("!H", port)
        return call("connect", number, address + bytes([127, 0, 0, 1]) + bytes(8), 16)

    def do_accept(self, number, is_four):
        if is_four:
            return call("accept4", number, None, None, socket.SOCK_NONBLOCK)
        answer = call("accept", number, None, None)
        call("fcntl", answer[0], 4, os.O_NONBLOCK)
        return answer

    def do_send(self, how, number, length):
        bytes_of = bytes((self.sent + at) % 251 for at in range(length))
        self.sent += length
        if how == "sendfile":
            return _sent_of_file(number, bytes_of)
        buffer = ctypes.create_string_buffer(bytes_of, length + 1)
        return _moved(how, number, buffer, length, socket.MSG_NOSIGNAL)

    def do_receive(self, how, number, length):
        buffer = ctypes.create_string_buffer(length + 1)
        flags = socket.MSG_PEEK if how == "peek" else 0
        answer = _moved("recv" if how == "peek" else how, number, buffer, length, flags)
        return [*answer, zlib.crc32(buffer.raw[:max(0, answer[0])])]

    def do_call(self, name, *arguments):
        return call(name, *arguments)

    def do_option(self, what, number):
        value, length = ctypes.c_int(0), ctypes.c_uint(4)
        if what == "getpeername":
            address = ctypes.create_string_buffer(16)
            return call(what, number, address, ctypes.byref(ctypes.c_uint(16)))
        if what == "FIONREAD":
            return [*call("ioctl", number, 0x541B, ctypes.byref(value)), value.value]
        if what == "linger":
            return call("setsockopt", number, 1, 13, struct.pack("ii", 1, 0), 8)
        if what == "lowat":
            return call("setsockopt", number, 1, 18, struct.pack("i", 4), 4)
        if what == "O_NONBLOCK":
            return [call("fcntl", number, 3), call("fcntl", number, 4, os.O_NONBLOCK)]
        if what == "F_SETOWN":
            return call("fcntl", number, 8, 0)
        name = {"SO_ERROR": 4, "SO_TYPE": 3, "SO_ACCEPTCONN": 30}[what]
        answer = call("getsockopt", number, 1, name, ctypes.byref(value), ctypes.byref(length))
        return [*answer, value.value]

    def do_events(self, how, numbers):
        if how == "select":
            sets = [ctypes.create_string_buffer(128) for _ in range(3)]
            for number, bits in ((n, b) for n in numbers for b in sets):
                bits[number // 8] = bits.raw[number // 8] | 1 << number % 8
            answer = call("select", 64, *sets, struct.pack("qq", 0, 0))
            return [*answer, *(bits.raw[:8].hex() for bits in sets)]
        asked = array.array("h", [x for n in numbers for x in (n, 0, 0x2007, 0)])
        address, zero = asked.buffer_info()[0], struct.pack("qq", 0, 0)
        extra = [0] if how == "poll" else [zero, None]
        answer = call(how, ctypes.c_void_p(address), len(numbers), *extra)
        return [*answer, asked[3::4].tolist()]

    def do_close(self, how, number):
        if how == "syscall":
            return call("syscall", _SYSCALL["close"], number)
        if how == "close_range" and number >= 0:
            return call("close_range", number, number, 0)
        return call("close", number)

    def do_duplicate(self, how, number, onto):
        if how == "dup":
            return call("dup", number)
        if how == "syscall":
            return call("syscall", _SYSCALL["dup"], number)
        if how == "F_DUPFD":
            return call("fcntl", number, 0, 44)
        return call(how, number, onto, *([0] if how == "dup3" else []))

    def do_member(self, chosen, operation, number, events, data):
        return call("epoll_ctl", chosen, operation, number, ctypes.byref(Event(events, data)))

    def do_wait(self, chosen, most):
        events = (Event * most)()
        answer = call("epoll_wait", chosen, events, most, 0)
        # In which order members are told of is nobody's promise.
        told = sorted((e.data, hex(e.events)) for e in events[:max(0, answer[0])])
        return [*answer, told]

    def do_give(self, number):
        try:
            with socket.socket(fileno=os.dup(self.links[0])) as link:
                return [socket.send_fds(link, [b"x"], [number]), ""]
        except OSError as error:
            return [-1, errno.errorcode.get(error.errno)]

    def do_take(self):
        try:
            with socket.socket(fileno=os.dup(self.links[1])) as link:
                return [socket.recv_fds(link, 8, 1)[1][0], ""]
        except IndexError:
            return [-1, "nothing"]
        except OSError as error:
            return [-1, errno.errorcode.get(error.errno)]

    def do_fork(self, how, name):
        pid = os.fork() if how == "fork" else LIBC.syscall(_SYSCALL["fork"])
        if not pid:
            self.control = self.spare[name]
            return None
        return pid

    def do_execute(self):
        for number in NUMBERS:
            try:
                os.set_inheritable(number, True)
            except OSError:
                pass
        words = [str(self.control), json.dumps([self.links, self.spare]), str(self.sent)]
        os.execv(sys.executable, [sys.executable, "-SE", os.path.abspath(__file__), *words])

    def do_spawn(self, numbers):
        """A child that has our memory closes everything, and puts other things there."""
        actions = [(os.POSIX_SPAWN_CLOSE, number) for number in numbers[::2]]
        actions += [(os.POSIX_SPAWN_DUP2, 1, number) for number in numbers[1::2] if number >= 0]
        pid = os.posix_spawn("/bin/true", ["true"], os.environ, file_actions=actions)
        return os.waitpid(pid, 0)[1]

    def do_ways(self, numbers):
        """What the library says of connections."""
        return [_described(number) for number in numbers] if DESCRIBE else []

    def do_audit(self, shares):
        return audit(shares) if DESCRIBE else []

    def serve(self):
        """Does what it is told, until it is killed."""
        while True:
            words = json.loads(os.read(self.control, 1 << 16))
            answer = getattr(self, "do_" + words[0])(*words[1:])
            if words[0] != "fork" or answer is not None:
                os.write(self.control, json.dumps(answer).encode())


def _described(number):
    text = ctypes.create_string_buffer(4000)
    DESCRIBE(number, text, len(text))
    return text.value.decode()


def _kinds(number):
    """What the library may say of a descriptor, by the kernel. What is light is none of its."""
    if "light" in _described(number):
        return ["other"]
    if not stat.S_ISSOCK(os.fstat(number).st_mode):
        is_set = os.readlink(f"/proc/self/fd/{number}") == "anon_inode:[eventpoll]"
        return ["set" if is_set else "other"]
    with socket.socket(fileno=os.dup(number)) as one:
        if one.type != socket.SOCK_STREAM or one.proto != socket.IPPROTO_TCP:
            return ["other"]
        if one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            return ["listening"]
        try:
            one.getpeername()
            return ["connecting", "connected", "accepted"]
        except OSError:
            return ["fresh", "connecting", "connected", "accepted"]


def audit(shares):
    """Where what the library knows of descriptors differs from what the kernel says. Where others
    share them, what they do to them cannot be known."""
    wrong, ids, sets = [], {}, {}
    for number in NUMBERS:
        try:
            status = os.fstat(number)
        except OSError:
            continue
        kinds, said = _kinds(number), _described(number)
        if shares and "fresh" in kinds + ["fresh"] and kinds[0] not in ("set", "other"):
            kinds = ["fresh", "listening", "connecting", "connected", "accepted"]
        if said.split()[0] not in kinds:
            wrong.append(f"{number} is one of {kinds}, said to be {said}")
        if stat.S_ISSOCK(status.st_mode) and "found" not in said:
            one = re.search(r"id=(\d+)", said)[1]
            if ids.setdefault(one, status.st_ino) != status.st_ino:
                wrong.append(f"{number} has the id of another: {said}")
        if kinds == ["set"]:
            sets[number] = _members(number)
    if not shares:
        wrong += _audit_members(sets)
    return wrong


def _members(number):
    """Number, data and inode of each member of a set."""
    with open(f"/proc/self/fdinfo/{number}", encoding="ascii") as file:
        lines = [line for line in file if line.startswith("tfd:")]
    pattern = r"tfd:\s*(\d+) events:\s*\w+ data:\s*(\w+) .* ino:(\w+)"
    found = [re.match(pattern, line).groups() for line in lines]
    return [(int(tfd), int(data, 16), int(inode, 16)) for tfd, data, inode in found]


def _audit_members(sets):
    wrong, there = [], set()
    for number, members in sets.items():
        for member, data, inode in members:
            there.add((member, data))
            try:
                is_open = os.fstat(member).st_ino == inode
            except OSError:
                continue
            if is_open and _kinds(member) != ["other"]:
                if f":{data:#x}" not in _described(member) + " ":
                    wrong.append(f"{member} is in {number} with {data:#x}: {_described(member)}")
    for number in NUMBERS:
        for data in re.findall(r" in=\d+:\w+:0x(\w+)", _described(number)):
            if (number, int(data, 16)) not in there:
                wrong.append(f"{number} is not in a set with {data}: {_described(number)}")
    return wrong


def serve(control, rights):
    """Of a child; does not return."""
    try:
        Process(control, *rights).serve()
    finally:
        os._exit(1)


if __name__ == "__main__":
    again = Process(int(sys.argv[1]), *json.loads(sys.argv[2]))
    again.sent = int(sys.argv[3])
    os.write(again.control, json.dumps("done").encode())
    again.serve()
