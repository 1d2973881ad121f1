//! How deep JSON of others may nest: one limit for what may pass and for what every reader of records takes apart.
//!
//! A record puts levels of its own around a text that it keeps (a row, a list of rows, an answer, an exported event), and
//! whoever reads that has the same parser. What may pass leaves room for them; what is deeper and on record all the same
//! (a server's answer, a call of an earlier version) is shown as the text it is.

/// Deepest nesting that our parser takes: `serde_json` ends before the 128th level.
pub const PARSED: usize = 127;
/// Levels that are kept for what is put around a text. Answers and exports have fewer than ten.
pub const AROUND: usize = 27;
/// Deepest nesting of a client's message that may pass, and of what a record shows taken apart.
pub const MOST: usize = PARSED - AROUND;

#[cfg(test)]
mod tests {
    use super::PARSED;
    use serde_json::Value;

    #[test]
    fn the_parser_takes_as_much_as_is_said_and_no_more() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(serde_json::from_str::<Value>(&nested(PARSED)).is_ok());
        assert!(serde_json::from_str::<Value>(&nested(PARSED + 1)).is_err());
    }
}
