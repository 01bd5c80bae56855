"""A hostile guest harms only its own links.

Its root writes all over its windows and says anything by its port, while links of its own, of
another machine and of containers are in use. Where there is a nightly toolchain the daemon runs
under AddressSanitizer, and so do supervisors and proxies: these have the doorbells in pair windows,
the daemon all else that is of the host's in windows."""

import contextlib
import os
import pathlib
import random
import re
import shutil
import tempfile

from harness import guest_image, process
from harness.case import ALONE, Case, Group, check
from harness.client_server import gid_index
from harness.staging import ROOT, Stage
from harness.virtual_machines import OMNIVERB, Both, Device, Lab, Machine, files

_NOISE = "/opt/programs/hostile_guest"
_SECONDS = 10
_OTHER = {"name": "web-2", "address": "10.77.0.201"}
_TARGET = "x86_64-unknown-linux-gnu"


def _sanitized(stage):
    """Has the stage's daemon and command be such under AddressSanitizer, if these can be had."""
    where = ROOT / "target" / "asan"
    if not shutil.which("cargo") or "nightly" not in process.run(
            ["cargo", "+nightly", "--version"], accept=range(256)):
        print("no nightly toolchain: the daemon is not under AddressSanitizer")
        return
    process.run(["cargo", "+nightly", "build", "--quiet", "--locked", "-p", "omniverbd", "-p",
                 "omniverb", "--target", _TARGET, "--target-dir", where], limit=1800, cwd=ROOT,
                env={**os.environ, "RUSTFLAGS": "-Zsanitizer=address"})
    for name in ("omniverbd", "omniverb"):
        shutil.copy(where / _TARGET / "debug" / name, stage.dist / "bin" / name)


class _Watched(Machine):
    """A machine whose supervisor and proxy say somewhere what AddressSanitizer finds."""

    reports = None

    def command(self, stage):
        # Porters are nobody.
        self.reports = tempfile.TemporaryDirectory(prefix="omniverb-asan-")
        os.chmod(self.reports.name, 0o777)
        options = f"ASAN_OPTIONS=detect_leaks=0:log_path={self.reports.name}/report"
        env, *line = super().command(stage)
        return [env, options, *line]

    def found(self):
        """What it has found."""
        texts = [path.read_text(errors="replace") for path in
                 sorted(pathlib.Path(self.reports.name).iterdir())]
        return "\n".join(texts)


def _archive(stage):
    """A machine's file system. What is in machines is not watched."""
    plain = ROOT / "dist/bin/omniverb"
    inside = {path: plain if file == str(stage.dist / "bin/omniverb") else file
              for path, file in files(stage).items()}
    inside = {**inside, _NOISE: guest_image.compiled("hostile_guest")}
    return guest_image.archive(inside, guest_image.DAX,
                               "hostile")


class _Hostile(Lab):
    """A lab whose machine has the program that makes noise."""

    def __init__(self, stage):
        self.own = Stage()
        try:
            _sanitized(self.own)
            super().__init__(self.own, self._machine)
        except BaseException:
            self.own.close()
            raise

    @staticmethod
    def _machine(stage, host):
        return _Watched(stage, host, _archive(stage))

    def close(self):
        super().close()
        self.own.close()


def _pingpong(server, client, count=200):
    """Byte for byte, between two places."""
    sides = type("Sides", (), {"server": server, "client": client})
    lines = [["ibv_rc_pingpong", "-c", "-g", gid_index(place), "-n", count]
             for place in (client, server)]
    outcome = Both(sides, lines[0], server_argv=lines[1]).finish(120)
    for text in (outcome.server, outcome.client):
        check("invalid data" not in text and "iters in" in text, text)


@contextlib.contextmanager
def _soaking(container):
    """Two processes of a container that go on exchanging and comparing what they have."""
    path = f"/tmp/soak-{os.getpid()}"
    with open(path, "w+", encoding="utf-8") as said:
        soak = container.start("/opt/programs/soak", "two_processes", "100000000", "1", stdout=said,
                               stderr=said)
        try:
            yield soak
        finally:
            said.seek(0)
            print(said.read())
            process.end(soak)
            os.unlink(path)


def _operations(lab):
    """What queue pairs outside machines have done."""
    return sum(qp["operations_mapped"] + qp["operations_mediated"] + qp["messages_sent"]
               for vnic in lab.host.daemon.status()["vnics"] if not vnic["name"].startswith("vm-")
               for program in vnic["processes"] for qp in program["qps"])


def _served(lab, other, soak, done):
    """Everybody else is at full service; returns what they have done."""
    check(lab.host.daemon.process.poll() is None, "the daemon is gone")
    check(soak.poll() is None, "what two processes exchange is wrong")
    process.until(lambda: _operations(lab) > done, 20, "the container's queue pairs to go on")
    _pingpong(lab.container, lab.far)
    _pingpong(Device(other), lab.container)
    return _operations(lab)


def _noise(lab):
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    archive = _archive(lab.stage)
    with contextlib.closing(Machine(lab.stage, lab.host, archive, **_OTHER)) as other, \
            _soaking(lab.container) as soak:
        done = _make_noise(lab, seed, lambda done: _served(lab, other, soak, done))
        # What it did to its links ends with it.
        lab.machine.close()
        check(not lab.machine.found(), lab.machine.found())
        process.until(lambda: not lab.machine.row(), 20, "the machine to be gone")
        _served(lab, other, soak, done)
    with contextlib.closing(Machine(lab.stage, lab.host, archive)) as again:
        _pingpong(lab.container, Device(again))
    check("ERROR: AddressSanitizer" not in lab.host.daemon.log(), lab.host.daemon.log())


def _make_noise(lab, seed, served):
    """Has the guest make noise while it has links, and others are served."""
    machine = lab.machine
    with contextlib.ExitStack() as stack:
        said = stack.enter_context(open(f"{machine.folder.name}/noise", "w+", encoding="utf-8"))
        # Its own links: among its processes, and with a container's.
        own = [OMNIVERB, "run", "--", "ibv_rc_pingpong", "-g", "1", "-n", "1000000"]
        stack.callback(machine.start(*own).kill)
        process.until(lambda: machine.listens(18515), 60, "a server")
        stack.callback(machine.start(*own, "127.0.0.1").kill)
        lines = [["ibv_rc_pingpong", "-g", index, "-n", "1000000"]
                 for index in (gid_index(lab.container), "1")]
        across = Both(lab.sides("machine", "container"), lines[0], server_argv=lines[1])
        stack.callback(across.abort)
        process.until(lambda: machine.row()["pairs"]["links"], 60,
                      lambda: f"a link in a pair window\n{lab.host.daemon.omniverb('status')}")
        third = Both(lab.sides("machine", "third"), lines[0], server_argv=lines[1])
        stack.callback(third.abort)
        process.until(lambda: machine.row()["engine"], 60,
                      lambda: f"a link by the engine\n{lab.host.daemon.omniverb('status')}")
        done = served(0)
        noise = machine.start(_NOISE, seed, _SECONDS, stdout=said)
        stack.callback(noise.kill)

        def has_said(pattern):
            check(noise.poll() in (None, 0), "it makes no noise")
            said.seek(0)
            return re.search(pattern, said.read(), re.MULTILINE)
        while not has_said("^written"):
            done = served(done)
        machine.agents.kill()
        while not has_said("^said"):
            done = served(done)
        print(has_said("^said.*").group(0))
        check(int(has_said(r"^said (\d+)").group(1)) > 100, "it has said hardly anything")
        # Whoever has a link with it may see that broken, and does not break himself.
        for peer in (across.client, third.client):
            check(peer.poll() in (None, 0, 1), f"a peer's process: {peer.poll()}")
        return done


def groups():
    """One, that has the machine for itself."""
    return [Group("machines.hostile", [Case("machines.hostile", _noise, 900, slow=True)],
                  lambda stage: contextlib.closing(_Hostile(stage)), weight=ALONE)]
