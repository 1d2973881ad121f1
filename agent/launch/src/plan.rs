//! What Landlock and seccomp hold of a policy where eBPF does not, axis by axis, and what they leave open. Pure.
//!
//! Landlock allows a tree and all below it. It may come out looser than the policy, and every way in which it does is
//! a gap that the user accepts or the command does not start. It is not made tighter, but in three cases in which the
//! looser choice would open nearly everything: a granted path that does not exist when the command starts cannot be
//! named and stays closed; a name at any depth (`**/.gitconfig`) is open in the home and the working directory only; and
//! unix sockets are closed where the granted ones cannot be told from the others.

use ringfence_common::policy::axis;
use ringfence_policy::{
    OF_RUN, Partial, WORKDIR,
    compiled::{CompiledPolicy, Kind, Place, PlaceRule, RuleId},
};
use ringfence_sandbox::{
    landlock::{self, Access, Hierarchy, Rules},
    seccomp::When,
};
use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fmt,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// Rules named in one gap; the rest is counted.
const NAMED: usize = 3;
/// Programs that start every dynamic program, by way of the kernel.
const LOADERS: &[&str] = &["/lib64/ld-linux-x86-64.so.2", "/lib/ld-musl-x86_64.so.1"];

/// The port of name servers.
const DNS: u16 = 53;

/// How a gap begins that leaves protected places open.
const PROTECTED: &str = "protected places inside an allow";

/// The enforcers that may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Enforcers {
    /// Landlock's ABI; 0: none, or the profile turns it off.
    pub landlock_abi: u32,
    /// Whether seccomp filters may be loaded.
    pub seccomp: bool,
    /// Where a unix socket cannot be told from others, all are open if some are granted, and not all closed.
    pub open_unix: bool,
    /// The port of a proxy that reaches the hosts that are granted by name; `None`: none does. Only where Landlock holds TCP ports
    /// and filters may be loaded: [`Enforcers::hold_a_proxy`].
    pub proxy: Option<u16>,
}

impl Enforcers {
    /// Whether a command can be kept to a proxy, as far as ports go. If not, a proxy would be no limit to anybody.
    pub fn hold_a_proxy(&self) -> bool {
        self.seccomp && self.landlock_abi >= landlock::ABI_TCP
    }
}

/// What holds an axis, or what is accepted by a name of its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Held {
    /// Which.
    pub part: Partial,
    /// The enforcers that hold some of it.
    pub by: Vec<String>,
    /// What stays open. Empty: the axis is held in full.
    pub gaps: Vec<String>,
}

/// How a policy is enforced without eBPF.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Each axis once, then names where a proxy reaches them, unix sockets, and the home if it is open.
    pub parts: Vec<Held>,
    /// Landlock's part.
    pub landlock: Rules,
    /// Rules of which Landlock opens less than they say.
    pub narrowed: Vec<String>,
    /// What is closed though it is granted, in sentences.
    pub closed: Vec<String>,
    /// The first of the hosts that are granted by name, none of which is reached; to be accepted as [`Partial::Net`].
    pub names: Option<String>,
    /// Conditions for seccomp's fallback list.
    pub seccomp: Vec<When>,
}

impl Plan {
    /// What has a gap that is not accepted.
    pub fn refused<'a>(&'a self, accepted: &'a [Partial]) -> impl Iterator<Item = &'a Held> {
        self.parts.iter().filter(|held| !held.gaps.is_empty() && !accepted.contains(&held.part))
    }

    /// All that has to be accepted, as `--accept-partial` takes it.
    pub(crate) fn needed(&self) -> String {
        let is_needed =
            |held: &&Held| !held.gaps.is_empty() || held.part == Partial::Net && self.names.is_some();
        let needed: Vec<&str> = self.parts.iter().filter(is_needed).map(|held| held.part.name()).collect();
        needed.join(",")
    }
}

impl Held {
    /// Whether nothing beyond the grant is open. Protected places are taken from what is granted, by a profile's own rules:
    /// one that stays open is a gap of those.
    pub fn holds_the_grant(&self) -> bool {
        self.gaps.iter().all(|gap| gap.starts_with(PROTECTED))
    }

    /// Which enforcers hold it, in whole or in part.
    pub(crate) fn without_gaps(&self) -> String {
        let by = if self.by.is_empty() { "nothing".to_owned() } else { self.by.join(" and ") };
        let how = match (self.by.is_empty(), self.gaps.is_empty()) {
            (true, true) => return format!("{:<9} not restricted by the profile", self.part.name()),
            (false, false) => "held in part by",
            _ => "held by",
        };
        format!("{:<9} {how} {by}", self.part.name())
    }
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.without_gaps())?;
        if self.gaps.is_empty() { Ok(()) } else { write!(f, "; open: {}", self.gaps.join("; ")) }
    }
}

/// Landlock's rules for a policy, as close as it can come. `homes` are the directories in which a name at any depth is
/// looked for.
pub(crate) fn landlock_rules(policy: &CompiledPolicy, homes: &[&Path]) -> Rules {
    let restricted = |bit| policy.initial & bit == 0;
    let access = |bits: u16| Access {
        read: bits & axis::READ != 0,
        write: bits & axis::WRITE != 0,
        exec: bits & axis::EXEC != 0,
        unix: bits & axis::UNIX != 0,
    };
    let granting = policy.places.iter().filter(|rule| rule.allow & !axis::MAP != 0);
    let trees = granting.flat_map(|rule| {
        let (paths, named) = match &rule.place {
            Place::Path(path) => (vec![file_path(path)], false),
            Place::Name(name) => {
                (homes.iter().map(|home| home.join(OsStr::from_bytes(name))).collect(), true)
            }
            // Patterns allow nothing.
            Place::Prefix(_) | Place::Suffix(_) | Place::Abstract(_) | Place::Named { .. } => {
                (Vec::new(), false)
            }
        };
        let (access, exact) = (access(rule.allow), rule.kind == Kind::Exact);
        let may_be_missing = named || rule.allow_rules.iter().flatten().all(|id| is_built_in(policy, *id));
        paths.into_iter().map(move |path| Hierarchy { path, access, exact, may_be_missing })
    });
    // The kernel opens a program's loader as it opens the program. To eBPF that is mapping code; Landlock knows only
    // execution.
    let loaders = LOADERS.iter().filter_map(|loader| may_map(policy, loader)).map(|path| Hierarchy {
        path,
        access: Access { exec: true, ..Access::default() },
        exact: true,
        may_be_missing: true,
    });
    let abstract_granted = policy
        .places
        .iter()
        .any(|rule| matches!(rule.place, Place::Abstract(_)) && rule.allow & axis::UNIX != 0);
    Rules {
        restricted: Access {
            read: restricted(axis::READ),
            write: restricted(axis::WRITE),
            exec: restricted(axis::EXEC),
            unix: restricted(axis::UNIX),
        },
        hierarchies: trees.chain(loaders).collect(),
        tcp: tcp_ports(policy, true),
        no_bind: false,
        scope_signals: true,
        scope_abstract: !unix_unrestricted(policy) && !abstract_granted,
    }
}

/// The plan for a host where eBPF does not hold.
pub fn without_ebpf(policy: &CompiledPolicy, homes: &[&Path], enforcers: Enforcers) -> Plan {
    let mut rules = landlock_rules(policy, homes);
    // Where nothing leads names anywhere, their ports would be open to every address.
    rules.tcp = tcp_ports(policy, false);
    let names = names(policy);
    let proxy = enforcers.proxy.filter(|_| !policy.names.rules.is_empty() && enforcers.hold_a_proxy());
    // Then no address of the profile's is lost by what a datagram or a listener needs.
    let is_alone = proxy.is_some() && !grants_addresses(policy);
    if let (Some(port), Some(ports)) = (proxy, &mut rules.tcp) {
        ports.insert(port);
        rules.no_bind = is_alone;
    }
    let inet = policy.inet || proxy.is_some();
    let no_write = policy.initial & axis::WRITE == 0
        && allows(policy, axis::WRITE)
            .all(|rule| id_at(&rule.allow_rules, axis::WRITE).is_none_or(|id| is_built_in(policy, id)));
    let Unix { held: unix, closed, no_sockets } = unix(policy, &mut rules, enforcers);
    let mut seccomp = Vec::new();
    if enforcers.seccomp {
        let tcp_held = rules.tcp.is_some() && enforcers.landlock_abi >= landlock::ABI_TCP;
        seccomp.extend((!inet).then_some(When::NoInet));
        seccomp.extend(is_alone.then_some(When::NoUdp));
        seccomp.extend((is_alone && no_sockets).then_some(When::NoListen));
        seccomp.extend(no_sockets.then_some(When::NoUnix));
        seccomp.extend(no_write.then_some(When::NoWrite));
        seccomp.extend((inet && tcp_held).then_some(When::TcpPorts));
    }
    let parts = vec![
        files(policy, Partial::FsRead, axis::READ, enforcers),
        writes(policy, no_write, enforcers),
        exec(policy, enforcers),
        if is_alone { net_beside_proxy(policy, enforcers) } else { net(policy, &rules, enforcers) },
    ];
    let by_proxy_alone = proxy.map(|_| names_by_proxy(policy, &rules, enforcers, (is_alone, no_sockets)));
    let parts = parts.into_iter().chain(by_proxy_alone).chain([unix]).collect();
    let asks = policy.names.options.ask.is_some();
    let said = |names: &String| if proxy.is_some() { by_proxy(names, asks) } else { closed_names(names) };
    let closed = closed.into_iter().chain(names.as_ref().map(said)).collect();
    let names = names.filter(|_| proxy.is_none());
    let narrowed = if enforcers.landlock_abi == 0 { Vec::new() } else { narrowed(policy) };
    Plan { parts, landlock: rules, narrowed, closed, names, seccomp }
}

/// The gap that a working directory is which is the home or holds it, where the profile grants it as `${WORKDIR}`: Landlock
/// takes nothing from a granted tree, so that keys, settings and what starts at the next login are granted with it. eBPF
/// holds what a profile denies there, and nothing is asked then.
pub fn home(policy: &CompiledPolicy, workdir: &Path, homes: &[PathBuf]) -> Option<Held> {
    let home = homes.iter().find(|home| home.starts_with(workdir))?;
    let of_files = [axis::READ, axis::WRITE, axis::EXEC];
    let granted = of_files.into_iter().filter(|bit| policy.initial & bit == 0).any(|bit| {
        let rules = allows(policy, bit).filter_map(|rule| id_at(&rule.allow_rules, bit));
        rules.filter_map(|id| policy.rules.get(id as usize)).any(|rule| rule.text.starts_with(WORKDIR))
    });
    let what = if home == workdir { "is" } else { "holds" };
    let gap = format!(
        "what is in the home {}, keys, settings and programs that start by themselves among it, for the working directory \
         {} {what} it; start in a directory of the work's own",
        home.display(),
        workdir.display()
    );
    granted.then(|| Held { part: Partial::Home, by: Vec::new(), gaps: vec![gap] })
}

/// What Landlock holds of one bit of the table, with the gaps that all of them share.
fn files(policy: &CompiledPolicy, part: Partial, bit: u16, enforcers: Enforcers) -> Held {
    let mut held = Held { part, by: Vec::new(), gaps: exceptions(policy, bit) };
    if policy.initial & bit != 0 {
        return held;
    }
    if enforcers.landlock_abi == 0 {
        held.gaps.push("everything: Landlock is not there, or turned off".into());
        return held;
    }
    held.by.push(format!("Landlock (ABI {})", enforcers.landlock_abi));
    held.gaps.extend(finer(policy, bit));
    held
}

/// Allows of a part of a tree, all of which Landlock opens.
fn finer(policy: &CompiledPolicy, bit: u16) -> Option<String> {
    let finer = allows(policy, bit).filter(|rule| matches!(rule.kind, Kind::Children | Kind::Below));
    let finer = ids(policy, finer.map(|rule| id_at(&rule.allow_rules, bit)));
    let gap = || format!("the whole tree where only a part of it is allowed ({})", listed(&finer));
    (!finer.is_empty()).then(gap)
}

/// Allows of a name at any depth, on the axes that Landlock restricts.
fn narrowed(policy: &CompiledPolicy) -> Vec<String> {
    let bits = [axis::READ, axis::WRITE, axis::EXEC].into_iter().filter(|bit| policy.initial & bit == 0);
    let named = |bit| {
        let rules = allows(policy, bit).filter(|rule| matches!(rule.place, Place::Name(_)));
        ids(policy, rules.map(move |rule| id_at(&rule.allow_rules, bit)))
    };
    bits.flat_map(named).collect()
}

/// What is taken away from an allow, which Landlock cannot do.
fn exceptions(policy: &CompiledPolicy, bit: u16) -> Vec<String> {
    let mut gaps = Vec::new();
    let denies = policy.places.iter().filter(|r| r.deny & bit != 0 && inside_an_allow(policy, &r.place, bit));
    // The files that the policy is made of are protected, though by a deny.
    let is_source = |rule: &&PlaceRule| {
        let id = id_at(&rule.deny_rules, bit);
        id.and_then(|id| policy.rules.get(id as usize)).is_some_and(|rule| rule.key == "source")
    };
    let (sources, denies): (Vec<&PlaceRule>, Vec<_>) = denies.partition(is_source);
    let denies = ids(policy, denies.into_iter().map(|rule| id_at(&rule.deny_rules, bit)));
    if !denies.is_empty() {
        gaps.push(format!("what is denied inside an allow ({})", listed(&denies)));
    }
    let resets = policy.places.iter().filter(|rule| rule.reset & bit != 0 && rule.allow & bit == 0);
    let sources = sources.into_iter().filter_map(|rule| match &rule.place {
        Place::Path(path) => Some(file_path(path).display().to_string()),
        Place::Name(_) | Place::Prefix(_) | Place::Suffix(_) | Place::Abstract(_) | Place::Named { .. } => {
            None
        }
    });
    let protected: BTreeSet<String> = resets
        .filter_map(|rule| match &rule.place {
            Place::Path(path) => reached(policy, path, bit).then(|| file_path(path).display().to_string()),
            Place::Name(name) => inside_an_allow(policy, &rule.place, bit)
                .then(|| format!("**/{}", String::from_utf8_lossy(name))),
            // Neither protects.
            Place::Prefix(_) | Place::Suffix(_) | Place::Abstract(_) | Place::Named { .. } => None,
        })
        .chain(sources)
        .collect();
    if !protected.is_empty() {
        let protected: Vec<String> = protected.into_iter().collect();
        gaps.push(format!("{PROTECTED} ({})", listed(&protected)));
    }
    gaps
}

/// The ids of some rules as written, each once.
fn ids(policy: &CompiledPolicy, rules: impl Iterator<Item = Option<RuleId>>) -> Vec<String> {
    let rules = rules.flatten().filter_map(|id| policy.rules.get(id as usize));
    let unique: BTreeSet<&str> = rules.map(|rule| rule.id.as_str()).collect();
    unique.into_iter().map(str::to_owned).collect()
}

fn writes(policy: &CompiledPolicy, no_write: bool, enforcers: Enforcers) -> Held {
    let mut held = files(policy, Partial::FsWrite, axis::WRITE, enforcers);
    if policy.initial & axis::WRITE != 0 {
        return held;
    }
    if enforcers.landlock_abi != 0 && enforcers.landlock_abi < landlock::ABI_TRUNCATE {
        held.gaps.push("truncation (Landlock ABI 3, Linux 6.2)".into());
    }
    if no_write && enforcers.seccomp {
        held.by.push("seccomp".into());
    } else {
        held.gaps.push("mode, owner, times and attributes of every file the user owns".into());
    }
    held
}

fn exec(policy: &CompiledPolicy, enforcers: Enforcers) -> Held {
    let mut held = files(policy, Partial::Exec, axis::EXEC, enforcers);
    if policy.initial & axis::EXEC == 0 {
        held.gaps.push(
            "any readable program by way of `ld.so PROGRAM`, and code in memory (memfd, libraries)".into(),
        );
    }
    held
}

fn net(policy: &CompiledPolicy, rules: &Rules, enforcers: Enforcers) -> Held {
    let mut held = Held { part: Partial::Net, by: Vec::new(), gaps: Vec::new() };
    let abi = enforcers.landlock_abi;
    if !policy.inet {
        if enforcers.seccomp {
            held.by.push("seccomp".into());
        } else {
            held.gaps.push("internet sockets: seccomp is turned off".into());
        }
    } else if !inet_unrestricted(policy) {
        match &rules.tcp {
            Some(_) if abi >= landlock::ABI_TCP => {
                held.by.push(format!("Landlock (ABI {abi})"));
                held.gaps.push("addresses (only TCP ports are held), and UDP".into());
            }
            Some(_) => held.gaps.push("addresses and ports (TCP ports: Landlock ABI 4, Linux 6.7)".into()),
            None => held.gaps.push("addresses".into()),
        }
    }
    held
}

/// The network beside a proxy, where the profile grants no address: at most that of the run's model.
fn net_beside_proxy(policy: &CompiledPolicy, enforcers: Enforcers) -> Held {
    let by = vec![format!("Landlock (ABI {})", enforcers.landlock_abi), "seccomp".into()];
    let gap = "whoever listens, at any address, at the TCP port of its model: Landlock holds the port, and not the address";
    Held { part: Partial::Net, by, gaps: policy.inet.then(|| gap.to_owned()).into_iter().collect() }
}

/// What is held of names where a proxy reaches them. `is_alone`: the grant has no address besides. `no_sockets`: nothing is listened
/// at.
fn names_by_proxy(
    policy: &CompiledPolicy,
    rules: &Rules,
    enforcers: Enforcers,
    (is_alone, no_sockets): (bool, bool),
) -> Held {
    let by = vec![
        format!("Landlock (ABI {})", enforcers.landlock_abi),
        "seccomp".into(),
        "the run's proxy".into(),
    ];
    let mut gaps = Vec::new();
    match &rules.tcp {
        Some(_) => gaps.push(
            "whoever listens, at any address, at the TCP port of the run's proxy for names: Landlock holds the port, and not the \
             address"
                .into(),
        ),
        None if inet_unrestricted(policy) => {}
        None => gaps.push("any address, so that what the proxy for names refuses is reached without it".into()),
    }
    if is_alone && !no_sockets {
        gaps.push("whoever connects to a port of the kernel's choice that the command listens at".into());
    }
    if enforcers.landlock_abi < landlock::ABI_SCOPES {
        gaps.push("the proxy itself, to end it by a signal (Landlock ABI 6, Linux 6.12)".into());
    }
    Held { part: Partial::Names, by, gaps }
}

/// Whether the profile itself grants an address, and not only who starts the run.
fn grants_addresses(policy: &CompiledPolicy) -> bool {
    let is_of_run = |id: RuleId| {
        let file = policy.rules.get(id as usize).and_then(|rule| rule.file.as_deref());
        file == Some(Path::new(OF_RUN))
    };
    policy.nets.iter().any(|rule| rule.allow && !is_of_run(rule.rule))
}

/// What becomes of unix sockets.
struct Unix {
    held: Held,
    /// What is closed though it is granted.
    closed: Vec<String>,
    /// seccomp lets no unix socket be made, but for pairs.
    no_sockets: bool,
}

/// A unix socket is as much as whoever listens there will do: a terminal multiplexer types for its client. So what cannot
/// be told from what is granted is closed, and open only once that is accepted by its own name.
fn unix(policy: &CompiledPolicy, rules: &mut Rules, enforcers: Enforcers) -> Unix {
    let Enforcers { landlock_abi: abi, seccomp, open_unix, .. } = enforcers;
    let mut unix = Unix {
        held: Held { part: Partial::Unix, by: Vec::new(), gaps: Vec::new() },
        closed: Vec::new(),
        no_sockets: false,
    };
    let held = &mut unix.held;
    if unix_unrestricted(policy) {
        held.gaps = exceptions(policy, axis::UNIX);
        return unix;
    }
    let granted = ids(policy, allows(policy, axis::UNIX).map(|rule| id_at(&rule.allow_rules, axis::UNIX)));
    let none = allows(policy, axis::UNIX).next().is_none();
    let by_path = abi >= landlock::ABI_UNIX_PATH;
    let instead = "`--accept-partial unix` opens every one that file modes allow";
    if seccomp && (none || !by_path && !open_unix) {
        held.by.push("seccomp".into());
        unix.no_sockets = true;
        if !none {
            unix.closed.push(format!(
                "unix sockets are closed, though {} grants some: Landlock before ABI 9 (Linux 7.1) cannot tell one by its \
                 path; {instead}",
                listed(&granted)
            ));
        }
        return unix;
    }
    if abi >= landlock::ABI_SCOPES {
        held.by.push(format!("Landlock (ABI {abi})"));
    }
    if by_path {
        held.gaps.extend(exceptions(policy, axis::UNIX));
        held.gaps.extend(finer(policy, axis::UNIX));
    } else {
        held.gaps.push("every unix socket that file modes allow (by path: Landlock ABI 9, Linux 7.1)".into());
    }
    if abi < landlock::ABI_SCOPES {
        held.gaps.push("every abstract unix socket (Landlock ABI 6, Linux 6.12)".into());
    } else if !rules.scope_abstract && open_unix {
        held.gaps.push("every abstract unix socket: Landlock cannot tell one by its name".into());
    } else if !rules.scope_abstract {
        rules.scope_abstract = true;
        unix.closed.push(format!(
            "abstract unix sockets are closed, though {} grants some: Landlock cannot tell one by its name; {instead}",
            listed(&granted)
        ));
    }
    unix
}

/// The names that a policy grants, if any: the first of them.
fn names(policy: &CompiledPolicy) -> Option<String> {
    let mut names = ids(policy, policy.names.rules.iter().map(|rule| Some(rule.rule)));
    if names.is_empty() {
        names.extend(policy.names.options.ask.map(|_| "net.ask".to_owned()));
    }
    (!names.is_empty()).then(|| listed(&names))
}

/// Nothing but the daemon resolves a granted name, and nothing else can tell what it leads to.
fn closed_names(names: &str) -> String {
    format!("no host is reached by name, though {names} grants some: nothing here can hold that")
}

/// Nobody else finds out why a program that knows no proxy reaches nothing.
fn by_proxy(names: &str, asks: bool) -> String {
    let others = if asks { "; nobody is asked about others, as net.ask would: they are refused" } else { "" };
    format!(
        "hosts by name ({names}) are reached through the run's proxy alone, which HTTPS_PROXY, HTTP_PROXY and ALL_PROXY name{others}"
    )
}

/// The ports that Landlock can hold; `None`: some rule allows any port, or no address is restricted. Beside eBPF, those of names
/// are among them, and that of the container's resolver.
fn tcp_ports(policy: &CompiledPolicy, with_names: bool) -> Option<BTreeSet<u16>> {
    let ports = policy.nets.iter().filter(|rule| rule.allow).map(|rule| rule.port);
    let names = policy.names.rules.iter().filter(|_| with_names);
    let resolver = names.clone().next().map(|_| Some(DNS));
    let asked = policy.names.options.ask.filter(|_| with_names).map(|_| None);
    ports.chain(names.map(|rule| rule.port)).chain(resolver).chain(asked).collect()
}

fn inet_unrestricted(policy: &CompiledPolicy) -> bool {
    let everything = policy.nets.iter().any(|rule| rule.allow && rule.prefix == 0 && rule.port.is_none());
    everything && policy.nets.iter().all(|rule| rule.allow)
}

/// `net = "all"`: every unix socket, but for the protected ones.
fn unix_unrestricted(policy: &CompiledPolicy) -> bool {
    let root = |rule: &PlaceRule| {
        rule.kind == Kind::Tree
            && matches!(&rule.place, Place::Path(path) if file_path(path) == Path::new("/"))
    };
    policy.initial & axis::UNIX != 0 || allows(policy, axis::UNIX).any(root)
}

fn allows(policy: &CompiledPolicy, bit: u16) -> impl Iterator<Item = &PlaceRule> {
    policy.places.iter().filter(move |rule| rule.allow & bit != 0)
}

/// Whether some allow reaches down to a path.
fn reached(policy: &CompiledPolicy, path: &[u8], bit: u16) -> bool {
    policy.initial & bit != 0
        || allows(policy, bit).any(|rule| match &rule.place {
            Place::Path(above) => {
                matches!(rule.kind, Kind::Tree | Kind::Below) && file_path(path).starts_with(file_path(above))
            }
            Place::Name(_)
            | Place::Prefix(_)
            | Place::Suffix(_)
            | Place::Abstract(_)
            | Place::Named { .. } => false,
        })
}

/// Whether a deny takes away from what is allowed: an allow is above it, or below.
fn inside_an_allow(policy: &CompiledPolicy, place: &Place, bit: u16) -> bool {
    let below = |path: &[u8]| {
        allows(policy, bit).any(|rule| match &rule.place {
            Place::Path(allowed) => file_path(allowed).starts_with(file_path(path)),
            Place::Name(_) => true,
            Place::Prefix(_) | Place::Suffix(_) | Place::Abstract(_) | Place::Named { .. } => false,
        })
    };
    match place {
        Place::Path(path) => reached(policy, path, bit) || below(path),
        Place::Name(_) | Place::Prefix(_) | Place::Suffix(_) => {
            policy.initial & bit != 0 || allows(policy, bit).next().is_some()
        }
        Place::Abstract(_) => true,
        Place::Named { .. } => false,
    }
}

/// A loader's resolved path, if its code may be mapped. Rules are of resolved paths, and /lib64 is a link.
fn may_map(policy: &CompiledPolicy, loader: &str) -> Option<PathBuf> {
    let path = Path::new(loader).canonicalize().ok()?;
    reached(policy, path.as_os_str().as_bytes(), axis::MAP).then_some(path)
}

fn id_at(rules: &[Option<RuleId>; 5], bit: u16) -> Option<RuleId> {
    rules.get(bit.trailing_zeros() as usize).copied().flatten()
}

fn is_built_in(policy: &CompiledPolicy, id: RuleId) -> bool {
    policy.rules.get(id as usize).is_some_and(|rule| rule.file.is_none())
}

/// A compiled path as a file path; the root may be the empty path there.
fn file_path(path: &[u8]) -> PathBuf {
    if path.is_empty() { PathBuf::from("/") } else { PathBuf::from(OsStr::from_bytes(path)) }
}

/// The first of some names, and how many more there are.
pub fn listed(names: &[String]) -> String {
    let more = names.len().saturating_sub(NAMED);
    let named = names.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    if more == 0 { named } else { format!("{named} and {more} more") }
}

#[cfg(test)]
mod tests;
