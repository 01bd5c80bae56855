"""The daemon's protocol, as a tenant speaks it who uses no library of ours.

The messages are read out of the sources (rnic/session/src, copied beside this file), so there is
one description of them, and an attack does not go stale when a field is added.
"""

import array
import fcntl
import os
import pathlib
import re
import socket
import struct

_HERE = pathlib.Path(__file__).resolve().parent
WORDS = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "i32": "i", "i64": "q",
          "Qpn": "I", "Lkey": "I", "Rkey": "I", "Errno": "I"}
_BYTES = {"Gid": 16}


def _sources():
    text = "\n".join(path.read_text() for path in sorted((_HERE / "session").glob("*.rs")))
    return re.sub(r"//[^\n]*", "", text)


_TEXT = _sources()
_CONSTANTS = dict(re.findall(r"const (\w+): \w+ = ([^;]+);", _TEXT))
_CONSTANTS |= {"QP_RC": "2", "QP_UC": "3", "QP_UD": "4"}  # the verbs' own numbers
# That of the daemon's protocol: others have one, too.
VERSION = int(re.search(r"const VERSION: \w+ = (\d+);",
                        (_HERE / "session" / "lib.rs").read_text())[1])
KINDS = {name: int(number) for block in re.findall(r"\bmessages! \{([^{}]*\d[^{}]*)\}", _TEXT)
         for number, name in re.findall(r"\b(\d+) (\w+)", block)}


def constant(name):
    """The value of a constant of the protocol."""
    text = re.sub(r"size_of::<(\w+)>\(\)", lambda found: str(length(found[1])), _CONSTANTS[name])
    return eval(re.sub(r"[A-Z]\w+", lambda found: str(constant(found[0])), text))


def fields(name):
    """Names and types of a body's fields."""
    found = re.search(rf"\b{name} \{{([^{{}}]*)\}}", _TEXT)
    if not found:
        raise KeyError(name)
    return re.findall(r"(\w+)\s*:\s*(\[[^\]]+\]|\w+)", found[1])


def length(kind):
    """Bytes of a field of this type."""
    if kind in WORDS:
        return struct.calcsize(WORDS[kind])
    if kind in _BYTES:
        return _BYTES[kind]
    if kind.startswith("["):
        inner, count = (part.strip() for part in kind[1:-1].split(";"))
        return length(inner) * (int(count) if count.isdigit() else constant(count))
    return sum(length(inner) for _, inner in fields(kind))


def body(name, /, **values):
    """The bytes of a body: fields that are not named are zero."""
    out = b""
    for field, kind in fields(name):
        value = values.pop(field, 0)
        if kind in WORDS:
            out += struct.pack(WORDS[kind], value)
        else:
            out += (value or b"").ljust(length(kind), b"\0")
    if values:
        raise KeyError(f"{name} has no {list(values)}")
    return out


def message(name, /, tag=1, **values):
    """A whole message."""
    return struct.pack("HHIQ", VERSION, KINDS[name], 0, tag) + body(name, **values)


def parse(data):
    """Name, errno and fields of a message; the name is None for one without a body."""
    _, kind, errno, _ = struct.unpack_from("HHIQ", data)
    name = next((name for name, number in KINDS.items() if number == kind), None)
    return name, errno, values(name, data[16:]) if name and not errno else {}


def values(name, data):
    """The fields of a body; those that are bodies themselves as bytes."""
    found, at = {}, 0
    for field, of in fields(name):
        size = length(of)
        part = data[at:at + size]
        found[field] = struct.unpack(WORDS[of], part)[0] if of in WORDS else part
        at += size
    return found


class Refused(Exception):
    """The daemon answered with an errno."""


def path():
    """Where the daemon is."""
    return os.environ["OMNIVERB_SOCKET"]


def connect(timeout=5):
    """A connection that has said nothing yet. Waits for its turn as a blocking one does."""
    calls = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    calls.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", timeout, 0))
    calls.connect(path())
    calls.settimeout(timeout)
    return calls


def send(to, data, files=()):
    """One message with descriptors."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
    to.sendmsg([data], rights)


def receive(at):
    """One message and its descriptors."""
    data, files, _, _ = socket.recv_fds(at, 4096, 8)
    if not data:
        raise ConnectionResetError
    return data, files


def memory(size, name="statistics"):
    """A memfd that the daemon takes."""
    file = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(file, size)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS,
                fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return file


class Client:
    """A process with a device, as far as the daemon can tell."""

    def __init__(self, name=b"attack", timeout=5):
        self.calls = connect(timeout)
        send(self.calls, message("Hello", role=constant("ROLE_VERBS"), name=name))
        data, files = receive(self.calls)
        _, errno, self.welcome = parse(data)
        if errno:
            raise Refused(os.strerror(errno))
        events, area = files
        os.close(area)
        self.events = socket.socket(fileno=events)
        self.events.settimeout(timeout)

    def call(self, name, /, files=(), **values):
        """Asks, and returns the answer's fields."""
        send(self.calls, message(name, **values), files)
        data, more = receive(self.calls)
        for file in more:
            os.close(file)
        _, errno, answer = parse(data)
        if errno:
            raise Refused(os.strerror(errno))
        return answer

    def gids(self):
        """All GIDs."""
        answer = self.call("QueryGids")
        size = length("GidEntry")
        return [answer["entries"][i * size:i * size + 16] for i in range(answer["count"])]

    def event(self, wanted):
        """Fields and descriptors of the next event of this name."""
        while True:
            data, files = receive(self.events)
            name, _, values = parse(data)
            if name == wanted:
                return values, files
            for file in files:
                os.close(file)

    def close(self):
        """Ends it."""
        self.events.close()
        self.calls.close()


def gid(address):
    """The GID of an IPv4 address."""
    return b"\0" * 10 + b"\xff\xff" + socket.inet_aton(address)
