"""Virtual machines that have a device: stock QEMU, stock kernel, the same library.

One machine boots for all cases, in their order; the last ones take its device away.
"""

import contextlib
import glob
import json
import os
import re
import subprocess
from types import SimpleNamespace

from harness import image, process
from harness.case import WAITS, Case, Group, check
from harness.duet import gid_index
from harness.guest import Guest, GuestDuet, installed
from harness.host import Host
from harness.network import Cable

_NAME = "web-1"
_ADDRESS = "10.77.0.200"
_PROGRAMS = ["ibv_devinfo", "ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong", "ip"]
_INSIDE = "/opt/omniverb"
_OMNIVERB = f"{_INSIDE}/bin/omniverb"
_SOCKET = "/run/omniverb/omniverbd.sock"


def _files(stage):
    """What the machine's file system has: the programs, and Omniverb as it would be installed."""
    found = installed(_PROGRAMS)
    found[_OMNIVERB] = str(stage.dist / "bin" / "omniverb")
    for path in glob.glob(str(stage.dist / "lib" / "*.so*")):
        found[f"{_INSIDE}/lib/{path.rpartition('/')[2]}"] = path
    return found


class Machine(Guest):
    """A guest with a device of ours."""

    def __init__(self, stage, host):
        self.daemon = host.daemon
        self.agents = None
        self.program = os.path.realpath(stage.dist / "bin" / "omniverb")
        before = ["env", f"OMNIVERB_SOCKET={host.daemon.socket}", stage.dist / "bin" / "omniverb",
                  "vm", "run", _NAME, "--window", "64m", "--"]
        archive = image.archive(_files(stage), image.DAX, "dax")
        super().__init__(host.switch, archive, f"{_ADDRESS}/24", before=before)

    def _switch_on(self, line, limit):
        process.until(lambda: not self.row(), 10, "the name to be free")
        super()._switch_on(line, limit)

    def _set_up(self):
        self.agents = self.start_agent()

    def start_agent(self):
        """Starts the agent and waits until it listens."""
        agent = self.start(_OMNIVERB, "agent", stdout=self.output())
        process.until(lambda: agent.poll() is not None or self.listens_for_verbs(), 60,
                      "the agent")
        check(agent.poll() is None, self.said())
        check(self.has_device(), self.said())
        return agent

    def output(self):
        """Where the agent's words go."""
        return open(f"{self.folder.name}/agent", "w+", encoding="utf-8")  # noqa: SIM115

    def said(self):
        """What the agent said."""
        with open(f"{self.folder.name}/agent", encoding="utf-8") as file:
            return file.read()

    def listens_for_verbs(self):
        """Whether somebody listens where programs look for a daemon."""
        return _SOCKET in self.run("cat", "/proc/net/unix")

    def has_device(self):
        """Whether programs in it find one."""
        return "omv0" in self.verbs("ibv_devinfo", accept=range(256), limit=60)

    def verbs(self, *argv, **options):
        """Runs a program in it that uses the device."""
        return self.run(_OMNIVERB, "run", "--", *argv, **options)

    def row(self):
        """What `omniverb vm list` says of it."""
        found = json.loads(self.daemon.omniverb("vm", "list", "--json"))
        return next((row["machine"] for row in found if row["machine"]["name"] == _NAME), None)


class Device:
    """The machine as a place: its programs have the device."""

    def __init__(self, machine):
        self.machine, self.address = machine, machine.address

    def start(self, *argv, stdout=None, stderr=None):
        """Starts a program; both its outputs go to the file `stdout`."""
        del stderr
        return self.machine.start(_OMNIVERB, "run", "--", *argv, stdout=stdout)

    def run(self, *argv, **options):
        """Runs a program and returns its output."""
        return self.machine.verbs(*argv, **options)

    def listens(self, port):
        """Does anything listen on TCP `port`?"""
        return self.machine.listens(port)


class Both(GuestDuet):
    """Both sides of a running program, of which either may be in the machine."""

    def listens(self):
        server = self.pair.server
        return server.listens(self.port) if isinstance(server, Device) else super().listens()


class Lab:
    """A host with a machine and a container on one bridge, and another host with a container."""

    def __init__(self, stage):
        self.host, self.other = Host(stage, "machines"), None
        try:
            self.container = self.host.add(1)
            self.other = Host(stage, "elsewhere")
            self.cable = Cable(self.host.switch, self.other.switch)
            self.far = self.other.add(2)
            self.machine = self.host.keep(Machine(stage, self.host))
        except BaseException:
            self.close()
            raise

    def sides(self, server, client):
        """Who is server and who is client, by the names of places."""
        places = {"machine": Device(self.machine), "container": self.container, "far": self.far}
        return SimpleNamespace(server=places[server], client=places[client])

    def close(self):
        """Ends everything."""
        for host in (self.other, self.host):
            if host:
                host.close()


def _lab(stage):
    return contextlib.closing(Lab(stage))


def _device(lab):
    """The device is there, and its GID is the machine's address."""
    text = lab.machine.verbs("ibv_devinfo", "-v")
    check("omv0" in text and "PORT_ACTIVE" in text, text)
    check(re.search(rf"GID\[.*::ffff:{re.escape(_ADDRESS)}", text), text)
    shown = lab.host.daemon.omniverb("vm", "show", _NAME)
    check(f"vm-{_NAME}" in shown and _ADDRESS in shown, shown)


def _window(lab):
    """What processes share comes out of the window, and goes back to it."""
    row = lab.machine.row()
    check(row["used"] == 0 and row["sessions"] == 0, f"{row}")
    server = lab.machine.start(_OMNIVERB, "run", "--", "ibv_rc_pingpong", stdout=None)
    try:
        process.until(lambda: lab.machine.listens(18515), 60, "a server")
        row = lab.machine.row()
        check(row["used"] >= 512 << 10 and row["sessions"] == 1, f"{row}")
    finally:
        server.kill()
    process.until(lambda: lab.machine.row()["used"] == 0, 10, "the pieces to come back")


def _pingpong(program, *options):
    """Two processes of the machine."""
    def run(lab):
        command = [_OMNIVERB, "run", "--", f"ibv_{program}_pingpong", "-g", "0", "-n", "200",
                   *options]
        with open(f"{lab.machine.folder.name}/server", "w+", encoding="utf-8") as said:
            server = lab.machine.start(*command, stdout=said)
            process.until(lambda: server.poll() is not None or lab.machine.listens(18515), 60,
                          "a server")
            text = lab.machine.run(*command, "127.0.0.1", limit=60)
            check(server.wait(20) == 0 and "iters in" in text, text)
    return run


def _across(server, client, program, *options):
    """A process of the machine and one outside."""
    def run(lab):
        sides = lab.sides(server, client)
        lines = [[f"ibv_{program}_pingpong", "-g", gid_index(place), "-n", 200, *options]
                 for place in (sides.client, sides.server)]
        outcome = Both(sides, lines[0], server_argv=lines[1]).finish(60)
        for text in (outcome.server, outcome.client):
            check("invalid data" not in text and "iters in" in text, text)
    return run


def _agent_again(lab):
    """An agent is killed, and another goes on."""
    lab.machine.agents.kill()
    lab.machine.agents = lab.machine.start_agent()
    check(lab.machine.row()["sessions"] <= 1, f"{lab.machine.row()}")
    _device(lab)


def _porter(lab):
    """The process that takes apart what a machine says is nobody, and has nothing."""
    found = []
    for folder in glob.glob("/proc/[0-9]*"):
        try:
            ours = os.readlink(f"{folder}/exe") == lab.machine.program
            with open(f"{folder}/cmdline", "rb") as file:
                words = file.read().split(b"\0")
            with open(f"{folder}/status", encoding="utf-8") as file:
                status = dict(line.split(":\t") for line in file.read().splitlines()
                              if ":\t" in line)
        except OSError:
            continue
        if words[1:3] == [b"vm", b"carry"] and ours:
            found.append((folder, status))
    check(len(found) == 1, f"{found}")
    folder, status = found[0]
    users = status["Uid"].split() + status["Gid"].split()
    check(min(map(int, users)) >= 0x70000000, f"{users}")
    check(not status["Groups"].split(), status["Groups"])
    check(int(status["CapPrm"], 16) == 0 and status["NoNewPrivs"] == "1", f"{status}")
    files = sorted(os.readlink(path) for path in glob.glob(f"{folder}/fd/*"))
    check(files[:3] == ["/dev/null"] * 3, f"{files}")
    # The port, the door, and those of sessions.
    check(len(files) >= 5 and all(name.startswith("socket:") for name in files[3:]), f"{files}")


def _detached(lab):
    """Who takes the device away takes it from all who come, at once."""
    server = lab.machine.start(_OMNIVERB, "run", "--", "ibv_rc_pingpong", stdout=None)
    try:
        process.until(lambda: lab.machine.listens(18515), 60, "a server")
        lab.host.daemon.omniverb("vm", "detach", _NAME)
        check(lab.machine.row() is None, "it is there")
        check(not lab.machine.has_device(), "a device without a host")
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.kill()


_ACROSS = [("machine", "container", "rc", "-c"), ("machine", "container", "rc", "-c", "-e"),
           ("machine", "container", "ud", "-e"), ("container", "machine", "rc", "-c", "-e"),
           ("container", "machine", "uc", "-c"), ("container", "machine", "ud", "-c"),
           ("machine", "far", "rc", "-c", "-e"), ("far", "machine", "rc", "-c"),
           ("far", "machine", "ud", "-c", "-e")]


def groups():
    """All with one machine."""
    cases = [Case("machines.device", _device, 120),
             Case("machines.window", _window, 120),
             Case("machines.ibv_rc_pingpong", _pingpong("rc"), 180),
             Case("machines.ibv_rc_pingpong -e", _pingpong("rc", "-e"), 180),
             Case("machines.ibv_ud_pingpong -e", _pingpong("ud", "-e"), 180),
             *[Case(f"machines.{' '.join([f'ibv_{program}_pingpong', *options])}, "
                    f"{client} to {server}", _across(server, client, program, *options), 120)
               for server, client, program, *options in _ACROSS],
             Case("machines.porter", _porter, 60),
             Case("machines.agent killed", _agent_again, 120),
             Case("machines.detached", _detached, 120)]
    return [Group("machines", cases, _lab, weight=WAITS)]
