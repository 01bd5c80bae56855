"""Short connections to another network namespace, one after another.

    namespace_connections.py serves ADDRESS PORT [PORT]
    namespace_connections.py leaves ADDRESS PORT FILE
    namespace_connections.py asks ADDRESS PORT SECONDS PAUSE [OWN_ADDRESS]
    namespace_connections.py keeps ADDRESS PORT FILE

One that serves gives back all that it gets, to each connection by a thread of its own, until it is
killed. One that leaves serves so, too, until the file is there: then it listens no more, but keeps
the connections that it has. One that asks has as many connections as there is time for, with a
pause behind each, and says `asked N`, and of how many that began later than a while `late N` were
light. One that keeps has one light connection by which it talks until the file is there; it says
`going light` when it has had its first answer (`going` if it is none), and what has ended it.
"""

import ctypes
import os
import socket
import sys
import threading
import time

_WORD = bytes(range(256)) * 5
# Seconds in which connections are tried until one is light, on a machine that is busy otherwise.
_PATIENCE = 60
# So long nobody is believed who has seen where the network leads.
_LATE = 11


def _echo(end):
    with end:
        while part := end.recv(1 << 16):
            end.sendall(part)


def _exactly(end, size):
    got = b""
    while len(got) < size:
        part = end.recv(size - len(got))
        assert part, "it ends early"
        got += part
    return got


def _serves(address, *ports):
    for port in ports[1:]:
        threading.Thread(target=_listens, args=(address, port), daemon=True).start()
    _listens(address, ports[0])


def _listens(address, port):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.create_server((address, port), family=family, backlog=100)
    while True:
        end = listener.accept()[0]
        peer, own = end.getpeername(), end.getsockname()
        assert own[1] == port and peer[0] != own[0], (own, peer)
        threading.Thread(target=_echo, args=(end,), daemon=True).start()


def _leaves(address, port, file):
    listener = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    # The next one listens beside this one, and then alone.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind((address, port))
    listener.listen(100)
    listener.settimeout(0.05)
    print("listens", flush=True)
    while not os.path.exists(file):
        try:
            end = listener.accept()[0]
        except TimeoutError:
            continue
        end.settimeout(None)
        threading.Thread(target=_echo, args=(end,), daemon=True).start()
    listener.close()
    print("left", flush=True)
    time.sleep(1000)


def _asks(address, port, seconds, pause, own=None):
    began, count, late = time.monotonic(), 0, 0
    until = began + float(seconds)
    while time.monotonic() < until:
        from_where = (own, 0) if own else None
        with socket.create_connection((address, port), 10, from_where) as end:
            assert end.getpeername()[:2] == (address, port), end.getpeername()
            assert end.getsockname()[0] != address, end.getsockname()
            end.sendall(_WORD)
            assert _exactly(end, len(_WORD)) == _WORD
            end.shutdown(socket.SHUT_WR)
            assert end.recv(1) == b""
            late += time.monotonic() - began > _LATE and _is_light(end)
        count += 1
        time.sleep(float(pause))
    print(f"asked {count}\nlate {late}", flush=True)


def _is_light(end):
    text = ctypes.create_string_buffer(200)
    ctypes.CDLL(None).omniverb_sockets_describe(end.fileno(), text, len(text))
    return b"light" in text.value


def _keeps(address, port, file):
    until = time.monotonic() + _PATIENCE
    # It is the kernel's if the broker, or a gateway, took too long.
    while not _is_light(end := socket.create_connection((address, port), 10)):
        end.close()
        assert time.monotonic() < until, "no connection is light"
        time.sleep(0.1)
    end.settimeout(None)
    said = False
    try:
        while not os.path.exists(file):
            end.sendall(_WORD)
            assert _exactly(end, len(_WORD)) == _WORD
            if not said:
                print("going light" if _is_light(end) else "going", flush=True)
                said = True
            time.sleep(0.001)
    except OSError as error:
        print("ended by", type(error).__name__, flush=True)
        return
    print("kept", flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "serves":
        _serves(sys.argv[2], *(int(port) for port in sys.argv[3:]))
    ways = {"asks": _asks, "keeps": _keeps, "leaves": _leaves}
    ways[sys.argv[1]](sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
