"""Stores of keys and values: redis, memcached."""

import re

from .. import process
from ..case import check
from . import Scenario

_REDIS = {"redis-server": "redis-server", "redis-benchmark": "redis-tools"}
_MEMCACHED = {"memcached": "memcached"}
_TOOLS = {"memccapable": "libmemcached-tools", "memcaslap": "libmemcached-tools"}
_PORT, _SECOND = 7010, 7015


def _server(place, port, *words, side=0):
    folder = place.folder / str(port)
    folder.mkdir(exist_ok=True)
    return place.serve(port, "redis-server", "--port", port, "--dir", folder,
                       "--enable-debug-command", "yes", "--repl-diskless-sync-delay", 0, *words,
                       side=side)


def served(place):
    """A redis that keeps nothing."""
    return _server(place, _PORT, "--save", "")


def cli(place, port, *words, side=1):
    """What a command gives."""
    return place.ask("redis-cli", "-p", port, *words, side=side).strip()


def _field(place, port, section, name, side=1):
    found = re.search(rf"^{name}:(.*)$", cli(place, port, "info", section, side=side), re.MULTILINE)
    return found[1].strip() if found else None


def _load(place, *words):
    text = place.ask("redis-benchmark", "-p", _PORT, "-q", *words)
    # How fast is not compared.
    return sorted(set(re.findall(r"^([A-Z]+[^:\r\n]*): \d", text.replace("\r", "\n"),
                                 re.MULTILINE)))


def _benchmark(*server_words):
    def run(place):
        """Pipelines, many connections, large values; the same data in the end."""
        with _server(place, _PORT, "--save", "", *server_words) as server:
            seen = [_load(place, "-n", 3000, "-c", 10, "-P", 16, "-t", "set,get,lpush,lrange_100"),
                    _load(place, "-n", 1000, "-c", 50, "-t", "ping_inline,set,incr"),
                    _load(place, "-n", 100, "-c", 4, "-d", 200_000, "-t", "set,get"),
                    _load(place, "-n", 2000, "-c", 8, "--threads", 2, "-t", "set,get"),
                    cli(place, _PORT, "debug", "digest"), cli(place, _PORT, "llen", "mylist")]
            place.ask("redis-cli", "-p", _PORT, "shutdown", "nosave")
            return [*seen, server.wait(10)]
    return run


def _saved(place):
    """A child that writes while clients go on; what it has written is what a new server has."""
    with _server(place, _PORT, "--save", "", "--appendonly", "no") as server:
        seen = [_load(place, "-n", 2000, "-c", 4, "-d", 500, "-t", "lpush,set")]
        seen.append(cli(place, _PORT, "bgsave"))
        seen.append(_load(place, "-n", 2000, "-c", 10, "-P", 4, "-t", "get,ping_mbulk"))
        process.until(lambda: _field(place, _PORT, "persistence", "rdb_bgsave_in_progress") == "0",
                      20, "the child has ended")
        seen += [_field(place, _PORT, "persistence", "rdb_last_bgsave_status"),
                 cli(place, _PORT, "debug", "digest")]
        place.ask("redis-cli", "-p", _PORT, "shutdown", "nosave")
        seen.append(server.wait(10))
    with _server(place, _PORT):
        seen.append(cli(place, _PORT, "debug", "digest"))
    check(seen[-1] == seen[-3], "it has not written what it had")
    return seen


def _replicated(place):
    """A second server follows the first: what is there, what comes, and after a break."""
    with _server(place, _PORT, "--save", ""):
        seen = [_load(place, "-n", 2000, "-c", 4, "-d", 300, "-t", "lpush,set")]
        with _server(place, _SECOND, "--save", "", "--replicaof", "127.0.0.1", _PORT, side=1):
            _follows(place)
            seen += [_load(place, "-n", 1000, "-c", 4, "-P", 8, "-t", "lpush,incr,sadd")]
            seen += [_same_digest(place)]
            # The connection of the two is cut, and comes again.
            cli(place, _PORT, "client", "kill", "type", "replica")
            seen += [cli(place, _PORT, "set", "behind", "the break")]
            seen += [_same_digest(place), cli(place, _SECOND, "get", "behind"),
                     cli(place, _PORT, "wait", 1, 10000)]
            _follows(place)
    return seen


def _follows(place):
    process.until(lambda: _field(place, _SECOND, "replication", "master_link_status") == "up", 20,
                  "the second follows")


def _same_digest(place):
    def digests():
        return {cli(place, port, "debug", "digest") for port in (_PORT, _SECOND)}
    process.until(lambda: len(digests()) == 1, 10, "both with the same")
    return digests()


def _subscribed(place):
    """What is published comes to who has subscribed, who only listens."""
    with _server(place, _PORT, "--save", ""):
        with place.running("redis-cli", "-p", _PORT, "subscribe", "news") as (_, said):
            process.until(lambda: "subscribe" in said.read_text(), 10, "a subscriber")
            seen = [cli(place, _PORT, "publish", "news", f"number {at}") for at in range(5)]
            process.until(lambda: "number 4" in said.read_text(), 10, "news")
            return [seen, said.read_text()]


def _blocked(place):
    """A client that waits for what another one brings; a script and a transaction."""
    with _server(place, _PORT, "--save", ""):
        with place.running("redis-cli", "-p", _PORT, "blpop", "queue", "20") as (waits, said):
            process.until(lambda: _field(place, _PORT, "clients", "blocked_clients") == "1", 10,
                          "a client that waits")
            seen = [cli(place, _PORT, "rpush", "queue", "it")]
            seen += [waits.wait(10), said.read_text()]
        script = ("multi\nset a 1\nincr a\nexec\neval 'return redis.call(\"get\", \"a\")' 0\n"
                  "debug sleep 0.1\nget a\n")
        return [*seen, place.shell(f"printf '%s' '{_quoted(script)}' | redis-cli -p {_PORT}")]


def _quoted(text):
    return text.replace("'", "'\\''")


def _memcached(place, *words):
    return place.serve(7011, "memcached", "-u", "root", "-l", "127.0.0.1", "-p", 7011, "-t", 2,
                       *words)


def _capable(place):
    """The tests of its protocols, text and binary."""
    with _memcached(place):
        text = place.ask("memccapable", "-h", "127.0.0.1", "-p", 7011, limit=60)
        check("All tests passed" in text, text)
        return text


def _slap(place):
    """Threads, many connections, values checked."""
    with _memcached(place):
        text = place.ask("memcaslap", "-s", "127.0.0.1:7011", "-T", 1, "-c", 8, "-x", 5000, "-v",
                         "0.2", limit=60)
        return re.findall(r"^(cmd_\w+|get_misses|verify_\w+|packet_\w+): (\d+)", text, re.MULTILINE)


_LINES = """
import socket, sys
near = socket.create_connection(("127.0.0.1", 7011)).makefile("rwb")
def say(line, until):
    near.write(line)
    near.flush()
    got = b""
    while not got.endswith(until):
        got += near.readline()
    return got
print(say(b"set a 0 0 5\\r\\nhello\\r\\n", b"STORED\\r\\n"))
print(say(b"get a\\r\\n", b"END\\r\\n"))
big = bytes(range(256)) * 3000
print(say(b"set big 0 0 %d\\r\\n" % len(big) + big + b"\\r\\n", b"STORED\\r\\n"))
print(big in say(b"get big a nothing\\r\\n", b"END\\r\\n"))
many = b"".join(b"set k%d 0 0 3 noreply\\r\\nabc\\r\\n" % at for at in range(500))
print(say(many + b"get k499\\r\\n", b"END\\r\\n"))
names = b"".join(b" k%d" % at for at in range(500))
print(say(b"get" + names + b"\\r\\n", b"END\\r\\n").count(b"abc"))
print(say(b"nonsense\\r\\n", b"ERROR\\r\\n"))
"""


def _said(place):
    """Commands by hand: many in one write, a value larger than buffers."""
    with _memcached(place):
        return place.python(_LINES)


SCENARIOS = [
    Scenario("redis", _benchmark(), _REDIS, carried=True),
    Scenario("redis.threads", _benchmark("--io-threads", 2, "--io-threads-do-reads", "yes"),
             _REDIS),
    Scenario("redis.saved", _saved, _REDIS),
    Scenario("redis.replicated", _replicated, _REDIS),
    Scenario("redis.subscribed", _subscribed, _REDIS),
    Scenario("redis.blocked", _blocked, _REDIS, daily=True),
    Scenario("memcached", _said, _MEMCACHED),
    Scenario("memcached.capable", _capable, _MEMCACHED | _TOOLS),
    Scenario("memcached.slap", _slap, _MEMCACHED | _TOOLS, carried=True),
]
