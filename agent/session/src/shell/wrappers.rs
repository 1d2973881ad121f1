//! Programs that run the program in their arguments.

use super::{reader::is_assignment, targets::Here};

/// A program that runs another: its name, its short options that take a value, how many words stand before the other
/// program, and whether assignments may.
const WRAPPERS: &[(&str, &str, usize, bool)] = &[
    ("builtin", "", 0, false),
    ("busybox", "", 0, false),
    ("caffeinate", "tw", 0, false),
    ("chroot", "", 1, false),
    ("chrt", "", 1, false),
    ("command", "", 0, false),
    ("doas", "uC", 0, false),
    ("env", "uCS", 0, true),
    ("exec", "a", 0, false),
    ("flock", "wE", 1, false),
    ("ionice", "cnpPu", 0, false),
    ("nice", "n", 0, false),
    ("nohup", "", 0, false),
    ("npx", "p", 0, false),
    ("nsenter", "t", 0, false),
    ("parallel", "jN", 0, false),
    ("runuser", "u", 0, false),
    ("setsid", "", 0, false),
    ("stdbuf", "ioe", 0, false),
    ("strace", "eopsu", 0, false),
    ("sudo", "ugpCcDRTtrUh", 0, true),
    ("systemd-run", "pu", 0, false),
    ("taskset", "", 1, false),
    ("time", "fo", 0, false),
    ("timeout", "ks", 1, false),
    ("toybox", "", 0, false),
    ("unbuffer", "", 0, false),
    ("unshare", "", 0, false),
    ("watch", "n", 0, false),
    ("xargs", "ILnPsdaE", 0, false),
];

/// What was around a program.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Around {
    /// It runs as root.
    pub(super) root: bool,
    /// More arguments come from its input.
    pub(super) more: bool,
    /// A shell reads its words.
    pub(super) shell: bool,
}

/// A program's name: without its directory, in small letters.
pub(super) fn name(program: &str) -> String {
    let name = program.rsplit(['/', '\\']).next().unwrap_or_default().to_ascii_lowercase();
    name.strip_suffix(".exe").map(str::to_owned).unwrap_or(name)
}

/// The program that runs in the end, with its arguments, and what was around it.
pub(super) fn inner(words: &[String]) -> (&[String], Around) {
    let (mut words, mut around) = (words, Around::default());
    while let [program, rest @ ..] = words {
        let name = name(program);
        let Some((_, valued, before, assignments)) = WRAPPERS.iter().find(|(known, ..)| *known == name)
        else {
            break;
        };
        if name == "env" && split_string(rest).is_some() {
            // Its words make a command line first.
            break;
        }
        let inner = behind_options(rest, valued);
        let inner = inner.get(*before..).unwrap_or_default();
        let skipped =
            if *assignments { inner.iter().take_while(|word| is_assignment(word)).count() } else { 0 };
        let inner = inner.get(skipped..).unwrap_or_default();
        around.root |= matches!(name.as_str(), "sudo" | "doas");
        around.more |= matches!(name.as_str(), "xargs" | "parallel");
        around.shell |= matches!(name.as_str(), "watch" | "parallel");
        if inner.is_empty() {
            // `sudo -l`: judged as itself.
            break;
        }
        words = inner;
    }
    (words, around)
}

/// What follows the options. `valued`: short ones that take the next word.
fn behind_options<'a>(words: &'a [String], valued: &str) -> &'a [String] {
    let mut rest = words;
    while let [word, after @ ..] = rest {
        if word == "--" {
            return after;
        }
        if !word.starts_with('-') || word.len() == 1 {
            break;
        }
        // The first of several letters that takes a value has what stands behind it, or else the next word: `-nu root`.
        let takes = !word.starts_with("--")
            && word
                .char_indices()
                .skip(1)
                .find(|(_, option)| valued.contains(*option))
                .is_some_and(|(at, option)| at + option.len_utf8() == word.len());
        rest = if takes { after.get(1..).unwrap_or_default() } else { after };
    }
    rest
}

/// What `env -S` makes a command line of: the option's value, which is split into words, and all words behind it. Another `env`
/// reads them, as options and assignments may stand there. None: there is no such option.
pub(super) fn split_string(words: &[String]) -> Option<(String, &[String])> {
    let mut rest = words;
    while let [word, after @ ..] = rest {
        // Long options may be cut short; no other begins with an `s`.
        if let Some(long) = word.strip_prefix("--") {
            let (name, value) =
                long.split_once('=').map_or((long, None), |(name, value)| (name, Some(value)));
            if name.is_empty() {
                return None;
            }
            if "split-string".starts_with(name) {
                return Some(to_split(value, after));
            }
            let valued = value.is_none() && ["argv0", "chdir", "unset"].iter().any(|o| o.starts_with(name));
            rest = if valued { after.get(1..).unwrap_or_default() } else { after };
            continue;
        }
        let letters = word.strip_prefix('-')?;
        let valued = letters.char_indices().find(|(_, letter)| "CPSau".contains(*letter));
        rest = match valued.map(|(at, letter)| (letter, letters.get(at + 1..).unwrap_or_default())) {
            Some(('S', value)) => return Some(to_split(Some(value).filter(|v| !v.is_empty()), after)),
            Some((_, "")) => after.get(1..).unwrap_or_default(),
            _ => after,
        };
    }
    None
}

/// `value`: where it stands in the option's own word; else it is the first of `after`.
fn to_split<'w>(value: Option<&str>, after: &'w [String]) -> (String, &'w [String]) {
    let (value, further) = match (value, after) {
        (Some(value), _) => (value, after),
        (None, [value, further @ ..]) => (value.as_str(), further),
        (None, []) => ("", after),
    };
    // What separates words there, beside blanks.
    let mut value = value.to_owned();
    for blank in ["\\_", "\\t", "\\n", "\\r", "\\f", "\\v", "\n", "\r"] {
        value = value.replace(blank, " ");
    }
    (value, further)
}

/// Whether an argument is an option.
pub(super) fn is_option(word: &str) -> bool {
    word.len() > 1 && word.starts_with('-')
}

/// Whether a short option is among the arguments, alone or with others behind one dash.
pub(super) fn has_short(words: &[String], options: &[char]) -> bool {
    words.iter().take_while(|word| *word != "--").any(|word| {
        word.strip_prefix('-').is_some_and(|rest| !rest.starts_with('-') && rest.contains(options))
    })
}

/// Whether one of these words is among the arguments, with a value behind `=` or without.
pub(super) fn has_any(words: &[String], wanted: &[&str]) -> bool {
    words.iter().any(|word| wanted.contains(&word.split('=').next().unwrap_or_default()))
}

/// The value of an option: behind it, or in the same word (`-XDELETE`, `--request=DELETE`).
pub(super) fn value<'a>(words: &'a [String], short: Option<char>, long: &[&str]) -> Option<&'a str> {
    words.iter().enumerate().find_map(|(at, word)| {
        let next = || words.get(at + 1).map(String::as_str);
        if word.starts_with("--") {
            let (name, value) = word.split_once('=').map_or((word.as_str(), None), |(n, v)| (n, Some(v)));
            return long.contains(&name).then(|| value.or_else(next)).flatten();
        }
        let cluster = word.strip_prefix('-')?;
        let (_, value) = cluster.split_once(short?)?;
        if value.is_empty() { next() } else { Some(value) }
    })
}

/// The arguments that are no options, those behind `--` included.
pub(super) fn operands(words: &[String]) -> impl Iterator<Item = &str> {
    let end = words.iter().position(|word| word == "--").unwrap_or(words.len());
    words
        .iter()
        .enumerate()
        .filter(move |(at, word)| *at > end || *at < end && !is_option(word))
        .map(|(_, word)| word.as_str())
}

/// Where relative paths begin after a command.
pub(super) fn moved(name: &str, words: &[String], here: Here) -> Here {
    match name {
        "cd" | "pushd" | "chdir" => here.after(operands(words).next()),
        "popd" => Here::Start,
        _ => here,
    }
}

#[cfg(test)]
mod tests {
    use super::{inner, operands, split_string, value};

    fn split(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn the_program_in_the_end() {
        for text in [
            "sudo rm a",
            "sudo -u app -E rm a",
            "env -i A=1 B=2 rm a",
            "env -iu HOME rm a",
            "sudo -nu root rm a",
            "timeout -k 5 10 nice -n 3 rm a",
            "nohup /usr/bin/env rm a",
            "xargs -0 -n 1 rm a",
            "busybox rm a",
            "command -- rm a",
        ] {
            assert_eq!(inner(&split(text)).0, split("rm a"), "{text}");
        }
        assert!(inner(&split("sudo rm a")).1.root && inner(&split("xargs rm a")).1.more);
        assert_eq!(inner(&split("sudo -l")).0, split("sudo -l"));
    }

    #[test]
    fn the_command_line_that_env_makes() {
        let made = |text: &str| {
            let words: Vec<String> = text.split('|').map(str::to_owned).collect();
            split_string(&words).map(|(value, further)| format!("{value}|{}", further.join("|")))
        };
        for text in [
            "-S|rm -rf|~",
            "-S|rm\n-rf|~",
            "-Srm -rf|~",
            "-iS|rm -rf|~",
            "-vSrm -rf|~",
            "--split-string|rm -rf|~",
            "--split-string=rm -rf|~",
            "--sp=rm -rf|~",
            "-u|HOME|-C|/|--unset|A|--chdir=/|-S|rm -rf|~",
            "-|-S|rm\\_-rf|~",
            "-iuHOME|-S|rm -rf|~",
        ] {
            assert_eq!(made(text).as_deref(), Some("rm -rf|~"), "{text}");
        }
        for text in ["", "-i|rm|-S|a", "--|-S|a", "-u|-S|rm", "-uS|rm", "A=1|rm"] {
            assert_eq!(made(text), None, "{text}");
        }
        assert_eq!(made("-S").as_deref(), Some("|"));
    }

    #[test]
    fn options_and_their_values() {
        for text in ["curl -X DELETE u", "curl -XDELETE u", "curl -sXDELETE u", "curl --request=DELETE u"] {
            assert_eq!(value(&split(text), Some('X'), &["--request"]), Some("DELETE"), "{text}");
        }
        assert_eq!(value(&split("curl u"), Some('X'), &["--request"]), None);
        assert_eq!(operands(&split("-r a -- -b c")).collect::<Vec<_>>(), ["a", "-b", "c"]);
    }
}
