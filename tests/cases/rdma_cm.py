"""Tests connections by librdmacm: Debian's rdmacm-utils and perftest's -R, unmodified.

Which of them run where says the table; what is between a kernel's manager and ours is in
rdma_rxe_interop.py, what happens when things break in rdma_cm_faults.py."""

import contextlib
import re
from dataclasses import dataclass

from harness.rdma_cm_client_server import both
from harness.case import CROWDS, POLLS, Case, Group, check
from harness.containers import Pair
from harness.daemon import forgotten
from harness.simulated_host import Hosts
from harness.unprivileged_daemon import PlainPair

from cases.forwarded_datapath import forwarding

# Where a program runs.
_HOME = ("containers", "user")
_EVERYWHERE = (*_HOME, "wire", "forwarded")


def daemons(pair):
    """That of two places of one host, or those of two hosts."""
    return getattr(pair, "daemons", None) or (pair.daemon,)


def quiet(pair):
    """Waits until nothing is left of programs that have ended."""
    forgotten(daemons(pair), 30)


@dataclass(frozen=True)
class Row:
    """A program, where it runs, and what the client must print; `{server}` in its words is the
    server's address."""

    server: list
    client: list
    expected: str
    where: tuple = _HOME
    endless: bool = False  # the server does not end by itself
    slow: bool = False

    def case(self, setting, name, limit=60, subject="rdma_cm"):
        """It as a case of a setting."""
        def run(pair):
            words = [[word.format(server=pair.server.address) for word in side]
                     for side in (self.server, self.client)]
            said, text = both(pair, *words, limit, self.endless)
            check(re.search(self.expected, text),
                  f"no {self.expected!r}:\n{text}\n--- server ---\n{said}")
            quiet(pair)
        return Case(f"{setting}.{subject}.{name}", run, 3 * limit, self.slow)


def program(setting, name, server, client, expected, endless=False, slow=False, limit=60,
            subject="rdma_cm"):
    """A case of a setting; see `Row`."""
    row = Row(server, client, expected, (setting,), endless, slow)
    return row.case(setting, name, limit, subject)


def _rping(*options, where=_HOME):
    words = ["rping", "-a", "{server}", "-C", "20", "-v", "-V", *options]
    return Row([*words, "-s"], [*words, "-c"], "ping data: rdma-ping-19:", where)


def _utility(name, *options, where=_HOME):
    return Row([name, *options], [name, *options, "-s", "{server}"], "return status 0", where)


def _perftest(name, *options, queue_pairs=1, size=1024, where=("containers",)):
    words = [name, "-R", "-F", "-n", "200", *options]
    if size == 1024:
        words += ["-s", "1024"]
    return Row(words, [*words, "{server}"], f"{size} +{200 * queue_pairs}", where)


PROGRAMS = {
    "rping": _rping(where=_EVERYWHERE),
    "rping queue pairs of its own": _rping("-q", where=_EVERYWHERE),
    "rping large": _rping("-S", "60000", where=_EVERYWHERE),
    "rping persistent": Row(["rping", "-a", "{server}", "-s", "-P"],
                            ["rping", "-a", "{server}", "-c", "-C", "20", "-v", "-V"],
                            "ping data: rdma-ping-19:", _EVERYWHERE, True),
    "ucmatose": _utility("ucmatose", where=_EVERYWHERE),
    "ucmatose many": _utility("ucmatose", "-c", "100", "-C", "3", where=_EVERYWHERE),
    "ucmatose migrates": _utility("ucmatose", "-c", "5", "-m", where=_EVERYWHERE),
    "udaddy": _utility("udaddy", where=_EVERYWHERE),
    "rdma_client": Row(["rdma_server"], ["rdma_client", "-s", "{server}"], "rdma_client: end 0",
                       _EVERYWHERE),
    "rdma_xclient": Row(["rdma_xserver"], ["rdma_xclient", "-s", "{server}"],
                        "rdma_xclient: end 0", _EVERYWHERE),
    "rdma_xclient extended": Row(["rdma_xserver", "-c", "x"],
                                 ["rdma_xclient", "-s", "{server}", "-c", "x"],
                                 "rdma_xclient: end 0", _EVERYWHERE),
    "message_before_disconnect": Row(["/opt/programs/message_before_disconnect", "{server}", "s"],
                                     ["/opt/programs/message_before_disconnect", "{server}", "c"],
                                     "end", _EVERYWHERE),
    "cmtime": Row(["cmtime", "-c", "100"], ["cmtime", "-c", "100", "-s", "{server}"],
                  r"disconnect +: +[0-9.]+", _EVERYWHERE, True),
    "cmtime thousand": Row(["cmtime", "-c", "1000"], ["cmtime", "-c", "1000", "-s", "{server}"],
                           r"disconnect +: +[0-9.]+", _EVERYWHERE, True),
}

# perftest has two connections by address with -R: one for what the two sides tell each other, and
# then the measured ones, for which the server listens anew.
PERFTEST = {
    "ib_send_bw": _perftest("ib_send_bw", where=_EVERYWHERE),
    "ib_send_lat": _perftest("ib_send_lat"),
    "ib_send_bw datagrams": _perftest("ib_send_bw", "-c", "UD", where=_EVERYWHERE),
    "ib_send_lat datagrams": _perftest("ib_send_lat", "-c", "UD"),
    "ib_write_bw": _perftest("ib_write_bw"),
    "ib_write_lat": _perftest("ib_write_lat", where=_EVERYWHERE),
    "ib_read_bw": _perftest("ib_read_bw", "-q", "4", queue_pairs=4, where=_EVERYWHERE),
    "ib_read_lat": _perftest("ib_read_lat"),
    "ib_atomic_bw": _perftest("ib_atomic_bw", size=8),
    "ib_atomic_lat": _perftest("ib_atomic_lat", size=8),
}


@contextlib.contextmanager
def forwarded(stage):
    with Pair(stage, daemon_arguments=forwarding(stage)) as pair:
        yield pair


SETTINGS = {"containers": (Pair, POLLS), "user": (PlainPair, POLLS), "wire": (Hosts, CROWDS),
             "forwarded": (forwarded, CROWDS)}


def groups():
    """The utilities and perftest, each where the table says."""
    found = []
    for setting, (fixture, weight) in SETTINGS.items():
        for title, table in (("rdma_cm", PROGRAMS), ("rdma_cm.perftest", PERFTEST)):
            cases = [row.case(setting, f"perftest {name}" if table is PERFTEST else name)
                     for name, row in table.items() if setting in row.where]
            found.append(Group(f"{setting}.{title}", cases, fixture, weight=weight))
    return found
