//! Workers of the service's that end: those that were told to, and those that were not, which are started again.

use super::{
    KILLED, PATIENCE, User,
    process::Event,
    running::{self, Running, WorkerEffect},
};
use crate::control::AgentState;
use ringfence_base::error::chain;
use ringfence_supervise::worker::{MOST_CRASHES, Restarts};
use std::time::{Duration, Instant};
use tokio::{
    sync::mpsc,
    time::{sleep_until, timeout_at},
};

/// How long it may take to stop before a word is said of what is waited for.
const SILENCE: Duration = Duration::from_secs(1);

/// What there is to do behind an event.
pub(super) enum Followup {
    Nothing,
    /// Another agent of that name may begin.
    Reload,
    /// This agent is to have its credentials anew.
    Renew(String),
}

impl User {
    /// What a worker said or did.
    pub(super) fn handle_event(&mut self, Event { agent: name, worker, what }: Event) -> Followup {
        let of = self.draining.get_mut(&name).and_then(|running| running.handle(worker, what.clone()));
        if let Some(WorkerEffect::Ended { .. }) = of {
            self.draining.remove(&name);
            tracing::info!("agent {name} has ended");
            return Followup::Reload;
        }
        let Some(running) = self.agents.get_mut(&name) else { return Followup::Nothing };
        let lived = running.lived();
        match running.handle(worker, what) {
            Some(WorkerEffect::Broken(why)) => self.broken(name, why),
            Some(WorkerEffect::Ended { could_not: Some(why), .. }) => {
                self.agents.remove(&name);
                self.broken(name, why);
            }
            Some(WorkerEffect::Ended { how, could_not: None }) => self.crashed(name, how, lived),
            Some(WorkerEffect::Renew) => return Followup::Renew(name),
            Some(WorkerEffect::Fine) | None => {}
        }
        Followup::Nothing
    }

    /// Reads an agent's credentials again, for calls that are under way as well: its provider refused one.
    pub(super) async fn renew(&mut self, name: &str) {
        let Some(running) = self.agents.get(name) else { return };
        let config = running.newest().clone();
        tracing::info!("agent {name}: its provider refused the key; the credentials are read again");
        let new = config.clone();
        let read = tokio::task::spawn_blocking(move || running::credentials(&new)).await;
        let read = read.map_err(|error| error.to_string()).and_then(|read| read.map_err(|e| chain(&e)));
        match (read, self.agents.get_mut(name)) {
            (Ok(credentials), Some(running)) => running.replace(config, credentials),
            (Err(error), _) => tracing::error!("agent {name}: {error}"),
            (Ok(_), None) => {}
        }
    }

    /// An agent's worker ended by itself.
    fn crashed(&mut self, name: String, how: String, lived: Duration) {
        let pause = self.restarts.entry(name.clone()).or_default().ended(lived);
        if let (Some(pause), Some(running)) = (pause, self.agents.get_mut(&name)) {
            let why = format!("{how}; it is started again in {pause:?}");
            tracing::error!("agent {name}: {why}");
            running.ended = Some(why);
            return;
        }
        let why = format!(
            "its worker ended unexpectedly {MOST_CRASHES} times in a row; SIGHUP or a change of a profile tries it again. At last {how}"
        );
        tracing::error!("agent {name}: {why}");
        // Who connects is to hear that nobody is there.
        self.agents.remove(&name);
        self.failed.insert(name, why);
    }

    /// When the next worker that ended is to be started again.
    pub(super) fn next_restart(&self) -> Option<Instant> {
        let waiting = self.agents.iter().filter(|(_, running)| running.state() == AgentState::Waiting);
        let pauses = waiting.map(|(name, _)| self.restarts.get(name).map(Restarts::wait).unwrap_or_default());
        pauses.min().map(|pause| Instant::now() + pause)
    }

    /// Starts those workers again whose time it is.
    pub(super) async fn restart(&mut self) {
        let is_due = |name: &String| self.restarts.get(name).is_none_or(|restarts| restarts.wait().is_zero());
        let waiting = self.agents.iter().filter(|(_, running)| running.state() == AgentState::Waiting);
        let due: Vec<String> = waiting.map(|(name, _)| name.clone()).filter(is_due).collect();
        for name in due {
            let Some(running) = self.agents.get(&name) else { continue };
            let config = running.config.clone();
            let read = tokio::task::spawn_blocking(move || running::credentials(&config)).await;
            let read = read.map_err(|error| error.to_string()).and_then(|read| read.map_err(|e| chain(&e)));
            let Some(running) = self.agents.get_mut(&name) else { continue };
            self.started += 1;
            let launched = read.and_then(|read| running.launch(self.started, read, self.events.clone()));
            if let Err(error) = launched {
                self.agents.remove(&name);
                self.broken(name, error);
            }
        }
    }

    pub(super) fn drain(&mut self, name: &str) {
        let Some(mut running) = self.agents.remove(name) else { return };
        if running.stop() {
            self.draining.insert(name.to_owned(), running);
        }
    }

    /// Lets all finish what they do, for a while, or until somebody says so `again`.
    pub(super) async fn stop_all(
        &mut self,
        mut incoming: mpsc::Receiver<Event>,
        again: impl Future<Output = ()>,
    ) {
        let names: Vec<String> = self.agents.keys().cloned().collect();
        names.iter().for_each(|name| self.drain(name));
        let (begun, mut is_told) = (tokio::time::Instant::now(), false);
        let mut again = std::pin::pin!(again);
        let mut hurries = false;
        for patience in [PATIENCE, KILLED] {
            let until = tokio::time::Instant::now() + patience;
            while !self.draining.is_empty() {
                // Those with nothing under way have ended by then.
                let word = begun + SILENCE;
                let event = tokio::select! {
                    event = timeout_at(until, incoming.recv()) => event,
                    () = &mut again, if !hurries => {
                        tracing::info!("stopping at once: what is under way is cut off");
                        hurries = true;
                        break;
                    }
                    () = sleep_until(word), if !is_told && !hurries => {
                        is_told = true;
                        let names: Vec<&str> = self.draining.keys().map(String::as_str).collect();
                        tracing::info!(
                            "waiting up to {} s for what is under way at {}; Ctrl-C again cuts it off",
                            PATIENCE.as_secs(),
                            names.join(", ")
                        );
                        continue;
                    }
                };
                let Ok(Some(event)) = event else { break };
                self.handle_event(event);
            }
            self.draining.values().for_each(Running::kill);
        }
    }
}
