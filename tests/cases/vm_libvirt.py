"""Tests a virtual machine that libvirt starts of what `omniverb vm args --libvirt` prints."""

import contextlib

from harness import process
from harness.case import WAITS, Case, Group, check
from harness.libvirt import Domain
from harness.virtual_machines import NAME, Device, Lab

from cases import vm_rdma_cm_and_vnic_settings, virtual_machines


def _stays(lab):
    """It is not saved: the memory that it shares would not be there for the copy."""
    text = lab.machine.libvirt.run("virsh", "save", NAME, "/tmp/copy", accept=range(1, 256))
    check("igration is disabled" in text or "cannot migrate" in text.lower(), text)
    check(Device(lab.machine).run("ibv_devinfo"), "no device")


def _ended(lab):
    """It is switched off, and nothing of it is left."""
    lab.machine.libvirt.run("virsh", "destroy", NAME)
    process.until(lambda: not lab.machine.row(), 20, "the machine to be gone")


def groups():
    """One machine for all, which the last one switches off."""
    found = [*vm_rdma_cm_and_vnic_settings.few(), *virtual_machines.few()[:1],
             ("stays", _stays), ("ended", _ended)]
    return [Group("machines.libvirt",
                  [Case(f"machines.libvirt.{name}", run, 300, slow=True) for name, run in found],
                  lambda stage: contextlib.closing(Lab(stage, Domain)), weight=WAITS)]
