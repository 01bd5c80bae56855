"""Tests that a container sees its own device only, and reaches only peers that its network reaches.
"""

import contextlib
import os
import re
import subprocess
from types import SimpleNamespace

from harness import client_server, process
from harness.case import WAITS, Case, Failure, Group, check
from harness.containers import Container, Pair
from harness.network import Namespace, Switch
from harness.unprivileged_daemon import UID, Place


class _Neighbours:
    """Two containers on one network, a third on another with an address of the first network's."""

    def __init__(self, stage):
        self.pair = Pair(stage)
        self.stage = stage
        try:
            self.other_switch = Switch()
            self.pair.parts.append(self.other_switch)
            self.stranger = Container(stage, "stranger", self.pair.daemon.folder,
                                      self.other_switch, "10.88.0.1/24")
            self.pair.parts.append(self.stranger)
            self.twin = Container(stage, "twin", self.pair.daemon.folder, self.other_switch,
                                  "10.77.0.1/24")
            self.pair.parts.append(self.twin)
        except BaseException:
            self.pair.close()
            raise


@contextlib.contextmanager
def _fixture(stage):
    neighbours = _Neighbours(stage)
    try:
        yield neighbours
    finally:
        neighbours.pair.close()


def _own_view(n):
    for place, address in ((n.pair.server, "10.77.0.1"), (n.pair.client, "10.77.0.2"),
                           (n.stranger, "10.88.0.1")):
        text = place.run("/opt/programs/isolation_probe", "view")
        check(f"::ffff:{address}" in text, text)
        for foreign in {"10.77.0.1", "10.77.0.2", "10.88.0.1"} - {address}:
            check(foreign not in text, f"{address} sees {foreign}:\n{text}")
        listing = place.run("ibv_devices")
        check(listing.count("omv0") == 1, listing)


def _same_table_everywhere(n):
    shapes = {tuple(line.split()[0] + line.split()[1][:6]
                    for line in place.run("/opt/programs/isolation_probe", "view").splitlines()
                    if " " in line and line[0].isdigit())
              for place in (n.pair.server, n.pair.client, n.stranger)}
    check(len(shapes) == 1, f"GID tables differ in shape: {shapes}")


def _first_gid(n):
    """The link-local address is GID 0 while the kernel is still asking whether somebody has it."""
    namespace = Namespace()
    try:
        namespace.set("ipv6/conf/default/dad_transmits", "60")
        n.other_switch.plug(namespace, "10.88.0.9/24")
        def shown():
            return re.search(r"inet6 (fe80:\S+)/64 .*tentative",
                             namespace.ip("-6", "addr", "show", "dev", "eth0"))
        wanted = process.until(shown, 10, "a tentative address")[1]
        user = SimpleNamespace(stage=n.stage, uid=UID, namespace=namespace, daemon=n.pair.daemon)
        text = Place(user, "10.88.0.9").run("ibv_devinfo", "-v")
        found = re.search(r"GID\[\s*0\]:\s*(fe80:\S+?),", text)
        check(found and found[1] == wanted and shown(), f"GID 0 is not {wanted}:\n{text}")
    finally:
        namespace.close()


def _status_shows_only_ours(n):
    """A tool inside a container is shown that container."""
    with client_server.going_on(n.pair, "ib_send_bw"):
        process.until(lambda: str(n.pair.daemon.status()).count("ib_send_bw") >= 2, 20,
                      lambda: f"both programs: {n.pair.daemon.status()}")
        own = n.pair.server.run("omniverb", "status", plain=True)
        foreign = n.stranger.run("omniverb", "status", plain=True)
        check("ib_send_bw" in own, own)
        check("ib_send_bw" not in foreign and "10.77." not in foreign, foreign)


def _guessing(attacker_name):
    def run(n):
        victim = n.pair.server.start("/opt/programs/isolation_probe", "victim",
                                     stdin=subprocess.PIPE,
                                     stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        numbers = victim.stdout.readline().split()
        check(len(numbers) == 5, f"{numbers} {victim.stdout.read() if not numbers else ''}")
        *qpns, rkey, memory = numbers
        attacker = n.pair.client if attacker_name == "neighbour" else getattr(n, attacker_name)
        try:
            print(attacker.run("/opt/programs/isolation_probe", "attacker", "10.77.0.1", rkey,
                               memory, *qpns,
                               limit=60))
        finally:
            output = victim.communicate("", timeout=20)[0]
        check(victim.returncode == 0, f"the victim: {output}")
    return run


def _unreachable_address(n):
    """perftest between networks: no TCP, so no RDMA either; it must fail, not hang."""
    text = n.stranger.run("ibv_rc_pingpong", "-g", client_server.gid_index(n.stranger), "10.77.0.2",
                          accept=(1,), limit=30)
    check("10.77.0.2" in text, text)


def _dropped_by_the_network(n):
    """The route is there, but a network policy drops RoCEv2: the pair may not talk."""
    policed = n.pair.server.namespace
    policed.drop_udp(4791)
    try:
        running = client_server.Duet(n.pair, ["ib_send_lat", "-F", "-n", "100"])
        try:
            running.finish(20)
        except Failure as failure:
            print(failure)
        else:
            raise Failure("talked although UDP port 4791 is blocked")
        finally:
            running.abort()
    finally:
        policed.drop_no_more()
    client_server.run(n.pair, "ib_send_lat", "-F", "-n", "100")


def _socket_of_another_user(n):
    """Nobody can take the place of the daemon or its socket from inside."""
    text = n.pair.server.run("sh", "-c", "rm /run/omniverb/*.sock; touch /run/omniverb/x; "
                             "ls /run/omniverb", plain=True)
    check("omniverbd.sock" in text and not os.path.exists(n.pair.daemon.folder / "x"), text)


def groups():
    """One fixture: four containers, two networks, one daemon."""
    return [Group("isolation", [
        Case("isolation.own_view", _own_view),
        Case("isolation.same_table_everywhere", _same_table_everywhere),
        Case("isolation.first_gid", _first_gid),
        Case("isolation.status_shows_only_ours", _status_shows_only_ours),
        Case("isolation.guessing_stranger", _guessing("stranger"), 100),
        Case("isolation.guessing_twin", _guessing("twin"), 100),
        Case("isolation.unreachable_address", _unreachable_address),
        Case("isolation.network_drops_roce", _dropped_by_the_network),
        Case("isolation.socket_is_safe", _socket_of_another_user),
    ], _fixture, weight=WAITS)]
