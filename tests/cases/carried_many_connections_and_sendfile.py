"""Tests carried sockets of servers: one connection of many, and `sendfile`."""

from cases import carried_sockets, preloaded_sockets
from harness import staging
from harness.case import WAITS, Case, Failure, Group, check

_SOURCES = staging.PROGRAMS / "sockets"
_TURNS = 6
# Bytes of which it is demanded that they were carried, of twelve million; how many more depends on
# what else the machine does.
_CARRIED = 500_000


def _gone(ways):
    """Who has gone is gone with the next call, also where each connection has its turn seldom."""
    program = ["/usr/bin/python3", "-B", _SOURCES / "ended_peer.py"]
    natively = ways.run(False, *program)
    for _ in range(_TURNS):
        ways.reports()
        text = ways.run(True, *program)
        check(text == natively, f"{text}natively: {natively}")
        links = max(count for count, _ in ways.reports())
        if links == 6:
            return
    raise Failure(f"{links} links")


def _files(how):
    def run(ways):
        """A stream of which most comes from a file is what it is natively, and is carried."""
        program = ["/usr/bin/python3", "-B", _SOURCES / "sendfile_parts.py"]
        natively = None
        for way in (False, True, True, True, True, True):
            with preloaded_sockets.server_of(ways, way, 7655, *program, "serve", 7655):
                ways.reports()
                text = ways.run(way, *program, how, 7655, limit=60)
            natively = natively or text
            check(text == natively, f"{text}natively: {natively}")
            carried = max((count for _, count in ways.reports()), default=0)
            print(f"{carried} bytes were carried")
            if carried > (_CARRIED if how != "strange" else 0):
                return
        raise Failure(f"{carried} bytes were carried")
    return run


def left(waits):
    """Several times: whether anything was carried depends on what else the machine does."""
    def run(ways):
        python = ["/usr/bin/python3", "-B", _SOURCES / "sent_before_wait.py"]
        for turn, way in enumerate((False, True, True, True)):
            port = 7680 + 2 * turn
            with preloaded_sockets.server_of(ways, way, port, *python, "serves", port,
                                             waits) as serving:
                text = ways.run(way, *python, "asks", port, waits, limit=40)
                check(text == "ok\n" and serving.wait(10) == 0, text)
    return run


def _whole(connections):
    def run(ways):
        """What is wanted whole is whole, also where its beginning is the kernel's and late."""
        program = ways.program("waitall_messages")
        ways.run(False, program, 3, 20, 1 << 18, limit=60)
        ways.reports()
        for size in (1 << 18, 150_000):
            ways.run(True, program, connections, 100, size, limit=300)
        carried = max(count for _, count in ways.reports())
        check(carried > _CARRIED, f"{carried} bytes were carried")
    return run


def crossed(times, rounds):
    """So often, in so many rounds. In light mode only later connections are light."""
    def run(ways):
        """No call that began by one connection ends by another one, and none is out of order,
        whoever closes a number that others send and receive by."""
        program = ways.program("reused_descriptors")
        ways.run(False, program, rounds, limit=60)
        for _ in range(_TURNS):
            ways.reports()
            for _ in range(times):
                ways.run(True, program, rounds, limit=60)
            links = sum(count for count, _ in ways.reports())
            if links > 0:
                return
        raise Failure(f"{links} were carried")
    return run


def _turns(connections, threads, rounds=60, seeds=1):
    def run(ways):
        """Who is one of very many, and does something seldom, is told of it."""
        for seed in range(1, seeds + 1):
            _turns_once(ways, False, connections, threads, rounds, seed)
            # Where several wait in a set one of them sleeps, and bytes are the kernel's.
            ends = 2 if threads == 1 else 1
            for _ in range(_TURNS):
                carried = _turns_once(ways, True, connections, threads, rounds, seed)
                print(f"seed {seed}: {carried} bytes were carried")
                if sum(count > 10_000 for count in carried) >= ends:
                    break
            else:
                raise Failure(f"{carried} bytes were carried")
    return run


def _turns_once(ways, way, connections, threads, rounds, seed):
    """What each end has carried."""
    program, port = ways.program("many_epoll_members"), 7700
    ways.reports()
    with preloaded_sockets.server_of(ways, way, port, program, "serve", port, connections,
                           threads) as serving:
        ways.run(way, program, "connect", port, connections, rounds, seed, limit=200)
        check(serving.wait(20) == 0, "a connection was not seen to end")
    return [count for _, count in ways.reports()]


def groups():
    """All wait."""
    waits = [Case("carry.gone", _gone, 90)]
    waits += [Case(f"carry.files.{how}", _files(how), 120) for how in ("waits", "asks", "strange")]
    waits += [Case("carry.whole", _whole(200), 120), Case("carry.crossed", crossed(12, 40), 120)]
    waits += [Case("carry.turns", _turns(300, 1), 120),
              Case("carry.turns.many", _turns(1400, 1), 120),
              Case("carry.turns.threads", _turns(500, 3), 120),
              Case("carry.turns.long", _turns(2600, 2, 200, 20), 3000, slow=True)]
    waits += [Case(f"carry.left.{how}", left(how), 120) for how in ("accepts", "sends")]
    return [Group("carry.many", waits, carried_sockets.Carried, weight=WAITS)]
