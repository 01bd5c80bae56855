"""Runs the C programs in tests/programs, each named test a case."""

import functools
import re

from harness import staging
from harness.case import Case, Group
from harness.containers import Pair
from harness.daemon import forgotten
from harness.unprivileged_daemon import PlainPair

# Where the programs run: one container, or an ordinary user's processes.
SETTINGS = (("containers", functools.partial(Pair, count=1)), ("user", PlainPair))

_SELF_CONTAINED = ["qp_states", "verbs_errors", "remote_keys", "completion_events",
                   "message_delivery", "extended_verbs", "nonpolling_receiver", "memory_after_fork",
                   "many_objects", "page_adoption", "program_memory_policies", "soak",
                   "payload_in_place", "two_process_transport", "unreliable_messages",
                   "registration_by_attributes", "loopback_qp", "memory_windows", "uncommon_verbs",
                   "driver_conventions", "thread_cancellation", "xrc", "xrc_domains",
                   "xrc_across_processes", "xrc_shared_qp", "atomic_write_and_flush",
                   "imports_in_one_process", "imports_between_processes", "imported_pages",
                   "hostile_imports", "strict_mode", "multicast", "dead_peer",
                   "completion_counters", "ece", "ethernet_addresses", "parent_domain_allocators",
                   "unreachable_pages", "fd_exhaustion", "receive_unreached_entries"]

# Arguments and time limits that differ from the default: by setting and name.
_MILLION = 1_000_000
_ARGUMENTS = {
    ("containers", "soak.two_processes"): ([300_000, 1], 300),
    ("containers", "soak.one_process"): ([200_000, 2], 100),
    ("user", "soak.two_processes"): ([200_000, 3], 100),
    ("user", "soak.one_process"): ([100_000, 4], 100),
    ("containers", "page_adoption.no_store_is_lost"): ([4000, 1], 120),
    ("user", "page_adoption.no_store_is_lost"): ([2000, 2], 120),
    ("containers", "completion_events.ping_pong_asleep"): ([30_000], 200),  # a sleep a side
    ("containers", "many_objects.pairs_of_processes"): ([], 180),
    ("user", "many_objects.pairs_of_processes"): ([], 180),
    ("containers", "many_objects.clients_of_one_server"): ([64, 100], 180),
    ("user", "many_objects.clients_of_one_server"): ([64, 100], 180),
}
# In a container that may not even use ptrace: what moves memory about.
_STRICT = [("page_adoption.no_store_is_lost", [2000, 3], 120),
           ("memory_after_fork.separate_memory_on_the_heap", [], 60),
           ("soak.two_processes", [200_000, 8], 200), ("remote_keys.deregistered", [], 60),
           ("unreachable_pages.unreachable_pages_are_refused", [], 60),
           ("nonpolling_receiver.receiver_asleep", [], 60)]
# As root outside of containers, where everything is permitted.
_ROOT = ["program_memory_policies.deregistered_under_writes",
         "program_memory_policies.own_userfaultfd", "program_memory_policies.guard_pages",
         "program_memory_policies.ring_across_fork"]
# More of the same, for `make soak`: (setting, test, arguments, limit).
_SLOW = [
    ("containers", "page_adoption.no_store_is_lost", [200_000, 6], 900),
    ("containers", "soak.two_processes", [100 * _MILLION, 5], 7200),
    ("containers", "completion_events.ping_pong_asleep", [_MILLION], 900),
    ("containers", "message_delivery.large_messages", [2047], 300),
    ("containers", "imported_pages.many_given_up", [4096], 200),
]
_MORE = [
    ("containers", "soak.two_processes", [20_000, 6, 1, 1, 8 << 20], 120),
    ("user", "soak.two_processes", [300_000, 7, 4, 1, 4096], 120),
]


def tests_of(program):
    """The names of the tests in a program."""
    text = (staging.PROGRAMS / f"{program}.c").read_text()
    return re.findall(r"^TEST\((\w+)\)", text, re.MULTILINE)


def case(setting, name, arguments, limit, slow=False, title=""):
    program, test = name.split(".")

    def run(pair):
        print(pair.server.run(f"/opt/programs/{program}", test, *arguments, limit=limit))
        forgotten([pair.daemon], 20)
    return Case(f"{setting}.{name}{title}", run, limit + 10, slow)


def groups():
    """The same programs in both settings."""
    found = []
    for setting, fixture in SETTINGS:
        cases = []
        for program in _SELF_CONTAINED:
            for test in tests_of(program):
                name = f"{program}.{test}"
                arguments, limit = _ARGUMENTS.get((setting, name), ([], 60))
                cases.append(case(setting, name, arguments, limit))
        for slow, extra in ((False, _MORE), (True, _SLOW)):
            cases += [case(setting, name, arguments, limit, slow,
                            " " + " ".join(map(str, arguments)))
                      for where, name, arguments, limit in extra if where == setting]
        found.append(Group(f"{setting}.tests", cases, fixture))
    found.append(Group("strict.tests", [case("strict", *rest) for rest in _STRICT],
                       functools.partial(Pair, count=1, strict=True)))
    found.append(Group("root.tests", [case("root", name, [], 60) for name in _ROOT],
                       functools.partial(PlainPair, uid=0)))
    return found
