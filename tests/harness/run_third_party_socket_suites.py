"""Runs third-party test suites over sockets, and reads what each test gave."""

import re
import shutil

from . import process, staging
from .case import Failure, Skip

_FETCHED = staging.BUILT / "suites"
# Of nobody, who is known.
_UID = 65534
# libuv's tests that are about something else than sockets and processes would only cost time.
_UV = re.compile(r"tcp|pipe|ipc|poll|listen|accept|connect|shutdown|close|spawn|fork|signal|embed|"
                 r"loop|udp|getaddrinfo|getnameinfo|osx|handle_fileno|fd|stream|active|ref|idle|"
                 r"timer|read|write|delayed|connection|callback|socket|emfile|semaphore|watcher")
# libevent's, by the back end that it uses.
BACK_ENDS = {"epoll": [], "poll": ["EVENT_NOEPOLL=1"],
              "select": ["EVENT_NOEPOLL=1", "EVENT_NOPOLL=1"]}

_ENDS = re.compile(r"(?:\.\.\. |^)(ok|skipped|FAIL|ERROR|expected failure|"
                   r"unexpected success)\b",
                   re.MULTILINE)
# Seconds for a unit of Redis': on a busy machine the longest takes three hundred.
_LONGEST = 900
# Of Redis, those whose tests are about connections; of nginx, by the beginnings of their names.
_REDIS = ("unit/auth", "unit/protocol", "unit/networking", "unit/pubsub", "unit/multi",
          "unit/querybuf", "unit/obuf-limits", "unit/limits", "unit/client-eviction",
          "unit/introspection", "unit/wait", "unit/replybufsize", "unit/scripting",
          "unit/type/list", "integration/redis-cli", "integration/redis-benchmark",
          "integration/replication-2", "integration/replication-3", "integration/replication-4",
          "integration/block-repl", "integration/failover")
_NGINX = re.compile(r"(access_log|body|fastcgi_b|h2|http_(?!include|error)|limit|not_modified|"
                    r"post_|proxy|range|realip|request_id|send|upstream|worker)\w*\.t$")
# LTP's that are about what the library stands before; locks of files, what only looks for races in
# the kernel, and the same again for a 32-bit `off_t`, would only cost time.
_LTP = re.compile(r"(?!fcntl(1[1-9]|2[0-2]|3[2-68])|(bind06|sendmsg03|setsockopt0[67])$|.*_64$)"
                  r"(accept|bind|close|connect|dup|epoll|fcntl|getpeername|getsock|listen|poll|"
                  r"ppoll|pselect|read|recv|select|send|setsockopt|shutdown|sock|splice|write)")


def fetched(name):
    """The folder of what was fetched."""
    if not (_FETCHED / name / "complete").exists():
        raise Skip(f"{name} is not here: make soak fetches it")
    return _FETCHED / name


class Suite:
    """Tests by name: what all of them give (`all(ways, way)`), or one (`one(ways, way, name)`)."""


class Python(Suite):
    """Modules of CPython's own tests, or of `package`'s, which was fetched."""

    def __init__(self, limit, *modules, package=""):
        self.limit, self.modules, self.package = limit, modules, package

    def _run(self, ways, way, *names):
        place = ["env", f"PYTHONPATH={fetched(self.package)}"] if self.package else []
        text = ways.run(way, *place, "/usr/bin/python3", "-B", "-m", "unittest", "-v", *names,
                        limit=self.limit, accept=range(-64, 256))
        if re.search(r"No module named '?test", text):
            raise Skip("libpython3-testsuite is not installed")
        # A test's name, maybe a line about it, whatever it prints, and what became of it.
        parts = re.split(r"^test\w+ \((\S+)\)", text, flags=re.MULTILINE)
        return {name: " ".join(sorted(set(_ENDS.findall(said))))
                for name, said in zip(parts[1::2], parts[2::2])}

    def all(self, ways, way):
        """All of it."""
        return self._run(ways, way, *self.modules)

    def one(self, ways, way, name):
        """One test."""
        return self._run(ways, way, name).get(name, "nothing")


class Uv(Suite):
    """libuv's: each is a process, which may start others."""

    def _run(self, ways, way, *words):
        """Not as root, which it does not like; in a folder where it may write."""
        folder = ways.folder / "libuv"
        if not folder.exists():
            built = fetched("libuv1")
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
        self.settings = BACK_ENDS[back_end]

    def _run(self, ways, way, *names):
        program = fetched("libevent") / "build" / "bin" / "regress"
        text = ways.run(way, "env", *self.settings, program, *names, limit=500,
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
        programs = [path for path in sorted((fetched("tokio") / "built/debug/deps").glob(pattern))
                    if not path.suffix]
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


def _as_nobody(ways, *words):
    """The words of a program that does not like to be root, in a folder where it may write."""
    ways.folder.chmod(0o755)
    return ["setpriv", f"--reuid={_UID}", f"--regid={_UID}", "--clear-groups", *words]


def _copied(ways, name):
    """What was fetched, in the folder of a run, where it may be written to."""
    folder = ways.folder / name
    if not folder.exists():
        shutil.copytree(fetched(name), folder, symlinks=True)
        process.run(["chown", "-R", f"{_UID}:{_UID}", folder])
    return folder


class Redis(Suite):
    """Redis' own, in Tcl: servers and clients all have the library. A test is UNIT: NAME."""

    def _run(self, ways, way, unit, *words):
        folder = _copied(ways, "redis")
        # Which ends its servers, too, if they take too long.
        ends = ["timeout", "--signal=KILL", _LONGEST]
        text = ways.run(way, *_as_nobody(ways, "env", "-C", folder, *ends, "tclsh",
                                         "tests/test_helper.tcl", "--clients", 1, "--single",
                                         unit, *words),
                        limit=_LONGEST + 60, accept=range(-64, 256))
        text = re.sub(r"\x1b\[[\d;]*m", "", text)
        found = {}
        for how, name in re.findall(r"\[(ok|err|exception|ignore|timeout)\]: (.*)", text):
            name = re.sub(r" \(\d+ ms\)$| in tests/.*", "", name)
            found[f"{unit}: {name}"] = how
        return found

    def all(self, ways, way):
        """Unit by unit, of those that this release has."""
        tests = _copied(ways, "redis") / "tests"
        found = {}
        for unit in _REDIS:
            if (tests / f"{unit}.tcl").exists():
                found |= self._run(ways, way, unit)
        return found

    def one(self, ways, way, name):
        """The unit's, if it cannot be asked for by its name."""
        unit, _, test = name.partition(": ")
        return self._run(ways, way, unit, "--only", test).get(name, "nothing")


class Nginx(Suite):
    """nginx-tests, with the nginx that is installed: a test is FILE NUMBER."""

    def _run(self, ways, way, file):
        folder = _copied(ways, "nginx_tests")
        try:
            text = ways.run(way, *_as_nobody(
                ways, "env", "-C", folder, "TEST_NGINX_BINARY=/usr/sbin/nginx", "TMPDIR=/tmp",
                "perl", "-Ilib", file), limit=90, accept=range(-64, 256))
        except Failure as late:
            return {f"{file} end": str(late).splitlines()[0]}
        # What is to be done there may pass or not.
        return {f"{file} {number}": "todo" if "# TODO" in more else how for how, number, more in
                re.findall(r"^(ok|not ok) (\d+)(.*)$", text, re.MULTILINE)}

    def all(self, ways, way):
        """File by file."""
        found = {}
        for path in sorted(_copied(ways, "nginx_tests").glob("*.t")):
            if _NGINX.match(path.name):
                found |= self._run(ways, way, path.name)
        return found

    def one(self, ways, way, name):
        """That of its file."""
        return self._run(ways, way, name.split()[0]).get(name, "nothing")


class Ltp(Suite):
    """LTP's cases of sockets: each is a program, which counts its checks."""

    def all(self, ways, way):
        """Each by itself."""
        programs = [path for path in sorted(fetched("ltp").glob("testcases/kernel/syscalls/*/*"))
                    if _LTP.match(path.name) and not path.suffix and path.stat().st_mode & 0o111
                    and path.is_file()]
        return {path.name: self.one(ways, way, path.name) for path in programs}

    def one(self, ways, way, name):
        """Its counts."""
        program = next(fetched("ltp").glob(f"testcases/kernel/syscalls/*/{name}"))
        try:
            text = ways.run(way, "env", "LTP_COLORIZE_OUTPUT=n", f"TMPDIR={ways.folder}",
                            f"PATH={program.parent}:/usr/sbin:/usr/bin:/sbin:/bin",
                            "LTP_TIMEOUT_MUL=2", "LTP_RUNTIME_MUL=0.2", program, limit=150,
                            accept=range(-64, 256))
        except Failure as late:
            return str(late).splitlines()[0]
        counts = re.findall(r"^(passed|failed|broken|skipped) +(\d+)$", text, re.MULTILINE)
        if not counts:
            counts = [(word, text.count(word)) for word in ("TPASS", "TFAIL", "TBROK", "TCONF")]
        good = "ok" if int(counts[0][1]) and not int(counts[1][1]) else "not"
        return " ".join([good, *(f"{word} {count}" for word, count in counts)])
