"""Tests a virtual machine in a tenant with a virtual network, beside a container of the same."""

import contextlib
import json
import re
from types import SimpleNamespace

from harness.case import WAITS, Case, Group, check
from harness.virtual_machines import NAME, Both, Device, Lab, Machine

_ADDRESSES = {"machine": "192.168.7.1", "container": "192.168.7.2"}


class _VirtualLab(Lab):
    """The machine and a container are of the tenant blue. Another container is of red, and has the
    address of the first one there. Nothing leaves by the containers' networks."""

    def __init__(self, stage):
        self.keys = stage.folder("keys")
        super().__init__(stage, self._described)

    def _described(self, stage, host):
        for tenant, byte in (("blue", "c1"), ("red", "d2")):
            key = self.keys / tenant
            key.write_text(byte * 16)
            key.chmod(0o600)
            host.daemon.omniverb("tenant", "create", tenant, "--key-file", key,
                                 "--underlay", "127.0.0.1")
        host.daemon.omniverb("vnic", "create", f"vm-{NAME}", "--tenant", "blue",
                             "--address", _ADDRESSES["machine"])
        for tenant, place in (("blue", self.container), ("red", self.third)):
            path = place.namespace.mounted_at(self.keys / f"{tenant}-container")
            place.namespace.drop_udp(4791)
            host.daemon.omniverb("vnic", "create", f"{tenant}-container", "--tenant", tenant,
                                 "--address", _ADDRESSES["container"], "--attach", path)
        return Machine(stage, host)

    def gid(self, name):
        """The vGID of a described vNIC."""
        return json.loads(self.host.daemon.omniverb("vnic", "show", name, "--json"))["gid"]


def _device(lab):
    """Its only GID is its vGID."""
    for place, name in ((Device(lab.machine), f"vm-{NAME}"), (lab.container, "blue-container")):
        text = place.run("ibv_devinfo", "-v")
        check(re.findall(r"GID\[ *\d+\]:\s*([0-9a-f:.]+)", text) == [lab.gid(name)], text)


def _pingpong(program, path, *options):
    """Contents are right, from either to the other."""
    def run(lab):
        lab.host.daemon.omniverb("vnic", "set", "blue-container", "--datapath", path)
        for server, client in (("machine", "container"), ("container", "machine")):
            words = [f"ibv_{program}_pingpong", "-g", "0", "-n", "200", "-s", "1000", "-c",
                     *options]
            outcome = Both(lab.sides(server, client), words).finish(60)
            for text in (outcome.server, outcome.client):
                check("invalid data" not in text and "iters in" in text, text)
    return run


def _tenants(lab):
    """A peer of another tenant is not reached."""
    sides = SimpleNamespace(server=lab.third, client=Device(lab.machine))
    running = Both(sides, ["ibv_rc_pingpong", "-g", "0", "-n", "200"])
    status = running.client.wait(60)
    running.kill(running.server)
    check(status != 0 and "status" in running.text(1), f"{status}: {running.text(1)}")


def groups():
    """All with one machine."""
    cases = [Case("machines.virtual.device", _device, 120),
             *[Case(f"machines.virtual.{program} {path} {' '.join(options)}".rstrip(),
                    _pingpong(program, path, *options), 150)
               for path in ("direct", "forwarded")
               for program, *options in (["rc"], ["rc", "-e"], ["ud", "-e"])],
             Case("machines.virtual.tenants", _tenants, 120)]

    def lab(stage):
        return contextlib.closing(_VirtualLab(stage))
    return [Group("machines.virtual", cases, lab, weight=WAITS)]
