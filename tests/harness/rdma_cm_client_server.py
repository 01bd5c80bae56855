"""Runs both sides of a program that connects by address (librdmacm), in any two places.

Nothing outside says when such a server listens: its port is none of the kernel's. Who comes before
is refused, and comes again.
"""

import re
import subprocess
import tempfile
import time

from . import process
from .case import Failure, Late, check
from .rxe_guest import Program

_REFUSED = re.compile(r"REJECTED|[Rr]efused|rejected|Unexpected CM event bl blka 8|"
                      r"UNREACHABLE, error: 1\b|rpoll: ")
_PATIENCE = 30


def end(running):
    """Ends a program, wherever it runs."""
    if isinstance(running, Program):
        running.kill()
    else:
        process.end(running)


class Side:
    """A running program and what it has printed."""

    def __init__(self, place, words, **options):
        self.file = tempfile.TemporaryFile("w+")
        self.words = words
        self.running = place.start(*words, stdout=self.file, stderr=self.file, **options)

    def text(self):
        """What it has printed so far."""
        return process.written(self.file)

    def is_there(self):
        """It has not ended."""
        return self.running.poll() is None

    def wait(self, limit):
        """Its exit status; fails if it does not end."""
        try:
            self.running.wait(limit)
        except subprocess.TimeoutExpired:
            line = " ".join(map(str, self.words))
            raise Late(f"not done after {limit} s: {line}\n{self.text()}") from None
        return self.running.returncode

    def end(self):
        """Ends it."""
        end(self.running)


def both(pair, server, client, limit, endless=False):
    """Runs both sides of a program to success, but a server that is `endless`, which is ended. What
    they printed: the server, the client."""
    deadline = time.monotonic() + _PATIENCE
    pause = 0.1
    while True:
        printed = _once(pair, server, client, (limit, pause, deadline), endless)
        if printed:
            return printed
        pause *= 2


def _once(pair, server, client, times, endless):
    """The same once, or None: the client was refused before the deadline. A server of which it had
    connections by then, and was refused the next, is no use to another client; so both are ended,
    and the server is given longer the next time."""
    limit, pause, deadline = times
    listening = Side(pair.server, server)
    asking = None
    try:
        time.sleep(pause)
        asking = Side(pair.client, client)
        try:
            status = asking.wait(limit)
        except Late as late:
            raise Late(f"{late}\n--- server ---\n{listening.text()}") from None
        if status:
            early = _REFUSED.search(asking.text()) and listening.is_there()
            if early and time.monotonic() < deadline:
                print(f"refused after {pause:g} s", asking.text(), sep="\n")
                return None
            raise Failure(f"client: {process.how(status)}\n{asking.text()}\n"
                          f"--- server ---\n{listening.text()}")
        if not endless:
            status = listening.wait(limit)
            check(status == 0, f"server: {process.how(status)}\n{listening.text()}\n"
                               f"--- client ---\n{asking.text()}")
        listening.end()
        return listening.text(), asking.text()
    finally:
        listening.end()
        if asking:
            asking.end()
