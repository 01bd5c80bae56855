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

_SELF_CONTAINED = ["states", "errors", "keys", "events", "messages", "extended", "nopoll", "forked",
                   "many", "adoption", "arrangements", "soak", "sources", "apart",
                   "lossy", "newest", "itself", "windows", "wider", "manners", "cancelled", "xrc",
                   "xrc_domains", "xrc_shared", "xrc_opened", "flush", "imported", "imports",
                   "import_pages", "import_lies", "strict", "multicast", "dead", "counters",
                   "ece", "ethernet", "allocators", "unreachable", "crowded",
                   "receive_bounds"]

# Arguments and time limits that differ from the default: by setting and name.
_MILLION = 1_000_000
_ARGUMENTS = {
    ("containers", "soak.two_processes"): ([300_000, 1], 300),
    ("containers", "soak.one_process"): ([200_000, 2], 100),
    ("user", "soak.two_processes"): ([200_000, 3], 100),
    ("user", "soak.one_process"): ([100_000, 4], 100),
    ("containers", "adoption.no_store_is_lost"): ([4000, 1], 120),
    ("user", "adoption.no_store_is_lost"): ([2000, 2], 120),
    ("containers", "events.ping_pong_asleep"): ([30_000], 200),  # a sleep a side
    ("containers", "many.pairs_of_processes"): ([], 180),
    ("user", "many.pairs_of_processes"): ([], 180),
    ("containers", "many.clients_of_one_server"): ([64, 100], 180),
    ("user", "many.clients_of_one_server"): ([64, 100], 180),
}
# In a container that may not even use ptrace: what moves memory about.
_STRICT = [("adoption.no_store_is_lost", [2000, 3], 120),
           ("forked.separate_memory_on_the_heap", [], 60),
           ("soak.two_processes", [200_000, 8], 200), ("keys.deregistered", [], 60),
           ("unreachable.unreachable_pages_are_refused", [], 60),
           ("nopoll.receiver_asleep", [], 60)]
# As root outside of containers, where everything is permitted.
_ROOT = ["arrangements.deregistered_under_writes", "arrangements.own_userfaultfd",
         "arrangements.guard_pages", "arrangements.ring_across_fork"]
# More of the same, for `make soak`: (setting, test, arguments, limit).
_SLOW = [
    ("containers", "adoption.no_store_is_lost", [200_000, 6], 900),
    ("containers", "soak.two_processes", [100 * _MILLION, 5], 7200),
    ("containers", "events.ping_pong_asleep", [_MILLION], 900),
    ("containers", "messages.large_messages", [2047], 300),
    ("containers", "import_pages.many_given_up", [4096], 200),
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
