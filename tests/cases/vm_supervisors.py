"""Tests supervisors of virtual machines: what they outlive, and what other processes can do to
them.

QEMU is played by a process that only listens."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile

from harness import process
from harness.case import WAITS, Case, Group, check
from harness.daemon import environment
from harness.simulated_host import Host
from harness.virtual_machines import supervisors, started

_LISTENER = pathlib.Path(__file__).resolve().parents[1] / "harness" / "fake_qemu.py"
_USER, _OTHER = 4321, 4323


class _Lab:
    def __init__(self, stage):
        self.stage, self.host = stage, Host(stage, "supervisors")
        self.daemon = self.host.daemon
        # Of the daemon that root starts it is root's alone.
        self.folder = self.daemon.folder.with_name(f"{self.daemon.folder.name}-operator")

    def row(self, name):
        """What `omniverb vm list` says of a machine."""
        found = json.loads(self.daemon.omniverb("vm", "list", "--json"))
        return next((row["machine"] for row in found if row["machine"]["name"] == name), None)

    def args(self, name, *words, mask="022", accept=(0,)):
        """`omniverb vm args`, by who has this mask, and a secret."""
        return process.run(["sh", "-ec", f'umask {mask}; exec "$@"', "sh",
                            self.stage.dist / "bin" / "omniverb", "vm", "args", name, "--window",
                            "2m", *words], accept=accept,
                           env=environment(OMNIVERB_SOCKET=self.daemon.socket, SECRET="word"))

    @contextlib.contextmanager
    def machine(self, program, name, word, **options):
        """One that is there while this is: a file with a line for each proxy."""
        env = environment(OMNIVERB_SOCKET=self.daemon.socket, **options.pop("variables", {}))
        with tempfile.NamedTemporaryFile("r") as came, open(came.name, "w") as output:
            running = process.start([program, "vm", "run", name, "--window", "2m", "--",
                                     sys.executable, _LISTENER, word], stdout=output,
                                    stderr=output, env=env, **options)
            try:
                yield lambda: pathlib.Path(came.name).read_text().split()
            finally:
                process.kill(running.pid)
                running.wait()
        process.until(lambda: not supervisors(self.daemon), 20, "its supervisor to end")

    def close(self):
        """Ends everything."""
        self.host.close()


def _lab(stage):
    return contextlib.closing(_Lab(stage))


def _upgraded(lab):
    """The program is replaced, as dpkg does it, and another daemon begins: the machine is attached
    to that one, by the new program. The operators' socket has a name within a folder."""
    with tempfile.TemporaryDirectory(prefix="omniverb-upgraded-") as folder:
        program, new = f"{folder}/omniverb", f"{folder}/omniverb.dpkg-new"
        shutil.copy(lab.stage.dist / "bin" / "omniverb", program)
        with lab.machine(program, "web", "quiet", cwd=lab.folder,
                         variables={"OMNIVERB_OPERATOR_SOCKET": "omniverbd.sock"}) as came:
            process.until(lambda: len(came()) >= 1, 20, lambda: f"a proxy: {came()}")
            shutil.copy(program, new)
            os.rename(new, program)
            lab.daemon.kill()
            lab.daemon.start()
            process.until(lambda: len(came()) >= 2, 20, lambda: f"another proxy: {came()}")
            process.until(lambda: started(lab.daemon, "carry"), 20, "its process")
            proxy = started(lab.daemon, "carry")[0]
            check(os.readlink(f"{proxy}/exe") == program, os.readlink(f"{proxy}/exe"))
            # While it cannot be started, the machine is attached.
            os.rename(program, new)
            process.kill(int(os.path.basename(proxy)))
            process.until(lambda: len(came()) >= 3, 20, "another one that is not there")
            check(not started(lab.daemon, "carry"), "it was started from nothing")
            os.rename(new, program)
            # It waits for up to a minute when none can be started.
            process.until(lambda: started(lab.daemon, "carry"), 90, "one that is")
            check(lab.row("web"), "it is not attached")


def _rude(lab):
    """What a guest says ends its proxy again and again: its name stays its own, and whoever parts
    with it finds it."""
    with lab.machine(lab.stage.dist / "bin" / "omniverb", "web", "rude") as came:
        process.until(lambda: len(came()) >= 3, 30, lambda: f"three proxies: {came()}")
        rows = [bool(lab.row("web")) for _ in range(20)]
        check(sum(rows) >= 18, f"{rows}")
        lab.daemon.omniverb("vm", "detach", "web")
        process.until(lambda: not supervisors(lab.daemon), 10, "its supervisor to end")
        check(not lab.row("web"), "it is there")


def _as_user(user, *line, **options):
    return process.run(["setpriv", f"--reuid={user}", f"--regid={user + 1}", "--clear-groups", "--",
                        *line], **options)


def _user(lab):
    """A window can be opened by the user it is for, and by no other; that one listens beside it,
    and cannot change where others find the window."""
    os.chmod(lab.folder, 0o700)
    words = ["--user", f"{_USER}:{_USER + 1}"]
    said = lab.args("web", *words, accept=(1,))
    check(str(lab.folder) in said and "chmod" in said, said)
    process.until(lambda: not lab.row("web"), 10, "the name to be free")
    os.chmod(lab.folder, 0o711)
    said = lab.args("web", *words, mask="077")
    window = re.search(r"mem-path=([^, ]*)", said).group(1)
    port = re.search(r",path=([^, ]*)", said).group(1)
    for user, accept in ((_USER, 0), (_OTHER, 1)):
        _as_user(user, "head", "-c", "8192", window, accept=(accept,))
        listen = "import socket, sys; socket.socket(socket.AF_UNIX).bind(sys.argv[1])"
        _as_user(user, sys.executable, "-c", listen, f"{port}{user}", accept=(accept,))
        _as_user(user, "ln", "-sfT", "/etc/passwd", window, accept=(1,))
        _as_user(user, "mv", "-T", os.path.dirname(port), f"{window}2", accept=(1,))
    (holder,) = started(lab.daemon, "hold")
    check(os.readlink(f"{holder}/cwd") == "/", "it is in a folder of its starter's")
    check(pathlib.Path(f"{holder}/environ").read_bytes() == b"", "it has its starter's environment")
    # QEMU tries without end to open what leads nowhere.
    _as_user(_USER, "kill", "-KILL", os.path.basename(holder))
    process.until(lambda: not os.path.lexists(window), 10, "the window to be gone")
    lab.daemon.omniverb("vm", "detach", "web")
    process.until(lambda: not os.path.lexists(os.path.dirname(window)), 10, "its place to be gone")


def groups():
    """With one daemon."""
    cases = [Case("supervisors.upgraded", _upgraded, 180),
             Case("supervisors.rude", _rude, 60),
             Case("supervisors.user", _user, 60)]
    return [Group("supervisors", cases, _lab, weight=WAITS)]
