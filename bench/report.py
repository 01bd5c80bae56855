"""Reports samples: medians, ratios, verdicts, a table and JSON."""
from statistics import median

from measurement_plan import ALONE, LIMIT_OF, PEERS, THRESHOLDS


def summary(samples):
    return {"median": median(samples), "min": min(samples), "max": max(samples),
            "samples": samples}


def show(value, unit):
    """A number in the unit people use for it."""
    if unit == "ns":
        if value >= 10_000_000:
            return f"{value / 1e6:.1f} ms"
        return f"{value:.0f} ns" if value < 10_000 else f"{value / 1000:.1f} us"
    if unit == "msg/s":
        return f"{digits(value / 1e6)} M/s" if value >= 1e5 else f"{value / 1e3:.1f} k/s"
    if unit == "/s":
        return f"{value:.0f}/s"
    if unit == "times":
        return f"{value:.2f} times"
    return f"{digits(value / 1e9)} GB/s"


def digits(value):
    """Two decimals for small numbers, one for others."""
    return f"{value:.{2 if value < 10 else 1}f}"


def raw_limits(limits, best=False):
    """What measurement_plan.LIMIT_OF names: medians of omniverb-limits, or its best samples."""
    def value(name):
        if best:
            return limits[name]["min" if name.endswith("_ns") else "max"]
        return limits[name]["median"]
    return {
        "half": value("pingpong_one_line_ns") / 2,
        "round": value("pingpong_one_line_ns"),
        "two lines": value("pingpong_two_lines_ns") / 2,
        "ring": value("ring_records_per_s"),
        "memcpy": value("memcpy_shared_1m_bytes_per_s"),
    }


def judge(key, value, ratio):
    """(acceptance text, goal text); empty where nothing is demanded."""
    if key not in THRESHOLDS:
        return "", ""
    what, *marks = THRESHOLDS[key]
    seen = ratio if what == "ratio" else value
    lower = key.endswith(("_lat", "_connect"))
    texts = []
    for mark in marks:
        if mark is None:
            texts.append("")
            continue
        if seen is None:
            texts.append("?")
            continue
        met = seen <= mark if lower else seen >= mark
        if what == "value":
            bound = f"{mark / 1e3:.0f} us" if key.endswith("_connect") else f"{mark / 1e6:.0f} M/s"
        else:
            bound = f"{mark:g}x" if lower else f"{mark:.0%}"
        texts.append(f"{'<=' if lower else '>='} {bound} {'met' if met else 'MISSED'}")
    return texts[0], texts[1]


# A mapped READ, atomic or small WRITE may touch memory that stays in the initiator's cache, so it
# is not bound by what crosses between two CPUs. These do cross (or copy):
CROSSING = ("write_lat", "send_lat", "ud_lat", "send_rate", "ud_rate", "write_1m", "send_1m",
            "read_1m")


def implausible(key, unit, ratio):
    """Faster than the machine: not a result but a fault in the measurement (or in the library).

    `ratio` is to the best raw sample; the raw limits are noisy themselves, hence the margins.
    """
    if not key.startswith("omv_") or not key.endswith(CROSSING):
        return False
    return ratio < 0.7 if unit == "ns" else ratio > 1.4


def entry_of(item):
    """What is said of any measurement: its name, what went wrong, its samples."""
    entry = {"label": item.label, "unit": item.unit}
    if item.error:
        entry["error"] = item.error
    if item.samples:
        entry.update(summary(item.samples))
    return entry


def results(measurements, limits):
    """One dictionary a measurement, ready for JSON."""
    raw = raw_limits(limits) if limits else {}
    best = raw_limits(limits, best=True) if limits else {}
    rows = {}
    for item in measurements:
        entry = entry_of(item)
        if item.samples:
            kind = LIMIT_OF.get(item.key.partition("_")[2])
            limit = raw.get(kind)
            entry["ratio_to_raw"] = entry["median"] / limit if limit else None
            if limit and kind == "half":
                entry["ratio_to_two_lines"] = entry["median"] / raw["two lines"]
            if limit and implausible(item.key, item.unit, entry["median"] / best[kind]):
                entry["error"] = ("beyond the raw limit of this run: "
                                  "the machine was disturbed, or it is wrong")
            accepted, goal = judge(item.key, entry["median"], entry["ratio_to_raw"])
            entry.update({"acceptance": accepted, "goal": goal})
        rows[item.key] = entry
    for key, others in PEERS.items():
        values = [rows[other]["median"] for other in others if "median" in rows.get(other, {})]
        if values and "median" in rows.get(key, {}):
            lower = rows[key]["unit"] == "ns"
            best = min(values) if lower else max(values)
            mine = rows[key]["median"]
            # Above 1: Omniverb is the faster one.
            rows[key]["speed_against_ucx"] = best / mine if lower else mine / best
    for key, alone in ALONE.items():
        if "median" in rows.get(key, {}) and "median" in rows.get(alone, {}):
            rows[key]["perftest_alone"] = rows[alone]["median"]
    return rows


def limit_lines(limits):
    yield f"{'Raw limit of this machine':36} {'median':>12} {'min':>12} {'max':>12}"
    for name, row in limits.items():
        for ending, unit in (("_bytes_per_s", "B/s"), ("_per_s", "msg/s"), ("_ns", "ns")):
            if name.endswith(ending):
                label = name.removesuffix(ending).replace("_", " ")
                cells = [show(row[column], unit) for column in ("median", "min", "max")]
                yield f"{label:36} {cells[0]:>12} {cells[1]:>12} {cells[2]:>12}"
                break


def result_lines(rows):
    header = ["", "median", "min", "max", "to raw", "acceptance", "goal", "against UCX"]
    yield ("{:36} {:>10} {:>10} {:>10} {:>7}  {:20} {:20} {}").format(*header).rstrip()
    for entry in rows.values():
        if "median" not in entry:
            yield f"{entry['label']:36} not measured: {entry.get('error', 'no sample')}"
            continue
        cells = [show(entry[column], entry["unit"]) for column in ("median", "min", "max")]
        ratio = entry["ratio_to_raw"]
        if ratio is None:
            ratio = ""
        else:
            ratio = f"{ratio:.2f}x" if entry["unit"] == "ns" else f"{ratio:.0%}"
        ucx = entry.get("speed_against_ucx")
        ucx = "" if ucx is None else f"{ucx:.2f}x as fast"
        yield (f"{entry['label']:36} {cells[0]:>10} {cells[1]:>10} {cells[2]:>10} {ratio:>7}  "
               f"{entry['acceptance']:20} {entry['goal']:20} {ucx}").rstrip()
        if entry.get("error"):
            yield f"    FAULT: {entry['error']}"


def perftest_lines(rows):
    """Is perftest itself the limit?"""
    entry = rows.get("omv_write_lat", {})
    if "ratio_to_two_lines" in entry:
        ratio = f"{entry['ratio_to_two_lines']:.2f}x"
        yield (f"{entry['label']}: {ratio} of half the trip of two lines, which is how perftest "
               "waits for a WRITE")
    for key, alone in ALONE.items():
        entry = rows.get(key, {})
        if "perftest_alone" not in entry:
            continue
        own = show(entry["perftest_alone"], entry["unit"])
        if entry["unit"] == "ns":
            share = entry["perftest_alone"] / entry["median"]
            yield f"{entry['label']}: {own} of it ({share:.0%}) is perftest's own loop"
        else:
            share = entry["median"] / entry["perftest_alone"]
            yield f"{entry['label']}: {share:.0%} of what perftest can do at most ({own})"
