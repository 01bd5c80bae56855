"""Runs observers: small programs that measure how others get on during an attack."""

import select
import subprocess
import time
from dataclasses import dataclass

from . import process
from .case import Failure, check

_ANSWER = 5.0


@dataclass
class Seen:
    """What an observer did since it was asked last."""

    count: int
    failed: int
    milliseconds: float


class Observer:
    """One that runs at a place."""

    def __init__(self, place, test):
        self.test = test
        self.process = place.start("/opt/programs/attack_observer", test, stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, text=True, bufsize=1)
        words = self._line(20).split()
        check(words[:1] == ["ready"], f"observer {test}: {words}")
        self.number = int(words[1])
        self.total = Seen(0, 0, 0.0)

    def _line(self, limit):
        if not select.select([self.process.stdout], [], [], limit)[0]:
            raise Failure(f"observer {self.test} says nothing for {limit} s")
        line = self.process.stdout.readline()
        if not line:
            raise Failure(f"observer {self.test} ended: {process.how(self.process.wait(5))}")
        return line

    def ask(self):
        """What it saw since the last time."""
        try:
            self.process.stdin.write("\n")
        except OSError:
            pass
        count, failed, micros = map(int, self._line(_ANSWER).split())
        return Seen(count, failed, micros / 1000)

    def look(self):
        """Asks, adds that to the total, and returns how often it got done what it does."""
        seen, total = self.ask(), self.total
        self.total = Seen(total.count + seen.count, total.failed + seen.failed,
                          max(total.milliseconds, seen.milliseconds))
        return seen.count

    def close(self):
        """Ends it."""
        process.end(self.process)


class Observers:
    """All of them, by name."""

    def __init__(self):
        self.all = {}

    def add(self, name, place, test):
        """One more."""
        self.all[name] = Observer(place, test)
        return self.all[name]

    def calm(self, limit=60.0):
        """Waits until all of them get on at the same time, then begins to count anew."""
        deadline = time.monotonic() + limit
        while True:
            for observer in self.all.values():
                observer.ask()
            time.sleep(0.4)
            seen = {name: observer.ask() for name, observer in self.all.items()}
            if all(s.count and not s.failed for s in seen.values()):
                for observer in self.all.values():
                    observer.total = Seen(0, 0, 0.0)
                return
            if time.monotonic() > deadline:
                raise Failure(f"observers do not get on, before anything happens: {seen}")

    def get_on(self, turns, limit):
        """Waits until each of them has done what it does so often from now on, nothing
        of it in vain."""
        done = dict.fromkeys(self.all, 0)
        deadline = time.monotonic() + limit
        for observer in self.all.values():
            observer.look()
        while min(done.values()) < turns:
            late = time.monotonic() > deadline
            for name, observer in self.all.items():
                done[name] += observer.look()
            if late and min(done.values()) < turns:
                raise Failure(f"not {turns} times each in {limit:g} s: {done}\n{self.summary()}")
            time.sleep(0.02)
        failed = [name for name, observer in self.all.items() if observer.total.failed]
        check(not failed, f"in vain: {failed}\n{self.summary()}")

    def summary(self):
        """What all of them saw since they were calm."""
        return "\n".join(f"{name:12} {o.total.count:6} times, {o.total.failed} in vain, "
                         f"{o.total.milliseconds:8.1f} ms at worst" for name, o in self.all.items())

    def close(self):
        """Ends all."""
        for observer in self.all.values():
            observer.close()
