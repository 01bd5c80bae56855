"""Runs the workspace's own checks: unit tests, lints, format, layering, style, C layouts."""

import os
import pathlib

from cases import wireshark_dissection
from harness import disk_space, process, staging
from harness.case import POLLS, WAITS, Case, Group

# One after the other, since cargo lets only one at a time into the folder it builds in. The first
# is what `cargo clippy` does, and builds what the others run.
_CARGO = [
    ("clippy", ["test", "--no-run", "--workspace", "--all-targets", "--locked"], 2400),
    ("unit-tests", ["test", "--workspace", "--exclude", "omniverb_adopt", "--locked"], 1500),
    ("adoption", ["test", "-p", "omniverb_adopt", "--locked"], 900),
]
# More of the same in `make soak`.
_ENVIRONMENT = {**staging.LINTED, "OMNIVERB_ADOPT_CYCLES": "30"}

# Made by `make build`, so that they need not wait for that folder.
_XTASKS = ["layers", "tidy", "abi"]

# What nobody needs any more when the last that needs it has passed, if room is short. Of what
# cargo builds there the xtask itself is needed.
_OVER = {
    "adoption": [f"target/debug/{name}" for name in ("deps", "build", ".fingerprint", "examples",
                                                     "incremental")],
    "ring": ["target/loom", "target/miri"],
    "address-sanitizer": ["target/asan"],
    "fuzz": ["fuzz/target"],
}

_SCRIPTS = [
    ("ring", ["support/ring/check"], 1200),
    ("address-sanitizer", ["rnic/device/check"], 900),
    ("fuzz", ["fuzz/run.sh", "check"], 900),
    ("demo", ["/usr/bin/python3", "demo/demo.py", "--quick"], 400),
    ("demo-wire", ["/usr/bin/python3", "demo/wire.py", "--quick"], 400),
    ("demo-tenants", ["/usr/bin/python3", "demo/tenants.py", "--quick"], 400),
]
# With `--slow`: where processors are emulated it takes minutes of theirs.
_SLOW = ("demo-vm", ["/usr/bin/python3", "demo/vm.py", "--quick"], 600)


def _command(words, limit, environment=None):
    def run(_fixture):
        print(process.run(words, limit=limit, cwd=staging.ROOT, env=environment or os.environ))
    return run


def _xtask(name):
    def run(_fixture):
        built = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", "target"), "debug", "xtask")
        _command([staging.ROOT / built, name], 300)(_fixture)
    return run


def _case(name, run, limit, slow=False):
    def then(fixture):
        run(fixture)
        disk_space.give_back(*_OVER.get(name, []))
    return Case(f"checks.{name}", then, limit + 10, slow=slow)


def groups():
    """One case a check."""
    cargo = [_case(name, _command(["cargo", *words], limit, _ENVIRONMENT), limit)
             for name, words, limit in _CARGO] + [wireshark_dissection.CASE]
    light = [_case("format", _command(["cargo", "fmt", "--all", "--check"], 60), 60),
             *(_case(name, _xtask(name), 300) for name in _XTASKS)]
    scripts = [Group(f"checks.{name}", [_case(name, _command(words, limit), limit)],
                     staged=False, weight=POLLS) for name, words, limit in _SCRIPTS]
    name, words, limit = _SLOW
    scripts.append(Group(f"checks.{name}", [_case(name, _command(words, limit), limit, slow=True)],
                         staged=False, weight=POLLS))
    return [Group("checks.cargo", cargo, staged=False, weight=POLLS),
            Group("checks.light", light, staged=False, weight=WAITS), *scripts]
