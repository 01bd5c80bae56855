//! Reports medians of samples: as a table, and as JSON for `bench/bench.py`.

use crate::second_process::Pin;
use serde_json::{Map, Value, json};
use std::fmt::Write;

/// Every sample of every limit, in the order the limits were first measured.
#[derive(Default)]
pub struct Report {
    rows: Vec<(String, Vec<f64>)>,
}

/// The `percent`-th percentile (nearest rank); zero for no samples.
pub fn percentile(samples: &[f64], percent: f64) -> f64 {
    let mut sorted = samples.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (percent / 100.0 * sorted.len().saturating_sub(1) as f64).round() as usize;
    sorted.get(rank).copied().unwrap_or_default()
}

impl Report {
    /// Records one sample. The unit is the end of the name.
    pub fn add(&mut self, name: &str, sample: f64) {
        match self.rows.iter_mut().find(|(known, _)| known == name) {
            Some((_, samples)) => samples.push(sample),
            None => self.rows.push((name.to_owned(), vec![sample])),
        }
    }

    /// All samples with their median, least and greatest.
    pub fn json(&self, pin: Pin) -> String {
        let limits: Map<String, Value> = self
            .rows
            .iter()
            .map(|(name, samples)| {
                let [least, median, greatest] = summary(samples);
                let row = json!({
                    "median": median, "min": least, "max": greatest, "samples": samples,
                });
                (name.clone(), row)
            })
            .collect();
        json!({ "pin": pin.to_string(), "limits": limits }).to_string()
    }

    /// One line a limit.
    pub fn table(&self, pin: Pin) -> String {
        let mut text = format!("{:34} {:>12} {:>12} {:>12}\n", "limit", "median", "min", "max");
        for (name, samples) in &self.rows {
            let (label, scale, unit) = match name.strip_suffix("_bytes_per_s") {
                Some(label) => (label, 1e9, "GB/s"),
                None => match name.strip_suffix("_per_s") {
                    Some(label) => (label, 1e6, "million/s"),
                    None => (name.strip_suffix("_ns").unwrap_or(name), 1.0, "ns"),
                },
            };
            let [least, median, greatest] = summary(samples).map(|value| value / scale);
            // Writing to a string does not fail.
            let _ = writeln!(text, "{label:34} {median:12.1} {least:12.1} {greatest:12.1}  {unit}");
        }
        let _ = writeln!(text, "CPUs: {pin}");
        text
    }
}

/// Least, median, greatest.
fn summary(samples: &[f64]) -> [f64; 3] {
    [0.0, 50.0, 100.0].map(|percent| percentile(samples, percent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_samples() {
        let samples = [5.0, 1.0, 3.0, 2.0, 4.0];
        assert_eq!(summary(&samples), [1.0, 3.0, 5.0]);
        assert_eq!(percentile(&samples, 99.0), 5.0);
        assert_eq!(percentile(&[], 50.0), 0.0);
    }

    #[test]
    fn json_keeps_every_sample() {
        let mut report = Report::default();
        report.add("x_ns", 2.0);
        report.add("x_ns", 1.0);
        let text = report.json("none".parse().expect("valid"));
        let value: Value = serde_json::from_str(&text).expect("valid JSON");
        assert_eq!(value["limits"]["x_ns"]["samples"], json!([2.0, 1.0]));
        assert_eq!(value["limits"]["x_ns"]["min"], json!(1.0));
    }
}
