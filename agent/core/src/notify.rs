//! What the service manager is told, if there is one: sd_notify(3).

use sd_notify::{NotifyState, notify, watchdog_enabled};
use std::time::{Duration, Instant};

/// Speaks to the service manager named by `NOTIFY_SOCKET`, or to nobody.
#[derive(Debug)]
pub(crate) struct Notifier {
    /// How often it wants to hear that the daemon lives.
    watchdog: Option<Duration>,
    last: Instant,
    /// It did not answer once: not worth a line in the log each time.
    deaf: bool,
}

impl Notifier {
    /// From the environment that the service manager made.
    pub(crate) fn from_env() -> Self {
        Self { watchdog: watchdog_enabled(), last: Instant::now(), deaf: false }
    }

    /// The daemon serves.
    pub(crate) fn ready(&mut self) {
        self.tell(&[NotifyState::Ready]);
    }

    /// Profiles are being read again.
    pub(crate) fn reloading(&mut self) {
        match NotifyState::monotonic_usec_now() {
            Ok(now) => self.tell(&[NotifyState::Reloading, now]),
            Err(error) => tracing::warn!("cannot read the clock for the service manager: {error}"),
        }
    }

    /// The daemon ends.
    pub(crate) fn stopping(&mut self) {
        self.tell(&[NotifyState::Stopping]);
    }

    /// The main loop goes round. Told twice as often as the manager wants to hear it.
    pub(crate) fn alive(&mut self) {
        if let Some(every) = self.watchdog
            && self.last.elapsed() >= every / 2
        {
            self.last = Instant::now();
            self.tell(&[NotifyState::Watchdog]);
        }
    }

    fn tell(&mut self, state: &[NotifyState<'_>]) {
        match notify(state) {
            Ok(()) => self.deaf = false,
            Err(error) if !self.deaf => {
                self.deaf = true;
                tracing::warn!("cannot speak to the service manager: {error}");
            }
            Err(_) => {}
        }
    }
}
