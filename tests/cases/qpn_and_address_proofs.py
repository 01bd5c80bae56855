"""Tests that names are proved: claims after a restart of the daemon, and links that the network
forbids."""

import contextlib
import subprocess
import time
from types import SimpleNamespace

from harness import client_server, process
from harness.case import WAITS, Case, Failure, Group, check
from harness.containers import Pair

_WALLED, _BESIDE = ["ib_send_bw", "-F", "-D"], ["ib_write_bw", "-F", "-D"]
_SURVIVOR = "made before the daemon was restarted"


def _peers(daemon):
    """Every queue pair's number with the reasons of its links."""
    found = {}
    for vnic in daemon.status()["vnics"]:
        for running in vnic["processes"]:
            for qp in running["qps"]:
                found[qp["qpn"]] = [peer.get("why") or qp.get("why") for peer in qp["peers"]]
    return found


def _liar_after_a_restart(trio):
    """kill -9 of the daemon while traffic runs; somebody else claims the numbers first."""
    with client_server.going_on(trio, "ib_send_bw") as running:
        _claimed(trio, running)
    process.until(lambda: not any(_peers(trio.daemon).values()), 20, "closed as any other")


def _claimed(trio, running):
    process.until(lambda: len([q for q, why in _peers(trio.daemon).items() if why]) == 2, 20,
                  "a link")
    numbers = sorted(_peers(trio.daemon))
    trio.daemon.kill()
    liar = trio.containers[1].start("/usr/bin/python3", "/opt/programs/attack_claimed_names.py",
                                    trio.server.address, *numbers, plain=True,
                                    stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                    stderr=subprocess.STDOUT, text=True)
    try:
        check(liar.stdout.readline() == "ready\n", "the liar does not run")
        trio.daemon.start()
        line = liar.stdout.readline()
        count = 8 * len(numbers) - len(numbers)
        check(line == f"refused {count} of {count}\n", line)

        def recorded():
            peers = _peers(trio.daemon)
            return all(peers.get(number) == [_SURVIVOR] for number in numbers)

        process.until(recorded, 20, lambda: f"both ends of the link: {_peers(trio.daemon)}")
    finally:
        liar.stdin.close()
        process.end(liar)
    time.sleep(6)  # longer than anybody waits for another to announce itself
    check(recorded(), f"not recorded any more: {_peers(trio.daemon)}")
    client_server.moves_on(running, trio.daemon)


def _wall_ends_a_link(trio):
    """A packet filter that appears ends the link; another pair does not notice."""
    one, other, third = trio.containers
    walled = client_server.Duet(SimpleNamespace(server=other, client=third),
                                [*_WALLED, str(client_server.ENDLESS)])
    beside = client_server.Duet(SimpleNamespace(server=one, client=third),
                                [*_BESIDE, str(client_server.ENDLESS)])
    try:
        process.until(lambda: len(_peers(trio.daemon)) == 4 and all(_peers(trio.daemon).values()),
                      20, lambda: f"two links: {_peers(trio.daemon)}")
        time.sleep(4)  # as many periods: links stay
        client_server.each_moves(trio.daemon)
        check(walled.client.poll() is None and beside.client.poll() is None,
              f"{walled.text(1)}\n{beside.text(1)}")
        other.namespace.drop_udp(4791)
        begun = time.monotonic()
        try:
            walled.client.wait(30)
        except subprocess.TimeoutExpired:
            raise Failure("a direct link goes on through a packet filter") from None
        print(f"ended {time.monotonic() - begun:.1f} s after the filter was there")
        check(walled.client.returncode != 0, walled.text(1))
        client_server.moves_on(beside, trio.daemon)
        check(beside.client.poll() is None and beside.server.poll() is None, beside.text(1))
    finally:
        walled.abort()
        beside.abort()
        with contextlib.suppress(Failure):
            other.namespace.drop_no_more()


@contextlib.contextmanager
def _trio(stage):
    file = stage.folder("configuration") / "omniverbd.toml"
    file.write_text("consent_seconds = 1\n")
    with Pair(stage, count=3, daemon_arguments=["--config", file]) as trio:
        yield trio


def groups():
    """Three containers, of which the second is a liar, or gets a packet filter."""
    cases = [Case("names.liar_after_a_restart", _liar_after_a_restart, 150),
             Case("names.wall_ends_a_link", _wall_ends_a_link, 150)]
    return [Group("names", cases, _trio, weight=WAITS)]
