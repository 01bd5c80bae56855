"""Tests that tenants get on while another attacks: a table of attacks
(tests/programs/run_attack.py).

An attack goes on until each of the others has done what it does a few times since it took hold, or
until that is taken for never. So whoever is held up for as long as somebody attacks, or for some
seconds each time, is found: all that was found wrong so far was of that kind. How long the others
took at worst is printed (`tests/run -rP liveness`; in a table by `make bench`), and nothing is
demanded of it.
Who finds a new way to hold others up adds a row.

A kernel with SO_PASSRIGHTS (Linux 6.16) lets nobody send the daemon a descriptor with a call. Rows
about those are run twice: so, and with a daemon that does without, where some must get through."""

import contextlib
import os
import re
import stat
import subprocess
import time
from dataclasses import dataclass
from types import SimpleNamespace

from harness import process
from harness.case import ALONE, CROWDS, Case, Failure, Group, check
from harness.simulated_host import Hosts
from harness.attack_observers import Observers
from harness.unprivileged_daemon import UID, Place

# How often each of these has to get on, and after how many seconds it is taken for never:
#   fresh       a new process opens the device, makes and ends a queue pair
#   existing    a process makes and ends queue pairs and regions
#   namespaces  the same as "fresh", in a network namespace of its own each time
#   wire        a message to another host and its answer
#   sleeping    the same between two containers of a host, both asleep
#   polling     the same, both polling
_TURNS, _NEVER = 10, 30


@dataclass
class Row:
    """An attack: what runs, where, and for how many seconds before the others are looked at (none:
    until it ends by itself)."""

    name: str
    argv: tuple
    where: str = "container"  # or "user": an unprivileged user of the host
    seconds: float = 1.0
    title: str = ""
    sends: bool = False  # descriptors
    alone: bool = False  # what it holds is a processor


def _python(name, *words, **options):
    return Row(name, ("/usr/bin/python3", "/opt/programs/run_attack.py", name, "SECONDS", *words),
               **options)


_TO_VICTIM = ("10.77.0.4", "10.77.0.1", "VICTIM")
_TO_ENGINE = ("10.77.0.4", "10.77.0.2", "17")

TABLE = [
    Row("nothing", ("/bin/sh", "-c", "read enough; echo 1")),
    _python("other_descriptors", sends=True),
    _python("nonsense", sends=True),
    _python("many_namespaces", where="user"),
    _python("port_held", where="user"),
    _python("connections_come_and_go"),
    _python("answers_not_read"),
    _python("ten_thousand_sockets", seconds=6),
    _python("status_in_a_loop", seconds=6),
    _python("huge_files", sends=True),
    Row("peers_die", ("/opt/programs/killed_peers", "peer_dies", "400", "11"), seconds=0),
    Row("hostile_peers", ("/opt/programs/hostile_peer", "peer", "20", "5"), seconds=0),
    _python("strange_handshakes", "10.77.0.1", "10.77.0.2", "10.77.0.3", seconds=3),
    _python("datagram_links_come_and_go", *_TO_VICTIM),
    _python("datagram_links_pile_up", *_TO_VICTIM, seconds=6),
    _python("owners_asleep", "10.77.0.4"),
    _python("huge_grants", "10.77.0.4"),
    _python("lingering_before_hello", sends=True),
    _python("lingering_with_hello", sends=True),
    _python("lingering_in_the_backlog", sends=True),
    _python("lingering_with_calls", sends=True),
    _python("lingering_over_links", *_TO_VICTIM),
    _python("lingering_over_links", *_TO_ENGINE, title="_engine"),
    _python("silent_files", "FUSE", where="user", sends=True),
    _python("silent_namespaces", where="user", seconds=8),
    _python("port_held", where="user", title="_again"),
    _python("bells_without_end", *_TO_VICTIM),
    _python("bells_without_end", *_TO_ENGINE, title="_engine"),
    _python("waiters_pile_up", *_TO_VICTIM),
    _python("waiters_pile_up", *_TO_ENGINE, title="_engine"),
    # The kernel does not give the processor back while it goes through all watches, so programs
    # without a watch wait, too, for a second. The lock itself is held for ten.
    _python("nested_polls", *_TO_ENGINE, seconds=8, alone=True),
]


class _Scene:
    """Two hosts; on the first an attacker, and two containers whose programs talk to each other and
    to one on the second."""

    def __init__(self, stage, *arguments):
        self.observers, self.arguments = Observers(), arguments
        self.fuse = stage.folder("devices") / "fuse"  # most machines let everybody open it
        os.mknod(self.fuse, stat.S_IFCHR, os.makedev(10, 229))
        os.chmod(self.fuse, 0o666)
        self.hosts = Hosts(stage, arguments=(arguments, arguments))
        try:
            a = self.hosts.a
            self.daemon = a.daemon
            other, self.container = a.add(3), a.add(4)
            user = SimpleNamespace(stage=stage, uid=UID, namespace=a.plug(5), daemon=a.daemon)
            self.user = Place(user, "10.77.0.5")
            server = self.hosts.server
            here = a.bare(server.namespace, server.address)
            patience = {"TEST_TIMEOUT": 18}
            beside = a.bare(server.namespace, server.address, **patience,
                            TEST_PEERS=a.bare(other.namespace, other.address).at())
            for name in ("fresh", "existing", "namespaces"):
                self.observers.add(name, here, name)
            self.observers.add("wire", self.hosts.apart(**patience), "polled")
            self.observers.add("polling", beside, "polled")
            self.victim = self.observers.add("sleeping", beside, "slept_for").number
        except BaseException:
            self.close()
            raise

    def attack(self, row):
        """Starts it."""
        meant = {"VICTIM": str(self.victim), "FUSE": str(self.fuse)}
        longest = str(row.seconds + 2 * _NEVER)
        words = [meant.get(word, word).replace("SECONDS", longest) for word in row.argv]
        place = {"container": self.container, "user": self.user}[row.where]
        return place.start(*words, plain=row.argv[0].startswith(("/usr", "/bin")),
                           stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                           stderr=subprocess.STDOUT, text=True)

    def close(self):
        """Ends everything."""
        self.observers.close()
        self.hosts.close()


@contextlib.contextmanager
def scene(stage):
    """Everybody, with daemons as they are."""
    with contextlib.closing(_Scene(stage)) as one:
        yield one


@contextlib.contextmanager
def _without_refusal(stage):
    with contextlib.closing(_Scene(stage, "--no-refusal")) as one:
        yield one


def under_attack(place, row):
    """Attacks, and sees that the others get on."""
    place.observers.calm()
    attacker = place.attack(row)
    if row.seconds:
        time.sleep(row.seconds)
        if attacker.poll() is not None:
            raise Failure(f"the attack has ended: {process.finish(attacker, 1)}")
    place.observers.get_on(_TURNS, _NEVER)
    text = process.finish(attacker, 60)
    print(text)
    place.observers.get_on(_TURNS, _NEVER)  # what it leaves behind is part of it
    print(place.observers.summary())
    check(attacker.returncode == 0 and (not row.seconds or _did(text, place) > 0),
          f"the attack did nothing: {process.how(attacker.returncode)}\n{text}")


def _case(row, title=""):
    def run(place):
        held = process.descriptors(place.daemon.pid)
        under_attack(place, row)
        process.until(lambda: process.descriptors(place.daemon.pid) <= held + 20, 15,
                      lambda: f"{held} descriptors as before, "
                              f"now {process.descriptors(place.daemon.pid)}")
    return Case(f"liveness.{row.name}{row.title}{title}", run, row.seconds + 2 * _NEVER + 100)


def _did(text, place):
    """How often an attack did its thing. What the kernel refuses counts, where it is to refuse."""
    did = re.search(r"(\d+)(?:.*, (\d+) refused)?", text)
    if not did:
        return 0
    return int(did[1]) - (int(did[2] or 0) if place.arguments else 0)


def groups():
    """A scene for most rows, one for those that bear nothing beside them, and one whose daemons do
    not have the kernel refuse descriptors."""
    beside = [_case(row) for row in TABLE if not row.alone]
    alone = [_case(row) for row in TABLE if row.alone]
    sending = [_case(row, "_not_refused") for row in TABLE if row.sends]
    return [Group("liveness", beside, scene, weight=CROWDS),
            Group("liveness alone", alone, scene, weight=ALONE),
            Group("liveness without refusal", sending, _without_refusal, weight=CROWDS)]
