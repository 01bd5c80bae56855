"""On whose account pages are that peers map, where memory cgroups are those of version 2.

A kernel has one version only, which may be the other one on this machine: so a virtual machine
boots whose root is this host's. A daemon in it serves two network namespaces; the owner is in a
cgroup below the one that has the limit.

Beside the region an owner with six peers takes 10 MiB at most, as measured: 4 MiB that exist twice
while pages move, 5 of its own and of links, and one of the kernel's."""

import contextlib

from harness import guest_image, process
from harness.case import CROWDS, Case, Failure, Group
from harness.network import Switch
from harness.program_placements import ROOT_DEVICES, root_words
from harness.rxe_guest import Guest

from cases.region_grants import PEERS

_MIB = 1 << 20
# MiB of a region, which six emulated peers read ten times or more each round: a piece (KiB) of each
# two MiB, since all of it takes them minutes. How many MiB move depends on how long the owner's
# threads have to stand for a step, which is long where others use this machine's processors.
_REGION = 64
_PIECE = 64
_MOVED = 4
_SOCKET = "/run/omniverbd.sock"
_LIMITED = "/sys/fs/cgroup/limited"

_SET_UP = f"""
mount -t cgroup2 cgroup2 /sys/fs/cgroup
echo +memory >/sys/fs/cgroup/cgroup.subtree_control
mkdir {_LIMITED}
echo +memory >{_LIMITED}/cgroup.subtree_control
mkdir {_LIMITED}/owner
ip link add bridge type bridge
ip link set bridge up
for number in 1 2; do
    ip netns add "place$number"
    ip link add "port$number" type veth peer name eth0 netns "place$number"
    ip link set "port$number" master bridge up
    ip -n "place$number" link set lo up
    ip -n "place$number" addr add "10.78.0.$number/24" dev eth0
    ip -n "place$number" link set eth0 up
done
"""


class _Machine(Guest):
    """A machine with a daemon, and two places on its bridge."""

    boot_limit = 90.0

    def __init__(self, stage, switch):
        self.kernel_words = f"cgroup_no_v1=all {root_words(stage)}"
        modules = (*guest_image.ROOT, "bridge", "veth")
        super().__init__(switch, guest_image.archive({}, modules, "second"), "10.77.0.200/24",
                         processors=2, memory=1024)

    def devices(self):
        return ROOT_DEVICES

    def _set_up(self):
        self.run("sh", "-ec", _SET_UP, limit=60)
        log = open(self._file("daemon"), "w+", encoding="utf-8")  # noqa: SIM115
        daemon = self.start("/opt/omniverb/bin/omniverbd", "--socket", _SOCKET, stdout=log)
        process.until(lambda: daemon.poll() is not None or
                      _SOCKET in self.run("cat", "/proc/net/unix"), 60, "the daemon")

    def charged(self, limit, *words, patience):
        """Runs programs/owner_memory_charges.c, whose owner has so many bytes."""
        self.run("sh", "-c", f"echo {limit} >{_LIMITED}/memory.max")
        line = ["nsenter", "--net=/run/netns/place1", "env", f"OMNIVERB_SOCKET={_SOCKET}",
                f"TEST_PEERS=/run/netns/place2={_SOCKET}", f"OWNER_CGROUP={_LIMITED}/owner",
                "/opt/omniverb/bin/omniverb", "run", "--",
                "/opt/programs/owner_memory_charges", *words]
        try:
            print(self.run(*line, limit=patience))
        except Failure as failure:
            files = [f"{_LIMITED}/memory.{name}" for name in ("max", "peak", "events", "stat")]
            raise Failure(f"{failure}\n{self.run('tail', '-n', '+1', *files)}") from None


@contextlib.contextmanager
def _booted(stage):
    switch = Switch()
    try:
        machine = _Machine(stage, switch)
        try:
            yield machine
        finally:
            machine.close()
    finally:
        switch.close()


def _charged(peers, rounds, slow=False):
    limit = 300 + 60 * rounds

    def run(machine):
        machine.charged(_REGION * _MIB * 6 // 5, "lives_within_its_limit", rounds, _REGION,
                        PEERS[peers], _PIECE, _MOVED, patience=limit)
    return Case(f"grants.second.{peers} {rounds}", run, limit + 60, slow)


def groups():
    """One machine for all."""
    cases = [_charged("rounds", 1), *[_charged(peers, 100, slow=True) for peers in PEERS]]
    return [Group("grants.second", cases, _booted, weight=CROWDS)]
