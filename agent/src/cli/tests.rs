//! The grammar: older names mean what they meant, helps have examples, and the examples are commands.

mod page;

use super::{Alias, Cli, Command, Words, grammar, help, visible};
use clap::{FromArgMatches as _, Subcommand as _};

/// Older names, what each is now, and arguments to try both with.
const OLDER: [(&str, &str, &str); 20] = [
    ("start", "agent start", ""),
    ("init", "agent init", "--uninstall"),
    ("stop", "agent stop --all", ""),
    ("show", "agent show", "reviewer --json"),
    ("logs", "agent logs", "reviewer -f"),
    ("send", "agent send", "reviewer --no-wait -"),
    ("agent ls", "agent list", "--json"),
    ("why", "events why", "42 --json"),
    ("why", "events why", "last"),
    ("trace", "events trace", "coder --limit 3"),
    ("approve", "approvals approve", "3f2a9c1b"),
    ("deny", "approvals deny", "3f2a9c1b --db FILE"),
    ("sessions", "mcp sessions", "--stderr 3f2a9c1b"),
    ("calls", "mcp calls", "--risk 60 --verdict block"),
    ("calls", "mcp calls", "3f2a9c1b --json"),
    ("stats", "mcp stats", "--db FILE"),
    ("rules", "mcp rules", "check FILE"),
    ("rules", "mcp rules", "pending --json"),
    ("rules", "mcp rules", "confirm FILE --yes"),
    ("rules", "mcp rules", "test FILE --call {} --server a"),
];

/// What a command line comes to: the command, its arguments, and the default subcommand where none is named.
fn meaning(line: &[String]) -> Result<String, clap::Error> {
    let mut matches = grammar().try_get_matches_from(line)?;
    Ok(match Cli::from_arg_matches_mut(&mut matches)?.words.unaliased() {
        Words::Command(Command::Events(args)) => format!("events {:?}", args.command()),
        Words::Command(Command::Approvals(args)) => format!("approvals {:?}", args.command()),
        other => format!("{other:?}"),
    })
}

fn of(line: &str) -> String {
    let words: Vec<String> =
        ["ringfence"].into_iter().chain(line.split_whitespace()).map(str::to_owned).collect();
    meaning(&words).unwrap_or_else(|error| panic!("{line}: {error}"))
}

/// Calls `see` with each visible command and its words.
fn each(command: &clap::Command, words: &str, see: &mut impl FnMut(&clap::Command, &str)) {
    see(command, words);
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        each(below, &format!("{words} {}", below.get_name()), see);
    }
}

fn names(command: &clap::Command) -> Vec<&str> {
    let mut names: Vec<&str> =
        command.get_subcommands().filter(|below| !below.is_hide_set()).map(clap::Command::get_name).collect();
    names.sort_unstable();
    names
}

#[test]
fn clap_finds_no_fault() {
    grammar().debug_assert();
    visible().debug_assert();
}

#[test]
fn an_older_name_means_the_new_command() {
    for (old, new, arguments) in OLDER {
        assert_eq!(of(&format!("{old} {arguments}")), of(&format!("{new} {arguments}")), "{old}");
    }
    assert_ne!(of("why 42"), of("why 43"));
    let aliases = Alias::augment_subcommands(clap::Command::new("aliases"));
    for alias in aliases.get_subcommands() {
        assert!(OLDER.iter().any(|(old, ..)| *old == alias.get_name()), "{}", alias.get_name());
        assert!(alias.is_hide_set(), "{}", alias.get_name());
    }
}

#[test]
fn a_noun_without_a_verb_has_its_default() {
    for (short, long) in [
        ("events --denied --since today -n 3", "events list --denied --since today -n 3"),
        ("events", "events list"),
        ("approvals --watch", "approvals list --watch"),
        ("approvals", "approvals list"),
    ] {
        // `today` is read at each parse; midnight between the two would be the only difference.
        assert_eq!(of(short), of(long), "{short}");
    }
    assert!(of("mcp --lenient -- npx server --flag").contains("server: Server(Some(ServerArgs"));
    assert!(of("mcp wrap .mcp.json --undo").contains("server: Server(None)"));
}

#[test]
fn what_is_ambiguous_or_incomplete_is_refused() {
    for line in [
        "",
        "agent",
        "agent stop",
        "agent stop reviewer --all",
        "events --denied why 42",
        "approvals --watch approve 3f2a9c1b",
        "mcp",
        "mcp npx server",
        "mcp --lenient calls",
        "stop reviewer",
        "run",
    ] {
        let words: Vec<String> =
            ["ringfence"].into_iter().chain(line.split_whitespace()).map(str::to_owned).collect();
        let error = meaning(&words).expect_err(line);
        assert_eq!(error.exit_code(), 2, "{line}: {error}");
    }
}

#[test]
fn only_the_commands_of_the_overview_are_visible() {
    let mut listed: Vec<&str> = help::GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
    listed.sort_unstable();
    assert_eq!(names(&grammar()), listed);
    assert_eq!(names(&visible()), listed);
    let shown = grammar().render_help().to_string();
    assert!(shown.lines().all(|line| line.chars().count() <= 100), "{shown}");
    for name in listed {
        assert!(shown.contains(&format!("\n  {name} ")), "{name}: {shown}");
    }
}

#[test]
fn every_help_has_an_example() {
    let mut without = Vec::new();
    each(&visible(), "ringfence", &mut |command, words| {
        let mut command = command.clone();
        let helps = [command.render_help(), command.render_long_help()];
        if !helps.iter().all(|help| help.to_string().contains("Example")) {
            without.push(words.to_owned());
        }
    });
    assert_eq!(without, Vec::<String>::new());
}

/// The examples are what people copy, so they use the commands that `--help` lists and parse.
#[test]
fn every_example_is_a_command() {
    let mut tried = 0;
    each(&visible(), "ringfence", &mut |command, place| {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        for line in help.lines().filter(|line| line.starts_with("  ")) {
            for part in shell(line) {
                let Some(at) = part.iter().position(|word| word == "ringfence") else { continue };
                let mut matches = visible().try_get_matches_from(&part[at..]);
                if let Err(error) = &mut matches {
                    panic!("{place}: {line}: {error}");
                }
                tried += 1;
            }
        }
    });
    assert!(tried > 60, "{tried}");
}

/// The commands of a line of shell: its words between `|` and `&&`, without redirections, comments and what stands two or more
/// spaces behind.
fn shell(line: &str) -> Vec<Vec<String>> {
    let (mut commands, mut word) = (vec![Vec::new()], None::<String>);
    let mut quote = None;
    let mut characters = line.trim().chars().peekable();
    while let Some(character) = characters.next() {
        match (quote, character) {
            (Some(open), _) if open == character => quote = None,
            (None, '\'' | '"') => {
                quote = Some(character);
                word.get_or_insert_default();
            }
            (None, ' ') => {
                commands.last_mut().expect("one at least").extend(word.take());
                match characters.peek() {
                    Some(' ' | '#' | '>') => break,
                    Some('|' | '&') => commands.push(Vec::new()),
                    _ => {}
                }
            }
            (None, '|' | '&') if word.is_none() => {}
            _ => word.get_or_insert_default().push(character),
        }
    }
    commands.last_mut().expect("one at least").extend(word);
    commands
}

#[test]
fn shell_lines_are_read_as_a_shell_reads_them() {
    let read = |line| -> Vec<Vec<String>> { shell(line) };
    assert_eq!(read("  a 'b c' | d --e > f"), [vec!["a", "b c"], vec!["d", "--e"]]);
    assert_eq!(read("  a -   # b"), [vec!["a", "-"]]);
    assert_eq!(read("  a && echo b"), [vec!["a"], vec!["echo", "b"]]);
    assert_eq!(read("  a b   c"), [vec!["a", "b"]]);
}
