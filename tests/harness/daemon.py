"""Runs a private omniverbd for a test."""

import json
import os

from . import process
from .case import Failure

SOCKET_NAME = "omniverbd.sock"


class Daemon:
    """Runs omniverbd on a socket of its own, as `uid`, optionally inside a namespace."""

    def __init__(self, stage, uid=0, enter=(), arguments=()):
        self.stage, self.uid = stage, uid
        self.prefix = [*enter, *as_user(uid)]
        self.arguments = list(arguments)
        self.folder = stage.folder("daemon", uid, 0o700 if uid else 0o755)
        self.socket = self.folder / SOCKET_NAME
        self.process = None
        self.start()

    def start(self):
        """Starts it and waits until it answers."""
        log = open(self.folder / "log", "ab")  # noqa: SIM115 - the child keeps it
        self.process = process.start(
            [*self.prefix, self.stage.dist / "bin" / "omniverbd", "--socket", self.socket,
             *self.arguments],
            stdout=log, stderr=log, env=environment())
        log.close()
        process.until(lambda: self.socket.exists() or self.process.poll() is not None, 30,
                      "the daemon's socket")
        process.until(self._answers, 30, lambda: f"an answer of the daemon\n{self.log()}")

    def _answers(self):
        if self.process.poll() is not None:
            raise Failure(f"omniverbd ended: {process.how(self.process.returncode)}\n"
                                  f"{self.log()}")
        try:
            self.status()
            return True
        except Failure:
            return False

    @property
    def pid(self):
        """The process id of omniverbd."""
        return self.process.pid

    def log(self):
        """What it has printed."""
        return (self.folder / "log").read_text(errors="replace")

    def status(self):
        """What `omniverb status --json` says."""
        return json.loads(self.omniverb("status", "--json"))

    def omniverb(self, *words, accept=(0,)):
        """Runs the command line as the daemon's administrator."""
        return process.run([*self.prefix, self.stage.dist / "bin" / "omniverb", *words],
                           env=environment(OMNIVERB_SOCKET=self.socket), accept=accept)

    def set_vnic(self, namespace, *words, accept=(0,)):
        """`omniverb vnic set`, for the vNIC of a namespace."""
        return self.omniverb("vnic", "set", f"pid:{namespace.pid}", *words, accept=accept)

    def vnics(self):
        """What `omniverb vnic list --json` says of each vNIC."""
        return json.loads(self.omniverb("vnic", "list", "--json"))["vnics"]

    def vnic(self, namespace):
        """The same of the vNIC of a namespace, if anything."""
        found = self.vnics()
        inode = os.stat(namespace.path).st_ino
        return next((vnic for vnic in found if vnic["namespace"] == inode), None)

    def totals(self):
        """How many of each kind of object the daemon knows of."""
        return count(self.status())

    def programs(self):
        """Process ids of the programs that it knows of. What keeps the files that `omniverb run`
        shows is none: it asks for the GID table now and then, as when an address comes late."""
        return {program["pid"] for vnic in self.status()["vnics"] for program in vnic["processes"]
                if program["name"] != "omniverb"}

    def left(self):
        """How many of each it knows of besides vNICs and their addresses."""
        return {name: number for name, number in self.totals().items()
                if number and name not in ("vnics", "gids")}

    def queue_pairs(self):
        """What its status says of each queue pair."""
        return [qp for vnic in self.status()["vnics"] for program in vnic["processes"]
                for qp in program["qps"]]

    def kill(self):
        """kill -9."""
        self.process.kill()
        self.process.wait()

    def close(self):
        """Stops it."""
        process.end(self.process)
        log = self.log()
        if log:
            print("--- omniverbd ---", log[-20000:], sep="\n", flush=True)


def forgotten(daemons, limit):
    """Waits until daemons know of nothing but vNICs and their addresses."""
    def left():
        return [daemon.left() for daemon in daemons]
    process.until(lambda: not any(left()), limit, lambda: f"empty tables, not {left()}")


def count(status):
    """Reduces a status document to how many there are of each thing it lists."""
    found = {}

    def walk(value):
        if isinstance(value, dict):
            for name, inner in value.items():
                if isinstance(inner, list):
                    found[name] = found.get(name, 0) + len(inner)
                elif name in ("mrs", "links", "cm_ids"):
                    found[name] = found.get(name, 0) + inner
                walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)

    walk(status)
    return found


def as_user(uid):
    """The start of a command line that runs something as an ordinary user without privileges."""
    if uid == 0:
        return []
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--bounding-set=-all",
            "--no-new-privs", "--"]


def environment(**more):
    """A small environment."""
    base = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "LANG": "C.UTF-8", "HOME": "/tmp"}
    for name in ("RUST_BACKTRACE", "OMNIVERB_LOG"):
        if name in os.environ:
            base[name] = os.environ[name]
    base.update({name: str(value) for name, value in more.items()})
    return base
