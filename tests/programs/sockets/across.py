"""Two ends of a connection in two places, which check every byte that they get.

    across.py serve ADDRESS PORT SEED
    across.py connect ADDRESS PORT SEED SECONDS [OWN_ADDRESS OWN_PORT]
    across.py impostor ADDRESS PORT PEER PEER_PORT BROKER

The two take turns: each sends a part of its stream and reads one of the other's. They say `going`
once bytes pass, and `sound N` at the end. The impostor has both addresses to itself, and offers
the broker an end that has the names of somebody else's; it says what it was given.
"""

import socket
import sys
import time

sys.path.insert(0, __file__.rsplit("/", 1)[0])
import hostile  # noqa: E402

_BLOCK = 251


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

    def receive(self, size):
        """The next part of theirs; whether there is one."""
        while size:
            part = self.end.recv(size)
            if not part:
                return False
            at = self.got % _BLOCK
            assert part == self.others[at:at + len(part)], f"wrong bytes behind {self.got}"
            self.got += len(part)
            size -= len(part)
        return True


def _size(turn):
    return 1 + turn * 977 % 9000


def _serve(address, port, seed):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, port), family=family)
    end = _End(listener.accept()[0], seed + 1, seed)
    turn = 0
    try:
        while end.receive(_size(turn)):
            end.send(_size(turn + 1))
            turn += 1
    except ConnectionResetError:
        pass
    print(f"sound {end.got}", flush=True)


def _connect(address, port, seed, seconds, own=None, own_port=0):
    near = socket.create_connection((address, port), 10, (own, int(own_port)) if own else None)
    near.settimeout(None)
    near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    end = _End(near, seed, seed + 1)
    until, turn = time.monotonic() + float(seconds), 0
    while time.monotonic() < until:
        end.send(_size(turn))
        assert end.receive(_size(turn + 1)), "it has ended"
        turn += 1
        if turn == 1:
            print("going", flush=True)
        time.sleep(0 if turn > 50 else 0.002)
    print(f"sound {end.got}", flush=True)


def _impostor(address, port, peer, peer_port, broker):
    listener = socket.create_server((address, int(port)))
    far = socket.create_connection((address, int(port)), 10, (peer, int(peer_port)))
    near = listener.accept()[0]
    names = near.getsockname(), near.getpeername()
    print("waits", names, flush=True)
    words, _ = hostile.link(broker, near)
    far.close()
    print("linked" if words else "not linked", flush=True)


def main():
    """As the arguments say."""
    what, address, port, seed, *more = sys.argv[1:]
    if what == "serve":
        _serve(address, int(port), int(seed))
    elif what == "connect":
        _connect(address, int(port), int(seed), *more)
    else:
        _impostor(address, port, seed, *more)


if __name__ == "__main__":
    main()
