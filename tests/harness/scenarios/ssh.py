"""OpenSSH: sessions, copies, forwards, one connection for many."""

import contextlib
import os
import random

from .. import process
from ..case import check
from . import PYTHON, Scenario

_PORT = 7061
_NEEDS = {"sshd": "openssh-server", "ssh": "openssh-client", "curl": "curl"}
# A folder of its own, as root's, for the process that has no privileges; in a place of its own,
# since the host's /run is not ours.
_SERVER = """mount -t tmpfs none /run && mkdir /run/sshd && exec "$0" "$@" """


@contextlib.contextmanager
def _sshd(place):
    """A server, and the client's keys and options."""
    for name in ("host", "user"):
        process.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", place.folder / name])
    os.chmod(place.folder, 0o755)
    (place.folder / "sshd.conf").write_text(
        f"Port {_PORT}\nListenAddress 127.0.0.1\nHostKey {place.folder}/host\nUsePAM no\n"
        f"AuthorizedKeysFile {place.folder}/user.pub\nStrictModes no\nPidFile none\n"
        "PermitRootLogin yes\nAllowTcpForwarding yes\nSubsystem sftp internal-sftp\n"
        "PrintMotd no\nPrintLastLog no\nMaxSessions 20\nMaxStartups 50\n")
    (place.folder / "ssh.conf").write_text(
        f"Host there\n    HostName 127.0.0.1\n    Port {_PORT}\n    User root\n"
        f"    IdentityFile {place.folder}/user\n    IdentitiesOnly yes\n    BatchMode yes\n"
        "    StrictHostKeyChecking no\n    UserKnownHostsFile /dev/null\n    LogLevel ERROR\n"
        "    ConnectTimeout 10\n")
    with place.serve(_PORT, "unshare", "--mount", "sh", "-c", _SERVER, "/usr/sbin/sshd", "-D",
                     "-e", "-f", place.folder / "sshd.conf"):
        yield


_SSH = "ssh -F ssh.conf"


def _sessions(place):
    """Commands, their input, their ends; many bytes both ways; a terminal."""
    with _sshd(place):
        big = random.Random(7).randbytes(3_000_000)
        (place.folder / "big").write_bytes(big)
        return [
            place.shell(f"{_SSH} there 'echo it; echo that >&2; exit 3'", accept=(3,)),
            place.shell(f"{_SSH} there 'head -c 5000000 /dev/zero' | sha256sum"),
            place.shell(f"{_SSH} there sha256sum < big"),
            place.shell(f"{_SSH} there cat < big | cmp - big"),
            place.shell(f"{_SSH} -tt there 'tty | cut -c -8; stty size' </dev/null"),
            place.shell(f"{_SSH} there 'kill -9 $$'", accept=range(256)),
            place.shell(f"echo hello | {_SSH} -n there cat"),
        ]


def _copied(place):
    """Files by scp and sftp, in both directions."""
    with _sshd(place):
        files = place.folder / "files"
        files.mkdir()
        for at in range(20):
            (files / f"f{at}").write_bytes(random.Random(at).randbytes(at * 30_000))
        seen = []
        for options in ("", "-O"):  # by sftp, and as it was before
            seen.append(place.shell(
                f"rm -rf there back; to=there:{place.folder}/there;"
                f" scp -F ssh.conf {options} -q -r files $to"
                f" && scp -F ssh.conf {options} -q -r $to back"
                " && diff -r files back && echo same"))
        seen.append(place.shell(f"printf 'cd {place.folder}\\nget files/f9 f9\\nls -1 files\\n"
                                "rename f9 f10\\nrm f10\\n' | sftp -F ssh.conf -q -b - there"))
        return seen


_ECHO = """
import socket, threading
listener = socket.create_server(("127.0.0.1", 7062))
def serve(near):
    while part := near.recv(100_000):
        near.sendall(part.upper())
    near.close()
while True:
    threading.Thread(target=serve, args=[listener.accept()[0]]).start()
"""

_TALK = """
import hashlib, socket, sys, threading
def talk(number):
    near = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    text = b"abcdefghij" * (1000 + 20_000 * number)
    def send():
        near.sendall(text)
        near.shutdown(socket.SHUT_WR)
    sender = threading.Thread(target=send)
    sender.start()
    got = b""
    while part := near.recv(65536):
        got += part
    sender.join()
    said[number] = got == text.upper()
said = {}
threads = [threading.Thread(target=talk, args=[at]) for at in range(4)]
[one.start() for one in threads]
[one.join() for one in threads]
print(sorted(said.items()))
"""


def _forwarded(place):
    """Ports from here to there, from there to here, and where the client of SOCKS likes."""
    with _sshd(place), place.serve(7062, PYTHON, "-Bc", _ECHO):
        words = ["ssh", "-F", "ssh.conf", "-N", "-L", "7063:127.0.0.1:7062", "-R",
                 "7064:127.0.0.1:7062", "-D", "7065", "there"]
        with place.running(*words) as (client, _):
            for port in (7063, 7064, 7065):
                place.listening(port, client)
            seen = [place.python(_TALK, port) for port in (7063, 7064)]
            with place.serve(7066, PYTHON, "-Bm", "http.server", "-b", "127.0.0.1", "-d",
                             "/usr/lib/python3", 7066):
                seen.append(place.shell("curl -sS --max-time 9 --socks5-hostname 127.0.0.1:7065 "
                                        "-o /dev/null -w '%{http_code}' http://127.0.0.1:7066/"))
        place.silent(7063)
        seen.append(place.shell(f"printf abc | {_SSH} -W 127.0.0.1:7062 there"))
        return seen


def _shared(place):
    """One connection for many: the master is given descriptors of those who come later."""
    with _sshd(place):
        shared = f"{_SSH} -o ControlPath={place.folder}/master"
        with place.running(*f"{shared} -M -N there".split()) as (master, _):
            process.until((place.folder / "master").exists, 10, "a master")
            seen = [place.shell("for at in 1 2 3 4; do "
                                f"{shared} there \"head -c 300000 /dev/zero | wc -c; echo $at\" & "
                                "done | sort; wait"),
                    place.shell(f"echo in | {shared} there cat"),
                    place.shell(f"{shared} -O exit there")]
            check(master.wait(10) is not None, "it stays")
            return seen


SCENARIOS = [
    Scenario("ssh", _sessions, _NEEDS),
    Scenario("ssh.copied", _copied, _NEEDS),
    Scenario("ssh.forwarded", _forwarded, _NEEDS),
    Scenario("ssh.shared", _shared, _NEEDS),
]
