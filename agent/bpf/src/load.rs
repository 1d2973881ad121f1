//! Loading: checks the host, loads the programs or adopts what an earlier core pinned.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use aya::{
    Btf, Ebpf, EbpfError, EbpfLoader,
    maps::MapError,
    programs::{
        CgroupAttachMode, CgroupSkbAttachType, Lsm, Program, ProgramError,
        links::{FdLink, LinkError},
    },
};
use ringfence_common::{
    MAX_CONTAINERS, MAX_POLICIES,
    egress::{FlowKey, Judged, PORT_WORDS, Redirect, Redirected, RedirectedFlow},
    enroll::{ITERATOR, Listed, Outcome},
    event::{Folding, Repeat, RepeatKey},
    hash::Keys,
    hooks::{HOOKS, Hook, UNKNOWN_HOOK},
    net::{EGRESS, NetKey, NetVerdict, Owner as SocketOwner},
    policy::{Bucket, Container, Counters, MAX_OWNERS, Owner, Policy, TABLE_BUCKETS},
    task::Task,
};

use super::{
    PolicyError, RingError,
    btf::{self, BtfError, KernelTypes},
    globals::{self, GlobalsError},
    object::{Object, ObjectError},
    pins::{Boot, Pins, PinsError},
    policies,
    rewriters::{self, cgroup_root},
    rings, surface,
};
use ringfence_coverage::{Table, Unknown};

/// The list of active security modules.
const LSM_LIST: &str = "/sys/kernel/security/lsm";
/// How far the kernel is locked down.
const LOCKDOWN: &str = "/sys/kernel/security/lockdown";

/// Maps of the object that the agent reads or writes: name, `BPF_MAP_TYPE_*`, bytes of a key, bytes of a value, entries.
const MAPS: [(&str, u32, usize, usize, Option<usize>); 21] = [
    ("TABLE", 2, 4, size_of::<Bucket>() * TABLE_BUCKETS, Some(1)),
    ("POLICIES", 2, 4, size_of::<Policy>(), Some(MAX_POLICIES)),
    ("CONTAINERS", 2, 4, size_of::<Container>(), Some(MAX_CONTAINERS)),
    ("COUNTERS", 2, 4, size_of::<Counters>(), Some(MAX_CONTAINERS)),
    ("TASKS", 29, 4, size_of::<Task>(), None),
    ("CALLERS", 24, 4, size_of::<u64>(), None),
    ("SOCKETS", 24, 4, size_of::<SocketOwner>(), None),
    ("NET", 11, 4 + size_of::<NetKey>(), size_of::<NetVerdict>(), None),
    ("LISTED", 1, 4, size_of::<Listed>(), None),
    ("OUTCOME", 2, 4, size_of::<Outcome>(), Some(1)),
    (rings::MAPS[0], 27, 0, 0, None),
    (rings::MAPS[1], 27, 0, 0, None),
    (rings::MAPS[2], 1, size_of::<RepeatKey>(), size_of::<Repeat>(), None),
    ("FOLDING", 2, 4, size_of::<Folding>(), Some(1)),
    ("USERS", 2, 4, size_of::<Owner>(), Some(MAX_OWNERS)),
    ("REDIRECTS", 2, 4, size_of::<Redirect>(), Some(MAX_CONTAINERS)),
    ("PORTS", 2, 4, 8, Some(PORT_WORDS)),
    ("LISTENERS", 24, 4, size_of::<u64>(), None),
    ("REDIRECTED", 24, 4, size_of::<Redirected>(), None),
    ("JUDGED", 1, 8, size_of::<Judged>(), None),
    ("FLOWS", 1, size_of::<FlowKey>(), size_of::<RedirectedFlow>(), None),
];

/// Why the kernel side cannot be brought up. Nothing that was in force before is taken away.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// No list of security modules.
    #[error("{LSM_LIST} cannot be read; mount it: mount -t securityfs securityfs /sys/kernel/security")]
    NoLsmList(#[source] io::Error),
    /// `bpf` is not active.
    #[error(
        "`bpf` is not among this kernel's active security modules ({active}), so no program can refuse anything; \
         boot with lsm={wanted} on the kernel command line"
    )]
    #[expect(missing_docs, reason = "as their messages call them")]
    NoBpfLsm { active: String, wanted: String },
    /// The kernel hides its memory.
    #[error(
        "this kernel is locked down to confidentiality ({LOCKDOWN}), which keeps programs from reading kernel memory; \
         boot with lockdown=integrity or without lockdown="
    )]
    Lockdown,
    /// A hook that every supported kernel has.
    #[error(
        "this kernel has no LSM hook `{0}`, or was built without CONFIG_BPF_LSM=y; this kernel is not supported"
    )]
    NoHook(&'static str),
    /// The embedded object.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// The embedded object and the agent disagree.
    #[error("the eBPF programs inside this binary do not fit it: {0}; build it again")]
    Mismatch(String),
    /// What is pinned.
    #[error(transparent)]
    Pins(#[from] PinsError),
    /// The kernel's types and symbols.
    #[error(transparent)]
    Kernel(#[from] BtfError),
    /// The programs' globals.
    #[error(transparent)]
    Globals(#[from] GlobalsError),
    /// Types, by the loading library.
    #[error("the kernel's type information (BTF) cannot be used for loading")]
    Types(#[source] aya::BtfError),
    /// Maps.
    #[error("the kernel refused the eBPF maps")]
    Maps(#[source] Box<EbpfError>),
    /// The verifier, or permissions.
    #[error("the kernel refused the program for hook `{hook}` ({reason}){log}")]
    #[expect(missing_docs, reason = "as their messages call them")]
    Refused { hook: &'static str, reason: String, log: String },
    /// Attaching.
    #[error("the program for hook `{hook}` cannot be attached")]
    Attach {
        /// The hook.
        hook: &'static str,
        /// Why.
        #[source]
        source: Box<ProgramError>,
    },
    /// Detached links, of the library's own kind.
    #[error("the link of hook `{hook}` cannot be kept")]
    Link {
        /// The hook.
        hook: &'static str,
        /// Why.
        #[source]
        source: Box<LinkError>,
    },
    /// Nowhere to judge outgoing packets.
    #[error(
        "cgroup v2 is not mounted, and to its root the programs that judge outgoing packets are attached; mount it: \
         mount -t cgroup2 none /sys/fs/cgroup (where cgroup v1 is there: none /sys/fs/cgroup/unified)"
    )]
    NoCgroup,
    /// A part of the hierarchy, as a container sees it.
    #[error(
        "{0} cannot be used as the root of cgroup v2: it is unreadable, or only a part that a cgroup namespace shows, and a \
         program there would not see every packet; run the daemon outside containers"
    )]
    PartOfCgroups(PathBuf),
    /// Pinning a link.
    #[error("{path}: the link cannot be pinned")]
    Pin {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: aya::pin::PinError,
    },
    /// Keeping what is loaded.
    #[error("{path}: the directory for programs that are attached later cannot be made")]
    Keep {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Opening a map.
    #[error("the map {map} cannot be opened")]
    Map {
        /// The map.
        map: &'static str,
        /// Why.
        #[source]
        source: MapError,
    },
    /// Sharing a map's memory.
    #[error("the map {map} cannot be shared with the kernel")]
    Share {
        /// The map.
        map: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The rings.
    #[error(transparent)]
    Rings(#[from] RingError),
    /// Randomness.
    #[error(transparent)]
    Random(#[from] PolicyError),
    /// What an earlier core left cannot be tidied.
    #[error("what an earlier daemon left in the kernel's tables cannot be read")]
    Adopt(#[source] io::Error),
}

/// Which hooks have a program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Coverage {
    /// Names of the hooks, in the order in which they are attached.
    pub attached: Vec<&'static str>,
    /// Hooks that this kernel lacks; [`Hook::without`] says who does their work.
    pub missing: Vec<Hook>,
    /// What this kernel has that the coverage table does not name.
    pub unknown: Unknown,
    /// Hooks among the unknown ones at which governed tasks are refused.
    pub refused: Vec<String>,
    /// The programs were there already, from an earlier daemon of the same build.
    pub adopted: bool,
}

/// What [`prepare`] made ready: programs attached, maps pinned.
pub(crate) struct Ready {
    /// The object that the programs are of.
    pub object: Object,
    /// Where everything is pinned.
    pub pins: Pins,
    /// Keys of the path hash.
    pub keys: Keys,
    /// Which hooks have a program.
    pub coverage: Coverage,
}

/// Loads or adopts, see [`super::Kernel::load_or_adopt`]. What `table` does not name is refused.
pub(crate) fn prepare(pin_dir: &Path, table: &Table) -> Result<Ready, LoadError> {
    check_host(Path::new(LSM_LIST), Path::new(LOCKDOWN))?;
    let object = Object::embedded()?;
    check_object(&object)?;
    let pins = Pins::open(pin_dir)?;
    let fresh = || policies::random().map(|bits| bits | 1);
    let boot = pins.boot(Keys { k0: fresh()?, k1: fresh()?, k2: fresh()? })?;
    for (name, shape) in &object.maps {
        pins.map(name, shape)?; // before anything is loaded: a map of another layout must not be adopted
    }
    let unknown = surface::among(table, Path::new(btf::KALLSYMS))?;
    let beside = has_all(&pins, [ITERATOR, EGRESS].into_iter())?
        && pins.newest()?.is_some_and(|links| rewriters::are_loaded(&links));
    let whole = coverage(&pins, &unknown)?.is_ok() && beside;
    let adopted = boot.object == object.hash && whole;
    if adopted {
        pins.clean()?;
    } else {
        pins.set_boot(&Boot { object: 0, ..boot })?; // until the new load is whole
        if let Err(error) = load(&object, &pins, &boot.keys, &unknown) {
            // Of the half that was attached nothing stays; an earlier load does, whole.
            pins.undo_load()?;
            return Err(error);
        }
        pins.set_boot(&Boot { object: object.hash, ..boot })?;
    }
    let coverage = coverage(&pins, &unknown)?.map_err(LoadError::NoHook)?;
    Ok(Ready { object, pins, keys: boot.keys, coverage: Coverage { adopted, ..coverage } })
}

/// Refuses a host on which programs could be loaded and would hold nothing, or could not be loaded at all.
fn check_host(lsm_list: &Path, lockdown: &Path) -> Result<(), LoadError> {
    let active = fs::read_to_string(lsm_list).map_err(LoadError::NoLsmList)?;
    let active = active.trim();
    if !active.split(',').any(|module| module == "bpf") {
        // `capability` is always there and may not be named.
        let mut wanted: Vec<_> = active.split(',').filter(|m| !m.is_empty() && *m != "capability").collect();
        wanted.push("bpf");
        return Err(LoadError::NoBpfLsm { active: active.into(), wanted: wanted.join(",") });
    }
    let level = fs::read_to_string(lockdown).unwrap_or_default(); // absent: a kernel without lockdown
    if level.contains("[confidentiality]") { Err(LoadError::Lockdown) } else { Ok(()) }
}

/// Compares the object with the tables and types that the agent was built with.
fn check_object(object: &Object) -> Result<(), LoadError> {
    for hook in HOOKS {
        if !object.hooks.contains(hook.name) {
            return Err(LoadError::Mismatch(format!("there is no program for hook `{}`", hook.name)));
        }
    }
    if !object.hooks.contains(UNKNOWN_HOOK) {
        return Err(LoadError::Mismatch(format!("there is no program `{UNKNOWN_HOOK}`")));
    }
    let in_table = |name: &str| name == UNKNOWN_HOOK || HOOKS.iter().any(|hook| hook.name == name);
    if let Some(extra) = object.hooks.iter().find(|name| !in_table(name)) {
        return Err(LoadError::Mismatch(format!("program `{extra}` is in no table")));
    }
    for (name, kind, key, value, entries) in MAPS {
        let found =
            object.maps.get(name).ok_or_else(|| LoadError::Mismatch(format!("there is no map {name}")))?;
        let same = found.kind == kind
            && found.key as usize == key
            && found.value as usize == value
            && entries.is_none_or(|entries| found.entries as usize == entries);
        if !same {
            return Err(LoadError::Mismatch(format!("map {name} has {found}")));
        }
    }
    Ok(())
}

/// Whether the newest load has all of these beside the hooks.
fn has_all<'a>(pins: &Pins, mut names: impl Iterator<Item = &'a str>) -> Result<bool, PinsError> {
    names.try_fold(true, |all, name| Ok(all && pins.beside_hooks(name)?.is_some()))
}

/// What the pinned links cover; `Err`: the first hook that has no program and must have one.
fn coverage(pins: &Pins, unknown: &Unknown) -> Result<Result<Coverage, &'static str>, PinsError> {
    let pinned = pins.attached()?;
    let (attached, missing): (Vec<Hook>, Vec<Hook>) =
        HOOKS.iter().copied().partition(|hook| pinned.contains(hook.name));
    if let Some(hook) = missing.iter().find(|hook| hook.without.is_empty()) {
        return Ok(Err(hook.name));
    }
    let refused = unknown.hooks.iter().filter(|hook| pinned.contains(*hook)).cloned().collect();
    Ok(Ok(Coverage {
        attached: attached.iter().map(|hook| hook.name).collect(),
        missing,
        unknown: unknown.clone(),
        refused,
        adopted: false,
    }))
}

/// Loads every program, attaches it, pins its link, and then lets go of an earlier load.
fn load(object: &Object, pins: &Pins, keys: &Keys, unknown: &Unknown) -> Result<(), LoadError> {
    let types = KernelTypes::running()?;
    let values = globals::values(&types, Path::new(btf::KALLSYMS), keys)?;
    let wanted = globals::wanted(&values, &object.globals)?;
    let btf = Btf::from_sys_fs().map_err(LoadError::Types)?;

    let mut loader = EbpfLoader::new();
    loader.btf(Some(&btf)).allow_unsupported_maps();
    for (name, value) in wanted {
        loader.override_global(name, value, true);
    }
    for name in object.maps.keys() {
        loader.map_pin_path(name, pins.map_path(name));
    }
    let mut loaded = loader.load(&object.bytes).map_err(|error| LoadError::Maps(Box::new(error)))?;

    let are_attached = pins.newest()?.is_some_and(|links| rewriters::attached(&links) > 0);
    let dir = pins.begin_load()?;
    for Hook { name: hook, without, .. } in HOOKS {
        if !types.has_function(&format!("bpf_lsm_{hook}")) {
            if without.is_empty() {
                return Err(LoadError::NoHook(hook));
            }
            continue;
        }
        let Some(Program::Lsm(program)) = loaded.program_mut(hook) else {
            return Err(LoadError::Mismatch(format!("there is no program for hook `{hook}`")));
        };
        program.load(hook, &btf).map_err(|error| refused(hook, error))?;
        attach(program, hook, &dir, hook)?;
    }
    pin_iterator(&mut loaded, &btf, &dir)?;
    pin_in_cgroup(&mut loaded, &dir)?;
    rewriters::load(&mut loaded, &dir)?;
    if are_attached {
        rewriters::attach(&dir)?; // there is no moment without
    }
    for hook in &unknown.hooks {
        // One program has one place: each of these hooks gets a copy of its own, over the same pinned maps.
        let mut copy = loader.load(&object.bytes).map_err(|error| LoadError::Maps(Box::new(error)))?;
        refuse_at(hook, &mut copy, &btf, &dir)?;
    }
    pins.commit_load()?;
    Ok(())
}

/// Refuses governed tasks at a hook that is in no table. One that cannot refuse (it returns nothing, or no error) does not
/// take the program; it is told as unknown all the same.
fn refuse_at(hook: &str, copy: &mut Ebpf, btf: &Btf, dir: &Path) -> Result<(), LoadError> {
    let Some(Program::Lsm(program)) = copy.program_mut(UNKNOWN_HOOK) else {
        return Err(LoadError::Mismatch(format!("there is no program `{UNKNOWN_HOOK}`")));
    };
    if let Err(error) = program.load(hook, btf) {
        tracing::warn!(
            "this kernel's hook {hook} is in no table, and cannot be refused: {}",
            refused(UNKNOWN_HOOK, error)
        );
        return Ok(());
    }
    attach(program, UNKNOWN_HOOK, dir, hook)
}

/// Attaches a loaded program, and pins its link under a name.
fn attach(program: &mut Lsm, hook: &'static str, dir: &Path, name: &str) -> Result<(), LoadError> {
    let failed = |source| LoadError::Attach { hook, source: Box::new(source) };
    let id = program.attach().map_err(failed)?;
    pin(program.take_link(id).map_err(failed)?.into(), dir, name)
}

pub(crate) fn pin(link: FdLink, dir: &Path, name: &str) -> Result<(), LoadError> {
    let path = dir.join(name);
    link.pin(&path).map(drop).map_err(|source| LoadError::Pin { path, source })
}

/// The iterator that takes in running processes; reading its pinned link runs it.
fn pin_iterator(loaded: &mut Ebpf, btf: &Btf, dir: &Path) -> Result<(), LoadError> {
    let attach = |source| LoadError::Attach { hook: ITERATOR, source: Box::new(source) };
    let Some(Program::Iter(program)) = loaded.program_mut(ITERATOR) else {
        return Err(LoadError::Mismatch(format!("there is no program `{ITERATOR}`")));
    };
    program.load("task", btf).map_err(|error| refused(ITERATOR, error))?;
    let id = program.attach().map_err(attach)?;
    let link = program.take_link(id).map_err(attach)?;
    let link: FdLink =
        link.try_into().map_err(|source| LoadError::Link { hook: ITERATOR, source: Box::new(source) })?;
    pin(link, dir, ITERATOR)
}

/// The program that judges outgoing packets, at the root of cgroup v2: by a link, which leaves other programs there alone and
/// cannot be undone by programs of cgroups below.
fn pin_in_cgroup(loaded: &mut Ebpf, dir: &Path) -> Result<(), LoadError> {
    let root = cgroup_root()?;
    let attach = |source| LoadError::Attach { hook: EGRESS, source: Box::new(source) };
    let Some(Program::CgroupSkb(program)) = loaded.program_mut(EGRESS) else {
        return Err(LoadError::Mismatch(format!("there is no program `{EGRESS}`")));
    };
    program.load().map_err(|error| refused(EGRESS, error))?;
    // A link is always one of several, and takes no mode.
    let id = program.attach(&root, CgroupSkbAttachType::Egress, CgroupAttachMode::Single).map_err(attach)?;
    let link = program.take_link(id).map_err(attach)?;
    let link: FdLink =
        link.try_into().map_err(|source| LoadError::Link { hook: EGRESS, source: Box::new(source) })?;
    pin(link, dir, EGRESS)
}

/// The end of the verifier's log is where it says why; the rest is megabytes.
pub(crate) fn refused(hook: &'static str, error: ProgramError) -> LoadError {
    const LINES: usize = 12;
    match error {
        ProgramError::LoadError { io_error, verifier_log } => {
            let log = verifier_log.to_string();
            let lines: Vec<_> = log.lines().collect();
            let tail = &lines[lines.len().saturating_sub(LINES)..];
            let log = tail.iter().map(|line| format!("\n  {line}")).collect();
            LoadError::Refused { hook, reason: io_error.to_string(), log }
        }
        other => LoadError::Attach { hook, source: Box::new(other) },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(lsm: &str, lockdown: Option<&str>) -> Result<(), LoadError> {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("lsm"), lsm).unwrap();
        if let Some(text) = lockdown {
            fs::write(dir.path().join("lockdown"), text).unwrap();
        }
        check_host(&dir.path().join("lsm"), &dir.path().join("lockdown"))
    }

    #[test]
    fn a_kernel_without_bpf_in_its_list_is_refused_with_the_line_to_boot_with() {
        let error = host("lockdown,capability,landlock,yama,apparmor", None).unwrap_err();
        assert!(error.to_string().contains("lsm=lockdown,landlock,yama,apparmor,bpf"), "{error}");
        assert!(host("capability,bpfish", None).is_err());
        assert!(host("lockdown,capability,bpf\n", Some("[none] integrity confidentiality\n")).is_ok());
    }

    #[test]
    fn lockdown_to_confidentiality_is_refused_by_name() {
        let error = host("capability,bpf", Some("none integrity [confidentiality]\n")).unwrap_err();
        assert!(matches!(error, LoadError::Lockdown));
        assert!(host("capability,bpf", Some("none [integrity] confidentiality\n")).is_ok());
    }

    #[test]
    fn no_list_at_all_says_how_to_mount_it() {
        let error =
            check_host(Path::new("/nonexistent/lsm"), Path::new("/nonexistent/lockdown")).unwrap_err();
        assert!(error.to_string().contains("mount -t securityfs"), "{error}");
    }

    #[test]
    fn the_embedded_object_fits_this_binary() {
        check_object(&Object::embedded().unwrap()).unwrap();
    }
}
