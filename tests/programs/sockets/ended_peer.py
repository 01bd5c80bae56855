#!/usr/bin/python3
"""Prints what a connection of many reports after its other end has gone.

`ended_peer.py` prints it for each of them. All other ends are processes of their own, which say by
a pipe that they have done it; so it *has* happened when the next call is made."""

import errno
import os
import signal
import socket
import struct
import subprocess
import sys

# Turns of each before anything ends, with all the others between.
_TURNS = 150
_WAYS = ("killed", "exits", "closes", "resets", "shuts", "half")


def other(port, way):
    """An other end."""
    end = socket.create_connection(("127.0.0.1", port))
    end.sendall(way.encode().ljust(8))
    for _ in range(_TURNS):
        end.sendall(end.recv(8))
    sys.stdin.readline()
    if way == "exits":
        os._exit(0)
    if way == "closes":
        end.close()
    if way == "resets":
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        end.close()
    if way == "shuts":
        end.shutdown(socket.SHUT_RDWR)
    if way == "half":
        end.shutdown(socket.SHUT_WR)
    print("done", flush=True)
    sys.stdin.readline()


def said(call, *words):
    """What it gave."""
    try:
        return call(*words)
    except OSError as error:
        return errno.errorcode[error.errno]


def main():
    """All of them, by turns, until each has gone."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=20)
    port = str(listener.getsockname()[1])
    others = {way: subprocess.Popen([sys.executable, "-B", __file__, port, way], text=True,
                                    stdin=subprocess.PIPE, stdout=subprocess.PIPE)
              for way in _WAYS}
    ends = {}
    for _ in _WAYS:
        end = listener.accept()[0]
        ends[end.recv(8).decode().strip()] = end
    for turn in range(_TURNS):
        for end in ends.values():
            end.sendall(b"%08d" % turn)
            assert end.recv(8) == b"%08d" % turn
    for way in _WAYS:
        end, process = ends[way], others[way]
        if way == "killed":
            process.send_signal(signal.SIGKILL)
        else:
            process.stdin.write("go\n")
            process.stdin.flush()
        if way in ("killed", "exits"):
            process.wait()
        else:
            process.stdout.readline()
        found = [said(end.send, b"x", socket.MSG_NOSIGNAL) for _ in range(4)]
        found += [said(end.recv, 10), said(end.getsockopt, socket.SOL_SOCKET, socket.SO_ERROR)]
        print(way, found)
    for process in others.values():
        process.kill()
        process.wait()


if len(sys.argv) > 1:
    other(*sys.argv[1:])
else:
    main()
