"""Tenants: inside one everything works and pages are mapped, between two nothing passes; what was
set by command outlives the daemon, and a state file that is damaged is named and left alone."""

import contextlib
import json
import re
import time

from harness import client_server, process
from harness.rdma_cm_client_server import Side, both
from harness.case import WAITS, Case, Failure, Group, check
from harness.containers import Pair

from cases import multicast


class _Scene:
    """Two containers and a daemon with a configuration file."""

    def __init__(self, stage):
        self.file = stage.folder("configuration") / "omniverbd.toml"
        self.file.write_text("")
        self.pair = Pair(stage, daemon_arguments=["--config", self.file])
        self.daemon = self.pair.daemon
        folder = self.daemon.folder
        self.state = folder.with_name(f"{folder.name}-operator") / "omniverbd.sock.objects"

    def omniverb(self, *words, accept=(0,)):
        return self.daemon.omniverb(*words, accept=accept)

    def refused(self, word, *words):
        """The command is refused, with this word."""
        try:
            self.omniverb(*words)
        except Failure as failure:
            check(word in str(failure), f"{words}: {failure}")
            return
        raise Failure(f"{words} was not refused")

    def describe(self, server, client):
        """Puts the two containers into these tenants."""
        for name, place, tenant in (("server", self.pair.server, server),
                                    ("client", self.pair.client, client)):
            path = place.namespace.mounted_at(self.file.with_name(name))
            self.omniverb("vnic", "set", name, "--attach", path, "--tenant", tenant)

    def close(self):
        """Ends the containers."""
        self.pair.close()

    def tenants(self):
        """The tenants of the two containers, as the daemon shows them."""
        found = [self.daemon.vnic(place.namespace)
                 for place in (self.pair.server, self.pair.client)]
        return [vnic and vnic["tenant"] for vnic in found]

    def again(self):
        """The next daemon."""
        self.daemon.process.kill()
        self.daemon.process.wait(10)
        self.daemon.socket.unlink(missing_ok=True)
        self.daemon.start()


@contextlib.contextmanager
def _fixture(stage):
    scene = _Scene(stage)
    try:
        for tenant in ("blue", "red"):
            scene.omniverb("tenant", "create", tenant)
        yield scene
    finally:
        scene.close()


def _mapped(scene):
    return sum(vnic["ended"]["operations_mapped"] for vnic in scene.daemon.vnics())


def _inside(scene):
    """Two containers of one owner WRITE into mapped pages, and use all services."""
    scene.describe("blue", "blue")
    before = _mapped(scene)
    outcome = client_server.run(scene.pair, "ib_write_lat", "-F", "-s", "8", "-n", "5000", limit=50)
    check(8 in client_server.rows(outcome.client, 6), outcome.client)
    check(scene.tenants() == ["blue", "blue"], scene.tenants())
    # Counted when the daemon has heard of the end of the program.
    process.until(lambda: _mapped(scene) - before > 5000, 20,
                  lambda: f"5000 operations that were mapped, not {_mapped(scene) - before}")
    for words in (["ib_send_lat", "-c", "UD"], ["ib_read_lat"]):
        client_server.run(scene.pair, *words, "-F", "-s", "8", "-n", "1000", limit=50)
    # Servers of rdma_cm do not listen by TCP.
    address = scene.pair.server.address
    perftest = ["ib_send_lat", "-R", "-F", "-s", "8", "-n", "200"]
    pings = ["rping", "-a", address, "-C", "20", "-v", "-V"]
    for server, client, expected in (
            (perftest, [*perftest, address], "8 +200"),
            ([*pings, "-s"], [*pings, "-c"], "rdma-ping-19"),
            (["udaddy"], ["udaddy", "-s", address], "return status 0")):
        printed, text = both(scene.pair, server, client, 40)
        check(re.search(expected, text), f"no {expected}:\n{text}\n--- server ---\n{printed}")


def _across(scene):
    """A peer of another tenant does not answer, nor does its rdma_cm."""
    scene.describe("blue", "red")
    _reaches_nothing(scene)


def _reaches_nothing(scene):
    running = client_server.Duet(scene.pair, ["ib_write_bw", "-F", "-s", "8", "-n", "1000"])
    status = running.client.wait(50)
    running.server.kill()
    text = running.text(1)
    check(status != 0 and "status 12" in text, f"{status}: {text}")
    paths = [qp["path"] for qp in scene.daemon.queue_pairs()]
    check("direct" not in paths and "forwarded" not in paths, f"{paths}")


def _survives(scene):
    """What was set by command is there after the daemon was killed."""
    scene.omniverb("policy", "create", "gold", "--rate", "300mbit")
    scene.describe("blue", "blue")
    scene.omniverb("vnic", "set", "server", "--policy", "gold")
    scene.again()
    scene.pair.server.run("ibv_devices")
    client_server.gid_index(scene.pair.server)
    shown = json.loads(scene.omniverb("vnic", "show", "server", "--json"))["fields"]
    check(shown["policies"] == ["gold"] and shown["tenant"] == "blue", f"{shown}")
    scene.refused("there is no tenant", "vnic", "set", "server", "--tenant", "green")
    scene.refused("gold", "policy", "delete", "gold")


def _reload(scene):
    """Another configuration is taken as a whole, or not at all."""
    scene.file.write_text('[tenant.green]\n[policy.slow]\nrate = "8mbit"\n')
    check("reloaded" in scene.omniverb("reload"), "reload")
    check("green" in scene.omniverb("tenant", "list"), "green")
    scene.refused("configuration file", "tenant", "delete", "green")
    scene.file.write_text('[tenant.black]\n[policy.slow]\nrate = "8 apples"\n')
    scene.refused("omniverbd.toml:3", "reload")
    check("black" not in scene.omniverb("tenant", "list"), "black")
    scene.file.write_text("")


def _torn(scene):
    """Half a state file is named, not believed, and left alone until it is moved away: which
    tenants vNICs are of is unknown until then, so they do not reach each other."""
    scene.describe("blue", "red")
    scene.daemon.process.kill()
    scene.daemon.process.wait(10)
    text = scene.state.read_bytes()
    scene.state.write_bytes(text[:len(text) // 2])
    scene.daemon.socket.unlink(missing_ok=True)
    scene.daemon.start()
    check("is damaged" in scene.daemon.log() and str(scene.state) in scene.daemon.log(),
          scene.daemon.log())
    check("blue" not in scene.omniverb("tenant", "list"), "blue")
    scene.refused("is damaged", "tenant", "create", "blue")
    check(scene.state.read_bytes() == text[:len(text) // 2], "it was written")
    _reaches_nothing(scene)
    scene.state.rename(scene.state.with_suffix(".damaged"))
    scene.omniverb("tenant", "create", "blue")
    check(scene.state.exists(), "nothing was written")
    client_server.run(scene.pair, "ib_write_lat", "-F", "-s", "8", "-n", "1000", limit=50)


def _groups(scene):
    """What is sent to a multicast group is heard by members of the sender's tenant, and by no
    others: both are in one group of one network."""
    pair, words = scene.pair, ["mckey", "-m", "239.20.3.1", "-c", "1", "-C", "20"]
    for tenant in ("blue", "red"):
        scene.omniverb("tenant", "create", tenant, accept=(0, 1))
    for receives, sends, is_heard in (
            ("blue", "blue", True), ("blue", "red", False), ("default", "red", False),
            ("blue", "default", False), ("default", "default", True)):
        scene.describe(receives, sends)
        receiver = Side(pair.server, [*words, "-b", pair.server.address])
        try:
            # The row is there before the daemon has joined.
            process.until(lambda: multicast.attachments(scene.daemon) == 1 and
                          multicast.is_member(pair.server, "239.20.3.1"), 20, "a member")

            def send(sends=sends):
                sender = Side(pair.client, [*words, "-b", pair.client.address, "-s"])
                try:
                    status = sender.wait(60)
                    check(status == 0 and "test complete" in sender.text(),
                          f"{sends}: {process.how(status)}\n{sender.text()}")
                finally:
                    sender.end()
            send()
            if is_heard:
                status = multicast.status_of(receiver, scene.daemon, send)
                check(status == 0 and "test complete" in receiver.text(),
                      f"{receives}: {process.how(status)}\n{receiver.text()}")
            else:
                time.sleep(1)
                check(receiver.is_there(), f"{receives} hears {sends}:\n{receiver.text()}")
        finally:
            receiver.end()
        process.until(lambda: not scene.daemon.queue_pairs(), 20, "no queue pairs")


def groups():
    """One host, two containers."""
    return [Group("tenants", [
        Case("tenants.inside", _inside, 200), Case("tenants.across", _across, 100),
        Case("tenants.survive", _survives, 60), Case("tenants.reload", _reload, 60),
        Case("tenants.groups", _groups, 200),
        Case("tenants.torn", _torn, 150),
    ], _fixture, weight=WAITS)]
