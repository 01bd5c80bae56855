"""Encrypted tenants: two hosts exchange PSP packets only, which an implementation of its own
understands; changed and repeated ones do nothing, keys change under load, and a host without says
why."""

import contextlib
import json
import os
import pathlib
import random
import subprocess
import sys
import time

from harness import client_server, independent_psp, process, roce_packets
from harness.case import CROWDS, Case, Group, check
from harness.simulated_host import Hosts

from cases.rdma_between_hosts import quiet

_OUTSIDE = "10.77.0.66"


def _write(path, text):
    """A file that only its user can read."""
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w", encoding="ascii") as file:
        file.write(text)


class _Scene:
    """Two hosts whose tenant `default` is encrypted."""

    def __init__(self, stage):
        self.folder = stage.folder("encryption")
        self.key = random.Random(7).randbytes(16)
        self.files, self.keys = [], []
        for name in "ab":
            self.files.append(self.folder / f"{name}.toml")
            self.keys.append(self.folder / f"{name}.key")
            _write(self.keys[-1], self.key.hex() + "\n")
        self.configure(3600)
        self.hosts = Hosts(stage, arguments=[("--config", file) for file in self.files])
        self.outside = self.hosts.a.plug(66)

    def configure(self, lifetime, encrypted=(True, True)):
        """Writes the configuration of both daemons."""
        for file, key, is_encrypted in zip(self.files, self.keys, encrypted):
            how = "psp" if is_encrypted else "none"
            file.write_text(f'[tenant.default]\nencryption = "{how}"\nkey_file = "{key}"\n'
                            f"key_lifetime = {lifetime}\n")

    def reload(self, *words, **more):
        """Has both daemons read it again."""
        self.configure(*words, **more)
        for daemon in self.hosts.daemons:
            daemon.omniverb("reload")

    def logs(self):
        """What both daemons have said."""
        return "".join(daemon.log() for daemon in self.hosts.daemons)


def begin(hosts, kind, **more):
    """Starts harness/independent_psp.py where the cable of two hosts ends, and waits until it
    listens; `said` ends it."""
    order = {"kind": kind, "interface": hosts.cable.NAME, **more}
    program = process.start([*hosts.a.switch.enter(), sys.executable, "-B",
                             pathlib.Path(independent_psp.__file__), json.dumps(order)],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)
    line = program.stdout.readline()
    check(line.strip() == independent_psp.READY, line)
    return program


@contextlib.contextmanager
def _fixture(stage):
    scene = _Scene(stage)
    try:
        scene.gid_index = client_server.gid_index(scene.hosts.server)
        yield scene
    finally:
        scene.hosts.close()


def said(program, limit=60):
    """Ends harness/independent_psp.py; what it has to say then."""
    text = process.finish(program, limit)
    check(program.returncode == 0, text)
    print(text)
    return json.loads(text.strip().splitlines()[-1])


def _contents(scene):
    """Programs that check every byte; nothing of it passes in plain."""
    hosts = scene.hosts
    # ib_send_lat and the pingpongs send what is in their buffers: a pattern that can be searched.
    watched = begin(scene.hosts, "watch", secret=b"rdma-ping-".hex())
    for name in ("rc", "uc", "ud", "srq"):
        outcome = client_server.run(hosts, f"ibv_{name}_pingpong", "-g", scene.gid_index, "-c",
                                    "-n", 500)
        check("iters in" in outcome.client and "invalid data" not in outcome.client,
              outcome.client)
    print(hosts.apart().run("/opt/programs/soak", "two_processes", 20_000, 1, limit=60))
    seen = said(watched)
    check(seen["plain"] == 0 and seen["readable"] == 0, f"{seen}")
    check(sum(seen["spis"].values()) > 2000 and seen["messages"] >= 4, f"{seen}")
    running = client_server.Duet(hosts, ["ib_send_bw", "-F", "-D", "60"])
    try:
        process.until(hosts.a.daemon.queue_pairs, 20, "a device in use")
        shown = [vnic["encryption"] for vnic in hosts.a.daemon.status()["vnics"]]
    finally:
        running.abort()
    check(shown and set(shown) == {"psp"}, f"{shown}")
    for hexadecimal in (scene.key.hex(), scene.key.hex().upper()):
        check(hexadecimal not in scene.logs(), "a log shows the key")
    quiet(hosts)


def _peer(scene):
    """Another implementation asks for a key, sends, is asked for one, and understands the reply."""
    hosts = scene.hosts
    holder = client_server.Duet(hosts, ["ib_send_bw", "-F", "-D", "60"])
    try:
        process.until(lambda: hosts.a.daemon.queue_pairs(), 20, "a device in use")
        program = process.start(
            [*scene.outside.enter(), sys.executable, "-B", pathlib.Path(__file__).resolve(),
             json.dumps({"key": scene.key.hex(), "own": _OUTSIDE,
                         "other": hosts.server.address})],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, "PYTHONPATH": str(pathlib.Path(__file__).resolve().parents[1])})
        seen = said(program)
    finally:
        holder.abort()
    check(seen == {"reply": True, "plain": False, "repeated": False, "stranger": False}, f"{seen}")
    quiet(hosts)


def _play_peer(order):
    """The other implementation, as a program in a namespace of its own."""
    key, own, other = bytes.fromhex(order["key"]), order["own"], order["other"]

    def connect(number):
        """A request to connect to a port that nobody listens at."""
        rng = random.Random(number)
        return roce_packets.connect_request(rng, own, other, 7777)

    peer = independent_psp.Peer(key, own, other)
    peer.join()
    seen = {}
    datagram = peer.put(connect(1))
    reply = peer.get(5)
    # A management datagram, to queue pair 1.
    seen["reply"] = reply is not None and reply[0] == 0x64 and reply[5:8] == b"\0\0\x01"
    peer.send(datagram)
    seen["repeated"] = peer.get(1) is not None
    # In plain.
    plain = roce_packets.socket.socket(roce_packets.socket.AF_INET, roce_packets.socket.SOCK_DGRAM)
    plain.bind((own, 0xC123))
    plain.sendto(connect(2), (other, roce_packets.PORT))
    seen["plain"] = peer.get(1) is not None
    # A key of another tenant gets no answer.
    peer.send(independent_psp.request(bytes(16), own, other, bytes(16)))
    seen["stranger"] = peer.next(1, lambda one: one[7:8] == b"\x02") is not None
    print(json.dumps(seen))


def _attacked(scene):
    """What passes one way is sent again, as it is and changed: the programs notice nothing."""
    hosts = scene.hosts
    replayed = begin(scene.hosts, "replay")
    print(hosts.apart().run("/opt/programs/soak", "two_processes", 40_000, 5, limit=120))
    seen = said(replayed)
    check(seen["sent"] > 200, f"{seen}")
    quiet(hosts)


def _rotation(scene):
    """Keys change each second while every byte is checked."""
    scene.reload(1)
    # vNICs that are open keep their lifetime: begin anew.
    quiet(scene.hosts)
    watched = begin(scene.hosts, "watch", secret="ff" * 16)
    running = client_server.Duet(scene.hosts, ["ib_send_bw", "-F", "-D", "8", "-s", "1024"])
    running.finish(60)
    print(scene.hosts.apart().run("/opt/programs/soak", "two_processes", 20_000, 3, limit=90))
    seen = said(watched)
    spis = sorted(map(int, seen["spis"]))
    check(any(spi >> 31 for spi in spis) and any(not spi >> 31 for spi in spis), f"{spis}")
    check(sum(seen["spis"].values()) > 2000 and seen["plain"] == 0, f"{seen}")
    scene.reload(3600)
    quiet(scene.hosts)


def _fails(scene):
    """A connection that is not to be; what `omniverb status` says of it while it lasts."""
    running = client_server.Duet(scene.hosts, ["ib_send_bw", "-F", "-s", "8", "-n", "1000",
                                               "-u", "17"])
    said = set()
    end = time.monotonic() + 50
    while running.client.poll() is None and time.monotonic() < end:
        said |= {peer["why"] for qp in scene.hosts.b.daemon.queue_pairs() for peer in qp["peers"]}
        time.sleep(0.1)
    status = running.client.poll()
    running.abort()
    text = running.text(1)
    check(status not in (0, None) and "status 12" in text, f"{status}: {text}")
    return said


def _without(scene):
    """A host without encryption, and one with another key: the connection fails as to a host that
    cannot be reached, log and status say why, and afterwards it works."""
    hosts = scene.hosts
    scene.reload(3600, encrypted=(False, True))
    quiet(hosts)
    said = _fails(scene)
    check(any("the handshake of PSP" in why or "RoCE in plain" in why for why in said), f"{said}")
    log = hosts.b.daemon.log()
    words = f"sends nothing to {hosts.server.address}"
    lines = [line for line in log.splitlines() if words in line]
    check(len(lines) == 1, "\n".join(lines) or log)
    _write(scene.keys[0], "f" * 32)
    scene.reload(3600)
    quiet(hosts)
    _fails(scene)
    _write(scene.keys[0], scene.key.hex())
    scene.reload(3600)
    quiet(hosts)
    client_server.run(hosts, "ib_send_bw", "-F", "-s", "4096", "-n", "1000")
    quiet(hosts)


def _new_key(scene):
    """The tenant's key is replaced, first here, then there, under load."""
    hosts = scene.hosts
    with client_server.going_on(hosts, "ib_send_bw", "-s", "4096") as running:
        client_server.moves_on(running, *hosts.daemons)
        for new in ("11" * 16, "22" * 16):
            for path, daemon in zip(scene.keys, hosts.daemons):
                _write(path, new)
                daemon.omniverb("reload")
                # Also with a key that one of them alone has.
                client_server.moves_on(running, *hosts.daemons)
    for path in scene.keys:
        _write(path, scene.key.hex())
    scene.reload(3600)
    quiet(hosts)


def _one_host(scene):
    """A key that one host alone has: what runs goes on for half of the lifetime, and fails when it
    is over; the log says why. With the key at the other host, too, it works."""
    hosts, lifetime = scene.hosts, 12
    scene.reload(lifetime)
    # vNICs that are open keep their lifetime: begin anew.
    quiet(hosts)
    running = client_server.Duet(hosts, ["ib_send_bw", "-F", "-s", "4096", "-D", "90"])
    try:
        process.until(lambda: client_server.moved(*hosts.daemons) > 100, 20, "traffic")
        _write(scene.keys[0], "33" * 16)
        hosts.a.daemon.omniverb("reload")
        begun = time.monotonic()
        while time.monotonic() < begun + lifetime / 3:
            before = client_server.moved(*hosts.daemons)
            process.until(lambda: client_server.moved(*hosts.daemons) > before, 2,
                          "traffic with the old key")
        process.until(lambda: running.client.poll() is not None, lifetime + 30, "its end")
        check("status 12" in running.text(1), running.text(1))
    finally:
        running.abort()
    words = f"sends nothing to {hosts.client.address}: the peer did not answer the handshake of PSP"
    process.until(lambda: words in hosts.a.daemon.log(), 10, hosts.a.daemon.log)
    quiet(hosts)
    _fails(scene)
    _write(scene.keys[1], "33" * 16)
    hosts.b.daemon.omniverb("reload")
    quiet(hosts)
    client_server.run(hosts, "ib_send_bw", "-F", "-s", "4096", "-n", "1000")
    for path in scene.keys:
        _write(path, scene.key.hex())
    scene.reload(3600)
    quiet(hosts)


def _key_files(scene):
    """Files that others can read, or that hold no key, are refused and not shown."""
    daemon = scene.hosts.a.daemon
    path = scene.folder / "blue.key"
    wrong = "0123456789abcdefXY"
    for text, mode, word in ((wrong, 0o600, "hexadecimal"), ("ab" * 16, 0o644, "0600")):
        _write(path, text)
        path.chmod(mode)
        words = ["tenant", "create", "blue", "--encryption", "psp", "--key-file", path]
        shown = daemon.omniverb(*words, accept=(0, 1))
        check("created" not in shown, shown)
        check(text not in shown + daemon.log(), shown)
        check("blue" not in daemon.omniverb("tenant", "list"), word)
    path.chmod(0o600)
    check("created" in daemon.omniverb("tenant", "create", "blue", "--encryption", "psp",
                                       "--key-file", path, "--key-lifetime", "60"), "create")
    shown = daemon.omniverb("tenant", "show", "blue", "--json")
    fields = json.loads(shown)["fields"]
    check(fields == {"encryption": "psp", "key_file": str(path), "key_lifetime": 60}, shown)
    daemon.omniverb("tenant", "delete", "blue")


def groups():
    """Two hosts; all groups that want the cable have it in turns."""
    return [Group("encryption", [
        Case("encryption.contents", _contents, 150),
        Case("encryption.peer", _peer, 90),
        Case("encryption.attacked", _attacked, 150),
        Case("encryption.rotation", _rotation, 200),
        Case("encryption.without", _without, 200),
        Case("encryption.new_key", _new_key, 150),
        Case("encryption.one_host", _one_host, 200),
        Case("encryption.key_files", _key_files, 60),
    ], _fixture, weight=CROWDS)]


if __name__ == "__main__":
    _play_peer(json.loads(sys.argv[1]))
