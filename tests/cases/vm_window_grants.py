"""Tests grants between processes of a virtual machine, in its window.

They run in the one machine of cases/virtual_machines.py."""

from harness import process
from harness.case import Case, check
from harness.virtual_machines import NAME, OMNIVERB

# Of an emulated machine, in which stopping threads that compute takes up to a second.
_CYCLES = 12
# What peers do before the pages have moved is mediated.
_MORE = 30
_PARTED = ["the_owner_destroys_its_queue_pair", "the_owner_moves_it_to_err",
           "the_peer_destroys_its_queue_pair"]


def _operations(lab):
    """How many operations of the machine's processes that have ended were mapped, and how many were
    mediated."""
    found = [vnic for vnic in lab.host.daemon.vnics() if vnic["name"] == f"vm-{NAME}"]
    check(len(found) == 1, f"{found}")
    return [found[0]["ended"][f"operations_{kind}"] for kind in ("mapped", "mediated")]


def _all_back(lab):
    """All pieces have come back to the window."""
    process.until(lambda: lab.machine.row()["used"] == 0, 20,
                  lambda: f"the pieces to come back: {lab.machine.row()}")


def _stores(lab):
    """Threads store while pages move to the window and back, and a peer writes and reads there."""
    _all_back(lab)
    before = _operations(lab)
    print(lab.machine.verbs("/opt/programs/page_adoption", "no_store_is_lost", _CYCLES, 7, _MORE,
                            limit=150))
    _all_back(lab)
    mapped, mediated = (now - then for now, then in zip(_operations(lab), before))
    print(f"{mapped} operations were mapped, {mediated} mediated")
    check(mapped >= 3, f"{mapped} of {mapped + mediated} were mapped")


def _kept(lab):
    """An owner that keeps its pages has them kept."""
    before = _operations(lab)
    print(lab.machine.run("sh", "-c", f"OMNIVERB_ADOPTION=off {OMNIVERB} run -- "
                          "/opt/programs/page_adoption no_store_is_lost 5 7", limit=60))
    _all_back(lab)
    mapped, mediated = (now - then for now, then in zip(_operations(lab), before))
    check(mapped == 0 and mediated >= 10, f"{mapped} were mapped, {mediated} mediated")


def _parted(test):
    def run(lab):
        _all_back(lab)
        before = _operations(lab)
        print(lab.machine.verbs("/opt/programs/mappings_kept_after_link_end", test, limit=120))
        _all_back(lab)
        mapped, mediated = (now - then for now, then in zip(_operations(lab), before))
        check(mapped >= 100, f"{mapped} operations were mapped, {mediated} mediated")
    return Case(f"machines.pages.{test}", run, 150)


def cases():
    """Between two processes of the machine."""
    return [Case("machines.pages.no store is lost", _stores, 200),
            Case("machines.pages.kept", _kept, 90), *map(_parted, _PARTED)]


def groups():
    """None of its own."""
    return []
