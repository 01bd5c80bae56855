"""Tests that light connections, which have no kernel socket, behave as the kernel's do.

As in carried_sockets.py there is a daemon in each group's namespace. What is handed on (to a child,
to another program) is left out: light connections cannot be."""

import contextlib
import re

from cases import preloaded_sockets
from cases.carried_sockets import Carried, pairs, sets, soak
from cases.carried_many_connections_and_sendfile import crossed, left
from harness import process, staging
from harness.case import WAITS, Case, Group, check

_SEQUENCES, _SLOWLY = 100, 10_000
# Connections at a time, and what one may cost an end: a row and an id, with what tables need to
# begin with.
_CONNECTIONS, _BYTES_EACH = 900, 400
# What is compared with the kernel's, call by call.
_ALIKE = ("vectors", "truncated", "several", "numbered", "ring", "sets", "nested", "arrivals",
          "stops", "full", "full_early", "four", "six", "inherited", "others", "states", "least",
          "requests", "names", "shares", "abrupt", "wide", "bits", "unused")
# Times that something is tried which needs an answer in time.
_TURNS = 3
# Connections that wait at a process that leaves.
_WAITING = 40
# Connections that threads accept, of each kind.
_ASKED = 800


class Light(Carried):
    """The namespace, for processes in light mode."""

    mode = "light"
    counted = ("light",)


class Mixed(Carried):
    """The namespace, for processes that carry connections of which some are light: those to about
    half of the ports that the kernel chooses by itself, and to another address."""

    told = ("OMNIVERB_SOCKETS_LIGHT=:32768-46883,127.0.0.2",)
    ranges = ("127.0.0.1:6379", "[fd00::/8]:7-9", ":5")


def carried(run):
    """The same; and that connections were light then."""
    def all_of(ways):
        ways.reports()
        run(ways)
        reports = ways.reports()
        print(f"carried by each process: {reports}")
        check(sum(links for links, _ in reports) > 0, "no connection was light")
        check(sum(count for _, count in reports) > 0, "nothing was carried")
    return all_of


def _of_both_kinds(run):
    """Some bytes were carried, and some went by light connections: in one run or in several, since
    which ports are light is the kernel's choice of these, and what is carried others' use of the
    machine."""
    def all_of(ways):
        ways.reports()
        ways.kinds.clear()
        for _ in range(_TURNS):
            run(ways)
            ways.reports()
            if ways.kinds == {"links", "light"}:
                return
        check(False, f"{ways.kinds}")
    return all_of


def _told(ways):
    """`omniverb run --sockets` tells what the daemon's configuration says, unless the environment
    says something else; a range that is none is a mistake."""
    run = [ways.stage.dist / "bin" / "omniverb", "run", "--present", "off"]
    show = ["--", "printenv", "OMNIVERB_SOCKETS", "OMNIVERB_SOCKETS_LIGHT"]
    for words, said, wanted in (
            ([], None, "carry\n127.0.0.1/32:6379 [fd00::/8]:7-9 :5\n"),
            ([], ":8", "carry\n:8\n"),
            (["=light"], None, "light\n"),
            ([], "10.0.0.0/33", "prefix")):
        more = [f"OMNIVERB_SOCKETS_LIGHT={said}"] if said else []
        word = "--sockets" + "".join(words)
        line = ["env", f"OMNIVERB_SOCKET={ways.socket}", *more, *run, word]
        text = ways.run(False, *line, *show, accept=(0, 1, 125))
        check(text == wanted or wanted in text != "" and wanted == "prefix", f"{line}: {text}")


def _children(kind):
    def run(ways):
        """A child has connections of its own, of both kinds, and its parent goes on."""
        port = 7540
        python = ["/usr/bin/python3", "-B", staging.PROGRAMS / "sockets" / "two_address_server.py"]
        for way in (False, True):
            with preloaded_sockets.server_of(ways, way, port, *python, "serves", port) as serving:
                text = ways.run(way, *python, "asks", port, kind, limit=60)
                check(text == "ok\n" and serving.wait(10) == 0, text)
    return run


def _both(run):
    """With both ends in light mode connections are light; with one of them, and with none, they
    are the kernel's, and the program does the same."""
    def all_ways(ways):
        for server, client in [(True, False), (False, True), *[(True, True)] * _TURNS]:
            ways.reports()
            run(ways, server, client)
            reports = ways.reports()
            print(f"carried by each process: {reports}")
            count = sum(count for _, count in reports)
            check(not count or server and client, f"{reports}")
            if count:
                return
        # Where the broker was too slow they are TCP's.
        check(False, f"{reports}")
    return all_ways


@carried
def _by_itself(ways):
    """nginx has upstreams that are its own workers: these connections are light, whoever asks."""
    for server, client in [(False, True), (True, False), (True, True)]:
        preloaded_sockets.nginx(ways, server, client)


@contextlib.contextmanager
def _serving(ways, port, *line, ends):
    """A light server, once it listens, that ends by itself when all is done, in so many seconds."""
    ways.reports()
    running = process.start(ways.line(True, *line))
    try:
        process.until(lambda: process.listens(ways.namespace.pid, port), 10, lambda: "a listener")
        yield
        check(running.wait(ends) == 0, "the server has failed")
    finally:
        process.end(running)


def _many(ways):
    """Thousands at a time, in a set of the one end's: each says what it was told. On a machine on
    which the broker needs longer for an answer than is waited they are TCP's for a second."""
    program, port = ways.program("many_connections"), 7510
    for turn in range(_TURNS):
        with _serving(ways, port + turn, program, "serve", port + turn, ends=20):
            text = ways.run(True, program, "connect", port + turn, _CONNECTIONS, 3, limit=60)
        each = int(re.search(r"(\d+) bytes each", text)[1])
        print(text)
        links = [links for links, _ in ways.reports()]
        if min(links) > _CONNECTIONS // 2:
            break
    check(min(links) > _CONNECTIONS // 2, f"{links} were light")
    check(each < _BYTES_EACH, text)


def _accepting(ways):
    """Threads that sleep in one `accept` hear of light connections, whoever took the kernel's that
    had woken all of them."""
    python = ["/usr/bin/python3", "-B", staging.PROGRAMS / "sockets" / "concurrent_accept.py"]
    for port in range(7530, 7530 + _TURNS):
        with (_serving(ways, port, *python, "serves", port, 2 * _ASKED, ends=10),
              contextlib.ExitStack() as stack):
            asking = [process.start(ways.line(light, *python, "asks", port, _ASKED))
                      for light in (True, False)]
            for one in asking:
                stack.callback(process.end, one)
            for one in asking:
                check(one.wait(60) == 0, "not all were answered")
        links = [links for links, _ in ways.reports()]
        # Where the broker was too slow those of a second are TCP's.
        if max(links) > _ASKED // 2:
            return
    check(False, f"{links} were light")


def _lanes(way, program="busy_connection_lanes"):
    def run(ways):
        """Busy connections, which have rings of their own where they are light."""
        line = ["/usr/bin/python3", "-B", staging.PROGRAMS / "sockets" / f"{program}.py", way]
        for light in (False, *[True] * _TURNS):
            ways.reports()
            check(ways.run(light, *line, limit=60) == "ok\n", "it is not as the kernel's")
            links = [links for links, _ in ways.reports()]
            if light and sum(links) > 0:
                return
        check(False, f"{links} were light")
    return run


def _alike(way):
    def run(ways):
        """What calls say and do is what they say and do natively."""
        line = ["/usr/bin/python3", "-B", staging.PROGRAMS / "sockets" / "compare_with_kernel.py",
                way]
        plain = ways.run(False, *line, limit=60)
        for _ in range(_TURNS):
            ways.reports()
            ours = ways.run(True, *line, limit=60)
            check(ours == plain, f"{ours}\nnatively {plain}")
            # Where the broker was too slow for `connect` it is TCP's.
            links = [links for links, _ in ways.reports()]
            if sum(links) > 0:
                return
        check(False, f"{links} were light")
    return run


def _refused(way):
    def run(ways):
        """Who waits at a process that leaves comes to whoever else has the socket."""
        program = staging.PROGRAMS / "sockets" / "unaccepted_connections.py"
        line = ["/usr/bin/python3", "-B", program, way, _WAITING]
        for light in (False, *[True] * _TURNS):
            ways.reports()
            check(ways.run(light, *line, limit=60) == "ok\n", "somebody was lost")
            # Who was killed has said nothing. Where the broker was too slow all are TCP's.
            links = [links for links, _ in ways.reports()]
            if sum(links) >= 2 * _WAITING - 1:
                return
        check(False, f"{links} were light")
    return run


def groups():
    """All wait."""
    programs = {"redis": preloaded_sockets.redis, "nc": preloaded_sockets.nc(30),
                "iperf3": preloaded_sockets.iperf(),
                "iperf3-more": preloaded_sockets.iperf("-P", 4, "-R", "-Z")}
    cases = [Case(f"light.{name}", _both(run), 90) for name, run in programs.items()]
    cases += [Case("light.nginx", _by_itself, 90), Case("light.many", _many, 90),
              Case("light.accepting", _accepting, 90), Case("light.crossed", crossed(1, 300), 90)]
    cases += [Case(f"light.lanes.{way}", _lanes(way), 90)
              for way in ("held", "both", "asleep", "turns", "ends", "calls")]
    cases += [Case(f"light.pieces.{way}", _lanes(way, "single_buffer_calls"), 90)
              for way in ("flags", "slow", "owes")]
    cases += [Case(f"light.alike.{way}", _alike(way), 90) for way in _ALIKE]
    cases += [Case(f"light.refused.{way}", _refused(way), 90)
              for way in ("close", "wait", "end", "kill")]
    cases += [Case(f"light.python.{name}", preloaded_sockets.suite(name), 200)
              for name in ("epoll", "select")]
    cases += [Case(f"light.python.{name}", preloaded_sockets.suite(name), 400, slow=True)
              for name in ("poll", "socket", "selectors", "socketserver", "asyncore", "httplib")]
    return [
        Group("light", cases, Light, weight=WAITS),
        Group("light.sequences",
              [Case("light.pairs", pairs(0, _SEQUENCES, "light"), 200),
               Case("light.soak", soak(8, 1500, "calm"), 120),
               Case("light.sets", sets(12, 300, "calm"), 120),
               Case("light.pairs.sets", pairs(0, _SEQUENCES // 2, "light-sets"), 200),
               Case("light.pairs.long", pairs(10_000, _SLOWLY, "light"), 3000, slow=True),
               Case("light.pairs.sets.long", pairs(10_000, _SLOWLY, "light-sets"), 3000,
                    slow=True)],
              Light),
        Group("light.mixed",
              [Case("light.mixed.pairs", pairs(0, _SEQUENCES, "light"), 200),
               Case("light.mixed.pairs.sets", pairs(0, _SEQUENCES // 2, "light-sets"), 200),
               Case("light.mixed.told", _told),
               Case("light.mixed.accepts", left("accepts"), 120),
               Case("light.mixed.sends", left("sends"), 120),
               Case("light.mixed.fork", _of_both_kinds(_children("fork")), 120),
               Case("light.mixed.raw", _of_both_kinds(_children("raw")), 120),
               Case("light.mixed.soak", _of_both_kinds(soak(8, 1500, "calm")), 120),
               Case("light.mixed.sets", _of_both_kinds(sets(12, 300, "calm")), 120)],
              Mixed),
    ]
