"""Tests light connections between two hosts, by RDMA gateways and by the kernel's TCP.

Each host is a set of network namespaces with a daemon of its own (harness/simulated_host.py)."""

import contextlib
import ipaddress
import os
import pathlib
import re
import signal
import tempfile
import time

from cases.light_across_namespaces import Far
from harness import process, staging
from harness.case import WAITS, Case, Group, Skip, check
from harness.daemon import environment
from harness.simulated_host import Hosts

_ALL = ("0.0.0.0/0", "::/0")
# Of a hundred connections so many are light: the first, and one in each while, are TCP's.
_MOST = 80
# Times that it is tried: a busy machine finds out too late, and then all are TCP's.
_TURNS = 4
_ATTACKS = 24


class End:
    """One of the two: a network namespace of a host."""

    def __init__(self, host, container):
        self.host, self.namespace = host, container.namespace
        self.address = container.address
        six = host.addresses(1 if host.name == "a" else 2)[1].partition("/")[0]
        self.six = str(ipaddress.ip_address(six))

    @property
    def pid(self):
        """A process in it."""
        return self.namespace.pid

    def enter(self):
        """Before a program that runs there."""
        return self.namespace.enter()


class TwoHosts:
    """Two hosts, a namespace on each whose programs are in light mode, and no gateway so far."""

    told = ("OMNIVERB_SOCKETS=light",)

    def __init__(self, stage):
        self.library = stage.dist / "lib" / "libomniverb_sockets.so"
        if not self.library.exists():
            raise Skip("there is no such library for this processor")
        self.stage, self.stack = stage, contextlib.ExitStack()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="far-", dir=stage.path))
        self.hosts = Hosts(stage)
        self.stack.callback(self.hosts.close)
        self.server = End(self.hosts.a, self.hosts.server)
        self.client = End(self.hosts.b, self.hosts.client)
        self.gateways = {}

    def close(self):
        """Ends everything."""
        for end in list(self.gateways):
            self.no_gateway(end)
        self.stack.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def variables(self, where):
        """What programs there are told."""
        return [f"OMNIVERB_SOCKET={where.host.daemon.socket}"]

    def line(self, where, report, *words, with_library=True):
        """Runs namespace_streams.py there."""
        return self.python(where, report, staging.PROGRAMS / "sockets" / "namespace_streams.py",
                           *words,
                           with_library=with_library)

    def python(self, where, report, program, *words, with_library=True):
        """Runs a program there."""
        return self.light(where, "/usr/bin/python3", "-B", program, *words, report=report,
                          with_library=with_library)

    def light(self, where, *words, report=None, with_library=True):
        """The same of any program."""
        told = [f"LD_PRELOAD={self.library}", *self.told, f"OMNIVERB_SOCKETS_REPORT={report}"]
        return [*where.enter(), "env", *self.variables(where), *(told if with_library else []),
                *map(str, words)]

    def shown_processes(self):
        """What the status of both hosts shows of processes that have sockets."""
        both = [end.host.daemon.status().get("sockets", []) for end in (self.server, self.client)]
        return [one for shown in both for one in shown if one["name"] != "omniverb-gateway"]

    def gateway(self, end, *words):
        """Starts one there."""
        self.no_gateway(end)
        log = self.folder / f"gateway-{end.host.name}"
        said = open(log, "w+", encoding="utf-8")  # noqa: SIM115
        line = [*end.enter(), self.stage.dist / "bin" / "omniverb", "gateway", "-v",
                *(words or _ALL)]
        running = process.start(line, stdout=said, stderr=said, env=environment(
            OMNIVERB_SOCKET=end.host.daemon.socket))
        self.gateways[end] = (running, said)
        process.until(lambda: "ready" in process.written(said), 10, lambda: process.written(said))

    def no_gateway(self, end):
        """Kills it."""
        running, said = self.gateways.pop(end, (None, None))
        if running:
            os.kill(running.pid, signal.SIGKILL)
            process.end(running)
            text = process.written(said)
            print(f"--- gateway of {end.host.name} ---", text, sep="\n", flush=True)
            said.close()

    def both(self):
        """One on each."""
        for end in (self.server, self.client):
            if end not in self.gateways:
                self.gateway(end)
        return self

    def far(self, port, six=False):
        """Somebody who serves on one host, for who comes from the other."""
        address = self.server.six if six else self.server.address
        return Far(self, [port], address)


def _are_most(count, light):
    return light * 100 >= count * _MOST


def _short(port, six=False):
    def run(hosts):
        """Short connections are light, all but a few; another process's from the first on."""
        with hosts.both().far(port, six) as far:
            for seconds in (3, 0.5):
                asked = []
                while len(asked) < _TURNS and not (asked and _are_most(*asked[-1])):
                    asked.append(far.asks(port, seconds))
                check(_are_most(*asked[-1]), f"{asked}")
    return run


def _again(hosts):
    """The network is asked again in time: they stay light."""
    with hosts.both().far(7210) as far:
        far.asks(7210, 17)
        late = re.search(r"^late (\d+)$", far.written("asks"), re.MULTILINE)[1]
        check(int(late) > 0, "none is light that begins later")


def _without(hosts):
    """Where there is no gateway, or only one, or one for other addresses, all is TCP's."""
    for ends in ([], [hosts.server], [hosts.client]):
        for end in (hosts.server, hosts.client):
            hosts.no_gateway(end)
        for end in ends:
            hosts.gateway(end)
        with hosts.far(7220) as far:
            count, light = far.asks(7220, 1)
            check(count > 0 and light == 0, f"{light} of {count}")
    hosts.gateway(hosts.server)
    hosts.gateway(hosts.client, "10.99.0.0/16", f"{hosts.server.address}:7221")
    with hosts.far(7220) as far:
        count, light = far.asks(7220, 1)
        check(count > 0 and light == 0, f"{light} of {count}")
    hosts.no_gateway(hosts.client)


def _sound(hosts):
    """Bytes both ways at a time, in pieces of all sizes, by few connections and by more than there
    are lanes; with the end of each direction."""
    program = staging.PROGRAMS / "sockets" / "two_way_streams.py"
    address = hosts.both().server.address
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(open(hosts.folder / "mirrored", "w+", encoding="utf-8"))
        line = hosts.python(hosts.server, hosts.folder / "none", program, "serve", address, 7230)
        serving = process.start(line, stdout=out, stderr=out)
        stack.callback(process.end, serving)
        process.until(lambda: process.listens(hosts.server.pid, 7230), 10,
                      lambda: process.written(out))
        for count in (1, 5, 40):
            line = hosts.python(hosts.client, hosts.folder / "none", program, "connect", address,
                                7230, 3, count, count)
            text = process.run(line, limit=90)
            found = re.fullmatch(r"sound (\d+) of (\d+), (\d+)\n", text)
            print(text)
            check(found and int(found[1]) >= count - 1 and int(found[3]) > 1_000_000, text)
        check(serving.poll() is None, process.written(out))


def _closed(hosts, far, name):
    def is_there():
        return any(far.channels())
    process.until(lambda: not is_there(), 20, lambda: f"{far.channels()}")
    return far.written(name)


def _killed(hosts):
    """Who is killed ends as the kernel would end him; the server has all others."""
    with hosts.both().far(7240) as far:
        for _ in range(3):
            running, _ = far.keeps(7240)
            os.kill([running.pid, *process.descendants(running.pid)][-1], signal.SIGKILL)
            _closed(hosts, far, "keeps")
            check(far.server.poll() is None, far.written("serves"))


def _server_killed(hosts):
    """Who has lost the server hears so, by an end or a reset, as with TCP."""
    with hosts.both().far(7245) as far:
        running, _ = far.keeps(7245)
        os.kill([far.server.pid, *process.descendants(far.server.pid)][-1], signal.SIGKILL)
        check(running.wait(30) in (0, 1), far.written("keeps"))
        said = far.written("keeps")
        check("ended by" in said or "it ends early" in said, said)


def _lost(hosts, far, port, lose, limit):
    """A connection is light, the way is lost: a reset, not an end that a program might take for
    one."""
    running, _ = far.keeps(port)
    lose()
    check(running.wait(limit) == 0, far.written("keeps"))
    check("ended by ConnectionResetError" in far.written("keeps"), far.written("keeps"))


def _gateway_killed(hosts):
    """Without a gateway, on either side, connections are TCP's; with it, light again."""
    with hosts.both().far(7250) as far:
        for end in (hosts.client, hosts.server):
            _lost(hosts, far, 7250, lambda end=end: hosts.no_gateway(end), 30)
            count, light = far.asks(7250, 1)
            check(count > 0 and light == 0, f"{light} of {count}")
            hosts.both()
            process.until(lambda: far.asks(7250, 1)[1] > 0, 60, "light connections")


def _daemon_killed(hosts):
    """The same without a daemon, and with the next one."""
    with hosts.both().far(7260) as far:
        for end in (hosts.client, hosts.server):
            _lost(hosts, far, 7260, lambda end=end: end.host.daemon.kill(), 30)
            count, light = far.asks(7260, 1)
            check(count > 0 and light == 0, f"{light} of {count}")
            end.host.daemon.start()
            hosts.gateway(end)
            process.until(lambda: far.asks(7260, 1)[1] > 0, 60, "light connections")


def _reloaded(hosts):
    """A server is replaced by another one: connections of the first go on, new ones are the
    second's; when nobody listens they are refused."""
    address, port = hosts.server.address, 7275
    with hosts.both().far(7276) as far:
        files = [hosts.folder / f"left-{name}" for name in ("first", "second")]
        for file in files:
            file.unlink(missing_ok=True)

        def serve(name, file):
            far.start(name, hosts.server, "leaves", address, port, file)
            far.says(name, "listens")
        serve("first", files[0])
        kept, end = far.keeps(port)

        def tried():
            """How one process's connections end."""
            asks = far.start("tries", hosts.client, "asks", address, port, 0.5, 0)
            return asks.wait(40) == 0, far.written("tries")
        serve("second", files[1])
        files[0].touch()
        far.says("first", "left")
        # Some may have come to the first while it left, as with TCP.
        process.until(lambda: tried()[0], 30, lambda: far.written("tries"))
        count, light = far.asks(port, 8)
        check(light > 0, f"{light} of {count}")
        check(kept.poll() is None, far.written("keeps"))
        files[1].touch()
        far.says("second", "left")
        process.until(lambda: "ConnectionRefusedError" in tried()[1], 30,
                      lambda: far.written("tries"))
        check(kept.poll() is None, far.written("keeps"))
        end.touch()
        check(kept.wait(30) == 0 and "kept" in far.written("keeps"), far.written("keeps"))


def _unplugged(hosts):
    """The network is no more: those that are light end; what is TCP waits for it, as ever."""
    with hosts.both().far(7270) as far:
        try:
            _lost(hosts, far, 7270, hosts.hosts.cable.down, 60)
        finally:
            hosts.hosts.cable.up()
        process.until(lambda: far.asks(7270, 1)[0] > 0, 60, "connections")


# What a program hears of a connection that was reset: in calls that move bytes, and, as of the
# kernel, in those that end a direction or ask for a name.
_RESETS = ("ConnectionResetError", "Transport endpoint is not connected")


def _ended_at_random(hosts):
    """Programs and gateways are killed at any time, under load: who is left goes on, and nothing is
    left of the others."""
    with hosts.both().far(7280) as far:
        for turn in range(9):
            asks = [far.start(f"asks-{place}", hosts.client, "asks", hosts.server.address, 7280, 3,
                              0) for place in range(3)]
            time.sleep(0.2 + 0.13 * turn)
            if turn % 3:
                os.kill([asks[0].pid, *process.descendants(asks[0].pid)][-1], signal.SIGKILL)
            else:
                hosts.no_gateway((hosts.client, hosts.server)[turn // 3 % 2])
            for place, one in enumerate(asks):
                # Those that the way was lost of have said so.
                said = lambda place=place: far.written(f"asks-{place}")
                code = one.wait(30)
                is_killed = place == 0 and turn % 3
                is_well = code == 0 or is_killed or any(reset in said() for reset in _RESETS)
                check(is_well, f"{code}: {said()}")
            check(far.server.poll() is None, far.written("serves"))
            hosts.both()
            # It is remembered for a while where there was no gateway.
            process.until(lambda: far.asks(7280, 0.5)[1] > 0, 60, "light connections")
        process.until(lambda: not far.channels(), 20, lambda: f"{far.channels()}")


def _programs(hosts):
    """redis and its benchmark."""
    address = hosts.server.address
    report = hosts.folder / "redis"
    with contextlib.ExitStack() as stack:
        out = stack.enter_context(open(hosts.folder / "redis-out", "w+", encoding="utf-8"))
        line = hosts.both().light(
            hosts.server, "redis-server", "--bind", address, "--port", 6379, "--save", "",
            "--protected-mode", "no", report=report)
        stack.callback(process.end, process.start(line, stdout=out, stderr=out))
        process.until(lambda: process.listens(hosts.server.pid, 6379), 10,
                      lambda: process.written(out))

        def light():
            """How many connections of a benchmark were."""
            report.unlink(missing_ok=True)
            line = hosts.light(hosts.client, "redis-benchmark", "-h", address, "-n", 20000, "-q",
                               "-t", "set,get,incr,lpush,mset", report=report)
            text = process.run(line, limit=120)
            check(text.count("requests per second") >= 5, text)
            found = re.findall(r"^light (\d+) bytes [1-9]", report.read_text(), re.MULTILINE)
            print(found, text)
            return sum(map(int, found))
        # Those of the first test are TCP's where the gateway is too slow.
        process.until(lambda: light() >= 200, 100, "two hundred light connections")


def _hostile(hosts):
    """Another host that says what is no letter, or what makes no sense, ends its own channels, and
    nobody else's."""
    with hosts.both().far(7290) as far:
        running, file = far.keeps(7290)
        line = [*hosts.client.enter(), "env", *hosts.variables(hosts.client),
                hosts.stage.dist / "bin" / "omniverb", "run", "--",
                hosts.stage.programs / "hostile_gateway",
                hosts.server.address, "7290", str(_ATTACKS), "5"]
        text = process.run(line, limit=150)
        given = re.search(r"^sound (\d+)$", text, re.MULTILINE)
        check(given and int(given[1]) > _ATTACKS // 3, text)
        check(running.poll() is None, far.written("keeps"))
        file.touch()
        check(running.wait(30) == 0 and "kept" in far.written("keeps"), far.written("keeps"))
        process.until(lambda: far.asks(7290, 1)[1] > 0, 30, "light connections")


def groups():
    """All wait."""
    all_of = [Case("light.far.short", _short(7200), 90),
              Case("light.far.short6", _short(7201, True), 90),
              Case("light.far.again", _again, 60), Case("light.far.without", _without, 60),
              Case("light.far.sound", _sound, 120), Case("light.far.killed", _killed, 90),
              Case("light.far.killed.server", _server_killed, 60),
              Case("light.far.killed.gateway", _gateway_killed, 200),
              Case("light.far.killed.daemon", _daemon_killed, 240),
              Case("light.far.killed.at_random", _ended_at_random, 300),
              Case("light.far.reloaded", _reloaded, 90),
              Case("light.far.unplugged", _unplugged, 180),
              Case("light.far.redis", _programs, 200),
              Case("light.far.hostile", _hostile, 200)]
    return [Group("light.far", all_of, TwoHosts, weight=WAITS)]
