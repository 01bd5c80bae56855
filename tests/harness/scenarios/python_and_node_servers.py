"""Servers in Python and in JavaScript: threads, processes, loops of events, listeners passed on."""

from .. import staging
from . import PYTHON, Scenario

_SOURCES = staging.PROGRAMS / "sockets"
_NODE = {"node": "nodejs"}
_PORT = 7071
# Those whose connections stay in the process that has made or accepted them.
_LIGHT = ("threads", "select", "poll", "epoll", "asyncio")


def _python(how):
    def run(place):
        """The same clients for each kind of server."""
        with place.serve(_PORT, PYTHON, "-B", _SOURCES / "servers.py", how, _PORT):
            return place.ask(PYTHON, "-B", _SOURCES / "clients.py", _PORT)
    return run


def _node(how):
    def run(place):
        """A loop of events; processes that share a listener; the same clients, and its own."""
        with place.serve(_PORT, "node", _SOURCES / "servers.js", how, _PORT):
            return [place.ask(PYTHON, "-B", _SOURCES / "clients.py", _PORT),
                    place.ask("node", _SOURCES / "clients.js", _PORT)]
    return run


SCENARIOS = [
    *(Scenario(f"python.{how}", _python(how), daily=how in ("asyncio", "epoll"),
               light=True if how in _LIGHT else None)
      for how in ("threads", "processes", "workers", "select", "poll", "epoll", "asyncio", "passed",
                  "pool")),
    *(Scenario(f"node.{how}", _node(how), _NODE, daily=how == "alone",
               light=True if how == "alone" else None)
      for how in ("alone", "cluster", "shared", "passed")),
]
