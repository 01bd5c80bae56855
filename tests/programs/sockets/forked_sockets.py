#!/usr/bin/python3
"""Sockets that several processes have for a while: by `fork`, until all but one have closed them.

`forked_sockets.py WHAT` does one of the tests below with a peer (passed_descriptors.py). All that
is checked holds on the kernel's sockets, too; with the library it is checked besides that there is
a link once there is one holder, and none before.
"""

import ctypes
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback

import passed_descriptors
from passed_descriptors import Peer, described, has_link

_TURNS = 20
# Seconds that something may take.
_LONG = 10
# Processes that are made in a row, and connections meanwhile.
_FORKS = 60
# Programs that go on with a socket, as their standard input and output are not it.
_ECHO = "import os,sys\nn=int(sys.argv[1])\nwhile d:=os.read(n,1): os.write(n,d)"


class Child:
    """A process that is made by `fork`, which does `act` once it is told to."""

    def __init__(self, act):
        self.control, far = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            self.control.close()
            try:
                far.recv(1)
                act(far)
            except BaseException:  # pylint: disable=broad-except
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        far.close()

    def go(self):
        """It may begin."""
        self.control.sendall(b"g")

    def join(self):
        """It has done so."""
        self.go()
        self.wait()

    def wait(self, status=0):
        """It has ended."""
        found = os.waitpid(self.pid, 0)[1]
        assert found == status, f"{found:#x}"
        self.control.close()


def stays_with_kernel(other, end, index=0):
    """There is no link, whatever is done."""
    for _ in range(_TURNS):
        other.swap(end, index)
        assert not has_link(end), described(end)


def goes_on(other, end, index=0):
    """There is a link, and everything comes."""
    other.carry(end, index)
    for _ in range(_TURNS):
        other.swap(end, index)


def alone(other):
    """The parent closes it at once: the child carries."""
    for index in range(3):
        end = other.connect()
        child = Child(lambda _, end=end, index=index: goes_on(other, end, index))
        end.close()
        child.join()


def later(other):
    """The parent closes it after the child has found that it is not alone."""
    end = other.connect()

    def act(control):
        stays_with_kernel(other, end)
        control.sendall(b"c")
        control.recv(1)
        goes_on(other, end)
    child = Child(act)
    child.go()
    child.control.recv(1)
    end.close()
    child.join()


def parent(other):
    """The child closes it, or ends by itself: the parent carries."""
    def closes(end):
        end.close()
        signal.pause()
    ways = [closes, lambda end: os.close(end.fileno()), lambda end: os.closerange(3, 1000),
            lambda end: os.dup2(0, end.fileno()), lambda _: os._exit(0)]
    for index, way in enumerate(ways):
        end = other.connect()
        pid = os.fork()
        if pid == 0:
            try:
                way(end)
            finally:
                os._exit(0)
        if way is not closes:
            assert os.waitpid(pid, 0)[1] == 0
        goes_on(other, end, index)
        if way is closes:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def killed(other):
    """Who is killed is counted for ever; so is who was there when its parent was killed."""
    end = other.connect()
    child = Child(lambda _: signal.pause())
    child.go()
    os.kill(child.pid, signal.SIGKILL)
    child.wait(signal.SIGKILL)
    stays_with_kernel(other, end)
    second = other.connect()

    def middle(_):
        last = Child(lambda control: (control.recv(1), stays_with_kernel(other, second, 1)))
        last.go()
        os.kill(os.getpid(), signal.SIGKILL)
    near, far = socket.socketpair()
    child = Child(middle)
    second.close()
    far.close()
    child.go()
    child.wait(signal.SIGKILL)
    # All that have the other end of this have ended, or closed it.
    near.recv(1)


def both(other):
    """Two have it, and use it in turn; when one has closed it the other one carries."""
    end = other.connect()

    def act(control):
        for _ in range(_TURNS):
            control.recv(1)
            other.swap(end, 0)
            assert not has_link(end), described(end)
            control.sendall(b"d")
        end.close()
        control.sendall(b"c")
        control.recv(1)
    child = Child(act)
    child.go()
    for _ in range(_TURNS):
        other.swap(end, 0)
        assert not has_link(end), described(end)
        child.go()
        assert child.control.recv(1) == b"d"
    assert child.control.recv(1) == b"c"
    goes_on(other, end)
    child.join()


def fails(other):
    """A fork that fails has shared nothing."""
    end, first = other.connect(), other.connect()
    # Whoever it becomes may not find the broker.
    goes_on(other, first, 1)
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    for _ in range(3):
        try:
            pid = os.fork()
        except BlockingIOError:
            continue
        if pid == 0:
            os._exit(0)
        raise AssertionError("it did not fail")
    goes_on(other, end)


def again(other):
    """The child makes another one, and closes it first: the last one carries."""
    end = other.connect()

    def middle(control):
        last = Child(lambda _: goes_on(other, end))
        end.close()
        control.sendall(b"m")
        control.recv(1)
        last.join()
    child = Child(middle)
    child.go()
    child.control.recv(1)
    end.close()
    child.join()


def executes(other):
    """A child becomes a program, with the library or without, that has the socket still, or not."""
    for index, (hidden, keeps) in enumerate([((), True), (("LD_PRELOAD",), True), ((), False),
                                             (("LD_PRELOAD",), False)]):
        end = other.connect()
        os.set_inheritable(end.fileno(), keeps)
        environment = {name: value for name, value in os.environ.items() if name not in hidden}
        near, far = socket.socketpair()
        os.set_inheritable(near.fileno(), False)
        pid = os.fork()
        if pid == 0:
            os.dup2(far.fileno(), 0)
            program = _ECHO if keeps else "import sys\nsys.stdin.read()"
            os.execve(sys.executable, [sys.executable, "-c", program, str(end.fileno())],
                      environment)
        far.close()
        if keeps:
            text = "abc" * _TURNS
            other.ask("send", index, text)
            got = other.ask("get", index, len(text))
            assert got == text, got
            assert not has_link(end), described(end)
            other.ask("shut", index)
        else:
            stays_with_kernel(other, end, index)
        near.close()
        assert os.waitpid(pid, 0)[1] == 0
        if keeps:
            assert end.recv(1) == b""


def passed(other):
    """Somebody else was given it in between, who is not counted."""
    end = other.connect()
    near, far = socket.socketpair()
    other_near, other_far = socket.socketpair()

    def takes(_):
        _, numbers, _, _ = socket.recv_fds(far, 1, 1)
        other_far.sendall(b"t")
        far.recv(1)
        os.write(numbers[0], b"z")
        far.sendall(b"d")
        far.recv(1)
    taker = Child(takes)
    taker.go()
    holder = other.connect()
    child = Child(lambda _: stays_with_kernel(other, holder, 1))
    socket.send_fds(near, [b"x"], [holder.fileno()])
    other_near.recv(1)
    holder.close()
    child.join()
    near.sendall(b"w")
    near.recv(1)
    assert other.ask("get", 1, 1) == "z"
    near.sendall(b"e")
    taker.wait()
    end.close()


def duplicated(other):
    """A process has it by two numbers, and closes one of them."""
    end = other.connect()
    os.set_inheritable(end.fileno(), False)
    child = Child(lambda _: stays_with_kernel(other, end))
    twin = end.dup()
    end.close()
    child.join()
    stays_with_kernel(other, twin)


def spawned(other):
    """The C library has made a program of which nobody knows what it has."""
    end = other.connect()
    child = Child(lambda _: stays_with_kernel(other, end))
    subprocess.run(["true"], check=True, close_fds=False)
    end.close()
    child.join()


def carries_again(other, end, index=0, swap=None):
    """It has a link by which both ends send."""
    until = time.monotonic() + _LONG
    while time.monotonic() < until:
        (swap or other.swap)(end, index)
        if not passed_descriptors.DESCRIBE or {"carried", "linked"} & set(described(end).split()):
            break
    else:
        raise AssertionError(f"no new link: {described(end)}")
    for _ in range(_TURNS if not swap else 3):
        (swap or other.swap)(end, index)


def renewed(other):
    """What was carried is the kernel's while a child has it, and is carried again then, with what
    nobody had read before it was made."""
    end = other.connect()
    goes_on(other, end)
    for _ in range(3):
        carries_again(other, end)
        end.setblocking(False)
        try:
            raise AssertionError(f"there was {end.recv(1)}")
        except BlockingIOError:
            other.ask("put", 0, "rest")
        child = Child(lambda _: None)
        end.setblocking(True)
        got = b""
        while len(got) < 4:
            got += end.recv(1)
        assert got == b"rest", got
        for _ in range(_TURNS):
            other.swap(end, 0)
            told = described(end)
            assert not passed_descriptors.DESCRIBE or "left" in told.split(), told
        child.join()
        carries_again(other, end)


def inherited(other):
    """What the parent has carried, or offered, its child carries when that has closed it."""
    end, second = other.connect(), other.connect()
    goes_on(other, end)
    other.swap(second, 1)
    # Whether the link has come, or was only seen to have come by the fork.
    time.sleep(0.1)

    def act(_):
        carries_again(other, end)
        carries_again(other, second, 1)
    child = Child(act)
    end.close()
    second.close()
    child.join()


def used(other):
    """A child uses what its parent carries, and sends and receives in turn with it."""
    end = other.connect()
    goes_on(other, end)
    for _ in range(3):
        carries_again(other, end)

        def act(control):
            for _ in range(_TURNS):
                other.swap(end, 0)
                control.sendall(b"d")
                control.recv(1)
        child = Child(act)
        child.go()
        for _ in range(_TURNS):
            child.control.recv(1)
            other.swap(end, 0)
            child.go()
        child.wait()


def members(other):
    """The same in a set, which the child has for as long."""
    for events in (select.EPOLLIN, select.EPOLLIN | select.EPOLLET):
        end, found = other.connect(), select.epoll()
        index = 0 if events == select.EPOLLIN else 1
        found.register(end, events)
        end.setblocking(False)

        def swap(end, index, found=found):
            end.sendall(b"p")
            assert other.ask("get", index, 1) == "p"
            other.ask("put", index, "q")
            told = found.poll(_LONG)
            assert told == [(end.fileno(), select.EPOLLIN)], told
            assert end.recv(9) == b"q"
        for _ in range(3):
            carries_again(other, end, index, swap)
            child = Child(lambda _: None)
            for _ in range(3):
                swap(end, index)
            found.modify(end, events)
            child.join()
            carries_again(other, end, index, swap)


def changed(other):
    """A child changes the set that both have."""
    end, found = other.connect(), select.epoll()
    found.register(end, select.EPOLLIN)
    goes_on(other, end)
    child = Child(lambda _: found.unregister(end))
    child.join()
    time.sleep(0.3)
    for _ in range(_TURNS):
        other.ask("put", 0, "q")
        assert found.poll(0.001) == []
        assert end.recv(1) == b"q"


def shell(other):
    """A shell that is started does not get what an exec closes: that goes on."""
    end, second = other.connect(), other.connect()
    os.set_inheritable(second.fileno(), True)
    goes_on(other, end)
    goes_on(other, second, 1)
    for _ in range(_TURNS):
        carries_again(other, end)
        libc = ctypes.CDLL(None)
        assert libc.system(b"true") == 0
        said = described(end).split()
        assert not passed_descriptors.DESCRIBE or {"carried", "linked"} & set(said), said
        other.swap(end, 0)
        other.swap(second, 1)
    assert not passed_descriptors.DESCRIBE or "left" in described(second).split(), described(second)


def threads(other):
    """Forks, while another thread opens and closes, and is at it with some."""
    count, failed = [0], []

    def opens():
        try:
            while count[0] < 3 * _FORKS and not is_over:
                end = other.connect()
                for _ in range(3):
                    other.swap(end, count[0])
                end.close()
                count[0] += 1
        except BaseException as error:  # pylint: disable=broad-except
            failed.append(error)
    is_over = []
    thread = threading.Thread(target=opens)
    thread.start()
    for number in range(_FORKS):
        pid = os.fork()
        if pid == 0:
            if number % 2:
                os.closerange(3, 1000)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
    is_over.append(True)
    thread.join()
    assert not failed, failed
    end = other.connect()
    goes_on(other, end, count[0])


TESTS = {act.__name__: act for act in (alone, later, parent, killed, both, fails, again, executes,
                                       passed, duplicated, spawned, renewed, inherited, used,
                                       members, changed, shell, threads)}


def main(tests):
    """One of them."""
    other = Peer(True)
    tests[sys.argv[1]](other)
    passed_descriptors.stop(other)
    print("ok")


if __name__ == "__main__":
    main(TESTS)
