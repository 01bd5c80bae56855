#!/usr/bin/python3
"""Sockets that come into other hands at awkward moments, while they are offered or carried.

`passed_descriptors.py WHAT [BROKER]` does one of the tests below with a peer, which is a process of
its own and does what it is told by lines. All that is checked holds on the kernel's sockets, too;
with the library it is checked besides that there is a link, or none.
"""

import contextlib
import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time

DESCRIBE = getattr(ctypes.CDLL(None), "omniverb_sockets_describe", None)
_TURNS, _FEW = 50, 4
# More than the broker gives a process at a time (sockets/broker/src/limits.rs, LINKS).
_LINKS = 4096 + 200
# How long bytes that are put somewhere stay there, and how long they are waited for at most; in
# seconds.
_HELD, _LONG = 0.05, 10
# Messages to somebody asleep: more than twice as many as make a link rest.
_ASLEEP = 2500
# SO_TIMESTAMPNS (asm-generic/socket.h).
_TIMESTAMPS = 35
# The last thing that is sent.
_LAST = bytes(range(250)) * 200


def described(end):
    """What the library knows of it; nothing without it."""
    if not DESCRIBE:
        return ""
    text = ctypes.create_string_buffer(4000)
    DESCRIBE(end.fileno(), text, len(text))
    return text.value.decode()


def has_link(end):
    """It has memory that it shares with its other end."""
    return any(word in described(end).split() for word in ("carried", "linked", "left"))


class Peer:
    """The process at the other ends, which has the library if `has_library`."""

    def __init__(self, has_library):
        self.listener = socket.create_server(("127.0.0.1", 0))
        port = str(self.listener.getsockname()[1])
        hidden = () if has_library else ("LD_PRELOAD",)
        environment = {name: value for name, value in os.environ.items() if name not in hidden}
        self.process = subprocess.Popen(
            [sys.executable, "-B", __file__, "peer", port], env=environment, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self, *words):
        """Has it do something, and returns what it says."""
        print(*words, file=self.process.stdin, flush=True)
        return self.process.stdout.readline().rstrip("\n")

    def connect(self):
        """A connection of it."""
        self.process.stdin.write("connect\n")
        self.process.stdin.flush()
        end = self.listener.accept()[0]
        self.process.stdout.readline()
        return end

    def swap(self, end, index):
        """A byte to it, and one back."""
        end.sendall(b"p")
        got = self.ask("get", index, 1)
        assert got == "p", got
        self.ask("send", index, "q")
        assert end.recv(1) == b"q"

    def carry(self, end, index):
        """Until the connection has a link."""
        until = time.monotonic() + _LONG
        while time.monotonic() < until:
            self.swap(end, index)
            if not DESCRIBE or has_link(end):
                return
        raise AssertionError(f"no link: {described(end)}")


def until_asleep(thread):
    """Waits until a thread that was started sleeps in its call."""
    until, looks = time.monotonic() + _LONG, 0
    while looks < 5:
        assert time.monotonic() < until, "it does not sleep"
        with open(f"/proc/self/task/{thread.native_id}/stat", encoding="ascii") as file:
            state = file.read().rpartition(")")[2].split()[0]
        looks = looks + 1 if state == "S" else 0
        time.sleep(0.01)


def peer(port):
    """Does what it is told."""
    ends = []
    for line in sys.stdin:
        word, *rest = line.split()
        said = ""
        if word == "connect":
            ends.append(socket.create_connection(("127.0.0.1", port)))
        elif word == "count":
            said = str(len(ends))
        elif word == "send":
            ends[int(rest[0])].sendall(rest[1].encode())
        elif word == "get":
            end, left = ends[int(rest[0])], int(rest[1])
            while left and (got := end.recv(left)):
                said += got.decode()
                left -= len(got)
        elif word == "end":
            print(flush=True)
            _end(ends[0], rest[0], float(rest[1]))
        elif word == "drop":
            ends.pop(0).close()
        elif word == "put":
            # The answer first: who waits for the next word gives the kernel what nobody has read.
            print(flush=True)
            ends[int(rest[0])].sendall(rest[1].encode())
            until = time.monotonic() + _HELD
            while time.monotonic() < until:
                pass
            continue
        elif word == "shut":
            ends[int(rest[0])].shutdown(socket.SHUT_WR)
        print(said, flush=True)


def _end(end, how, later):
    """Sends, and ends some time later."""
    end.sendall(_LAST)
    until = time.monotonic() + later
    while time.monotonic() < until:
        pass
    if how == "exit":
        sys.exit(0)
    if how == "_exit":
        os._exit(0)
    if how == "exec":
        os.execv("/bin/true", ["true"])
    os.kill(os.getpid(), signal.SIGKILL)


def ended(other, _):
    """What was sent before a process ended comes, however it ended, also to who has left it to the
    kernel in between."""
    stop(other)
    for how in ("exit", "_exit", "exec", "killed"):
        for leaves in (False, True) if how != "killed" else (False,):
            other = Peer(True)
            end = other.connect()
            other.carry(end, 0)
            end.setblocking(False)
            try:
                raise AssertionError(f"there was {end.recv(1)}")
            except BlockingIOError:
                other.ask("end", how, _HELD if leaves else 0)
            if leaves:
                time.sleep(_HELD / 5)
                end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
            else:
                other.process.wait()
            end.setblocking(True)
            end.settimeout(_LONG)
            got = b""
            while part := end.recv(7000):
                got += part
            assert got == _LAST, f"{how} {leaves}: {len(got)} of {len(_LAST)}"
            other.process.stdin.close()
            other.process.wait()


def stamped(other, _):
    """What the kernel says beside bytes that come by it is said, also if some came by the ring."""
    end = other.connect()
    other.carry(end, 0)

    def control():
        other.ask("send", 0, "ab")
        data, said, _, address = end.recvmsg(10, 100)
        assert data == b"ab" and not address, (data, address)
        return len(said)
    assert control() == 0
    end.setsockopt(socket.SOL_SOCKET, _TIMESTAMPS, 1)
    # The kernel begins to stamp a little later.
    until = time.monotonic() + _LONG
    while not control():
        assert time.monotonic() < until, "no timestamp"
    assert [control() for _ in range(5)] == [1] * 5


def rests(other, has_library):
    """Who always sends to somebody asleep has the kernel do it for a while, and no byte is lost;
    once bytes are looked for again they are carried."""
    end = other.connect()
    other.carry(end, 0)
    got, has_rested = bytearray(), False

    def reads():
        while len(got) < _ASLEEP and (part := end.recv(1)):
            got.extend(part)
    reader = threading.Thread(target=reads)
    reader.start()
    for count in range(_ASLEEP):
        other.ask("send", 0, chr(ord("a") + count % 26))
        # This end forgets the link at once; the other one offers its socket again later.
        has_rested |= not has_link(end)
        until = time.monotonic() + _LONG
        while len(got) <= count:
            assert time.monotonic() < until, f"{len(got)} of {count}"
        # So that it sleeps again.
        time.sleep(0.0005)
    reader.join()
    assert got == bytes(ord("a") + count % 26 for count in range(_ASLEEP)), bytes(got)
    assert has_rested or not has_library, described(end)
    other.carry(end, 0)
    for _ in range(_TURNS):
        other.swap(end, 0)


def stop(other):
    """Has a peer end."""
    other.process.stdin.close()
    assert other.process.wait() == 0


def spawned(other, has_library):
    """A child has the socket as its standard input and output, whose parent then closes it."""
    end = other.connect()
    if has_library:
        other.carry(end, 0)
    else:
        # It is offered, and nobody ever comes for it.
        other.swap(end, 0)
    with subprocess.Popen(["cat"], stdin=end, stdout=end) as child:
        end.close()
        for number in range(_TURNS):
            text = f"{number:04}" * 25
            other.ask("send", 0, text)
            got = other.ask("get", 0, len(text))
            assert got == text, f"{number}: {got!r}"
        other.ask("shut", 0)
        assert other.ask("get", 0, 1) == "", "more than was sent"
        assert child.wait() == 0


def _offered(other):
    end = other.connect()
    end.sendall(b"1")
    assert "offered" in described(end) or not DESCRIBE, described(end)
    return end


def _goes_on(other, end, send):
    """Two have it now, who send in turn; the other end, which offers only now, gets that so."""
    got = other.ask("get", 0, 1)
    assert got == "1", got
    other.ask("send", 0, "q")
    assert end.recv(1) == b"q"
    for _ in range(_TURNS):
        end.sendall(b"a")
        send(b"b")
    got = other.ask("get", 0, 2 * _TURNS)
    assert got == "ab" * _TURNS, got
    assert not has_link(end), described(end)


def forked(other, _):
    """A process is made between the offer and the link."""
    end = _offered(other)
    near, far = socket.socketpair()
    child = os.fork()
    if child == 0:
        near.close()
        while data := far.recv(1):
            end.sendall(data)
            far.sendall(data)
        os._exit(0)
    far.close()

    def send(data):
        near.sendall(data)
        near.recv(1)
    _goes_on(other, end, send)
    near.close()
    assert os.waitpid(child, 0)[1] == 0


def passed(other, _):
    """A process that was there before gets it between the offer and the link, by a message."""
    near, far = socket.socketpair()
    child = os.fork()
    if child == 0:
        near.close()
        _, numbers, _, _ = socket.recv_fds(far, 1, 1)
        while data := far.recv(1):
            os.write(numbers[0], data)
            far.sendall(data)
        os._exit(0)
    far.close()
    end = _offered(other)
    socket.send_fds(near, [b"x"], [end.fileno()])

    def send(data):
        near.sendall(data)
        near.recv(1)
    _goes_on(other, end, send)
    near.close()
    assert os.waitpid(child, 0)[1] == 0


def halved(other, _):
    """It is shut down between the offer and the link."""
    for index in range(_TURNS):
        end = other.connect()
        end.sendall(b"1")
        assert other.ask("get", index, 1) == "1"
        time.sleep(0.002)
        end.shutdown(socket.SHUT_WR)
        try:
            raise AssertionError(f"{end.send(b'2')} bytes were sent")
        except BrokenPipeError:
            pass
        assert other.ask("get", index, 1) == ""
        other.ask("send", index, "3")
        assert end.recv(2) == b"3"


def duplicated(other, _):
    """Another number is for it, too, between the offer and the link."""
    end = _offered(other)
    second = end.dup()
    _goes_on(other, end, second.sendall)


def reused(other, _):
    """The number is closed, and given to another connection, under a call that waits."""
    first = other.connect()
    number = first.fileno()
    other.carry(first, 0)
    got = []
    thread = threading.Thread(target=lambda: got.append(first.recv(10)))
    thread.start()
    until_asleep(thread)
    os.close(number)
    second = other.connect()
    assert second.fileno() == number, second.fileno()
    other.carry(second, 1)
    other.ask("send", 0, "old")
    thread.join()
    assert got == [b"old"], got
    for _ in range(_TURNS):
        other.swap(second, 1)
    assert has_link(second) or not DESCRIBE, described(second)
    first.detach()


@contextlib.contextmanager
def _stopped(broker):
    """It does nothing: what it is given stays where it is."""
    os.kill(broker, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(broker, signal.SIGCONT)


def closed(other, _):
    """A socket is closed while the broker has a duplicate: no set tells of it any more."""
    for index in range(_FEW):
        with _stopped(int(sys.argv[2])):
            end, members = other.connect(), select.epoll()
            members.register(end, select.EPOLLIN | select.EPOLLRDHUP)
            until = time.monotonic() + _LONG
            while DESCRIBE and "offered" not in described(end).split():
                other.swap(end, index)
                assert time.monotonic() < until, described(end)
            end.close()
            told = members.poll(_HELD)
            assert told == [], told


def many(other, _):
    """Links of sockets that were shared come back, too: there is always another one."""
    for _ in range(_LINKS):
        end = other.connect()
        other.carry(end, 0)
        with end.dup():
            end.close()
        other.ask("drop")


def _member(other, events):
    """A carried connection in a set."""
    end, members = other.connect(), select.epoll()
    other.carry(end, 0)
    end.setblocking(False)
    members.register(end, events)
    return end, members


def _put(other, end, text):
    """Has bytes sent after nothing was there to be received, so that they come by the ring."""
    try:
        raise AssertionError(f"there was {end.recv(1)}")
    except BlockingIOError:
        other.ask("put", 0, text)


def level(other, _):
    """What is level-triggered is told of as long as there is something, and when it is changed."""
    end, members = _member(other, select.EPOLLIN)
    told, room = [(end.fileno(), select.EPOLLIN)], [(end.fileno(), select.EPOLLOUT)]
    for _ in range(10):
        assert members.poll(0) == []
        _put(other, end, "abc")
        assert members.poll(_LONG) == told and members.poll(0) == told
        assert end.recv(1) == b"a" and members.poll(0, 1) == told
        assert end.recv(9) == b"bc" and members.poll(0) == []
        members.unregister(end)
        _put(other, end, "d")
        assert members.poll(0.02) == []
        members.register(end, select.EPOLLIN)
        assert members.poll(_LONG) == told and end.recv(9) == b"d"
        members.modify(end, select.EPOLLOUT)
        _put(other, end, "e")
        assert members.poll(_LONG) == room and members.poll(0.02) == room
        members.modify(end, select.EPOLLIN | select.EPOLLOUT)
        while members.poll(_LONG) == room:
            pass
        both = [(end.fileno(), select.EPOLLIN | select.EPOLLOUT)]
        assert members.poll(_LONG) == both and end.recv(9) == b"e"
        members.modify(end, select.EPOLLIN)


def edge(other, _):
    """What is edge-triggered is told of whenever something has come, and when it is changed."""
    end, members = _member(other, select.EPOLLIN | select.EPOLLET)
    told = [(end.fileno(), select.EPOLLIN)]
    for _ in range(10):
        _put(other, end, "abc")
        assert members.poll(_LONG) == told and end.recv(1) == b"a"
        other.ask("put", 0, "d")
        while members.poll(_LONG) == told and end.recv(9, socket.MSG_PEEK) != b"bcd":
            pass
        members.modify(end, select.EPOLLIN | select.EPOLLET)
        assert members.poll(_LONG) == told and end.recv(9) == b"bcd"


def asleep(other, _):
    """It comes into a set, or is changed there, while another thread sleeps in that."""
    for added in (True, False):
        end, members = _member(other, 0) if not added else (other.connect(), select.epoll())
        if added:
            other.carry(end, 0)
            end.setblocking(False)
        got = []
        thread = threading.Thread(target=lambda found=members: got.extend(found.poll(_LONG)))
        thread.start()
        until_asleep(thread)
        _put(other, end, "a")
        if added:
            members.register(end, select.EPOLLIN)
        else:
            members.modify(end, select.EPOLLIN)
        thread.join()
        assert got == [(end.fileno(), select.EPOLLIN)], got
        assert end.recv(9) == b"a"
        if added:
            other.ask("drop")
        end.close()


def seen(other, _):
    """The set is waited for by other means: `poll`, another set, a child."""
    end, members = _member(other, select.EPOLLIN)
    poll, outer = select.poll(), select.epoll()
    poll.register(members, select.POLLIN)
    ways = [lambda: poll.poll(_LONG * 1000), lambda: outer.poll(_LONG), lambda: _child(members)]
    for way in ways:
        if way is ways[1]:
            outer.register(members, select.EPOLLIN)
        _put(other, end, "a")
        assert way(), "nothing came"
        assert members.poll(_LONG) == [(end.fileno(), select.EPOLLIN)] and end.recv(9) == b"a"


def _child(members):
    pid = os.fork()
    if pid == 0:
        os._exit(0 if members.poll(_LONG) else 1)
    return os.waitpid(pid, 0)[1] == 0


def main():
    """One of them."""
    if sys.argv[1] == "peer":
        peer(int(sys.argv[2]))
        return
    what, _, how = sys.argv[1].partition("-")
    has_library = how != "alone"
    other = Peer(has_library)
    tests = {"spawned": spawned, "forked": forked, "passed": passed, "duplicated": duplicated,
             "halved": halved,
             "reused": reused, "closed": closed, "many": many, "level": level, "edge": edge,
             "asleep": asleep,
             "seen": seen, "ended": ended, "stamped": stamped, "rests": rests}
    tests[what](other, has_library)
    if what != "ended":
        stop(other)
    print("ok")


if __name__ == "__main__":
    main()
