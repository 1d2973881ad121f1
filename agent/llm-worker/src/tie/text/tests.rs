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
    GeminiOnLines,
    ClaudeCodeDouble,
}

const SHELLS: [Shell; 5] =
    [Shell::Plain, Shell::ClaudeCode, Shell::Gemini, Shell::GeminiOnLines, Shell::ClaudeCodeDouble];

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
            Self::GeminiOnLines => {
                let guard = "shopt -u promptvars nullglob extglob nocaseglob dotglob;";
                let script =
                    format!("{guard} (\n{text}\n)\n__code=$?; pgrep -g 0 >'/tmp/x y' 2>&1; exit $__code;");
                ["bash".to_owned(), "-c".to_owned(), script]
            }
            Self::ClaudeCodeDouble => {
                let quoted: String = text
                    .chars()
                    .flat_map(|c| ['\\', c].into_iter().skip(usize::from(!"\"\\$`!".contains(c))))
                    .collect();
                let globs = "shopt -u extglob 2>/dev/null || true";
                let script = format!("{globs} && eval \"{quoted}\" && pwd -P >| '/tmp/c d'");
                return ["bash", "-c", "-l", &script].map(str::to_owned).to_vec();
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
fn only_the_script_of_a_shell_counts() {
    let tie = tied(None, "ls");
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    for shell in [&["bash", "-c"][..], &["sh", "-lc"], &["bash", "--norc", "-c", "-l"], &["bash", "-e", "-c"]]
    {
        let mut shell = words(shell);
        shell.push(tie.clone());
        assert!(agree(&shell, None, "ls"), "{shell:?}");
        shell.push("sh".to_owned());
        assert!(agree(&shell, None, "ls"), "what follows is the script's own");
    }
    for odd in [
        &["bash", "-c", "rm x", &tie][..],
        &["bash", "-c", "rm x", "-c", &tie],
        &["bash", "-c", "rm x", "sh", "-c", &tie],
        &["bash", "x.sh", "-c", &tie],
        &["bash", "--rcfile", "-c", &tie],
        &["bash", "-O", "-c", &tie],
        &["bash", "-l", &tie],
        &["bash", "-s", "-c", &tie],
        &["bash", "--c", &tie],
        &["bash", "-", "-c", &tie],
        &["bash", "--", "-c", &tie],
        &["-c", &tie],
        &[&tie],
        &["bash", "-c"],
        &["bash", "-c", ""],
        &["bash", "-c", "ls"],
        &[],
    ] {
        assert!(!agree(&words(odd), None, "ls"), "{odd:?}");
    }
}

#[test]
fn what_an_agent_does_not_write_around_a_tie_makes_it_none() {
    let tie = tied(None, "ls");
    let quoted = format!("eval '{tie}' < /dev/null && pwd -P >| /tmp/c");
    let gemini = "}; __code=$?; pgrep -g 0 >/tmp/x 2>&1; exit $__code;";
    let is_found = |script: &str| agree(&["bash", "-c", script].map(str::to_owned), None, "ls");
    for whole in [
        quoted.clone(),
        format!("source /tmp/a.sh 2>/dev/null || true && {quoted}"),
        format!("source '/tmp/a b.sh' 2>/dev/null || true && {quoted}"),
        format!("{{ {tie}; {gemini}"),
    ] {
        assert!(is_found(&whole), "{whole}");
        assert!(!is_found(&format!("rm x; {whole}")) && !is_found(&format!("{whole} rm x")), "{whole}");
    }
    for odd in [
        format!("eval '{tie}'"),
        format!("source $(rm x) 2>/dev/null || true && {quoted}"),
        format!("source /tmp/a.sh; rm x 2>/dev/null || true && {quoted}"),
        format!("source  2>/dev/null || true && {quoted}"),
        format!("eval '{tie}'; rm x && pwd -P >| /tmp/c"),
        format!("eval '{tie}' && pwd -P >| $(rm x)"),
        format!("eval 'x' '{tie}' && pwd -P >| /tmp/c"),
        format!("{{ {tie}; }}; __code=$?; rm x"),
        format!("{{ {tie}; }}; __code=$?; pgrep -g 0 >`rm x` 2>&1; exit $__code;"),
        format!("(\n{tie}\n{gemini}"),
        format!("exec rm x {tie}"),
        format!("X=1 {tie}"),
        format!("$({tie}"),
    ] {
        assert!(!is_found(&odd), "{odd}");
    }
    let unlike = tie.replace(PATH, "/tmp/not-ringfence-runtime");
    assert!(!is_found(&unlike), "another program");
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
        runs in command(), asked in command(), shell in prop::sample::select(&SHELLS[..]),
    ) {
        let arguments = shell.arguments(&tied(None, &runs));
        let bare = |text: &str| text.trim_end_matches(|c: char| c == ';' || c.is_whitespace()).to_owned();
        if agree(&arguments, None, &asked) {
            prop_assert_eq!(bare(&runs), bare(&asked), "{:?}", arguments);
        }
        prop_assert!(runs.is_empty() || agree(&arguments, None, &runs), "{:?}", arguments);
    }

    /// Nothing may stand before what an agent writes, nor behind it; and without a tie nothing agrees.
    #[test]
    fn nothing_before_and_nothing_behind(
        runs in "[a-c]{1,3}", more in "[a-c;&|(){}$'\"\\\\>]{0,5}[a-c]", shell in prop::sample::select(&SHELLS[..]),
    ) {
        let whole = shell.arguments(&tied(None, &runs));
        prop_assert!(agree(&whole, None, &runs));
        for (before, behind) in [(more.as_str(), ""), ("", more.as_str())] {
            let mut arguments = whole.clone();
            let script = arguments.pop().unwrap();
            arguments.push(format!("{before} {script} {behind}"));
            prop_assert!(!agree(&arguments, None, &runs), "{:?}", arguments);
        }
        prop_assert!(!agree(&shell.arguments(&runs), None, &runs));
    }

    /// Whatever follows the script is `$0` and the script's own arguments: it changes nothing.
    #[test]
    fn later_arguments_never_count(
        later in prop::collection::vec("(-c|sh|x)|/a/ringfence-runtime tie\n[a-c]", 0..4), script in "[a-c ]{1,3}", asked in "[a-c]",
    ) {
        let mut arguments = vec!["sh".to_owned(), "-c".to_owned(), script];
        arguments.extend(later);
        prop_assert!(!agree(&arguments, None, &asked));
    }

    /// Whatever a process has as its arguments: what agrees is in its first script.
    #[test]
    fn what_agrees_is_in_the_script(
        mut arguments in prop::collection::vec("(-c|eval '|ringfence-runtime tie|\n|;|'|\"| |[ab\\\\]){0,8}", 0..4), asked in "[ab'\" ]{1,3}",
    ) {
        arguments.insert(0, "sh".to_owned());
        if agree(&arguments, None, &asked) {
            prop_assert!(script(&arguments).unwrap().contains(asked.trim()));
        }
    }
}
