"""Virtual networks over an IPv6 underlay, plain and encrypted: programs, groups, and addresses of
policies, which the daemon adds and which are the source of no other packet."""

import contextlib
import json

from harness import process
from harness.case import CROWDS, WAITS, Case, Failure, Group, check

from cases import virtual_networks
from cases.psp_encryption_between_hosts import begin, said

_NETWORK = "2001:db8:0:1::/64"
# Together they leave a forged vGID 40 bits to guess.
_PREFIXES = ["--underlay-prefix", _NETWORK, "--address-prefix", "192.168.7.0/24"]
_POLICY_ADDRESS = "2001:db8:0:1::f1"


@contextlib.contextmanager
def _plain(stage):
    scene = virtual_networks.TwoHosts(stage, words=_PREFIXES, underlay=_NETWORK)
    try:
        yield scene
    finally:
        scene.close()


@contextlib.contextmanager
def _encrypted(stage):
    words = [*_PREFIXES, "--encryption", "psp"]
    scene = virtual_networks.TwoHosts(stage, words=words, underlay=_NETWORK)
    try:
        yield scene
    finally:
        scene.close()


def _programs(scene):
    """All services, of two tenants at once; what passes is RoCE over IPv6."""
    watched = begin(scene.hosts, "watch", secret="ff" * 16)
    virtual_networks.far_programs(scene)
    seen = said(watched)
    check(seen["plain"] > 1000 and not seen["spis"], f"{seen}")


def _contents(scene):
    """The same and rdma_cm, encrypted: nothing that passes can be read."""
    watched = begin(scene.hosts, "watch", secret=b"rdma-ping-".hex())
    virtual_networks.far_programs(scene)
    virtual_networks.by_address(scene)
    seen = said(watched)
    check(seen["plain"] == 0 and seen["readable"] == 0, f"{seen}")
    check(sum(seen["spis"].values()) > 2000 and seen["messages"] >= 8, f"{seen}")


def _refused(scene):
    """Prefixes that would let forged names pass are refused, with what to do; so are addresses
    outside of them."""
    omniverb = scene.hosts.a.daemon.omniverb
    for words, text in (
            (("tenant", "set", "blue", "--address-prefix", "192.168.0.0/16"), "by 8 bits"),
            (("tenant", "set", "blue", "--underlay-prefix", "2001:db8::/48"), "56 bits or more"),
            (("tenant", "set", "blue", "--underlay", "fe80::1"), "no address of an interface"),
            (("vnic", "set", "blue2", "--underlay", "2001:db8:0:2::2"), "underlay_prefix"),
            (("vnic", "set", "blue1", "--address", "192.168.8.1"), "address_prefix")):
        try:
            omniverb(*words)
        except Failure as refusal:
            check(text in str(refusal), f"{words}: {refusal}")
        else:
            raise Failure(f"{words} was not refused")


def _addresses(host):
    found = json.loads(host.switch.ip("-json", "-6", "address", "show", "dev", "bridge"))
    return {address["local"]: address for one in found for address in one["addr_info"]}


def _policy_address(scene):
    """Packets of a policy's vNIC carry its address, which the daemon adds and takes back. Packets
    that name no source carry the host's own."""
    a, b = scene.hosts.a, scene.hosts.b
    a.daemon.omniverb("policy", "create", "gold", "--underlay", _POLICY_ADDRESS)
    a.daemon.omniverb("vnic", "set", "blue1", "--policy", "gold")
    try:
        process.until(lambda: _POLICY_ADDRESS in _addresses(a), 10, lambda: f"{_addresses(a)}")
        found = _addresses(a)[_POLICY_ADDRESS]
        check(found["prefixlen"] == 128 and found["preferred_life_time"] == 0, f"{found}")
        route = a.switch.ip("-6", "route", "get", "2001:db8:0:1::f2")
        check(f" src {scene.underlays[0]} " in route, route)
        shown = json.loads(a.daemon.omniverb("vnic", "show", "blue1", "--json"))
        check(shown["underlay"] == _POLICY_ADDRESS, f"{shown}")
        b.daemon.omniverb("vnic", "set", "blue1", "--underlay", _POLICY_ADDRESS,
                          "--qpn-offset", str(shown["qpn_offset"]))
        b.switch.nft("add table ip6 seen; "
                     "add chain ip6 seen input { type filter hook input priority 0; }; "
                     "add rule ip6 seen input udp dport { 1000, 4791 } "
                     f"ip6 saddr {_POLICY_ADDRESS} counter")
        virtual_networks.far_programs(scene)
        rules = b.switch.nft("list table ip6 seen")
        check(int(rules.split("counter packets ")[1].split()[0]) > 500, rules)
    finally:
        a.daemon.omniverb("policy", "set", "gold", "--underlay", "none")
    process.until(lambda: _POLICY_ADDRESS not in _addresses(a), 10, lambda: f"{_addresses(a)}")
    shown = json.loads(a.daemon.omniverb("vnic", "show", "blue1", "--json"))
    b.daemon.omniverb("vnic", "set", "blue1", "--underlay", scene.underlays[0],
                      "--qpn-offset", str(shown["qpn_offset"]))
    virtual_networks.far_programs(scene)


def groups():
    """Two hosts with two containers each; two tenants, over IPv6."""
    return [Group("ipv6_underlay", [
        Case("ipv6_underlay.programs", _programs, 300),
        Case("ipv6_underlay.by_address", virtual_networks.far_by_address, 200),
        Case("ipv6_underlay.across", virtual_networks.far_across, 100),
        Case("ipv6_underlay.groups", virtual_networks.far_groups, 200),
        Case("ipv6_underlay.refused", _refused, 60),
        Case("ipv6_underlay.policy_address", _policy_address, 200),
        Case("ipv6_underlay.large", virtual_networks.far_large, 100),
    ], _plain, weight=WAITS), Group("ipv6_underlay_encrypted", [
        Case("ipv6_underlay.contents", _contents, 300),
        Case("ipv6_underlay.encrypted_groups", virtual_networks.far_groups, 200),
        Case("ipv6_underlay.encrypted_large", virtual_networks.far_large, 150),
    ], _encrypted, weight=CROWDS)]
