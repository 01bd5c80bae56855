"""Builds a guest that is a stock Debian with systemd and udev.

The root file system (tests/guest/fetch-debian) with a package installed and the first process of
our other guests (tests/guest/init.c) as a service, all in memory."""

import pathlib

from . import guest_image, process, staging
from .case import Skip

_SERVICE = """[Unit]
Description=Programs for the host
DefaultDependencies=no
[Service]
StandardOutput=journal+console
TimeoutStartSec=300
ExecStartPre=/bin/sh -c 'until [ -e /dev/virtio-ports/omniverb.guest ]; do sleep 0.2; done'
ExecStart=/omniverb-test-init
[Install]
WantedBy=basic.target
"""

# $1: a folder, $2: the root file system, $3: a package, $4: our first process, $5: the service,
# $6: a folder with lib/modules, $7: the archive to make, $8: a program, then modules.
_MAKE = """
place=$1 system=$2 package=$3 init=$4 service=$5 modules=$6 target=$7 program=$8
shift 8
mount -t tmpfs none "$place"
mkdir "$place/changes" "$place/work" "$place/root"
root=$place/root
mount -t overlay -o "lowerdir=$system,upperdir=$place/changes,workdir=$place/work" none "$root"
mount -t proc none "$root/proc"
cp "$package" "$root/package.deb"
chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin dpkg --install /package.deb
umount "$root/proc"
cp "$init" "$root/omniverb-test-init"
cp "$program" "$root/opt"
mkdir "$root/modules"
: >"$root/modules/order"
printf %s "$service" >"$root/etc/systemd/system/omniverb-test.service"
mkdir -p "$root/etc/systemd/system/basic.target.wants"
ln -s ../omniverb-test.service "$root/etc/systemd/system/basic.target.wants/"
for file in "$@"; do
    install -D -t "$root${file%/*}" "$modules$file"
done
version=$(ls "$root/lib/modules")
cp "$modules/lib/modules/$version"/modules.builtin* "$modules/lib/modules/$version/modules.order" \\
    "$root/lib/modules/$version"
depmod -b "$root" "$version"
ln -sf usr/lib/systemd/systemd "$root/init"
cd "$root"
find . -xdev \\( -path ./usr/share/doc -o -path ./usr/share/man -o -path ./usr/share/locale \\
    -o -path ./var/cache -o -path ./var/lib/apt -o -path ./usr/lib/python3 \\
    -o -path ./usr/share/i18n -o -path ./usr/share/perl -o -path ./usr/lib/x86_64-linux-gnu/perl \\
    \\) -prune -o -print0 | cpio --null --create --format newc --quiet >"$target"
"""


def archive(suite, package, folder, kernel, more, program):
    """Makes the initial file system of a guest of this suite with this package and this kernel's
    modules, in `folder`, which is empty. `more`: modules that are there to be loaded. `program`
    goes to /opt. Returns its path."""
    system = staging.BUILT / f"debian-{suite}"
    if not system.exists():
        raise Skip(f"no root file system of {suite}: see tests/guest/fetch-debian")
    place = pathlib.Path(folder) / "place"
    place.mkdir()
    target = pathlib.Path(folder) / "archive"
    # Where they are in the tree of the kernel, which may be one that is not installed.
    modules = ["/" + str(path.relative_to(kernel.root)) for path in kernel.modules(more)]
    process.run(["unshare", "--mount", "sh", "-ec", _MAKE, "sh", place, system, package,
                 guest_image.first_process(), _SERVICE, kernel.root, target, program, *modules],
                limit=120)
    return target
