"""Tests one host with `datapath = "forwarded"`: every message goes through the daemon."""

import contextlib

from harness import client_server, process
from harness.case import CARRIED, Case, Group, check
from harness.containers import Pair
from harness.daemon import forgotten

from cases import debian_verbs_programs
from cases.c_programs import tests_of

_ONE_PROCESS = ["message_delivery", "verbs_errors", "extended_verbs", "nonpolling_receiver",
                "loopback_qp", "memory_windows", "xrc", "xrc_across_processes", "xrc_shared_qp",
                "atomic_write_and_flush", "multicast", "imports_between_processes",
                "imported_pages", "dead_peer", "completion_counters", "ece", "unreachable_pages",
                "receive_unreached_entries"]
_ARGUMENTS = {"message_delivery.large_messages": [64]}


def _program(name, *arguments, limit=60.0, title=""):
    file, test = name.split(".")

    def run(pair):
        print(pair.server.run(f"/opt/programs/{file}", test, *arguments, limit=limit))
        forgotten([pair.daemon], 20)
    return Case(f"forwarded.{name}{title}", run, limit + 10)


def forwarding(stage):
    """The daemon's arguments for forwarded traffic."""
    file = stage.folder("configuration") / "omniverbd.toml"
    file.write_text('datapath = "forwarded"\n')
    return ["--config", file]


@contextlib.contextmanager
def _fixture(stage):
    with Pair(stage, daemon_arguments=forwarding(stage)) as pair:
        pair.gid_index = client_server.gid_index(pair.server)
        yield pair


def _counted_once(pair):
    """A request that waits for room in the ring is one operation, however often it is tried."""
    with client_server.going_on(pair, "ib_write_bw", "-s", "131072"):
        def row():
            found = [qp for qp in pair.daemon.queue_pairs() if qp["bytes_sent"]]
            return found[0] if found else None
        process.until(lambda: row() and row()["messages_sent"] > 500, 60, "500 WRITEs")
        found = row()
    begun = found["operations_mapped"] + found["operations_mediated"]
    # Read one after the other, while they grow; the send queue has 128 more.
    check(begun <= found["messages_sent"] + 1000, f"{found}")


def groups():
    """One host, two containers, one daemon that forwards."""
    cases = [_program(f"{file}.{test}", *_ARGUMENTS.get(f"{file}.{test}", []))
             for file in _ONE_PROCESS for test in tests_of(file)]
    cases += [_program("soak.two_processes", 150_000, 11, limit=150),
              _program("soak.one_process", 60_000, 12, limit=90),
              _program("payload_in_place.sources", 200),
              *[_program(f"{file}.{test}")
                for file in ("two_process_transport", "unreliable_messages", "remote_keys")
                for test in tests_of(file)],
              Case("forwarded.counted_once", _counted_once, 90)]
    return [Group("forwarded.programs", debian_verbs_programs.cases("forwarded", True), _fixture,
                  weight=CARRIED),
            Group("forwarded.tests", cases, _fixture, weight=CARRIED)]
