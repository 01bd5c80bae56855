"""Attacks by files whose server does not answer, and by silent owners of memory."""

import ctypes
import fcntl
import mmap
import os
import signal
import struct
import tempfile
import time

import daemon_protocol
from attack_helpers import attack, attach, empty, going_on
from daemon_protocol import Client, message

_LIBC = ctypes.CDLL(None, use_errno=True)
_NEWUSER, _NEWNS, _NEWNET = 0x10000000, 0x20000, 0x40000000
_LOOKUP, _FORGET, _GETATTR, _OPEN, _INIT, _FLUSH, _FORGET_MANY = 1, 2, 3, 14, 26, 25, 42
_ROOT = 1


# ---- a file system of our own ----

def _attributes(node):
    mode = 0o40755 if node == _ROOT else 0o100666
    return struct.pack("6Q10I", node, 4096, 8, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def _serve(device):
    """Answers what it takes to open a file, and nothing that is asked of it afterwards."""
    while True:
        request = os.read(device, 1 << 17)
        _, opcode, unique, node = struct.unpack_from("IIQQ", request)
        answer, error = b"", 0
        if opcode == _INIT:
            answer = struct.pack("IIIIHHIIHH32x", 7, 31, 0, 0, 12, 9, 4096, 1, 1, 0)
        elif opcode == _LOOKUP:
            answer = struct.pack("QQQQII", 2, 0, 0, 0, 0, 0) + _attributes(2)
        elif opcode == _GETATTR and node == _ROOT:
            answer = struct.pack("QII", 0, 0, 0) + _attributes(node)
        elif opcode == _OPEN:
            answer = struct.pack("QII", 1, 0, 0)
        elif opcode in (_GETATTR, _FLUSH, _FORGET, _FORGET_MANY):
            continue
        else:
            error = -38
        os.write(device, struct.pack("IiQ", 16 + len(answer), error, unique) + answer)


def _checked(value):
    if value:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _mount(node):
    """A folder with a file system, and the process that serves it."""
    user = os.getuid()
    folder = tempfile.mkdtemp(prefix="omniverb-silent-")
    _checked(_LIBC.unshare(_NEWUSER | _NEWNS | _NEWNET))
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"),
                       ("gid_map", f"0 {user} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)
    device = os.open(node, os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0".encode()
    _checked(_LIBC.mount(b"silent", folder.encode(), b"fuse", 6, options))
    server = os.fork()
    if server == 0:
        _LIBC.prctl(1, signal.SIGKILL, 0, 0, 0)
        try:
            _serve(device)
        finally:
            os._exit(0)
    os.close(device)
    return folder, server


@attack
def silent_files(node):
    """Files that nobody closes or looks at before their server answers, which it does not."""
    folder, server = _mount(node)
    sent, kept = 0, []
    try:
        # It stays open here: to close it is to wait as well.
        file = os.open(f"{folder}/file", os.O_RDWR)
        hello = message("Hello", role=daemon_protocol.constant("ROLE_VERBS"))
        while going_on():
            try:
                for data in (b"x", hello, message("QueryGids")):
                    kept.append(daemon_protocol.connect(2))
                    sent += attach(kept[-1], data, [file])
                for channel, data in (("calls", message("QueryGids")),
                                      ("events", message("Adopted", token=7))):
                    kept.append(Client(timeout=2))
                    sent += attach(getattr(kept[-1], channel), data, [file])
            except (OSError, daemon_protocol.Refused):
                time.sleep(0.05)
            time.sleep(0.05)
            kept = kept[-40:]
        return sent
    finally:
        os.kill(server, signal.SIGKILL)
        os.waitpid(server, 0)
        _LIBC.umount2(folder.encode(), 2)
        try:
            os.rmdir(folder)
        except OSError:
            pass


# ---- owners of regions ----

def _joined(source):
    """Two processes with a connection, and the numbers of its ends."""
    ends = [Client(), Client()]
    kind = daemon_protocol.constant("QP_RC")
    numbers = [end.call("CreateQp", qp_type=kind, pd=1, statistics_slot=0)["qpn"] for end in ends]
    for end, own, other in zip(ends, numbers, reversed(numbers)):
        end.call("ConnectQp", qpn=own, dest_qpn=other, sgid=daemon_protocol.gid(source),
                 dgid=daemon_protocol.gid(source))
    for end in ends:
        for file in end.event("LinkReady")[1]:
            os.close(file)
    return ends, numbers


def _region(owner, address, length):
    return owner.call("RegMr", pd=1, access=0xf, addr=address, length=length)["rkey"]


def _ask(asker, ends, key, address, length):
    """Asks for a grant of so many bytes."""
    own, other = ends
    asker.call("RequestGrant", qpn=other, peer_qpn=own, rkey=key, address=address, length=length)


@attack
def owners_asleep(source, pairs="4"):
    """Many keys are asked for whose owners take no notice, as if they were stopped."""
    asked, all_ = 0, []
    for _ in range(int(pairs)):
        (owner, asker), numbers = _joined(source)
        asker.events.setblocking(False)
        all_.append((owner, asker, numbers,
                     [_region(owner, 1 << 20, 1 << 20) for _ in range(300)]))
    while going_on():
        for _, asker, numbers, keys in all_:
            for key in keys:
                try:
                    _ask(asker, numbers, key, 1 << 20, 1 << 20)
                    asked += 1
                except daemon_protocol.Refused:
                    pass
            empty(asker.events)
    return asked


def _populated(file, extent):
    """Maps what came down, makes all its pages, writes to some, and drops it."""
    offset, length = daemon_protocol.values("Extent", extent).values()
    with mmap.mmap(file, length, offset=offset) as pages:
        os.posix_fallocate(file, offset, length)
        for at in range(0, length, 1 << 20):
            pages[at] = 1
    os.close(file)


@attack
def huge_grants(source, megabytes="512"):
    """Regions are asked for as a whole, their pages are all made, and the daemon is the last that
    has their file: until the region goes, its owner takes the pages back, or is gone itself."""
    length, granted = int(megabytes) << 20, 0
    while going_on():
        for give_up in ("DeregMr", "Released", None):
            (owner, asker), numbers = _joined(source)
            key = _region(owner, 1 << 30, length)
            _ask(asker, numbers, key, 1 << 30, length)
            asked, files = owner.event("Adopt")
            fcntl.fcntl(files[0], fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL)
            _populated(files[0], asked["memory"])
            daemon_protocol.send(owner.events, message("Adopted", token=asked["token"]))
            granting, files = asker.event("Granted")
            _populated(files[0], granting["memory"])
            if give_up == "DeregMr":
                owner.call(give_up, rkey=key)
            elif give_up:
                daemon_protocol.send(owner.events, message(give_up, rkey=key))
            owner.close()
            asker.close()
            granted += 1
    return granted
