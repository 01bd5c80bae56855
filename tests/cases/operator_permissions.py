"""Tests operators and tenants: who may connect, who may change what, what is logged."""

import contextlib
import json
import os
import stat
import subprocess
import time

from harness import client_server, process
from harness.case import WAITS, Case, Group, check
from harness.containers import Pair
from harness.daemon import environment
from harness.unprivileged_daemon import UID

_AUDIT = "audit = true\n"


@contextlib.contextmanager
def _pair(stage):
    config = stage.folder("audited", 0, 0o755) / "omniverbd.toml"
    config.write_text(_AUDIT)
    with Pair(stage, daemon_arguments=["--config", config]) as pair:
        yield pair


def _operators_socket(pair):
    folder = pair.daemon.folder
    return folder.with_name(folder.name + "-operator") / pair.daemon.socket.name


def _sockets(pair):
    """Modes and owners; the operators' socket is not in the folder that containers are given."""
    tenants, operators = os.stat(pair.daemon.socket), os.stat(_operators_socket(pair))
    check(stat.S_IMODE(tenants.st_mode) == 0o666, oct(tenants.st_mode))
    check(stat.S_IMODE(operators.st_mode) == 0o600, oct(operators.st_mode))
    check((tenants.st_uid, operators.st_uid) == (0, 0), "owners")
    # Its output the harness puts there.
    names = set(os.listdir(pair.daemon.folder)) - {"log"}
    name = pair.daemon.socket.name
    check(names == {name, f"{name}.sockets"}, f"{names}")


_HOLD = """
import fcntl, os, sys
folder, held = "/run/omniverb", []
for name in [".", *os.listdir(folder)]:
    for flags in (os.O_RDWR, os.O_RDONLY):
        try:
            held.append(os.open(os.path.join(folder, name), flags))
            break
        except OSError:
            pass
print(os.getuid(), len(held), flush=True)
sys.stdin.readline()
for file in held:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("held", flush=True)
sys.stdin.read()
"""


def _locks(pair):
    """Root of a container that holds all it can open where it is given the socket keeps no new
    daemon out, and finds no secret there."""
    holder = pair.server.start("/usr/bin/python3", "-c", _HOLD, stdin=subprocess.PIPE,
                               stdout=subprocess.PIPE, text=True, plain=True)
    try:
        uid, held = holder.stdout.readline().split()
        check(uid == "0" and int(held) >= 1, f"uid {uid}, {held} files")
        pair.daemon.kill()
        holder.stdin.write("\n")
        holder.stdin.flush()
        check(holder.stdout.readline() == "held\n", "not held")
        pair.daemon.start()
        check(pair.daemon.status()["daemon"]["pid"] == pair.daemon.pid, "the new one")
    finally:
        holder.communicate("", timeout=20)


def _host_network(pair):
    """Root with the host's network and the tenants' folder, and nothing else: no operator."""
    beside = _operators_socket(pair).parent
    omniverb = pair.stage.dist / "bin" / "omniverb"
    own = ["unshare", "-m", "sh", "-c",
           f"mount -t tmpfs none {beside} && exec \"$@\"", "sh", omniverb]
    options = environment(OMNIVERB_SOCKET=pair.daemon.socket)
    for words in (["vnic", "set", "host", "--rate", "8mbit"], ["vnic", "disconnect", "host"],
                  ["capture", "-w", "/dev/null"]):
        text = process.run([*own, *words], env=options, accept=(1,))
        check("no socket for operators" in text or "regular file" in text, f"{words}: {text}")
    with client_server.going_on(pair, "ib_send_bw"):
        process.until(lambda: len(pair.daemon.status()["vnics"]) == 2, 20, "an operator sees all")
        shown = json.loads(process.run([*own, "status", "--json"], env=options))
        check(all(vnic["name"] == "host" for vnic in shown["vnics"]), f"{shown}")


def _disconnect(pair):
    """All links of a device end at once; its programs and their peers are told."""
    running = client_server.Duet(pair, ["ib_send_bw", "-F", "-D",
                                        str(client_server.ENDLESS)])
    process.until(lambda: (pair.daemon.vnic(pair.server.namespace) or {}).get("direct_links"), 20,
                  "a link")
    began = time.monotonic()
    text = pair.daemon.omniverb("vnic", "disconnect", f"pid:{pair.server.namespace.pid}")
    check("links ended" in text and ": 0 links" not in text, text)
    process.until(lambda: (pair.daemon.vnic(pair.server.namespace) or {}).get("direct_links", 0)
                  == 0, 5, "the end of the links")
    process.until(lambda: not pair.daemon.status()["vnics"], 30, "the end of the programs")
    print(f"{time.monotonic() - began:.1f} s until both programs had ended")
    running.abort()


def _audit(pair):
    """A line when a link is made, a line when it ends, each with both ends."""
    client_server.run(pair, "ib_send_lat", "-F", "-n", "100")
    for event in ("linked", "unlinked"):
        def lines(event=event):
            return [line for line in pair.daemon.log().splitlines()
                    if f"audit event={event} " in line and "path=direct" in line]
        # The daemon may not have heard of the end yet.
        found = process.until(lines, 20, lambda event=event: f"{event}: {pair.daemon.log()}")
        for word in ("type=RC", " qpn=0x", "peer_qpn=0x", "vnic=vnic-", "peer_vnic=vnic-", "pid=",
                     "peer_pid=", "uid=0", "gid=10.77.0.1", "gid=10.77.0.2"):
            check(word in found[-1], f"{word}: {found[-1]}")


_NAMED = """
import sys, ctypes
ctypes.CDLL(None).prctl(15, "evil\u202e\u200b\x1b[2J".encode(), 0, 0, 0)
verbs = ctypes.CDLL("libibverbs.so.1")
verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
verbs.ibv_open_device.restype = ctypes.c_void_p
device = verbs.ibv_get_device_list(None)[0]
print(bool(verbs.ibv_open_device(ctypes.c_void_p(device))), flush=True)
sys.stdin.read()
"""


def _names(pair):
    """What a process calls itself commands no terminal."""
    running = pair.server.start("/usr/bin/python3", "-c", _NAMED, stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, text=True)
    try:
        check(running.stdout.readline() == "True\n", "no device")
        for words in (["status"], ["status", "--json"]):
            text = pair.daemon.omniverb(*words)
            check("evil??" in text, text)
            for character in ("\u202e", "\u200b", "\x1b"):
                check(character not in text, f"{character!r}")
    finally:
        running.communicate("", timeout=20)


def _capture_files(pair):
    """A capture goes through no link, and nobody else reads it."""
    folder = pair.stage.folder("captures", 0, 0o777)
    victim = folder / "victim"
    victim.write_text("contents")
    (folder / "link").symlink_to(victim)
    text = pair.daemon.omniverb("capture", "-w", folder / "link", accept=(1,))
    check("regular file" in text and victim.read_text() == "contents", text)
    others = folder / "others"
    others.write_text("contents")
    os.chown(others, UID, UID)
    text = pair.daemon.omniverb("capture", "-w", others, accept=(1,))
    check("another user" in text and others.read_text() == "contents", text)


def _allowed(pair):
    """Whom no entry fits is refused, and everybody else is served."""
    from harness.daemon import Daemon
    stage = pair.stage
    config = stage.folder("allowing", 0, 0o755) / "omniverbd.toml"
    config.write_text(f"[allow]\nusers = [{UID}]\n")
    with contextlib.closing(Daemon(stage, arguments=["--config", config])) as daemon:
        options = environment(OMNIVERB_SOCKET=daemon.socket, LD_LIBRARY_PATH=stage.dist / "lib")
        as_uid = ["setpriv", f"--reuid={UID}", f"--regid={UID}", "--clear-groups", "--"]
        text = process.run(["unshare", "-n", "ibv_devinfo"], env=options, accept=range(1, 256))
        check("omv0" not in text, text)
        text = process.run(["unshare", "-n", *as_uid, "ibv_devinfo"], env=options)
        check("omv0" in text, text)
        check("not allowed to connect: uid 0" in daemon.log(), daemon.log())


def groups():
    """Two containers and a daemon that logs links."""
    return [Group("operators", [
        Case("operators.sockets", _sockets),
        Case("operators.locks", _locks),
        Case("operators.host_network", _host_network),
        Case("operators.audit", _audit),
        Case("operators.names", _names),
        Case("operators.capture_files", _capture_files),
        Case("operators.allowed", _allowed),
        Case("operators.disconnect", _disconnect),
    ], _pair, weight=WAITS)]
