"""Sockets over RDMA: Debian's rstream, riostream and rcopy, unmodified, between two containers of a
host and between two processes of an ordinary user."""

import contextlib
import pathlib
import tempfile

from cases import rdma_cm
from harness import process
from harness.case import Case, Group, check
from harness.containers import Pair
from harness.plain import PlainPair

# Three hundred transfers: name, bytes, transfers, rounds, and then as much as anybody measures.
_SHORT = ["-S", "5000", "-C", "30", "-I", "10"]
_SHORT_SEEN = r"custom +4?\.?[0-9k]+ +30 +10 "


def _pair(name, *options, server=()):
    return [name, *options, *server], [name, "-s", "{server}", *options]


def _rstream(*options):
    return *_pair("rstream", *_SHORT, "-T", "verify", *options), _SHORT_SEEN


def _riostream(*options):
    return *_pair("riostream", *_SHORT, "-T", "verify", *options), _SHORT_SEEN


_PROGRAMS = {
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


def _left(pair):
    return {name: count for name, count in pair.daemon.totals().items()
            if count and name not in ("vnics", "gids")}


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


def _cases(setting):
    cases = [rdma_cm.program(setting, name, *words, subject="rsocket")
             for name, words in _PROGRAMS.items()]
    if setting == "user":
        cases.append(rdma_cm.program(setting, "rstream ipv6", [*_SIX, "-b", "::1"],
                                     [*_SIX, "-s", "::1"], _SHORT_SEEN, subject="rsocket"))
    return [*cases, Case(f"{setting}.rsocket.rcopy", _copies, 90)]


def groups():
    """In containers, and as an ordinary user at one address."""
    settings = (("containers", Pair), ("user", PlainPair))
    return [Group(f"{setting}.rsocket", _cases(setting), fixture) for setting, fixture in settings]
