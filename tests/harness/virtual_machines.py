"""Starts virtual machines that have a device of ours, and the hosts and containers around them."""

import contextlib
import glob
import json
import re
import shlex
from types import SimpleNamespace

from . import guest_image, process
from .case import check
from .client_server import Duet
from .rxe_guest import Guest, installed
from .simulated_host import Host
from .network import Cable

NAME = "web-1"
ADDRESS = "10.77.0.200"
ADDRESS_6 = "fd77::200"
_PROGRAMS = ["ibv_devices", "ibv_devinfo", "ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong",
             "ibv_xsrq_pingpong", "ib_send_bw", "ip", "rping", "ucmatose", "udaddy"]
# Of our own; and those that see what is presented, as a busybox without libraries does not.
_OURS = ["pair_window_mappings", "page_adoption", "dead_peer", "engine_memory_target",
         "mappings_kept_after_link_end",
         "quota_exhaustion"]
_SEEING = ["cat", "ls"]
_INSIDE = "/opt/omniverb"
OMNIVERB = f"{_INSIDE}/bin/omniverb"
_SOCKET = "/run/omniverb/omniverbd.sock"
# What two processes with a link have of a window.
LINKED = (2 * 512 + 648) << 10


def files(stage, more=()):
    """What the machine's file system has: the programs, and Omniverb as it would be installed."""
    found = installed([*_PROGRAMS, *more])
    found[OMNIVERB] = str(stage.dist / "bin" / "omniverb")
    for path in glob.glob(str(stage.dist / "lib" / "*.so*")):
        found[f"{_INSIDE}/lib/{path.rpartition('/')[2]}"] = path
    found[f"{_INSIDE}/libexec/rdma"] = found[OMNIVERB]
    found.update({f"/opt/programs/{name}": f"/bin/{name}" for name in _SEEING})
    # Demonstrations have none of our own.
    ours = [stage.programs / name for name in _OURS]
    found.update({f"/opt/programs/{path.name}": str(path) for path in ours if path.exists()})
    return found


class Machine(Guest):
    """A guest with a device of ours, started by `omniverb vm run`."""

    window, neighbours = "64m", 1
    # Windows that are plugged in while it runs, instead of those.
    most_neighbours = None
    agent_words = ()

    def __init__(self, stage, host, archive=None, name=NAME, address=ADDRESS, **options):
        self.daemon, self.name = host.daemon, name
        self.agents = None
        archive = archive or guest_image.archive(files(stage), guest_image.DAX, "dax")
        six = f"fd77::{address.rpartition('.')[2]}/64"
        super().__init__(host.switch, archive, f"{address}/24", [six],
                         before=self.command(stage), **options)

    def devices(self):
        # It may be booted afresh.
        return ["-action", "reboot=reset"]

    def command(self, stage):
        """What starts QEMU."""
        windows = ["--neighbours", str(self.neighbours)]
        if self.most_neighbours:
            windows = ["--most-neighbours", str(self.most_neighbours)]
        return ["env", f"OMNIVERB_SOCKET={self.daemon.socket}", stage.dist / "bin" / "omniverb",
                "vm", "run", self.name, "--window", self.window, *windows, "--pair-size", "4m",
                "--"]

    def _switch_on(self, line, limit):
        process.until(lambda: not self.row(), 10, "the name to be free")
        super()._switch_on(line, limit)

    def _set_up(self):
        self.agents = self.start_agent()

    def start_agent(self, *words):
        """Starts the agent, with these words or its usual ones, and waits until it listens."""
        words = words or self.agent_words
        agent = self.start(OMNIVERB, "agent", *words, stdout=self.output())
        process.until(lambda: agent.poll() is not None or self.listens_for_verbs(), 60,
                      "the agent")
        check(agent.poll() is None, self.said())
        process.until(self.has_device, 30, lambda: f"a device\n{self.said()}")
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
        # Warnings name it, too.
        text = self.verbs("ibv_devinfo", accept=range(256), limit=60)
        return re.search(r"^hca_id:\s+omv0$", text, re.MULTILINE) is not None

    def verbs(self, *argv, **options):
        """Runs a program in it that uses the device."""
        return self.run(OMNIVERB, "run", "--", *argv, **options)

    def row(self):
        """What `omniverb vm list` says of it."""
        found = json.loads(self.daemon.omniverb("vm", "list", "--json"))
        return next((row["machine"] for row in found if row["machine"]["name"] == self.name), None)


class Growing(Machine):
    """The same, with windows that are plugged in while it runs: it has memory for three, and is to
    have four. One of them it shares with the other of its kind."""

    most_neighbours = 4

    def __init__(self, stage, host, memory="512,maxmem=588M", **options):
        super().__init__(stage, host, memory=memory, **options)


class Plain(Machine):
    """The same, started by itself, with the options that were printed."""

    place = None

    def command(self, stage):
        return []

    def _switch_on(self, line, limit):
        process.until(lambda: not self.row(), 10, "the name to be free")
        words = self.daemon.omniverb("vm", "args", NAME, "--window", "64m", "--memory", "2g")
        check(words.count("\n") == 1, words)
        self.place = re.search(r"path=([^ ,]*)/port,", words).group(1)
        check(self.row()["used"] == 0, "it is not attached")
        Guest._switch_on(self, [*line, *shlex.split(words)], limit)


class Stranger(Machine):
    """The machine before it has a device of ours, when rdma_rxe has the port of RoCE v2."""

    def _set_up(self):
        """Neither yet."""

    def rxe(self):
        """Gives it Linux's device."""
        self.run("rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "eth0")
        process.until(lambda: "PORT_ACTIVE" in self.run("ibv_devinfo"), 10, "an active rxe0")

    def omniverb(self):
        """Gives it ours instead. The module has the UDP port for as long as it is there."""
        self.run("rdma", "link", "del", "rxe0")
        self.run("busybox", "rmmod", "rdma_rxe")
        self.agents = self.start_agent()


class Device:
    """The machine as a place: its programs have the device."""

    def __init__(self, machine):
        self.machine, self.address = machine, machine.address

    def start(self, *argv, stdout=None, stderr=None):
        """Starts a program; both its outputs go to the file `stdout`."""
        del stderr
        return self.machine.start(OMNIVERB, "run", "--", *argv, stdout=stdout)

    def run(self, *argv, **options):
        """Runs a program and returns its output."""
        return self.machine.verbs(*argv, **options)

    def listens(self, port):
        """Does anything listen on TCP `port`?"""
        return self.machine.listens(port)


# Both sides of a running program, of which either may be in the machine.
Both = Duet


class Lab:
    """A host with a machine and two containers on one bridge, and another host with a container."""

    def __init__(self, stage, kind=Machine):
        self.stage, self.host, self.other = stage, Host(stage, "machines"), None
        # Bytes of pair windows that do not come back.
        self.left = 0
        try:
            self.container, self.third = self.host.add(1), self.host.add(3)
            self.other = Host(stage, "elsewhere")
            self.cable = Cable(self.host.switch, self.other.switch)
            self.far = self.other.add(2)
            self.machine = self.host.keep(kind(stage, self.host))
        except BaseException:
            self.close()
            raise

    def sides(self, server, client):
        """Who is server and who is client, by the names of places."""
        places = self.places()
        return SimpleNamespace(server=places[server], client=places[client])

    def places(self):
        """Where programs run, by name."""
        return {"machine": Device(self.machine), "container": self.container, "far": self.far,
                "third": self.third}

    def close(self):
        """Ends everything."""
        for host in (self.other, self.host):
            if host:
                host.close()


def _processes():
    """Folders in /proc, and the words that processes were started with."""
    for folder in glob.glob("/proc/[0-9]*"):
        with contextlib.suppress(OSError), open(f"{folder}/cmdline", "rb") as file:
            yield folder, file.read().split(b"\0")


def supervisors(daemon):
    """Folders in /proc of those that keep machines attached to this daemon."""
    named = f"OMNIVERB_SOCKET={daemon.socket}".encode()
    found = []
    for folder, words in _processes():
        if words[1:3] == [b"vm", b"keep"]:
            with contextlib.suppress(OSError), open(f"{folder}/environ", "rb") as file:
                found += [folder] if named in file.read().split(b"\0") else []
    return found


def started(daemon, what):
    """Folders in /proc of processes of this kind that supervisors have started."""
    parents = [folder.rpartition("/")[2] for folder in supervisors(daemon)]
    found = []
    for folder, words in _processes():
        if words[1:3] == [b"vm", what.encode()]:
            with contextlib.suppress(OSError), open(f"{folder}/stat", encoding="utf-8") as file:
                found += [folder] if file.read().rpartition(")")[2].split()[1] in parents else []
    return found


def proxies(daemon):
    """Folders in /proc of those that take apart what machines say."""
    return started(daemon, "carry")
