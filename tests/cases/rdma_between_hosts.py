"""Tests RDMA between two hosts, each with its own network, daemon and container, joined by a veth.

The programs are the ones that run on one host too (debian_verbs_programs.py); the C programs
have their second process on the other host."""

import contextlib
import subprocess

from harness import client_server, process
from harness.case import CROWDS, Case, Group, check
from harness.daemon import forgotten
from harness.simulated_host import Hosts

from cases import debian_verbs_programs
from cases.c_programs import tests_of
from cases.system_calls_and_cpu_time import idle_processes


def quiet(hosts):
    """Both daemons must have forgotten everything but the network."""
    forgotten(hosts.daemons, 20)


def soaking(place, *arguments):
    """Traffic that is checked byte for byte, until it has been `soaked`."""
    return place.start("/opt/programs/soak", "two_processes", 0, *arguments, stdin=subprocess.PIPE,
                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def soaked(soak):
    """What it prints, which must have gone on until now; it is told to end."""
    has_ended = soak.poll() is not None
    text = process.finish(soak, 60)
    check(soak.returncode == 0 and "ok two_processes" in text and not has_ended, text)
    return text


# Eight times 0.7 s instead of 0.2: a program that waits for a processor longer than its peer's
# retries last is no failure of a wire, and here two daemons and up to 65 programs want one.
_PATIENCE = {"TEST_TIMEOUT": 17}
# But where it is waited for that they are over.
_BRIEF = {"TEST_TIMEOUT": 14}


def program(name, *arguments, limit=60.0, title="", settings=(), peers=lambda hosts: ()):
    """A test of tests/programs with its second process on the other host."""
    file, test = name.split(".")

    def run(hosts):
        place = hosts.apart(*peers(hosts), **{**_PATIENCE, **dict(settings)})
        print(place.run(f"/opt/programs/{file}", test, *arguments, limit=limit))
        quiet(hosts)
    return Case(f"wire.{name}{title}", run, limit + 15)


_SIX = {"TEST_IPV6": 1}

# Programs that are not in perftest's matrix: what their second process checks, and what travels.
_PROGRAMS = [
    program("soak.two_processes", 150_000, 1, limit=150),
    program("soak.two_processes", 60_000, 2, 2, 4, limit=90, title=" ipv6", settings=_SIX),
    program("soak.two_processes", 6_000, 3, 1, 1, 8 << 20, limit=120, title=" large"),
    program("payload_in_place.sources", 120),
    *[program(f"two_process_transport.{test}") for test in tests_of("two_process_transport")],
    program("two_process_transport.lengths_around_the_mtu", title=" ipv6", settings=_SIX),
    program("two_process_transport.datagrams", title=" ipv6", settings=_SIX),
    *[program(f"unreliable_messages.{test}") for test in tests_of("unreliable_messages")],
    *[program(f"memory_windows.{test}") for test in tests_of("memory_windows")],
    *[program(f"xrc.{test}") for test in tests_of("xrc")],
    *[program(f"xrc_across_processes.{test}") for test in tests_of("xrc_across_processes")],
    *[program(f"xrc_shared_qp.{test}", settings=_BRIEF) for test in tests_of("xrc_shared_qp")],
    program("multicast.two_processes"),
    program("multicast.last_words"),
    *[program(f"atomic_write_and_flush.{test}") for test in tests_of("atomic_write_and_flush")],
    program("imports_between_processes.all_operations"),
    *[program(f"dead_peer.{test}", 1, settings=_BRIEF) for test in tests_of("dead_peer")],
    *[program(f"completion_counters.{test}") for test in tests_of("completion_counters")],
    program("ethernet_addresses.neighbour"),
    *[program(f"unreachable_pages.{test}") for test in tests_of("unreachable_pages")],
    *[program(f"ece.{test}") for test in tests_of("ece")],
    program("nonpolling_receiver.receiver_asleep"),
    program("completion_events.ping_pong_asleep", 20_000),
    program("many_objects.clients_of_one_server", 64, 100, limit=120),
    *[program(f"remote_keys.{test}") for test in tests_of("remote_keys")
      if test != "key_of_another_process"],
]


def _another_tenant(hosts):
    """The victim is on host b, the owner of the key in another container there."""
    other = hosts.b.add(3)
    return (hosts.b.bare(hosts.client.namespace, hosts.client.address),
            hosts.b.bare(other.namespace, other.address))


_PROGRAMS.append(program("remote_keys.key_of_another_process", title=" another_tenant",
                         peers=_another_tenant))


def _over_ipv6(hosts):
    for name in ("rc", "uc", "ud", "srq"):
        text = hosts.server.run("ibv_devinfo", "-v")
        index = next(i for i in range(32) if f"GID[{i:3}]" in text and
                     text.split(f"GID[{i:3}]")[1].split()[1].startswith("fd77:"))
        outcome = client_server.run(hosts, f"ibv_{name}_pingpong", "-g", index, "-c", "-n", 200)
        check("iters in" in outcome.client and "invalid data" not in outcome.client,
              outcome.client)


def _idle(hosts):
    """Connected QPs without traffic: neither the processes nor the daemons use CPU."""
    idle_processes(hosts.apart(), hosts.daemons, most_switches=100)


def _most(daemon, counter):
    """What a daemon counted, for the QP with the most."""
    packets = [peer["packets"] for qp in daemon.queue_pairs() for peer in qp["peers"]]
    return max((found[counter] for found in packets if found), default=0)


def _mapped(hosts):
    """WRITEs and READs among everything else: the daemons execute them, not the target's
    process."""
    soak = soaking(hosts.apart(), 4)
    try:
        process.until(lambda: min(_most(daemon, "executed") for daemon in hosts.daemons) > 1000 or
                      soak.poll() is not None, 60, "operations executed by the daemons")
        print(soaked(soak))
    finally:
        process.end(soak)
    quiet(hosts)


def _in_place(hosts):
    """Large messages are sent from where they are, not out of the ring."""
    most = 0
    # A fast machine may be done before the daemons have been asked.
    for count in (2400, 24_000):
        held = hosts.apart().start("/opt/programs/payload_in_place", "sources", count,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        while held.poll() is None:
            most = max(most, *(_most(daemon, "in_place") for daemon in hosts.daemons))
        output = held.communicate()[0]
        check(held.returncode == 0, output)
        print(f"records without payload: {most}")
        if most > 100:
            return
    check(False, f"records without payload: {most}")


# Where a reply to a handshake says that it is one (host/control/src/handshake_probe_schedule.rs):
# behind the headers of UDP and transport.
_REPLIES = "udp dport 4791 @th,160,64 0x6f6d6e6976657232"


def _unheard(deaf):
    """One end (0: of the first host) hears no reply to its handshakes, and takes the other for
    plain RoCE, which knows what it is. All works, since each takes what the other may send."""
    def run(stage):
        # Fresh ones: what was heard is known for a while.
        with Hosts(stage) as hosts:
            (hosts.server, hosts.client)[deaf].namespace.nft(
                "add table inet test; "
                "add chain inet test arriving { type filter hook input priority 0; }; "
                f"add rule inet test arriving {_REPLIES} drop")
            soak = soaking(hosts.apart(**_PATIENCE), 61)
            seen = [set(), set()]

            def are_seen():
                for paths, daemon in zip(seen, hosts.daemons):
                    paths.update(qp["path"] for qp in daemon.queue_pairs() if qp["messages_sent"])
                return all(seen) or soak.poll() is not None
            try:
                process.until(are_seen, 60, "messages both ways")
                print(soaked(soak))
            finally:
                process.end(soak)
            check((seen[deaf], seen[1 - deaf]) == ({"roce"}, {"wire"}), f"{seen}")
            quiet(hosts)
    return run


@contextlib.contextmanager
def _hosts(stage):
    with Hosts(stage) as hosts:
        hosts.gid_index = client_server.gid_index(hosts.server)
        yield hosts


@contextlib.contextmanager
def _jumbo(stage):
    with Hosts(stage, mtu=9000) as hosts:
        hosts.gid_index = client_server.gid_index(hosts.server)
        check(debian_verbs_programs.mtu(hosts.server) == 4096, "the MTU of 9000 is not used")
        yield hosts


@contextlib.contextmanager
def _routed(stage):
    with Hosts(stage, routed=True) as hosts:
        hosts.gid_index = client_server.gid_index(hosts.server)
        yield hosts


def _few(setting):
    """A handful of programs, for other networks than the first."""
    wanted = ("rc_pingpong 1048576", "ud_pingpong mtu", "ib_write_bw -c RC -a",
              "ib_send_bw -c UD -a", "ib_send_bw -c UD -s 1024", "ib_read_bw -c RC -a",
              "ib_atomic_lat -A FETCH_AND_ADD")
    return [case for case in debian_verbs_programs.cases(setting, True)
            if case.name.split(".", 1)[1].removeprefix("ibv_") in wanted]


def groups():
    """Two hosts: the whole matrix at 1500 bytes, some of it with jumbo frames and routers."""
    more = [Case("wire.ipv6_pingpongs", _over_ipv6), Case("wire.idle", _idle),
            Case("wire.mapped", _mapped), Case("wire.in_place", _in_place)]
    programs = debian_verbs_programs.cases("wire", True)
    return [Group("wire.programs", programs, _hosts, weight=CROWDS),
            Group("wire.tests", _PROGRAMS + more, _hosts, weight=CROWDS),
            Group("wire.unheard",
                  [Case(f"wire.unheard by {who}", _unheard(deaf), 90)
                   for deaf, who in enumerate(("one", "the other"))],
                  contextlib.nullcontext, weight=CROWDS),
            Group("wire.jumbo", _few("wire-jumbo"), _jumbo, weight=CROWDS),
            Group("wire.routed", _few("wire-routed"), _routed, weight=CROWDS)]
