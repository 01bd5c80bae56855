"""Containers that Docker, Podman, LXC, systemd-nspawn and `ip netns` start by their own commands
have the vNIC that rules say, use it as the documents say, and leave nothing behind."""

import contextlib
import itertools
import re
import subprocess
import tempfile
import time

from harness import container_platforms, process
from harness.case import POLLS, Case, Group, check
from harness.container_platforms import GUIDE, OPERATORS_GUIDE, PLATFORMS, address
from harness.container_platform_host import PlatformHost, documented

# The last address of a platform's network is a stranger's.
_STRANGER = 66
_RULES = f"""
[tenant.blue]
[tenant.red]
[policy.careful]
adoption = "exact"

[[container]]
address = "{address(_STRANGER)}/32"
tenant = "red"
name = "red-{{address}}"

[[container]]
interface = "tap0"
tenant = "red"
name = "red-{{interface}}"

[[container]]
MATCH
tenant = "blue"
policies = ["careful"]
name = "blue-{{address}}"
"""
_ports = itertools.count(18600)


def _bridge(kind):
    """What the bridge of a platform's network is called. This Podman has it choose itself."""
    return "podman1" if kind is container_platforms.Podman else kind.BRIDGE


def _match(kind):
    """Which containers are blue."""
    if kind is container_platforms.RootlessPodman:
        return f'address = "{container_platforms.SUBNET}.0/24"'
    return f'bridge = "{_bridge(kind)}"'


def _fixture(kind):
    @contextlib.contextmanager
    def fixture(stage):
        host = PlatformHost(stage, _RULES.replace("MATCH", _match(kind)), kind.NEEDS)
        with contextlib.closing(host), contextlib.closing(kind(host)) as platform:
            yield platform
    return fixture


def _vnics(platform, expected):
    """Waits until rules have described these vNICs and no others, each once."""
    host, started = platform.host, time.monotonic()
    process.until(lambda: host.objects() == sorted(expected), 20,
                  lambda: f"{sorted(expected)}, not {host.daemon.vnics()}\n{host.daemon.log()}")
    print(f"{sorted(expected)} after {time.monotonic() - started:.2f} s")


def _of(platform, name):
    """What the daemon says of a container's vNIC."""
    inode = platform.namespace(name)
    return next((vnic for vnic in platform.host.daemon.vnics() if vnic["namespace"] == inode), {})


def _ready(platform):
    """A vNIC is there before any process, once, and goes with its container."""
    for name, number in (("shop", 2), ("bank", 3), ("stranger", _STRANGER)):
        platform.idle(name, number)
    blue = [f"blue-{address(2)}", f"blue-{address(3)}"]
    all_of_them = [*blue, f"red-{address(_STRANGER)}"]
    _vnics(platform, all_of_them)
    for name, number, tenant in (("shop", 2, "blue"), ("bank", 3, "blue"),
                                 ("stranger", _STRANGER, "red")):
        vnic = _of(platform, name)
        check(vnic["object"] == f"{tenant}-{address(number)}", f"{name}: {vnic}")
        check(vnic["tenant"] == tenant and vnic["processes"] == 0, f"{name}: {vnic}")
        check((vnic["adoption"] == "exact") == (tenant == "blue"), f"{name}: {vnic}")
    # What is made by hand on the host is no container.
    host = platform.host
    host.run("ip", "link", "add", "hand0", "type", "veth", "peer", "name", "hand1")
    host.run("ip", "link", "set", "hand0", "up")
    host.run("ip", "link", "set", "hand1", "master", _bridge(type(platform)), "up")
    # The container comes again, the daemon comes again: nothing is there twice.
    before = _of(platform, "shop")["name"]
    platform.restart("shop")
    # The kernel may use a namespace's number again; the daemon uses no name again.
    process.until(lambda: _of(platform, "shop").get("name") not in (None, before)
                  and _of(platform, "shop").get("object") == blue[0], 20,
                  lambda: f"{platform.host.daemon.vnics()}\n{platform.host.daemon.log()}")
    _vnics(platform, all_of_them)
    daemon = platform.host.daemon
    daemon.kill()
    daemon.socket.unlink()
    daemon.start()
    _vnics(platform, all_of_them)
    platform.remove("shop", "stranger")
    _vnics(platform, blue[1:])
    platform.remove("bank")
    _vnics(platform, [])
    check(len(daemon.vnics()) <= 1, f"{daemon.vnics()}")


class _Pair:
    """perftest in two containers, as the first process of each."""

    def __init__(self, platform, *program, client=5):
        self.platform = platform
        self.port, self.files = str(next(_ports)), [tempfile.TemporaryFile("w+") for _ in range(2)]
        line = [*program, "-F", "-p", self.port]
        self.server = self._start(0, "server", 4, *line)
        process.until(lambda: platform.listens("server", int(self.port))
                      or self.server.poll() is not None, 20, self.text)
        self.client = self._start(1, "client", client, *line, address(4))

    def _start(self, side, name, number, *program):
        file = self.files[side]
        return self.platform.start(name, number, *program, stdout=file, stderr=file)

    def text(self):
        """What both have printed."""
        return "\n".join(process.written(file) for file in self.files)

    def wait(self):
        """Exit statuses of the client and the server, as far as they end."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            for side in (self.client, self.server):
                side.wait(20)
        return [self.client.poll(), self.server.poll()]

    def close(self):
        """Ends both."""
        self.platform.remove("server", "client")
        for file in self.files:
            file.close()


def _verbs(platform):
    """The documented line shows a device with the container's address, and two containers talk."""
    told = platform.run("shop", 2, "ibv_devinfo", "-v")
    check(f"::ffff:{address(2)}" in told and "PORT_ACTIVE" in told, told)
    platform.remove("shop")
    with contextlib.closing(_Pair(platform, "ib_write_lat", "-n", "100")) as pair:
        ended = pair.wait()
        check(ended == [0, 0], f"{ended}\n{pair.text()}")
    _vnics(platform, [])


def _ends_at_work(platform):
    """Two containers have a direct link, and are removed while they use it."""
    daemon = platform.host.daemon
    with contextlib.closing(_Pair(platform, "ib_write_lat", "-D", "3600")) as pair:
        def paths():
            return [qp.get("path") for qp in daemon.queue_pairs()]
        process.until(lambda: paths() == ["direct", "direct"], 20,
                      lambda: f"{paths()}\n{pair.text()}")
        _vnics(platform, [f"blue-{address(4)}", f"blue-{address(5)}"])
    _vnics(platform, [])
    process.until(lambda: not daemon.left(), 20, lambda: f"{daemon.left()}")


def _stranger(platform):
    """A container of another tenant in the same network reaches nothing by RDMA."""
    line = ["ib_write_bw", "-n", "1000", "-u", "8"]
    with contextlib.closing(_Pair(platform, *line, client=_STRANGER)) as pair:
        check(pair.wait()[0] not in (0, None), pair.text())
        # TCP has passed.
        check("remote address: LID" in process.written(pair.files[1]), pair.text())
        check("Completion with error" in pair.text(), pair.text())
        check(platform.host.daemon.log().count("of tenant red"), platform.host.daemon.log())
    _vnics(platform, [])


def _without_veth(platform):
    """The network that Podman gives an ordinary user by default: the vNIC comes with the first
    process, by the rules, and goes with it."""
    platform.names["lone"] = 0
    process.run(platform.shell("podman run $OV IMAGE PROGRAM", "-d --name lone", ["sleep", "999"]))
    inside = ["exec", "lone", "/opt/omniverb/bin/omniverb", "run", "--"]
    time.sleep(0.5)
    _vnics(platform, [])
    told = platform.engine(*inside, "ibv_devinfo", "-v")
    check("::ffff:10.0.2.100" in told, told)
    line = [*inside, "ib_write_lat", "-F", "-n", "1000", "-p", str(next(_ports))]
    server = platform.host.start("podman", *line, user=platform.USER)
    process.until(lambda: platform.listens("lone", int(line[-1])), 20, "the server")
    _vnics(platform, ["red-tap0"])
    check(_of(platform, "lone")["tenant"] == "red", f"{platform.host.daemon.vnics()}")
    platform.engine(*line, "10.0.2.100")
    check(server.wait(10) == 0, f"{server.returncode}")
    platform.remove("lone")
    _vnics(platform, [])


def _isolated(platform):
    """With --isolate, a container that no rule describes has no device."""
    daemon = platform.host.daemon
    daemon.arguments.append("--isolate")
    daemon.kill()
    daemon.socket.unlink()
    daemon.start()
    line = documented(GUIDE, "docker run $OV IMAGE")
    told = process.run(platform.shell(line, "--rm", ["ibv_devices"]))
    check("has no device for this network namespace" in told, told)
    check(not re.search(r"^\s*omv0", told, re.MULTILINE), told)
    told = platform.run("shop", 2, "ibv_devices")
    check("omv0" in told, told)
    daemon.arguments.remove("--isolate")
    daemon.kill()
    daemon.socket.unlink()
    daemon.start()


def _documents(platform):
    """What the documents say of Docker, as it stands there."""
    host, policies = platform.host, "docs/operator/policies.md"

    def run(line, program=("ibv_devices",), options="--rm", at=0):
        return process.run(platform.shell(line, options, program, at))

    def operator(line, accept=(0,)):
        return host.run("sh", "-c", line, accept=accept)
    one = documented(GUIDE, "docker run $OV IMAGE")
    # A user without any privilege.
    told = run(one, options="--rm --user 65534 --cap-drop ALL --read-only "
                            "--security-opt no-new-privileges")
    check("omv0" in told, told)
    told = run(documented(GUIDE, "docker run $OV -e"), options="--rm --device "
               "/dev/full:/dev/infiniband/uverbs0", program=[
                   "sh", "-c", "[ -c /dev/infiniband/uverbs0 ] && ibv_devices"])
    check("omv0" in told, told)
    told = run(documented("docs/user/sockets.md", "docker run $OV IMAGE"))
    check("omv0" in told, told)
    # The files of the package, which are not where they are installed.
    host.run("mkdir", "-p", "/run/usr", "/run/usr-work")
    host.run("mount", "-t", "overlay", "-o",
             "lowerdir=/usr,upperdir=/run/usr,workdir=/run/usr-work", "overlay", "/usr")
    host.run("cp", "-r", "/opt/omniverb/lib", "/usr/lib/omniverb")
    host.run("cp", "/opt/omniverb/bin/omniverb", "/usr/bin/omniverb")
    check("omv0" in run(one, at=1), "the package's files")
    # A container by its process, and a namespace that is kept by a container.
    platform.idle("SHOP", 2)
    _vnics(platform, [f"blue-{address(2)}"])
    operator(documented(OPERATORS_GUIDE, "omniverb vnic set pid:").replace("blue", "red"))
    check(_of(platform, "SHOP")["tenant"] == "red", f"{host.daemon.vnics()}")
    operator(documented(policies, "omniverb vnic set pid:").replace("CONTAINER", "SHOP"))
    check(_of(platform, "SHOP")["rate"] == 300_000_000, f"{host.daemon.vnics()}")
    line = documented("docs/user/troubleshooting.md", "docker exec").replace("CONTAINER", "SHOP")
    told = operator(line, (0, 1))
    check("ok " in told and "BAD" not in told, told)
    platform.remove("SHOP")
    platform.names["shop"] = 0
    run(documented(OPERATORS_GUIDE, "docker run -d --name shop"), options="")
    line = documented(OPERATORS_GUIDE, "docker exec shop").partition("-- ")[0]
    check("omv0" in operator(f"{line} -- ibv_devices"), "docker exec")
    platform.remove("shop")
    platform.names["web-net"] = 0
    run(documented(policies, "docker run -d").replace("NETWORK", "blue-net"), options="")
    operator(documented(policies, "omniverb vnic create web"))
    for _ in range(2):
        told = run(documented(policies, "docker run --network container:web-net"))
        check("omv0" in told, told)
        vnic = _of(platform, "web-net")
        check(vnic["object"] == "web" and vnic["rate"] == 300_000_000, f"{vnic}")
    host.run("omniverb", "vnic", "delete", "web")
    platform.remove("web-net")
    _vnics(platform, [])


_MORE = {
    container_platforms.Docker: [("ready", _ready), ("isolated", _isolated),
                                 ("documents", _documents)],
    container_platforms.RootlessPodman: [("without_veth", _without_veth)],
}


def _group(kind):
    name = f"platforms.{kind.NAME}"
    cases = [("verbs", _verbs), ("ends_at_work", _ends_at_work), ("stranger", _stranger),
             *_MORE.get(kind, [("ready", _ready)])]
    return Group(name, [Case(f"{name}.{case}", run) for case, run in cases], _fixture(kind),
                 weight=POLLS)


def groups():
    """A host for each platform."""
    return [_group(kind) for kind in PLATFORMS]
