"""Plays QEMU for a supervisor: `fake_qemu.py WORD OPTIONS...`.

Listens where the options say, and prints a line for each connection. With `rude` it sends malformed
messages by the port."""

import contextlib
import re
import socket
import sys


def main():
    """One after the other."""
    word, *options = sys.argv[1:]
    found = [re.match(r"socket,.*path=([^,]*)", option) for option in options]
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(next(match.group(1) for match in found if match))
    listener.listen()
    while True:
        port, _ = listener.accept()
        print("came", flush=True)
        with port, contextlib.suppress(OSError):
            if word == "rude":
                port.sendall(b"\xff" * 64)
            while port.recv(4096):
                pass


main()
