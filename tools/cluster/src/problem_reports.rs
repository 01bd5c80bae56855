//! Says each problem once: when it appears, when its reason changes, and when it is over.

use std::collections::BTreeMap;

/// Lines that are written of one look at all problems. A cause that they share would fill the log.
const LINES_MAX: usize = 20;

/// Problems that were said.
#[derive(Clone, Debug, Default)]
pub struct Reports {
    said: BTreeMap<String, String>,
}

/// A line for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// Something is wrong.
    Problem(String),
    /// It is not any more.
    Over(String),
}

impl Reports {
    /// The lines to write, where these are the problems now, by what they are about.
    pub fn update(&mut self, problems: BTreeMap<String, String>) -> Vec<Line> {
        let mut lines = Vec::new();
        for (about, problem) in &problems {
            if self.said.get(about) != Some(problem) {
                lines.push(Line::Problem(format!("{about}: {problem}")));
            }
        }
        for about in self.said.keys().filter(|about| !problems.contains_key(*about)) {
            lines.push(Line::Over(format!("{about}: is as the cluster has it now")));
        }
        let more = lines.len().saturating_sub(LINES_MAX);
        lines.truncate(LINES_MAX);
        if more > 0 {
            lines.push(Line::Problem(format!("and {more} more like these")));
        }
        self.said = problems;
        lines
    }

    /// How many problems there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.said.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(all: &[(&str, &str)]) -> BTreeMap<String, String> {
        all.iter().map(|(about, why)| ((*about).to_owned(), (*why).to_owned())).collect()
    }

    #[test]
    fn a_problem_is_reported_once_and_when_it_is_over() {
        let mut reports = Reports::default();
        let first = reports.update(problems(&[("vnic a", "no tenant")]));
        assert_eq!(first, [Line::Problem("vnic a: no tenant".into())]);
        assert!(reports.update(problems(&[("vnic a", "no tenant")])).is_empty());
        let other = reports.update(problems(&[("vnic a", "no policy")]));
        assert_eq!(other, [Line::Problem("vnic a: no policy".into())]);
        assert!(matches!(&reports.update(problems(&[]))[..], [Line::Over(_)]));
        assert!(reports.update(problems(&[])).is_empty());
    }

    #[test]
    fn many_at_once_are_counted() {
        let all: Vec<String> = (0..100).map(|number| format!("vnic {number}")).collect();
        let all = all.iter().map(|about| (about.clone(), "x".to_owned())).collect();
        let mut reports = Reports::default();
        let lines = reports.update(all);
        assert_eq!(lines.len(), LINES_MAX + 1);
        assert_eq!(lines.last(), Some(&Line::Problem("and 80 more like these".into())));
        assert_eq!(reports.count(), 100);
    }
}
