"""Runs one attack of a tenant: `run_attack.py NAME SECONDS [ARGUMENT...]`.

Each attack goes on for so long, or until standard input ends, prints how often it did its
thing and how many descriptors the kernel did not let it send, and ends with everything it holds.
They speak the daemon's protocol by themselves (daemon_protocol.py). The table in
tests/cases/tenant_attacks.py says what others must not notice."""

import os
import sys

import attack_descriptors  # noqa: F401 - they enter themselves in the list
import attack_unresponsive_files  # noqa: F401
import attack_floods  # noqa: F401
import attack_malformed_messages  # noqa: F401
import attack_wakeups  # noqa: F401
import attack_helpers


def main():
    """Runs one."""
    name, seconds, *words = sys.argv[1:]
    attack_helpers.begin(float(seconds))
    did = attack_helpers.ATTACKS[name](*words)
    print(f"{did} {name}, {attack_helpers.REFUSED[0]} refused", flush=True)
    os._exit(0)


main()
