"""Real OCI containers, run by crun, with the privileges a container gets by default.

A container has its own network, mount, pid, ipc and uts namespaces, the host's /usr read-only as
its root file system, dist/ at /opt/omniverb and the folder of the daemon's socket at
/run/omniverb. It gets no device, no added capability, docker's default memlock limit and a
seccomp profile that refuses what docker's refuses (seccomp_profiles.py).
"""

import itertools
import json
import os
import resource
import shutil
import signal

from . import process, seccomp_profiles
from .case import Failure
from .daemon import SOCKET_NAME, Daemon
from .network import Namespace, Switch

_CAPABILITIES = ["CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID",
                 "SETUID", "SETFCAP", "SETPCAP", "NET_BIND_SERVICE", "SYS_CHROOT", "KILL",
                 "AUDIT_WRITE"]
_LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64"}
_FOLDERS = ["usr", "proc", "dev", "sys", "tmp", "run", "etc", "opt/omniverb", "opt/programs"]
_ETC = {
    "passwd": "root:x:0:0:root:/tmp:/bin/sh\nnobody:x:65534:65534:nobody:/tmp:/usr/sbin/nologin\n",
    "group": "root:x:0:\nnogroup:x:65534:\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "hosts": "127.0.0.1 localhost\n::1 localhost\n",
}
# Goes on if what it waits for is killed, and ends if that cannot be started any more: a run that
# was killed leaves containers without their files, which must not try for ever.
_INIT = ("trap exit TERM; "
         "while :; do sleep 3600 & wait $!; case $? in 0 | 137 | 143) ;; *) exit ;; esac; done")
_numbers = itertools.count(1)


class Container:
    """One running container, plugged into `switch` with `address` (and `more` of them) unless that
    is None."""

    def __init__(self, stage, name, socket_folder, switch=None, address=None,
                 strict=False, more=()):
        self.name = f"omniverb-{name}-{os.getpid()}-{next(_numbers)}"
        self.hostname = name
        self.address = address.partition("/")[0] if address else None
        self.bundle = stage.folder("bundle")
        self.state = stage.folder("crun", mode=0o700)
        self.namespace = Namespace()
        self.created = False
        try:
            if switch:
                switch.plug(self.namespace, address, *more)
            self._write_bundle(stage, socket_folder, strict)
            self._create()
        except BaseException:
            self.close()
            raise

    def _create(self):
        log = self.bundle / "crun.log"
        line = [*self._crun(), "run", "--detach", "--bundle", self.bundle,
                "--pid-file", self.bundle / "pid", self.name]
        with open(log, "wb") as output:  # the container keeps it, so it cannot be a pipe
            status = process.start(line, stdout=output, stderr=output).wait(40)
        if status:
            raise Failure(f"crun run: {process.how(status)}\n{log.read_text(errors='replace')}")
        self.created = True

    def _crun(self):
        return [*_without_hybrid_cgroups(), "crun", f"--root={self.state}",
                "--cgroup-manager=disabled"]

    def _write_bundle(self, stage, socket_folder, strict):
        root = self.bundle / "rootfs"
        for folder in _FOLDERS:
            (root / folder).mkdir(parents=True)
        for link, target in _LINKS.items():
            if os.path.isdir(f"/{target}"):
                (root / link).symlink_to(target)
        for name, text in _ETC.items():
            (root / "etc" / name).write_text(text)
        config = configuration(self.hostname, self.namespace.path, [
            ("/usr", "/usr", "ro"),
            (stage.dist, "/opt/omniverb", "ro"),
            (stage.programs, "/opt/programs", "ro"),
            (socket_folder, "/run/omniverb", "ro"),
        ], seccomp_profiles.profile(strict))
        self.process_spec = config["process"]
        (self.bundle / "config.json").write_text(json.dumps(config, indent=1))

    @property
    def pid(self):
        """The container's first process, as the host sees it."""
        return int((self.bundle / "pid").read_text())

    def command(self, *argv, pid_file=None, plain=False):
        """The command line that runs `argv` inside, under `omniverb run` unless `plain`."""
        runner = [] if plain else ["/opt/omniverb/bin/omniverb", "run", "--"]
        # By default `crun exec` leaves out the limits and no-new-privileges.
        spec = {**self.process_spec, "cwd": "/tmp", "args": runner + [str(a) for a in argv]}
        file = self.bundle / f"process-{next(_numbers)}.json"
        file.write_text(json.dumps(spec))
        pid = [f"--pid-file={pid_file}"] if pid_file else []
        return [*self._crun(), "exec", *pid, f"--process={file}", self.name]

    def start(self, *argv, plain=False, **options):
        """Starts a program inside; see `command`."""
        return process.start(self.command(*argv, plain=plain), **options)

    def run(self, *argv, limit=20.0, accept=(0,), plain=False):
        """Runs a program inside and returns its output."""
        return process.run(self.command(*argv, plain=plain), limit=limit, accept=accept)

    def kill_all(self):
        """kill -9 to everything inside except the first process."""
        for pid in process.descendants(os.getpid()):
            if pid != self.pid and _pid_namespace(pid) == _pid_namespace(self.pid):
                os.kill(pid, signal.SIGKILL)

    def close(self):
        """Ends the container and removes every trace of it."""
        try:
            if self.created:
                process.run([*self._crun(), "delete", "--force", self.name])
        finally:
            self.namespace.close()
            shutil.rmtree(self.bundle, ignore_errors=True)
            shutil.rmtree(self.state, ignore_errors=True)


def _without_hybrid_cgroups():
    """crun refuses hosts that have both cgroup versions, even if told not to touch cgroups."""
    if not os.path.exists("/sys/fs/cgroup/unified/cgroup.controllers"):
        return []
    hide = 'mount -t tmpfs tmpfs /sys/fs/cgroup && exec "$@"'
    return ["unshare", "--mount", "--propagation", "slave", "--", "sh", "-c", hide, "sh"]


def configuration(hostname, network, binds, filters):
    """The OCI configuration: runtime-spec 1.0."""
    names = [f"CAP_{name}" for name in _CAPABILITIES]
    files = min(65536, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    plain = ["nosuid", "noexec", "nodev"]
    mounts = [
        _mount("/proc", "proc", plain),
        _mount("/dev", "tmpfs", ["nosuid", "strictatime", "mode=755", "size=65536k"]),
        _mount("/dev/pts", "devpts", ["nosuid", "noexec", "newinstance", "ptmxmode=0666",
                                      "mode=0620", "gid=5"]),
        _mount("/dev/shm", "tmpfs", [*plain, "mode=1777", "size=65536k"]),
        _mount("/dev/mqueue", "mqueue", plain),
        _mount("/sys", "sysfs", [*plain, "ro"]),
        _mount("/tmp", "tmpfs", ["nosuid", "nodev", "mode=1777"]),
        _mount("/run", "tmpfs", ["nosuid", "nodev", "mode=755"]),
    ]
    mounts += [{"destination": inside, "type": "bind", "source": str(outside),
                "options": ["rbind", "nosuid", "nodev", mode]} for outside, inside, mode in binds]
    return {
        "ociVersion": "1.0.0",
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": ["/bin/sh", "-c", _INIT],
            "env": ["PATH=/opt/omniverb/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin",
                    "LANG=C.UTF-8", "HOME=/tmp", f"OMNIVERB_SOCKET=/run/omniverb/{SOCKET_NAME}"],
            "cwd": "/",
            "capabilities": {"bounding": names, "effective": names, "permitted": names},
            "rlimits": [{"type": "RLIMIT_MEMLOCK", "hard": 65536, "soft": 65536},
                        {"type": "RLIMIT_NOFILE", "hard": files, "soft": files}],
            "noNewPrivileges": True,
        },
        "root": {"path": "rootfs", "readonly": True},
        "hostname": hostname,
        "mounts": mounts,
        "linux": {
            "namespaces": [{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"},
                           {"type": "network", "path": network}],
            "maskedPaths": ["/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
                            "/proc/timer_list", "/proc/sched_debug", "/proc/scsi",
                            "/sys/firmware"],
            "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys",
                              "/proc/sysrq-trigger"],
            "seccomp": filters,
        },
    }


def _mount(destination, kind, options):
    return {"destination": destination, "type": kind, "source": kind, "options": options}


def _pid_namespace(pid):
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return None


class Pair:
    """Two containers on one switch, and their own daemon."""

    def __init__(self, stage, count=2, daemon_arguments=(), strict=False, mtu=1500,
                 daemon_enter=()):
        self.stage, self.strict = stage, strict
        self.parts = []
        try:
            self.switch = self._keep(Switch(mtu))
            self.daemon = self._keep(Daemon(stage, enter=daemon_enter, arguments=daemon_arguments))
            self.containers = [self.add(number) for number in range(1, count + 1)]
        except BaseException:
            self.close()
            raise
        self.server, self.client = self.containers[0], self.containers[-1]

    def _keep(self, part):
        self.parts.append(part)
        return part

    def add(self, number, switch=None):
        """Another container, with the address 10.77.0.`number`."""
        return self._keep(Container(self.stage, f"c{number}", self.daemon.folder,
                                    switch or self.switch, f"10.77.0.{number}/24",
                                    self.strict))

    def close(self):
        """Ends everything, the newest first."""
        for part in reversed(self.parts):
            part.close()
        self.parts = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
