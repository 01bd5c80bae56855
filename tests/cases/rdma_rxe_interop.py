"""Tests Omniverb with Linux's software RNIC, rdma_rxe, in a virtual machine.

One machine boots for all cases, and those that are only numbers in a list share a case: booting
takes a while where the processor is emulated."""

import contextlib
import ipaddress
import pathlib
import re
import signal
import tempfile
from dataclasses import replace
from types import SimpleNamespace

from harness import client_server, tshark_dissection, guest_image, process, staging
from harness.rdma_cm_client_server import Side, both
from harness.case import CROWDS, Case, Failure, Group, check
from harness.daemon import environment
from harness.simulated_host import Host
from harness.rxe_guest import Guest, programs

from cases.multicast import attachments

_MTU = 9000  # room for the largest MTU of InfiniBand
_OWN_PROGRAMS = ["rxe_interop", "rxe_interop_flow"]
_ADDRESSES = ("10.77.0.200/24", "fd77::200/64")


class Lab:
    """A container with Omniverb and a guest with rxe, on one switch."""

    def __init__(self, stage):
        self.stage = stage
        self.host = Host(stage, "interop", mtu=_MTU)
        try:
            self.switch = self.host.switch
            self.omniverb = self.host.add(1)
            own = [staging.BUILT / "programs" / name for name in _OWN_PROGRAMS]
            self.rxe = self.host.keep(Guest(self.switch, guest_image.archive(programs(own)),
                                            _ADDRESSES[0], _ADDRESSES[1:], mtu=_MTU))
            self.gids = {place: _gids(place) for place in (self.omniverb, self.rxe)}
            for gid in self.gids[self.omniverb]:  # rxe wants to know its neighbours beforehand
                if not gid.is_link_local and not gid.is_loopback:
                    self.rxe.run("ping", "-c", "1", gid.ipv4_mapped or gid)
        except BaseException:
            self.close()
            raise

    def close(self):
        """Ends everything."""
        self.host.close()

    def sides(self, role):
        """Who is server and who is client if Omniverb has `role`; rxe is both without Omniverb."""
        if role == "reference":
            return SimpleNamespace(server=self.rxe, client=self.rxe)
        if role == "server":
            return SimpleNamespace(server=self.omniverb, client=self.rxe)
        return SimpleNamespace(server=self.rxe, client=self.omniverb)

    def gid_index(self, place, version):
        """The index of the GID of a place's IPv4 or IPv6 address."""
        for gid, index in self.gids[place].items():
            if version == 4 and gid.ipv4_mapped and not gid.ipv4_mapped.is_loopback:
                return index
            if version == 6 and gid in ipaddress.ip_network("fd77::/64"):
                return index
        raise AssertionError(f"no GID for IPv{version} in {self.gids[place]}")

    def run(self, role, version, program, *options, index=None, limit=20.0):
        """Runs a program on both sides; `index` is its option for the index of a GID."""
        sides = self.sides(role)
        lines = [[program, *options] for _ in range(2)]
        if index:
            for line, place in zip(lines, (sides.server, sides.client)):
                line += [index, str(self.gid_index(place, version))]
        return client_server.Duet(sides, lines[1], server_argv=lines[0]).finish(limit)


def _gids(place):
    """The GIDs of a place's only device: address -> index."""
    text = place.run("ibv_devinfo", "-v")
    found = re.findall(r"GID\[\s*(\d+)\]:\s*([0-9a-f:.]+)", text)
    return {ipaddress.IPv6Address(gid): int(index) for index, gid in found}


def _lab(stage):
    return contextlib.closing(Lab(stage))


# ---- pingpongs ----

_SIZES = (3, 1025, 4096, 65537)


def _pingpong(role, version, program, sizes, *options):
    def run(lab):
        for size in sizes:
            outcome = lab.run(role, version, f"ibv_{program}_pingpong", "-c", "-n", 20, "-s", size,
                              *options, index="-g")
            for text in (outcome.server, outcome.client):
                check("invalid data" not in text and "iters in" in text, f"{size} bytes: {text}")
    return run


def _pingpongs(role):
    for version in (4, 6):
        for program in ("rc", "uc", "srq", "ud"):
            sizes = _SIZES if version == 4 else (1025,)
            if program == "ud":
                sizes = [size for size in sizes if size <= 4096]
            # Who sleeps leaves the guest's only processor to its network.
            yield Case(f"interop.{role} ibv_{program}_pingpong ipv{version}",
                       _pingpong(role, version, program, sizes, "-e"), 60)
    yield Case(f"interop.{role} ibv_rc_pingpong mtu 4096",
               _pingpong(role, 4, "rc", (4095, 4096, 65537), "-m", 4096), 60)


# ---- perftest ----

def _perftest(role, version, program, *options):
    unreliable = "UC" in options or "UD" in options

    def run(lab):
        outcome = client_server.patiently(lab.run, role, version, program, "-F", *options,
                                          index="-x",
                                 limit=12 if unreliable else 20, unreliable=unreliable)
        found = client_server.check_typical(outcome.client, program.endswith("_lat"))
        check(len(found) == 1, outcome.client)
    return run


def _perftests(role):
    def case(version, program, *options):
        title = " ".join(str(word) for word in options[:2])
        return Case(f"interop.{role} {program} {title} ipv{version}",
                    _perftest(role, version, program, *options), 60)
    for verb, services in (("send", ("RC", "UC", "UD")), ("write", ("RC", "UC")),
                           ("read", ("RC",))):
        for service in services:
            # UC does not repeat what comes before there is a link, and of that 512 KiB are kept.
            large = {"RC": 65536, "UC": 8192, "UD": 1024}[service]
            count = 50 if service == "UC" else 100
            yield case(4, f"ib_{verb}_lat", "-c", service, "-s", 64, "-n", 50)
            yield case(4, f"ib_{verb}_bw", "-c", service, "-s", large, "-n", count)
            if service == "RC":
                yield case(6, f"ib_{verb}_bw", "-c", service, "-s", large, "-n", 50)
    for operation in ("FETCH_AND_ADD", "CMP_AND_SWAP"):
        yield case(4, "ib_atomic_lat", "-A", operation, "-n", 50)
        yield case(4, "ib_atomic_bw", "-A", operation, "-n", 100)


# ---- connections by address ----

def _by_address(role, version, name, expected, *options, endless=False):
    """Debian's rdmacm-utils: who connects is told by a kernel's manager, and tells one."""
    def run(lab):
        sides = lab.sides(role)
        address = _address(lab, sides.server, version)
        if name == "rping":
            words = [name, "-a", address, "-v", "-V", *options]
            lines = [*words, "-s"], [*words, "-c"]
        else:
            lines = [name, *options], [name, *options, "-s", address]
        said, text = both(sides, *lines, 20, endless)
        check(re.search(expected, text), f"no {expected!r}:\n{text}\n--- server ---\n{said}")
    return Case(f"interop.{role} {' '.join([name, *options])} ipv{version}", run, 60)


def _address(lab, place, version):
    gids = {index: gid for gid, index in lab.gids[place].items()}
    gid = gids[lab.gid_index(place, version)]
    return str(gid.ipv4_mapped or gid)


_GROUP = "239.20.0.7"


def _mckey(role):
    """A kernel joins by itself, as its manager is asked; what one sends the other gets."""
    def run(lab):
        sides = lab.sides(role)
        words = ["mckey", "-m", _GROUP, "-c", "1", "-C", "20"]
        started = []

        def start(place, *more):
            started.append(Side(place, [*words, "-b", _address(lab, place, 4), *more]))
            return started[-1]

        def joined():
            if sides.server is lab.rxe:
                return _GROUP in lab.rxe.run("ip", "maddr", "show")
            return attachments(lab.host.daemon) > 0
        try:
            member = start(sides.server)
            process.until(lambda: joined() or not member.is_there(), 20, "a member")
            for side in (start(sides.client, "-s"), member):
                status = side.wait(40)
                check(status == 0 and "test complete" in side.text(),
                      "\n---\n".join(one.text() for one in started))
        finally:
            for side in started:
                side.end()
    return Case(f"interop.{role} mckey", run, 90)


def _all_by_address(role):
    pings = "ping data: rdma-ping-9:"
    return [_by_address(role, 4, "rping", pings, "-C", "10"),
            _by_address(role, 6, "rping", pings, "-C", "10"),
            _by_address(role, 4, "rping", pings, "-C", "10", "-S", "60000"),
            _by_address(role, 4, "ucmatose", "return status 0", "-c", "10"),
            _by_address(role, 4, "udaddy", "return status 0"),
            _mckey(role),
            _by_address(role, 4, "cmtime", r"disconnect +: +[0-9.]+", "-c", "50", endless=True)]


# ---- our own program: contents ----

def _contents(role, test, *options, limit=40.0):
    program = ("rxe_interop_flow" if test in ("pipeline", "errors", "invalidate")
               else "rxe_interop")

    def run(lab):
        for left in reversed(range(3 if test in ("uc", "ud") else 1)):
            try:
                outcome = lab.run(role, None, f"/opt/programs/{program}", test, *options,
                                  limit=limit)
                break
            except Failure as failure:
                # What comes is looked at byte by byte. What does not may be lost, on UC and UD.
                if not left or "no completion for" not in str(failure):
                    raise
                print(f"a message was lost: {failure}")
        for text in (outcome.server, outcome.client):
            check(f"ok {test}" in text, text)
    return run


_CONTENTS = [("rc",), ("rc", "-m", 256), ("rc", "-m", 4096), ("rc", "-6"), ("uc",),
             ("uc", "-m", 4096), ("uc", "-6"), ("ud",), ("ud", "-m", 4096), ("ud", "-6"),
             ("pipeline",), ("pipeline", "-m", 4096), ("pipeline", "-6"), ("errors",),
             ("invalidate",)]


def _all_contents(role):
    for test, *options in _CONTENTS:
        title = " ".join(str(word) for word in [test, *options])
        yield Case(f"interop.{role} contents {title}", _contents(role, test, *options), 130)


# ---- loss ----

def _loss(role, test, percent, *options):
    """The bridge loses packets at random, both ways."""
    contents = _contents(role, test, *options, limit=100)

    def run(lab):
        lab.switch.lose(percent)
        try:
            contents(lab)
            print(f"{lab.switch.lost()} packets were lost")
            check(lab.switch.lost() > 0, "no packet was lost")
        finally:
            lab.switch.lose_nothing()
    return run


# ---- dissection ----

# Every opcode of RC, UC and UD but RC's SEND_LAST with invalidate (0x16).
_OPCODES = {*range(0x00, 0x15), 0x17, *range(0x20, 0x2c), 0x64, 0x65}


@contextlib.contextmanager
def _omniverb_capture(lab, path):
    """The same, by our own means."""
    name = f"pid:{lab.omniverb.namespace.pid}"
    command = [*lab.switch.enter(), lab.stage.dist / "bin" / "omniverb", "capture"]
    running = process.start([*command, "-i", name, "-w", path],
                            env=environment(OMNIVERB_SOCKET=lab.host.daemon.socket))
    process.until(lambda: path.exists() and path.stat().st_size, 10, "a capture to begin")
    yield
    running.send_signal(signal.SIGINT)
    check(running.wait(10) == 0, "omniverb capture failed")


def _dissected(begin):
    """What passes while our programs run, either way, is what Wireshark takes it for."""
    def run(lab):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "packets")
            with begin(lab, path):
                for test, *options in (("rc",), ("uc", "-6"), ("ud",), ("invalidate", "-6")):
                    _contents("client", test, *options)(lab)
            found = tshark_dissection.opcodes(path, True, begin != _omniverb_capture)
        print({f"{code:#04x}": count for code, count in sorted(found.items())})
        check(_OPCODES <= set(found), f"not seen: {sorted(_OPCODES - set(found))}")
    return run


def _port_capture(lab, path):
    return tshark_dissection.capture(lab.switch, "port1", path)


def groups():
    """All with one guest."""
    # What we expect of both, rxe must do with itself. It is another's code, and looked at seldom.
    references = [*_all_contents("reference"), *_all_by_address("reference")]
    cases = [replace(case, slow=True) for case in references]
    for role in ("server", "client"):
        cases += [*_pingpongs(role), *_perftests(role), *_all_contents(role),
                  *_all_by_address(role)]
        cases.append(Case(f"interop.{role} loss rc", _loss(role, "rc", 2), 110))
        # Under loss rxe loses track of the answers to its own READs and atomics, also with an rxe.
        options = ["-1", "-n"] if role == "server" else ["-1"]
        cases.append(Case(f"interop.{role} loss pipeline",
                          _loss(role, "pipeline", 2, *options), 110))
    cases += [Case("interop.dissection", _dissected(_port_capture), 120),
              Case("interop.dissection omniverb capture", _dissected(_omniverb_capture), 120)]
    return [Group("interop", cases, _lab, weight=CROWDS)]
