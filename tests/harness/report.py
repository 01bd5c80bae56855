"""Where results go: one line a case on stdout, the output of failures in files."""

import os
import pathlib
import re
import sys
import time

from . import room


class Report:
    """Counts and prints results."""

    def __init__(self, folder: pathlib.Path, keep=False):
        self.folder, self.keep = folder, keep
        self.counts = {"PASS": 0, "FAIL": 0, "SKIP": 0}
        # Why a case was tried once more is no fault of its own, by name; or empty.
        self.repeated, self.excused, self.flaky, self.doubtful = {}, [], [], []
        # What was said of the disk, once it was full.
        self.full = ""
        self.begun, self.groups = time.monotonic(), {}
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*.log"):
            old.unlink()

    def log_path(self, name):
        """The file that collects what a case prints."""
        return self.folder / (re.sub(r"[^A-Za-z0-9._-]+", "_", name) + ".log")

    def add(self, name, verdict, seconds, reason=""):
        """Records one result."""
        if name in self.repeated and verdict == "SKIP":
            verdict, reason = "FAIL", f"it failed, and skipped itself when tried again: {reason}"
        if name in self.repeated and verdict == "PASS":
            excuse = self.repeated[name]
            if excuse:
                self.excused.append((name, excuse))
            else:
                self.flaky.append(name)
                verdict, reason = "FLAKY", "it passed only when tried again"
        self.counts["FAIL" if verdict == "FLAKY" else verdict] += 1
        note = ""
        if verdict == "SKIP":
            note = f"  ({first_line(reason)})"
        print(f"{verdict} {seconds:7.1f} s  {name}{note}", flush=True)
        path = self.log_path(name)
        if verdict in ("FAIL", "FLAKY"):
            self._write(path, f"\n{reason}\n")
            print(f"{_first_lines(reason)}\n     see {os.path.relpath(path)}", flush=True)
            self._look_for_room()
        elif path.exists() and not self.keep:
            path.unlink()

    def _write(self, path, text):
        """Adds to a log. Whether that can be kept decides nothing."""
        try:
            with open(path, "a", encoding="utf-8") as file:
                file.write(text)
            room.shorten(path)
        except OSError as error:
            if not room.is_full(error):
                raise

    def _look_for_room(self):
        """Notes if the disk was full when something failed."""
        trouble = room.full(self.folder)
        if trouble:
            self.full = trouble
            print(f"     {trouble}", flush=True)

    def group(self, name, seconds, processor_seconds):
        """Records what a group that just ended took, of time and of processors."""
        begun = time.monotonic() - seconds - self.begun
        first, before, used = self.groups.get(name, (begun, 0.0, 0.0))
        self.groups[name] = (first, before + seconds, used + processor_seconds)

    def print_groups(self):
        """Prints where the time went, the longest first."""
        print(" begun   time  processors  group")
        for name, (begun, seconds, used) in sorted(self.groups.items(),
                                                   key=lambda item: -item[1][1]):
            print(f"{begun:6.1f} {seconds:6.1f} {used:11.1f}  {name}")

    def again(self, name, seconds, reason, excuse):
        """Records that a case failed and is tried once more. Why stays in its log, if that is
        kept. `excuse`: why that is no fault of the case, or empty."""
        self.repeated[name] = excuse
        self._write(self.log_path(name), f"\n{reason}\n--- once more ---\n")
        print(f"AGAIN{seconds:7.1f} s  {name}\n{_first_lines(reason)}", flush=True)
        self._look_for_room()

    def confirmed(self, name, passed, times):
        """Takes a flaky case for passed, if it passed that many times, alone, at the end. It is
        named as flaky all the same."""
        if passed == times:
            self.flaky.remove(name)
            self.doubtful.append(f"{name} (then it passed alone, {times} times in a row)")
            self.counts["FAIL"] -= 1
            self.counts["PASS"] += 1

    def finish(self):
        """Prints the last line; returns the exit status."""
        for name, excuse in self.excused:
            print(f"passed only when tried again: {name} (excused: {excuse})", flush=True)
        for name in self.doubtful:
            print(f"FLAKY, and let pass: {name}", flush=True)
        for name in self.flaky:
            print(f"FLAKY, so counted as failed: {name}", flush=True)
        if self.full:
            print(f"what failed tells nothing: {self.full}", flush=True)
        if self.counts["SKIP"]:
            print(f"{self.counts['SKIP']} skipped", flush=True)
        print(f"{self.counts['PASS']} passed, {self.counts['FAIL']} failed", flush=True)
        sys.stdout.flush()
        return 1 if self.counts["FAIL"] else 0


def _first_lines(text):
    """The beginning of a reason, indented."""
    lines = [line.strip()[:180] for line in text.splitlines() if line.strip()]
    panic = next((at for at, line in enumerate(lines) if " panicked at " in line), len(lines))
    shown = lines[:6] + lines[max(panic, 6):][:3]
    return "\n".join(f"     {line}" for line in shown)


def first_line(text):
    """The first line with something in it."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")
