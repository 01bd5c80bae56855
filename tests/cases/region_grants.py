"""Tests grants of regions: rights against verbs flags, and the account of the pages.

Two processes in different network namespaces of one host, run as root without a container; the
memory cgroups are the test's own."""

import contextlib
import os
import time

from harness.case import WAITS, Case, Group, Skip
from harness.simulated_host import Host

from cases.c_programs import tests_of

_MIB = 1 << 20
# Limits of the owner's cgroup and the peer's, in MiB.
_LIMITS = {
    "writes_are_on_the_owners_account": (600, 96),
    "reads_of_holes_cost_the_reader_nothing": (600, 96),
    "holes_that_come_and_go": (600, 112),
    "a_fork_copies_what_was_moved": (450, 96),
}


class _Cgroup:
    """A memory cgroup with a limit, of version 1 or 2."""

    def __init__(self, name, limit):
        first, second = "/sys/fs/cgroup/memory", "/sys/fs/cgroup"
        self.folder = None
        for root, file, swap in ((first, "memory.limit_in_bytes", "memory.memsw.limit_in_bytes"),
                                 (second, "memory.max", "memory.swap.max")):
            folder = f"{root}/omniverb-{os.getpid()}-{name}"
            try:
                os.mkdir(folder)
            except OSError:
                continue
            if not os.path.exists(f"{folder}/{file}"):
                os.rmdir(folder)
                continue
            self.folder = folder
            self._write(file, limit * _MIB)
            with contextlib.suppress(OSError):
                self._write(swap, limit * _MIB if root == first else 0)
            return
        raise Skip("no memory cgroup can be made here")

    def _write(self, file, value):
        with open(f"{self.folder}/{file}", "w") as opened:
            opened.write(str(value))

    def close(self):
        """Removes it; what ended in it takes a moment to go."""
        for _ in range(50):
            with contextlib.suppress(OSError):
                return os.rmdir(self.folder)
            time.sleep(0.1)


class _Scene:
    """A host with two places on its network."""

    def __init__(self, stage, arguments=()):
        self.host = Host(stage, "a", 0, 1500, arguments)
        try:
            self.places = [(self.host.plug(number), f"10.77.0.{number}") for number in (1, 2)]
        except BaseException:
            self.host.close()
            raise

    def run(self, program, *arguments, limit=60, **variables):
        """Runs a program in the first place, its other process in the second."""
        here, there = self.places
        place = self.host.bare(*here, TEST_PEERS=self.host.bare(*there).at(), **variables)
        return place.run(f"/opt/programs/{program}", *arguments, limit=limit)


def _account(test):
    def run(scene):
        groups = []
        try:
            for name, limit in zip(("owner", "peer"), _LIMITS[test]):
                groups.append(_Cgroup(name, limit))
            owner, peer = (group.folder for group in groups)
            print(scene.run("page_accounting", test, limit=120, OWNER_CGROUP=owner,
                            PEER_CGROUP=peer))
        finally:
            for group in groups:
                group.close()
    return Case(f"grants.accounts.{test}", run, 130)


# MiB of a region; the cgroup of its owner has 1.2 times that.
REGION = 160


# What peers may do with the region, and whether they keep what they were granted.
PEERS = {"rounds": 0, "read_only": 1, "read_only_kept": 2}


def _charged(peers, rounds, slow=False):
    limit = 60 + 20 * rounds

    def run(scene):
        owner = _Cgroup("charged", REGION * 6 // 5)
        try:
            print(scene.run("owner_memory_charges", "lives_within_its_limit", rounds, REGION,
                            PEERS[peers],
                            limit=limit, OWNER_CGROUP=owner.folder))
        finally:
            owner.close()
    return Case(f"grants.charged.{peers} {rounds}", run, limit + 10, slow)


def _kept(scene):
    owner = _Cgroup("kept", REGION * 6 // 5)
    try:
        print(scene.run("owner_memory_charges", "what_peers_keep_has_a_bound", 12, 16, limit=120,
                        OWNER_CGROUP=owner.folder))
    finally:
        owner.close()


def _parted(test):
    def run(scene):
        print(scene.run("mappings_kept_after_link_end", test))
    return Case(f"grants.parted.{test}", run, 60)


def _own(test):
    def run(scene):
        print(scene.run("library_mapped_writes", test))
    return Case(f"grants.own.{test}", run, 60)


def _placed(scene):
    print(scene.run("mbind_attack", "a_peer_chooses_a_node"))


def _rights(trusted):
    def run(scene):
        print(scene.run("mapping_rights", "mappings_give_what_the_flags_give", trusted))
    return run


@contextlib.contextmanager
def _exact(stage):
    file = stage.folder("configuration") / "omniverbd.toml"
    file.write_text('adoption = "exact"\n')
    scene = _Scene(stage, ["--config", file])
    try:
        yield scene
    finally:
        scene.host.close()


@contextlib.contextmanager
def _trusting(stage):
    scene = _Scene(stage)
    try:
        yield scene
    finally:
        scene.host.close()


def groups():
    """With the default policy, which is trusting, and where it is exact."""
    cases = [Case("grants.rights.exact", _rights(0), 60),
             *map(_account, tests_of("page_accounting")),
             *map(_parted, tests_of("mappings_kept_after_link_end")),
             *map(_own, tests_of("library_mapped_writes")),
             *[_charged(peers, 2) for peers in PEERS],
             *[_charged(peers, 100, slow=True) for peers in PEERS],
             Case("grants.charged.kept", _kept, 130),
             Case("grants.placed.a_peer_chooses_a_node", _placed, 60)]
    return [Group("grants.exact", cases, _exact, weight=WAITS),
            Group("grants.trusting", [Case("grants.rights.trusting", _rights(1), 60)], _trusting,
                  weight=WAITS)]
