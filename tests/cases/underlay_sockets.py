"""Sockets at underlay addresses: the daemon has them as soon as an address is configured, says what
is wrong, and opens them in the network namespace that it is told."""

import contextlib
import json
import re
import subprocess

from harness import process
from harness.case import WAITS, Case, Group, check
from harness.network import Switch
from harness.simulated_host import Host

from cases import virtual_networks

_PORT = 4791


def _sockets(namespace, port=_PORT):
    """The addresses in a network namespace that have this UDP port."""
    text = process.run([*namespace.enter(), "ss", "-Huln", f"sport = {port}"])
    return sorted(line.split()[3].rsplit(":", 1)[0] for line in text.splitlines())


def _has(namespace, addresses, daemon):
    """Waits until these addresses, and no others, have port 4791."""
    process.until(lambda: _sockets(namespace) == sorted(addresses), 15,
                  lambda: f"{addresses}: {_sockets(namespace)}\n{daemon.log()}")


@contextlib.contextmanager
def _two_hosts(stage):
    scene = virtual_networks.TwoHosts(stage, has_namespaces=True)
    try:
        yield scene
    finally:
        scene.close()


def _programs(scene):
    """Both tenants reach the other host by that namespace alone, in plain and encrypted."""
    virtual_networks.far_programs(scene)
    virtual_networks.by_address(scene)
    for host, namespace, address in zip((scene.hosts.a, scene.hosts.b), scene.namespaces,
                                        scene.underlays):
        check(_sockets(namespace) == [address], f"{_sockets(namespace)}")
        check(not _sockets(host.switch), "the host's own namespace has the port")
        host.daemon.omniverb("tenant", "set", "blue", "--encryption", "psp")
    try:
        virtual_networks.far_programs(scene)
        check(not _sockets(scene.hosts.a.switch, 1000), "port 1000 is the host's own")
    finally:
        for daemon in scene.hosts.daemons:
            daemon.omniverb("tenant", "set", "blue", "--encryption", "none")


def _policy_address(scene):
    """The address of a policy is added there."""
    daemon, namespace = scene.hosts.a.daemon, scene.namespaces[0]

    def addresses():
        found = json.loads(namespace.ip("-json", "-4", "address", "show", "dev", "bridge"))
        return [address["local"] for one in found for address in one["addr_info"]]

    daemon.omniverb("policy", "create", "gold", "--underlay", "192.0.2.51")
    daemon.omniverb("vnic", "set", "blue1", "--policy", "gold")
    try:
        process.until(lambda: "192.0.2.51" in addresses(), 10, lambda: f"{addresses()}")
        _has(namespace, [scene.underlays[0], "192.0.2.51"], daemon)
        shown = json.loads(daemon.omniverb("vnic", "show", "blue1", "--json"))
        there = scene.hosts.b.daemon
        there.omniverb("vnic", "set", "blue1", "--underlay", "192.0.2.51",
                       "--qpn-offset", str(shown["qpn_offset"]))
        virtual_networks.far_programs(scene)
    finally:
        daemon.omniverb("policy", "set", "gold", "--underlay", "none")
    process.until(lambda: "192.0.2.51" not in addresses(), 10, lambda: f"{addresses()}")
    there.omniverb("vnic", "set", "blue1", "--underlay", scene.underlays[0])
    virtual_networks.far_programs(scene)


@contextlib.contextmanager
def _one_host(stage):
    host = Host(stage, "a")
    try:
        host.switch.ip("address", "add", "192.0.2.1/24", "dev", "bridge")
        host.folder = stage.folder("keys")
        host.key = host.folder / "blue"
        host.key.write_text("d2" * 16)
        host.key.chmod(0o600)
        yield host
    finally:
        host.close()


def _create(host, daemon, *words):
    daemon.omniverb("tenant", "create", "blue", "--key-file", host.key, *words)


def _early(host):
    """The port is taken before any vNIC is there, and given back with the tenant."""
    daemon = host.daemon
    _create(host, daemon, "--underlay", "192.0.2.1")
    _has(host.switch, ["192.0.2.1"], daemon)
    daemon.omniverb("policy", "create", "gold", "--underlay", "192.0.2.51")
    _has(host.switch, ["192.0.2.1", "192.0.2.51"], daemon)
    # It is known of to nobody else.
    told = process.run([*host.switch.enter(), "python3", "-c",
                        "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM)"
                        f".bind(('192.0.2.1', {_PORT}))"], accept=(1,))
    check("Address already in use" in told, told)
    daemon.kill()
    daemon.start()
    _has(host.switch, ["192.0.2.1", "192.0.2.51"], daemon)
    daemon.omniverb("tenant", "set", "blue", "--underlay", "127.0.0.1")
    daemon.omniverb("policy", "delete", "gold")
    _has(host.switch, [], daemon)
    daemon.omniverb("tenant", "delete", "blue")


def _taken(host):
    """Another process has the port: that is said once, in the log, by status and by the doctor; as
    soon as it is free the daemon has it."""
    daemon = host.daemon
    holder = process.start([*host.switch.enter(), "python3", "-c",
                            "import socket, time; s = socket.socket(socket.AF_INET, "
                            f"socket.SOCK_DGRAM); s.bind(('192.0.2.1', {_PORT})); "
                            "time.sleep(600)"], stderr=subprocess.DEVNULL)
    try:
        process.until(lambda: _sockets(host.switch), 10, "the other process's socket")
        _create(host, daemon, "--underlay", "192.0.2.1")
        text = "cannot open UDP port 4791 at the underlay address 192.0.2.1"

        def said():
            return text in daemon.omniverb("status")

        process.until(said, 10, lambda: daemon.omniverb("status"))
        check("another process has it" in daemon.omniverb("status"), daemon.omniverb("status"))
        told = daemon.omniverb("doctor", accept=(0, 1))
        check(re.search(f"BAD +{re.escape(text)}", told), told)
        # It is tried again meanwhile.
        process.until(lambda: daemon.status()["daemon"]["seconds"] > 0, 10, "a second")
        check(daemon.log().count(text) == 1, daemon.log())
    finally:
        process.end(holder)
    _has(host.switch, ["192.0.2.1"], daemon)
    process.until(lambda: not said(), 10, lambda: daemon.omniverb("status"))
    check(daemon.log().count(text) == 1, daemon.log())
    told = daemon.omniverb("doctor", accept=(0, 1))
    check("has UDP port 4791 of this network namespace for its underlay" in told, told)
    daemon.omniverb("tenant", "delete", "blue")


def _namespace_later(host):
    """The namespace comes after the daemon, and another takes its place."""
    path = host.folder / "underlay"
    daemon = host.daemon
    daemon.close()
    daemon.arguments = ["--underlay-namespace", path]
    daemon.start()
    one, other = Switch(), Switch()
    try:
        for namespace in (one, other):
            namespace.ip("address", "add", "192.0.2.1/24", "dev", "bridge")
        _create(host, daemon, "--underlay", "192.0.2.1")
        process.until(lambda: "No such file" in daemon.omniverb("status"), 10,
                      lambda: daemon.omniverb("status"))
        one.mounted_at(path)
        _has(one, ["192.0.2.1"], daemon)
        check(f"the underlay of virtual networks is in {path}" in daemon.omniverb("status"),
              daemon.omniverb("status"))
        process.run(["umount", path])
        one.mounts = []
        other.mounted_at(path)
        _has(other, ["192.0.2.1"], daemon)
        _has(one, [], daemon)
        check(not _sockets(host.switch), "the host's own namespace has the port")
    finally:
        daemon.omniverb("tenant", "delete", "blue")
        for namespace in (other, one):
            namespace.close()
        daemon.close()
        daemon.arguments = []
        daemon.start()


def _refused(host):
    """A path that is none is refused when the daemon starts."""
    for path in ("underlay", "/proc/1/ns/net"):
        told = process.run([*host.switch.enter(), host.stage.dist / "bin" / "omniverbd",
                            "--socket", host.folder / "refused.sock",
                            "--underlay-namespace", path], accept=(1, 2))
        check("absolute path of a network namespace" in told, told)


def groups():
    """Two hosts whose underlay is in network namespaces; and one host."""
    return [Group("underlay_namespace", [
        Case("underlay_namespace.programs", _programs, 400),
        Case("underlay_namespace.policy_address", _policy_address, 200),
    ], _two_hosts, weight=WAITS), Group("underlay_sockets", [
        Case("underlay_sockets.early", _early, 90),
        Case("underlay_sockets.taken", _taken, 90),
        Case("underlay_sockets.namespace_later", _namespace_later, 90),
        Case("underlay_sockets.refused", _refused, 30),
    ], _one_host, weight=WAITS)]
