"""Tenants with keys: programs see vGIDs and small queue pair numbers, two tenants have the same
addresses at once, and what is forged, or another tenant's, leads nowhere."""

import contextlib
import ipaddress
import json
import pathlib
import re
import types

from harness import client_server, process
from harness.rdma_cm_client_server import Side, both
from harness.case import WAITS, Case, Failure, Group, check
from harness.containers import Pair
from harness.daemon import forgotten
from harness.network import Cable, Switch
from harness.simulated_host import Hosts

from cases import multicast

_PREFIX = "192.168.7"
_BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"


class _Scene:
    """Four containers of one host: two of the tenant blue, two of red, with the same addresses; and
    one of no tenant."""

    def __init__(self, stage):
        self.folder = stage.folder("keys")
        self.all = Pair(stage, count=5)
        self.daemon = self.all.daemon
        self.pairs = {}
        for tenant, first in (("blue", 0), ("red", 2)):
            self.write_key(tenant, "0123456789abcdef" * 2 if first else "f0" * 16)
            self.daemon.omniverb("tenant", "create", tenant, "--key-file", self.key_file(tenant),
                                 "--underlay", "127.0.0.1")
            two = self.all.containers[first:first + 2]
            for number, place in enumerate(two, 1):
                place.virtual = f"{_PREFIX}.{number}"
                # Where rdma_cm finds its own address: as a route of the kernel's.
                place.namespace.ip("address", "add", f"{place.virtual}/24", "dev", "eth0")
                self.daemon.omniverb("vnic", "create", f"{tenant}{number}", "--tenant", tenant,
                                     "--address", place.virtual, "--attach", self.mount(place))
            self.pairs[tenant] = types.SimpleNamespace(server=two[0], client=two[1])

    def key_file(self, tenant):
        """Where the key of a tenant is."""
        return self.folder / tenant

    def write_key(self, tenant, key):
        """Another key for a tenant, which the daemon reads when it is told to."""
        self.key_file(tenant).write_text(key + "\n")
        self.key_file(tenant).chmod(0o600)

    def mount(self, place):
        """A path of a container's namespace that stays."""
        return place.namespace.mounted_at(self.folder / f"{place.hostname}-namespace")

    def shown(self, name):
        """What the daemon says of a described vNIC."""
        return json.loads(self.daemon.omniverb("vnic", "show", name, "--json"))

    def close(self):
        """Ends the containers."""
        self.all.close()


def _fixture(stage):
    return contextlib.closing(_Scene(stage))


def gids_of(place):
    """The GIDs of a device, as ibv_devinfo shows them."""
    return re.findall(r"GID\[ *\d+\]:\s*([0-9a-f:.]+)", place.run("ibv_devinfo", "-v"))


def _names(scene):
    """A device has one GID, its vGID, which differs for two tenants; the key is not shown."""
    seen = set()
    for tenant, pair in scene.pairs.items():
        for number, place in enumerate((pair.server, pair.client), 1):
            gids = gids_of(place)
            shown = scene.shown(f"{tenant}{number}")
            check(gids == [shown["gid"]], f"{gids}, {shown}")
            check("ffff:" not in gids[0] and not gids[0].startswith("fe80"), gids)
            seen.update(gids)
            check(active_mtu(place) == 4096, "within a host nothing limits packets")
    check(len(seen) == 4, seen)
    text = scene.daemon.omniverb("tenant", "show", "blue") + scene.daemon.log()
    check("f0f0" not in text, text)


PINGPONGS = ("ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ibv_srq_pingpong")


def pingpong_words(program, count):
    """A pingpong by the only GID; datagrams fit one packet of the underlay."""
    checks = [] if program == "ibv_srq_pingpong" else ["-c"]
    return [program, "-g", "0", "-n", str(count), "-s", "1000", *checks]


def check_pingpong(printed):
    """Numbers are small, contents right."""
    text = printed.server + printed.client
    numbers = re.findall(r"address:.*QPN (0x[0-9a-f]+)", text)
    check(len(numbers) >= 4, text)
    check(all(2 <= int(number, 16) < 1024 for number in numbers), f"{numbers}")
    check("invalid data" not in text, text)


def _programs(scene):
    """Both tenants at once: contents are right, links direct, numbers small."""
    for program in PINGPONGS:
        running = [client_server.Duet(pair, pingpong_words(program, 2000))
                   for pair in scene.pairs.values()]
        for duet in running:
            check_pingpong(duet.finish(60))
    before = _mapped(scene)
    words = ["ib_write_lat", "-F", "-x", "0", "-s", "8", "-n", "2000"]
    outcome = client_server.run(scene.pairs["blue"], *words)
    check(8 in client_server.rows(outcome.client, 6), outcome.client)
    # Counted when the daemon has heard of the end of the program.
    process.until(lambda: _mapped(scene) - before > 2000, 20,
                  lambda: f"2000 operations that were mapped, not {_mapped(scene) - before}")


def _mapped(scene):
    return sum(vnic["ended"]["operations_mapped"] for vnic in scene.daemon.vnics())


def _passed(scene, tenant):
    """Packets that the engine has sent for the vNICs of a tenant."""
    return sum(vnic["ended"]["packets"]["sent"] for vnic in scene.daemon.vnics()
               if vnic["tenant"] == tenant)


def _forwarded(scene):
    """All services and rdma_cm through the engine, both tenants at once: contents are right, and
    no datagram is lost. A rate makes links pass it, too."""
    for option, value, usual in (("--datapath", "forwarded", "direct"),
                                 ("--rate", "2gbit", "none")):
        before = {tenant: _passed(scene, tenant) for tenant in scene.pairs}
        for tenant in scene.pairs:
            scene.daemon.omniverb("vnic", "set", f"{tenant}1", option, value)
        for program in PINGPONGS:
            running = [client_server.Duet(pair, pingpong_words(program, 500))
                       for pair in scene.pairs.values()]
            for duet in running:
                check_pingpong(duet.finish(60))
        by_address(scene)
        for tenant in scene.pairs:
            process.until(lambda tenant=tenant: _passed(scene, tenant) - before[tenant] > 4000, 10,
                          lambda tenant=tenant: f"packets of {tenant}: {_passed(scene, tenant)}")
            scene.daemon.omniverb("vnic", "set", f"{tenant}1", option, usual)


def _across(scene):
    """A name of another tenant's leads nowhere: as an address that nobody has."""
    mixed = types.SimpleNamespace(server=scene.pairs["red"].server,
                                  client=scene.pairs["blue"].client)
    running = client_server.Duet(mixed, ["ib_write_bw", "-F", "-x", "0", "-s", "8", "-n", "1000"])
    status = running.client.wait(50)
    running.kill(running.server)
    text = running.text(1)
    check(status != 0 and "status 12" in text, f"{status}: {text}")
    paths = [qp["path"] for qp in scene.daemon.queue_pairs()]
    check("direct" not in paths and "forwarded" not in paths, f"{paths}")


def by_address(scene):
    """rdma_cm finds virtual addresses; both tenants use the same ones at once."""
    for pair in scene.pairs.values():
        address = pair.server.virtual
        perftest = ["ib_send_lat", "-R", "-F", "-s", "8", "-n", "200"]
        pings = ["rping", "-a", address, "-C", "20", "-v", "-V"]
        for server, client, expected in (
                (perftest, [*perftest, address], "8 +200"),
                ([*pings, "-s"], [*pings, "-c"], "rdma-ping-19"),
                (["udaddy"], ["udaddy", "-s", address], "return status 0")):
            printed, text = both(pair, server, client, 40)
            check(re.search(expected, text), f"no {expected}:\n{text}\n--- server ---\n{printed}")


def _forged(scene):
    """Thousands of forged names lead nowhere; the daemon is left with nothing of them."""
    pair = scene.pairs["blue"]
    genuine = scene.shown("blue1")["gid"]
    for words in (["datagrams", "3000"], ["connections"]):
        pair.client.run("env", "TEST_VIRTUAL=1", f"TEST_GENUINE={genuine}", "TEST_TIMEOUT=10",
                        "/opt/programs/forged_vgids", *words, limit=120)
    forgotten([scene.daemon], 20)


def _refused(scene, word, *words):
    """A command is refused, with this word."""
    try:
        scene.daemon.omniverb(*words)
    except Failure as refusal:
        check(word in str(refusal), f"{words}: {refusal}")
        return
    raise Failure(f"{words} was not refused")


def _never_flat(scene):
    """A vNIC of a virtual network is never flat: without an address of its own it is refused, and
    has no device if the daemon starts with objects like that."""
    daemon, place = scene.daemon, scene.pairs["blue"].server
    attach = ("--attach", scene.mount(place))
    daemon.omniverb("tenant", "create", "green")
    daemon.omniverb("vnic", "delete", "blue1")
    daemon.omniverb("vnic", "create", "blue1", "--tenant", "green", *attach)
    try:
        check("ffff:" in gids_of(place)[-1], "it is flat in a tenant without a virtual network")
        _refused(scene, "address in it", "tenant", "set", "green",
                 "--key-file", scene.key_file("blue"), "--underlay", "127.0.0.1")
        _refused(scene, "address in it", "vnic", "set", "blue1", "--tenant", "blue")
        check("ffff:" in gids_of(place)[-1], "a refused change has changed something")
    finally:
        daemon.omniverb("vnic", "delete", "blue1")
        daemon.omniverb("vnic", "create", "blue1", "--tenant", "blue",
                        "--address", place.virtual, *attach)
        daemon.omniverb("tenant", "delete", "green")
    check(gids_of(place) == [scene.shown("blue1")["gid"]], "blue1 is not what it was")

    def start_with(text):
        daemon.process.kill()
        daemon.process.wait(10)
        daemon.socket.unlink(missing_ok=True)
        state.write_text(text)
        daemon.start()

    state = daemon.folder.with_name(f"{daemon.folder.name}-operator") / "omniverbd.sock.objects"
    kept = state.read_text()
    objects = json.loads(kept)
    objects["objects"]["vnic"]["blue2"]["address"] = place.virtual
    start_with(json.dumps(objects))
    try:
        told = place.run("ibv_devinfo", accept=(0, 1, 255))
        check("has no device" in told and "GID" not in told, told)
        for words in ("has the address", "has no place in it"):
            check(words in daemon.log(), daemon.log())
    finally:
        start_with(kept)
    check(gids_of(place) == [scene.shown("blue1")["gid"]], "blue1 is not what it was")


def _rotation(scene):
    """With a new key names are others, the old ones are valid until the next one."""
    pair = scene.pairs["blue"]
    old = gids_of(pair.server)
    scene.write_key("blue", "ab" * 16)
    # Any change has the files read again.
    scene.daemon.omniverb("tenant", "set", "blue", "--adoption", "trusting")
    new = gids_of(pair.server)
    check(new != old and new == [scene.shown("blue1")["gid"]], f"{old}, {new}")
    client_server.run(pair, "ibv_rc_pingpong", "-g", "0", "-c")
    scene.write_key("blue", "no key")
    try:
        scene.daemon.omniverb("tenant", "set", "blue", "--adoption", "trusting")
    except Failure as refusal:
        check("32 hexadecimal digits" in str(refusal), f"{refusal}")
    else:
        raise Failure("a file without a key was accepted")
    scene.write_key("blue", "cd" * 16)
    scene.daemon.omniverb("tenant", "set", "blue", "--adoption", "trusting")
    client_server.run(pair, "ibv_rc_pingpong", "-g", "0", "-c")


_GROUP = "239.20.0.1"


def in_groups(scene, daemon):
    """Both tenants send to the same group at once: each gets what its own vNICs send, sender and
    addresses included, and nothing of the other's. `daemon`: the receivers'."""
    words = ["mckey", "-m", _GROUP, "-c", "1", "-C", "50"]

    def begin(place, *more):
        return Side(place, [*words, "-b", place.virtual, *more])

    def is_well(tenant, side, status):
        check(status == 0 and "test complete" in side.text(),
              f"{tenant}: {process.how(status)}\n{side.text()}")

    sides = {}
    try:
        for tenant, pair in scene.pairs.items():
            sides[tenant] = begin(pair.server)
        process.until(lambda: multicast.attachments(daemon) == 2, 20,
                      lambda: "members\n" + "\n---\n".join(s.text() for s in sides.values()))
        for tenant, pair in scene.pairs.items():
            def send(tenant=tenant, pair=pair):
                sides[tenant, len(sides)] = sender = begin(pair.client, "-s")
                is_well(tenant, sender, sender.wait(60))
            send()
            is_well(tenant, sides[tenant], multicast.status_of(sides[tenant], daemon, send))
            if tenant == "blue":
                check(sides["red"].is_there(), f"red got it, too:\n{sides['red'].text()}")
    finally:
        for side in sides.values():
            side.end()


def _members(scene):
    """A member gets what it sends itself, until it is detached, or its vNIC leaves the tenant."""
    place = scene.pairs["blue"].server
    with multicast.Member(place, "TEST_VIRTUAL=1") as member:
        check(member.says("attach", _GROUP) == 0, "not attached")
        member.hears(_GROUP)
        for _ in range(2):
            scene.daemon.kill()
            scene.daemon.start()
            member.hears(_GROUP)
        check(member.says("detach", _GROUP) == 0, "not detached")
        check(not member.says("echo", _GROUP), "it gets what is sent to a group it has left")
        check(member.says("attach", "ff15::20:1") != 0, "addresses are IPv4")


def _groups(scene):
    """On one host."""
    in_groups(scene, scene.daemon)


def far_groups(scene):
    """Between two hosts."""
    in_groups(scene, scene.hosts.a.daemon)


class TwoHosts:
    """Two hosts. On each a container of blue and one of red, with the same addresses for both
    tenants: .1 on host a, .2 on host b. `words`: more of what creates a tenant. `underlay`: the
    network of the hosts. `has_namespaces`: it is in network namespaces of its own."""

    def __init__(self, stage, words=(), underlay="192.0.2.0/24", has_namespaces=False):
        self.folder = stage.folder("keys")
        self.namespaces, arguments = [], ((), ())
        if has_namespaces:
            self.namespaces = [Switch(9000), Switch(9000)]
            Cable(*self.namespaces)
            paths = [one.mounted_at(self.folder / f"underlay-{number}")
                     for number, one in enumerate(self.namespaces)]
            arguments = [("--underlay-namespace", path) for path in paths]
        # Tenants use as much of it as they say.
        self.hosts = hosts = Hosts(stage, mtu=9000, arguments=arguments)
        network = ipaddress.ip_network(underlay)
        self.underlays = [str(network[number]) for number in (1, 2)]
        places = self.namespaces or [hosts.a.switch, hosts.b.switch]
        for place, address in zip(places, self.underlays):
            place.ip("address", "add", f"{address}/{network.prefixlen}", "dev", "bridge",
                     *(["nodad"] if network.version == 6 else []))
        red = [hosts.a.add(3), hosts.b.add(4)]
        places = {"blue": (hosts.server, hosts.client), "red": red}
        self.pairs = {tenant: types.SimpleNamespace(server=two[0], client=two[1])
                      for tenant, two in places.items()}
        for tenant, two in places.items():
            offsets = []
            for number, (host, place) in enumerate(zip((hosts.a, hosts.b), two), 1):
                place.virtual = f"{_PREFIX}.{number}"
                place.namespace.ip("address", "add", f"{place.virtual}/24", "dev", "eth0")
                # Nothing leaves by the container's own network.
                place.namespace.drop_udp(4791)
                omniverb = host.daemon.omniverb
                key = self.write_key(tenant, number)
                omniverb("tenant", "create", tenant, "--key-file", key,
                         "--underlay", self.underlays[number - 1], *words)
                omniverb("vnic", "create", f"{tenant}{number}", "--tenant", tenant,
                         "--address", place.virtual, "--attach", self.mount(place))
                shown = json.loads(omniverb("vnic", "show", f"{tenant}{number}", "--json"))
                offsets.append(shown["qpn_offset"])
            for number, host in ((2, hosts.a), (1, hosts.b)):
                host.daemon.omniverb(
                    "vnic", "create", f"{tenant}{number}", "--tenant", tenant,
                    "--address", f"{_PREFIX}.{number}",
                    "--underlay", self.underlays[number - 1],
                    "--qpn-offset", str(offsets[number - 1]))

    mount = _Scene.mount

    def write_key(self, tenant, number, key=None):
        """The file with a tenant's key on one of the hosts."""
        path = self.folder / f"{tenant}{number}"
        path.write_text(key or ("c1" if tenant == "red" else "d2") * 16)
        path.chmod(0o600)
        return path

    def close(self):
        """Ends the hosts."""
        self.hosts.close()
        for namespace in self.namespaces:
            namespace.close()


def _two_hosts(stage):
    return contextlib.closing(TwoHosts(stage))


def far_programs(scene):
    """Both tenants at once, contents right, over the underlay."""
    for program in PINGPONGS:
        running = [client_server.Duet(pair, pingpong_words(program, 300))
                   for pair in scene.pairs.values()]
        for duet in running:
            check_pingpong(duet.finish(60))
    words = ["ib_write_bw", "-F", "-x", "0", "-s", "65536", "-n", "500"]
    outcome = client_server.run(scene.pairs["blue"], *words)
    check(65536 in client_server.rows(outcome.client, 5), outcome.client)


def far_by_address(scene):
    """rdma_cm between hosts, by virtual addresses."""
    by_address(scene)


def active_mtu(place):
    """The largest payload of a packet, as ibv_devinfo shows it."""
    return int(re.search(r"active_mtu:\s+(\d+)", place.run("ibv_devinfo")).group(1))


def far_large(scene):
    """Packets are as large as the tenant says, in one of the two alone."""
    for host in (scene.hosts.a, scene.hosts.b):
        host.daemon.omniverb("tenant", "set", "red", "--mtu", "9000")
    sizes = {"blue": 1024, "red": 4096}
    for tenant, pair in scene.pairs.items():
        found = [active_mtu(place) for place in (pair.server, pair.client)]
        check(found == [sizes[tenant]] * 2, f"{tenant}: {found}")
    for program, option in (("ibv_ud_pingpong", []), ("ibv_rc_pingpong", ["-m"])):
        running = []
        for tenant, pair in scene.pairs.items():
            size = str(sizes[tenant])
            words = [program, "-g", "0", "-c", "-n", "300", "-s", size]
            running.append(client_server.Duet(pair, words + [*option, size][:2 * len(option)]))
        for duet in running:
            check_pingpong(duet.finish(60))


def far_across(scene):
    """A name of another tenant's leads to no packet: also where it is of another host."""
    mixed = types.SimpleNamespace(server=scene.pairs["red"].server,
                                  client=scene.pairs["blue"].client)
    running = client_server.Duet(mixed, ["ib_write_bw", "-F", "-x", "0", "-s", "8", "-n", "1000"])
    status = running.client.wait(50)
    running.kill(running.server)
    text = running.text(1)
    check(status != 0 and "status 12" in text, f"{status}: {text}")


def far_one_key(scene):
    """A key that one host alone has: its names lead nowhere from the other, addresses do."""
    key = scene.folder / "another"
    key.write_text("ab" * 16)
    key.chmod(0o600)
    scene.hosts.a.daemon.omniverb("tenant", "set", "blue", "--key-file", key)
    pair = scene.pairs["blue"]
    running = client_server.Duet(pair, ["ib_write_bw", "-F", "-x", "0", "-s", "8", "-n", "1000"])
    status = running.client.wait(50)
    running.kill(running.server)
    text = running.text(1)
    check(status != 0 and "status 12" in text, f"{status}: {text}")
    by_address(scene)
    scene.hosts.b.daemon.omniverb("tenant", "set", "blue", "--key-file", key)
    far_programs(scene)


def _as_many_messages(scene):
    """Bringing up a queue pair, and ending it, takes a tenant as many calls of the daemon as a
    vNIC without a virtual network."""
    program, at = "many_qps_to_rts", scene.daemon.stage.programs
    process.run(["cc", "-O2", "-pthread", "-o", at / program, _BENCH / f"{program}.c",
                 "-libverbs"], limit=60)
    found, flat = {}, scene.all.containers[4]
    for name, place, index in (("flat", flat, client_server.gid_index(flat)),
                               ("tenant", scene.pairs["blue"].server, 0)):
        counts = []
        for number in (20, 120):
            text = place.run("strace", "-f", "-c", "-e", "trace=sendmsg",
                             f"/opt/programs/{program}", "2", str(number), str(index))
            counts += [int(line.split()[3]) for line in text.splitlines()
                       if line.endswith(" sendmsg")]
        found[name] = (counts[1] - counts[0]) / 200
    print(f"calls of the daemon for a queue pair: {found}")
    # To make it, to connect it, to destroy it.
    check(found == {"flat": 3, "tenant": 3}, f"{found}")


def groups():
    """One host with five containers, and two hosts with two each; two tenants with keys."""
    return [Group("virtual_networks", [
        Case("virtual_networks.names", _names, 60),
        Case("virtual_networks.programs", _programs, 300),
        Case("virtual_networks.forwarded", _forwarded, 200),
        Case("virtual_networks.across", _across, 100),
        Case("virtual_networks.by_address", by_address, 200),
        Case("virtual_networks.forged", _forged, 260),
        Case("virtual_networks.never_flat", _never_flat, 60),
        Case("virtual_networks.groups", _groups, 200),
        Case("virtual_networks.members", _members, 120),
        Case("virtual_networks.rotation", _rotation, 120),
        Case("virtual_networks.as_many_messages", _as_many_messages, 60),
    ], _fixture, weight=WAITS), Group("virtual_networks_far", [
        Case("virtual_networks.far_programs", far_programs, 300),
        Case("virtual_networks.far_by_address", far_by_address, 200),
        Case("virtual_networks.far_across", far_across, 100),
        Case("virtual_networks.far_groups", far_groups, 200),
        Case("virtual_networks.far_large", far_large, 100),
        Case("virtual_networks.far_one_key", far_one_key, 300),
    ], _two_hosts, weight=WAITS)]
