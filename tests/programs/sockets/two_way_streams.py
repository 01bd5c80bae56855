"""Connections both ways at a time, in pieces of all sizes, whose bytes are known.

    two_way_streams.py serve ADDRESS PORT
    two_way_streams.py connect ADDRESS PORT SECONDS COUNT SEED

One that serves does so for each connection, by threads of its own, until it is killed. One that
connects opens short connections until one is light, then so many at a time, sends and receives by
each until the time is over, ends each direction by itself, and says `sound LIGHT of COUNT, BYTES`.
Bytes are those of their position; each side says with its first ones how the rest are made.
"""

import ctypes
import random
import socket
import sys
import threading
import time

_SHORT, _PATIENCE = 0.02, 20
_LARGEST = 300_000
# A prime, so that no ring's length is a multiple of it.
_PATTERN = bytes(random.Random(1).randrange(256) for _ in range(65_537))


def _bytes_at(position, size):
    start = position % len(_PATTERN)
    count = (start + size) // len(_PATTERN) + 1
    return (_PATTERN * count)[start:start + size]


def _size(chance):
    return chance.choice((1, 8, 100, 1000, 5000, 70_000, chance.randrange(1, _LARGEST)))


def _send(end, until, seed, sent):
    chance, position = random.Random(seed), 0
    while time.monotonic() < until:
        size = _size(chance)
        end.sendall(_bytes_at(position, size))
        position += size
        if chance.randrange(50) == 0:
            time.sleep(chance.random() / 100)
    end.shutdown(socket.SHUT_WR)
    sent.append(position)


def _receive(end, seed, received):
    chance, position = random.Random(seed), 0
    while part := end.recv(_size(chance)):
        assert part == _bytes_at(position, len(part)), f"wrong from {position} on"
        position += len(part)
        if chance.randrange(200) == 0:
            time.sleep(chance.random() / 50)
    received.append(position)


def _exactly(end, size):
    got = b""
    while len(got) < size:
        part = end.recv(size - len(got))
        assert part, "it ends early"
        got += part
    return got


def _both(end, seconds, seed):
    """Both ways: how many bytes, which the two ends tell each other at last."""
    sent, received, until = [], [], time.monotonic() + seconds
    sending = threading.Thread(target=_send, args=(end, until, seed, sent))
    sending.start()
    _receive(end, seed + 1, received)
    sending.join()
    return sent[0], received[0]


def _serve(address, port):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, port), family=family, backlog=100)
    while True:
        end = listener.accept()[0]
        threading.Thread(target=_serve_one, args=(end,), daemon=True).start()


def _serve_one(end):
    with end:
        seconds = int(_exactly(end, 8)) / 1000
        _both(end, seconds, 7)


def _is_light(end):
    text = ctypes.create_string_buffer(200)
    ctypes.CDLL(None).omniverb_sockets_describe(end.fileno(), text, len(text))
    return b"light" in text.value


def _open(address, port, seconds):
    end = socket.create_connection((address, port), 10)
    end.settimeout(None)
    end.sendall(f"{int(seconds * 1000):8}".encode())
    return end


def _connect(address, port, seconds, count, seed):
    until = time.monotonic() + _PATIENCE
    while time.monotonic() < until:
        with _open(address, port, _SHORT) as end:
            is_light = _is_light(end)
            _both(end, _SHORT, seed)
        if is_light:
            break
    ends = [_open(address, port, seconds) for _ in range(count)]
    light, totals, threads = sum(map(_is_light, ends)), [], []
    for number, end in enumerate(ends):
        def run(end=end, number=number):
            totals.append(_both(end, seconds, seed + number * 10))
        threads.append(threading.Thread(target=run))
        threads[-1].start()
    for thread in threads:
        thread.join()
    assert len(totals) == count, "a connection was not sound"
    assert all(sent > 0 and received > 0 for sent, received in totals), totals
    print(f"sound {light} of {count}, {sum(map(sum, totals))}", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        _serve(sys.argv[2], int(sys.argv[3]))
    _connect(sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]), int(sys.argv[6]))
