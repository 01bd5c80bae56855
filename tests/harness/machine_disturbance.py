"""Tells whether the machine let the tests run undisturbed.

That excuses a case that passes when it is tried again, so it is measured, not guessed: what the
kernel counts as stolen, and standstills, in which a thread that only sleeps was not woken although
this machine's own processes used less than one processor. What the tests themselves keep busy
excuses nothing."""

import os
import threading
import time

# How often to look, and how much later than that is a standstill.
_LOOK = 0.05
_LATE = 0.4
# Of one processor, what our own processes may at most have used then.
_BUSY = 0.8
# The part of the processors' time that others must have taken, and how much of it, in seconds.
_STOLEN, _STOLEN_AT_LEAST = 0.15, 0.5
_TICK = 1 / os.sysconf("SC_CLK_TCK")


class Machine:
    """Remembers when it stood still."""

    def __init__(self):
        self._gaps = []
        threading.Thread(target=self._watch, daemon=True).start()

    def mark(self):
        """Now, for `trouble`."""
        return time.monotonic(), _ticks()

    def trouble(self, mark):
        """What happened to the machine since a mark, or an empty string."""
        since, (_, stolen, total) = mark
        still = sum(late for at, late in list(self._gaps) if at >= since)
        if still:
            return f"the machine stood still for {still:.1f} s"
        _, now_stolen, now_total = _ticks()
        taken = (now_stolen - stolen) * _TICK
        part = (now_stolen - stolen) / max(1, now_total - total)
        if part > _STOLEN and taken > _STOLEN_AT_LEAST:
            return f"others took {part:.0%} of the processors, {taken:.1f} s"
        return ""

    def _watch(self):
        before, (busy, _, _) = time.monotonic(), _ticks()
        while True:
            time.sleep(_LOOK)
            now, (now_busy, _, total) = time.monotonic(), _ticks()
            late = now - before - _LOOK
            if late > _LATE and total and not self._own(now_busy - busy, now - before):
                self._gaps.append((now, late))
            before, busy = now, now_busy

    @staticmethod
    def _own(ticks, seconds):
        """Whether our own processes had a processor meanwhile."""
        return ticks * _TICK > _BUSY * seconds


def _ticks():
    """Ticks that processes and the kernel of this machine used, those that the hypervisor gave to
    others, and all (proc(5), /proc/stat)."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, idle, waits, hard, soft, stolen = map(int, file.readline().split()[1:9])
    busy = user + nice + system + hard + soft
    return busy, stolen, busy + idle + waits + stolen
