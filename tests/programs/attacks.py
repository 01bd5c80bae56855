"""Runs one attack of a tenant: `attacks.py NAME SECONDS [ARGUMENT...]`.

Each attack goes on for so long, or until standard input ends, prints how often it did its
thing and how many descriptors the kernel did not let it send, and ends with everything it holds.
They speak the daemon's protocol by themselves (session.py). The table in
tests/cases/tenant_attacks.py says what others must not notice."""

import os
import sys

import attack_descriptors  # noqa: F401 - they enter themselves in the list
import attack_files  # noqa: F401
import attack_floods  # noqa: F401
import attack_nonsense  # noqa: F401
import attack_sleeps  # noqa: F401
import attacking


def main():
    """Runs one."""
    name, seconds, *words = sys.argv[1:]
    attacking.begin(float(seconds))
    did = attacking.ATTACKS[name](*words)
    print(f"{did} {name}, {attacking.REFUSED[0]} refused", flush=True)
    os._exit(0)


main()
