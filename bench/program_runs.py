"""Runs two-process programs and reads what they print.

In: which program, sizes, iterations, CPUs, environment. Out: one number in base units
(nanoseconds, operations a second, bytes a second). A program that is missing or fails raises
Failure with one line that says why.
"""
import os
import re
import shutil
import socket
import subprocess
import time
from pathlib import Path

PATIENCE = 20
UNITS = {"ns": 1, "us": 1e3, "ms": 1e6, "sec": 1e9,
         "bytes/sec": 1, "KB/sec": 1e3, "MB/sec": 1e6, "GB/sec": 1e9}


class Failure(Exception):
    """Why a measurement could not be taken."""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def listening(port, network="/proc/net"):
    wanted = f":{port:04X} "
    for table in (f"{network}/tcp", f"{network}/tcp6"):
        if not Path(table).exists():
            continue
        for line in Path(table).read_text().split("\n")[1:]:
            fields = line.split()
            if len(fields) > 3 and fields[3] == "0A" and f"{fields[1]} ".endswith(wanted):
                return True
    return False


def last_line(text):
    told = [line.strip() for line in text.split("\n") if line.strip(" \n-")]
    return told[-1] if told else "no output"


class Pair:
    """A server and a client on two CPUs (or wherever the kernel likes)."""

    def __init__(self, cpus, environment=None, roles=None, enter=((), ()), address="127.0.0.1",
                 network="/proc/net"):
        self.cpus = cpus
        self.environment = environment or {}
        # Variables that differ between (server, client).
        self.roles = roles or ({}, {})
        # What goes before the command lines of (server, client); where the server is, and its
        # network's tables.
        self.enter, self.address, self.network = enter, address, network

    def command(self, side, command):
        if not shutil.which(command[0]):
            raise Failure(f"{command[0]} is not installed")
        pin = ["taskset", "-c", str(self.cpus[side])] if self.cpus else []
        environment = {**os.environ, **self.environment, **self.roles[side]}
        return {"args": [*self.enter[side], *pin, *command], "env": environment, "text": True,
                "stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE,
                "stderr": subprocess.STDOUT}

    def run(self, server, client, port, stays=False):
        """What the client printed. `stays`: the server does not end by itself."""
        back = subprocess.Popen(**self.command(0, server))
        try:
            deadline = time.monotonic() + 10
            while not listening(port, self.network):
                if back.poll() is not None:
                    raise Failure(f"{server[0]} server: {last_line(back.communicate()[0])}")
                if time.monotonic() > deadline:
                    raise Failure(f"{server[0]} server does not listen")
                time.sleep(0.005)
            try:
                front = subprocess.run(**self.command(1, client), timeout=PATIENCE)
            except subprocess.TimeoutExpired:
                raise Failure(f"{client[0]} hung for {PATIENCE} s") from None
            if front.returncode != 0:
                raise Failure(f"{client[0]}: {last_line(front.stdout)}")
            if not stays:
                try:
                    back.communicate(timeout=10)
                except subprocess.TimeoutExpired:
                    raise Failure(f"{server[0]} server does not end") from None
                if back.returncode != 0:
                    raise Failure(f"{server[0]} server: exit {back.returncode}")
            return front.stdout
        finally:
            if back.poll() is None:
                back.kill()
            if not back.stdout.closed:
                back.communicate()


def row(text, size):
    """The numbers of perftest's result line."""
    for line in text.split("\n"):
        fields = line.split()
        if len(fields) >= 5 and fields[0] == str(size) and fields[1].isdigit():
            return [float(field) for field in fields]
    raise Failure(f"no result line: {last_line(text)}")


def perftest_lines(pair, program, size, iterations, *options):
    port = free_port()
    command = [program, "-F", "-p", str(port), "-n", str(iterations), *options]
    if "atomic" not in program:
        command += ["-s", str(size)]
    return row(pair.run(command, command + [pair.address], port), size)


def perftest_lat(pair, program, size, iterations, tsc, *options):
    """Typical (median) latency in ns; half a round trip where there is one.

    Cycles instead of microseconds where possible: perftest prints two decimals, which is no
    resolution at all for a microsecond here.
    """
    cycles = ["-C"] if tsc else []
    typical = perftest_lines(pair, program, size, iterations, *cycles, *options)[4]
    return typical * 1000 / (tsc or 1)


def perftest_bw(pair, program, size, iterations, *options):
    """(messages a second, bytes a second). perftest's MB is 2^20 bytes."""
    numbers = perftest_lines(pair, program, size, iterations, *options)
    return numbers[4] * 1e6, numbers[3] * 2**20


def ucx(pair, size, iterations, *options):
    """The 'Final' row: [iterations, median us, average, overall, MB/s, overall, msg/s, overall]."""
    port = free_port()
    base = ["ucx_perftest", "-p", str(port)]
    client = base + ["127.0.0.1", "-s", str(size), "-n", str(iterations), *options]
    text = pair.run(base, client, port)
    match = re.search(r"^Final:\s+(.*)$", text, re.MULTILINE)
    numbers = [float(field) for field in match.group(1).split()] if match else []
    if len(numbers) < 8:
        raise Failure(f"ucx_perftest: {last_line(text)}")
    return numbers


def ucx_lat(pair, size, iterations, *options):
    """Median latency in ns, half a round trip."""
    return ucx(pair, size, iterations, *options)[1] * 1000


def ucx_bw(pair, size, iterations, *options):
    """(messages a second, bytes a second), over the whole run."""
    rate = ucx(pair, size, iterations, *options)[7]
    return rate, rate * size


def qperf(pair, test, size):
    """TCP over loopback: latency in ns (qperf halves the round trip) or bytes a second."""
    port = free_port()
    client = ["qperf", "127.0.0.1", "-lp", str(port), "-t", "1", "-m", str(size), test]
    text = pair.run(["qperf", "-lp", str(port)], client, port, stays=True)
    value = qperf_value(text)
    if value is None:
        raise Failure(f"qperf: {last_line(text)}")
    return value


def qperf_value(text):
    """The figure that qperf printed, in base units; None if it is none."""
    match = re.search(r"(?:latency|bw)\s+=\s+([\d.,]+) (\S+)", text)
    if not match or match.group(2) not in UNITS:
        return None
    return float(match.group(1).replace(",", "")) * UNITS[match.group(2)]


def compiled(name, folder):
    """A program of this folder."""
    program = folder / name
    subprocess.run(["cc", "-O2", "-pthread", "-o", program,
                    Path(__file__).resolve().parent / f"{name}.c", "-libverbs"], check=True)
    return program


# What cmtime does for each connection until it is there; each step for all of them.
STEPS = ("create id", "resolve addr", "resolve route", "create qp", "connect")


def cmtime_rate(text, connections):
    """Connections a second, from the total milliseconds of each step."""
    totals = {name.strip(): float(total)
              for name, total in re.findall(r"^([a-z ]+?) *: +([0-9.]+)", text, re.MULTILINE)}
    missing = [step for step in STEPS if step not in totals]
    if missing:
        raise Failure(f"cmtime does not say {missing[0]}: {last_line(text)}")
    return connections / sum(totals[step] for step in STEPS) * 1000


def cmtime(environment, connections=1000):
    """Connections a second, between two processes of this machine."""
    server = ["cmtime", "-b", "127.0.0.1", "-p", "17471", "-c", str(connections)]
    client = [*server, "-s", "127.0.0.1"]
    shared = {"env": environment, "text": True, "stdout": subprocess.PIPE,
              "stderr": subprocess.STDOUT}
    if not shutil.which(server[0]):
        raise Failure("cmtime is not installed")
    deadline = time.monotonic() + 10
    pause = 0.1
    # Nothing outside says when it listens: who comes before is refused, and comes again.
    while True:
        with subprocess.Popen(server, stdin=subprocess.DEVNULL, **shared) as back:
            try:
                time.sleep(pause)
                answer = subprocess.run(client, timeout=PATIENCE, check=False, **shared)
            except subprocess.TimeoutExpired:
                raise Failure(f"cmtime hung for {PATIENCE} s") from None
            finally:
                back.kill()
        if answer.returncode == 0:
            return cmtime_rate(answer.stdout, connections)
        if time.monotonic() > deadline:
            raise Failure(f"cmtime: {last_line(answer.stdout)}")
        pause *= 2
