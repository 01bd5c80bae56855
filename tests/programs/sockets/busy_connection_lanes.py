#!/usr/bin/python3
"""Connections of which some are busy: `busy_connection_lanes.py WAY`, in two processes.

* `held`: the server makes no calls while others have sent it as much as it takes. Whoever was busy
  before that still has room to send.
* `both`: both ends send much more than a busy connection's ring has before either receives.
* `asleep`: a thread that waits for one connection sleeps on while others are busy.
* `turns`: more connections are busy by turns than can be at a time, with threads and bytes of all
  sizes, and nothing is lost.
* `ends`: busy ones end in all ways, with bytes on the way.
* `calls`: calls that want more than a busy connection's ring has, or look before they take, and
  what a set tells of one.
"""

import os
import random
import select
import socket
import sys
import threading
import time

_WAIT = 20
# As often one has to send and to be answered until it is surely busy.
BUSY = 60
_MUCH = 700_000
_CONNECTIONS, _MESSAGES = 40, 400
# Times that a sleeping thread may be woken, of so many messages.
_WAKES, _TURNS = 50, 20_000
_ENDS = 60


def get(end, count):
    """So many bytes."""
    got = bytearray()
    while len(got) < count:
        piece = end.recv(count - len(got))
        assert piece, f"the end after {len(got)} of {count}"
        got += piece
    return bytes(got)


def echo(end, count):
    """So many messages of eight bytes go back."""
    for _ in range(count):
        end.sendall(get(end, 8))


def busy(end, count=BUSY):
    """So many go and come."""
    for at in range(count):
        end.sendall(b"%08d" % at)
        assert get(end, 8) == b"%08d" % at


def fill(end):
    """All that there is room for without waiting."""
    end.setblocking(False)
    total = 0
    try:
        while True:
            total += end.send(b"x" * 4096)
    except BlockingIOError:
        return total


class Held:
    """The server says when, by a pipe, and goes on when it is told to."""

    def __init__(self):
        self.still, self.goes = os.pipe(), os.pipe()

    def server(self, listener):
        """All is there when it goes on."""
        ends = [listener.accept()[0] for _ in range(5)]
        echo(ends[0], BUSY)
        os.write(self.still[1], b"s")
        os.read(self.goes[0], 1)
        for end in ends:
            while end.recv(1 << 16):
                pass
            end.close()

    def client(self, port):
        """The first is busy; the others fill what all have in common."""
        ends = [socket.create_connection(("127.0.0.1", port)) for _ in range(5)]
        busy(ends[0])
        os.read(self.still[0], 1)
        for end in ends[1:]:
            fill(end)
        ends[0].setblocking(False)
        for _ in range(10):
            assert ends[0].send(b"y" * 1000) == 1000
        os.write(self.goes[1], b"g")
        for end in ends:
            end.close()


class Both:
    """Both send, then both receive."""

    def server(self, listener):
        """One end."""
        end = listener.accept()[0]
        echo(end, BUSY)
        self._much(end, 1)

    def client(self, port):
        """The other one."""
        end = socket.create_connection(("127.0.0.1", port))
        busy(end)
        self._much(end, 2)

    @staticmethod
    def _much(end, seed):
        end.sendall(random.Random(seed).randbytes(_MUCH))
        assert get(end, _MUCH) == random.Random(3 - seed).randbytes(_MUCH)
        end.shutdown(socket.SHUT_WR)
        assert end.recv(1) == b""


class Asleep:
    """Of two connections one is busy, and a thread of the client's waits for the other."""

    def server(self, listener):
        """The quiet one says something at last."""
        quiet, loud = listener.accept()[0], listener.accept()[0]
        echo(quiet, BUSY)
        echo(loud, BUSY + _TURNS)
        quiet.sendall(get(loud, 8))
        get(quiet, 8)

    def client(self, port):
        """How often that thread was woken."""
        quiet, loud = (socket.create_connection(("127.0.0.1", port)) for _ in range(2))
        busy(quiet)
        wakes = []
        threads = [threading.Thread(target=self._wait, args=(quiet, wakes))]
        threads[0].start()
        busy(loud)
        while not wakes or _switches(wakes[0]) < 1:
            time.sleep(0.001)
        time.sleep(0.05)
        before = _switches(wakes[0])
        # This thread does not sleep: what wakes one wakes all for a moment.
        loud.setblocking(False)
        for _ in range(_TURNS):
            loud.send(b"message.")
            self._spin(loud)
        loud.setblocking(True)
        woken = _switches(wakes[0]) - before
        loud.sendall(b"8 bytes!")
        quiet.sendall(b"8 bytes.")
        threads[0].join()
        assert wakes[1:] == [b"8 bytes!"], wakes
        # The kernel wakes nobody.
        assert woken < _WAKES, woken

    @staticmethod
    def _spin(loud):
        got = 0
        while got < 8:
            try:
                piece = loud.recv(8 - got)
                assert piece
                got += len(piece)
            except BlockingIOError:
                os.sched_yield()

    @staticmethod
    def _wait(quiet, wakes):
        wakes.append(threading.get_native_id())
        wakes.append(get(quiet, 8))


def _switches(thread):
    with open(f"/proc/self/task/{thread}/status", encoding="ascii") as status:
        for line in status:
            if line.startswith("voluntary_ctxt_switches"):
                return int(line.split()[1])
    return 0


class Turns:
    """Threads of the client's, each with some connections that are busy by turns."""

    def server(self, listener):
        """A thread for some, a set for the others."""
        ends = [listener.accept()[0] for _ in range(_CONNECTIONS)]
        threads = [threading.Thread(target=self._echo, args=(end,)) for end in ends[:10]]
        [one.start() for one in threads]
        with select.epoll() as waits:
            left = {end.fileno(): end for end in ends[10:]}
            for number, end in left.items():
                waits.register(number, select.EPOLLIN)
            while left:
                for number, _ in waits.poll():
                    piece = left[number].recv(5000)
                    if piece:
                        left[number].sendall(piece)
                    else:
                        waits.unregister(number)
                        left.pop(number).close()
        [one.join() for one in threads]

    @staticmethod
    def _echo(end):
        while piece := end.recv(3000):
            end.sendall(piece)
        end.close()

    def client(self, port):
        """All that is sent comes back."""
        ends = [socket.create_connection(("127.0.0.1", port)) for _ in range(_CONNECTIONS)]
        wrong = []
        threads = [threading.Thread(target=self._talk, args=(ends[at::4], at, wrong))
                   for at in range(4)]
        [one.start() for one in threads]
        [one.join() for one in threads]
        assert not wrong, wrong

    @staticmethod
    def _talk(ends, seed, wrong):
        pick = random.Random(seed)
        try:
            while ends:
                # A while with a few, and then with others.
                few = pick.sample(ends, min(len(ends), pick.randrange(1, 4)))
                for _ in range(pick.randrange(1, _MESSAGES // 10)):
                    end = pick.choice(few)
                    sent = pick.randbytes(pick.choice([1, 8, 100, pick.randrange(1, 60_000)]))
                    end.sendall(sent)
                    assert get(end, len(sent)) == sent
                if pick.random() < 0.3:
                    few[0].shutdown(socket.SHUT_WR)
                    assert few[0].recv(1) == b""
                    few[0].close()
                    ends.remove(few[0])
        except BaseException as error:
            wrong.append(repr(error))
            raise


class Ends:
    """One after the other, each busy."""

    def server(self, listener):
        """What each is sent after it was busy is told by its last word."""
        for turn in range(_ENDS):
            end = listener.accept()[0]
            echo(end, BUSY)
            pick = random.Random(turn)
            count = pick.randrange(1, 200_000)
            if turn % 4 == 0:
                assert get(end, count) == pick.randbytes(count)
                assert end.recv(1) == b""
            elif turn % 4 == 1:
                end.sendall(pick.randbytes(count))
                assert end.recv(1) == b""
            elif turn % 4 == 2:
                # It was reset, with whatever has come before.
                try:
                    while end.recv(3000):
                        pass
                    raise AssertionError("it was not reset")
                except ConnectionResetError:
                    pass
            else:
                end.sendall(b"12345678")
            end.close()

    def client(self, port):
        """The other ends."""
        for turn in range(_ENDS):
            end = socket.create_connection(("127.0.0.1", port))
            busy(end)
            pick = random.Random(turn)
            count = pick.randrange(1, 200_000)
            if turn % 4 == 0:
                end.sendall(pick.randbytes(count))
            elif turn % 4 == 1:
                end.shutdown(socket.SHUT_WR)
                assert get(end, count) == pick.randbytes(count)
                assert end.recv(1) == b""
            elif turn % 4 == 2:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, bytes([1]) + bytes(7))
                end.sendall(b"12345678")
            else:
                assert end.recv(100) == b"12345678"
                # Who has closed with nothing left to be read has ended.
                assert end.recv(100) == b""
            end.close()


class Calls:
    """The server does what it is told: one letter, and how many bytes are meant."""

    def server(self, listener):
        """Until it is told to end."""
        end = listener.accept()[0]
        echo(end, BUSY)
        while True:
            what, count = get(end, 1), int(get(end, 9))
            if what == b"s":
                end.sendall(self._bytes(count))
            elif what == b"t":
                assert get(end, count) == self._bytes(count)
                end.sendall(b"t")
            else:
                break
        assert end.recv(1) == b""
        end.close()

    @staticmethod
    def _bytes(count):
        return random.Random(count).randbytes(count)

    def client(self, port):
        """All of it with one connection."""
        end = socket.create_connection(("127.0.0.1", port))
        busy(end)
        self._tell(end, "s", 300_000)
        assert end.recv(300_000, socket.MSG_WAITALL) == self._bytes(300_000)
        for count in (40_000, 20):
            self._tell(end, "s", count)
            seen = end.recv(count, socket.MSG_PEEK | socket.MSG_WAITALL)
            assert seen == self._bytes(count), len(seen)
            assert end.recv(count, socket.MSG_WAITALL) == seen
        self._least(end)
        self._told(end)
        self._threads(end)
        self._tell(end, "e", 0)
        # Its number is for something else: it is closed.
        other, same = socket.socketpair()
        os.dup2(other.fileno(), end.fileno())
        end.sendall(b"not to the server")
        assert get(same, 17) == b"not to the server"

    @staticmethod
    def _tell(end, what, count):
        end.sendall(b"%s%9d" % (what.encode(), count))

    def _least(self, end):
        """It is not ready before there is enough."""
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 30_000)
        poll = select.poll()
        poll.register(end, select.POLLIN)
        self._tell(end, "s", 10)
        assert not poll.poll(50)
        self._tell(end, "s", 200_000)
        assert poll.poll(_WAIT * 1000)
        assert get(end, 10) == self._bytes(10)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
        assert get(end, 200_000) == self._bytes(200_000)

    def _told(self, end):
        """A set tells once of bytes, and of room when there was none."""
        busy_set = select.epoll()
        busy_set.register(end, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
        busy_set.poll(0)
        self._tell(end, "s", 10)
        assert busy_set.poll(_WAIT)[0][1] & select.EPOLLIN
        assert end.recv(5) == self._bytes(10)[:5]
        while busy_set.poll(0):
            pass
        assert end.recv(5) == self._bytes(10)[5:]
        count = 5_000_000
        self._tell(end, "t", count)
        left, waits = memoryview(self._bytes(count)), 0
        end.setblocking(False)
        while left:
            try:
                left = left[end.send(left[:100_000]):]
            except BlockingIOError:
                waits += 1
                while not busy_set.poll(_WAIT)[0][1] & select.EPOLLOUT:
                    pass
        end.setblocking(True)
        assert get(end, 1) == b"t"
        busy_set.close()

    def _threads(self, end):
        """Two threads have all of it between them."""
        count, got = 2_000_000, []
        end.settimeout(_WAIT)

        def take():
            mine = bytearray()
            while len(mine) < count // 2:
                mine += end.recv(min(5000, count // 2 - len(mine)))
            got.append(bytes(mine))
        threads = [threading.Thread(target=take) for _ in range(2)]
        [one.start() for one in threads]
        self._tell(end, "s", count)
        [one.join() for one in threads]
        assert sorted(b"".join(got)) == sorted(self._bytes(count))


def main(way):
    """A child serves."""
    address, told = os.pipe(), socket.create_server(("127.0.0.1", 0), backlog=100)
    told.close()
    child = os.fork()
    if not child:
        with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
            poll = select.poll()
            poll.register(listener, select.POLLIN)
            # It is told of as one of this process.
            poll.poll(0)
            os.write(address[1], b"%d" % listener.getsockname()[1])
            way.server(listener)
        sys.exit(0)
    way.client(int(os.read(address[0], 10)))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    print("ok")


if __name__ == "__main__":
    main({"held": Held, "both": Both, "asleep": Asleep, "turns": Turns, "ends": Ends,
          "calls": Calls}[sys.argv[1]]())
