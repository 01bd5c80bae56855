"""Runs a server of one kind: `servers.py KIND PORT`.

Each request is a length (4 bytes) and so many bytes, which come back in upper case, framed
likewise; at its end a connection is closed."""

import asyncio
import multiprocessing
import multiprocessing.reduction
import os
import selectors
import signal
import socket
import socketserver
import struct
import sys

PORT = int(sys.argv[2])


class Handler(socketserver.StreamRequestHandler):
    """One connection, by blocking calls."""

    def handle(self):
        try:
            while head := self.rfile.read(4):
                data = self.rfile.read(*struct.unpack("!I", head))
                self.wfile.write(head + data.upper())
        except ConnectionError:
            pass


class Threads(socketserver.ThreadingTCPServer):
    """A thread for each connection."""

    allow_reuse_address = daemon_threads = True
    request_queue_size = 50


class Processes(socketserver.ForkingTCPServer):
    """A process for each connection."""

    allow_reuse_address = True
    request_queue_size = 50


class Plain(socketserver.TCPServer):
    """One connection at a time."""

    allow_reuse_address = True
    request_queue_size = 50


def threads():
    """A thread for each connection."""
    Threads(("127.0.0.1", PORT), Handler).serve_forever()


def processes():
    """A process for each connection."""
    Processes(("127.0.0.1", PORT), Handler).serve_forever()


def workers():
    """Three processes that were forked accept from one listener."""
    server = Threads(("127.0.0.1", PORT), Handler)
    children = []
    for _ in range(3):
        child = os.fork()
        if child == 0:
            server.serve_forever()
        children.append(child)
    signal.signal(signal.SIGTERM, lambda *_: [os.kill(c, signal.SIGTERM) for c in children])
    for child in children:
        os.waitpid(child, 0)


def passed():
    """One process accepts and hands what it has accepted to two others."""
    listener = socket.create_server(("127.0.0.1", PORT), backlog=50)
    ends, children = [], []
    for _ in range(2):
        here, there = socket.socketpair()
        child = os.fork()
        if child == 0:
            listener.close()
            here.close()
            _serve_passed(there)
            os._exit(0)
        ends.append(here)
        children.append(child)
        there.close()

    def end(*_):
        for child in children:
            os.kill(child, signal.SIGTERM)
        os._exit(0)
    signal.signal(signal.SIGTERM, end)
    number = 0
    while True:
        near = listener.accept()[0]
        socket.send_fds(ends[number % 2], [b"x"], [near.fileno()])
        near.close()
        number += 1


def _serve_passed(there):
    """Each that comes is served by a child."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        word, fds, _, _ = socket.recv_fds(there, 1, 1)
        if not word:
            return
        near = socket.socket(fileno=fds[0])
        if os.fork() == 0:
            Handler(near, None, None)
            near.shutdown(socket.SHUT_WR)
            os._exit(0)
        near.close()


class Buffered:
    """One connection of a loop that never blocks."""

    def __init__(self, near):
        self.near, self.got, self.owed, self.ended = near, b"", b"", False

    def step(self, events):
        """Does what can be done; whether there is more to come."""
        if events & selectors.EVENT_READ:
            part = self.near.recv(50_000)
            self.got += part
            self.ended |= not part
        while len(self.got) >= 4 and len(self.got) >= 4 + struct.unpack("!I", self.got[:4])[0]:
            size = 4 + struct.unpack("!I", self.got[:4])[0]
            self.owed += self.got[:4] + self.got[4:size].upper()
            self.got = self.got[size:]
        if self.owed:
            try:
                self.owed = self.owed[self.near.send(self.owed):]
            except BlockingIOError:
                pass
        return not self.ended or self.owed

    def wanted(self):
        """What to wait for."""
        write = selectors.EVENT_WRITE if self.owed else 0
        return write | (0 if self.ended else selectors.EVENT_READ)


def _loop(selector_class):
    listener = socket.create_server(("127.0.0.1", PORT), backlog=50)
    listener.setblocking(False)
    selector = selector_class()
    selector.register(listener, selectors.EVENT_READ)
    while True:
        for key, events in selector.select():
            if key.data is None:
                near = listener.accept()[0]
                near.setblocking(False)
                selector.register(near, selectors.EVENT_READ, Buffered(near))
                continue
            try:
                goes_on = key.data.step(events)
            except ConnectionError:
                goes_on = False
            if goes_on:
                selector.modify(key.fileobj, key.data.wanted(), key.data)
            else:
                selector.unregister(key.fileobj)
                key.fileobj.close()


def selecting():
    """A loop over select."""
    _loop(selectors.SelectSelector)


def polling():
    """A loop over poll."""
    _loop(selectors.PollSelector)


def epolling():
    """A loop over epoll."""
    _loop(selectors.EpollSelector)


def uvloop():
    """asyncio's streams over libuv."""
    import uvloop as loop
    loop.install()
    in_loop()


def in_loop():
    """asyncio's streams."""
    async def serve(reader, writer):
        try:
            while head := await reader.read(4):
                head += await reader.readexactly(4 - len(head))
                data = await reader.readexactly(*struct.unpack("!I", head))
                writer.write(head + data.upper())
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def run():
        server = await asyncio.start_server(serve, "127.0.0.1", PORT, backlog=50)
        await server.serve_forever()
    asyncio.run(run())


def pool():
    """Processes that were started anew, not forked, get what was accepted, pickled."""
    context = multiprocessing.get_context("spawn")
    listener = socket.create_server(("127.0.0.1", PORT), backlog=50)
    here, there = context.Pipe()
    worker = context.Process(target=serve_pickled, args=(there,), daemon=True)
    worker.start()
    signal.signal(signal.SIGTERM, lambda *_: (worker.kill(), os._exit(0)))
    while True:
        near = listener.accept()[0]
        here.send(near)
        near.close()


def serve_pickled(there):
    """A thread for each."""
    import threading

    def serve(near):
        Handler(near, None, None)
        near.close()
    while True:
        threading.Thread(target=serve, args=[there.recv()], daemon=True).start()


KINDS = {"threads": threads, "processes": processes, "workers": workers, "passed": passed,
         "select": selecting, "poll": polling, "epoll": epolling, "asyncio": in_loop,
         "uvloop": uvloop, "pool": pool}

if __name__ == "__main__":
    KINDS[sys.argv[1]]()
