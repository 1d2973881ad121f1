//! Tests of what agents' shells look like, and that nothing that is not there is found.

use super::*;
use proptest::prelude::*;

const PATH: &str = "/usr/local/bin/ringfence-runtime";

/// How an agent's shell is given a text that begins with a tie, or, without one, the text alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shell {
    Plain,
    ClaudeCode,
    Gemini,
    DoubleQuoted,
}

const SHELLS: [Shell; 4] = [Shell::Plain, Shell::ClaudeCode, Shell::Gemini, Shell::DoubleQuoted];

impl Shell {
    fn arguments(self, text: &str) -> Vec<String> {
        let words: [String; 3] = match self {
            Self::Plain => ["bash".to_owned(), "-lc".to_owned(), text.to_owned()],
            Self::ClaudeCode => {
                let quoted = text.replace('\'', r#"'"'"'"#);
                let script = format!(
                    "source /tmp/snap.sh 2>/dev/null || true && eval '{quoted}' < /dev/null && pwd -P >| /tmp/cwd"
                );
                ["/bin/bash".to_owned(), "-c".to_owned(), script]
            }
            Self::Gemini => {
                let script = format!("{{ {text}; }}; __code=$?; pgrep -g 0 >/tmp/x 2>&1; exit $__code;");
                ["bash".to_owned(), "-c".to_owned(), script]
            }
            Self::DoubleQuoted => {
                let quoted: String = text
                    .chars()
                    .flat_map(|c| ['\\', c].into_iter().skip(usize::from(!"\"\\$`!".contains(c))))
                    .collect();
                ["sh".to_owned(), "-c".to_owned(), format!("set -e; eval \"{quoted}\"")]
            }
        };
        words.to_vec()
    }
}

fn tied(call: Option<&str>, command: &str) -> String {
    format!("{PATH} tie{}\n{command}", call.map(|call| format!(" {call}")).unwrap_or_default())
}

fn agree(arguments: &[String], named: Option<&str>, command: &str) -> bool {
    Places::of(arguments).agree(named, command)
}

#[test]
fn a_command_behind_its_tie_is_found_in_each_agent_s_shell() {
    let commands = [
        "ls -la",
        "cd /a && echo 'it''s' \"$X\" `id` !",
        "cat <<'E'\na\nE",
        "a; b # c",
        "x \\\n y",
        "\u{fc}",
    ];
    for shell in SHELLS {
        for command in commands {
            let named = shell.arguments(&tied(Some("toolu_1"), command));
            assert!(agree(&named, Some("toolu_1"), command), "{named:?}");
            assert!(!agree(&named, Some("toolu_2"), command) && !agree(&named, None, command), "{named:?}");
            assert!(!agree(&named, Some("toolu_1"), &format!("{command}x")), "{named:?}");
            let unnamed = shell.arguments(&tied(None, command));
            assert!(
                agree(&unnamed, None, command) && !agree(&unnamed, Some("toolu_1"), command),
                "{unnamed:?}"
            );
        }
    }
    let on_one_line = Shell::Plain.arguments(&format!("{PATH} tie toolu_1; ls"));
    assert!(agree(&on_one_line, Some("toolu_1"), "ls"));
}

#[test]
fn without_a_tie_it_is_the_whole_script_or_what_that_evaluates() {
    for shell in [Shell::Plain, Shell::ClaudeCode, Shell::DoubleQuoted] {
        let arguments = shell.arguments("make test");
        assert!(agree(&arguments, None, "make test") && agree(&arguments, Some("any"), "make test"));
        assert!(!agree(&arguments, None, "make") && !agree(&arguments, None, "test"));
    }
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    assert!(!agree(&words(&["grep", "ls"]), None, "ls"), "no script");
    assert!(!agree(&words(&["bash", "--c", "ls"]), None, "ls"));
    assert!(!agree(&words(&["ls"]), None, "ls") && !agree(&[], None, "ls"));
    assert!(!agree(&words(&["bash", "-c", ""]), None, "") && !agree(&words(&["bash", "-c", " "]), None, " "));
}

#[test]
fn a_part_of_a_command_is_not_the_command() {
    for shell in SHELLS {
        let arguments = shell.arguments(&tied(None, "echo it's 'a b' && rm x"));
        for part in ["echo", "echo it", "echo it's", "echo it's 'a b'", "rm x", "echo it's 'a b' &&", "", "'"]
        {
            assert!(!agree(&arguments, None, part), "{shell:?} {part:?}");
        }
    }
    // What comes before a tie is not looked at, and a tie is one only with its own word and an end.
    for odd in [
        format!("ls\n{PATH} tie\n"),
        format!("{PATH} tied\nls"),
        format!("{PATH} --version\nls"),
        format!("{PATH}tie\nls"),
        format!("{PATH} tie | ls"),
        format!("{PATH} tie ls"),
        format!("{PATH} tie $(ls)\nls"),
    ] {
        assert!(!agree(&Shell::Plain.arguments(&odd), None, "ls"), "{odd}");
    }
}

fn command() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        "[a-c]{1,3}",
        Just("'".to_owned()),
        Just("\"".to_owned()),
        Just("\\".to_owned()),
        Just("$X".to_owned()),
        Just("\n".to_owned()),
        Just(" ".to_owned()),
        Just(";".to_owned()),
        Just("'\\''".to_owned()),
        Just("'\"'\"'".to_owned()),
        Just("\u{fc}!`".to_owned()),
    ];
    prop::collection::vec(part, 1..8).prop_map(|parts| parts.concat().trim().to_owned())
}

proptest! {
    /// Whatever the quoting: a shell that runs one command does not run another, but for a `;` at its end.
    #[test]
    fn a_text_that_is_not_there_never_agrees(
        runs in command(), asked in command(), shell in prop::sample::select(&SHELLS[..]), is_tied in any::<bool>(),
    ) {
        let text = if is_tied { tied(None, &runs) } else { runs.clone() };
        let arguments = shell.arguments(&text);
        let bare = |text: &str| text.trim_end_matches(|c: char| c == ';' || c.is_whitespace()).to_owned();
        if agree(&arguments, None, &asked) {
            prop_assert_eq!(bare(&runs), bare(&asked), "{:?}", arguments);
        }
        if is_tied && !runs.is_empty() {
            prop_assert!(agree(&arguments, None, &runs), "{:?}", arguments);
        }
    }

    /// Whatever a process has as its arguments: what agrees is there, in one of the ways of writing it.
    #[test]
    fn what_agrees_is_in_the_arguments(
        mut arguments in prop::collection::vec("(-c|eval '|ringfence-runtime tie|\n|;|'|\"| |[ab\\\\]){0,8}", 0..4), asked in "[ab'\" ]{1,3}",
    ) {
        arguments.insert(0, "sh".to_owned());
        if agree(&arguments, None, &asked) {
            let asked = asked.trim();
            let written = [
                asked.to_owned(),
                asked.replace('\'', r"'\''"),
                asked.replace('\'', r#"'"'"'"#),
                asked.replace('"', "\\\""),
            ];
            prop_assert!(arguments.iter().any(|text| written.iter().any(|way| text.contains(way))));
        }
    }
}
