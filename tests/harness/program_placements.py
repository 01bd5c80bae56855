"""Places each program in virtual machines, containers, host processes and other hosts.

The machines' root is the host's, read-only and by 9p, with what they write on top of it in their
memory (tests/guest/init.c): so every program that is installed here runs in them as it is."""

import contextlib

from . import guest_image
from .virtual_machines import Device, Lab, Machine
from .client_server import gid_index
from .simulated_host import Host

_TAG = "hostroot"
# Who is a machine's peer.
PEERS = ("machine", "container", "process", "wire")
_PLACES = {"machine": "another", "wire": "far"}


def root_words(stage):
    """What a kernel is told whose first process is to enter the root of this host."""
    folders = {stage.dist: "/opt/omniverb", stage.programs: "/opt/programs"}
    shown = ",".join(f"{here}={there}" for here, there in folders.items())
    return f"host_root={_TAG} host_folders={shown}"


# Where that is, in QEMU's words.
ROOT_DEVICES = ("-fsdev", "local,id=root,path=/,security_model=none,readonly=on,multidevs=remap",
                "-device", f"virtio-9p-pci,fsdev=root,mount_tag={_TAG}")


class Rooted(Machine):
    """A machine with the programs of this host."""

    window, neighbours = "256m", 2

    def __init__(self, stage, host, **options):
        self.kernel_words = root_words(stage)
        options.setdefault("memory", 1024)
        super().__init__(stage, host, guest_image.archive({},
                                             (*guest_image.DAX, *guest_image.ROOT), "rooted"),
                         **options)

    def devices(self):
        return ROOT_DEVICES


@contextlib.contextmanager
def alone(stage, **options):
    """A machine that has a host for itself."""
    host = Host(stage, "alone")
    try:
        yield host.keep(Rooted(stage, host, **options))
    finally:
        host.close()


class Peers(Lab):
    """A host with two machines, a container and a process beside it, and another host."""

    def __init__(self, stage):
        super().__init__(stage, Rooted)
        self.indices = {}
        try:
            self.another = self.host.keep(Rooted(stage, self.host, name="web-2",
                                                 address="10.77.0.201"))
            namespace = self.host.plug(4)
            self.process = self.host.bare(namespace, "10.77.0.4")
            self.daemons = (self.host.daemon, self.other.daemon)
        except BaseException:
            self.close()
            raise

    def places(self):
        return {**super().places(), "process": self.process, "another": Device(self.another)}

    def pair(self, peer, machine_serves=True):
        """The machine and one of PEERS, one of them the server and the other the client: as the
        fixtures of other cases are."""
        names = ("machine", _PLACES.get(peer, peer))
        pair = self.sides(*names if machine_serves else reversed(names))
        pair.stage, pair.daemon, pair.daemons = self.stage, self.host.daemon, self.daemons
        pair.index = self.index
        return pair

    def index(self, place):
        """The index of a place's first IPv4 GID."""
        if place.address not in self.indices:
            self.indices[place.address] = gid_index(place)
        return self.indices[place.address]
