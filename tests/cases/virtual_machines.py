"""Tests virtual machines that have a device: stock QEMU, stock kernel, the same library.

One machine boots for all cases, in their order; the last ones take its device away."""

import contextlib
import glob
import os
import re
import signal
from types import SimpleNamespace

from harness import process
from harness.virtual_machines import (ADDRESS, LINKED, NAME, OMNIVERB, Both, Device, Growing, Lab,
                                      Machine,
                              Plain, supervisors, proxies)
from harness.rdma_cm_client_server import end
from harness.case import WAITS, Case, Failure, Group, Skip, check
from harness.client_server import gid_index

from cases import vm_pair_window_grants, vm_rdma_cm_and_vnic_settings
from cases import vm_uninvolved_processes, vm_window_grants

# From here on users belong to nobody.
_NOBODY = 2_000_200_000


def _lab(stage):
    return contextlib.closing(Lab(stage))


def _plain_lab(stage):
    return contextlib.closing(Lab(stage, Plain))


def _growing_lab(stage):
    return contextlib.closing(Lab(stage, Growing))


def _device(lab):
    """The device is there, and its GID is the machine's address."""
    text = lab.machine.verbs("ibv_devinfo", "-v")
    check("omv0" in text and "PORT_ACTIVE" in text, text)
    check(re.search(rf"GID\[.*::ffff:{re.escape(ADDRESS)}", text), text)
    shown = lab.host.daemon.omniverb("vm", "show", NAME)
    check(f"vm-{NAME}" in shown and ADDRESS in shown, shown)


def _command(lab):
    """QEMU's words."""
    with open(f"/proc/{lab.machine.machine.pid}/cmdline", encoding="utf-8") as file:
        return file.read().split("\0")


def _processors(lab):
    """A machine that is emulated may have two processors: of the only one there would be no atomic
    operations towards the host."""
    words = _command(lab)
    check("kvm" in words or "1,maxcpus=2" in words, f"{words}")
    check("atomic" not in lab.machine.said(), lab.machine.said())


def _only_processor(lab):
    """Where somebody else has said how many processors there are, the agent and the doctor say what
    is wrong with one."""
    if "kvm" in _command(lab):
        raise Skip("this machine's processors are no emulated ones")
    check("no atomic operations" in lab.machine.said(), lab.machine.said())
    text = lab.machine.run(OMNIVERB, "doctor", accept=range(256))
    check("-smp 1,maxcpus=2" in text, text)


def _stays(lab):
    """It is neither migrated nor saved: QEMU says why not."""
    folder = lab.machine.folder.name
    for line in (f"migrate \"exec:cat > {folder}/copy\"", "savevm copy"):
        said = lab.machine.tell_monitor(line)
        check("Migration is disabled" in said, f"{line}: {said}")
    check(not os.path.exists(f"{folder}/copy"), "something was written")
    row = lab.machine.row()
    check(row["sessions"] == 0, f"{row}")


def _window(lab):
    """What processes share comes out of the window, and goes back to it."""
    row = lab.machine.row()
    check(row["used"] == 0 and row["sessions"] == 0, f"{row}")
    server = lab.machine.start(OMNIVERB, "run", "--", "ibv_rc_pingpong", stdout=None)
    try:
        process.until(lambda: lab.machine.listens(18515), 60, "a server")
        row = lab.machine.row()
        check(row["used"] >= 512 << 10 and row["sessions"] == 1, f"{row}")
    finally:
        server.kill()
    process.until(lambda: lab.machine.row()["used"] == 0, 10, "the pieces to come back")


def _pingpong(program, *options):
    """Two processes of the machine."""
    def run(lab):
        command = [OMNIVERB, "run", "--", f"ibv_{program}_pingpong", "-g", "0", "-n", "200",
                   *options]
        with open(f"{lab.machine.folder.name}/server", "w+", encoding="utf-8") as said:
            server = lab.machine.start(*command, stdout=said)
            process.until(lambda: server.poll() is not None or lab.machine.listens(18515), 60,
                          "a server")
            text = lab.machine.run(*command, "127.0.0.1", limit=60)
            check(server.wait(20) == 0 and "iters in" in text, text)
    return run


def _across(server, client, program, *options):
    """A process of the machine and one outside."""
    return lambda lab: _between(lab.sides(server, client), program, *options)


def _between(sides, program, *options):
    lines = [[f"ibv_{program}_pingpong", "-g", gid_index(place), "-n", 200, *options]
             for place in (sides.client, sides.server)]
    outcome = Both(sides, lines[0], server_argv=lines[1]).finish(60)
    for text in (outcome.server, outcome.client):
        check("invalid data" not in text and "iters in" in text, text)
    print(program, *options, re.findall(r"iters in .*", outcome.client), flush=True)


def _ways(lab):
    """How the data of the machine's processes travels to others, and why."""
    for vnic in lab.host.daemon.status()["vnics"]:
        for program in vnic["processes"]:
            for qp in program["qps"]:
                for peer in qp["peers"]:
                    if vnic["name"] == f"vm-{NAME}" and peer["vnic"] != vnic["name"]:
                        yield peer["path"], peer["why"]


def _memory(lab):
    """What memory files the processes that are no machine's have mapped."""
    for vnic in lab.host.daemon.status()["vnics"]:
        for program in vnic["processes"]:
            if not vnic["name"].startswith("vm-"):
                with open(f"/proc/{program['pid']}/maps", encoding="utf-8") as file:
                    yield from re.findall(r"/memfd:(omniverb-\S+)", file.read())


@contextlib.contextmanager
def _long(lab, server, client, program, *options):
    """Two processes that exchange messages for as long as they are looked at."""
    with _long_between(lab, lab.sides(server, client), program, *options) as both:
        yield both


@contextlib.contextmanager
def _long_between(lab, sides, program, *options):
    """The same, in these places."""
    lines = [[f"ibv_{program}_pingpong", "-g", gid_index(place), "-n", 10_000_000, *options]
             for place in (sides.client, sides.server)]
    both = Both(sides, lines[0], server_argv=lines[1])
    try:
        process.until(lambda: _moving(lab), 60, "messages on a link")
        yield both
        check(both.server.poll() is None and both.client.poll() is None, "it has ended")
    finally:
        both.abort()


def _neighbour(lab):
    """The first container has a window with the machine, and its process that and no other."""
    for server, client in (("machine", "container"), ("container", "machine")):
        with _long(lab, server, client, "rc", "-e"):
            ways = set(_ways(lab))
            check(ways == {("direct", "in a pair window of the virtual machine")}, f"{ways}")
            check(lab.machine.row()["pairs"]["links"] == 1, f"{lab.machine.row()}")
            names = set(_memory(lab))
            check("omniverb-pair" in names and "omniverb-window" not in names, f"{names}")
    pairs = lab.machine.row()["pairs"]
    check((pairs["windows"], pairs["present"], pairs["given"]) == (1, 1, 1), f"{pairs}")


def _pieces_of_pairs(lab):
    """What two processes had of a pair window comes back when both are gone; not what they had when
    a daemon was killed."""
    process.until(lambda: lab.machine.row()["pairs"]["used"] <= lab.left, 20,
                  lambda: f"the pieces to come back, {lab.left}: {lab.machine.row()}")


def _third(lab):
    """Whoever comes when all windows are given is reached by the engine; also when he has gone
    whose they are."""
    with _long(lab, "machine", "third", "rc", "-e"):
        ways = {path for path, _ in _ways(lab)}
        check(ways == {"forwarded"}, f"{set(_ways(lab))}")
        check("omniverb-pair" not in set(_memory(lab)), "he has some of it")
    check(lab.machine.row()["pairs"]["given"] == 1, f"{lab.machine.row()}")


def _full(lab):
    """More links than there is room for: the others pass through the engine."""
    with contextlib.ExitStack() as stack:
        for number in range(9):
            stack.enter_context(_long(lab, "machine", "container", "rc", "-e"))
            process.until(lambda: len(list(_ways(lab))) > number, 60, "another link")
        paths = [path for path, _ in _ways(lab)]
        check({"direct", "forwarded"} == set(paths), f"{list(_ways(lab))}")


# What passes between two machines in a window of one of them, every day and before a release.
_FEW = (("rc", ["-c", "-e"]), ("ud", ["-c"]))
_ALL = tuple((program, options) for program in ("rc", "uc", "ud")
             for options in (["-c"], ["-c", "-e"]))


def _two_later(lab, programs=_FEW, pages_of_both=False):
    """Two machines that exchange messages have a window in common when they do it again: of one of
    them, and plugged into the other. The next daemon knows of it."""
    later = ("forwarded", "no pair window is in both virtual machines yet; later links have one")
    direct = ("direct", "in a pair window of the virtual machine")
    with contextlib.closing(Growing(lab.stage, lab.host, memory="512", name="web-2",
                                    address="10.77.0.201")) as other:
        def both(name):
            rows = (lab.machine.row(), other.row())
            return [row["pairs"][name] if row else -1 for row in rows]

        def said():
            return f"{lab.machine.row()} {other.row()}\n{lab.machine.said()}\n{other.said()}"

        process.until(lambda: min(both("present")) == 1, 30, said)
        sides = SimpleNamespace(server=Device(other), client=Device(lab.machine))
        _between(sides, "rc", "-e")
        with _long_between(lab, sides, "rc", "-e"):
            check(set(_ways(lab)) <= {later, direct}, f"{set(_ways(lab))}")
        # Whose it is, and another one of that machine's for whoever comes next.
        process.until(lambda: both("given") == [1, 1] and min(both("present")) == 2, 30, said)
        check(sorted(both("others")) == [0, 1], said())
        for program, options in programs:
            _between(sides, program, *options)
        turned = SimpleNamespace(server=sides.client, client=sides.server)
        for places in (sides, turned):
            with _long_between(lab, places, "rc", "-e"):
                check(set(_ways(lab)) == {direct}, f"{set(_ways(lab))}")
                check(both("links") == [1, 1], said())
        process.until(lambda: max(both("used")) == 0, 20, said)
        vm_pair_window_grants.stores(lab, sides)
        vm_pair_window_grants.deregistered(lab, turned)
        if pages_of_both:
            vm_pair_window_grants.stores(lab, turned)
            vm_pair_window_grants.deregistered(lab, sides)
        process.until(lambda: max(both("used")) == 0, 30, said)
        with _long_between(lab, sides, "rc", "-e"):
            lab.host.daemon.kill()
            lab.host.daemon.start()
            process.until(lambda: min(both("present")) == 2, 40, said)
            process.until(lambda: len(list(_ways(lab))) == 1, 30, "the link to be announced")
            before = _sent(lab)
            process.until(lambda: _sent(lab) > before + 100, 60, "messages on the link")
        with _long_between(lab, sides, "uc", "-e"):
            check(set(_ways(lab)) == {direct}, f"{set(_ways(lab))}")
    process.until(lambda: not other.row(), 10, "the other to be gone")


def _two_later_all(lab):
    """The same with every program, and pages of both."""
    _two_later(lab, _ALL, pages_of_both=True)


def _later(lab):
    """Each neighbour has a window, none of which was there when the machine booted."""
    before = lab.machine.row()["pairs"]["given"]
    lab.left = process.settled(lambda: lab.machine.row()["pairs"]["used"])
    for given, neighbour in enumerate(("container", "third"), start=before):
        process.until(lambda given=given: lab.machine.row()["pairs"]["present"] > given, 30,
                      lambda: f"a window\n{lab.machine.row()}\n{lab.machine.said()}")
        check(lab.machine.row()["pairs"]["given"] == given, f"{lab.machine.row()}")
        for server, client in (("machine", neighbour), (neighbour, "machine")):
            with _long(lab, server, client, "rc", "-e"):
                ways = set(_ways(lab))
                check(ways == {("direct", "in a pair window of the virtual machine")}, f"{ways}")
                names = set(_memory(lab))
                check("omniverb-pair" in names and "omniverb-window" not in names, f"{names}")


def _no_more(lab):
    """What QEMU has no place for is tried a few times, and then said to whoever asks."""
    process.until(lambda: lab.machine.row()["pairs"]["trouble"], 30, "a refusal")
    process.until(lambda: lab.machine.row()["pairs"]["more"] == 0, 30, "an end of it")
    pairs = lab.machine.row()["pairs"]
    check((pairs["windows"], pairs["present"], pairs["given"]) == (3, 3, 3), f"{pairs}")
    shown = lab.host.daemon.omniverb("vm", "show", NAME)
    check("QEMU has no place for the device" in shown, shown)
    _pieces_of_pairs(lab)


def _later_outlives(lab):
    """The next daemon, and the next proxy, know of windows that came later."""
    lab.host.daemon.kill()
    lab.host.daemon.start()
    process.until(lambda: (lab.machine.row() or {"pairs": {"present": 0}})["pairs"]["present"] == 3,
                  30, lambda: f"the windows\n{lab.machine.row()}")
    process.until(lab.machine.has_device, 20, "a device")
    with _long(lab, "machine", "third", "rc", "-e"):
        ways = set(_ways(lab))
        check({path for path, _ in ways} == {"direct"}, f"{ways}")


def _second(lab):
    return Machine(lab.stage, lab.host, name="web-2", address="10.77.0.201")


def _two_machines(lab):
    """A process of the machine and one of another machine."""
    with contextlib.closing(_second(lab)) as other:
        sides = SimpleNamespace(server=Device(other), client=Device(lab.machine))
        _between(sides, "rc", "-c", "-e")
    process.until(lambda: not other.row(), 10, "the other to be gone")


def _settled(lab):
    """Waits until what processes had that are gone came back, as far as it does."""
    process.until(lambda: lab.machine.row()["sessions"] == 0, 10, "all to be gone")
    process.settled(lambda: lab.machine.row()["used"])


def _moving(lab):
    """Whether two queue pairs of the machine exchange messages."""
    return sum(qp["messages_sent"] > 10 for qp in lab.host.daemon.queue_pairs()) >= 2


def _stopped(lab, count, stack):
    """Server, client and what they say: so many messages, and the client stands still, unless all
    is over by then."""
    command = [OMNIVERB, "run", "--", "ibv_rc_pingpong", "-c", "-e", "-g", "0", "-n", count]
    idle = lab.machine.row()["used"]
    texts = [stack.enter_context(open(f"{lab.machine.folder.name}/{name}", "w+", encoding="utf-8"))
             for name in ("server", "client")]
    server = lab.machine.start(*command, stdout=texts[0])
    stack.callback(server.kill)
    process.until(lambda: server.poll() is not None or lab.machine.listens(18515), 60, "a server")
    client = lab.machine.start(*command, "127.0.0.1", stdout=texts[1])
    stack.callback(client.kill)
    process.until(lambda: _moving(lab) or client.poll() is not None, 60, "messages on a link")
    used = lab.machine.row()["used"]
    if client.poll() is None:
        client.signal(signal.SIGSTOP)
    # A guest says a moment later what has ended.
    process.settled(lambda: (server.poll(), client.poll()), 0.5)
    check(used - idle >= LINKED or client.poll() is not None, f"{lab.machine.row()}")
    return server, client, texts


@contextlib.contextmanager
def _exchanging(lab):
    """Two processes whose link is in use, stopped meanwhile; then it has to carry all the rest,
    byte for byte."""
    # A machine that is not emulated has done the first number before anybody looks.
    for count in (1000, 10_000, 100_000, 1_000_000):
        _settled(lab)
        with contextlib.ExitStack() as stack:
            server, client, texts = _stopped(lab, count, stack)
            sent = [qp["messages_sent"] for qp in lab.host.daemon.queue_pairs()]
            if server.poll() is None and client.poll() is None and sent and max(sent) < count:
                stack = stack.pop_all()
                break
    else:
        raise Failure("too fast to be looked at")
    with stack:
        yield
        check(server.poll() is None and client.poll() is None, "it has ended while it was stopped")
        client.signal(signal.SIGCONT)
        for end, text in ((client, texts[1]), (server, texts[0])):
            status = end.wait(120)
            text.seek(0)
            said = text.read()
            check(status == 0 and "iters in" in said, f"{status}: {said}")


def _goes_on(lab):
    """Whoever was there goes on with his links, and finds nothing of those who came later in their
    memory, of which nobody knows when it is not used any more; the next process has a device."""
    _settled(lab)
    check(lab.machine.row()["used"] >= LINKED, f"{lab.machine.row()}")
    _device(lab)


def _agent_again(lab):
    """An agent is killed and another begins."""
    with _exchanging(lab):
        lab.machine.agents.kill()
        # Which takes memory for a process that looks for a device.
        lab.machine.agents = lab.machine.start_agent()
    _goes_on(lab)


def _daemon_again(lab):
    """A daemon is killed and another begins: the machine is attached to that one."""
    with _exchanging(lab):
        lab.host.daemon.kill()
        lab.host.daemon.start()
        process.until(lambda: lab.machine.row(), 20, "the machine to be attached")
        check(lab.machine.row()["used"] >= LINKED, f"{lab.machine.row()}")
        process.until(lab.machine.has_device, 20, "a device")
    _goes_on(lab)


def _sent(lab):
    """Messages that queue pairs of the machine's and the container's have sent."""
    return sum(qp["messages_sent"] for qp in lab.host.daemon.queue_pairs())


def _neighbour_outlives(lab):
    """A link in a pair window goes on when the daemon is killed, and who sleeps on either side is
    woken, when there is another; that one knows whose the window is."""
    _settled(lab)
    with _long(lab, "machine", "container", "rc", "-e"):
        lab.host.daemon.kill()
        lab.host.daemon.start()
        process.until(lambda: lab.machine.row(), 20, "the machine to be attached")
        process.until(lambda: len(list(_ways(lab))) == 1, 30, "the link to be announced")
        before = _sent(lab)
        process.until(lambda: _sent(lab) > before + 100, 60, "messages on the link")
        ways = set(_ways(lab))
        check({path for path, _ in ways} == {"direct"}, f"{ways}")
        pairs = lab.machine.row()["pairs"]
        check(pairs["given"] == 1 and pairs["used"] > 0, f"{pairs}")
    _third(lab)
    _neighbour(lab)


def _proxy_again(lab):
    """A proxy is killed and another begins."""
    with _exchanging(lab):
        folder = proxies(lab.host.daemon)[0]
        process.kill(int(os.path.basename(folder)))
        process.until(lambda: not os.path.exists(folder), 10, "its end")
        process.until(lambda: proxies(lab.host.daemon), 20, "another proxy")
        process.until(lab.machine.has_device, 20, "a device")
    _goes_on(lab)


def boots_afresh(lab):
    """Of a guest that is booted afresh nobody is there: who exchanged messages with its processes
    ends with an error, and what those had comes back, of processes that had lost their agent,
    too."""
    # What was in use in pair windows when a daemon was killed does not come back.
    left = process.settled(lambda: lab.machine.row()["pairs"]["used"])
    command = [OMNIVERB, "run", "--", "ibv_rc_pingpong"]
    lab.machine.start(*command, stdout=None)
    process.until(lambda: lab.machine.listens(18515), 60, "a server")
    lab.machine.agents.kill()
    lab.machine.agents = lab.machine.start_agent()
    # It goes on with the next one, and what it had before is nobody's to give back.
    process.until(lambda: lab.machine.row()["used"] >= 2 << 20, 30,
                  lambda: f"memory of before and of now, {lab.machine.row()}")
    sides = lab.sides("machine", "container")
    lines = [["ibv_rc_pingpong", "-g", gid_index(place), "-n", 10_000_000, "-e"]
             for place in (sides.client, sides.server)]
    both = Both(sides, lines[0], server_argv=lines[1])
    try:
        process.until(lambda: _moving(lab), 60, "messages on a link")
        lab.machine.reboot()
        process.until(lambda: both.client.poll() is not None, 60, "an error")
        check(both.client.returncode > 0, process.how(both.client.returncode))
    finally:
        end(both.client)
    process.until(lambda: lab.machine.row()["used"] == 0 and
                  lab.machine.row()["pairs"]["used"] <= left, 30,
                  lambda: f"all to come back but {left}, {lab.machine.row()}")
    _device(lab)


def _booted_afresh(lab):
    """The same, and its neighbours find it."""
    boots_afresh(lab)
    _neighbour(lab)


def _agent_is_nobody(lab):
    """Who has the window and the port in a machine has nothing else."""
    folders = lab.machine.run("sh", "-c", "grep -l omniverb /proc/[0-9]*/comm; true").split()
    # Others may be about to end.
    found = [path for path in map(os.path.dirname, folders) if "agent" in lab.machine.run(
        "cat", f"{path}/cmdline", accept=range(256)).split("\0")[1:2]]
    check(len(found) == 1, f"{found}")
    text = lab.machine.run("cat", f"{found[0]}/status")
    status = dict(line.split(":\t") for line in text.splitlines() if ":\t" in line)
    check(min(map(int, status["Uid"].split() + status["Gid"].split())) >= _NOBODY, text)
    check(int(status["CapPrm"], 16) == 0 and status["NoNewPrivs"] == "1", text)


def _proxy(lab):
    """The process that takes apart what a machine says is nobody, and has nothing."""
    found = proxies(lab.host.daemon)
    check(len(found) == 1, f"{found}")
    folder = found[0]
    with open(f"{folder}/status", encoding="utf-8") as file:
        status = dict(line.split(":\t") for line in file.read().splitlines() if ":\t" in line)
    users = status["Uid"].split() + status["Gid"].split()
    check(min(map(int, users)) >= _NOBODY, f"{users}")
    check(not status["Groups"].split(), status["Groups"])
    check(int(status["CapPrm"], 16) == 0 and status["NoNewPrivs"] == "1", f"{status}")
    files = sorted(os.readlink(path) for path in glob.glob(f"{folder}/fd/*"))
    check(files[:3] == ["/dev/null"] * 3, f"{files}")
    # The port, the machine socket, those of sessions, and what its own threads wake it by.
    rest = [name for name in files[3:] if name != "anon_inode:[eventfd]"]
    check(len(rest) >= 2 and all(name.startswith("socket:") for name in rest), f"{files}")


def _detached(lab):
    """Who takes the device away takes it from those who come, for good: links of those who are
    there go on."""
    with _exchanging(lab):
        lab.host.daemon.omniverb("vm", "detach", NAME)
        check(lab.machine.row() is None, "it is there")
        check(not lab.machine.has_device(), "a device without a host")
    process.until(lambda: not supervisors(lab.host.daemon), 10, "its supervisor to end")
    check(lab.machine.row() is None, "it is there again")


def _ended(lab):
    """With QEMU go its proxy, its supervisor and its place."""
    place = lab.machine.place
    check(os.path.exists(place) and supervisors(lab.host.daemon), f"nobody keeps {place}")
    process.kill(lab.machine.machine.pid)
    process.until(lambda: not lab.machine.row() and not supervisors(lab.host.daemon) and
                  not os.path.exists(place), 20, "everything to be gone")


_ACROSS = [("machine", "container", "rc", "-c"), ("machine", "container", "rc", "-c", "-e"),
           ("machine", "container", "ud", "-e"), ("container", "machine", "rc", "-c", "-e"),
           ("container", "machine", "uc", "-c"), ("container", "machine", "ud", "-c"),
           ("machine", "far", "rc", "-c", "-e"), ("far", "machine", "ud", "-c", "-e")]


def few():
    """What another kernel or another QEMU may change."""
    return [("device", _device), ("stays", _stays), ("ibv_rc_pingpong -e", _pingpong("rc", "-e")),
            *((f"ibv_{program}_pingpong {' '.join(options)}, {client} to {server}",
               _across(server, client, program, *options))
              for server, client, program, *options in _ACROSS),
            ("neighbour", _neighbour), ("daemon killed", _daemon_again)]


def groups():
    """All with one machine."""
    cases = [Case("machines.device", _device, 120),
             Case("machines.processors", _processors, 30),
             Case("machines.stays", _stays, 30),
             Case("machines.window", _window, 120),
             Case("machines.ibv_rc_pingpong", _pingpong("rc"), 180),
             Case("machines.ibv_rc_pingpong -e", _pingpong("rc", "-e"), 180),
             Case("machines.ibv_ud_pingpong -e", _pingpong("ud", "-e"), 180),
             *[Case(f"machines.{' '.join([f'ibv_{program}_pingpong', *options])}, "
                    f"{client} to {server}", _across(server, client, program, *options), 120)
               for server, client, program, *options in _ACROSS],
             *vm_rdma_cm_and_vnic_settings.cases(),
             *vm_window_grants.cases(),
             *vm_pair_window_grants.cases(),
             *vm_uninvolved_processes.cases(),
             Case("machines.neighbour", _neighbour, 180),
             Case("machines.neighbour's pieces", _pieces_of_pairs, 60),
             Case("machines.third", _third, 180),
             Case("machines.full pair window", _full, 300, slow=True),
             Case("machines.two", _two_machines, 180),
             Case("machines.proxy", _proxy, 60),
             Case("machines.agent", _agent_is_nobody, 60),
             Case("machines.agent killed", _agent_again, 300, slow=True),
             # An emulated guest stands still at its second boot in every other run beside others.
             Case("machines.booted afresh", _booted_afresh, 500, slow=True),
             Case("machines.daemon killed", _daemon_again, 300),
             Case("machines.neighbour and another daemon", _neighbour_outlives, 300, slow=True),
             Case("machines.proxy killed", _proxy_again, 300, slow=True),
             Case("machines.detached", _detached, 300)]
    plain = [Case("machines.args.device", _device, 120),
             Case("machines.args.processors", _only_processor, 60),
             Case("machines.args.stays", _stays, 30),
             Case("machines.args.ibv_rc_pingpong", _pingpong("rc"), 180),
             Case("machines.args.ended", _ended, 60)]
    growing = [Case("machines.later, two machines", _two_later, 600),
               Case("machines.later, two machines, all", _two_later_all, 900, slow=True),
               Case("machines.later", _later, 240),
               Case("machines.later, no more", _no_more, 90),
               Case("machines.later and another daemon", _later_outlives, 180)]
    return [Group("machines", cases, _lab, weight=WAITS),
            Group("machines.growing", growing, _growing_lab, weight=WAITS),
            Group("machines.args", plain, _plain_lab, weight=WAITS)]
