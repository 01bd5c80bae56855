"""Tests what programs have in a virtual machine besides queue pairs.

They run in the one machine of cases/virtual_machines.py."""

import json
import pathlib
import re
import signal
import subprocess

from harness import process
from harness.rdma_cm_client_server import both
from harness.case import Case, check
from harness.client_server import gid_index
from harness.daemon import environment
from harness.virtual_machines import ADDRESS_6, NAME, OMNIVERB, Both

_DEVICE = "/sys/class/infiniband/omv0"
_PINGS = ["-C", "10", "-v", "-V"]
# Program, words of both sides, of the server, of the client, and what the client prints in the end.
_BY_ADDRESS = [("rping", _PINGS, ["-s", "-a", "{}"], ["-c", "-a", "{}"], "rdma-ping-9"),
               ("ucmatose", ["-c", "3"], [], ["-s", "{}"], "return status 0"),
               ("udaddy", [], [], ["-s", "{}"], "return status 0")]


def _by_address(server, client, row, address=None):
    """A program of librdmacm's, a side of it in the machine."""
    program, words, listening, asking, expected = row

    def run(lab):
        sides = lab.sides(server, client)
        peer = address or sides.server.address
        ends = [[program, *words, *[word.format(peer) for word in end]]
                for end in (listening, asking)]
        said, text = both(sides, *ends, 60)
        check(expected in text, f"no {expected!r}:\n{text}\n--- server ---\n{said}")
    return run


def _listed(lab):
    """`ibv_devices`, `rdma link` and files say the same as the library, in the machine."""
    verbs = lab.machine.verbs
    found = json.loads(verbs("rdma", "link", "show", "-j"))
    check([(one["ifname"], one["state"], one["netdev"]) for one in found] ==
          [("omv0", "ACTIVE", "eth0")], str(found))
    text = verbs("/opt/programs/cat", f"{_DEVICE}/node_guid", f"{_DEVICE}/ports/1/state",
                 f"{_DEVICE}/ports/1/gid_attrs/ndevs/1",
                 "/sys/class/infiniband_verbs/uverbs0/ibdev")
    guid, *rest = text.splitlines()
    check(rest == ["4: ACTIVE", "eth0", "omv0"], text)
    check("uverbs0" in verbs("/opt/programs/ls", "/dev/infiniband"), "no uverbs0")
    devices = verbs("ibv_devices")
    check(guid.replace(":", "") in devices, f"{guid} is not in\n{devices}")


def _six(place):
    """The index of the GID that is a unique local IPv6 address."""
    text = place.run("ibv_devinfo", "-v")
    found = re.search(r"GID\[\s*(\d+)\]:\s*fd77:", text)
    check(found, text)
    return found.group(1)


def _over_six(server, client, program, *options):
    """Between GIDs of IPv6 addresses."""
    def run(lab):
        sides = lab.sides(server, client)
        lines = [[f"ibv_{program}_pingpong", "-g", _six(place), "-n", 100, *options]
                 for place in (sides.client, sides.server)]
        outcome = Both(sides, lines[0], server_argv=lines[1]).finish(60)
        for text in (outcome.server, outcome.client):
            check("invalid data" not in text and "iters in" in text, text)
            check(ADDRESS_6 in text, text)
    return run


def _xrc(lab):
    """Shared receive queues of XRC domains, between two processes of the machine."""
    command = [OMNIVERB, "run", "--", "ibv_xsrq_pingpong", "-g", "0", "-n", "100"]
    with open(f"{lab.machine.folder.name}/xrc", "w+", encoding="utf-8") as said:
        server = lab.machine.start(*command, stdout=said)
        try:
            process.until(lambda: server.poll() is not None or lab.machine.listens(18515), 60,
                          "a server")
            text = lab.machine.run(*command, "127.0.0.1", limit=60)
            check(server.wait(20) == 0 and "success" in text, text)
        finally:
            server.kill()


def _dead(lab):
    """Nothing completes with success that is posted to a process of the machine after its end: its
    own kernel tells of that, in the window."""
    text = lab.machine.verbs("/opt/programs/dead_peer", "sends", "1", limit=90)
    check("ok sends" in text, text)


def _filled(lab):
    """Who fills the machine's window is told so (ENOMEM); the machine's other processes find their
    device, and others outside are connected as before."""
    machine = lab.machine
    with open(f"{machine.folder.name}/quota", "w+", encoding="utf-8") as said:
        greedy = machine.start("sh", "-c", f"sleep 1000 | {OMNIVERB} run -- "
                               "/opt/programs/quota_exhaustion connected_queue_pairs", stdout=said)
        try:
            def told():
                said.seek(0)
                return re.search(r"(\d+) connected pairs, then (.*)", said.read())
            process.until(lambda: told() or greedy.poll() is not None, 60, "the end of the window")
            check(told() and told().group(2) == "Cannot allocate memory", f"{told()}")
            row = machine.row()
            check(row["window"] - row["used"] < 10 << 20, f"{row}")
            check(machine.has_device(), "no device")
            text = lab.container.run("/opt/programs/soak", "two_processes", "2000", "1")
            check("ok two_processes" in text, text)
        finally:
            greedy.kill()
    process.until(lambda: machine.row()["used"] == 0, 20, "the pieces to come back")


def _exchange(lab, server, client):
    sides = lab.sides(server, client)
    lines = [["ibv_rc_pingpong", "-c", "-e", "-g", gid_index(place), "-n", 50]
             for place in (sides.client, sides.server)]
    outcome = Both(sides, lines[0], server_argv=lines[1]).finish(60)
    for text in (outcome.server, outcome.client):
        check("invalid data" not in text and "iters in" in text, text)


def _set(what, value):
    """What operators set for the vNIC holds for its processes, among each other as well."""
    def run(lab):
        daemon = lab.host.daemon
        daemon.omniverb("vnic", "set", f"vm-{NAME}", f"--{what}", value)
        try:
            _exchange(lab, "machine", "container")
            _exchange(lab, "machine", "machine")
            found = json.loads(daemon.omniverb("vnic", "list", "--json"))["vnics"]
            machine = next(vnic for vnic in found if vnic["name"] == f"vm-{NAME}")
            check(machine[what], f"{machine}")
        finally:
            daemon.omniverb("vnic", "set", f"vm-{NAME}", f"--{what}", "none")
    return run


def _captured(lab):
    """What the machine's device sends and receives."""
    path = pathlib.Path(lab.machine.folder.name, "capture")
    capture = process.start(
        [*lab.host.switch.enter(), lab.stage.dist / "bin" / "omniverb", "capture", "-i",
         f"vm-{NAME}", "-w", path], stderr=subprocess.PIPE, text=True,
        env=environment(OMNIVERB_SOCKET=lab.host.daemon.socket))
    try:
        process.until(lambda: path.exists() and path.stat().st_size, 10, "a capture to begin")
        _exchange(lab, "container", "machine")
    finally:
        capture.send_signal(signal.SIGINT)
        text = capture.communicate(timeout=20)[1]
    found = re.search(r"(\d+) packets captured", text)
    # Messages of four packets, both ways.
    check(capture.returncode == 0 and found and int(found.group(1)) >= 50 * 2 * 4, text)


def few():
    """What another kernel or another QEMU may change."""
    return [("listed", _listed), *((row[0], _by_address("machine", "container", row))
                                   for row in _BY_ADDRESS)]


def cases():
    """Those of one machine."""
    found = [Case("machines.listed", _listed, 60)]
    for server, client in (("machine", "container"), ("container", "machine")):
        found += [Case(f"machines.{row[0]}, {client} to {server}", _by_address(server, client, row),
                       180) for row in _BY_ADDRESS]
    return [*found,
            Case("machines.rping IPv6, container to machine",
                 _by_address("machine", "container", _BY_ADDRESS[0], ADDRESS_6), 180),
            Case("machines.ibv_rc_pingpong -c -e IPv6, machine to container",
                 _over_six("container", "machine", "rc", "-c", "-e"), 120),
            Case("machines.ibv_xsrq_pingpong", _xrc, 120),
            Case("machines.dead", _dead, 120),
            Case("machines.limited", _set("rate", "20mbit"), 120),
            Case("machines.faulty", _set("faults", "loss=2%,duplicate=2%"), 120),
            Case("machines.captured", _captured, 120),
            Case("machines.filled", _filled, 180)]


def groups():
    """None of their own."""
    return []
