//! Questions for a person: connections to names that are neither granted nor denied wait here for an answer.
//!
//! One question is for one name and port, however many connections wait for it. How many there are is bounded, and how fast new
//! ones come: whoever makes up names does not fill a person's screen. Most clients give up sooner than a person has read anything,
//! and try again: a question stays for all of its time, though nobody waits for it, and what was answered meanwhile is for whoever
//! comes next.

use crate::{rate::Rate, records::sentence, refusal::Refusal, worker::Policy};
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
    time::{sleep, timeout, timeout_at},
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
/// How long a connection may come that was approved once, while no client waited.
const KEPT_FOR: Duration = Duration::from_secs(60);
/// How long nobody is asked again for whom there was no room. Nobody has said no.
const FULL_FOR: Duration = Duration::from_secs(2);
/// Answers that are known at once, and places that approvals stood for when they were last asked about.
const MOST_KNOWN: usize = 256;
const MOST_STOOD: usize = 256;
/// What waits to be said; more is not said, and the auditor finds out by itself when time is up.
const MOST_TO_SAY: usize = 256;
/// How often it is looked whether a client is gone that has said more than it was asked for.
const LOOK: Duration = Duration::from_secs(1);

const GAVE_UP: &str = "its client gave up before anybody approved it";

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
    /// What an approval stood for that is known no longer, newest first: it is asked about once more whatever else is.
    stood: VecDeque<Place>,
    held: usize,
    rate: Rate,
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
    /// It was approved once, and that is to be used.
    once: Cell<bool>,
    /// Somebody went on by the answer.
    taken: Cell<bool>,
}

/// An answer that counts for a while.
struct Known {
    answer: Answer,
    until: Instant,
    /// It is for one connection.
    once: bool,
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
fn refused(place: &Place, why: &str) -> Refusal {
    refused_as(EgressCause::NotGranted, place, why)
}

/// The same of what nobody could be asked about.
fn full(place: &Place, why: &str) -> Refusal {
    refused_as(EgressCause::Full, place, why)
}

fn refused_as(cause: EgressCause, (name, port): &Place, why: &str) -> Refusal {
    Refusal::new(cause, &format!("no rule of the profile grants {name} at port {port}, and {why}"))
}

impl Questions {
    pub(crate) fn new(now: Instant) -> Self {
        let state = State {
            last: 0,
            open: BTreeMap::new(),
            known: HashMap::new(),
            stood: VecDeque::new(),
            held: 0,
            rate: Rate::new(BURST, PER_SECOND, now),
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
            answer = self.answer_to(&place, patience, Some(client)) => answer,
            () = is_gone(client) => Err(refused(&place, GAVE_UP)),
        }
    }

    #[cfg(test)]
    async fn answer(&self, place: &Place, patience: Duration) -> Answer {
        self.answer_to(place, patience, None).await
    }

    async fn answer_to(&self, place: &Place, patience: Duration, client: Option<&TcpStream>) -> Answer {
        // What was approved once and kept for whoever comes next is not for one that has left already.
        if has_closed(client).await {
            return Err(refused(place, GAVE_UP));
        }
        let question = match self.begin(place, patience, Instant::now()) {
            Begun::Known(answer) => return answer,
            Begun::Waits(question) => question,
        };
        let waits = Waits { questions: self, question };
        loop {
            let answered = waits.question.answered.notified();
            let answer = waits.question.answer.borrow().clone();
            if let Some(answer) = answer {
                // What was approved once is not for a client that is gone, which may not have been noticed yet.
                if answer.is_ok() && has_closed(client).await {
                    return Err(refused(place, GAVE_UP));
                }
                waits.question.taken.set(true);
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
        state.known.retain(|_, known| known.until > now);
        if let Some(known) = state.known.get(place) {
            let (answer, once) = (known.answer.clone(), known.once);
            if once {
                state.known.remove(place);
            }
            return Begun::Known(answer);
        }
        let too_many = |what: &str| Begun::Known(Err(full(place, what)));
        if state.held >= MOST_HELD {
            return too_many("too many connections of the container wait for a person already");
        }
        let is_same = |question: &&Rc<Question>| question.place == *place && question.until > now;
        let same = state.open.values().find(is_same).map(Rc::clone);
        let question = match same {
            Some(question) => question,
            None => {
                // Once for each time that it stood: it may be revoked.
                let stood = state.stood.iter().position(|one| one == place);
                let is_approved = stood.and_then(|at| state.stood.remove(at)).is_some();
                if !is_approved && (!state.has_room() || !state.rate.take(now)) {
                    return too_many("the container has asked for too many already: try again in a minute");
                }
                if !is_approved && let Some(left) = state.in_the_way() {
                    state.close(left);
                }
                state.last += 1;
                let question = Rc::new(Question {
                    number: state.last,
                    place: place.clone(),
                    until: now + patience,
                    waiting: Cell::new(0),
                    answer: RefCell::new(None),
                    answered: Notify::new(),
                    once: Cell::new(false),
                    taken: Cell::new(false),
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
        let EgressDecision { question, approve, by, stands, full: is_full } = decision;
        let mut state = self.state.borrow_mut();
        // Whoever asked may have given up.
        let Some(question) = state.open.get(question).map(Rc::clone) else { return };
        let by = sentence(by);
        let place = &question.place;
        let once = *approve && !stands;
        let (answer, lasts) = match (approve, is_full) {
            (true, _) if *stands => (Ok(Approval { by: Some(by) }), Some(APPROVED_FOR)),
            // Whoever asked may have given up, and is likely to try again.
            (true, _) => {
                question.once.set(true);
                let is_for_later = question.waiting.get() == 0;
                (Ok(Approval { by: Some(by) }), is_for_later.then_some(KEPT_FOR))
            }
            (false, true) => (Err(full(place, &format!("nobody was asked: {by}"))), Some(FULL_FOR)),
            (false, false) => (Err(refused(place, &format!("it was denied by {by}"))), Some(DENIED_FOR)),
        };
        if *approve {
            // Nobody is bothered by what would be approved again.
            state.rate.give_back();
        }
        state.known.remove(&question.place);
        if *approve && *stands {
            state.stood(question.place.clone());
        }
        if let Some(lasts) = lasts {
            let until = Instant::now() + lasts;
            state.know(question.place.clone(), Known { answer: answer.clone(), until, once });
        }
        state.open.remove(&question.number);
        drop(state);
        question.answer_with(answer);
    }

    /// Another policy is in force: what it grants goes on, what it does not have asked for is refused.
    pub(crate) fn reconsider(&self, policy: &Policy) {
        let mut state = self.state.borrow_mut();
        state.known.retain(|(name, port), _| policy.asks(name, *port).is_some());
        state.stood.retain(|(name, port)| policy.asks(name, *port).is_some());
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
        loop {
            let next = self.expire(Instant::now());
            if !self.state.borrow().to_say.is_empty() {
                return;
            }
            match next {
                None => self.more.notified().await,
                Some(next) => {
                    let _ = timeout_at(next.into(), self.more.notified()).await;
                }
            }
        }
    }

    /// Ends questions that no client waits for and whose time is up; when to look again.
    fn expire(&self, now: Instant) -> Option<Instant> {
        let mut state = self.state.borrow_mut();
        let left: Vec<_> = state.open.values().filter(|one| one.waiting.get() == 0).map(Rc::clone).collect();
        let (over, others): (Vec<_>, Vec<_>) = left.into_iter().partition(|one| one.until <= now);
        for question in over {
            state.close(question.number);
        }
        others.iter().map(|one| one.until).min()
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
    /// Keeps an answer. Where there is no room, one goes that stands: it can be asked for again, as what a person said once cannot.
    fn know(&mut self, place: Place, known: Known) {
        if self.known.len() >= MOST_KNOWN {
            let standing = self.known.iter().filter(|(_, known)| known.answer.is_ok() && !known.once);
            let oldest = standing.min_by_key(|(_, known)| known.until).map(|(place, _)| place.clone());
            let Some(oldest) = oldest else { return };
            self.known.remove(&oldest);
        }
        self.known.insert(place, known);
    }

    /// An approval stands for a place.
    fn stood(&mut self, place: Place) {
        self.stood.truncate(MOST_STOOD - 1);
        self.stood.push_front(place);
    }

    /// Whether another question may be open.
    fn has_room(&self) -> bool {
        self.open.len() < MOST_QUESTIONS || self.in_the_way().is_some()
    }

    /// Where as many are open as may: the oldest that no client waits for.
    fn in_the_way(&self) -> Option<u64> {
        let left = || self.open.values().find(|question| question.waiting.get() == 0);
        (self.open.len() >= MOST_QUESTIONS).then(left).flatten().map(|question| question.number)
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
        if waiting.get() > 0 {
            return;
        }
        let Question { place, answer, once, taken, .. } = &*self.question;
        if let Some(answer) = answer.borrow().clone().filter(|_| once.get() && !taken.get())
            && !state.known.contains_key(place)
        {
            let until = Instant::now() + KEPT_FOR;
            state.know(place.clone(), Known { answer, until, once: true });
        }
        if state.open.contains_key(&self.question.number) {
            // Somebody has to look when its time is up.
            self.questions.more.notify_one();
        }
    }
}

/// Whether a client has closed its end by now.
async fn has_closed(client: Option<&TcpStream>) -> bool {
    let Some(client) = client else { return false };
    let ready = timeout(Duration::ZERO, client.ready(Interest::READABLE)).await;
    matches!(ready, Ok(Ok(ready)) if ready.is_read_closed()) || matches!(ready, Ok(Err(_)))
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
