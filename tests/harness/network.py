"""Makes network namespaces for a test.

Nothing is added to the namespace we are in.

A namespace lives as long as a process in it: a `sleep` that dies with us. The bridge between
containers has a namespace of its own, like a small switch."""

import os

from . import process


class Namespace:
    """A network namespace with its loopback up."""

    def __init__(self):
        self.mounts = []
        self.holder = process.start(["unshare", "--net", "sleep", "86400"])
        ours = _identity("self")
        process.until(lambda: _identity(self.holder.pid) not in (None, ours), 20,
                      "a network namespace")
        self.ip("link", "set", "lo", "up")

    @property
    def pid(self):
        """A process in the namespace."""
        return self.holder.pid

    @property
    def path(self):
        """The file that names the namespace."""
        return f"/proc/{self.pid}/ns/net"

    def mounted_at(self, path):
        """`path`, which names the namespace, too, until that is closed: as `ip netns add` makes
        one. The daemon may not look at paths in /proc."""
        if path not in self.mounts:
            path.touch()
            process.run(["mount", "--bind", self.path, path])
            self.mounts.append(path)
        return path

    def enter(self):
        """The start of a command line that runs something in the namespace."""
        return ["nsenter", f"--net={self.path}", "--"]

    def ip(self, *words):
        """Runs `ip` in the namespace."""
        return process.run([*self.enter(), "ip", *words])

    def set(self, name, value):
        """Writes /proc/sys/net/NAME as the namespace sees it."""
        process.run([*self.enter(), "sh", "-c", 'echo "$1" > "/proc/sys/net/$0"', name, value])

    def drop_udp(self, port):
        """Drops UDP packets to `port` that arrive here, as a network policy would."""
        self.nft("add table inet test; "
                 "add chain inet test arriving { type filter hook input priority 0; }; "
                 f"add rule inet test arriving udp dport {port} drop")

    def drop_no_more(self):
        """Undoes drop_udp."""
        self.nft("delete table inet test")

    def nft(self, rules):
        """Runs `nft` in the namespace."""
        return process.run([*self.enter(), "nft", rules])

    def close(self):
        """Gives the namespace up."""
        for path in self.mounts:
            process.run(["umount", path])
        self.mounts = []
        process.end(self.holder)


class Switch(Namespace):
    """A bridge in a namespace of its own; namespaces are plugged into it."""

    def __init__(self, mtu=1500):
        super().__init__()
        self.ports, self.mtu = 0, mtu
        self.ip("link", "add", "bridge", "mtu", str(mtu), "type", "bridge")
        self.ip("link", "set", "bridge", "up")

    def plug(self, namespace, *addresses, name="eth0"):
        """Gives `namespace` an interface on this switch."""
        self.ports += 1
        port = f"port{self.ports}"
        self.ip("link", "add", port, "mtu", str(self.mtu), "type", "veth", "peer", "name", name,
                "mtu", str(self.mtu), "netns", str(namespace.pid))
        self.ip("link", "set", port, "master", "bridge", "up")
        for address in addresses:
            # An IPv6 address is usable at once only without duplicate address detection.
            at_once = ["nodad"] if ":" in address else []
            namespace.ip("addr", "add", address, "dev", name, *at_once)
        namespace.ip("link", "set", name, "up")
        return port

    def lose(self, percent, port=4791):
        """Loses this share of the UDP packets to `port` that pass the bridge, at random. With
        nftables, since not every kernel has netem."""
        self.nft(
            "add table bridge loss; "
            "add chain bridge loss passing { type filter hook forward priority 0; }; "
            f"add rule bridge loss passing udp dport {port} "
            f"numgen random mod 1000 < {round(percent * 10)} counter drop")

    def lost(self):
        """How many packets `lose` has lost."""
        rules = self.nft("list table bridge loss")
        return int(rules.split("counter packets ")[1].split()[0])

    def lose_nothing(self):
        """Undoes `lose`."""
        self.nft("delete table bridge loss")


class Cable:
    """A veth between two switches: both ends part of the bridges, or with addresses of their own
    for routers."""

    NAME = "uplink"

    def __init__(self, one, two, bridged=True):
        self.ends = (one, two)
        mtu = str(min(one.mtu, two.mtu))
        one.ip("link", "add", self.NAME, "mtu", mtu, "type", "veth", "peer", "name", self.NAME,
               "mtu", mtu, "netns", str(two.pid))
        for end in self.ends:
            if bridged:
                end.ip("link", "set", self.NAME, "master", "bridge")
            end.ip("link", "set", self.NAME, "up")

    def down(self):
        """Pulls it out."""
        self.ends[0].ip("link", "set", self.NAME, "down")

    def up(self):
        """Plugs it in again."""
        self.ends[0].ip("link", "set", self.NAME, "up")


def _identity(pid):
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return None
