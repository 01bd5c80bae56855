"""Tests neighbours' windows that are mapped into a running machine, by QEMU 11.1."""

import contextlib
import mmap
import os
import re
from types import SimpleNamespace

from harness import guest_image, process
from harness.case import WAITS, Case, Group, check
from harness.virtual_machines import NAME, OMNIVERB, Device, Lab, Machine, files, proxies, started

from cases import vm_pair_window_grants, vm_rdma_cm_and_vnic_settings, virtual_machines

_SUITE = "trixie"
MAPPED = ("direct", "in a pair window of the virtual machine")
# A handshake through the machine's network is to be answered within 300 ms, and how fast a guest is
# that is emulated others on this machine say.
_UNANSWERED = ("roce", "no answer to the handshake")
_ANSWERS = 6
_PLACES = 2
# How long a test of pages may take (s), and a case with six of them, which have taken 95 s in all:
# a guest that is emulated has no processor for itself.
_PAGES, _ALL_PAGES = 400, 1700


class Mapped(Machine):
    """A machine with places for two windows, the first of which is there when it has booted."""

    suite = _SUITE
    places = _PLACES

    def __init__(self, stage, host, **options):
        emulator = guest_image.newest_emulator()
        kernel = guest_image.Kernel(self.suite)
        archive = guest_image.archive(files(stage), guest_image.DAX, f"mapped-{self.suite}", kernel)
        super().__init__(stage, host, archive, kernel=kernel, emulator=emulator, **options)

    def command(self, stage):
        line = super().command(stage)
        at = line.index("--")
        return [*line[:at], "--most-neighbours", str(self.places), "--windows", "mapped", "--"]


class Old(Mapped):
    """The same, whose kernel is older than such memory."""

    suite = None


def pairs(lab):
    """What there is to see of its windows."""
    row = lab.machine.row()
    return row["pairs"] if row else {name: -1 for name in ("present", "given", "used", "windows")}


def said(lab):
    """What is known when something is not as it should be."""
    seen = lab.machine.run("sh", "-c", "ls /sys/bus/dax/devices /sys/bus/nd/devices; dmesg",
                           accept=range(256))
    return f"{lab.machine.row()}\n{lab.machine.said()}\n{seen[-3000:]}"


def is_found(lab, least=1):
    """The machine has so many windows."""
    process.until(lambda: pairs(lab)["present"] >= least, 40, lambda: f"windows\n{said(lab)}")


def devices(lab):
    """Memory that is a device of the guest's."""
    return lab.machine.run("ls", "/sys/bus/dax/devices").split()


def _device(lab):
    """One device of the machine's own, and one with places; no window is a device of its own."""
    is_found(lab)
    found = devices(lab)
    check(len(found) == 2, f"{found}")
    shown = lab.host.daemon.omniverb("vm", "show", NAME)
    check("0 of 1 mapped and 1 more" in shown, shown)
    check(pairs(lab)["way"] == "mapped", f"{pairs(lab)}")
    # The kernel keeps notes of those pages only that there can be.
    with open(f"/proc/{lab.machine.machine.pid}/cmdline", encoding="utf-8") as file:
        check("vhost-user-test-device-pci" in file.read(), "another way")


def _mapper(lab):
    """Who maps them is nobody, and has nothing but sockets and the windows."""
    [folder] = started(lab.host.daemon, "map")
    with open(f"{folder}/status", encoding="utf-8") as file:
        status = dict(line.split(":\t") for line in file.read().splitlines() if ":\t" in line)
    check(min(map(int, status["Uid"].split() + status["Gid"].split())) >= virtual_machines._NOBODY,
          f"{status}")
    check(int(status["CapPrm"], 16) == 0 and status["NoNewPrivs"] == "1", f"{status}")
    names = sorted(os.readlink(f"{folder}/fd/{name}") for name in os.listdir(f"{folder}/fd"))
    rest = [name for name in names if name != "/dev/null" and not name.startswith("socket:")]
    check(all(name.startswith(("/memfd:omniverb-pair", "/memfd:omniverb-places",
                               "/memfd:omniverb-notes"))
              for name in rest), f"{names}")


def _unanswered(lab):
    """Whether a link goes by the network because nobody of the other side, or of this one, has
    answered in time."""
    return any((peer["path"], peer["why"]) == _UNANSWERED
               for vnic in lab.host.daemon.status()["vnics"] for program in vnic["processes"]
               for qp in program["qps"] for peer in qp["peers"])


@contextlib.contextmanager
def answered(lab, sides):
    """Two processes that exchange messages, whose network has led to each other."""
    for left in reversed(range(_ANSWERS)):
        with virtual_machines._long_between(lab, sides, "rc", "-e"):
            if left and _unanswered(lab):
                print("nobody answered", flush=True)
                continue
            yield
            return


def _neighbour(lab):
    """Links of the machine's processes and a container's are in a window that is mapped."""
    is_found(lab)
    for server, client in (("machine", "container"), ("container", "machine")):
        with answered(lab, lab.sides(server, client)):
            ways = set(virtual_machines._ways(lab))
            check(ways == {MAPPED}, f"{ways}")
            names = set(virtual_machines._memory(lab))
            check("omniverb-pair" in names and "omniverb-window" not in names, f"{names}")
    for program, *options in (("rc", "-c"), ("ud", "-c", "-e"), ("uc", "-c", "-e")):
        virtual_machines._across("machine", "container", program, *options)(lab)


def _pages(lab):
    """So are pages that they grant each other."""
    sides = lab.sides("machine", "container")
    for places in (sides, SimpleNamespace(server=sides.client, client=sides.server)):
        for test in (vm_pair_window_grants.stores, vm_pair_window_grants.deregistered):
            vm_pair_window_grants.all_back(lab)
            test(lab, places, _PAGES)


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
    is_found(lab)
    seen, kept = set(), []
    with contextlib.ExitStack() as stack:
        for number, name in enumerate(("container", "third")):
            process.until(lambda number=number: pairs(lab)["present"] > number, 30,
                          lambda: f"a place\n{said(lab)}")
            stack.enter_context(virtual_machines._long(lab, "machine", name, "rc", "-e"))
            process.until(lambda number=number: len(list(virtual_machines._ways(lab))) > number, 30,
                          "a link")
        check(set(virtual_machines._ways(lab)) == {MAPPED}, f"{list(virtual_machines._ways(lab))}")
        check((pairs(lab)["given"], pairs(lab)["more"]) == (_PLACES, 0), f"{pairs(lab)}")
        process_id, addresses, inode = _shared(lab)
        seen.add(inode)
        # As somebody who keeps what he had.
        file = stack.enter_context(open(f"/proc/{process_id}/map_files/{addresses}", "r+b",
                                        buffering=0))
        kept.append(mmap.mmap(os.dup(file.fileno()), 0))
        with virtual_machines._long(lab, "machine", "fourth", "rc", "-e"):
            process.until(lambda: len(list(virtual_machines._ways(lab))) > _PLACES, 30,
                          "another link")
            ways = [path for path, _ in virtual_machines._ways(lab)]
            check(sorted(ways) == ["direct", "direct", "forwarded"], f"{ways}")
    for name in ("fourth", "container", "fourth", "third"):
        process.until(lambda: pairs(lab)["present"] > 0 and
                      pairs(lab)["given"] < _PLACES, 30, lambda: f"a place\n{said(lab)}")
        with virtual_machines._long(lab, "machine", name, "rc", "-e"):
            check(set(virtual_machines._ways(lab)) == {MAPPED},
                  f"{name}: {list(virtual_machines._ways(lab))}")
            seen.add(_shared(lab)[2])
            for memory in kept:
                for at in range(0, len(memory), 4096):
                    memory[at:at + 8] = b"\xff" * 8
        virtual_machines._across("machine", name, "rc", "-c", "-e")(lab)
    check(len(seen) >= 3, f"the same files: {seen}")
    [memory] = kept
    check(all(memory[at:at + 8] == b"\xff" * 8 for at in range(0, len(memory), 4096)),
          "somebody else writes there")
    memory.close()


def _daemon_again(lab):
    """Links go on when the daemon is killed, and the next one knows what is mapped where."""
    is_found(lab)
    with virtual_machines._long(lab, "machine", "container", "rc", "-e"):
        lab.host.daemon.kill()
        lab.host.daemon.start()
        process.until(lambda: len(list(virtual_machines._ways(lab))) == 1, 40,
                      "the link to be announced")
        before = virtual_machines._sent(lab)
        process.until(lambda: virtual_machines._sent(lab) > before + 100, 60,
                      "messages on the link")
    process.until(lambda: pairs(lab)["present"] > 0, 40, lambda: f"windows\n{said(lab)}")
    process.until(lab.machine.has_device, 20, "a device")


def _proxy_again(lab):
    """Nor does the end of a proxy change what is mapped."""
    before = started(lab.host.daemon, "map")
    [folder] = proxies(lab.host.daemon)
    process.kill(int(os.path.basename(folder)))
    process.until(lambda: proxies(lab.host.daemon) not in ([], [folder]), 20, "another proxy")
    process.until(lambda: pairs(lab)["present"] > 0, 40, lambda: f"windows\n{said(lab)}")
    check(started(lab.host.daemon, "map") == before, "another mapper")


def _again(lab):
    """A driver that is taken away from the device, and begins again, finds all that was mapped."""
    [mapper] = started(lab.host.daemon, "map")
    is_found(lab)
    lab.machine.agents.kill()
    # Its device is the last one of the two that the driver has.
    lab.machine.run("sh", "-c", "cd /sys/bus/virtio/drivers/virtio_pmem; "
                    "for one in $(ls -d virtio*); do last=$one; done; "
                    "for n in 1 2 3; do echo $last > unbind; echo $last > bind; done")
    check(started(lab.host.daemon, "map") == [mapper], "another mapper")
    lab.machine.agents = lab.machine.start_agent()
    is_found(lab)
    virtual_machines._across("machine", "container", "rc", "-c", "-e")(lab)


def reset(lab):
    """So does a guest that is booted afresh in the same QEMU; who exchanged messages with it hears
    that it is gone, and nothing stays behind."""
    is_found(lab)
    [mapper], qemu = started(lab.host.daemon, "map"), lab.machine.machine.pid
    virtual_machines.boots_afresh(lab)
    check(lab.machine.machine.poll() is None and lab.machine.machine.pid == qemu, "another QEMU")
    check(started(lab.host.daemon, "map") == [mapper], "another mapper")
    is_found(lab)
    check(pairs(lab)["way"] == "mapped" and len(devices(lab)) == 2,
          f"{pairs(lab)} {devices(lab)}")
    with virtual_machines._long(lab, "machine", "container", "rc", "-e"):
        check(set(virtual_machines._ways(lab)) == {MAPPED}, f"{list(virtual_machines._ways(lab))}")


def _old_kernel(lab):
    """A guest whose driver knows of no such memory has windows that are plugged in, and people are
    told why."""
    process.until(lambda: pairs(lab)["present"] > 0, 60, lambda: f"windows\n{said(lab)}")
    shown = lab.host.daemon.omniverb("vm", "show", NAME)
    check("knows no memory that is mapped: windows are plugged in" in shown, shown)
    check(pairs(lab)["way"] == "plugged", f"{pairs(lab)}")
    _neighbour(lab)


class WithFourth(Lab):
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

        process.until(lambda: min(rows("present")) >= 1, 40, lambda: f"{said(lab)}")
        sides = SimpleNamespace(server=Device(other), client=Device(lab.machine))
        with answered(lab, sides):
            pass
        process.until(lambda: sorted(rows("others")) == [0, 1] and min(rows("present")) >= 1, 40,
                      lambda: f"{said(lab)} {other.row()}")
        process.until(lambda: rows("given") == [1, 1], 30, lambda: f"{said(lab)} {other.row()}")
        for program, options in (("rc", ["-c", "-e"]), ("ud", ["-c"])):
            virtual_machines._between(sides, program, *options)
        with virtual_machines._long_between(lab, sides, "rc", "-e"):
            check(set(virtual_machines._ways(lab)) == {MAPPED},
                  f"{list(virtual_machines._ways(lab))}")
        vm_pair_window_grants.stores(lab, sides, _PAGES)


def group(name, kind, found):
    """Cases with one machine of this kind, one after the other."""
    return Group(f"machines.{name}",
                 [Case(f"machines.{name}.{what}", run, _ALL_PAGES if run is _pages else 500,
                       slow=True) for what, run in found],
                 lambda stage: contextlib.closing(WithFourth(stage, kind)), weight=WAITS)


def groups():
    """All before a release only: this QEMU is not what every day's tests have."""
    cases = [("device", _device), ("mapper", _mapper), ("neighbour", _neighbour),
             ("pages", _pages), ("taken out", _taken_out), ("daemon killed", _daemon_again),
             ("proxy killed", _proxy_again), ("driver again", _again),
             ("reset", reset)]

    return [group("mapped", Mapped, cases), group("mapped old", Old, [("way", _old_kernel)]),
            group("mapped two", Mapped, [("window", _two)])]
