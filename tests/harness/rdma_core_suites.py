"""Runs rdma-core's own test suites and checks their results.

A stored list (tests/conformance/*.toml) names every test that skips itself here, with what it says
and the reason. All others must pass; a test that skips itself and is not in the list is as bad as
one that fails, and so is one in the list that runs, but where the list says that it may. It also
names those that a network that loses must not be given, with the reason."""

import collections
import gzip
import json
import pathlib
import re
import shlex
import shutil
import tempfile
import tomllib

from . import process, staging
from .case import Failure, check

CONFORMANCE = staging.ROOT / "tests" / "conformance"
# Tests of one vendor's devices: they skip themselves on any other.
_OF_A_VENDOR = re.compile(r"test_(mlx5|efa)")
_RUNNER = "run_rdma_core_suite.py"


class Suite:
    """A release's suite in the folder of the stage that all places see."""

    def __init__(self, stage, name, tests, python=None, libraries=()):
        folder = pathlib.Path(tempfile.mkdtemp(prefix=f"suite-{name}-", dir=stage.programs))
        self.folder = f"/opt/programs/{folder.name}"
        shutil.copytree(tests, folder / "tests")
        for packed in folder.rglob("*.gz"):
            packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
            packed.unlink()
        if python:
            shutil.copytree(python, folder / "python")
        (folder / "lib").mkdir()
        for library in libraries:
            shutil.copy(library, folder / "lib")
        shutil.copy(CONFORMANCE / _RUNNER, folder)
        process.run(["chmod", "-R", "a+rX", folder])

    def run(self, place, parts=(), limit=240, omitted=()):
        """Runs it, or tests with one of `parts` in their names, and none that is `omitted`; returns
        what became of each."""
        # Behind the libraries under test.
        script = (f'cd /tmp; F={self.folder}; export PYTHONPATH="$F/python" '
                  f'LD_LIBRARY_PATH="$LD_LIBRARY_PATH:$F/lib"; '
                  f'exec /usr/bin/python3 -B "$F/{_RUNNER}" "$F/tests" '
                  + shlex.join([*(f"-{name}" for name in omitted), *parts]))
        text = place.run("sh", "-c", script, limit=limit, accept=range(-64, 256))
        found = [json.loads(line) for line in re.findall(r"^RESULT (.*)$", text, re.MULTILINE)]
        check(re.search(r"^END$", text, re.MULTILINE), f"the suite did not end:\n{text[-6000:]}")
        return found


def unreliable(stored):
    """The tests of a list that may lose what they wait for on a network that loses."""
    return list(_listed(_read(stored)["unreliable"]))


def judge(found, stored, least, omitted=()):
    """All that ran passed, at least so many, and what did not run is what the list says, or what
    was to be omitted."""
    listed = _listed(_read(stored)["skipped"])
    generic = [test for test in found if not _OF_A_VENDOR.match(test["name"])]
    counts = collections.Counter(test["how"] for test in generic)
    wrong = [f"{test['how']} {test['name']}\n{test['why']}" for test in found
             if test["how"] not in ("ok", "skip", "omitted")]
    for test in generic:
        expected = listed.pop(test["name"], None)
        if test["how"] == "skip":
            if not expected:
                wrong.append(f"skips itself: {test['name']}: {test['why']}")
            elif not any(re.fullmatch(says, test["why"]) for says in expected["says"]):
                wrong.append(f"skips itself for another reason: {test['name']}: {test['why']}")
        elif test["how"] == "ok" and expected and not expected.get("may_run"):
            wrong.append(f"runs now, take it off {stored}: {test['name']}")
    gone = [*listed, *set(omitted).difference(test["name"] for test in found)]
    wrong += [f"is not there any more, take it off {stored}: {name}" for name in gone]
    summary = ", ".join(f"{count} {how}" for how, count in sorted(counts.items()))
    if wrong:
        raise Failure(f"{summary}; {len(wrong)} not as they should be\n" + "\n".join(wrong))
    check(counts["ok"] >= least, f"{summary}; {least} should be ok")
    slow = sorted(found, key=lambda test: -test["seconds"])[:5]
    print(f"{summary}; longest: " + ", ".join(f"{t['name']} {t['seconds']} s" for t in slow))


def _read(stored):
    return tomllib.loads((CONFORMANCE / stored).read_text())


def _listed(groups):
    """The entry of each test in a list."""
    found = {}
    for group in groups:
        for name in group["tests"]:
            if name in found:
                raise Failure(f"{name} is in the list twice")
            found[name] = group
    return found


def debian():
    """Where Debian's python3-pyverbs has its suite."""
    return pathlib.Path("/usr/share/doc/rdma-core/tests")
