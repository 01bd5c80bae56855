"""Tests the second API, omniverb/dma.h.

Both sides are ordinary clients of libomniverb_dma.so.1; the node does as it is told, by DMA."""

import contextlib
import functools
import re
import subprocess
from types import SimpleNamespace

from harness import process, staging
from harness.rdma_cm_client_server import Side
from harness.case import CROWDS, POLLS, Case, Group, Skip, check
from harness.containers import Pair
from harness.daemon import forgotten
from harness.simulated_host import Hosts
from harness.unprivileged_daemon import PlainPair

from cases.rdma_cm import daemons, forwarded

# End the node.
FATAL = ("killed", "killed_idle")
# Needs somebody who kills the daemon.
_OUTLIVES = "outlives_the_daemon"
# What differs where the path is another.
ELSEWHERE = ("copies", "reads_before_writes", "callbacks_mixed", "callbacks_spinning",
              "callbacks_asleep", "freed_in_use", "freed_while_nobody_looks", "ends_under_way",
              "bursts", *FATAL)
# As long as a node waits.
_SLOW = ("greets_for_ever",)


def tests_of(program):
    text = (staging.PROGRAMS / "dma_api" / f"{program}.c").read_text()
    return re.findall(r"^TEST\((\w+)\)", text, re.MULTILINE)


@contextlib.contextmanager
def _in_machine(place, *words):
    """The same in a virtual machine, where programs have no input: here one that never ends."""
    side = Side(place, ["sh", "-c", 'sleep 3600 | exec "$@"', "sh", *words])
    try:
        found = process.until(lambda: re.search(r"^port (\d+)$", side.text(), re.MULTILINE) or
                              not side.is_there(), 60, side.text)
        check(found is not True, side.text())
        yield SimpleNamespace(port=found.group(1), running=side.running)
    finally:
        side.end()


@contextlib.contextmanager
def running(place, *words):
    """A program that prints its port; that, and the program, which is told to end."""
    if hasattr(place, "machine"):
        with _in_machine(place, *words) as found:
            yield found
        return
    started = place.start(*words, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    try:
        line = started.stdout.readline()
        check(line.startswith("port "), f"{words[0]}: {line}")
        yield SimpleNamespace(port=line.split()[1], running=started)
    finally:
        process.end(started)


@contextlib.contextmanager
def _with_node(fixture, stage):
    """Two places, and a node in the first of them."""
    with fixture(stage) as pair, running(pair.server, "/opt/programs/dma_node") as node:
        yield SimpleNamespace(pair=pair, port=node.port, running=node.running)


def _program(name):
    return f"/opt/programs/dma_{name}"


def _client(place, program, test, port):
    pair = place.pair
    return pair.client.run(_program(program), test, pair.server.address, port, pair.client.address,
                           limit=40)


def between(program, test, pair):
    """One of the tests, with a node of its own on the server."""
    with running(pair.server, "/opt/programs/dma_node") as node:
        place = SimpleNamespace(pair=pair, port=node.port, running=node.running)
        (_fatal if test in FATAL else _plain)(program, test, place)


def _plain(program, test, place):
    print(_client(place, program, test, place.port))
    check(place.running.poll() is None, "the node has ended")


def _fatal(program, test, place):
    with running(place.pair.server, "/opt/programs/dma_node") as node:
        print(_client(place, program, test, node.port))


def _outlives(place):
    """The daemon dies, and there is another; what was connected goes on."""
    pair = place.pair
    with running(pair.server, "/opt/programs/dma_node") as node:
        client = pair.client.start(_program("teardown"), _OUTLIVES, pair.server.address, node.port,
                                   pair.client.address, stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            for reached, then in (("connected", pair.daemon.kill), ("alone", pair.daemon.start)):
                line = client.stdout.readline()
                check(line.strip() == reached, line)
                then()
                client.stdin.write("\n")
                client.stdin.flush()
            text = client.communicate(timeout=40)[0]
            check(client.returncode == 0, text)
        finally:
            process.end(client)


def _hostile(test, place):
    print(_client(place, "hostile_node", test, place.port))
    # It serves others as before.
    _plain("client", "announcements", place)


def _ends(place):
    """A node ends with its input, and leaves nothing behind."""
    said = place.running.communicate("", timeout=20)[0]
    check(place.running.returncode == 0, said)
    forgotten(daemons(place.pair), 20)


def _examples(place):
    """What the examples print."""
    pair = place.pair
    with running(pair.server, "/opt/programs/dma_serve") as serve:
        text = pair.client.run("/opt/programs/dma_put", pair.server.address, serve.port, "hello")
        check(text.endswith("hello\n"), text)
        said = serve.running.communicate("", timeout=20)[0]
        check(serve.running.returncode == 0, said)


def _python(place):
    """The binding, against the example; mirrors its buffer in one of ours."""
    try:
        process.run(["/usr/bin/python3", "-c", "import cffi"])
    except Exception as error:
        raise Skip("python3-cffi is not installed") from error
    pair = place.pair
    with running(pair.server, "/opt/programs/dma_serve") as serve:
        text = pair.client.run("/usr/bin/python3", "/opt/programs/dma_python_binding.py",
                               pair.server.address, serve.port)
        check("as it should be" in text, text)
        check("mirrored" in serve.running.stdout.readline(), "the example did not mirror")


_SETTINGS = {"user": (PlainPair, POLLS), "containers": (Pair, POLLS), "wire": (Hosts, CROWDS),
             "forwarded": (forwarded, CROWDS)}


def groups():
    """All between processes of a host; elsewhere what takes another path."""
    found = []
    for setting, (fixture, weight) in _SETTINGS.items():
        home = setting in ("user", "containers")
        cases = []
        for program, test in [(name, test) for name in ("client", "teardown")
                              for test in tests_of(name)]:
            if (home or test in ELSEWHERE) and test != _OUTLIVES:
                run = functools.partial(_fatal if test in FATAL else _plain, program, test)
                cases.append(Case(f"{setting}.dma.{test}", run, 60))
        if setting == "containers":
            cases += [Case(f"{setting}.dma.hostile.{test}", functools.partial(_hostile, test), 60,
                           slow=test in _SLOW) for test in tests_of("hostile_node")]
        if setting == "user":
            cases += [Case("user.dma.examples", _examples, 30),
                      Case("user.dma.python", _python, 30)]
        cases.append(Case(f"{setting}.dma.a_node_ends", _ends, 40))
        if setting == "containers":
            cases.append(Case(f"containers.dma.{_OUTLIVES}", _outlives, 60))
        found.append(Group(f"{setting}.dma", cases, functools.partial(_with_node, fixture),
                           weight=weight))
    return found
