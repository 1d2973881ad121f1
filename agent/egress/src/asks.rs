//! Questions for a person: connections to names that are neither granted nor denied wait here for an answer.
//!
//! One question is for one name and port, however many connections wait for it. How many there are is bounded, and how fast new
//! ones come: whoever makes up names does not fill a person's screen. What was answered is known for a while, so that a client that
//! tries again is answered the same.

use crate::{records::sentence, refusal::Refusal, worker::Policy};
use ringfence_wire::{
    egress::EgressCause,
    egress_asks::{ASKS_AT_ONCE, EgressAsk, EgressDecision, MOST_QUESTIONS},
};
use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, HashMap, VecDeque},
    rc::Rc,
    time::{Duration, Instant},
};
use tokio::{
    io::Interest,
    net::TcpStream,
    sync::Notify,
    time::{sleep, timeout_at},
};

/// Connections that may wait at once, for all questions. Each holds what its client said first.
const MOST_HELD: usize = 64;
/// Questions that are asked at once, and in a second from then on.
const BURST: f64 = MOST_QUESTIONS as f64;
const PER_SECOND: f64 = 0.25;
/// How long an approval is not asked for again that stands: when it is revoked, it answers no longer than that.
const APPROVED_FOR: Duration = Duration::from_secs(10);
/// How long nobody is asked again who said no.
const DENIED_FOR: Duration = Duration::from_secs(60);
/// Answers that are known at once.
const MOST_KNOWN: usize = 256;
/// What waits to be said; more is not said, and the auditor finds out by itself when time is up.
const MOST_TO_SAY: usize = 256;
/// How often it is looked whether a client is gone that has said more than it was asked for.
const LOOK: Duration = Duration::from_secs(1);

/// A name and a port.
type Place = (String, u16);

/// See the module.
pub(crate) struct Questions {
    state: RefCell<State>,
    more: Notify,
}

struct State {
    /// The number of the last.
    last: u64,
    /// By number: those that nobody has answered.
    open: BTreeMap<u64, Rc<Question>>,
    known: HashMap<Place, Known>,
    held: usize,
    tokens: f64,
    filled: Instant,
    to_say: VecDeque<EgressAsk>,
}

struct Question {
    number: u64,
    place: Place,
    until: Instant,
    /// Connections that wait.
    waiting: Cell<usize>,
    answer: RefCell<Option<Answer>>,
    answered: Notify,
}

/// An answer that counts for a while. One that stands is asked for again then, as often as that is.
struct Known {
    answer: Answer,
    until: Instant,
}

/// What came of a question: the connection goes on, or why it does not.
type Answer = Result<Approval, Refusal>;

/// Why a connection goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Approval {
    /// Who let it; `None`: the profile grants it by now.
    pub(crate) by: Option<String>,
}

/// The refusal of what is not granted, and was not approved.
fn refused((name, port): &Place, why: &str) -> Refusal {
    let reason = format!("no rule of the profile grants {name} at port {port}, and {why}");
    Refusal::new(EgressCause::NotGranted, &reason)
}

impl Questions {
    pub(crate) fn new(now: Instant) -> Self {
        let state = State {
            last: 0,
            open: BTreeMap::new(),
            known: HashMap::new(),
            held: 0,
            tokens: BURST,
            filled: now,
            to_say: VecDeque::new(),
        };
        Self { state: RefCell::new(state), more: Notify::new() }
    }

    /// Waits for an answer about a name and a port, for as long as the client is there.
    ///
    /// # Errors
    /// Why it does not go on.
    pub(crate) async fn ask(
        &self,
        (name, port): (&str, u16),
        patience: Duration,
        client: &TcpStream,
    ) -> Result<Approval, Refusal> {
        let place = (name.to_owned(), port);
        tokio::select! {
            answer = self.answer(&place, patience) => answer,
            () = is_gone(client) => Err(refused(&place, "its client gave up before anybody approved it")),
        }
    }

    async fn answer(&self, place: &Place, patience: Duration) -> Answer {
        let question = match self.begin(place, patience, Instant::now()) {
            Begun::Known(answer) => return answer,
            Begun::Waits(question) => question,
        };
        let waits = Waits { questions: self, question };
        loop {
            let answered = waits.question.answered.notified();
            if let Some(answer) = waits.question.answer.borrow().clone() {
                return answer;
            }
            if timeout_at(waits.question.until.into(), answered).await.is_err() {
                let why = format!("nobody approved it within {} s", patience.as_secs());
                self.end(&waits.question, Err(refused(place, &why)));
            }
        }
    }

    /// Joins those who wait for the same, or asks.
    fn begin(&self, place: &Place, patience: Duration, now: Instant) -> Begun {
        let mut state = self.state.borrow_mut();
        state.known.retain(|_, known| known.until > now || known.answer.is_ok());
        if let Some(known) = state.known.get(place).filter(|known| known.until > now) {
            return Begun::Known(known.answer.clone());
        }
        let is_approved = state.known.contains_key(place);
        let too_many = |what: &str| Begun::Known(Err(refused(place, what)));
        if state.held >= MOST_HELD {
            return too_many("too many connections of the container wait for a person already");
        }
        let same = state.open.values().find(|question| question.place == *place).map(Rc::clone);
        let question = match same {
            Some(question) => question,
            None => {
                if !is_approved && (state.open.len() >= MOST_QUESTIONS || !state.take(now)) {
                    return too_many("the container has asked for too many already: try again in a minute");
                }
                state.last += 1;
                let question = Rc::new(Question {
                    number: state.last,
                    place: place.clone(),
                    until: now + patience,
                    waiting: Cell::new(0),
                    answer: RefCell::new(None),
                    answered: Notify::new(),
                });
                state.open.insert(question.number, Rc::clone(&question));
                state.say(question.ask(now));
                self.more.notify_one();
                question
            }
        };
        question.waiting.set(question.waiting.get() + 1);
        state.held += 1;
        Begun::Waits(question)
    }

    /// Somebody answered.
    pub(crate) fn decided(&self, decision: &EgressDecision) {
        let EgressDecision { question, approve, by, stands } = decision;
        let mut state = self.state.borrow_mut();
        // Whoever asked may have given up.
        let Some(question) = state.open.get(question).map(Rc::clone) else { return };
        let by = sentence(by);
        let (answer, lasts) = match approve {
            true => (Ok(Approval { by: Some(by) }), stands.then_some(APPROVED_FOR)),
            false => (Err(refused(&question.place, &format!("it was denied by {by}"))), Some(DENIED_FOR)),
        };
        if *approve {
            // Nobody is bothered by what would be approved again.
            state.tokens = (state.tokens + 1.0).min(BURST);
        }
        state.known.remove(&question.place);
        if let Some(lasts) = lasts
            && state.known.len() < MOST_KNOWN
        {
            let until = Instant::now() + lasts;
            state.known.insert(question.place.clone(), Known { answer: answer.clone(), until });
        }
        state.open.remove(&question.number);
        drop(state);
        question.answer_with(answer);
    }

    /// Another policy is in force: what it grants goes on, what it does not have asked for is refused.
    pub(crate) fn reconsider(&self, policy: &Policy) {
        let mut state = self.state.borrow_mut();
        state.known.clear();
        let open: Vec<_> = state.open.values().map(Rc::clone).collect();
        drop(state);
        for question in open {
            let (name, port) = &question.place;
            if policy.asks(name, *port).is_none() {
                self.end(&question, policy.judge(name, *port).map(|_| Approval { by: None }));
            }
        }
    }

    /// Nobody is to be waited for any more.
    pub(crate) fn end_all(&self, reason: &str) {
        let open: Vec<_> = self.state.borrow().open.values().map(Rc::clone).collect();
        for question in open {
            self.end(&question, Err(Refusal::new(EgressCause::Revoked, reason)));
        }
    }

    /// The question is over without the auditor's answer.
    fn end(&self, question: &Question, answer: Answer) {
        if self.state.borrow_mut().close(question.number) {
            self.more.notify_one();
        }
        question.answer_with(answer);
    }

    /// Waits until there is something to say to the auditor.
    pub(crate) async fn wait(&self) {
        while self.state.borrow().to_say.is_empty() {
            self.more.notified().await;
        }
    }

    /// What is to be said next, at most a frame of it.
    pub(crate) fn take(&self) -> Vec<EgressAsk> {
        let mut state = self.state.borrow_mut();
        let most = state.to_say.len().min(ASKS_AT_ONCE);
        state.to_say.drain(..most).collect()
    }

    /// The line is another, or there is none: whoever has the next knows of no question.
    pub(crate) fn repeat(&self, now: Instant) {
        let mut state = self.state.borrow_mut();
        state.to_say = state.open.values().map(|question| question.ask(now)).collect();
        self.more.notify_one();
    }
}

enum Begun {
    Known(Answer),
    Waits(Rc<Question>),
}

impl State {
    fn take(&mut self, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.filled).as_secs_f64();
        self.tokens = (self.tokens + passed * PER_SECOND).min(BURST);
        self.filled = now;
        let is_there = self.tokens >= 1.0;
        if is_there {
            self.tokens -= 1.0;
        }
        is_there
    }

    fn say(&mut self, ask: EgressAsk) {
        if self.to_say.len() < MOST_TO_SAY {
            self.to_say.push_back(ask);
        }
    }

    /// A question is open no longer; whether that has to be said.
    fn close(&mut self, number: u64) -> bool {
        if self.open.remove(&number).is_none() {
            return false;
        }
        let is_its = |ask: &EgressAsk| matches!(ask, EgressAsk::Ask { question, .. } if *question == number);
        match self.to_say.iter().position(is_its) {
            // Nobody was asked yet.
            Some(at) => drop(self.to_say.remove(at)),
            None => self.say(EgressAsk::Gone { question: number }),
        }
        true
    }
}

impl Question {
    fn ask(&self, now: Instant) -> EgressAsk {
        let (name, port) = self.place.clone();
        let left = self.until.saturating_duration_since(now).as_millis();
        let wait_ms = u32::try_from(left).unwrap_or(u32::MAX);
        EgressAsk::Ask { question: self.number, name, port, wait_ms }
    }

    fn answer_with(&self, answer: Answer) {
        self.answer.borrow_mut().get_or_insert(answer);
        self.answered.notify_waiters();
    }
}

/// A connection waits.
struct Waits<'a> {
    questions: &'a Questions,
    question: Rc<Question>,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let waiting = &self.question.waiting;
        waiting.set(waiting.get().saturating_sub(1));
        let mut state = self.questions.state.borrow_mut();
        state.held = state.held.saturating_sub(1);
        if waiting.get() == 0 && state.close(self.question.number) {
            self.questions.more.notify_one();
        }
    }
}

/// Returns when a client has closed its end: it waits no longer. One that closes its sending half alone is taken for gone, too,
/// as nothing tells the two apart.
async fn is_gone(client: &TcpStream) {
    loop {
        match client.ready(Interest::READABLE).await {
            Ok(ready) if !ready.is_read_closed() => sleep(LOOK).await,
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests;
