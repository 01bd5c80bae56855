"""Tests multicast groups: Debian's mckey unmodified, and members that come and go.

What the verbs promise is in programs/multicast.c, rdma-core's own tests are in pyverbs.py."""

import re
import subprocess

from harness import notes, process
from harness.rdma_cm_client_server import Side
from harness.case import CROWDS, POLLS, Case, Group, Late, check
from harness.containers import Pair
from harness.simulated_host import Hosts
from harness.unprivileged_daemon import PlainPair

from cases.rdma_cm import daemons, forwarded, quiet

_UNREACHABLE = 113


def attachments(daemon):
    """How often queue pairs are attached to a group, by what the daemon shows of their links."""
    return sum(peer["qpn"] > 0xffffff for qp in daemon.queue_pairs() for peer in qp["peers"])


def is_member(place, group):
    """Whether the kernel is in the group at some interface."""
    return group in place.namespace.ip("maddr", "show").split()


def status_of(receiver, daemon, send_again):
    """The exit status of a receiver that was sent all that it waits for. Where it, or its sender,
    gets no processor for long a datagram may be lost: once more is sent then, which is named at the
    end of the run."""
    try:
        return receiver.wait(20)
    except Late:
        notes.add("a datagram to a group was lost")
        print(daemon.queue_pairs())
        send_again()
        return receiver.wait(40)


def _mckey(group, own=None, several=1):
    """Several receivers, each of which gets all that one sender sends."""
    def run(pair):
        address = own or (lambda place: place.address)
        words = ["mckey", "-m", group, "-c", "1", "-C", "50"]
        sides = []
        try:
            for place in [pair.server] * several:
                sides.append(Side(place, [*words, "-b", address(place)]))
            daemon = daemons(pair)[0]
            # The rows are there before the daemon has joined.
            process.until(lambda: (attachments(daemon) == several
                                   and is_member(pair.server, group))
                          or not all(side.is_there() for side in sides), 20, "members")
            def send():
                sides.append(Side(pair.client, [*words, "-b", address(pair.client), "-s"]))
                sides[-1].wait(60)
            send()
            for side in reversed(list(sides)):
                status = status_of(side, daemon, send)
                check(status == 0 and "test complete" in side.text(),
                      f"{process.how(status)}\n" + "\n---\n".join(s.text() for s in sides))
            print(sides[0].text())
        finally:
            for side in sides:
                side.end()
        quiet(pair)
    return run


class Member:
    """A process that is attached to groups as it is told; see TEST(member) of multicast.c."""

    def __init__(self, place, *variables):
        words = ["env", *variables, "/opt/programs/multicast", "member"]
        self.running = place.start(*words, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   text=True)
        check(self._line() == "ready", "no member")

    def _line(self):
        return self.running.stdout.readline().strip()

    def says(self, *words):
        """What it answers."""
        self.running.stdin.write(" ".join(words) + "\n")
        self.running.stdin.flush()
        answer = self._line()
        check(re.fullmatch("[0-9]+", answer), f"it answers {answer!r}")
        return int(answer)

    def hears(self, group, limit=30):
        """Waits until it gets what is sent to the group."""
        process.until(lambda: self.says("echo", group), limit, f"copies from {group}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        process.end(self.running)


_ONE, _OTHER, _SIX = "239.20.1.1", "239.20.1.2", "ff15::20:1"


def _outlives_the_daemon(pair):
    """Nobody would ask for the links of its groups again but the library."""
    with Member(pair.server) as member:
        for group in (_ONE, _OTHER):
            check(member.says("attach", group) == 0, "not attached")
        for _ in range(2):
            pair.daemon.kill()
            pair.daemon.start()
            for group in (_ONE, _OTHER):
                member.hears(group)
        check(member.says("detach", _ONE) == 0, "not detached")
        check(not member.says("echo", _ONE), "it gets what is sent to a group it has left")
        member.hears(_OTHER)
    quiet(pair)


def _outlives_its_links(pair):
    """An operator ends all links of a vNIC: a group is nobody to part from."""
    with Member(pair.server) as member:
        check(member.says("attach", _ONE) == 0, "not attached")
        member.hears(_ONE)
        for _ in range(3):
            pair.daemon.omniverb("vnic", "disconnect", f"pid:{pair.server.namespace.pid}")
            member.hears(_ONE)
    quiet(pair)


def _says_that_it_cannot(pair):
    """The kernel lets a socket be in so many groups. Who would be in one more is told at once; who
    cannot be in one any more is in it again as soon as that can be."""
    limit = "ipv4/igmp_max_memberships"
    pair.server.namespace.set(limit, "1")
    try:
        with Member(pair.server) as member:
            check(member.says("attach", _ONE) == 0, "not attached")
            answer = member.says("attach", _OTHER)
            check(answer == _UNREACHABLE, f"the second: {answer}")
            pair.server.namespace.set(limit, "20")
            check(member.says("attach", _OTHER) == 0, "not attached")
            member.hears(_OTHER)
            pair.server.namespace.set(limit, "1")
            pair.daemon.kill()
            pair.daemon.start()
            process.until(lambda: attachments(pair.daemon) == 1, 20, "one membership")
            pair.server.namespace.set(limit, "20")
            for group in (_ONE, _OTHER):
                member.hears(group)
    finally:
        pair.server.namespace.set(limit, "20")
    quiet(pair)


def _leaves_nothing(pair):
    """The kernel is in a group as long as somebody is attached, by whichever of an interface's
    addresses, and no longer."""
    def joined():
        return is_member(pair.server, _ONE)
    with Member(pair.server) as first:
        check(first.says("attach", _ONE) == 0 and joined(), "the kernel is not in the group")
        with Member(pair.server) as second:
            check(second.says("attach", _ONE) == 0, "not attached")
            check(first.says("detach", _ONE) == 0, "not detached")
            check(joined(), "the kernel left the group too early")
            second.hears(_ONE)
        process.until(lambda: not joined(), 10, "the kernel to leave the group")
        check(first.says("attach", _ONE) == 0 and joined(), "the kernel is not in the group")
    process.until(lambda: not joined(), 10, "the kernel to leave the group")
    quiet(pair)


def _six(place):
    return re.search(r"inet6 (fd77:[0-9a-f:]+)", place.namespace.ip("addr", "show")).group(1)


_GROUP = "239.20.0.1"
_STAYING = [
    Case("multicast.outlives_the_daemon", _outlives_the_daemon, 120),
    Case("multicast.outlives_its_links", _outlives_its_links, 120),
    Case("multicast.says_that_it_cannot", _says_that_it_cannot, 120),
    Case("multicast.leaves_nothing", _leaves_nothing, 60),
]


def groups():
    """mckey in each setting, and members who stay."""
    def mckey(setting, **how):
        return Case(f"{setting}.multicast.mckey", _mckey(_GROUP, **how), 120)
    wire = [mckey("wire"), Case("wire.multicast.mckey six", _mckey(_SIX, _six), 120)]
    return [
        Group("containers.multicast", [mckey("containers", several=2), *_STAYING], Pair,
              weight=POLLS),
        Group("user.multicast", [mckey("user", several=2)], PlainPair, weight=POLLS),
        Group("forwarded.multicast", [mckey("forwarded")], forwarded, weight=CROWDS),
        Group("wire.multicast", wire, Hosts, weight=CROWDS),
    ]
