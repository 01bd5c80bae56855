"""Test suites of others: each test gives what it gives on the kernel's sockets.

Both ends of all their connections have the library. `sockets.suites` has calls passed on,
`carry.suites` may carry. What a test gives is compared with a run without the library; where that
differs the test is looked at again, alone, both ways: what a busy machine does is no difference.
"""

import re
import shutil

from cases import carry, sockets
from harness import process, staging
from harness.case import ALONE, Case, Failure, Group, Skip, check

_FETCHED = staging.BUILT / "suites"
# How often a test that differs is looked at again.
_LOOKS = 4
# Of nobody, who is known.
_UID = 65534
# Of CPython's, beside what sockets.py has: modules and, of each, seconds a run may take.
_PYTHON = {"asyncio": 900, "ssl": 200, "ftplib": 100, "httpservers": 60, "smtplib": 60,
           "poplib": 60, "xmlrpc": 60, "telnetlib": 60, "asynchat": 60,
           "multiprocessing_spawn": 600}
# libuv's tests that are about something else than sockets and processes would only cost time.
_UV = re.compile(r"tcp|pipe|ipc|poll|listen|accept|connect|shutdown|close|spawn|fork|signal|embed|"
                 r"loop|udp|getaddrinfo|getnameinfo|osx|handle_fileno|fd|stream|active|ref|idle|"
                 r"timer|read|write|delayed|connection|callback|socket|emfile|semaphore|watcher")
# libevent's, by the back end that it uses.
_BACK_ENDS = {"epoll": [], "poll": ["EVENT_NOEPOLL=1"],
              "select": ["EVENT_NOEPOLL=1", "EVENT_NOPOLL=1"]}

_ENDS = re.compile(r"(?:\.\.\. |^)(ok|skipped|FAIL|ERROR|expected failure|"
                   r"unexpected success)\b",
                   re.MULTILINE)


class Suite:
    """Tests by name: what all of them give (`all(ways, way)`), or one (`one(ways, way, name)`)."""

    def compare(self, ways):
        """All tests both ways, and again those that differ."""
        native, ours = (self.all(ways, way) for way in (False, True))
        check(native, "no test ran")
        differ = sorted(name for name in native.keys() | ours.keys()
                        if native.get(name) != ours.get(name))
        passed = sum(word.lower() == "ok" for word in native.values())
        print(f"{len(native)} tests, {passed} pass; to be looked at again: {differ}")
        check(len(differ) < max(10, len(native) // 10), f"{len(differ)} differ: {differ}")
        wrong = [found for name in differ if (found := self._look_again(ways, name))]
        check(not wrong, "\n".join(wrong))

    def _look_again(self, ways, name):
        """What a test gives, if it never gives what it gives without the library."""
        native, ours = set(), set()
        for _ in range(_LOOKS):
            native.add(self.one(ways, False, name))
            ours.add(self.one(ways, True, name))
            if native & ours:
                return ""
        return f"{name}: {ours}, without the library {native}"


class Python(Suite):
    """A module of CPython's own tests."""

    def __init__(self, module, limit):
        self.module, self.limit = module, limit

    def _run(self, ways, way, name):
        text = ways.run(way, "/usr/bin/python3", "-B", "-m", "unittest", "-v", name,
                        limit=self.limit, accept=range(-64, 256))
        if re.search(r"No module named '?test", text):
            raise Skip("libpython3-testsuite is not installed")
        # A test's name, maybe a line about it, whatever it prints, and what became of it.
        parts = re.split(r"^test\w+ \((\S+)\)", text, flags=re.MULTILINE)
        return {name: " ".join(sorted(set(_ENDS.findall(said))))
                for name, said in zip(parts[1::2], parts[2::2])}

    def all(self, ways, way):
        """All of it."""
        return self._run(ways, way, f"test.test_{self.module}")

    def one(self, ways, way, name):
        """One test."""
        return self._run(ways, way, name).get(name, "nothing")


class Uv(Suite):
    """libuv's: each is a process, which may start others."""

    def _run(self, ways, way, *words):
        """Not as root, which it does not like; in a folder where it may write."""
        folder = ways.folder / "libuv"
        if not folder.exists():
            built = _FETCHED / "libuv1"
            if not (built / "build" / "uv_run_tests").exists():
                raise Skip("libuv's tests are not built: make soak does it")
            shutil.copytree(built / "test" / "fixtures", folder / "test" / "fixtures")
            for file in built.glob("build/*uv*"):
                if file.is_file():
                    shutil.copy(file, folder)
            ways.folder.chmod(0o755)
            process.run(["chown", "-R", f"{_UID}:{_UID}", folder])
        return ways.run(way, "setpriv", f"--reuid={_UID}", f"--regid={_UID}", "--clear-groups",
                        "env", "-C", folder, f"LD_LIBRARY_PATH={folder}", "UV_USE_IO_URING=0",
                        "UV_TEST_TIMEOUT_MULTIPLIER=2", folder / "uv_run_tests", *words, limit=40,
                        accept=range(-64, 256))

    def names(self, ways):
        """Those that are about what the library stands before."""
        listed = self._run(ways, False, "--list").splitlines()
        return [line.split()[0] for line in listed if _UV.search(line)]

    def all(self, ways, way):
        """Each by itself."""
        return {name: self.one(ways, way, name) for name in self.names(ways)}

    def one(self, ways, way, name):
        """What the process gives."""
        try:
            text = self._run(ways, way, name)
        except Failure as late:
            return str(late).splitlines()[0]
        said = re.search(rf"^(ok|not ok) 1 - {re.escape(name)}(?: # (SKIP|TODO))?", text,
                         re.MULTILINE)
        return " ".join(filter(None, said.groups())) if said else text[-500:]


class Event(Suite):
    """libevent's, over one of its back ends."""

    def __init__(self, back_end):
        self.settings = _BACK_ENDS[back_end]
        self.program = _FETCHED / "libevent" / "build" / "bin" / "regress"

    def _run(self, ways, way, *names):
        if not self.program.exists():
            raise Skip("libevent's tests are not built: make soak does it")
        text = ways.run(way, "env", *self.settings, self.program, *names, limit=500,
                        accept=range(-64, 256))
        parts = re.split(r"^([\w-]+/[\w/-]+): ", text, flags=re.MULTILINE)
        return {name: " ".join(re.findall(r"\b(OK|SKIPPED|DISABLED|FAILED)\b", said)) or "nothing"
                for name, said in zip(parts[1::2], parts[2::2])}

    def all(self, ways, way):
        """Each is a child."""
        return self._run(ways, way)

    def one(self, ways, way, name):
        """One."""
        return self._run(ways, way, name).get(name, "nothing")


class Tokio(Suite):
    """Tokio's tests of sockets: a program for each file of them."""

    def _run(self, ways, way, pattern, *words):
        programs = [path for path in sorted((_FETCHED / "tokio/built/debug/deps").glob(pattern))
                    if not path.suffix]
        if not programs:
            raise Skip("Tokio's tests are not built: make soak does it")
        found = {}
        for path in programs:
            name = path.name.rpartition("-")[0]
            text = ways.run(way, path, *words, limit=120, accept=range(-64, 256))
            found |= {f"{name}/{test}": end for test, end in
                      re.findall(r"^test (\S+)(?: - should panic)? \.\.\. (\w+)", text,
                                 re.MULTILINE)}
        return found

    def all(self, ways, way):
        """All of the files."""
        return self._run(ways, way, "[tuni]*_*-*")

    def one(self, ways, way, name):
        """One test, alone."""
        file, _, test = name.partition("/")
        return self._run(ways, way, f"{file}-*", "--exact", test).get(name, "nothing")


def groups():
    """Many of these tests have limits of their own: they run alone."""
    suites = {f"python.{name}": (Python(name, limit), 3 * limit)
              for name, limit in _PYTHON.items()}
    suites["libuv"] = (Uv(), 1500)
    suites["tokio"] = (Tokio(), 900)
    suites |= {f"libevent.{name}": (Event(name), 1500) for name in _BACK_ENDS}
    return [Group(family, [Case(f"{family}.{name}", suite.compare, limit, slow=True)
                           for name, (suite, limit) in suites.items()], kind, weight=ALONE)
            for family, kind in (("sockets.suites", sockets.Ways),
                                 ("carry.suites", carry.Carried))]
