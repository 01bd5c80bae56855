"""Tests the death of peers and of the daemon."""

import os
import random
import signal
import subprocess
import time

from harness import client_server, process
from harness.case import Case, Failure, Group, check
from harness.containers import Pair
from harness.unprivileged_daemon import PlainPair


_ENDLESS = str(client_server.ENDLESS)


def _state(pair):
    return pair.daemon.totals(), process.descriptors(pair.daemon.pid)


def _returns_to(pair, before, limit=10):
    def back():
        totals, descriptors = _state(pair)
        return totals == before[0] and descriptors <= before[1]
    process.until(back, limit, lambda: f"tables and descriptors as before: {before}, now "
                                       f"{_state(pair)}")


def _settled(pair):
    """The state of a daemon that has served someone and is idle again."""
    pair.server.run("/opt/programs/isolation_probe", "view")
    return process.settled(lambda: _state(pair))


def _random_deaths(times, seed):
    def run(pair):
        before = _settled(pair)
        print(pair.server.run("/opt/programs/killed_peers", "peer_dies", times, seed,
                              limit=60 + times))
        _returns_to(pair, before)
    return run


def _hostile_peers(times, seed, program="hostile_peer"):
    def run(pair):
        before = _settled(pair)
        print(pair.server.run(f"/opt/programs/{program}", "peer", times, seed,
                              limit=60 + 2 * times))
        _returns_to(pair, before)
    return run


def _one_side_of(program, side, *options):
    """kill -9 of one side of a perftest run; the other must end by itself, soon."""
    def run(pair):
        before = _settled(pair)
        rng = random.Random(7)
        for _ in range(2):
            running = client_server.Duet(pair, [program, "-F", "-D", _ENDLESS, *options])
            # Before that the other one would still wait for it.
            process.until(lambda: len(pair.daemon.queue_pairs()) >= 2, 30, "queue pairs of both")
            time.sleep(rng.random())
            victim, other = ((running.server, running.client) if side == "server"
                             else (running.client, running.server))
            _kill_program(victim, program)
            try:
                other.wait(30)
            except process.subprocess.TimeoutExpired:
                running.abort()
                raise Failure(f"{program} goes on 30 s after its peer was killed\n"
                              f"{running.text(0)}\n{running.text(1)}") from None
            finally:
                running.abort()
        _returns_to(pair, before)
    return run


def _kill_program(root, program):
    """kill -9 to the process called `program` at or below `root`, once it runs."""
    def found():
        return next((pid for pid in [root.pid, *process.descendants(root.pid),
                                     *process.descendants()]
                     if _name(pid) == program[:15] and _belongs(pid, root)), None)
    os.kill(process.until(found, 20, f"{program}"), signal.SIGKILL)


def _name(pid):
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8") as file:
            return file.read().strip()
    except OSError:
        return ""


def _belongs(pid, root):
    return pid == root.pid or pid in process.descendants(root.pid)


def _linked(pair):
    """Waits until two programs are connected, and something has gone from one to the other."""
    moves = ("messages_sent", "messages_received", "bytes_sent", "bytes_received",
             "operations_mapped", "operations_mediated")

    def has_moved():
        return any(qp.get(name) for qp in pair.daemon.queue_pairs() for name in moves)
    process.until(has_moved, 60, lambda: f"traffic: {pair.daemon.status()}")


def _whole_container(pair):
    before = _settled(pair)
    extra = pair.add(9)
    three = type("Three", (), {"server": pair.server, "client": extra})
    running = client_server.Duet(three, ["ib_send_bw", "-F", "-D", _ENDLESS])
    _linked(pair)
    extra.close()
    pair.parts.remove(extra)
    try:
        running.server.wait(30)
    except process.subprocess.TimeoutExpired:
        raise Failure("the server goes on after its peer's container was deleted") from None
    finally:
        running.abort()
    process.until(lambda: _state(pair)[1] <= before[1] + 1, 10,
                  lambda: f"descriptors as before: {before[1]}, now {_state(pair)[1]}")


def _daemon_dies(program, *options):
    """The daemon is killed while traffic runs, and a new one started before the traffic ends."""
    def another(pair):
        _linked(pair)
        pair.daemon.kill()
        time.sleep(1)
        pair.daemon.start()
        client_server.run(pair, "ib_write_lat", "-F", "-n", "1000")  # served at once

    def run(pair):
        outcome = client_server.while_it_runs(pair, lambda _: another(pair), program, *options)
        table = client_server.rows(outcome.client, 4)  # with -D, latency tests print averages only
        check(len(table) == 1 and all(row[2] > 0 or row[3] > 0 for row in table.values()),
              outcome.client)
    return run


def _daemon_dies_below_a_domain(pair):
    """The same while processes hand over to each other what comes over a connection of XRC."""
    running = pair.server.start("/opt/programs/xrc_across_processes", "goes_on", 5,
                                stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True)
    try:
        # The connection, and on from it to two others.
        process.until(lambda: pair.daemon.totals().get("links", 0) >= 3, 20, "links")
        pair.daemon.kill()
        time.sleep(1)
        if running.poll() is not None:
            raise Failure(f"ended with the daemon: {running.communicate(timeout=10)[0]}")
        pair.daemon.start()
        text, _ = running.communicate(timeout=30)
        check(running.returncode == 0, text)
    finally:
        running.kill()
        running.wait()


def _daemon_dies_and_stays_dead(pair):
    def kill(_):
        if pair.daemon.process.poll() is not None:  # it was too late the last time
            pair.daemon.start()
        _linked(pair)
        pair.daemon.kill()
    client_server.while_it_runs(pair, kill, "ib_send_bw")
    pair.daemon.start()
    client_server.run(pair, "ibv_rc_pingpong", "-g", client_server.gid_index(pair.server), "-c")


def groups():
    """In containers, and the random deaths also as an ordinary user."""
    cases = [Case("deaths.random_200", _random_deaths(200, 1), 300),
             Case("deaths.random_2000", _random_deaths(2000, 2), 2500, slow=True),
             Case("deaths.container_deleted", _whole_container, 90),
             Case("hostile.peers_50", _hostile_peers(50, 1), 200),
             Case("hostile.address_sanitizer", _hostile_peers(10, 3, "hostile_peer-asan"), 200),
             Case("hostile.peers_500", _hostile_peers(500, 2), 1200, slow=True)]
    # Not ib_write_lat: it waits for its memory to change and looks at nothing else.
    for program in ("ib_send_bw", "ib_write_bw", "ib_read_bw", "ib_send_lat", "ib_atomic_bw"):
        cases += [Case(f"deaths.{program}_{side}", _one_side_of(program, side), 120)
                  for side in ("server", "client")]
    cases += [Case(f"deaths.daemon_{program}", _daemon_dies(program), 200)
              for program in ("ib_write_bw", "ib_send_bw", "ib_read_lat")]
    cases.append(Case("deaths.daemon_xrc_shared", _daemon_dies_below_a_domain, 60))
    cases.append(Case("deaths.daemon_stays_dead", _daemon_dies_and_stays_dead, 200))
    return [Group("deaths", cases, Pair),
            Group("deaths.user", [Case("deaths.user.random_50", _random_deaths(50, 3), 120)],
                  PlainPair)]
