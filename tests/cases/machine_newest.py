"""Tests the kernel of the newest stable Debian on the newest QEMU that Debian has."""

import contextlib

from harness import image
from harness.attached import Lab, Machine, files
from harness.case import WAITS, Case, Group, check

from cases import machine_programs, machines

_SUITE = "trixie"


def _machine(stage, host):
    kernel = image.Kernel(_SUITE)
    archive = image.archive(files(stage), image.DAX, "newest", kernel)
    return Machine(stage, host, archive, kernel=kernel, emulator=image.newest_emulator())


def _are_newer(lab):
    release = lab.machine.run("/bin/busybox", "uname", "-r").strip()
    check(release == image.Kernel(_SUITE).version != image.Kernel().version, release)
    with open(f"/proc/{lab.machine.machine.pid}/maps", encoding="utf-8") as file:
        check(str(image.newest_emulator()[0]) in file.read(), "another QEMU")


def groups():
    """One machine for all."""
    found = [("versions", _are_newer), *machine_programs.few(), *machines.few()]
    return [Group("machines.newest",
                  [Case(f"machines.newest.{name}", run, 300, slow=True) for name, run in found],
                  lambda stage: contextlib.closing(Lab(stage, _machine)), weight=WAITS)]
