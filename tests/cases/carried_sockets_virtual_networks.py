"""Tests sockets carried between namespaces of one virtual network.

Two tenants with virtual networks have the same addresses, in networks of their own. What the kernel
connects is carried within a tenant, by the addresses that the operator has described, and nowhere
else."""

import contextlib

from cases.carried_sockets_across_namespaces import Across, Talk, impostor
from cases.light_across_namespaces import short
from harness import process
from harness.case import WAITS, Case, Group, check
from harness.network import Namespace, Switch

_ONE, _OTHER, _THIRD, _UNKNOWN = "10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.9"


class _Networks(Across):
    """Of each tenant two namespaces on a switch: the server has `_ONE`, the client `_OTHER`."""

    def __init__(self, stage):
        self.switches = []
        super().__init__(stage)
        try:
            self.pairs = {"blue": (self.server, self.client), "red": self.pair()}
            for tenant, ends in self.pairs.items():
                key = self.folder / f"{tenant}.key"
                key.write_text(("b1" if tenant == "blue" else "ed") * 16)
                key.chmod(0o600)
                self.omniverb("tenant", "create", tenant, "--key-file", key,
                              "--underlay", "127.0.0.1")
                for address, namespace in zip((_ONE, _OTHER), ends, strict=True):
                    self.describe(tenant, namespace, address)
        except BaseException:
            self.close()
            raise

    def pair(self):
        switch = self.keep(Switch())
        self.switches.append(switch)
        return self.plug(switch, _ONE), self.plug(switch, _OTHER)

    def describe(self, tenant, namespace, address):
        """A namespace is a vNIC of a tenant, with this virtual address."""
        name = f"{tenant}-{address.rpartition('.')[2]}"
        path = namespace.mounted_at(self.folder / name)
        self.omniverb("vnic", "create", name, "--tenant", tenant, "--address", address,
                      "--attach", path)


class _LightNetworks(_Networks):
    """All connections are light that can be."""

    settings = ""
    told = ("OMNIVERB_SOCKETS=light",)


def _both(across):
    """Connections of both tenants with the same addresses and ports, at the same time: all are
    carried, and each has its own bytes."""
    with contextlib.ExitStack() as stack:
        talks = [stack.enter_context(Talk(across, 7800, 6, seed=40 + 3 * number, ends=ends,
                                          own=(_OTHER, 45000)))
                 for number, ends in enumerate(across.pairs.values())]
        process.until(lambda: [one for one, _ in across.state(7800)] == ["carried"] * 4, 20,
                      lambda: across.state(7800))
        for talk in talks:
            links, count = talk.end()
            check(links == 2 and count > 100_000, f"{links} links, {count} bytes")


def _across(across):
    """The kernel's network connects the tenants: bytes stay with it."""
    stranger = across.plug(across.switches[0], _THIRD)
    across.describe("red", stranger, _THIRD)
    with Talk(across, 7810, 3, ends=(across.server, stranger), own=(_THIRD, 45010)) as talk:
        process.until(lambda: len(across.state(7810)) == 2, 20, lambda: across.state(7810))
        check(talk.end() == (0, 0), "it was carried")


def _undescribed(across):
    """An address that is not the vNIC's in its virtual network proves nothing."""
    across.server.ip("addr", "add", f"{_UNKNOWN}/24", "dev", "eth0")
    with Talk(across, 7820, 3, address=_UNKNOWN, own=(_OTHER, 45020)) as talk:
        process.until(lambda: len(across.state(7820)) == 2, 20, lambda: across.state(7820))
        check(talk.end() == (0, 0), "it was carried")


def _impostor(across):
    """Neither a vNIC of the tenant with another address nor one of the other tenant with this one
    takes the place of an end that has no library."""
    for number, (tenant, address) in enumerate((("blue", _THIRD), ("red", "10.0.0.4"))):
        liar = across.keep(Namespace())
        across.describe(tenant, liar, address)
        impostor(across, liar, 7830 + number, 45030 + number)


def _policy(across):
    """What is carried goes back to the kernel once an administrator wants to see it."""
    with Talk(across, 7840, 5) as talk:
        process.until(lambda: [one for one, _ in across.state(7840)] == ["carried"] * 2, 20,
                      lambda: across.state(7840))
        across.omniverb("vnic", "set", "blue-1", "--datapath", "forwarded")
        process.until(lambda: [one for one, _ in across.state(7840)] == ["left"] * 2, 20,
                      lambda: across.state(7840))
        check(talk.end()[0] == 2, "not carried")
    across.omniverb("vnic", "set", "blue-1", "--datapath", "direct")


def groups():
    """All wait."""
    return [Group("across.virtual", [
        Case("across.virtual.both", _both, 60),
        Case("across.virtual.tenants", _across, 60),
        Case("across.virtual.undescribed", _undescribed, 60),
        Case("across.virtual.impostor", _impostor, 90),
        Case("across.virtual.policy", _policy, 60),
    ], _Networks, weight=WAITS), Group("light.across.virtual", [
        Case("light.across.virtual", short(_ONE, 7850), 90),
    ], _LightNetworks, weight=WAITS)]
