"""Tests programs under valgrind and ThreadSanitizer with our suppressions."""

import re

from harness import client_server, process
from harness.case import POLLS, Case, Group, check
from harness.staging import ROOT
from harness.unprivileged_daemon import PlainPair

_STATUS = 9  # of a tool that has found something
# How often bench/object_costs.c makes what it makes beside others, where that is not a thousand
# times.
_TURNS = {"qp-reset-beside": 50}


def _told(pair, name):
    return pair.stage.dist / "share" / "omniverb" / name


def _valgrind(pair):
    return ["valgrind", "-q", "--leak-check=full", "--show-leak-kinds=all",
            "--errors-for-leak-kinds=all", f"--error-exitcode={_STATUS}",
            f"--suppressions={_told(pair, 'valgrind.supp')}"]


def _pongs(program, *options):
    """Both sides under valgrind: not a word but of calls that it does not know."""
    def run(pair):
        words = [*_valgrind(pair), program, "-g", client_server.gid_index(pair.server), "-n", "50",
                 *options]
        outcome = client_server.run(pair, *words, limit=100)
        for text in (outcome.server, outcome.client):
            check("lost" not in text and "uninitialised" not in text, text)
    return run


def _forgets(pair):
    """Objects that a program does not give back are still its own fault."""
    text = pair.server.run(*_valgrind(pair), "/opt/programs/remote_keys", limit=100,
                           accept=(_STATUS,))
    check("definitely lost" in text, text)


def _races(program):
    def run(pair):
        options = f"exitcode={_STATUS}:suppressions={_told(pair, 'tsan.supp')}:die_after_fork=0"
        # Addresses that are too random it does not start with.
        pair.server.run("setarch", "-R", "env", f"TSAN_OPTIONS={options}",
                        f"/opt/programs/{program}-tsan", limit=100)
    return run


def _flat(pair):
    """What an object takes to be made and to be destroyed does not grow with their number. That is
    counted, in instructions of the process."""
    program, folder = pair.stage.programs / "objects", pair.stage.folder("counted", pair.uid)
    process.run(["cc", "-O2", "-DCOUNT_INSTRUCTIONS", "-o", program, ROOT / "bench/object_costs.c",
                 "-lrdmacm", "-libverbs"], limit=60)
    few, many = 100, 1000
    made = pair.server.run("valgrind", "-q", "--tool=callgrind",
                           f"--callgrind-out-file={folder}/out", program, f"{few},{many}",
                           limit=200)
    check(f"qp-reset-beside {many} {many}" in made, made)
    counts = {}
    for file in folder.glob("out.*"):
        text = file.read_text()
        name = re.search(r"^desc: Trigger: Client Request: (\S+) (\d+) (\w+)$", text, re.M)
        total = re.search(r"^(?:summary|totals): (\d+)", text, re.M)
        if name and total:
            kind, count, what = name.groups()
            turns = _TURNS.get(kind, 1000) if "beside" in kind else int(count)
            counts.setdefault((kind, what), {})[int(count)] = int(total[1]) / turns
    for name, each in sorted(counts.items()):
        print(*name, *(f"{count}: {each[count]:.0f}" for count in sorted(each)))
    check(len(counts) == 26, f"counted: {sorted(counts)}")
    # A walk through a table would be ten times as long. What is allocated now and then is not.
    grow = [name for name, each in counts.items() if each[many] > 1.5 * each[few] + 300]
    check(not grow, f"take longer beside more: {grow}")


def groups():
    """As an ordinary user: who debugs programs is one."""
    pongs = {"rc": ("ibv_rc_pingpong",), "events": ("ibv_rc_pingpong", "-e"),
             "ud": ("ibv_ud_pingpong",), "srq": ("ibv_srq_pingpong",)}
    cases = [*(Case(f"valgrind.{name}", _pongs(*words), 120) for name, words in pongs.items()),
             Case("valgrind.forgets", _forgets, 120),
             Case("valgrind.flat", _flat, 240),
             Case("tsan.itself", _races("loopback_qp"), 120)]
    return [Group("debuggers", cases, PlainPair, weight=POLLS)]
