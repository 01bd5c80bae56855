"""Runs a virtual machine with Linux's own software RNIC, rdma_rxe.

QEMU runs in the switch's namespace. Programs are started through a virtio-serial port whose other
end is tests/guest/init.c, where the protocol is described; several may run at once."""

import contextlib
import glob
import os
import select
import shutil
import signal
import socket
import subprocess
import tempfile
import time

from . import guest_image, process
from .case import Failure, Skip

_PROGRAMS = ["ibv_devinfo", "ibv_rc_pingpong", "ibv_uc_pingpong", "ibv_ud_pingpong",
             "ibv_srq_pingpong", "ib_send_lat", "ib_send_bw", "ib_write_lat", "ib_write_bw",
             "ib_read_lat", "ib_read_bw", "ib_atomic_lat", "ib_atomic_bw", "rping", "ucmatose",
             "udaddy", "cmtime", "mckey", "ip", "rdma", "tc"]
_PROVIDER = ["/usr/lib/*/libibverbs/librxe-*.so", "/etc/libibverbs.d/rxe.driver"]
_KERNEL_OPTIONS = ("console=ttyS0 panic=-1 quiet nokaslr mitigations=off no_timer_check "
                   "noreplace-smp cryptomgr.notests audit=0 8250.nr_uarts=1")
_EMULATED = ["-accel", "tcg,thread=multi", "-cpu", "max"]
_KVM = ["-accel", "kvm", "-cpu", "max,-arch-capabilities"]
_KVM_IS_USELESS = guest_image.BUILT / "kvm-is-useless"
_KVM_LIMIT = 6.0
_GONE = "the guest is gone"


def installed(names):
    """Programs of this machine's for a guest's /bin: paths there -> files here."""
    found = {}
    for name in names:
        path = shutil.which(name)
        if not path:
            raise Skip(f"{name} is not installed")
        found[f"/bin/{name}"] = path
    return found


def programs(more=()):
    """What the guest's file system has: paths there -> files here. `more` goes to /opt/programs."""
    found = installed(_PROGRAMS)
    for pattern in _PROVIDER:
        found.update({path: path for path in glob.glob(pattern)})
    found.update({f"/opt/programs/{os.path.basename(path)}": path for path in more})
    return found


class Guest:
    """One running machine; the same surface for starting programs as a Container has."""

    boot_limit = 60.0
    kernel_words = ""

    def __init__(self, switch, archive, address, more_addresses=(), mtu=1500, processors=1,
                 before=(), memory=512, kernel=None, emulator=None):
        emulator = emulator or [shutil.which("qemu-system-x86_64")]
        if not emulator[0]:
            raise Skip("no qemu-system-x86_64: the package qemu-system-x86 cannot be installed")
        self.address = address.partition("/")[0]
        self.network = ([address, *more_addresses], mtu)
        self.folder = tempfile.TemporaryDirectory(prefix="omniverb-guest-")
        self.rest, self.programs, self.ready = b"", {}, False
        self.link = self.machine = None
        tap = _plug(switch, mtu)
        # A machine that stands still for half a second is dead to those who talk to it.
        common = [*switch.enter(), "nice", "-n", "-10", *before, *emulator, "-machine", "q35",
                  "-smp", str(processors), "-m", str(memory), "-nodefaults", "-display", "none",
                  "-no-reboot",
                  "-kernel", (kernel or guest_image.Kernel()).bootable(), "-initrd", archive,
                  "-append", f"{_KERNEL_OPTIONS} {self.kernel_words}",
                  "-serial", f"file:{self._file('console')}",
                  "-monitor", f"unix:{self._file('monitor')},server,nowait",
                  "-netdev", f"tap,id=net,ifname={tap},script=no,downscript=no",
                  "-device", f"virtio-net-pci,netdev=net,host_mtu={mtu},romfile=,"
                             f"mac=52:54:00:00:00:{switch.ports:02x}",
                  *self.devices()]
        try:
            self._boot(common)
            self._configure(*self.network)
            self._set_up()
        except BaseException:
            self.close()
            raise

    def devices(self):
        """What else it has, in QEMU's words."""
        return []

    def _file(self, name):
        return os.path.join(self.folder.name, name)

    def _boot(self, common):
        """With hardware virtualisation if that works, else emulated. Inside some virtual machines
        it can be had but stands still; that is remembered until `make clean`."""
        if os.access("/dev/kvm", os.R_OK | os.W_OK) and not _KVM_IS_USELESS.exists():
            try:
                self._switch_on([*common, *_KVM], _KVM_LIMIT)
                return
            except Failure as failure:
                print(f"without KVM: {failure}", flush=True)
                self._switch_off()
                _KVM_IS_USELESS.touch()
        self._switch_on([*common, *_EMULATED], self.boot_limit)

    def _switch_on(self, line, limit):
        started = time.monotonic()
        self.link, far = socket.socketpair()
        agent = ["-device", "virtio-serial-pci,id=serial",
                 "-chardev", f"socket,id=agent,fd={far.fileno()}",
                 "-device", "virtserialport,bus=serial.0,chardev=agent,name=omniverb.guest"]
        with far, open(self._file("errors"), "wb") as errors:
            self.machine = process.start([*line, *agent], stdout=errors, stderr=errors,
                                         pass_fds=[far.fileno()])
        self._await(started, limit)

    def _await(self, started, limit):
        while not self.ready:
            left = started + limit - time.monotonic()
            if left < 0:
                raise Failure(f"the guest has not booted in {limit:g} s\n{self.console()}\n"
                              f"{self.processors()}")
            self._take(left)
        print(f"the guest has booted in {time.monotonic() - started:.1f} s", flush=True)

    def reboot(self):
        """Boots it afresh in the same QEMU, if that was told so; whoever ran there is gone."""
        self.ready = False
        self.start("sh", "-c", "echo b > /proc/sysrq-trigger")
        # Emulated firmware reads kernel and initrd anew, which takes three times as long as QEMU.
        # On a busy machine an emulated processor has been seen to go round in circles then.
        try:
            self._await(time.monotonic(), 2 * self.boot_limit)
        except Failure as failure:
            print(failure, flush=True)
            self.tell_monitor("system_reset")
            self._await(time.monotonic(), 3 * self.boot_limit)
        for program in self.programs.values():
            if program.returncode is None:
                program.returncode = -signal.SIGKILL
        self._configure(*self.network)
        self._set_up()

    def _switch_off(self):
        if self.machine:
            process.kill(self.machine.pid)
            self.machine.wait()
            self.link.close()
            self.machine = self.link = None

    def _configure(self, addresses, mtu):
        self.run("ip", "link", "set", "lo", "up")
        self.run("ip", "link", "set", "eth0", "mtu", mtu, "up")
        for address in addresses:
            self.run("ip", "addr", "add", address, "dev", "eth0",
                     *(["nodad"] if ":" in address else []))

    def _set_up(self):
        self.run("rdma", "link", "add", "rxe0", "type", "rxe", "netdev", "eth0")
        process.until(lambda: "PORT_ACTIVE" in self.run("ibv_devinfo"), 10, "an active rxe0")

    def console(self):
        """What the guest's kernel has said, and QEMU."""
        text = ""
        for name in ("errors", "console"):
            if os.path.exists(self._file(name)):
                with open(self._file(name), encoding="utf-8", errors="replace") as file:
                    text += file.read()[-8000:]
        return text

    def tell_monitor(self, line):
        """What QEMU's monitor says to a line, within a second."""
        text = ""
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as monitor:
            monitor.settimeout(1)
            monitor.connect(self._file("monitor"))
            monitor.sendall(f"{line}\n".encode())
            while part := monitor.recv(4096):
                text += part.decode(errors="replace")
        return text

    def processors(self):
        """Where they are, as QEMU says; twice, a second apart."""
        line = "info status\ninfo registers\nx /8i $eip"
        text = self.tell_monitor(line) + self.tell_monitor(line)
        wanted = ("status", "RIP=", "EIP=", "0x", "CR0", "RAX", "EAX")
        return "\n".join(line for line in text.splitlines() if any(w in line for w in wanted))

    # ---- programs ----

    def start(self, *argv, plain=True, stdout=None, stderr=None):
        """Starts a program, whose output goes to the file `stdout`, stderr included."""
        del plain, stderr  # all programs here are plain
        number = len(self.programs) + 1
        words = b"".join(str(word).encode() + b"\0" for word in argv)
        program = self.programs[number] = Program(self, number, stdout)
        self.send(f"start {number} {len(words)}\n".encode() + words)
        return program

    def run(self, *argv, limit=20.0, accept=(0,), plain=True):
        """Runs a program and returns its output."""
        with tempfile.TemporaryFile("w+") as output:
            program = self.start(*argv, plain=plain, stdout=output)
            try:
                status = program.wait(limit)
            except subprocess.TimeoutExpired:
                program.kill()
                status = None
            output.seek(0)
            text = output.read()
        line = " ".join(map(str, argv))
        if status is None:
            raise Failure(f"in the guest, not done after {limit:g} s: {line}\n{text}")
        if status not in accept:
            raise Failure(f"in the guest, {process.how(status)}: {line}\n{text}")
        return text

    def listens(self, port):
        """Does anything listen on TCP `port`?"""
        text = self.run("cat", "/proc/net/tcp", "/proc/net/tcp6")
        words = [line.split() for line in text.splitlines()]
        return any(w[3] == "0A" and int(w[1].rpartition(":")[2], 16) == port
                   for w in words if w[0] != "sl")

    def send(self, request):
        """Hands a request to the guest."""
        try:
            self.link.settimeout(20)
            self.link.sendall(request)
        except OSError as error:
            raise Failure(f"{_GONE}: {error}\n{self.console()}") from None

    def pump(self, patience):
        """Takes in what the guest says, waiting for it for `patience` seconds at most."""
        if select.select([self.link], [], [], max(0.0, patience))[0]:
            self._take(0)

    def _take(self, patience):
        if not select.select([self.link], [], [], patience)[0]:
            return
        more = self.link.recv(1 << 20)
        if not more:
            raise Failure(f"{_GONE}\n{self.console()}")
        self.rest += more
        while self._message():
            pass

    def _message(self):
        """Carries out the first whole message that has come."""
        line, newline, body = self.rest.partition(b"\n")
        if not newline:
            return False
        word, number, value = line.decode().split()
        number, value = int(number), int(value)
        if word == "ready":
            self.ready = True
        elif word == "exit":
            self.programs[number].returncode = os.waitstatus_to_exitcode(value)
        elif len(body) < value:
            return False
        else:
            self.programs[number].print(body[:value])
            body = body[value:]
        self.rest = body
        return True

    def close(self):
        """Switches it off."""
        self._switch_off()
        print("--- the guest's console ---", self.console(), sep="\n", flush=True)
        self.folder.cleanup()


class Program:
    """A program in a guest, with what of Popen's surface the tests use."""

    def __init__(self, guest, number, output):
        self.guest, self.number, self.output = guest, number, output
        self.returncode = None

    def print(self, text):
        """Keeps what the program has printed."""
        if self.output is not None:
            self.output.flush()
            os.write(self.output.fileno(), text)

    def poll(self):
        """The exit status, if it has ended."""
        self.guest.pump(0)
        return self.returncode

    def wait(self, timeout=None):
        """Waits for it to end."""
        deadline = time.monotonic() + (timeout or 3600)
        while self.returncode is None:
            left = deadline - time.monotonic()
            if left <= 0:
                raise subprocess.TimeoutExpired(f"program {self.number} in the guest", timeout)
            self.guest.pump(left)
        return self.returncode

    def signal(self, number):
        """Sends a signal to it and to what it has started."""
        self.guest.send(f"signal {self.number} {int(number)}\n".encode())

    def kill(self):
        """kill -9, to it and to what it has started."""
        if self.poll() is None:
            self.signal(9)
            try:
                self.wait(10)
            except subprocess.TimeoutExpired:
                raise Failure(f"a program in the guest cannot be killed\n"
                              f"{self.guest.console()}") from None


def _plug(switch, mtu):
    """A tap device on the switch; its name."""
    switch.ports += 1
    name = f"port{switch.ports}"
    switch.ip("tuntap", "add", name, "mode", "tap")
    switch.ip("link", "set", name, "mtu", mtu)
    switch.ip("link", "set", name, "master", "bridge", "up")
    return name
