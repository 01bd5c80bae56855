"""Tests `omniverb capture` of direct links between two containers of one host.

Both containers' devices are captured at the same time."""

import contextlib
import dataclasses
import pathlib
import re
import signal
import struct
import subprocess
import tempfile
import types

from harness import client_server, tshark_dissection, pcap_files, process
from harness.case import Case, Failure, Group, check
from harness.daemon import environment
from harness.simulated_host import Host

from cases.forwarded_datapath import forwarding

_SIZES = [0, 1, 2, 3, 4, 5, 33, 1023, 1024, 1025, 1023, 1024, 1025, 4095, 4097, 10001, 65537]
_START = 0x1122334455667788
_FIRST_PSN = 0xFFFFF0


class Two:
    """Two containers on one host."""

    def __init__(self, stage, arguments=()):
        self.stage = stage
        self.host = Host(stage, "capture", arguments=arguments)
        try:
            self.server, self.client = self.host.add(1), self.host.add(2)
            self.daemon = self.host.daemon
            self.gid_index = client_server.gid_index(self.server)
        except BaseException:
            self.close()
            raise

    def close(self):
        """Ends everything."""
        self.host.close()

    def capture(self, container, path, *options):
        """Begins to capture a container's device."""
        command = [*self.host.switch.enter(), self.stage.dist / "bin" / "omniverb", "capture",
                   "-i", f"pid:{container.namespace.pid}", "-w", path, *options]
        running = process.start(command, env=environment(OMNIVERB_SOCKET=self.daemon.socket),
                                stderr=subprocess.PIPE, text=True)
        process.until(lambda: path.exists() and path.stat().st_size, 10, "a capture to begin")
        return running

    def run(self, program, *words, limit=40.0):
        """Runs a program of ours on both sides."""
        return client_server.run(self, f"/opt/programs/{program}", *words, limit=limit)


def _end(running):
    """Ends a capture; how many packets it says it has and lacks."""
    running.send_signal(signal.SIGINT)
    text = running.communicate(timeout=20)[1]
    check(running.returncode == 0, f"omniverb capture failed: {text}")
    found = re.search(r"(\d+) packets captured\n(\d+) packets dropped\n$", text)
    check(found, text)
    return int(found[1]), int(found[2])


@contextlib.contextmanager
def _both(two, *options):
    """Captures both devices; the files, once it is over. Nothing may be missing."""
    files = {}
    with tempfile.TemporaryDirectory() as folder:
        paths = [pathlib.Path(folder, name) for name in ("server", "client")]
        running = [two.capture(container, path, *options)
                   for container, path in zip((two.server, two.client), paths)]
        yield files
        for one, path in zip(running, paths):
            captured, dropped = _end(one)
            check(dropped == 0, f"{dropped} of {captured} packets dropped")
            files[path.name] = pcap_files.read(path)
            check(len(files[path.name]) == captured, f"{captured} packets?")
            check(pcap_files.in_order(files[path.name]), "packets out of order")
            print(path.name, {f"{code:#04x}": count for code, count
                              in sorted(tshark_dissection.opcodes(path, True).items())})
    check(_without_time(files["server"]) == _without_time(files["client"]),
          "the same traffic looks different from both sides")


def _without_time(found):
    """Everything passes both devices, at about the same time."""
    return sorted(repr(dataclasses.replace(packet, time=0)) for packet in found)


def _fill(length, word):
    """What `fill` of tests/programs/common.c writes."""
    mask = (1 << 64) - 1
    words = []
    for index in range(length // 8 + 1):
        z = (word ^ word >> 31) + (index + 1) * 0x9E3779B97F4A7C15 & mask
        words.append(z ^ z >> 29)
    return struct.pack(f"={len(words)}Q", *words)[:length]


def _differing(found, payload):
    """Where payload is not as it should be."""
    wrong = [at for at, (is_, want) in enumerate(zip(found.payload, payload)) if is_ != want]
    lengths = f"{len(found.payload)} of {len(payload)} bytes"
    if not wrong:
        return lengths
    at = wrong[0]
    return (f"{lengths}, {len(wrong)} wrong, from byte {at} on: {found.payload[at:at + 16].hex()}, "
            f"not {payload[at:at + 16].hex()}; PSN {found.psn}")


def _expect(found, kind, payload, immediate, where):
    check(found.kind == kind, f"{where}: {found.kind} instead of {kind}")
    check(found.payload == payload,
          f"{where}: {kind} with other data: {_differing(found, payload)}")
    check(found.immediate == immediate, f"{where}: immediate {found.immediate}")
    check(found.psn is not None, where)


def _connected(service, *options):
    """Every operation of tests/programs/rxe_interop.c, byte for byte, asked by either side."""
    def run(two):
        with _both(two) as files:
            two.run("rxe_interop", service, *options)
        asked = pcap_files.conversations(files["server"])
        check(len(asked) == 2, f"conversations: {list(asked)}")
        check(len({key[0] for key in asked}) == 2, "each side asks the other")
        for name, conversation in asked.items():
            _check_steps(name, conversation.messages, service == "rc")
            check(not conversation.open and conversation.repeats == 0, name)
    return run


def _check_steps(name, messages, reliable):
    messages, psn = iter(messages), _FIRST_PSN
    for step, length in enumerate(_SIZES):
        immediate = struct.pack(">I", 0xABCD0000 + step)
        where = f"{name} step {step}, {length} bytes"
        expected = [("send", _fill(length, step * 8 + 1), immediate if step & 1 else None),
                    ("write", _fill(length, step * 8 + 2), None),
                    ("write", _fill(length, step * 8 + 3), immediate)]
        if reliable:
            expected.append(("read", _fill(length, step * 8 + 4), None))
        for kind, payload, with_immediate in expected:
            message = next(messages, None)
            check(message, f"{where}: nothing follows")
            _expect(message, kind, payload, with_immediate, where)
            check(message.psn == psn, f"{where}: PSN {message.psn:#x} instead of {psn:#x}")
            psn = psn + message.count & 0xFFFFFF
            check(message.syndromes == ([0x1F] if reliable else []), f"{where}: answers")
        if reliable:
            for want in [("fetch_add", _START, ((1 << 64) - 5, 0)),
                         ("compare_swap", _START - 5, (7, _START)),
                         ("compare_swap", _START - 5, (_START ^ (1 << 64) - 1, _START - 5)),
                         ("fetch_add", _START ^ (1 << 64) - 1, (0, 0))]:
                message = next(messages)
                check((message.kind, message.original, message.numbers) == want, where)
                check(message.acknowledged and message.psn == psn, where)
                psn = psn + 1 & 0xFFFFFF
    check(next(messages, None) is None, f"{name}: more than was asked")


def _datagrams(*options):
    def run(two):
        with _both(two) as files:
            two.run("rxe_interop", "ud", *options)
        asked = pcap_files.conversations(files["server"])
        check(len(asked) == 4, f"conversations: {list(asked)}")
        sizes = [(step, length) for step, length in enumerate(_SIZES) if length <= 1024]
        for name, conversation in asked.items():
            messages = conversation.messages
            check(len(messages) == len(sizes), f"{name}: {len(messages)} messages")
            answers = {len(message.payload) for message in messages} == {64}
            for (step, length), message in zip(sizes, messages):
                data = _fill(64, step * 8 + 2) if answers else _fill(length, step * 8 + 1)
                immediate = struct.pack(">I", 0xABCD0000 + step) if step & 1 else None
                _expect(message, "send", data, None if answers else immediate, f"{name} {step}")
    return run


def _of_many(two, program):
    """The conversations of many connections; others of them if two had one port."""
    for _ in range(3):
        with _both(two) as files:
            two.run("rxe_interop_flow", program)
        try:
            return pcap_files.conversations(files["server"]).values()
        except pcap_files.SharedPort as shared:
            print(shared)
    raise Failure("two connections had one port three times")


def _errors(two):
    """Refusals, and a peer without a receive."""
    conversations = _of_many(two, "errors")
    answers = {syndrome for conversation in conversations for message in conversation.messages
               for syndrome in message.syndromes}
    print({hex(syndrome) for syndrome in answers})
    check({0x61, 0x62} <= answers, "no refusals")
    check(any(0x20 <= syndrome < 0x40 for syndrome in answers), "nobody lacked a receive")


def _invalidate(two):
    with _both(two) as files:
        two.run("rxe_interop_flow", "invalidate")
    conversations = pcap_files.conversations(files["server"]).values()
    keys = [message.invalidated for conversation in conversations
            for message in conversation.messages if message.invalidated is not None]
    check(keys, "no key was invalidated")


def _pipeline(*options, mtu=1024):
    """Many requests under way: all are there, numbered without a gap, and answered."""
    def run(two):
        with _both(two) as files:
            two.run("rxe_interop_flow", "pipeline", *options)
        asked = pcap_files.conversations(files["server"], mtu)
        check(len(asked) == 2, f"conversations: {list(asked)}")
        for name, conversation in asked.items():
            messages = conversation.messages
            check(len(messages) == 240, f"{name}: {len(messages)} messages")
            check(all(message.acknowledged for message in messages), f"{name}: not answered")
    return run


def _snap(two):
    """Packets are cut, and say how long they were."""
    with _both(two, "-s", "128") as files:
        two.run("rxe_interop", "rc")
    found = files["client"]
    check(any(packet.cut for packet in found), "nothing was cut")
    check(all(packet.length <= 1024 and len(packet.payload) <= 128 for packet in found), "lengths")
    total = sum(packet.length for packet in found if packet.operation in (0, 1, 2, 3, 4, 5))
    check(total == 2 * sum(_SIZES), f"{total} bytes of SENDs")
    cut = next(packet for packet in found if packet.operation == 0 and packet.cut)
    check(_fill(1024, 8 * 9 + 1).startswith(cut.payload) and len(cut.payload) > 50, "other data")


def _begun_meanwhile(two):
    """Existing links show from the beginning of a capture on, and traffic goes on after it."""
    with tempfile.TemporaryDirectory() as folder:
        captures = {}
        with client_server.going_on(two, "ib_send_lat", "-x", two.gid_index, "-s", "64") as running:
            client_server.moves_on(running, two.daemon)
            for number in range(3):
                path = pathlib.Path(folder, str(number))
                capture = two.capture(two.client, path, "-s", "200")
                # One of the two may be told to tell a while before the other.
                process.until(lambda at=path: len(_requesters(at)) == 2, 20, "both directions")
                _grows(path)
                captures[path] = _end(capture)
                client_server.moves_on(running, two.daemon)
        for path, (captured, dropped) in captures.items():
            print(captured, "packets", dropped, "dropped")
            check(pcap_files.count(path) == captured, "another number of packets in the file")
            check(len(pcap_files.requesters(path)) == 2, "both directions")
            found = pcap_files.read(path, 5_000)
            if not dropped:
                pcap_files.conversations(found)


def _told(two):
    """How many processes tell what they send, by the memory that they do it in."""
    return pathlib.Path(f"/proc/{two.daemon.pid}/maps").read_text().count("omniverb-trace")


def _requesters(path):
    """Those of a capture that goes on: its last packet may be half there."""
    with contextlib.suppress(Failure, struct.error, IndexError):
        return pcap_files.requesters(path)
    return ()


def _grows(path):
    """Waits until a capture has some more packets."""
    size = path.stat().st_size
    process.until(lambda: path.stat().st_size > size + 100_000, 30, "packets")


def _survivors(two):
    """Links that are older than the daemon show, too, and under their own addresses."""
    with tempfile.TemporaryDirectory() as folder:
        with client_server.going_on(two, "ib_send_lat", "-x", two.gid_index, "-s", "64") as running:
            client_server.moves_on(running, two.daemon)
            lost = two.capture(two.server, pathlib.Path(folder, "lost"))
            two.daemon.kill()
            said = lost.communicate(timeout=10)[1]
            # Before it has said that the capture has begun, or later.
            ends = ("the daemon has ended", "the daemon closed the connection")
            check(lost.returncode and any(end in said for end in ends), said)
            two.daemon.start()
            process.until(lambda: two.daemon.totals().get("links", 0), 20, "the link again")
            path = pathlib.Path(folder, "packets")
            capture = two.capture(two.client, path, "-s", "200")
            _grows(path)
            captured, dropped = _end(capture)
            client_server.moves_on(running, two.daemon)
        print(captured, "packets", dropped, "dropped")
        found = pcap_files.read(path, 5_000)
        flows = {(packet.source, packet.destination) for packet in found}
        ends = (two.server.address, two.client.address)
        check(flows == {ends, ends[::-1]}, f"from and to {flows}")


def _soak(two):
    """Random operations on many queue pairs: telling changes nothing of what programs see."""
    peer = two.host.bare(two.client.namespace, two.client.address)
    place = two.host.bare(two.server.namespace, two.server.address, TEST_PEERS=peer.at())
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "packets")
        capture = two.capture(two.server, path, "-s", "128")
        print(place.run("/opt/programs/soak", "two_processes", 30_000, 5, limit=90))
        captured, dropped = _end(capture)
        print(captured, "packets", dropped, "dropped")
        check(captured > 30_000, "too few")
        found = tshark_dissection.opcodes(path, True)
        check(set(range(0x15)) <= set(found), f"{found}")


def _deaths(two):
    """Programs are killed while they tell: what they told is in the file, nothing is left."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "packets")
        capture = two.capture(two.server, path, "-s", "128")
        for side in ("server", "client"):
            running = client_server.Duet(two, ["ib_send_bw", "-F", "-x", two.gid_index, "-s", "64",
                                               "-D", str(client_server.ENDLESS)])
            process.until(lambda: two.daemon.totals().get("links", 0), 20, "a link")
            process.until(lambda: _told(two) == 2, 20, "both to tell")
            _grows(path)
            running.kill(getattr(running, side))
            running.abort()
            process.until(lambda: _told(two) == 0, 20, "an end of their memory")
        captured, dropped = _end(capture)
        print(captured, "packets", dropped, "dropped")
        check(pcap_files.count(path) == captured, "another number of packets in the file")


def _flood(two):
    """More than a capture can take: what is missing is counted, and the programs do not wait."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "packets")
        capture = two.capture(two.server, path, "-s", "128")
        outcome = client_server.run(two, "ib_read_bw", "-F", "-x", two.gid_index, "-s", "65536",
                                    "-n",
                           "50000")
        captured, dropped = _end(capture)
        print(outcome.client, captured, "packets", dropped, "dropped")
        check(dropped > 0, "a capture that keeps up with memory?")
        check(captured + dropped >= 50_000 * 65, "some are not counted")
        print({f"{code:#04x}": count for code, count
               in sorted(tshark_dissection.opcodes(path, True).items())})


def _forwarded(two):
    """What the engine carries shows to both sides, too; here it decides what is acknowledged."""
    for service in ("rc", "uc", "ud"):
        with _both(two) as files:
            two.run("rxe_interop", service)
        for found in files.values():
            sources = {packet.source for packet in found}
            check(sources == {two.server.address, two.client.address}, f"only from {sources}")


def _faulty(program, within):
    """Packets that take a detour, between two vNICs or within one, show once. Of the unreliable
    services none is sent again; of RC few, where the machine is busy: far fewer than half."""
    def run(two):
        two.daemon.set_vnic(two.server.namespace, "--faults", "delay=100us")
        client = two.server if within else two.client
        ends = types.SimpleNamespace(server=two.server, client=client)
        reliable = program == "ibv_rc_pingpong"
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "packets")
            capture = two.capture(two.server, path)
            client_server.run(ends, program, "-g", two.gid_index, "-s", 1000, "-n", 50)
            captured, dropped = _end(capture)
            found = [packet for packet in pcap_files.read(path)
                     if packet.service in ((0,) if reliable else (1, 3))
                     and packet.operation != pcap_files.ACKNOWLEDGE]
        print(captured, "packets", dropped, "dropped", len(found), "of messages")
        check(len(found) >= 100, f"only {len(found)} packets for 100 messages")
        once = {(packet.opcode, packet.qpn, packet.psn, packet.headers) for packet in found}
        again = len(found) // 4 if reliable else 0
        check(len(once) >= len(found) - again,
              f"{len(found)} packets, {len(once)} different ones")
    return Case(f"capture.{'within' if within else 'between'}_faulty {program}", run, 60)


def _fixture(arguments):
    @contextlib.contextmanager
    def fixture(stage):
        two = Two(stage, arguments(stage))
        try:
            yield two
        finally:
            two.close()
    return fixture


def groups():
    """One host, two containers, direct links."""
    cases = [Case("capture.rc", _connected("rc"), 60),
             Case("capture.rc ipv6", _connected("rc", "-6"), 60),
             Case("capture.uc", _connected("uc"), 60),
             Case("capture.ud", _datagrams(), 60),
             Case("capture.ud ipv6", _datagrams("-6"), 60),
             Case("capture.pipeline", _pipeline(), 60),
             Case("capture.pipeline mtu 4096", _pipeline("-m", "4096", mtu=4096), 60),
             Case("capture.errors", _errors, 60),
             Case("capture.invalidate", _invalidate, 60),
             Case("capture.snaplen", _snap, 60),
             Case("capture.begun_meanwhile", _begun_meanwhile, 150),
             Case("capture.survivors", _survivors, 120),
             Case("capture.soak", _soak, 120),
             Case("capture.deaths", _deaths, 120),
             Case("capture.flood", _flood, 60)]
    return [Group("capture", cases, _fixture(lambda stage: ())),
            Group("capture.engine",
                  [Case("capture.forwarded", _forwarded, 60),
                   *(_faulty(f"ibv_{service}_pingpong", within)
                     for service in ("rc", "uc", "ud") for within in (True, False))],
                  _fixture(forwarding))]
