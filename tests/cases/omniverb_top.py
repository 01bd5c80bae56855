"""Tests `omniverb top`: tables, JSON, and the screen in a pseudo-terminal."""

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import termios
import time

from harness import client_server, process
from harness.case import WAITS, Case, Group, check
from harness.containers import Pair
from harness.daemon import environment

_RATE = "300mbit"


class _Screen:
    """A program on a terminal of its own."""

    def __init__(self, line, options, columns=80, rows=24):
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))
            os.execve(line[0], line, options)
        self.text = ""

    def read(self, seconds):
        """What it has drawn in so long."""
        end = time.monotonic() + seconds
        while select.select([self.terminal], [], [], max(0.0, end - time.monotonic()))[0]:
            try:
                data = os.read(self.terminal, 65536)
            except OSError:  # it has ended
                break
            self.text += data.decode(errors="replace")
            if not data or time.monotonic() > end:
                break
        return self.text

    def shows(self, word):
        """Has it drawn this, whatever it drew between its letters, and without blanks?"""
        self.read(0.1)
        text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.text)
        return word.replace(" ", "") in text.replace(" ", "")

    def press(self, key):
        """Presses a key."""
        os.write(self.terminal, key)

    def wait(self, limit):
        """Its exit status."""
        end = time.monotonic() + limit
        while time.monotonic() < end:
            self.read(0.05)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.pid = None
                return os.waitstatus_to_exitcode(status)
        raise AssertionError(f"it has not ended\n{self.text[-2000:]!r}")

    def close(self):
        """Ends it."""
        if self.pid:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self.terminal)


@contextlib.contextmanager
def _fixture(stage):
    with Pair(stage) as pair:
        for place in (pair.server, pair.client):
            place.run("ibv_devices")
        pair.daemon.set_vnic(pair.client.namespace, "--rate", _RATE)
        yield pair


def _row(pair, table):
    name = pair.daemon.vnic(pair.client.namespace)["name"]
    return next((row for row in table["vnics"] if row["name"] == name), {})


def _batch(pair):
    """Rates of a limited program are near its limit, and it is the first row."""
    with client_server.going_on(pair, "ib_write_bw", "-s", "65536"):
        def limited():
            text = pair.daemon.omniverb("top", "--json", "--once")
            row = _row(pair, json.loads(text))
            return row and row["queue_pairs"] == 1 and row["sent_bits_per_second"] > 30e6
        process.until(limited, 30, "a program that sends")
        lines = pair.daemon.omniverb("top", "--json", "-n", "3", "-d", "0.5").splitlines()
        tables = [json.loads(line) for line in lines]
        check(len(tables) == 3, f"{lines}")
        for table in tables:
            row = _row(pair, table)
            check(table["interval_seconds"] >= 0.5, f"{table}")
            # Counters of a process are ahead of what the limit lets pass by a few messages.
            check(row["sent_bits_per_second"] < 450e6, f"{row}")
            check(row["limit_bits_per_second"] == 300e6 and row["path"] == "forwarded", f"{row}")
            rates = [one["sent_bits_per_second"] + one["received_bits_per_second"]
                     for one in table["vnics"]]
            check(rates == sorted(rates, reverse=True), f"{rates}")
        text = pair.daemon.omniverb("top", "-b", "-n", "2", "-d", "0.2", "-o", "name")
        heads = [line.split() for line in text.splitlines() if line.startswith("VNIC")]
        check(len(heads) == 2 and heads[0][:3] == ["VNIC", "TENANT", "SENT/s"], text)
        names = [line.split()[0] for line in text.partition("\n\n")[0].splitlines()[1:]]
        check(names == sorted(names) and len(names) >= 2, text)
        check(_RATE in text, text)


def _screen(pair):
    """The screen shows devices at 80 columns and wider, sorts, and ends with q."""
    line = [str(pair.stage.dist / "bin" / "omniverb"), "top", "-d", "0.3"]
    options = environment(OMNIVERB_SOCKET=str(pair.daemon.socket), TERM="xterm")
    name = pair.daemon.vnic(pair.client.namespace)["name"]
    for columns in (80, 160):
        screen = _Screen(line, options, columns)
        try:
            for word in (name, "TENANT", _RATE, "q quit", "by rate"):
                process.until(lambda word=word: screen.shows(word), 20,
                              lambda word=word: f"{word!r} on\n{screen.text!r}")
            check(screen.shows("PROCESSES") == (columns == 160), f"{columns}: {screen.text!r}")
            screen.press(b"s")
            process.until(lambda: screen.shows("use of the limit"), 20, "another order")
            screen.press(b"q")
            check(screen.wait(10) == 0, "exit status")
            # The screen from before is back, and so is the cursor.
            check("\x1b[?1049l" in screen.text and "\x1b[?25h" in screen.text, f"{screen.text!r}")
        finally:
            screen.close()


def _ends(pair):
    """A reader that has gone ends it; a wrong delay, and other users, get an error."""
    program = pair.stage.dist / "bin" / "omniverb"
    options = environment(OMNIVERB_SOCKET=pair.daemon.socket)
    process.run(["sh", "-c", f"{program} top -d 0.1 | head -n 2"], env=options)
    said = process.run([program, "top", "-d", "0"], env=options, accept=(1,))
    check("0.1 to 86400" in said, said)
    said = pair.client.run("omniverb", "top", "--once", plain=True, accept=(1,))
    check("operator" in said, said)


def groups():
    """One host, two containers."""
    return [Group("top", [
        Case("top.batch", _batch, 90),
        Case("top.screen", _screen, 60),
        Case("top.ends", _ends, 30),
    ], _fixture, weight=WAITS)]
