"""Finds the commands that documents show: lines of code blocks, and words in backticks.

A line of a code block is a command if its first word is a program: one that this machine has, one
of Omniverb's, or a file of the repository. Of a block with lines that begin with `$` only those are
commands, the others are what they print. In running text the words in backticks are one if they
begin with a program of Omniverb's or of `TOLD`, and have an argument.
"""

import os
import re
import shutil
from dataclasses import dataclass

from .staging import ROOT

OURS = {"omniverb", "omniverbd", "omniverb-agent", "omniverb-limits"}
# Programs that users are told to start in running text.
TOLD = OURS | {"cargo", "docker", "lxc-execute", "make", "man", "mount", "mpiexec", "mpirun", "nft",
               "podman", "rmmod", "ss", "sudo", "sysctl", "systemctl", "systemd-nspawn",
               "valgrind"}
# What is built, or fetched.
_BUILT = ("target/", "dist/", "fuzz/target/", ".")
# Documents that say how things were.
_PAST = ("docs/decisions/", "docs/moved.md", "docs/spec/", "CHANGELOG.md")
_SPAN = re.compile(r"`([^`\n]+)`")
_ASSIGNMENT = re.compile(r"^[A-Za-z_][A-Za-z_0-9]*=")


@dataclass(frozen=True)
class Command:
    """A command as it stands in a document, without its comment. Those of one block have one
    `block`; those of running text have none."""

    document: str
    line: int
    text: str
    block: int = 0

    @property
    def place(self):
        """Where it stands."""
        return f"{self.document}:{self.line}"


def documents():
    """All that are true today."""
    names = (str(path.relative_to(ROOT)) for path in ROOT.glob("**/*.md"))
    return sorted(name for name in names if not name.startswith(_BUILT + _PAST))


def commands(name, text):
    """All of a document."""
    found, block, fence, before = [], [], False, ""

    def close():
        found.extend(_of_block(name, block))
        block.clear()
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.lstrip().startswith("```"):
            fence = not fence
            close()
        elif fence:
            block.append((number, line))
        elif line.startswith("    ") and (block or not before.strip()):
            block.append((number, line))
        elif block and not line.strip():
            block.append((number, ""))
        else:
            close()
            found += [Command(name, number, span) for span in _SPAN.findall(line)
                      if span.split()[0:1] and _program(span.split()[0]) in TOLD
                      and len(span.split()) > 1]
        before = line
    close()
    return found


def _of_block(name, block):
    """The commands of a block, whose lines have numbers."""
    lines = [(number, line.strip()) for number, line in block]
    if any(line.startswith("$ ") for _, line in lines):
        lines = [(number, line[2:]) for number, line in lines if line.startswith("$ ")]
    whole, first = [], block[0][0] if block else 0
    for number, line in lines:
        line = re.sub(r"\s+#.*$", "", line)
        if whole and whole[-1][1].endswith("\\"):
            whole[-1] = (whole[-1][0], whole[-1][1][:-1] + line)
        else:
            whole.append((number, line))
    return [Command(name, number, line, first) for number, line in whole if is_command(line)]


def is_command(line):
    """Whether a line of a code block is one."""
    words = line.split()
    while words and _ASSIGNMENT.match(words[0]):
        if len(words) == 1 or words[0].count('"') % 2:
            return True
        words = words[1:]
    # A line of a configuration file is none.
    if not words or words[1:2] == ["="]:
        return False
    if "/" in words[0]:
        return words[0].startswith("dist/") or os.access(ROOT / words[0], os.X_OK) \
            and (ROOT / words[0]).is_file()
    return words[0] in TOLD or shutil.which(words[0]) is not None


def _program(word):
    return word.rpartition("/")[2]
