"""The workspace's own checks: unit tests, lints, format, layering, style, C layouts; and that the
demo goes through."""

import os

from harness import process, staging
from harness.case import POLLS, WAITS, Case, Group

_CHECKS = [
    ("format", ["fmt", "--all", "--check"], 60),
    ("clippy", ["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"], 600),
    ("unit-tests", ["test", "--workspace", "--exclude", "omniverb_adopt", "--locked"], 1500),
    ("adoption", ["test", "-p", "omniverb_adopt", "--locked"], 900),
    ("layers", ["xtask", "layers"], 300),
    ("tidy", ["xtask", "tidy"], 300),
    ("abi", ["xtask", "abi"], 300),
]


_SCRIPTS = [
    ("ring", ["support/ring/check"], 1200),
    ("address-sanitizer", ["rnic/device/check"], 900),
    ("fuzz", ["fuzz/run.sh", "check"], 900),
    ("demo", ["/usr/bin/python3", "demo/demo.py"], 400),
]


def _command(words, limit):
    def run(_fixture):
        print(process.run(words, limit=limit, cwd=staging.ROOT, env=os.environ))
    return run


# What keeps one processor busy at most.
_LIGHT = {"format", "layers", "tidy", "abi"}


def groups():
    """One case a check, each a group of its own."""
    commands = [(name, ["cargo", *words], limit) for name, words, limit in _CHECKS] + _SCRIPTS
    return [Group(f"checks.{name}", [Case(f"checks.{name}", _command(words, limit), limit + 10)],
                  staged=False, weight=WAITS if name in _LIGHT else POLLS)
            for name, words, limit in commands]
