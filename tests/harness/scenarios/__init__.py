"""Describes what third-party programs do with sockets: a server, a client, their dialogue.

A scenario returns what was seen, without what differs between two runs on the kernel's sockets
(times, rates, numbers of processes). `cases/third_party_socket_programs.py` runs each with and
without the library at either end, and compares. All lie in the modules beside this one, in lists
`SCENARIOS`.
"""

import contextlib
import os
import pathlib
import shutil
import signal
from dataclasses import dataclass, field
from typing import Any, Callable

from .. import process
from ..case import Failure, Skip, check

PYTHON = "/usr/bin/python3"
# Where servers lie that are not for everybody's path.
_PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
_LISTENS_WITHIN = 20.0


@dataclass(frozen=True)
class Scenario:
    """`run(place)` returns what was seen."""

    name: str
    run: Callable[["Place"], Any]
    # What has to be installed: the programs, by name or path, and their Debian packages.
    needs: dict = field(default_factory=dict)
    # Whether it is cheap enough for every day.
    daily: bool = False
    # Seconds that one run may take.
    limit: float = 60.0
    # Whether bytes are carried when both ends have the library and may carry; None: not asked.
    carried: bool | None = None
    # Whether bytes go by light connections where both ends may have these; False: not asked. None:
    # it is not run so, since it hands sockets to other processes or has not been looked at.
    light: bool | None = None

    def look_for_programs(self):
        """Skips what is not installed."""
        for name, package in self.needs.items():
            if not shutil.which(name, path=_PATH):
                raise Skip(f"no {name}: it is in Debian's {package}")


class Place:
    """A network namespace and an empty folder of a scenario's own; which of its two sides has the
    library. What is kept from run to run, as a database's first files, is in `kept`."""

    def __init__(self, ways, server, client, kept):
        self.ways, self.has_library, self.kept = ways, (server, client), kept
        self.folder = pathlib.Path(ways.folder) / "place"
        self.folder.mkdir()
        # Servers become other users.
        os.chmod(ways.folder, 0o755)
        os.chmod(self.folder, 0o777)
        self._logs = 0

    @property
    def pid(self):
        """A process in the namespace."""
        return self.ways.namespace.pid

    def empty(self):
        """Waits until all that the scenario has started has ended."""
        ours = os.readlink(self.ways.namespace.path)
        keeps = {self.pid}
        if daemon := getattr(self.ways, "daemon", None):
            keeps |= {daemon.pid, *process.descendants(daemon.pid)}

        def left():
            return [pid for pid in process.descendants() if pid not in keeps
                    and _link(f"/proc/{pid}/ns/net") == ours]
        process.until(lambda: not left(), 10, lambda: f"the end of {_commands(left())}")

    def _line(self, side, words):
        """The command line of a side: 0 is the server's, 1 the client's."""
        program = shutil.which(str(words[0]), path=_PATH) or words[0]
        return self.ways.line(self.has_library[side], f"HOME={self.folder}", "TMPDIR=/tmp",
                              program, *words[1:])

    def ask(self, *words, limit=30.0, accept=(0,), side=1):
        """Runs a client; what it has printed, the folder's name apart."""
        text = process.run(self._line(side, words), limit=limit, accept=accept, cwd=self.folder)
        return text.replace(str(self.folder), "PLACE")

    def shell(self, script, limit=30.0, accept=(0,), side=1):
        """A client that is a line of a shell."""
        return self.ask("sh", "-c", script, limit=limit, accept=accept, side=side)

    def python(self, script, *words, limit=30.0, accept=(0,), side=1):
        """A client that is a program in Python."""
        return self.ask(PYTHON, "-Bc", script, *words, limit=limit, accept=accept, side=side)

    def start(self, *words, side=1):
        """Starts a program; a Popen, and the file of what it says."""
        self._logs += 1
        with open(self.folder / f"said-{self._logs}", "w", encoding="utf-8") as said:
            running = process.start(self._line(side, words), stdout=said, stderr=said,
                                    cwd=self.folder)
        return running, self.folder / f"said-{self._logs}"

    @contextlib.contextmanager
    def running(self, *words, side=1):
        """A program that runs meanwhile, and the file of what it says."""
        running, said = self.start(*words, side=side)
        try:
            yield running, said
        except Failure as failure:
            raise Failure(f"{failure}\n{words[0]} said:\n{_tail(said)}") from None
        finally:
            process.end(running)

    @contextlib.contextmanager
    def serve(self, port, *words, side=0):
        """A program that listens on a port of TCP meanwhile."""
        with self.running(*words, side=side) as (running, _):
            self.listening(port, running)
            yield running

    def listening(self, port, running=None):
        """Waits until somebody listens there, who must not end."""
        def listens():
            check(running is None or running.poll() is None, "it has ended")
            return process.listens(self.pid, port)
        process.until(listens, _LISTENS_WITHIN, f"somebody who listens on {port}")

    def silent(self, port):
        """Waits until nobody listens there any more."""
        process.until(lambda: not process.listens(self.pid, port), _LISTENS_WITHIN,
                      f"nobody listens on {port}")

    @contextlib.contextmanager
    def daemon(self, port, pid_file, *words, side=0):
        """A server that goes to the background, and writes its number into a file."""
        self.ask(*words, side=side)
        self.listening(port)
        try:
            yield lambda: read_pid(pid_file)
        finally:
            stop(pid_file)
            self.silent(port)


def read_pid(path):
    """The number in a file, once it is there."""
    def read():
        text = path.read_text().split() if path.exists() else []
        return int(text[0]) if text else 0
    return process.until(read, 10, f"{path.name} with a number")


def stop(pid_file, number=signal.SIGTERM):
    """Ends the process whose number is in a file."""
    if pid_file.exists():
        pid = read_pid(pid_file)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        with contextlib.suppress(Failure):
            gone(pid)
            return
        process.kill(pid)


def gone(pid, limit=10):
    """Waits until a process is there no more, be it that it is nobody's or ours."""
    def is_gone():
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        return not pathlib.Path(f"/proc/{pid}").exists()
    process.until(is_gone, limit, f"{pid} has ended")


def _link(path):
    try:
        return os.readlink(path)
    except OSError:
        return None  # it has ended


def _commands(pids):
    found = []
    for pid in pids:
        with contextlib.suppress(OSError):
            found.append(pathlib.Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " "))
    return found


def _tail(path):
    return path.read_text(errors="replace")[-3000:]
