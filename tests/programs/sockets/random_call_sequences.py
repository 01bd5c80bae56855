#!/usr/bin/python3
"""Random sequences of socket calls of two to four processes: `random_call_sequences.py FIRST COUNT
[WHAT]`.

With `pairs` for WHAT most calls are about bytes of connections between two processes, which is what
a library can carry, with `sets` also about sets of epoll, with `light` and `light-sets` the same
without what light connections cannot do; then the last line says how many ends of
connections it had, of how many, and how many of these were light.

Prints what every call gave, a line each. The same seed makes the same calls, so the output is the
same with and without a library before them. With one that can say what it knows of descriptors,
that is compared with the kernel at the end of each sequence.
"""

import ctypes
import json
import os
import random
import signal
import socket
import sys
import time

import random_call_worker

OPERATIONS = 70
WORKERS = 5


class Worker:
    """The controller's side of a process."""

    def __init__(self, name, pid, control):
        self.name, self.pid, self.control = name, pid, control
        self.sockets, self.sets, self.shares = [], [], False

    def ask(self, *words):
        """Has it do something; returns what it answers."""
        self.control.send(json.dumps(words).encode())
        return json.loads(self.control.recv(1 << 16))


class Sequence:
    """One seed's calls."""

    def __init__(self, seed):
        self.random, self.ports, self.data = random.Random(seed), [], 0
        self.ways = []
        self.links = [socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)]
        for one in self.links[0]:
            one.setblocking(False)
        # For processes to come, which those that there are have to have.
        self.spare = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                      for _ in range(WORKERS)]
        self.workers, self.lines = [], []
        for _ in range(self.random.randint(2, 3)):
            name = len(self.workers)
            pid = os.fork()
            if not pid:
                random_call_worker.serve(self.spare[name][1].fileno(), self.rights())
            self.workers.append(Worker(name, pid, self.spare[name][0]))

    def rights(self):
        """Descriptors that every process has: to pass others by, and to serve by."""
        return [end.fileno() for end in self.links[0]], [pair[1].fileno() for pair in self.spare]

    def say(self, who, what, answer):
        """A line of output."""
        self.lines.append(f"{who.name} {what}: {answer}")

    def alive(self):
        """Processes that were not killed."""
        return [one for one in self.workers if one.pid]

    def step(self):
        """One call."""
        pick, who = self.random, self.random.choice(self.alive())
        kinds = [kind for kind, weight in KINDS for _ in range(weight)]
        getattr(self, pick.choice(kinds))(who)

    def any(self, who):
        """Some descriptor of a process: nearly always a socket that it has."""
        if who.sockets and self.random.random() < 0.96:
            return self.random.choice(who.sockets)
        return self.random.choice([*who.sets, *who.sockets, 55, -1])

    def make(self, who):
        answer = who.ask("socket", self.random.random() < 0.9)
        who.sockets.append(answer[0])
        self.say(who, "socket", answer)

    def listen(self, who):
        number = self.any(who)
        answer, port = who.ask("listen", number, self.random.randint(0, 3))
        if port:
            self.ports.append(port)
        self.say(who, f"listen {number}", answer)

    def connect(self, who):
        number = self.any(who)
        if not self.ports:
            return
        port = self.random.choice(self.ports)
        at = self.ports.index(port)
        self.say(who, f"connect {number} to {at}", who.ask("connect", number, port))

    def connected(self, who):
        """A pair, which random calls alone seldom make."""
        other = self.random.choice(self.alive())
        mine, theirs = who.ask("socket", True)[0], other.ask("socket", True)[0]
        _, port = other.ask("listen", theirs, 2)
        answers = [who.ask("connect", mine, port), other.ask("accept", theirs, True)]
        who.sockets.append(mine)
        other.sockets.append(theirs)
        if answers[1][0] >= 0:
            other.sockets.append(answers[1][0])
        self.ports.append(port)
        self.say(who, f"connected with {other.name}", [mine, theirs, *answers])

    def accept(self, who):
        number = self.any(who)
        answer = who.ask("accept", number, self.random.random() < 0.5)
        if answer[0] >= 0:
            who.sockets.append(answer[0])
        self.say(who, f"accept {number}", answer)

    def send(self, who):
        number, length = self.any(who), self.random.choice([0, 1, 8, 100, 1000])
        how = self.random.choice(random_call_worker.SENDS)
        self.say(who, f"{how} {number} {length}", who.ask("send", how, number, length))

    def receive(self, who):
        number, length = self.any(who), self.random.choice([0, 1, 10, 500, 4000])
        how = self.random.choice(random_call_worker.RECEIVES)
        self.say(who, f"{how} {number} {length}", who.ask("receive", how, number, length))

    def shutdown(self, who):
        number, how = self.any(who), self.random.randint(0, 3)
        self.say(who, f"shutdown {number} {how}", who.ask("call", "shutdown", number, how))

    def end_sending(self, who):
        number = self.any(who)
        self.say(who, f"shutdown {number} 1", who.ask("call", "shutdown", number, 1))

    def option(self, who):
        number, what = self.any(who), self.random.choice(random_call_worker.OPTIONS)
        self.say(who, f"{what} of {number}", who.ask("option", what, number))

    def events(self, who):
        numbers = self.random.sample(who.sockets, min(3, len(who.sockets)))
        how = self.random.choice(["poll", "ppoll", "select"])
        self.say(who, f"{how} {numbers}", who.ask("events", how, numbers))

    def close(self, who):
        number, how = self.any(who), self.random.choice(random_call_worker.CLOSES)
        if number in who.sets:
            who.sets.remove(number)
        who.sockets = [one for one in who.sockets if one != number]
        self.say(who, f"{how} {number}", who.ask("close", how, number))

    def duplicate(self, who):
        number, how = self.any(who), self.random.choice(random_call_worker.DUPLICATES)
        onto = self.random.choice([*who.sockets, 40, 41, 42])
        answer = who.ask("duplicate", how, number, onto)
        if answer[0] >= 0:
            who.sets = [one for one in who.sets if one != answer[0]]
            who.sockets = [one for one in who.sockets if one != answer[0]]
            (who.sets if number in who.sets else who.sockets).append(answer[0])
        self.say(who, f"{how} {number} {onto}", answer)

    def rest(self, who):
        """A moment, in which what was said elsewhere is heard."""
        time.sleep(0.001)
        number = self.any(who)
        self.say(who, f"rests, {number}", who.ask("option", "SO_TYPE", number))

    def make_set(self, who):
        answer = who.ask("call", "epoll_create1", 0)
        who.sets.append(answer[0])
        self.say(who, "epoll_create1", answer)

    def make_one_set(self, who):
        if not who.sets:
            self.make_set(who)

    def member(self, who):
        if not who.sets:
            return
        self.data += 1
        chosen, number = self.random.choice(who.sets), self.any(who)
        if number in who.sets and self.random.random() < 0.7:
            return
        operation = self.random.choice([1, 1, 1, 2, 3])
        events = self.random.choice([1, 4, 5, 0x2001, 0x80000005, 0x40000001, 0x10000001])
        answer = who.ask("member", chosen, operation, number, events, self.data)
        self.say(who, f"epoll_ctl {chosen} {operation} {number} {events:#x}", answer)

    def wait(self, who):
        if who.sets:
            chosen = self.random.choice(who.sets)
            self.say(who, f"epoll_wait {chosen}", who.ask("wait", chosen, 8))

    def hand(self, who):
        """SCM_RIGHTS."""
        to, number = self.random.choice(self.alive()), self.any(who)
        answer = [who.ask("give", number), to.ask("take")]
        who.shares = to.shares = True
        if answer[1][0] >= 0:
            (to.sets if number in who.sets else to.sockets).append(answer[1][0])
        self.say(who, f"hands {number} to {to.name}", answer)

    def fork(self, who):
        if len(self.workers) == WORKERS:
            return
        name = len(self.workers)
        how = self.random.choice(["fork", "fork", "raw"])
        new = Worker(name, who.ask("fork", how, name), self.spare[name][0])
        new.sockets, new.sets = list(who.sockets), list(who.sets)
        who.shares = new.shares = True
        self.workers.append(new)
        self.say(who, f"{how} makes {name}", "")

    def part(self, who):
        """One is made, and what both have one of them closes, mostly."""
        before = len(self.workers)
        self.fork(who)
        if len(self.workers) == before:
            return
        new = self.workers[-1]
        for number in list(dict.fromkeys([*who.sockets, *who.sets])):
            one = self.random.choice([who, who, new, new, None])
            if one:
                one.sets = [other for other in one.sets if other != number]
                one.sockets = [other for other in one.sockets if other != number]
                how = self.random.choice(random_call_worker.CLOSES)
                self.say(one, f"{how} {number}", one.ask("close", how, number))

    def execute(self, who):
        who.shares = True
        self.say(who, "becomes another program", who.ask("execute"))

    def spawn(self, who):
        self.say(who, "vfork", who.ask("spawn", [*who.sockets, *who.sets]))

    def kill(self, who):
        if len(self.alive()) > 1:
            # A socket that is being offered is the broker's, too, for a moment.
            time.sleep(0.005)
            end(who)
            self.say(who, "killed", "")

    def run(self):
        """All of it; what is known of descriptors must be what the kernel says."""
        try:
            for _ in range(OPERATIONS):
                self.step()
            for one in self.alive():
                self.ways += one.ask("ways", one.sockets)
            return [f"{one.name}: {what}" for one in self.alive()
                    for what in one.ask("audit", one.shares)]
        finally:
            for one in self.alive():
                end(one)
            for end_of in [*self.links[0], *sum(self.spare, ())]:
                end_of.close()


def end(who):
    """Kills a process, and waits until the kernel has closed what it had."""
    os.kill(who.pid, signal.SIGKILL)
    while _runs(who.pid):
        time.sleep(0.0002)
    who.pid = None


def _runs(pid):
    """It may be another process's child, which does not wait for it."""
    try:
        if os.waitpid(pid, os.WNOHANG)[0]:
            return False
    except ChildProcessError:
        pass
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


KINDS = [("make", 2), ("listen", 2), ("connect", 2), ("connected", 5), ("accept", 4), ("send", 12),
          ("receive", 14), ("shutdown", 3), ("option", 6), ("events", 8), ("close", 5),
          ("duplicate", 4), ("make_set", 2), ("member", 8), ("wait", 8), ("hand", 2), ("fork", 1),
          ("spawn", 1), ("kill", 1)]
# Connections between two processes, what calls do with bytes, and what ends them.
_PAIRS = [("connected", 3), ("send", 30), ("receive", 34), ("shutdown", 3), ("option", 6),
          ("events", 14), ("close", 2), ("rest", 6), ("spawn", 1), ("kill", 1), ("part", 2)]
# The same with sets of epoll.
_SETS = [*_PAIRS, ("make_set", 1), ("member", 10), ("wait", 30)]
# What there is in light mode: nothing is handed on; and without what is known to be different, that
# of a reset where bytes were not received the other end hears only if it is said.
_LIGHT = [("end_sending", 2),
          *(one for one in _PAIRS if one[0] not in ("spawn", "part", "kill", "shutdown"))]
_LIGHT_SETS = [*_LIGHT, ("make_one_set", 1), ("member", 10), ("wait", 30)]
_WHAT = {"pairs": _PAIRS, "sets": _SETS, "light": _LIGHT, "light-sets": _LIGHT_SETS}
_SELDOM = ("execute", 0.15)
# What is said of an end that has memory for its bytes.
_CARRIED = ("carried", "linked", "left", "light")


def main():
    """Descendants of processes that are killed are ours, so that they can be waited for."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
    first, count = int(sys.argv[1]), int(sys.argv[2])
    kinds, ways = _WHAT.get((sys.argv[3:] or [""])[0]), []
    is_pairs = kinds is not None
    if is_pairs:
        KINDS[:] = kinds
    for seed in range(first, first + count):
        sequence = Sequence(seed)
        if not is_pairs and sequence.random.random() < _SELDOM[1]:
            KINDS.append((_SELDOM[0], 1))
        wrong = sequence.run()
        if (_SELDOM[0], 1) in KINDS:
            KINDS.remove((_SELDOM[0], 1))
        ways += sequence.ways
        print("\n".join([f"seed {seed}", *sequence.lines]), flush=True)
        for line in wrong:
            print(f"seed {seed}: {line}", file=sys.stderr, flush=True)
    if is_pairs:
        there = sum(any(one in way for one in _CARRIED) for way in ways)
        light = sum("light" in way for way in ways)
        print(f"{there} of {len(ways)} ends, {light} light", file=sys.stderr)


if __name__ == "__main__":
    main()
