"""Tests rules that change while programs ask for operations without end.

As soon as the command returned, what is denied does not arrive any more: by direct links, mapped
pages, the engine and the wire, in both directions, for sockets and rdma_cm. What has just arrived
when a case first looks does not count: it waits until nothing arrives, and looks on after that."""

import contextlib
import re
import subprocess
import time
from types import SimpleNamespace

from harness import process
from harness.case import WAITS, Case, Failure, Group, check
from harness.rdma_cm_client_server import Side, both
from harness.simulated_host import Host, Hosts

from cases.carried_sockets_across_namespaces import Across, Talk

# Statuses of completions that may come first: of a queue pair that works; of a request that is
# refused; of one to a peer that is not there, or, if nothing was under way, of the next one.
_WORKS, _REFUSED, _GONE = (0,), (9,), (12, 5)
# Looks on for 0.5 s while nothing arrives.
_LOOKS, _PAUSE = 5, 0.1


class _End:
    """A process of programs/traffic_under_changing_rules.c."""

    def __init__(self, place, asks, service, operation):
        self.process = place.start("/opt/programs/traffic_under_changing_rules", "one_end",
                                   int(asks), service, operation, stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def read(self):
        """A line."""
        line = self.process.stdout.readline().strip()
        if not line or ".c:" in line:
            raise Failure(f"{line or 'ended'} {self.process.poll()}")
        return line

    def write(self, line):
        """A line."""
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def look(self):
        """What it has seen, and the status that its queue pair failed with; 0: it works."""
        self.write("look")
        seen, status = self.read().split()
        return int(seen), int(status)


class _Traffic:
    """A requester and its target, at work."""

    def __init__(self, scene, service, operation):
        places = (scene.target, scene.requester)
        self.ends = []
        try:
            for place in places:
                self.ends.append(_End(place, place is scene.requester, service, operation))
            addresses = [end.read() for end in self.ends]
            check(all(len(address.split()) == 4 for address in addresses), f"{addresses}")
            # The requester begins when its target is ready.
            for end, address in zip(self.ends, reversed(addresses)):
                end.write(address)
            for end in self.ends:
                check(end.read() == "ready", "not ready")
        except BaseException:
            self.close()
            raise
        self.target, self.requester = self.ends
        # What a READ brings arrives at the end that asks.
        self.receiver = self.requester if operation == "read" else self.target

    def moves(self):
        """Waits until payload arrives."""
        before = self.receiver.look()[0]
        process.until(lambda: self.receiver.look()[0] != before, 20,
                      lambda: f"payload to arrive: {[end.look() for end in self.ends]}")

    def stops(self, statuses):
        """Waits until no payload arrives; it goes on so, and the requester has one of these
        statuses."""
        began = time.monotonic()
        last = [self.receiver.look()[0], began]

        def is_still():
            seen, now = self.receiver.look()[0], time.monotonic()
            if seen != last[0]:
                last[:] = [seen, now]
            return now - last[1] > 3 * _PAUSE

        process.until(is_still, 10, "payload to arrive no more")
        print(f"payload was last seen to arrive {last[1] - began:.3f} s after the command")
        for _ in range(_LOOKS):
            seen = self.receiver.look()[0]
            check(seen == last[0], f"payload arrives again: {last[0]}, {seen}")
            time.sleep(_PAUSE)
        process.until(lambda: self.requester.look()[1] in statuses, 20,
                      lambda: f"a status of {statuses}: {self.requester.look()}")

    def close(self):
        """Ends both."""
        for end in self.ends:
            process.end(end.process)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class _Near:
    """Two vNICs of one host, and a policy of its own for each."""

    def __init__(self, stage):
        self.folder = stage.folder("rules")
        file = self.folder / "omniverbd.toml"
        file.write_text("audit = true\n[tenant.blue]\n")
        host = Host(stage, "h", arguments=("--config", file))
        self.parts = host
        try:
            self.place((host, host), (1, 2), "--tenant", "blue")
        except BaseException:
            self.close()
            raise

    def place(self, hosts, numbers, *words):
        """Places for programs, with these addresses, and a policy for the vNIC of each."""
        self.daemons = [host.daemon for host in hosts]
        places = []
        for number, (host, address) in enumerate(zip(hosts, numbers)):
            namespace = host.plug(address)
            places.append(host.bare(namespace, f"10.77.0.{address}"))
            path = namespace.mounted_at(self.folder / self.policy(number))
            host.daemon.omniverb("policy", "create", self.policy(number))
            host.daemon.omniverb("vnic", "create", self.policy(number), "--attach", path,
                                 "--policy", self.policy(number), *words)
        self.target, self.requester = places

    @staticmethod
    def policy(number):
        """The name of the policy of the target (0) or the requester (1)."""
        return ("target", "requester")[number]

    def rules(self, number, *rules):
        """Gives the policy these rules, and no others; returns when the command has."""
        words = [word for rule in rules or ("none",) for word in ("--rule", rule)]
        self.daemons[number].omniverb("policy", "set", self.policy(number), *words)

    def free(self):
        """Takes all rules away."""
        for number in (0, 1):
            self.rules(number)

    def set_vnics(self, *words):
        """`omniverb vnic set` for both."""
        for number, daemon in enumerate(self.daemons):
            daemon.omniverb("vnic", "set", self.policy(number), *words)

    def mapped(self):
        """WRITEs into mapped pages by queue pairs that there are."""
        return sum(qp["operations_mapped"] for daemon in self.daemons
                   for qp in daemon.queue_pairs())

    def close(self):
        """Ends everything."""
        self.parts.close()


class _Far(_Near):
    """A vNIC on each of two hosts. Rules know peers on other hosts by their addresses."""

    def __init__(self, stage):
        self.folder = stage.folder("rules")
        self.parts = hosts = Hosts(stage)
        try:
            self.place((hosts.a, hosts.b), (11, 12))
        except BaseException:
            self.close()
            raise


def _fixture(kind):
    @contextlib.contextmanager
    def fixture(stage):
        scene = kind(stage)
        try:
            yield scene
        finally:
            scene.close()
    return fixture


def _denied(scene, service, operation, side, rules, statuses):
    """What rules deny while it is under way stops, with one of these statuses."""
    print(f"{service} {operation}: {rules} of the {scene.policy(side)}")
    with _Traffic(scene, service, operation) as traffic:
        traffic.moves()
        try:
            scene.rules(side, *rules)
            traffic.stops(statuses)
        finally:
            scene.free()
        if statuses == _WORKS:
            # It was asked for all the time.
            traffic.moves()


def _each(scene, unreliable=(_WORKS, _WORKS)):
    """Denies each operation at the target and at the requester. `unreliable`: what a requester of
    UC hears of either."""
    for operation in ("write", "read", "atomic"):
        for side, direction in ((0, "ingress"), (1, "egress")):
            rules = (f"{direction} deny {operation}", f"{direction} accept all")
            _denied(scene, "rc", operation, side, rules, _REFUSED)
    for side, direction in ((0, "ingress"), (1, "egress")):
        rules = (f"{direction} deny write", f"{direction} accept all")
        _denied(scene, "uc", "write", side, rules, unreliable[side])


def _whole(scene):
    """Denies all, at either end, in either direction: as if the peer were not there."""
    for operation, side, direction in (("write", 0, "ingress"), ("write", 0, "egress"),
                                       ("read", 1, "ingress"), ("read", 1, "egress")):
        _denied(scene, "rc", operation, side, (f"{direction} deny all",), _GONE)


def _datagrams(scene):
    """Datagrams are lost while a rule denies them, and arrive after that."""
    for side, direction in ((0, "ingress"), (1, "egress")):
        for denied in ("datagram", "all"):
            rules = (f"{direction} deny {denied}", f"{direction} accept all priority 200")
            _denied(scene, "ud", "send", side, rules, _WORKS)


def _mapped(scene):
    """WRITEs into mapped pages: these are taken back."""
    scene.set_vnics("--adoption", "trusting")
    with _Traffic(scene, "rc", "write") as traffic:
        traffic.moves()
        process.until(lambda: scene.mapped() > 0, 20, "WRITEs into mapped pages")
        scene.rules(0, "ingress deny write", "ingress accept all")
        traffic.stops(_REFUSED)
        scene.free()
    _each(scene)
    _whole(scene)


def _mediated(scene):
    """WRITEs that the target's process executes."""
    scene.set_vnics("--adoption", "off")
    try:
        _each(scene)
        _whole(scene)
    finally:
        scene.set_vnics("--adoption", "trusting")


def _forwarded(scene):
    """Operations that the engine executes."""
    scene.set_vnics("--datapath", "forwarded")
    try:
        _each(scene, (_REFUSED, _REFUSED))
        _whole(scene)
        _datagrams(scene)
    finally:
        scene.set_vnics("--datapath", "direct")


def _wire(scene):
    """Operations between two hosts."""
    _each(scene, (_WORKS, _REFUSED))
    _whole(scene)
    _datagrams(scene)


def _port(scene):
    """A rule that accepts a port of rdma_cm is enough for connections to that port, and for no
    others; the audit names what denies the others."""
    pair = SimpleNamespace(server=scene.target, client=scene.requester)
    scene.rules(0, "ingress accept connect,send,read,write port 7471")
    try:
        ping = ["rping", "-a", scene.target.address, "-C", "10", "-v", "-V"]
        words = [*ping, "-p", "7471"]
        _, text = both(pair, [*words, "-s"], [*words, "-c"], 40)
        check("rdma-ping-9" in text, text)
        words = [*ping, "-p", "7472"]
        server = Side(scene.target, [*words, "-s"])
        try:
            client = Side(scene.requester, [*words, "-c"])
            status = client.wait(40)
            check(status and re.search("REJECTED|reject", client.text()), client.text())
        finally:
            server.end()
        lines = [line for line in scene.daemons[0].log().splitlines() if "event=denied" in line]
        check(lines, scene.daemons[0].log())
        for word in ("tenant=blue", "denied_by=", "policy=-", 'text="no ingress rule accepts it"'):
            check(word in lines[-1], f"{word}: {lines[-1]}")
        # With its queue pairs alone nothing connects: they are of no connection to the port.
        with _Traffic(scene, "rc", "write") as traffic:
            traffic.stops(_GONE)
    finally:
        scene.free()


def _audit(scene):
    """The audit names the tenant, and the policy and rule that deny a link."""
    scene.rules(0, "ingress accept all", "ingress deny connect from 10.77.0.0/16 priority 7")
    try:
        with _Traffic(scene, "rc", "write") as traffic:
            traffic.stops(_GONE)
        lines = [line for line in scene.daemons[0].log().splitlines() if "event=denied" in line]
        check(lines, scene.daemons[0].log())
        for word in ("tenant=blue", "type=RC", "policy=target", "rule=2",
                     'text="ingress deny connect from 10.77.0.0/16 priority 7"'):
            check(word in lines[-1], f"{word}: {lines[-1]}")
    finally:
        scene.free()


def _sockets(across):
    """Sockets in memory go back to the kernel when a rule denies connecting, without losing a byte;
    later ones are not carried. The network decides about TCP."""
    across.omniverb("policy", "create", "shut")
    path = across.server.mounted_at(across.folder / "server-namespace")
    across.omniverb("vnic", "create", "server", "--attach", path, "--policy", "shut")
    _shut_sockets(across)


def _shut_sockets(across):
    for port, direction in ((7701, "ingress"), (7704, "egress")):
        with Talk(across, port, 4) as talk:
            process.until(lambda port=port: [one for one, _ in across.state(port)]
                          == ["carried", "carried"], 20, lambda port=port: across.state(port))
            across.omniverb("policy", "set", "shut", "--rule", f"{direction} deny connect",
                            "--rule", f"{direction} accept all")
            process.until(lambda port=port: [one for one, _ in across.state(port)]
                          == ["left", "left"], 20, lambda port=port: across.state(port))
            links, _ = talk.end()
            check(links == 2, f"{links}")
        with Talk(across, port + 1, 1) as talk:
            check(talk.end() == (0, 0), "it was carried")
        across.omniverb("policy", "set", "shut", "--rule", "none")


@contextlib.contextmanager
def _across(stage):
    with Across(stage) as across:
        yield across


def groups():
    """Two vNICs of one host, two of two hosts, and sockets of two namespaces."""
    return [
        Group("tenant_rules", [
            Case("tenant_rules.mapped", _mapped, 200),
            Case("tenant_rules.mediated", _mediated, 200),
            Case("tenant_rules.datagrams", _datagrams, 100),
            Case("tenant_rules.forwarded", _forwarded, 300),
            Case("tenant_rules.port", _port, 120),
            Case("tenant_rules.audit", _audit, 60),
        ], _fixture(_Near), weight=WAITS),
        Group("tenant_rules_far", [
            Case("tenant_rules.wire", _wire, 300),
        ], _fixture(_Far), weight=WAITS),
        Group("tenant_rules_sockets", [
            Case("tenant_rules.sockets", _sockets, 100),
        ], _across, weight=WAITS),
    ]
