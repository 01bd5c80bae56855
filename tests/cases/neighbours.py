"""What a neighbour in the same network can do with an ordinary UDP socket: floods of what looks
like handshakes to port 4791 of others end no link between these, keep no new one from being
direct, and hide no packet filter for long."""

import contextlib
import subprocess
import time
from types import SimpleNamespace

from harness import duet, process
from harness.case import CROWDS, Case, Failure, Group, check
from harness.containers import Pair

_CONSENT_SECONDS = 1
# Periods without an answer after which a link ends whatever the reason is, and the first one; see
# host/tenancy/src/links/consents.rs. The rest is for a machine that is busy.
_LONGEST = 10 * _CONSENT_SECONDS + 30


@contextlib.contextmanager
def _flood(place):
    """The fourth container floods the first three."""
    *victims, attacker = place.containers
    flood = attacker.start("/usr/bin/python3", "/opt/programs/attacks.py", "strange_handshakes",
                           "120", *(victim.address for victim in victims), plain=True,
                           stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True)
    try:
        yield
        check(flood.poll() is None, "the flood has ended")
        text = process.finish(flood, 60)
        print(text)
        sent = int(text.split()[0])
        check(sent > 200_000, f"that was no flood: {text}")
    finally:
        process.end(flood)


def _ways(daemon):
    """The paths of all links of all queue pairs."""
    found = []
    for vnic in daemon.status()["vnics"]:
        for running in vnic["processes"]:
            for qp in running["qps"]:
                found += [peer.get("path") or qp.get("path") for peer in qp["peers"]]
    return found


def _goes_on_and_begins(place):
    """A link that is there stays; one that is made meanwhile is direct."""
    one, other, third, _ = place.containers
    old = duet.Duet(SimpleNamespace(server=one, client=third), ["ib_send_bw", "-F", "-D", "15"])
    try:
        process.until(lambda: _ways(place.daemon) == ["direct", "direct"], 20,
                      lambda: f"a direct link: {_ways(place.daemon)}")
        with _flood(place):
            time.sleep(3)
            new = duet.Duet(SimpleNamespace(server=one, client=other),
                            ["ib_send_bw", "-F", "-D", "4"])
            try:
                process.until(lambda: len(_ways(place.daemon)) == 4, 20,
                              lambda: f"another link: {_ways(place.daemon)}")
                check(set(_ways(place.daemon)) == {"direct"}, f"{_ways(place.daemon)}")
                new.finish(40)
            finally:
                new.abort()
            time.sleep(4)
        old.finish(40)
    finally:
        old.abort()


def _wall_in_a_flood(place):
    """A packet filter that appears while somebody floods ends the link all the same."""
    one, _, third, _ = place.containers
    walled = duet.Duet(SimpleNamespace(server=one, client=third),
                       ["ib_send_bw", "-F", "-D", "90"])
    try:
        process.until(lambda: _ways(place.daemon) == ["direct", "direct"], 20,
                      lambda: f"a direct link: {_ways(place.daemon)}")
        with _flood(place):
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
        yield place


def groups():
    """Four containers, of which the last one is hostile."""
    cases = [Case("neighbours.floods_end_no_link", _goes_on_and_begins, 120),
             Case("neighbours.a_wall_in_a_flood_ends_a_link", _wall_in_a_flood, 120)]
    return [Group("neighbours", cases, _place, weight=CROWDS)]
