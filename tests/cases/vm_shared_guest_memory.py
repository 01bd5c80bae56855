"""Tests a virtual machine whose memory is shared with the daemon.

Every byte is checked, and that nobody writes to what was deregistered, or was a process's that is
gone."""

import contextlib
import re
import signal
import time

from harness import process
from harness.case import WAITS, Case, Group, check
from harness.virtual_machines import NAME, OMNIVERB, Lab, Machine

_PROGRAM = "/opt/programs/engine_memory_target"
_PORT = 18600
# Packets between hosts go through the guest's agent, one by one, and an emulated guest is slow.
_PATIENT = "TEST_TIMEOUT=18"


class _Shared(Machine):
    """A machine that shares its memory, and no windows with neighbours: all goes by the engine."""

    neighbours = 0
    agent_words = ("--in-place", "root")

    def command(self, stage):
        line = super().command(stage)
        return [*line[:-1], "--shared-memory", "--"]


class _Private(_Shared):
    """The same in all but that."""

    def command(self, stage):
        return Machine.command(self, stage)


def _lab(kind):
    return lambda stage: contextlib.closing(Lab(stage, kind))


class _Both:
    """The owner in the machine, and its peer in another place."""

    def __init__(self, lab, place, *words, limit=240):
        self.lab, self.limit = lab, limit
        machine = lab.machine
        self.said = open(f"{machine.folder.name}/owner", "w+", encoding="utf-8")  # noqa: SIM115
        line = f"exec {OMNIVERB} run -- {_PROGRAM} {' '.join(map(str, words))}"
        self.owner = machine.start("sh", "-c", f"TEST_ELSEWHERE={_PORT} {_PATIENT} {line}",
                                   stdout=self.said)
        process.until(lambda: self.owner.poll() is not None or machine.listens(_PORT), 60,
                      "the owner")
        self.peer = place.start("env", _PATIENT, f"TEST_ELSEWHERE={machine.address}={_PORT}",
                                _PROGRAM, *words, stdout=self._file())

    def _file(self):
        self.heard = open(f"{self.lab.machine.folder.name}/peer", "w+",  # noqa: SIM115
                          encoding="utf-8")
        return self.heard

    def text(self):
        """What both have said."""
        texts = []
        for file in (self.said, self.heard):
            file.flush()
            with open(file.name, encoding="utf-8") as again:
                texts.append(again.read())
        return texts

    def finish(self):
        """Both end well."""
        status = self.peer.wait(self.limit)
        owner = self.owner.wait(30)
        said, heard = self.text()
        check(status == 0 and owner == 0, f"{status} {owner}\n{said}\n--- peer ---\n{heard}")
        print(said, heard, sep="")
        return said, heard

    def close(self):
        """Ends what runs."""
        for program in (self.owner, self.peer):
            if program.poll() is None:
                program.kill()
        self.said.close()
        self.heard.close()


def _executed(lab):
    """How many operations on the memory of the machine's processes the engine did for their peers,
    and how many WRITEs the processes, of those that have ended."""
    found = [vnic for vnic in lab.host.daemon.vnics() if vnic["name"] == f"vm-{NAME}"]
    check(len(found) == 1, f"{found}")
    ended = found[0]["ended"]
    return ended["packets"]["executed"], ended["messages_received"]


def _rings(machine):
    """What keeps pages in a machine: rings that its processes of this kind have."""
    text = ""
    for pid, *_ in _pinners(machine):
        text += machine.run("ls", "-l", f"/proc/{pid}/fd", accept=(0, 1))
    return [line for line in text.splitlines() if "io_uring" in line]


def _all_over(lab):
    """Nothing is pinned any more, as the daemon says, and in the machine."""
    process.until(lambda: lab.machine.row()["pinned"] == 0, 20,
                  lambda: f"the pins to be over: {lab.machine.row()}")
    process.until(lambda: not _rings(lab.machine), 20,
                  lambda: f"rings to be let go of: {_rings(lab.machine)}")


def _operations(place, least, cycles=6, rounds=24):
    """Bytes, stores, deregistration, with a peer at this place."""
    def run(lab):
        row = lab.machine.row()
        check((row["memory"] or 0) > 0 or not least, f"{row}")
        before, begun = _executed(lab), time.monotonic()
        words = ["owner_and_peer", cycles, rounds]
        with contextlib.closing(_Both(lab, lab.places()[place], *words)) as both:
            _, heard = both.finish()
        took = time.monotonic() - begun
        check(len(re.findall(r"WRITEs of \d+ bytes before", heard)) == cycles, heard)
        process.until(lambda: lab.machine.row()["sessions"] == 0, 20, "the owner to be gone")
        # What the engine counts is shown a little later.
        executed, mediated = (now - then for now, then in
                              zip(process.settled(lambda: _executed(lab)), before))
        print(f"of {place} {executed} operations were executed in place, {mediated} WRITEs by "
              f"their target, in {took:.1f} s")
        check(executed >= least, f"{executed} were executed")
        check(least or executed == 0, f"{executed} were executed")
        _all_over(lab)
    return run


def _killed(lab):
    """The owner is killed while a peer writes."""
    with contextlib.closing(_Both(lab, lab.container, "owner_is_killed")) as both:
        process.until(lambda: (lab.machine.row()["pinned"] or 0) > 0, 30, "pages to be pinned")
        check(_rings(lab.machine), "nothing keeps them in the machine")
        _killed_while_written_to(both)
        _peer_sees(both)
    _all_over(lab)


def _killed_while_written_to(both):
    """The owner is killed, and was there until then. Who gets its pages finds them as he left
    them."""
    both.owner.signal(signal.SIGUSR1)
    status = both.owner.wait(90)
    said, _ = both.text()
    check(status == 0 and "pages are as they were filled" in said, f"{status}\n{said}")
    print(said)


def _peer_sees(both):
    """Its peer's WRITEs fail in the end."""
    both.peer.wait(90)
    _, heard = both.text()
    check("WRITEs before its end" in heard, heard)
    print(heard)


def _agent_killed(lab):
    """The agent is killed while pages are pinned, then their owner: the next agent keeps them, and
    lets go of them, also one that has nothing pinned itself."""
    machine = lab.machine
    with contextlib.closing(_Both(lab, lab.container, "owner_is_killed")) as both:
        process.until(lambda: (machine.row()["pinned"] or 0) > 0, 30, "pages to be pinned")
        machine.agents.kill()
        machine.agents.wait(10)
        text = machine.run("busybox", "ps", "-o", "args")
        check("vm pin" in text, text)
        _killed_while_written_to(both)
        machine.agents = machine.start_agent("--in-place", "nobody")
        _peer_sees(both)
    _all_over(lab)
    _operations("container", 0, 1, 3)(lab)
    machine.agents.kill()
    machine.agents.wait(10)
    # Without an agent it is there for what is pinned, which is nothing.
    process.until(lambda: not _pinners(machine), 10, lambda: f"it to end: {_pinners(machine)}")
    machine.agents = machine.start_agent()
    _operations("container", 20, 1, 3)(lab)


def _pinners(machine):
    """Lines of processes that keep pages."""
    lines = machine.run("busybox", "ps", "-o", "pid,args").splitlines()
    return [line.split() for line in lines if "vm pin" in line]


def _pinner_killed(lab):
    """Who keeps pages is killed while a peer writes to them: nobody does any more when the agent
    has ended, and the next one has another."""
    machine = lab.machine
    with contextlib.closing(_Both(lab, lab.container, "owner_is_killed")) as both:
        process.until(lambda: (machine.row()["pinned"] or 0) > 0, 30, "pages to be pinned")
        [[pid, *_]] = _pinners(machine)
        machine.run("busybox", "kill", "-9", pid)
        check(machine.agents.wait(20) != 0, machine.said())
        check("has ended" in machine.said(), machine.said())
        # Which is before there is another agent.
        process.until(lambda: machine.row()["sessions"] == 0, 20, "the sessions to end")
        both.peer.wait(90)
        _, heard = both.text()
        check("WRITEs before its end" in heard, heard)
        # The owner goes on: it would end with a status if its child had ended by itself.
        _killed_while_written_to(both)
        _all_over(lab)
    machine.agents = machine.start_agent()
    _operations("container", 20, 1, 3)(lab)


def _shown(lab):
    """What there is to see of it."""
    text = lab.host.daemon.omniverb("vm", "show", NAME)
    check("in place" in text and "512" in text, text)


def _reset(lab):
    """A guest that is reset is not booted afresh in memory that the engine may write to."""
    machine = lab.machine
    machine.start("sh", "-c", "echo b > /proc/sysrq-trigger")
    process.until(lambda: machine.machine.poll() is not None, 30, "QEMU to end")
    process.until(lambda: not machine.row(), 20, "the machine to be parted with")


def groups():
    """One machine with its memory shared, one without."""
    shared = [Case("memory.shown", _shown, 60),
              Case("memory.forwarded", _operations("container", 500), 300),
              Case("memory.wire", _operations("far", 50, 3, 6), 300, slow=True),
              Case("memory.owner killed", _killed, 180),
              Case("memory.agent killed", _agent_killed, 400, slow=True),
              Case("memory.pinner killed", _pinner_killed, 400, slow=True),
              Case("memory.reset", _reset, 90)]
    private = [Case("memory.private", _operations("container", 0), 300, slow=True),
               Case("memory.private wire", _operations("far", 0, 3, 6), 300, slow=True)]
    return [Group("memory", shared, _lab(_Shared), weight=WAITS),
            Group("memory.private", private, _lab(_Private), weight=WAITS)]
