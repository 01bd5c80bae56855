"""Containers get what `[[container]]` rules say: when their interface comes up, at latest when
their first process opens the device; and nothing is left when they end. With `--isolate`, what
nothing describes has no device."""

import contextlib
import itertools
import json
import os
import secrets
import time

from harness import process
from harness.case import WAITS, Case, Failure, Group, check
from harness.daemon import Daemon
from harness.network import Namespace, Switch

_RULES = """
[tenant.blue]
[tenant.red]
[policy.slow]
rate = "300mbit"

[[container]]
bridge = "blue-*"
address = "10.1.0.0/16"
tenant = "blue"
policies = ["slow"]
name = "blue-{address}"

[[container]]
namespace = "omvred*"
tenant = "red"
name = "{namespace}"

[[container]]
interface = "cg0"
cgroup = "/"
tenant = "red"
"""


# An earlier rule that needs what comes last.
_ORDERED = """
[tenant.blue]
[tenant.red]
[tenant.rest]

[[container]]
address = "10.1.0.66/32"
tenant = "red"
name = "red-{address}"

[[container]]
bridge = "blue-*"
tenant = "blue"
name = "blue-{address}"

[[container]]
tenant = "rest"
"""


class _Host:
    """A daemon in a network namespace of its own, with bridges, and containers at these."""

    def __init__(self, stage, arguments=(), rules=_RULES):
        self.stage, self.file = stage, stage.folder("configuration") / "omniverbd.toml"
        self.file.write_text(rules)
        self.parts, self.ports = [], 0
        try:
            self.host = self.keep(Switch())
            for bridge in ("blue-br", "other-br"):
                self.host.ip("link", "add", bridge, "type", "bridge")
                self.host.ip("link", "set", bridge, "up")
            self.daemon = self.keep(Daemon(
                stage, enter=self.host.enter(),
                arguments=["--config", self.file, "--log-level", "info", *arguments]))
        except BaseException:
            self.close()
            raise

    def keep(self, part):
        """Something that is closed with this."""
        self.parts.append(part)
        return part

    def container(self):
        """A network namespace without interfaces."""
        return self.keep(Namespace())

    def plug(self, namespace, bridge, address, name="eth0"):
        """Joins a namespace to a bridge."""
        self.ports += 1
        port = f"port{self.ports}"
        self.host.ip("link", "add", port, "type", "veth", "peer", "name", name, "netns",
                     str(namespace.pid))
        self.host.ip("link", "set", port, "master", bridge, "up")
        namespace.ip("addr", "add", address, "dev", name)
        namespace.ip("link", "set", name, "up")
        return port

    def run(self, namespace, *argv, accept=(0,)):
        """Runs a program with a device in a namespace."""
        return process.run(
            [*namespace.enter(), "env", f"OMNIVERB_SOCKET={self.daemon.socket}",
             self.stage.dist / "bin" / "omniverb", *argv], accept=accept)

    def vnic(self, namespace):
        """What the daemon says of a namespace's device."""
        return self.daemon.vnic(namespace) or {}

    def until(self, namespace, tenant):
        """Waits until a namespace's device belongs to a tenant, without a process in it."""
        process.until(lambda: self.vnic(namespace).get("tenant") == tenant, 20,
                      lambda: f"a vNIC of {tenant}, not {self.vnic(namespace)}\n"
                              f"{self.daemon.log()}")

    def objects(self):
        """Names of vNICs that rules have described."""
        return {vnic["object"] for vnic in self.daemon.vnics() if vnic["object"]}

    def close(self):
        """Ends everything, the newest first."""
        for part in reversed(self.parts):
            part.close()
        self.parts = []


@contextlib.contextmanager
def _host(stage, *arguments, rules=_RULES):
    host = _Host(stage, arguments, rules)
    try:
        yield host
    finally:
        host.close()


def _ready(stage):
    """A device is there with its interface, before any process, once, and goes with it."""
    with _host(stage) as host:
        blue, other = host.container(), host.container()
        host.plug(blue, "blue-br", "10.1.0.2/16")
        # The address fits, the bridge does not.
        host.plug(other, "other-br", "10.1.0.3/16")
        host.until(blue, "blue")
        vnic = host.vnic(blue)
        check(vnic["object"] == "blue-10.1.0.2" and vnic["rate"] == 300_000_000, f"{vnic}")
        check(vnic["processes"] == 0, f"{vnic}")
        check(not host.vnic(other), f"{host.vnic(other)}")
        # Down and up, and another address: no other device, no other tenant.
        blue.ip("link", "set", "eth0", "down")
        blue.ip("addr", "flush", "dev", "eth0")
        blue.ip("addr", "add", "10.9.0.2/16", "dev", "eth0")
        blue.ip("link", "set", "eth0", "up")
        host.run(blue, "run", "--", "ibv_devices")
        check(host.objects() == {"blue-10.1.0.2"}, f"{host.objects()}")
        check(host.vnic(blue)["tenant"] == "blue", f"{host.vnic(blue)}")
        host.run(other, "run", "--", "ibv_devices")
        # What is set for it ends with it.
        host.daemon.omniverb("vnic", "set", "blue-10.1.0.2", "--rate", "8mbit")
        check(host.vnic(blue)["rate"] == 8_000_000, f"{host.vnic(blue)}")
        blue.close()
        process.until(lambda: not host.objects(), 20, lambda: f"{host.objects()}")
        again = host.container()
        host.plug(again, "blue-br", "10.1.0.2/16")
        host.until(again, "blue")
        check(host.vnic(again)["rate"] == 300_000_000, f"{host.vnic(again)}")


def _hand_made(stage):
    """Interfaces of the host's own namespace make no container of it."""
    with _host(stage) as host:
        host.host.ip("link", "add", "eth9", "type", "veth", "peer", "name", "eth8")
        host.host.ip("link", "set", "eth8", "master", "blue-br", "up")
        host.host.ip("addr", "add", "10.1.0.9/16", "dev", "eth9")
        host.host.ip("link", "set", "eth9", "up")
        host.run(host.host, "run", "--", "ibv_devices")
        blue = host.container()
        host.plug(blue, "blue-br", "10.1.0.2/16")
        host.until(blue, "blue")
        check(host.objects() == {"blue-10.1.0.2"}, f"{host.objects()}")


def _later(stage):
    """A bridge that comes last, a daemon that comes later, rules that come last."""
    with _host(stage) as host:
        blue, late = host.container(), host.container()
        port = host.plug(late, "other-br", "10.1.0.3/16")
        host.plug(blue, "blue-br", "10.1.0.2/16")
        host.until(blue, "blue")
        host.host.ip("link", "set", port, "master", "blue-br")
        host.until(late, "blue")
        host.daemon.kill()
        host.daemon.socket.unlink()
        host.daemon.start()
        for place in (blue, late):
            host.until(place, "blue")
        host.file.write_text(_RULES.replace('tenant = "blue"', 'tenant = "red"'))
        host.daemon.omniverb("reload")
        for place in (blue, late):
            check(host.vnic(place)["tenant"] == "red", f"{host.vnic(place)}")
        host.file.write_text(_RULES.replace('"blue"', '"green"'))
        try:
            host.daemon.omniverb("reload")
        except Failure as failure:
            check("omniverbd.toml:" in str(failure), f"{failure}")
        else:
            raise Failure("a rule may name a tenant that is not there")


def _setting_up(stage):
    """Platforms set an interface up in any order: rules wait for the last step."""
    with _host(stage, rules=_ORDERED) as host:
        for number, order in enumerate(itertools.permutations(("port", "address", "up")), 1):
            for address, name in ((f"10.1.0.{number}", "blue"), ("10.1.0.66", "red")):
                port, inside = f"p{number}{name}", host.container()
                host.host.ip("link", "add", port, "type", "veth", "peer", "name", "eth0", "netns",
                             str(inside.pid))
                steps = {"port": (host.host, "link", "set", port, "master", "blue-br", "up"),
                         "address": (inside, "addr", "add", f"{address}/16", "dev", "eth0"),
                         "up": (inside, "link", "set", "eth0", "up")}
                for step in order:
                    place, *words = steps[step]
                    seen = host.vnic(inside)
                    check(not seen.get("object"), f"{order}: {seen}")
                    place.ip(*words)
                    time.sleep(0.05)
                host.until(inside, name)
                check(host.vnic(inside)["object"] == f"{name}-{address}", f"{host.vnic(inside)}")
                if name == "red":
                    inside.close()
                    process.until(lambda: not any(each.startswith("red") for each in
                                                  host.objects()), 20, lambda: host.objects())
        # One that never gets an address is decided when its first process comes.
        bare = host.container()
        host.host.ip("link", "add", "bare", "type", "veth", "peer", "name", "eth0", "netns",
                     str(bare.pid))
        host.host.ip("link", "set", "bare", "master", "blue-br", "up")
        bare.ip("link", "set", "eth0", "up")
        time.sleep(0.3)
        check(not host.vnic(bare).get("object"), f"{host.vnic(bare)}")
        host.run(bare, "run", "--", "ibv_devices")
        check(host.vnic(bare)["tenant"] == "blue", f"{host.vnic(bare)}")


def _described_later(stage):
    """A vNIC that is attached to a container decides before what a rule has decided, from then on;
    without it the rule decides again."""
    with _host(stage) as host:
        def shown(tenant, name):
            vnic = host.vnic(blue)
            check((vnic["tenant"], vnic["object"]) == (tenant, name), f"{vnic}")
        blue = host.container()
        host.plug(blue, "blue-br", "10.1.0.2/16")
        host.until(blue, "blue")
        path = blue.mounted_at(stage.folder("names") / "web")
        for _ in range(2):
            host.daemon.omniverb("vnic", "create", "web", "--attach", path, "--tenant", "red")
            shown("red", "web")
            host.daemon.kill()
            host.daemon.socket.unlink()
            host.daemon.start()
            host.until(blue, "red")
            host.daemon.omniverb("vnic", "delete", "web")
            shown("blue", "blue-10.1.0.2")
        # It outlives the container, as what a rule gave does not.
        host.daemon.omniverb("vnic", "create", "web", "--attach", path, "--tenant", "red")
        shown("red", "web")
        blue.close()
        process.until(lambda: not host.objects(), 20, lambda: f"{host.objects()}")
        host.daemon.omniverb("vnic", "show", "web")


def _first_process(stage):
    """Where the kernel tells of nothing, the first process waits until the rules have decided."""
    with _host(stage) as host:
        name = f"omvred{os.getpid()}{secrets.token_hex(2)}"
        process.run(["ip", "netns", "add", name])
        try:
            inside = ["ip", "netns", "exec", name]
            process.run([*inside, "ip", "link", "set", "lo", "up"])
            process.run([*inside, "env", f"OMNIVERB_SOCKET={host.daemon.socket}",
                         stage.dist / "bin" / "omniverb", "run", "--", "ibv_devices"])
            check(name in host.daemon.log() and "of tenant red" in host.daemon.log(),
                  host.daemon.log())
        finally:
            process.run(["ip", "netns", "delete", name])
        cgroup = host.container()
        cgroup.ip("link", "add", "cg0", "type", "veth", "peer", "name", "cg1")
        host.run(cgroup, "run", "--", "ibv_devices")
        last = host.daemon.log().splitlines()[-1]
        check("of tenant red" in last and name not in last, host.daemon.log())


def _isolated(stage):
    """What nothing describes has no device, and hears why."""
    rules = _RULES + '\n[vnic.host]\ntenant = "blue"\n'
    with _host(stage, "--isolate", rules=rules) as host:
        blue, other = host.container(), host.container()
        host.plug(other, "other-br", "10.1.0.3/16")
        told = host.run(other, "run", "--", "ibv_devinfo", accept=(0, 1, 255))
        check("hca_id" not in told, told)
        told = host.run(other, "doctor", accept=(1,))
        check("has no device for this network namespace" in told and "[[container]]" in told, told)
        check("no device for pid" in host.daemon.log(), host.daemon.log())
        check(not host.vnic(other), f"{host.vnic(other)}")
        # Before the interface, and after it.
        host.run(blue, "doctor", accept=(1,))
        host.plug(blue, "blue-br", "10.1.0.2/16")
        host.until(blue, "blue")
        check("omv0" in host.run(blue, "run", "--", "ibv_devices"), "no device")
        check("omv0" in host.run(host.host, "run", "--", "ibv_devices"), "no device of the host")
        # Not described any more.
        host.file.write_text(rules.replace("[vnic.host]", "[vnic.elsewhere]"))
        host.daemon.omniverb("reload")
        host.run(host.host, "doctor", accept=(1,))


_VIRTUAL = """
[tenant.blue]
key_file = "KEY-blue"
underlay = "127.0.0.1"

[tenant.red]
key_file = "KEY-red"
underlay = "127.0.0.1"

[[container]]
bridge = "blue-*"
tenant = "blue"
virtual_address = "own"
name = "blue-{address}"

[[container]]
bridge = "other-*"
tenant = "red"
virtual_address = "10.8.0.0/29"
"""


def _virtual_addresses(stage):
    """Containers have addresses in the virtual network of their tenant: their own, or some that are
    free; and the same after a restart of the daemon."""
    keys = stage.folder("keys")
    for number, tenant in enumerate(("blue", "red"), 1):
        (keys / f"KEY-{tenant}").write_text(f"{number:x}{number:x}" * 16)
        (keys / f"KEY-{tenant}").chmod(0o600)
    with _host(stage, rules=_VIRTUAL.replace("KEY", str(keys / "KEY"))) as host:
        def plugged(bridge, address, tenant):
            inside = host.container()
            host.plug(inside, bridge, address)
            host.until(inside, tenant)
            return inside

        def shown(inside):
            return json.loads(host.daemon.omniverb("vnic", "show", host.vnic(inside)["object"],
                                                   "--json"))

        def reaches(server, client, address):
            words = ["rping", "-a", address, "-C", "10", "-v", "-V"]
            line = [*server.enter(), "env", f"OMNIVERB_SOCKET={host.daemon.socket}",
                    stage.dist / "bin" / "omniverb", "run", "--"]
            running = process.start([*line, *words, "-s"])
            try:
                for _ in range(20):
                    told = host.run(client, "run", "--", *words, "-c", accept=(0, 1, 255))
                    if "rdma-ping-9" in told:
                        return
                    time.sleep(0.3)
                raise Failure(f"{address} is not reached: {told}\n{host.daemon.log()}")
            finally:
                process.end(running)

        one, two = (plugged("blue-br", f"10.1.0.{n}/16", "blue") for n in (2, 3))
        check(shown(one)["fields"]["address"] == "10.1.0.2", f"{shown(one)}")
        reaches(one, two, "10.1.0.2")
        # The same addresses on another network, of another tenant.
        three, four = (plugged("other-br", f"10.1.0.{n}/16", "red") for n in (2, 3))
        given = [shown(inside)["fields"]["address"] for inside in (three, four)]
        check(len(set(given)) == 2 and all(ip.startswith("10.8.0.") for ip in given), f"{given}")
        three.ip("address", "add", f"{given[0]}/29", "dev", "eth0")
        four.ip("address", "add", f"{given[1]}/29", "dev", "eth0")
        reaches(three, four, given[0])
        # One that another container has; it is free later.
        late = plugged("blue-br", "10.1.0.2/16", "blue")
        check("has no virtual address for it" in host.daemon.log(), host.daemon.log())
        told = host.run(late, "run", "--", "ibv_devinfo", accept=(0, 1, 255))
        check("hca_id" not in told, told)
        one.close()
        process.until(lambda: len(host.objects()) == 4, 20, lambda: f"{host.objects()}")
        late.ip("link", "set", "eth0", "down")
        late.ip("link", "set", "eth0", "up")
        process.until(lambda: shown(late)["fields"].get("address") == "10.1.0.2", 20,
                      lambda: f"{shown(late)}\n{host.daemon.log()}")
        reaches(late, two, "10.1.0.2")
        host.daemon.kill()
        host.daemon.socket.unlink()
        host.daemon.start()
        for inside, tenant in ((two, "blue"), (late, "blue"), (three, "red"), (four, "red")):
            host.until(inside, tenant)
        check([shown(inside)["fields"]["address"] for inside in (three, four)] == given,
              f"{given}")
        reaches(late, two, "10.1.0.2")
        reaches(three, four, given[0])


def groups():
    """Hosts with bridges."""
    return [Group("containers.rules", [
        Case("containers.ready", _ready, 60), Case("containers.hand_made", _hand_made, 60),
        Case("containers.setting_up", _setting_up, 60), Case("containers.later", _later, 60),
        Case("containers.described_later", _described_later, 60),
        Case("containers.first_process", _first_process, 60),
        Case("containers.isolated", _isolated, 60),
        Case("containers.virtual_addresses", _virtual_addresses, 150),
    ], weight=WAITS)]
