"""Stages what is tested: builds it once and copies it to where every user may read it."""

import os
import pathlib
import shutil
import tempfile

from . import process
from .case import Failure

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests" / "programs"
LIBRARY = ROOT / "dist" / "lib" / "libibverbs.so.1"
BUILT = ROOT / "target" / "tests"
_SESSION = ROOT / "rnic" / "session" / "src"

# Programs that are also built with AddressSanitizer. The library's copies into and out of the
# program's memory go through memcpy, which the sanitizer checks.
_UNDER_ADDRESS_SANITIZER = ["hostile_peer", "remote_keys"]
_UNDER_THREAD_SANITIZER = ["loopback_qp"]

# Has a library of Omniverb's own beside it, and so is linked with the library under test.
_WITH_SIBLING = "sibling_library"
# Calls of rdma_cm, too.
_WITH_CONNECTIONS = ["rdma_cm_steps", "ece", "hostile_gateway", "message_before_disconnect"]
SIBLING = PROGRAMS / "sibling"
_BUNDLED = PROGRAMS / "bundled"

# Of the second API: its tests, and its examples.
_DMA = PROGRAMS / "dma_api"
_DMA_EXAMPLES = ROOT / "app" / "dma" / "examples"

_COMMON = ["common.c", "common_processes.c", "commanded_qp_process.c"]
_FLAGS = ["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"]


# For cargo: builds of tests are linted, too, so that a second build, of `cargo clippy`, is not
# needed. Others than these have other flags, and would build all crates anew.
LINTED = {**os.environ, "RUSTFLAGS": "-D warnings", "RUSTC_WORKSPACE_WRAPPER": "clippy-driver"}


def build_programs():
    """Compiles tests/programs/*.c against the system's <infiniband/verbs.h>."""
    out = BUILT / "programs"
    out.mkdir(parents=True, exist_ok=True)
    newest = max(p.stat().st_mtime for p in PROGRAMS.glob("**/*.[ch]") if p.parent != _DMA)
    build_sibling(out)
    build_dma(out)
    build_bundled(out / "bundled")
    common = [PROGRAMS / name for name in _COMMON]
    for source in program_sources():
        binary = out / source.stem
        if binary.exists() and binary.stat().st_mtime > newest:
            continue
        verbs = ["-libverbs"]
        if source.stem == _WITH_SIBLING:
            verbs = [out / "libsibling.so", LIBRARY, "-Wl,-rpath,$ORIGIN"]
        elif source.stem in _WITH_CONNECTIONS:
            verbs = ["-lrdmacm", "-libverbs"]
        process.run(["gcc", *_FLAGS, "-o", binary, source, *common, *verbs, "-lm"], limit=120)
    for name in _UNDER_ADDRESS_SANITIZER:
        process.run(["gcc", *_FLAGS, "-fsanitize=address", "-fno-omit-frame-pointer", "-o",
                     out / f"{name}-asan", PROGRAMS / f"{name}.c", *common, "-libverbs", "-lm"],
                    limit=120)
    for name in _UNDER_THREAD_SANITIZER:
        process.run(["gcc", *_FLAGS, "-fsanitize=thread", "-o", out / f"{name}-tsan",
                     PROGRAMS / f"{name}.c", *common, "-libverbs", "-lm"], limit=120)
    return out


def build_dma(out):
    """The programs over omniverb/dma.h: as they are found, with dma_ in front."""
    common = [PROGRAMS / name for name in _COMMON]
    header = ["-I", ROOT / "app" / "dma" / "include"]
    library = ["-L", LIBRARY.parent, "-lomniverb_dma", "-lrdmacm", "-libverbs", "-lm"]
    for source in [*_DMA.glob("*.c"), *_DMA_EXAMPLES.glob("*.c")]:
        binary = out / f"dma_{source.stem}"
        newest = max(p.stat().st_mtime for p in (source, *_DMA.glob("*.h"), LIBRARY,
                                                 PROGRAMS / "common.h"))
        if not binary.exists() or binary.stat().st_mtime < newest:
            helpers = common if source.parent == _DMA else []
            process.run(["gcc", *_FLAGS, *header, "-o", binary, source, *helpers, *library],
                        limit=120)


def build_sibling(out):
    """A sibling library that reaches libibverbs.so.1 through its private node, and one of a later
    release."""
    shared = ["gcc", *_FLAGS, "-fPIC", "-shared"]
    process.run([*shared, "-o", out / "libsibling.so", "-Wl,-soname,libsibling.so", "-I",
                 ROOT / "app" / "ibverbs" / "include", SIBLING / "sibling.c", LIBRARY])
    owner = BUILT / "owner_of_later_release.so"
    process.run([*shared, "-o", owner, "-Wl,-soname,libibverbs.so.1",
                 SIBLING / "owner_of_later_release.c",
                 f"-Wl,--version-script={SIBLING / 'owner_of_later_release.map'}"])
    process.run([*shared, "-o", out / "liblater.so", SIBLING / "library_of_later_release.c", owner])


def build_bundled(out):
    """A package with libraries of its own, as auditwheel makes wheels, and programs that use it."""
    libraries, package = out / "package.libs", out / "package"
    for folder in (libraries, package):
        folder.mkdir(parents=True, exist_ok=True)
    copy = libraries / "libibverbs-1de1263b.so.1.14.48.0"
    module, plain = libraries / "libmodule-0a1b2c3d.so", libraries / "libplain.so"
    shared = ["gcc", *_FLAGS, "-fPIC", "-shared", "-Wl,--no-as-needed"]
    beside, below = "-Wl,-rpath,$ORIGIN", "-Wl,-rpath,$ORIGIN/../package.libs"
    process.run([*shared, "-o", copy, f"-Wl,-soname,{copy.name}", _BUNDLED / "libibverbs_copy.c",
                 f"-Wl,--version-script={_BUNDLED / 'libibverbs_copy.map'}"])
    process.run([*shared, "-o", module, f"-Wl,-soname,{module.name}",
                 _BUNDLED / "wheel_module.c", copy, beside])
    process.run([*shared, "-o", plain, f"-Wl,-soname,{plain.name}", "-DPLAIN",
                 _BUNDLED / "wheel_module.c"])
    process.run([*shared, "-o", package / "extension.so", "-xc", "/dev/null", "-xnone", module,
                 below])
    program = ["gcc", *_FLAGS, "-Wl,-rpath,$ORIGIN/package.libs", _BUNDLED / "program.c"]
    process.run([*program, "-o", out / "opens", "-ldl"])
    process.run([*program, "-o", out / "linked", "-DLINKED", module, copy, "-ldl"])
    process.run([*program, "-o", out / "static", "-DSTATIC_COPY", "-ldl"])


def program_sources():
    """The C files that are programs."""
    return sorted(p for p in PROGRAMS.glob("*.c") if p.name not in _COMMON)


class Stage:
    """A folder under /tmp with a build (as dist/) and programs/, and room for sockets."""

    def __init__(self, with_programs=True, dist=ROOT / "dist"):
        if not (dist / "bin" / "omniverbd").exists():
            raise Failure(f"{dist}/bin/omniverbd is missing: run `make build`")
        if (dist / ".unfinished").exists():
            raise Failure(f"{dist} has parts of two builds: `cargo xtask dist` is at work there, "
                          "or has failed")
        self.path = pathlib.Path(tempfile.mkdtemp(prefix="omniverb-test-"))
        os.chmod(self.path, 0o755)
        self.dist = self.path / "dist"
        self.programs = self.path / "programs"
        shutil.copytree(dist, self.dist, symlinks=True)
        if with_programs:
            shutil.copytree(build_programs(), self.programs)
            for script in PROGRAMS.glob("*.py"):
                shutil.copy(script, self.programs)
            shutil.copytree(_SESSION, self.programs / "session")  # for daemon_protocol.py
        else:
            self.programs.mkdir()
        process.run(["chmod", "-R", "a+rX", self.path])

    def folder(self, name, uid=0, mode=0o755):
        """A fresh folder that belongs to `uid`."""
        path = pathlib.Path(tempfile.mkdtemp(prefix=name + "-", dir=self.path))
        os.chmod(path, mode)
        os.chown(path, uid, uid)
        return path

    def close(self):
        """Removes everything."""
        shutil.rmtree(self.path, ignore_errors=True)
