"""Loops of events as runtimes have them: written in C for every day, and the runtimes themselves.

All servers speak the protocol of `programs/sockets/servers.py`. What Debian does not have is
fetched by `programs/sockets/fetch-suites`, which `make soak` calls.
"""

from .. import process, staging
from ..case import Skip
from . import PYTHON, Scenario

_SOURCES = staging.PROGRAMS / "sockets"
_FETCHED = staging.BUILT / "suites"
_PORT = 7095
# Of programs/sockets/event_loops; those that pass libc by have a program of their own. Whether
# bytes are carried is known of one whose calls are the common ones.
_LOOPS = {"mio": True, "netty": None, "libuv": None, "liburing": None, "rustix": None,
          "bare": None}
_BARE = ("rustix", "bare")


def _loop(kind):
    def run(place):
        """The server and the client of a kind of loop."""
        program = place.kept / "loops"
        if not program.exists():
            process.run(["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-pthread",
                         *(["-DBARE"] if kind in _BARE else []), "-o", program,
                         _SOURCES / "event_loops" / "event_loops.c"], limit=60)
        with place.serve(_PORT, program, kind, "serve", _PORT):
            return place.ask(program, kind, "ask", _PORT)
    return run


def _fetched(name, *path):
    """A file of what was fetched."""
    if not (_FETCHED / name / "complete").exists():
        raise Skip(f"{name} is not here: make soak fetches it")
    return _FETCHED.joinpath(name, *path)


def _runtime(name, path, serve, ask):
    """A runtime serves the clients of Python and one of its own. Its program is at `path` of what
    was fetched, `serve` and `ask` are the words behind it."""
    def run(place):
        program = _fetched(name, *path)
        with place.serve(_PORT, program, *serve, _PORT):
            return [place.ask(PYTHON, "-B", _SOURCES / "clients.py", _PORT, limit=60),
                    place.ask(program, *ask, _PORT, limit=60)]
    return run


def _rust(name):
    return _runtime("runtimes", ("built", "release", name), ["serve"], ["ask"])


def _script(name, program):
    """A runtime of JavaScript, by Node's modules."""
    return _runtime(name, ("bin", program), [_SOURCES / "servers.js", "alone"],
                    [_SOURCES / "clients.js"])


def _netty(place):
    """A server and a client on its native transport."""
    folder = _fetched("netty")
    java = ["java", "-XX:TieredStopAtLevel=1", "-Dio.netty.machineId=02:00:00:00:00:01", "-cp",
            f"{folder}/*:{folder}", "Netty"]
    with place.serve(_PORT, *java, "serve", _PORT):
        return [place.ask(PYTHON, "-B", _SOURCES / "clients.py", _PORT, limit=60),
                place.ask(*java, "ask", _PORT, limit=60)]


def _uvloop(place):
    """The server of asyncio, over libuv."""
    python = ["env", f"PYTHONPATH={_fetched('uvloop')}", PYTHON, "-B"]
    with place.serve(_PORT, *python, _SOURCES / "servers.py", "uvloop", _PORT):
        return place.ask(PYTHON, "-B", _SOURCES / "clients.py", _PORT, limit=60)


SCENARIOS = [
    *(Scenario(f"loop.{kind}", _loop(kind), {"gcc": "gcc"}, daily=True, carried=carried,
               light=kind in ("mio", "netty"))
      for kind, carried in _LOOPS.items()),
    *(Scenario(name, _rust(name), limit=120, light=False) for name in ("tokio", "smol")),
    *(Scenario(name, _script(name, "node"), limit=120, light=False)
      for name in ("node24", "node26")),
    Scenario("bun", _runtime("bun", ("bin", "bun"), [_SOURCES / "bun.js", "serve"],
                             [_SOURCES / "bun.js", "ask"]), limit=120, light=False),
    Scenario("bun.node", _script("bun", "bun"), limit=120, light=False),
    Scenario("netty", _netty, {"java": "openjdk-17-jdk-headless"}, limit=200,
             light=False),
    Scenario("uvloop", _uvloop, limit=120, light=False),
]
