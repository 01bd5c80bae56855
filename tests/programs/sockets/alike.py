#!/usr/bin/python3
"""What calls say and do, line by line, for a comparison with the kernel's: `alike.py WAY`.

Two processes, a server and a client, go in lock step: a way is two functions, each of a role, whose
lines are printed at the end. What they print must be the same whatever carries their bytes.
"""

import sys

import alike_bytes
import alike_options
import alike_polls
import alike_waits
from roles import run

WAYS = {**alike_bytes.WAYS, **alike_options.WAYS, **alike_polls.WAYS,
        **alike_waits.WAYS}

if __name__ == "__main__":
    sys.exit(run(__file__, WAYS))
