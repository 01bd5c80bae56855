"""Tests light connections beside hostile ones: a liar harms only its own channel."""

import contextlib
import pathlib
import re
import time

from cases.light_connections import Light, carried
from harness import process, staging
from harness.case import WAITS, Case, Group, check

_SOURCES = staging.PROGRAMS / "sockets"
# Channels of a liar, and of who lies for long.
_LIES, _LIES_SLOWLY = 300, 3000
# What a server may have more of behind all that, in kilobytes: what is free again stays its own.
_MORE = 40_000
# The same behind a peer that fills what was not accepted, and when all that has gone.
_FILLED, _LEFT = 32_000, 12_000
# Ticks of processor time in a second of nothing to do.
_IDLE = 20


def _kind(file):
    """Of somebody's descriptor; one that is closed just now is of that kind, too."""
    try:
        return str(file.readlink())
    except FileNotFoundError:
        return "eventfd"


_SENDS = """
import os, socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as near:
    near.send(b"a")
    assert near.recv(1) == b"b"
    near.setblocking(False)
    count = 0
    try:
        for _ in range(int(sys.argv[2])):
            count += near.send(b"x")
    except BlockingIOError:
        pass
    os.mkdir(f"sent-{count}")
    os._exit(0)
"""
_TAKES = """
import glob, select, socket, sys, time
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as listener:
    far = listener.accept()[0]
wanted = select.poll()
wanted.register(far, select.POLLIN)
assert far.recv(1) == b"a"
far.send(b"b")
until = time.monotonic() + 20
while not glob.glob("sent-*"):
    assert time.monotonic() < until
    time.sleep(0.01)
# It is gone soon.
time.sleep(0.3)
count = 0
while wanted.poll() and (part := far.recv(1 << 16)):
    count += len(part)
sent = int(glob.glob("sent-*")[0].partition("-")[2])
assert sent > 10_000, f"{sent} sent"
assert count == sent, f"{count} of {sent}"
"""


def _gone(ways):
    """Whose process ends behind many sends has sent all that, though the other end has not looked
    at any of it by then."""
    python = ["/usr/bin/python3", "-Bc"]
    takes = process.start(ways.line(True, *python, _TAKES, 7600), cwd=ways.folder)
    try:
        process.until(lambda: process.listens(ways.namespace.pid, 7600), 10, lambda: "a listener")
        ways.run(True, *python, _SENDS, 7600, 15_000)
        check(takes.wait(30) == 0, "bytes are missing")
    finally:
        process.end(takes)
        for mark in ways.folder.glob("sent-*"):
            mark.rmdir()


class _Innermost:
    """The program itself, below what has entered the namespace for it."""

    def __init__(self, top):
        self.of = pathlib.Path(f"/proc/{[*process.descendants(top), top][0]}")

    def files(self):
        """Its descriptors, but for those by which threads are woken, which are kept for others."""
        return sum("eventfd" not in _kind(one) for one in (self.of / "fd").iterdir())

    def memory(self):
        """Kilobytes that are its own."""
        return int(re.search(r"RssAnon:\s+(\d+)", (self.of / "status").read_text())[1])

    def shares(self):
        """How much memory it has that others have, too: so many pieces."""
        return (self.of / "maps").read_text().count("memfd:")

    def ticks(self):
        """Of processor time, so far."""
        words = (self.of / "stat").read_text().rpartition(")")[2].split()
        return int(words[11]) + int(words[12])


def _hostile(first, count):
    def run(ways):
        """Who has the other side of a channel, and writes what he likes there, harms what he has
        there himself; an honest process gets all its answers, and the server is as before."""
        python, port = ["/usr/bin/python3", "-B"], 7700
        honest = [*python, _SOURCES / "honest_light_server.py"]
        end = ways.folder / "end"
        end.unlink(missing_ok=True)
        server = process.start(ways.line(True, *honest, "serves", port))
        asks = lies = None
        try:
            process.until(lambda: process.listens(ways.namespace.pid, port), 10, lambda: "a server")
            with open(ways.folder / "asks.out", "w+", encoding="utf-8") as asked, \
                    open(ways.folder / "lies.out", "w+", encoding="utf-8") as lied:
                asks = process.start(ways.line(True, *honest, "asks", port, end), stdout=asked,
                                     stderr=asked)
                it = _Innermost(server.pid)
                process.until(lambda: it.shares() > 0, 30, "anything that is shared")
                files, memory = process.settled(it.files, 0.3), it.memory()
                shares = it.shares()
                lies = process.start(ways.line(False, *python,
                                               _SOURCES / "hostile_channel_peer.py", port,
                                               ways.broker(), first, count), stdout=lied,
                                     stderr=lied)
                process.until(lambda: "rests" in process.written(lied) or lies.poll() is not None,
                              60 + count, lambda: process.written(lied))
                check(lies.poll() is None, process.written(lied))
                check(asks.poll() is None, process.written(asked))
                end.touch()
                check(asks.wait(30) == 0, process.written(asked))
                print(process.written(lied), process.written(asked))
            _is_idle(it, "a liar that rests")
            process.end(lies)
            process.until(lambda: it.files() <= files, 20,
                          lambda: f"{it.files()} of {files} files")
            _is_idle(it, "nobody")
            print(f"{files} files, {memory} kB; then {it.files()} files, {it.memory()} kB")
            check(it.shares() <= shares, f"{shares} pieces, and then {it.shares()}")
            check(it.memory() <= memory + _MORE, f"{memory} kB, and then {it.memory()} kB")
            check(server.poll() is None, "the server is dead")
        finally:
            for one in (server, asks, lies):
                if one:
                    process.end(one)
    return run


def _is_idle(it, beside):
    process.settled(it.files, 0.3)
    before = it.ticks()
    time.sleep(1)
    check(it.ticks() - before <= _IDLE, f"{it.ticks() - before} ticks beside {beside}")


class _Crowd:
    """A server that accepts nothing until it is told to, and its peers (`full_backlog.py`)."""

    def __init__(self, ways, port, backlog, address="0.0.0.0"):
        self.ways, self.port = ways, port
        self.python = ["/usr/bin/python3", "-B", _SOURCES / "full_backlog.py"]
        self.folder = ways.folder / f"crowd-{port}"
        self.folder.mkdir(exist_ok=True)
        for mark in self.folder.iterdir():
            mark.unlink()
        self.stack = contextlib.ExitStack()
        self.server = self.starts(True, "serves", port, self.folder, backlog, address)
        process.until(lambda: process.listens(ways.namespace.pid, port), 10, lambda: "a server")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stack.close()

    def starts(self, way, *words):
        said = self.stack.enter_context(
            open(self.folder / f"{words[0]}.out", "w+", encoding="utf-8"))
        started = process.start(self.ways.line(way, *self.python, *words), stdout=said, stderr=said)
        self.stack.callback(process.end, started)
        started.said = said
        return started

    def peer(self, kind):
        """One without the library, which has done what it does; the server has not accepted it."""
        peer = self.starts(False, kind, self.port, self.ways.broker(), self.folder)
        self.waits("full", peer)
        return peer

    def honest(self, count):
        """One with it, which has asked and waits for its answers."""
        asks = self.starts(True, "asks", self.port, self.folder, count)
        self.waits("asked", asks)
        return asks

    def waits(self, mark, running, limit=60):
        """Until there is such a file."""
        process.until(lambda: (self.folder / mark).exists() or running.poll() is not None, limit,
                      lambda: process.written(running.said))
        check(running.poll() is None, process.written(running.said))

    def tells(self, mark):
        """The server goes on, or ends."""
        (self.folder / mark).touch()

    def memory(self):
        """Kilobytes of the server's own, as it has said by now."""
        path = self.folder / "memory"
        path.unlink(missing_ok=True)
        process.until(path.exists, 30, lambda: process.written(self.server.said))
        return int(path.read_text())

    def ends(self):
        """What the server has printed."""
        self.tells("end")
        check(self.server.wait(30) == 0, process.written(self.server.said))
        return process.written(self.server.said)


def _backlog(ways):
    """Who opens connections without end and reads no answer shuts nobody out, and has no more that
    wait than the listener allows."""
    with _Crowd(ways, 7720, 16) as crowd:
        crowd.peer("opens")
        asks = crowd.honest(12)
        crowd.tells("go")
        check(asks.wait(60) == 0, process.written(asks.said))
        text = crowd.ends()
        accepted = int(re.search(r"(\d+) accepted", text)[1])
        check(accepted < 100, f"{accepted} accepted")


def _waiting(ways):
    """Without anybody hostile, more connections than may wait all have their turn."""
    with _Crowd(ways, 7722, 4) as crowd:
        # As natively, those for which there is no room any more wait in `connect`.
        asks = crowd.starts(True, "asks", crowd.port, crowd.folder, 60)
        time.sleep(0.5)
        check(asks.poll() is None, "answers that nobody has given")
        crowd.tells("go")
        check(asks.wait(60) == 0, process.written(asks.said))
        check("60 accepted" in crowd.ends(), process.written(crowd.server.said))


def _filled(ways):
    """What comes before a connection is accepted takes little of the server's memory, and what it
    took goes back."""
    with _Crowd(ways, 7724, 4000) as crowd:
        before = crowd.memory()
        peer = crowd.peer("fills")
        filled = crowd.memory()
        asks = crowd.honest(3)
        process.end(peer)
        crowd.tells("go")
        check(asks.wait(60) == 0, process.written(asks.said))
        process.until(lambda: crowd.memory() < before + _LEFT, 30,
                      lambda: f"{before} kB, {filled} kB, and then {crowd.memory()} kB")
        print(f"{before} kB, {filled} kB, then {crowd.memory()} kB")
        check(filled < before + _FILLED, f"{before} kB, and then {filled} kB")


def _names(ways):
    """Nobody comes from, or to, an address that is not this host's."""
    for port, address in ((7726, "0.0.0.0"), (7728, "::")):
        with _Crowd(ways, port, 100, address) as crowd:
            crowd.tells("go")
            peer = crowd.starts(False, "names", port, ways.broker(), crowd.folder)
            check(peer.wait(60) == 0, process.written(peer.said))
            text = crowd.ends()
            check("127.0.0.9" in text and "1 accepted" in text, text)


def groups():
    """Who lies computes; the other waits."""
    crowd = [Case(f"light.hostile.{name}", carried(run) if run is _waiting else run, 120)
             for name, run in (("backlog", _backlog), ("waiting", _waiting), ("filled", _filled),
                               ("names", _names))]
    return [
        # Each with a daemon of its own: who was refused once goes by TCP for a while.
        *[Group(f"light.crowd.{at}", [case], Light) for at, case in enumerate(crowd)],
        Group("light.gone", [Case("light.gone", carried(_gone), 60)], Light, weight=WAITS),
        Group("light.hostile", [Case("light.hostile", carried(_hostile(0, _LIES)), 120),
                                Case("light.hostile.long", _hostile(1000, _LIES_SLOWLY), 2000,
                                     slow=True)], Light),
    ]
