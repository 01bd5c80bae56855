"""The harness itself: are the containers as unprivileged as they claim to be?"""

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
    measures = [at for at, line in enumerate(lines) if "bench/guest.py" in line]
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


# ---- a disk that is full ----

# In a file system of 64 KiB: a case fails, is tried once more, and fails; and what it had printed
# does not fit.
_ON_A_FULL_DISK = """
import os, pathlib, sys
sys.path.insert(0, sys.argv[1])
from harness.report import Report
report = Report(pathlib.Path(sys.argv[2]))
log = os.open(report.log_path("x"), os.O_WRONLY | os.O_CREAT)
try:
    while True:
        os.write(log, bytes(4096))
except OSError as error:
    print(error)
report.again("x", 0, "the reason", "")
report.add("x", "FAIL", 0, "the reason")
sys.exit(report.finish())
"""


def _full_disk(_):
    """A disk that is full is named, and what failed is counted."""
    with tempfile.TemporaryDirectory() as folder:
        text = process.run(["unshare", "--mount", "sh", "-ec",
                            'mount -t tmpfs -o size=64k none "$1"; shift; exec "$@"', "sh", folder,
                            "/usr/bin/python3", "-c", _ON_A_FULL_DISK, staging.ROOT / "tests",
                            folder], accept=(1,))
    lines = text.splitlines()
    check(lines[-1] == "0 passed, 1 failed" and "Traceback" not in text, text)
    check(sum("the disk is full: " in line for line in lines) == 3, text)


# ---- what a fixture says at its end ----

# Two groups whose fixtures fail when their cases have passed, one by saying so, one by dying, and
# one that is well.
_BAD_ENDS = """
import contextlib, os, pathlib, sys
sys.path.insert(0, sys.argv[1])
from harness import runner
from harness.case import Case, Failure, Group
from harness.report import Report

def fixture(end):
    @contextlib.contextmanager
    def one(stage):
        yield
        end()
    return one

def fails():
    raise Failure("something was left")

report = Report(pathlib.Path(sys.argv[2]))
runner.run_groups([Group(end.__name__, [Case("passes", lambda _: None)], fixture(end))
                   for end in (fails, os.abort, int)], None, report)
sys.exit(report.finish())
"""


def _bad_ends(_):
    """A fixture that fails when its cases have passed is a failure."""
    with tempfile.TemporaryDirectory() as folder:
        text = process.run(["/usr/bin/python3", "-c", _BAD_ENDS, staging.ROOT / "tests", folder],
                           accept=(1,))
    lines = text.splitlines()
    check(lines[-1] == "3 passed, 2 failed", text)
    check("something was left" in text and "SIGABRT" in text, text)


def groups():
    """Needs no daemon."""
    return [Group("harness.guest", [
        Case("harness.full_disk", _full_disk),
        Case("harness.fixture_fails_at_its_end", _bad_ends),
        Case("harness.bench_fetches_the_guest_s_kernel", _bench_fetches_it),
        Case("harness.kernel_fetched_into_nothing", _fetched_into_nothing, 300, slow=True),
    ], staged=False, weight=WAITS), Group("harness", [
        Case("harness.default_privileges", _privileges),
        Case("harness.refused_system_calls", _refusals),
        Case("harness.own_namespaces", _views),
    ], _container, weight=WAITS)]
