"""Tests that carried sockets behave as the kernel's do.

A daemon of its own in each group's namespace; what is compared is as in preloaded_sockets.py."""

import contextlib
import json
import os
import pathlib
import re
import signal
import time

from cases import preloaded_sockets
from harness import process, staging
from harness.case import WAITS, Case, Failure, Group, check
from harness.network import Namespace

_SOURCES = staging.PROGRAMS / "sockets"
# Sequences of a case.
_PAIRS, _SEQUENCES, _SLOWLY = 100, 60, 3000
# Times that something is done until bytes were carried. What is over before the broker has had its
# turn is the kernel's, and on a busy machine that takes its time.
TURNS = 6
# Times that somebody is killed.
_KILLS, _KILLS_SLOWLY = 12, 500


class Carried(preloaded_sockets.Ways):
    """The namespace with a daemon in it."""

    mode = "carry"
    # Kinds of connections that count.
    counted = ("links", "light")
    # More that programs are told, and what the daemon is told.
    told, ranges = (), ()

    def __init__(self, stage):
        super().__init__(stage)
        self.socket = self.folder / "daemon"
        self.report = self.folder / "report"
        self.daemon, self.kinds = None, set()
        self.begin()

    def begin(self):
        """Starts the daemon."""
        settings = self.folder / "omniverbd.toml"
        settings.write_text(f"sockets_light = {json.dumps(self.ranges)}\n")
        line = [*self.namespace.enter(), self.stage.dist / "bin" / "omniverbd", "--socket",
                self.socket, "--operator-socket", self.folder / "operators", "--config", settings]
        # One that was killed has left its socket.
        self.broker().unlink(missing_ok=True)
        self.daemon = process.start(line, cwd=self.folder)
        process.until(self.broker().exists, 10, lambda: "a broker")

    def broker_process(self):
        """The daemon's, which has sockets' duplicates."""
        for pid in process.descendants(self.daemon.pid):
            # Others come and go.
            with contextlib.suppress(OSError):
                if pathlib.Path(f"/proc/{pid}/comm").read_text() == "omni:broker\n":
                    return pid
        raise Failure("there is no broker")

    def broker(self):
        """Where processes find it."""
        return pathlib.Path(f"{self.socket}.sockets")

    def close(self):
        process.end(self.daemon)
        super().close()

    def line(self, with_library, *words):
        carried = ["env", f"OMNIVERB_SOCKETS={self.mode}", f"OMNIVERB_SOCKET={self.socket}",
                   f"OMNIVERB_SOCKETS_REPORT={self.report}", *self.told]
        return super().line(with_library, *(carried if with_library else []), *words)

    def reports(self):
        """What those have carried who have ended since this was asked last: connections and bytes,
        of each kind that there may be in the process. Kinds of which there were bytes are noted."""
        text = self.report.read_text() if self.report.exists() else ""
        self.report.unlink(missing_ok=True)
        found = re.findall(r"^(links|light) (\d+) bytes (\d+)$", text, re.MULTILINE)
        self.kinds.update(kind for kind, _, count in found if int(count))
        return [(int(links), int(count)) for kind, links, count in found if kind in self.counted]

    def program(self, name):
        """A program of C."""
        program = self.folder / name
        if not program.exists():
            process.run(["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror",
                         "-Wno-unused-result", "-pthread", "-o", program,
                         _SOURCES / f"{name}.c", "-ldl"], limit=60)
        return program


def _carries(run, wanted, is_its_own_peer=False):
    """Each way; and when both have the library, whether anything was carried is as it is known to
    be of these programs: what was forked is the kernel's. One of them connects with itself, too."""
    def all_ways(ways):
        for server, client in [(False, False), (True, False), (False, True)]:
            run(ways, server, client)
            found = sum(count for _, count in ways.reports())
            check(not found or is_its_own_peer and server, "bytes without another end")
        for _ in range(TURNS):
            run(ways, True, True)
            reports = ways.reports()
            print(f"carried by each process: {reports}")
            check(reports, "nobody has reported")
            is_any = sum(count for _, count in reports) > 0
            # What is the kernel's is so each time.
            if is_any or not wanted:
                check(is_any == wanted, f"{reports}")
                return
        raise Failure(f"{reports}")
    return all_ways


def _handed(name):
    def run(ways):
        for way in (False, True):
            ways.reports()
            text = ways.run(way, "/usr/bin/python3", "-B", _SOURCES / "passed_descriptors.py", name,
                            ways.broker_process())
            check(text == "ok\n", text)
        if name in ("level", "edge"):
            reports = ways.reports()
            check(sum(count for _, count in reports) > 10, f"{reports}")
    return run


def _woken(name):
    def run(ways):
        """With an other end that only computes once it has put its bytes."""
        program = ways.program("lost_wakeups")
        for way in (False, True):
            ways.reports()
            text = ways.run(way, program, name)
            check(text == "ok\n", text)
        links, count = map(sum, zip(*ways.reports()))
        check(name == "offered" or links, "no link")
        check(name in ("offered", "seen", "child") or count, "nothing was carried")
    return run


def pairs(first, count, what="pairs"):
    """A case of so many."""
    def run(ways):
        """The heart: what calls give between two processes, and that bytes were carried then."""
        preloaded_sockets.compare(ways, first, count, what)
        words = ["/usr/bin/python3", "-B", _SOURCES / "random_call_sequences.py", first, 20, what]
        for _ in range(TURNS):
            text = ways.run(True, "sh", "-c", f"exec {' '.join(map(str, words))} 2>&1 >/dev/null")
            there, of, light = map(int, re.search(r"(\d+) of (\d+) ends, (\d+)", text).groups())
            print(f"{there} of {of} ends had a link or were light, {light} light")
            # Where both may be there are some of each.
            kinds = [there - light, light] if ways.told else [there]
            if min(kinds) > of // 10 // len(kinds):
                return
        raise Failure(text)
    return run


def soak(connections, kilobytes, *how, wanted=True):
    def run(ways):
        turns = TURNS if wanted else 1
        check(any(_soak_once(ways, connections, kilobytes, *how) for _ in range(turns)) or
              not wanted, "none of them had a link")
    return run


def _soak_once(ways, connections, kilobytes, *how):
    """Whether a connection had a link."""
    program, port = ways.program("soak"), 7200
    ways.reports()
    line = [program, "serve", port, connections, kilobytes, 1, *how]
    with open(ways.folder / "soak.out", "w+", encoding="utf-8") as said:
        running = process.start(ways.line(True, *line), stdout=said, stderr=said)
        try:
            process.until(lambda: process.listens(ways.namespace.pid, port), 10,
                          lambda: "it to listen")
            ways.run(True, program, "connect", port, connections, kilobytes, 1, *how, limit=600)
            check(running.wait(60) == 0, process.written(said))
        finally:
            process.end(running)
    return any(links for links, _ in ways.reports())


def sets(connections, kilobytes, *how):
    """Nobody moves bytes before a set of epoll has told him to; and they were carried."""
    def run(ways):
        ways.reports()
        for _ in range(TURNS):
            reports = _sets_once(ways, connections, kilobytes, *how)
            print(f"carried by each process: {reports}")
            if len(reports) >= 2 and all(links and count for links, count in reports):
                return
        raise Failure(f"{reports}")
    return run


def _sets_once(ways, connections, kilobytes, *how):
    """What both have carried."""
    program, port = ways.program("epoll_sets"), 7250
    line = [program, "serve", port, connections, kilobytes, 1, *how]
    with open(ways.folder / "sets.out", "w+", encoding="utf-8") as said:
        running = process.start(ways.line(True, *line), stdout=said, stderr=said)
        try:
            process.until(lambda: process.listens(ways.namespace.pid, port), 10,
                          lambda: "it to listen")
            ways.run(True, program, "connect", port, connections, kilobytes, 1, *how, limit=600)
            check(running.wait(60) == 0, process.written(said))
        finally:
            process.end(running)
    return ways.reports()


_STREAM = """
import os, signal, socket, sys, time
near = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
sent = 0
while True:
    part = bytes((sent + at) % 251 for at in range(1 + sent % 700))
    sent += near.send(part)
    if sent % 5 == 0:
        near.recv(1)
"""

_READER = """
import socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
far = listener.accept()[0]
got = 0
try:
    while True:
        part = far.recv(1 + got % 900)
        if not part:
            break
        assert part == bytes((got + at) % 251 for at in range(len(part))), got
        if got == 0:
            print("going", flush=True)
        got += len(part)
        far.send(b"x")
except (ConnectionResetError, BrokenPipeError):
    pass
print("sound", got)
"""


def _is_linked(pid):
    """Whether a process has memory in common with another one."""
    return "/memfd:omniverb link" in pathlib.Path(f"/proc/{_innermost(pid)}/maps").read_text()


def _innermost(pid):
    """The program that a command line has become, or the last that it has started."""
    return ([pid, *process.descendants(pid)])[-1]


@contextlib.contextmanager
def _stream(ways, port):
    """One that sends and one that checks what comes, until the former is killed."""
    python = ["/usr/bin/python3", "-Bc"]
    with open(ways.folder / "stream", "w+", encoding="utf-8") as said:
        reader = process.start(ways.line(True, *python, _READER, port), stdout=said, stderr=said)
        try:
            process.until(lambda: process.listens(ways.namespace.pid, port), 10,
                          lambda: f"a reader: {process.written(said)}")
            writer = process.start(ways.line(True, *python, _STREAM, port))
            try:
                process.until(lambda: "going" in process.written(said), 20, lambda: "a stream")
                yield writer, reader, said
            finally:
                process.end(writer)
        finally:
            process.end(reader)


def _killed(count):
    def run(ways):
        """Whenever one is killed, the other one has had a beginning of the stream."""
        carried, pause = 0, 0.013
        for number in range(count):
            with _stream(ways, 7300) as (writer, reader, said):
                time.sleep(number % 7 * pause)
                os.kill(_innermost(writer.pid), signal.SIGKILL)
                check(reader.wait(10) == 0, process.written(said))
                text = process.written(said)
                check(re.fullmatch(r"going\nsound \d+\n", text), text)
            if any(links for links, _ in ways.reports()):
                carried += 1
            else:
                pause = min(2 * pause, 0.5)  # on a busy machine a link takes longer to come
        print(f"{carried} of {count} were carried")
        check(carried > count // 2, f"{carried} of {count} were carried")
    return run


_FILLER = """
import socket, sys
near = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
# An address is no matter where a stream is connected.
far = [near.getpeername()] if sys.argv[2] == "addressed" else []
send = near.sendto if far else near.send
left = int(sys.argv[3])
block = bytes(range(251)) * 1000
while left:
    left -= send(block[-left % 251:][:min(left, 100_000)], *far)
"""

_EMPTIER = """
import select, socket, sys, time
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
far = listener.accept()[0]
# Until then the kernel has all that it takes, and the other end has more.
time.sleep(0.1)
got, block = 0, bytes(range(251)) * 1000
while True:
    if sys.argv[2] == "selects":
        select.select([far], [], [])
    part = far.recv(1 << 16)
    if not part:
        break
    assert part == block[got % 251:][:len(part)], got
    got += len(part)
print(got)
"""

# Bytes of it.
_AHEAD = 251 * 400_000


def _ahead(how):
    def run(ways):
        """Who sends more than is read, from the start, does not stay with the kernel for that."""
        python = ["/usr/bin/python3", "-Bc"]
        for _ in range(TURNS):
            ways.reports()
            with open(ways.folder / "ahead", "w+", encoding="utf-8") as said:
                reader = process.start(ways.line(True, *python, _EMPTIER, 7302, how), stdout=said,
                                       stderr=said)
                try:
                    process.until(lambda: process.listens(ways.namespace.pid, 7302), 10,
                                  lambda: f"a reader: {process.written(said)}")
                    ways.run(True, *python, _FILLER, 7302, how, _AHEAD)
                    check(reader.wait(30) == 0, process.written(said))
                    text = process.written(said)
                    check(text == f"{_AHEAD}\n", text)
                finally:
                    process.end(reader)
            carried = sum(count for _, count in ways.reports())
            print(f"{carried} of {_AHEAD} bytes were carried")
            # Otherwise it is some thousands; how many more depends on what else the machine does.
            if carried > _AHEAD // 10:
                return
        raise Failure(f"{carried} of {_AHEAD} bytes were carried")
    return run


# As many connections as it is told, each with a few messages and answers; then one with many.
_ASKED = """
import socket, sys
listener = socket.create_server(("127.0.0.1", int(sys.argv[1])))
for _ in range(int(sys.argv[2]) + 1):
    with listener.accept()[0] as far:
        while part := far.recv(1 << 16):
            far.sendall(part)
"""

_ASKS = """
import os, socket, sys, time
def ask(turns, length):
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as near:
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(turns):
            near.sendall(bytes(length))
            left = length
            while left:
                left -= len(near.recv(left))
for _ in range(int(sys.argv[2])):
    ask(20, 100)
ask(3000, 200)
"""
# Of these.
_BRIEF = 400


def _brief(ways):
    """Who has had connections that were over soon makes links for few more of them, and one for
    the next that lasts."""
    python = ["/usr/bin/python3", "-Bc"]
    for _ in range(TURNS):
        ways.reports()
        reader = process.start(ways.line(True, *python, _ASKED, 7303, _BRIEF))
        try:
            process.until(lambda: process.listens(ways.namespace.pid, 7303), 10,
                          lambda: "it to listen")
            ways.run(True, *python, _ASKS, 7303, _BRIEF, limit=60)
            check(reader.wait(30) == 0, "it has failed")
        finally:
            process.end(reader)
        reports = ways.reports()
        print(f"carried by each process: {reports}")
        check(all(links < _BRIEF // 8 for links, _ in reports), f"{reports}")
        if any(count > 100_000 for _, count in reports):
            return
    raise Failure(f"{reports}")


def _daemon(ways):
    """What is carried goes on when the daemon is killed, and new connections work at once."""
    with _stream(ways, 7301) as (writer, reader, said):
        process.until(lambda: _is_linked(reader.pid), 20, "a link")
        ways.daemon.kill()
        ways.daemon.wait()
        time.sleep(0.2)
        check(reader.poll() is None, process.written(said))
        soak(4, 300, wanted=False)(ways)
        ways.begin()
        soak(4, 3000, "calm")(ways)
        ways.reports()
        os.kill(_innermost(writer.pid), signal.SIGKILL)
        check(reader.wait(10) == 0 and "sound" in process.written(said), process.written(said))
        check(any(links for links, _ in ways.reports()), "it was never carried")


def _hostile(ways):
    """Whoever has the other side of a link, and writes what he likes there, harms the connection
    and nothing else."""
    victim = process.start(ways.line(True, "/usr/bin/python3", "-B",
                                     _SOURCES / "hostile_link_peer.py", "victim", 7400))
    try:
        process.until(lambda: process.listens(ways.namespace.pid, 7400), 10, lambda: "a victim")
        ways.run(False, "/usr/bin/python3", "-B", _SOURCES / "hostile_link_peer.py", "liar", 7400,
                 ways.broker(), 20, ways.program("corrupt_link_memory"), limit=60)
        check(victim.wait(20) == 0, "the victim was harmed")
    finally:
        process.end(victim)


def _shown(ways):
    """Whom bytes are shown, of which he is told, and that are taken away then, does not sleep."""
    waiter = process.start(ways.line(True, "/usr/bin/python3", "-B",
                                     _SOURCES / "hostile_link_peer.py", "waiter", 7401))
    try:
        process.until(lambda: process.listens(ways.namespace.pid, 7401), 10, lambda: "a waiter")
        ways.run(False, "/usr/bin/python3", "-B", _SOURCES / "hostile_link_peer.py", "shower", 7401,
                 ways.broker(), limit=60)
        check(waiter.wait(20) == 0, "it was not reset")
    finally:
        process.end(waiter)


# Connections of one whose other ends lie, what it does with them, and how many seconds that may
# take in all: rather less than one of them took once, and more than a busy machine needs.
_LIARS, _OWED = 10, 3
_DOES = ("fork", "system", "spawn", "run", "exec", "dup", "dup2", "pass", "recv", "close", "shut",
         "send", "limited", "ask")


def _owing(ways):
    """Who does something with many connections waits for none of their other ends, whatever those
    say is owed or unread."""
    program = ("/usr/bin/python3", "-B", _SOURCES / "unread_count_liar.py")
    slow = []
    for place, what in enumerate(_DOES):
        folder = ways.folder / f"owing-{what}"
        folder.mkdir()
        port = 7410 + place
        with open(folder / "victim", "w+", encoding="utf-8") as said, \
                open(folder / "liar", "w+", encoding="utf-8") as lied, \
                contextlib.ExitStack() as all_of:
            victim = process.start(ways.line(True, *program, "victim", folder, port, what),
                                   stdout=said, stderr=said)
            all_of.callback(process.end, victim)
            process.until(lambda: process.listens(ways.namespace.pid, port), 10, "a victim")
            liar = process.start(ways.line(False, *program, "liar", folder, port, ways.broker(),
                                           _LIARS, what), stdout=lied, stderr=lied)
            all_of.callback(process.end, liar)
            process.until(lambda: (folder / "lying").exists() or liar.poll() is not None, 60,
                          lambda: process.written(lied) + process.written(said))
            found = process.until(lambda: re.search(r"^\w+ ([\d.e-]+)$", process.written(said),
                                                    re.MULTILINE), 60,
                                  lambda: f"{what}: {process.written(said)}")
            print(what, found[1])
            if float(found[1]) > _OWED:
                slow.append(found[0])
    check(not slow, f"it has waited: {slow}")


def _channels(ways):
    """Two processes of one network namespace are given a channel, and one of another is not."""
    program = ("/usr/bin/python3", "-B", _SOURCES / "broker_channels.py")
    listener = process.start(ways.line(False, *program, "listens", 7402, ways.broker()))
    other = Namespace()
    try:
        process.until(lambda: process.listens(ways.namespace.pid, 7402), 10, lambda: "a listener")
        process.run([*other.enter(), *program, "elsewhere", 7402, ways.broker(),
                     ways.namespace.pid], limit=60)
        ways.run(False, *program, "reaches", 7402, ways.broker(), limit=60)
        check(listener.wait(20) == -signal.SIGKILL, "it has ended before")
    finally:
        other.close()
        process.end(listener)


def _had(process_number):
    """Descriptors and kilobytes of somebody."""
    of = pathlib.Path(f"/proc/{process_number}")
    rollup = (of / "smaps_rollup").read_text(encoding="ascii")
    return len(list((of / "fd").iterdir())), int(re.search(r"Rss: +(\d+)", rollup)[1])


def _leaks(connections):
    def run(ways):
        """Who has had many connections has nothing of them; so do the daemon and its helpers."""
        program, port = ways.program("connection_leaks"), 7500
        daemons = [ways.daemon.pid, *process.descendants(ways.daemon.pid)]
        _leaks_once(ways, program, port, connections // 10)
        before = {number: _had(number) for number in daemons}
        said = _leaks_once(ways, program, port, connections)
        print(said, before)
        for text in said:
            memory, memory_then, files, files_then, parts, parts_then = (
                int(word) for word in re.findall(r"\d+", text))
            check(memory_then <= memory + 2000, text)
            check(files_then <= files and parts_then <= parts + 20, text)
        links = ways.reports()
        print(f"carried: {links}")
        check(all(count > connections // 50 for count, _ in links), f"{links}")
        for number, (files, memory) in before.items():
            process.until(lambda: _had(number)[0] <= files, 20, lambda: f"{_had(number)}")
            check(_had(number)[1] <= memory + 4000, f"{_had(number)}")
    return run


def _leaks_once(ways, program, port, connections):
    """What both ends say of themselves."""
    ways.reports()
    with open(ways.folder / "leaks.out", "w+", encoding="utf-8") as said:
        running = process.start(ways.line(True, program, "serve", port, connections), stdout=said,
                                stderr=said)
        try:
            process.until(lambda: process.listens(ways.namespace.pid, port), 10,
                          lambda: "it to listen")
            text = ways.run(True, program, "connect", port, connections, limit=3000)
            check(running.wait(60) == 0, process.written(said))
            return text, process.written(said)
        finally:
            process.end(running)


def groups():
    """All wait."""
    programs = {"nc": (preloaded_sockets.nc(30), True), "socat": (preloaded_sockets.socat, False),
                "iperf3": (preloaded_sockets.iperf(), True),
                "iperf3-more": (preloaded_sockets.iperf("-P", 4, "-R", "-Z"), True),
                "redis": (preloaded_sockets.redis, True),
                "nginx": (preloaded_sockets.nginx, True, True)}
    waits = [Case(f"carry.{name}", _carries(*what), 90) for name, what in programs.items()]
    waits += [Case(f"carry.{name}", _handed(name), 60)
              for name in ("spawned", "spawned-alone", "forked", "passed", "duplicated", "halved",
                           "reused", "closed", "level", "edge", "asleep", "seen", "ended",
                           "stamped", "rests")]
    waits += [Case(f"carry.woken.{name}", _woken(name), 60)
              for name in ("level", "edge", "seen", "offered", "left", "nap", "words", "stack",
                           "child")]
    waits += [Case(f"carry.ahead.{how}", _ahead(how), 120)
              for how in ("waits", "selects", "addressed")]
    waits += [Case("carry.many.long", _handed("many"), 1500, slow=True),
              Case("carry.brief", _brief, 90), Case("carry.shown", _shown, 90),
              Case("carry.channels", _channels, 90),
              Case("carry.owing", _owing, 180),
              Case("carry.hostile", _hostile, 90), Case("carry.daemon", _daemon, 90),
              Case("carry.killed", _killed(_KILLS), 120),
              Case("carry.leaks", _leaks(1200), 120),
              Case("carry.leaks.million", _leaks(1_000_000), 3500, slow=True),
              Case("carry.killed.long", _killed(_KILLS_SLOWLY), 1500, slow=True)]
    waits += [Case(f"carry.python.{name}", preloaded_sockets.suite(name), 200)
              for name in ("epoll", "select")]
    waits += [Case(f"carry.python.{name}", preloaded_sockets.suite(name), 400, slow=True)
              for name in ("poll", "socket", "selectors", "socketserver", "asyncore", "httplib")]
    return [
        Group("carry", waits, Carried, weight=WAITS),
        Group("carry.sequences",
              [Case("carry.pairs", pairs(0, _PAIRS), 200),
               Case("carry.pairs.sets", pairs(0, _PAIRS // 2, "sets"), 200),
               Case("carry.pairs.sets.long", pairs(1000, _SLOWLY, "sets"), 3000, slow=True),
               Case("carry.sequences", preloaded_sockets.sequences(0, _SEQUENCES), 200),
               Case("carry.soak", soak(8, 1500), 120),
               Case("carry.soak.calm", soak(2, 3000, "calm"), 120),
               Case("carry.sets", sets(12, 300), 120),
               Case("carry.sets.calm", sets(12, 300, "calm"), 120),
               Case("carry.sets.long", sets(48, 60_000), 3000, slow=True),
               Case("carry.pairs.long", pairs(1000, _SLOWLY), 3000, slow=True),
               Case("carry.sequences.long", preloaded_sockets.sequences(1000, _SLOWLY), 3000,
                    slow=True),
               Case("carry.soak.long", soak(64, 160_000), 3000, slow=True)],
              Carried),
    ]
