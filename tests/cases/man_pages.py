"""Tests man pages and shell completions, as they are installed."""

import gzip
import itertools
import os
import pathlib
import re
import tempfile

from harness import process, staging
from harness.case import WAITS, Case, Group, check

_HAND_WRITTEN = ["omniverbd.toml.5"]
# Each page of a program has these, in this order.
_SECTIONS = ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "ENVIRONMENT", "EXIT STATUS", "SEE ALSO"]
# What mandoc says of pages that are right: dates are not in them, so that they can be made again.
_HARMLESS = ["missing date", "skipping paragraph macro", "referenced manual not found"]


def _pages(stage):
    found = sorted((stage.dist / "share" / "man").glob("man*/omniverb*"))
    return [page for page in found if not page.name.startswith("omniverb_dma")]


def _commands(stage, words=(), program="omniverb"):
    """The words of each command that `--help` shows."""
    yield words
    if words == ("cluster",) and program == "omniverb":
        return  # the other program's
    told = process.run([stage.dist / "bin" / program, *words, "--help"])
    part = told.partition("\nCommands:\n")[2].partition("\n\n")[0]
    for name in re.findall(r"^  ([a-z][a-z-]*)  ", part, re.MULTILINE):
        if name != "help":
            yield from _commands(stage, (*words, name), program)


def _all_are_there(stage):
    """Each command has a page, and no page is of anything else."""
    expected = {"-".join(["omniverb", *words]) + ".1" for words in _commands(stage)}
    expected |= {"-".join(["omniverb-agent", *words]) + ".8"
                 for words in _commands(stage, program="omniverb-agent")}
    expected |= {"omniverbd.8", *_HAND_WRITTEN}
    found = {page.name for page in _pages(stage)}
    check(found == expected, f"missing {expected - found}, unexpected {found - expected}")


def _are_read(stage):
    """mandoc, man and the indexer of man read each without a warning."""
    for page in _pages(stage):
        said = process.run(["mandoc", "-T", "lint", "-W", "warning", page], accept=range(6))
        wrong = [line for line in said.splitlines() if not any(h in line for h in _HARMLESS)]
        check(not wrong, "\n".join(wrong))
        said = process.run(["sh", "-c", 'man --warnings -E UTF-8 -l "$1" 2>&1 >/dev/null', "sh",
                            page])
        check(not said.strip(), f"{page.name}: {said}")
        name = process.run(["lexgrog", page])
        check(f'"{page.name.rpartition(".")[0]} - ' in name, f"{page.name}: {name}")


def _have_their_sections(stage):
    for page in _pages(stage):
        text = page.read_text(encoding="utf-8")
        found = [title.strip('"') for title in re.findall(r"^\.SH (.+)$", text, re.MULTILINE)]
        if page.name not in _HAND_WRITTEN:
            places = [found.index(title) if title in found else -1 for title in _SECTIONS]
            check(-1 not in places and places == sorted(places), f"{page.name}: {found}")
        for name, section in re.findall(r"^\.BR ([\w.\\-]+) \((\d)\)", text, re.MULTILINE):
            name = name.replace("\\-", "-")
            if name.startswith("omniverb"):
                other = page.parent.parent / f"man{section}" / f"{name}.{section}"
                check(other.exists(), f"{page.name} refers to {name}({section})")


def _named_commands(table):
    """The commands that the rows of a table name in their first column: `vnic show NAME`, or
    `tenant\\|policy show NAME` for two, or behind such a one just `delete NAME`."""
    for row in re.findall(r"^\| ((?:[^|\\]|\\.)*) \|", table, re.MULTILINE):
        groups = [""]
        for span in re.findall(r"`([^`]+)`", row):
            words = []
            for word in span.split():
                if not re.fullmatch(r"[a-z][a-z-]*(\\\|[a-z][a-z-]*)*", word):
                    break
                words.append(word.split("\\|"))
            if len(words) == 1 and groups != [""]:
                words = [groups, *words]
            groups = words[0] if len(words) > 1 else groups
            yield from itertools.product(*words)


def _reference(stage):
    """docs/reference/commands.md has the commands that there are, and the daemon's options."""
    text = (staging.ROOT / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
    parts = dict(part.partition("\n")[::2] for part in text.split("\n## ")[1:])
    there = set(_commands(stage))
    leaves = {words for words in there
              if not any(other[:-1] == words for other in there if other)}
    named = {words[:1] if words[:1] == ("cluster",) else words
             for words in _named_commands(parts["`omniverb`"])}
    check(named == leaves, f"missing {leaves - named}, no commands {named - leaves}")
    help_text = process.run([stage.dist / "bin" / "omniverbd", "--help"])
    options = set(re.findall(r"^ +(?:-\w, )?(--[a-z-]+)", help_text, re.MULTILINE))
    told = set(re.findall(r"^\| `(--[a-z-]+)", parts["`omniverbd`"], re.MULTILINE))
    options -= {"--help", "--version"}
    check(told == options, f"missing {options - told}, no options {told - options}")


# Completes the words it is given, as bash does when Tab is pressed behind them.
_COMPLETES = """
. "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
function="_$1"
"$function" "$1" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
printf '%s\\n' "${COMPREPLY[@]}"
"""


def _completes(stage):
    """bash completes commands, options and values; commands that are hidden are not among them."""
    file = stage.dist / "share" / "bash-completion" / "completions" / "omniverb"
    for words, expected, unexpected in (
            (["omniverb", "sta"], "status", "run"),
            (["omniverb", "top", "--s"], "--sort", "--batch"),
            (["omniverb", "vnic", ""], "disconnect", "status"),
            (["omniverb", "vm", ""], "detach", "carry"),
            (["omniverb", "vnic", "set", "host", "--da"], "--datapath", "--rate"),
            (["omniverb", "vnic", "set", "host", "--datapath", ""], "forwarded", "--rate")):
        found = process.run(["bash", "-c", _COMPLETES, "bash", file, *words]).split()
        check(expected in found and unexpected not in found, f"{words}: {found}")
    for name in ("zsh/vendor-completions/_omniverb", "fish/vendor_completions.d/omniverb.fish"):
        text = (stage.dist / "share" / name).read_text(encoding="utf-8")
        check("disconnect" in text, name)


def _are_installed(_stage):
    """The packages have them where Debian's programs look; guests have no daemon's."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        process.run(["env", "COMPRESSION=-Zgzip -z1", staging.ROOT / "deploy" / "debian" / "build",
                     folder], limit=150)
        for name in ("omniverb", "omniverb-guest"):
            package = next(folder.glob(f"{name}_[0-9]*.deb"))
            tree = folder / name
            process.run(["dpkg-deb", "-x", package, tree])
            share = tree / "usr" / "share"
            with gzip.open(share / "man" / "man1" / "omniverb.1.gz", "rt") as page:
                check(".TH" in page.read(), name)
            for file in ("bash-completion/completions/omniverb", "zsh/vendor-completions/_omniverb",
                         "fish/vendor_completions.d/omniverb.fish"):
                check((share / file).exists(), f"{name} lacks {file}")
            pages = [file.name for file in (share / "man").rglob("*") if file.is_file()]
            check(all(page.endswith(".gz") for page in pages), f"{pages}")
            has_daemon = "omniverbd.8.gz" in pages and "omniverbd.toml.5.gz" in pages
            check(has_daemon == (name == "omniverb"), f"{name}: {pages}")


def _exit_status(stage):
    """0, 1 for failure and 2 for a wrong command line, as the pages say; of `run` its own."""
    options = {**os.environ, "OMNIVERB_SOCKET": "/nowhere/omniverbd.sock"}
    for line, status in (
            ("--version", 0), ("vnic set --help", 0), ("status", 1), ("vnic list", 1),
            ("vnic set host --rate none", 1), ("vm show none", 1), ("doctor", 1),
            ("capture -i host -w /dev/null", 1), ("vnic set host", 2), ("walk", 2),
            ("vnic set host --rate fast", 2), ("vnic list host", 2),
            ("vm args vm1 --window large", 2), ("run", 2), ("run -- /bin/false", 1),
            ("run -- /etc/passwd", 126), ("run -- /nowhere/program", 127),
            ("vm run vm1 -- /bin/true", 125)):
        process.run([stage.dist / "bin" / "omniverb", *line.split()], env=options, accept=(status,))


def groups():
    """What is installed for readers and shells."""
    return [Group("manuals", [
        Case("manuals.all_are_there", _all_are_there), Case("manuals.are_read", _are_read),
        Case("manuals.have_their_sections", _have_their_sections),
        Case("manuals.reference", _reference),
        Case("manuals.completes", _completes), Case("manuals.exit_status", _exit_status),
        Case("manuals.are_installed", _are_installed, 300),
    ], weight=WAITS)]
