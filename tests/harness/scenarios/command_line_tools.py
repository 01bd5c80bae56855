"""Runs other programs people start: git clone, a Python environment, package lists."""

import shutil

from .. import process, staging
from ..case import Skip
from . import PYTHON, Scenario

_GIT = {"git": "git", "curl": "curl"}
_ROOT = staging.BUILT / "debian-bookworm"


def _cloned(place):
    """Over HTTP: files only, and by git's own server."""
    place.shell("""
        git init -q -b main origin && cd origin
        git config user.email a@b && git config user.name a
        export GIT_AUTHOR_DATE='2024-01-01 00:00 +0000' GIT_COMMITTER_DATE='2024-01-01 00:00 +0000'
        for at in 1 2 3 4 5; do head -c 100000 /dev/zero | tr '\\0' $at > f$at; git add .
            git commit -q -m $at; done
        cd .. && git clone -q --bare origin bare && cd bare && git update-server-info
    """)
    bare = place.folder / "bare"
    with place.serve(7081, PYTHON, "-Bm", "http.server", "-b", "127.0.0.1", "-d", bare, 7081), \
            place.serve(7082, "git", "daemon", "--listen=127.0.0.1", "--port=7082",
                        "--export-all", f"--base-path={place.folder}", "--reuseaddr"):
        return [place.shell(f"git clone -q {url} {name} && cd {name} && git log --oneline && "
                            "git fsck --strict --no-progress && sha256sum f*")
                for name, url in (("one", "http://127.0.0.1:7081/"),
                                  ("two", "git://127.0.0.1:7082/bare"))]


def _environment(place):
    """A Python environment, and a program in it."""
    return place.shell(f"{PYTHON} -m venv --without-pip v && v/bin/python -c "
                       "'import sys, ssl, socket; print(sys.prefix != sys.base_prefix)'")


def _apt(place):
    """apt in a root of its own, from a repository on loopback; the library lies in that root."""
    if not (_ROOT / "usr/bin/apt-get").exists():
        raise Skip("no Debian to change the root to: make guest")
    root, site = place.folder / "root", place.folder / "site"
    # A copy also of what is behind a link: it is written to.
    process.run(["cp", "-a", "--reflink=auto", f"{_ROOT}/.", root], limit=60)
    site.mkdir()
    (place.folder / "p" / "DEBIAN").mkdir(parents=True)
    (place.folder / "p" / "DEBIAN" / "control").write_text(
        "Package: hello-there\nVersion: 1\nArchitecture: all\nMaintainer: a <a@b>\n"
        "Description: nothing\n")
    (place.folder / "p" / "there").write_text("there\n")
    place.shell("dpkg-deb -b p site/hello-there_1_all.deb && cd site && dpkg-scanpackages . "
                "> Packages", side=0)
    library = place.ways.library
    (root / str(library.parent)[1:]).mkdir(parents=True)
    shutil.copy(library, root / str(library)[1:])
    (root / "etc/apt/sources.list").write_text("deb [trusted=yes] http://127.0.0.1:7083 ./\n")
    shutil.rmtree(root / "etc/apt/sources.list.d", ignore_errors=True)
    with place.serve(7083, PYTHON, "-Bm", "http.server", "-b", "127.0.0.1", "-d", site, 7083):
        return place.shell(
            f"chroot {root} sh -c 'export DEBIAN_FRONTEND=noninteractive; apt-get -q update && "
            "apt-get -q -y install hello-there && cat /there' 2>&1 | grep -E "
            "'^(Get|Hit|E:|W:|Setting|there|ERROR)' | sed 's/ in .*//; s/\\[.*//'", limit=60)


SCENARIOS = [
    Scenario("git", _cloned, _GIT),
    Scenario("venv", _environment),
    Scenario("apt", _apt, {"dpkg-scanpackages": "dpkg-dev"}, limit=120),
]
