"""Starts containers by the commands of Docker, Podman, LXC, systemd-nspawn and `ip netns`.

Each platform runs a program as a container's own (`start`, with the line that the documents show),
or a container that sleeps (`idle`), with the address 10.60.0.`number`.

A namespace lives as long as a TCP connection in it that the kernel still has to close, which takes
minutes if the other end is gone: so all have a setting by which it gives up sooner."""

import os
import re
import shlex
import subprocess

from . import process
from .container_platform_host import USER, documented
from .staging import ROOT

GUIDE, OPERATORS_GUIDE = "docs/user/containers.md", "docs/operator/tenants.md"
SUBNET = "10.60.0"
_SLEEP = ["sleep", "3600"]
_GIVES_UP = "net.ipv4.tcp_orphan_retries"
_RUNNER = ["/opt/omniverb/bin/omniverb", "run", "--"]


def address(number):
    """The address of a container."""
    return f"{SUBNET}.{number}"


def _filled_in(words, values):
    """A command of the documents with words for what it leaves open."""
    return [word for each in words for word in values.get(each, [each])]


class _Platform:
    """What all have: names of containers, and the command lines that run in them."""

    USER, BRIDGE = 0, "br-blue"

    def __init__(self, host):
        self.host, self.running, self.names = host, {}, {}

    def start(self, name, number, *program, **options):
        """Starts a program as a container's own."""
        self.names[name] = number
        self.running[name] = process.start(self.line(name, number, *program), **options)
        return self.running[name]

    def run(self, name, number, *program, **options):
        """Runs a program as a container's own, and returns what it prints."""
        self.names[name] = number
        return process.run(self.line(name, number, *program), **options)

    def namespace(self, name):
        """The number of its network namespace; 0 if there is none yet."""
        try:
            pid = self.pid(name)
            return os.stat(f"/proc/{pid}/ns/net").st_ino if pid else 0
        except OSError:
            return 0

    def listens(self, name, port):
        """Does anything listen there?"""
        pid = self.pid(name)
        return pid and process.listens(pid, port)

    def remove(self, *names):
        """Ends containers."""
        for name in names:
            self.end(name)
            if name in self.running:
                process.end(self.running.pop(name))
            self.names.pop(name, None)

    def restart(self, name):
        """Ends its processes, and starts it again."""
        number = self.names[name]
        self.remove(name)
        self.idle(name, number)

    def close(self):
        """Ends all of it."""
        self.remove(*list(self.names))


class _Engine(_Platform):
    """What has a command line like Docker's."""

    COMMAND, REMOVE = "", ("rm", "-f")

    def __init__(self, host):
        super().__init__(host)
        self.begin()
        tar = host.stage.folder("image") / "root.tar"
        process.run(["tar", "-C", host.root, "--owner=0", "--group=0", "-cf", tar, "."])
        self.engine("import", tar, "image")
        self.network()

    def engine(self, *words, **options):
        """Runs its command."""
        return self.host.run(self.COMMAND, *words, user=self.USER, **options)

    def shell(self, text, options="", program=(), at=0):
        """A line for a shell from one of the documents, with the mounts that they show."""
        text = text.replace(f"{self.COMMAND} run", f"{self.COMMAND} run {options}", 1)
        text = text.replace("IMAGE", "image").replace("PROGRAM", shlex.join(map(str, program)))
        return [*self.host.enter(self.USER), "sh", "-c",
                f"{documented(GUIDE, 'OV=', at)}\nexec {text}"]

    def options(self, name, number):
        """Which container it is, and where."""
        return (f"--name {name} --network blue-net --ip {address(number)} "
                f"--sysctl {_GIVES_UP}=1")

    def line(self, name, number, *program, more=""):
        """The command line that runs a program."""
        return self.shell(documented(GUIDE, f"{self.COMMAND} run $OV IMAGE"),
                          f"--rm {self.options(name, number)} {more}", program)

    def idle(self, name, number):
        """Starts a container that sleeps."""
        self.names[name] = number
        process.run(self.shell(f"{self.COMMAND} run $OV IMAGE PROGRAM",
                               f"-d {self.options(name, number)}", _SLEEP))

    def pid(self, name):
        """The first process of a container; 0 if there is none yet."""
        told = self.engine("inspect", "-f", "{{.State.Pid}}", name, accept=(0, 1, 125)).strip()
        return int(told) if told.isdigit() else 0

    def restart(self, name):
        self.engine("restart", "-t", "0", name)

    def end(self, name):
        """Removes a container, if it is there."""
        self.engine(*self.REMOVE, name, accept=(0, 1))


class Docker(_Engine):
    """Docker, with a daemon of its own."""

    NAME, COMMAND, NEEDS = "docker", "docker", ("dockerd", "docker", "iptables")

    def begin(self):
        """Starts its daemon."""
        log = open(self.host.stage.folder("docker") / "log", "w+b")  # noqa: SIM115
        self.service = self.host.start("dockerd", "--exec-opt", "native.cgroupdriver=cgroupfs",
                                       stdout=log, stderr=log)
        process.until(lambda: self.service.poll() is not None or "Server:" in self.engine(
            "version", accept=(0, 1)), 30, lambda: f"dockerd\n{process.written(log)}")

    def network(self):
        """Makes its network as the documents say, with addresses that we know."""
        words = documented(OPERATORS_GUIDE, "docker network create").split()
        self.host.run(*words[:3], "--subnet", f"{SUBNET}.0/24", *words[3:])

    def close(self):
        try:
            super().close()
        finally:
            process.end(self.service, 10)


class Podman(_Engine):
    """Podman, as root."""

    NAME, COMMAND, NEEDS = "podman", "podman", ("podman", "netavark", "conmon")
    REMOVE = ("rm", "-f", "-t", "0")

    def begin(self):
        """Has it ask for no more than root without CAP_SYS_RESOURCE may have."""
        self.host.write("/etc/containers/containers.conf", "[containers]\n"
                        'default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]\n'
                        '[network]\nnetwork_backend = "netavark"\n')

    def network(self):
        """Makes its network, whose bridge has the name that the rules have."""
        self.engine("network", "create", "--subnet", f"{SUBNET}.0/24", "blue-net")


class RootlessPodman(Podman):
    """Podman, as an ordinary user. Its bridge is in a network namespace of the user's."""

    NAME, USER = "podman_rootless", USER
    NEEDS = (*Podman.NEEDS, "slirp4netns", "newuidmap")

    def begin(self):
        super().begin()
        self.host.add_user()


class _Bridged(_Platform):
    """What uses a bridge that is there."""

    def __init__(self, host):
        super().__init__(host)
        host.run("ip", "link", "add", self.BRIDGE, "type", "bridge")
        host.run("ip", "link", "set", self.BRIDGE, "up")


class Lxc(_Bridged):
    """LXC: `lxc-execute` for a program, `lxc-start` for a container that sleeps."""

    NAME, NEEDS = "lxc", ("lxc-execute", "lxc-start")

    def _configuration(self, name, number):
        path = f"/var/lib/lxc/{name}.conf"
        self.host.write(path, "\n".join([
            f"lxc.rootfs.path = dir:{self.host.root}", f"lxc.uts.name = {name}",
            "lxc.net.0.type = veth", f"lxc.net.0.link = {self.BRIDGE}", "lxc.net.0.name = eth0",
            "lxc.net.0.flags = up", f"lxc.sysctl.{_GIVES_UP} = 1",
            f"lxc.net.0.ipv4.address = {address(number)}/24",
            "lxc.mount.auto = proc:mixed sys:ro", "lxc.apparmor.profile = unconfined",
            "lxc.cgroup.relative = 1",  # the first process of the machine is in other groups
            *re.findall("^ +(lxc.mount.entry.*)", (ROOT / GUIDE).read_text(encoding="utf-8"), re.M),
            ""]))
        return path

    def line(self, name, number, *program):
        """The command line that runs a program."""
        words = documented(GUIDE, "lxc-execute").split()
        values = {"NAME": [name], "FILE": [self._configuration(name, number)], "PROGRAM": program}
        return [*self.host.enter(), *_filled_in(words, values)]

    def idle(self, name, number):
        """Starts a container that sleeps."""
        self.names[name] = number
        # What goes on keeps the output, so it cannot be a pipe.
        self.host.start("lxc-start", "-n", name, "-f", self._configuration(name, number), "-d",
                        "-s", f"lxc.init.cmd = /bin/{shlex.join(_SLEEP)}",
                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).wait(20)

    def pid(self, name):
        """The first process of a container; 0 if there is none yet."""
        told = self.host.run("lxc-info", "-n", name, "-p", "-H", accept=(0, 1)).strip()
        return int(told) if told.isdigit() else 0

    def end(self, name):
        """Ends a container, if it runs."""
        self.host.run("lxc-stop", "-n", name, "-k", accept=(0, 1, 2))


class Nspawn(_Bridged):
    """systemd-nspawn, without systemd on the host."""

    NAME, NEEDS = "nspawn", ("systemd-nspawn",)
    _INSIDE = (f'sysctl -q -w {_GIVES_UP}=1; ip addr add "$0" dev host0; ip link set lo up; '
               'ip link set host0 up; exec "$@"')

    def _line(self, name, number, *program):
        """As the documents say, but without systemd on the host, and with an address."""
        words = documented(GUIDE, "systemd-nspawn").replace("BRIDGE", self.BRIDGE).split()
        mounts = words[1:words.index(_RUNNER[0])]
        return [*self.host.enter(), words[0], "--quiet", "--register=no", "--keep-unit",
                "--as-pid2", "--pipe", "--read-only", f"--machine={name}",
                *_filled_in(mounts, {"FOLDER": [self.host.root]}),
                "sh", "-c", self._INSIDE, f"{address(number)}/24", *program]

    def line(self, name, number, *program):
        """The command line that runs a program."""
        return self._line(name, number, *_RUNNER, *program)

    def idle(self, name, number):
        """Starts a container that sleeps."""
        self.names[name] = number
        self.running[name] = process.start(self._line(name, number, *_SLEEP),
                                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def pid(self, name):
        """A process in the container; 0 if there is none yet."""
        own = os.stat(self.host.path).st_ino
        for pid in process.descendants(self.running[name].pid):
            try:
                if os.stat(f"/proc/{pid}/ns/net").st_ino != own:
                    return pid
            except OSError:
                continue
        return 0

    def end(self, name):
        """Nothing but the process that we have started."""


class Netns(_Bridged):
    """`ip netns`: a network namespace with a name, and programs of the host's in it."""

    NAME, NEEDS = "netns", ("ip",)

    def idle(self, name, number):
        """Makes a namespace, with an interface."""
        self.names[name] = number
        port = f"port-{name}"
        self.host.run("ip", "netns", "add", name)
        self.host.run("ip", "link", "add", port, "type", "veth", "peer", "name", "eth0",
                      "netns", name)
        self.host.run("ip", "link", "set", port, "master", self.BRIDGE, "up")
        for words in (["addr", "add", f"{address(number)}/24", "dev", "eth0"],
                      ["link", "set", "lo", "up"], ["link", "set", "eth0", "up"]):
            self.host.run("ip", "-n", name, *words)
        self.host.run("ip", "netns", "exec", name, "sysctl", "-q", "-w", f"{_GIVES_UP}=1")

    def line(self, name, number, *program):
        """The command line that runs a program."""
        if not self.namespace(name):
            self.idle(name, number)
        words = documented(GUIDE, "ip netns exec").split()
        return [*self.host.enter(), *_filled_in(words, {"NAME": [name], "PROGRAM": program})]

    def pid(self, name):
        """A process in the namespace; 0 if there is none."""
        return self.running[name].pid if name in self.running else 0

    def namespace(self, name):
        told = self.host.run("stat", "-L", "-c", "%i", f"/run/netns/{name}", accept=(0, 1)).strip()
        return int(told) if told.isdigit() else 0

    def end(self, name):
        """Removes the namespace."""
        if name in self.running:
            process.end(self.running[name])
        self.host.run("ip", "netns", "delete", name, accept=(0, 1))


PLATFORMS = (Docker, Podman, RootlessPodman, Lxc, Nspawn, Netns)
