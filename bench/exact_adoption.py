"""WRITE between two vNICs of one host that do not trust each other (`adoption = "exact"`).

In: the bench's own daemon; root, since each vNIC is a network namespace (tests/harness). Out: a
Pair whose server and client are in one each. perftest's targets of WRITE may not be read from afar,
which page protection cannot express, so these WRITEs are mediated: the target's process carries
them out.
"""
import os
import sys
from contextlib import closing
from pathlib import Path

from program_runs import Pair

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
sys.dont_write_bytecode = True

from harness.case import Failure  # noqa: E402
from harness.network import Namespace, Switch  # noqa: E402

ADDRESSES = ("10.77.0.1", "10.77.0.2")


def pair(cpus, variables, stack):
    """Two processes in a network namespace each; None where these cannot be made."""
    if os.geteuid() != 0:
        return None
    places = []
    try:
        switch = stack.enter_context(closing(Switch(9000)))
        for address in ADDRESSES:
            places.append(stack.enter_context(closing(Namespace())))
            switch.plug(places[-1], f"{address}/24")
    except Failure as failure:
        print(f"no two vNICs: {failure}", file=sys.stderr)
        return None
    return Pair(cpus, variables, enter=[place.enter() for place in places],
                address=ADDRESSES[0], network=f"/proc/{places[0].pid}/net")
