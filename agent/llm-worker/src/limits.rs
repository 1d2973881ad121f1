//! `[limits]`: how many turns a minute, how many tokens and how much money a day an agent may use. Pure.
//!
//! Looked at before each call of the provider. What was used today is in the conversation's log, so a restart forgets
//! nothing of it. What calls under way cost at least counts while they are: many at once are not each the last one.

use super::{provider::Usage, rpc::RpcError};
use jiff::{SignedDuration, Timestamp};
use ringfence_policy::agents::config::{Limits, Price};
use serde_json::json;
use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The error's code: ours, so that nobody takes it for the provider's.
pub const LIMIT: i64 = -32002;

/// What a call costs, in the currency of the prices.
fn cost(price: &Price, usage: &Usage) -> f64 {
    let part = |tokens: u64, price: f64| tokens as f64 / 1e6 * price;
    part(usage.input_tokens, price.input)
        + part(usage.output_tokens, price.output)
        + part(usage.cache_read_tokens, price.cache_read)
        + part(usage.cache_write_tokens, price.cache_write)
}

/// An agent's meter, shared by its turns and its HTTP calls.
#[derive(Debug, Clone, Default)]
pub struct Shared(Arc<Mutex<Meter>>);

impl Shared {
    /// For a moment: nothing is awaited with it.
    pub fn lock(&self) -> MutexGuard<'_, Meter> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a call that has so many tokens at least: it counts as a turn.
    ///
    /// # Errors
    /// A limit is reached.
    pub fn begin(
        &self,
        (limits, price): (&Limits, &Price),
        tokens: u64,
        now: Timestamp,
    ) -> Result<Reserved, RpcError> {
        let mut meter = self.lock();
        meter.check(limits, price, now)?;
        meter.turn(limits, now)?;
        meter.reserved = meter.reserved.saturating_add(tokens);
        Ok(Reserved { meter: self.clone(), tokens })
    }
}

/// What a call under way costs at least; given back when this is dropped.
#[derive(Debug)]
pub struct Reserved {
    meter: Shared,
    tokens: u64,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut meter = self.meter.lock();
        meter.reserved = meter.reserved.saturating_sub(self.tokens);
    }
}

/// What an agent has used.
#[derive(Debug, Default)]
pub struct Meter {
    /// Days since 1970 of what `today` counts.
    day: i64,
    today: Usage,
    /// Tokens that calls under way have at least.
    reserved: u64,
    turns: VecDeque<Timestamp>,
    /// Requests that only count tokens.
    counts: VecDeque<Timestamp>,
}

const DAY: i64 = 86_400;
/// Requests to count tokens for each turn that may be made.
const COUNTS: u64 = 10;
const MINUTE: SignedDuration = SignedDuration::from_secs(60);
/// When to try again what only calls under way leave no room for, seconds: it is soon known what they cost.
const SOON: i64 = 10;

impl Meter {
    /// Counts what a call used.
    pub fn used(&mut self, usage: &Usage, at: Timestamp) {
        let day = at.as_second().div_euclid(DAY);
        if day > self.day {
            (self.day, self.today) = (day, Usage::default());
        }
        // A clock that was set back does not make today's smaller.
        if day == self.day {
            self.today += *usage;
        }
    }

    /// Counts a turn.
    ///
    /// # Errors
    /// It is one too many.
    pub fn turn(&mut self, limits: &Limits, now: Timestamp) -> Result<(), RpcError> {
        let Some(most) = limits.turns_per_minute else { return Ok(()) };
        one_more(&mut self.turns, (u64::from(most), "turns"), now)
    }

    /// Counts a request that only counts tokens. It costs nothing, but the provider limits those, too.
    ///
    /// # Errors
    /// It is one too many.
    pub fn count(&mut self, limits: &Limits, now: Timestamp) -> Result<(), RpcError> {
        let Some(most) = limits.turns_per_minute else { return Ok(()) };
        one_more(&mut self.counts, (COUNTS * u64::from(most), "requests to count tokens"), now)
    }

    /// Whether another call may be made.
    ///
    /// # Errors
    /// The day's tokens or money are used up.
    pub fn check(&self, limits: &Limits, price: &Price, now: Timestamp) -> Result<(), RpcError> {
        let second = now.as_second();
        let today = if second.div_euclid(DAY) == self.day { self.today } else { Usage::default() };
        let reserved = Usage { input_tokens: self.reserved, ..Usage::default() };
        let tomorrow = DAY - second.rem_euclid(DAY);
        let mut expected = today;
        expected += reserved;
        let under_way = match self.reserved {
            0 => String::new(),
            tokens => format!(", and calls under way have {tokens} tokens at least"),
        };
        // What is used is used until tomorrow.
        let after = |is_used: bool| if is_used { tomorrow } else { SOON };
        if let Some(most) = limits.tokens_per_day.filter(|most| expected.tokens() >= *most) {
            let used = today.tokens();
            let what = format!("{most} tokens a day ({used} are used{under_way})");
            return Err(reached(what, after(used >= most)));
        }
        if let Some(most) = limits.cost_per_day.filter(|most| cost(price, &expected) >= *most) {
            let used = cost(price, &today);
            let what = format!("a cost of {most} a day ({used:.2} is used{under_way})");
            return Err(reached(what, after(used >= most)));
        }
        Ok(())
    }
}

/// One more within a minute.
fn one_more(
    times: &mut VecDeque<Timestamp>,
    (most, what): (u64, &str),
    now: Timestamp,
) -> Result<(), RpcError> {
    while times.front().is_some_and(|at| now.duration_since(*at) >= MINUTE) {
        times.pop_front();
    }
    if let Some(first) = times.front()
        && times.len() as u64 >= most
    {
        let left = MINUTE - now.duration_since(*first).max(SignedDuration::ZERO);
        return Err(reached(format!("{most} {what} a minute"), left.as_secs() + 1));
    }
    times.push_back(now);
    Ok(())
}

fn reached(what: String, retry_after: i64) -> RpcError {
    RpcError {
        code: LIMIT,
        message: format!("the limit of this agent's profile is reached: {what}"),
        data: Some(json!({ "retry_after": retry_after })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn turns_are_counted_over_any_minute() {
        let limits = Limits { turns_per_minute: Some(2), ..Limits::default() };
        let mut meter = Meter::default();
        meter.turn(&limits, at(0)).unwrap();
        meter.turn(&limits, at(50)).unwrap();
        let error = meter.turn(&limits, at(59)).unwrap_err();
        assert_eq!((error.code, error.data), (LIMIT, Some(json!({ "retry_after": 2 }))));
        meter.turn(&limits, at(60)).unwrap();
        assert!(meter.turn(&limits, at(61)).is_err(), "those at 50 and 60 are within the minute");
        // One that was refused does not count.
        meter.turn(&limits, at(110)).unwrap();
        // To count tokens is no turn, and has a limit of its own.
        (0..20).for_each(|_| meter.count(&limits, at(110)).unwrap());
        let error = meter.count(&limits, at(111)).unwrap_err();
        assert!(error.message.contains("20 requests to count tokens a minute"), "{error}");
        meter.count(&limits, at(170)).unwrap();
    }

    #[test]
    fn a_day_is_over_at_midnight() {
        let limits = Limits { tokens_per_day: Some(100), ..Limits::default() };
        let usage = Usage { input_tokens: 40, cache_read_tokens: 20, ..Usage::default() };
        let price = Price::default();
        let mut meter = Meter::default();
        meter.used(&usage, at(DAY + 10));
        meter.check(&limits, &price, at(DAY + 20)).unwrap();
        meter.used(&usage, at(DAY + 30));
        let error = meter.check(&limits, &price, at(2 * DAY - 5)).unwrap_err();
        assert!(error.message.contains("100 tokens a day (120 are used)"), "{error}");
        assert_eq!(error.data, Some(json!({ "retry_after": 5 })));
        meter.check(&limits, &price, at(2 * DAY)).unwrap();
        meter.used(&usage, at(DAY + 30));
        assert!(meter.check(&limits, &price, at(DAY + 40)).is_err(), "a log read late changes nothing");
    }

    #[test]
    fn money_is_counted_by_the_kind_of_token() {
        let price = Price { input: 3.0, output: 15.0, cache_read: 0.3, cache_write: 3.75 };
        let usage = Usage {
            input_tokens: 1_000_000,
            output_tokens: 1_000_000,
            cache_read_tokens: 1_000_000,
            cache_write_tokens: 1_000_000,
        };
        assert!((cost(&price, &usage) - 22.05).abs() < 1e-9);
        let limits = Limits { cost_per_day: Some(22.0), ..Limits::default() };
        let mut meter = Meter::default();
        meter.used(&usage, at(5));
        let error = meter.check(&limits, &price, at(6)).unwrap_err();
        assert!(error.message.contains("a cost of 22 a day (22.05 is used)"), "{error}");
    }

    #[test]
    fn calls_under_way_count_until_they_are_over() {
        let limits = Limits { tokens_per_day: Some(100), cost_per_day: Some(1.0), ..Limits::default() };
        let (shared, free) = (Shared::default(), Price::default());
        let begin = |price: &Price, tokens| shared.begin((&limits, price), tokens, at(DAY + 5));
        let first = begin(&free, 60).unwrap();
        let second = begin(&free, 60).unwrap();
        let error = begin(&free, 1).unwrap_err();
        assert!(
            error.message.contains("(0 are used, and calls under way have 120 tokens at least)"),
            "{error}"
        );
        assert_eq!(error.data, Some(json!({ "retry_after": SOON })), "they will be over before tomorrow");
        drop(second);
        // Money by what the provider takes for what it is sent.
        let dear = Price { input: 20_000.0, ..Price::default() };
        let error = begin(&dear, 1).unwrap_err();
        assert!(error.message.contains("a cost of 1 a day (0.00 is used, and"), "{error}");
        drop((first, begin(&free, 1).unwrap()));
        drop(begin(&dear, 1).unwrap());
        shared.lock().used(&Usage { output_tokens: 100, ..Usage::default() }, at(DAY + 5));
        assert_eq!(begin(&free, 1).unwrap_err().data, Some(json!({ "retry_after": DAY - 5 })));
        assert_eq!(shared.lock().reserved, 0);
    }
}
