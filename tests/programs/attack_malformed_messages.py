"""Attacks by malformed messages: every kind, with values of every size, cut off, too long."""

import os
import random
import select
import struct

import daemon_protocol
from attack_descriptors import others
from attack_helpers import attach, attack, datagrams, going_on
from daemon_protocol import Client

_NUMBERS = [0, 1, 2, 3, 7, 63, 64, 4095, 4096, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 47,
            (1 << 63) - 1, 1 << 63, (1 << 64) - 4096, (1 << 64) - 1]


def _word(rng, own, kind):
    size = struct.calcsize(kind)
    number = rng.choice([rng.choice(_NUMBERS), rng.choice(own), rng.getrandbits(64)])
    return (number & (1 << 8 * size) - 1).to_bytes(size, "little")


def _body(rng, name, own):
    """A body whose fields say what they like; those of one message are often in order but one."""
    wrong = rng.choice([0, 0.2, 1])
    found = b""
    for _, kind in daemon_protocol.fields(name):
        if kind in daemon_protocol.WORDS:
            word = daemon_protocol.WORDS[kind]
            found += _word(rng, own if rng.random() < wrong else own[:3], word)
        else:
            length = daemon_protocol.length(kind)
            found += rng.choice([bytes(length), rng.randbytes(length), b"\xff" * length,
                                 (daemon_protocol.gid("127.0.0.1") * length)[:length]])
    return found


def _message(rng, names, own):
    name = rng.choice(names)
    try:
        body = _body(rng, name, own)
    except KeyError:
        body = rng.randbytes(rng.choice([0, 8, 100]))
    version = rng.choice([daemon_protocol.VERSION] * 9 + [rng.getrandbits(16)])
    kind = daemon_protocol.KINDS[name] if rng.random() < 0.95 else rng.getrandbits(16)
    errno = rng.choice([0] * 9 + [rng.getrandbits(32)])
    data = struct.pack("HHIQ", version, kind, errno, rng.choice([0, 1, rng.getrandbits(64)])) + body
    end = rng.choice([len(data)] * 6 + [rng.randrange(len(data) + 1)])
    return data[:end] + rng.choice([b""] * 9 + [rng.randbytes(rng.choice([1, 4096, 60000]))])


def _take_all(client):
    """Answers and events, so that the session is one that reads."""
    for end in (client.calls, client.events):
        while select.select([end], [], [], 0)[0]:
            data, files = daemon_protocol.receive(end)
            for file in files:
                os.close(file)


def _session(rng, names, files):
    sent = 0
    client = Client(timeout=1)
    try:
        own = [datagrams(client, slot) for slot in range(3)]
        for _ in range(2000):
            end = client.events if rng.random() < 0.1 else client.calls
            with_files = [rng.choice(files)] * rng.choice([1, 2, 8, 200])
            attach(end, _message(rng, names, own), with_files if rng.random() < 0.1 else [])
            sent += 1
            _take_all(client)
    except (OSError, daemon_protocol.Refused):
        pass
    finally:
        client.close()
    return sent


@attack
def nonsense(seed="1"):
    """Sessions that say anything, one after the other, and connections that begin with it."""
    rng, sent, files = random.Random(int(seed)), 0, list(others())
    names = sorted(daemon_protocol.KINDS)
    while going_on():
        try:
            sent += _session(rng, names, files)
            with daemon_protocol.connect(1) as first:
                attach(first, _message(rng, names, [1]), [rng.choice(files)])
                sent += 1
        except (OSError, daemon_protocol.Refused):
            pass
    return sent
