//! Ending one call from outside, and the one moment at which it can no longer be.

use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::Waker,
};

/// Cancels one call. Every clone is the same.
#[derive(Clone, Default)]
pub struct Cancel(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    stage: Stage,
    waker: Option<Waker>,
    hooks: Vec<Box<dyn FnOnce() + Send>>,
}

#[derive(Debug, Default)]
enum Stage {
    #[default]
    Open,
    Cancelled(String),
    Ended,
}

impl fmt::Debug for Cancel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Cancel").field(&self.state().stage).finish()
    }
}

impl Cancel {
    /// Cancels the call, unless it has ended or was cancelled before. It ends soon, as [`ToolError::Cancelled`]: what waits
    /// is dropped, and a tool that blocks gets the callback that it registered with [`on_cancel`](Self::on_cancel).
    ///
    /// [`ToolError::Cancelled`]: super::ToolError::Cancelled
    pub fn cancel(&self, reason: &str) {
        let mut state = self.state();
        if !matches!(state.stage, Stage::Open) {
            return;
        }
        state.stage = Stage::Cancelled(reason.to_owned());
        let (waker, hooks) = (state.waker.take(), std::mem::take(&mut state.hooks));
        // A hook may ask this.
        drop(state);
        hooks.into_iter().for_each(|hook| hook());
        waker.into_iter().for_each(Waker::wake);
    }

    /// Whether the call was cancelled.
    pub fn is_cancelled(&self) -> bool {
        matches!(self.state().stage, Stage::Cancelled(_))
    }

    /// Calls `hook` when the call is cancelled: at once, if it was already; never, once it has ended. It runs in the thread
    /// that cancels.
    pub fn on_cancel(&self, hook: impl FnOnce() + Send + 'static) {
        let mut state = self.state();
        match state.stage {
            Stage::Open => state.hooks.push(Box::new(hook)),
            Stage::Ended => {}
            Stage::Cancelled(_) => {
                drop(state);
                hook();
            }
        }
    }

    /// Whether it was cancelled; else `waker` is woken when it is.
    pub(super) fn poll_cancelled(&self, waker: &Waker) -> bool {
        let mut state = self.state();
        match state.stage {
            Stage::Cancelled(_) => return true,
            Stage::Ended => {}
            Stage::Open if state.waker.as_ref().is_some_and(|known| known.will_wake(waker)) => {}
            Stage::Open => state.waker = Some(waker.clone()),
        }
        false
    }

    /// The call has ended: the reason for which it was cancelled, if it was. From here on it cannot be.
    pub(super) fn end(&self) -> Option<String> {
        let mut state = self.state();
        let (waker, hooks) = (state.waker.take(), std::mem::take(&mut state.hooks));
        let stage = std::mem::replace(&mut state.stage, Stage::Ended);
        drop(state);
        drop((waker, hooks));
        match stage {
            Stage::Cancelled(reason) => Some(reason),
            Stage::Open | Stage::Ended => None,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
