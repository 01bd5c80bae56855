"""Runs rdma-core's own test suite (Debian's python3-pyverbs), unmodified, against our library.

What does not run is in a list with its reason (tests/conformance): nothing else may skip itself,
and none may fail. It runs as root in a container and as an ordinary user, direct and forwarded; and
where the network loses, reorders and delays packets, without those tests that cannot bear that by
what they test: of datagrams, which nobody repeats. `make soak` runs it in a virtual machine, too.
"""

import contextlib
import functools
from types import SimpleNamespace

from harness import program_placements, process
from harness.case import CARRIED, WAITS, Case, Group, check
from harness.containers import Pair
from harness.rdma_core_suites import Suite, debian, judge, unreliable
from harness.unprivileged_daemon import PlainPair
from harness.virtual_machines import Device

from cases.forwarded_datapath import forwarding

STORED = "skipped-debian-44.toml"
_CONTAINER = functools.partial(Pair, count=1)
# How many of all must run.
RUN = 142
# Name, fixture, forwarded.
_SETTINGS = (
    ("containers", _CONTAINER, False),
    ("user", PlainPair, False),
    ("containers.forwarded", _CONTAINER, True),
    ("user.forwarded", PlainPair, True),
)
# Neither virtual machines nor vNICs of virtual networks join multicast groups.
MULTICAST = tuple(f"test_rdmacm.CMTestCase.test_rdmacm_async_{name}multicast_traffic"
                  for name in ("", "ex_", "ex_leave_"))
_FAULTS = "loss=2%,reorder=2%,delay=1ms"
# Thousands of messages of XRC, each of which waits for the one before and for a timeout when it is
# lost: twenty seconds each. The others of XRC are many enough for every day.
_LONG = (
    "test_cqex.CqExTestCase.test_xrc_traffic_cq_ex", "test_odp.OdpTestCase.test_odp_xrc_traffic",
    "test_qpex.QpExTestCase.test_qp_ex_xrc_send", "test_qpex.QpExTestCase.test_qp_ex_xrc_send_imm",
    "test_relaxed_ordering.RoTestCase.test_ro_xrc_traffic",
)


@contextlib.contextmanager
def _suite(stage, pair, forwarded):
    arguments = forwarding(stage) if forwarded else ()
    with pair(stage, daemon_arguments=arguments) as made:
        made.suite = Suite(stage, "debian-44", debian())
        yield made


def _case(name, limit=240, omitted=(), slow=False):
    def run(pair):
        judge(pair.suite.run(pair.server, limit=limit, omitted=omitted), STORED,
              RUN - len(omitted), omitted)
    return Case(f"pyverbs.{name}", run, limit + 10, slow)


@contextlib.contextmanager
def _in_machine(stage):
    """The same suite, whose programs are those of this host, with another kernel."""
    suite = Suite(stage, "debian-44", debian())
    with program_placements.alone(stage) as machine:
        yield SimpleNamespace(server=Device(machine), suite=suite)


def under_faults(pair, stored, least, limit, but=()):
    """The suite of a container whose network is bad, `but` these tests, and those that are
    `unreliable`."""
    omitted = [*unreliable(stored), *but]
    # A device that stays while the suite runs: what was done to packets is counted so long.
    beside = pair.server.start("ibv_rc_pingpong", "-p", "18500")
    try:
        process.until(lambda: pair.daemon.vnic(pair.server.namespace), 20, "a vNIC")
        pair.daemon.set_vnic(pair.server.namespace, "--faults", _FAULTS)
        found = pair.suite.run(pair.server, limit=limit, omitted=omitted)
        done = pair.daemon.vnic(pair.server.namespace)["injected"]
        print(done)
        judge(found, stored, least - len(omitted), omitted)
        check(done and done["lost"] and done["reordered"], f"{done}")
    finally:
        process.end(beside)


def _under_faults(but):
    return lambda pair: under_faults(pair, STORED, RUN, 400, but)


def groups():
    """The suite in each setting, and where the network is bad."""
    found = [Group(f"pyverbs.{name}", [_case(name)],
                   functools.partial(_suite, pair=pair, forwarded=forwarded), weight=WAITS)
             for name, pair, forwarded in _SETTINGS]
    fixture = functools.partial(_suite, pair=_CONTAINER, forwarded=False)
    cases = [Case("pyverbs.faults", _under_faults(_LONG), 420),
             Case("pyverbs.faults all", _under_faults(()), 420, slow=True)]
    in_machine = [_case("machine", 2400, MULTICAST, True)]
    found.append(Group("pyverbs.machine", in_machine, _in_machine, weight=WAITS))
    return [*found, Group("pyverbs.faults", cases, fixture, weight=CARRIED)]
