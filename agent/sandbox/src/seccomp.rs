//! seccomp: which system calls a container may make at all. Policies are data (`profiles/seccomp/`, or the user's OCI
//! file); libseccomp compiles them.
//!
//! Where a call is refused here no event is recorded, so the shipped lists refuse only what no grant could allow. A
//! call of a foreign architecture (i386's `int 0x80`, x32) ends the process: its numbers mean something else.

mod oci;
mod policy;
mod table;

pub use oci::Conditions;
pub use policy::{Policy, When};

use libseccomp::{
    ScmpAction, ScmpArgCompare, ScmpCompareOp, ScmpFilterContext, ScmpSyscall, error::SeccompError,
};
use policy::{Action, Arg, Rule, Test};
use std::{io, path::PathBuf};
use table::{Named, named};

/// Conditions that one rule may expand to: 16 values of one argument times 16 of another.
const MAX_ALTERNATIVES: usize = 256;

/// Why a filter cannot be read, built or loaded.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("cannot read the seccomp profile {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file is not an OCI seccomp profile.
    #[error("{} is not a seccomp profile in the OCI (Docker) JSON format", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        #[source]
        source: serde_json::Error,
    },
    /// A file asks for what this launcher cannot do.
    #[error("{}: {what}", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// What it asks for, and what to do.
        what: String,
    },
    /// A file is larger than any seccomp profile.
    #[error("{} is larger than {limit} bytes; a seccomp profile is not", path.display())]
    Large {
        /// The file.
        path: PathBuf,
        /// The limit.
        limit: u64,
    },
    /// A shipped file is wrong, which its tests should have found.
    #[error("the built-in seccomp list {name} cannot be read")]
    Shipped {
        /// Which.
        name: String,
        /// Where and why.
        #[source]
        source: Box<toml::de::Error>,
    },
    /// A shipped rule has an action that is none.
    #[error("the built-in seccomp list {name} has an unknown action {action:?}")]
    Action {
        /// Which list.
        name: String,
        /// The action.
        action: String,
    },
    /// A deny list names a call that nobody knows: to skip it would weaken the list in silence.
    #[error(
        "seccomp list {name}: system call {call:?} is unknown here, and a list that denies cannot leave it out; \
         correct the name or remove it"
    )]
    UnknownCall {
        /// Which list.
        name: String,
        /// The call.
        call: String,
    },
    /// A rule expands to too many comparisons.
    #[error(
        "seccomp list {name}: a rule for {call} has more than {MAX_ALTERNATIVES} combinations of arguments"
    )]
    TooMany {
        /// Which list.
        name: String,
        /// The call.
        call: String,
    },
    /// libseccomp refused something.
    #[error("cannot build the seccomp filter {name}: {what}")]
    Build {
        /// Which list.
        name: String,
        /// The step.
        what: String,
        /// Why.
        #[source]
        source: SeccompError,
    },
    /// The kernel refused the filter.
    #[error("the kernel did not take the seccomp filter {name} (is CONFIG_SECCOMP_FILTER on?)")]
    Load {
        /// Which list.
        name: String,
        /// Why.
        #[source]
        source: SeccompError,
    },
}

/// A compiled filter, not yet in force.
#[derive(Debug)]
pub struct Filter {
    name: String,
    context: ScmpFilterContext,
}

impl Filter {
    /// Compiles a policy.
    ///
    /// # Errors
    /// [`Error`], never after a rule was left out in silence.
    pub fn compile(policy: &Policy) -> Result<Filter, Error> {
        let name = &policy.name;
        let build = |what: &str| {
            let (name, what) = (name.clone(), what.to_owned());
            move |source| Error::Build { name, what, source }
        };
        let mut context = ScmpFilterContext::new(policy.default.into()).map_err(build("start"))?;
        context.set_act_badarch(ScmpAction::KillProcess).map_err(build("foreign architectures"))?;
        context.set_ctl_nnp(true).map_err(build("no_new_privs"))?;
        if policy.log {
            context.set_ctl_log(true).map_err(build("log"))?;
        }
        // A binary tree over the numbers instead of a chain: an allow list is long.
        context.set_ctl_optimize(2).map_err(build("optimise"))?;
        for rule in &policy.rules {
            // A rule that repeats the default says nothing, and libseccomp refuses it.
            if rule.action == policy.default {
                continue;
            }
            for call in &rule.syscalls {
                match named(call) {
                    Named::Here(number) => add(&mut context, name, call, number, rule)?,
                    Named::Elsewhere => {}
                    Named::Unknown if policy.default.permits() && !rule.action.permits() => {
                        return Err(Error::UnknownCall { name: name.clone(), call: call.clone() });
                    }
                    // Left out of a list that denies by default, it is denied: safe, and said in the notices.
                    Named::Unknown => {}
                }
            }
        }
        Ok(Filter { name: policy.name.clone(), context })
    }

    /// Puts the filter in force for the calling thread and all it starts, for good. Sets `no_new_privs`.
    ///
    /// # Errors
    /// [`Error::Load`]; the caller must not go on.
    pub fn load(&self) -> Result<(), Error> {
        self.context.load().map_err(|source| Error::Load { name: self.name.clone(), source })
    }
}

/// Names in a policy that nobody knows, of rules that [`Filter::compile`] leaves out.
fn unknown_calls(rules: &[Rule]) -> Vec<String> {
    let names = rules.iter().flat_map(|rule| &rule.syscalls);
    names.filter(|name| named(name) == Named::Unknown).cloned().collect()
}

fn add(
    context: &mut ScmpFilterContext,
    name: &str,
    call: &str,
    number: ScmpSyscall,
    rule: &Rule,
) -> Result<(), Error> {
    let alternatives = alternatives(&rule.args)
        .ok_or_else(|| Error::TooMany { name: name.to_owned(), call: call.to_owned() })?;
    for conditions in alternatives {
        context.add_rule_conditional(rule.action.into(), number, &conditions).map_err(|source| {
            Error::Build { name: name.to_owned(), what: format!("the rule for {call}"), source }
        })?;
    }
    Ok(())
}

/// Every way in which all conditions hold, each a list that libseccomp can express (one comparison per argument).
/// `None`: too many.
fn alternatives(args: &[Arg]) -> Option<Vec<Vec<ScmpArgCompare>>> {
    let mut all: Vec<Vec<ScmpArgCompare>> = vec![Vec::new()];
    for arg in args {
        let ways = ways(arg);
        if all.len() * ways.len() > MAX_ALTERNATIVES {
            return None;
        }
        all = all
            .iter()
            .flat_map(|before| ways.iter().map(move |way| before.iter().copied().chain([*way]).collect()))
            .collect();
    }
    Some(all)
}

fn ways(arg: &Arg) -> Vec<ScmpArgCompare> {
    let compare = |op, datum| ScmpArgCompare::new(arg.index, op, datum);
    let masked =
        |mask: u32, value: u32| compare(ScmpCompareOp::MaskedEqual(u64::from(mask)), u64::from(value));
    match &arg.test {
        Test::OneOf(values) => values.iter().map(|value| masked(u32::MAX, *value)).collect(),
        Test::AnyBit(bits) => set_bits(*bits).map(|bit| masked(bit, bit)).collect(),
        Test::Masked { mask, values } => values.iter().map(|value| masked(*mask, *value)).collect(),
        // It differs from `value` in some other bit; one comparison for each.
        Test::BitUnless { bit, value } => {
            let bit = 1 << bit;
            set_bits(!bit).map(|other| masked(bit | other, bit | (!value & other))).collect()
        }
        Test::Above(value) => vec![compare(ScmpCompareOp::Greater, *value)],
        Test::Oci(op, datum) => vec![compare(*op, *datum)],
    }
}

fn set_bits(bits: u32) -> impl Iterator<Item = u32> {
    (0..u32::BITS).map(|bit| 1 << bit).filter(move |bit| bits & bit != 0)
}

impl From<Action> for ScmpAction {
    fn from(action: Action) -> Self {
        match action {
            Action::Allow => ScmpAction::Allow,
            Action::Log => ScmpAction::Log,
            Action::Errno(errno) => ScmpAction::Errno(errno),
            Action::Trap => ScmpAction::Trap,
            Action::KillThread => ScmpAction::KillThread,
            Action::KillProcess => ScmpAction::KillProcess,
        }
    }
}

#[cfg(test)]
mod tests;
