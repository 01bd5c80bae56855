"""Tests failures on the wire: a daemon dies, the link goes down.

Packets that are lost: injected_faults.py."""

import contextlib
import subprocess
import time

from harness import client_server, process
from harness.case import CROWDS, Case, Failure, Group, check
from harness.containers import Pair
from harness.simulated_host import Hosts

from cases.forwarded_datapath import forwarding
from cases.rdma_between_hosts import quiet, soaked, soaking

_ENDLESS = str(client_server.ENDLESS)


@contextlib.contextmanager
def _hosts(stage):
    with Hosts(stage) as hosts:
        hosts.gid_index = client_server.gid_index(hosts.server)
        hosts.neighbour = hosts.b.add(4)
        yield hosts


class _Sides:
    """Any two places as server and client."""

    def __init__(self, server, client):
        self.server, self.client = server, client


# ---- a daemon dies ----

def _daemon_killed(side):
    """The daemon of one side is killed while traffic runs: programs on both sides end with an
    error, soon; a direct connection on that host goes on; new ones work at once. (Both sides send:
    who only receives does not notice, on any network.)"""
    def run(hosts):
        host = hosts.a if side == "server" else hosts.b
        other = hosts.b if side == "server" else hosts.a
        extra = host.add(7)
        inside = client_server.Duet(_Sides(hosts.server if side == "server" else hosts.client,
                                           extra),
                           ["ib_write_bw", "-F", "-D", _ENDLESS, "-s", "4096"])
        across = client_server.Duet(hosts, ["ib_send_bw", "-F", "-D", _ENDLESS, "-b"])
        try:
            process.until(lambda: len(_ready_to_send(host.daemon)) == 2 and
                          _ready_to_send(other.daemon), 20, "who sends to be in RTS")
            client_server.moves_on(across, other.daemon)
            check(across.client.poll() is None, across.text(1))
            host.daemon.kill()
            begin = time.monotonic()
            # perftest: timeout 14 (67 ms), 7 retries; a spec's worth of waiting is 0.5 to 2.1 s.
            text = _ends_with_an_error(across, begin + 25)
            took = time.monotonic() - begin
            print(f"over after {took:.1f} s")
            check("Failed status 12" in text or "Failed status 5" in text,
                  f"no RETRY_EXC_ERR:\n{text}")
            host.daemon.start()
            check(inside.client.poll() is None, f"direct link ended:\n{inside.text(1)}")
            client_server.run(hosts, "ibv_rc_pingpong", "-g", hosts.gid_index, "-c")
            client_server.run(hosts, "ib_write_bw", "-F", "-n", "1000")
            client_server.moves_on(inside, host.daemon)
            check(inside.client.poll() is None, f"direct link ended:\n{inside.text(1)}")
        finally:
            across.abort()
            inside.abort()
            extra.close()
            host.parts.remove(extra)
        process.until(lambda: not other.daemon.totals().get("qps"), 20, "no QP left")
    return run


def _ends_with_an_error(running, deadline):
    """Both sides of a perftest run must end by themselves; returns what they printed."""
    for name, side in (("client", running.client), ("server", running.server)):
        try:
            side.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise Failure(f"the {name} goes on\n{running.text(0)}\n{running.text(1)}") from None
    return running.text(0) + running.text(1)


def _peer_killed(hosts):
    """kill -9 of a program: its peer on the other host fails by its own timeouts."""
    for victim in ("server", "client"):
        running = client_server.Duet(hosts, ["ib_send_bw", "-F", "-D", _ENDLESS, "-b"])
        try:
            client_server.moves_on(running, hosts.b.daemon)
            side, other = ((running.server, running.client) if victim == "server"
                           else (running.client, running.server))
            for pid in process.descendants(side.pid):
                process.kill(pid)
            other.wait(25)
        except subprocess.TimeoutExpired:
            raise Failure(f"goes on after the {victim} was killed\n{running.text(0)}\n"
                          f"{running.text(1)}") from None
        finally:
            running.abort()
    quiet(hosts)


# ---- the link goes down ----

def _link_down(seconds, timeout):
    """Traffic must go on after the link was down, checked byte for byte, without an error."""
    def run(hosts):
        running = soaking(hosts.apart(TEST_TIMEOUT=timeout), 5, 1, 4)

        def moves():
            before = client_server.moved(*hosts.daemons)
            process.until(lambda: client_server.moved(*hosts.daemons) > before + 1000 or
                          running.poll() is not None, 60, "operations of the soak")
        try:
            moves()
            hosts.cable.down()
            time.sleep(seconds)
            hosts.cable.up()
            # The first may have been on their way.
            moves()
            moves()
            print(soaked(running))
        finally:
            process.end(running)
        quiet(hosts)
    return run


def _ready_to_send(daemon):
    """Queue pairs in state RTS."""
    return [qp for qp in daemon.queue_pairs() if qp["state"] == "RTS"]


def _link_stays_down(hosts):
    """The queue pair fails when its retries are over (apart.nobody_there looks at the status)."""
    running = client_server.Duet(hosts, ["ib_write_bw", "-F", "-D", _ENDLESS])
    try:
        client_server.moves_on(running, hosts.b.daemon)
        hosts.cable.down()
        # What perftest prints then is in a buffer, and it waits for its partner with TCP's
        # patience: the daemon says what became of the queue pair.
        process.until(lambda: not _ready_to_send(hosts.b.daemon), 25, "no queue pair in RTS")
    finally:
        hosts.cable.up()
        running.abort()
    client_server.run(hosts, "ib_write_bw", "-F", "-n", "1000")


# ---- which way ----

def paths(daemon, name):
    """The paths of the QPs of processes whose name starts with `name`, with their reasons."""
    return [(qp.get("path"), qp.get("why")) for vnic in daemon.status()["vnics"]
            for task in vnic["processes"] if name.startswith(task["name"]) and task["name"]
            for qp in task["qps"]]


def reach(daemons, name, wanted):
    """Waits until both queue pairs of a program have found their way; it must be the one that is
    wanted."""
    def found():
        seen = [path for daemon in daemons for path in paths(daemon, name)]
        return len(seen) == 2 and all(path != "none" for path, _ in seen) and seen
    seen = process.until(found, 20, lambda: f"two ways: {found()}")
    check(all(path == wanted and why for path, why in seen), f"not all {wanted}: {seen}")


def _path_between(server, client, daemons, wanted):
    with client_server.going_on(_Sides(server, client), "ib_send_lat"):
        reach(daemons, "ib_send_lat", wanted)


def _path_wire(hosts):
    _path_between(hosts.server, hosts.client, hosts.daemons, "wire")


def _path_direct(hosts):
    _path_between(hosts.client, hosts.neighbour, [hosts.b.daemon], "direct")


def _path_forwarded(hosts):
    with Pair(hosts.stage, daemon_arguments=forwarding(hosts.stage)) as pair:
        _path_between(pair.server, pair.client, [pair.daemon], "forwarded")


def _path_roce(hosts):
    """A peer where no Omniverb answers is taken for plain RoCE v2."""
    place = hosts.a.bare(hosts.server.namespace, hosts.server.address)
    running = place.start("/opt/programs/isolation_probe", "attacker", "10.77.0.200", 1, 4096,
                          0x1234,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        seen = process.until(lambda: [path for path in paths(hosts.a.daemon, "isolation_probe")
                                      if path[0] and path[0] != "none"],
                             20, "a QP on its way to nobody")
        check(all(path == "roce" and why for path, why in seen), f"not roce: {seen}")
        text = process.finish(running, 50)
        check(running.returncode == 0, text)
    finally:
        process.end(running)


def groups():
    """Two hosts; a container more on the second."""
    return [
        Group("wire_paths", [
            Case("wire_paths.wire", _path_wire), Case("wire_paths.direct", _path_direct),
            Case("wire_paths.forwarded", _path_forwarded), Case("wire_paths.roce", _path_roce, 90),
        ], _hosts, weight=CROWDS),
        Group("wire_failures", [
            Case("wire_failures.daemon_of_the_server", _daemon_killed("server"), 150),
            Case("wire_failures.daemon_of_the_client", _daemon_killed("client"), 150),
            Case("wire_failures.program_killed", _peer_killed, 120),
            Case("wire_failures.link_down_2_s", _link_down(2, 17), 120),
            # A port that comes up again carries packets only after a second or so.
            Case("wire_failures.link_down_0.4_s", _link_down(0.4, 16), 120),
            Case("wire_failures.link_stays_down", _link_stays_down, 120),
        ], _hosts, weight=CROWDS),
    ]
