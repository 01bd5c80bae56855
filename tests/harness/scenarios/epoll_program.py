"""A program of our own: whom epoll has told of bytes gets bytes."""

from .. import process, staging
from . import Scenario

_PORT, _ANSWERS, _RUNS = 7091, 10_000, 3


def _told(place):
    """Sixteen connections in a set; a server that sleeps right behind its answers."""
    program = place.kept / "epoll_notices"
    if not program.exists():
        process.run(["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-o", program,
                     staging.PROGRAMS / "sockets" / "epoll_notices.c"], limit=60)
    seen = []
    for port in range(_PORT, _PORT + _RUNS):
        with place.running(program, "serve", port, side=0) as (server, said):
            place.listening(port, server)
            seen.append(place.ask(program, "connect", port, _ANSWERS))
            seen += [server.wait(10), said.read_text()]
    return seen


SCENARIOS = [Scenario("told", _told, {"gcc": "gcc"}, daily=True, carried=True)]
