//! What a filter says, as data: read from the TOML files that ship or from an OCI profile, compiled in `super`.

use nix::{errno::Errno, libc};
use serde::Deserialize;

/// What happens to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// It goes on.
    Allow,
    /// It goes on, and the kernel's audit log says so.
    Log,
    /// It fails with this error.
    Errno(i32),
    /// The thread gets SIGSYS.
    Trap,
    /// The thread ends.
    KillThread,
    /// The process ends.
    KillProcess,
}

impl Action {
    /// An action by the name that the shipped files have: `allow`, or the error that the call gets.
    fn named(name: &str) -> Option<Action> {
        let errno = match name {
            "allow" => return Some(Action::Allow),
            "EPERM" => Errno::EPERM,
            "EACCES" => Errno::EACCES,
            "ENOSYS" => Errno::ENOSYS,
            _ => return None,
        };
        Some(Action::Errno(errno as i32))
    }

    /// Whether the call goes on.
    pub(super) fn permits(self) -> bool {
        matches!(self, Action::Allow | Action::Log)
    }
}

/// What of a grant makes a rule of `fallback.toml` right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// The grant names no internet address.
    NoInet,
    /// The grant names no unix socket, or nothing can tell those that it names from the others.
    NoUnix,
    /// The grant lets nothing be written.
    NoWrite,
    /// Landlock holds TCP ports.
    TcpPorts,
    /// Addresses are restricted, and nothing holds those of datagrams.
    NoUdp,
    /// Nothing is to be listened at, of whatever family.
    NoListen,
    /// Landlock sets no domain, which would keep the processes outside from being traced.
    NoDomain,
}

/// A filter before it is compiled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// For messages: `default`, or a file's path.
    pub name: String,
    /// What happens to a call that no rule matches.
    pub default: Action,
    /// The rules.
    pub rules: Vec<Rule>,
    /// What was left out of it and why, for the user.
    pub notices: Vec<String>,
    /// The kernel's audit log gets every call that is refused.
    pub log: bool,
}

/// What happens to some calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// Why it is there.
    pub why: String,
    /// When it applies; `None`: always.
    pub when: Option<When>,
    /// Names of system calls.
    pub syscalls: Vec<String>,
    /// Conditions on their arguments; all must hold.
    pub args: Vec<Arg>,
    /// What happens to them.
    pub action: Action,
}

/// A condition on one argument.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Arg {
    /// Which argument, 0 to 5.
    pub index: u32,
    /// What must be true of it.
    #[serde(flatten)]
    pub test: Test,
}

/// What must be true of an argument. The first four compare the low 32 bits, as the kernel does for every argument
/// that the shipped rules are about; the others are OCI's and compare 64.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Test {
    /// It is one of these.
    OneOf(Vec<u32>),
    /// At least one of these bits is set.
    AnyBit(u32),
    /// Of the bits of `mask`, exactly those of one of `values` are set.
    Masked {
        /// The bits that count.
        mask: u32,
        /// What they may be.
        values: Vec<u32>,
    },
    /// Bit number `bit` is set, and the whole is not `value`.
    BitUnless {
        /// Bit number, below 32, set in `value`.
        bit: u32,
        /// The one value that is excepted.
        value: u32,
    },
    /// All 64 bits, as a number, are above this.
    Above(u64),
    /// An OCI comparison over all 64 bits.
    #[serde(skip)]
    Oci(libseccomp::ScmpCompareOp, u64),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyFile {
    #[expect(dead_code, reason = "says in the file what the file is for")]
    description: String,
    default: String,
    rule: Vec<RuleFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleFile {
    why: String,
    when: Option<When>,
    syscalls: Vec<String>,
    #[serde(default)]
    args: Vec<Arg>,
    action: String,
}

impl Policy {
    /// `"default"`, in the order in which they are loaded: the allow list, and what it allows with other arguments only.
    pub fn default_lists() -> Result<Vec<Policy>, super::Error> {
        Ok(vec![
            Policy::shipped("default", include_str!("../../../../profiles/seccomp/default.toml"))?,
            Policy::shipped("arguments", include_str!("../../../../profiles/seccomp/arguments.toml"))?,
        ])
    }

    /// `"strict"`: the narrower allow list, and the default lists. It is loaded before them, for of two errors the kernel
    /// gives that of the filter which was loaded last: ENOSYS for a number that is newer than both lists.
    pub fn strict_lists() -> Result<Vec<Policy>, super::Error> {
        let strict = Policy::shipped("strict", include_str!("../../../../profiles/seccomp/strict.toml"))?;
        Ok([vec![strict], Policy::default_lists()?].concat())
    }

    /// What the auditor role may call itself.
    pub fn auditor_list() -> Result<Policy, super::Error> {
        Policy::shipped("auditor", include_str!("../../../../profiles/seccomp/auditor.toml"))
    }

    /// The LLM worker's own.
    pub fn worker_list() -> Result<Policy, super::Error> {
        Policy::shipped("worker", include_str!("../../../../profiles/seccomp/worker.toml"))
    }

    /// An egress worker's own.
    pub fn egress_list() -> Result<Policy, super::Error> {
        Policy::shipped("egress", include_str!("../../../../profiles/seccomp/egress.toml"))
    }

    /// That of the process which has a container's credentials.
    pub fn credentials_list() -> Result<Policy, super::Error> {
        Policy::shipped("credentials", include_str!("../../../../profiles/seccomp/credentials.toml"))
    }

    /// The same, where threads are signalled: those of this process only. Landlock has a scope for signals since 6.12, and a
    /// user's workers are all that user's.
    pub fn signalling_only(self, process: u32) -> Policy {
        self.only_where("tgkill", &Arg { index: 0, test: Test::OneOf(vec![process]) })
    }

    /// The same, where files are opened: for reading only, and none is made or emptied. Where a kernel has no Landlock, this holds.
    pub fn opening_to_read_only(self) -> Policy {
        let flags = (libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC).cast_unsigned();
        let test = Test::Masked { mask: flags, values: vec![libc::O_RDONLY.cast_unsigned()] };
        self.only_where("open", &Arg { index: 1, test: test.clone() })
            .only_where("openat", &Arg { index: 2, test })
    }

    /// The same, where a call is permitted: under this condition, too.
    fn only_where(mut self, call: &str, arg: &Arg) -> Policy {
        let mut own = Vec::new();
        let is_about =
            |rule: &&mut Rule| rule.action.permits() && rule.syscalls.iter().any(|each| each == call);
        for rule in self.rules.iter_mut().filter(is_about) {
            rule.syscalls.retain(|each| each != call);
            let args = rule.args.iter().chain([arg]).cloned().collect();
            own.push(Rule { syscalls: vec![call.to_owned()], args, ..rule.clone() });
        }
        self.rules.retain(|rule| !rule.syscalls.is_empty());
        self.rules.extend(own);
        self
    }

    /// The same without these calls.
    pub fn without(mut self, calls: &[&str]) -> Policy {
        self.rules.iter_mut().for_each(|rule| rule.syscalls.retain(|call| !calls.contains(&call.as_str())));
        self.rules.retain(|rule| !rule.syscalls.is_empty());
        self
    }

    /// A user's own service: the LLM worker's, and what it takes to make sockets and to start workers.
    pub fn user_list() -> Result<Policy, super::Error> {
        let mut policy = Policy::worker_list()?;
        let more = Policy::shipped("user", include_str!("../../../../profiles/seccomp/user.toml"))?;
        policy.rules.extend(more.rules);
        Ok(policy)
    }

    /// What reads one HTML page.
    pub fn reader_list() -> Result<Policy, super::Error> {
        Policy::shipped("reader", include_str!("../../../../profiles/seccomp/reader.toml"))
    }

    /// What Landlock leaves open, as far as the grant makes it right to close it.
    pub fn fallback_list(applies: &[When]) -> Result<Policy, super::Error> {
        let text = include_str!("../../../../profiles/seccomp/fallback.toml");
        let mut policy = Policy::shipped("fallback", text)?;
        policy.rules.retain(|rule| rule.when.is_none_or(|when| applies.contains(&when)));
        Ok(policy)
    }

    fn shipped(name: &str, text: &str) -> Result<Policy, super::Error> {
        let file: PolicyFile = toml::from_str(text)
            .map_err(|source| super::Error::Shipped { name: name.into(), source: Box::new(source) })?;
        let action = |action: &str| {
            Action::named(action)
                .ok_or_else(|| super::Error::Action { name: name.into(), action: action.into() })
        };
        let mut rules = Vec::with_capacity(file.rule.len());
        for rule in file.rule {
            let action = action(&rule.action)?;
            let RuleFile { why, when, syscalls, args, .. } = rule;
            rules.push(Rule { why, when, syscalls, args, action });
        }
        let default = action(&file.default)?;
        Ok(Policy { name: name.into(), default, rules, notices: Vec::new(), log: false })
    }
}
