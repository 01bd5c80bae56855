"""Programs under valgrind and ThreadSanitizer: with what they are told of our libraries they report
nothing, but faults of the program's own."""

from harness import duet
from harness.case import POLLS, Case, Group, check
from harness.plain import PlainPair

_STATUS = 9  # of who has found something


def _told(pair, name):
    return pair.stage.dist / "share" / "omniverb" / name


def _valgrind(pair):
    return ["valgrind", "-q", "--leak-check=full", "--show-leak-kinds=all",
            "--errors-for-leak-kinds=all", f"--error-exitcode={_STATUS}",
            f"--suppressions={_told(pair, 'valgrind.supp')}"]


def _pongs(program, *options):
    """Both sides under valgrind: not a word but of calls that it does not know."""
    def run(pair):
        words = [*_valgrind(pair), program, "-g", duet.gid_index(pair.server), "-n", "50", *options]
        outcome = duet.run(pair, *words, limit=100)
        for text in (outcome.server, outcome.client):
            check("lost" not in text and "uninitialised" not in text, text)
    return run


def _forgets(pair):
    """Objects that a program does not give back are still its own fault."""
    text = pair.server.run(*_valgrind(pair), "/opt/programs/keys", limit=100, accept=(_STATUS,))
    check("definitely lost" in text, text)


def _races(program):
    def run(pair):
        options = f"exitcode={_STATUS}:suppressions={_told(pair, 'tsan.supp')}:die_after_fork=0"
        # Addresses that are too random it does not start with.
        pair.server.run("setarch", "-R", "env", f"TSAN_OPTIONS={options}",
                        f"/opt/programs/{program}-tsan", limit=100)
    return run


def groups():
    """As an ordinary user: who debugs programs is one."""
    pongs = {"rc": ("ibv_rc_pingpong",), "events": ("ibv_rc_pingpong", "-e"),
             "ud": ("ibv_ud_pingpong",), "srq": ("ibv_srq_pingpong",)}
    cases = [*(Case(f"valgrind.{name}", _pongs(*words), 120) for name, words in pongs.items()),
             Case("valgrind.forgets", _forgets, 120),
             Case("tsan.itself", _races("itself"), 120)]
    return [Group("debuggers", cases, PlainPair, weight=POLLS)]
