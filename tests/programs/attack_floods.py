"""Attacks by quantity: connections, namespaces, queue pairs, links, questions."""

import ctypes
import fcntl
import os
import resource
import select
import socket
import struct
import time

import daemon_protocol
from attack_helpers import attack, begin, datagrams, empty, going_on, link, send_and_forget
from daemon_protocol import Client, message

_LIBC = ctypes.CDLL(None, use_errno=True)
_NEWUSER, _NEWNET = 0x10000000, 0x40000000
_PORT_SPACE = 0x111  # RDMA_PS_UDP

def _own_namespaces(count, run):
    """`run()` in a process and a user-made network namespace of its own each; the sum of what
    they return."""
    here, there = os.pipe()
    for _ in range(count):
        if os.fork():
            continue
        number = 0
        try:
            _LIBC.prctl(1, 9, 0, 0, 0)  # die with the parent
            if _LIBC.unshare(_NEWUSER | _NEWNET) == 0:
                _raise_loopback()
                number = run()
        finally:
            os.write(there, struct.pack("q", number))
            os._exit(0)
    os.close(there)
    with os.fdopen(here, "rb") as numbers:
        text = numbers.read()
    return sum(number for number, in struct.iter_unpack("q", text))


def _raise_loopback():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_:
        fcntl.ioctl(any_, 0x8914, struct.pack("16sh14x", b"lo", 1 | 64))  # SIOCSIFFLAGS


def _silent():
    held, made, poller = {}, 0, select.poll()
    while going_on():
        try:
            while len(held) < 250:
                to = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                to.setblocking(False)
                to.connect(daemon_protocol.path())
                held[to.fileno()] = to
                poller.register(to, select.POLLHUP)
                made += 1
        except OSError:
            time.sleep(0.01)
        for file, _ in poller.poll(10):
            poller.unregister(file)
            held.pop(file).close()
    return made


@attack
def silent_connections():
    """Connections that say nothing."""
    return _silent()


def _held_by_one(count, open_one):
    """Has as many at a time as it may, and counts them."""
    held, most = [], 0
    while going_on():
        try:
            while len(held) < count and going_on():
                held.append(open_one())
        except (OSError, daemon_protocol.Refused):
            time.sleep(0.02)
        most = max(most, len(held))
        # Those that have ended make room for others.
        poller = select.poll()
        for one in held:
            poller.register(one.fileno(), select.POLLHUP)
        ended = {file for file, _ in poller.poll(20)}
        for one in [one for one in held if one.fileno() in ended]:
            one.close()
            held.remove(one)
    return most


class _Said(Client):
    """A client, as what it waits by."""

    def fileno(self):
        """Of the socket for calls."""
        return self.calls.fileno()


def _connection():
    to = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    to.setblocking(False)
    try:
        to.connect(daemon_protocol.path())
    except OSError:
        to.close()
        raise
    return to


@attack
def ten_thousand_sockets(processes="10", each="1000"):
    """Connections of many processes, held; half say nothing, half have a queue pair each."""
    here, there = os.pipe()
    for number in range(int(processes)):
        if os.fork():
            continue
        try:
            _LIBC.prctl(1, 9, 0, 0, 0)  # die with the parent
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
            held = _held_by_one(int(each), [_connection, _with_queue_pair][number % 2])
        finally:
            os.write(there, struct.pack("q", held))
            os._exit(0)
    os.close(there)
    with os.fdopen(here, "rb") as numbers:
        return sum(number for number, in struct.iter_unpack("q", numbers.read()))


def _with_queue_pair():
    client = _Said()
    datagrams(client)
    return client


@attack
def rows_pile_up(count="3000"):
    """Queue pairs and ids of the connection manager that nobody uses, so many of each, or as
    many as one can have."""
    made, client = 0, Client()
    try:
        for slot in range(int(count)):
            datagrams(client, slot)
            client.call("CreateCmId", space=_PORT_SPACE, qp_type=daemon_protocol.constant("QP_UD"))
            made += 2
    except daemon_protocol.Refused:
        pass
    while going_on():
        time.sleep(0.1)
    return made


@attack
def silent_namespaces(count="18"):
    """Connections that say nothing, from many namespaces."""
    return _own_namespaces(int(count), _silent)


def _holding_the_port():
    holder = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    holder.bind(("::", 4791))
    made = 0
    while going_on():
        try:
            client = Client()
            datagrams(client)
            made += 1
            client.close()
        except (OSError, daemon_protocol.Refused):
            time.sleep(0.05)
    return made


@attack
def port_held(count="60"):
    """Namespaces in which port 4791 is somebody's already."""
    return _own_namespaces(int(count), _holding_the_port)


def _one_queue_pair():
    clients = []
    while going_on():
        try:
            client = Client()
            datagrams(client)
            clients.append(client)
        except (OSError, daemon_protocol.Refused):
            time.sleep(0.1)
        time.sleep(0.05)
    return len(clients)


@attack
def many_namespaces(count="100"):
    """Namespaces with a device each."""
    return _own_namespaces(int(count), _one_queue_pair)


@attack
def connections_come_and_go():
    """As fast as it goes."""
    made = 0
    while going_on():
        try:
            client = Client()
            datagrams(client)
            client.close()
            made += 1
        except (OSError, daemon_protocol.Refused):
            time.sleep(0.01)
    return made


@attack
def status_in_a_loop(queue_pairs="4000", seconds="60"):
    """A tenant with many queue pairs asks how they are: from the beginning again and again without
    a look at the answers, and from where the last answer ended."""
    client = Client()
    try:
        for slot in range(int(queue_pairs)):
            datagrams(client, slot)
    except daemon_protocol.Refused:
        pass
    begin(float(seconds))  # they took a while
    asked, tools, walker = 0, [], daemon_protocol.connect()
    while going_on():
        try:
            tools.append(daemon_protocol.connect())
            for _ in range(8):
                daemon_protocol.send(tools[-1], message("QueryStatus"))
            asked += 8 + _walk(walker)
            if len(tools) > 16:
                tools.pop(0).close()
        except OSError:
            time.sleep(0.01)
    return asked


def _walk(tool, steps=20):
    place, asked = b"", 0
    for _ in range(steps):
        daemon_protocol.send(tool, message("QueryStatus", **({"from": place})))
        data, _ = daemon_protocol.receive(tool)
        _, _, answer = daemon_protocol.parse(data)
        place = answer["next"] if answer["more"] else b""
        asked += 1
    return asked


@attack
def answers_not_read():
    """Calls and calls, and nobody takes the answers."""
    asked, held = 0, []
    while going_on():
        try:
            client = Client()
            client.calls.setblocking(False)
            held.append(client)
            for _ in range(5000):
                daemon_protocol.send(client.calls, message("QueryGids"))
                asked += 1
        except BlockingIOError:
            pass
        except (OSError, daemon_protocol.Refused):
            time.sleep(0.02)
        held = held[-20:]
    return asked


@attack
def datagram_links_come_and_go(source, destination, peer):
    """Links to somebody who did not ask for them."""
    made = 0
    client = Client()
    qpn = datagrams(client)
    link(client, source, qpn, destination, int(peer))
    client.events.setblocking(False)
    numbers = [datagrams(client, slot) for slot in range(1, 200)]
    while going_on():
        for number in numbers:
            try:
                client.call("ConnectQp", qpn=number, dest_qpn=int(peer),
                            sgid=daemon_protocol.gid(source), dgid=daemon_protocol.gid(destination))
                client.call("DisconnectQp", qpn=number, peer_qpn=0)
                made += 1
            except daemon_protocol.Refused:
                pass
            except OSError:
                return made
            empty(client.events)
    return made


@attack
def datagram_links_pile_up(source, destination, peer):
    """The same, all at once, and again when they are there."""
    made = 0
    while going_on():
        try:
            client = Client()
            client.events.setblocking(False)
            for slot in range(5000):
                number = datagrams(client, slot)
                client.call("ConnectQp", qpn=number, dest_qpn=int(peer),
                            sgid=daemon_protocol.gid(source), dgid=daemon_protocol.gid(destination))
                empty(client.events)
                made += 1
                if not going_on():
                    break
        except (OSError, daemon_protocol.Refused):
            time.sleep(0.05)
        client.close()
    return made


@attack
def huge_files(megabytes="1024"):
    """Memory with something in each page, which the daemon is the last to hold."""
    sent = 0
    while going_on():
        file = os.memfd_create("huge", os.MFD_ALLOW_SEALING)
        os.posix_fallocate(file, 0, int(megabytes) << 20)
        for data in (b"x", message("Hello", role=daemon_protocol.constant("ROLE_VERBS"))):
            to = daemon_protocol.connect()
            sent += send_and_forget(to, data, [file], [to])
        os.close(file)
    return sent


_BEGINS = b"\xff\x0f" + bytes(10)
_HANDSHAKES = (lambda: _BEGINS + os.urandom(28),
               lambda: _BEGINS + b"omniver1" + os.urandom(16) + bytes(4),
               lambda: _BEGINS + b"omniver2" + os.urandom(20),
               lambda: os.urandom(40))


@attack
def strange_handshakes(*victims):
    """Datagrams of 40 bytes from an ordinary socket: what begins as handshakes do, questions and
    replies of numbers that nobody drew, noise; 64 with a call."""
    # More would be about the network, not about us.
    rate, begun = 50_000 * len(victims), time.monotonic()
    sent, made = 0, [b"".join(kind() for _ in range(64)) for kind in _HANDSHAKES for _ in range(8)]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.setsockopt(socket.IPPROTO_UDP, 103, 40)  # UDP_SEGMENT
        sender.setblocking(False)
        while going_on():
            for datagrams_ in made:
                while sent > rate * (time.monotonic() - begun):
                    time.sleep(0.001)
                for victim in victims:
                    try:
                        sender.sendto(datagrams_, (victim, 4791))
                    except OSError:  # no room at the moment
                        pass
                    sent += 64
    return sent
