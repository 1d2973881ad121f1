//! A run's line to the core: questions go before reports, which wait here and not in the socket.
//!
//! A tool waits for its tie, and nobody for a report. The core reads a line at its own pace, so what is once written is in front of
//! every question: reports are written more slowly than it reads. A question about a call may come before what is reported of
//! that: the core looks at processes, and what is reported of a tie waits behind its call.

use super::{
    link::{Question, Waits},
    lost::LostReports,
    report_of,
};
use ringfence_wire::agent::{LINE_BURST, LINE_PER_SECOND, ToCore};
use std::{sync::Arc, time::Duration};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep},
};

/// Questions that wait to be written.
const QUESTIONS: usize = 64;
/// Reports at once, and in a second from then on. The rest of what the core reads is for questions.
const BURST: u32 = LINE_BURST / 4 * 3;
const PER_SECOND: u32 = LINE_PER_SECOND / 4 * 3;

/// Questions in a row, while reports wait or are to be announced: a container may ask without end.
const IN_A_ROW: u32 = 8;

/// Where what is to be said waits.
pub(super) struct Line {
    pub(super) questions: mpsc::Sender<Question>,
    pub(super) reports: mpsc::Sender<Question>,
    pub(super) lost: Arc<LostReports>,
}

/// The other end.
pub(super) struct Waiting {
    questions: mpsc::Receiver<Question>,
    reports: Reports,
    /// Questions since a report had its turn.
    asked: u32,
}

impl Line {
    /// One with room for so many reports.
    pub(super) fn new(room: usize) -> (Self, Waiting) {
        let (questions, asked) = mpsc::channel(QUESTIONS);
        let (reports, queue) = mpsc::channel(room);
        let lost = Arc::<LostReports>::default();
        let of_line =
            Reports { queue, lost: Arc::clone(&lost), pace: Pace { full: Instant::now() }, said: None };
        (Self { questions, reports, lost }, Waiting { questions: asked, reports: of_line, asked: 0 })
    }
}

impl Waits for Waiting {
    async fn next(&mut self) -> Option<Question> {
        if self.asked >= IN_A_ROW {
            self.asked = 0;
            tokio::select! {
                biased;
                report = self.reports.next() => return report,
                Some(question) = self.questions.recv() => return Some(question),
            }
        }
        tokio::select! {
            biased;
            // Where nobody can ask any more, reports still wait.
            Some(question) = self.questions.recv() => {
                self.asked += 1;
                Some(question)
            }
            report = self.reports.next() => {
                self.asked = 0;
                report
            }
        }
    }
}

/// Reports that wait.
struct Reports {
    queue: mpsc::Receiver<Question>,
    lost: Arc<LostReports>,
    pace: Pace,
    /// The earliest that waiting reports may be about, as the core was last told, ns since boot; `None`: it knows of none.
    said: Option<u64>,
}

impl Reports {
    /// The next; nothing is taken out before it is that one's turn.
    async fn next(&mut self) -> Option<Question> {
        loop {
            let wait = self.pace.wait(Instant::now());
            // Said before it is waited: whoever waits may be ended.
            if !wait.is_zero() {
                if let Some(since) = self.lost.behind_since(|| !self.queue.is_empty())
                    && self.said.is_none_or(|said| since < said)
                {
                    return Some(self.say_behind(Some(since)));
                }
                sleep(wait).await;
                continue;
            }
            // Nothing that a late tie comes behind is put there any more.
            let lost = self.lost.next(|| self.queue.is_empty());
            if let Some(what) = lost.as_ref().and_then(report_of) {
                self.pace.step(Instant::now());
                return Some(Question::told(what));
            }
            if self.queue.is_empty() {
                if self.said.is_some() {
                    return Some(self.say_behind(None));
                }
                // Whatever was said before is written by now.
                self.lost.all_written();
            }
            tokio::select! {
                biased;
                report = self.queue.recv() => {
                    self.pace.step(Instant::now());
                    return report;
                }
                () = self.lost.changed() => {}
            }
        }
    }
}

impl Reports {
    /// Tells the core that reports wait, or that none do any more.
    fn say_behind(&mut self, since: Option<u64>) -> Question {
        self.said = since;
        self.pace.step(Instant::now());
        Question::told(ToCore::Behind { since })
    }
}

/// How fast reports are written.
#[derive(Debug)]
struct Pace {
    /// When [`BURST`] of them may be written at once again.
    full: Instant,
}

impl Pace {
    /// How long until one may be.
    fn wait(&self, now: Instant) -> Duration {
        self.full.saturating_duration_since(now).saturating_sub(Self::EACH * (BURST - 1))
    }

    /// One is.
    fn step(&mut self, now: Instant) {
        self.full = self.full.max(now) + Self::EACH;
    }

    const EACH: Duration = Duration::from_nanos(1_000_000_000 / PER_SECOND as u64);
}

#[cfg(test)]
mod tests;
