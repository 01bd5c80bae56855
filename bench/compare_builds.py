"""Compares two builds: `--against DIST` measures another build's libraries and daemon as well.

Both are sampled in every round, the one right after the other, each first in every other round, so
what the machine does meanwhile, and what was measured before, hits both. Samples in; a table with a
ratio and a verdict out."""
import math
from dataclasses import replace

import report

# Keys of the other build begin with this.
OTHER = "was_"
# One comparison in a hundred of equal builds may be called a difference.
SELDOM = 0.01


def both(now, was):
    """Measurements of two builds, each beside its counterpart."""
    others = {item.key: replace(item, key=OTHER + item.key, label=f"{item.label} (other)")
              for item in was}
    return [one for item in now for one in (item, others.get(item.key)) if one]


def verdict(entry, other):
    """(how fast it is against the other build, what that means).

    Worse than noise: each build's median is on that side of every sample of the other one; or, of
    enough samples, theirs are so seldom ordered like that by chance (`_by_chance`).
    """
    sign = 1 if entry["unit"] in ("ns", "times") else -1
    mine, its = ([sign * value for value in one["samples"]] for one in (entry, other))
    middle, its_middle = sign * entry["median"], sign * other["median"]
    speed = (its_middle / middle) ** sign
    seldom = _by_chance(mine, its) < SELDOM
    if middle > max(its) and its_middle < min(mine) or seldom and middle > its_middle:
        return speed, "WORSE"
    if middle < min(its) and its_middle > max(mine) or seldom and middle < its_middle:
        return speed, "better"
    return speed, "the same, within noise"


def _by_chance(some, others):
    """How probable it is that samples of one and the same thing are as unevenly ordered as these:
    the rank sum test of Mann and Whitney, by the normal distribution (good from eight on)."""
    if min(len(some), len(others)) < 8:
        return 1.0
    wins = sum((one > other) + (one == other) / 2 for one in some for other in others)
    pairs = len(some) * len(others)
    deviation = math.sqrt(pairs * (len(some) + len(others) + 1) / 12)
    return math.erfc(abs(wins - pairs / 2) / deviation / math.sqrt(2))


def lines(rows):
    """The table; `rows` are report.results' or alike."""
    yield "{:38} {:>10} {:>21} {:>10} {:>21} {:>7}  {}".format(
        "against another build", "median", "least to most", "other", "least to most", "speed", "")
    for key, entry in rows.items():
        other = rows.get(OTHER + key)
        if not other:
            continue
        if "median" not in entry or "median" not in other:
            missing = entry if "median" not in entry else other
            yield f"{entry['label']:38} not measured: {missing.get('error', 'no sample')}"
            continue
        cells = []
        for one in (entry, other):
            least, most = (report.show(one[end], one["unit"]) for end in ("min", "max"))
            cells += [report.show(one["median"], one["unit"]), f"{least} - {most}"]
        speed, text = verdict(entry, other)
        yield (f"{entry['label']:38} {cells[0]:>10} {cells[1]:>21} {cells[2]:>10} "
               f"{cells[3]:>21} {speed:>6.2f}x  {text}")
