#!/usr/bin/env python3
"""Checks the driver itself, without running a benchmark: python3 bench/selftest.py"""
import contextlib
import io
import unittest

import compare_builds
import program_runs
import measurement_plan as plan
import report

PERFTEST_BW = """ #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 8          5000000          0.00               613.64 \t\t   80.431433
-------
"""
LIMITS = {
    "pingpong_one_line_ns": {"median": 100.0, "min": 90.0, "max": 300.0},
    "pingpong_two_lines_ns": {"median": 140.0, "min": 130.0, "max": 300.0},
    "ring_records_per_s": {"median": 1e9, "min": 1e6, "max": 1.1e9},
    "memcpy_shared_1m_bytes_per_s": {"median": 50e9, "min": 9e9, "max": 55e9},
}


def taken(key, unit, *samples):
    return plan.Measurement(key, key, unit, lambda _: 0.0, samples=list(samples))


def row(unit, *samples):
    return {"label": "x", "unit": unit, **report.summary(list(samples))}


class Driver(unittest.TestCase):
    def test_two_builds(self):
        slow, fast, wide = row("ns", 19, 20, 21), row("ns", 9, 10, 11), row("ns", 8, 15, 30)
        self.assertEqual(compare_builds.verdict(slow, fast), (0.5, "WORSE"))
        self.assertEqual(compare_builds.verdict(fast, slow), (2, "better"))
        self.assertEqual(compare_builds.verdict(wide, fast)[1], "the same, within noise")
        self.assertEqual(compare_builds.verdict(row("B/s", 9, 10, 11), row("B/s", 19, 20, 21)),
                         (0.5, "WORSE"))
        ours, theirs = taken("omv_a", "ns", 1), taken("omv_a", "ns", 2)
        rows = {item.key: report.entry_of(item) for item in compare_builds.both([ours], [theirs])}
        self.assertEqual(list(rows), ["omv_a", "was_omv_a"])
        self.assertIn("2.00x", list(compare_builds.lines(rows))[1])

    def test_each_is_first_as_often_as_last(self):
        order = []
        items = [plan.Measurement(key, key, "ns", lambda _, key=key: order.append(key) or 1.0)
                 for key in "abc"]
        with contextlib.redirect_stderr(io.StringIO()):
            plan.sample_all(items, 4, ())
        self.assertEqual("".join(order), "cba" "abc" "cba" "abc" "cba")
        self.assertEqual([len(item.samples) for item in items], [4, 4, 4])

    def test_perftest_row(self):
        self.assertEqual(program_runs.row(PERFTEST_BW, 8), [8, 5000000, 0, 613.64, 80.431433])
        with self.assertRaises(program_runs.Failure):
            program_runs.row("Couldn't connect to 127.0.0.1:18515\n", 8)

    def test_cmtime(self):
        text = "".join(f"{step:<13}: {ms:>10.2f}      9.00      8.00      7.00\n" for step, ms in
                       zip((*program_runs.STEPS, "disconnect"), (10, 20, 30, 40, 100, 999)))
        self.assertEqual(program_runs.cmtime_rate(f"step   total ms\n{text}", 1000), 5000)
        with self.assertRaises(program_runs.Failure):
            program_runs.cmtime_rate("connect: 5.0\n", 1000)
        self.assertEqual(report.show(1234.5, "/s"), "1234/s")

    def test_thresholds(self):
        rows = report.results([
            taken("omv_write_lat", "ns", 70.0, 80.0, 300.0), taken("omv_send_lat", "ns", 59.0),
            taken("omv_send_rate", "msg/s", 9.9e6), taken("omv_write_1m", "B/s", 41e9),
            taken("omv_connect", "ns", 200_001.0)], LIMITS)
        self.assertEqual(rows["omv_write_lat"]["ratio_to_raw"], 1.6)
        self.assertEqual(rows["omv_write_lat"]["ratio_to_two_lines"], 80 / 70)
        verdicts = {key: (row["acceptance"], row["goal"]) for key, row in rows.items()}
        self.assertEqual(verdicts, {
            "omv_write_lat": ("<= 1.5x MISSED", "<= 1.1x MISSED"),
            "omv_send_lat": ("<= 2x met", "<= 1.2x met"),
            "omv_send_rate": (">= 10 M/s MISSED", ">= 40 M/s MISSED"),
            "omv_write_1m": (">= 80% met", ">= 95% MISSED"),
            "omv_connect": ("<= 200 us MISSED", ""),
        })

    def test_too_good_is_a_fault(self):
        rows = report.results([taken("omv_write_lat", "ns", 20.0),
                               taken("omv_write_1m", "B/s", 90e9),
                               taken("omv_read_lat", "ns", 20.0),
                               taken("omv_send_1m", "B/s", 45e9)], LIMITS)
        self.assertEqual([key for key, row in rows.items() if "error" in row],
                         ["omv_write_lat", "omv_write_1m"])

    def test_ucx(self):
        rows = report.results([taken("omv_send_lat", "ns", 100.0),
                               taken("ucx_tag_lat", "ns", 120.0),
                               taken("ucx_am_lat", "ns", 90.0)], LIMITS)
        self.assertEqual(rows["omv_send_lat"]["speed_against_ucx"], 0.9)

    def test_next_iterations(self):
        item = taken("x_rate", "msg/s")
        item.adapt(10e6, 0.1)
        self.assertEqual(item.iterations, int(plan.SAMPLE * 10e6))
        # No further than it was too long.
        item.adapt(10e6, plan.START + 5 * 4 * plan.SAMPLE)
        self.assertEqual(item.iterations, int(plan.SAMPLE * 10e6) // 5)
        item.adapt(1.0, 0.1)
        self.assertEqual(item.iterations, item.limits[0])

    def test_rounds(self):
        values = iter([ValueError("warm-up"), 3.0, ValueError("late"), 5.0])

        def sample(_):
            value = next(values)
            if isinstance(value, Exception):
                raise value
            return value
        item = plan.Measurement("x_lat", "x", "ns", sample)
        with contextlib.redirect_stderr(io.StringIO()):
            plan.sample_all([item], 3, ValueError)
        self.assertEqual((item.samples, item.error), ([3.0, 5.0], "late"))
        with contextlib.redirect_stderr(io.StringIO()):
            never = plan.Measurement("y_lat", "y", "ns", lambda _: int("nothing"))
            plan.sample_all([never], 9, ValueError)
        self.assertEqual(never.samples, [])
        self.assertIn("nothing", never.error)


if __name__ == "__main__":
    unittest.main()
