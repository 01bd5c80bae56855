"""Tests that only the two processes of a link are involved in their messages in a virtual machine.

In the one machine of cases/virtual_machines.py."""

import contextlib
import os
import re
import signal

from harness import process
from harness.case import Case, Failure, check
from harness.client_server import gid_index
from harness.virtual_machines import OMNIVERB, supervisors, proxies

_FEW, _MANY = 10_000, 100_000
_GROWN = (_MANY - _FEW) / 200
_LOOKS = 3
# Without `omniverb run`, which keeps files with counters up to date once a second.
_RUN = "LD_LIBRARY_PATH=/opt/omniverb/lib exec ib_send_bw -F -x 1 -s 64 -n"


def _calls(lab, count, exchange):
    """How many system calls daemon, supervisor and proxy make, how often the agent sleeps, and how
    often devices interrupt the machine, while two processes exchange so much."""
    machine, daemon = lab.machine, lab.host.daemon
    pids = [daemon.pid, *(int(os.path.basename(folder))
                          for folder in (*supervisors(daemon), *proxies(daemon)))]
    summary = f"{machine.folder.name}/calls"
    traced = process.start(["strace", "-f", "-qq", "-c", "-U", "calls,name", "-o", summary,
                            *(f"--attach={pid}" for pid in pids)])
    try:
        process.until(lambda: all(_is_traced(pid) for pid in pids), 10, "strace")
        before = _inside(machine)
        exchange(lab, count)
        after = _inside(machine)
    finally:
        traced.send_signal(signal.SIGINT)
        traced.wait(10)
    with open(summary, encoding="utf-8") as file:
        text = file.read()
    total = re.search(r"^\s*(\d+) total$", text, re.M)
    check(total, text)
    return {"calls": int(total.group(1)), **{name: after[name] - before[name] for name in after}}


def _is_traced(pid):
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        return "TracerPid:\t0" not in file.read()


def _inside(machine):
    """How often the agent has slept; interrupts by virtio devices."""
    text = machine.run("sh", "-c", "for f in $(grep -l '^omniverb$' /proc/[0-9]*/comm); do "
                       "grep -h ^voluntary ${f%comm}task/*/status; done; cat /proc/interrupts")
    slept = re.findall(r"^voluntary_ctxt_switches:\s+(\d+)", text, re.M)
    interrupts = re.findall(r"^\s*\d+:\s+(\d+).*virtio\d", text, re.M)
    check(slept and interrupts, text)
    return {"slept": sum(map(int, slept)), "interrupts": sum(map(int, interrupts))}


def _within(lab, count):
    """Two processes of the machine that poll."""
    _exchange(lab, count, lambda: lab.machine.run("sh", "-c", f"{_RUN} {count} 127.0.0.1",
                                                  limit=120))


def _with_neighbour(lab, count):
    """One of the machine and one of the container that has a window with it."""
    words = ["ib_send_bw", "-F", "-x", gid_index(lab.container), "-s", "64", "-n", count]
    _exchange(lab, count, lambda: lab.container.run(*words, lab.machine.address, limit=120))


def _exchange(lab, count, run):
    machine = lab.machine
    with open(f"{machine.folder.name}/exchange", "w+", encoding="utf-8") as said:
        server = machine.start("sh", "-c", f"{_RUN} {count}", stdout=said)
        with contextlib.ExitStack() as stack:
            stack.callback(server.kill)
            process.until(lambda: server.poll() is not None or machine.listens(18515), 60,
                          "a server")
            run()
            check(server.wait(20) == 0, "the server")


def _nobody_else(exchange):
    """Ten times as much takes none of them more. Who polls may be moved aside by whatever else
    runs, which calls nobody less often: the least of a few looks counts."""
    def run(lab):
        for _ in range(_LOOKS):
            few, many = _calls(lab, _FEW, exchange), _calls(lab, _MANY, exchange)
            print(few, many)
            grown = {what: many[what] - few[what] for what in many}
            if all(number < _GROWN for number in grown.values()):
                return
        raise Failure(f"{grown} more for {_MANY - _FEW} messages")
    return run


def cases():
    """Those of one machine."""
    return [Case("machines.nobody_else", _nobody_else(_within), 300),
            Case("machines.nobody_else, neighbour", _nobody_else(_with_neighbour), 300)]


def groups():
    """None of their own."""
    return []
