//! Programs that make disks new, where they only show what is on one. Pure.
//!
//! They take abbreviations of their options and commands, and some take several commands in one word: only whole words that
//! are known to change nothing show, and whatever else there is destroys.

use super::super::wrappers::{has_any, has_short, is_option, operands};

/// Options of wipefs that change nothing, each a word.
const WIPEFS: &[&str] =
    &["--help", "--json", "--no-act", "--noheadings", "--parsable", "--quiet", "--version"];
/// The same of one letter.
const WIPEFS_SHORT: &str = "hiJnpqV";
/// The same that take a value; it may stand in the same word.
const WIPEFS_VALUED: &[&str] = &["-O", "-t", "--output", "--types"];
/// Options of parted that change nothing. `--fix` does.
const PARTED: &[&str] = &["--help", "--json", "--list", "--machine", "--script", "--version"];
/// The same of one letter.
const PARTED_SHORT: &str = "hjlmsv";
/// Commands of parted that change nothing, and words behind them, in small letters. Numbers are others.
const PARTED_WORDS: &[&str] = &[
    "%",
    "align-check",
    "all",
    "b",
    "chs",
    "compact",
    "cyl",
    "devices",
    "free",
    "gb",
    "gib",
    "help",
    "kb",
    "kib",
    "list",
    "mb",
    "mib",
    "min",
    "minimal",
    "opt",
    "optimal",
    "pb",
    "pib",
    "print",
    "quit",
    "s",
    "tb",
    "tib",
    "unit",
    "version",
];

/// Whether one of them, by its name, changes nothing with these arguments.
pub(super) fn shows(name: &str, arguments: &[String]) -> bool {
    match name {
        "wipefs" => like_options(arguments).all(|word| {
            let valued = WIPEFS_VALUED.iter().any(|option| is_with_value(word, option));
            valued || is_one_of(word, WIPEFS, WIPEFS_SHORT)
        }),
        "parted" => {
            let known = like_options(arguments).all(|word| is_one_of(word, PARTED, PARTED_SHORT));
            let is_known = |word: &str| {
                PARTED_WORDS.contains(&word.to_ascii_lowercase().as_str())
                    || word.bytes().all(|byte| byte.is_ascii_digit())
            };
            // Behind the disk's name. Alone, it takes its commands from its input.
            let mut commands = operands(arguments).skip(1).flat_map(str::split_whitespace).peekable();
            let none = operands(arguments).next().is_none();
            let lists =
                none && (has_short(arguments, &['l']) || has_any(arguments, &["--list", "--version"]));
            known && (lists || commands.peek().is_some() && commands.all(is_known))
        }
        "sgdisk" => {
            let all_show = |word: &String| {
                !is_option(word) || matches!(word.as_str(), "-p" | "--print" | "-v" | "--verify")
            };
            arguments.iter().any(|word| is_option(word)) && arguments.iter().all(all_show)
        }
        "fdisk" => has_short(arguments, &['l']) || has_any(arguments, &["--list"]),
        _ => false,
    }
}

/// All that look like options, behind `--` as well: that may be another option's value.
fn like_options(arguments: &[String]) -> impl Iterator<Item = &str> {
    arguments.iter().map(String::as_str).filter(|word| is_option(word) && *word != "--")
}

/// Whether an option is one of these words, or letters of `short` behind one dash.
fn is_one_of(word: &str, long: &[&str], short: &str) -> bool {
    long.contains(&word)
        || word.strip_prefix('-').is_some_and(|letters| {
            !letters.is_empty() && letters.chars().all(|letter| short.contains(letter))
        })
}

/// Whether a word is this option, with a value or without.
fn is_with_value(word: &str, option: &str) -> bool {
    let Some(rest) = word.strip_prefix(option) else { return false };
    !option.starts_with("--") || rest.is_empty() || rest.starts_with('=')
}

#[cfg(test)]
mod tests {
    use super::shows;

    fn of(text: &str) -> bool {
        let mut words = text.split('|').map(str::to_owned);
        let name = words.next().unwrap_or_default();
        shows(&name, &words.collect::<Vec<_>>())
    }

    #[test]
    fn what_changes_nothing() {
        for text in [
            "wipefs|/dev/sda",
            "wipefs|--|/dev/sda",
            "wipefs|-n|/dev/sda",
            "wipefs|-iJ|/dev/sda",
            "wipefs|--json|-O|UUID|--types=ext4|/dev/sda",
            "parted|-l",
            "parted|-lm",
            "parted|--version",
            "parted|/dev/sda|print",
            "parted|-s|/dev/sda|unit|MiB|print|free",
            "parted|-s|/dev/sda|unit s print",
            "parted|/dev/sda|align-check|opt|1",
            "sgdisk|-p|/dev/sda",
            "fdisk|-l|/dev/sda",
        ] {
            assert!(of(text), "{text}");
        }
    }

    #[test]
    fn whatever_else_destroys() {
        for text in [
            "wipefs|-a|/dev/sda",
            "wipefs|-qa|/dev/sda",
            "wipefs|--all|/dev/sda",
            "wipefs|--al|/dev/sda",
            "wipefs|--a|/dev/sda",
            "wipefs|--of=0x438|/dev/sda",
            "wipefs|--offset|0x438|/dev/sda",
            "wipefs|-o0x438|/dev/sda",
            "wipefs|-O|--|-a|/dev/sda",
            "wipefs|-O|--|--all|/dev/sda",
            "parted",
            "parted|/dev/sda",
            "parted|-l|/dev/sda",
            "parted|-f|/dev/sda|print",
            "parted|-s|/dev/sda|print|mklabel gpt",
            "parted|-s|/dev/sda|print mklabel gpt",
            "parted|/dev/sda|print|mklab|gpt",
            "parted|/dev/sda|mkta|gpt",
            "parted|-l|/dev/sda|mklabel|gpt",
            "parted|/dev/sda|print|set|1|boot|on",
            "parted|/dev/sda|print|rescue|1|2",
            "parted|/dev/sda|print|name|1|x",
            "parted|/dev/sda|print|disk_set|pmbr_boot|on",
            "parted|--|/dev/sda|rm|1",
            "blkdiscard|-l|4096|/dev/sda",
            "mkfs.xfs|-l|size=64m|/dev/sda",
            "lvremove|-l|vg/lv",
        ] {
            assert!(!of(text), "{text}");
        }
    }
}
