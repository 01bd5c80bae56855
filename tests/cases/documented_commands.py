"""Runs every command that a document shows.

`harness/document_commands.py` finds them. Those of one code block run together as a script, in
namespaces of their own, with the build under test. `INSTEAD` says what is run where the words of
the document need another ending; `RAN_BY` which case runs the same; `ELSEWHERE` why a command is
not run here. A command that is in none of them is run as it stands if it begins with a program of
`HARMLESS`, else its block fails: so a new one is run, or somebody has said where it is. Commands in
running text are fragments: it is checked that the program knows their words."""

import functools
import re

from harness import document_commands, process
from harness.case import POLLS, WAITS, Case, Failure, Group, check
from harness.staging import ROOT

# What may be run on the machine of whoever tests.
HARMLESS = (r"([A-Z_]+=\S* )*(taskset -c \d+ )?(\S*/)?"
            r"(omniverb|omniverbd|omniverb-agent|nft|bench\.py|two_hosts\.py|wire\.py|run) .*"
            r"|OV=.*")
# What documents leave open.
PLACEHOLDERS = [
    (r"\bvnic-\d+-\w+|\bvm-vm1\b|\bNAME\b", "$VNIC"),
    (r" \[PROGRAM\]", ""),
    (r"pid:\$\(docker inspect [^)]*\)", "pid:$!"),
    (r"\$\(docker inspect [^)]*SandboxKey[^)]* (\S+)\)", r"/run/netns/\1"),
    (r"-- (PROGRAM|\./\w+)$", "-- ibv_devices"),
]
# What is run for a command that a regular expression matches, as a shell writes it.
INSTEAD = [
    (r"sudo (.*)", r"\1"),  # as root already
    (r"(omniverb capture .*-w (\S+))",
     r"rm -f \2; \1 & until [ -s \2 ]; do sleep 0.1; done; kill -INT $!; wait $!"),
    (r"(.* redis-benchmark .*)", r"\1 -n 1000"),
    (r"(.* ucx_perftest .*tag_lat)( &)?", r"\1 -n 1000\2"),
    (r"(omniverb run -- target/tests/programs/soak two_processes) 1000000 (\d+)", r"\1 2000 \2"),
    (r"(omniverb tenant create \w+ .*--key-file (\S+).*)",
     r"(umask 077; openssl rand -hex 16 > \2); \1"),
    (r"(tests/run .*|tests/run)", r"\1 --list | grep -q ."),
    (r"cc -o program program.c (.*)",
     r"echo '#include <infiniband/verbs.h>\nint main(void) { return !ibv_get_device_list(0); }' "
     r"> program.c && cc -o program program.c \1 && omniverb run -- ./program"),
    (r"(etcd --listen-client-urls .*) &",
     r"\1 --data-dir etcd --unsafe-no-fsync > etcd.log 2>&1 &"),
    (r"omniverb cluster apply -f /etc/omniverb/cluster.toml (.*)",
     r"echo '[tenant.blue]' > some.toml && omniverb cluster apply -f some.toml \1"),
    (r"omniverb-agent cluster --file /etc/omniverb/cluster.toml",
     r"echo '[tenant.blue]' > some.toml; omniverb-agent cluster --file some.toml & "
     r"until omniverb tenant show blue; do sleep 0.1; done"),
    (r"(nft add rule ip omniverb underlay .* meta skuid .*)",
     r"nft add table ip omniverb; nft 'add chain ip omniverb underlay "
     r"{ type filter hook postrouting priority srcnat + 1; }'; \1"),
    (r"(ip netns add underlay|ip link set eth1 netns underlay|ip -n underlay .*)", r"\1"),
    (r"omniverb top", "omniverb top -n 1"),
    (r"omniverb run -- python3 (.*pyverbs.*)", r"omniverb run -- /usr/bin/python3 \1"),
    (r"omniverb run -- gdb (.*) \./program",
     r"! command -v gdb || omniverb run -- gdb -batch -ex run \1 ibv_devices"),
    (r"omniverb run -- strace (.*) \./program",
     r"! command -v strace || omniverb run -- strace \1 ibv_devices"),
    (r"sha256sum (\S+)", r"(umask 077; openssl rand -hex 16 > \1); sha256sum \1"),
    (r"(curl -sS --fail http://127.0.0.1:9469/metrics)", r"\1 | grep -q ^omniverb_vnics"),
    (r"(bench/bench.py|bench/two_hosts.py) --against OTHER/dist",
     r"\1 --against dist --quick --only send_lat --out bench.json"),
]
# Which cases run the same, by the beginnings of their names.
RAN_BY = {
    r"apt install \./omniverb.*|dpkg-deb -x .*": "packages.",
    r"omniverb gateway 10.0.0.0/8 &": "light.far",
    r"omniverb present /presented/files": "presented.user.present",
    r"omniverb vm run vm1 -- .*|omniverb vm args vm1 .*": "machines.",
    r"omniverb vnic create vm-(vm1|web) --tenant blue --address 10\.0\.0\.3": "machines.virtual.",
    r"omniverb tenant set blue --encryption psp": "encrypted_virtual_networks.without",
    r"docker (run|exec|network create) .*": "platforms.docker.",
    r"podman (run|network (create|inspect)) .*": "platforms.podman.",
    r"lxc-execute .*": "platforms.lxc.",
    r"systemd-nspawn .*": "platforms.nspawn.",
    r"ip netns exec .*": "platforms.netns.",
    r"make demo": "checks.demo",
    r"make demo-wire": "checks.demo-wire",
    r"make demo-tenants": "checks.demo-tenants",
    r"make demo-vm": "checks.demo-vm",
    r"make check": "checks.unit-tests",
    r"make bench( BENCH(_[A-Z]*)?=.*)?": "bench.bench",
    r"make bench-scale": "bench.many_pairs",
    r"make bench-machines": "bench.virtual_machines",
    r"make package": "packages.",
    r"make conformance": "conformance.",
    r"cargo xtask man|man omniverb\S*": "manuals.",
    r"cargo build && cargo test -p omniverb_device": "checks.unit-tests",
    r"cargo test --workspace": "checks.unit-tests",
    r"cargo fmt --all --check": "checks.format",
    r"cargo clippy .*": "checks.clippy",
    r"cargo xtask (layers|tidy|abi)": "checks.",
    r"support/ring/check": "checks.ring",
    r"rnic/device/check": "checks.address-sanitizer",
    r"fuzz/run.sh 60": "checks.fuzz",
    r"omniverb run -- valgrind --suppressions=\S*share/omniverb/valgrind.supp ./program":
        "valgrind.",
    r"cargo run --release --bin driver TARGET FILE": "checks.fuzz",
    r"systemctl enable --now omniverbd": "packages.",
    r"systemctl (enable|status) omniverb-agent": "packages.",
}
# Why not here.
ELSEWHERE = {
    r"make (test|soak)( .*)?": "this is it",
    r"openssl rand -hex 16": "prints a key; cluster_addresses.keys has one",
    r"apt install libibverbs-dev librdmacm-dev": "is done before tests are built",
    r"make (build|compatibility|socket-suites)": "has made what is tested, or takes hours",
    r"cargo xtask (dist|dist --debug|matrix|follow TREE)":
        "makes what is tested, or needs another source tree",
    r"man (-l dist/share/man/.*|7 omniverb_dma)": "only shows a file",
    r"(mpirun|mpiexec) .*": "needs MPI; docs/compatibility.md says what was tried",
    r"sudo -u": "names an option of sudo",
    r"omniverb capture -i NAME \| wireshark .*": "opens a window",
    r"echo .* >> \"\$GITHUB_PATH\"": "is for the machines of GitHub",
    r"rmmod rdma_rxe|sysctl (vm|net\.core)\..*": "changes the whole machine",
    r"ss -ulnp .*": "shows what happens to be there",
    r"systemctl (enable|disable) --now omniverb-cluster":
        "needs etcd; cluster.* runs the same program",
    r"systemctl (restart|status) omniverbd": "is about the service of the machine",
    r"(After|ExecStart|Environment)=.*": "is a line of a unit of systemd",
    r"which extent\? where\?.*|etcd +-> .*|link found": "is a line of a drawing",
}
_PRELUDE = """
set -eu
ip link set lo up
ip link add eth0 type veth peer name eth1
ip addr add 10.0.0.1/24 dev eth0
ip link set eth0 up
ip link set eth1 up
mount -t tmpfs -o mode=755 none /run
mkdir -p /var/lib/omniverb
mount -t tmpfs -o mode=700 none /var/lib/omniverb
trap 'kill $(jobs -p) 2> /dev/null || :' EXIT
listening() { cat /proc/net/tcp /proc/net/tcp6 | grep -c ' 0A ' || :; }
"""
_FIRST_NAME = 'import json, sys; print(json.load(sys.stdin)["vnics"][0]["name"])'
# Behind a command that goes on: until it listens by TCP, if it does. What comes next is tried again
# until the other is there.
_SETTLE = 'for _ in $(seq 40); do [ "$(listening)" -gt "$before" ] && break; sleep 0.05; done'
_AGAIN = "for left in $(seq 60 -1 0); do {} && break; [ $left != 0 ]; sleep 0.5; done"


@functools.cache
def _all():
    """Every command, by document."""
    return {name: document_commands.commands(name, (ROOT / name).read_text(encoding="utf-8"))
            for name in document_commands.documents()}


def _matching(table, text):
    """The entry for a command."""
    return next((key for key in table if re.fullmatch(key, text)), None)


def _is_run(command):
    return not _matching(RAN_BY, command.text) and not _matching(ELSEWHERE, command.text)


def _blocks():
    """Blocks that have something to run: their commands."""
    blocks = {}
    for command in (command for found in _all().values() for command in found if command.block):
        blocks.setdefault((command.document, command.block), []).append(command)
    return [block for block in blocks.values() if any(_is_run(command) for command in block)]


def script(block):
    """What a block is as a shell script."""
    lines = [_PRELUDE]
    if not any(re.search(r"(?<!\s/)\brun\b|omniverbd", command.text) for command in block):
        # A daemon, and a program that has a device.
        lines += ["before=$(listening)", "omniverb run -- ib_write_bw -p 20000 &", _SETTLE,
                  _AGAIN.format(f"VNIC=$(omniverb vnic list --json | python3 -c '{_FIRST_NAME}')")]
    waits = False
    for command in filter(_is_run, block):
        line = command.text
        check(re.fullmatch(HARMLESS, line) or _matching(dict(INSTEAD), line),
              f"{command.place}: {line}: neither run nor in RAN_BY or ELSEWHERE")
        for pattern, words in INSTEAD:
            if re.fullmatch(pattern, line):
                line = re.sub(f"^{pattern}$", words, line)
                break
        for pattern, words in PLACEHOLDERS:
            line = re.sub(pattern, words, line)
        lines.append(f"echo '{command.place}:' >&2")
        if line.endswith("&"):
            lines += ["before=$(listening)", line, _SETTLE]
        else:
            lines.append(_AGAIN.format(line) if waits else line)
        waits = line.endswith("&")
    return "\n".join(lines) + "\n"


def _run(block, stage):
    folder = stage.folder("reader")
    (folder / "dist").symlink_to(stage.dist)
    for name in ("target", "tests", "bench"):
        (folder / name).symlink_to(ROOT / name)
    text = script(block)
    print(text)
    # What is left over ends with the namespace of processes.
    print(process.run(
        ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc",
         "env", "-i", f"PATH={stage.dist}/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/tmp",
         "sh", "-c", text], limit=100, cwd=folder))


def _entries(_stage):
    """Each reason is for a command that some document has, and each case that is named exists."""
    texts = [command.text for found in _all().values() for command in found]
    listed = [process.run([ROOT / "tests" / "run", "--list", *slow]) for slow in ([], ["--slow"])]
    names = [name for text in listed for name in text.splitlines()]
    for table in (RAN_BY, ELSEWHERE, dict(INSTEAD)):
        for key in table:
            check(any(re.fullmatch(key, text) for text in texts), f"no document has {key!r}")
    for key, case in RAN_BY.items():
        check(any(name.startswith(case) for name in names), f"{key!r}: no case is called {case}")
    # One that is new and not known fails.
    new = document_commands.commands("new.md", "Do this:\n\n    cp -r dist /opt/new    # so\n")
    check([command.text for command in new] == ["cp -r dist /opt/new"], f"{new}")
    try:
        script(new)
    except Failure:
        pass
    else:
        raise Failure("a new command is not found out")
    # And what is found is not nothing.
    for document in ("README.md", "docs/hacking.md", "tests/README.md", "deploy/README.md"):
        check(_all()[document], f"no command was found in {document}")
    check(any("ib_write_bw localhost" in script(block) for block in _blocks()), "README")


def _help(stage, words):
    """The help of a subcommand."""
    return process.run([stage.dist / "bin" / "omniverb", *words, "--help"])


def known(stage, text):
    """Says why the program does not know a fragment's words; empty if it does."""
    program, *words = text.split()
    if program == "omniverbd":
        told = process.run([stage.dist / "bin" / program, "--help"])
        return "" if all(word in told for word in words if word.startswith("-")) else "no option"
    if program.rpartition("/")[2] != "omniverb":
        return "" if _matching({**RAN_BY, **ELSEWHERE}, text) or _other(stage, program, words) \
            else "neither run nor in RAN_BY or ELSEWHERE"
    path = []
    if words[0].isupper():
        return ""  # of any subcommand
    if words[0].startswith("-"):
        told = _help(stage, path)
        return "" if all(word in told for word in words) else "no option of all commands"
    while words and re.fullmatch("[a-z]+", words[0]) and f"\n  {words[0]} " in _help(stage, path):
        path.append(words.pop(0))
    if not path:
        return f"{words[:1]} is no subcommand"
    told = _help(stage, path)
    for word in words[:words.index("--")] if "--" in words else words:
        option = word.partition("=")[0]
        is_told = re.search(rf"(?<![\\w-]){re.escape(option)}(?![\\w-])", told)
        if word.startswith("-") and not is_told:
            return f"{' '.join(path)} has no {option}"
    return ""


def _other(stage, program, words):
    """Whether a target, a task or an option is there."""
    if program == "make":
        makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
        return re.search(rf"^{re.escape(words[0])}:", makefile, re.MULTILINE)
    if program == "omniverb-agent":
        told = process.run([stage.dist / "bin" / program, "--help"])
        return re.search(rf"^  {re.escape(words[0])} ", told, re.MULTILINE)
    if program == "omniverb-limits":
        return process.run([stage.dist / "bin" / program, *words])
    return False


def _fragments(stage):
    """Commands in running text, and those that help texts name."""
    faults = []
    for command in (command for found in _all().values() for command in found
                    if not command.block):
        why = known(stage, command.text)
        if why:
            faults.append(f"{command.place}: {command.text}: {why}")
    check(not faults, "\n".join(faults))


def _helps(stage):
    """Every subcommand explains itself, and the commands that it names are there."""
    faults, left = [], [[]]
    while left:
        words = left.pop()
        told = _help(stage, words)
        part = told.partition("\nCommands:\n")[2].partition("\n\n")[0]
        inner = re.findall(r"^  ([a-z]+)  ", part, re.MULTILINE)
        left += [[*words, name] for name in inner if name != "help"]
        for span in re.findall(r"`(omniverb [^`]+)`", re.sub(r"\s+", " ", told)):
            why = known(stage, span)
            if why:
                faults.append(f"omniverb {' '.join(words)} --help: {span}: {why}")
    check(not faults, "\n".join(faults))


def groups():
    """A case for each block, and one for all fragments."""
    numbers, cases = {}, []
    for block in _blocks():
        document = block[0].document
        numbers[document] = numbers.get(document, 0) + 1
        name = document.removesuffix(".md").replace("/", "-")
        cases.append(Case(f"documents.{name}-{numbers[document]}", functools.partial(_run, block),
                          110))
    words = [Case("documents.entries", _entries), Case("documents.fragments", _fragments),
             Case("documents.help", _helps)]
    return [Group("documents.words", words, weight=WAITS),
            Group("documents.blocks", cases, weight=POLLS)]
