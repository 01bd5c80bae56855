"""Tests killed mappers: another one follows, and links go on.

All else about such windows is in vm_neighbour_windows.py."""

import contextlib
import os
import signal
import subprocess
import time

from harness import process
from harness.case import check
from harness.virtual_machines import NAME, supervisors, started

from cases import vm_neighbour_windows, virtual_machines
from cases.vm_neighbour_windows import MAPPED, answered, devices, is_found, pairs, said

_KILLS = 10


class _Three(vm_neighbour_windows.Mapped):
    """With places for three windows."""

    places = 3


def _descriptors(lab):
    """How many descriptors the supervisor has."""
    [folder] = supervisors(lab.host.daemon)
    return len(os.listdir(f"{folder}/fd"))


def _kill_mapper(lab):
    """Kills who maps, and returns its folder."""
    [folder] = started(lab.host.daemon, "map")
    process.kill(int(os.path.basename(folder)))
    process.until(lambda: not os.path.exists(folder), 10, "its end")
    return folder


def _follows(lab, *before):
    """Another one than these maps."""
    process.until(lambda: [folder for folder in started(lab.host.daemon, "map")
                           if folder not in before], 20, "another mapper")


def _in_qemu(lab):
    """Windows that QEMU has mapped, by the numbers of their files."""
    with open(f"/proc/{lab.machine.machine.pid}/maps", encoding="utf-8") as file:
        return {line.split()[4] for line in file if "/memfd:omniverb-pair" in line}


def _goes_on(lab):
    """Messages on the link."""
    sent = virtual_machines._sent(lab)
    process.until(lambda: virtual_machines._sent(lab) > sent + 20, 60, "messages on the link")


def _mapper_again(lab):
    """Who maps is killed again and again, and is followed by another one: links go on, windows come
    and go, and nothing is left."""
    is_found(lab)
    with virtual_machines._long(lab, "machine", "container", "rc", "-e"):
        check(set(virtual_machines._ways(lab)) == {MAPPED}, f"{list(virtual_machines._ways(lab))}")
        is_found(lab, 2)
        before = _descriptors(lab)
        for _ in range(_KILLS):
            _follows(lab, _kill_mapper(lab))
            _goes_on(lab)
        process.until(lambda: _descriptors(lab) <= before, 10,
                      lambda: f"descriptors: {before} {_descriptors(lab)}")
        # The third window is mapped by whoever came last.
        virtual_machines._across("machine", "third", "rc", "-c", "-e")(lab)
        is_found(lab, 3)
        check(len(devices(lab)) == 2, f"{devices(lab)}")
        check(pairs(lab)["way"] == "mapped", f"{pairs(lab)}")
        virtual_machines._across("machine", "fourth", "rc", "-c", "-e")(lab)
        # There is no place left, so a window that nobody uses any more is taken out, by the same.
        process.until(lambda: pairs(lab)["given"] < 3, 30, lambda: f"a place\n{said(lab)}")
        _follows(lab, _kill_mapper(lab))
        _goes_on(lab)


def _has_place(lab):
    """The next neighbour has a window that is there already."""
    process.until(lambda: pairs(lab)["present"] > pairs(lab)["given"], 30,
                  lambda: f"a place\n{said(lab)}")


def _gone_meanwhile(lab):
    """The neighbour of a window goes when who maps hears nothing any more: whoever follows takes
    the window out of QEMU, and the next one has another in its place."""
    is_found(lab)
    with contextlib.ExitStack() as stack:
        for name in ("container", "third"):
            _has_place(lab)
            stack.enter_context(answered(lab, lab.sides("machine", name)))
        _has_place(lab)
        with answered(lab, lab.sides("machine", "fourth")):
            process.until(lambda: pairs(lab)["given"] == 3, 30, lambda: f"windows\n{said(lab)}")
            before = _in_qemu(lab)
            check(len(before) == 3, f"{before}")
            [folder] = started(lab.host.daemon, "map")
            os.kill(int(os.path.basename(folder)), signal.SIGSTOP)
        process.until(lambda: pairs(lab)["given"] < 3, 30, lambda: f"a window\n{said(lab)}")
        # Until it is asked; if it is not by then whoever follows will be.
        time.sleep(1)
        check(_in_qemu(lab) == before, "who stands still has heard it")
        _follows(lab, _kill_mapper(lab))
        process.until(lambda: len(before - _in_qemu(lab)) == 1, 30,
                      lambda: f"a window to go: {before} {_in_qemu(lab)}\n{said(lab)}")
        process.until(lambda: pairs(lab)["present"] == 3, 40, lambda: f"windows\n{said(lab)}")
        check(len(_in_qemu(lab)) == 3, f"{_in_qemu(lab)}")
        check(pairs(lab)["way"] == "mapped", f"{pairs(lab)}")
        virtual_machines._across("machine", "fourth", "rc", "-c", "-e")(lab)
        _goes_on(lab)


def _with_daemon(lab):
    """The daemon is killed, too, and the next one comes when somebody maps again."""
    is_found(lab)
    with virtual_machines._long(lab, "machine", "container", "rc", "-e"):
        lab.host.daemon.kill()
        folder = _kill_mapper(lab)
        lab.host.daemon.start()
        _follows(lab, folder)
        process.until(lambda: len(list(virtual_machines._ways(lab))) == 1, 60,
                      "the link to be announced")
        _goes_on(lab)
    process.until(lambda: pairs(lab)["present"] > 0, 60, lambda: f"windows\n{said(lab)}")
    process.until(lab.machine.has_device, 30, "a device")
    check(pairs(lab)["way"] == "mapped", f"{pairs(lab)}")
    virtual_machines._across("machine", "third", "rc", "-c", "-e")(lab)


def _lives(folder):
    """Whether a process is there, and not only not waited for."""
    try:
        with open(f"{folder}/cmdline", "rb") as file:
            return bool(file.read())
    except OSError:
        return False


def _ends(lab, end):
    """Who maps is killed, and by `end` all the machine has on the host is over: nobody maps then,
    however many have begun to."""
    [supervisor], seen = supervisors(lab.host.daemon), set(started(lab.host.daemon, "map"))

    def is_over():
        seen.update(started(lab.host.daemon, "map"))
        return not _lives(supervisor)

    process.kill(int(os.path.basename(*seen)))
    end()
    process.until(is_over, 30, "its supervisor to end")
    process.until(lambda: not any(map(_lives, seen)), 20, f"mappers to end: {seen}")
    check(lab.machine.row() is None, f"{lab.machine.row()}")


def _detached(lab):
    """The machine is parted with in the moment in which another one is to map."""
    _ends(lab, lambda: lab.host.daemon.omniverb("vm", "detach", NAME))
    check(lab.machine.machine.poll() is None, "QEMU has ended")


def _qemu_killed(lab):
    """QEMU is killed in that moment."""
    def end():
        process.kill(lab.machine.machine.pid)
        lab.machine.machine.wait(20)

    _ends(lab, end)


def _lose_mapper(lab):
    """Kills who maps when it is in the middle of something, as it says itself."""
    [folder] = started(lab.host.daemon, "map")
    [notes] = [name for name in os.listdir(f"{folder}/fd")
               if "omniverb-notes" in os.readlink(f"{folder}/fd/{name}")]
    with open(f"{folder}/fd/{notes}", "r+b", buffering=0) as file:
        file.write(b"\x02")
        _kill_mapper(lab)


def _mapper_lost(lab):
    """Who maps is killed in the middle of something, and nobody knows where it was: what is mapped
    stays, and links with it; QEMU takes nothing more, so the next window is plugged in, and people
    are told."""
    is_found(lab)
    with virtual_machines._long(lab, "machine", "container", "rc", "-e"):
        check(set(virtual_machines._ways(lab)) == {MAPPED}, f"{list(virtual_machines._ways(lab))}")
        # One is his; the other, which is mapped, too, is nobody's.
        is_found(lab, 2)
        check((pairs(lab)["given"], pairs(lab)["more"]) == (1, 1), f"{pairs(lab)}")
        before = devices(lab)
        check(len(before) == 2, f"{before}")
        _lose_mapper(lab)
        sent = virtual_machines._sent(lab)
        process.until(lambda: virtual_machines._sent(lab) > sent + 100, 60, "messages on the link")
        # The second neighbour has what was mapped before, and so another one is wanted.
        virtual_machines._across("machine", "third", "rc", "-c", "-e")(lab)
        is_found(lab, 3)
        check(not started(lab.host.daemon, "map"), "another mapper")
        after = devices(lab)
        check(len(after) == 3 and set(before) < set(after), f"{before} {after}")
        # Which is like the others.
        virtual_machines._across("machine", "fourth", "rc", "-c", "-e")(lab)
        check(pairs(lab)["given"] == 3, f"{pairs(lab)}")
        check(set(virtual_machines._ways(lab)) == {MAPPED}, f"{list(virtual_machines._ways(lab))}")
    shown = lab.host.daemon.omniverb("vm", "show", NAME)
    check("the mapper of windows for QEMU has ended" in shown, shown)
    check(pairs(lab)["way"] == "plugged", f"{pairs(lab)}")
    check(lab.machine.machine.poll() is None, "QEMU has ended")


def _reset_without(lab):
    """Without its mapper a guest that is reset ends QEMU, and nothing stays behind."""
    if started(lab.host.daemon, "map"):
        is_found(lab)
        _lose_mapper(lab)
    # It ends when the driver begins. A guest that is emulated boots when others let it, and has
    # been seen to go round in circles instead (harness/rxe_guest.py).
    lab.machine.start("sh", "-c", "echo b > /proc/sysrq-trigger")
    for _ in range(3):
        with contextlib.suppress(subprocess.TimeoutExpired):
            lab.machine.machine.wait(2 * lab.machine.boot_limit)
            break
        lab.machine.tell_monitor("system_reset")
    status = lab.machine.machine.poll()
    check(status is not None, f"QEMU lives\n{lab.machine.console()}")
    print(process.how(status), flush=True)
    process.until(lambda: not lab.machine.row() and not started(lab.host.daemon, "map"), 20,
                  "everything to be gone")


def groups():
    """All before a release only, as those of vm_neighbour_windows.py."""
    again = [("mapper killed", _mapper_again), ("gone meanwhile", _gone_meanwhile),
             ("with the daemon", _with_daemon), ("reset", vm_neighbour_windows.reset),
             ("detached", _detached)]
    return [vm_neighbour_windows.group("mapped again", _Three, again),
            vm_neighbour_windows.group("mapped ends", vm_neighbour_windows.Mapped,
                                 [("QEMU killed", _qemu_killed)]),
            vm_neighbour_windows.group("mapped gone", _Three,
                                 [("mapper lost", _mapper_lost), ("reset", _reset_without)])]
