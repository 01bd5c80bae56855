#!/usr/bin/python3
"""Sockets that several processes have for a while, whose count is hard to keep: something is under
way as it is changed. As forked_sockets.py; `sharing_races.py WHAT`.
"""

import ctypes
import os
import random
import socket
import struct
import threading
import time
import traceback

import forked_sockets
from passed_descriptors import described, has_link, until_asleep
from forked_sockets import Child

TURNS, ROUNDS = 20, 60
# Seconds that something may take, and for which there is no link where there must be none.
LONG, _WHILE = 10, 1
# Processes, connections and steps of one random order.
_CROWD, _ENDS, _STEPS = 5, 6, 250


def _never(end, act):
    """There is no link, for longer than one would take."""
    until = time.monotonic() + _WHILE
    while time.monotonic() < until:
        act()
        assert not {"carried", "linked"} & set(described(end).split()), described(end)


def copying(other):
    """A duplicate is being made while its process is forked for the first time: the kernel's call
    does not return before what was at its number is closed, which lingers."""
    end = other.connect()
    listener = socket.create_server(("127.0.0.1", 0))
    lingers = socket.create_connection(listener.getsockname())
    far = listener.accept()[0]
    lingers.setblocking(False)
    # Until the kernel takes no more of it even after a while.
    full = 0
    while full < 5:
        try:
            lingers.send(bytes(1 << 16))
            full = 0
        except BlockingIOError:
            full += 1
            time.sleep(0.02)
    lingers.setblocking(True)
    lingers.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, LONG))
    twin = lingers.detach()
    thread = threading.Thread(target=ctypes.CDLL(None).dup2, args=(end.fileno(), twin))
    thread.start()
    until = time.monotonic() + LONG
    # The number is for the new one before the old one is closed.
    while os.fstat(twin).st_ino != os.fstat(end.fileno()).st_ino:
        assert time.monotonic() < until
    time.sleep(0.05)
    assert thread.is_alive()

    def act(control):
        os.close(twin)
        far.close()
        control.sendall(b"c")
        control.recv(1)
        _never(end, lambda: other.swap(end, 0))
    child = Child(act)
    number = end.detach()
    # The child goes on by its own object of it.
    os.close(number)
    far.close()
    child.go()
    assert child.control.recv(1) == b"c"
    child.go()
    thread.join()
    child.wait()
    with socket.socket(fileno=twin) as kept:
        other.swap(kept, 0)


def sleeping(other):
    """Another thread sleeps in a call when its process closes the number: the call goes on."""
    for links in (True, False):
        index = 0 if links else 1
        end = other.connect()
        if links:
            forked_sockets.goes_on(other, end, index)
        else:
            end.sendall(b"p")
            assert other.ask("get", index, 1) == "p"

        def act(_, end=end, index=index):
            def says():
                end.sendall(b"p")
                assert other.ask("get", index, 1) == "p"
            _never(end, says)
        child = Child(act)
        got = ctypes.create_string_buffer(1)
        receive = threading.Thread(target=ctypes.CDLL(None).recv,
                                   args=(end.fileno(), got, 1, 0))
        receive.start()
        until_asleep(receive)
        os.close(end.detach())
        child.join()
        other.ask("send", index, "q")
        receive.join()
        assert got.raw == b"q", got.raw


def older(other):
    """The same by a link that the socket had before: it was forgotten as its process forked."""
    end = other.connect()
    forked_sockets.goes_on(other, end, 0)
    got = ctypes.create_string_buffer(1)
    receive = threading.Thread(target=ctypes.CDLL(None).recv, args=(end.fileno(), got, 1, 0))
    receive.start()
    until_asleep(receive)
    Child(lambda _: None).join()

    def says():
        end.sendall(b"p")
        assert other.ask("get", 0, 1) == "p"
    until = time.monotonic() + _WHILE
    while time.monotonic() < until:
        says()
    child = Child(lambda _: _never(end, says))
    os.close(end.detach())
    child.join()
    other.ask("send", 0, "q")
    receive.join()
    assert got.raw == b"q", got.raw


def files(other):
    """The same with a call of which nobody is told when it is over."""
    end, size = other.connect(), 24 << 20
    source = os.memfd_create("file")
    os.pwrite(source, b"f" * size, 0)
    end.setblocking(True)
    libc = ctypes.CDLL(None)
    libc.sendfile.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
    sends = threading.Thread(target=libc.sendfile, args=(end.fileno(), source, None, size))
    sends.start()
    until_asleep(sends)
    assert sends.is_alive()

    def act(_):
        def hears():
            other.ask("send", 0, "q")
            assert end.recv(1) == b"q"
        _never(end, hears)
    child = Child(act)
    os.close(end.detach())
    child.join()
    assert other.ask("get", 0, size) == "f" * size
    sends.join()


def ending(other):
    """Who ends while another thread of its runs is not counted off for sure; nor who executes
    another program, or would have; nor is it counted again then."""
    end = other.connect()

    def many(_):
        threading.Thread(target=time.sleep, args=(LONG,), daemon=True).start()
    Child(many).join()
    _never(end, lambda: other.swap(end, 0))
    # Something of other libraries may come behind the end of ours.
    by_exit = other.connect()
    Child(lambda _: ctypes.CDLL(None).exit(0)).join()
    _never(by_exit, lambda: other.swap(by_exit, 1))
    second = other.connect()
    first = Child(lambda _: _never(second, lambda: other.swap(second, 2)))
    try:
        os.execv("/nowhere/at/all", ["nothing"])
    except FileNotFoundError:
        pass
    last = Child(lambda _: _never(second, lambda: other.swap(second, 2)))
    second.close()
    last.join()
    first.join()


def restored(other):
    """A duplicate that cannot be made leaves what there was, also while its process is forked."""
    libc, is_over = ctypes.CDLL(None), []
    for index in range(ROUNDS):
        end = other.connect()
        number = end.fileno()

        def fails(number=number):
            while not is_over:
                assert libc.dup2(900, number) == -1
        is_over.clear()
        thread = threading.Thread(target=fails)
        thread.start()
        child = Child(lambda _: None)
        is_over.append(True)
        thread.join()
        for _ in range(TURNS // 2):
            other.swap(end, index)
            assert not has_link(end), described(end)
        child.join()


def _act(rand, crowd, who, other, ends):
    """One thing that one process of several does."""
    name, held = who
    what = rand.choice(["send", "send", "get", "get", "swap", "fork", "dup", "close", "close",
                        "exec", "fails", "end"])
    number = rand.choice(sorted(held)) if held else None
    if what in ("send", "get", "swap") and held:
        count = rand.choice([1, 5, 300, 5000])
        sent = bytes(rand.choice(b"abcdefgh") for _ in range(count)).decode()
        if what != "get":
            crowd.tell(name, "send", held[number], sent)
            assert other.ask("get", number, count) == sent
        if what != "send":
            other.ask("send", number, sent)
            assert crowd.tell(name, "get", held[number], count) == sent
    elif what == "fork" and len(crowd.all) < _CROWD:
        crowd.fork(name)
    elif what == "dup" and held:
        new = int(crowd.tell(name, "dup", held[number]))
        if rand.random() < 0.5:
            held[number], new = new, held[number]
        if rand.random() < 0.7:
            crowd.tell(name, "close", new)
    elif what == "close" and held and sum(number in one for one in crowd.all.values()) > 1:
        crowd.tell(name, "close", held.pop(number))
    elif what in ("exec", "end") and len(crowd.all) > 2:
        if all(sum(number in one for one in crowd.all.values()) > 1 for number in held):
            crowd.end(name, what)
    elif what == "fails":
        crowd.tell(name, "fails")
    elif len(ends) < _ENDS and name == 0:
        ends.append(None)
        other.connect()
        held[len(ends) - 1] = int(crowd.tell(name, "accept"))


class Crowd:
    """Processes that are told what to do by one that has none of their sockets."""

    def __init__(self, other):
        self.other, self.controls, self.all = other, {}, {0: {}}
        # Everybody has all of these: who is made by whom is not known before.
        self.pairs = [socket.socketpair() for _ in range(_CROWD * 8)]
        self.made = 1
        pid = os.fork()
        if pid == 0:
            self.serve(0)
        self.pid = pid

    def tell(self, name, *words):
        """Has one do something, and returns what it says."""
        self.pairs[name][0].sendall((" ".join(map(str, words)) + "\n").encode())
        return self._hear(name, words)

    def _hear(self, name, words):
        near = self.pairs[name][0]
        said = b""
        while not said.endswith(b"\n"):
            part = near.recv(1 << 16)
            assert part, f"{name} has ended: {words}"
            said += part
        assert not said.startswith(b"!"), said
        return said.decode().rstrip("\n")

    def fork(self, name):
        """One makes another one, which has all that it has."""
        if self.made < len(self.pairs):
            self.tell(name, "fork", self.made)
            self._hear(self.made, "forked")
            self.all[self.made] = dict(self.all[name])
            self.made += 1

    def end(self, name, how):
        """One ends."""
        if name != 0:
            self.tell(name, how)
            del self.all[name]

    def serve(self, name):
        """What one does."""
        far, status = self.pairs[name][1], 0
        try:
            while line := self._line(far):
                word, *rest = line.split()
                if word == "fork" and os.fork() == 0:
                    name = int(rest[0])
                    far = self.pairs[name][1]
                far.sendall((str(self.do(word, rest)) + "\n").encode())
                if word == "exec":
                    os.execv("/bin/true", ["true"])
                if word == "end":
                    break
        except BaseException as error:  # pylint: disable=broad-except
            traceback.print_exc()
            far.sendall(f"!{error}\n".encode())
            status = 1
        os._exit(status)

    @staticmethod
    def _line(far):
        line = b""
        while not line.endswith(b"\n"):
            part = far.recv(1)
            if not part:
                return ""
            line += part
        return line.decode()

    def do(self, word, rest):
        """One thing."""
        said = ""
        if word == "accept":
            said = self.other.listener.accept()[0].detach()
        elif word == "send":
            left = rest[1].encode()
            while left:
                left = left[os.write(int(rest[0]), left):]
        elif word == "get":
            left = int(rest[1])
            while left:
                part = os.read(int(rest[0]), left).decode()
                assert part, "the end"
                said, left = said + part, left - len(part)
        elif word == "dup":
            said = os.dup(int(rest[0]))
        elif word == "close":
            os.close(int(rest[0]))
        elif word == "fails":
            try:
                os.execv("/nowhere/at/all", ["nothing"])
            except FileNotFoundError:
                pass
        return said


def mixed(other):
    """Processes fork, duplicate, close, execute, end, send and receive, in an order that is another
    one for each number: each byte comes, in order, to whoever asks."""
    for seed in range(int(os.environ.get("SEEDS", "6"))):
        rand, ends = random.Random(seed), []
        crowd = Crowd(other)
        base = int(other.ask("count"))
        try:
            for _ in range(_STEPS):
                name = rand.choice(sorted(crowd.all))
                _act(rand, crowd, (name, crowd.all[name]), _Numbered(other, base), ends)
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        for name in sorted(crowd.all, reverse=True):
            crowd.tell(name, "end")
        assert os.waitpid(crowd.pid, 0)[1] == 0


class _Numbered:
    """A peer whose connections are counted from one on."""

    def __init__(self, other, base):
        self.other, self.base = other, base

    def connect(self):
        """It does; somebody accepts it."""
        self.other.ask("connect")

    def ask(self, word, index, *rest):
        """As of the peer."""
        return self.other.ask(word, self.base + index, *rest)


TESTS = {act.__name__: act for act in (copying, sleeping, older, files, ending, restored, mixed)}


if __name__ == "__main__":
    forked_sockets.main(TESTS)
