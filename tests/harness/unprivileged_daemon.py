"""Runs plain processes of an unprivileged user, with a daemon of the same user.

They run in a network namespace of their own that has only a loopback interface, so that port
numbers never collide with what else the machine does. The user has no privilege in it."""

from . import process
from .daemon import Daemon, as_user, environment
from .network import Namespace

UID = 47913  # nobody's; has no entry in /etc/passwd and needs none


class Place:
    """Where a program can be run: the same surface as a Container has."""

    def __init__(self, pair, address="127.0.0.1"):
        self.pair, self.address = pair, address
        # What `omniverb run` keeps for the programs.
        self.runtime = pair.stage.folder("runtime", pair.uid, 0o700)

    @property
    def pid(self):
        """A process in the same network namespace."""
        return self.pair.namespace.pid

    @property
    def namespace(self):
        """Its network namespace."""
        return self.pair.namespace

    def command(self, *argv, plain=False):
        """The command line that runs `argv`, under `omniverb run` unless `plain`."""
        line = [*self.pair.namespace.enter(), *as_user(self.pair.uid)]
        if not plain:
            line += [self.pair.stage.dist / "bin" / "omniverb", "run", "--"]
        return [str(a) for a in [*line, *map(self._path, argv)]]

    def _path(self, word):
        return str(word).replace("/opt/programs", str(self.pair.stage.programs))

    def environment(self):
        """Of its programs."""
        return environment(OMNIVERB_SOCKET=self.pair.daemon.socket, XDG_RUNTIME_DIR=self.runtime)

    def start(self, *argv, plain=False, **options):
        """Starts a program; see `command`."""
        options.setdefault("env", self.environment())
        return process.start(self.command(*argv, plain=plain), cwd="/tmp", **options)

    def run(self, *argv, limit=20.0, accept=(0,), plain=False):
        """Runs a program and returns its output."""
        return process.run(self.command(*argv, plain=plain), limit=limit, accept=accept,
                           cwd="/tmp", env=self.environment())


class PlainPair:
    """Server and client as two plain processes."""

    def __init__(self, stage, uid=UID, daemon_arguments=()):
        self.stage, self.uid = stage, uid
        self.namespace = Namespace()
        try:
            self.daemon = Daemon(stage, uid, self.namespace.enter(), daemon_arguments)
        except BaseException:
            self.namespace.close()
            raise
        self.server = self.client = Place(self)

    def close(self):
        """Ends everything."""
        try:
            self.daemon.close()
        finally:
            self.namespace.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
