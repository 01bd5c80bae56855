#!/usr/bin/python3
"""Parts of files by `sendfile`, between other sends, to a reader that is a process of its own.

`sendfile_parts.py serve PORT` reads; `sendfile_parts.py waits|asks|strange PORT` sends, by calls
that wait or do not wait, and prints "ok"; or what calls gave that make no sense.
"""

import contextlib
import errno
import hashlib
import os
import random
import select
import socket
import sys
import tempfile
import time

_SIZE, _SECONDS = 3_000_000, 20
# In turns before the first file: enough for a link to come.
_WORDS = 300


def _exactly(end, count):
    got = b""
    while len(got) < count:
        more = end.recv(count - len(got))
        if not more:
            raise EOFError(f"{len(got)} of {count}")
        got += more
    return got


def serve(port):
    """Echoes words; then says what it was sent until the end, of which it reads some slowly."""
    listener = socket.create_server(("127.0.0.1", port))
    while True:
        end = listener.accept()[0]
        for _ in range(_WORDS):
            end.sendall(_exactly(end, 8))
        hashed, count, rng = hashlib.sha256(), 0, random.Random(1)
        while got := end.recv(rng.choice([1, 100, 5000, 100_000])):
            hashed.update(got)
            count += len(got)
            if rng.random() < 0.01:
                time.sleep(0.002)
        end.sendall(f"{count} {hashed.hexdigest()}".encode())
        end.close()


def connected(port):
    """A connection that has been used for a while."""
    end = socket.create_connection(("127.0.0.1", port), timeout=_SECONDS)
    end.settimeout(None)
    for at in range(_WORDS):
        end.sendall(b"%08d" % at)
        _exactly(end, 8)
    return end


def send(end, waits):
    """What was sent, in parts of all sizes, of a file and of memory."""
    rng, whole = random.Random(2), hashlib.sha256()
    content = random.Random(3).randbytes(_SIZE)
    sent = 0
    with tempfile.TemporaryFile() as file:
        file.write(content)
        file.flush()
        place = file.seek(77)
        while sent < 4 * _SIZE:
            begin, count = rng.randrange(_SIZE), rng.choice([1, 300, 20_000, 70_000, 1_000_000])
            part = content[begin:begin + count]
            if rng.random() < 0.3:
                part = part[:5000]
                give(end, waits, part, lambda at, part=part: end.send(part[at:]))
            else:
                def one(at, begin=begin, count=count):
                    return os.sendfile(end.fileno(), file.fileno(), begin + at, count - at)
                give(end, waits, part, one)
            whole.update(part)
            sent += len(part)
        assert file.tell() == os.lseek(file.fileno(), 0, os.SEEK_CUR) == place
    end.shutdown(socket.SHUT_WR)
    end.setblocking(True)
    assert _said(end) == f"{sent} {whole.hexdigest()}"


def give(end, waits, part, one):
    """Until all of it has gone."""
    at = 0
    while at < len(part):
        try:
            count = one(at)
            assert 0 < count <= len(part) - at, (count, at, len(part))
            assert not waits or count == len(part) - at, (count, at, len(part))
            at += count
        except BlockingIOError:
            assert not waits
            assert select.select([], [end], [], _SECONDS)[1], "no room"


def _said(end):
    text = b""
    while got := end.recv(1000):
        text += got
    return text.decode()


def strange(end):
    """What has to be as on the kernel's."""
    def said(*words):
        try:
            return os.sendfile(*words)
        except OSError as error:
            return errno.errorcode[error.errno]
    with tempfile.TemporaryFile() as file:
        file.write(bytes(1000))
        file.flush()
        to, of = end.fileno(), file.fileno()
        print("end", [said(to, of, at, 100) for at in (1000, 5000, 950, 0)])
        print("nothing", said(to, of, 0, 0), said(to, of, -1, 10))
        print("too much", said(to, of, 10, sys.maxsize), said(to, of, 5000, sys.maxsize))
        for name in ("/proc/version", "/proc/self/status", "/sys/kernel/profiling"):
            with contextlib.suppress(FileNotFoundError), open(name, "rb") as unsized:
                print(name, said(to, unsized.fileno(), 0, 4096))
        print("number", said(999, of, 0, 10), said(to, 999, 0, 10), said(-1, of, 0, 1))
        only = os.open(f"/proc/self/fd/{of}", os.O_WRONLY)
        print("written", said(to, only, 0, 10))
        folder = os.open("/", os.O_RDONLY)
        print("folder", said(to, folder, 0, 10))
        pipe = os.pipe()
        print("pipe", said(to, pipe[0], 0, 10))
        os.lseek(of, 100, os.SEEK_SET)
        print("place", said(to, of, None, 400), os.lseek(of, 0, os.SEEK_CUR))
        end.shutdown(socket.SHUT_WR)
        print("shut", said(to, of, 0, 10))
    print(_said(end))


def main():
    """As its first argument says."""
    what, port = sys.argv[1], int(sys.argv[2])
    if what == "serve":
        serve(port)
    end = connected(port)
    if what == "strange":
        strange(end)
        return
    end.setblocking(what == "waits")
    send(end, what == "waits")
    print("ok")


main()
