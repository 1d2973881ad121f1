//! The feed behind the WebSocket: one thread reads each changed row from the store once, for all pages.
//!
//! A page of a user whose burst is too big gets `behind` instead of rows, and asks for the newest rows itself.

use crate::mcp::{
    sessions::Sessions,
    watchers::{Backlog, Change, Watcher},
};
use axum::extract::ws::Utf8Bytes;
use ringfence_base::clock;
use ringfence_session::strict;
use ringfence_store::{self as store, SessionReader, Viewer};
use serde_json::{Value, json};
use std::{io, sync::Arc, thread, time::Duration};
use tokio::sync::broadcast;

/// Messages that a page may be behind.
const QUEUE: usize = 256;
/// How long changes are gathered before they are sent.
const GATHER: Duration = Duration::from_millis(40);
/// Rows sent at once; those of whom there are more are `behind`.
const MOST_ROWS: usize = 200;

/// Something for pages.
#[derive(Debug, Clone)]
pub(super) enum Event {
    /// A row of a user's, as a message.
    Row(u32, Utf8Bytes),
    /// Other calls wait than before; each page gets those that it may see.
    Waiting,
    /// Too much happened to send it row by row: of this user's, or of everybody's.
    Behind(Option<u32>),
}

/// Where pages subscribe.
pub(super) type Feed = broadcast::Sender<Event>;

/// Begins to turn changes into events.
///
/// # Errors
/// Where no thread can be started.
pub(super) fn start(sessions: &Arc<Sessions>) -> io::Result<Feed> {
    let (feed, _) = broadcast::channel(QUEUE);
    let (pages, sessions) = (feed.clone(), Arc::clone(sessions));
    let watcher = sessions.watch();
    thread::Builder::new().name("web-live".into()).spawn(move || publish(&sessions, &watcher, &pages))?;
    Ok(feed)
}

/// The calls that wait and that `viewer` may see, as rows.
pub(super) fn waiting(sessions: &Sessions, viewer: Viewer) -> Value {
    let calls = sessions.waiting.list(viewer.0).into_iter().map(|call| {
        let arguments = strict::value(&call.arguments).unwrap_or_else(|_| call.arguments.clone().into());
        json!({
            "id": call.id, "session_id": call.session, "server_name": call.server, "tool_name": call.tool,
            "arguments": arguments, "arguments_bytes": call.arguments_bytes, "risk_score": call.score, "risk_reasons": call.reasons, "rules": call.rules,
            "since_ms": call.since / 1000, "until_ms": call.until / 1000, "connection": call.connection,
        })
    });
    calls.collect()
}

/// The same, as a message.
pub(super) fn waiting_message(sessions: &Sessions, viewer: Viewer) -> String {
    let calls = waiting(sessions, viewer);
    json!({ "type": "waiting", "calls": calls, "now_ms": clock::now_micros() / 1000 }).to_string()
}

fn publish(sessions: &Sessions, watcher: &Watcher, pages: &Feed) {
    let mut last_waiting = None;
    loop {
        watcher.wait(Duration::from_secs(1));
        thread::sleep(GATHER);
        let backlog = watcher.take();
        if pages.receiver_count() == 0 {
            last_waiting = None;
            continue;
        }
        let mut send = |event: Event| drop(pages.send(event));
        let (changes, behind) = split(backlog);
        behind.into_iter().for_each(|whose| send(Event::Behind(whose)));
        if !changes.is_empty() {
            match sessions.readers.ask(|reader| rows(reader, sessions, &changes)) {
                Ok(rows) => rows.into_iter().for_each(&mut send),
                Err(error) => {
                    tracing::warn!("the dashboard's live rows cannot be read: {error}");
                    send(Event::Behind(None));
                }
            }
        }
        let ids = Some(sessions.waiting.ids(0));
        if ids != last_waiting {
            last_waiting = ids;
            send(Event::Waiting);
        }
    }
}

/// The changes that are sent row by row, and who is behind: those with the most changes, where all together are too many.
fn split(Backlog { users, all_behind }: Backlog) -> (Vec<Change>, Vec<Option<u32>>) {
    let mut behind = Vec::from_iter(all_behind.then_some(None));
    let mut users: Vec<_> = users.into_iter().collect();
    users.sort_by_key(|(_, user)| user.changes.len());
    let mut changes = Vec::new();
    for (uid, user) in users {
        if user.is_behind || changes.len() + user.changes.len() > MOST_ROWS {
            behind.push(Some(uid));
        } else {
            changes.extend(user.changes);
        }
    }
    (changes, behind)
}

fn rows(reader: &SessionReader, sessions: &Sessions, changes: &[Change]) -> Result<Vec<Event>, store::Error> {
    let mut events = Vec::with_capacity(changes.len());
    let row = |row: &Value, message: Value| {
        // A row without an owner is root's alone.
        let uid = row["uid"].as_u64().and_then(|uid| u32::try_from(uid).ok()).unwrap_or(0);
        Event::Row(uid, message.to_string().into())
    };
    for change in changes {
        match change {
            Change::Tools(uid) => {
                events.push(Event::Row(*uid, json!({ "type": "tools" }).to_string().into()));
            }
            Change::Call(id) => {
                let found = reader.listed(Viewer(0), id)?;
                events.extend(found.map(|call| row(&call, json!({ "type": "call", "call": call }))));
            }
            Change::Session(id) => {
                let found = reader.session(Viewer(0), id)?;
                events.extend(found.map(|mut session| {
                    session["linked"] = sessions.is_linked(id).into();
                    row(&session, json!({ "type": "session", "session": session }))
                }));
            }
        }
    }
    Ok(events)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::watchers::UserBacklog;

    #[test]
    fn who_has_the_most_news_is_behind_and_others_are_told_theirs() {
        let of = |uid: u32, many: usize, is_behind| {
            let changes = (0..many).map(|n| Change::Call(format!("{uid}-{n}"))).collect();
            (uid, UserBacklog { changes, is_behind })
        };
        let backlog = |users: Vec<(u32, UserBacklog)>| Backlog {
            users: users.into_iter().collect(),
            all_behind: false,
        };
        let (changes, behind) =
            split(backlog(vec![of(5, MOST_ROWS, false), of(6, 3, false), of(7, 0, true), of(8, 4, false)]));
        assert_eq!((changes.len(), behind.len()), (7, 2));
        assert!(behind.contains(&Some(5)) && behind.contains(&Some(7)));
        assert!(changes.iter().all(|change| matches!(change, Change::Call(id) if !id.starts_with("5-"))));
        let (changes, behind) = split(backlog(vec![of(5, MOST_ROWS, false)]));
        assert_eq!((changes.len(), behind.len()), (MOST_ROWS, 0), "the control");
        assert_eq!(split(Backlog { all_behind: true, ..Backlog::default() }).1, [None]);
    }
}
