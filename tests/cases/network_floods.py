"""Tests attacks of a neighbour in the same network with an ordinary or a raw socket."""

import contextlib
import functools
import re
import subprocess
import time
from types import SimpleNamespace

from harness import client_server, roce_flood_payloads, process
from harness.case import CROWDS, Case, Failure, Group, check
from harness.containers import Pair

_ENDLESS = str(client_server.ENDLESS)
_CONSENT_SECONDS = 2
# Packets a second to each victim, where the machine can send so many.
_RATE = 100_000
# For so long a link lives in a flood, at least.
_FLOOD_SECONDS = 20
# Periods without an answer after which a link ends whatever the reason is, and the first one; see
# host/tenancy/src/links/reachability_table.rs. The rest is for a machine that is busy.
_LONGEST = 10 * _CONSENT_SECONDS + 30


def _six(container):
    """The IPv6 address of a container."""
    return f"fd77::{container.address.rpartition('.')[2]}"


def _flood(place, kinds, victims, forged=False):
    """The fourth container floods some of the first three; `forged`: by this version of IP."""
    *first, attacker = place.containers
    own = None if forged else attacker.address
    address = _six if forged == 6 else lambda one: one.address
    return roce_flood_payloads.flood(place.stage, attacker.namespace, kinds, own,
                          [address(one) for one in victims], _RATE * len(victims),
                          [address(one) for one in first] if forged == 6 else [])


def _ways(daemon):
    """The paths of all links of all queue pairs."""
    found = []
    for vnic in daemon.status()["vnics"]:
        for running in vnic["processes"]:
            for qp in running["qps"]:
                found += [peer.get("path") or qp.get("path") for peer in qp["peers"]]
    return found


def _index_of_six(container):
    """The index of its GID; all containers have the same number of them."""
    text = container.run("ibv_devinfo", "-v")
    found = re.search(r"GID\[\s*(\d+)\]:\s*fd77:", text)
    check(found, text)
    return found.group(1)


def _goes_on_and_begins(kinds, forged, place):
    """A link that is there stays; ones that are made meanwhile are direct."""
    one, other, third, _ = place.containers
    words = ["-x", _index_of_six(one)] if forged == 6 else []
    old = client_server.Duet(SimpleNamespace(server=one, client=third),
                    ["ib_send_bw", "-F", "-s", "64", "-D", _ENDLESS, *words])
    try:
        process.until(lambda: _ways(place.daemon) == ["direct", "direct"], 20,
                      lambda: f"a direct link: {_ways(place.daemon)}")
        begun = time.monotonic()
        with _flood(place, kinds, [one], forged):
            while time.monotonic() < begun + _FLOOD_SECONDS:
                try:
                    _begins(place, one, other, words)
                finally:
                    check(old.client.poll() is None and old.server.poll() is None,
                          f"the link has ended within {time.monotonic() - begun:.1f} s: "
                          f"{old.text(0)} {old.text(1)}")
    finally:
        old.abort()


def _begins(place, one, other, words=()):
    """A new connection beside the one that there is, which is direct."""
    sides = SimpleNamespace(server=one, client=other)
    with client_server.going_on(sides, "ib_send_bw", "-s", "64", *words) as new:
        process.until(lambda: len(_ways(place.daemon)) == 4, 20,
                      lambda: f"another link: {_ways(place.daemon)} {new.text(1)}")
        ways = _ways(place.daemon)
        check(set(ways) == {"direct"}, f"{ways}: {place.daemon.status()}")
        client_server.each_moves(place.daemon)
    process.until(lambda: len(_ways(place.daemon)) <= 2, 20, "the end of the other link")


def _wall_in_a_flood(place):
    """A packet filter that appears while somebody floods ends the link all the same."""
    one, _, third, _ = place.containers
    walled = client_server.Duet(SimpleNamespace(server=one, client=third),
                       ["ib_send_bw", "-F", "-D", _ENDLESS])
    try:
        process.until(lambda: _ways(place.daemon) == ["direct", "direct"], 20,
                      lambda: f"a direct link: {_ways(place.daemon)}")
        with _flood(place, ["handshakes"], [one, third]):
            time.sleep(2)
            check(walled.client.poll() is None, walled.text(1))
            one.namespace.drop_udp(4791)
            begun = time.monotonic()
            try:
                walled.client.wait(_LONGEST)
            except subprocess.TimeoutExpired:
                raise Failure("a flood hides a packet filter") from None
            print(f"ended {time.monotonic() - begun:.1f} s after the filter was there")
            check(walled.client.returncode != 0, walled.text(1))
    finally:
        walled.abort()
        with contextlib.suppress(Failure):
            one.namespace.drop_no_more()


@contextlib.contextmanager
def _place(stage):
    file = stage.folder("configuration") / "omniverbd.toml"
    file.write_text(f"consent_seconds = {_CONSENT_SECONDS}\n")
    with Pair(stage, count=4, daemon_arguments=["--config", file]) as place:
        for one in place.containers:
            one.namespace.ip("addr", "add", f"{_six(one)}/64", "dev", "eth0", "nodad")
        yield place


def groups():
    """Four containers, of which the last one is hostile."""
    floods = [(kind, [kind]) for kind in roce_flood_payloads.KINDS]
    floods += [("mixed", list(roce_flood_payloads.KINDS))]
    flood_cases = [(name, kinds, False) for name, kinds in floods]
    flood_cases += [("forged_sources", list(roce_flood_payloads.KINDS), 4),
                    ("forged_sources_6", list(roce_flood_payloads.KINDS), 6)]
    cases = [*(Case(f"neighbours.flood_of_{name}",
                    functools.partial(_goes_on_and_begins, kinds, forged), 150)
               for name, kinds, forged in flood_cases),
             Case("neighbours.a_wall_in_a_flood_ends_a_link", _wall_in_a_flood, 120)]
    return [Group("neighbours", cases, _place, weight=CROWDS)]
