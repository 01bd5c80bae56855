"""Tests the command line, also without a daemon."""

import json
import re
import shutil

from harness import client_server, process
from harness.case import WAITS, Case, Group, check
from harness.containers import Pair
from harness.daemon import Daemon, as_user, environment, forgotten
from harness.unprivileged_daemon import UID, PlainPair


def _exit_status_passes(pair):
    pair.server.run("sh", "-c", "exit 7", accept=(7,))
    pair.server.run("true")


def _view(pair):
    text = pair.server.run("ibv_devinfo", "-v")
    for wanted in ("hca_id:\tomv0", "PORT_ACTIVE", "Ethernet", "RoCE v2", "::ffff:10.77.0.1"):
        check(wanted in text, f"{wanted} is missing in\n{text}")
    plain = pair.server.run("ibv_devices", plain=True, accept=range(256))
    check("omv0" not in plain, "the stock library sees our device")


def _status(pair):
    with client_server.going_on(pair, "ib_write_bw", "-s", "65536"):
        process.until(lambda: "ib_write_bw" in json.dumps(pair.daemon.status()), 20, "a program")
        text = process.run([pair.stage.dist / "bin" / "omniverb", "status"],
                           env=environment(OMNIVERB_SOCKET=pair.daemon.socket))
        check("ib_write_bw" in text, text)


def _doctor(pair):
    text = pair.server.run("omniverb", "doctor", plain=True, accept=(0, 1))
    check(text.strip(), "omniverb doctor says nothing")


def _no_daemon(pair):
    """A clear message and an empty list."""
    options = environment(OMNIVERB_SOCKET="/tmp/no-such-socket",
                          LD_LIBRARY_PATH=pair.stage.dist / "lib")
    text = process.run([*pair.namespace.enter(), *as_user(pair.uid), "ibv_devices"], env=options,
                       accept=range(256))
    check("omv0" not in text and "/tmp/no-such-socket" in text, text)
    text = process.run([*pair.namespace.enter(), *as_user(pair.uid), "ibv_devinfo"], env=options,
                       accept=range(1, 256))
    check("No IB devices found" in text, text)


def _starts_a_daemon(pair):
    """`omniverb run` of a user without a daemon starts one, which serves the next `run` too."""
    home = pair.stage.folder("home", UID, 0o700)
    options = environment(HOME=home, XDG_RUNTIME_DIR=home)
    # Whatever daemon this machine has already is out of sight.
    line = [*pair.namespace.enter(), "unshare", "--mount", "sh", "-ec",
            'mount -t tmpfs none /run; exec "$@"', "sh", *as_user(UID),
            pair.stage.dist / "bin" / "omniverb", "run", "--", "ibv_devinfo"]
    for _ in range(2):
        check("omv0" in process.run(line, env=options), "no device")
    started = [pid for pid in process.descendants() if _comm(pid) == "omniverbd"
               and pid != pair.daemon.pid]
    check(len(started) == 1, f"{len(started)} daemons")
    process.kill(started[0])


_SERVES = """
import socket
listener = socket.create_server(("127.0.0.1", 7070))
print("listens", flush=True)
far = listener.accept()[0]
while far.recv(1):
    far.send(b"x")
"""
_ASKS = """
import socket, time
near = socket.create_connection(("127.0.0.1", 7070))
for at in range(400):
    near.send(b"x")
    near.recv(1)
    time.sleep(at % 10 / 1000)
"""


def _carries(pair):
    """Without a daemon, too, sockets are carried by `omniverb run --sockets` and nothing else."""
    home = pair.stage.folder("home", UID, 0o700)
    report = home / "report"
    options = environment(HOME=home, XDG_RUNTIME_DIR=home, OMNIVERB_SOCKETS_REPORT=report)
    line = [*pair.namespace.enter(), "unshare", "--mount", "sh", "-ec",
            'mount -t tmpfs none /run; exec "$@"', "sh", *as_user(UID),
            pair.stage.dist / "bin" / "omniverb", "run", "--sockets", "--", "python3", "-Bc"]

    def carried():
        """Bytes of each end, by memory. Who sleeps is sent to by the kernel."""
        report.unlink(missing_ok=True)
        with open(home / "said", "w+", encoding="utf-8") as said:
            serving = process.start([*line, _SERVES], env=options, stdout=said, stderr=said)
            try:
                process.until(lambda: "listens" in process.written(said), 20, lambda: "a server")
                process.run([*line, _ASKS], env=options)
                check(serving.wait(20) == 0, process.written(said))
            finally:
                process.end(serving)
        return re.findall(r"^links 1 bytes (\d+)$", report.read_text(), re.MULTILINE)

    try:
        # On a busy machine it may be over before there is a link.
        process.until(lambda: len(ends := carried()) == 2 and max(map(int, ends)) > 0, 40,
                      report.read_text)
    finally:
        for pid in process.descendants():
            if _comm(pid) == "omniverbd" and pid != pair.daemon.pid:
                process.kill(pid)


def _comm(pid):
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""


_MUSL = "/lib/ld-musl-x86_64.so.1"


def _other_images(pair):
    """Where there is no C library, or another one, a sentence says what is needed."""
    root = pair.stage.folder("empty")
    for name in ("omniverb", "omniverbd"):
        shutil.copy(pair.stage.dist / "bin" / name, root / name)
    source = root / "main.c"
    source.write_text("int main(void) { return 0; }\n")
    process.run(["gcc", "-o", root / "program", f"-Wl,--dynamic-linker={_MUSL}", source])
    (root / "script").write_text("#! /program -x\n")
    (root / "script").chmod(0o755)
    for name in ("omniverb", "omniverbd"):
        text = process.run(["chroot", root, f"/{name}", "--version"], env=environment())
        check(text.startswith(f"{name} "), text)
    for words in (["/program"], ["/script", "word"]):
        text = process.run(["chroot", root, "/omniverb", "run", "--", *words], env=environment(),
                           accept=range(1, 256))
        for wanted in (f"{words[0]} is built for musl", _MUSL, "glibc 2.28", "Debian", "Alpine"):
            check(wanted in text, f"{words}: {wanted} is missing in\n{text}")
        check(len(text.splitlines()) == 1, text)


def _status_without_operators(pair):
    """As a client `status` says where it asked, and what it is not shown."""
    forgotten([pair.daemon], 20)  # programs of before
    line = [pair.stage.dist / "bin" / "omniverb", "status"]
    options = environment(OMNIVERB_SOCKET=pair.daemon.socket,
                          OMNIVERB_OPERATOR_SOCKET=pair.stage.path / "elsewhere")
    text = process.run(line, env=options)
    for wanted in (str(pair.daemon.socket), "as a client", str(pair.stage.path / "elsewhere"),
                   "OMNIVERB_OPERATOR_SOCKET", "no process of this network namespace"):
        check(wanted in text, f"{wanted} is missing in\n{text}")
    del options["OMNIVERB_OPERATOR_SOCKET"]
    text = process.run(line, env=options)
    check("as a client" not in text and "no process uses a device" in text, text)


def _daemon_errors(pair):
    """One clear line for each mistake."""
    daemon = pair.stage.dist / "bin" / "omniverbd"
    prefix = [*pair.namespace.enter(), *as_user(UID)]
    for words, wanted in ((["--nonsense"], "--nonsense"),
                          (["--socket"], "--socket"),
                          (["--socket", "/proc/nowhere/x.sock"], "/proc/nowhere"),
                          (["--socket", "/" + "x" * 200], "long"),
                          (["--socket", pair.daemon.socket], str(pair.daemon.socket)),
                          (["--socket", "/usr/omniverbd.sock"], "/usr/omniverbd.sock")):
        text = process.run([*prefix, daemon, *words], env=environment(), accept=range(1, 256))
        check(wanted in text, f"{words}: {text}")
        check("panicked" not in text and len(text.splitlines()) <= 8, f"{words}: {text}")


# What was typed, and words of the answer: what failed, and what to do.
_MISTAKES = [
    ("vnic set host --burst 1k", ["the daemon refuses", "1500 to 1g"]),
    ("vnic set nosuch --rate 300mbit", ['"nosuch"', "omniverb vnic list"]),
    ("run -- nosuch", ["nosuch: no such program in PATH"]),
]


def _mistakes(pair):
    """Each says what failed and what to do, in a line."""
    omniverb = pair.stage.dist / "bin" / "omniverb"
    line = [*pair.namespace.enter(), *as_user(UID), omniverb]
    cases = [(words.split(), pair.daemon.socket, wanted) for words, wanted in _MISTAKES]
    cases.append((["status"], "/nowhere", ["/nowhere", "OMNIVERB_SOCKET names", "unset it"]))
    for words, socket, wanted in cases:
        text = process.run([*line, *words], env=environment(OMNIVERB_SOCKET=socket),
                           accept=range(1, 256))
        for part in wanted:
            check(part in text, f"{words}: {part} is missing in\n{text}")
        check(len(text.splitlines()) == 1, text)
    home = pair.stage.folder("home", UID, 0o700)
    text = process.run(
        [*pair.namespace.enter(), "unshare", "--mount", "sh", "-ec",
         'mount -t tmpfs none /run; exec "$@"', "sh", *as_user(UID), omniverb, "status"],
        env=environment(HOME=home, XDG_RUNTIME_DIR=home), accept=(1,))
    check("no daemon answers at" in text and "omniverb run -- PROGRAM" in text, text)


def _port_of_another_daemon(pair):
    """Where another daemon has the port the doctor names it, and how to use it."""
    other = Daemon(pair.stage, UID, pair.namespace.enter())
    try:
        with client_server.going_on(pair, "ib_write_bw", "-s", "65536"):
            def has_port():
                return any(vnic["port"] == "open" for vnic in pair.daemon.status()["vnics"])
            process.until(has_port, 20, "the first daemon to have the port")
            text = process.run(
                [*pair.namespace.enter(), *as_user(UID), pair.stage.dist / "bin" / "omniverb",
                 "doctor"], env=environment(OMNIVERB_SOCKET=other.socket), accept=(1,))
        bad = [line for line in text.splitlines() if line.startswith("BAD") and "4791" in line]
        check(len(bad) == 1, text)
        for wanted in (f"omniverbd {pair.daemon.pid}", str(pair.daemon.socket),
                       f"kill {pair.daemon.pid}", str(other.socket)):
            check(wanted in bad[0], f"{wanted} is missing in\n{bad[0]}")
    finally:
        other.close()


def groups():
    """The first in containers, the second as an ordinary user."""
    return [
        Group("command.containers", [
            Case("command.exit_status_passes", _exit_status_passes),
            Case("command.view", _view),
            Case("command.status", _status),
            Case("command.status_without_operators", _status_without_operators),
            Case("command.doctor", _doctor),
            Case("command.other_images", _other_images),
        ], Pair, weight=WAITS),
        Group("command.user", [
            Case("command.no_daemon", _no_daemon),
            Case("command.starts_a_daemon", _starts_a_daemon),
            Case("command.carries", _carries),
            Case("command.daemon_errors", _daemon_errors),
            Case("command.mistakes", _mistakes),
            Case("command.port_of_another_daemon", _port_of_another_daemon),
        ], PlainPair, weight=WAITS),
    ]
