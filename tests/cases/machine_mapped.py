"""Windows of neighbours that are mapped into a machine while it runs, by QEMU 11.1 and the kernel
of the newest stable Debian: they come, carry links, and go again, so that a machine with few places
has many neighbours in its life."""

import contextlib
import mmap
import os
import re
import signal
import time
from types import SimpleNamespace

from harness import image, process
from harness.attached import (NAME, OMNIVERB, Device, Lab, Machine, files, keepers, porters,
                              started)
from harness.case import WAITS, Case, Group, check

from cases import machine_neighbours, machine_programs, machines

_SUITE = "trixie"
_MAPPED = ("direct", "in a pair window of the virtual machine")
# A handshake through the machine's network is to be answered within 300 ms, and how fast a guest is
# that is emulated others on this machine say.
_UNANSWERED = ("roce", "nobody answered the handshake")
_ANSWERS = 4
_PLACES = 2
_KILLS = 10


class Mapped(Machine):
    """A machine with places for two windows, the first of which is there when it has booted."""

    suite = _SUITE
    places = _PLACES

    def __init__(self, stage, host, **options):
        emulator = image.newest_emulator()
        kernel = image.Kernel(self.suite)
        archive = image.archive(files(stage), image.DAX, f"mapped-{self.suite}", kernel)
        super().__init__(stage, host, archive, kernel=kernel, emulator=emulator, **options)

    def command(self, stage):
        line = super().command(stage)
        at = line.index("--")
        return [*line[:at], "--most-neighbours", str(self.places), "--windows", "mapped", "--"]


class Three(Mapped):
    """The same with one place more."""

    places = 3


class Old(Mapped):
    """The same, whose kernel is older than such memory."""

    suite = None


def _pairs(lab):
    row = lab.machine.row()
    return row["pairs"] if row else {name: -1 for name in ("present", "given", "used", "windows")}


def _said(lab):
    seen = lab.machine.run("sh", "-c", "ls /sys/bus/dax/devices /sys/bus/nd/devices; dmesg",
                           accept=range(256))
    return f"{lab.machine.row()}\n{lab.machine.said()}\n{seen[-3000:]}"


def _is_found(lab, least=1):
    process.until(lambda: _pairs(lab)["present"] >= least, 40, lambda: f"windows\n{_said(lab)}")


def _devices(lab):
    return lab.machine.run("ls", "/sys/bus/dax/devices").split()


def _device(lab):
    """One device of the machine's own, and one with places; no window is a device of its own."""
    _is_found(lab)
    found = _devices(lab)
    check(len(found) == 2, f"{found}")
    shown = lab.host.daemon.omniverb("vm", "show", NAME)
    check("0 of 1 mapped and 1 more" in shown, shown)
    check(_pairs(lab)["way"] == "mapped", f"{_pairs(lab)}")
    # The kernel keeps notes of those pages only that there can be.
    with open(f"/proc/{lab.machine.machine.pid}/cmdline", encoding="utf-8") as file:
        check("vhost-user-test-device-pci" in file.read(), "another way")


def _mapper(lab):
    """Who maps them is nobody, and has nothing but sockets and the windows."""
    [folder] = started(lab.host.daemon, "map")
    with open(f"{folder}/status", encoding="utf-8") as file:
        status = dict(line.split(":\t") for line in file.read().splitlines() if ":\t" in line)
    check(min(map(int, status["Uid"].split() + status["Gid"].split())) >= machines._NOBODY,
          f"{status}")
    check(int(status["CapPrm"], 16) == 0 and status["NoNewPrivs"] == "1", f"{status}")
    names = sorted(os.readlink(f"{folder}/fd/{name}") for name in os.listdir(f"{folder}/fd"))
    rest = [name for name in names if name != "/dev/null" and not name.startswith("socket:")]
    check(all(name.startswith(("/memfd:omniverb-pair", "/memfd:omniverb-places",
                               "/memfd:omniverb-notes"))
              for name in rest), f"{names}")


@contextlib.contextmanager
def _answered(lab, sides):
    """Two processes that exchange messages, whose network has led to each other."""
    for left in reversed(range(_ANSWERS)):
        with machines._long_between(lab, sides, "rc", "-e"):
            if left and _UNANSWERED in set(machines._ways(lab)):
                print("nobody answered", flush=True)
                continue
            yield
            return


def _neighbour(lab):
    """Links of the machine's processes and a container's are in a window that is mapped."""
    _is_found(lab)
    for server, client in (("machine", "container"), ("container", "machine")):
        with _answered(lab, lab.sides(server, client)):
            ways = set(machines._ways(lab))
            check(ways == {_MAPPED}, f"{ways}")
            names = set(machines._memory(lab))
            check("omniverb-pair" in names and "omniverb-window" not in names, f"{names}")
    for program, *options in (("rc", "-c"), ("ud", "-c", "-e"), ("uc", "-c", "-e")):
        machines._across("machine", "container", program, *options)(lab)


def _pages(lab):
    """So are pages that they grant each other."""
    sides = lab.sides("machine", "container")
    for places in (sides, SimpleNamespace(server=sides.client, client=sides.server)):
        for test in (machine_neighbours.stores, machine_neighbours.deregistered):
            machine_neighbours.all_back(lab)
            test(lab, places)


def _shared(lab):
    """What memory that a process outside shares with the machine is called, and itself."""
    for vnic in lab.host.daemon.status()["vnics"]:
        for program in vnic["processes"]:
            if not vnic["name"].startswith("vm-"):
                with open(f"/proc/{program['pid']}/maps", encoding="utf-8") as file:
                    for line in file:
                        if "/memfd:omniverb-pair" in line:
                            return program["pid"], line.split()[0], line.split()[4]
    return None


def _taken_out(lab):
    """With all places taken the next neighbour is reached by the engine; when one has gone his
    window is taken out, and the next one has another file in its place: who had the first one keeps
    that, and reaches nothing of the second."""
    _is_found(lab)
    seen, kept = set(), []
    with contextlib.ExitStack() as stack:
        for number, name in enumerate(("container", "third")):
            process.until(lambda number=number: _pairs(lab)["present"] > number, 30,
                          lambda: f"a place\n{_said(lab)}")
            stack.enter_context(machines._long(lab, "machine", name, "rc", "-e"))
            process.until(lambda number=number: len(list(machines._ways(lab))) > number, 30,
                          "a link")
        check(set(machines._ways(lab)) == {_MAPPED}, f"{list(machines._ways(lab))}")
        check((_pairs(lab)["given"], _pairs(lab)["more"]) == (_PLACES, 0), f"{_pairs(lab)}")
        process_id, addresses, inode = _shared(lab)
        seen.add(inode)
        # As somebody who keeps what he had.
        file = stack.enter_context(open(f"/proc/{process_id}/map_files/{addresses}", "r+b",
                                        buffering=0))
        kept.append(mmap.mmap(os.dup(file.fileno()), 0))
        with machines._long(lab, "machine", "fourth", "rc", "-e"):
            process.until(lambda: len(list(machines._ways(lab))) > _PLACES, 30, "another link")
            ways = [path for path, _ in machines._ways(lab)]
            check(sorted(ways) == ["direct", "direct", "forwarded"], f"{ways}")
    for name in ("fourth", "container", "fourth", "third"):
        process.until(lambda: _pairs(lab)["present"] > 0 and
                      _pairs(lab)["given"] < _PLACES, 30, lambda: f"a place\n{_said(lab)}")
        with machines._long(lab, "machine", name, "rc", "-e"):
            check(set(machines._ways(lab)) == {_MAPPED}, f"{name}: {list(machines._ways(lab))}")
            seen.add(_shared(lab)[2])
            for memory in kept:
                for at in range(0, len(memory), 4096):
                    memory[at:at + 8] = b"\xff" * 8
        machines._across("machine", name, "rc", "-c", "-e")(lab)
    check(len(seen) >= 3, f"the same files: {seen}")
    [memory] = kept
    check(all(memory[at:at + 8] == b"\xff" * 8 for at in range(0, len(memory), 4096)),
          "somebody else writes there")
    memory.close()


def _daemon_again(lab):
    """Links go on when the daemon is killed, and the next one knows what is mapped where."""
    _is_found(lab)
    with machines._long(lab, "machine", "container", "rc", "-e"):
        lab.host.daemon.kill()
        lab.host.daemon.start()
        process.until(lambda: len(list(machines._ways(lab))) == 1, 40, "the link to be announced")
        before = machines._sent(lab)
        process.until(lambda: machines._sent(lab) > before + 100, 60, "messages on the link")
    process.until(lambda: _pairs(lab)["present"] > 0, 40, lambda: f"windows\n{_said(lab)}")
    process.until(lab.machine.has_device, 20, "a device")


def _porter_again(lab):
    """Nor does the end of a porter change what is mapped."""
    before = started(lab.host.daemon, "map")
    [folder] = porters(lab.host.daemon)
    process.kill(int(os.path.basename(folder)))
    process.until(lambda: porters(lab.host.daemon) not in ([], [folder]), 20, "another porter")
    process.until(lambda: _pairs(lab)["present"] > 0, 40, lambda: f"windows\n{_said(lab)}")
    check(started(lab.host.daemon, "map") == before, "another mapper")


def _descriptors(lab):
    """How many descriptors the keeper has."""
    [folder] = keepers(lab.host.daemon)
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
    sent = machines._sent(lab)
    process.until(lambda: machines._sent(lab) > sent + 20, 60, "messages on the link")


def _mapper_again(lab):
    """Who maps is killed again and again, and is followed by another one: links go on, windows come
    and go, and nothing is left."""
    _is_found(lab)
    with machines._long(lab, "machine", "container", "rc", "-e"):
        check(set(machines._ways(lab)) == {_MAPPED}, f"{list(machines._ways(lab))}")
        _is_found(lab, 2)
        before = _descriptors(lab)
        for _ in range(_KILLS):
            _follows(lab, _kill_mapper(lab))
            _goes_on(lab)
        process.until(lambda: _descriptors(lab) <= before, 10,
                      lambda: f"descriptors: {before} {_descriptors(lab)}")
        # The third window is mapped by whoever came last.
        machines._across("machine", "third", "rc", "-c", "-e")(lab)
        _is_found(lab, 3)
        check(len(_devices(lab)) == 2, f"{_devices(lab)}")
        check(_pairs(lab)["way"] == "mapped", f"{_pairs(lab)}")
        machines._across("machine", "fourth", "rc", "-c", "-e")(lab)
        # There is no place left, so a window that nobody uses any more is taken out, by the same.
        process.until(lambda: _pairs(lab)["given"] < 3, 30, lambda: f"a place\n{_said(lab)}")
        _follows(lab, _kill_mapper(lab))
        _goes_on(lab)


def _has_place(lab):
    """The next neighbour has a window that is there already."""
    process.until(lambda: _pairs(lab)["present"] > _pairs(lab)["given"], 30,
                  lambda: f"a place\n{_said(lab)}")


def _gone_meanwhile(lab):
    """The neighbour of a window goes when who maps hears nothing any more: whoever follows takes
    the window out of QEMU, and the next one has another in its place."""
    _is_found(lab)
    with contextlib.ExitStack() as stack:
        for name in ("container", "third"):
            _has_place(lab)
            stack.enter_context(machines._long(lab, "machine", name, "rc", "-e"))
        _has_place(lab)
        with machines._long(lab, "machine", "fourth", "rc", "-e"):
            process.until(lambda: _pairs(lab)["given"] == 3, 30, lambda: f"windows\n{_said(lab)}")
            before = _in_qemu(lab)
            check(len(before) == 3, f"{before}")
            [folder] = started(lab.host.daemon, "map")
            os.kill(int(os.path.basename(folder)), signal.SIGSTOP)
        process.until(lambda: _pairs(lab)["given"] < 3, 30, lambda: f"a window\n{_said(lab)}")
        # Until it is asked; if it is not by then whoever follows will be.
        time.sleep(1)
        check(_in_qemu(lab) == before, "who stands still has heard it")
        _follows(lab, _kill_mapper(lab))
        process.until(lambda: len(before - _in_qemu(lab)) == 1, 30,
                      lambda: f"a window to go: {before} {_in_qemu(lab)}\n{_said(lab)}")
        process.until(lambda: _pairs(lab)["present"] == 3, 40, lambda: f"windows\n{_said(lab)}")
        check(len(_in_qemu(lab)) == 3, f"{_in_qemu(lab)}")
        check(_pairs(lab)["way"] == "mapped", f"{_pairs(lab)}")
        machines._across("machine", "fourth", "rc", "-c", "-e")(lab)
        _goes_on(lab)


def _with_daemon(lab):
    """The daemon is killed, too, and the next one comes when somebody maps again."""
    _is_found(lab)
    with machines._long(lab, "machine", "container", "rc", "-e"):
        lab.host.daemon.kill()
        folder = _kill_mapper(lab)
        lab.host.daemon.start()
        _follows(lab, folder)
        process.until(lambda: len(list(machines._ways(lab))) == 1, 60, "the link to be announced")
        _goes_on(lab)
    process.until(lambda: _pairs(lab)["present"] > 0, 60, lambda: f"windows\n{_said(lab)}")
    process.until(lab.machine.has_device, 30, "a device")
    check(_pairs(lab)["way"] == "mapped", f"{_pairs(lab)}")
    machines._across("machine", "third", "rc", "-c", "-e")(lab)


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
    [keeper], seen = keepers(lab.host.daemon), set(started(lab.host.daemon, "map"))

    def is_over():
        seen.update(started(lab.host.daemon, "map"))
        return not _lives(keeper)

    process.kill(int(os.path.basename(*seen)))
    end()
    process.until(is_over, 30, "its keeper to end")
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


def _mapper_lost(lab):
    """Who maps is killed in the middle of something, and nobody knows where it was: what is mapped
    stays, and links with it; QEMU takes nothing more, so the next window is plugged in, and people
    are told."""
    _is_found(lab)
    with machines._long(lab, "machine", "container", "rc", "-e"):
        check(set(machines._ways(lab)) == {_MAPPED}, f"{list(machines._ways(lab))}")
        # One is his; the other, which is mapped, too, is nobody's.
        _is_found(lab, 2)
        check((_pairs(lab)["given"], _pairs(lab)["more"]) == (1, 1), f"{_pairs(lab)}")
        before = _devices(lab)
        check(len(before) == 2, f"{before}")
        [folder] = started(lab.host.daemon, "map")
        [notes] = [name for name in os.listdir(f"{folder}/fd")
                   if "omniverb-notes" in os.readlink(f"{folder}/fd/{name}")]
        with open(f"{folder}/fd/{notes}", "r+b", buffering=0) as file:
            # As it says itself: it is busy.
            file.write(b"\x02")
            _kill_mapper(lab)
        sent = machines._sent(lab)
        process.until(lambda: machines._sent(lab) > sent + 100, 60, "messages on the link")
        # The second neighbour has what was mapped before, and so another one is wanted.
        machines._across("machine", "third", "rc", "-c", "-e")(lab)
        _is_found(lab, 3)
        check(not started(lab.host.daemon, "map"), "another mapper")
        after = _devices(lab)
        check(len(after) == 3 and set(before) < set(after), f"{before} {after}")
        # Which is like the others.
        machines._across("machine", "fourth", "rc", "-c", "-e")(lab)
        check(_pairs(lab)["given"] == 3, f"{_pairs(lab)}")
        check(set(machines._ways(lab)) == {_MAPPED}, f"{list(machines._ways(lab))}")
    shown = lab.host.daemon.omniverb("vm", "show", NAME)
    check("who maps windows for QEMU is gone" in shown, shown)
    check(_pairs(lab)["way"] == "plugged", f"{_pairs(lab)}")
    check(lab.machine.machine.poll() is None, "QEMU has ended")


def _again(lab):
    """A driver that is taken away from the device, and begins again, finds all that was mapped."""
    [mapper] = started(lab.host.daemon, "map")
    _is_found(lab)
    lab.machine.agents.kill()
    # Its device is the last one of the two that the driver has.
    lab.machine.run("sh", "-c", "cd /sys/bus/virtio/drivers/virtio_pmem; "
                    "for one in $(ls -d virtio*); do last=$one; done; "
                    "for n in 1 2 3; do echo $last > unbind; echo $last > bind; done")
    check(started(lab.host.daemon, "map") == [mapper], "another mapper")
    lab.machine.agents = lab.machine.start_agent()
    _is_found(lab)
    machines._across("machine", "container", "rc", "-c", "-e")(lab)


def _reset(lab):
    """So does a guest that is booted afresh in the same QEMU; who exchanged messages with it hears
    that it is gone, and nothing stays behind."""
    _is_found(lab)
    [mapper], qemu = started(lab.host.daemon, "map"), lab.machine.machine.pid
    machines.boots_afresh(lab)
    check(lab.machine.machine.poll() is None and lab.machine.machine.pid == qemu, "another QEMU")
    check(started(lab.host.daemon, "map") == [mapper], "another mapper")
    _is_found(lab)
    check(_pairs(lab)["way"] == "mapped" and len(_devices(lab)) == 2,
          f"{_pairs(lab)} {_devices(lab)}")
    with machines._long(lab, "machine", "container", "rc", "-e"):
        check(set(machines._ways(lab)) == {_MAPPED}, f"{list(machines._ways(lab))}")


def _reset_without(lab):
    """Without its mapper a guest that is reset ends QEMU, and nothing stays behind."""
    lab.machine.start("sh", "-c", "echo b > /proc/sysrq-trigger")
    status = lab.machine.machine.wait(60)
    print(process.how(status), flush=True)
    process.until(lambda: not lab.machine.row() and not started(lab.host.daemon, "map"), 20,
                  "everything to be gone")


def _old_kernel(lab):
    """A guest whose driver knows of no such memory has windows that are plugged in, and people are
    told why."""
    process.until(lambda: _pairs(lab)["present"] > 0, 60, lambda: f"windows\n{_said(lab)}")
    shown = lab.host.daemon.omniverb("vm", "show", NAME)
    check("knows no memory that is mapped: windows are plugged in" in shown, shown)
    check(_pairs(lab)["way"] == "plugged", f"{_pairs(lab)}")
    _neighbour(lab)


class _Lab(Lab):
    """With one container more."""

    def __init__(self, stage, kind):
        super().__init__(stage, kind)
        try:
            self.fourth = self.host.add(4)
        except BaseException:
            self.close()
            raise

    def places(self):
        return {**super().places(), "fourth": self.fourth}


def _two(lab):
    """Two machines have a window in common, which is mapped into both."""
    with contextlib.closing(Mapped(lab.stage, lab.host, name="web-2",
                                   address="10.77.0.201")) as other:
        def rows(name):
            return [machine.row()["pairs"][name] for machine in (lab.machine, other)]

        process.until(lambda: min(rows("present")) >= 1, 40, lambda: f"{_said(lab)}")
        sides = SimpleNamespace(server=Device(other), client=Device(lab.machine))
        with _answered(lab, sides):
            pass
        process.until(lambda: sorted(rows("others")) == [0, 1] and min(rows("present")) >= 1, 40,
                      lambda: f"{_said(lab)} {other.row()}")
        process.until(lambda: rows("given") == [1, 1], 30, lambda: f"{_said(lab)} {other.row()}")
        for program, options in (("rc", ["-c", "-e"]), ("ud", ["-c"])):
            machines._between(sides, program, *options)
        with machines._long_between(lab, sides, "rc", "-e"):
            check(set(machines._ways(lab)) == {_MAPPED}, f"{list(machines._ways(lab))}")
        machine_neighbours.stores(lab, sides)


def _lab(kind):
    return lambda stage: contextlib.closing(_Lab(stage, kind))


def groups():
    """All before a release only: this QEMU is not what every day's tests have."""
    cases = [("device", _device), ("mapper", _mapper), ("neighbour", _neighbour),
             ("pages", _pages), ("taken out", _taken_out), ("daemon killed", _daemon_again),
             ("porter killed", _porter_again), ("driver again", _again),
             ("reset", _reset), ("QEMU killed", _qemu_killed)]

    def group(name, kind, found):
        return Group(f"machines.{name}",
                     [Case(f"machines.{name}.{what}", run, 500, slow=True) for what, run in found],
                     _lab(kind), weight=WAITS)
    return [group("mapped", Mapped, cases), group("mapped old", Old, [("way", _old_kernel)]),
            group("mapped again", Three,
                  [("mapper killed", _mapper_again), ("gone meanwhile", _gone_meanwhile),
                   ("with the daemon", _with_daemon), ("reset", _reset),
                   ("detached", _detached)]),
            group("mapped gone", Three,
                  [("mapper lost", _mapper_lost), ("reset", _reset_without)]),
            group("mapped two", Mapped, [("window", _two)])]
