"""Tests that programs behave the same with libomniverb_sockets.so as without.

Each case does the same twice, natively and with the library preloaded, in a network namespace of
its own, and compares: what calls give, what programs print, how they end."""

import contextlib
import os
import pathlib
import re
import shutil
import tempfile
import time

from harness import process, staging
from harness.case import ALONE, WAITS, Case, Failure, Group, Skip, check
from harness.network import Namespace

_SOURCES = staging.PROGRAMS / "sockets"
_CALLS = ["vfork", "clone", "spawn", "cancel", "signal", "stream", "limit", "keep", "fork", "heap",
          "table"]
# So many of /usr/bin, in the order of their names, say --version as before.
_SWEPT = 100
# Sequences of a case, and how often a difference is looked at again: what one process did reaches
# another at once, unless the machine is very busy.
_SEQUENCES, _SLOWLY, _LOOKS = 60, 3000, 4


class Ways:
    """A namespace, and a folder; programs there, with and without the library."""

    def __init__(self, stage):
        self.library = stage.dist / "lib" / "libomniverb_sockets.so"
        if not self.library.exists():
            raise Skip("there is no such library for this processor")
        self.stage, self.namespace = stage, Namespace()
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="sockets-", dir=stage.path))

    def close(self):
        """Ends everything."""
        self.namespace.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def line(self, with_library, *words):
        """The command line that runs something in the namespace."""
        # It carries nothing unless that is asked for once more.
        told = [f"LD_PRELOAD={self.library}", "OMNIVERB_SOCKETS=pass"]
        preload = told if with_library else []
        return [*self.namespace.enter(), "env", "PYTHONHASHSEED=0", "LC_ALL=C", *preload, *words]

    def run(self, with_library, *words, limit=30.0, accept=(0,)):
        """Runs it there, and returns what it printed."""
        return process.run(self.line(with_library, *words), limit=limit, accept=accept,
                           cwd=self.folder)

    def same(self, *words, limit=30.0, accept=(0,)):
        """Both ways; what it prints must be the same."""
        plain, ours = (self.run(way, *words, limit=limit, accept=accept) for way in (False, True))
        check(plain == ours, f"{' '.join(map(str, words))}: {ours}\nwithout it {plain}")
        return plain


def _call(name, source="preload_side_effects"):
    def run(ways):
        program = ways.folder / source
        if not program.exists():
            process.run(["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror",
                         "-Wno-unused-result", "-pthread", "-o", program,
                         _SOURCES / f"{source}.c"],
                        limit=60)
        check(ways.same(program, name) == "ok\n", "it says something else")
    return run


def _transcripts(ways, first, count, *what):
    """What the calls of each seed gave, natively and not."""
    words = ["/usr/bin/python3", "-B", _SOURCES / "random_call_sequences.py", first, count, *what]
    texts = [ways.run(way, *words, limit=60 + count) for way in (False, True)]
    counts = re.compile(r"^\d+ of \d+ ends, \d+ light\n", re.MULTILINE)
    texts = [counts.sub("", text) for text in texts]
    wrong = [line for line in texts[1].splitlines() if re.match(r"seed \d+: ", line)]
    check(not wrong, "\n".join(wrong))
    return [re.split(r"^seed (?=\d+$)", text, flags=re.MULTILINE)[1:] for text in texts]


def compare(ways, first, count, *what):
    """So many sequences, both ways."""
    for start in range(first, first + count, 100):
        size = min(100, first + count - start)
        plain, ours = _transcripts(ways, start, size, *what)
        check(len(plain) == len(ours) > 0, f"{len(plain)} and {len(ours)} sequences")
        for one, other in zip(plain, ours):
            if one != other:
                _look_again(ways, int(one.split()[0]), one, other, *what)


def sequences(first, count):
    """A case of so many."""
    return lambda ways: compare(ways, first, count)


def _look_again(ways, seed, one, other, *what):
    """What differs because of time differs among equals, too."""
    plain, ours = {one}, {other}
    for _ in range(_LOOKS):
        again = _transcripts(ways, seed, 1, *what)
        plain.update(again[0])
        ours.update(again[1])
        if plain & ours:
            return
    lines = zip(one.splitlines(), other.splitlines())
    differs = next(((a, b) for a, b in lines if a != b), ("(its end)", "(its end)"))
    raise Failure(f"seed {seed}: {differs[1]!r}, without the library {differs[0]!r}\n{one}")


def _sweep(ways):
    """A hundred programs say their version."""
    swept = []
    for path in sorted(pathlib.Path("/usr/bin").iterdir()):
        if len(swept) == _SWEPT:
            break
        with contextlib.suppress(OSError, Failure):
            with open(path, "rb") as file:
                if file.read(4) != b"\x7fELF":
                    continue
            text = ways.run(False, path, "--version", limit=3)
            if text == ways.run(False, path, "--version", limit=3):
                swept.append((path, text))
    for path, text in swept:
        ours = ways.run(True, path, "--version")
        check(ours == text, f"{path}: {ours}\nwithout it {text}")
    check(len(swept) == _SWEPT, f"only {len(swept)} programs")


def _build(ways):
    """A compiler's processes, a shell's pipes, make."""
    (ways.folder / "x.c").write_text('#include <stdio.h>\nint main(void) { puts("built"); }\n')
    (ways.folder / "Makefile").write_text("x: x.c\n\tcc -o x x.c\nall: x\n\t./x | tr b B\n")
    text = ways.same("sh", "-c", "rm -f x; make -s all && echo done | cat")
    check(text == "Built\ndone\n", text)


def _start_up(ways):
    """It costs less than a millisecond, and leaves nothing: no thread, no descriptor."""
    def least(with_library):
        environment = {"LD_PRELOAD": str(ways.library)} if with_library else {}
        best = 1.0
        for _ in range(100):
            began = time.perf_counter()
            os.waitpid(os.posix_spawn("/bin/true", ["true"], environment), 0)
            best = min(best, time.perf_counter() - began)
        return best

    costs = [least(True) - least(False) for _ in range(3)]
    print(f"{min(costs) * 1e6:.0f} us")
    check(min(costs) < 1e-3, f"{costs} s")
    ways.same("sh", "-c", "ls /proc/self/fd; ls /proc/self/task | wc -l")


def _preloaded(ways):
    """`omniverb run --sockets` preloads it, and what was preloaded stays."""
    omniverb = ways.stage.dist / "bin" / "omniverb"
    other = ways.stage.dist / "lib" / "libomniverb_paths.so"
    text = ways.run(False, "env", f"LD_PRELOAD={other}", f"XDG_RUNTIME_DIR={ways.folder}",
                    f"OMNIVERB_SOCKET={ways.folder}/nobody", omniverb, "run", "--present", "off",
                    "--sockets", "--", "printenv", "LD_PRELOAD", accept=(0, 125))
    check(text.splitlines()[-1] == f"{ways.library}:{other}", text)


@contextlib.contextmanager
def server_of(ways, with_library, port, *words):
    """A program that listens, while it does."""
    with open(ways.folder / "server", "w+", encoding="utf-8") as said:
        running = process.start(ways.line(with_library, *words), stdout=said, stderr=said,
                                cwd=ways.folder)
        try:
            process.until(lambda: process.listens(ways.namespace.pid, port), 10,
                          lambda: f"{words[0]} that listens: {process.written(said)}")
            yield running
        finally:
            process.end(running)


def _needs(*names):
    for name in names:
        if not shutil.which(name):
            raise Skip(f"no {name}")


def each_way(run):
    """Both with the library, and one of each."""
    def all_ways(ways):
        for server, client in [(False, False), (True, True), (True, False), (False, True)]:
            run(ways, server, client)
    return all_ways


def nc(megabytes):
    """A file goes through."""
    def run(ways, server, client):
        _needs("nc", "socat")
        data = ways.folder / "data"
        data.write_bytes(os.urandom(1_000_000) * megabytes)
        line = ["sh", "-c", "exec nc -l -d 127.0.0.1 7001 > got"]
        with server_of(ways, server, 7001, *line) as running:
            ways.run(client, "sh", "-c", "nc -N 127.0.0.1 7001 < data")
            check(running.wait(10) == 0, "nc failed")
        check((ways.folder / "got").read_bytes() == data.read_bytes(), "it differs")
    return run


def socat(ways, server, client):
    """A socket becomes a program's standard input."""
    _needs("socat")
    for how in ("EXEC:cat", "EXEC:cat,nofork", "SYSTEM:cat"):
        line = ["socat", "TCP-LISTEN:7002,fork,reuseaddr", how]
        with server_of(ways, server, 7002, *line):
            for number in range(3):
                text = ways.run(client, "sh", "-c",
                                f"echo hello {number} | socat -t 5 - TCP:127.0.0.1:7002")
                check(text == f"hello {number}\n", f"{how}: {text}")


def iperf(*options):
    """A stream, with these options."""
    def run(ways, server, client):
        _needs("iperf3")
        with server_of(ways, server, 7003, "iperf3", "-s", "-1", "-p", 7003) as running:
            text = ways.run(client, "iperf3", "-c", "127.0.0.1", "-p", 7003, "-n", "20M", *options)
            check("iperf Done." in text and running.wait(10) == 0, text)
    return run


def redis(ways, server, client):
    """Sets of epoll, threads, a fork."""
    _needs("redis-server", "redis-benchmark")
    line = ["redis-server", "--port", 7010, "--dir", ways.folder, "--io-threads", 2]
    with server_of(ways, server, 7010, *line):
        ways.run(client, "redis-benchmark", "-p", 7010, "-q", "-n", 2000, "-c", 10, "-P", 4,
                 "-t", "set,get,lpush")
        said = ways.run(client, "redis-cli", "-p", 7010, "bgsave")
        check("started" in said, said)
        text = ways.run(client, "sh", "-c", "echo 'set a b\nget a\nshutdown nosave' "
                                            "| redis-cli -p 7010")
        check(text.split()[:2] == ["OK", "b"], text)


def nginx(ways, server, client):
    """Workers that share listeners, sendfile, connections that are kept."""
    _needs("nginx")
    folder = ways.folder / "nginx"
    folder.mkdir(exist_ok=True)
    (folder / "file").write_bytes(b"x" * 300_000)
    (folder / "n.conf").write_text(
        f"daemon off; worker_processes 2; user root; pid {folder}/pid; error_log {folder}/log;\n"
        "events {} http { access_log off; sendfile on; upstream up { server 127.0.0.1:7013; "
        f"keepalive 2; }} server {{ listen 127.0.0.1:7013; root {folder}; }} server {{ listen "
        "127.0.0.1:7014; location / { proxy_pass http://up; proxy_http_version 1.1; } } }\n")
    program = ("import urllib.request as r\nfor port in (7013, 7014, 7014):\n"
               "    print(len(r.urlopen(f'http://127.0.0.1:{port}/file').read()))")
    with server_of(ways, server, 7014, "nginx", "-p", folder, "-c", folder / "n.conf") as running:
        for signal in (1, 0):
            text = ways.run(client, "/usr/bin/python3", "-c", program)
            check(text == "300000\n" * 3, text)
            if signal:
                os.kill(running.pid, signal)  # new workers, with the same listeners


# Sockets of virtual machines are of no network namespace, so that two who test these meet.
_WITHOUT_VSOCK = ["unshare", "--mount", "sh", "-c",
                  "[ ! -e /dev/vsock ] || mount --bind /dev/null /dev/vsock; exec \"$@\"", "sh"]


def suite(*words):
    """Tests of CPython's own: what becomes of each, both ways."""
    def run(ways):
        line = [*_WITHOUT_VSOCK, "/usr/bin/python3", "-B", "-m", "test.test_" + words[0], "-v",
                *words[1:]]
        found = []
        for way in (False, True):
            text = ways.run(way, *line, limit=150, accept=range(256))
            if "No module named" in text:
                raise Skip("libpython3-testsuite is not installed")
            found.append(sorted(re.findall(r"^(test\w+ \(\S+\)).* \.\.\. (ok|skipped|FAIL|ERROR)",
                                           text, re.MULTILINE)))
        check(found[0], "no test ran")
        differ = set(found[0]) ^ set(found[1])
        check(not differ, f"{sorted(differ)}")
        print(f"{len(found[0])} tests")
    return run


def groups():
    """Most wait; what is measured is alone."""
    programs = {"nc": nc(1), "socat": socat, "iperf3": iperf(), "iperf3-more":
                iperf("-P", 4, "-R", "-Z"), "redis": redis, "nginx": nginx}
    waits = [Case(f"sockets.calls.{name}", _call(name)) for name in _CALLS]
    waits.append(Case("sockets.calls.numbers", _call("numbers", "non_socket_calls")))
    waits += [Case("sockets.sweep", _sweep, 120), Case("sockets.build", _build),
              Case("sockets.run", _preloaded)]
    waits += [Case(f"sockets.{name}", each_way(run), 90) for name, run in programs.items()]
    waits += [Case(f"sockets.python.{name}", suite(name), 200)
              for name in ("epoll", "select")]
    waits += [Case(f"sockets.python.{name}", suite(name), 400, slow=True)
              for name in ("poll", "socket", "selectors", "socketserver", "asyncore", "httplib")]
    return [
        Group("sockets", waits, Ways, weight=WAITS),
        Group("sockets.sequences",
              [Case("sockets.sequences", sequences(0, _SEQUENCES), 200),
               Case("sockets.sequences.long", sequences(1000, _SLOWLY), 3000, slow=True)],
              Ways),
        Group("sockets.start-up", [Case("sockets.start-up", _start_up)], Ways, weight=ALONE),
    ]
