//! The chain of `extends`, from a file to one [`Profile`].

use super::{
    AxisRules, Denials, Match, Profile, Rules, built_in, credentials,
    dirs::is_name,
    home,
    keys::parse,
    names,
    problem::{At, LoadErrors, Problem, Wrong},
    rule::{Extendable, Listed},
    sections::Located,
    sets::Sets,
    source::{Provenance, read},
    tables::{DenyTable, GrantTable, MatchTable, ProfileTable},
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
    let parsed = parse(file, &text, |keys| ProfileTable::read(keys, |_| ProfileTable::default()));
    Chain { problems: parsed.problems, ..Chain::default() }.profile(file, parsed.table)
}

/// Loads a file and those it extends.
pub(crate) fn load(file: &Path, installed: &Path) -> Result<Profile, LoadErrors> {
    let mut chain = Chain { installed: installed.to_owned(), ..Chain::default() };
    let table = chain.read(file, None);
    let profile = chain.profile(file, table)?;
    Ok(profile.at_home(home::of_this_user().as_deref()))
}

#[derive(Default)]
struct Chain {
    /// Where the host's profiles are.
    installed: PathBuf,
    /// The files that were read, links resolved.
    seen: Vec<PathBuf>,
    notices: Vec<String>,
    files: Vec<Provenance>,
    problems: Vec<Problem>,
}

impl Chain {
    /// Reads a file's keys over those that it inherits. `from`: where another file extends it.
    fn read(&mut self, file: &Path, from: Option<At>) -> ProfileTable {
        let at = || from.clone().unwrap_or_else(|| At::file(file));
        // Two names of one file are one file: a loop through a symlink is a loop.
        let real = match built_in::has(file) {
            true => file.to_owned(),
            false => file.canonicalize().unwrap_or_else(|_| file.to_owned()),
        };
        let is_loop = self.seen.contains(&real);
        self.seen.push(real);
        if is_loop || self.seen.len() > MAX_CHAIN {
            let chain = self.seen.clone();
            let what = if is_loop { Wrong::Loop { chain } } else { Wrong::TooLongAChain(MAX_CHAIN) };
            self.problems.push(Problem::new(at(), what));
            return ProfileTable::default();
        }
        let text = match built_in::text(file) {
            Some(text) => text.to_owned(),
            None => match read(file) {
                Ok((text, provenance)) => {
                    self.files.push(provenance);
                    text
                }
                Err(LoadErrors(why)) => {
                    self.problems.extend(from.map(|at| Problem::new(at, Wrong::Parent)));
                    self.problems.extend(why);
                    return ProfileTable::default();
                }
            },
        };
        let parsed = parse(file, &text, |keys| {
            ProfileTable::read(keys, |extends| match self.parent(file, extends) {
                Some(parent) => self.read(&parent, Some(extends.at.clone())),
                None => ProfileTable::default(),
            })
        });
        self.problems.extend(parsed.problems);
        parsed.table
    }

    /// The file that `extends` names: an absolute path, or a name: an installed profile's, else one in the binary, else one beside
    /// the file. The installed one wins, as it does for `--profile`, and both win over one beside: nobody who writes beside the
    /// file puts another in their place.
    fn parent(&mut self, file: &Path, extends: &Located<String>) -> Option<PathBuf> {
        let Located { value: name, at } = extends;
        Some(match name.as_str() {
            _ if name.starts_with('/') => PathBuf::from(name),
            _ if is_name(name) => {
                // One in the binary is made of others there: a host's own `agent` is none of them.
                if built_in::has(file)
                    && let Some(parent) = built_in::file(name)
                {
                    return Some(parent);
                }
                let beside = file.with_file_name(format!("{name}.toml"));
                let installed = self.installed.join(format!("{name}.toml"));
                let is_there = |path: &Path| path.symlink_metadata().is_ok();
                // A profile of the same name that is made out of another one is not the one it extends.
                let (is_installed, is_beside) = (
                    is_there(&installed) && installed != file,
                    is_there(&beside) && beside != file && !built_in::has(file),
                );
                let first = match is_installed {
                    true => Some((installed, "installed")),
                    false => built_in::base(name).map(|file| (file, "shipped")),
                };
                match first {
                    Some((first, what)) => {
                        if is_beside && beside != first {
                            self.notices.push(format!(
                                "{}:{}: extends: {name:?} is the {what} {}, not {}; to extend that, give its absolute path",
                                at.file.display(),
                                at.line,
                                first.display(),
                                beside.display()
                            ));
                        }
                        first
                    }
                    None => beside,
                }
            }
            _ => {
                self.problems.push(Problem::new(at.clone(), Wrong::Name(name.clone())));
                return None;
            }
        })
    }

    /// The profile that the keys come to, if nothing is wrong with it.
    fn profile(self, file: &Path, table: ProfileTable) -> Result<Profile, LoadErrors> {
        let Self { installed, mut files, mut problems, mut notices, .. } = self;
        let ProfileTable {
            extends: _,
            description,
            mode,
            matches: MatchTable { image, label, name },
            grant,
            deny,
            net: options,
            kernel,
            llm,
            mcp,
            limits,
            log_reader,
            socket_owner,
            http,
            http_port,
            kit,
        } = table;
        problems.extend(missing_axes(&grant));
        let GrantTable { at: grant, named: _, fs_read, fs_write, exec, net, max_calls, valid_for_generation } =
            grant;
        let mut sets = Sets::new(installed);
        let rules = Rules {
            fs_read: whole(fs_read, &mut problems),
            fs_write: whole(fs_write, &mut problems),
            exec: whole(exec, &mut problems),
            net: match whole(net, &mut problems) {
                AxisRules::Only(rules) => AxisRules::Only(sets.expand(rules)),
                all @ AxisRules::All(_) => all,
            },
        };
        let DenyTable { fs_read, fs_write, exec, net } = deny;
        let denials = Denials {
            fs_read: whole(fs_read, &mut problems),
            fs_write: whole(fs_write, &mut problems),
            exec: whole(exec, &mut problems),
            net: sets.expand(whole(net, &mut problems)),
        };
        problems.append(&mut sets.problems);
        files.append(&mut sets.files);
        let (kernel, ioctl, socket_options) = kernel.finish();
        let kit = kit.finish(&mut problems);
        let (net_options, tables) = options.finish();
        let credentials = credentials::finish(tables, &rules.net, net_options, &mut problems);
        let count = count(&rules, &denials) + ioctl.len() + socket_options.len();
        if count > MAX_RULES {
            problems.push(Problem::new(At::file(file), Wrong::TooManyRules(count, MAX_RULES)));
        }
        problems.extend(names::too_many(&rules, &denials));
        // Only what holds in the end: a child may have replaced its parent's list.
        let unheld: Vec<Problem> = match &rules.net {
            AxisRules::All(_) => denials.net.iter().filter_map(names::unheld).collect(),
            AxisRules::Only(_) => Vec::new(),
        };
        if !problems.is_empty() {
            problems.extend(unheld);
            problems.sort_by(|a, b| (&a.at.file, a.at.line).cmp(&(&b.at.file, b.at.line)));
            return Err(LoadErrors(problems));
        }
        if grant.is_none() {
            notices.push(format!("{}: no [grant]: nothing is granted but the base", file.display()));
        }
        Ok(Profile {
            name: file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default(),
            file: file.to_owned(),
            description,
            mode: mode.unwrap_or_default(),
            matches: Match {
                image: image.unwrap_or_default(),
                label: label.unwrap_or_default(),
                name: name.unwrap_or_default(),
            },
            rules,
            denials,
            max_calls: max_calls.unwrap_or(CountBound::AtMost(0)),
            valid_for_generation: valid_for_generation.unwrap_or_else(Scope::none),
            net_options,
            credentials,
            token_home: home::of_this_user(),
            kernel,
            ioctl,
            socket_options,
            sources: files,
            llm: llm.unwrap_or_default(),
            mcp: mcp.unwrap_or_default(),
            limits: limits.unwrap_or_default(),
            log_reader,
            socket_owner,
            http,
            http_port,
            kit,
            has_grant: grant.is_some(),
            notices,
            refused: unheld,
        })
    }
}

fn missing_axes(grant: &GrantTable) -> Vec<Problem> {
    let Some(place) = &grant.at else { return Vec::new() };
    let axes = [
        ("fs_read", "fs_read = { only = [] }"),
        ("fs_write", "fs_write = { only = [] }"),
        ("exec", "exec = { only = [] }"),
        ("net", "net = { only = [] }"),
        ("max_calls", "max_calls = { at_most = 0 }"),
        ("valid_for_generation", "valid_for_generation = { only = [] }"),
    ];
    let missing = axes.into_iter().filter(|(name, _)| !grant.named.contains(*name));
    let at = |name| At { key: format!("grant.{name}"), ..place.clone() };
    missing.map(|(name, example)| Problem::new(at(name), Wrong::MissingAxis { example })).collect()
}

/// How many rules there are, all axes and denies together.
fn count(rules: &Rules, denials: &Denials) -> usize {
    let Rules { fs_read, fs_write, exec, net } = rules;
    let allowed: usize = [fs_read, fs_write, exec, net].into_iter().map(|axis| axis.listed().len()).sum();
    let Denials { fs_read, fs_write, exec, net } = denials;
    allowed + [fs_read, fs_write, exec, net].into_iter().map(Vec::len).sum::<usize>()
}

/// A list as it is in the end. One that is added to nothing is a problem.
fn whole<T: Extendable + Default>(list: Option<Listed<T>>, problems: &mut Vec<Problem>) -> T {
    let whole = list.map_or_else(|| Ok(T::default()), Listed::whole);
    whole.unwrap_or_else(|at| {
        problems.push(Problem::new(at, Wrong::NothingToAddTo));
        T::default()
    })
}
