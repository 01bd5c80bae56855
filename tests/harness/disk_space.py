"""Checks the room on the disk for a whole run, and frees it.

A disk that is full makes anything fail that writes, each in its own words. So a run says beforehand
when there is less than it needs, and says of a case that failed meanwhile that the disk was full.
"""

import os
import shutil
import tempfile

from . import staging

# What `.ci/run` takes at most in a clean checkout, what is built included: tests/README.md.
NEEDED = 4 << 30
# With less than that nothing of a program's output can be relied on.
_FULL = 16 << 20
# Of the output of a case so much is kept, at its beginning and at its end.
_HEAD, _TAIL = 16 << 10, 48 << 10
# Set by `tests/run --lean`.
_LEAN = "OMNIVERB_TESTS_LEAN"


def free(folder):
    """Bytes that are free for us in the file system of a folder."""
    state = os.statvfs(folder)
    return state.f_bavail * state.f_frsize


def short():
    """Says so if there is less room than a whole run needs; or an empty string. What is built
    already is room that it has."""
    there = free(staging.ROOT)
    if there < NEEDED:
        there += sum(_size(staging.ROOT / name) for name in ("target", "fuzz/target", "dist"))
    if there >= NEEDED:
        return ""
    return (f"the disk may be too small: {there >> 20} MiB are free or built in {staging.ROOT}, a "
            f"whole run needs {NEEDED >> 20}")


def _size(folder):
    """Bytes that files below a folder take."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(path, name)).st_blocks * 512
            except OSError:
                pass
    return total


def full():
    """Says that the disk is full, if it is, where we or the tests write; or an empty string."""
    found = [place for place in (staging.ROOT, tempfile.gettempdir()) if free(place) < _FULL]
    return f"the disk is full: {free(found[0]) >> 10} KiB are free in {found[0]}" if found else ""


def shorten(text):
    """Takes the middle out of a long text."""
    left_out = len(text) - _HEAD - _TAIL
    if left_out <= 0:
        return text
    return f"{text[:_HEAD]}\n--- {left_out} characters left out ---\n{text[-_TAIL:]}"


def be_lean():
    """From now on what no case needs any more is given back."""
    os.environ[_LEAN] = "1"


def give_back(*names):
    """Removes folders below the root, if room is short: whoever builds again has to do it from
    the beginning."""
    if os.environ.get(_LEAN) and not os.environ.get("CARGO_TARGET_DIR"):
        for name in names:
            shutil.rmtree(staging.ROOT / name, ignore_errors=True)
