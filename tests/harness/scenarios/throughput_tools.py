"""Programs that measure streams: iperf3, qperf, sockperf."""

import json
import re

from ..case import check
from . import Scenario

_IPERF = {"iperf3": "iperf3"}
_QPERF = {"qperf": "qperf"}
_SOCKPERF = {"sockperf": "sockperf"}
_MIB = 1 << 20


def _iperf(*options, mebibytes=80):
    """So many bytes, so that a link is there before they have gone; and all that the report has."""
    def run(place):
        with place.serve(7003, "iperf3", "-s", "-1", "-p", 7003) as server:
            text = place.ask("iperf3", "-c", "127.0.0.1", "-p", 7003, "--json", "-n",
                             f"{mebibytes}M", *options)
            status = server.wait(10)
        report = json.loads(text)
        end = report["end"]
        # Both ways, one may have sent them before the other has. Who receives may have counted less
        # when who sends says that this was all.
        enough = end["sum_sent"]["bytes"] >= (1 if "--bidir" in options else mebibytes * _MIB)
        return [status, report.get("error"), len(report["start"]["connected"]), sorted(end),
                len(end["streams"]), enough]
    return run


def _interrupted(place):
    """A handler that leaves by longjmp, in the middle of a call; the server sees the end."""
    with place.serve(7003, "iperf3", "-s", "-1", "-p", 7003) as server:
        text = place.ask("timeout", "-s", "INT", "0.7", "iperf3", "-c", "127.0.0.1", "-p", 7003,
                         "-t", "60", accept=(124,))
        status = server.wait(10)
    return [status, re.findall(r"^iperf3: .*$", text, re.MULTILINE)]


def _qperf(place):
    """A process for each client, latency and bandwidth."""
    seen = []
    with place.serve(7007, "qperf", "-lp", 7007) as server:
        for size in (1, 65536):
            text = place.ask("qperf", "-lp", 7007, "127.0.0.1", "-t", 1, "-m", size, "tcp_lat",
                             "tcp_bw")
            seen.append(re.sub(r"=.*", "", text))
        place.ask("qperf", "-lp", 7007, "127.0.0.1", "quit")
        seen.append(server.wait(10))
    return seen


def _sockperf(how, *options, feed=""):
    """A server that waits as `feed` says, in epoll, poll or select, or in a plain call."""
    def run(place):
        # With two addresses, since a single one is read from without asking.
        (place.folder / "feed").write_text("T:127.0.0.1:7004\nT:127.0.0.1:7005\n")
        words = ["-f", "feed", "-F", feed] if feed else ["--tcp", "-i", "127.0.0.1", "-p", 7004]
        with place.serve(7004, "sockperf", "sr", *words):
            text = place.ask("sockperf", how, "--tcp", "-i", "127.0.0.1", "-p", 7004, "-t", 1,
                             *options)
        if how == "tp":
            return re.findall(r"^sockperf: Summary: (Message Rate|BandWidth) is \d", text,
                              re.MULTILINE)
        counts = re.search(r"SentMessages=(\d+); ReceivedMessages=(\d+)", text)
        check(counts, text)
        # The last one may be under way when the time is over.
        return [int(counts[1]) > 0, int(counts[1]) - int(counts[2]) in (0, 1),
                re.findall(r"# (dropped|duplicated|out-of-order) messages = (\d+)", text)]
    return run


SCENARIOS = [
    Scenario("iperf3", _iperf(), _IPERF),
    Scenario("iperf3.four", _iperf("-P", 4), _IPERF),
    Scenario("iperf3.reverse", _iperf("-R"), _IPERF),
    Scenario("iperf3.both-ways", _iperf("--bidir"), _IPERF, daily=True),
    Scenario("iperf3.sendfile", _iperf("-Z"), _IPERF, daily=True),
    Scenario("iperf3.small", _iperf("-l", 100, "-P", 2, mebibytes=4), _IPERF),
    Scenario("iperf3.interrupted", _interrupted, _IPERF),
    Scenario("qperf", _qperf, _QPERF, carried=True),
    Scenario("sockperf.ping-pong", _sockperf("pp", "-m", 14, "--mps", 5_000_000), _SOCKPERF),
    Scenario("sockperf.throughput", _sockperf("tp", "-m", 1400), _SOCKPERF),
    Scenario("sockperf.under-load", _sockperf("ul", "--mps", 5000), _SOCKPERF),
    *(Scenario(f"sockperf.{name}",
               _sockperf("pp", "-m", 14, "--mps", 5_000_000, feed=name[0]), _SOCKPERF)
      for name in ("epoll", "poll", "select")),
]
