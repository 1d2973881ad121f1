//! `kernel.ioctl`: commands that a profile allows beside those that every container may use.

use super::{
    Rule,
    compile::Builder,
    compiled::{Kind, Place},
    socket_options,
};
use ringfence_common::{
    ioctls::{self, IOCTLS},
    policy::{axis, named},
};

/// An entry.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Ioctl {
    /// A command, on any file.
    Command(u32),
    /// Every command to a device.
    Device(String),
}

impl Ioctl {
    /// Reads a name, a number or a device.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if let Some(name) = text.strip_prefix("/dev/") {
            let plain = name.split('/').all(|part| !matches!(part, "" | "." | ".."));
            return (plain && !name.contains(char::is_control)).then(|| Self::Device(text.to_owned()));
        }
        if let Some(ioctl) = ioctls::named(text) {
            return Some(Self::Command(ioctl.number));
        }
        number(text).map(Self::Command)
    }
}

/// A number in decimal, or in hexadecimal behind `0x`.
pub(crate) fn number(text: &str) -> Option<u32> {
    let (digits, radix) = text.strip_prefix("0x").map_or((text, 10), |digits| (digits, 16));
    (!digits.starts_with('+')).then(|| u32::from_str_radix(digits, radix).ok()).flatten()
}

/// The command that a text is nearly the name of.
pub(crate) fn near(text: &str) -> Option<&'static str> {
    let upper = text.to_uppercase();
    let near = IOCTLS.iter().map(|ioctl| (strsim::damerau_levenshtein(ioctl.name, &upper), ioctl.name)).min();
    near.filter(|(distance, name)| *distance <= 1 + name.len() / 6).map(|(_, name)| name)
}

/// A number of a policy, for people.
pub(crate) fn shown(kind: u32, value: u64) -> String {
    match (kind, u32::try_from(value).ok().and_then(ioctls::name)) {
        (named::OPTION, _) => socket_options::shown(value),
        (named::SHARED_MEMORY, _) => "/dev/shm".to_owned(),
        (named::DEVICE, _) => {
            let kind = if value & named::BLOCK == 0 { "character" } else { "block" };
            let (major, minor) = (value >> 20 & 0xfff, value & 0xf_ffff);
            format!("{kind} device {major}:{minor}")
        }
        (_, Some(name)) => name.to_owned(),
        (_, None) => format!("{value:#x}"),
    }
}

impl Builder<'_> {
    /// Files the numbers that `kernel.ioctl` names.
    pub(crate) fn commands(&mut self, rules: &[Rule]) {
        for rule in rules {
            let id = self.source(rule);
            let place = match Ioctl::parse(&rule.text) {
                Some(Ioctl::Command(number)) => {
                    Place::Named { kind: named::COMMAND, value: u64::from(number) }
                }
                Some(Ioctl::Device(path)) => match self.resolver.device(&path) {
                    Some((number, is_block)) => {
                        let value = if is_block { number | named::BLOCK } else { number };
                        Place::Named { kind: named::DEVICE, value }
                    }
                    None => {
                        self.note(rule, "there is no such device: the rule allows nothing");
                        continue;
                    }
                },
                None => continue, // the loader has refused it
            };
            self.put_allow(place, Kind::Exact, axis::READ, id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_numbers_and_devices_are_read() {
        assert_eq!(Ioctl::parse("TIOCSTI"), Some(Ioctl::Command(0x5412)));
        assert_eq!(Ioctl::parse("0x5412"), Some(Ioctl::Command(0x5412)));
        assert_eq!(Ioctl::parse("21522"), Some(Ioctl::Command(0x5412)));
        assert_eq!(Ioctl::parse("/dev/net/tun"), Some(Ioctl::Device("/dev/net/tun".into())));
        for wrong in [
            "",
            "tiocsti",
            "0x",
            "0x1_0000",
            "0x100000000",
            "-1",
            "+1",
            "/dev",
            "/dev/",
            "/dev/../etc",
            "kvm",
        ] {
            assert_eq!(Ioctl::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_misspelt_name_is_guessed() {
        assert_eq!(near("TIOSTI"), Some("TIOCSTI"));
        assert_eq!(near("siocsifmtu"), Some("SIOCSIFMTU"));
        assert_eq!(near("nonsense"), None);
    }

    #[test]
    fn a_profile_names_commands_and_devices() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("p.toml");
        let load = |entries: &str| {
            std::fs::write(
                &file,
                format!("description = \"x\"\n[kernel]\nbase = \"none\"\nioctl = [{entries}]\n"),
            )
            .unwrap();
            crate::load(file.to_str().unwrap(), &crate::Dirs::system())
        };
        let profile = load("\"TIOCSTI\", \"/dev/null\", \"/dev/no-such-device\"").unwrap();
        let root = std::path::Path::new("/");
        let ctx = crate::CompileContext::new(root, None);
        let crate::Compilation { policy, notes, .. } = profile.compile_whole(&ctx).unwrap();
        let places: Vec<_> =
            policy.places.iter().map(|rule| (rule.place.clone(), rule.kind, rule.allow)).collect();
        let place = |kind, value| (Place::Named { kind, value }, Kind::Exact, axis::READ);
        assert_eq!(places, [place(named::COMMAND, 0x5412), place(named::DEVICE, 1 << 20 | 3)]);
        assert_eq!(policy.rules[0].id, "kernel.ioctl:TIOCSTI");
        assert!(notes.iter().any(|note| note.contains("no-such-device")), "{notes:?}");

        for (entries, said) in
            [("\"TIOSTI\"", "did you mean `TIOCSTI`?"), ("\"TIOCSTI\", \"0x5412\"", "is a duplicate of")]
        {
            let error = load(entries).unwrap_err().to_string();
            assert!(
                error.contains(said) && error.contains("p.toml:4") && error.contains("kernel.ioctl"),
                "{error}"
            );
        }
    }

    #[test]
    fn numbers_are_shown_by_name() {
        assert_eq!(shown(named::COMMAND, 0x5412), "TIOCSTI");
        assert_eq!(shown(named::COMMAND, 0x1234), "0x1234");
        assert_eq!(shown(named::DEVICE, 10 << 20 | 232), "character device 10:232");
        assert_eq!(shown(named::DEVICE, named::BLOCK | 8 << 20), "block device 8:0");
    }
}
