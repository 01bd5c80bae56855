"""The harness itself: are the containers as unprivileged as they claim to be?"""

from harness import containers, network
from harness.case import WAITS, Case, Group, check
import contextlib


@contextlib.contextmanager
def _container(stage):
    switch = network.Switch()
    try:
        part = containers.Container(stage, "c1", stage.folder("empty"), switch, "10.77.0.1/24")
        try:
            yield part
        finally:
            part.close()
    finally:
        switch.close()


def _privileges(container):
    status = container.run("cat", "/proc/self/status", plain=True)
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    check(fields["CapEff"] == "00000000a80425fb", f"capabilities {fields['CapEff']}")
    check(fields["Seccomp"].strip() == "2", "no seccomp filter")
    check(fields["NoNewPrivs"].strip() == "1", "new privileges are possible")
    check(container.run("sh", "-c", "ulimit -l", plain=True).strip() == "64", "memlock")
    check("infiniband" not in container.run("ls", "/dev", plain=True), "a device")


_PROBE = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for number in (323, 438, 425, 321, 298, 272, 308, 165):
    assert libc.syscall(number, 0, 0, 0, 0) == -1 and ctypes.get_errno() == 1, number
"""


def _refusals(container):
    container.run("/usr/bin/python3", "-c", _PROBE, plain=True)


def _views(container):
    check(container.run("hostname", plain=True).strip() == "c1", "uts namespace")
    links = container.run("ip", "-br", "link", plain=True).split("\n")
    check([line.split("@")[0].split()[0] for line in links if line] == ["lo", "eth0"], f"{links}")
    pids = container.run("sh", "-c", "ls -d /proc/[0-9]* | wc -l", plain=True)
    check(int(pids) < 8, f"{pids} processes")


def groups():
    """Needs no daemon."""
    return [Group("harness", [
        Case("harness.default_privileges", _privileges),
        Case("harness.refused_system_calls", _refusals),
        Case("harness.own_namespaces", _views),
    ], _container, weight=WAITS)]
