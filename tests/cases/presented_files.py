"""Tests what programs read besides the API: sysfs, device nodes, `rdma`."""

import fcntl
import functools
import glob
import json
import os
import re
import shutil

from harness import client_server, process
from harness.case import Case, Group, Skip, check
from harness.containers import Pair
from harness.daemon import as_user, environment
from harness.unprivileged_daemon import UID, PlainPair

from cases.forwarded_datapath import forwarding

_DEVICE = "/sys/class/infiniband/omv0"
_PORT = f"{_DEVICE}/ports/1"
# As show_gids of the Mellanox tools reads it.
_SHOW_GIDS = r"""
for gid in /sys/class/infiniband/*/ports/*/gids/*; do
    port=${gid%/gids/*} index=${gid##*/} value=$(cat "$gid")
    [ "$value" = 0000:0000:0000:0000:0000:0000:0000:0000 ] && continue
    echo "$index $value $(cat "$port/gid_attrs/types/$index") $(cat "$port/gid_attrs/ndevs/$index")"
done
"""
# In each of the ways in which programs look at files.
_LOOKS = f"""
import ctypes, os, stat
assert os.listdir("/sys/class/infiniband") == ["omv0"]
assert "uverbs0" in os.listdir("/dev/infiniband")
for node in os.listdir("/dev/infiniband"):
    path = "/dev/infiniband/" + node
    assert stat.S_ISCHR(os.stat(path).st_mode), path
    assert os.access(path, os.R_OK | os.W_OK), path
    os.close(os.open(path, os.O_RDWR))
rdev = os.stat("/dev/infiniband/uverbs0").st_rdev
told = open("/sys/class/infiniband_verbs/uverbs0/dev").read().strip()
assert told == f"{{os.major(rdev)}}:{{os.minor(rdev)}}", told
assert open("/sys/class/infiniband_verbs/uverbs0/ibdev").read() == "omv0\\n"
assert os.path.realpath("/sys/class//infiniband/omv0/./ports/../node_guid") == "{_DEVICE}/node_guid"
libc = ctypes.CDLL(None)
libc.realpath.restype = ctypes.c_char_p
assert libc.realpath(b"{_PORT}/../../node_guid", None) == b"{_DEVICE}/node_guid"
os.chdir("{_PORT}")
assert open("state").read() == "4: ACTIVE\\n"
root = os.open("/", os.O_RDONLY)
os.close(os.open("sys/class/infiniband/omv0/fw_ver", os.O_RDONLY, dir_fd=root))
assert not os.path.exists("/sys/class/infinibandx") and os.path.exists("/sys/class/net")
print("seen")
"""


def _files(pair):
    """All of it is there, whichever way it is looked at, and says what the library says."""
    text = pair.server.run("/usr/bin/python3", "-c", _LOOKS)
    check("seen" in text, text)
    devices = pair.server.run("ibv_devices")
    guid = pair.server.run("cat", f"{_DEVICE}/node_guid").strip()
    check(re.fullmatch(r"([0-9a-f]{4}:){3}[0-9a-f]{4}", guid), guid)
    check(guid.replace(":", "") in devices, f"{guid} is not in\n{devices}")
    text = pair.server.run("ibv_devinfo", "-v")
    check(re.search(r"board_id:\s+omniverb", text), text)
    text = pair.server.run("sh", "-c", "ls -l /dev/infiniband 2>&1")
    check(re.search(r"^[cl].* uverbs0( |$)", text, re.M) and "No such file" not in text, text)


def _gids(pair):
    """Each GID with its type and its interface, as the library has them."""
    shown = pair.server.run("sh", "-c", _SHOW_GIDS).splitlines()
    library = pair.server.run("ibv_devinfo", "-v")
    known = re.findall(r"GID\[\s*(\d+)\]:\s+(\S+?),? (RoCE v2)", library)
    check(len(shown) == len(known) > 0, f"{shown}\n{library}")
    for line in shown:
        index, value, words = line.split(" ", 2)
        check(words.startswith("RoCE v2"), line)
        check(any(index == known_index for known_index, *_ in known), line)
        if pair.server.address != "127.0.0.1" and value.endswith("ffff:0a4d:0001"):
            check(words == "RoCE v2 eth0", line)


def _rdma(pair):
    """`rdma link show -j`, which newer test suites call."""
    for words in (["link", "show", "-j"], ["-j", "link"]):
        found = json.loads(pair.server.run("rdma", *words))
        check(found[0]["ifname"] == "omv0" and found[0]["port"] == 1, str(found))
        check(found[0]["state"] == "ACTIVE", str(found))
        check(found[0]["physical_state"] == "LINK_UP", str(found))
        interface = pair.server.run("cat", f"{_PORT}/gid_attrs/ndevs/1").strip()
        check(found[0]["netdev"] == interface, str(found))
    check(pair.server.run("rdma", "dev").startswith("0: omv0: node_type ca fw "), "rdma dev")
    # Anything else the real one answers.
    check("utility" in pair.server.run("rdma", "-V"), "rdma -V")


def _counters(pair):
    """They move, and do not go back when the program that moved them ends."""
    def read(name):
        return int(pair.client.run("cat", f"{_PORT}/counters/{name}"))

    # Who looks for long enough keeps the files kept.
    watching = pair.client.start("sleep", "1000")
    try:
        before = read("port_xmit_data")
        client_server.Duet(pair, ["ib_send_bw", "-F", "-n", "2000", "-s", "4096"]).finish(60)
        sent = 2000 * 4096 // 4
        process.until(lambda: read("port_xmit_data") - before >= sent, 30, f"{sent} words sent")
        packets = read("port_xmit_packets")
        check(packets >= 2000, f"{packets} packets")
        client_server.Duet(pair, ["ib_send_bw", "-F", "-n", "2000", "-s", "4096"]).finish(60)
        process.until(lambda: read("port_xmit_data") - before >= 2 * sent, 30, "as many again")
        check(read("port_xmit_packets") >= packets + 2000, "packets of the first are lost")
    finally:
        process.end(watching)


# Names under which Linux's rdma_rxe counts.
_RXE = {"sent_pkts", "rcvd_pkts", "duplicate_request", "out_of_seq_request", "rcvd_rnr_err",
        "send_rnr_err", "rcvd_seq_err", "ack_deferred", "retry_exceeded_err",
        "retry_rnr_exceeded_err", "completer_retry_err", "send_err", "link_downed", "rdma_sends",
        "rdma_recvs"}


def _hw(place):
    """All hw_counters, by name."""
    text = place.run("sh", "-c", f"cd {_PORT}/hw_counters && grep -H . *")
    return {name: int(value) for name, value in (line.split(":") for line in text.splitlines())}


def _rises(place, least, exactly, action):
    """What counters do while `action` runs."""
    watching = place.start("sleep", "1000")
    try:
        before = _hw(place)
        check(_RXE <= before.keys(), f"{_RXE - before.keys()}")
        action()

        def risen():
            return {name: value - before[name] for name, value in _hw(place).items()}

        def as_expected():
            found = risen()
            return all(found[name] >= count for name, count in least.items()) \
                and all(found[name] == count for name, count in exactly.items())
        process.until(as_expected, 30, lambda: f"{least} {exactly}, not {risen()}")
    finally:
        process.end(watching)


def _failures(pair):
    """Receives that are missing, and requests that fail for that: the program has 6 that fail and
    10 that wait."""
    # A direct link has no NAKs that somebody sends: its sender sees that there is no receive.
    sent = {} if pair.is_direct else {"send_rnr_err": 5}
    _rises(pair.server, {"rcvd_rnr_err": 5, "rnr_nak_retry_err": 5, **sent},
           {"retry_rnr_exceeded_err": 6, "rdma_sends": 10, "rdma_recvs": 10,
            "retry_exceeded_err": 0, "ack_deferred": 0, "link_downed": 0, "send_err": 0},
           lambda: pair.server.run("/opt/programs/verbs_errors", "receiver_not_ready"))


def _silence(pair):
    """A peer that says nothing any more."""
    _rises(pair.server, {"retry_exceeded_err": 1}, {"retry_rnr_exceeded_err": 0}, lambda: (
        pair.server.run("/opt/programs/qp_states", "sending_to_a_destroyed_peer_fails")))


def _gaps(pair):
    """What the network loses and doubles is counted where it is missed."""
    for place in (pair.client, pair.server):
        pair.daemon.set_vnic(place.namespace, "--faults", "loss=3%,duplicate=3%,seed=3")
    try:
        _rises(pair.server, {"out_of_seq_request": 1, "duplicate_request": 1}, {}, lambda: (
            _rises(pair.client, {"rcvd_seq_err": 1, "completer_retry_err": 1, "retrans_pkts": 1},
                   {}, lambda: client_server.Duet(pair, ["ib_write_bw", "-F", "-n", "1000", "-s",
                                                         "8192"])
                   .finish(100))))
    finally:
        for place in (pair.client, pair.server):
            pair.daemon.set_vnic(place.namespace, "--faults", "none")


def _packets(pair):
    """Forwarded traffic is packets, counted on. What was counted stays when its link has ended."""
    def read(place, name):
        return int(place.run("cat", f"{_PORT}/hw_counters/{name}"))

    def all_of(place):
        return [read(place, name) for name in ("sent_pkts", "rcvd_pkts")]

    watching = [place.start("sleep", "1000") for place in (pair.client, pair.server)]
    try:
        def moves():
            before = all_of(pair.client)
            client_server.Duet(pair, ["ib_write_bw", "-F", "-n", "2000", "-s", "4096"]).finish(60)

            def has_moved():
                sent, received = map(int.__sub__, all_of(pair.client), before)
                return sent >= 2000 and received > 0
            process.until(has_moved, 30, lambda: f"{before} {all_of(pair.client)}")

        moves()
        moves()
    finally:
        for one in watching:
            process.end(one)


def _installed(program):
    if not shutil.which(program):
        raise Skip(f"{program} is not installed")


def _ibstat(pair):
    _installed("ibstat")
    text = pair.server.run("ibstat", "omv0")
    for wanted in ("CA type: Omniverb", "State: Active", "Physical state: LinkUp",
                   "Link layer: Ethernet"):
        check(wanted in text, f"{wanted} is missing in\n{text}")
    text = pair.server.run("ibstatus")
    for wanted in ("Infiniband device 'omv0' port 1 status", "4: ACTIVE", "5: LinkUp"):
        check(wanted in text, f"{wanted} is missing in\n{text}")


def _ucx(pair):
    """UCX finds both transports, with nothing set."""
    text = pair.server.run("ucx_info", "-d", limit=60)
    for wanted in ("rc_verbs", "ud_verbs"):
        check(re.search(rf"Transport: {wanted}\s+#\s+Device: omv0:1", text),
              f"{wanted} is missing in\n{text}")


def _kept(pair):
    """One folder for all programs, while there are any; then none."""
    folder = pair.server.run("printenv", "OMNIVERB_PRESENTED").strip()
    check(folder.startswith("/"), folder)
    process.until(lambda: not os.path.exists(folder), 60, "no folder when no program is left")
    running = [pair.server.start("sleep", "1000") for _ in range(3)]
    try:
        process.until(lambda: os.path.exists(f"{folder}/complete"), 60, "a folder")
        check(len(_supervisors(folder)) == 1, f"{_supervisors(folder)}")
        # Whoever comes later finds the same, after the first has ended, too.
        process.end(running.pop(0))
        pair.server.run("test", "-e", f"{_DEVICE}/node_guid")
        # It is not its supervisor's death that takes it away.
        process.kill(_supervisors(folder)[0])
        process.until(lambda: _is_free(folder + ".supervisor"), 20, "the supervisor's end")
        pair.server.run("test", "-e", f"{_DEVICE}/node_guid")
        check(len(_supervisors(folder)) == 1, f"{_supervisors(folder)}")
    finally:
        for one in running:
            process.end(one)
    process.until(lambda: not os.path.exists(folder), 60, "no folder when no program is left")
    process.until(lambda: not glob.glob(f"{folder}.*"), 20, "no files of its locks")


def _is_free(lock):
    """Nobody holds it. (Who was killed loses its command line before its locks.)"""
    with open(lock, "rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def _supervisors(folder):
    return [pid for pid in process.descendants() if _keeps(pid, folder)]


def _keeps(pid, folder):
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().decode(errors="replace").split("\0")
    except OSError:
        return False
    return "--keep" in words and folder in words


def _not_possible(pair):
    """Whom nothing can be shown is told so, once."""
    folder = pair.stage.folder("lacking", UID)
    for part in ("bin/omniverb", "lib/libibverbs.so.1"):
        (folder / part).parent.mkdir(exist_ok=True)
        shutil.copy(pair.stage.dist / part, folder / part)
    line = [*pair.namespace.enter(), *as_user(UID), folder / "bin" / "omniverb", "run"]
    options = pair.server.environment()
    text = process.run([*line, "--", "ibv_devices"], env=options)
    check("omv0" in text, text)
    told = [line for line in text.splitlines() if line.startswith("omniverb: ")]
    check(len(told) == 1 and "libomniverb_paths.so" in told[0], text)
    text = process.run([*line, "--present", "off", "--", "ibv_devices"], env=options)
    check("omniverb: " not in text, text)


def _present(pair):
    """A folder for programs that are started otherwise."""
    folder = pair.stage.folder("files", UID)
    enter = [*pair.namespace.enter(), *as_user(UID)]
    options = pair.server.environment()
    process.run([*enter, pair.stage.dist / "bin" / "omniverb", "present", "--once", folder],
                env=options)
    guid = (folder / "sys/class/infiniband/omv0/node_guid").read_text()
    options["OMNIVERB_PRESENTED"] = str(folder)
    options["LD_PRELOAD"] = str(pair.stage.dist / "lib" / "libomniverb_paths.so")
    check(process.run([*enter, "cat", f"{_DEVICE}/node_guid"], env=options) == guid, guid)
    # `omniverb run` leaves it at that.
    line = [*enter, pair.stage.dist / "bin" / "omniverb", "run", "printenv", "OMNIVERB_PRESENTED"]
    check(process.run(line, env=options).strip() == str(folder), "another folder")
    # But for what was lost on the way, or may be another's.
    del options["LD_PRELOAD"]
    line = [*enter, pair.stage.dist / "bin" / "omniverb", "run", "--", "cat",
            f"{_DEVICE}/node_guid"]
    check(process.run(line, env=options) == guid, "without LD_PRELOAD nothing is shown")
    folder.chmod(0o777)
    line = [*enter, pair.stage.dist / "bin" / "omniverb", "run", "printenv", "OMNIVERB_PRESENTED"]
    check(process.run(line, env=options).strip() != str(folder), "a folder that all may write to")
    text = process.run([*enter, pair.stage.dist / "bin" / "omniverb", "present", "--once", folder],
                       env=options, accept=(1,))
    check("only you can write to" in text, text)
    # A folder that is nowhere here: that is said, once, to who looks there, and not to others.
    options["OMNIVERB_PRESENTED"] = "/run/omniverb-presented/presented-of-another-host"
    options["LD_PRELOAD"] = str(pair.stage.dist / "lib" / "libomniverb_paths.so")
    line = [*enter, "ls", _DEVICE, f"{_DEVICE}/ports"]
    text = process.run(line, env=options, accept=(2,))
    check(text.count("OMNIVERB_PRESENTED") == 1 and "omniverb run" in text, text)
    text = process.run([*enter, "ls", "/sys/class/net"], env=options)
    check("OMNIVERB_PRESENTED" not in text, text)
    del options["LD_PRELOAD"], options["OMNIVERB_PRESENTED"]
    # Where there is no PATH the C library has one.
    line = [*enter, "/usr/bin/env", "-u", "PATH", pair.stage.dist / "bin" / "omniverb", "run", "--",
            "cat", f"{_DEVICE}/node_guid"]
    check(process.run(line, env=options) == guid, "a program without PATH is not found")


def _swapped(pair):
    """A link that is put in the place of a part of the folder is not followed."""
    folder, victim = pair.stage.folder("files", UID), pair.stage.folder("victim", UID)
    line = [*pair.namespace.enter(), *as_user(UID), pair.stage.dist / "bin" / "omniverb", "present"]
    said = open(victim / "said", "w+", encoding="utf-8")  # noqa: SIM115 - closed below
    keeping = process.start([*line, folder], env=pair.server.environment(), stdout=said,
                            stderr=said)
    try:
        process.until(lambda: (folder / "complete").exists(), 30, "the folder's files")
        shutil.copytree(folder / "sys", victim / "sys", symlinks=True)
        process.run(["chown", "-R", str(UID), victim])
        before = {path: path.read_text() for path in (victim / "sys").rglob("*") if path.is_file()}
        os.rename(folder / "sys", folder / "moved")
        os.symlink(victim / "sys", folder / "sys")
        # Counters change, and are to be written.
        client_server.Duet(pair, ["ib_send_bw", "-F", "-n", "2000", "-s", "4096"]).finish(60)
        process.until(lambda: keeping.poll() is not None, 30, "the end of `omniverb present`")
        after = {path: path.read_text() for path in (victim / "sys").rglob("*") if path.is_file()}
        check(after == before, f"written by way of a link: {process.written(said)}")
        check("is a link" in process.written(said), process.written(said))
    finally:
        process.end(keeping)
        said.close()


# Without a library that could be led anywhere: system calls only, and no dynamic linker.
_STATIC = r"""
#include <dirent.h>
#include <fcntl.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>
static void need(int condition, const char *what)
{
    if (!condition) {
        printf("missing: %s\n", what);
        exit(1);
    }
}
int main(void)
{
    char guid[64] = "";
    struct stat s;
    glob_t all;
    int file = open("/sys/class/infiniband/omv0/node_guid", O_RDONLY);
    need(file >= 0 && read(file, guid, sizeof guid - 1) > 0, "node_guid");
    need(glob("/sys/class/*/omv0", 0, NULL, &all) == 0 && all.gl_pathc == 1, "a listing");
    need(!access("/sys/class/infiniband_verbs/uverbs0/device/numa_node", R_OK), "device");
    need(open("/dev/infiniband/uverbs0", O_RDWR) >= 0, "uverbs0");
    need(!stat("/dev/infiniband/uverbs0", &s) && S_ISCHR(s.st_mode), "a device");
    /* What was there before is there still. */
    need(open("/dev/null", O_RDWR) >= 0 && !access("/dev/shm", W_OK), "/dev");
    need(!access("/sys/class/net/lo/ifindex", R_OK), "/sys/class/net");
    need(!access("/sys/class/mem/null/dev", R_OK), "/sys/class/mem");
    fputs(guid, stdout);
    return 0;
}
"""


def _static(pair, name):
    folder = pair.stage.folder(name, UID)
    (folder / "looks.c").write_text(_STATIC)
    process.run(["gcc", "-static", "-o", folder / "looks", folder / "looks.c"], limit=60)
    process.run(["chmod", "-R", "a+rX", folder])
    return folder / "looks"


def _mounts(pair):
    """By mounts of their own programs are shown the files that no library reaches. Others see
    nothing of it."""
    _mounted(pair, as_user(UID), pair.server.environment())


def _mounts_by_root(pair):
    """The same for root, who needs no user namespace; outside of the container, in its network."""
    _mounted(pair, [], environment(OMNIVERB_SOCKET=pair.daemon.socket))


def _mounted(pair, become, options):
    looks = _static(pair, "static")
    guid = pair.server.run("cat", f"{_DEVICE}/node_guid")
    run = [*pair.server.namespace.enter(), *become, pair.stage.dist / "bin" / "omniverb", "run"]
    line = [*run, "--present", "mounts", "--"]
    text = process.run([*line, looks], env=options)
    check(text == guid, f"{text}, not {guid}")
    # Nothing is preloaded; programs that use the device find it.
    text = process.run([*line, "printenv", "LD_PRELOAD"], env=options, accept=(1,))
    check(not text.strip(), text)
    check("omv0" in process.run([*line, "ibv_devices"], env=options), "ibv_devices")
    # Once more within it.
    again = [pair.stage.dist / "bin" / "omniverb", "run", "--present", "mounts", "--", looks]
    check(process.run([*line, *again], env=options) == guid, "within itself")
    # The library's way does not reach it, which is why there is another.
    text = process.run([*run, "--", looks], env=options, accept=(1,))
    check("missing: node_guid" in text, f"seen without mounts: {text}")
    check(not os.path.exists("/sys/class/infiniband/omv0"), "the host's sysfs has omv0")


def _mounts_not_allowed(pair):
    """Where nobody may mount, the library does it, and that is said in one line."""
    text = pair.server.run("omniverb", "run", "--present", "mounts", "--", "cat",
                           f"{_DEVICE}/node_guid", plain=True)
    told = [line for line in text.splitlines() if line.startswith("omniverb: ")]
    check(len(told) == 1 and "mounts" in told[0], text)
    guid = pair.server.run("cat", f"{_DEVICE}/node_guid")
    check(text.splitlines()[-1] + "\n" == guid, text)


def _library_of_another_name(pair):
    """A program that brings its own copy of libibverbs, as Python wheels do."""
    folder = pair.stage.folder("wheel", UID)
    stock = os.path.realpath("/usr/lib/x86_64-linux-gnu/libibverbs.so.1")
    if not os.path.exists(stock):
        raise Skip("no libibverbs to copy")
    copy = folder / "libibverbz.so.9"
    with open(stock, "rb") as file:
        bytes_of = file.read()
    check(bytes_of.count(b"\0libibverbs.so.1\0") == 1, "the name of the library is not there once")
    copy.write_bytes(bytes_of.replace(b"\0libibverbs.so.1\0", b"\0libibverbz.so.9\0"))
    source = folder / "devices.c"
    source.write_text("""
        #include <infiniband/verbs.h>
        #include <stdio.h>
        int main(void)
        {
            int count = 0;
            struct ibv_device **list = ibv_get_device_list(&count);
            printf("%d devices", count);
            for (int i = 0; i < count; i++) {
                struct ibv_context *context = ibv_open_device(list[i]);
                printf(" %s %s", ibv_get_device_name(list[i]), context ? "opens" : "fails");
                if (context)
                    ibv_close_device(context);
            }
            ibv_free_device_list(list);
            printf("\\n");
            return 0;
        }
    """)
    process.run(["gcc", "-o", folder / "devices", source, copy, "-Wl,-rpath,$ORIGIN"], limit=60)
    process.run(["chmod", "-R", "a+rX", folder])
    line = [*pair.namespace.enter(), *as_user(UID), pair.stage.dist / "bin" / "omniverb", "run"]
    options = pair.server.environment()
    text = process.run([*line, "--", folder / "devices"], env=options)
    check("omv0" not in text.splitlines()[-1], f"the copy is not its own:\n{text}")
    text = process.run([*line, "--preload", "--", folder / "devices"], env=options)
    check("1 devices omv0 opens" in text, text)


def _few_descriptors(pair):
    """Who has no descriptors left is told that, not something about lengths."""
    told = 0
    for limit in range(4, 24):
        text = process.run(
            [*pair.namespace.enter(), *as_user(UID), "prlimit", f"--nofile={limit}",
             "ibv_devinfo"], accept=range(256),
            env=environment(OMNIVERB_SOCKET=pair.daemon.socket,
                            LD_LIBRARY_PATH=pair.stage.dist / "lib"))
        check("Message too long" not in text, f"{limit} descriptors: {text}")
        told += "Too many open files" in text
    check(told, "nobody was told that there are too few descriptors")


def _port_taken(pair):
    """UDP port 4791 in somebody else's hands shows in the doctor."""
    hold = ("import socket, time\n"
            "while True:\n"
            "    try:\n"
            "        held = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n"
            "        held.bind(('0.0.0.0', 4791))\n"
            "        break\n"
            "    except OSError:\n"
            "        time.sleep(0.05)\n"
            "print('held', flush=True)\n"
            "time.sleep(1000)\n")
    holder = process.start([*pair.namespace.enter(), "/usr/bin/python3", "-c", hold],
                           stdout=-1, text=True)
    try:
        check(holder.stdout.readline() == "held\n", "the port cannot be had")
        text = pair.server.run("omniverb", "doctor", plain=True, accept=(0, 1)) \
            if isinstance(pair, Pair) else _doctor(pair)
        bad = [line for line in text.splitlines() if line.startswith("BAD") and "4791" in line]
        check(len(bad) == 1, text)
    finally:
        process.end(holder)


def _doctor(pair):
    line = [*pair.namespace.enter(), *as_user(UID), pair.stage.dist / "bin" / "omniverb", "doctor"]
    return process.run(line, env=pair.server.environment(), accept=(0, 1))


def _doctor_shows(pair):
    text = _doctor(pair)
    check(re.search(r"^ok .*shows programs /sys/class/infiniband", text, re.MULTILINE), text)


_BOTH = [("files", _files, 60), ("gids", _gids, 60), ("rdma", _rdma, 60),
         ("counters", _counters, 240), ("ibstat", _ibstat, 60), ("ucx", _ucx, 120)]
_USER = [("kept", _kept, 300), ("not_possible", _not_possible, 60), ("present", _present, 60),
         ("swapped", _swapped, 120),
         ("mounts", _mounts, 120),
         ("library_of_another_name", _library_of_another_name, 120),
         ("few_descriptors", _few_descriptors, 120), ("port_taken", _port_taken, 60),
         ("doctor", _doctor_shows, 60)]


def _pair(is_direct, stage):
    pair = Pair(stage, count=2, daemon_arguments=() if is_direct else forwarding(stage))
    pair.is_direct = is_direct
    return pair


def groups():
    """In containers, and as an ordinary user."""
    return [
        Group("presented.containers",
              [Case(f"presented.containers.{name}", run, limit)
               for name, run, limit in [*_BOTH, ("failures", _failures, 120),
                                       ("silence", _silence, 120),
                                       ("mounts_by_root", _mounts_by_root, 120),
                                       ("mounts_not_allowed", _mounts_not_allowed, 60)]],
              functools.partial(_pair, True)),
        Group("presented.user",
              [Case(f"presented.user.{name}", run, limit) for name, run, limit in _BOTH + _USER],
              PlainPair),
        Group("presented.forwarded",
              [Case("presented.forwarded.packets", _packets, 200),
               Case("presented.forwarded.failures", _failures, 120),
               Case("presented.forwarded.gaps", _gaps, 200),
               Case("presented.forwarded.silence", _silence, 120)],
              functools.partial(_pair, False)),
    ]
