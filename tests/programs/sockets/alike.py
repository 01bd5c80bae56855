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

PORTS_ALLOWED = {**alike_bytes.PORTS_ALLOWED, **alike_options.PORTS_ALLOWED, **alike_polls.PORTS_ALLOWED,
        **alike_waits.PORTS_ALLOWED}

if __name__ == "__main__":
    sys.exit(run(__file__, PORTS_ALLOWED))
