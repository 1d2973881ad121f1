//! What the child puts on itself between its enrolment and its exec.

use super::Error;
use nix::sys::signal::Signal;
use ringfence_policy::Capabilities;
use ringfence_process::spawn;
use ringfence_process::wait::Signals;
use ringfence_sandbox::{caps, landlock, seccomp};
use std::path::PathBuf;

/// Landlock and seccomp, built but not in force.
#[derive(Debug, Default)]
pub struct Confinement {
    /// Landlock's ruleset.
    pub landlock: Option<landlock::Prepared>,
    /// The capabilities that stay; `None`: those that there are.
    capabilities: Option<Capabilities>,
    filters: Vec<seccomp::Filter>,
}

/// What could not be put in force. The command must not run.
#[derive(Debug, thiserror::Error)]
pub enum ConfineError {
    /// Landlock.
    #[error(transparent)]
    Landlock(#[from] landlock::Error),
    /// seccomp.
    #[error(transparent)]
    Seccomp(#[from] seccomp::Error),
    /// Capabilities, no_new_privs.
    #[error(transparent)]
    Caps(#[from] caps::Error),
    /// Signals or descriptors.
    #[error(transparent)]
    Spawn(#[from] spawn::Error),
    /// The signal mask.
    #[error(transparent)]
    Signals(#[from] ringfence_process::wait::Error),
}

impl Confinement {
    /// For a process with one thread: leaves it these capabilities.
    pub(crate) fn with_capabilities(capabilities: Capabilities) -> Self {
        Self { capabilities: Some(capabilities), ..Self::default() }
    }

    /// Adds filters; each call is judged by all, and the strictest answer holds.
    ///
    /// # Errors
    /// [`Error::Seccomp`]
    pub fn add_seccomp(&mut self, policies: &[seccomp::Policy]) -> Result<(), Error> {
        for policy in policies {
            self.filters.push(seccomp::Filter::compile(policy)?);
        }
        Ok(())
    }

    /// Granted paths that Landlock could not name.
    pub fn missing(&self) -> &[PathBuf] {
        self.landlock.as_ref().map_or(&[], |prepared| &prepared.missing)
    }

    /// Puts everything in force, for good: the filters last, of which a strict one might refuse the others' calls.
    ///
    /// # Errors
    /// [`ConfineError`]
    pub fn enforce(self) -> Result<(), ConfineError> {
        if let Some(capabilities) = self.capabilities {
            caps::limit(capabilities.bits())?;
        }
        if let Some(landlock) = self.landlock {
            landlock.enforce()?;
        }
        for filter in &self.filters {
            filter.load()?;
        }
        Ok(())
    }
}

/// What every command gets, in audit mode too: its own signals back, no descriptor but the standard three. That it gains no
/// privileges was seen to before it was enrolled.
///
/// # Errors
/// [`ConfineError`]
pub fn plain(signals: &Signals) -> Result<(), ConfineError> {
    // Rust ignores it, and an ignored signal would stay ignored in the command.
    spawn::default_action(Signal::SIGPIPE)?;
    signals.unblock()?;
    spawn::close_at_exec()?;
    Ok(())
}
