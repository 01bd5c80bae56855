#!/usr/bin/env python3
"""Builds the null device as a drop-in libibverbs.so.1.

In: null_verbs.c and the perftest programs installed here. Out: OUTPUT/libibverbs.so.1, which has
every versioned symbol those programs and the libraries they load import; what null_verbs.c does
not define becomes a stub that fails.
"""
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROGRAMS = ["ib_send_bw", "ib_send_lat", "ib_write_bw", "ib_write_lat"]
NODE = re.compile(r" U (\w+)@(IBVERBS_\w[\w.]*)")
OWN = re.compile(r"^(?:struct \w+ \*+|int |void |const char \*)(_?ibv_\w+)\(", re.MULTILINE)


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def imports():
    """{symbol: version node} over the programs and every library they load."""
    wanted = {}
    files = set()
    for program in PROGRAMS:
        path = output_of("sh", "-c", f"command -v {program}").strip()
        files.add(path)
        files.update(re.findall(r"=> (/\S+)", output_of("ldd", path)))
    for file in sorted(files):
        for name, node in NODE.findall(output_of("nm", "-D", file)):
            wanted[name] = node
    return wanted


def build(output):
    """Compiles into the folder `output`; returns the library's path."""
    output = Path(output)
    output.mkdir(parents=True, exist_ok=True)
    wanted = imports()
    own = set(OWN.findall((HERE / "null_verbs.c").read_text()))
    for name in own:
        wanted.setdefault(name, "IBVERBS_1.1")
    stubs = [f"long {name}(void);\nlong {name}(void) {{ return 95; }}\n"
             for name in sorted(wanted) if name not in own]
    head = "/* Generated: symbols nobody calls here. */\n"
    (output / "stubs.c").write_text(head + "".join(stubs))
    nodes = {}
    for name, node in wanted.items():
        nodes.setdefault(node, []).append(name)
    version_map = ""
    for node, names in sorted(nodes.items()):
        version_map += f"{node} {{ global: {'; '.join(sorted(names))}; }};\n"
    version_map += "NULL_VERBS_LOCAL { local: *; };\n"
    (output / "versions.map").write_text(version_map)
    library = output / "libibverbs.so.1"
    subprocess.run(
        ["cc", "-O2", "-Wall", "-Wextra", "-fPIC", "-shared", "-o", str(library),
         str(HERE / "null_verbs.c"), str(output / "stubs.c"),
         "-Wl,-soname,libibverbs.so.1", f"-Wl,--version-script={output / 'versions.map'}"],
        check=True)
    return library


if __name__ == "__main__":
    print(build(sys.argv[1] if len(sys.argv) > 1 else "target/bench/null_verbs"))
