"""Two processes in lock step, for programs that print what calls say and do."""

import ctypes
import errno
import os
import socket
import subprocess
import sys

LIBC = ctypes.CDLL(None, use_errno=True)
_DESCRIBE = getattr(LIBC, "omniverb_sockets_describe", None)
_LIMIT = 60
# Until a connection is busy.
_ROUNDS = 60
LOOPBACK = "127.0.0.1"


def tried(call, *arguments):
    """What a call gives, or the name of its error."""
    try:
        return call(*arguments)
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))


def called(name, *arguments):
    """The same of a function of C."""
    got = getattr(LIBC, name)(*arguments)
    return got if got >= 0 else errno.errorcode[ctypes.get_errno()]


def is_light(number):
    """The library says so of a descriptor."""
    text = ctypes.create_string_buffer(400)
    if _DESCRIBE:
        _DESCRIBE(number, text, ctypes.c_size_t(400))
    return b" light" in text.value


class Role:
    """One of the two."""

    def __init__(self, name, inward, outward):
        self.name, self._inward, self._outward = name, inward, outward
        self.listener, self.end, self.port = None, None, None

    def say(self, *what):
        """A line of what is compared."""
        print(f"{self.name}:", *what, flush=True)

    def meet(self, word=b""):
        """Waits until the other one is here, too; its word."""
        os.write(self._outward, word.ljust(64))
        got = os.read(self._inward, 64)
        assert len(got) == 64, "the other one has gone"
        return got.strip()

    def listen(self, prepare=None, family=socket.AF_INET, backlog=64):
        """The server's part before anyone connects."""
        address = LOOPBACK if family == socket.AF_INET else "::1"
        self.listener = socket.socket(family)
        if prepare:
            prepare(self.listener)
        self.listener.bind((address, 0))
        self.listener.listen(backlog)
        self.port = self.listener.getsockname()[1]

    def pair(self, prepare=None, connecting=None, family=socket.AF_INET):
        """A connection between the two, that is busy."""
        if self.name == "server":
            self.listen(prepare, family)
            self.meet(b"%d" % self.port)
            self.end = self.listener.accept()[0]
        else:
            self.port = int(self.meet())
            self.end = self.connect(connecting, family)
        self.warm()
        self.meet()

    def connect(self, connecting=None, family=socket.AF_INET):
        """A new connection to the server."""
        end = socket.socket(family)
        if connecting:
            connecting(end)
        end.connect((LOOPBACK if family == socket.AF_INET else "::1", self.port))
        return end

    def warm(self):
        """So often there and back."""
        for _ in range(_ROUNDS):
            if self.name == "client":
                self.end.sendall(b"12345678")
            got = self.end.recv(8, socket.MSG_WAITALL)
            assert got == b"12345678"
            if self.name == "server":
                self.end.sendall(got)


def run(program, ways):
    """A role if one is asked for, or both of a way."""
    way = sys.argv[1]
    if len(sys.argv) > 2:
        name, inward, outward = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
        role = Role(name, inward, outward)
        ways[way][name == "client"](role)
        role.meet()
        return 0
    (a, b), (c, d) = os.pipe(), os.pipe()
    both = [("server", a, d), ("client", c, b)]
    children = [subprocess.Popen([sys.executable, "-B", program, way, name, str(i), str(o)],
                                 pass_fds=(i, o), stdout=subprocess.PIPE)
                for name, i, o in both]
    for number in (a, b, c, d):
        os.close(number)
    texts = []
    try:
        for child in children:
            texts.append(child.communicate(timeout=_LIMIT)[0].decode())
    finally:
        for child in children:
            child.kill()
    print("".join(texts), end="")
    return int(any(child.returncode for child in children))
