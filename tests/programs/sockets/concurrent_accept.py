#!/usr/bin/python3
"""Several threads that sleep in one call of accept, for whom connections come both ways.

`concurrent_accept.py serves PORT COUNT` answers a byte on each of so many connections, by threads
that have one listener. `concurrent_accept.py asks PORT COUNT` makes so many, a few at a time, and
wants the answers.
"""

import socket
import sys
import threading

_THREADS, _AT_ONCE = 4, 8
# How long an answer may take.
_ANSWER = 20


def serves(port, count):
    """Until that many were answered."""
    listener = socket.create_server(("127.0.0.1", port), backlog=64)
    left, lock, done = [count], threading.Lock(), threading.Event()

    def accepts():
        while True:
            end = listener.accept()[0]
            with end:
                end.sendall(end.recv(1))
            with lock:
                left[0] -= 1
                if left[0] == 0:
                    done.set()

    for _ in range(_THREADS):
        threading.Thread(target=accepts, daemon=True).start()
    done.wait()


def asks(port, count):
    """All of them, or an error."""
    failed = []

    def some():
        try:
            for _ in range(count // _AT_ONCE):
                with socket.create_connection(("127.0.0.1", port), _ANSWER) as end:
                    end.sendall(b"a")
                    assert end.recv(2) == b"a"
        except (OSError, AssertionError) as error:
            failed.append(error)

    threads = [threading.Thread(target=some) for _ in range(_AT_ONCE)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    sys.exit(f"{len(failed)} have failed, as {failed[0]!r}" if failed else 0)


if __name__ == "__main__":
    {"serves": serves, "asks": asks}[sys.argv[1]](*map(int, sys.argv[2:]))
