#!/usr/bin/python3
"""Implements `make demo-tenants`: containers of two owners on two hosts, put into their tenants by
rules, refused across, and limited while they run.

The hosts are network namespaces of this machine, each with a daemon of its own."""

import os
import re
import sys
import time
from types import SimpleNamespace

from demo import ROOT, say_host
from report import RULE, fact, paragraph, quiet, read_options, say, shell

sys.path.insert(0, str(ROOT / "tests"))
sys.dont_write_bytecode = True

from harness import client_server, process  # noqa: E402
from harness.case import Failure  # noqa: E402
from harness.simulated_host import Hosts  # noqa: E402
from harness.staging import Stage  # noqa: E402

# Which containers are whose: the numbers of addresses from 1, and from 17.
RULES = """
[tenant.blue]
[tenant.red]

[[container]]
address = "10.77.0.0/28"
tenant = "blue"
name = "blue-{address}"

[[container]]
address = "10.77.0.16/28"
tenant = "red"
name = "red-{address}"
"""
# Rates that are set while a program sends, in Mbit/s, and the seconds between two points.
RATES, STEP = [80, 20, 50], 0.5
WIDTH = 44
# Seconds with each rate.
SECONDS, QUICK_SECONDS = 4, 1.5


def main():
    is_quick = read_options(__doc__)
    if os.geteuid() != 0:
        sys.exit("the demo makes containers: run it as root")
    started = time.monotonic()
    say(RULE)
    say("Omniverb: two owners on two hosts, which do not reach each other")
    say(RULE)
    paragraph("Each host has containers of the tenants blue and red. Two rules in omniverbd.toml "
              "say which addresses belong to which tenant; no container is named, and none is "
              "changed.")
    say()
    say_host()
    stage = Stage(with_programs=False)
    try:
        file = stage.folder("configuration") / "omniverbd.toml"
        file.write_text(RULES)
        arguments = ["--config", file]
        with Hosts(stage, arguments=(arguments, arguments)) as hosts:
            run(hosts, is_quick)
    finally:
        stage.close()
        process.end_descendants()
    say(f"\n{time.monotonic() - started:.0f} seconds. More of it: docs/operator/tenants.md")


def run(hosts, is_quick):
    """All of it, with two hosts that have a container of blue each."""
    places = {"blue a": [hosts.server, hosts.a.add(3)], "red a": [hosts.a.add(17), hosts.a.add(19)],
              "blue b": [hosts.client], "red b": [hosts.b.add(18)]}
    fact("rules", '10.77.0.0/28 is blue, 10.77.0.16/28 is red')
    for name, found in places.items():
        fact(name, ", ".join(place.address for place in found) + f" on host {name[-1]}")
    see(hosts.a)
    inside(places, 200 if is_quick else 5000)
    across(places)
    limited(hosts, QUICK_SECONDS if is_quick else SECONDS)


def see(host):
    """Devices are there before any program."""
    process.until(lambda: len(host.daemon.vnics()) >= 4, 20, "devices of four containers")
    rows = [f"{vnic['object']:20} tenant {vnic['tenant']:6} processes {vnic['processes']}"
            for vnic in host.daemon.vnics() if vnic["object"]]
    shell(f"host {host.name}", "omniverb vnic list    (before any program has run)", rows)


def pair(server, client):
    """Two containers, as perftest's server and client."""
    return SimpleNamespace(server=server, client=client)


def inside(places, iterations):
    """Within a tenant all is as without tenants."""
    say("\nInside a tenant: ib_write_lat with 8 bytes, half a round trip")
    for tenant in ("blue", "red"):
        one, other = places[f"{tenant} a"]
        far = places[f"{tenant} b"][0]
        for client, where in ((other, "same host, through shared memory"),
                              (far, "two hosts, over RoCE v2")):
            outcome = client_server.run(pair(one, client), "ib_write_lat", "-F", "-s", "8", "-n",
                                        str(iterations), limit=60)
            typical = client_server.rows(outcome.client, 6)[8][4]
            say(f"  {tenant:5} {client.address:11} to {one.address:11} {float(typical):8.2f} us  "
                f"{where}")


def across(places):
    """Between tenants nothing passes."""
    say("\nAcross tenants: ib_write_bw from red to blue, on one host")
    blue, red = places["blue a"][0], places["red a"][0]
    begun = time.monotonic()
    running = client_server.Duet(pair(blue, red), ["ib_write_bw", "-F", "-s", "8", "-n", "100"])
    status = running.client.wait(60)
    running.server.kill()
    text = running.text(1)
    if status == 0 or "status 12" not in text:
        raise Failure(f"red reached blue: {text}")
    say(f"  {red.address} to {blue.address}: RETRY_EXC_ERR after "
        f"{time.monotonic() - begun:.1f} s, as of an address that does not exist")
    paragraph("  The network itself lets them: ping and TCP between the two work, since a tenant "
              "is about RDMA.")
    knock = "import socket,sys\ntry: socket.create_connection((sys.argv[1], 9), 2)\n" \
            "except ConnectionRefusedError: print('the other container answers')"
    told = process.run([*red.namespace.enter(), sys.executable, "-c", knock, blue.address])
    shell(red.address, f"a TCP connection to {blue.address}", told.splitlines())


def limited(hosts, seconds):
    """A rate that is changed while a program sends."""
    name = f"blue-{hosts.server.address}"
    say(f"\nA rate, changed while ib_write_bw sends from {hosts.server.address} to the other host")
    set_rate(hosts.a, name, RATES[0])
    total = round(seconds * len(RATES)) + 3
    # The client sends: it is on host a.
    running = client_server.Duet(pair(hosts.client, hosts.server),
                                 ["ib_write_bw", "-F", "-s", "16384", "-t", "32", "-D", str(total)])
    try:
        process.until(lambda: sent(hosts.server) > 0 and flows(hosts.server), 30, "data")
        time.sleep(STEP)
        for rate in RATES:
            set_rate(hosts.a, name, rate)
            shell("host a", f"omniverb vnic set {name} --rate {rate}mbit", [])
            curve(hosts.server, rate, seconds)
    finally:
        running.abort()


def set_rate(host, name, rate):
    """What `omniverb vnic set` does, while it runs."""
    host.daemon.omniverb("vnic", "set", name, "--rate", f"{rate}mbit", "--burst", "32k")


def sent(place):
    """Bytes that a container's interface has sent."""
    text = open(f"/proc/{place.namespace.pid}/net/dev", encoding="ascii").read()
    return int(re.search(r"eth0:\s*(.*)", text).group(1).split()[8])


def flows(place):
    """Whether much is sent now."""
    before = sent(place)
    time.sleep(0.1)
    return sent(place) - before > 100_000


def curve(place, rate, seconds):
    """A line for each point: what left the container, and where the limit is."""
    scale = max(RATES) * 1.2 / WIDTH
    before, then = sent(place), time.monotonic()
    for _ in range(round(seconds / STEP)):
        time.sleep(STEP)
        now, after = time.monotonic(), sent(place)
        found = (after - before) * 8 / (now - then) / 1e6
        before, then = after, now
        bar = "#" * min(WIDTH, round(found / scale))
        limit = round(rate / scale)
        line = bar.ljust(limit)[:limit] + "|" + bar[limit:]
        say(f"    {found:6.0f} Mbit/s {line}")


if __name__ == "__main__":
    try:
        process.become_subreaper()
        with quiet():
            main()
    except Failure as failure:
        process.end_descendants()
        sys.exit(f"demo: {failure}")
