"""Makes hosts: network namespaces with a bridge, a daemon and containers each.

Two of them are joined by a veth.

What programs need besides containers: `Bare`, a place that shares a container's network but not
its limits, from which a test program may send its second process to another host (see `spawn` in
programs/common.c)."""

import subprocess
import sys
from types import SimpleNamespace

from . import process
from .case import Failure
from .containers import Container
from .daemon import Daemon, environment
from .network import Cable, Namespace, Switch
from .unprivileged_daemon import Place


class Host:
    """One host: `switch` is its own namespace, in which its daemon runs."""

    def __init__(self, stage, name, number=0, mtu=1500, arguments=()):
        self.stage, self.name, self.number = stage, name, number
        self.parts = []
        try:
            self.switch = self.keep(Switch(mtu))
            self.daemon = self.keep(Daemon(stage, enter=self.switch.enter(), arguments=arguments))
        except BaseException:
            self.close()
            raise

    def keep(self, part):
        """`part` is closed with the host, the newest first."""
        self.parts.append(part)
        return part

    def addresses(self, number):
        """IPv4 and IPv6 address of guest `number`."""
        return (f"10.77.{self.number}.{number}/24", f"fd77:{self.number}::{number}/64")

    def add(self, number):
        """A container with the address `number`."""
        first, *more = self.addresses(number)
        return self.keep(Container(self.stage, f"{self.name}{number}", self.daemon.folder,
                                   self.switch, first, more=more))

    def plug(self, number):
        """A namespace with nothing in it, with the address `number`."""
        namespace = self.keep(Namespace())
        self.switch.plug(namespace, *self.addresses(number))
        return namespace

    def bare(self, namespace, address, **variables):
        """A place in `namespace` whose programs are this host's daemon's clients."""
        return Bare(self, namespace, address, variables)

    def close(self):
        """Ends everything on it."""
        for part in reversed(self.parts):
            part.close()
        self.parts = []


class Bare(Place):
    """Programs run here as root, in a network namespace, with a daemon's socket."""

    def __init__(self, host, namespace, address, variables):
        super().__init__(SimpleNamespace(stage=host.stage, uid=0, namespace=namespace,
                                         daemon=host.daemon), address)
        self.variables = variables

    def environment(self):
        """Of its programs."""
        return environment(OMNIVERB_SOCKET=self.pair.daemon.socket, **self.variables)

    def at(self):
        """Where this is, in the words of TEST_PEERS."""
        return f"{self.pair.namespace.path}={self.pair.daemon.socket}"


class Hosts:
    """Two hosts with a container each: `server` on host a, `client` on host b.

    Bridged, all containers are in one subnet; `routed`, each host has its own and forwards.
    """

    def __init__(self, stage, mtu=1500, routed=False, arguments=((), ())):
        self.stage, self.routed = stage, routed
        self.a = self.b = None
        try:
            self.a = Host(stage, "a", 1 if routed else 0, mtu, arguments[0])
            self.b = Host(stage, "b", 2 if routed else 0, mtu, arguments[1])
            self.cable = Cable(self.a.switch, self.b.switch, not routed)
            if routed:
                self._route(self.a, self.b, 1)
                self._route(self.b, self.a, 2)
            self.server = self._container(self.a, 1)
            self.client = self._container(self.b, 2)
            self._await_network()
        except BaseException:
            self.close()
            raise

    def _await_network(self):
        """A cable that was just plugged in may lose the first packets, and address resolution
        tries again only after a second: longer than many a queue pair's patience."""
        knock = ("import socket, sys\n"
                 "try: socket.create_connection((sys.argv[1], 9), 0.2)\n"
                 "except ConnectionRefusedError: pass")
        for namespace, address in ((self.server.namespace, self.client.address),
                                   (self.client.namespace, self.server.address)):
            for _ in range(30):
                line = [*namespace.enter(), sys.executable, "-c", knock, address]
                if process.start(line, stderr=subprocess.DEVNULL).wait(10) == 0:
                    break
            else:
                raise Failure(f"the network does not reach {address}")

    @staticmethod
    def _route(host, other, end):
        switch = host.switch
        switch.set("ipv4/ip_forward", "1")
        switch.ip("addr", "add", f"10.77.{host.number}.254/24", "dev", "bridge")
        switch.ip("addr", "add", f"10.76.0.{end}/24", "dev", Cable.NAME)
        switch.ip("route", "add", f"10.77.{other.number}.0/24", "via", f"10.76.0.{3 - end}")

    def _container(self, host, number):
        container = host.add(number)
        if self.routed:
            container.namespace.ip("route", "add", "default", "via", f"10.77.{host.number}.254")
        return container

    def apart(self, *peers, **variables):
        """A place beside the server's container, whose programs' other processes run beside the
        client's container on host b, or at `peers`: the first process at the first, and so on."""
        peers = peers or (self.b.bare(self.client.namespace, self.client.address),)
        return self.a.bare(self.server.namespace, self.server.address,
                           TEST_PEERS=",".join(peer.at() for peer in peers), **variables)

    @property
    def daemons(self):
        """Both daemons."""
        return (self.a.daemon, self.b.daemon)

    def close(self):
        """Ends everything."""
        for host in (self.b, self.a):
            if host:
                host.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
