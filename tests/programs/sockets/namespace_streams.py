"""Runs two ends of a connection in two places, which check every byte.

    namespace_streams.py serve ADDRESS PORT SEED
    namespace_streams.py connect ADDRESS PORT SEED SECONDS [OWN_ADDRESS OWN_PORT]
    namespace_streams.py sleeps ADDRESS PORT SEED
    namespace_streams.py wakes ADDRESS PORT SEED SECONDS
    namespace_streams.py impostor ADDRESS PORT PEER PEER_PORT BROKER
    namespace_streams.py computes ADDRESS PORT FLAGS
    namespace_streams.py reads ADDRESS PORT FLAGS

The two take turns: each sends a part of its stream and reads one of the other's, for so many
SECONDS and until the standard input of the one that connects has ended. They say `going` once bytes
pass, and `sound N` at the end. One that wakes sends single bytes in between, and says
when that is over; one that sleeps gets each of them asleep. The impostor has both addresses to
itself, and offers the broker an end that has the names of somebody else's; it says what it was
given. One that computes makes no call behind what it has sent until the first byte of a file is
changed; its reader does with these bytes what the second byte says: 1, it takes them and asks for
more; 2, it looks at them; 3, it takes them and ends; 4, a child takes them."""

import mmap
import os
import select
import socket
import sys
import time

sys.path.insert(0, __file__.rsplit("/", 1)[0])
import hostile_link_peer  # noqa: E402

_BLOCK = 251
# Turns before single bytes are sent, and how many of these there are: more than twice as many as
# make a link rest.
_TURNS, _SINGLE = 60, 2500
# Bytes that nobody has read while their writer computes.
_HELD = 5000


def _pattern(seed):
    """Two blocks of a stream, of which any part of one block's length begins in the first."""
    return bytes((at * 7 + seed) % _BLOCK for at in range(_BLOCK)) * 80


class _End:
    def __init__(self, end, own, others):
        self.end, self.own, self.others = end, _pattern(own), _pattern(others)
        self.sent = self.got = 0

    def send(self, size):
        """The next part of our stream."""
        at = self.sent % _BLOCK
        self.end.sendall(self.own[at:at + size])
        self.sent += size

    def receive(self, size, flags=0):
        """The next part of theirs; whether there is one."""
        while size:
            part = self.end.recv(size, flags)
            if not part:
                return False
            at = self.got % _BLOCK
            assert part == self.others[at:at + len(part)], f"wrong bytes behind {self.got}"
            self.got += len(part)
            size -= len(part)
        return True


def _size(turn):
    return 1 + turn * 977 % 9000


def _serve(address, port, seed, single=0):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, port), family=family)
    end = _End(listener.accept()[0], seed + 1, seed)
    turn = 0
    try:
        while end.receive(_size(turn)):
            end.send(_size(turn + 1))
            turn += 1
            for _ in range(single if turn == _TURNS else 0):
                end.receive(1)
    except ConnectionResetError:
        pass
    print(f"sound {end.got}", flush=True)


def _wakes(end):
    for _ in range(_SINGLE):
        end.send(1)
        # So that who reads is asleep.
        time.sleep(0.001)
    print("woken", flush=True)


def _input_has_ended():
    try:
        return os.read(0, 1) == b""
    except BlockingIOError:
        return False


def _connect(address, port, seed, seconds, own=None, own_port=0, between=None):
    os.set_blocking(0, False)
    near = socket.create_connection((address, port), 10, (own, int(own_port)) if own else None)
    near.settimeout(None)
    near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end = _End(near, seed, seed + 1)
    until, turn, is_told = time.monotonic() + float(seconds), 0, False
    while time.monotonic() < until or not is_told:
        is_told = is_told or turn % 8 == 0 and _input_has_ended()
        end.send(_size(turn))
        assert end.receive(_size(turn + 1)), "it has ended"
        turn += 1
        if turn == 1:
            print("going", flush=True)
        if turn == _TURNS and between:
            between(end)
            until = time.monotonic() + float(seconds)
        time.sleep(0 if turn > 50 else 0.002)
    print(f"sound {end.got}", flush=True)


def _impostor(address, port, peer, peer_port, broker):
    listener = socket.create_server((address, int(port)))
    far = socket.create_connection((address, int(port)), 10, (peer, int(peer_port)))
    near = listener.accept()[0]
    names = near.getsockname(), near.getpeername()
    print("waits", names, flush=True)
    words, _ = hostile_link_peer.link(broker, near)
    far.close()
    print("linked" if words else "not linked", flush=True)


def _flags(path):
    with open(path, "r+b") as file:
        return mmap.mmap(file.fileno(), 0)


def _computes(address, port, flags):
    listener = socket.create_server((address, port))
    end = _End(listener.accept()[0], 1, 2)
    # The kernel's room grows by what goes through it, and so does what a ring may hold.
    for _ in range(50):
        end.send(_HELD)
        end.receive(1)
    while end.receive(1):
        seen = flags[0]
        end.send(1 + _HELD)
        while flags[0] == seen:
            pass


def _reads(address, port, flags):
    near = socket.create_connection((address, port), 10)
    near.settimeout(None)
    end, sets = _End(near, 2, 1), select.poll()
    sets.register(near, select.POLLIN)
    for _ in range(50):
        end.receive(_HELD)
        end.send(1)
    while True:
        end.send(1)
        while not _has_come(near):
            pass
        end.receive(1)
        seen = flags[0]
        print(f"holds {end.got}", flush=True)
        while flags[0] == seen and flags[1] < 2:
            pass
        while flags[1] == 2:
            assert sets.poll(0), "what was there is not"
            time.sleep(0.01)
        if flags[1] == 4:
            _has_read(end)
            break
        is_last = flags[1] == 3
        end.receive(_HELD, socket.MSG_DONTWAIT if is_last else 0)
        if is_last:
            break
    print(f"sound {end.got}", flush=True)


def _has_read(end):
    """A child reads all that there is: then there is nothing."""
    child = os.fork()
    if not child:
        end.receive(_HELD, socket.MSG_DONTWAIT)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, "the child has not got it"
    try:
        assert not end.end.recv(1, socket.MSG_DONTWAIT), "there is more than was sent"
    except BlockingIOError:
        end.got += _HELD


def _has_come(near):
    """Asks without waiting, so that the other end always may use the ring."""
    try:
        return near.recv(1, socket.MSG_DONTWAIT | socket.MSG_PEEK)
    except BlockingIOError:
        return False


def main():
    """As the arguments say."""
    what, address, port, seed, *more = sys.argv[1:]
    if what == "serve":
        _serve(address, int(port), int(seed))
    elif what == "connect":
        _connect(address, int(port), int(seed), *more)
    elif what == "sleeps":
        _serve(address, int(port), int(seed), _SINGLE)
    elif what == "wakes":
        _connect(address, int(port), int(seed), *more, between=_wakes)
    elif what == "computes":
        _computes(address, int(port), _flags(seed))
    elif what == "reads":
        _reads(address, int(port), _flags(seed))
    else:
        _impostor(address, port, seed, *more)


if __name__ == "__main__":
    main()
