#!/usr/bin/python3
"""What calls say and do, line by line, for a comparison with the kernel's: `compare_with_kernel.py
WAY`.

Two processes, a server and a client, go in lock step: a way is two functions, each of a role, whose
lines are printed at the end. What they print must be the same whatever carries their bytes.
"""

import sys

import compare_bytes
import compare_options
import compare_polls
import compare_waits
from lock_step_processes import run

WAYS = {**compare_bytes.WAYS, **compare_options.WAYS, **compare_polls.WAYS,
        **compare_waits.WAYS}

if __name__ == "__main__":
    sys.exit(run(__file__, WAYS))
