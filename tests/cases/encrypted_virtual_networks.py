"""Encrypted tenants with addresses of their own: two of them have the same addresses on the same
two hosts, and the underlay sees PSP only."""

import contextlib
import types

from harness import client_server, independent_psp, process
from harness.case import CROWDS, Case, Group, check

from cases import virtual_networks
from cases.psp_encryption_between_hosts import begin, said

_UNDERLAYS = ("192.0.2.1", "192.0.2.2")


@contextlib.contextmanager
def _fixture(stage):
    scene = virtual_networks.TwoHosts(stage, words=["--encryption", "psp"])
    try:
        yield scene
    finally:
        scene.close()


def _blocks(seen):
    """Which tunnels have given out the numbers that passed."""
    return {int(spi) >> 23 & 0xff for spi in seen["spis"]}


def _contents(scene):
    """Services and rdma_cm, both tenants at once: contents are right, and nothing that passes can
    be read."""
    watched = begin(scene.hosts, "watch", secret=b"rdma-ping-".hex())
    virtual_networks.far_programs(scene)
    virtual_networks.by_address(scene)
    seen = said(watched)
    check(seen["plain"] == 0 and seen["readable"] == 0, f"{seen}")
    check(sum(seen["spis"].values()) > 2000 and seen["messages"] >= 8, f"{seen}")
    check(len(_blocks(seen)) >= 2, f"both tenants use the same numbers: {seen}")


def _shown(scene):
    """What operators see; both tenants have the same key on both hosts, and it is in no log."""
    running = client_server.Duet(scene.pairs["blue"], ["ib_send_bw", "-F", "-x", "0", "-D", "60"])
    try:
        daemon = scene.hosts.a.daemon
        process.until(daemon.queue_pairs, 20, "a device in use")
        shown = {vnic["encryption"] for vnic in daemon.status()["vnics"]}
    finally:
        running.abort()
    check("psp" in shown, f"{shown}")
    for daemon in scene.hosts.daemons:
        check("d2d2" not in daemon.log(), daemon.log())


def _attacked(scene):
    """What passes one way is sent again, as it is and changed; messages of the handshake, too."""
    replayed = begin(scene.hosts, "replay")
    running = [client_server.Duet(pair, ["ibv_rc_pingpong", "-g", "0", "-c", "-n", "4000"])
               for pair in scene.pairs.values()]
    for duet in running:
        virtual_networks.check_pingpong(duet.finish(120))
    words = ["ib_write_bw", "-F", "-x", "0", "-s", "65536", "-n", "500"]
    client_server.run(scene.pairs["red"], *words)
    seen = said(replayed)
    check(seen["sent"] > 200, f"{seen}")


def _fails(scene, tenant):
    """A connection of a tenant is not to be; what `omniverb status` says of it while it lasts."""
    running = client_server.Duet(scene.pairs[tenant], ["ib_send_bw", "-F", "-x", "0", "-s", "8",
                                                       "-n", "1000", "-u", "17"])
    reasons = set()

    def is_over():
        for qp in scene.hosts.b.daemon.queue_pairs():
            reasons.update(peer["why"] for peer in qp["peers"])
        return running.client.poll() is not None

    process.until(is_over, 50, "the connection to fail")
    status = running.client.poll()
    running.abort()
    text = running.text(1)
    check(status != 0 and "status 12" in text, f"{status}: {text}")
    return reasons


def _works(scene, tenant):
    pair = scene.pairs[tenant]
    client_server.run(pair, "ib_send_bw", "-F", "-x", "0", "-s", "4096", "-n", "1000")


def _wrong_key(scene):
    """One host has another key of blue: nothing passes, and red does not notice. With the right key
    it works."""
    daemon = scene.hosts.a.daemon
    # Twice: the key before stays valid until the next change.
    for key in ("ab" * 16, "cd" * 16):
        scene.write_key("blue", 1, key)
        daemon.omniverb("tenant", "set", "blue", "--adoption", "trusting")
    _fails(scene, "blue")
    _works(scene, "red")
    scene.write_key("blue", 1)
    daemon.omniverb("tenant", "set", "blue", "--adoption", "trusting")
    _works(scene, "blue")


def _without(scene):
    """One host does not encrypt blue: nothing passes, log and status of the other say why, and red
    does not notice."""
    daemon = scene.hosts.a.daemon
    daemon.omniverb("tenant", "set", "blue", "--encryption", "none")
    try:
        reasons = _fails(scene, "blue")
        check(any("the handshake of PSP" in why or "RoCE in plain" in why for why in reasons),
              f"{reasons}")
        log = scene.hosts.b.daemon.log()
        words = f"tenant blue sends nothing to {_UNDERLAYS[0]}"
        check(words in log, log)
        _works(scene, "red")
    finally:
        daemon.omniverb("tenant", "set", "blue", "--encryption", "psp")
    _works(scene, "blue")


def _new_key(scene):
    """The key of a tenant is replaced, first here, then there, under load."""
    hosts = scene.hosts
    pair = scene.pairs["blue"]
    with client_server.going_on(pair, "ib_send_bw", "-x", "0", "-s", "1024") as running:
        client_server.moves_on(running, *hosts.daemons)
        for new in ("11" * 16, "22" * 16):
            for number, daemon in enumerate(hosts.daemons, 1):
                scene.write_key("blue", number, new)
                daemon.omniverb("tenant", "set", "blue", "--adoption", "trusting")
                # Also with a key that one of them alone has.
                client_server.moves_on(running, *hosts.daemons)


def _groups(scene):
    """Copies for groups are encrypted, too."""
    watched = begin(scene.hosts, "watch", secret="ff" * 16)
    virtual_networks.in_groups(scene, scene.hosts.a.daemon)
    seen = said(watched)
    check(seen["plain"] == 0 and sum(seen["spis"].values()) >= 100, f"{seen}")


def _across(scene):
    """A name of another tenant's leads to no packet; numbers of a key that it does not have open
    nothing."""
    virtual_networks.far_across(scene)
    mixed = types.SimpleNamespace(server=scene.pairs["blue"].server,
                                  client=scene.pairs["red"].client)
    virtual_networks.far_across(types.SimpleNamespace(
        pairs={"red": mixed, "blue": types.SimpleNamespace(client=mixed.client)}))


def groups():
    """Two hosts with two containers each; two encrypted tenants."""
    return [Group("encrypted_virtual_networks", [
        Case("encrypted_virtual_networks.contents", _contents, 300),
        Case("encrypted_virtual_networks.shown", _shown, 90),
        Case("encrypted_virtual_networks.attacked", _attacked, 300),
        Case("encrypted_virtual_networks.across", _across, 150),
        Case("encrypted_virtual_networks.groups", _groups, 200),
        Case("encrypted_virtual_networks.without", _without, 200),
        Case("encrypted_virtual_networks.wrong_key", _wrong_key, 200),
        Case("encrypted_virtual_networks.new_key", _new_key, 150),
        Case("encrypted_virtual_networks.large", virtual_networks.far_large, 150),
    ], _fixture, weight=CROWDS)]
