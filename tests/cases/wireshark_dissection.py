"""Tests that Wireshark dissects one packet of every kind, written by rnic/wire.

It runs among the workspace's checks (`workspace_checks.py`), since cargo has to build what writes
them."""

import pathlib
import tempfile

from harness import tshark_dissection, process, staging
from harness.case import Case, check

# The opcodes of rnic/wire/src/opcode.rs: RC, UC, UD, congestion notification and XRC.
_OPCODES = {*range(0x00, 0x15), 0x16, 0x17, 0x1C, 0x1D, *range(0x20, 0x2C), 0x64, 0x65, 0x81,
            *range(0xA0, 0xB5), 0xB6, 0xB7}


def _every_packet(_fixture):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "packets.pcap")
        process.run(["cargo", "run", "--quiet", "--locked", "-p", "omniverb_wire", "--example",
                     "every_packet", "--", path], limit=300, cwd=staging.ROOT, env=staging.LINTED)
        found = tshark_dissection.opcodes(path)
    check(set(found) == _OPCODES, f"opcodes {sorted(found)}, not {sorted(_OPCODES)}")
    print(f"{sum(found.values())} packets")


CASE = Case("dissect.every_packet", _every_packet, 360)


def groups():
    """None of its own."""
    return []
