"""rdma-core's own test suite (Debian's python3-pyverbs), unmodified, against our library.

Tests of features that the device does not offer skip themselves when they see EOPNOTSUPP. None may
fail, and enough must really run.
"""

import contextlib
import gzip
import os
import pathlib
import re
import shutil
import tempfile

from harness.case import WAITS, Case, Group, check
from harness.plain import PlainPair

_SUITE = pathlib.Path("/usr/share/doc/rdma-core/tests")
_RUN_AT_LEAST = 115


@contextlib.contextmanager
def _suite(stage):
    """A user's daemon, and the suite unpacked where the user can read it."""
    with tempfile.TemporaryDirectory(prefix="omniverb-pyverbs-") as folder:
        target = pathlib.Path(folder, "tests")
        shutil.copytree(_SUITE, target)
        for packed in target.rglob("*.gz"):
            packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
            packed.unlink()
        os.chmod(folder, 0o755)
        with PlainPair(stage) as pair:
            pair.suite = target / "run_tests.py"
            yield pair


def _run(pair):
    output = pair.server.run("/usr/bin/python3", "-B", pair.suite, "-v", limit=240, accept=(0, 1))
    summary = re.search(r"^Ran (\d+) tests", output, re.MULTILINE)
    check(summary, output[-2000:])
    failed = re.findall(r"^(?:FAIL|ERROR): (.*)$", output, re.MULTILINE)
    check(not failed, "\n".join(failed) + "\n" + output[-4000:])
    ran = len(re.findall(r"\.\.\. ok$", output, re.MULTILINE))
    check(ran >= _RUN_AT_LEAST, f"only {ran} of {summary[1]} tests ran:\n{output[-4000:]}")
    print(f"{ran} of {summary[1]} tests apply, none failed")


def groups():
    """The suite as one case."""
    return [Group("pyverbs", [Case("pyverbs.suite", _run, 250)], _suite, weight=WAITS)]
