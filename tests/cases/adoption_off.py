"""Tests that no pages move where a vNIC or a process forbids it."""

import contextlib

from harness import client_server, process
from harness.case import WAITS, Case, Failure, Group, check
from harness.containers import Pair


@contextlib.contextmanager
def _fixture(stage):
    with Pair(stage) as pair:
        yield pair


def _operations(pair):
    """How many operations were mapped, and how many mediated, of all queue pairs there are."""
    found = pair.daemon.queue_pairs()
    return [sum(qp[f"operations_{kind}"] for qp in found) for kind in ("mapped", "mediated")]


def _grows(pair, kind, seconds=20):
    before = _operations(pair)[kind]
    process.until(lambda: _operations(pair)[kind] > before, seconds, "operations")


def _stays(pair):
    """Nothing is mapped any more, while messages travel."""
    def still():
        before = _operations(pair)[0]
        _grows(pair, 1)
        return _operations(pair)[0] == before
    process.until(still, 20, "nothing to be mapped")
    check(still() and still(), f"mapped: {_operations(pair)}")


def _set(pair, what, *containers):
    for container in containers:
        pair.daemon.set_vnic(container.namespace, "--adoption", what)


def _switched(which):
    """Owner or initiator are told to keep theirs while READs run."""
    def run(pair):
        try:
            with client_server.going_on(pair, "ib_read_bw", "-s", "65536"):
                _grows(pair, 0)
                _set(pair, "off", getattr(pair, which))
                _stays(pair)
                vnic = pair.daemon.vnic(getattr(pair, which).namespace)
                check(vnic["adoption"] == "off", f"{vnic}")
        finally:
            _set(pair, "exact", pair.server, pair.client)
    return Case(f"adoption.switched_off {which}", run, 100)


def _variable(pair):
    """A process can keep its own pages."""
    with client_server.going_on(pair, "ib_read_bw", "-s", "65536",
                                before=["env", "OMNIVERB_ADOPTION=off"]):
        _stays(pair)
        check(_operations(pair)[0] == 0, f"mapped: {_operations(pair)}")


def _wrong(pair):
    """What makes no sense is refused."""
    try:
        _set(pair, "sometimes", pair.server)
    except Failure:
        return
    raise Failure("adoption sometimes")


def groups():
    """One host, two containers."""
    return [Group("adoption", [
        _switched("server"), _switched("client"), Case("adoption.variable", _variable),
        Case("adoption.wrong", _wrong),
    ], _fixture, weight=WAITS)]
