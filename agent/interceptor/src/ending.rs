//! The end of a session: how long a server may take once its client is gone or somebody pressed Ctrl-C, what is said about that, and
//! when it is over. No processes here.

use ringfence_base::counted::counted;
use std::time::{Duration, Instant};

/// How long a server may take to end after its stdin closed, and again after SIGTERM.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);
/// An end that takes longer than this is explained.
pub(crate) const SILENCE: Duration = Duration::from_secs(1);
/// Interrupts closer together are one key press: a terminal sends it to all of its foreground, and a client may pass it on.
const ONE_PRESS: Duration = Duration::from_millis(200);
/// How long a press counts as the first of two. Many a client takes Ctrl-C for the end of a prompt, and the server goes on: the next one,
/// for another prompt, is a first one again.
const FORGOTTEN: Duration = Duration::from_secs(5);

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Say what is waited for.
    Say,
    /// Ask the server's group to end.
    Terminate,
    /// End all of it.
    Kill,
}

/// How far an end is.
#[derive(Debug, Default)]
pub(crate) struct Ending {
    /// Whether somebody reads what is said.
    is_heard: bool,
    /// Since when the client is done.
    done: Option<Instant>,
    /// Since when somebody wants it to end by Ctrl-C.
    interrupted: Option<Instant>,
    is_terminated: bool,
    is_said: bool,
    is_cut: bool,
}

impl Ending {
    /// Of a session; `is_heard`: whether somebody reads what is said.
    pub(crate) fn new(is_heard: bool) -> Self {
        Self { is_heard, ..Self::default() }
    }

    /// The client sends nothing more.
    pub(crate) fn client_done(&mut self, now: Instant) {
        self.done.get_or_insert(now);
    }

    /// Ctrl-C. A second one, while it is waited for the first to end the server, ends all at once; the first is the server's, but for
    /// one after the client is done and it was said what is waited for.
    pub(crate) fn interrupted(&mut self, now: Instant) {
        self.forget(now);
        self.is_cut |= match self.interrupted {
            Some(before) => now.saturating_duration_since(before) >= ONE_PRESS,
            None => self.is_done() && self.is_said,
        };
        self.interrupted.get_or_insert(now);
    }

    /// Forgets a press that ended nothing.
    fn forget(&mut self, now: Instant) {
        let is_over = |before: Instant| now.saturating_duration_since(before) >= FORGOTTEN;
        if self.done.is_none() && !self.is_cut && self.interrupted.is_some_and(is_over) {
            (self.interrupted, self.is_said) = (None, false);
        }
    }

    /// Whether the client is done: what is to end anyway is waited for all the time.
    pub(crate) const fn is_done(&self) -> bool {
        self.done.is_some()
    }

    /// Whether it is looked at often.
    pub(crate) const fn has_begun(&self) -> bool {
        self.done.is_some() || self.interrupted.is_some()
    }

    /// Whether somebody ended it by Ctrl-C.
    pub(crate) const fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// What is to be done next; each step once, but for the last.
    pub(crate) fn next(&mut self, now: Instant) -> Option<Step> {
        self.forget(now);
        let since = |begun: Option<Instant>| begun.map(|begun| now.saturating_duration_since(begun));
        let waited = since(self.done);
        if self.is_cut || waited.is_some_and(|waited| waited > 2 * PATIENCE) {
            return Some(Step::Kill);
        }
        if !self.is_terminated && waited.is_some_and(|waited| waited > PATIENCE) {
            self.is_terminated = true;
            return Some(Step::Terminate);
        }
        let longest = waited.max(since(self.interrupted));
        if self.is_heard && !self.is_said && longest.is_some_and(|waited| waited > SILENCE) {
            self.is_said = true;
            return Some(Step::Say);
        }
        None
    }
}

/// What is waited for, in a sentence; `is_done`: as [`Ending::is_done`] says.
pub(crate) fn waits_for(server: i32, (in_flight, held): (u64, u64), is_done: bool) -> String {
    let some = |many: u64, one: &str, what: &str| match many {
        0 => String::new(),
        many => format!(", with {} {what}", counted(many, one)),
    };
    format!(
        "waiting for the server (process {server}) to end{}{}; Ctrl-C {}ends it at once",
        // Whatever the server was asked and did not answer: not all of it is a tool call.
        some(in_flight, "request", "in flight"),
        some(held, "call", if held == 1 { "that waits for approval" } else { "that wait for approval" }),
        if is_done { "" } else { "again, within five seconds of the first, " }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(begun: Instant, millis: u64) -> Instant {
        begun + Duration::from_millis(millis)
    }

    #[test]
    fn a_server_whose_client_is_gone_has_its_time_and_the_rest_is_said_once() {
        let begun = Instant::now();
        let mut ending = Ending::new(true);
        assert!(!ending.has_begun());
        assert_eq!(ending.next(at(begun, 60_000)), None, "nobody wants it to end");
        ending.client_done(begun);
        ending.client_done(at(begun, 5_000));
        assert!(ending.has_begun());
        assert_eq!(ending.next(at(begun, 900)), None);
        assert_eq!(ending.next(at(begun, 1_100)), Some(Step::Say));
        assert_eq!(ending.next(at(begun, 2_000)), None);
        assert_eq!(ending.next(at(begun, 3_100)), Some(Step::Terminate));
        assert_eq!(ending.next(at(begun, 5_900)), None);
        for millis in [6_100, 6_200] {
            assert_eq!(ending.next(at(begun, millis)), Some(Step::Kill));
        }
        assert!(!ending.is_cut());
    }

    #[test]
    fn the_first_ctrl_c_is_the_server_s_and_the_second_ends_all() {
        let begun = Instant::now();
        let mut ending = Ending::new(true);
        ending.interrupted(begun);
        // The same key, by way of the client.
        ending.interrupted(at(begun, 50));
        assert_eq!(ending.next(at(begun, 900)), None);
        assert_eq!(ending.next(at(begun, 1_100)), Some(Step::Say));
        ending.interrupted(at(begun, 4_900));
        assert!(ending.is_cut());
        assert_eq!(ending.next(at(begun, 600_000)), Some(Step::Kill));
    }

    #[test]
    fn a_ctrl_c_that_ended_nothing_is_forgotten() {
        let begun = Instant::now();
        let mut ending = Ending::new(true);
        for press in 0..3 {
            let pressed = press * 60_000;
            ending.interrupted(at(begun, pressed));
            assert!(ending.has_begun());
            assert_eq!(ending.next(at(begun, pressed + 1_100)), Some(Step::Say));
            assert_eq!(ending.next(at(begun, pressed + 4_900)), None);
            assert!(ending.has_begun());
            assert_eq!(ending.next(at(begun, pressed + 5_100)), None);
            assert!(!ending.has_begun() && !ending.is_cut(), "a server may go on");
        }
        // Nobody looked in between.
        ending.interrupted(at(begun, 200_000));
        ending.interrupted(at(begun, 206_000));
        assert!(!ending.is_cut());
        ending.client_done(at(begun, 206_100));
        ending.interrupted(at(begun, 211_900));
        assert!(ending.is_cut(), "what is to end anyway is waited for all the time");
    }

    #[test]
    fn once_the_client_is_done_and_that_was_said_one_ctrl_c_ends_all() {
        let begun = Instant::now();
        let of = |is_heard: bool, looks: &[u64], presses: &[u64]| {
            let mut ending = Ending::new(is_heard);
            ending.client_done(begun);
            for look in looks {
                assert_eq!(ending.next(at(begun, *look)), is_heard.then_some(Step::Say));
            }
            presses.iter().for_each(|press| ending.interrupted(at(begun, *press)));
            ending.is_cut()
        };
        assert!(of(true, &[1_100], &[1_100]));
        assert!(!of(false, &[1_100], &[2_000]), "nobody was told: the first is the server's");
        assert!(of(false, &[1_100], &[2_000, 2_200]));
        assert!(!of(true, &[], &[900]), "the control: nothing was said yet");
        assert!(of(true, &[], &[900, 1_100]));
        // The same key, by way of the client, and what is said comes in between.
        let mut ending = Ending::new(true);
        ending.client_done(begun);
        ending.interrupted(at(begun, 1_000));
        assert_eq!(ending.next(at(begun, 1_050)), Some(Step::Say));
        ending.interrupted(at(begun, 1_100));
        assert!(!ending.is_cut());
    }

    #[test]
    fn what_is_waited_for_is_counted() {
        let text = "waiting for the server (process 7) to end; Ctrl-C";
        assert_eq!(waits_for(7, (0, 0), true), format!("{text} ends it at once"));
        let again = "again, within five seconds of the first, ends it at once";
        assert_eq!(waits_for(7, (0, 0), false), format!("{text} {again}"));
        let text = waits_for(7, (1, 2), true);
        assert!(text.contains("with 1 request in flight, with 2 calls that wait for approval;"), "{text}");
    }
}
