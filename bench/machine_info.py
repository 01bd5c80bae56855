"""Reads the facts about the machine without which a figure means nothing."""
import os
import platform
import re
import subprocess
from pathlib import Path


def read(path, default="unknown"):
    try:
        return Path(path).read_text().strip()
    except OSError:
        return default


def cpu_field(name):
    match = re.search(rf"^{name}\s*:\s*(.+)$", read("/proc/cpuinfo"), re.MULTILINE)
    return match.group(1) if match else None


def tsc_mhz():
    """Time-stamp counter ticks in a microsecond; None where it cannot be told.

    The kernel derives BogoMIPS from the counter's rate on x86, at two a tick.
    """
    value = cpu_field("bogomips") if platform.machine() == "x86_64" else None
    return float(value) / 2 if value else None


def package_version(package):
    answer = subprocess.run(["dpkg-query", "-W", "-f", "${Version}", package],
                            capture_output=True, text=True)
    return answer.stdout if answer.returncode == 0 else "not installed"


def cpu_times():
    """(stolen, all) clock ticks since boot, over all CPUs."""
    fields = [int(field) for field in read("/proc/stat").split("\n")[0].split()[1:9]]
    return fields[7], sum(fields)


def stolen_since(before):
    """The share of all time since such ticks that other virtual machines had."""
    stolen, ticks = (after - then for after, then in zip(cpu_times(), before))
    return stolen / max(ticks, 1)


def commit(repository):
    """Which source was measured; marked when the tree had changes."""
    def git(*arguments):
        return subprocess.run(["git", "-C", str(repository), *arguments],
                              capture_output=True, text=True).stdout.strip()
    try:
        dirty = "+changes" if git("status", "--porcelain", "--untracked-files=no") else ""
        return git("rev-parse", "--short", "HEAD") + dirty
    except OSError:
        return "unknown"


def facts(repository):
    topology = Path("/sys/devices/system/cpu/cpu0")
    return {
        "cpu": cpu_field("model name") or platform.processor() or "unknown",
        "cpus": os.cpu_count(),
        "siblings_of_cpu0": read(topology / "topology/thread_siblings_list"),
        "governor": read(topology / "cpufreq/scaling_governor", "not visible"),
        "tsc_mhz": tsc_mhz(),
        "virtual": "hypervisor" in (cpu_field("flags") or ""),
        "kernel": platform.release(),
        "transparent_huge_pages": read("/sys/kernel/mm/transparent_hugepage/enabled"),
        "load_before": list(os.getloadavg()),
        "commit": commit(repository),
        "versions": {name: package_version(name) for name in ("perftest", "ucx-utils", "qperf")},
    }


def lines(known):
    """The facts for people."""
    virtual = "a virtual machine" if known["virtual"] else "not virtual"
    yield f"{known['cpu']}, {known['cpus']} CPUs, {virtual}, kernel {known['kernel']}"
    yield (f"thread siblings of CPU 0: {known['siblings_of_cpu0']}; frequency governor: "
           f"{known['governor']}; load before: {known['load_before'][0]:.2f}")
    yield "source " + known["commit"] + "; " + ", ".join(
        f"{name} {version}" for name, version in known["versions"].items())
    if known["load_before"][0] > 0.3 * known["cpus"]:
        yield ("WARNING: this machine was busy before the run; "
               "the numbers below are worse than it can do")
