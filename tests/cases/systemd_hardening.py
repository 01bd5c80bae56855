"""Tests the daemon with the capabilities and system calls that its systemd unit leaves it."""

import contextlib
import os
import pathlib
import signal
import socket
import struct
import sys

from cases import metrics
from harness import client_server, process
from harness.case import WAITS, Case, Group, check
from harness.containers import Pair

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_UNIT = _ROOT / "deploy" / "systemd" / "omniverbd.service"
_KEPT = 1 << 24  # CAP_SYS_RESOURCE


@contextlib.contextmanager
def _fixture(stage):
    enter = [sys.executable, _ROOT / "tests" / "harness" / "run_as_systemd_unit.py", _UNIT]
    settings = stage.folder("hardening") / "omniverbd.toml"
    port = metrics.free_port()
    settings.write_text(f'sockets = true\nmetrics = "127.0.0.1:{port}"\n')
    with Pair(stage, daemon_enter=enter, daemon_arguments=["--config", settings]) as pair:
        pair.gid_index, pair.metrics_port = client_server.gid_index(pair.server), port
        yield pair


def _field(pid, name):
    text = pathlib.Path(f"/proc/{pid}/status").read_text()
    return next(line.split()[1] for line in text.splitlines() if line.startswith(name + ":"))


def _children(pid):
    return [int(word) for task in pathlib.Path(f"/proc/{pid}/task").iterdir()
            for word in (task / "children").read_text().split()]


def _helper(daemon):
    """The process that enters namespaces."""
    for starter in _children(daemon):
        if _field(starter, "Name") == "omni:starter":
            for helper in _children(starter):
                if _field(helper, "Name") == "omni:namespaces":
                    return helper
    return None


def _serves(pair):
    """Everything works: direct, forwarded, with a rate."""
    for words in ((), ("--datapath", "forwarded", "--rate", "1gbit")):
        for place in (pair.server, pair.client) if words else ():
            pair.daemon.omniverb("vnic", "set", f"pid:{place.pid}", *words)
        both = client_server.run(pair, "ibv_rc_pingpong", "-g", str(pair.gid_index), "-n", "300")
        check("300 iters" in both.client, both.client)


def _serves_metrics(pair):
    status, _, text = metrics.request(pair.metrics_port)
    check(status == 200 and "omniverb_vnics" in text, f"{status} {text}")
    names = [pathlib.Path(f"/proc/{pair.daemon.pid}/task/{task}/comm").read_text().strip()
             for task in os.listdir(f"/proc/{pair.daemon.pid}/task")]
    check(names.count("metrics") == 1, f"{names}")


def _has_no_privilege(pair):
    pair.server.run("/opt/programs/isolation_probe", "view")
    for task in pathlib.Path(f"/proc/{pair.daemon.pid}/task").iterdir():
        for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
            left = int(_field(task.name, name), 16) & ~_KEPT
            check(left == 0, f"{name} of a thread of the daemon: {left:x}")
        check(_field(task.name, "Seccomp") == "2", "there is no filter")
    check(int(_field(_helper(pair.daemon.pid), "CapEff"), 16) & 1 << 21, "the helper has too few")


def _helper_comes_back(pair):
    for _ in range(3):
        process.until(lambda: _helper(pair.daemon.pid), 10, "a helper")
        os.kill(_helper(pair.daemon.pid), signal.SIGKILL)
        pair.client.run("/opt/programs/isolation_probe", "view")


def _broker_introduces(pair):
    """It has no privilege, has all that it needs, and what it closes elsewhere hangs elsewhere."""
    def brokers():
        return [pid for pid in _children(pair.daemon.pid) if _field(pid, "Name") == "omni:broker"]

    check(len(brokers()) == 1, brokers())
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        left = int(_field(brokers()[0], name), 16) & ~_KEPT
        check(left == 0, f"{name} of the broker: {left:x}")
    check([_field(pid, "Name") for pid in _children(brokers()[0])] == ["omni:disposer"],
          "it has no disposer")
    with contextlib.ExitStack() as both:
        listener = both.enter_context(socket.create_server(("127.0.0.1", 0)))
        near = both.enter_context(socket.create_connection(listener.getsockname()))
        far = both.enter_context(listener.accept()[0])
        one, other = (both.enter_context(_hello(pair.daemon.socket)) for _ in range(2))
        socket.send_fds(one, [_message(2, 7)], [near.fileno()])
        check(_heard(one) == 20, "the other end has come already")
        socket.send_fds(other, [_message(2, 8)], [far.fileno()])
        check((_heard(one), _heard(other)) == (18, 18), "they are given no link")


def _message(kind, *fields):
    """A message to the broker (sockets/formats/src/broker_message.rs)."""
    return struct.pack("16Q", kind | 0x4f565307 << 32, *fields, *[0] * (15 - len(fields)))


def _hello(place):
    """A connection to the broker."""
    calls = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    calls.settimeout(10)
    calls.connect(f"{place}.sockets")
    # NETLINK_SOCK_DIAG.
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4) as diagnosis:
        socket.send_fds(calls, [_message(1)], [diagnosis.fileno()])
    check(_heard(calls) == 17, "it is not welcome")
    return calls


def _heard(calls):
    """Which message has come."""
    said, files, *_ = socket.recv_fds(calls, 128, 1)
    for file in files:
        os.close(file)
    kind = struct.unpack_from("I", said)[0]
    # A ledger (22) follows the welcome.
    return _heard(calls) if kind == 22 else kind


def groups():
    """One daemon, two containers."""
    cases = [Case("hardening.serves", _serves, 60),
             Case("hardening.serves_metrics", _serves_metrics, 30),
             Case("hardening.has_no_privilege", _has_no_privilege, 30),
             Case("hardening.broker_introduces", _broker_introduces, 30),
             Case("hardening.helper_comes_back", _helper_comes_back, 60)]
    return [Group("hardening", cases, _fixture, weight=WAITS)]
