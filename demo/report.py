"""Prints what all demos share: commands, results, and disturbances by the machine.

What the harness of the tests says (consoles, logs of daemons) goes into a file, whose end is shown
if the demo fails. A figure that is worse than TCP's has its reason below the table."""

import argparse
import contextlib
import os
import shutil
import sys
import tempfile
import textwrap
import time

RULE = "-" * 80
WIDTH = 80
# Of the processors' time, what others may use before it is worth a word.
_BUSY = 0.25
_LAST = 40

_screen = sys.stdout


def read_options(about):
    """Whether measurements are to be short."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--quick", action="store_true", help="shorter measurements, to see it work")
    return parser.parse_args().quick


def say(text="", end="\n"):
    """A line for who looks."""
    print(text, end=end, flush=True, file=_screen)


def fact(name, text):
    """A line of what there is, wrapped."""
    lines = textwrap.wrap(text, WIDTH - 12)
    say(f"{name:12}" + f"\n{'':12}".join(lines))


def paragraph(text):
    """Some sentences, wrapped."""
    say(textwrap.fill(text, WIDTH))


@contextlib.contextmanager
def quiet():
    """What others print goes into a file, of which the end is shown if this fails."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as log:
        try:
            with contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
                yield
        except Exception:
            log.seek(0)
            lines = log.read().splitlines()
            say("\nThe last that was heard of what runs below:" if lines else "")
            for line in lines[-_LAST:]:
                say(f"    {line}")
            raise


def others(seconds=0.5):
    """The part of the processors' time that is used while the demo itself rests."""
    before = _ticks()
    time.sleep(seconds)
    busy, total = (now - then for now, then in zip(_ticks(), before, strict=True))
    return busy / max(1, total)


def _ticks():
    """Ticks that were used, and all (proc(5), /proc/stat)."""
    with open("/proc/stat", encoding="ascii") as file:
        ticks = [int(word) for word in file.readline().split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


class Reasons:
    """Why figures are worse than TCP's."""

    def __init__(self, is_quick):
        self.is_quick, self.worse, self.busy = is_quick, [], others()

    def see(self, title, heading, times):
        """Takes a figure: how many times better than TCP it is."""
        if times < 1:
            self.worse.append((title, heading))

    def say(self, known=(), usual=None):
        """Says what is known of rows, pairs of a title and its reason, and why others are worse "
        "than
        TCP. A title may be that of one figure: a pair of a row's and a column's."""
        self.busy = max(self.busy, others())
        known = dict(known)
        why = {}
        for title, heading in self.worse:
            reason = known.get((title, heading)) or known.get(title) or self._usual(usual)
            why.setdefault(reason, {}).setdefault(title, []).append(heading)
        # What is known of a row is worth saying, whatever came out.
        for title, reason in known.items():
            title = title if isinstance(title, str) else title[0]
            why.setdefault(reason, {}).setdefault(title, [])
        if why:
            say("\nWhy figures are below 1x:" if self.worse else "")
        for reason, rows in why.items():
            of = "; ".join(f"{title} ({', '.join(headings)})" if headings else title
                           for title, headings in rows.items())
            say(textwrap.fill(f"{of}: {reason}", WIDTH, initial_indent="  ",
                              subsequent_indent="    "))

    def _usual(self, usual):
        """The reason of rows of which nothing is known."""
        found = []
        if self.is_quick:
            found.append("a --quick run is too short for figures")
        if self.busy > _BUSY:
            found.append(f"other programs use {self.busy:.0%} of this machine's processors, and "
                         "programs that poll take turns with them: run it when the machine is idle")
        if usual or not found:
            found.append(usual or f"more threads poll than the {os.cpu_count()} processors bear, "
                                  "where TCP sleeps in the kernel")
        return "; ".join(found)


def shell(name, line, output):
    """A command as it is typed somewhere, and what it answers."""
    say(f"\n{name}$ {line}")
    for text in output:
        columns = shutil.get_terminal_size((WIDTH * 2, 24)).columns
        say("    " + text[:max(WIDTH, columns) - 4])
