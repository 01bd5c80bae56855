"""Tests what each kind of call receives on a carried socket while the other end computes."""

from cases import carried_sockets
from cases.light_connections import Light
from harness import process, staging
from harness.case import WAITS, Case, Group, check

_SOURCE = staging.PROGRAMS / "sockets" / "bare_system_calls.c"


def _arrived(name):
    def run(ways):
        """What has come by memory, or by the kernel, for calls of each kind."""
        program = ways.program("receive_counts")
        for family in ("4", "6"):
            for way in (False, True):
                ways.reports()
                text = ways.run(way, program, name, *(["6"] if family == "6" else []))
                check(text == "ok\n", text)
            check(sum(count for _, count in ways.reports()), "nothing was carried")
    return run


def _uninvolved(name):
    def run(ways):
        """Calls with no socket of TCP among their descriptors: the kernel's alone."""
        for way in (False, True):
            text = ways.run(way, ways.program("non_socket_calls"), name)
            check(text == "ok\n", text)
    return run


def _built(ways, name, *flags):
    program = ways.folder / name
    if not program.exists():
        process.run(["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", *flags, "-o",
                     program, _SOURCE], limit=60)
    return program


def _instructions(how):
    def run(ways):
        """Ends that move bytes, or wait, past every library; beside ends that do not."""
        own = (_built(ways, "instructions", "-DOWN"), how)
        plain = (_built(ways, "instructions-plain"), "plain")

        def talk(way, server, client, *family):
            (one, its), (other, others) = server, client
            family = " ".join(family)
            script = (f"rm -f port; {one} server {its} {family} >port & "
                      f"until [ -s port ]; do sleep 0.02; done; "
                      f"{other} client {others} $(cat port) {family}; wait")
            text = ways.run(way, "sh", "-c", script, limit=60)
            check(text == "ok\n", text)

        talk(False, own, own)
        ways.reports()
        for server, client in ((own, own), (own, plain), (plain, own)):
            talk(True, server, client)
        talk(True, own, plain, "6")
        count = sum(count for _, count in ways.reports())
        check(count == 0, f"{count} bytes were carried that somebody overtakes, or sleeps beside")
        for _ in range(carried_sockets.TURNS):
            talk(True, plain, plain)
            if sum(count for _, count in ways.reports()):
                return
        check(False, "nothing is carried without such instructions")
    return run


def groups():
    """All wait."""
    waits = [Case(f"carry.arrived.{name}", _arrived(name), 90)
             for name in ("counted", "left", "option", "joins", "masked", "closed", "reset")]
    waits += [Case(f"carry.instructions.{how}", _instructions(how), 120)
              for how in ("epoll", "edge", "poll", "select", "send", "receive", "writes", "ring")]
    light = [Case(f"light.instructions.{how}", _instructions(how), 120)
             for how in ("epoll", "poll", "send", "receive", "ring")]
    for cases, family in ((waits, "carry"), (light, "light")):
        cases += [Case(f"{family}.uninvolved.{name}", _uninvolved(name))
                  for name in ("addresses", "faults", "exclusive", "stack", "numbers")]
    return [Group("carry.received", waits, carried_sockets.Carried, weight=WAITS),
            Group("light.received", light, Light, weight=WAITS)]
