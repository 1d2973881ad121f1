//! Who is at the other end of a connection, in the kernel's terms.

use super::waiting::Refused;
use crate::shared::lock;
use ringfence_base::{
    error::chain,
    precedence,
    quota::{Lanes, Owners},
};
use ringfence_process::peer::{self, Peer};
use ringfence_wire::{
    audit::{FromCore, PeerFacts, PeerQuestion},
    message::Reply,
    packets::Packets,
};
use std::{
    collections::HashMap,
    io,
    os::{fd::AsFd, unix::net::UnixStream},
    sync::{
        Arc, Mutex, MutexGuard,
        mpsc::{self, RecvTimeoutError, SyncSender},
    },
    thread,
    time::{Duration, Instant},
};

/// How long a question may take, the wait for the same user's other questions included.
const PATIENCE: Duration = Duration::from_secs(5);
/// How soon whoever waits for an answer sees that it need not wait any longer.
const SLICE: Duration = Duration::from_millis(250);

/// Where the facts about a peer come from. Where they cannot be had, nobody is believed.
#[derive(Debug)]
pub enum PeerResolver {
    /// /proc, which a user's own auditor sees. It does not see who is governed: without the core, nobody is.
    Proc,
    /// The core: the daemon's auditor is shut off from /proc and from the kernel's tags.
    Core(Arc<CoreChannel>),
    /// Nobody: the core gave no socket to ask.
    Nobody,
}

impl PeerResolver {
    /// What the kernel says of whoever made a connection; `uid`: its user, of whom one question is asked at a time, for as
    /// long as `still` says that it has a place here.
    ///
    /// # Errors
    /// [`Refused::Unknown`].
    pub fn facts(
        &self,
        uid: u32,
        connection: &UnixStream,
        still: &dyn Fn() -> bool,
    ) -> Result<PeerFacts, Refused> {
        match self {
            Self::Proc => Peer::of(connection)
                .and_then(|peer| peer::lineage(&peer))
                .map(|lineage| PeerFacts { lineage, governed: false })
                .map_err(|error| Refused::Unknown(chain(&error))),
            Self::Core(channel) => channel.ask((uid, still), connection, PATIENCE),
            Self::Nobody => Err(Refused::Unknown("the daemon cannot be asked".to_owned())),
        }
    }
}

/// The channel to the core. Each question has a number, and an answer that comes when nobody waits for it any more is dropped.
#[derive(Debug)]
pub struct CoreChannel {
    packets: Packets,
    lanes: Lanes,
    questions: Mutex<Questions>,
}

#[derive(Debug, Default)]
struct Questions {
    last: u64,
    waiting: HashMap<u64, SyncSender<Reply<PeerFacts>>>,
    closed: bool,
}

impl CoreChannel {
    /// A channel whose other end is the core's, with a thread that receives the answers; subordinate ids from the core go to
    /// `owners`. `lost` is called once nothing can come any more: until there is another channel, nobody is believed.
    ///
    /// # Errors
    /// Where no thread can be started.
    pub fn start(
        packets: Packets,
        owners: Owners,
        lost: impl FnOnce() + Send + 'static,
    ) -> io::Result<Arc<Self>> {
        let lanes = Lanes::new(owners.clone());
        let channel = Arc::new(Self { packets, lanes, questions: Mutex::default() });
        let receiver = Arc::clone(&channel);
        thread::Builder::new().name("peers".into()).stack_size(512 << 10).spawn(move || {
            // Whoever asked about a peer waits for this thread, and not for long.
            precedence::first();
            receiver.receive_answers(&owners);
            lost();
        })?;
        Ok(channel)
    }

    fn receive_answers(&self, owners: &Owners) {
        loop {
            match self.packets.receive::<FromCore>() {
                Ok((FromCore::Answer { number, reply }, _)) => {
                    // Late: whoever asked has given up.
                    if let Some(waits) = self.questions().waiting.remove(&number) {
                        let _ = waits.try_send(reply);
                    }
                }
                Ok((FromCore::Owners { ranges }, _)) => owners.replace(ranges),
                Err(error) if !Packets::is_over(&error) => {
                    tracing::warn!("the daemon's answers about peers: {}", chain(&error));
                }
                Err(error) => {
                    tracing::error!("the daemon says nothing about peers any more: {}", chain(&error));
                    let mut questions = self.questions();
                    questions.closed = true;
                    questions.waiting.clear();
                    return;
                }
            }
        }
    }

    fn ask(
        &self,
        (uid, still): (u32, &dyn Fn() -> bool),
        connection: &UnixStream,
        patience: Duration,
    ) -> Result<PeerFacts, Refused> {
        let unknown = |why: String| Refused::Unknown(why);
        let deadline = Instant::now() + patience;
        let Some(_lane) = self.lanes.enter(uid, deadline, still) else {
            return Err(unknown(format!("other questions of user {uid} are not answered yet; try again")));
        };
        let (sender, answer) = mpsc::sync_channel(1);
        let number = {
            let mut questions = self.questions();
            if questions.closed {
                return Err(unknown("the daemon cannot be asked just now; try again".to_owned()));
            }
            questions.last += 1;
            let number = questions.last;
            questions.waiting.insert(number, sender);
            number
        };
        let sent = self.packets.send(&PeerQuestion { number }, Some(connection.as_fd()), Some(deadline));
        let reply = match sent {
            Ok(()) => loop {
                let left = deadline.saturating_duration_since(Instant::now());
                match answer.recv_timeout(left.min(SLICE)) {
                    Ok(reply) => break Ok(reply),
                    Err(RecvTimeoutError::Timeout) if left > SLICE && still() => {}
                    Err(_) => break Err(unknown("the daemon does not answer; try again".to_owned())),
                }
            },
            Err(error) => Err(unknown(format!("the daemon cannot be asked: {}", chain(&error)))),
        };
        self.questions().waiting.remove(&number);
        reply?.into_result().map_err(|failure| unknown(failure.error))
    }

    fn questions(&self) -> MutexGuard<'_, Questions> {
        lock(&self.questions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> (Arc<CoreChannel>, Packets, UnixStream, UnixStream) {
        let (core, ours) = Packets::pair().expect("a pair");
        let (here, there) = UnixStream::pair().expect("a pair");
        (CoreChannel::start(ours, Owners::default(), || ()).expect("a thread"), core, here, there)
    }

    fn question(core: &Packets) -> u64 {
        let (PeerQuestion { number }, connection) = core.receive().expect("a question");
        assert!(connection.is_some(), "the connection that it is about");
        number
    }

    fn answer(core: &Packets, number: u64, pid: u32) {
        let facts = PeerFacts { lineage: vec![pid], governed: false };
        core.send(&FromCore::Answer { number, reply: Reply::Ok(facts) }, None, None).expect("sent");
    }

    #[test]
    fn a_question_without_an_answer_costs_the_next_nothing() {
        let (line, core, here, _there) = line();
        assert!(matches!(
            line.ask((5, &|| true), &here, Duration::from_millis(20)),
            Err(Refused::Unknown(_))
        ));
        let late = question(&core);
        let asks = thread::spawn({
            let line = Arc::clone(&line);
            move || line.ask((5, &|| true), &here, Duration::from_secs(60))
        });
        let next = question(&core);
        assert_ne!(late, next);
        answer(&core, late, 1);
        answer(&core, next, 2);
        assert_eq!(asks.join().expect("no panic").expect("facts").lineage, [2], "not the late one's");
        assert!(line.questions().waiting.is_empty());
    }

    #[test]
    fn one_user_s_questions_are_not_before_another_s() {
        let (line, core, here, _there) = line();
        let here = Arc::new(here);
        let ask = |uid: u32| {
            let (line, here) = (Arc::clone(&line), Arc::clone(&here));
            thread::spawn(move || {
                line.ask((uid, &|| true), &here, Duration::from_secs(60)).expect("facts").lineage
            })
        };
        let many: Vec<_> = (0..40).map(|_| ask(5)).collect();
        let first = question(&core);
        let other = ask(6);
        // Of the forty no second one is asked before the first is answered.
        let second = question(&core);
        answer(&core, second, 66);
        assert_eq!(other.join().expect("no panic"), [66]);
        answer(&core, first, 55);
        for _ in 1..40 {
            answer(&core, question(&core), 55);
        }
        assert!(many.into_iter().all(|asked| asked.join().expect("no panic") == [55]));
    }

    #[test]
    fn the_end_of_the_line_is_told_once_and_nobody_waits() {
        for fails in [false, true] {
            let (core, ours) = Packets::pair().expect("a pair");
            let (here, _there) = UnixStream::pair().expect("a pair");
            let (lost, is_lost) = mpsc::channel();
            let line =
                CoreChannel::start(ours, Owners::default(), move || lost.send(()).expect("somebody listens"))
                    .expect("a thread");
            // What is no message is not the end of it.
            core.send(&"nonsense", None, None).expect("sent");
            let asks = thread::spawn({
                let line = Arc::clone(&line);
                move || line.ask((5, &|| true), &here, Duration::from_secs(600))
            });
            let number = question(&core);
            assert!(is_lost.try_recv().is_err());
            if !fails {
                answer(&core, number, 3);
                assert_eq!(asks.join().expect("no panic").expect("facts").lineage, [3], "the control");
                drop(core);
            } else {
                drop(core);
                let refused = asks.join().expect("no panic").expect_err("nobody answers");
                assert!(matches!(refused, Refused::Unknown(_)), "{refused}");
            }
            is_lost.recv_timeout(Duration::from_secs(60)).expect("told");
            assert!(is_lost.recv().is_err(), "once");
        }
    }

    #[test]
    fn who_cannot_be_asked_about_is_refused() {
        let (line, core, here, _there) = line();
        let uid = nix::unistd::geteuid().as_raw();
        let facts = PeerResolver::Proc.facts(uid, &here, &|| true).expect("this very process");
        assert_eq!(facts.lineage[0], std::process::id());
        assert!(PeerResolver::Nobody.facts(uid, &here, &|| true).is_err());
        drop(core);
        assert!(PeerResolver::Core(line).facts(uid, &here, &|| true).is_err(), "the core is gone: no wait");
    }
}
