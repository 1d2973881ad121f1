//! `kernel.socket_options`: options that a profile allows setsockopt(2) beside those that every container may set.

use super::{
    Rule, commands,
    compile::Builder,
    compiled::{Kind, Place},
};
use ringfence_common::{
    policy::{axis, named},
    unlisted,
};

/// An entry: level and number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SocketOption {
    level: i32,
    number: i32,
}

/// Why an entry is not valid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// There is no option of this name.
    #[error("is not a socket option")]
    Unknown { near: Option<&'static str> },
    /// Options of several levels have this name; these are their numbers.
    #[error("is the name of more than one socket option")]
    Ambiguous(Vec<String>),
    /// The option would bypass the network rules.
    #[error("cannot be allowed: it {0}")]
    Never(&'static str),
}

impl OptionError {
    /// What to do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::Unknown { near: Some(near) } => Some(format!("did you mean `{near}`?")),
            Self::Unknown { near: None } => Some(
                "write the kernel's name of the option (`SO_MARK`), or its level and number (`1/36`)"
                    .to_owned(),
            ),
            Self::Ambiguous(options) => Some(format!("write {}", options.join(" or "))),
            Self::Never(_) => None,
        }
    }
}

impl SocketOption {
    /// Reads a name, or `LEVEL/NUMBER`.
    pub(crate) fn parse(text: &str) -> Result<Self, OptionError> {
        let option = match text.split_once('/') {
            Some((level, number)) => {
                Self::of_numbers(level, number).ok_or(OptionError::Unknown { near: None })?
            }
            None => Self::of_name(text)?,
        };
        match unlisted::refused(option.level, option.number) {
            Some(why) => Err(OptionError::Never(why)),
            None => Ok(option),
        }
    }

    fn of_numbers(level: &str, number: &str) -> Option<Self> {
        let read = |text| commands::number(text).and_then(|number| i32::try_from(number).ok());
        Some(Self { level: read(level)?, number: read(number)? })
    }

    fn of_name(text: &str) -> Result<Self, OptionError> {
        let found: Vec<_> = unlisted::all().filter(|(_, _, name)| *name == text).collect();
        match found.as_slice() {
            [] => Err(OptionError::Unknown { near: near(text) }),
            [(level, number, _)] => Ok(Self { level: *level, number: *number }),
            many => Err(OptionError::Ambiguous(
                many.iter().map(|(level, number, _)| format!("`{level}/{number}`")).collect(),
            )),
        }
    }
}

/// The option that a text is nearly the name of.
fn near(text: &str) -> Option<&'static str> {
    let upper = text.to_uppercase();
    let near = unlisted::all().map(|(_, _, name)| (strsim::damerau_levenshtein(name, &upper), name)).min();
    near.filter(|(distance, name)| *distance <= 1 + name.len() / 6).map(|(_, name)| name)
}

/// An option's value in a policy, for people: its name, and its numbers where the name is also another's.
pub(crate) fn shown(value: u64) -> String {
    let (level, number) = ((value >> 32) as i32, value as i32);
    match (unlisted::unique_name(level, number), unlisted::name(level, number)) {
        (Some(name), _) => name.to_owned(),
        (None, Some(name)) => format!("{name} ({level}/{number})"),
        (None, None) => format!("{level}/{number}"),
    }
}

impl Builder<'_> {
    /// Files the options that `kernel.socket_options` names.
    pub(crate) fn socket_options(&mut self, rules: &[Rule]) {
        for rule in rules {
            let id = self.source(rule);
            // What cannot be read the loader has refused.
            if let Ok(SocketOption { level, number }) = SocketOption::parse(&rule.text) {
                let place = Place::Named { kind: named::OPTION, value: unlisted::value(level, number) };
                self.put_allow(place, Kind::Exact, axis::READ, id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CompileContext, Dirs, LoadErrors, Profile, load, show};

    fn loaded(entries: &str) -> Result<Profile, LoadErrors> {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("p.toml");
        let text = format!("description = \"x\"\n[kernel]\nbase = \"none\"\nsocket_options = [{entries}]\n");
        std::fs::write(&file, text).unwrap();
        load(file.to_str().unwrap(), &Dirs::system())
    }

    #[test]
    fn names_and_numbers_are_read() {
        let option = |level, number| Ok(SocketOption { level, number });
        assert_eq!(SocketOption::parse("SO_MARK"), option(1, 36));
        assert_eq!(SocketOption::parse("1/36"), option(1, 36));
        assert_eq!(SocketOption::parse("0x1/0x24"), option(1, 36));
        assert_eq!(SocketOption::parse("282/1"), option(282, 1));
        assert_eq!(SocketOption::parse("IPV6_JOIN_GROUP"), SocketOption::parse("IPV6_ADD_MEMBERSHIP"));
        assert_eq!(SocketOption::parse("TCP_NODELAY"), option(6, 1));
        for wrong in
            ["", "so_mark", "36", "1/", "/36", "1/36/", "1/+36", "-1/1", "1 / 36", "1/0x", "1/2147483648"]
        {
            assert!(matches!(SocketOption::parse(wrong), Err(OptionError::Unknown { .. })), "{wrong}");
        }
    }

    #[test]
    fn what_would_void_the_network_rules_is_refused_however_it_is_written() {
        for text in [
            "IP_OPTIONS",
            "0/4",
            "0x0/0x4",
            "IPV6_PKTINFO",
            "TCP_ULP",
            "IP_FREEBIND",
            "0/64",
            "41/65",
            "41/12",
        ] {
            assert!(matches!(SocketOption::parse(text), Err(OptionError::Never(_))), "{text}");
        }
    }

    #[test]
    fn a_wrong_entry_is_told_with_its_line_and_a_guess() {
        for (entries, said) in [
            ("\"SO_MRK\"", "did you mean `SO_MARK`?"),
            ("\"so_mark\"", "did you mean `SO_MARK`?"),
            ("\"nonsense\"", "its level and number"),
            ("\"SO_MARK\", \"1/36\"", "is a duplicate of"),
            ("\"MCAST_JOIN_GROUP\"", "write `0/42` or `41/42`"),
            ("\"IP_LOCAL_PORT_RANGE\"", "cannot be allowed: it chooses a port that bind was not asked about"),
        ] {
            let error = loaded(entries).unwrap_err().to_string();
            let all = [said, "p.toml:4", "kernel.socket_options"];
            assert!(all.iter().all(|part| error.contains(part)), "{error}");
        }
    }

    #[test]
    fn a_profile_names_options_and_they_are_shown() {
        let profile = loaded("\"SO_MARK\", \"41/42\", \"282/1\"").unwrap();
        let root = std::path::Path::new("/");
        let policy = profile.compile_whole(&CompileContext::new(root, None)).unwrap().policy;
        let places: Vec<_> =
            policy.places.iter().map(|rule| (rule.place.clone(), rule.kind, rule.allow)).collect();
        let place = |level, number| {
            let value = unlisted::value(level, number);
            (Place::Named { kind: named::OPTION, value }, Kind::Exact, axis::READ)
        };
        assert_eq!(places, [place(1, 36), place(41, 42), place(282, 1)]);
        assert_eq!(policy.rules[0].id, "kernel.socket_options:SO_MARK");
        let text = show::text(&profile, &policy, &[]);
        for shown in ["\nsocket_options\n", " SO_MARK ", " MCAST_JOIN_GROUP (41/42) ", " 282/1 "] {
            assert!(text.contains(shown), "{shown:?} in {text}");
        }
    }
}
