//! Reads the guest's test results: TAP lines, a plan, and a last line that says that all of it came.

/// The guest's last line; without it the results are not whole.
pub(crate) const SENTINEL: &str = "# ringfence-vm-tests: done";
/// What the guest says now and then between results: it lives, and is at work.
const ALIVE: &str = "# ringfence-vm-tests: alive";

/// What one boot's results come to so far.
#[derive(Debug, Default)]
pub(crate) struct Tap {
    /// Cases that passed.
    pub(crate) passed: usize,
    /// Names of the cases that failed, and what else is wrong.
    pub(crate) failed: Vec<String>,
    /// Cases that said that they do not apply, with their reasons.
    pub(crate) skipped: Vec<String>,
    planned: Option<usize>,
    ended: bool,
}

/// What a line is, for showing it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// A case passed.
    Passed,
    /// A case failed.
    Failed,
    /// A case does not apply.
    Skipped,
    /// The plan, a sign of life or the last line.
    Frame,
    /// Something else: what a case said.
    Other,
}

impl Tap {
    /// Takes in one line.
    pub(crate) fn line(&mut self, line: &str) -> Line {
        if line == SENTINEL {
            self.ended = true;
            return Line::Frame;
        }
        if line == ALIVE {
            return Line::Frame;
        }
        if let Some(count) = line.strip_prefix("1..") {
            self.planned = count.trim().parse().ok();
            return Line::Frame;
        }
        if let Some(rest) = line.strip_prefix("not ok ") {
            self.failed.push(name(rest).to_owned());
            return Line::Failed;
        }
        if let Some(rest) = line.strip_prefix("ok ") {
            if let Some((case, reason)) = rest.split_once("# SKIP") {
                self.skipped.push(format!("{}: {}", name(case).trim(), reason.trim()));
                return Line::Skipped;
            }
            self.passed += 1;
            return Line::Passed;
        }
        if line.starts_with("Bail out!") {
            self.failed.push(line.to_owned());
        }
        Line::Other
    }

    /// Ends the results: what is missing becomes a failure, and so does a runner that says other than it shows.
    pub(crate) fn finish(&mut self, status: Option<u32>) {
        let seen = self.passed + self.failed.len() + self.skipped.len();
        if !self.ended {
            self.failed.push("the results are not whole: no last line".to_owned());
        } else if self.planned != Some(seen) {
            let planned = self.planned.map_or("no number".to_owned(), |count| count.to_string());
            self.failed.push(format!("{planned} of cases announced, {seen} seen"));
        } else if status != Some(0) && self.failed.is_empty() {
            self.failed
                .push(format!("the runner ended with status {}, but no case failed", status.unwrap_or(255)));
        }
    }
}

/// A case's name in `12 - name`.
fn name(rest: &str) -> &str {
    rest.split_once(" - ").map_or(rest, |(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::{ALIVE, Line, SENTINEL, Tap};

    fn read(lines: &[&str], status: u32) -> Tap {
        let mut tap = Tap::default();
        for line in lines {
            tap.line(line);
        }
        tap.finish(Some(status));
        tap
    }

    #[test]
    fn whole_results_count() {
        let tap = read(&["ok 1 - a", "# said", ALIVE, "ok 2 - b # SKIP no such hook", "1..2", SENTINEL], 0);
        assert_eq!(
            (tap.passed, tap.failed.len(), tap.skipped.as_slice()),
            (1, 0, &["b: no such hook".to_owned()][..])
        );
    }

    #[test]
    fn what_is_missing_or_contradicts_fails() {
        let whole = ["ok 1 - a", "1..1", SENTINEL];
        assert!(read(&whole, 0).failed.is_empty(), "the control");
        assert_eq!(read(&whole[..2], 0).failed.len(), 1, "no last line");
        assert_eq!(read(&["ok 1 - a", "1..2", SENTINEL], 0).failed.len(), 1, "a case too few");
        assert_eq!(read(&["ok 1 - a", SENTINEL], 0).failed.len(), 1, "no plan");
        assert_eq!(read(&whole, 1).failed.len(), 1, "a bad status without a failed case");
        assert_eq!(read(&["not ok 1 - a", "1..1", SENTINEL], 1).failed, ["a"]);
        assert_eq!(read(&[], 0).failed.len(), 1, "nothing at all");
        assert_eq!(read(&["ok 1 - a", "1..1", ALIVE], 0).failed.len(), 1, "a sign of life is no last line");
        assert_eq!(Tap::default().line("not ok 1 - x"), Line::Failed);
        assert_eq!(Tap::default().line(ALIVE), Line::Frame, "not shown as what a failed case said");
    }
}
