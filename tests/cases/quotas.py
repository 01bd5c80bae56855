"""Tests that a greedy client gets ENOMEM, and that others do not notice."""

import contextlib
import json
import subprocess
import time

from harness import client_server, process
from harness.case import WAITS, Case, Group, check
from harness.containers import Pair

from cases.c_programs import tests_of


@contextlib.contextmanager
def _fixture(stage):
    with Pair(stage, count=3) as pair:
        pair.greedy = pair.containers[1]
        yield pair


def _exhaust(test):
    def run(pair):
        before = pair.daemon.totals()
        greedy = pair.greedy.start("/opt/programs/quota_exhaustion", test, stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        line = greedy.stdout.readline()
        print(line)
        check(", then " in line, line + (greedy.stdout.read() if greedy.poll() else ""))
        client_server.run(pair, "ibv_rc_pingpong", "-g", client_server.gid_index(pair.server), "-c")
        client_server.run(pair, "ib_write_bw", "-F", "-q", "8", "-n", "500")
        output = greedy.communicate("", timeout=60)[0]
        check(greedy.returncode == 0, line + output)
        process.until(lambda: pair.daemon.totals() == before, 20,
                      f"tables as before: {before}, now {pair.daemon.totals()}")
    return run


_HALF_OPEN = """
import socket, sys
held = []
try:
    while len(held) < 60000:
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        s.setblocking(False)
        s.connect(sys.argv[1])
        held.append(s)
except OSError as error:
    print(error)
print(len(held), "connections", flush=True)
sys.stdin.read()
"""


def _half_finished_handshakes(pair):
    before = process.settled(lambda: process.descriptors(pair.daemon.pid))
    greedy = pair.greedy.start("/usr/bin/python3", "-c", _HALF_OPEN,
                               "/run/omniverb/omniverbd.sock", plain=True, stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print(greedy.stdout.readline())
    client_server.run(pair, "ibv_rc_pingpong", "-g", client_server.gid_index(pair.server), "-c")
    held = process.descriptors(pair.daemon.pid) - before
    check(held < 5000, f"the daemon holds {held} descriptors for one container")
    greedy.communicate("", timeout=30)
    process.until(lambda: process.descriptors(pair.daemon.pid) <= before, 15,
                  lambda: f"{before} descriptors, now {process.descriptors(pair.daemon.pid)}")


_NOISE = """
import os, socket, sys, random
random.seed(1)
for turn in range(3000):
    s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    s.connect(sys.argv[1])
    s.settimeout(1)
    try:
        for _ in range(random.randrange(1, 4)):
            body = os.urandom(random.randrange(0, 300))
            if random.random() < 0.5:
                body = bytes([1, 0, random.randrange(0, 45), 0]) + bytes(4) + body
            fds = [0, 1, 2][:random.randrange(0, 4)]
            socket.send_fds(s, [body], fds)
    except OSError:
        pass
    s.close()
"""


def _noise_on_the_socket(pair):
    before = process.settled(lambda: process.descriptors(pair.daemon.pid))
    pair.greedy.run("/usr/bin/python3", "-c", _NOISE, "/run/omniverb/omniverbd.sock", plain=True,
                    limit=60)
    client_server.run(pair, "ibv_rc_pingpong", "-g", client_server.gid_index(pair.server), "-c")
    process.until(lambda: process.descriptors(pair.daemon.pid) <= before + 2, 15,
                  lambda: f"{before} descriptors, now {process.descriptors(pair.daemon.pid)}")


def _control_rate(pair):
    """A policy holds one container to its rate of queue pairs, and to a number of them; others and
    what is set anew are not held up, and a daemon that comes back knows it."""
    omniverb = pair.daemon.omniverb
    omniverb("policy", "create", "small", "--control-rate", "1k/s", "--qp-rate", "50/s",
             "--queue-pairs", "30")
    # Its vNIC is there for as long as a process has the device open.
    watch = pair.greedy.start("ibv_asyncwatch", stdout=subprocess.PIPE, text=True)
    check(watch.stdout.readline(), "no device")
    pair.daemon.set_vnic(pair.greedy.namespace, "--policy", "small")
    try:
        shown = json.loads(omniverb("policy", "show", "small", "--json"))
        wanted = {"control_rate": "1000/s", "qp_rate": "50/s", "queue_pairs": 30}
        check(shown["fields"] == wanted, f"{shown}")
        vnic = pair.daemon.vnic(pair.greedy.namespace)
        check([vnic[key] for key in wanted] == [1000, 50, 30], f"{vnic}")
        begun = time.monotonic()
        greedy = pair.greedy.start("/opt/programs/quota_exhaustion", "queue_pairs",
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True)
        client_server.run(pair, "ibv_rc_pingpong", "-g", client_server.gid_index(pair.server), "-c")
        line = greedy.stdout.readline()
        took = time.monotonic() - begun
        check(line.startswith("30 QPs, then Cannot allocate memory"), line)
        # Six at once at most, the others one every 20 ms: it can take longer, not less.
        check(took > 23 / 50, f"{took} s")
        greedy.communicate("", timeout=60)
        pair.daemon.kill()
        pair.daemon.start()
        shown = json.loads(omniverb("policy", "show", "small", "--json"))
        check(shown["fields"] == wanted, f"{shown}")
        omniverb("policy", "set", "small", "--qp-rate", "none", "--queue-pairs", "40")
        greedy = pair.greedy.start("/opt/programs/quota_exhaustion", "queue_pairs",
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT, text=True)
        line = greedy.stdout.readline()
        check(line.startswith("40 QPs, then Cannot allocate memory"), line)
        greedy.communicate("", timeout=60)
        text = omniverb("policy", "set", "small", "--qp-rate", "0/s", accept=(2,))
        check("1/s to 1000000/s" in text, text)
    finally:
        watch.kill()
        watch.wait()
        vnics = [row["name"] for row in json.loads(omniverb("vnic", "list", "--json"))["vnics"]
                 if row.get("object")]
        for name in vnics:
            omniverb("vnic", "delete", name)
        omniverb("policy", "delete", "small")


def groups():
    """One greedy container, two that want to work."""
    cases = [Case(f"quotas.{test}", _exhaust(test), 180) for test in tests_of("quota_exhaustion")]
    cases.append(Case("quotas.control_rate", _control_rate, 90))
    cases.append(Case("quotas.half_finished_handshakes", _half_finished_handshakes))
    cases.append(Case("quotas.noise_on_the_socket", _noise_on_the_socket, 90))
    return [Group("quotas", cases, _fixture, weight=WAITS)]
