//! The WebSocket: what happens, as it happens, to every page that watches.
//!
//! One thread reads each piece of news from the store once, for all pages. A page that is too slow, or one of a user whose burst
//! is too big, is told `behind`, and asks for the newest rows itself.

use super::{Dashboard, headers::LIVE_PROTOCOL, refusal::Refusal};
use crate::mcp::{
    sessions::{Live, Sessions},
    watchers::{Heard, Watcher},
};
use axum::{
    Extension,
    extract::{
        State, WebSocketUpgrade,
        ws::{Message, Utf8Bytes, WebSocket, rejection::WebSocketUpgradeRejection},
    },
    http::StatusCode,
    response::Response,
};
use ringfence_http::turns::For;
use ringfence_session::strict;
use ringfence_store::{SessionReader, Viewer};
use serde_json::{Value, json};
use std::{collections::BTreeSet, io, sync::Arc, thread, time::Duration};
use tokio::{
    sync::broadcast::{self, error::RecvError},
    task,
    time::{self, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;

/// Messages that a page may be behind.
const QUEUE: usize = 256;
/// How long news are gathered before they are told.
const GATHER: Duration = Duration::from_millis(40);
/// Rows told at once; those of whom there are more are `behind`.
const MOST_ROWS: usize = 200;
/// How often a page is asked whether it is there.
const PING: Duration = Duration::from_secs(20);
/// How long a page may take for a message.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of a message from a page: it has nothing to say.
const LONGEST: usize = 1024;

/// Something for pages.
#[derive(Debug, Clone)]
pub(super) enum Told {
    /// A row of a user's, as a message.
    Row(u32, Utf8Bytes),
    /// Other calls wait than before; each page is told of those that it may see.
    Waiting,
    /// Too much happened to tell it row by row: of this user's, or of everybody's.
    Behind(Option<u32>),
}

const BEHIND: Utf8Bytes = Utf8Bytes::from_static("{\"type\":\"behind\"}");

/// Where pages hear news.
pub(super) type News = broadcast::Sender<Told>;

/// Begins to turn what the sessions tell into messages.
///
/// # Errors
/// Where no thread can be started.
pub(super) fn start(sessions: &Arc<Sessions>) -> io::Result<News> {
    let (news, _) = broadcast::channel(QUEUE);
    let (sender, sessions) = (news.clone(), Arc::clone(sessions));
    let heard = sessions.watch();
    thread::Builder::new().name("web-live".into()).spawn(move || tell(&sessions, &heard, &sender))?;
    Ok(news)
}

/// The calls that wait and that `viewer` may see, as rows.
pub(super) fn waiting(sessions: &Sessions, viewer: Viewer) -> Value {
    let calls = sessions.waiting.list(viewer.0).into_iter().map(|call| {
        let arguments = strict::value(&call.arguments).unwrap_or_else(|_| call.arguments.clone().into());
        json!({
            "id": call.id, "session_id": call.session, "server_name": call.server, "tool_name": call.tool,
            "arguments": arguments, "arguments_bytes": call.arguments_bytes, "risk_score": call.score, "risk_reasons": call.reasons, "rules": call.rules,
            "since_ms": call.since / 1000, "until_ms": call.until / 1000,
        })
    });
    calls.collect()
}

fn tell(sessions: &Sessions, watcher: &Watcher, pages: &News) {
    let mut told_waiting = None;
    loop {
        watcher.wait(Duration::from_secs(1));
        thread::sleep(GATHER);
        let heard = watcher.take();
        if pages.receiver_count() == 0 {
            told_waiting = None;
            continue;
        }
        let mut say = |told: Told| drop(pages.send(told));
        let (fresh, behind) = shares(heard);
        behind.into_iter().for_each(|whose| say(Told::Behind(whose)));
        if !fresh.is_empty() {
            match rows(sessions, &fresh) {
                Ok(rows) => rows.into_iter().for_each(&mut say),
                Err(error) => {
                    tracing::warn!("the dashboard's news cannot be read: {error}");
                    say(Told::Behind(None));
                }
            }
        }
        let ids = Some(sessions.waiting.ids(0));
        if ids != told_waiting {
            told_waiting = ids;
            say(Told::Waiting);
        }
    }
}

/// What is told row by row, and who is told to look themselves: those with the most news, where all together are too many.
fn shares(heard: Heard) -> (Vec<Live>, Vec<Option<u32>>) {
    let Heard { of, all_behind } = heard;
    let mut behind = Vec::from_iter(all_behind.then_some(None));
    let mut users: Vec<_> = of.into_iter().collect();
    users.sort_by_key(|(_, of)| of.news.len());
    let mut fresh = Vec::new();
    for (uid, of) in users {
        if of.is_behind || fresh.len() + of.news.len() > MOST_ROWS {
            behind.push(Some(uid));
        } else {
            fresh.extend(of.news);
        }
    }
    (fresh, behind)
}

fn now_ms() -> i64 {
    ringfence_base::clock::now_micros() / 1000
}

/// The calls that wait and that a page may see, as a message; `None` where they are those that it was `told`. Made beside
/// the runtime, for one page of a user at a time: calls of one user are long, and pages of another wait for the runtime.
async fn told_waiting(
    dashboard: &Dashboard,
    viewer: Viewer,
    told: &mut Option<BTreeSet<String>>,
) -> Option<Message> {
    let ids = Some(dashboard.sessions.waiting.ids(viewer.0));
    if ids == *told {
        return None;
    }
    *told = ids;
    let turn = dashboard.turns.take(viewer.0, For::News).await;
    let thread = turn.thread().await;
    let sessions = Arc::clone(&dashboard.sessions);
    let made = task::spawn_blocking(move || {
        let _held = (thread, turn);
        let calls = waiting(&sessions, viewer);
        json!({ "type": "waiting", "calls": calls, "now_ms": now_ms() }).to_string()
    });
    made.await.ok().map(|text| Message::Text(text.into()))
}

fn rows(sessions: &Sessions, fresh: &[Live]) -> Result<Vec<Told>, ringfence_store::Error> {
    let reader = SessionReader::open(&sessions.db)?;
    let mut told = Vec::with_capacity(fresh.len());
    let row = |row: &Value, message: Value| {
        // A row without an owner is root's alone.
        let uid = row["uid"].as_u64().and_then(|uid| u32::try_from(uid).ok()).unwrap_or(0);
        Told::Row(uid, message.to_string().into())
    };
    for live in fresh {
        match live {
            Live::Call(id) => {
                let found = reader.listed(Viewer(0), id)?;
                told.extend(found.map(|call| row(&call, json!({ "type": "call", "call": call }))));
            }
            Live::Session(id) => {
                let found = reader.session(Viewer(0), id)?;
                told.extend(found.map(|mut session| {
                    session["linked"] = sessions.is_linked(id).into();
                    row(&session, json!({ "type": "session", "session": session }))
                }));
            }
        }
    }
    Ok(told)
}

/// Makes a request a WebSocket.
pub(super) async fn upgrade(
    State(dashboard): State<Arc<Dashboard>>,
    Extension(viewer): Extension<Viewer>,
    socket: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Refusal> {
    let socket = socket
        .map_err(|why| Refusal::new(why.status(), format!("This is a WebSocket: {}.", why.body_text())))?;
    let gone = CancellationToken::new();
    let end = gone.clone();
    // A page that watches is counted as long as it does: the auditor does not end under it.
    let permit = dashboard.sessions.pages.take(viewer.0, move || end.cancel()).ok_or_else(|| {
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "Too many pages watch already; close one.")
    })?;
    if !permit.busy() {
        return Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "Another page took this one's place."));
    }
    let heard = dashboard.live.subscribe();
    let socket = socket.protocols([LIVE_PROTOCOL]).max_message_size(LONGEST).max_frame_size(LONGEST);
    Ok(socket.on_upgrade(move |socket| async move {
        tokio::select! {
            _ = watch(socket, heard, &dashboard, viewer) => {}
            () = gone.cancelled() => {}
        }
        drop(permit);
    }))
}

/// Sends news until the page goes. An error of any kind is the end.
async fn watch(
    mut socket: WebSocket,
    mut heard: broadcast::Receiver<Told>,
    dashboard: &Dashboard,
    viewer: Viewer,
) -> Option<()> {
    let mut told = None;
    let waiting = told_waiting(dashboard, viewer, &mut told).await?;
    say(&mut socket, waiting).await?;
    let mut ping = time::interval(PING);
    ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // Two pings without a sign of life: the page has gone without a word.
    let mut silent = 0;
    loop {
        let message = tokio::select! {
            news = heard.recv() => match news {
                Ok(Told::Row(uid, text)) if viewer.0 == 0 || viewer.0 == uid => Message::Text(text),
                Ok(Told::Row(..)) => continue,
                Ok(Told::Waiting) => match told_waiting(dashboard, viewer, &mut told).await {
                    Some(message) => message,
                    None => continue,
                },
                Ok(Told::Behind(whose)) if whose.is_none_or(|uid| viewer.0 == 0 || viewer.0 == uid) => {
                    Message::Text(BEHIND)
                }
                Ok(Told::Behind(_)) => continue,
                Err(RecvError::Lagged(_)) => Message::Text(BEHIND),
                Err(RecvError::Closed) => return None,
            },
            said = socket.recv() => {
                said?.ok()?;
                silent = 0;
                continue;
            },
            _ = ping.tick() => {
                silent += 1;
                if silent > 2 {
                    return None;
                }
                Message::Ping(Default::default())
            },
        };
        say(&mut socket, message).await?;
    }
}

async fn say(socket: &mut WebSocket, message: Message) -> Option<()> {
    time::timeout(PATIENCE, socket.send(message)).await.ok()?.ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mcp::watchers::OfUser;

    #[test]
    fn who_has_the_most_news_is_behind_and_others_are_told_theirs() {
        let of = |uid: u32, many: usize, is_behind| {
            let news = (0..many).map(|n| Live::Call(format!("{uid}-{n}"))).collect();
            (uid, OfUser { news, is_behind })
        };
        let heard = |users: Vec<(u32, OfUser)>| Heard { of: users.into_iter().collect(), all_behind: false };
        let (fresh, behind) =
            shares(heard(vec![of(5, MOST_ROWS, false), of(6, 3, false), of(7, 0, true), of(8, 4, false)]));
        assert_eq!((fresh.len(), behind.len()), (7, 2));
        assert!(behind.contains(&Some(5)) && behind.contains(&Some(7)));
        assert!(fresh.iter().all(|live| matches!(live, Live::Call(id) if !id.starts_with("5-"))));
        let (fresh, behind) = shares(heard(vec![of(5, MOST_ROWS, false)]));
        assert_eq!((fresh.len(), behind.len()), (MOST_ROWS, 0), "the control");
        assert_eq!(shares(Heard { all_behind: true, ..Heard::default() }).1, [None]);
    }
}
