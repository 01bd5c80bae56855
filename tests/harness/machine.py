"""Whether the machine let the tests run: hypervisors take processors away, and whoever has time
limits shows it. Looked at by a thread that only sleeps, and in what the kernel counts as stolen."""

import threading
import time

# How often to look, and how much later than that is a standstill.
_LOOK = 0.05
_LATE = 0.4
# The part of the processors' time that others may take without it being said.
_STOLEN = 0.15


class Machine:
    """Remembers when it stood still."""

    def __init__(self):
        self._gaps = []
        threading.Thread(target=self._watch, daemon=True).start()

    def mark(self):
        """Now, for `trouble`."""
        return time.monotonic(), _stolen()

    def trouble(self, mark):
        """What happened to the machine since a mark, or an empty string."""
        since, (stolen, total) = mark
        still = sum(late for at, late in list(self._gaps) if at >= since)
        if still:
            return f"the machine stood still for {still:.1f} s"
        now_stolen, now_total = _stolen()
        part = (now_stolen - stolen) / max(1, now_total - total)
        return f"others took {part:.0%} of the processors" if part > _STOLEN else ""

    def _watch(self):
        before = time.monotonic()
        while True:
            time.sleep(_LOOK)
            now = time.monotonic()
            if now - before - _LOOK > _LATE:
                self._gaps.append((now, now - before - _LOOK))
            before = now


def _stolen():
    """Ticks that the hypervisor gave to others, and all ticks (proc(5), /proc/stat)."""
    with open("/proc/stat", encoding="ascii") as file:
        ticks = [int(word) for word in file.readline().split()[1:9]]
    return ticks[7], sum(ticks)
