#!/usr/bin/python3
"""Other ends whose words say that bytes are owed, or unread, for as long as they like.

    unread_count_liar.py victim FOLDER PORT WHAT        with the library
    unread_count_liar.py liar FOLDER PORT BROKER COUNT WHAT    without it
    unread_count_liar.py serves ADDRESS PORT [CALL]     with the library
    unread_count_liar.py commands ADDRESS PORT BROKER FLAGS HOW [WAKES]    without it

A victim has COUNT connections whose other ends read nothing, so that the kernel has no room, and
then pretend that rings are full. It does WHAT, and says how many seconds that took.

A server does the commands that it gets, one a line, and says which. It waits for them by
CALL. Who sends them puts them into
the ring: `early` ones, and `late` ones once the first byte of the file FLAGS says that the link is
over. HOW: `head`, it goes on writing; `fence`, it says first that they are behind bytes of the
kernel's that are still to come, and that they are not when the link is over; `again`, it writes
what was read already in other words; `full`, as `head`, once the server has no descriptor left and
is to be given another link. With WAKES a server that sleeps for this connection alone is woken as
an honest end does it, by bytes through the kernel.
"""

import contextlib
import mmap
import os
import pathlib
import resource
import select
import socket
import struct
import subprocess
import sys
import threading
import time

sys.path.insert(0, __file__.rsplit("/", 1)[0])
import hostile_link_peer  # noqa: E402
from hostile_link_peer import BYTES, RING, WORDS  # noqa: E402

_PLACE, _HEAD, _FENCE, _POLLING = 0x00, 0x80, 0x100, 0x180
_POSITION, _TAKEN = (1 << 62) - 1, 1 << 62
_SECONDS = 60
_TICK = b"tick\n"


def _until(is_so):
    until = time.monotonic() + _SECONDS
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.005)


class Memory:
    """The memory of a link, as the side `side` has it."""

    def __init__(self, file, side):
        self.memory, self.side = mmap.mmap(file, BYTES), side
        os.close(file)

    def get(self, word, mine=True):
        """A word of mine, or of the other side."""
        side = self.side if mine else 1 - self.side
        return struct.unpack_from("Q", self.memory, side * WORDS + word)[0]

    def set(self, word, value, mine=True):
        """Says something in one."""
        side = self.side if mine else 1 - self.side
        struct.pack_into("Q", self.memory, side * WORDS + word, value & (1 << 64) - 1)

    def put(self, position, data):
        """Bytes at a position of my ring."""
        for at, byte in enumerate(data):
            self.memory[2 * WORDS + self.side * RING + (position + at) % RING] = byte


def _link(broker, near, nudge=None):
    """The memory of a link to another network namespace, for which the daemon asks first.

    `nudge` has a server that sleeps make another call, by which it offers its end."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as calls, \
            socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as diagnosis:
        calls.connect(broker)
        calls.settimeout(15)
        hostile_link_peer.send(calls, [1], diagnosis)
        hostile_link_peer.receive(calls)
        hostile_link_peer.send(calls, [2, 7, 0, 0], near)
        words = [20]
        while words and words[0] != 18:
            while nudge and not select.select([calls], [], [], 0.2)[0]:
                nudge()
            words, file = hostile_link_peer.receive(calls)
            print("told", words, flush=True)
        assert words, "no link"
        # Whoever has no connection with the broker has its links for as long as it likes.
        return file, words[3] & 1


def victim(folder, port, what):
    """Has connections, and does `what`."""
    listener = socket.create_server(("127.0.0.1", port), backlog=100)
    listener.setblocking(False)
    ends = []

    def looks():
        try:
            ends.append(listener.accept()[0])
            ends[-1].setblocking(False)
            ends[-1].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        except BlockingIOError:
            pass
        for end in ends:
            try:
                end.recv(100)
            except BlockingIOError:
                pass
        return (folder / "linked").exists()
    _until(looks)
    listener.close()
    for end in ends:
        try:
            for _ in range(10_000):
                end.send(b"x" * 4096)
        except BlockingIOError:
            pass
    (folder / "filled").touch()
    _until((folder / "lying").exists)
    began = time.monotonic()
    DOES[what](ends)
    print(what, time.monotonic() - began, flush=True)
    os._exit(0)


def _forks(_):
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def _spawns(_):
    actions = [(os.POSIX_SPAWN_CLOSE, 0)]
    child = os.posix_spawn("/bin/true", ["true"], {}, file_actions=actions)
    os.waitpid(child, 0)


def _runs(_):
    assert subprocess.run(["/bin/true"], check=False, env={}).returncode == 0


def _executes(ends):
    for end in ends:
        end.set_inheritable(True)
    tells = "import sys,time; print('exec', time.monotonic() - float(sys.argv[1]), flush=True)"
    os.environ.pop("LD_PRELOAD")
    os.execv("/usr/bin/python3", ["python3", "-c", tells, str(time.monotonic())])


def _system(ends):
    for end in ends:
        end.set_inheritable(True)
    assert os.system("true") == 0


def _passes(ends):
    near, _far = socket.socketpair()
    for end in ends:
        socket.send_fds(near, [b"x"], [end.fileno()])


def _truncates(ends):
    for end in ends:
        try:
            end.recv(1, socket.MSG_TRUNC)
        except (BlockingIOError, ConnectionError):
            pass


def _closes(ends):
    for end in ends:
        end.close()


def _shuts(ends):
    for end in ends:
        try:
            end.shutdown(socket.SHUT_WR)
        except OSError:
            pass


def _sends(ends):
    for end in ends:
        try:
            for _ in range(20):
                end.send(b"y" * 100)
        except OSError:
            pass


def _limited(ends):
    """Each has a tenth of a second."""
    for end in ends[:5]:
        end.setblocking(True)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, 100_000))
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 100_000))
        for call in (lambda end=end: end.recv(100), lambda end=end: end.send(b"z")):
            try:
                call()
            except OSError:
                pass


def _asks(ends):
    """By calls that do not wait, many times."""
    poll, members = select.poll(), select.epoll()
    for end in ends:
        poll.register(end, select.POLLIN)
        members.register(end, select.EPOLLIN)
    for _ in range(20):
        poll.poll(0)
        members.poll(0)
        select.select(ends, [], [], 0)
        for end in ends:
            try:
                end.recv(1)
            except (BlockingIOError, ConnectionError):
                pass


DOES = {
    "fork": _forks, "system": _system, "spawn": _spawns, "run": _runs,
    "exec": _executes, "dup": lambda ends: [os.dup(end.fileno()) for end in ends],
    "dup2": lambda ends: [os.dup2(end.fileno(), end.fileno() + 100) for end in ends],
    "pass": _passes, "recv": _truncates, "close": _closes, "shut": _shuts, "send": _sends,
    "limited": _limited, "ask": _asks,
}


def liar(folder, port, broker, count, what):
    """The other ends."""
    ends, memories = [], []
    for _ in range(count):
        near = socket.socket()
        near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        near.connect(("127.0.0.1", port))
        near.send(b"a")
        words, file = hostile_link_peer.link(broker, near)
        assert words, "no link"
        ends.append(near)
        memories.append(Memory(file, words[3]))
    (folder / "linked").touch()
    _until((folder / "filled").exists)
    if what == "ask":
        for end in ends:
            end.recv(100_000)

    def lies():
        while True:
            for memory in memories:
                # All that they have ever sent is unread, and some more.
                place = memory.get(_PLACE) & _POSITION
                memory.set(_HEAD, place + RING - 1, mine=False)
                if what == "ask":
                    # And what is there for them is taken back all the time.
                    read = memory.get(_PLACE, mine=False) & _POSITION
                    memory.set(_HEAD, read + 100)
                    memory.set(_PLACE, read | _TAKEN, mine=False)
    threading.Thread(target=lies, daemon=True).start()
    time.sleep(0.1)
    (folder / "lying").touch()
    time.sleep(_SECONDS)


def _does(end, text, take):
    """What has come does as it says; what is left of a line, or `None` at the end."""
    try:
        got = take(end)
    except BlockingIOError:
        return text
    except OSError as error:
        got = b""
        print("lost", error, flush=True)
    *lines, text = (text + got).split(b"\n")
    for line in lines:
        if line == b"full":
            _fills()
        if line != b"tick":
            print("did", line.decode(errors="replace"), flush=True)
    if lines:
        try:
            end.send(b"+")
        except OSError:
            pass
    return text if got else None


TAKES = {
    "recv": lambda end: end.recv(4096),
    "read": lambda end: os.read(end.fileno(), 4096),
    "recvmsg": lambda end: end.recvmsg(4096)[0],
}


def _serves_by_threads(listener, take):
    """Each sleeps in a call for its connection."""
    def one(end):
        text = b""
        while text is not None:
            text = _does(end, text, take)
        end.close()
    while True:
        threading.Thread(target=one, args=(listener.accept()[0],), daemon=True).start()


class Poll:
    """A set, as `poll` has it."""

    def __init__(self):
        self.members = select.poll()

    def register(self, number, _):
        """One more."""
        self.members.register(number, select.POLLIN)

    def unregister(self, number):
        """One less."""
        self.members.unregister(number)

    def poll(self):
        """What has come."""
        return self.members.poll()


class Select:
    """The same as `select` has it."""

    def __init__(self):
        self.members = []

    def register(self, number, _):
        """One more."""
        self.members.append(number)

    def unregister(self, number):
        """One less."""
        self.members.remove(number)

    def poll(self):
        """What has come."""
        return [(number, 0) for number in select.select(self.members, [], [])[0]]


SETS = {"epoll": select.epoll, "poll": Poll, "select": Select}


def serves(address, port, call="epoll"):
    """Does commands."""
    listener = socket.create_server((address, port), backlog=10)
    if call in TAKES:
        _serves_by_threads(listener, TAKES[call])
    members, ends, texts = SETS[call](), {listener.fileno(): listener}, {}
    members.register(listener.fileno(), select.EPOLLIN)
    while True:
        for number, _ in members.poll():
            if number == listener.fileno():
                end = listener.accept()[0]
                end.setblocking(False)
                ends[end.fileno()], texts[end.fileno()] = end, b""
                members.register(end.fileno(), select.EPOLLIN)
                continue
            texts[number] = _does(ends[number], texts[number], TAKES["recv"])
            if texts[number] is None:
                members.unregister(number)
                ends.pop(number).close()


def _fills():
    """No descriptor is left."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    try:
        while True:
            os.dup(1)
    except OSError:
        pass


def commands(address, port, broker, flags, how, wakes=""):
    """Sends commands by the ring, whatever the link is."""
    near = socket.create_connection((address, port), 10)
    ticks = socket.create_connection((address, port), 10)
    last = socket.create_connection((address, port), 10)
    last.send(b"early too\n")
    assert last.recv(1) == b"+"
    given = near.send(b"early 0\n")

    def nudge():
        nonlocal given
        given += near.send(_TICK)

    memory = Memory(*_link(broker, near, nudge if wakes else None))
    # The kernel has had these, and nothing since.
    memory.set(_FENCE, given)
    with open(flags, "r+b") as file:
        flags = mmap.mmap(file.fileno(), 0)
    head, count = memory.get(_HEAD) & _POSITION, 0

    def append(text):
        nonlocal head
        memory.put(head, text)
        head += len(text)
        memory.set(_HEAD, head)

    while not flags[0]:
        count += 1
        if count <= 20:
            # Behind what wakes a server that sleeps for this connection alone.
            given += len(_TICK) if wakes else 0
            memory.set(_FENCE, given)
            append(b"early %d\n" % count)
            if wakes:
                near.send(_TICK)
        elif count == 21 and how == "fence":
            # Behind what the kernel is to have had before.
            memory.set(_FENCE, given + 100)
            append(b"late held\n" * 20)
        elif count == 25 and how == "full":
            last.send(b"full\n")
            assert last.recv(1) == b"+"
            _link(broker, last, lambda: last.send(_TICK))
        elif count == 30:
            print("going", flush=True)
        ticks.send(_TICK)
        time.sleep(0.02)
    memory.set(_FENCE, given)
    for number in range(60):
        if how == "again":
            # What was read already, in other words.
            place = memory.get(_PLACE, mine=False) & _POSITION
            memory.put(place - 16, b"\nlate %9d\n" % number)
            memory.set(_PLACE, place - 16, mine=False)
        else:
            append(b"late %d\n" % number)
        if number == 20:
            # It looks as if somebody else had stopped it.
            memory.set(_HEAD, head | 1 << 63)
        ticks.send(_TICK)
        if wakes:
            with contextlib.suppress(OSError):
                near.send(_TICK)
        time.sleep(0.02)
    print("tried", flush=True)
    time.sleep(_SECONDS)


def main():
    """As the arguments say."""
    what, *words = sys.argv[1:]
    if what == "victim":
        victim(pathlib.Path(words[0]), int(words[1]), words[2])
    elif what == "liar":
        liar(pathlib.Path(words[0]), int(words[1]), words[2], int(words[3]), words[4])
    elif what == "serves":
        serves(words[0], int(words[1]), *words[2:])
    else:
        commands(words[0], int(words[1]), *words[2:])


if __name__ == "__main__":
    main()
