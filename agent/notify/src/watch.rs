//! From the list of calls that wait to the queues of those who are told, until somebody ends it.

use super::{
    desktop::Desktop,
    notice::Notice,
    queue::Queue,
    say,
    webhook::{BadAddress, Webhook},
};
use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, ppoll},
    sys::{
        signal::{SigSet, Signal},
        signalfd::{SfdFlags, SignalFd},
        time::TimeSpec,
    },
};
use ringfence_base::counted::counted;
use ringfence_wire::mcp::WaitingCall;
use std::{
    collections::BTreeSet,
    io::{self, PipeReader, Read as _, Write as _},
    os::fd::AsFd,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

/// Between two looks at the list.
const LOOK: Duration = Duration::from_millis(500);
/// The longest pause after looks that failed.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// How long what is being delivered may take when it is to end, and after which time that is said.
const PATIENCE: Duration = Duration::from_secs(15);
const SILENCE: Duration = Duration::from_secs(1);

/// Who is told.
#[derive(Debug, Default)]
pub struct Receivers {
    /// A webhook.
    pub webhook: Option<Webhook>,
    /// The desktop.
    pub desktop: Option<Desktop>,
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// By a signal; everything was delivered, or has failed.
    Whole,
    /// By a second one, or it took too long: so many notices were not delivered.
    Cut(usize),
}

/// A watch that has begun.
#[derive(Debug)]
pub struct Watch {
    queues: Vec<Arc<Queue>>,
    with_arguments: bool,
    signals: SignalFd,
    known: BTreeSet<String>,
}

/// The signals that end it.
fn ending() -> SigSet {
    SigSet::from_iter([Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP])
}

/// Takes the signals that end a watch; before any thread starts.
///
/// # Errors
/// The system's.
pub fn mask_signals() -> io::Result<()> {
    Ok(ending().thread_block()?)
}

impl Watch {
    /// Begins. [`mask_signals`] came before.
    ///
    /// # Errors
    /// There is no thread, or no descriptor.
    pub fn begin(receivers: Receivers, with_arguments: bool) -> Result<Self, BadAddress> {
        let Receivers { webhook, desktop } = receivers;
        let webhook = webhook.map(Webhook::start).transpose()?;
        let desktop = desktop.map(Desktop::start).transpose().map_err(BadAddress::Thread)?;
        let signals = SignalFd::with_flags(&ending(), SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK);
        let signals = signals.map_err(|errno| BadAddress::Thread(errno.into()))?;
        let queues = webhook.into_iter().chain(desktop).collect();
        Ok(Self { queues, with_arguments, signals, known: BTreeSet::new() })
    }

    /// Tells of calls as they begin to wait, until a signal; `list` asks for them, on a thread of its own: whoever it asks may take
    /// long to answer, and a signal does not wait for that.
    ///
    /// # Errors
    /// There is no thread, or no descriptor.
    pub fn run(
        mut self,
        mut list: impl FnMut() -> Result<Vec<WaitingCall>, String> + Send + 'static,
    ) -> io::Result<Ended> {
        let (mut answered, mut wakes) = io::pipe()?;
        let (asks, asked) = mpsc::channel::<()>();
        let (answers, answer) = mpsc::channel();
        thread::Builder::new().name("list".to_owned()).spawn(move || {
            while asked.recv().is_ok() {
                if answers.send(list()).is_err() || wakes.write_all(&[0]).is_err() {
                    return;
                }
            }
        })?;
        let (mut pause, mut last_error) = (LOOK, String::new());
        loop {
            let _ = asks.send(());
            if self.is_signalled_before(&answered) {
                return Ok(self.end());
            }
            let _ = answered.read(&mut [0])?;
            match answer.try_recv().map_err(io::Error::other)? {
                Ok(calls) => {
                    self.tell(calls);
                    (pause, last_error) = (LOOK, String::new());
                }
                Err(why) => {
                    if why != last_error {
                        say(&why);
                        last_error = why;
                    }
                    pause = (2 * pause).min(LONGEST_PAUSE);
                }
            }
            if self.is_signalled(pause) {
                return Ok(self.end());
            }
        }
    }

    fn tell(&mut self, calls: Vec<WaitingCall>) {
        let now: BTreeSet<String> = calls.iter().map(|call| call.id.clone()).collect();
        for call in calls.into_iter().filter(|call| !self.known.contains(&call.id)) {
            let notice = Arc::new(Notice::new(call, self.with_arguments));
            self.queues.iter().for_each(|queue| queue.offer(&notice));
        }
        self.known = now;
    }

    fn pending(&self) -> usize {
        self.queues.iter().map(|queue| queue.pending()).sum()
    }

    /// Waits for what is under way, and says so where that takes a while; a second signal ends that.
    fn end(&self) -> Ended {
        self.queues.iter().for_each(|queue| queue.close());
        let (begun, mut said) = (Instant::now(), false);
        loop {
            match self.pending() {
                0 => return Ended::Whole,
                pending if begun.elapsed() >= PATIENCE => return Ended::Cut(pending),
                pending if begun.elapsed() >= SILENCE && !said => {
                    said = true;
                    let notices = counted(pending as u64, "notice");
                    say(&format!("waits for {notices} to be delivered; Ctrl-C again ends it at once"));
                }
                _ => {}
            }
            if self.is_signalled(Duration::from_millis(20)) {
                return match self.pending() {
                    0 => Ended::Whole,
                    pending => Ended::Cut(pending),
                };
            }
        }
    }

    /// Whether a signal comes before an answer does.
    fn is_signalled_before(&self, answered: &PipeReader) -> bool {
        loop {
            let mut polled = [
                PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
                PollFd::new(answered.as_fd(), PollFlags::POLLIN),
            ];
            match ppoll(&mut polled, None, None) {
                Err(Errno::EINTR) => {}
                Err(_) => return true,
                Ok(_) if matches!(self.signals.read_signal(), Ok(Some(_))) => return true,
                Ok(_) if polled[1].any() == Some(true) => return false,
                Ok(_) => {}
            }
        }
    }

    /// Whether a signal came, or comes within that time.
    fn is_signalled(&self, wait: Duration) -> bool {
        let mut polled = [PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
        match ppoll(&mut polled, Some(TimeSpec::from_duration(wait)), None) {
            Ok(0) | Err(Errno::EINTR) => false,
            // A descriptor that cannot be asked is no reason to go on for ever.
            Err(_) => true,
            Ok(_) => matches!(self.signals.read_signal(), Ok(Some(_))),
        }
    }
}
