"""Captures packets of an interface and dissects them by tshark."""

import contextlib
import shutil

from . import process
from .case import Failure, Skip, check

# Guesses what payloads may be bring complaints about payloads.
_OPTIONS = ["-n", "--disable-protocol", "rpcordma", "--disable-protocol", "infiniband.eoib"]
# RoCE may leave out the checksum of UDP, over IPv6 too; rxe does.
_FOREIGN = ["-o", "udp.ignore_ipv6_zero_checksum:TRUE"]
_FIELDS = ["frame.number", "frame.protocols", "infiniband.bth.opcode", "_ws.malformed",
           "_ws.expert.message"]


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
        # What it has not yet taken from the kernel.
        process.settled(lambda: path.stat().st_size, 1)
    finally:
        running.terminate()
        running.wait(10)


def opcodes(path, guesses=False, foreign=False):
    """How many packets of each opcode a capture file has; fails if any is not what it should be.
    With `guesses` the payloads may be anything: it counts only what is said of those whose payload
    Wireshark did not take for something. `foreign`: there are packets of others, too."""
    options = [*_OPTIONS, *(_FOREIGN if foreign else [])]
    text = process.run([_tool("tshark"), "-r", path, *options, "-T", "fields",
                        *[word for field in _FIELDS for word in ("-e", field)]], limit=60)
    found, wrong = {}, []
    for line in text.splitlines():
        words = line.split("\t")
        if len(words) != len(_FIELDS) or not words[0].isdigit():
            continue  # tshark says that it is root
        number, protocols, opcode, malformed, message = words
        payload = protocols.partition("infiniband")[2]
        guessed = guesses and payload not in ("", ":data")
        if not opcode or (malformed or message) and not guessed:
            wrong.append(number)
        else:
            found[int(opcode)] = found.get(int(opcode), 0) + 1
    check(found or wrong, f"no packets in {path}\n{text}")
    if wrong:
        raise Failure(f"{len(wrong)} packets are malformed\n" + process.run(
            [_tool("tshark"), "-r", path, *options, "-V", "-Y",
             f"frame.number == {wrong[0]}"], limit=60))
    return found
