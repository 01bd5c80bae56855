"""Runs the programs of containers and of other hosts in virtual networks, unmodified.

Two tenants with the same addresses run each program at once, on one host. Between two hosts they
take turns. The tables are those of debian_verbs_programs.py, rdma_cm.py and rsocket.py; few rows
run every day, all of them with `make soak`."""

import contextlib
import json
import threading
import types

from harness.case import CROWDS, WAITS, Case, Group
from harness.containers import Container
from harness.daemon import Daemon
from harness.network import Cable, Switch
from harness.rdma_core_suites import Suite, debian, judge
from harness.simulated_host import Host

from cases import debian_verbs_programs, pyverbs, rdma_cm, rsocket

_KEYS = {"blue": "3c" * 16, "red": "5a" * 16}
# A vNIC of a virtual network has one GID.
_GID_INDEX = 0


class _Tenants:
    """Tenants with a key each, and their containers; `add` describes the vNIC of one."""

    def __init__(self, stage):
        self.stage, self.folder = stage, stage.folder("keys")
        self.parts = []
        self.pairs = {}

    def keep(self, part):
        """`part` is closed with the others, the newest first."""
        self.parts.append(part)
        return part

    def create(self, daemon, underlay):
        """Describes the tenants to a daemon."""
        for tenant, key in _KEYS.items():
            file = self.folder / tenant
            if not file.exists():
                file.write_text(key)
                file.chmod(0o600)
            daemon.omniverb("tenant", "create", tenant, "--key-file", file, "--underlay", underlay)

    def add(self, daemon, tenant, number, switch):
        """A container with the address 10.77.0.`number`, outside and in its virtual network."""
        place = self.keep(Container(self.stage, f"{tenant}{number}", daemon.folder, switch,
                                    f"10.77.0.{number}/24"))
        path = place.namespace.mounted_at(self.folder / f"{daemon.folder.name}-{tenant}{number}")
        daemon.omniverb("vnic", "create", f"{tenant}{number}", "--tenant", tenant,
                        "--address", place.address, "--attach", path)
        return place

    def pair(self, tenant, daemons, server, client):
        """The two containers of a tenant, as the fixtures of other cases are."""
        self.pairs[tenant] = types.SimpleNamespace(
            stage=self.stage, daemon=daemons[0], daemons=daemons, server=server, client=client,
            gid_index=_GID_INDEX, index=lambda place: _GID_INDEX)

    def close(self):
        """Ends everything, the newest first."""
        for part in reversed(self.parts):
            part.close()


def _offset(daemon, vnic):
    """Where the queue pair numbers of a vNIC begin on the wire."""
    return json.loads(daemon.omniverb("vnic", "show", vnic, "--json"))["qpn_offset"]


@contextlib.contextmanager
def _one_host(stage):
    """One host, a switch for each tenant."""
    scene = _Tenants(stage)
    try:
        daemon = scene.keep(Daemon(stage))
        scene.create(daemon, "127.0.0.1")
        for tenant in _KEYS:
            switch = scene.keep(Switch())
            scene.pair(tenant, (daemon,), *(scene.add(daemon, tenant, number, switch)
                                            for number in (1, 2)))
        yield scene
    finally:
        scene.close()


@contextlib.contextmanager
def _two_hosts(stage):
    """Two hosts with an underlay between them, and for each tenant a switch on each host."""
    scene = _Tenants(stage)
    try:
        hosts = [scene.keep(Host(stage, name)) for name in ("a", "b")]
        Cable(hosts[0].switch, hosts[1].switch)
        for number, host in enumerate(hosts, 1):
            host.switch.ip("address", "add", f"192.0.2.{number}/24", "dev", "bridge")
            scene.create(host.daemon, f"192.0.2.{number}")
        daemons = tuple(host.daemon for host in hosts)
        for tenant in _KEYS:
            switches = [scene.keep(Switch()) for _ in hosts]
            Cable(*switches)
            places = [scene.add(daemon, tenant, number, switch)
                      for number, (daemon, switch) in enumerate(zip(daemons, switches), 1)]
            for number, (daemon, other) in enumerate(zip(daemons, reversed(daemons)), 1):
                offset = _offset(other, f"{tenant}{3 - number}")
                daemon.omniverb("vnic", "create", f"{tenant}{3 - number}", "--tenant", tenant,
                                "--address", f"10.77.0.{3 - number}",
                                "--underlay", f"192.0.2.{3 - number}", "--qpn-offset", str(offset))
            scene.pair(tenant, daemons, *places)
        yield scene
    finally:
        scene.close()


def _both(run):
    """`run` in all tenants at once."""
    def runs(scene):
        failed = []

        def one(pair):
            try:
                run(pair)
            except Exception as failure:  # it is raised below, in the thread that waits
                failed.append(failure)
        threads = [threading.Thread(target=one, args=(pair,)) for pair in scene.pairs.values()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failed:
            raise failed[0]
    return runs


def _in_turn(number, run):
    """`run` in one of the tenants."""
    tenant = list(_KEYS)[number % len(_KEYS)]
    return lambda scene: run(scene.pairs[tenant])


def _programs():
    """Name, what runs between two places."""
    for program, size, events in debian_verbs_programs.pingpongs():
        name = f"ibv_{program}_pingpong {size} {' '.join(events)}".strip()
        yield name, debian_verbs_programs.pingpong(program, size, events)
    for events in ([], ["-e"]):
        name = f"ibv_xsrq_pingpong {' '.join(events)}".strip()
        yield name, debian_verbs_programs.xrc_pingpong(events)
    for row in debian_verbs_programs.perftests():
        name = f"{row[0]} {debian_verbs_programs.title(row[1])}"
        yield name, debian_verbs_programs.perftest(*row)
    for name, row in rdma_cm.PROGRAMS.items():
        yield name, row.case("", "", 90).run
    for name, row in rdma_cm.PERFTEST.items():
        yield f"perftest {name}", row.case("", "", 90).run
    for name, words in rsocket.PROGRAMS.items():
        yield name, rdma_cm.program("", "", *words, limit=90).run
    for name, options in rsocket.PONGS.items():
        yield name, rsocket.pongs(*options)
    yield "rsockets of datagrams", rsocket.datagrams


# What runs each day: each service once, events, XRC, names, streams.
_DAILY = {
    "local": ("ib_write_lat -c RC -s 8", "ib_send_bw --use-srq -q 4 -b -e -s 512",
              "ib_send_bw -c UD -s 8", "ib_read_lat -c RC -s 64 -e", "ib_send_lat -c XRC -s 4096",
              "ib_write_bw -c UC -q 8 -s 1024", "ib_atomic_bw -A FETCH_AND_ADD",
              "rdma_xclient extended", "ucmatose many", "perftest ib_send_bw datagrams", "rstream",
              "udpong that echoes"),
    "far": ("ib_send_bw -c RC -q 8 -s 1024", "ib_send_lat -c UD -s 8", "ib_write_bw -c XRC -s 4096",
            "ib_atomic_lat -A CMP_AND_SWAP", "rping", "udaddy", "rstream", "cmtime"),
}


def _conformance(scene):
    """rdma-core's own tests, in both tenants at once."""
    def run(pair):
        suite = Suite(pair.stage, "debian-44", debian())
        found = suite.run(pair.server, limit=300, omitted=pyverbs.MULTICAST)
        judge(found, pyverbs.STORED, pyverbs.RUN - len(pyverbs.MULTICAST), pyverbs.MULTICAST)
    _both(run)(scene)


def _cases(setting, around):
    found = [Case(f"virtual_networks.{setting}.{name}", around(number, run), 300,
                  slow=name not in _DAILY[setting])
             for number, (name, run) in enumerate(_programs())]
    missing = set(_DAILY[setting]) - {name for name, _ in _programs()}
    assert not missing, f"no such programs: {missing}"
    return found


def groups():
    """One host with four containers, and two hosts with two each."""
    return [Group("virtual_networks.local", _cases("local", lambda number, run: _both(run)),
                  _one_host, weight=CROWDS),
            Group("virtual_networks.pyverbs", [Case("virtual_networks.pyverbs", _conformance, 320)],
                  _one_host, weight=WAITS),
            Group("virtual_networks.far", _cases("far", _in_turn), _two_hosts, weight=CROWDS)]
