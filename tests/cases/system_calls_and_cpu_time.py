"""Tests the steady state: no system call for an operation, no CPU time for waiting."""

import re
import subprocess
import time
from types import SimpleNamespace

from harness import client_server, process
from harness.case import POLLS, Case, Failure, Group, check
from harness.unprivileged_daemon import PlainPair


def _calls(summary):
    """Calls by name, from the table of `strace -c`."""
    found = {}
    for line in summary.splitlines():
        words = line.split()
        if len(words) >= 5 and re.fullmatch(r"[\d.]+", words[0]) and words[-1] != "total":
            found[words[-1]] = int(words[3])
    return found


def _no_system_calls(program, *options):
    """Traces the client of a polling run of N and of 10 N operations; the difference is what the
    operations cost. The library's helper thread is left out: it looks around every millisecond
    while there is traffic, so its calls grow with time, not with operations."""
    def run(pair):
        def calls_of(count):
            summary = pair.stage.folder("strace", pair.uid) / "summary"
            running = _traced(pair, program, count, summary, options)
            running.finish(60)
            calls = _calls(summary.read_text())
            print(count, calls)
            # Reading the clock is no system call with a vDSO; perftest reads it a lot otherwise.
            return sum(n for name, n in calls.items() if name != "clock_gettime")

        # Where something else of the machine takes a processor away, those who look give way to
        # each other: the least of three is what operations cost.
        for _ in range(3):
            grown = calls_of(200_000) - calls_of(20_000)
            if grown < 180_000 / 100:
                return
        raise Failure(f"{grown} more system calls for 180000 more operations")
    return run


class _Traced:
    """The client's place, with strace in front of what runs there."""

    def __init__(self, place, summary):
        self.place, self.summary = place, summary
        self.address, self.pid = place.address, place.pid

    def start(self, *argv, **options):
        """See Place.start."""
        return self.place.start("strace", "-c", "-o", self.summary, *argv, **options)


def _traced(pair, program, count, summary, options):
    sides = SimpleNamespace(server=pair.server, client=_Traced(pair.client, summary))
    return client_server.Duet(sides, [program, "-F", "-n", str(count), *options])


def idle_processes(place, daemons, **most):
    """Two processes with connected QPs and no traffic, and their daemons, do nothing (see
    process.idle)."""
    held = place.start("/opt/programs/idle_processes", "two_idle_processes", stdin=subprocess.PIPE,
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    line = held.stdout.readline()
    check(line.startswith("idle "), line + (held.stdout.read() if not line else ""))
    process.idle([*map(int, line.split()[1:]), *(daemon.pid for daemon in daemons)], **most)
    output = held.communicate("", timeout=10)[0]
    check(held.returncode == 0, output)


def _idle(pair):
    idle_processes(pair.server, [pair.daemon])


def _daemon_out_of_the_way(pair):
    """While others poll, the daemon does nothing."""
    with client_server.going_on(pair, "ib_send_bw"):
        time.sleep(2)  # They poll, and do not come and go any more.
        before = client_server.moved(pair.daemon)
        process.idle([pair.daemon.pid], looks=2)
        check(client_server.moved(pair.daemon) > before, "nothing moves")


def groups():
    """As an ordinary user: strace needs no privilege for one's own processes."""
    return [Group("steady", [
        Case("steady.system_calls_ib_write_bw", _no_system_calls("ib_write_bw", "-s", "64"), 150),
        Case("steady.system_calls_ib_send_bw", _no_system_calls("ib_send_bw", "-s", "64"), 150),
        Case("steady.system_calls_ib_send_lat", _no_system_calls("ib_send_lat", "-s", "8"), 150),
        Case("steady.system_calls_ib_read_lat", _no_system_calls("ib_read_lat", "-s", "8"), 150),
        Case("steady.idle_processes", _idle),
        Case("steady.daemon_out_of_the_way", _daemon_out_of_the_way),
    ], PlainPair, weight=POLLS)]
