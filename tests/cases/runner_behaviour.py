"""Tests the runner (harness/pytest_plugin.py) by runs of small files of tests."""

import pathlib
import tempfile

import pytest

from harness import process
from harness.case import WAITS, Skip, check
from harness.staging import ROOT

pytestmark = [pytest.mark.weight(WAITS), pytest.mark.limit(150)]

_IMPORTS = """
import contextlib, os, pathlib, signal, subprocess, time
import pytest
from harness.case import *
HERE = pathlib.Path(__file__).parent
"""


@pytest.fixture(name="run")
def _run():
    """Runs a file of tests with some options, and returns what is printed."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "cases", "sample.py")
        (file.parent / "small").mkdir(parents=True)

        def run(text, *options, below=(), accept=(1,)):
            file.write_text(_IMPORTS + text, encoding="utf-8")
            words = [ROOT / "tests" / "run", "-p", "no:cacheprovider", file, *options]
            return process.run([*below, *words], limit=50, accept=accept, cwd=file.parent)

        run.folder = file.parent
        yield run


def _ends_with(text, line):
    check(text.splitlines()[-1] == line and "Traceback" not in text, text)


def test_full_disk(run):
    """A disk that is full is named, and what failed is counted."""
    text = run("""
def _fills(_):
    with contextlib.suppress(OSError), open(HERE / "small" / "file", "ab", 0) as file:
        while True:
            file.write(bytes(4096))
    raise Failure("the reason")

def groups():
    return [Group("disk", [Case("fills", _fills)], staged=False)]
""", below=["unshare", "--mount", "sh", "-ec",
            'mount -t tmpfs -o size=64k none small; TMPDIR=$PWD/small exec "$@"', "sh"])
    _ends_with(text, "0 passed, 1 failed")
    check(text.count("     the disk is full: ") == 2 and "     the reason" in text, text)


def test_fixture_fails_at_its_end(run):
    """A fixture that fails when its cases have passed is a failure."""
    text = run("""
def fixture(end):
    @contextlib.contextmanager
    def one(stage):
        yield
        end()
    return one

def fails():
    raise Failure("something was left")

def groups():
    return [Group(end.__name__, [Case(f"passes before {end.__name__}", lambda _: None)],
                  fixture(end), staged=False) for end in (fails, os.abort, int)]
""")
    _ends_with(text, "3 passed, 2 failed")
    check("something was left" in text and "SIGABRT" in text, text)


def test_fixtures(run):
    """One for all cases of a group, and a fresh one after a failure; if it fails or skips itself,
    so do they."""
    text = run("""
@contextlib.contextmanager
def counted(stage):
    file = HERE / "count"
    file.write_text(file.read_text() + "x" if file.exists() else "x")
    yield file.read_text()

def expect(count, passes=True):
    def case(found):
        check(found == count * "x", f"{found}")
        check(passes, "the reason")
    return case

@contextlib.contextmanager
def fails(stage):
    raise Failure("no fixture")
    yield

@contextlib.contextmanager
def skips(stage):
    raise Skip("no hardware")
    yield

def groups():
    # The third is tried with the second fixture.
    return [Group("counted", [Case("a", expect(1)), Case("b", expect(1)), Case("c", lambda found:
                  check(found == "xx" and False, found)), Case("d", expect(3))], counted,
                  staged=False),
            Group("fails", [Case("e", expect(1))], fails, staged=False),
            Group("skips", [Case("f", expect(1)), Case("g", expect(1))], skips, staged=False)]
""")
    _ends_with(text, "3 passed, 2 failed")
    check("no fixture" in text and text.count("no hardware") == 2, text)


_FLAKY = """
def _second(_):
    tried = (HERE / "tried").exists()
    (HERE / "tried").touch()
    print("second" if tried else "first")
    check(tried, "not yet")

def groups():
    return [Group("flaky", [Case("flaky", _second), Case("well", lambda _: None)], staged=False)]
"""


@pytest.mark.parametrize("confirm", [0, 2])
def test_flaky(run, confirm):
    """What passes only when tried again is a failure, unless it is confirmed."""
    text = run(_FLAKY, "--confirm", confirm, accept=(0, 1))
    if "(excused: " in text:
        raise Skip("the machine stood still")
    check("AGAIN flaky" in text, text)
    if confirm:
        _ends_with(text, "2 passed, 0 failed")
        check("FLAKY, and let pass: flaky (then it passed alone, 2 times in a row)" in text, text)
    else:
        _ends_with(text, "1 passed, 1 failed")
        check("FLAKY, so counted as failed: flaky" in text, text)
        check("\nfirst\n" in text and "\nsecond\n" in text, text)


def test_notes(run):
    """What has to be known of cases that pass is printed at the end."""
    text = run("""
from harness import notes

def groups():
    return [Group(name, [Case(name, lambda _, name=name: notes.add(f"a note of {name}"))],
                  staged=False) for name in ("one", "two")]
""", accept=(0,))
    _ends_with(text, "2 passed, 0 failed")
    for name in ("one", "two"):
        check(text.count(f"{name}: a note of {name}") == 1, text)


def test_hanging(run):
    """A case that hangs is ended, with all that it started, and what dies is noticed."""
    text = run("""
def _hangs(_):
    print("before it hangs")
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    (HERE / "child").write_text(str(child.pid))
    time.sleep(600)

def _ended(_):
    check(not os.path.exists("/proc/" + (HERE / "child").read_text()), "it is still there")

def _silent(_):
    os.closerange(3, 256)
    time.sleep(600)

def groups():
    return [Group("hangs", [Case("hangs", _hangs, 0.5), Case("ended", _ended),
                            Case("dies", lambda _: os.abort())], staged=False),
            Group("silent", [Case("silent", _silent)], staged=False)]
""")
    _ends_with(text, "1 passed, 3 failed")
    for words in ("not done after 0.5 s", "before it hangs", "died: killed by SIGABRT"):
        check(words in text, text)


@pytest.mark.parametrize("below", [[], ["sh", "-c", """trap '' INT; exec "$@\"""", "sh"]],
                         ids=["foreground", "background"])
def test_interrupted(run, below):
    """A run that is told to end cleans up first, and does not look as if it had passed."""
    text = run("""
@contextlib.contextmanager
def cleans_up(stage):
    yield
    (HERE / "cleaned").touch()

def _told(_):
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    os.kill(os.getppid(), signal.SIGTERM)
    time.sleep(600)

def groups():
    return [Group("told", [Case("told", _told)], cleans_up, staged=False)]
""", below=below, accept=(2,))
    check(text.splitlines()[-1] == "0 passed, 1 failed", text)
    check((run.folder / "cleaned").exists(), text)


def test_first_failure(run):
    """With -x nothing is begun after a failure."""
    _ends_with(run("""
def groups():
    return [Group(name, [Case(name, lambda _: check(False, "the reason"))], staged=False,
                  weight=ALONE) for name in ("one", "two")]
""", "-x"), "0 passed, 1 failed")


def test_side_by_side(run):
    """Groups that wait run together; those that are alone do not, and first."""
    _ends_with(run("""
def _meets(mine, other):
    def case(_):
        check(not (HERE / "alone").exists(), "beside one that is alone")
        (HERE / mine).touch()
        while not (HERE / other).exists():
            time.sleep(0.01)
    return case

def _alone(_):
    (HERE / "alone").mkdir()
    time.sleep(0.3)
    (HERE / "alone").rmdir()
    check(not (HERE / "one").exists(), "not first")

def groups():
    return [Group("one", [Case("one", _meets("one", "two"), 20)], staged=False, weight=WAITS),
            Group("alone", [Case("alone", _alone)], staged=False, weight=ALONE),
            Group("alone too", [Case("alone too", _alone)], staged=False, weight=ALONE),
            Group("two", [Case("two", _meets("two", "one"), 20)], staged=False, weight=WAITS)]
""", accept=(0,)), "4 passed, 0 failed")


_PLAIN = """
@pytest.mark.parametrize("number", [1, 2])
def test_number(number):
    assert number < 2

@pytest.mark.slow
def test_slow():
    pass
"""


def test_plain(run):
    """Plain tests of pytest have names, too, and JUnit hears of all."""
    _ends_with(run(_PLAIN, "--list", accept=(0,)), "sample.number[2]")
    _ends_with(run(_PLAIN, "--list", "--slow", accept=(0,)), "sample.slow")
    text = run(_PLAIN, "--junitxml=junit.xml")
    _ends_with(text, "1 passed, 1 failed")
    check("assert 2 < 2" in text, text)
    _ends_with(run(_PLAIN + _FLAKY, "number[1]", "well", accept=(0,)), "2 passed, 0 failed")
    _ends_with(run(_PLAIN + _FLAKY, "-k", "well or slow", accept=(0,)), "1 passed, 0 failed")


def test_broken(run):
    """A file that cannot be read is a failure, and a name that chooses nothing an exit status."""
    text = run("import nothing_of_that_name", accept=(2,))
    check(text.splitlines()[-1] == "0 passed, 1 failed", text)
    _ends_with(run(_PLAIN, "nothing_of_that_name", accept=(5,)), "0 passed, 0 failed")
