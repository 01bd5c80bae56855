"""Tests light connections between two network namespaces, while the network permits them."""

import contextlib
import os
import re
import signal
import time

from cases.carried_sockets_across_namespaces import Across
from harness import notes, process, staging
from harness.case import WAITS, Case, Group, Skip, check

_FAR = staging.PROGRAMS / "sockets" / "namespace_connections.py"
_OWING, _PARTED = (staging.PROGRAMS / "sockets" / name for name in ("unread_count_liar.py",
                                                                    "ended_channel_user.py"))
_FARTHER = staging.PROGRAMS / "sockets" / "foreign_broker_client.py"
_ONE, _OTHER = "10.0.0.1", "10.0.0.2"
_ONE6 = "fd00::1"
# Seconds in which the network is asked again twice.
_LONG = 17
# Of a hundred connections so many are light: the first, and one in each while, are TCP's.
_MOST = 80
# Times that it is tried.
_TURNS = 3


class Ranges(Across):
    """Both are told to which addresses connections are light."""

    settings = 'sockets_light = ["10.0.0.0/24", "fd00::/64"]\n'
    told = ("OMNIVERB_SOCKETS=carry", "OMNIVERB_SOCKETS_LIGHT=10.0.0.0/24 fd00::/64")


class All(Across):
    """All connections are light that can be."""

    settings = ""
    told = ("OMNIVERB_SOCKETS=light",)


class Far:
    """Somebody who serves in one of two namespaces, and others who come from the other one."""

    def __init__(self, across, ports, address=_ONE, ends=None):
        self.across, self.address = across, address
        self.home, self.away = ends or (across.server, across.client)
        self.stack, self.said = contextlib.ExitStack(), {}
        self.report = across.folder / "far"
        self.report.unlink(missing_ok=True)
        with contextlib.ExitStack() as stack:
            stack.callback(self.stack.close)
            self.server = self.start("serves", self.home, "serves", address, *ports)
            for port in ports:
                process.until(lambda port=port: process.listens(self.home.pid, port), 10,
                              lambda: self.written("serves"))
            stack.pop_all()

    def start(self, name, where, *words, program=_FAR, with_library=True):
        """Runs one of these."""
        out = open(self.across.folder / f"{name}-far", "w+", encoding="utf-8")  # noqa: SIM115
        self.stack.callback(out.close)
        self.said[name] = out
        line = self.across.python(where, self.report, program, *words, with_library=with_library)
        running = process.start(line, stdout=out, stderr=out)
        self.stack.callback(process.end, running)
        return running

    def written(self, name):
        """What one has said."""
        return process.written(self.said[name])

    def says(self, name, what, limit=20):
        """Until it has."""
        process.until(lambda: what in self.written(name), limit, lambda: self.written(name))

    def asks(self, port, seconds, pause=0.01, name="asks"):
        """How many connections there were, and how many of them were light."""
        self.report.unlink(missing_ok=True)
        running = self.start(name, self.away, "asks", self.address, port, seconds, pause)
        check(running.wait(seconds + 30) == 0, self.written(name))
        count = int(re.search(r"^asked (\d+)$", self.written(name), re.MULTILINE)[1])
        light = sum(int(one) for one in re.findall(r"^light (\d+) bytes [1-9]",
                                                   self.report.read_text(), re.MULTILINE))
        print(f"{count} connections, {light} of them light")
        return count, light

    def keeps(self, port, name="keeps"):
        """One connection that is kept, and light; the file that ends it."""
        file = self.across.folder / f"end-{port}"
        file.unlink(missing_ok=True)
        self.asks(port, 1)
        running = self.start(name, self.away, "keeps", self.address, port, file)
        # It tries until one is light (`_PATIENCE`).
        self.says(name, "going", 90)
        # Channels are shown for a moment longer than there are processes.
        check("going light" in self.written(name), "it is not light")
        return running, file

    def channels(self):
        """What is shown of these."""
        return [channel for one in self.across.shown_processes() for channel in one["channels"]]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stack.close()


def _are_most(count, light):
    return light * 100 >= count * _MOST


def short(address, port):
    def run(across):
        """Short connections are light, all but a few."""
        with Far(across, [port], address) as far:
            # Another process finds what was seen. Where the broker is too slow some are TCP's.
            for seconds in (3, 0.5):
                asked = []
                while len(asked) < _TURNS and not (asked and _are_most(*asked[-1])):
                    asked.append(far.asks(port, seconds))
                check(_are_most(*asked[-1]), f"{asked}")
    return run


def _again(across):
    """The network is asked again in time: they stay light."""
    with Far(across, [7110]) as far:
        for turn in range(1, 4):
            # A busy machine may find out too late that the network is as before.
            count, light = far.asks(7110, _LONG)
            if _are_most(count, light):
                break
            notes.add(f"{light} of {count} connections were light the {turn}. time")
        check(_are_most(count, light), f"{light} of {count}")
        carried = sum(int(one) for one in re.findall(r"^links (\d+) bytes \d+$",
                                                     far.report.read_text(), re.MULTILINE))
        check(carried >= 2, f"the network was not asked again: {far.report.read_text()}")


def _shown(across):
    """The status says with whom a process has a channel, an operator all of it."""
    with Far(across, [7120]) as far:
        running, file = far.keeps(7120)
        channels = far.channels()
        check(len(channels) == 2 and all(one["across"] and one["peer_pid"] for one in channels),
              f"{channels}")
        check(len({one["name"] for one in channels}) == 1, f"{channels}")
        def light():
            return [one for one in across.shown() if one["state"] == "light"]

        def are_busy():
            return all(one["sent_per_second"] > 1000 and one["bytes_received"] > 1000
                       for one in light())
        process.until(are_busy, 20, lambda: f"bytes: {light()}")
        shown = light()
        ends = {(one["local"], one["remote"]) for one in shown}
        check(len(shown) == 2 and {(there, here) for here, there in ends} == ends, f"{shown}")
        check(any(here == f"{_ONE}:7120" for here, _ in ends), f"{shown}")
        check(all(one["reach"] for one in shown), f"{shown}")
        text = across.omniverb("status")
        check("(across)" in text and "through memory, light, across" in text, text)
        file.touch()
        check(running.wait(10) == 0 and "kept" in far.written("keeps"), far.written("keeps"))
        process.until(lambda: not far.channels(), 10, lambda: f"{far.channels()}")


def _cut(across):
    """An administrator ends it: a reset, not an end that a program might take for one; what comes
    later is the kernel's."""
    server, client = across.pair()
    with Far(across, [7130], ends=(server, client)) as far:
        running, _ = far.keeps(7130)
        across.omniverb("vnic", "set", f"pid:{client.pid}", "--datapath", "forwarded")
        check(running.wait(10) == 0, far.written("keeps"))
        check("ended by ConnectionResetError" in far.written("keeps"), far.written("keeps"))
        count, light = far.asks(7130, 1)
        check(count > 0 and light == 0, f"{light} of {count}")
        across.omniverb("vnic", "set", f"pid:{client.pid}", "--datapath", "direct")


def _restarted(across):
    """A daemon that is killed ends nothing; the next one hears of what there is, and can end it."""
    server, client = across.pair()
    with Far(across, [7140, 7141], ends=(server, client)) as far:
        kept = {name: far.keeps(7140 + place, name)[0]
                for place, name in enumerate(["keeps", "keeps-more"])}
        names = sorted(one["name"] for one in far.channels())
        check(len(set(names)) == 2, f"{names}")
        os.kill([across.daemon.pid, *process.descendants(across.daemon.pid)][-1], signal.SIGKILL)
        process.end(across.daemon)
        time.sleep(1.5)
        across.daemon = across.start()
        process.until(lambda: sorted(one["name"] for one in far.channels()) == names, 20,
                      lambda: f"{far.channels()}")
        time.sleep(1.5)
        check(sorted(one["name"] for one in far.channels()) == names, f"{far.channels()}")
        across.omniverb("vnic", "set", f"pid:{client.pid}", "--datapath", "forwarded")
        for name, running in kept.items():
            check(running.wait(10) == 0, far.written(name))
            check("ended by ConnectionResetError" in far.written(name), far.written(name))
        across.omniverb("vnic", "set", f"pid:{client.pid}", "--datapath", "direct")


def _killed(across):
    """Who is killed ends as the kernel would end him; the server has all others."""
    with Far(across, [7150]) as far:
        for _ in range(3):
            running, _ = far.keeps(7150)
            os.kill([running.pid, *process.descendants(running.pid)][-1], signal.SIGKILL)
            process.until(lambda: not far.channels(), 10, lambda: f"{far.channels()}")
            check(far.server.poll() is None, far.written("serves"))


def _stalled(across):
    """Who is busy for a while has those that have come meanwhile."""
    with Far(across, [7155]) as far:
        asks = far.start("asks", far.away, "asks", _ONE, 7155, 6, 0.01)
        for _ in range(2):
            time.sleep(1)
            pids = [far.server.pid, *process.descendants(far.server.pid)]
            os.kill(pids[-1], signal.SIGSTOP)
            time.sleep(2)
            os.kill(pids[-1], signal.SIGCONT)
        check(asks.wait(30) == 0, far.written("asks"))


def _filtered(across):
    """What the network does not bring there does not come there: not to another port, not from
    another address; and not for long, once it brings nobody there any more. An old connection
    goes on, as it would with a filter that knows connections."""
    server, client = across.pair()
    with Far(across, [7160, 7161], ends=(server, client)) as far:
        filtered = across.folder / "filtered"
        filtered.unlink(missing_ok=True)
        liar = far.start("farther", client, _ONE, 7160, 7161, _OTHER, f"{across.socket}.sockets",
                         filtered, program=_FARTHER, with_library=False)
        process.until(lambda: "going" in far.written("farther") or liar.poll() is not None, 30,
                      lambda: far.written("farther"))
        check(liar.poll() is None, far.written("farther"))
        running, file = far.keeps(7160)
        try:
            server.nft("add table ip filter; add chain ip filter in "
                       "{ type filter hook input priority 0; }; "
                       "add rule ip filter in tcp dport 7160 tcp flags & (syn | ack) == syn "
                       "reject with tcp reset")
        except Exception as error:
            raise Skip(f"this kernel filters nothing: {error}") from error
        filtered.touch()
        asks = far.start("asks", client, "asks", _ONE, 7160, 60, 0.05)
        check(asks.wait(20) != 0, far.written("asks"))
        check("ConnectionRefusedError" in far.written("asks"), far.written("asks"))
        check(liar.wait(30) == 0 and "sound" in far.written("farther"), far.written("farther"))
        check(running.poll() is None, far.written("keeps"))
        file.touch()
        check(running.wait(10) == 0 and "kept" in far.written("keeps"), far.written("keeps"))


class Parted:
    """A server that does commands, and who sends them by a channel, whatever that is."""

    def __init__(self, across, port, how, call="epoll"):
        server, client = across.pair()
        self.flags = across.folder / f"flags-{port}"
        self.flags.write_bytes(bytes(1))
        self.far = Far(across, [port + 400], ends=(server, client))
        self.server = self.far.start("serves", server, "serves", _ONE, port, call, program=_OWING)
        try:
            process.until(lambda: process.listens(server.pid, port), 10, self.written)
            self.sender = self.far.start(
                "sends", client, _ONE, port, _OTHER, f"{across.socket}.sockets", self.flags, how,
                program=_PARTED, with_library=False)
            self.says("going")
            process.until(lambda: "did early 20" in self.far.written("serves"), 20, self.written)
            self.pid = [self.server.pid, *process.descendants(self.server.pid)][-1]
            self.client = client
        except BaseException:
            self.far.stack.close()
            raise

    def written(self):
        """What both have said."""
        return "\n".join(self.far.written(one) for one in self.far.said)

    def says(self, what):
        """Until who sends has."""
        process.until(lambda: what in self.far.written("sends") or self.sender.poll() is not None,
                      40, self.written)
        check(self.sender.poll() is None, self.written())

    def goes_on(self):
        """It is over, and who sends does not mind."""
        self.tells(2, "wrote")
        os.kill(self.pid, signal.SIGCONT)
        self.says("tried")
        process.until(lambda: "lost" in self.far.written("serves"), 10, self.written)
        check("did late" not in self.far.written("serves"), self.written())
        check(self.server.poll() is None, self.written())

    def tells(self, value, said):
        """Who sends does something, and says so."""
        self.flags.write_bytes(bytes([value]))
        self.says(said)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.far.stack.close()


def _parted(across):
    """Once an operator has ended it nothing comes by it, though the server has not looked yet, and
    whatever it looks with: a reset is all that is left."""
    ways = [("frames", "epoll"), ("lane", "epoll"), ("opens", "epoll"), ("lane", "recv"),
            ("frames", "recv"), ("lane", "read"), ("frames", "recvmsg"), ("lane", "poll"),
            ("lane", "select")]
    for place, (how, call) in enumerate(ways):
        with Parted(across, 7190 + place, how, call) as parted:
            os.kill(parted.pid, signal.SIGSTOP)
            parted.tells(1, "rung")
            across.omniverb("vnic", "set", f"pid:{parted.client.pid}", "--datapath", "forwarded")
            # Until the broker has been told, and has told both.
            process.until(lambda: not parted.far.channels(), 20, lambda: f"{parted.far.channels()}")
            parted.goes_on()


def _alone(across):
    """The same once there has been no broker for a while that could end it."""
    with Parted(across, 7140, "lane") as parted:
        for one in reversed(process.descendants(across.daemon.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        process.end(across.daemon)
        try:
            process.until(lambda: "lost" in parted.far.written("serves"), 30, parted.written)
            parted.goes_on()
        finally:
            across.daemon = across.start()


def groups():
    """All wait."""
    ranges = [Case("light.across.short", short(_ONE, 7100), 90),
              Case("light.across.short6", short(_ONE6, 7101), 90),
              Case("light.across.again", _again, 150), Case("light.across.shown", _shown, 60),
              Case("light.across.cut", _cut, 60), Case("light.across.restarted", _restarted, 90),
              Case("light.across.killed", _killed, 60), Case("light.across.stalled", _stalled, 60),
              Case("light.across.filtered", _filtered, 90),
              Case("light.across.parted", _parted, 120), Case("light.across.alone", _alone, 90)]
    every = [Case("light.across.all", short(_ONE, 7180), 90),
             Case("light.across.all.restarted", _restarted, 90)]
    return [Group("light.across", ranges, Ranges, weight=WAITS),
            Group("light.across.all", every, All, weight=WAITS)]
