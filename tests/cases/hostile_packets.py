"""Tests hostile packets of a neighbour that can send anything.

What is checked is that nobody's memory changes, that no message arrives, that connections go on and
that the daemons stay up and small. What a forger who sees the traffic could do is not: RoCE v2 has
no defence against that, the network must have (docs/threat-model.md)."""

import contextlib
import json
import pathlib
import subprocess
import sys
import time

from harness import client_server, packet_floods, process, roce_packets
from harness.case import CROWDS, Case, Failure, Group, check
from harness.simulated_host import Hosts

from cases.rdma_between_hosts import quiet, soaked, soaking
from cases.network_failures import reach

_OWN = "10.77.0.66"
_FAR_AHEAD, _FAR_BEHIND = [5_000_000, 7_000_000], [0xF00000, 0xFFFFFF]
_QKEY = 0x11223344
# Packets of an attack.
_LEAST, _LEAST_UNDER_TRAFFIC = 500, 3000


@contextlib.contextmanager
def _fixture(stage):
    with Hosts(stage) as hosts:
        hosts.gid_index = client_server.gid_index(hosts.server)
        hosts.attacker = hosts.a.plug(66)
        hosts.other = hosts.b.add(5)
        yield hosts


def _attack(hosts, kind, targets, seconds, **more):
    """Starts the attacker."""
    order = {"kind": kind, "targets": targets, "seconds": seconds, "own": _OWN, **more}
    return process.start([*hosts.attacker.enter(), sys.executable, "-B",
                          pathlib.Path(roce_packets.__file__), json.dumps(order)],
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _memory(daemon):
    """Resident memory of a daemon, in MiB."""
    with open(f"/proc/{daemon.pid}/status", encoding="utf-8") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1024


@contextlib.contextmanager
def daemons_stay_well(hosts, growth=48):
    """Both daemons are alive afterwards and have not grown by more than so many MiB."""
    before = [_memory(daemon) for daemon in hosts.daemons]
    pids = [daemon.pid for daemon in hosts.daemons]
    yield
    check([daemon.process.poll() for daemon in hosts.daemons] == [None, None], "a daemon ended")
    check([daemon.pid for daemon in hosts.daemons] == pids, "a daemon was started anew")
    after = [_memory(daemon) for daemon in hosts.daemons]
    print(f"MiB of the daemons: {before} before, {after} after")
    check(all(b - a < growth for a, b in zip(before, after)), f"memory: {before} to {after} MiB")
    quiet(hosts)


class _Victims:
    """Both sides of programs/wire_attack_target.c, and what an attacker may know of them."""

    def __init__(self, hosts):
        self.process = hosts.apart().start(
            "/opt/programs/wire_attack_target", "two_sides",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True)
        self.targets, self.datagrams = [], []
        ends = (hosts.server.address, hosts.client.address)
        for own, peer in (ends, ends[::-1]):
            line = self.process.stdout.readline()
            numbers = line.split()
            check(len(numbers) == 5 and ".c:" not in line, line + self._rest())
            connected, datagrams, waiting, key, memory = map(int, numbers)
            target = {"address": own, "peer": peer, "qpns": [connected, waiting], "psns": [0, 0],
                      "memory": memory, "key": key}
            self.targets.append(target)
            self.datagrams.append({**target, "qpns": [datagrams, connected, 1, 0xFFFFFF],
                                   "qkey": _QKEY + 1})

    def _rest(self):
        return self.process.stdout.read() if self.process.poll() is not None else ""

    def check(self):
        """Nothing has happened to them, and they can talk."""
        text = process.finish(self.process, 30)
        check(self.process.returncode == 0, f"the victims: {text}")


def _against_idle(kind, seconds=2, change=lambda hosts, targets: targets, which="targets"):
    """Attacks connections without traffic: nothing at all may happen to them."""
    def run(hosts):
        with daemons_stay_well(hosts):
            victims = _Victims(hosts)
            attacker = _attack(hosts, kind, change(hosts, getattr(victims, which)), seconds,
                               least=_LEAST)
            text = process.finish(attacker, 45)
            print(text)
            check(attacker.returncode == 0 and "begun\n" in text, text)
            victims.check()
    return run


def _would_work(hosts):
    """The same packets with the right source, check and sequence number do harm: the attacks above
    fail because of what is wrong with them."""
    victims = _Victims(hosts)
    attacker = _attack(hosts, "spoofed", victims.targets[1:], 1, least=_LEAST)
    process.finish(attacker, 45)
    try:
        victims.check()
    except Failure as failure:
        print(failure)
    else:
        raise Failure("the attacker's packets are harmless even when everything is right")
    quiet(hosts)


def _wrong_numbers(numbers):
    return lambda _hosts, targets: [{**target, "psns": numbers} for target in targets]


def _through_another(hosts, targets):
    """The right QPs, keys and sequence numbers, but at another container's address."""
    return [{**targets[1], "address": hosts.other.address, "peer": targets[1]["peer"]}]


def _under_traffic(kind, numbers):
    """Attacks connections full of traffic that is checked byte for byte."""
    def run(hosts):
        with daemons_stay_well(hosts):
            soak = soaking(hosts.apart(), 31)
            try:
                process.until(lambda: len(_qpns(hosts.b.daemon)) >= 8 or soak.poll() is not None,
                              20, "the QPs of the soak")
                targets = []
                for daemon, own, peer in ((hosts.a.daemon, hosts.server, hosts.client),
                                          (hosts.b.daemon, hosts.client, hosts.server)):
                    targets.append({"address": own.address, "peer": peer.address,
                                    "qpns": _qpns(daemon), "psns": numbers})
                attacker = _attack(hosts, kind, targets, 0, rate=500, least=_LEAST_UNDER_TRAFFIC)
                text = process.finish(attacker, 60)
                check(attacker.returncode == 0, text)
                print(text, soaked(soak))
            finally:
                process.end(soak)
    return run


def _qpns(daemon):
    return [qp["qpn"] for qp in daemon.queue_pairs()]


# ---- floods ----

def _flood(kind):
    """Packets to port 4791 of both victims, while their connections are full of traffic that is
    checked byte for byte. What it costs them is measured by bench/rate_limits.py."""
    def run(hosts):
        with daemons_stay_well(hosts), packet_floods.flood(hosts, hosts.attacker, kind, 20_000):
            text = hosts.apart().run("/opt/programs/soak", "two_processes", 60_000, 41, limit=200)
            print(text)
            check("ok two_processes" in text, text)
            client_server.run(hosts, "ibv_rc_pingpong", "-g", hosts.gid_index, "-c")
    return run


def _strangers(hosts):
    """Datagrams from ever new queue pairs to a UD QP: each would want a link. They cost no more
    than the quota, and friends still get through."""
    with daemons_stay_well(hosts, growth=160):
        running = hosts.client.start("ibv_ud_pingpong", "-g", hosts.gid_index,
                                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            process.until(lambda: _qpns(hosts.b.daemon), 20, "a UD QP")
            target = {"address": hosts.client.address, "peer": hosts.server.address,
                      "qpns": _qpns(hosts.b.daemon), "psns": [0, 0], "qkey": 0x11111111}
            attacker = _attack(hosts, "strangers", [target], 4, rate=5000)
            print(process.finish(attacker, 30))
            client_server.run(hosts, "ibv_rc_pingpong", "-g", hosts.gid_index, "-c")
        finally:
            running.terminate()
            running.wait(10)
            hosts.client.kill_all()


# ---- the handshake ----

_HEADER = bytes([0xFF, 0x0F]) + bytes(10)

_ECHO = r"""
import json, os, random, socket, struct, sys, time
order = json.loads(sys.argv[1])
sys.path.insert(0, order["harness"])
import roce_packets
# The switch's own view of everything that passes, the best place an eavesdropper can have.
tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
tap.settimeout(0.05)
seen, end, numbers = [], time.monotonic() + order["seconds"], 0
print("listening", flush=True)
while time.monotonic() < end:
    try:
        frame = tap.recv(2048)
    except TimeoutError:
        continue
    if len(frame) >= 82 and frame[12:14] == b"\x08\x00" and frame[42:44] == b"\xff\x0f" \
            and frame[36:38] == struct.pack(">H", 4791):
        body = frame[42:]
        if body not in seen:
            seen.append(body)
            print(body.hex(), socket.inet_ntoa(frame[26:30]), socket.inet_ntoa(frame[30:34]),
                  flush=True)
"""


def _forged_handshakes(hosts):
    """Probes and replies that were overheard are repeated to everybody from every address, and
    new ones are made up, while connections are made. Each goes the way it should, all work."""
    with daemons_stay_well(hosts):
        listener = process.start(
            [*hosts.a.switch.enter(), sys.executable, "-B", "-c", _ECHO,
             json.dumps({"seconds": client_server.ENDLESS,
                         "harness": str(pathlib.Path(roce_packets.__file__).parent)})],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        forger = None
        try:
            check(listener.stdout.readline().strip() == "listening", "the listener")
            client_server.run(hosts, "ibv_rc_pingpong", "-g", hosts.gid_index, "-c")
            overheard = [listener.stdout.readline().split() for _ in range(2)]
            check(all(len(words) == 3 for words in overheard), f"{overheard}")
            bodies = [words[0] for words in overheard]
            addresses = [hosts.server.address, hosts.client.address, hosts.other.address]
            forger = process.start(
                [*hosts.attacker.enter(), sys.executable, "-B", pathlib.Path(roce_packets.__file__),
                 json.dumps({"kind": "handshakes", "seconds": client_server.ENDLESS, "own": _OWN,
                             "rate": 3000,
                             "targets": [{"address": to, "peers": addresses, "bodies": bodies}
                                         for to in addresses]})],
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            check(forger.stdout.readline() == "begun\n", "the forger does not begin")
            _connect_everybody(hosts)
            check(forger.poll() is None, "the forger has ended")
        finally:
            process.end(listener)
            if forger:
                process.end(forger)


def _connect_everybody(hosts):
    """Each connection takes its right way while the forger is at work."""
    for server, client, daemons, wanted in (
            (hosts.server, hosts.client, hosts.daemons, "wire"),
            (hosts.client, hosts.other, [hosts.b.daemon], "direct"),
            (hosts.other, hosts.server, hosts.daemons, "wire")):
        sides = type("Sides", (), {"server": server, "client": client})
        with client_server.going_on(sides, "ib_send_lat"):
            reach(daemons, "ib_send_lat", wanted)
            time.sleep(0.8)  # under attack


def groups():
    """Two hosts, a container more, and an attacker in the same network."""
    return [Group("hostile_wire", [
        Case("hostile_wire.would_work", _would_work),
        Case("hostile_wire.own_address", _against_idle("own")),
        Case("hostile_wire.wrong_check", _against_idle("unchecked")),
        Case("hostile_wire.spoofed_ahead", _against_idle("spoofed", 2, _wrong_numbers(_FAR_AHEAD))),
        Case("hostile_wire.spoofed_behind",
             _against_idle("spoofed", 2, _wrong_numbers(_FAR_BEHIND))),
        Case("hostile_wire.fuzzed", _against_idle("fuzzed", 4, _wrong_numbers(_FAR_AHEAD))),
        Case("hostile_wire.datagrams", _against_idle("datagrams", which="datagrams")),
        Case("hostile_wire.another_container", _against_idle("spoofed", 2, _through_another)),
        Case("hostile_wire.traffic_ahead", _under_traffic("spoofed", _FAR_AHEAD), 150),
        Case("hostile_wire.traffic_behind", _under_traffic("spoofed", _FAR_BEHIND), 150),
        Case("hostile_wire.traffic_fuzzed", _under_traffic("fuzzed", _FAR_AHEAD), 150),
        Case("hostile_wire.strangers", _strangers),
        Case("hostile_wire.forged_handshakes", _forged_handshakes, 90),
        Case("hostile_wire.flood_of_noise", _flood(packet_floods.NOISE), 260),
        Case("hostile_wire.flood_like_roce", _flood(packet_floods.ALIKE), 260),
    ], _fixture, weight=CROWDS)]
