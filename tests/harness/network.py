"""Network namespaces for a test. Nothing is added to the namespace we are in.

A namespace lives as long as a process in it: a `sleep` that dies with us. The bridge between
containers has a namespace of its own, like a small switch.
"""

import os

from . import process


class Namespace:
    """A network namespace with its loopback up."""

    def __init__(self):
        self.holder = process.start(["unshare", "--net", "sleep", "86400"])
        ours = _identity("self")
        process.until(lambda: _identity(self.holder.pid) not in (None, ours), 5,
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

    def enter(self):
        """The start of a command line that runs something in the namespace."""
        return ["nsenter", f"--net={self.path}", "--"]

    def ip(self, *words):
        """Runs `ip` in the namespace."""
        return process.run([*self.enter(), "ip", *words])

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
        process.end(self.holder)


class Switch(Namespace):
    """A bridge in a namespace of its own; namespaces are plugged into it."""

    def __init__(self):
        super().__init__()
        self.ports = 0
        self.ip("link", "add", "bridge", "type", "bridge")
        self.ip("link", "set", "bridge", "up")

    def plug(self, namespace, address, name="eth0"):
        """Gives `namespace` an interface on this switch."""
        self.ports += 1
        port = f"port{self.ports}"
        self.ip("link", "add", port, "type", "veth", "peer", "name", name, "netns",
                str(namespace.pid))
        self.ip("link", "set", port, "master", "bridge", "up")
        namespace.ip("addr", "add", address, "dev", name)
        namespace.ip("link", "set", name, "up")


def _identity(pid):
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return None
