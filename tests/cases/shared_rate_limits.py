"""Limits that several vNICs share: of a policy with `mode = "shared"`, and of a tenant.

What is counted is what the engine sent, against what the limit lets pass in the time that was: a
machine that is busy can only have less pass. How exactly limits are held, bench/rate_limits.py and
bench/tenant_cost_and_rates.py measure."""

import contextlib
import json
import time

from harness import process
from harness.case import WAITS, Case, Group, check
from harness.client_server import ENDLESS
from harness.rate_limited_traffic import Limited

# Bits a second, and bytes that may leave at once on top of them.
_SLOW, _FAST, _OPEN = 10_000_000, 60_000_000, 1_000_000_000
_BURST = 256 * 1024
# Operations a second. A message of the first size is one packet, one of the other sixteen.
_FEW, _MANY = 300, 3000
_SHORT, _LONG, _PACKETS = 1024, 16384, 16


class _Scene:
    """Two pairs of processes in four namespaces of a host with a daemon."""

    def __init__(self, stage):
        self.limited = Limited(stage, 4)
        self.daemon = self.limited.host.daemon
        self.ends = []

    def omniverb(self, *words):
        return self.daemon.omniverb(*words)

    def begin(self, prepare, message=_LONG):
        """Starts all, has `prepare` say what holds for each, and lets both pairs send."""
        self.ends, addresses = self.limited.ends(4, message)
        prepare(self.ends)
        self.limited.connect(self.ends, addresses)
        for number, end in enumerate(self.ends):
            end.write(ENDLESS if number % 2 == 0 else 0)

    def end(self):
        """Ends all that was begun, whatever it was doing."""
        for end in self.ends:
            end.process.kill()
            end.process.wait()
        self.ends = []

    def sent(self):
        """Bytes that the vNICs that send have sent by the engine."""
        return self._count(lambda packets: packets["sent_bytes"])

    def packets(self):
        """Packets that they have sent for the first time: requests, as nothing comes for them."""
        return self._count(lambda packets: packets["sent"] - packets["resent"])

    def _count(self, number):
        status = self.daemon.status()
        found = []
        for end in self.ends[::2]:
            vnic = next(vnic for vnic in status["vnics"] if vnic["namespace"] == end.inode)
            peers = [peer for program in vnic["processes"] for qp in program["qps"]
                     for peer in qp["peers"]]
            check(all(peer["path"] == "forwarded" for peer in peers), f"{peers}")
            found.append(sum(number(peer["packets"]) for peer in peers if peer["packets"]))
        return found

    def close(self):
        self.end()
        self.limited.close()


def _fixture(stage):
    return contextlib.closing(_Scene(stage))


def _held(scene, rate, wait_for):
    """All together send no more than this rate and a burst, and both of them something; how many
    bytes they were when it was looked at last, and since when."""
    begun, before = time.monotonic(), sum(scene.sent())
    process.until(lambda: sum(scene.sent()) - before > wait_for, 30, f"{wait_for} bytes")
    for _ in range(10):
        seen = sum(scene.sent()) - before
        # What is shown is 0.2 s old at most: so much more may have passed in the time.
        allowed = rate / 8 * (time.monotonic() - begun + 0.3) + _BURST
        check(seen <= allowed, f"{seen} bytes, not {allowed}")
        time.sleep(0.1)
    return begun, before


def _more_than(scene, rate, since, before):
    """More passes than this rate lets."""
    def passed():
        allowed = rate / 8 * (time.monotonic() - since + 0.3) + 2 * _BURST
        return sum(scene.sent()) - before > allowed
    process.until(passed, 30, f"more than {rate} lets pass")


def _shows_anew(count):
    """Waits until what `count` returns is of now: a first change may have been under way."""
    for _ in range(2):
        before = count()
        process.until(lambda before=before: count() != before, 20, f"more than {before}")


def _calm(scene, rate):
    """After a change to a lower rate, nothing is counted any more that passed before it."""
    _shows_anew(scene.sent)
    return _held(scene, rate, 1)


def _shared_policy(scene):
    """Two vNICs of a shared policy have its rate together, whatever it is changed to."""
    scene.omniverb("policy", "create", "sum", "--mode", "shared", "--rate", f"{_SLOW}bit",
                   "--burst", str(_BURST))

    def prepare(ends):
        for end in ends[::2]:
            scene.daemon.set_vnic(end.namespace, "--policy", "sum")

    scene.begin(prepare)
    shown = scene.daemon.vnic(scene.ends[0].namespace)
    expected = [{"of": "policy", "name": "sum", "rate": _SLOW, "burst": _BURST, "ops": None}]
    check(shown["shared_limits"] == expected and shown["rate"] is None, f"{shown}")
    check(shown["datapath"] == "forwarded", f"{shown}")
    begun, before = _held(scene, _SLOW, _BURST)
    check(all(scene.sent()), "one of them sends nothing")
    scene.omniverb("policy", "set", "sum", "--rate", f"{_FAST}bit", "--burst", str(_BURST))
    _more_than(scene, _SLOW, begun, before)
    scene.omniverb("policy", "set", "sum", "--rate", f"{_SLOW}bit", "--burst", str(_BURST))
    begun, before = _calm(scene, _SLOW)
    # For each of them it is another matter, and without a limit again.
    scene.omniverb("policy", "set", "sum", "--mode", "each")
    shown = scene.daemon.vnic(scene.ends[0].namespace)
    check(shown["shared_limits"] == [] and shown["rate"] == _SLOW, f"{shown}")
    scene.omniverb("policy", "set", "sum", "--rate", "none")
    _more_than(scene, 4 * _SLOW, begun, before)
    scene.end()


def _tenant_above(scene):
    """The rate of a tenant holds above those of its vNICs, and these hold below it."""
    scene.omniverb("tenant", "create", "blue", "--rate", f"{_SLOW}bit", "--burst", str(_BURST))

    def prepare(ends):
        for end in ends:
            scene.daemon.set_vnic(end.namespace, "--tenant", "blue", "--rate", f"{_FAST}bit",
                                  "--burst", str(_BURST // 2))

    scene.begin(prepare)
    _held(scene, _SLOW, _BURST)
    check(all(scene.sent()), "one of them sends nothing")
    # The tenant may have much, so what holds is each vNIC's own.
    scene.omniverb("tenant", "set", "blue", "--rate", f"{_OPEN}bit", "--burst", str(_BURST))
    begun, before = _held(scene, 2 * _FAST, 4 * _BURST)
    _more_than(scene, 2 * _SLOW, begun, before)
    scene.omniverb("tenant", "set", "blue", "--rate", f"{_SLOW}bit", "--burst", str(_BURST))
    _calm(scene, _SLOW)
    scene.end()


def _both(scene):
    """A shared policy within a tenant with a rate: the lower one holds, whichever it is."""
    scene.omniverb("tenant", "create", "red", "--rate", f"{_FAST}bit", "--burst", str(_BURST))
    scene.omniverb("policy", "create", "part", "--mode", "shared", "--rate", f"{_SLOW}bit",
                   "--burst", str(_BURST))

    def prepare(ends):
        for number, end in enumerate(ends):
            words = ["--policy", "part"] if number % 2 == 0 else []
            scene.daemon.set_vnic(end.namespace, "--tenant", "red", "--rate", "none", *words)

    scene.begin(prepare)
    begun, before = _held(scene, _SLOW, _BURST)
    scene.omniverb("policy", "set", "part", "--rate", "none")
    _more_than(scene, _SLOW, begun, before)
    scene.omniverb("tenant", "set", "red", "--rate", f"{_SLOW}bit", "--burst", str(_BURST))
    _calm(scene, _SLOW)
    scene.end()


def _allowed(ops, since):
    """Operations that may have begun in the time, and those that a pause has saved up for; what is
    shown is 0.2 s old at most."""
    return ops * (time.monotonic() - since + 0.3) + ops / 1000 + 4


def _counted(scene, ops):
    """All together begin no more than so many operations a second, of one packet each, and both of
    them some; since when it was looked at, and how many packets they were."""
    begun, before = time.monotonic(), sum(scene.packets())
    process.until(lambda: sum(scene.packets()) - before > ops / 2, 30, f"{ops / 2} operations")
    for _ in range(10):
        seen = sum(scene.packets()) - before
        check(seen <= _allowed(ops, begun), f"{seen} operations, not {_allowed(ops, begun)}")
        time.sleep(0.1)
    return begun, before


def _more_packets(scene, ops, since, before):
    """More packets leave than there would be if each were an operation."""
    process.until(lambda: sum(scene.packets()) - before > 2 * _allowed(ops, since), 30,
                  f"more than {ops} operations let pass")


def _recount(scene, ops):
    """After a change to a lower limit, nothing is counted any more that passed before it."""
    _shows_anew(scene.packets)
    return _counted(scene, ops)


def _operations_of_policy(scene):
    """Two vNICs of a shared policy begin its operations together, whatever it is changed to."""
    scene.omniverb("policy", "create", "few", "--mode", "shared", "--ops", f"{_FEW}")

    def prepare(ends):
        # What other cases said of a vNIC itself would decide before the policy.
        for name in [vnic["name"] for vnic in scene.daemon.vnics() if vnic["object"]]:
            scene.omniverb("vnic", "delete", name)
        for end in ends[::2]:
            scene.daemon.set_vnic(end.namespace, "--policy", "few")

    scene.begin(prepare, _SHORT)
    shown = scene.daemon.vnic(scene.ends[0].namespace)
    expected = [{"of": "policy", "name": "few", "rate": None, "burst": None, "ops": _FEW}]
    check(shown["shared_limits"] == expected and shown["ops"] is None, f"{shown}")
    check(shown["datapath"] == "forwarded", f"{shown}")
    begun, before = _counted(scene, _FEW)
    check(all(scene.packets()), "one of them sends nothing")
    scene.omniverb("policy", "set", "few", "--ops", f"{_MANY}")
    _more_packets(scene, _FEW, begun, before)
    scene.omniverb("policy", "set", "few", "--ops", f"{_FEW}/s")
    _recount(scene, _FEW)
    # For each of them it is another matter, and without a limit again.
    scene.omniverb("policy", "set", "few", "--mode", "each")
    shown = scene.daemon.vnic(scene.ends[0].namespace)
    check(shown["shared_limits"] == [] and shown["ops"] == _FEW, f"{shown}")
    begun, before = _recount(scene, 2 * _FEW)
    scene.omniverb("policy", "set", "few", "--ops", "none")
    _more_packets(scene, 2 * _FEW, begun, before)
    scene.end()


def _operations_of_tenant(scene):
    """The operations of a tenant hold above those of its vNICs, and these hold below them."""
    scene.omniverb("tenant", "create", "busy", "--ops", f"{_FEW}")

    def prepare(ends):
        for end in ends:
            scene.daemon.set_vnic(end.namespace, "--tenant", "busy", "--ops", f"{_MANY}",
                                  "--rate", "none")

    scene.begin(prepare, _SHORT)
    _counted(scene, _FEW)
    check(all(scene.packets()), "one of them sends nothing")
    # The tenant may begin many, so what holds is each vNIC's own.
    scene.omniverb("tenant", "set", "busy", "--ops", "1m")
    begun, before = _counted(scene, 2 * _MANY)
    _more_packets(scene, _FEW, begun, before)
    scene.omniverb("tenant", "set", "busy", "--ops", f"{_FEW}")
    _recount(scene, _FEW)
    for end in scene.ends:
        scene.daemon.set_vnic(end.namespace, "--ops", "none")
    scene.end()


def _operations_and_rate(scene):
    """Long messages are one operation each; beside a rate, the lower of the two holds."""
    def prepare(ends):
        for end in ends:
            scene.daemon.set_vnic(end.namespace, "--tenant", "default", "--ops",
                                  f"{_FEW // 4}", "--rate", f"{_OPEN}bit")

    scene.begin(prepare)
    # Their packets are no operations of their own.
    begun, before = time.monotonic(), sum(scene.packets())
    _more_packets(scene, _FEW // 2, begun, before)
    seen, most = sum(scene.packets()) - before, _PACKETS * _allowed(_FEW // 2, begun)
    check(seen <= most, f"{seen} packets, not {most}")
    for end in scene.ends:
        scene.daemon.set_vnic(end.namespace, "--rate", f"{_SLOW // 4}bit", "--burst",
                              str(_BURST // 2))
    begun, before = _calm(scene, _SLOW // 2)
    for end in scene.ends:
        scene.daemon.set_vnic(end.namespace, "--rate", "none", "--ops", "none")
    _more_than(scene, 4 * _SLOW, begun, before)
    scene.end()


def _shown(scene):
    """A vNIC shows the limits that it shares, and no longer one that is taken away."""
    scene.omniverb("tenant", "create", "green", "--rate", "5gbit")
    scene.omniverb("policy", "create", "kept", "--mode", "shared", "--rate", "300mbit")
    # A vNIC is there from its first process on, and stays with what was said of it.
    scene.ends, _ = scene.limited.ends(1)
    namespace = scene.ends[0].namespace
    scene.daemon.set_vnic(namespace, "--tenant", "green", "--policy", "kept", "--rate", "none")
    scene.end()

    def limits():
        vnic = scene.daemon.vnic(namespace)
        return [(one["of"], one["name"], one["rate"]) for one in vnic["shared_limits"]]

    both = [("tenant", "green", 5_000_000_000), ("policy", "kept", 300_000_000)]
    check(limits() == both, f"{limits()}")
    shown = json.loads(scene.omniverb("policy", "show", "kept", "--json"))["fields"]
    check(shown["mode"] == "shared", f"{shown}")
    scene.omniverb("tenant", "set", "green", "--rate", "none")
    check(limits() == both[1:], f"{limits()}")


def groups():
    """One host, four namespaces."""
    return [Group("shared_rates", [
        Case("shared_rates.policy", _shared_policy, 200),
        Case("shared_rates.tenant", _tenant_above, 200),
        Case("shared_rates.both", _both, 200),
        Case("shared_rates.operations_of_policy", _operations_of_policy, 200),
        Case("shared_rates.operations_of_tenant", _operations_of_tenant, 200),
        Case("shared_rates.operations_and_rate", _operations_and_rate, 200),
        Case("shared_rates.shown", _shown, 60),
    ], _fixture, weight=WAITS)]
