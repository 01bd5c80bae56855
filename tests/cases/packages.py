"""Tests Debian's packages: built from dist/, installed in stock root file systems, removed."""

import contextlib
import filecmp
import glob
import os
import pathlib
import re
import tempfile

from harness import debian_guest, guest_image, process, staging
from harness.case import WAITS, Case, Group, Skip, check
from harness.simulated_host import Host
from harness.virtual_machines import Machine

_BUILD = staging.ROOT / "deploy" / "debian" / "build"
_SUITES = ["bookworm", "trixie"]
_NAMES = ["omniverb", "omniverb-guest"]
# Of whose memory a peer writes, and where its second process waits for it.
_PROGRAM, _PORT = "engine_memory_target", 18610

# In the root file system, which is an overlay: what is changed is gone afterwards. Nothing is left
# of a package that was taken out but what dpkg and systemd note of it.
_INSIDE = """
files() {
    find / -xdev \\( -path /proc -o -path /tmp -o -path /run -o -path /var/lib/dpkg \\
        -o -path /var/log -o -path /var/cache \\
        -o -path /var/lib/systemd/deb-systemd-helper-masked \\) -prune \\
        -o -print | sort
}
[ "$(tail -n +3 /proc/net/dev | cut -d : -f 1 | tr -d ' ')" = lo ]
files >/tmp/before
for turn in 1 2; do
    dpkg --install /tmp/package.deb
    dpkg --install /tmp/package.deb
    [ -z "$(dpkg --verify "$1")$(dpkg --audit)" ]
    omniverb --version
    for library in /usr/lib/omniverb/*.so*; do
        LD_LIBRARY_PATH=/usr/lib/omniverb ldd "$library" >/tmp/libraries
        if grep 'not found' /tmp/libraries; then exit 1; fi
    done
    # The distribution's own is as it was, and the same program finds ours.
    ldd "$(command -v ibv_devinfo)" | grep -q 'libibverbs.so.1 => /lib/'
    LD_LIBRARY_PATH=/usr/lib/omniverb ldd "$(command -v ibv_devinfo)" |
        grep -q 'libibverbs.so.1 => /usr/lib/omniverb/'
    # What it says of other units is not about ours.
    systemd-analyze verify --man=no /usr/lib/systemd/system/omniverb*.service >/tmp/units 2>&1 ||
        true
    if grep omniverb /tmp/units; then exit 1; fi
    # It is started when the system is, and when a removal is taken back; a cluster's agent is not.
    for unit in /usr/lib/systemd/system/omniverb*.service; do
        wanted=enabled
        [ "${unit##*/}" != omniverb-cluster.service ] || wanted=disabled
        [ "$(systemctl is-enabled "${unit##*/}" || true)" = "$wanted" ]
    done
    sh /var/lib/dpkg/info/"$1".prerm remove
    sh /var/lib/dpkg/info/"$1".postinst abort-remove
    if [ "$turn" = 1 ]; then dpkg --remove "$1"; fi
    dpkg --purge "$1"
    files >/tmp/after
    diff /tmp/before /tmp/after
done
echo all is well
"""

_AROUND = """
mount -t tmpfs none "$1"
mkdir "$1/changes" "$1/work" "$1/system"
mount -t overlay -o "lowerdir=$2,upperdir=$1/changes,workdir=$1/work" none "$1/system"
mount -t proc none "$1/system/proc"
mount -t tmpfs none "$1/system/tmp"
mount -t tmpfs none "$1/system/run"
cp "$3" "$1/system/tmp/package.deb"
exec chroot "$1/system" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \\
    DEBIAN_FRONTEND=noninteractive sh -ec "$4" sh "$5"
"""


class _Packages:
    def __init__(self, stage, folder):
        self.stage, self.folder = stage, pathlib.Path(folder)
        for name in ("one", "other"):
            (self.folder / name).mkdir()
            # Not of the last commit: there may be another one meanwhile. And soon.
            process.run(["env", "SOURCE_DATE_EPOCH=1700000000", "COMPRESSION=-Zgzip -z1", _BUILD,
                         self.folder / name], limit=150)

    def find(self, name):
        """The package of this name."""
        found = glob.glob(str(self.folder / "one" / f"{name}_*.deb"))
        check(len(found) == 1, f"{found}")
        return found[0]


@contextlib.contextmanager
def _packages(stage):
    with tempfile.TemporaryDirectory(prefix="omniverb-packages-") as folder:
        yield _Packages(stage, folder)


def _same(packages):
    """Who builds them again gets the same bytes."""
    for name in _NAMES:
        one = packages.find(name)
        check(filecmp.cmp(one, one.replace("/one/", "/other/"), shallow=False), one)


def _installed(suite, name):
    def run(packages):
        system = staging.BUILT / f"debian-{suite}"
        if not system.exists():
            raise Skip(f"no root file system of {suite}: see tests/guest/fetch-debian")
        place = packages.folder / "place"
        place.mkdir(exist_ok=True)
        text = process.run(["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "sh",
                            "-ec", _AROUND, "sh", place, system, packages.find(name), _INSIDE,
                            name], limit=100)
        check(text.endswith("all is well\n"), text)
        check(not os.listdir(place), "something was left outside")
    return run


class _Stock(Machine):
    """A machine that is a stock Debian with the package in it: udev and systemd start the agent."""

    # Its memory is shared, and no window with anybody: all goes by the engine.
    neighbours = 0
    boot_limit = 300.0
    kernel_words = "net.ifnames=0"

    def __init__(self, stage, host, archive, kernel):
        super().__init__(stage, host, archive, memory=1536, kernel=kernel)

    def command(self, stage):
        line = super().command(stage)
        return [*line[:-1], "--shared-memory", "--"]

    def _set_up(self):
        process.until(lambda: self.run("systemctl", "is-active", "omniverb-agent.service",
                                       accept=range(256)).strip() == "active", 120,
                      lambda: f"the agent\n{self._state()}")

    def _state(self):
        return self.run("sh", "-c", "systemctl status --no-pager omniverb-agent.service; "
                        "systemctl list-jobs --no-pager; ls -l /dev/dax* /dev/virtio-ports; lsmod",
                        accept=range(256))

    def verbs(self, *argv, **options):
        return self.run("omniverb", "run", "--", *argv, **options)


# What there is to see of who keeps pages.
_SEEN = """ps -eo pid,user,args | grep '[o]mniverb'
journalctl --no-pager -u omniverb-agent.service
for pid in $(pgrep -f 'vm pin'); do
    grep -E '^(Cap|Seccomp|NoNew)' "/proc/$pid/status"; ls -l "/proc/$pid/fd"
done
ls -la /run/omniverb-agent; ulimit -l; sysctl kernel.io_uring_disabled"""

_EXAMPLE = "/usr/share/omniverb-guest/omniverb-agent-shared-memory.conf"
_DROP_IN = "/etc/systemd/system/omniverb-agent.service.d"


def _serves(machine, what="another agent"):
    process.until(lambda: "omv0" in machine.verbs("ibv_devinfo", accept=range(256), limit=60), 60,
                  what)


def _in_place(host, machine):
    """With its drop-in the unit allows what keeps pages where they are: and they are reached there.
    Without it there is nothing of the kind."""
    place = host.add(1)
    check("vm pin" not in machine.run("ps", "-eo", "args"), "who keeps pages is there unasked")
    machine.run("sh", "-c", f"mkdir {_DROP_IN} && cp {_EXAMPLE} {_DROP_IN} && "
                "systemctl daemon-reload && systemctl restart omniverb-agent", limit=60)
    _serves(machine)
    words = ["owner_and_peer", 1, 3]
    line = f"exec omniverb run -- /opt/{_PROGRAM} {' '.join(map(str, words))}"
    owner = machine.start("sh", "-c", f"TEST_ELSEWHERE={_PORT} TEST_TIMEOUT=18 {line}")
    process.until(lambda: owner.poll() is not None or machine.listens(_PORT), 60, "the owner")
    place.run("env", "TEST_TIMEOUT=18", f"TEST_ELSEWHERE={machine.address}={_PORT}",
              f"/opt/programs/{_PROGRAM}", *words, limit=120)
    check(owner.wait(60) == 0, "the owner")
    process.until(lambda: machine.row()["sessions"] == 0, 20, "the owner to be gone")

    def executed():
        [vnic] = [vnic for vnic in host.daemon.vnics() if vnic["name"].startswith("vm-")]
        return vnic["ended"]["packets"]["executed"]
    process.until(lambda: executed() > 0, 10, lambda: "operations that were executed in place\n"
                  f"{machine.row()}\n{machine.run('sh', '-c', _SEEN, accept=range(256))}")
    found = machine.run("sh", "-c", "ps -eo pid,args | grep '[v]m pin'").split()
    score = machine.run("cat", f"/proc/{found[0]}/oom_score_adj").strip()
    main = machine.run("systemctl", "show", "-P", "MainPID", "omniverb-agent.service").strip()
    others = machine.run("cat", f"/proc/{main}/oom_score_adj").strip()
    check((score, others) == ("-1000", "0"), f"{score} {others}")
    text = machine.run("stat", "-c", "%a %u", "/run/omniverb-agent").strip()
    check(text == "700 0", text)
    machine.run("sh", "-c", f"rm -r {_DROP_IN} && systemctl daemon-reload && systemctl restart "
                "omniverb-agent", limit=60)
    _serves(machine)


def _booted(suite):
    def run(packages):
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="omniverb-stock-"))
            # The oldest has the kernel of all other guests here; each newer one its own.
            kernel = guest_image.Kernel(None if suite == _SUITES[0] else suite)
            archive = debian_guest.archive(suite, packages.find("omniverb-guest"), folder, kernel,
                                    guest_image.DAX, packages.stage.programs / _PROGRAM)
            host = Host(packages.stage, "stock")
            stack.callback(host.close)
            machine = host.keep(_Stock(packages.stage, host, archive, kernel))
            check(machine.run("uname", "-r").strip() == kernel.version, "another kernel")
            text = machine.verbs("ibv_devinfo", "-v", limit=60)
            check("omv0" in text and machine.address in text, text)
            unit = ["systemctl", "show", "-P", "MainPID", "omniverb-agent.service"]
            status = machine.run("cat", f"/proc/{machine.run(*unit).strip()}/status")
            check(re.search(r"Uid:\t200\d{7}\t", status) and "NoNewPrivs:\t1" in status, status)
            _in_place(host, machine)
            # Who kills it finds another one.
            machine.run("systemctl", "kill", "-s", "KILL", "omniverb-agent.service")
            _serves(machine)
            machine.run("dpkg", "--purge", "omniverb-guest", limit=240)
            check(not machine.run("sh", "-c", "pidof omniverb || true").strip(), "an agent is left")
            left = machine.run("sh", "-c", "ls -dl /run/omni* 2>/dev/null || true")
            check(not left, f"left: {left}")
            # Whoever installs it where the port is has a device, without another start.
            machine.run("dpkg", "--install", "/package.deb", limit=240)
            _serves(machine, "an agent anew")
    return run


def groups():
    """What is installed where."""
    cases = [Case("packages.same", _same, 180)]
    cases += [Case(f"packages.{name} in {suite}", _installed(suite, name), 120)
              for suite in _SUITES for name in _NAMES]
    cases += [Case(f"packages.booted {suite}", _booted(suite), 900, slow=True) for suite in _SUITES]
    return [Group("packages", cases, _packages, weight=WAITS)]
