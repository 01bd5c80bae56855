"""Tests the kernel of the newest stable Debian on the newest QEMU that Debian has."""

import contextlib

from harness import guest_image
from harness.case import WAITS, Case, Group, check
from harness.virtual_machines import Lab, Machine, files

from cases import vm_rdma_cm_and_vnic_settings, virtual_machines

_SUITE = "trixie"


def _machine(stage, host):
    kernel = guest_image.Kernel(_SUITE)
    archive = guest_image.archive(files(stage), guest_image.DAX, "newest", kernel)
    return Machine(stage, host, archive, kernel=kernel, emulator=guest_image.newest_emulator())


def _are_newer(lab):
    release = lab.machine.run("/bin/busybox", "uname", "-r").strip()
    check(release == guest_image.Kernel(_SUITE).version != guest_image.Kernel().version, release)
    with open(f"/proc/{lab.machine.machine.pid}/maps", encoding="utf-8") as file:
        check(str(guest_image.newest_emulator()[0]) in file.read(), "another QEMU")


def groups():
    """One machine for all."""
    found = [("versions", _are_newer), *vm_rdma_cm_and_vnic_settings.few(), *virtual_machines.few()]
    return [Group("machines.newest",
                  [Case(f"machines.newest.{name}", run, 300, slow=True) for name, run in found],
                  lambda stage: contextlib.closing(Lab(stage, _machine)), weight=WAITS)]
