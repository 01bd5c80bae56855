"""Holds what attacks share (run_attack.py): the clock, descriptors, links."""

import errno
import os
import select
import threading
import time

import daemon_protocol

ATTACKS = {}
REFUSED = [0]  # descriptors that the kernel did not let us send
_END = [0.0]
_ASKED = []  # the main thread asked whether to go on


def attack(function):
    """Makes it one of the attacks."""
    ATTACKS[function.__name__] = function
    return function


def begin(seconds):
    """From now on, for so long, or until standard input ends."""
    _END[0] = time.monotonic() + seconds


def going_on():
    """Is there time left, and has nobody said that it is enough? To whoever attacks, once at least:
    on a busy machine all of the time may pass before that."""
    if not _ASKED and threading.current_thread() is threading.main_thread():
        _ASKED.append(True)
        return True
    return time.monotonic() < _END[0] and not select.select([0], [], [], 0)[0]


def leave(end):
    """Closes our copy, in a thread: if the receiver was quick, it is us who wait."""
    threading.Thread(target=end.close, daemon=True).start()


def attach(to, data, files):
    """Sends descriptors; how many were sent or refused by the kernel, which is all one can try."""
    try:
        daemon_protocol.send(to, data, files)
    except OSError as error:
        if error.errno != errno.EPERM:
            raise
        REFUSED[0] += len(files)
    return len(files)


def send_and_forget(to, data, files, ends):
    """Sends, and leaves the receiver the last to hold them; likewise."""
    try:
        return attach(to, data, files)
    except OSError:
        return 0
    finally:
        for end in ends:
            leave(end)


def link(client, source, qpn, destination, peer):
    """Fields and descriptors of a datagram link that the peer did not ask for."""
    for _ in range(100):
        answer = client.call("ConnectQp", qpn=qpn, dest_qpn=peer, sgid=daemon_protocol.gid(source),
                             dgid=daemon_protocol.gid(destination))
        if answer["ready"] != daemon_protocol.constant("CONNECT_AGAIN"):
            return client.event("LinkReady")
        time.sleep(0.02)
    raise TimeoutError("no link")


def datagrams(client, slot=0):
    """The number of a new queue pair for datagrams."""
    return client.call("CreateQp", qp_type=daemon_protocol.constant("QP_UD"), pd=1,
                       statistics_slot=slot)["qpn"]


def empty(events):
    """Takes what there is, and leaves it."""
    try:
        while True:
            _, files = daemon_protocol.receive(events)
            for file in files:
                os.close(file)
    except BlockingIOError:
        pass
