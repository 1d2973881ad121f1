//! The agents of this host: for each profile with an `[llm.*]` one worker, under a user id of its own, kept running.
//!
//! | file | what |
//! |---|---|
//! | `plan` | root's profiles to what is to run |
//! | `sockets` | an agent's user id, its log's directory, its sockets |
//! | `store` | sockets that the service manager keeps while no daemon runs |
//! | `supervisor` | one agent's thread: starts its worker, starts it again, gives it up for a while |
//! | `requests` | what a worker asks: who a peer is, a tag for a process |
//!
//! A worker's process itself, from start to end, is [`ringfence_supervise::worker`]; a user's own service uses it too.
//!
//! A worker parses what agents and providers say. The core parses none of that: a worker's questions are a descriptor or
//! two each, its reports pass through as raw JSON, its counts are numbers.

mod plan;
mod requests;
mod sockets;
mod store;
mod supervisor;

use super::{enforcer::Enforcer, server::Server};
use plan::{Broken, Plan};
pub use plan::{left_out, loopback};
use ringfence_base::paths::Paths;
use ringfence_credentials::{self as secret, Secret, Source};
use ringfence_policy::{Dirs, agents::registry::AgentConfig};
use ringfence_wire::status::{AgentProcess, AgentState};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};
pub use store::Store;
use supervisor::WorkerSupervisor;

/// How long workers may take to finish what is under way when the daemon ends.
const STOP_TIMEOUT: Duration = Duration::from_secs(22);
/// An end that takes longer than this is explained; how often it is looked at meanwhile; how long workers that were killed may take.
const SILENCE: Duration = Duration::from_secs(1);
const LOOK: Duration = Duration::from_millis(50);
const KILLED: Duration = Duration::from_secs(5);

/// All agents.
#[derive(Debug, Default)]
pub struct Agents {
    store: Arc<Store>,
    running: Mutex<Running>,
}

#[derive(Debug, Default)]
struct Running {
    by_name: BTreeMap<String, Arc<WorkerSupervisor>>,
    /// Agents whose profile is gone, while their workers finish what they do.
    ending: BTreeMap<String, Arc<WorkerSupervisor>>,
    /// Agents that have no worker, because their profile is wrong: what is.
    failed: BTreeMap<String, String>,
    /// What is wrong with the registry.
    registry: Option<String>,
    /// What an earlier daemon left of agents that are no more is gone.
    cleared: bool,
    /// No worker is started any more.
    closed: bool,
}

impl Agents {
    /// None yet; their sockets may be in the store.
    pub fn new(store: Arc<Store>) -> Self {
        Self { store, ..Self::default() }
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What runs, for `ringfence status`.
    pub fn status(&self) -> Vec<AgentProcess> {
        let running = self.running();
        let mut all: Vec<AgentProcess> =
            running.by_name.values().map(|supervisor| supervisor.status()).collect();
        let none = |name: &String, error: &String| AgentProcess {
            name: name.clone(),
            state: AgentState::Failed,
            pid: None,
            uid: None,
            socket: String::new(),
            model: None,
            restarts: 0,
            last_exit: None,
            error: Some(error.clone()),
            counts: Default::default(),
        };
        all.extend(running.failed.iter().map(|(name, error)| none(name, error)));
        if let Some(error) = &running.registry {
            all.push(none(&"registry.toml".to_owned(), error));
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// Makes what runs as the files say. A broken file changes nothing that runs.
    pub fn reload<E: Enforcer>(&self, server: &Arc<Server<E>>, paths: &Paths, dirs: &Dirs) {
        let plans = plan::read(paths, dirs);
        let mut running = self.running();
        if running.closed {
            return;
        }
        let plans = match plans {
            Ok(plans) => plans,
            Err(error) => {
                tracing::error!("the agents stay as they are: {error}");
                running.registry = Some(error);
                return;
            }
        };
        running.registry = None;
        running.failed.clear();
        running.ending.retain(|_, supervisor| !supervisor.is_over());
        let gone: Vec<_> = running.by_name.extract_if(.., |name, _| !plans.contains_key(name)).collect();
        for (name, supervisor) in gone {
            tracing::info!("agent {name}: its profile is gone; its worker ends when it is idle");
            supervisor.stop();
            running.ending.insert(name, supervisor);
        }
        for (name, plan) in plans {
            match (running.by_name.get(&name), plan) {
                (Some(supervisor), Ok(plan)) => supervisor.replace(plan),
                (Some(supervisor), Err(Broken { text, .. })) => {
                    tracing::error!("agent {name}: the profile that was in force stays so: {text}");
                    supervisor.set_error(text);
                }
                // Containers' profiles are told of where containers are.
                (None, Err(Broken { is_agent: false, .. })) => {}
                (None, Ok(plan)) => {
                    let before = running.ending.remove(&name);
                    match start(server, (paths, &self.store), plan, before) {
                        Ok(supervisor) => drop(running.by_name.insert(name, supervisor)),
                        Err(error) => drop(running.failed.insert(name, error)),
                    }
                }
                (None, Err(Broken { text, .. })) => {
                    tracing::error!("agent {name} cannot be started: {text}");
                    running.failed.insert(name, text);
                }
            }
        }
        if !running.cleared {
            running.cleared = true;
            self.store.retain(|name| running.by_name.contains_key(name));
            sockets::remove_stale(paths, |name| running.by_name.contains_key(name));
        }
    }

    /// Stops one agent, until [`Self::resume_halted`]: its worker finishes what it does, and its sockets go.
    ///
    /// # Errors
    /// There is none of that name; those that there are.
    pub fn halt(&self, name: &str) -> Result<(), String> {
        let running = self.running();
        let Some(supervisor) = running.by_name.get(name) else {
            let known: Vec<&str> = running.by_name.keys().map(String::as_str).collect();
            return Err(format!("the daemon serves no agent {name:?}; it serves: {}", known.join(", ")));
        };
        supervisor.halt();
        Ok(())
    }

    /// Those that were stopped by hand start with the next reload.
    pub(crate) fn resume_halted(&self) {
        self.running().by_name.values().for_each(|supervisor| supervisor.resume());
    }

    /// Ends all workers, and waits until they have. `leave`: their sockets are for the next daemon, where they can be kept.
    /// What takes longer than a moment is logged; once `hurries` says so, which is asked meanwhile, what is under way is cut off.
    pub fn stop(&self, leave: bool, hurries: impl Fn() -> bool) {
        let mut running = self.running();
        running.closed = true;
        let mut supervisors: Vec<_> = std::mem::take(&mut running.by_name).into_values().collect();
        supervisors
            .iter()
            .for_each(|supervisor| if leave { supervisor.stop_leaving_sockets() } else { supervisor.stop() });
        // They were told before.
        supervisors.extend(std::mem::take(&mut running.ending).into_values());
        drop(running);
        wait_until_over(&supervisors, hurries);
    }
}

fn wait_until_over(supervisors: &[Arc<WorkerSupervisor>], hurries: impl Fn() -> bool) {
    let (begun, mut is_said, mut is_cut) = (Instant::now(), false, false);
    let mut until = begun + STOP_TIMEOUT;
    loop {
        let left: Vec<&Arc<WorkerSupervisor>> =
            supervisors.iter().filter(|supervisor| !supervisor.is_over()).collect();
        let Some(first) = left.first().filter(|_| Instant::now() < until) else { return };
        if !is_said && begun.elapsed() >= SILENCE {
            is_said = true;
            let names: Vec<&str> = left.iter().map(|supervisor| supervisor.name.as_str()).collect();
            tracing::info!(
                "waiting up to {} s for what is under way at {}; a second signal cuts it off",
                STOP_TIMEOUT.as_secs(),
                names.join(", ")
            );
        }
        if !is_cut && hurries() {
            (is_cut, is_said) = (true, true);
            tracing::info!("stopping at once: what is under way is cut off");
            left.iter().for_each(|supervisor| supervisor.kill());
            until = Instant::now() + KILLED;
        }
        first.wait_until_over(until.min(Instant::now() + LOOK));
    }
}

/// Reads the credentials that the daemon would hand to an agent's worker, and forgets them. Gives the names of those that
/// systemd has for the daemon's unit alone: whether they are there is not known here.
///
/// # Errors
/// The first that cannot be had.
pub fn check(config: &AgentConfig) -> Result<Vec<String>, secret::Error> {
    let plan = Plan::new(config.clone());
    let mut unknown = Vec::new();
    for (_, source) in plan.credentials() {
        match source {
            Source::Credential(name) => unknown.push(name.clone()),
            source => drop(source.open().and_then(Secret::from_descriptor)?),
        }
    }
    Ok(unknown)
}

/// `before`: the agent of that name whose profile went and came back. Its sockets and its log are still its own.
fn start<E: Enforcer>(
    server: &Arc<Server<E>>,
    (paths, store): (&Paths, &Arc<Store>),
    plan: Plan,
    before: Option<Arc<WorkerSupervisor>>,
) -> Result<Arc<WorkerSupervisor>, String> {
    let supervisor = Arc::new(WorkerSupervisor::new(paths, plan, Arc::clone(store)));
    let (server, of_thread) = (Arc::clone(server), Arc::clone(&supervisor));
    thread::Builder::new()
        .name("agent".into())
        .spawn(move || {
            if let Some(before) = before {
                before.wait_until_over(Instant::now() + STOP_TIMEOUT);
            }
            of_thread.run(&server);
        })
        .map_err(|error| format!("the daemon cannot start a thread: {error}"))?;
    Ok(supervisor)
}
