"""Tests the harness: the containers are as unprivileged as they claim."""

import contextlib
import pathlib
import subprocess
import tempfile

from harness import containers, network, process, staging
from harness.case import WAITS, Case, Group, Skip, check


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


# ---- the guest's kernel ----

_FETCH = staging.ROOT / "tests" / "guest" / "fetch-kernel"
_MODULE = "lib/modules/*/kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko*"


def _bench_fetches_it(_):
    """What measures against rdma_rxe has its kernel fetched, and does not go on without."""
    lines = process.run(["make", "-C", staging.ROOT, "-n", "bench"]).splitlines()
    fetches = [at for at, line in enumerate(lines) if "tests/guest/fetch-kernel" in line]
    measures = [at for at, line in enumerate(lines) if "bench/rdma_rxe_in_vm.py" in line]
    check(len(fetches) == len(measures) == 1 and fetches < measures, "\n".join(lines))
    check("||" not in lines[fetches[0]], f"goes on without: {lines[fetches[0]]}")


def _fetched_into_nothing(_):
    """An empty folder has a kernel with rdma_rxe afterwards, or the machine has one installed."""
    if subprocess.run(["apt-get", "update"], stdin=subprocess.DEVNULL, capture_output=True,
                      check=False).returncode:
        raise Skip("no mirror of Debian can be reached")
    with tempfile.TemporaryDirectory() as folder:
        kernel = pathlib.Path(folder, "kernel")
        process.run([_FETCH, kernel], limit=240)
        found = [*pathlib.Path("/").glob(_MODULE), *kernel.glob(_MODULE)]
        check(found, "no kernel has rdma_rxe")
        check(kernel not in found[0].parents or list(kernel.glob("boot/vmlinuz-*")), "no image")


def groups():
    """Needs no daemon."""
    return [Group("harness.guest", [
        Case("harness.bench_fetches_the_guest_s_kernel", _bench_fetches_it),
        Case("harness.kernel_fetched_into_nothing", _fetched_into_nothing, 300, slow=True),
    ], staged=False, weight=WAITS), Group("harness", [
        Case("harness.default_privileges", _privileges),
        Case("harness.refused_system_calls", _refusals),
        Case("harness.own_namespaces", _views),
    ], _container, weight=WAITS)]
