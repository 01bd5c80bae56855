"""Runs a client-server program such as perftest on both sides of a pair."""

import contextlib
import itertools
import re
import tempfile
import time
from dataclasses import dataclass

from . import process
from .case import Failure, Late

_ports = itertools.count(18600)


@dataclass
class Outcome:
    """What both sides printed."""

    server: str
    client: str


def gid_index(place):
    """The index of the first IPv4 GID, from `ibv_devinfo -v`."""
    text = place.run("ibv_devinfo", "-v")
    found = re.search(r"GID\[\s*(\d+)\]:\s*::ffff:[0-9.:a-f]+", text)
    if not found:
        raise Failure(f"no IPv4 GID in\n{text}")
    return int(found.group(1))


class Duet:
    """Both sides of a running program; `finish` waits for them."""

    def __init__(self, pair, argv, port_option="-p", server_argv=None):
        self.pair, self.argv = pair, argv
        self.port = next(_ports)
        self.files = [tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")]
        port = [port_option, str(self.port)]
        self.server = self._start(pair.server, 0, *(server_argv or argv), *port)
        self.client = None
        # In a guest that is emulated a program begins as fast as others let it.
        process.until(lambda: self.listens() or self.server.poll() is not None, 60,
                      lambda: f"{argv[0]} to listen\n{self.text(0)}")
        if self.server.poll() is not None:
            raise Failure(f"{argv[0]} (server) ended at once: "
                          f"{process.how(self.server.returncode)}\n{self.text(0)}")
        self.client = self._start(pair.client, 1, *argv, *port, pair.server.address)

    def _start(self, place, side, *argv):
        return place.start(*argv, stdout=self.files[side], stderr=self.files[side])

    def listens(self):
        """Is the server there?"""
        server = self.pair.server
        if hasattr(server, "listens"):  # in a guest, where looking costs something
            time.sleep(0.01)
            return server.listens(self.port)
        return process.listens(server.pid, self.port)

    def text(self, side):
        """What a side (0: server, 1: client) has printed so far."""
        return process.written(self.files[side])

    def finish(self, limit):
        """Waits for both; both must exit with 0."""
        deadline = time.monotonic() + limit
        late = []
        for name, side in (("client", self.client), ("server", self.server)):
            try:
                side.wait(max(0.1, deadline - time.monotonic()))
            except process.subprocess.TimeoutExpired:
                late.append(name)
        if late:
            self.abort()
            raise Late(f"{self._title()}: {' and '.join(late)} not done after {limit:g} s\n"
                       f"{self._both()}")
        for name, side in (("client", self.client), ("server", self.server)):
            if side.returncode:
                raise Failure(f"{self._title()}: {name}: {process.how(side.returncode)}\n"
                              f"{self._both()}")
        outcome = Outcome(self.text(0), self.text(1))
        for file in self.files:
            file.close()
        return outcome

    def abort(self):
        """Ends both sides."""
        for side in (self.client, self.server):
            if side is not None:
                self.kill(side)

    def kill(self, side):
        """kill -9, to it and to what it has started."""
        if not hasattr(side, "pid"):  # in a guest
            side.kill()
            return
        for pid in [*process.descendants(side.pid), side.pid]:
            process.kill(pid)
        side.wait()

    def _title(self):
        return " ".join(str(word) for word in self.argv)

    def _both(self):
        return f"--- server ---\n{self.text(0)}\n--- client ---\n{self.text(1)}"


def run(pair, *argv, limit=55.0):
    """Runs a program on both sides and returns what they printed."""
    return Duet(pair, argv).finish(limit)


def patiently(once, *argv, unreliable=False, **options):
    """What perftest, or a pingpong, printed. `once` runs it with these arguments; it is run again
    where it failed for a reason of its own, three times at most. `unreliable`: of UC or UD."""
    for attempt in range(3):
        try:
            outcome = once(*argv, **options)
        except Late:
            # A lost message is no error on UC and UD, but these programs wait for it for ever.
            # Messages are lost when a side is kept from running for longer than they may wait.
            if not unreliable or attempt == 2:
                raise
            print("a message was lost")
            continue
        if knows_the_time(outcome.client):
            break
    return outcome


def knows_the_time(text):
    """Has perftest measured how fast its processor counts? On a busy machine it may not succeed;
    then all else that it prints is as ever, and its times and rates are inf or nan."""
    return "Correlation coefficient" not in text


def check_typical(text, latency):
    """Checks times (the typical one) or rates (messages a second) of all rows; returns the sizes
    that there are."""
    table = rows(text, 6 if latency else 5)
    for size, row in table.items():
        # A bandwidth is 0.00 where it is tiny.
        value = row[4] if latency else row[-1]
        if knows_the_time(text) and not 0 < value < 1e9:
            raise Failure(f"{size} bytes: {row}\n{text}")
    return sorted(table)


def moved(*daemons):
    """How many operations the programs of these daemons have done."""
    return sum(qp["operations_mapped"] + qp["operations_mediated"] + qp["messages_sent"]
               for daemon in daemons for qp in daemon.queue_pairs())


def moves_on(running, *daemons):
    """Waits until a program that goes on has done some more, from now on."""
    before = moved(*daemons)
    process.until(lambda: moved(*daemons) > before + 100, 30,
                  lambda: f"operations of {running._title()}\n{running._both()}")


@contextlib.contextmanager
def going_on(pair, *argv, before=()):
    """perftest that goes on for longer than what is looked at meanwhile takes, on any machine. Both
    sides must be there still at the end, which means that nothing failed. `before`: of the server's
    command."""
    argv = [*argv, "-F", "-D", "90"]
    running = Duet(pair, argv, server_argv=[*before, *argv])
    try:
        yield running
        for name, side in (("client", running.client), ("server", running.server)):
            if side.poll() is not None:
                raise Failure(f"{argv[0]}: {name}: {process.how(side.returncode)}, too soon\n"
                              f"{running._both()}")
    finally:
        running.abort()


def rows(text, columns):
    """The rows of a perftest table: lists of numbers, by message size."""
    found = {}
    for line in text.splitlines():
        words = line.split()
        number = r"-?(\d+(\.\d+)?|inf|nan)"
        if len(words) >= columns and all(re.fullmatch(number, word) for word in words):
            found[int(float(words[0]))] = [float(w) for w in words]
    return found
