"""Runs a virtual machine by libvirt.

Users, groups and security modules are left out: QEMU is root's."""

import os
import pathlib
import re
import signal
import socket
import sys
import time
import xml.etree.ElementTree as tree

from . import process, staging
from .virtual_machines import ADDRESS, NAME, Machine, files
from .case import Failure, Skip, check
from .rxe_guest import Guest
from .guest_image import DAX, archive

_UNPACKED = staging.BUILT / "libvirt" / "tree"
_QEMU_CONF = """user = "root"
group = "root"
security_driver = "none"
namespaces = []
cgroup_controllers = []
remember_owner = 0
stdio_handler = "file"
"""
_DAEMON_CONF = """auth_unix_rw = "none"
auth_unix_ro = "none"
unix_sock_group = "root"
"""
# libvirtd wants it to be there, for its defaults.
_USER = "libvirt-qemu:x:64055:64055"
_WITHOUT_WINDOWS = 448 << 10
_GUEST_PORT = "omniverb.guest"
# libvirtd waits until a QEMU that it has ended is nobody's child: somebody has to be its parent.
_PARENT = """import ctypes, os, signal, sys
system = ctypes.CDLL(None)
system.prctl(36, 1, 0, 0, 0)
child = os.fork()
if child == 0:
    system.prctl(1, 9, 0, 0, 0)
    os.execvp(sys.argv[1], sys.argv[1:])
signal.signal(signal.SIGTERM, lambda *_: os.kill(child, signal.SIGTERM))
while os.wait()[0] != child:
    pass
"""


class Libvirt:
    """libvirtd, and commands that talk to it."""

    def __init__(self, folder, switch):
        if not (_UNPACKED / "usr/sbin/libvirtd").exists():
            raise Skip("no libvirt: see tests/guest/fetch-libvirt")
        self.folder, self._pid = pathlib.Path(folder), 0
        for name in ("over", "root", "conf"):
            (self.folder / name).mkdir()
        for name, text in (("qemu", _QEMU_CONF), ("libvirtd", _DAEMON_CONF)):
            (self.folder / f"conf/{name}.conf").write_text(text, encoding="utf-8")
        over, root = self.folder / "over", self.folder / "root"
        # What lies over a file system is no part of it.
        script = (f"mount -t tmpfs tmpfs {over}\nmkdir {over}/work\n"
                  f"cp -a {_UNPACKED} {over}/upper\n"
                  f"(cat /etc/passwd; echo {_USER}::/:/bin/false) > {over}/upper/etc/passwd\n"
                  f"(cat /etc/group; echo {_USER}) > {over}/upper/etc/group\n"
                  f"cp {self.folder}/conf/* {over}/upper/etc/libvirt/\n"
                  f"mount -t overlay overlay -o lowerdir=/,upperdir={over}/upper,"
                  f"workdir={over}/work {root}\n"
                  f"for one in proc sys dev tmp; do mount --rbind /$one {root}/$one; done\n"
                  f"mount -t tmpfs tmpfs {root}/run\n"
                  f"exec chroot {root} /usr/sbin/libvirtd\n")
        self._said = open(self.folder / "said", "w", encoding="utf-8")  # noqa: SIM115
        private = ["unshare", "--mount", "--propagation", "private", "--"]
        self.daemon = process.start([sys.executable, "-c", _PARENT, *private, *switch.enter(),
                                     "sh", "-ec", script],
                                    stdout=self._said, stderr=self._said)
        process.until(lambda: self.daemon.poll() is not None or self._answers(), 30, "libvirtd")
        check(self.daemon.poll() is None, self.said())

    def _answers(self):
        return "State" in self.run("virsh", "list", accept=range(256), limit=60)

    def run(self, *argv, **options):
        """Runs a command where libvirtd is."""
        # The first child, which stays what it was when others are taken in.
        self._pid = self._pid or next(iter(process.descendants(self.daemon.pid)), 0)
        root = f"/proc/{self._pid}/root"
        if not os.path.exists(f"{root}/usr/sbin/libvirtd"):
            return "not yet"
        return process.run(["nsenter", f"--mount=/proc/{self._pid}/ns/mnt",
                            f"--root={root}", f"--wd={root}", "--", *argv], **options)

    def pid(self, name):
        """Of a domain's QEMU."""
        return int(self.run("cat", f"/run/libvirt/qemu/{name}.pid"))

    def said(self):
        """What libvirtd has said."""
        return (self.folder / "said").read_text(encoding="utf-8", errors="replace")

    def close(self):
        """Ends it; the mounts go with their namespace."""
        process.end(self.daemon)
        self._said.close()
        print("--- libvirtd ---", self.said()[-4000:], sep="\n", flush=True)


class _Qemu:
    """libvirt's QEMU, with what of Popen's surface guests use."""

    def __init__(self, pid):
        self.pid, self.returncode = pid, None

    def poll(self):
        """Whether it has ended, in place of how."""
        try:
            with open(f"/proc/{self.pid}/stat", encoding="utf-8") as file:
                ended = file.read().rpartition(")")[2].split()[0] in "ZX"
        except FileNotFoundError:
            ended = True
        self.returncode = -signal.SIGKILL if ended else None
        return self.returncode

    def wait(self, timeout=20):
        """Until it has ended."""
        process.until(lambda: self.poll() is not None, timeout, "QEMU to end")
        return self.returncode


class Domain(Machine):
    """The machine, started by libvirt of what `omniverb vm args --libvirt` prints."""

    libvirt = None

    def __init__(self, stage, host):
        modules, self.switch = (*DAX, "nfit"), host.switch
        super().__init__(stage, host, archive(files(stage), modules, "libvirt"))

    def command(self, stage):
        return []

    def devices(self):
        return []

    def _boot(self, common):
        process.until(lambda: not self.row(), 10, "the name to be free")
        self.libvirt = Libvirt(self.folder.name, self.switch)
        text = self.daemon.omniverb("vm", "args", NAME, "--libvirt", "--window", "64m",
                                    "--neighbours", "1", "--pair-size", "4m", "--memory", "448m",
                                    "--user", "0:0")
        path = pathlib.Path(self._file("domain.xml"))
        path.write_text(_domain(text, common, self._file), encoding="utf-8")
        print(path.read_text(encoding="utf-8"), flush=True)
        print(self.libvirt.run("virt-xml-validate", path, "domain"), flush=True)
        self.libvirt.run("virsh", "create", path, limit=180)
        self.machine = _Qemu(self.libvirt.pid(NAME))
        self.link = socket.socket(socket.AF_UNIX)
        self.link.connect(self._file("link"))
        self._await(time.monotonic(), 2 * self.boot_limit)

    def close(self):
        """Switches it off, and libvirt."""
        if self.libvirt:
            self.libvirt.run("virsh", "destroy", NAME, accept=range(256))
        Guest.close(self)


def _after(words, option):
    return words[words.index(option) + 1]


def _domain(printed, common, file):
    """The whole domain: what was printed, where its comments say, and what any has."""
    words = [str(word) for word in common]
    tap = re.search(r"ifname=(\w+)", _after(words, "-netdev")).group(1)
    mac = re.search(r"mac=([0-9a-f:]+)", " ".join(words)).group(1)
    beside, inside = printed.split("<!-- In <devices>")
    windows = sum(int(size) for size in re.findall(r"<size unit='KiB'>(\d+)</size>", inside))
    text = f"""<domain type='qemu'>
<name>{NAME}</name>
<memory unit='KiB'>{_WITHOUT_WINDOWS + windows}</memory>
<vcpu current='1'>2</vcpu>
<os><type arch='x86_64' machine='q35'>hvm</type>
<kernel>{_after(words, '-kernel')}</kernel><initrd>{_after(words, '-initrd')}</initrd>
<cmdline>{_after(words, '-append').strip()}</cmdline></os>
<cpu mode='maximum'><numa><cell id='0' cpus='0-1' memory='{_WITHOUT_WINDOWS}' unit='KiB'/></numa>
</cpu>
{beside}
<devices>
<!-- In <devices>{inside}
<serial type='file'><source path='{file("console")}'/></serial>
<interface type='ethernet'><mac address='{mac}'/><target dev='{tap}' managed='no'/>
<model type='virtio'/></interface>
<channel type='unix'><source mode='bind' path='{file("link")}'/>
<target type='virtio' name='{_GUEST_PORT}'/></channel>
<memballoon model='none'/>
</devices></domain>
"""
    tree.fromstring(text)
    return text
