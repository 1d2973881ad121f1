//! `kernel.capabilities`: what root in a container may do beside an ordinary user.

use serde::{Serialize, Serializer};
use std::fmt;

/// Name of each capability, by its number (`linux/capability.h`), without `CAP_`.
const NAMES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// The set that container engines leave root by default.
const DEFAULT: [&str; 14] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "NET_BIND_SERVICE",
    "NET_RAW",
    "SYS_CHROOT",
    "MKNOD",
    "AUDIT_WRITE",
    "SETFCAP",
];

/// A set of capabilities: bit N is capability N.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capabilities(u64);

impl Capabilities {
    /// None.
    pub const NONE: Self = Self(0);
    /// All, those of later kernels included.
    pub const ALL: Self = Self(u64::MAX);

    /// A set, bit by bit.
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The set, bit by bit.
    pub fn bits(self) -> u64 {
        self.0
    }

    /// What is in both.
    pub fn meet(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// What is in either.
    pub fn join(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// What one entry of a profile means: a name, with or without `CAP_`, in any case; `default`; `all`.
    pub fn named(text: &str) -> Option<Self> {
        let upper = text.to_ascii_uppercase();
        match upper.as_str() {
            "DEFAULT" => Some(Self::default()),
            "ALL" => Some(Self::ALL),
            name => {
                let name = name.strip_prefix("CAP_").unwrap_or(name);
                NAMES.iter().position(|known| *known == name).map(|number| Self(1 << number))
            }
        }
    }

    /// The known name that is most like this one, if any is like it.
    pub fn near(text: &str) -> Option<&'static str> {
        let upper = text.to_ascii_uppercase();
        let name = upper.strip_prefix("CAP_").unwrap_or(&upper);
        let near = NAMES.iter().map(|known| (strsim::damerau_levenshtein(known, name), *known)).min();
        near.filter(|(distance, known)| *distance <= 1 + known.len() / 4).map(|(_, known)| known)
    }

    /// The name of a capability by its number.
    pub fn name(number: u32) -> Option<&'static str> {
        NAMES.get(number as usize).copied()
    }

    /// Its names, as a profile would list them.
    pub fn names(self) -> Vec<&'static str> {
        match self {
            Self::ALL => vec!["all"],
            Self(bits) => {
                NAMES.iter().enumerate().filter(|(n, _)| bits & 1 << n != 0).map(|(_, name)| *name).collect()
            }
        }
    }
}

impl Default for Capabilities {
    fn default() -> Self {
        Self(DEFAULT.iter().filter_map(|name| Self::named(name)).fold(0, |all, one| all | one.0))
    }
}

impl fmt::Display for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::NONE => f.write_str("none"),
            Self::ALL => f.write_str("all"),
            set if set == Self::default() => f.write_str("default"),
            set => f.write_str(&set.names().join(" ")),
        }
    }
}

impl Serialize for Capabilities {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.names().serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_the_engines_set() {
        // Docker's CapEff.
        assert_eq!(Capabilities::default().bits(), 0xa804_25fb);
        assert!(Capabilities::default().to_string().starts_with("default"));
    }

    #[test]
    fn names_are_read_in_any_spelling_and_numbers_are_the_kernels() {
        for text in ["SYS_ADMIN", "cap_sys_admin", "CAP_Sys_Admin"] {
            assert_eq!(Capabilities::named(text), Some(Capabilities(1 << 21)), "{text}");
        }
        assert_eq!(Capabilities::named("checkpoint_restore"), Some(Capabilities(1 << 40)));
        assert_eq!(Capabilities::named("all"), Some(Capabilities::ALL));
        assert_eq!(Capabilities::named("SYS_ADMINS"), None);
        assert_eq!(Capabilities::near("CAP_SYS_ADMNI"), Some("SYS_ADMIN"));
        assert_eq!(Capabilities::near("everything"), None);
        for (number, name) in NAMES.iter().enumerate() {
            let known: caps::Capability = format!("CAP_{name}").parse().unwrap();
            assert_eq!(usize::from(known.index()), number, "{name}");
        }
    }

    #[test]
    fn sets_meet() {
        let (chown, kill) = (Capabilities(1), Capabilities(1 << 5));
        assert_eq!(chown.join(kill).meet(Capabilities::default()), Capabilities(1 | 1 << 5));
        assert_eq!(chown.meet(kill).to_string(), "none");
        assert_eq!(serde_json::to_string(&chown.join(kill)).unwrap(), r#"["CHOWN","KILL"]"#);
        assert_eq!(serde_json::to_string(&Capabilities::ALL).unwrap(), r#"["all"]"#);
    }
}
