"""Tests programs on a bad network, as `omniverb vnic set NAME --faults` makes it."""

import contextlib
import time
from dataclasses import replace

from harness import client_server, process
from harness.case import CROWDS, Case, Failure, Group, check
from harness.containers import Pair
from harness.simulated_host import Host, Hosts

from cases.rdma_between_hosts import program, quiet
from cases.network_failures import paths, reach

# Everything at once, and loss alone: unreliable datagrams are doubled and reordered by a network
# that does so.
_ALL = "loss=2%,duplicate=1%,reorder=2%,corrupt=1%,mark=1%,delay=100us,jitter=50us,seed=7"
_LOSS = "loss=5%,seed=7"


class _Ends:
    """The two vNICs of a pair of containers, and who serves them."""

    def __init__(self, *ends):
        self.ends = ends

    def set(self, faults):
        """The same faults in both directions."""
        for daemon, namespace in self.ends:
            daemon.set_vnic(namespace, "--faults", faults)

    def listed(self):
        """What is shown of both."""
        return [daemon.vnic(namespace) for daemon, namespace in self.ends]

    def injected(self):
        """What was done to packets, by kind, at both together, once both have had faults."""
        found = [vnic["injected"] or {} for vnic in self.listed()]
        return {kind: sum(one[kind] for one in found) for kind in found[0]} if all(found) else {}


@contextlib.contextmanager
def _bad(stage, faults):
    with Hosts(stage) as hosts:
        hosts.gid_index = client_server.gid_index(hosts.server)
        hosts.ends = _Ends((hosts.a.daemon, hosts.server.namespace),
                           (hosts.b.daemon, hosts.client.namespace))
        hosts.ends.set(faults)
        yield hosts


def _everything(stage):
    return _bad(stage, _ALL)


def _loss(stage):
    return _bad(stage, _LOSS)


def _none(stage):
    return _bad(stage, "none")


def _renamed(group, *cases):
    return [Case(case.name.replace("wire.", f"{group}.", 1), case.run, case.limit)
            for case in cases]


def _perftest(name, *options):
    def run(hosts):
        outcome = client_server.run(hosts, name, "-F", *options, limit=100)
        check(client_server.rows(outcome.client, 5), outcome.client)
    return Case(f"faults.{name} {' '.join(options)}", run, 110)


def _pingpong(hosts):
    for name in ("rc", "srq"):
        for _ in range(4):
            try:
                outcome = client_server.run(hosts, f"ibv_{name}_pingpong", "-g", hosts.gid_index,
                                            "-c", "-s",
                                   65537, "-n", 200)
                break
            except Failure as failure:
                # Who is done first goes; if the last acknowledgement it sent was lost, nobody
                # repeats it, on any network.
                check("iters in" in str(failure) and "counter exceeded" in str(failure), failure)
        else:
            raise Failure(f"ibv_{name}_pingpong fails again and again")
        check("iters in" in outcome.client and "invalid data" not in outcome.client,
              outcome.client)


def _as_often_as_said(hosts):
    """What is shown is what was set, and what was done is about that often."""
    with client_server.going_on(hosts, "ib_send_bw", "-b"):
        done = process.until(lambda: hosts.ends.injected().get("packets", 0) > 20_000 and
                             hosts.ends.injected(), 50, "20,000 packets")
        print(done)
        packets = done["packets"]
        for kind, percent in (("lost", 2), ("duplicated", 1), ("reordered", 2), ("corrupted", 1),
                              ("marked", 1)):
            got = 100 * done[kind] / packets
            check(percent / 1.5 < got < percent * 1.5, f"{kind}: {got:.2f}%, not {percent}%")
        check([vnic["faults"] for vnic in hosts.ends.listed()] == [_ALL] * 2,
              f"{hosts.ends.listed()}")
        text = hosts.a.daemon.omniverb("status")
        check(f"FAULTS {_ALL}" in text, text)
        check(f"given faults: {_ALL}" in hosts.a.daemon.log(), hosts.a.daemon.log())


# ---- for a while ----

def _ends_at_once(hosts):
    """Nothing passes; then everything does, at once, and nobody is told of an error."""
    # Retries last for 17 s: longer than the commands take.
    with client_server.going_on(hosts, "ib_write_bw", "-s", "65536", "-u", "19") as running:
        process.until(lambda: _counted(hosts)[0] > 1000, 20, "packets")
        hosts.ends.set("loss=100%")
        stuck = process.until(lambda: hosts.ends.injected().get("packets", 0) > 0 and
                              hosts.ends.injected(), 20, "packets that are lost")
        check(stuck["packets"] == stuck["lost"] > 0, f"{stuck}")
        hosts.ends.set("none")
        check([vnic["faults"] for vnic in hosts.ends.listed()] == [None] * 2,
              f"{hosts.ends.listed()}")
        # Counters do not go back.
        check(hosts.ends.injected()["lost"] >= stuck["lost"], f"{hosts.ends.injected()}")
        # What was lost is asked for again soon. On a busy machine some are late rather than lost.
        for _ in range(3):
            before = _counted(hosts)
            process.until(lambda before=before: _counted(hosts)[0] > before[0] + 10_000, 30,
                          lambda: f"10,000 packets\n{running.text(1)}")
            sent, resent = (after - was for after, was in zip(_counted(hosts), before))
            print(f"afterwards {sent} packets were sent, {resent} of them again")
            if resent < sent / 20:
                break
        check(resent < sent / 20, f"{resent} of {sent} packets sent again")
    quiet(hosts)


def _counted(hosts):
    """Packets that were sent, and those that were sent again."""
    time.sleep(0.2)  # the counters are that old
    found = [peer["packets"] for daemon in hosts.daemons for qp in daemon.queue_pairs()
             for peer in qp["peers"] if peer["packets"]]
    return [sum(packets[kind] for packets in found) for kind in ("sent", "resent")]


def _late(hosts):
    """Packets are late by what was said, in both directions, and those that are under way when it
    ends are not lost."""
    def least():
        """One way, in microseconds; most take longer where others have the processors."""
        outcome = client_server.patiently(client_server.run, hosts, "ib_send_lat", "-F", "-n",
                                          "200", limit=50)
        return next(iter(client_server.rows(outcome.client, 9).values()))[2]
    hosts.ends.set("delay=3ms,jitter=1ms")
    slow = least()
    hosts.ends.set("none")
    quick = least()
    print(f"{slow} us with 3 ms, {quick} us without")
    check(2000 <= slow < 8000 and quick < slow / 2, f"{slow} us with 3 ms, {quick} us without")


def _bounded(hosts):
    """Delayed packets take no more memory than the limit says; the rest is lost."""
    def resident():
        with open(f"/proc/{hosts.a.daemon.pid}/status", encoding="utf-8") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1024
    hosts.ends.set("delay=5s,limit=500")
    before = resident()
    # Sends as fast as it is allowed, whether or not anything arrives.
    running = client_server.Duet(hosts, ["ib_send_bw", "-F", "-c", "UD", "-D",
                                         str(client_server.ENDLESS)])
    try:
        done = process.until(lambda: hosts.ends.injected().get("dropped", 0) > 500 and
                             hosts.ends.injected(), 30, "packets over the limit")
        print(done, before, resident())
        check(resident() - before < 16, f"{before} MiB, then {resident()}")
    finally:
        hosts.ends.set("none")
        running.abort()
    quiet(hosts)


def _mistakes(hosts):
    """The option is named, and what is wrong with its value; nothing changes."""
    for words, why in ((["--faults"], "a value is required"),
                       (["--faults", "loss=200%"], "100%"), (["--faults", "los=1%"], '"los"'),
                       (["--faults", "delay=5"], '"5"'),
                       (["--faults", "delay=1ms,jitter=2ms"], "longer than the delay"),
                       (["--faults", "loss=1%", "--faults", "none"], "multiple times")):
        text = hosts.a.daemon.set_vnic(hosts.server.namespace, *words, accept=(2,))
        check(text.startswith("error: ") and "--faults" in text and why in text, text)
        check(hosts.a.daemon.vnic(hosts.server.namespace)["faults"] is None, f"{words}")
    text = hosts.server.run("omniverb", "vnic", "set", f"pid:{hosts.server.pid}", "--faults",
                            "loss=1%", accept=(1,), plain=True)
    check("no socket for operators" in text, f"a container sets faults: {text}")


# ---- on one host ----

@contextlib.contextmanager
def _pair(stage):
    with Pair(stage) as pair:
        pair.gid_index = client_server.gid_index(pair.server)
        pair.ends = _Ends(*((pair.daemon, side.namespace) for side in (pair.server, pair.client)))
        yield pair


def _forwarded(pair):
    """Direct links have no packets, so connections of a vNIC with faults are forwarded."""
    pair.ends.set(_ALL)
    try:
        with client_server.going_on(pair, "ib_send_bw", "-b"):
            done = process.until(lambda: pair.ends.injected().get("corrupted", 0) > 10 and
                                 pair.ends.injected(), 30, "damaged packets")
            print(done)
            check(all(done[kind] for kind in ("lost", "duplicated", "reordered")), f"{done}")
            ways = paths(pair.daemon, "ib_send_bw")
            check(len(ways) == 2 and all(path == "forwarded" and "faults" in why
                                         for path, why in ways), f"{ways}")
        _pingpong(pair)
    finally:
        pair.ends.set("none")
    with client_server.going_on(pair, "ib_send_lat"):
        reach([pair.daemon], "ib_send_lat", "direct")


def _configured(stage):
    """From the configuration, within one network namespace, as a build machine would."""
    file = stage.folder("configuration") / "omniverbd.toml"
    file.write_text('[vnic.host]\nfaults = "loss=3%,corrupt=1%,seed=5"\n')
    host = Host(stage, "h", arguments=["--config", file])
    try:
        place = host.bare(host.switch, "127.0.0.1")
        sides = type("Sides", (), {"server": place, "client": place})
        with client_server.going_on(sides, "ib_write_bw", "-s", "8192"):
            vnic = process.until(lambda: (host.daemon.vnic(host.switch) or {}).get("injected") and
                                 host.daemon.vnic(host.switch), 20, "packets with faults")
            check(vnic["faults"] == "loss=3%,corrupt=1%,seed=5", f"{vnic}")
            process.until(lambda: host.daemon.vnic(host.switch)["injected"]["lost"] > 0, 20,
                          "a loss")
    finally:
        host.close()


def groups():
    """Two hosts, one of which hears badly, and so does the other."""
    return [
        Group("faults.all", [
            *_renamed("faults", program("soak.two_processes", 60_000, 21, limit=150),
                      program("soak.two_processes", 40_000, 22, 1, 1, limit=100,
                              title=" one_pair"),
                      program("soak.two_processes", 5_000, 23, 1, 1, 8 << 20, limit=150,
                              title=" large"),
                      program("two_process_transport.lengths_around_the_mtu", limit=120),
                      program("two_process_transport.sequence_numbers_wrap", limit=120),
                      program("two_process_transport.reads_and_atomics_under_way"),
                      program("two_process_transport.receiver_not_ready"),
                      program("remote_keys.deregistered_under_way", 1, limit=150)),
            *[replace(case, slow=True) for case in _renamed("faults", program(
                "remote_keys.deregistered_under_way", 20, limit=900, title=" 20"))],
            Case("faults.pingpong", _pingpong, 120),
            _perftest("ib_write_bw", "-s", "65536", "-n", "500"),
            _perftest("ib_read_bw", "-s", "65536", "-n", "300"),
            _perftest("ib_send_bw", "-b", "-s", "8192", "-n", "1000"),
            _perftest("ib_atomic_bw", "-n", "500"),
            Case("faults.as_often_as_said", _as_often_as_said, 90),
        ], _everything, weight=CROWDS),
        Group("faults.loss", _renamed(
            "faults", program("unreliable_messages.connected", 2000, 50, 99),
            program("unreliable_messages.datagrams", 2000, 85, 99)), _loss),
        Group("faults.set", [
            Case("faults.ends_at_once", _ends_at_once, 150), Case("faults.late", _late, 150),
            Case("faults.bounded", _bounded, 90), Case("faults.mistakes", _mistakes),
        ], _none),
        Group("faults.forwarded", [Case("faults.forwarded", _forwarded, 120)], _pair),
        Group("faults.configured", [Case("faults.configured", lambda stage: _configured(stage))],
              lambda stage: contextlib.nullcontext(stage)),
    ]
