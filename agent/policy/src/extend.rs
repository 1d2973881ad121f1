//! The chain of `extends`, from a file to one [`Profile`].

use super::{
    Denials, KernelOptions, Match, Profile, Rules,
    dirs::is_name,
    home,
    parse::{Layer, host_name, parse},
    problem::{At, LoadErrors, Problem, Wrong},
    rule::{Extendable, Listed},
    source::{Provenance, read},
};
use ringfence_grant::{CountBound, Grant, NetEntry, Scope};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// Most files in a chain.
const MAX_CHAIN: usize = 16;
/// Most rules of a profile, all axes and denies together: what the kernel's table can surely hold.
pub(crate) const MAX_RULES: usize = 16_384;

/// Stands for the file of a profile that is a grant and nothing else. No profile can have this name.
pub(crate) const OF_GRANT: &str = "(grant)";

/// The profile of a grant alone: enforced, with everything else as it is by default. Host names are the tools' to hold
/// and not the kernel's; they are left out, which denies them.
pub(crate) fn of_grant(grant: &Grant) -> Result<Profile, LoadErrors> {
    let file = Path::new(OF_GRANT);
    let net = match &grant.net {
        Scope::All => Scope::All,
        Scope::Only(entries) => {
            Scope::only(entries.iter().filter(|entry| !matches!(entry, NetEntry::Host { .. })).cloned())
        }
    };
    let table = BTreeMap::from([("grant", Grant { net, ..grant.clone() })]);
    let wrong = |e: toml::ser::Error| Problem::new(At::file(file), Wrong::Syntax(e.to_string()));
    let text = toml::to_string(&table).map_err(wrong)?;
    let parsed = parse(file, &text);
    let (lists, to_nothing) = lists(&parsed.layer);
    let count = lists.count();
    let mut problems = parsed.problems;
    problems.extend(to_nothing);
    if count > MAX_RULES {
        problems.push(Problem::new(At::file(file), Wrong::TooManyRules(count, MAX_RULES)));
    }
    if !problems.is_empty() {
        return Err(LoadErrors(problems));
    }
    Ok(profile(file, parsed.layer, lists, Vec::new(), Vec::new(), parsed.refused))
}

/// Loads a file and those it extends.
pub(crate) fn load(file: &Path, installed: &Path) -> Result<Profile, LoadErrors> {
    let mut chain = Chain { installed: installed.to_owned(), ..Chain::default() };
    chain.follow(file);
    let Chain { files, layers, mut problems, refused: host_names, mut notices, .. } = chain;
    let merged = layers.into_iter().reduce(over).unwrap_or_default();
    let (lists, to_nothing) = lists(&merged);
    problems.extend(to_nothing);
    problems.extend(missing_axes(&merged));
    let named = [&merged.ioctl, &merged.socket_options].into_iter().flatten().map(Vec::len).sum::<usize>();
    let count = lists.count() + named;
    if count > MAX_RULES {
        problems.push(Problem::new(At::file(file), Wrong::TooManyRules(count, MAX_RULES)));
    }
    if !problems.is_empty() {
        problems.extend(host_names);
        problems.sort_by(|a, b| (&a.at.file, a.at.line).cmp(&(&b.at.file, b.at.line)));
        return Err(LoadErrors(problems));
    }
    if merged.grant.is_none() {
        notices.push(format!("{}: no [grant]: nothing is granted but the base", file.display()));
    }
    // Only what holds in the end: a child may have replaced its parent's list.
    let net = lists.rules.net.listed().iter();
    let refused = net.chain(&lists.denials.net).filter_map(host_name).collect();
    let profile = profile(file, merged, lists, files, notices, refused);
    Ok(profile.at_home(home::of_this_user().as_deref()))
}

#[derive(Default)]
struct Chain {
    /// Where the host's profiles are.
    installed: PathBuf,
    notices: Vec<String>,
    files: Vec<Provenance>,
    layers: Vec<Layer>,
    problems: Vec<Problem>,
    refused: Vec<Problem>,
}

impl Chain {
    fn follow(&mut self, first: &Path) {
        let mut next = Some((first.to_owned(), None));
        let mut seen: Vec<PathBuf> = Vec::new();
        while let Some((file, from)) = next.take() {
            // Two names of one file are one file: a loop through a symlink is a loop.
            let real = file.canonicalize().unwrap_or_else(|_| file.clone());
            if seen.contains(&real) {
                let at = from.unwrap_or_else(|| At::file(&file));
                seen.push(real);
                return self.problems.push(Problem::new(at, Wrong::Loop { chain: seen }));
            }
            seen.push(real);
            if seen.len() > MAX_CHAIN {
                let at = from.unwrap_or_else(|| At::file(&file));
                return self.problems.push(Problem::new(at, Wrong::TooLongAChain(MAX_CHAIN)));
            }
            let (text, provenance) = match read(&file) {
                Ok(read) => read,
                Err(LoadErrors(why)) => {
                    self.problems.extend(from.map(|at| Problem::new(at, Wrong::Parent)));
                    return self.problems.extend(why);
                }
            };
            let parsed = parse(&file, &text);
            next = parsed.layer.extends.clone().and_then(|(name, at)| self.parent(&file, &name, at));
            self.files.push(provenance);
            self.layers.push(parsed.layer);
            self.problems.extend(parsed.problems);
            self.refused.extend(parsed.refused);
        }
    }

    /// The file that `extends` names: an absolute path, or a name: an installed profile's, else one beside the file. The
    /// installed one wins, as it does for `--profile`: nobody who writes beside the file puts another in its place.
    fn parent(&mut self, file: &Path, name: &str, at: At) -> Option<(PathBuf, Option<At>)> {
        let parent = match name {
            _ if name.starts_with('/') => PathBuf::from(name),
            _ if is_name(name) => {
                let beside = file.with_file_name(format!("{name}.toml"));
                let installed = self.installed.join(format!("{name}.toml"));
                let is_there = |path: &Path| path.symlink_metadata().is_ok();
                // A profile of the same name that is made out of the installed one is not the one it extends.
                match is_there(&installed) && installed != file {
                    true if beside != installed && beside != file && is_there(&beside) => {
                        self.notices.push(format!(
                            "{}:{}: extends: {name:?} is the installed {}, not {}; to extend that, give its absolute path",
                            at.file.display(),
                            at.line,
                            installed.display(),
                            beside.display()
                        ));
                        installed
                    }
                    true => installed,
                    false => beside,
                }
            }
            _ => {
                self.problems.push(Problem::new(at, Wrong::Name(name.to_owned())));
                return None;
            }
        };
        Some((parent, Some(at)))
    }
}

/// One file's keys over those of the file it extends.
fn over(child: Layer, parent: Layer) -> Layer {
    Layer {
        extends: child.extends,
        description: child.description.or(parent.description),
        mode: child.mode.or(parent.mode),
        image: child.image.or(parent.image),
        label: child.label.or(parent.label),
        name: child.name.or(parent.name),
        grant: child.grant.or(parent.grant),
        named: &child.named | &parent.named,
        fs_read: Listed::over(child.fs_read, parent.fs_read),
        fs_write: Listed::over(child.fs_write, parent.fs_write),
        exec: Listed::over(child.exec, parent.exec),
        net: Listed::over(child.net, parent.net),
        max_calls: child.max_calls.or(parent.max_calls),
        valid_for_generation: child.valid_for_generation.or(parent.valid_for_generation),
        deny_fs_read: Listed::over(child.deny_fs_read, parent.deny_fs_read),
        deny_fs_write: Listed::over(child.deny_fs_write, parent.deny_fs_write),
        deny_exec: Listed::over(child.deny_exec, parent.deny_exec),
        deny_net: Listed::over(child.deny_net, parent.deny_net),
        seccomp: child.seccomp.or(parent.seccomp),
        landlock: child.landlock.or(parent.landlock),
        audit: child.audit.or(parent.audit),
        base: child.base.or(parent.base),
        accept_partial: child.accept_partial.or(parent.accept_partial),
        capabilities: child.capabilities.or(parent.capabilities),
        setuid_files: child.setuid_files.or(parent.setuid_files),
        shared_memory: child.shared_memory.or(parent.shared_memory),
        debug_between_calls: child.debug_between_calls.or(parent.debug_between_calls),
        ioctl: child.ioctl.or(parent.ioctl),
        socket_options: child.socket_options.or(parent.socket_options),
        llm: child.llm.or(parent.llm),
        mcp: child.mcp.or(parent.mcp),
        limits: child.limits.or(parent.limits),
        log_reader: child.log_reader.or(parent.log_reader),
        socket_owner: child.socket_owner.or(parent.socket_owner),
        http: child.http.or(parent.http),
        http_port: child.http_port.or(parent.http_port),
    }
}

fn missing_axes(layer: &Layer) -> Vec<Problem> {
    let Some(grant) = &layer.grant else { return Vec::new() };
    let axes = [
        ("fs_read", "fs_read = { only = [] }"),
        ("fs_write", "fs_write = { only = [] }"),
        ("exec", "exec = { only = [] }"),
        ("net", "net = { only = [] }"),
        ("max_calls", "max_calls = { at_most = 0 }"),
        ("valid_for_generation", "valid_for_generation = { only = [] }"),
    ];
    let missing = axes.into_iter().filter(|(name, _)| !layer.named.contains(*name));
    let at = |name| At { key: format!("grant.{name}"), ..grant.clone() };
    missing.map(|(name, example)| Problem::new(at(name), Wrong::MissingAxis { example })).collect()
}

/// The lists of a profile, as they are in the end.
#[derive(Default)]
struct Lists {
    rules: Rules,
    denials: Denials,
}

impl Lists {
    fn count(&self) -> usize {
        let (rules, deny) = (&self.rules, &self.denials);
        let axes = [&rules.fs_read, &rules.fs_write, &rules.exec, &rules.net];
        let denies = [&deny.fs_read, &deny.fs_write, &deny.exec, &deny.net];
        let allowed: usize = axes.into_iter().map(|axis| axis.listed().len()).sum();
        allowed + denies.into_iter().map(Vec::len).sum::<usize>()
    }
}

/// The lists of a layer, and each that is added to where there is nothing.
fn lists(layer: &Layer) -> (Lists, Vec<Problem>) {
    let mut problems = Vec::new();
    let rules = Rules {
        fs_read: whole(&layer.fs_read, &mut problems),
        fs_write: whole(&layer.fs_write, &mut problems),
        exec: whole(&layer.exec, &mut problems),
        net: whole(&layer.net, &mut problems),
    };
    let denials = Denials {
        fs_read: whole(&layer.deny_fs_read, &mut problems),
        fs_write: whole(&layer.deny_fs_write, &mut problems),
        exec: whole(&layer.deny_exec, &mut problems),
        net: whole(&layer.deny_net, &mut problems),
    };
    (Lists { rules, denials }, problems)
}

fn whole<T: Extendable + Clone + Default>(list: &Option<Listed<T>>, problems: &mut Vec<Problem>) -> T {
    let done = list.clone().map_or_else(|| Ok(T::default()), Listed::whole);
    done.unwrap_or_else(|at| {
        problems.push(Problem::new(at, Wrong::NothingToAddTo));
        T::default()
    })
}

fn profile(
    file: &Path,
    layer: Layer,
    lists: Lists,
    sources: Vec<Provenance>,
    notices: Vec<String>,
    refused: Vec<Problem>,
) -> Profile {
    let name = file.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    Profile {
        name,
        file: file.to_owned(),
        description: layer.description,
        mode: layer.mode.unwrap_or_default(),
        matches: Match {
            image: layer.image.unwrap_or_default(),
            label: layer.label.unwrap_or_default(),
            name: layer.name.unwrap_or_default(),
        },
        rules: lists.rules,
        denials: lists.denials,
        max_calls: layer.max_calls.unwrap_or(CountBound::AtMost(0)),
        valid_for_generation: layer.valid_for_generation.unwrap_or_else(Scope::none),
        kernel: KernelOptions {
            seccomp: layer.seccomp.unwrap_or_default(),
            landlock: layer.landlock.unwrap_or_default(),
            audit: layer.audit.unwrap_or_default(),
            base: layer.base.unwrap_or_default(),
            accept_partial: layer.accept_partial.unwrap_or_default(),
            capabilities: layer.capabilities.unwrap_or_default(),
            setuid_files: layer.setuid_files.unwrap_or_default(),
            shared_memory: layer.shared_memory.unwrap_or_default(),
            debug_between_calls: layer.debug_between_calls.unwrap_or_default(),
        },
        ioctl: layer.ioctl.unwrap_or_default(),
        socket_options: layer.socket_options.unwrap_or_default(),
        sources,
        llm: layer.llm.unwrap_or_default(),
        mcp: layer.mcp.unwrap_or_default(),
        limits: layer.limits.unwrap_or_default(),
        log_reader: layer.log_reader,
        socket_owner: layer.socket_owner,
        http: layer.http,
        http_port: layer.http_port,
        has_grant: layer.grant.is_some(),
        notices,
        refused,
    }
}
