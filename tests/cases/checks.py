"""The workspace's own checks: unit tests, lints, format, layering, style, C layouts."""

import os

from harness import process, staging
from harness.case import Case, Group

_CHECKS = [
    ("format", ["fmt", "--all", "--check"], 60),
    ("clippy", ["clippy", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"], 600),
    ("unit-tests", ["test", "--workspace", "--locked"], 1500),
    ("layers", ["xtask", "layers"], 300),
    ("tidy", ["xtask", "tidy"], 300),
    ("abi", ["xtask", "abi"], 300),
]


def _cargo(words, limit):
    def run(_fixture):
        print(process.run(["cargo", *words], limit=limit, cwd=staging.ROOT, env=os.environ))
    return run


def groups():
    """One case a check."""
    return [Group("checks", [Case(f"checks.{name}", _cargo(words, limit), limit + 10)
                             for name, words, limit in _CHECKS], staged=False)]
