"""Tests sockets over RDMA: Debian's rstream, riostream, rcopy and udpong, unmodified."""

import contextlib
import pathlib
import re
import tempfile

from cases import rdma_cm
from harness import client_server, process
from harness.rdma_cm_client_server import Side
from harness.case import Case, Group, Late, check
from harness.unprivileged_daemon import PlainPair

# Three hundred transfers: name, bytes, transfers, rounds, and then as much as anybody measures.
_SHORT = ["-S", "5000", "-C", "30", "-I", "10"]
_SHORT_SEEN = r"custom +4?\.?[0-9k]+ +30 +10 "


def _pair(name, *options, server=()):
    return [name, *options, *server], [name, "-s", "{server}", *options]


def _rstream(*options):
    return *_pair("rstream", *_SHORT, "-T", "verify", *options), _SHORT_SEEN


def _riostream(*options):
    return *_pair("riostream", *_SHORT, "-T", "verify", *options), _SHORT_SEEN


PROGRAMS = {
    "rstream": _rstream(),
    "rstream that blocks": _rstream("-T", "blocking"),
    "rstream that polls": _rstream("-T", "async"),
    "rstream that does neither": _rstream("-T", "nonblocking"),
    "rstream by rdma_getaddrinfo": _rstream("-T", "resolve"),
    "rstream with small buffers": _rstream("-B", "2048", "-T", "blocking"),
    "rstream with large transfers": (
        *_pair("rstream", "-S", "3000001", "-C", "5", "-I", "2", "-T", "blocking",
               "-T", "verify"), r"custom +\S+ +5 +2 "),
    "rstream of all sizes": (*_pair("rstream", "-T", "blocking"), r"1m_bw +1m +100 ",
                             False, True),
    "riostream": _riostream(),
    "riostream that blocks": _riostream("-T", "blocking"),
    "riostream that polls": _riostream("-T", "async"),
}

# With an address of its own, where the loopback interface is all that there is.
_SIX = ["rstream", *_SHORT, "-T", "verify", "-T", "blocking"]


def _copies(pair):
    """rcopy: a file that arrives is the file that was sent."""
    source = pathlib.Path("/usr/bin/python3").resolve()
    with contextlib.ExitStack() as stack:
        server = pair.server.start("rcopy")
        stack.callback(process.end, server)

        def copied():
            to = f"{pair.server.address}:{target}"
            client = pair.client.start("rcopy", source, to)
            try:
                return client.wait(30) == 0
            finally:
                process.end(client)

        if isinstance(pair, PlainPair):
            folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
            folder.chmod(0o777)
            target, seen = folder / "copy", folder / "copy"
        else:
            target = pathlib.Path("/tmp/copy")
            seen = pathlib.Path(f"/proc/{pair.server.pid}/root", "tmp", "copy")
        process.until(copied, 30, lambda: "a copy that is sent")
        check(seen.read_bytes() == source.read_bytes(), "the copy differs")


def pongs(*options):
    """udpong's datagrams arrive, from queue pair to queue pair. It waits for answers for a
    millisecond only, and asks again. An answer that is late overwrites what it asks again
    (client_send_recv of udpong.c): from then on it asks what was answered before. If the answer
    that it waits for is lost, since the server has no room for so many questions, that goes on for
    ever. Or it gives up. Then another one is started."""
    echoes = "e" in options
    expected = rf"custom +1000 +{400 if echoes else 200} "

    def run(pair):
        server = Side(pair.server, ["udpong", "-b", pair.server.address, *options])
        texts = []

        def ponged():
            line = ["udpong", "-s", pair.server.address, "-S", "1000", "-C", "200", *options]
            client = Side(pair.client, line)
            try:
                client.wait(20)
            except Late:
                print("it asks for ever")
            finally:
                client.end()
            texts.append(client.text())
            return re.search(expected, texts[-1])
        try:
            process.until(ponged, 60,
                          lambda: f"{expected!r}:\n" + "\n".join([*texts, server.text()]))
            check(server.is_there(), server.text())
            if echoes:
                daemons = rdma_cm.daemons(pair)
                process.until(lambda: client_server.moved(*daemons) >= 200, 20,
                              lambda: f"200 operations, not {client_server.moved(*daemons)}")
        finally:
            server.end()
        rdma_cm.quiet(pair)
    return run


PONGS = {"udpong": (), "udpong that blocks": ("-T", "b"), "udpong that polls": ("-T", "a"),
          "udpong that echoes": ("-T", "e"), "udpong that polls and echoes": ("-T", "a", "-T", "e")}


def datagrams(pair):
    """Datagrams of all sizes arrive as they were, and are from who has sent them; what fits into a
    packet from queue pair to queue pair."""
    words = ["/usr/bin/python3", "/opt/programs/rsockets.py"]
    # So that the server's vNIC, and what was counted of it, is there behind the end of the server.
    watch = Side(pair.server, ["ibv_asyncwatch"])
    process.until(lambda: _ended(pair), 60, lambda: f"a vNIC\n{watch.text()}")
    before = _ended(pair)
    server = Side(pair.server, [*words, "echoes", pair.server.address])
    client = None
    try:
        client = Side(pair.client, [*words, "asks", pair.server.address])
        check(client.wait(60) == 0, client.text())
        _prints(client, "rconnect 0", "right 120", "cut 1", "whole length 6", "looked at 1",
                "still there 1", "too long EMSGSIZE", "to nobody EDESTADDRREQ", "listens ENOTSUP",
                "rclose 0")
        _prints(server, "rbind 0", "echoed some 1", "rclose 0")

        def most():
            return max(count - before.get(name, 0) for name, count in _ended(pair).items())
        process.until(lambda: most() >= 40, 20, lambda: f"40 operations, not {most()}")
    finally:
        watch.end()
        server.end()
        if client:
            client.end()
    rdma_cm.quiet(pair)


def _ended(pair):
    """Operations of queue pairs that there are no more, by vNIC."""
    return {(daemon.pid, vnic["name"]): client_server.moved_by(vnic["ended"])
            for daemon in rdma_cm.daemons(pair) for vnic in daemon.vnics()}


def _datagram_cases(setting):
    return [*(Case(f"{setting}.rsocket.{name}", pongs(*options), 120)
              for name, options in PONGS.items()),
            Case(f"{setting}.rsocket.datagrams", datagrams, 120),
            Case(f"{setting}.rsocket.names", _names, 90),
            Case(f"{setting}.rsocket.sets", _sets, 90)]


def _cases(setting):
    cases = [rdma_cm.program(setting, name, *words, subject="rsocket")
             for name, words in PROGRAMS.items()]
    if setting == "user":
        cases.append(rdma_cm.program(setting, "rstream ipv6", [*_SIX, "-b", "::1"],
                                     [*_SIX, "-s", "::1"], _SHORT_SEEN, subject="rsocket"))
    return [*cases, Case(f"{setting}.rsocket.rcopy", _copies, 90)]


@contextlib.contextmanager
def _sides(pair, *parts):
    """The parts of programs/rsockets.py that run."""
    words = ["/usr/bin/python3", "/opt/programs/rsockets.py"]
    sides = []
    try:
        for part in parts:
            sides.append(Side(pair.server, [*words, part, pair.server.address]))
        yield sides
    finally:
        for side in sides:
            side.end()


def _prints(side, *lines):
    """Waits until it has ended, and has printed this at the end."""
    side.wait(30)
    check(side.text().endswith("".join(f"{line}\n" for line in lines)), side.text())


def _until_printed(side, line):
    def printed():
        check(side.is_there(), f"it has ended:\n{side.text()}")
        return line in side.text()
    process.until(printed, 30, lambda: f"{line!r}:\n{side.text()}")


def _again(pair):
    """Another daemon, which those who were there come back to."""
    count = len(pair.daemon.programs())
    pair.daemon.kill()
    pair.daemon.start()
    process.until(lambda: len(pair.daemon.programs()) == count, 60,
                  lambda: f"{count} programs, not {pair.daemon.programs()}")


def _receives(pair):
    """Who only receives hears of a peer's death, of which no connection manager knows any more."""
    with _sides(pair, "receives", "client") as (server, client):
        _until_printed(server, "first 5")
        _again(pair)
        for pid in [*process.descendants(client.running.pid), client.running.pid]:
            process.kill(pid)
        _prints(server, "rrecv ECONNRESET", "rclose 0")
    rdma_cm.quiet(pair)


def _accepts(pair):
    """A listener whose daemon is gone does not wait for ever."""
    with _sides(pair, "accepts") as (server,):
        _until_printed(server, "rlisten 0")
        pair.daemon.kill()
        pair.daemon.start()
        _prints(server, "raccept ENODEV", "raccept ENODEV")


def _forks(pair):
    """A forked child may close what it inherited."""
    with _sides(pair, "forks", "client") as (server, client):
        _prints(server, "child 0", "rsend 4", "rclose 0")
        _prints(client, "rsend 5", "rrecv 4", "rrecv 0")
    rdma_cm.quiet(pair)


def _names(pair):
    """The address of a socket, for a caller that only asks which family it has."""
    with _sides(pair, "names") as (server,):
        _prints(server, "rconnect ECONNREFUSED", "rgetsockname 0", "length 16", "rclose 0")


def _sets(pair):
    """repoll: what happens to any of several, and who waits for them."""
    with _sides(pair, "repolls") as (server,):
        _until_printed(server, "nothing")
        client = Side(pair.client, ["/usr/bin/python3", "/opt/programs/rsockets.py", "client",
                                    pair.server.address])
        try:
            _prints(server, "set 1", "flags 1", "rbind 0", "rlisten 0",
                    "wrong EBADF EINVAL EINVAL EINVAL ENOENT ENOENT", "added 0 EEXIST",
                    "nothing [] [] EINVAL EINVAL", "asked [(1, 1)]", "came [(2, 1)] [(2, 1)]",
                    "both [(2, 1), (3, 1)] one each 1", "changed [(3, 1), (4, 4)]", "rrecv 5",
                    "still waits [False, False]", "told [[(6, 4)], [(6, 4)]]", "closed [] ENOENT",
                    "busy EBUSY", "rclose 0", "rclose 0", "rclose 0", "gone EINVAL")
            check("path 0 72 True\nshorter EINVAL\n" in client.text(), client.text())
        finally:
            client.end()
    rdma_cm.quiet(pair)


_BROKEN = {"who only receives": _receives, "a listener": _accepts, "a forked child": _forks}


def groups():
    """Streams and datagrams wherever rdma_cm is tried; what breaks, as an ordinary user at one
    address."""
    broken = [Case(f"user.rsocket.{name}", run, 90) for name, run in _BROKEN.items()]
    return [*(Group(f"{setting}.rsocket{title}", cases(setting), fixture, weight=weight)
              for title, cases in (("", _cases), (".datagrams", _datagram_cases))
              for setting, (fixture, weight) in rdma_cm.SETTINGS.items()),
            Group("user.rsocket.broken", broken, PlainPair)]
