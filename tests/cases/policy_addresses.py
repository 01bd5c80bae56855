"""Addresses of policies: packets of each policy's vNICs carry their own, on both hosts; the daemon
adds them to the underlay's interface, and takes them back."""

import contextlib
import json
import os
import pathlib
import random
import re
import signal
import socket
import sys
import types

from harness import client_server, process, roce_packets
from harness.rdma_cm_client_server import both
from harness.case import WAITS, Case, Failure, Group, check
from harness.simulated_host import Hosts

_ENDLESS = str(client_server.ENDLESS)
_PREFIX = "192.168.7"
# By policy: containers' numbers, and addresses on hosts a and b.
_POLICIES = {"gold": ((1, 2), ("192.0.2.51", "192.0.2.52")),
             "silver": ((3, 4), ("192.0.2.61", "192.0.2.62"))}
_UNDERLAYS = ("192.0.2.1", "192.0.2.2")


class _Scene:
    """Two hosts with two containers each, all of the tenant blue: of each host one has the policy
    gold, the other silver."""

    def __init__(self, stage):
        self.folder = stage.folder("keys")
        self.hosts = hosts = Hosts(stage)
        self.both = (hosts.a, hosts.b)
        key = self.folder / "blue"
        key.write_text("d2" * 16)
        key.chmod(0o600)
        silver = (hosts.a.add(3), hosts.b.add(4))
        self.pairs = {"gold": types.SimpleNamespace(server=hosts.server, client=hosts.client),
                      "silver": types.SimpleNamespace(server=silver[0], client=silver[1])}
        for host, underlay in zip(self.both, _UNDERLAYS):
            host.switch.ip("address", "add", f"{underlay}/24", "dev", "bridge")
            host.daemon.omniverb("tenant", "create", "blue", "--key-file", key,
                                 "--underlay", underlay)
        for policy, (numbers, addresses) in _POLICIES.items():
            pair = self.pairs[policy]
            for host, number, address, place in zip(self.both, numbers, addresses,
                                                    (pair.server, pair.client)):
                place.virtual, place.vnic = f"{_PREFIX}.{number}", f"{policy}{number}"
                place.namespace.ip("address", "add", f"{place.virtual}/24", "dev", "eth0")
                # Nothing leaves by the container's own network.
                place.namespace.drop_udp(4791)
                host.daemon.omniverb("policy", "create", policy, "--underlay", address)
                host.daemon.omniverb("vnic", "create", place.vnic, "--tenant", "blue",
                                     "--address", place.virtual, "--policy", policy,
                                     "--attach", self.mount(place))
            for host, other, place in zip(self.both, reversed(self.both),
                                          (pair.client, pair.server)):
                self.describe(host, other, place)

    def mount(self, place):
        """A path of a container's namespace that stays."""
        return place.namespace.mounted_at(self.folder / f"{place.hostname}-namespace")

    @staticmethod
    def describe(host, other, place, verb="create"):
        """Has a host know a vNIC of the other host, with the address that its packets carry."""
        shown = json.loads(other.daemon.omniverb("vnic", "show", place.vnic, "--json"))
        host.daemon.omniverb("vnic", verb, place.vnic, "--tenant", "blue",
                             "--address", place.virtual,
                             "--underlay", shown["underlay"],
                             "--qpn-offset", str(shown["qpn_offset"]))

    def close(self):
        """Ends the hosts."""
        self.hosts.close()


def _fixture(stage):
    return contextlib.closing(_Scene(stage))


def _addresses(host, device="bridge"):
    """IPv4 addresses of an interface of a host, one entry each time that it has one."""
    found = json.loads(host.switch.ip("-json", "-4", "address", "show", "dev", device))
    return sorted(f"{address['local']}/{address['prefixlen']}" for one in found
                  for address in one.get("addr_info", ()))


def _has(host, address, count=1):
    """Waits until an interface has an address so often."""
    process.until(lambda: _addresses(host).count(f"{address}/32") == count, 10,
                  lambda: f"{address} {count} times: {_addresses(host)}\n{host.daemon.log()}")


def _count(host):
    """Counts packets of the underlay by their addresses, both ways."""
    rules = ["add table ip seen",
             "add set ip seen pairs { typeof ip saddr . ip daddr; flags dynamic; counter; }"]
    for hook in ("input", "output"):
        rules += [f"add chain ip seen {hook} {{ type filter hook {hook} priority 0; }}",
                  f"add rule ip seen {hook} udp dport 4791 "
                  "update @pairs { ip saddr . ip daddr }"]
    host.switch.nft("; ".join(rules))


def _counted(host):
    """Packets by source and destination, and no count any more."""
    text = host.switch.nft("list set ip seen pairs")
    host.switch.nft("delete table ip seen")
    found = re.findall(r"([0-9.]+) \. ([0-9.]+) counter packets (\d+)", text)
    return {(source, to): int(count) for source, to, count in found}


_PINGPONGS = ("ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong")


def _exchange(scene, count=300):
    """All services and rdma_cm, of both policies at once: contents are right."""
    for program in _PINGPONGS:
        words = [program, "-g", "0", "-n", str(count), "-s", "1000", "-c"]
        for duet in [client_server.Duet(pair, words) for pair in scene.pairs.values()]:
            printed = duet.finish(60)
            check("invalid data" not in printed.server + printed.client, printed.client)
    for pair in scene.pairs.values():
        pings = ["rping", "-a", pair.server.virtual, "-C", "20", "-v", "-V"]
        printed, text = both(pair, [*pings, "-s"], [*pings, "-c"], 40)
        check("rdma-ping-19" in text, f"{text}\n{printed}")


def _counters(scene):
    """On both hosts packets of a group are seen under its address, and under no other."""
    for host in scene.both:
        _count(host)
    _exchange(scene)
    expected = {pair for _, ends in _POLICIES.values() for pair in (ends, ends[::-1])}
    for host in scene.both:
        seen = _counted(host)
        check(set(seen) == expected, f"{seen}")
        check(all(count > 600 for count in seen.values()), f"{seen}")
        for _, ends in _POLICIES.values():
            _has(host, ends[scene.both.index(host)])
        check(_problem(host, "gold") is None, "a problem is shown")


def _problem(host, policy):
    return json.loads(host.daemon.omniverb("policy", "show", policy, "--json")).get("problem")


def _changed(scene):
    """Another address while everything runs: names are new, the old address is gone. What the
    policy loses, its vNICs have of their tenant."""
    a, b = scene.both
    pair, (here, _) = scene.pairs["gold"], _POLICIES["gold"][1]
    before = json.loads(a.daemon.omniverb("vnic", "show", "gold1", "--json"))["gid"]
    running = client_server.Duet(pair, ["ib_write_bw", "-F", "-x", "0", "-D", _ENDLESS])
    try:
        client_server.moves_on(running, a.daemon, scene.hosts.b.daemon)
        a.daemon.omniverb("policy", "set", "gold", "--underlay", "192.0.2.55")
        check(running.client.wait(30) != 0, "the connection outlives the address")
    finally:
        running.kill(running.server)
    _has(a, "192.0.2.55")
    _has(a, here, 0)
    check(before != json.loads(a.daemon.omniverb("vnic", "show", "gold1", "--json"))["gid"],
          "the name is the same")
    scene.describe(b, a, pair.server, "set")
    _exchange(scene)
    a.daemon.omniverb("policy", "set", "gold", "--underlay", "none")
    _has(a, "192.0.2.55", 0)
    b.daemon.omniverb("vnic", "set", "gold1", "--underlay", _UNDERLAYS[0])
    _exchange(scene)
    a.daemon.omniverb("policy", "set", "gold", "--underlay", here)
    scene.describe(b, a, pair.server, "set")
    _has(a, here)
    _exchange(scene)


def _restored(scene):
    """What takes the address from the interface takes it for a moment; an interface that goes down
    and up has it once."""
    a, (here, _) = scene.hosts.a, _POLICIES["gold"][1]
    _exchange(scene, 50)
    a.switch.ip("address", "delete", f"{here}/32", "dev", "bridge")
    _has(a, here)
    a.switch.ip("link", "set", "bridge", "down")
    a.switch.ip("link", "set", "bridge", "up")
    _has(a, here)
    # The underlay is another interface's for a while.
    a.switch.ip("link", "add", "other", "type", "bridge")
    a.switch.ip("address", "delete", f"{_UNDERLAYS[0]}/24", "dev", "bridge")
    _has(a, here)
    a.switch.ip("address", "add", f"{_UNDERLAYS[0]}/24", "dev", "other")
    _has(a, here, 0)
    check(f"{here}/32" in _addresses(a, "other"), f"{_addresses(a, 'other')}")
    a.switch.ip("link", "delete", "other")
    a.switch.ip("address", "add", f"{_UNDERLAYS[0]}/24", "dev", "bridge")
    _has(a, here)
    _exchange(scene, 50)


def _by_hand(scene):
    """An address that the operator has added is used, and stays."""
    a, (here, _) = scene.hosts.a, _POLICIES["silver"][1]
    a.switch.ip("address", "add", f"{here}/24", "dev", "bridge")
    _has(a, here, 0)
    _exchange(scene, 50)
    a.daemon.omniverb("policy", "set", "silver", "--underlay", "192.0.2.66")
    _has(a, "192.0.2.66")
    check(f"{here}/24" in _addresses(a), f"{_addresses(a)}")
    a.daemon.omniverb("policy", "set", "silver", "--underlay", here)
    _has(a, "192.0.2.66", 0)
    a.switch.ip("address", "delete", f"{here}/24", "dev", "bridge")
    _has(a, here)


def _namespace_ends(scene):
    """The address is there when the container's interface comes up, before any process, and goes
    with its namespace."""
    a = scene.hosts.a
    a.daemon.omniverb("policy", "create", "bronze", "--underlay", "192.0.2.71")
    container = a.add(7)
    try:
        a.daemon.omniverb("vnic", "create", "bronze7", "--tenant", "blue", "--policy", "bronze",
                          "--address", f"{_PREFIX}.7", "--attach", scene.mount(container))
        _has(a, "192.0.2.71")
        for _ in range(3):
            for state in ("down", "up"):
                container.namespace.ip("link", "set", "eth0", state)
        _has(a, "192.0.2.71")
        check(a.daemon.vnic(container.namespace)["processes"] == 0, "it has processes")
    finally:
        a.parts.remove(container)
        container.close()
    _has(a, "192.0.2.71", 0)
    a.daemon.omniverb("vnic", "delete", "bronze7")
    a.daemon.omniverb("policy", "delete", "bronze")


def _restarts(scene):
    """With the daemon the addresses go. What one leaves that is killed, the next one takes over or
    removes."""
    a = scene.hosts.a
    _exchange(scene, 50)
    a.daemon.process.send_signal(signal.SIGTERM)
    a.daemon.process.wait(10)
    check(_addresses(a) == [f"{_UNDERLAYS[0]}/24"], f"{_addresses(a)}")
    a.daemon.start()
    _exchange(scene, 50)
    running = client_server.Duet(scene.pairs["gold"], ["ib_write_bw", "-F", "-x", "0", "-D",
                                                       _ENDLESS])
    client_server.moves_on(running, a.daemon, scene.hosts.b.daemon)
    a.daemon.kill()
    a.daemon.start()
    _has(a, _POLICIES["gold"][1][0])
    running.abort()
    _exchange(scene, 50)
    for _, ends in _POLICIES.values():
        _has(a, ends[0])
    # Of one that the next daemon does not need nothing is left.
    a.daemon.kill()
    state = a.daemon.folder.with_name(f"{a.daemon.folder.name}-operator") / "omniverbd.sock.objects"
    kept = state.read_text()
    state.write_text(kept.replace(_POLICIES["silver"][1][0], "192.0.2.77"))
    a.daemon.start()
    _has(a, _POLICIES["silver"][1][0], 0)
    a.daemon.omniverb("policy", "set", "silver", "--underlay", _POLICIES["silver"][1][0])
    _exchange(scene, 50)
    for _, ends in _POLICIES.values():
        _has(a, ends[0])


def _unprivileged(scene):
    """Without CAP_NET_ADMIN the log and the policy say what to do; what the operator does is
    used."""
    a, (here, _) = scene.hosts.a, _POLICIES["gold"][1]
    daemon, prefix = a.daemon, a.daemon.prefix
    a.daemon.close()
    daemon.prefix = [*prefix, "setpriv", "--bounding-set=-net_admin", "--"]
    daemon.start()
    try:
        scene.pairs["gold"].server.run("ibv_devinfo")
        process.until(lambda: _problem(a, "gold"), 10, "a problem")
        for text in (_problem(a, "gold"), daemon.log()):
            check("CAP_NET_ADMIN" in text and f"ip address add {here}/32" in text, text)
        for address in (here, _POLICIES["silver"][1][0]):
            a.switch.ip("address", "add", f"{address}/32", "dev", "bridge")
        process.until(lambda: _problem(a, "gold") is None, 10, "no problem any more")
        _exchange(scene, 50)
    finally:
        daemon.close()
        check(f"{here}/32" in _addresses(a), "it has removed what the operator had added")
        for _, ends in _POLICIES.values():
            with contextlib.suppress(Failure):
                a.switch.ip("address", "delete", f"{ends[0]}/32", "dev", "bridge")
        daemon.prefix = prefix
        daemon.start()


def _forged(scene):
    """A request is answered if source, number and tenant fit together: of the same peer from its
    host's other addresses, or from a number that is not of its address, it gets nothing."""
    a, b = scene.both
    shown = {name: json.loads(host.daemon.omniverb("vnic", "show", name, "--json"))
             for host, name in ((a, "gold1"), (b, "gold2"), (b, "silver4"))}
    gold, silver = (_POLICIES[policy][1][1] for policy in ("gold", "silver"))
    for source in (gold, silver):
        _has(b, source)
    process.until(lambda: not b.daemon.left(), 20, "no program on the sender's host")
    # As long as it, or a helper of it, runs no other process there has the port.
    b.daemon.kill()
    process.until(lambda: not process.run([*b.switch.enter(), "ss", "-Huln", "sport = 4791"]), 20,
                  "the port to be free")
    for source in (gold, silver):
        with contextlib.suppress(Failure):
            b.switch.ip("address", "add", f"{source}/32", "dev", "bridge")
    numbers = {name: one["qpn_offset"] for name, one in shown.items()}
    order = {"to": _POLICIES["gold"][1][0], "number": numbers["gold1"],
             "gids": [shown[name]["gid"] for name in ("gold2", "gold1")],
             "virtual": [scene.pairs["gold"].client.virtual, scene.pairs["gold"].server.virtual]}
    waiting = scene.pairs["gold"].server.start("ibv_rc_pingpong", "-g", "0")
    try:
        process.until(lambda: a.daemon.queue_pairs(), 10, "a program")
        for source, port, sender, answered in (
                (gold, roce_packets.PORT, "gold2", True),
                (_UNDERLAYS[1], roce_packets.PORT, "gold2", False),
                (silver, roce_packets.PORT, "gold2", False),
                (gold, roce_packets.PORT, "silver4", False),
                (gold, 0xC123, "gold2", False),
                (gold, roce_packets.PORT, "gold2", True)):
            words = json.dumps({**order, "from": [source, port], "sender": numbers[sender],
                                "patience": 15 if answered else 2})
            said = process.run([*b.switch.enter(), sys.executable, "-B",
                                pathlib.Path(__file__).resolve(), words],
                               env={**os.environ,
                                    "PYTHONPATH": str(pathlib.Path(__file__).parents[1])})
            check(said.strip() == str(answered), f"{source}:{port} as {sender}: {said}")
    finally:
        process.end(waiting)
        for source in (gold, silver):
            with contextlib.suppress(Failure):
                b.switch.ip("address", "delete", f"{source}/32", "dev", "bridge")
        b.daemon.start()


def _request(order):
    """Sends a request to connect that names a peer, from any address; whether it is answered."""
    source, port = order["from"]
    body = bytearray(roce_packets.connect_request(random.Random(), *order["virtual"], 7777))
    body[5:8] = (order["number"] + 1).to_bytes(3, "big")
    body[17:20] = (order["sender"] + 1).to_bytes(3, "big")
    body[76:79] = (order["sender"] + 5).to_bytes(3, "big")
    body[100:132] = b"".join(socket.inet_pton(socket.AF_INET6, gid) for gid in order["gids"])
    whole = roce_packets.datagram(source, order["to"], bytes(body), True, port)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.bind((source, port))
        sender.settimeout(order["patience"])
        sender.sendto(whole[28:], (order["to"], roce_packets.PORT))
        try:
            sender.recv(4096)
            return True
        except TimeoutError:
            return False


def groups():
    """Two hosts with two containers each, one tenant, two policies with addresses."""
    return [Group("policy_addresses", [
        Case("policy_addresses.counters", _counters, 200),
        Case("policy_addresses.forged", _forged, 100),
        Case("policy_addresses.changed", _changed, 300),
        Case("policy_addresses.restored", _restored, 200),
        Case("policy_addresses.by_hand", _by_hand, 200),
        Case("policy_addresses.namespace_ends", _namespace_ends, 60),
        Case("policy_addresses.restarts", _restarts, 300),
        Case("policy_addresses.unprivileged", _unprivileged, 200),
    ], _fixture, weight=WAITS)]


if __name__ == "__main__":
    print(_request(json.loads(sys.argv[1])))
