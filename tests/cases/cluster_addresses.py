"""Virtual networks of a cluster: hosts announce their vNICs' addresses in etcd, so that vNICs of
other hosts need no description. Keys come sealed by the cluster, and no host shows them."""

import contextlib
import json
import re
import types

from cases import etcd_objects, virtual_networks
from harness import client_server, process
from harness.case import WAITS, Case, Group, check
from harness.daemon import environment
from harness.simulated_host import Hosts

_URL = "http://192.0.2.1:2379"
_PREFIX = "192.168.7"
_KEYS = {"blue": "d2" * 16, "red": "c1" * 16}
_NETWORK = "/omniverb/v1/address/"


class _Node:
    """A host of the cluster: what an agent of it needs."""

    def __init__(self, scene, host):
        self.scene, self.dist, self.folder = scene, scene.dist, scene.folder
        self.host, self.daemon, self.enter = host, host.daemon, host.switch.enter()
        folder = self.daemon.folder
        self.operators = folder.with_name(f"{folder.name}-operator") / "omniverbd.sock"
        self.agent = None

    def count(self):
        """A number that nothing else has."""
        return self.scene.count()

    def start_agent(self, *words):
        """Starts the agent, which gives the daemon what the cluster has."""
        self.agent = etcd_objects.Agent(self, "--host", self.host.name, "--etcd-endpoints", _URL,
                                   "--seal-key-file", self.scene.seal_key, *words)
        self.scene.agents.append(self.agent)

    def addresses(self):
        """The addresses of other hosts that the daemon knows."""
        state = self.operators.with_name("omniverbd.sock.objects.cluster")
        objects = json.loads(state.read_text())["objects"] if state.exists() else {}
        return sorted(objects.get("address", {}))

    def knows(self, *names):
        """Waits until it knows these and no others."""
        process.until(lambda: self.addresses() == sorted(names), 30,
                      lambda: f"{names}, not {self.addresses()}\n{self.agent.text()}\n"
                              f"{self.daemon.log()}")


class _Scene:
    """Two hosts with an agent each, and etcd on the first; on each a container of blue and one of
    red, with the same addresses for both tenants: .1 on host a, .2 on host b."""

    def __init__(self, stage):
        self.dist = stage.dist
        self.folder = stage.folder("cluster", mode=0o700)
        self.numbers, self.agents = 0, []
        self.seal_key = self.folder / "seal.key"
        self.keys = dict(_KEYS)
        self.policy = {}  # the policy of blue's vNICs: its address on each host
        with contextlib.ExitStack() as stack:
            hosts = stack.enter_context(Hosts(stage))
            stack.callback(lambda: [process.end(agent.process) for agent in self.agents])
            for number, host in enumerate((hosts.a, hosts.b), 1):
                host.switch.ip("address", "add", f"192.0.2.{number}/24", "dev", "bridge")
            self.nodes = [_Node(self, host) for host in (hosts.a, hosts.b)]
            self.etcd = etcd_objects.Etcd(stage, hosts.a.switch.enter(), _URL)
            stack.callback(lambda: process.end(self.etcd.process))
            red = [hosts.a.add(3), hosts.b.add(4)]
            places = {"blue": (hosts.server, hosts.client), "red": red}
            self.pairs = {tenant: types.SimpleNamespace(server=two[0], client=two[1])
                          for tenant, two in places.items()}
            for two in places.values():
                for number, place in enumerate(two, 1):
                    place.virtual = f"{_PREFIX}.{number}"
                    place.mount = place.namespace.mounted_at(
                        self.folder / f"{place.hostname}-namespace")
                    place.namespace.ip("address", "add", f"{place.virtual}/24", "dev", "eth0")
                    # Nothing leaves by the container's own network.
                    place.namespace.drop_udp(4791)
            process.run([self.dist / "bin" / "omniverb-agent", "new-seal-key", self.seal_key])
            self.apply()
            for node in self.nodes:
                node.start_agent()
            self.stack = stack.pop_all()

    def count(self):
        """A number that nothing else here has."""
        self.numbers += 1
        return self.numbers

    def text(self):
        """The file that describes both hosts: each describes its own vNICs only."""
        text = ""
        for number, name in ((1, "a"), (2, "b")):
            for tenant, pair in self.pairs.items():
                place = pair.server if number == 1 else pair.client
                text += (f'[host.{name}.tenant.{tenant}]\nkey = "{self.keys[tenant]}"\n'
                         f'underlay = "192.0.2.{number}"\n'
                         f'[host.{name}.vnic.{tenant}{number}]\ntenant = "{tenant}"\n'
                         f'address = "{place.virtual}"\nattach = "{place.mount}"\n')
                if tenant == "blue" and self.policy:
                    text += (f'policies = ["gold"]\n[host.{name}.policy.gold]\n'
                             f'underlay = "{self.policy[name]}"\n')
        return text

    def cluster(self, *words, accept=(0,)):
        """`omniverb cluster`, as people run it."""
        return process.run([*self.nodes[0].enter, self.dist / "bin" / "omniverb", "cluster", *words,
                            "--etcd-endpoints", _URL], accept=accept, env=environment())

    def apply(self, more="", without=None):
        """Applies the file of both hosts, and more."""
        file = self.folder / "cluster.toml"
        text = self.text()
        if without:
            text = re.sub(rf"\[host\.\w\.vnic\.{without}\]\n(.+\n)+", "", text)
        file.write_text(text + more)
        return self.cluster("apply", "-f", file, "--prune", "--seal-key-file", self.seal_key)

    def announced(self):
        """The addresses in etcd, with their hosts."""
        rows = json.loads(self.cluster("addresses", "--json"))
        return {f"{row['tenant']}/{row['address']}": row["host"] for row in rows}

    def ready(self):
        """Waits until each host knows the other one's vNICs."""
        for node, other in zip(self.nodes, (2, 1)):
            node.knows(*(f"{tenant}/{_PREFIX}.{other}" for tenant in self.pairs))

    def logs(self):
        """What agents and daemons have said."""
        return "".join(agent.text() for agent in self.agents) + "".join(
            node.daemon.log() for node in self.nodes)

    def close(self):
        """Takes all of it away."""
        self.stack.close()


def _fixture(stage):
    return contextlib.closing(_Scene(stage))


def _announced(scene):
    """Each host knows the other one's vNICs, which nothing describes there."""
    scene.ready()
    expected = {f"{tenant}/{_PREFIX}.{number}": host
                for tenant in scene.pairs for number, host in ((1, "a"), (2, "b"))}
    check(scene.announced() == expected, f"{scene.announced()}")
    check(f"{_PREFIX}.2" in scene.cluster("addresses"), "people see it")
    for node in scene.nodes:
        shown = node.daemon.omniverb("vnic", "show", "blue2", accept=(0, 1))
        check(("there is no vnic" in shown) == (node.host.name == "a"), shown)
    check("error" not in "".join(agent.text() for agent in scene.agents), scene.logs())


def _secret(scene):
    """Keys are in files for the daemon only, and are shown by nothing."""
    scene.ready()
    seen = scene.logs() + scene.cluster("get") + scene.etcd.ctl("get", "--prefix", "/omniverb")
    for node in scene.nodes:
        for kind in ("tenant", "vnic"):
            own = f"blue{scene.nodes.index(node) + 1}"
            words = ("list",) if kind == "tenant" else ("show", own)
            seen += node.daemon.omniverb(kind, *words, "--json")
        files = [path for path in node.operators.parent.rglob("*") if path.is_file()]
        keys = [path for path in files if path.suffix == ".key"]
        check(sorted(path.name for path in keys) == ["blue.key", "red.key"], f"{files}")
        for path in keys:
            check(path.stat().st_mode & 0o777 == 0o600, f"{path}: {path.stat().st_mode:o}")
            check(path.parent.stat().st_mode & 0o777 == 0o700, f"{path.parent}")
            check(path.read_text() == scene.keys[path.stem], "the key is not there")
        seen += "".join(path.read_text(errors="replace") for path in files if path not in keys)
        for process_id in (node.daemon.pid, node.agent.process.pid):
            with open(f"/proc/{process_id}/cmdline", encoding="utf-8") as line:
                seen += line.read()
    for key in scene.keys.values():
        check(key not in seen.lower(), "a key is shown")


def _programs(scene):
    """Both tenants at once, between hosts: connected queue pairs and datagrams."""
    scene.ready()
    for program in virtual_networks.PINGPONGS:
        running = [client_server.Duet(pair, virtual_networks.pingpong_words(program, 300))
                   for pair in scene.pairs.values()]
        for duet in running:
            virtual_networks.check_pingpong(duet.finish(60))


def _by_address(scene):
    """rdma_cm between hosts, by virtual addresses."""
    scene.ready()
    virtual_networks.by_address(scene)


@contextlib.contextmanager
def _datagrams(scene):
    """A program of datagrams meanwhile: a single one that is lost would stop it."""
    daemons = [node.daemon for node in scene.nodes]
    words = ["ib_send_lat", "-c", "UD", "-x", "0", "-s", "1000"]
    with client_server.going_on(scene.pairs["blue"], *words) as running:
        client_server.moves_on(running, *daemons)
        yield
        client_server.moves_on(running, *daemons)


def _undisturbed(scene):
    """Agents and etcd are killed, and come again: what runs is not disturbed."""
    scene.ready()
    with _datagrams(scene):
        for node in scene.nodes:
            node.agent.kill()
        scene.etcd.kill()
        scene.etcd.start()
        for node in scene.nodes:
            node.start_agent()
        for node in scene.nodes:
            node.agent.says("etcd answers")
        scene.ready()
        # An agent that ends as it is told to leaves its addresses to the next one.
        process.end(scene.nodes[1].agent.process)
        check(scene.announced()[f"blue/{_PREFIX}.2"] == "b", f"{scene.announced()}")
        scene.nodes[1].start_agent()
        scene.nodes[1].agent.says("etcd answers")
    scene.ready()
    _programs(scene)


def _daemon_again(scene):
    """A daemon that starts while etcd is away has the addresses and keys of before."""
    scene.ready()
    node = scene.nodes[1]
    before = virtual_networks.gids_of(scene.pairs["blue"].client)
    scene.etcd.kill()
    node.daemon.kill()
    node.daemon.socket.unlink(missing_ok=True)
    node.operators.unlink(missing_ok=True)
    node.daemon.start()
    check(virtual_networks.gids_of(scene.pairs["blue"].client) == before, "another vGID")
    _programs(scene)
    scene.etcd.start()
    scene.ready()


def _rotation(scene):
    """A new key in the file of the cluster reaches all hosts; what runs is not disturbed."""
    scene.ready()
    pair = scene.pairs["blue"]
    before = [virtual_networks.gids_of(place) for place in (pair.server, pair.client)]

    def is_new():
        now = [virtual_networks.gids_of(place) for place in (pair.server, pair.client)]
        return now[0] != before[0] and now[1] != before[1]
    with _datagrams(scene):
        scene.keys["blue"] = "ab" * 16
        printed = scene.apply()
        check("SECRET -> SECRET" in printed and "abab" not in printed, printed)
        process.until(is_new, 30, scene.logs)
    # Addresses are announced with the new key.
    process.until(lambda: not _open_problems(scene), 60, scene.logs)
    scene.ready()
    _programs(scene)
    _secret(scene)


def _open_problems(scene):
    hosts = json.loads(scene.cluster("hosts", "--json"))
    return [host for host in hosts if host["problems"]]


def _hostile(scene):
    """What strangers put into etcd is refused, once each, and nothing else is lost."""
    scene.ready()
    agent, etcd = scene.nodes[0].agent, scene.etcd
    good = json.loads(etcd.ctl("get", "--print-value-only", f"{_NETWORK}blue/{_PREFIX}.2"))
    for last, value, word in (
            (20, "{", f"{_NETWORK}blue/{_PREFIX}.20: EOF"),
            (21, json.dumps(good), f"address blue/{_PREFIX}.21: address"),
            (22, json.dumps({**good, "vgid": "2001:db8::1"}), f"blue/{_PREFIX}.22: address"),
            (23, json.dumps({**good, "underlay": "127.0.0.1"}), "127.0.0.1"),
            (24, json.dumps({**good, "qpn_offset": 7}), "no range"),
            (25, json.dumps({**good, "host": "../x"}), "no host"),
            (26, json.dumps({**good, "more": "x" * 2000}), "more than 1024"),
            (27, json.dumps({**good, "colour": "red"}), "colour")):
        etcd.ctl("put", f"{_NETWORK}blue/{_PREFIX}.{last}", value)
        agent.says(word)
    etcd.ctl("put", f"{_NETWORK}blue/10.0.0.01", "{}")
    agent.says("10.0.0.01: that is no IP address")
    # Networks that this host does not have are others' affair.
    etcd.ctl("put", f"{_NETWORK}green/{_PREFIX}.2", "{")
    scene.ready()
    # A host's own place is not another's to say.
    etcd.ctl("put", f"{_NETWORK}blue/{_PREFIX}.1", json.dumps({**good, "host": "x"}))
    agent.says(f"address blue/{_PREFIX}.1 of this host: host x has it")
    etcd.ctl("del", f"{_NETWORK}blue/{_PREFIX}.1")
    process.until(lambda: scene.announced().get(f"blue/{_PREFIX}.1") == "a", 30, scene.logs)
    etcd.ctl("put", f"{_NETWORK}blue/{_PREFIX}.2", "{}")
    agent.says("the address stays as it is")
    _programs(scene)
    check(agent.text().count(f"{_PREFIX}.21: ") == 1 and "green" not in agent.text(), agent.text())
    for last in range(20, 28):
        etcd.ctl("del", f"{_NETWORK}blue/{_PREFIX}.{last}")
    etcd.ctl("del", f"{_NETWORK}blue/10.0.0.01")
    etcd.ctl("del", f"{_NETWORK}green/{_PREFIX}.2")
    etcd.ctl("del", f"{_NETWORK}blue/{_PREFIX}.2")
    process.until(lambda: not _open_problems(scene), 60, scene.logs)
    scene.ready()


def _leases(scene, number):
    """The leases of a host's addresses; `None` for one that is not announced."""
    found = set()
    for tenant in scene.pairs:
        key = f"{_NETWORK}{tenant}/{_PREFIX}.{number}"
        entries = json.loads(scene.etcd.ctl("get", key, "--write-out", "json")).get("kvs", [{}])
        found.add(entries[0].get("lease"))
    return found


def _lease(scene):
    """Addresses end with their host's lease, and are there again with its next agent."""
    scene.ready()
    first, second = scene.nodes
    before = _leases(scene, 2)
    second.agent.kill()
    second.start_agent("--lease-seconds", "5")
    # The next agent has them on its own lease: only then does that of the first say nothing.
    process.until(lambda: not (before | {None}) & _leases(scene, 2), 30, scene.logs)
    scene.ready()
    second.agent.kill()
    first.knows()
    check(scene.announced() == {f"{tenant}/{_PREFIX}.1": "a" for tenant in scene.pairs},
          f"{scene.announced()}")
    second.start_agent()
    scene.ready()
    _programs(scene)


def _conflict(scene):
    """Of two hosts with one address the first keeps it; the second gets it when it is free."""
    scene.ready()
    first, second = scene.nodes
    address = f"{_PREFIX}.9"
    twin = '[host.{}.vnic.twin]\ntenant = "blue"\naddress = "' + address + '"\n'
    scene.apply(twin.format("a"))
    process.until(lambda: scene.announced().get(f"blue/{address}") == "a", 30, scene.logs)
    scene.apply(twin.format("a") + twin.format("b"))
    second.agent.says(f"address blue/{address} of this host: host a has it")
    check(scene.announced()[f"blue/{address}"] == "a", f"{scene.announced()}")
    check("host b has it" not in first.agent.text(), first.agent.text())
    scene.apply(twin.format("b"))
    process.until(lambda: scene.announced().get(f"blue/{address}") == "b", 30, scene.logs)
    second.agent.says(f"address blue/{address} of this host: is as the cluster has it now")
    # A vNIC that is deleted is announced no more.
    scene.apply()
    process.until(lambda: f"blue/{address}" not in scene.announced(), 30, scene.logs)
    scene.ready()


def _policy(scene):
    """A policy with an address on each host: that is announced, and what programs use."""
    scene.ready()
    addresses = {"a": "192.0.2.51", "b": "192.0.2.52"}

    def underlays():
        rows = json.loads(scene.cluster("addresses", "--json"))
        return {row["host"]: row["underlay"] for row in rows if row["tenant"] == "blue"}

    for scene.policy, expected in ((addresses, addresses), ({}, {"a": "192.0.2.1",
                                                                 "b": "192.0.2.2"})):
        scene.apply()
        process.until(lambda expected=expected: underlays() == expected, 30, scene.logs)
        for node, other in zip(scene.nodes, ("b", "a")):
            def known(node=node, other=other, expected=expected):
                state = node.operators.with_name("omniverbd.sock.objects.cluster").read_text()
                places = json.loads(state)["objects"]["address"]
                remote = [place for name, place in places.items() if name.startswith("blue/")]
                return [place["underlay"] for place in remote] == [expected[other]]
            process.until(known, 30, scene.logs)
            shown = node.host.switch.ip("-4", "address", "show", "dev", "bridge")
            is_there = f" {addresses[node.host.name]}/32 " in shown
            check(is_there == bool(scene.policy), shown)
        _programs(scene)
        _by_address(scene)


def groups():
    """Two hosts and one etcd."""
    return [Group("cluster_addresses", [
        Case("cluster_addresses.announced", _announced, 90),
        Case("cluster_addresses.secret", _secret, 90),
        Case("cluster_addresses.programs", _programs, 300),
        Case("cluster_addresses.by_address", _by_address, 200),
        Case("cluster_addresses.undisturbed", _undisturbed, 300),
        Case("cluster_addresses.daemon_again", _daemon_again, 300),
        Case("cluster_addresses.rotation", _rotation, 300),
        Case("cluster_addresses.hostile", _hostile, 300),
        Case("cluster_addresses.lease", _lease, 300),
        Case("cluster_addresses.conflict", _conflict, 200),
        Case("cluster_addresses.policy", _policy, 400),
    ], _fixture, weight=WAITS)]
