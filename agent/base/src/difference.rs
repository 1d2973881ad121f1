//! What differs between two texts, line by line.

use imara_diff::{Algorithm, Diff, InternedInput, Interner, Token, UnifiedDiffConfig, UnifiedDiffPrinter};
use std::fmt;

/// As `diff -u` shows it, with so many lines around each change, and what the two texts are called. Empty where they are the same.
pub fn unified(old: &str, new: &str, names: (&str, &str), around: u32) -> String {
    let (input, diff) = compare(old, new);
    if diff.hunks().next().is_none() {
        return String::new();
    }
    let mut config = UnifiedDiffConfig::default();
    config.context_len(around);
    let printer = Lines(&input.interner);
    let lines = diff.unified_diff(&printer, config, &input);
    format!("--- {}\n+++ {}\n{lines}", names.0, names.1)
}

/// The lines that only one of the texts has, in order, with their ends; `true`: the new one.
pub fn changed(old: &str, new: &str) -> Vec<(bool, String)> {
    let (input, diff) = compare(old, new);
    let texts = |is_new: bool, tokens: &[Token]| -> Vec<(bool, String)> {
        tokens.iter().map(|token| (is_new, input.interner[*token].to_owned())).collect()
    };
    let hunks = diff.hunks().flat_map(|hunk| {
        let old = input.before.get(hunk.before.start as usize..hunk.before.end as usize);
        let new = input.after.get(hunk.after.start as usize..hunk.after.end as usize);
        [texts(false, old.unwrap_or_default()), texts(true, new.unwrap_or_default())].concat()
    });
    hunks.collect()
}

fn compare<'a>(old: &'a str, new: &'a str) -> (InternedInput<&'a str>, Diff) {
    let input = InternedInput::new(old, new);
    let mut diff = Diff::compute(Algorithm::Histogram, &input);
    diff.postprocess_lines(&input);
    (input, diff)
}

/// Prints lines as `diff -u` does, a last one without its end, too.
struct Lines<'a>(&'a Interner<&'a str>);

impl Lines<'_> {
    fn line(&self, mut to: impl fmt::Write, sign: char, token: Token) -> fmt::Result {
        let line = self.0[token];
        let end = if line.ends_with('\n') { "" } else { "\n\\ No newline at end of file\n" };
        write!(to, "{sign}{line}{end}")
    }
}

impl UnifiedDiffPrinter for Lines<'_> {
    fn display_header(
        &self,
        mut to: impl fmt::Write,
        old: u32,
        new: u32,
        old_lines: u32,
        new_lines: u32,
    ) -> fmt::Result {
        // Lines are counted from 1, and of none it is the one before.
        let (old, new) = (old + u32::from(old_lines > 0), new + u32::from(new_lines > 0));
        writeln!(to, "@@ -{old},{old_lines} +{new},{new_lines} @@")
    }

    fn display_context_token(&self, to: impl fmt::Write, token: Token) -> fmt::Result {
        self.line(to, ' ', token)
    }

    fn display_hunk(&self, mut to: impl fmt::Write, before: &[Token], after: &[Token]) -> fmt::Result {
        before.iter().try_for_each(|token| self.line(&mut to, '-', *token))?;
        after.iter().try_for_each(|token| self.line(&mut to, '+', *token))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashMap;

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

    #[test]
    fn ends_of_texts_are_told() {
        let of = |old, new| unified(old, new, ("o", "n"), 3);
        assert_eq!(of("a", "a\n"), "--- o\n+++ n\n@@ -1,1 +1,1 @@\n-a\n\\ No newline at end of file\n+a\n");
        assert_eq!(of("", "a\n"), "--- o\n+++ n\n@@ -0,0 +1,1 @@\n+a\n");
        assert_eq!(of("a\n", ""), "--- o\n+++ n\n@@ -1,1 +0,0 @@\n-a\n");
    }

    proptest! {
        #[test]
        fn what_changed_makes_the_one_of_the_other(old in "([abc]\n){0,12}[ab]?", new in "([abc]\n){0,12}[ab]?") {
            let lines = |text: &str| text.split_inclusive('\n').map(str::to_owned).collect::<Vec<_>>();
            let mut counted = HashMap::<String, i64>::new();
            lines(&old).into_iter().for_each(|line| *counted.entry(line).or_default() += 1);
            for (is_new, line) in changed(&old, &new) {
                *counted.entry(line).or_default() += if is_new { 1 } else { -1 };
            }
            lines(&new).into_iter().for_each(|line| *counted.entry(line).or_default() -= 1);
            prop_assert!(counted.values().all(|left| *left == 0), "{counted:?}");
        }
    }
}
