"""PostgreSQL over TCP: a process for each connection, which its parent has accepted."""

import contextlib
import os
import pathlib
import re
import signal

from .. import process
from ..case import check
from . import Scenario, read_pid

_PORT, _UID = 7051, 65534
_FOLDERS = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"))
_BIN = _FOLDERS[-1] if _FOLDERS else pathlib.Path("/usr/lib/postgresql/15/bin")
NEEDS = {str(_BIN / name): "postgresql" for name in ("postgres", "initdb", "pgbench", "psql")}
_AS_NOBODY = ["setpriv", f"--reuid={_UID}", f"--regid={_UID}", "--clear-groups"]


@contextlib.contextmanager
def served(place):
    """A server with pgbench's tables. They are made once, and copied."""
    first = place.kept / "data"
    if not first.exists():
        _make(place, first)
    data = place.folder / "data"
    process.run(["cp", "-a", first, data])
    with _started(place, data) as running:
        yield running


@contextlib.contextmanager
def _started(place, data):
    words = ["-p", _PORT, "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=",
             "-c", "fsync=off", "-c", "shared_buffers=16MB", "-c", "max_connections=40"]
    running, said = place.start(*_AS_NOBODY, _BIN / "postgres", "-D", data, *words, side=0)
    try:
        place.listening(_PORT, running)
        process.until(lambda: "ready to accept" in said.read_text(), 20, "a database")
        yield running
    finally:
        if running.poll() is None:
            running.send_signal(signal.SIGINT)  # fast: it does not wait for clients
        with contextlib.suppress(Exception):
            running.wait(15)
        process.end(running)


def _make(place, first):
    first.mkdir(mode=0o700)
    os.chown(first, _UID, _UID)
    natively = place.has_library
    place.has_library = (False, False)
    place.ask(*_AS_NOBODY, _BIN / "initdb", "-A", "trust", "-U", "postgres", "--no-sync", "-D",
              first, limit=60)
    with _started(place, first):
        pgbench(place, "-i", "-q", "-s", 1)
    place.has_library = natively


def pgbench(place, *words, limit=60.0):
    return place.ask(_BIN / "pgbench", "-h", "127.0.0.1", "-p", _PORT, "-U", "postgres", *words,
                     "postgres", limit=limit)


def _psql(place, *words, accept=(0,), limit=30.0):
    return place.ask(_BIN / "psql", "-X", "-A", "-t", "-h", "127.0.0.1", "-p", _PORT, "-U",
                     "postgres", *words, "postgres", accept=accept, limit=limit)


def _said(text):
    return re.findall(r"^(number of (?:transactions actually|failed)[^:]*): ([^ ]+)", text,
                      re.MULTILINE)


def _benched(place):
    """Transactions that are the same each time; prepared, by threads, with a connection each."""
    with served(place):
        seen = [_said(pgbench(place, *words)) for words in (
            ("--random-seed=7", "-t", 50, "-c", 4, "-j", 2),
            ("-n", "--random-seed=8", "-t", 200, "-c", 4, "-j", 2, "-S", "-M", "prepared"),
            ("-n", "--random-seed=9", "-t", 20, "-c", 2, "-S", "-C"))]
        sums = _psql(place, "-c", "select (select sum(abalance) from pgbench_accounts), (select "
                     "sum(bbalance) from pgbench_branches), (select sum(tbalance) from "
                     "pgbench_tellers), (select sum(delta) from pgbench_history)")
        check(len(set(sums.strip().split("|"))) == 1, f"money is lost: {sums}")
        return [*seen, sums]


def _copied(place):
    """Large results and large copies, both directions, and a notice."""
    with served(place):
        source = place.folder / "numbers"
        source.write_text("".join(f"{at}\t{'x' * (at % 200)}\n" for at in range(30_000)))
        return [
            _psql(place, "-c", "create table t (a int, b text)"),
            _psql(place, "-c", f"\\copy t from {source}"),
            _psql(place, "-c", "select count(*), sum(a), md5(string_agg(b, '' order by a)) from t"),
            _psql(place, "-c", f"\\copy (select * from t order by a) to {place.folder}/back"),
            (place.folder / "back").read_bytes() == source.read_bytes(),
            _psql(place, "-c", "select repeat('y', 5000000)", limit=30).count("y"),
            _psql(place, "-c", "do $$ begin raise notice 'hear'; end $$"),
            _psql(place, "-c", "select 1/0", accept=(1,)),
        ]


def _ended(place):
    """A query that is cancelled (by a connection of its own), a client that is sent away, and a
    server process that is killed, so that all the others are started anew."""
    with served(place) as running:
        seen = [_psql(place, "-c", "set statement_timeout = 100", "-c", "select pg_sleep(20)",
                      accept=(1,))]
        with _sleeper(place) as (client, said, backend):
            client.send_signal(signal.SIGINT)
            seen += [client.wait(10), said.read_text()]
        with _sleeper(place) as (client, said, backend):
            seen.append(_psql(place, "-c", f"select pg_terminate_backend({backend})"))
            seen += [client.wait(10), said.read_text()]
        with _sleeper(place) as (client, said, backend):
            os.kill(backend, signal.SIGKILL)
            seen += [client.wait(10), said.read_text()]
        process.until(lambda: "1\n" == _psql(place, "-c", "select 1", accept=(0, 2)), 20,
                      "a database again")
        with _sleeper(place) as (client, said, backend):
            client.kill()
            client.wait(10)
            seen.append(_psql(place, "-c", "select 1"))
        check(read_pid(place.folder / "data" / "postmaster.pid") == running.pid, "it has gone")
        return seen


@contextlib.contextmanager
def _sleeper(place):
    """A client whose query lasts, what it says, and the process that serves it."""
    with place.running(_BIN / "psql", "-X", "-A", "-t", "-h", "127.0.0.1", "-p", _PORT, "-U",
                       "postgres", "-c", "select pg_sleep(25)", "postgres") as (client, said):
        query = "select pid from pg_stat_activity where query = 'select pg_sleep(25)' "
        query += "and state = 'active'"
        found = process.until(lambda: _psql(place, "-c", query).strip(), 10, "a query")
        yield client, said, int(found.split()[-1])


SCENARIOS = [
    Scenario("postgres", _benched, NEEDS, limit=90),
    Scenario("postgres.copied", _copied, NEEDS, limit=90),
    Scenario("postgres.ended", _ended, NEEDS, limit=90),
]
