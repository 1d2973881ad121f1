//! Numbers of things, in words.

/// A number and what it counts, whose plural ends in s: `1 session`, `2 sessions`.
pub fn counted(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::counted;

    #[test]
    fn one_is_singular_and_every_other_number_plural() {
        let texts = [0, 1, 2, 11].map(|number| counted(number, "session"));
        assert_eq!(texts, ["0 sessions", "1 session", "2 sessions", "11 sessions"]);
    }
}
