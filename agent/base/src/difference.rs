//! What differs between two texts, line by line. In one place, because the library for it is large and compiled anew wherever it is
//! called.

use similar::{ChangeTag, TextDiff};
use std::time::Duration;

/// How long the comparison looks for a short difference; one that it has not found by then is longer than it need be.
const PATIENCE: Duration = Duration::from_millis(200);

/// As `diff -u` shows it, with so many lines around each change, and what the two texts are called. Empty where they are the same.
pub fn unified(old: &str, new: &str, names: (&str, &str), around: usize) -> String {
    let diff = TextDiff::configure().timeout(PATIENCE).diff_lines(old, new);
    diff.unified_diff().context_radius(around).header(names.0, names.1).to_string()
}

/// The lines that only one of the texts has, in order, with their ends; `true`: the new one.
pub fn changed(old: &str, new: &str) -> Vec<(bool, String)> {
    let diff = TextDiff::configure().timeout(PATIENCE).diff_lines(old, new);
    let changes = diff.iter_all_changes().filter(|change| change.tag() != ChangeTag::Equal);
    changes.map(|change| (change.tag() == ChangeTag::Insert, change.value().to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_the_same_is_left_out() {
        let (old, new) = ("a\nb\nc\nd\n", "a\nB\nc\nd\n");
        assert_eq!(
            unified(old, new, ("then", "now"), 1),
            "--- then\n+++ now\n@@ -1,3 +1,3 @@\n a\n-b\n+B\n c\n"
        );
        assert_eq!(unified(old, old, ("then", "now"), 1), "");
        assert_eq!(changed(old, new), [(false, "b\n".to_owned()), (true, "B\n".to_owned())]);
        assert_eq!(changed("a", "a\n"), [(false, "a".to_owned()), (true, "a\n".to_owned())]);
    }
}
