//! What a run's container says on the socket of its ties, and what it hears: one JSON object a line, each way.
//!
//! The socket is an abstract one that is this run's alone. Whoever connects there is a process of the container: who it is, and
//! what its parent runs, is the kernel's to say and not its own.

use serde::{Deserialize, Serialize};

/// The variable of the container with the socket's name, `@` first.
pub const VARIABLE: &str = "RINGFENCE_TIE";
/// The program that a tool's shell starts first.
pub const PROGRAM: &str = "ringfence-runtime";
/// Its argument for that. The call's id may follow.
pub const COMMAND: &str = "tie";
/// What a socket's name begins with, behind the `@`; [`DIGITS`] hex digits follow.
pub const NAME: &str = "ringfence-";
/// Random digits of a socket's name.
pub const DIGITS: usize = 32;
/// Most bytes of a line, with its end.
pub const MAX_LINE: usize = 256 << 10;

/// Whether a text is the name of such a socket, without its `@`.
pub fn is_name(name: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    name.strip_prefix(NAME).is_some_and(|digits| digits.len() == DIGITS && digits.bytes().all(is_digit))
}

/// What a process of the container says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Said {
    /// The shell that started this process is about to run a call's command. Answered by [`Heard::Tied`] or [`Heard::Refused`].
    Tie {
        /// What the agent calls it: the provider's id. `None`: it does not know.
        #[serde(default)]
        call: Option<String>,
    },
    /// A tool call is over, as the agent's own hook says. Answered by [`Heard::Noted`] or [`Heard::Refused`].
    Done(Done),
}

/// What an agent's own hook says of a call that is over: its word and nobody else's.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// What the agent calls it: the provider's id. Nothing is recorded of one that no model of the run wanted.
    pub call: String,
    /// The tool, as the agent calls it. The record has what the model calls it.
    pub tool: String,
    /// The agent's session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Whether it failed. `None`: it does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<bool>,
}

/// What it hears.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Heard {
    /// The shell and all that it starts from now on is the call's.
    Tied(Sure),
    /// It is on its way to the record.
    Noted {},
    /// Nothing was done, and why.
    Refused(String),
}

/// How sure a tie is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sure {
    /// The call was named, and the shell runs what it says.
    Exact,
    /// The shell runs what one call alone says.
    Matched,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_have_the_documented_shape() {
        let said = |call: Option<&str>| Said::Tie { call: call.map(str::to_owned) };
        assert_eq!(serde_json::to_string(&said(Some("toolu_1"))).unwrap(), r#"{"tie":{"call":"toolu_1"}}"#);
        assert_eq!(serde_json::from_str::<Said>(r#"{"tie":{}}"#).unwrap(), said(None));
        assert_eq!(serde_json::to_string(&Heard::Tied(Sure::Exact)).unwrap(), r#"{"tied":"exact"}"#);
        let done = |text: &str| serde_json::from_str::<Said>(text).unwrap();
        let whole = r#"{"done":{"call":"toolu_1","tool":"Edit","session":"s","failed":false}}"#;
        assert_eq!(serde_json::to_string(&done(whole)).unwrap(), whole);
        let short = Done { call: "toolu_1".into(), tool: "Edit".into(), ..Done::default() };
        assert_eq!(done(r#"{"done":{"call":"toolu_1","tool":"Edit"}}"#), Said::Done(short));
        assert_eq!(serde_json::to_string(&Heard::Noted {}).unwrap(), r#"{"noted":{}}"#);
        assert_eq!(serde_json::to_string(&Heard::Refused("no".into())).unwrap(), r#"{"refused":"no"}"#);
    }

    #[test]
    fn a_name_is_random_digits_and_nothing_else() {
        let name = format!("{NAME}{}", "0123456789abcdef".repeat(2));
        assert!(is_name(&name));
        for odd in ["", NAME, &name[1..], &name[..name.len() - 1], &format!("{name}0"), &name.to_uppercase()]
        {
            assert!(!is_name(odd), "{odd}");
        }
        assert!(!is_name(&name.replace('0', "/")) && !is_name(&format!("@{name}")));
    }
}
