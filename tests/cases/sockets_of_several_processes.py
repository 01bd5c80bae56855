"""Tests carried sockets that several processes have open."""

import contextlib

from cases import carried_sockets
from harness import process, staging
from harness.case import WAITS, Case, Failure, Group, check


_SOURCES = staging.PROGRAMS / "sockets"
_TURNS = 6
_TESTS = ("alone", "later", "parent", "killed", "both", "fails", "again", "executes", "passed",
          "duplicated", "spawned", "renewed", "inherited", "used", "members", "changed", "shell",
          "threads")
_UNSURE = ("copying", "sleeping", "older", "files", "ending", "restored", "mixed")

_ECHO = """
import socketserver, sys
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(65536):
            self.request.sendall(data)
class Server(socketserver.ForkingTCPServer):
    allow_reuse_address = True
Server(("127.0.0.1", int(sys.argv[1])), Echo).serve_forever()
"""

_ASK = """
import socket, sys
near = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
for number in range(400):
    text = bytes((number + at) % 251 for at in range(1 + number * 7))
    near.sendall(text)
    got = b""
    while len(got) < len(text):
        part = near.recv(65536)
        assert part
        got += part
    assert got == text, number
near.shutdown(socket.SHUT_WR)
assert near.recv(1) == b""
print("ok")
"""

# A connection of a few messages, which lasts long enough for a link to come.
_ASK_BRIEFLY = """
import socket, sys, time
near = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
for _ in range(8):
    near.sendall(b"few")
    assert near.recv(100) == b"few"
    time.sleep(float(sys.argv[2]))
print("ok")
"""
# Of so many of these in a row most have no link, however many processes of the server they come to.
_BRIEF, _BRIEF_LINKS = 60, 30

_SERVERS = {
    "python": ("/usr/bin/python3", "-Bc", _ECHO),
    "socat": ("socat", "TCP-LISTEN:{port},fork,reuseaddr,bind=127.0.0.1", "PIPE"),
}


def _shared(name, program="forked_sockets.py"):
    def run(ways):
        for way in (False, True):
            text = ways.run(way, "/usr/bin/python3", "-B", _SOURCES / program, name)
            check(text == "ok\n", text)
    return run


def _served(name):
    def run(ways):
        """A process for each connection, which another one has accepted."""
        port, line = 7600, _SERVERS[name]
        words = [word.format(port=port) if name == "socat" else word for word in line]
        words += [port] if name == "python" else []
        with contextlib.ExitStack() as stack:
            running = process.start(ways.line(True, *words))
            stack.callback(process.end, running)
            process.until(lambda: process.listens(ways.namespace.pid, port), 10,
                          lambda: "it to listen")
            ways.reports()
            for _ in range(_TURNS):
                text = ways.run(True, "/usr/bin/python3", "-Bc", _ASK, port)
                check(text == "ok\n", text)
                reports = ways.reports()
                print(f"carried by each process: {reports}")
                if sum(count for _, count in reports) > 0:
                    return
        raise Failure(f"{reports}")
    return run


def _brief(ways):
    """What processes of a family have found not worth a link the next ones do not try. On a busy
    machine it takes longer until there is a link."""
    for port, pause in enumerate((0.005, 0.02, 0.1), start=7601):
        links = _brief_links(ways, port, pause)
        print(f"{links} ends of {_BRIEF} connections had a link")
        check(links < 2 * _BRIEF_LINKS, f"{links}")
        if links:
            return
    raise Failure("no link")


def _brief_links(ways, port, pause):
    with contextlib.ExitStack() as stack:
        running = process.start(ways.line(True, *_SERVERS["python"], port))
        stack.callback(process.end, running)
        process.until(lambda: process.listens(ways.namespace.pid, port), 20, lambda: "it to listen")
        ways.reports()
        for _ in range(_BRIEF):
            text = ways.run(True, "/usr/bin/python3", "-Bc", _ASK_BRIEFLY, port, pause)
            check(text == "ok\n", text)
    return sum(links for links, _ in ways.reports())


def groups():
    """All wait."""
    waits = [Case(f"carry.shared.{name}", _shared(name), 90) for name in _TESTS]
    waits += [Case(f"carry.shared.{name}", _shared(name, "sharing_races.py"),
                   90) for name in _UNSURE]
    waits += [Case(f"carry.shared.served.{name}", _served(name), 90) for name in _SERVERS]
    waits += [Case("carry.shared.brief", _brief, 90)]
    return [Group("carry.shared", waits, carried_sockets.Carried, weight=WAITS)]
