"""What Wireshark makes of packets: captures of an interface, and their dissection by tshark."""

import contextlib
import shutil

from . import process
from .case import Failure, Skip, check

# Guesses what payloads may be bring complaints about payloads. And RoCE may leave out the checksum
# of UDP, over IPv6 too; rxe does.
_OPTIONS = ["--disable-protocol", "rpcordma", "--disable-protocol", "infiniband.eoib",
            "-o", "udp.ignore_ipv6_zero_checksum:TRUE"]


def _tool(name):
    path = shutil.which(name)
    if not path:
        raise Skip(f"no {name}: the package tshark is not installed")
    return path


@contextlib.contextmanager
def capture(namespace, interface, path):
    """Writes the RoCE packets that pass an interface meanwhile to a file."""
    running = process.start([*namespace.enter(), _tool("dumpcap"), "-q", "-i", interface,
                             "-f", "udp port 4791", "-w", path])
    try:
        process.until(lambda: path.exists() and path.stat().st_size, 10, "a capture to begin")
        yield
    finally:
        running.terminate()
        running.wait(10)


def opcodes(path):
    """How many packets of each opcode a capture file has; fails if any is not what it should be."""
    fields = ["infiniband.bth.opcode", "_ws.malformed", "_ws.expert.message"]
    text = process.run([_tool("tshark"), "-n", "-r", path, *_OPTIONS, "-T", "fields",
                        *[word for field in ["frame.number", *fields] for word in ("-e", field)]],
                       limit=60)
    found, wrong = {}, []
    for line in text.splitlines():
        words = line.split("\t")
        if len(words) != 4 or not words[0].isdigit():
            continue  # tshark says that it is root
        number, opcode, malformed, message = words
        if not opcode or malformed or message:
            wrong.append(number)
        else:
            found[int(opcode)] = found.get(int(opcode), 0) + 1
    check(found or wrong, f"no packets in {path}\n{text}")
    if wrong:
        raise Failure(f"{len(wrong)} packets are malformed\n" + process.run(
            [_tool("tshark"), "-n", "-r", path, *_OPTIONS, "-V", "-Y",
             f"frame.number == {wrong[0]}"], limit=60))
    return found
