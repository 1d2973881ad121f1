//! Event streams of a remote server: read, resumed where they broke off, and the one with what the server says unasked.

use super::{
    failure::Failure,
    http::{self, QUIET, silent},
    session::{Session, Waiting},
};
use crate::sse::Events;
use reqwest::{Response, StatusCode};
use std::time::{Duration, Instant};
use tokio::time;

/// How often a stream is resumed without anything new.
const RESUMES: u32 = 8;
/// How long a stream is left alone before it is resumed, where the server says nothing else.
const PAUSE: Duration = Duration::from_secs(1);
/// The shortest, whatever the server says: a hundred a second would be its doing, and our load.
const SHORT_PAUSE: Duration = Duration::from_millis(100);
/// The longest.
const LONG_PAUSE: Duration = Duration::from_secs(60);
/// How often the stream with what the server says unasked is tried without success.
const LISTENS: u32 = 10;
/// How long the rest of an answer may take, so that its connection can be used again.
const REST: Duration = Duration::from_secs(1);

/// How a stream ended.
enum Ended {
    /// All that was waited for has come.
    Answered,
    /// The server ended it, or the connection broke.
    Cut(String),
}

impl Session {
    /// Reads the stream that answers a message, and resumes it until all is answered. `resumes`: the protocol allows that.
    pub(super) async fn follow(
        &self,
        mut response: Response,
        waiting: &mut Waiting,
        resumes: bool,
    ) -> Result<(), Failure> {
        let (mut events, mut tries) = (Events::new(self.limit), 0);
        // Since the last message: when that was, and how often the stream was resumed.
        let (mut since, mut quiet) = (Instant::now(), 0);
        loop {
            let before = events.last_id().map(str::to_owned);
            let mut came = false;
            let ended = self.read(&mut response, &mut events, Some(waiting), &mut came).await?;
            if came {
                (since, quiet) = (Instant::now(), 0);
            }
            let why = match ended {
                Ended::Answered => {
                    tokio::spawn(drain(response));
                    return Ok(());
                }
                Ended::Cut(why) => why,
            };
            if waiting.is_empty() {
                return Ok(());
            }
            if !resumes || events.last_id().is_none() {
                return Err(Failure::Cut(why));
            }
            if events.last_id().map(str::to_owned) != before {
                tries = 0;
            }
            events = events.resumed();
            response = loop {
                if tries == RESUMES {
                    return Err(Failure::Cut(why));
                }
                if since.elapsed() >= QUIET {
                    return Err(Failure::Cut(silent()));
                }
                time::sleep(pause(events.retry(), tries, quiet)).await;
                tries += 1;
                quiet = quiet.saturating_add(1);
                match self.resume(events.last_id()).await {
                    Ok(response) => break response,
                    Err(failure) if failure.passes() => {}
                    Err(Failure::Lost) => return Err(Failure::Lost),
                    Err(failure) => {
                        return Err(Failure::Cut(format!("{why}, and cannot be resumed: {failure}")));
                    }
                }
            };
        }
    }

    /// Carries what the server says unasked, for as long as there is a session. Servers need not offer it.
    pub(super) async fn listen(&self) {
        let (mut events, mut failures, mut quiet, mut was_open) = (Events::new(self.limit), 0, 0_u32, false);
        while failures < LISTENS {
            let (begun, before) = (Instant::now(), events.last_id().map(str::to_owned));
            let mut came = false;
            let why = match self.resume(events.last_id()).await {
                Ok(mut response) => {
                    was_open = true;
                    match self.read(&mut response, &mut events, None, &mut came).await {
                        Ok(Ended::Answered | Ended::Cut(_)) => None,
                        Err(Failure::Gone) => return,
                        Err(failure) => Some(failure),
                    }
                }
                // It has none.
                Err(Failure::Status(StatusCode::METHOD_NOT_ALLOWED)) => return,
                Err(Failure::Lost) if was_open => return self.lose(),
                // Nor has one that knows POST alone. Whether there is a session, the next message shows.
                Err(Failure::Lost) => return,
                Err(failure) if failure.passes() => None,
                Err(failure) => Some(failure),
            };
            if let Some(failure) = why {
                self.say(&format!("its stream of notifications is not read any more: {failure}"));
                return;
            }
            let is_new = events.last_id().map(str::to_owned) != before || begun.elapsed() >= LONG_PAUSE;
            failures = if is_new { 0 } else { failures + 1 };
            events = events.resumed();
            quiet = if came { 0 } else { quiet.saturating_add(1) };
            time::sleep(pause(events.retry(), failures, quiet)).await;
        }
        self.say("its stream of notifications cannot be kept open, and is not read any more");
    }

    /// A stream from where it broke off, or the one with what the server says unasked.
    async fn resume(&self, last: Option<&str>) -> Result<Response, Failure> {
        let context = self.context();
        let response = self.server.listen(&context, last).await?;
        match response.status() {
            StatusCode::NOT_FOUND if context.session.is_some() => Err(Failure::Lost),
            status if !status.is_success() => Err(Failure::Status(status)),
            _ => match http::kind(&response).as_str() {
                "text/event-stream" => Ok(response),
                // What some servers without such a stream answer.
                _ if last.is_none() => Err(Failure::Status(StatusCode::METHOD_NOT_ALLOWED)),
                kind => Err(Failure::Kind(kind.to_owned())),
            },
        }
    }

    /// Reads a stream until what is waited for has come, or to its end. `came`: there was a message.
    async fn read(
        &self,
        response: &mut Response,
        events: &mut Events,
        mut waiting: Option<&mut Waiting>,
        came: &mut bool,
    ) -> Result<Ended, Failure> {
        let mut room = self.rooms.one();
        loop {
            let chunk = match time::timeout(QUIET, response.chunk()).await {
                Err(_) => return Ok(Ended::Cut(silent())),
                Ok(Err(error)) => return Ok(Ended::Cut(Failure::within(error).to_string())),
                Ok(Ok(None)) => return Ok(Ended::Cut("the server ended the stream".to_owned())),
                Ok(Ok(Some(chunk))) => chunk,
            };
            let mut messages = Vec::new();
            let fed = events.feed(&chunk, |event| messages.extend(event.message()));
            let mut held = events.held() + messages.iter().map(Vec::capacity).sum::<usize>();
            room.set(held)?;
            for message in messages {
                *came = true;
                // From here on it is that message's own.
                held -= message.capacity();
                room.set(held)?;
                self.deliver(message, self.rooms.one(), waiting.as_deref_mut()).await?;
            }
            fed?;
            room.set(events.held())?;
            if waiting.as_ref().is_some_and(|waiting| waiting.is_empty()) {
                return Ok(Ended::Answered);
            }
        }
    }
}

/// How long to wait before a stream is resumed for the nth time without an event, and the `quiet`th without a message.
fn pause(asked: Option<Duration>, tries: u32, quiet: u32) -> Duration {
    let own = PAUSE * 2_u32.pow(tries.min(6));
    let least = SHORT_PAUSE * 2_u32.pow(quiet.min(6));
    asked.map_or(own, |asked| if tries == 0 { asked } else { asked.max(own) }).max(least).min(LONG_PAUSE)
}

/// Reads what is left of an answer.
pub(super) async fn drain(mut response: Response) {
    let _ = time::timeout(REST, async { while let Ok(Some(_)) = response.chunk().await {} }).await;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_decides_how_long_to_wait_within_bounds() {
        assert_eq!(pause(None, 0, 0), PAUSE);
        assert_eq!(pause(Some(Duration::ZERO), 0, 0), SHORT_PAUSE, "nobody makes us ask without a pause");
        assert_eq!(pause(Some(Duration::ZERO), 0, 3), 8 * SHORT_PAUSE, "nor for ever as fast as that");
        assert_eq!(pause(Some(Duration::ZERO), 1, 1), 2 * PAUSE);
        assert_eq!(pause(Some(Duration::from_millis(500)), 0, 1), Duration::from_millis(500), "as it asked");
        assert_eq!(pause(Some(Duration::MAX), 0, 0), LONG_PAUSE);
        assert_eq!(pause(None, u32::MAX, u32::MAX), LONG_PAUSE);
    }
}
