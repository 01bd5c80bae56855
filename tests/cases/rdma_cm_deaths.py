"""Tests that the end of a connection hears of the other's death, in each state.

Both sides are programs/rdma_cm_steps.c. What they do until they stop, what the one that is left
does then and what it must see is a table. In the end nothing is left in the daemons."""

import contextlib
import subprocess
from dataclasses import dataclass

from harness import process
from harness.rdma_cm_client_server import Side
from harness.case import WAITS, Case, Group, check

from cases.rdma_cm import SETTINGS, daemons, quiet

_PORT = 7191


@dataclass(frozen=True)
class State:
    """A state: what each side does until it is there; and of each, when the other is killed, what
    it does and what it must print."""

    server: str
    client: str
    left: dict
    space: str = "tcp"


_ENDS = ("event event", "DISCONNECTED 0, TIMEWAIT_EXIT 0")
_BY_USER = 28  # the reason of a REJ (IBTA 12.6.7.2): consumer reject
_ASKS, _ASKED = "resolve own connect", "listen event"
_ANSWERS = f"{_ASKED} qp accept"
_CONNECTS, _CONNECTED = "resolve qp connect event", f"{_ANSWERS} event"

_STATES = {
    # Nobody has heard of it yet; then nobody listens any more.
    "resolved": State("listen", "resolve", {
        "server": ("nothing", "nothing"),
        "client": ("own connect event", "own 0, connect 0, REJECTED 8")}),
    # Of a request that was not accepted kernels tell no more; accepting it fails.
    "asked": State(_ASKED, _ASKS, {
        "server": ("nothing qp accept nothing", "nothing, qp 0, accept Invalid argument, nothing"),
        "client": ("event", f"REJECTED {_BY_USER}")}),
    "answered": State(_ANSWERS, f"{_ASKS} event", {
        "server": ("event", f"REJECTED {_BY_USER}"),
        "client": ("event", f"REJECTED {_BY_USER}")}),
    # The client is ready, and the server has not looked.
    "accepted": State(_ANSWERS, f"{_ASKS} event establish", {
        "server": (f"event {_ENDS[0]}", f"ESTABLISHED 0, {_ENDS[1]}"),
        "client": _ENDS}),
    "connected": State(_CONNECTED, _CONNECTS, {"server": _ENDS, "client": _ENDS}),
    # The client has said that it is over, and has not looked at what came of it.
    "disconnecting": State(f"{_CONNECTED} event", f"{_CONNECTS} disconnect", {
        "server": ("disconnect event", "disconnect 0, TIMEWAIT_EXIT 0"),
        "client": _ENDS}),
    "datagrams_asked": State(_ASKED, "resolve connect", {
        "server": ("qp accept nothing", "qp 0, accept 0, nothing"),
        "client": ("event", "UNREACHABLE 2")}, "udp"),
    # A queue pair of datagrams is found; there is no connection that could end.
    "datagrams_answered": State(_ANSWERS, "resolve connect event", {
        "server": ("nothing", "nothing"), "client": ("nothing", "nothing")}, "udp"),
}


class _Party(Side):
    """One side, which goes on when it is told."""

    def __init__(self, place, state, to, steps, afterwards):
        words = [*steps.split(), "stop", *afterwards.split(), "destroy", "stop"]
        super().__init__(place, ["/opt/programs/rdma_cm_steps", state.space, to, _PORT, *words],
                         stdin=subprocess.PIPE)
        self.stops = 0

    def until_printed(self, line):
        """Waits until it has printed this."""
        def printed():
            check(self.is_there(), f"it has ended:\n{self.text()}")
            return line in self.text().splitlines()
        process.until(printed, 30, lambda: f"{line!r}:\n{self.text()}")

    def until_stopped(self):
        """Waits for its next stop; what it printed since the last one."""
        self.stops += 1
        parts = []

        def stopped():
            nonlocal parts
            parts = self.text().split("stopped\n")
            check(self.is_there(), f"it has ended:\n{self.text()}")
            return len(parts) > self.stops
        process.until(stopped, 90, lambda: f"its stop {self.stops}:\n{self.text()}")
        return parts[self.stops - 1].splitlines()

    def go_on(self):
        """It does what comes behind the stop."""
        self.running.stdin.write(b"\n")
        self.running.stdin.flush()

    def kill(self):
        """kill -9."""
        for pid in [*process.descendants(self.running.pid), self.running.pid]:
            process.kill(pid)
        self.wait(10)

    def end(self):
        super().end()
        self.running.stdin.close()


def _ids(pair):
    """Ids that the daemons know of, of each vNIC."""
    return [vnic["cm_ids"] for daemon in daemons(pair) for vnic in daemon.status()["vnics"]]


def _programs(pair):
    """Programs that the daemons know of."""
    return {(daemon.pid, pid) for daemon in daemons(pair) for pid in daemon.programs()}


@contextlib.contextmanager
def _devices(pair):
    """Somebody beside each side, so that their vNICs stay and are shown."""
    places = [pair.server, *([pair.client] if pair.client is not pair.server else [])]
    with contextlib.ExitStack() as stack:
        for number, place in enumerate(places):
            beside = place.start("ibv_rc_pingpong", "-p", 18510 + number)
            stack.callback(process.end, beside)
        process.until(lambda: len(_ids(pair)) == len(places), 20, "a vNIC on each side")
        yield


def _killed(state, victim):
    """One side is killed; the other sees what it must, and can go."""
    def run(pair):
        to = pair.server.address
        steps = {"server": state.server, "client": state.client}
        sides = {}
        with _devices(pair):
            try:
                for name, place in (("server", pair.server), ("client", pair.client)):
                    afterwards = state.left[name][0]
                    sides[name] = _Party(place, state, to, steps[name], afterwards)
                    if name == "server":
                        sides[name].until_printed("listen 0")
                for side in sides.values():
                    print(side.until_stopped())
                left = sides["client" if victim == "server" else "server"]
                before = _programs(pair)
                sides[victim].kill()
                process.until(lambda: len(_programs(pair)) == len(before) - 1, 60,
                              lambda: f"one of {before} to be gone: {_programs(pair)}")
                left.go_on()
                expected = state.left["client" if victim == "server" else "server"][1]
                seen = left.until_stopped()
                check(seen == [*expected.split(", "), "destroy 0"],
                      f"{seen}, not {expected}\n{left.text()}")
                process.until(lambda: not any(_ids(pair)), 20, lambda: f"no ids, but {_ids(pair)}")
                left.go_on()
                check(left.wait(10) == 0, left.text())
            finally:
                for side in sides.values():
                    side.end()
        quiet(pair)
    return run


def groups():
    """Each state, either side, wherever rdma_cm is tried."""
    return [Group(f"{setting}.rdma_cm.deaths",
                  [Case(f"{setting}.rdma_cm.{name}.{victim}_killed", _killed(state, victim), 150)
                   for name, state in _STATES.items() for victim in ("server", "client")],
                  fixture, weight=WAITS)
            for setting, (fixture, _) in SETTINGS.items()]
