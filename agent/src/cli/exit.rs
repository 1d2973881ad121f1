//! The exit statuses of all commands: one table, for the code, `ringfence --help` and docs/cli.md.

use ringfence_launch as launch;
use std::process::ExitCode;

/// The one list of statuses: a variant, its number, and what it means for which commands.
macro_rules! statuses {
    ($($(#[$doc:meta])* $Variant:ident = $number:expr, $meaning:literal;)*) => {
        /// How a command ends. `run`, `mcp` and `tools` end with the status of the process that they started, where it ran.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[repr(u8)]
        pub(crate) enum Exit { $($(#[$doc])* $Variant = $number),* }

        /// What each status means.
        const TABLE: &[(Exit, &str)] = &[$((Exit::$Variant, $meaning)),*];
    };
}

statuses! {
    /// The command succeeded; to a question, the answer is yes.
    Success = 0, "success; for a check: nothing is wrong; for a question: yes";
    /// The command failed; to a question, the answer is no.
    Failure = 1, "error; for a check: something is wrong; for a question: no; doctor: partial enforcement";
    /// Something needs attention. clap uses the same status for a command line that it cannot parse.
    Attention = 2, "wrong usage; status, agent pin: something needs attention; doctor: no enforcement";
    /// There is no answer without more privilege.
    Unknown = 3, "doctor: unknown, because only root can look";
    /// The command was not started, because it could not be confined.
    NotConfined = launch::FAILED, "run, mcp, tools: the command could not be confined, so it was not started";
    /// The command was found and could not be executed, as env(1) has it.
    NotExecutable = launch::NOT_EXECUTABLE, "run, mcp: the command was found but could not be executed";
    /// The command was not found, as env(1) has it.
    NotFound = launch::NOT_FOUND, "run, mcp: the command was not found";
}

impl From<Exit> for u8 {
    fn from(exit: Exit) -> Self {
        exit as Self
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(u8::from(exit))
    }
}

/// What has no number of its own in [`TABLE`].
const OTHERS: [(&str, &str); 2] = [
    ("128+N", "run, mcp, tools: signal N ended the command; 134: a bug ended ringfence itself"),
    ("other", "run, mcp: the exit status of the command"),
];

/// The rows of the table: a status and its meaning.
pub(super) fn rows() -> impl Iterator<Item = (String, &'static str)> {
    let numbered = TABLE.iter().map(|(exit, meaning)| (u8::from(*exit).to_string(), *meaning));
    numbered.chain(OTHERS.map(|(status, meaning)| (status.to_owned(), meaning)))
}

/// The table for a terminal.
pub(super) fn text() -> String {
    let rows: Vec<String> = rows().map(|(status, meaning)| format!("  {status:<6} {meaning}")).collect();
    format!("Exit status:\n{}", rows.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Scripts depend on these numbers.
    #[test]
    fn the_statuses_are_those_of_env_and_of_earlier_versions() {
        let statuses: Vec<u8> = TABLE.iter().map(|(exit, _)| u8::from(*exit)).collect();
        assert_eq!(statuses, [0, 1, 2, 3, 125, 126, 127]);
        assert_eq!(ExitCode::from(Exit::Success), ExitCode::SUCCESS);
        assert_eq!(ExitCode::from(Exit::Failure), ExitCode::FAILURE);
    }

    #[test]
    fn the_table_fits_a_terminal() {
        for line in text().lines() {
            assert!(line.len() <= 100, "{line}");
        }
    }
}
