"""Runs a client-server program such as perftest on both sides of a pair."""

import contextlib
import itertools
import re
import tempfile
import time
from dataclasses import dataclass

from . import notes, process
from .case import Failure, Late

_ports = itertools.count(18600)

# Seconds that a program goes on by itself at most, which is ended when it has been looked at.
ENDLESS = 3600
# How often a program of UC or UD may be run again because a message was lost, by the paths of its
# queue pairs. A direct link loses one only where its receiver had no receive posted for as long as
# the sender waits for that: perftest does so when it gets no processor. Twice in one case is a
# fault of ours.
RETRIES, RETRIES_DIRECT = 2, 1


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
            found = self._queue_pairs()
            self.abort()
            failure = Late(f"{self._title()}: {' and '.join(late)} not done after {limit:g} s\n"
                           f"{self._both()}\n--- queue pairs ---\n{found}")
            # An emulated guest is slower than any host.
            if not any(hasattr(place, "machine") for place in (self.pair.server, self.pair.client)):
                failure.paths = frozenset(peer["path"] for qp in found for peer in qp["peers"])
            raise failure
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
            if side is not None and side.poll() is None:
                self.kill(side)

    def kill(self, side):
        """kill -9, to it and to what it has started."""
        if not hasattr(side, "pid"):  # in a guest
            side.kill()
            return
        for pid in [*process.descendants(side.pid), side.pid]:
            process.kill(pid)
        side.wait()

    def _queue_pairs(self):
        """What the daemons say of all queue pairs, where they are known and answer."""
        daemons = getattr(self.pair, "daemons", None) or [getattr(self.pair, "daemon", None)]
        with contextlib.suppress(Failure):
            return [qp for daemon in daemons if daemon for qp in daemon.queue_pairs()]
        return []

    def _title(self):
        return " ".join(str(word) for word in self.argv)

    def _both(self):
        return f"--- server ---\n{self.text(0)}\n--- client ---\n{self.text(1)}"


def run(pair, *argv, limit=55.0):
    """Runs a program on both sides and returns what they printed."""
    return Duet(pair, argv).finish(limit)


def patiently(once, *argv, unreliable=False, **options):
    """What perftest, or a pingpong, printed. `once` runs it with these arguments; it is run again
    where it failed for a reason of its own, three times at most. `unreliable`: of UC or UD, which
    may be run again for lost messages as often as `RETRIES` says. Each time is named at the end of
    the run, also if the case passes."""
    lost = 0
    for _ in range(3):
        try:
            outcome = once(*argv, **options)
        except Late as late:
            # A lost message is no error on UC and UD, but these programs wait for it for ever.
            # Messages are lost when a side is kept from running for longer than they may wait.
            if not unreliable:
                raise
            lost += 1
            paths = ", ".join(sorted(late.paths)) or "unknown"
            notes.add(f"a message was lost, {lost} times so far, path {paths}: "
                      f"{' '.join(map(str, argv[1:]))}")
            print(late)
            if lost > (RETRIES_DIRECT if late.paths == {"direct"} else RETRIES):
                raise Late(f"messages were lost {lost} times, path {paths}\n{late}") from None
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


def moved_by(qp):
    """How many operations a queue pair has done, by its row in the status."""
    return qp["operations_mapped"] + qp["operations_mediated"] + qp["messages_sent"]


def moved(*daemons):
    """How many operations the programs of these daemons have done."""
    return sum(moved_by(qp) for daemon in daemons for qp in daemon.queue_pairs())


def moves_on(running, *daemons):
    """Waits until a program that goes on has done some more, from now on."""
    before = moved(*daemons)
    process.until(lambda: moved(*daemons) > before + 100, 30,
                  lambda: f"operations of {running._title()}\n{running._both()}")


def each_moves(*daemons):
    """Waits until one end of each link has done some more. (Targets of WRITEs do nothing.)"""
    def done():
        return {(daemon.pid, qp["qpn"]): moved_by(qp) for daemon in daemons
                for qp in daemon.queue_pairs()}
    before = done()

    def have_moved():
        now = done()
        return sum(now.get(name, 0) > count + 10 for name, count in before.items())
    process.until(lambda: have_moved() >= len(before) / 2, 30,
                  lambda: f"operations by half of these: {before}, now {done()}")


@contextlib.contextmanager
def going_on(pair, *argv, before=()):
    """perftest that goes on until it has been looked at. Both sides must be there still at the end,
    which means that nothing failed. `before`: of the server's command."""
    argv = [*argv, "-F", "-D", str(ENDLESS)]
    running = Duet(pair, argv, server_argv=[*before, *argv])
    try:
        yield running
        for name, side in (("client", running.client), ("server", running.server)):
            if side.poll() is not None:
                raise Failure(f"{argv[0]}: {name}: {process.how(side.returncode)}, too soon\n"
                              f"{running._both()}")
    finally:
        running.abort()


def while_it_runs(pair, act, *argv):
    """Does something while perftest runs, and returns what that printed, which ends by itself. On a
    slow machine it may have ended by then: it is run again, for longer."""
    for seconds in (8, 30, 120):
        running = Duet(pair, [*argv, "-F", "-D", str(seconds)])
        try:
            act(running)
            has_ended = running.client.poll() is not None
            outcome = running.finish(seconds + 30)
        finally:
            running.abort()
        if not has_ended:
            return outcome
        print(f"{argv[0]} had ended after {seconds} s")
    raise Failure(f"{argv[0]} has ended each time before it was looked at\n{outcome.client}")


def rows(text, columns):
    """The rows of a perftest table: lists of numbers, by message size."""
    found = {}
    for line in text.splitlines():
        words = line.split()
        number = r"-?(\d+(\.\d+)?|inf|nan)"
        if len(words) >= columns and all(re.fullmatch(number, word) for word in words):
            found[int(float(words[0]))] = [float(w) for w in words]
    return found
