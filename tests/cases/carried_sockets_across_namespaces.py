"""Tests sockets carried between two network namespaces of one host.

One daemon, a switch, and namespaces on it whose programs have the library. What the daemon has not
confirmed stays TCP: whoever says that he has an address, and whoever has the same as others."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time

from harness import process, staging
from harness.case import WAITS, Case, Group, Skip, check
from harness.daemon import environment
from harness.network import Namespace, Switch

_PROGRAM = staging.PROGRAMS / "sockets" / "namespace_streams.py"
_ONE, _OTHER = "10.0.0.1", "10.0.0.2"
_ONE6, _OTHER6 = "fd00::1", "fd00::2"
# A first connection waits for a handshake of the daemon's; a busy machine takes its time.
_TURNS = 4


class Across:
    """A daemon that serves all namespaces, and one switch with two of them."""

    # What the daemon's configuration says, and what each program is told.
    settings = "sockets = true\n"
    told = ("OMNIVERB_SOCKETS=carry",)

    def __init__(self, stage):
        self.library = stage.dist / "lib" / "libomniverb_sockets.so"
        if not self.library.exists():
            raise Skip("there is no such library for this processor")
        self.stage, self.parts = stage, []
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="across-", dir=stage.path))
        self.socket = self.folder / "daemon"
        self.operators = self.folder / "operators"
        try:
            self.home = self.keep(Namespace())
            settings = self.folder / "omniverbd.toml"
            settings.write_text(self.settings)
            self.log = open(self.folder / "log", "w+", encoding="utf-8")  # noqa: SIM115
            self.daemon = self.start()
            self.server, self.client = self.pair()
        except BaseException:
            self.close()
            raise

    def start(self):
        """The daemon, once there is a broker."""
        broker = pathlib.Path(f"{self.socket}.sockets")
        broker.unlink(missing_ok=True)
        daemon = process.start(
            [*self.home.enter(), self.stage.dist / "bin" / "omniverbd", "--socket", self.socket,
             "--operator-socket", self.operators, "--config", self.folder / "omniverbd.toml"],
            stdout=self.log, stderr=self.log)
        process.until(broker.exists, 10, lambda: "a broker")
        return daemon

    def keep(self, part):
        """`part` is closed with this."""
        self.parts.append(part)
        return part

    def plug(self, switch, *addresses):
        """A namespace on a switch."""
        namespace = self.keep(Namespace())
        switch.plug(namespace, *[f"{one}/{64 if ':' in one else 24}" for one in addresses])
        return namespace

    def pair(self):
        """Two on a switch of their own; each such pair has the same addresses."""
        switch = self.keep(Switch())
        return self.plug(switch, _ONE, _ONE6), self.plug(switch, _OTHER, _OTHER6)

    def close(self):
        """Ends everything."""
        if hasattr(self, "daemon"):
            process.end(self.daemon)
            print("--- omniverbd ---", process.written(self.log), sep="\n", flush=True)
            self.log.close()
        for part in reversed(self.parts):
            part.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def line(self, namespace, report, *words, with_library=True):
        """Runs namespace_streams.py in a namespace."""
        return self.python(namespace, report, _PROGRAM, *words, with_library=with_library)

    def python(self, namespace, report, program, *words, with_library=True):
        """Runs a program in a namespace."""
        carried = [f"LD_PRELOAD={self.library}", *self.told,
                   f"OMNIVERB_SOCKET={self.socket}", f"OMNIVERB_SOCKETS_REPORT={report}"]
        return [*namespace.enter(), "env", *(carried if with_library else []),
                "/usr/bin/python3", "-B", program, *words]

    def omniverb(self, *words, accept=(0,)):
        """The command line, as an operator."""
        return process.run([self.stage.dist / "bin" / "omniverb", *words], limit=30, accept=accept,
                           env=environment(OMNIVERB_SOCKET=self.socket,
                                           OMNIVERB_OPERATOR_SOCKET=self.operators))

    def shown_processes(self):
        """What the status shows of all processes that have sockets."""
        found = json.loads(self.omniverb("status", "--json"))
        check("sockets_trouble" not in found, str(found.get("sockets_trouble")))
        return found.get("sockets", [])

    def shown(self):
        """What the status shows of all sockets."""
        return [{**one, "process": {**whose, "sockets": None}}
                for whose in self.shown_processes() for one in whose["sockets"]]

    def state(self, port):
        """Of the connections to this port: state and reason of each end."""
        return sorted((one["state"], one["why"]) for one in self.shown()
                      if re.search(rf":{port}$", one["local"]) or
                      re.search(rf":{port}$", one["remote"]))


class Talk:
    """A server and a client that talk for some time, and until `end`."""

    def __init__(self, across, port, seconds, seed=5, ends=None, address=_ONE, to=None, own=(),
                 libraries=(True, True), ways=("serve", "connect")):
        self.across = across
        server, client = ends or (across.server, across.client)
        self.report = across.folder / f"report-{port}-{seed}"
        self.report.unlink(missing_ok=True)
        self.said = [open(across.folder / f"{who}-{port}-{seed}", "w+",  # noqa: SIM115
                          encoding="utf-8") for who in ("server", "client")]
        lines = [across.line(server, self.report, ways[0], address, port, seed,
                             with_library=libraries[0]),
                 across.line(client, self.report, ways[1], to or address, port, seed, seconds,
                             *own, with_library=libraries[1])]
        self.server = process.start(lines[0], stdout=self.said[0], stderr=self.said[0])
        process.until(lambda: process.listens(server.pid, port), 10, self.written)
        self.client = process.start(lines[1], stdin=subprocess.PIPE, stdout=self.said[1],
                                    stderr=self.said[1])
        process.until(lambda: "going" in process.written(self.said[1]), 20, self.written)

    def written(self):
        """What both have said."""
        return "\n".join(process.written(one) for one in self.said)

    def end(self):
        """Both were sound; how many links they had, and bytes in rings."""
        check(self.client.poll() is None, self.written())
        self.client.stdin.close()
        check(self.client.wait(40) == 0, self.written())
        check(self.server.wait(20) == 0, self.written())
        totals = [re.search(r"^sound (\d+)$", process.written(one), re.MULTILINE)
                  for one in self.said]
        check(all(totals), self.written())
        text = self.report.read_text() if self.report.exists() else ""
        found = re.findall(r"^links (\d+) bytes (\d+)$", text, re.MULTILINE)
        print(f"carried by each: {found}; received by each: {[one[1] for one in totals]}")
        return sum(int(links) for links, _ in found), sum(int(count) for _, count in found)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for one in (self.client, self.server):
            process.end(one)
        for one in self.said:
            one.close()


def _until(across, port, wanted, what):
    """Until the state of both ends is one that is wanted."""
    process.until(lambda: wanted(across.state(port)), 20, lambda: f"{what}: {across.state(port)}")


def _are_carried(state):
    return [one for one, _ in state] == ["carried", "carried"]


def _both(address, port):
    def run(across):
        """Both directions go through memory, and the status says so, to an operator all and to a
        tenant his own."""
        for turn in range(_TURNS):
            with Talk(across, port + turn, 3, address=address) as talk:
                _until(across, port + turn, _are_carried, "carried")
                # It was missing once, just after it had been shown.
                rows = process.until(
                    lambda: [one for one in across.shown() if f":{port + turn}" in one["local"]],
                    5, "a row of it")
                check(rows[0]["reach"] and rows[0]["process"]["vnic"], f"{rows}")
                own = json.loads(process.run(
                    [*across.server.enter(), across.stage.dist / "bin" / "omniverb", "status",
                     "--json"], limit=30, env=environment(
                         OMNIVERB_SOCKET=across.socket,
                         OMNIVERB_OPERATOR_SOCKET=across.folder / "none")))
                cookies = {one["namespace_cookie"] for one in own["sockets"]}
                check(len(cookies) == 1, f"a tenant sees others: {own['sockets']}")
                people = across.omniverb("status")
                check("through memory, across" in people, people)
                links, count = talk.end()
            if links == 2 and count > 100_000:
                return
        check(False, f"{links} links, {count} bytes")
    return run


def _rests(across):
    """A link that carries next to nothing, since its reader sleeps, ends, and comes again once
    both are awake."""
    with Talk(across, 7560, 4, ways=("sleeps", "wakes")) as talk:
        _until(across, 7560, _are_carried, "carried")
        process.until(lambda: "woken" in process.written(talk.said[1]), 30, talk.written)
        _until(across, 7560, _are_carried, "carried again")
        # The first link of both ends has rested, and there is another one.
        links, _ = talk.end()
        check(links > 2, f"{links} links")


def _policy(across):
    """An administrator wants to see what goes between the two: what is carried goes back to the
    kernel, without losing a byte, and what comes later is not carried."""
    with Talk(across, 7601, 4) as talk:
        _until(across, 7601, _are_carried, "carried")
        across.omniverb("vnic", "set", f"pid:{across.server.pid}", "--datapath", "forwarded")
        _until(across, 7601, lambda state: state and
               all(one == ("left", "the daemon has ended it") for one in state), "left")
        links, _ = talk.end()
        check(links == 2, f"{links}")
    with Talk(across, 7602, 1) as talk:
        _until(across, 7602, lambda state: len(state) == 2 and all("not allowed" in why
               for _, why in state), "not allowed")
        check(talk.end() == (0, 0), "it was carried")
    across.omniverb("vnic", "set", f"pid:{across.server.pid}", "--datapath", "direct")


def _computing(across):
    """A policy changes when one end has sent and does nothing but compute since: the other end
    reads what it was told of, all of it, and waits for nobody. A child that it makes then may have
    read that, and nobody has it twice."""
    for port, who_reads in ((7660, 3), (7661, 4)):
        _computes(across, port, who_reads)


def _computes(across, port, who_reads):
    flags = across.folder / "flags"
    flags.write_bytes(bytes(4096))

    def say(*values):
        with open(flags, "r+b", buffering=0) as file:
            for at, value in values:
                file.seek(at)
                file.write(bytes([value]))

    said = [open(across.folder / who, "w+", encoding="utf-8")  # noqa: SIM115
            for who in ("computes", "reads")]
    ends = []
    try:
        for where, who, file in ((across.server, "computes", said[0]),
                                 (across.client, "reads", said[1])):
            line = across.line(where, across.folder / "report-computing", who, _ONE, port, flags)
            ends.append(process.start(line, stdout=file, stderr=file))
            if len(ends) == 1:
                process.until(lambda: process.listens(across.server.pid, port), 10, str)
        for turn in range(1, 50):
            process.until(lambda turn=turn: process.written(said[1]).count("holds") == turn, 10,
                          lambda: process.written(said[1]))
            held = [one for one in across.shown() if f":{port}" in one["local"]]
            if any(one["unread_by_peer"] == 5000 for one in held):
                break
            say((1, 1), (0, turn % 250 + 1))
        else:
            check(False, f"nothing is in a ring: {held}")
        say((1, 2))
        across.omniverb("vnic", "set", f"pid:{across.server.pid}", "--datapath", "forwarded")
        _until(across, port, lambda state: ("left", "the daemon has ended it") in state, "left")
        say((1, who_reads))
        check(ends[1].wait(10) == 0 and "sound" in process.written(said[1]),
              process.written(said[1]))
    finally:
        across.omniverb("vnic", "set", f"pid:{across.server.pid}", "--datapath", "direct")
        for one in ends:
            process.end(one)
        for one in said:
            one.close()


_OWING = staging.PROGRAMS / "sockets" / "unread_count_liar.py"


class Commands:
    """A server that does commands, and who puts them into its ring."""

    def __init__(self, across, port, how, call="epoll"):
        self.across, self.flags = across, across.folder / f"flags-{port}"
        self.flags.write_bytes(bytes(4096))
        self.said = [open(across.folder / f"{who}-{port}", "w+",  # noqa: SIM115
                          encoding="utf-8") for who in ("serves", "commands")]
        lines = [across.python(across.server, "-", _OWING, "serves", _ONE, port, call),
                 across.python(across.client, "-", _OWING, "commands", _ONE, port,
                               f"{across.socket}.sockets", self.flags, how,
                               *([] if call == "epoll" else ["wakes"]), with_library=False)]
        self.ends = []
        for line, file in zip(lines, self.said, strict=True):
            self.ends.append(process.start(line, stdout=file, stderr=file))
            process.until(lambda: process.listens(across.server.pid, port), 10, self.written)
        process.until(lambda: "going" in process.written(self.said[1]), 20, self.written)
        process.until(lambda: "did early 20" in process.written(self.said[0]), 20, self.written)

    def written(self):
        """What both have said."""
        return "\n".join(process.written(one) for one in self.said)

    def has_link(self):
        """Whether who serves has the memory of a link."""
        pid = [self.ends[0].pid, *process.descendants(self.ends[0].pid)][-1]
        return "/memfd:omniverb link" in pathlib.Path(f"/proc/{pid}/maps").read_text()

    def goes_on(self):
        """The link is over; whoever sends commands by it goes on."""
        # In place: the file is mapped.
        with open(self.flags, "r+b") as file:
            file.write(b"\1")
        process.until(lambda: "tried" in process.written(self.said[1]), 30, self.written)
        check(self.ends[0].poll() is None, self.written())
        check("did late" not in process.written(self.said[0]), self.written())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for one in self.ends:
            process.end(one)
        for one in self.said:
            one.close()


def _owing(across):
    """Once an operator has ended a link nothing comes by it, whatever its other end writes."""
    ways = [("head", "epoll"), ("fence", "epoll"), ("again", "epoll"), ("head", "recv"),
            ("fence", "read"), ("head", "recvmsg"), ("head", "poll"), ("fence", "select"),
            ("full", "epoll")]
    for place, (how, call) in enumerate(ways):
        with Commands(across, 7680 + place, how, call) as commands:
            try:
                across.omniverb("vnic", "set", f"pid:{across.server.pid}",
                                "--datapath", "forwarded")
                _until(across, 7680 + place,
                       lambda state: ("left", "the daemon has ended it") in state, "left")
                commands.goes_on()
            finally:
                across.omniverb("vnic", "set", f"pid:{across.server.pid}", "--datapath", "direct")


def _left_alone(across):
    """The same once there is no broker that could end it."""
    with Commands(across, 7675, "head") as commands:
        check(commands.has_link(), commands.written())
        everybody = process.descendants(across.daemon.pid)
        for one in reversed(everybody):
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        process.end(across.daemon)
        try:
            # Who serves hears of that by a tick, and gives the link back.
            process.until(lambda: not commands.has_link(), 30, commands.written)
            commands.goes_on()
        finally:
            across.daemon = across.start()


def _killed(across):
    """The survivor has had a beginning of the stream, and nothing else."""
    for number in range(3):
        with Talk(across, 7610 + number, 60, seed=number) as talk:
            _until(across, 7610 + number, _are_carried, "carried")
            os.kill([talk.client.pid, *process.descendants(talk.client.pid)][-1], signal.SIGKILL)
            check(talk.server.wait(10) == 0, talk.written())
            check("sound" in process.written(talk.said[0]), talk.written())


def _detached(across):
    """An operator disconnects a vNIC under load: what was carried goes back to the kernel without
    losing a byte, and the connection goes on there."""
    server, client = across.pair()
    with Talk(across, 7620, 5, ends=(server, client)) as talk:
        _until(across, 7620, _are_carried, "carried")
        across.omniverb("vnic", "disconnect", f"pid:{client.pid}")
        _until(across, 7620, lambda state: [one for one, _ in state] == ["left", "left"], "left")
        check(talk.client.poll() is None, talk.written())
        # Both have had all bytes, and the right ones.
        talk.end()


def _twice(across):
    """Two pairs of namespaces with the same addresses and ports, at the same time: each has its
    own bytes."""
    pairs = [across.pair(), across.pair()]
    with contextlib.ExitStack() as both:
        talks = [both.enter_context(Talk(across, 7630, 6, seed=40 + 3 * number, ends=ends,
                                         own=(_OTHER, 45000)))
                 for number, ends in enumerate(pairs)]
        process.until(lambda: [one for one, _ in across.state(7630)] == ["carried"] * 4, 20,
                      lambda: across.state(7630))
        for talk in talks:
            check(talk.end()[0] == 2, "not carried")


def _impostor(across):
    impostor(across, across.keep(Namespace()), 7640, 45001)


def impostor(across, liar, port, client_port):
    """Whoever gives himself both addresses has sockets of the right names, and gets nothing; nor
    is the other one harmed, whose peer has no library."""
    for address in (_ONE, _OTHER):
        liar.ip("addr", "add", f"{address}/32", "dev", "lo")
    with open(across.folder / "impostor", "w+", encoding="utf-8") as said:
        line = across.line(liar, "-", "impostor", _ONE, port, _OTHER, client_port,
                           f"{across.socket}.sockets", with_library=False)
        running = process.start(line, stdout=said, stderr=said)
        try:
            process.until(lambda: "waits" in process.written(said), 10,
                          lambda: process.written(said))
            with Talk(across, port, 2.5, own=(_OTHER, client_port),
                      libraries=(False, True)) as talk:
                check(talk.end() == (0, 0), "it was carried")
            check(running.wait(10) == 0, process.written(said))
            check("not linked" in process.written(said), process.written(said))
        finally:
            process.end(running)


def _translated(across):
    """With addresses that are translated on the way the names do not match: it stays TCP."""
    server, client = across.pair()
    try:
        client.nft("add table ip nat; "
                   "add chain ip nat out { type nat hook output priority -100; }; "
                   f"add rule ip nat out ip daddr 10.0.0.99 dnat to {_ONE}")
    except Exception as error:
        raise Skip(f"this kernel translates no addresses: {error}") from error
    with Talk(across, 7650, 1, ends=(server, client), to="10.0.0.99") as talk:
        _until(across, 7650, lambda state: len(state) == 2 and
               all("translated" in why for _, why in state), "alone")
        check(talk.end() == (0, 0), "it was carried")


def _load(across):
    """Under load the policy changes again and again, with new connections each time."""
    for number in range(60):
        with Talk(across, 7700 + number, 1 + number % 3, seed=number) as talk:
            time.sleep(number % 7 * 0.2)
            way = ["forwarded", "direct"][number % 2]
            across.omniverb("vnic", "set", f"pid:{across.client.pid}", "--datapath", way)
            talk.end()


_RAW = r"""
int main(void)
{
	long result;
	__asm__ volatile("movl $44, %%eax\n\tsyscall" : "=a"(result) : "D"(-1L) :
			 "rcx", "r11", "memory");
	return result == 0;
}
"""


def _doctor(across):
    """Each kind of program is told what stands in its way."""
    source = across.folder / "raw.c"
    source.write_text(_RAW)
    usual = across.folder / "usual.c"
    usual.write_text("int main(void) { return 0; }\n")
    for name, options, code in (("raw", [], source), ("usual", [], usual),
                                ("static", ["-static"], usual)):
        process.run(["gcc", "-O2", *options, "-o", across.folder / name, code], limit=60)
    shutil.copy(across.folder / "usual", across.folder / "other-user")
    os.chmod(across.folder / "other-user", 0o4755)
    script = across.folder / "script"
    script.write_text(f"#!/usr/bin/env {across.folder / 'static'}\n")
    for name, wanted in (("usual", "can be carried"), ("static", "linked statically"),
                         ("raw", "among its own instructions"),
                         ("other-user", "changes its user"),
                         ("script", f"its interpreter, {across.folder / 'static'}")):
        text = across.omniverb("doctor", across.folder / name, accept=(0, 1))
        found = [line for line in text.splitlines() if f"sockets of {across.folder / name}" in line]
        check(found and any(wanted in line for line in found), f"{name}: {text}")
    text = across.omniverb("doctor", accept=(0, 1))
    check("the daemon brings sockets together" in text, text)


def groups():
    """All wait."""
    cases = [Case("across.both", _both(_ONE, 7500), 90),
             Case("across.both6", _both(_ONE6, 7520), 90),
             Case("across.rests", _rests, 60),
             Case("across.owing", _owing, 150), Case("across.alone", _left_alone, 60),
             Case("across.policy", _policy, 60), Case("across.killed", _killed, 60),
             Case("across.computing", _computing, 60),
             Case("across.disconnected", _detached, 60), Case("across.twice", _twice, 60),
             Case("across.impostor", _impostor, 60),
             Case("across.translated", _translated, 60),
             Case("across.doctor", _doctor, 60),
             Case("across.load.long", _load, 600, slow=True)]
    return [Group("across", cases, Across, weight=WAITS)]
