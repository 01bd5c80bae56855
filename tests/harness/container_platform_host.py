"""Makes a host for container platforms: what they change of a machine is its alone.

It has a network, mounts and cgroups of its own. /run and /var are empty, changes of /etc are kept
in memory, dist/ is at /opt/omniverb and the daemon's sockets are at their usual places. So Docker,
Podman and others run by their own commands, with their usual settings."""

import itertools
import os
import pathlib
import re
import shutil
import subprocess

from . import document_commands, process
from .case import Skip
from .daemon import Daemon, environment
from .staging import ROOT

USER = 7000
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
# A root file system of a container: these, busybox for all else, and the libraries they need.
_PROGRAMS = ["ib_write_bw", "ib_write_lat", "ibv_devices", "ibv_devinfo"]
_FOLDERS = ["bin", "sbin", "usr/bin", "proc", "sys", "dev", "tmp", "run/omniverb", "etc", "root",
            "var", "opt/omniverb"]
_ETC = {
    "passwd": "root:x:0:0:root:/tmp:/bin/sh\nnobody:x:65534:65534:nobody:/tmp:/bin/sh\n",
    "group": "root:x:0:\nnogroup:x:65534:\n",
    "resolv.conf": "",
    "hosts": "127.0.0.1 localhost\n",
}
# Where there are cgroups of version 1: a group of each hierarchy, and a namespace with that as its
# root. Else the machine's are shown as they are.
_OWN_CGROUPS = r"""
set -e
name=$1; shift
for group in /sys/fs/cgroup/*/; do
    [ "$hybrid" ] && [ -e "$group/tasks" ] || continue
    mkdir "$group/$name"
    for file in cpuset.cpus cpuset.mems; do
        [ ! -e "$group/$file" ] || cat "$group/$file" > "$group/$name/$file"
    done
    echo $$ > "$group/$name/cgroup.procs"
done
exec unshare ${hybrid:+--cgroup} --net --mount --propagation private -- "$@"
"""
_SET_UP = r"""
set -e
mount --make-rshared /
mount -t sysfs sysfs /sys
if [ "$hybrid" ]; then
    mount -t tmpfs -o mode=755 tmpfs /sys/fs/cgroup
    while IFS=: read -r _ controllers _; do
        folder=/sys/fs/cgroup/${controllers#name=}
        case $controllers in
        '') continue ;;
        name=*) options=none,$controllers ;;
        *) options=$controllers ;;
        esac
        mkdir "$folder"
        mount -t cgroup -o "$options" cgroup "$folder"
    done < /proc/self/cgroup
else
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
fi
for folder in /run /var /opt; do mount -t tmpfs -o mode=755 tmpfs $folder; done
ln -s /run /var/run
mkdir -p /run/lock /run/etc /run/etc-work /run/omniverb /run/omniverb-operator /opt/omniverb \
    /var/lib/lxc /var/cache /var/log/lxc
mkdir -m 1777 /var/tmp
mount -t overlay -o lowerdir=/etc,upperdir=/run/etc,workdir=/run/etc-work overlay /etc
mount --bind "$dist" /opt/omniverb
ip link set lo up
mkdir -p /etc/omniverb
echo ready
while :; do sleep 3600 & wait $!; done
"""
# Programs are in the groups of the host, if it has any.
_JOIN = """
for file in /sys/fs/cgroup/*/tasks; do
    [ ! -e "$file" ] || echo $$ > "${file%tasks}cgroup.procs"
done
exec "$@"
"""
_numbers = itertools.count(1)


def documented(name, beginning, at=0):
    """The command of a document that begins like this; of several the one at `at`."""
    text = (ROOT / name).read_text(encoding="utf-8")
    return [command.text for command in document_commands.commands(name, text)
            if command.text.startswith(beginning)][at]


class PlatformHost:
    """The host, and a daemon on it with these rules. `needs`: programs, without which the cases
    are skipped."""

    def __init__(self, stage, rules, needs):
        self.stage, self.daemon = stage, None
        places = f"{_PATH}:/usr/lib/podman"
        missing = [name for name in needs if not shutil.which(name, path=places)]
        if missing:
            raise Skip(f"without {', '.join(missing)}")
        self.hybrid = any(pathlib.Path("/sys/fs/cgroup").glob("*/tasks"))
        self.group = f"omniverb-{os.getpid()}-{next(_numbers)}"
        # The files that a container sees belong to its root.
        self.root = stage.folder("root")
        make_root(self.root, stage.dist)
        self.holder = process.start(
            ["sh", "-c", _OWN_CGROUPS, "sh", self.group, "sh", "-c", _SET_UP],
            env=environment(dist=stage.dist, hybrid="yes" if self.hybrid else ""),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            told = self.holder.stdout.readline()
            if told != "ready\n":
                raise Skip("no place for container platforms can be made here: "
                           + told + self.holder.communicate()[0])
            self.write("/etc/omniverb/omniverbd.toml", rules)
            self.daemon = Daemon(stage, enter=self._namespaces(), arguments=[
                "--config", "/etc/omniverb/omniverbd.toml", "--log-level", "info"])
            for name in ("", "-operator"):
                self.run("mount", "--bind", f"{self.daemon.folder}{name}", f"/run/omniverb{name}")
        except BaseException:
            self.close()
            raise

    def _namespaces(self):
        names = {"net": "net", "mount": "mnt", "cgroup": "cgroup"}
        return ["nsenter", *(f"--{name}=/proc/{self.holder.pid}/ns/{file}"
                             for name, file in names.items()), "--", "sh", "-c", _JOIN, "sh"]

    def add_user(self):
        """An ordinary user, with numbers for the users of its containers."""
        for file, line in (("passwd", f"builder:x:{USER}:{USER}::/var/users/{USER}:/bin/sh"),
                           ("group", f"builder:x:{USER}:"), ("subuid", "builder:200000:65536"),
                           ("subgid", "builder:200000:65536")):
            self.run("sh", "-c", 'echo "$1" >> "/etc/$0"', file, line)
        for folder in (f"/var/users/{USER}", f"/run/user/{USER}"):
            self.run("install", "-d", "-o", USER, "-g", USER, "-m", "700", folder)

    def write(self, path, text):
        """Writes a file as the host sees it."""
        self.run("sh", "-c", 'mkdir -p "${0%/*}" && printf %s "$1" > "$0"', path, text)

    @property
    def path(self):
        """The file that names its network namespace."""
        return f"/proc/{self.holder.pid}/ns/net"

    def enter(self, user=0):
        """The start of a command line that runs something here, with its environment."""
        own = {"HOME": f"/var/users/{user}", "XDG_RUNTIME_DIR": f"/run/user/{user}"}
        settings = environment(PATH=f"/opt/omniverb/bin:{_PATH}", **(own if user else {}))
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups"] if user else []
        return ["env", "-i", *(f"{name}={value}" for name, value in settings.items()),
                *self._namespaces(), *become]

    def start(self, *argv, user=0, **options):
        """Starts a program here."""
        return process.start([*self.enter(user), *argv], **options)

    def run(self, *argv, user=0, **options):
        """Runs a program here and returns its output."""
        return process.run([*self.enter(user), *argv], **options)

    def vnic(self, pid):
        """What the daemon says of the device of a process's network namespace."""
        inode = os.stat(f"/proc/{pid}/ns/net").st_ino
        return next((vnic for vnic in self.daemon.vnics() if vnic["namespace"] == inode), {})

    def objects(self):
        """Names of vNICs that rules have described."""
        return sorted(vnic["object"] for vnic in self.daemon.vnics() if vnic["object"])

    def close(self):
        """Ends all that runs here."""
        if self.daemon:
            self.daemon.close()
        process.end(self.holder)
        if self.hybrid:
            process.until(self._ended, 10, "the end of all processes of the host")

    def _ended(self):
        """Whether nothing is left in its cgroups; they are then removed."""
        folders = [folder for top in pathlib.Path("/sys/fs/cgroup").glob(f"*/{self.group}")
                   for folder, _, _ in os.walk(top, topdown=False)]
        for folder in folders:
            for pid in pathlib.Path(folder, "cgroup.procs").read_text().split():
                process.kill(int(pid))
        for folder in folders:
            try:
                os.rmdir(folder)
            except OSError:
                return False
        return True


def make_root(root, dist):
    """A small root file system, from programs of this machine, with the libraries that they and
    those in dist/ need."""
    programs = [shutil.which(name) for name in _PROGRAMS]
    busybox = shutil.which("busybox")
    if not busybox or not all(programs):
        raise Skip("without busybox, perftest or ibverbs-utils")
    for folder in _FOLDERS:
        (root / folder).mkdir(parents=True)
    shutil.copy(busybox, root / "bin/busybox")
    for name in process.run([busybox, "--list"]).split():
        if name != "busybox":
            (root / "bin" / name).symlink_to("busybox")
    for program in programs:
        shutil.copy(program, root / "usr/bin")
    for binary in [*programs, *(dist / "lib").glob("*.so*")]:
        for library in re.findall(r"(/\S+) \(0x", process.run(["ldd", binary])):
            (root / library[1:]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(library, root / library[1:])
    for name, text in _ETC.items():
        (root / "etc" / name).write_text(text)
