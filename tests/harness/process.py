"""Starts, awaits and ends processes, so that nothing outlives a test."""

import ctypes
import os
import re
import signal
import subprocess
import time

from .case import Failure

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def become_subreaper():
    """Orphans among our descendants become our children, so that end_descendants finds them."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(number=signal.SIGKILL):
    """We are sent this signal when our parent dies."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def start(argv, **options):
    """Popen; the process is killed when we die."""
    options.setdefault("stdin", subprocess.DEVNULL)
    return subprocess.Popen([str(a) for a in argv], preexec_fn=die_with_parent, **options)


def run(argv, limit=20.0, accept=(0,), **options):
    """Runs a command and returns its output (stdout and stderr together)."""
    options.setdefault("stdin", subprocess.DEVNULL)
    try:
        done = subprocess.run([str(a) for a in argv], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=limit, text=True,
                              errors="replace", check=False, **options)
    except subprocess.TimeoutExpired as late:
        text = (late.output or b"").decode(errors="replace")
        raise Failure(f"not done after {limit:g} s: {_last_line(text)}\n{_short(argv)}\n"
                      f"{text}") from None
    if done.returncode not in accept:
        raise Failure(f"{how(done.returncode)}: {_last_line(done.stdout)}\n{_short(argv)}\n"
                      f"{done.stdout}")
    return done.stdout


def how(status):
    """A return code in words."""
    if status < 0:
        return f"killed by {signal.Signals(-status).name}"
    return f"exit status {status}"


def _short(argv):
    return " ".join(str(a) for a in argv)


def _last_line(text):
    return next((line for line in reversed(text.splitlines()) if line.strip()), "(no output)")


def finish(process, limit):
    """Closes the standard input of a Popen, waits for its end and returns what it printed."""
    try:
        return process.communicate(timeout=limit)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        text = process.communicate()[0]
        raise Failure(f"not done after {limit:g} s: {_short(process.args)}\n{text}") from None


def end(process, patience=3.0):
    """Ends a Popen: politely, then not."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def kill(pid):
    """kill -9, if it is still there."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def descendants(root=None, but=()):
    """All processes below `root` (ourselves), children first; without those in `but` and what is
    below them."""
    root = root or os.getpid()
    children = {}
    for pid in numeric("/proc"):
        try:
            with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
                parent = int(file.read().rpartition(")")[2].split()[1])
        except (OSError, IndexError):
            continue
        children.setdefault(parent, []).append(pid)
    found, queue = [], [root]
    while queue:
        below = [pid for pid in children.get(queue.pop(0), []) if pid not in but]
        found += below
        queue += below
    return found


def end_descendants(but=()):
    """Kills every process below us and reaps it; but not those in `but`, and what is below them."""
    for _ in range(50):
        below = descendants(but=but)
        if not below:
            return
        for pid in below:
            kill(pid)
        for pid in below:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                pass  # not ours yet
        time.sleep(0.02)


def written(file):
    """What is in a file that others write to. They share its place with us, which stays."""
    data = os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0)
    return data.decode(errors="replace")


def numeric(folder):
    """The entries of `folder` that are numbers, as numbers."""
    try:
        return [int(name) for name in os.listdir(folder) if name.isdigit()]
    except FileNotFoundError:
        return []


def until(condition, limit, what):
    """Waits until `condition()` is true and returns its value. `what` was waited for: a text, or
    what returns one when it is known how things are then."""
    deadline = time.monotonic() + limit
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise Failure(f"not within {limit:g} s: {what() if callable(what) else what}")
        time.sleep(0.01)


def settled(measure, quiet=1.0, limit=20.0):
    """What `measure()` returns, once it has been the same for `quiet` seconds.

    For what is compared with later: what somebody before left behind goes when it goes, on a busy
    machine later than any fixed time."""
    deadline = time.monotonic() + limit
    value, since = measure(), time.monotonic()
    while time.monotonic() < since + quiet:
        if time.monotonic() > deadline:
            raise Failure(f"does not settle within {limit:g} s: {value}")
        time.sleep(0.05)
        now = measure()
        if now != value:
            value, since = now, time.monotonic()
    return value


def listens(pid, port):
    """Does anything listen on TCP `port` in the network namespace of `pid`?"""
    for name in ("tcp", "tcp6"):
        try:
            with open(f"/proc/{pid}/net/{name}", encoding="utf-8") as file:
                for line in file.readlines()[1:]:
                    words = line.split()
                    if words[3] == "0A" and int(words[1].rpartition(":")[2], 16) == port:
                        return True
        except OSError:
            pass
    return False


def cpu_seconds(pid):
    """User and system time a process has used."""
    with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
        words = file.read().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def activity(pids, seconds=5.0):
    """What processes do of their own accord for some seconds: in how many of a hundred looks at
    them a thread of theirs ran or wanted to, and how often one had been waiting and went on."""
    before, ran = _switches(pids), 0
    for _ in range(100):
        time.sleep(seconds / 100)
        ran += any(_state(task) in "RD" for task in _tasks(pids))
    after = _switches(pids)
    return ran, sum(count - before.get(task, 0) for task, count in after.items())


def idle(pids, most_ran=10, most_switches=60, looks=4):
    """Waits until processes do nothing of their own accord for five seconds (see `activity`); says
    why not if they never do in some such times. What ended just before them may keep them busy."""
    for _ in range(looks):
        ran, switches = activity(pids)
        print(f"ran in {ran} of 100 looks, {switches} switches in 5 s")
        if ran <= most_ran and switches <= most_switches:
            return
    raise Failure(f"ran in {ran} of 100 looks, {switches} switches in 5 s, {looks} times")


def _tasks(pids):
    return [f"/proc/{pid}/task/{task}" for pid in pids for task in numeric(f"/proc/{pid}/task")]


def _state(task):
    try:
        with open(f"{task}/stat", encoding="utf-8", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def _switches(pids):
    """By task, for those that are there."""
    counts = {}
    for task in _tasks(pids):
        try:
            with open(f"{task}/status", encoding="utf-8", errors="replace") as file:
                lines = [line for line in file if "ctxt_switches" in line]
        except (FileNotFoundError, ProcessLookupError):
            continue
        counts[task] = sum(int(line.split()[1]) for line in lines)
    return counts


def descriptors(pid):
    """How many descriptors a process holds."""
    return len(numeric(f"/proc/{pid}/fd"))


def numbers(text):
    """All decimal numbers in a line."""
    return [float(n) for n in re.findall(r"-?\d+(?:\.\d+)?", text)]
