"""Tests OMNIVERB_LOG=warn: the libraries say why they refused, once for each place and reason."""

from harness.case import WAITS, Case, Group, check
from harness.containers import Pair
from harness.unprivileged_daemon import PlainPair

_MANNERS = ["/opt/programs/driver_conventions", "attributes_that_drivers_take_and_refuse"]
# What that program is refused, in parts of lines.
_REASONS = ["ibv_modify_qp: a value", "max_rd_atomic 0", "ibv_create_qp: type 0 is not offered"]
_WARN = ["/usr/bin/env", "OMNIVERB_LOG=warn"]


def _lines(place, *command):
    output = place.run(*command, limit=60, accept=range(256))
    return [line for line in output.splitlines() if line.startswith("omniverb: ")]


def _once(place, program, *reasons):
    """A program is told each of these once, and nothing twice."""
    lines = _lines(place, *_WARN, *program)
    for reason in reasons:
        check(sum(reason in line for line in lines) == 1, f"{reason}: {lines}")
    check(len(lines) == len(set(lines)), f"said twice: {lines}")


def _silent(pair):
    lines = _lines(pair.server, *_MANNERS)
    lines += _lines(pair.server, "/usr/bin/env", "OMNIVERB_LOG=nothing", *_MANNERS)
    lines += _lines(pair.server, "rping", "-c", "-a", "127.0.0.1", "-p", "9")
    check(not lines, f"{lines}")


def _is_told(program, *reasons, limit=70.0, name=None):
    """A case of a user's processes: this program is told these reasons."""
    name = name or (program[1] if program[0].startswith("/opt") else " ".join(program))
    return Case(f"why.{name}", lambda pair: _once(pair.server, program, *reasons), limit)


def _own(name, *arguments):
    return ["/opt/programs/refusal_messages", name, *arguments]


_TOLD = [
    _is_told(_MANNERS, *_REASONS),
    _is_told(_own("addresses_without_grh"), "an address without GRH"),
    _is_told(_own("faulty_requests"), "inline data beyond max_inline_data", "has no such opcode",
             "is not in RTS"),
    _is_told(_own("datagrams_to_nobody"), "no process there has such a queue pair for datagrams"),
    _is_told(_own("protection_domains"), "ibv_alloc_pd: a device has 32768 of these"),
    _is_told(["/opt/programs/quota_exhaustion", "queue_pairs"], "ibv_create_qp: over a quota",
             limit=100),
    _is_told(["/opt/programs/quota_exhaustion", "address_handles"],
             "ibv_create_ah: a device has 65536 of"),
    # Nobody there, an address of somebody else, a socket that nobody listens for.
    _is_told(["rping", "-c", "-a", "127.0.0.1", "-p", "9"],
             "no connection with 127.0.0.1:9: no process listens at that port"),
    _is_told(["rping", "-s", "-a", "203.0.113.5"],
             "rdma_bind_addr: no interface of this network namespace has the address"),
    _is_told(["rstream", "-s", "127.0.0.1", "-p", "9"],
             "no connection with 127.0.0.1:9: no process listens at that port"),
    # Over a quota is one thing, no daemon another.
    _is_told(["/usr/bin/env", "OMNIVERB_SOCKET=/nowhere", "rping", "-s"],
             "rdma_create_event_channel: there is no device: no daemon answers",
             name="rping without a daemon"),
]


def _unanswered(address):
    """What the daemon knows of who does not answer follows."""
    def run(pair):
        _once(pair.server, _own("a_peer_that_does_not_answer", address), "the peer does not answer",
              f"its way to queue pair 18193 at {address} is roce: no answer to the handshake")
    return run


def _forbidden(pair):
    """A rule of the peer's network that lets nothing pass: there is no consent."""
    pair.client.namespace.drop_udp(4791)
    try:
        _unanswered("10.77.0.2")(pair)
    finally:
        pair.client.namespace.drop_no_more()


def groups():
    """A user's daemon and processes; two containers."""
    cases = [*_TOLD, Case("why.silent_otherwise", _silent, 190)]
    far = [Case("why.no_consent", _forbidden, 100),
           Case("why.a_gid_of_nobody", _unanswered("10.77.0.99"), 100)]
    return [Group("why", cases, PlainPair, weight=WAITS), Group("why", far, Pair, weight=WAITS)]
