"""Builds what a test guest boots: Debian's kernel, and an initial file system of what is installed.

Both are made when they are first needed and kept in target/: the kernel unpacked (it boots in half
the time where the processor is emulated), and an archive of the guest's first process
(tests/guest/init.c), kernel modules, busybox, and the programs asked for with their libraries."""

import gzip
import hashlib
import lzma
import os
import pathlib
import re
import shutil
import stat
import struct
import subprocess

from . import process, staging
from .case import Skip

BUILT = staging.BUILT / "guest"
_FETCHED = staging.BUILT / "kernel"  # where tests/guest/fetch-kernel puts one
_RXE = "kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko"
# Two spare ways to a CRC-32; newer kernels have neither module and need none.
_OPTIONAL_MODULES = ["crc32_generic", "crc32_pclmul"]
_MODULES = ["virtio_pci", "virtio_console", "virtio_net"]
RXE = (*_OPTIONAL_MODULES, "rdma_rxe", "ib_uverbs", "rdma_ucm")
DAX = ("virtio_pmem", "nd_pmem", "dax_pmem", "device_dax")
# For a guest whose root is the host's.
ROOT = ("9pnet_virtio", "9p", "overlay")
_APPLETS = ["cat", "dmesg", "env", "false", "free", "grep", "ls", "mkdir", "ping", "ps", "sh",
            "sleep", "true"]


class Kernel:
    """An installed or unpacked kernel that has rdma_rxe; that of another release of Debian, if that
    was fetched."""

    def __init__(self, suite=None):
        found = []
        roots = [BUILT.with_name(f"kernel-{suite}")] if suite else [pathlib.Path("/"), _FETCHED]
        for root in roots:
            for image in root.glob("boot/vmlinuz-*"):
                version = image.name.partition("-")[2]
                if list(root.glob(f"lib/modules/{version}/{_RXE}*")):
                    found.append((_natural(version), version, root, image))
        if not found:
            raise Skip(f"no kernel {f'of {suite}' if suite else 'with rdma_rxe'}: the package "
                       "linux-image-amd64 cannot be had")
        _, self.version, self.root, self.image = max(found)

    def bootable(self):
        """The file to give to QEMU."""
        target = BUILT / f"vmlinux-{self.version}"
        if not _newer(target, self.image):
            unpacked = _decompressed(self.image.read_bytes())
            if unpacked is None:
                return self.image
            BUILT.mkdir(parents=True, exist_ok=True)
            _replace(target, unpacked)
        return target

    def modules(self, more):
        """Files to load for what all guests need and for `more`, in order; with each, whether
        loading it may fail."""
        if not (self.root / "lib/modules" / self.version / "modules.dep").exists():
            process.run(["depmod", "-b", self.root, self.version], limit=60)
        nothing = BUILT / "no-configuration"
        nothing.mkdir(parents=True, exist_ok=True)
        found = {}
        for name in (*_MODULES, *more):
            optional = name in _OPTIONAL_MODULES
            text = process.run(["modprobe", "-C", nothing, "-d", self.root, "-S", self.version,
                                "--show-depends", name], accept=(0, 1) if optional else (0,))
            for path in re.findall(r"^insmod (\S+)", text, re.MULTILINE):
                found.setdefault(pathlib.Path(path), optional)
        return found


def _decompressed(image):
    """The ELF file inside a bzImage, by the offsets of its setup header; None: packed in a way
    that needs help."""
    setup = (image[0x1F1] or 4) + 1
    offset, length = struct.unpack_from("<II", image, 0x248)
    packed = image[setup * 512 + offset:][:length]
    if packed.startswith(b"\xfd7zXZ"):
        return lzma.LZMADecompressor().decompress(packed)
    if packed.startswith(b"\x1f\x8b"):
        return gzip.decompress(packed[:-4])  # behind it stands the length
    if packed.startswith(b"\x28\xb5\x2f\xfd") and shutil.which("zstd"):
        return subprocess.run(["zstd", "-dcq"], input=packed[:-4], capture_output=True,
                              check=True).stdout
    return None


def archive(programs, modules=RXE, purpose="rxe", kernel=None):
    """Makes, or finds, the initial file system with `programs`: paths there -> files here. They
    are taken along with the libraries they load. Of each purpose one is kept. Returns its path."""
    kernel = kernel or Kernel()
    init = first_process()
    files = {"/init": init, "/bin/busybox": shutil.which("busybox")}
    links = {f"/bin/{name}": "busybox" for name in _APPLETS}
    order = []
    for path, optional in kernel.modules(modules).items():
        name = path.name.removesuffix(".xz")
        files[f"/modules/{name}"] = path
        order.append(f"-{name}" if optional else name)
    for inside, outside in programs.items():
        files[inside] = outside
        for library in _libraries(outside):
            files[library] = library
    key = hashlib.sha256(repr((order, links)).encode())
    for inside, outside in sorted(files.items()):
        if outside is None:
            raise Skip(f"{inside} is not installed")
        state = os.stat(outside)
        key.update(f"{inside} {outside} {state.st_size} {state.st_mtime_ns}\n".encode())
    key.update(pathlib.Path(__file__).read_bytes())
    target = BUILT / f"archive-{purpose}-{key.hexdigest()[:16]}"
    if not target.exists():
        for old in BUILT.glob(f"archive-{purpose}-*"):
            old.unlink(missing_ok=True)
        _write(target, files, links, "".join(f"{name}\n" for name in order))
    return target


def _write(target, files, links, order):
    entries = Archive()
    entries.text("/modules/order", order)
    for inside, outside in files.items():
        data = pathlib.Path(outside).read_bytes()
        entries.file(inside, lzma.decompress(data) if str(outside).endswith(".ko.xz") else data)
    for inside, aim in links.items():
        entries.link(inside, aim)
    for folder in ("/proc", "/sys", "/dev", "/tmp", "/etc"):
        entries.folder(folder)
    entries.text("/etc/passwd", "root:x:0:0:root:/tmp:/bin/sh\n")
    entries.text("/etc/hosts", "127.0.0.1 localhost\n")
    entries.text("/etc/nsswitch.conf", "passwd: files\nhosts: files\n")
    _replace(target, entries.finish())


class Archive:
    """A cpio archive as the kernel reads it ("newc")."""

    def __init__(self):
        self.parts, self.names = [], set()

    def folder(self, name):
        """A folder, and those it is in."""
        if name in ("", "/") or name in self.names:
            return
        self.folder(os.path.dirname(name))
        self._add(name, stat.S_IFDIR | 0o755, b"")

    def file(self, name, data):
        """A file that may be run."""
        self.folder(os.path.dirname(name))
        self._add(name, stat.S_IFREG | 0o755, data)

    def text(self, name, text):
        """A text file."""
        self.file(name, text.encode())

    def link(self, name, aim):
        """A symbolic link."""
        self.folder(os.path.dirname(name))
        self._add(name, stat.S_IFLNK | 0o777, aim.encode())

    def _add(self, name, mode, data):
        self.names.add(name)
        name = name.lstrip("/").encode() + b"\0"
        # Magic, inode, mode, uid, gid, links, time, size, two devices, length of the name, sum.
        words = [len(self.parts) + 1, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name), 0]
        header = b"070701" + b"".join(b"%08x" % word for word in words) + name
        self.parts.append(_padded(header) + _padded(data))

    def finish(self):
        """The whole."""
        self._add("TRAILER!!!", 0, b"")
        return b"".join(self.parts)


def _padded(data):
    return data + b"\0" * (-len(data) % 4)


def first_process():
    """The program of tests/guest/init.c."""
    return compiled("init")


def compiled(name):
    """A program of tests/guest/, which needs nothing of what is there."""
    source, target = staging.ROOT / "tests" / "guest" / f"{name}.c", BUILT / name
    if not _newer(target, source):
        BUILT.mkdir(parents=True, exist_ok=True)
        process.run(["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-static", "-o",
                     target, source], limit=60)
    return target


def _libraries(program):
    """The shared libraries of a program, its loader among them. libgcc_s is loaded late, by
    threads that end."""
    text = process.run(["ldd", program], accept=(0, 1))
    found = re.findall(r"(/\S+) \(0x", text)
    return found + [path for path in ("/lib/x86_64-linux-gnu/libgcc_s.so.1",)
                    if found and os.path.exists(path)]


def _newer(target, source):
    return target.exists() and target.stat().st_mtime > source.stat().st_mtime


def _replace(target, data):
    # Several may make the same at the same time.
    partial = target.with_name(f"part-{os.getpid()}-{target.name}")
    partial.write_bytes(data)
    partial.rename(target)


def newest_emulator():
    """The words that start the QEMU of a later release of Debian, which has its own libraries
    (tests/guest/fetch-qemu)."""
    root = BUILT.with_name("qemu")
    program = root / "usr/bin/qemu-system-x86_64"
    if not program.exists():
        raise Skip("no newer QEMU: see tests/guest/fetch-qemu")
    libraries = root / "usr/lib/x86_64-linux-gnu"
    return [libraries / "ld-linux-x86-64.so.2", "--library-path", libraries, program,
            *(word for name in ("qemu", "seabios", "ovmf")
              for word in ("-L", root / "usr/share" / name))]


def _natural(version):
    return [int(word) if word.isdigit() else word for word in re.split(r"(\d+)", version)]
