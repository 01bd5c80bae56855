"""Runs a test suite of rdma-core and says of each test how it ended.

    run_rdma_core_suite.py FOLDER [-NAME ...] [PART_OF_A_NAME ...]

FOLDER is the unmodified `tests` of a release; pyverbs is found as usual (PYTHONPATH). The suite is
loaded as its run_tests.py does; a test whose NAME is given with a dash is not run. Each test that
has ended is a line of standard output: the word RESULT and a JSON object with its name, how it
ended (ok, skip, fail, error; omitted: it was not to run), why, and how long it took in seconds.
What the tests print is between them.
"""

import faulthandler
import importlib.machinery
import json
import os
import sys
import time
import unittest

_LONGEST = 60  # seconds for one test; it is said then where it stands, and nothing more is tried


class _Told(unittest.TestResult):
    """Prints what becomes of each test."""

    def __init__(self):
        super().__init__()
        self.before = 0.0

    def startTest(self, test):
        super().startTest(test)
        self.before = time.monotonic()
        faulthandler.dump_traceback_later(_LONGEST, exit=True)

    def stopTest(self, test):
        super().stopTest(test)
        faulthandler.cancel_dump_traceback_later()

    def addOmitted(self, test):
        """It was not to run."""
        self.before = time.monotonic()
        self._tell(test, "omitted")

    def _tell(self, test, how, why=""):
        # A test of a class that could not be set up has no such name.
        name = test.id().removeprefix("tests.")
        seconds = round(time.monotonic() - self.before, 2)
        told = {"name": name, "how": how, "why": why, "seconds": seconds}
        print("\nRESULT " + json.dumps(told), flush=True)

    def addSuccess(self, test):
        self._tell(test, "ok")

    def addSkip(self, test, reason):
        self._tell(test, "skip", str(reason))

    def addFailure(self, test, err):
        self._tell(test, "fail", self._exc_info_to_string(err, test))

    def addError(self, test, err):
        self._tell(test, "error", self._exc_info_to_string(err, test))

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self._tell(subtest, "fail", self._exc_info_to_string(err, test))


def _all(suite):
    for part in suite:
        yield from _all(part) if isinstance(part, unittest.TestSuite) else [part]


def _without(suite, omitted):
    """The tests that are to run, still by class: what a class prepares is prepared once."""
    for part in suite:
        if isinstance(part, unittest.TestSuite):
            yield unittest.TestSuite(_without(part, omitted))
        elif part.id() not in omitted:
            yield part


def main():
    folder = os.path.abspath(sys.argv[1])
    parts = [word for word in sys.argv[2:] if not word.startswith("-")]
    omitted = {f"tests.{word[1:]}" for word in sys.argv[2:] if word.startswith("-")}
    os.chdir(folder)
    sys.path.insert(0, folder)
    sys.argv = ["run_tests.py"]
    from args_parser import parser  # of the run_rdma_core_suite
    tests = importlib.machinery.SourceFileLoader(
        "tests", os.path.join(folder, "__init__.py")).load_module()
    parser.parse_args()
    suite = unittest.defaultTestLoader.loadTestsFromModule(tests)
    if parts:
        suite = unittest.TestSuite(test for test in _all(suite)
                                   if any(part in test.id() for part in parts))
    told = _Told()
    for test in _all(suite):
        if test.id() in omitted:
            told.addOmitted(test)
    unittest.TestSuite(_without(suite, omitted)).run(told)
    print("END", flush=True)


if __name__ == "__main__":
    main()
