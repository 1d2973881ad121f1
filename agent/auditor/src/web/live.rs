//! The WebSocket: what happens, as it happens, to every page that watches.
//!
//! A page that is too slow is sent `behind`, and asks for the newest rows itself.

use super::{
    dashboard::Dashboard,
    feed::{self, Event},
    headers::LIVE_PROTOCOL,
    refusal::Refusal,
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
use ringfence_store::Viewer;
use std::{collections::BTreeSet, sync::Arc, time::Duration};
use tokio::{
    sync::broadcast::{self, error::RecvError},
    task,
    time::{self, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;

/// How often a page is asked whether it is there.
const PING: Duration = Duration::from_secs(20);
/// How long a page may take for a message.
const PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of a message from a page, which has none to send.
const LONGEST: usize = 1024;

const BEHIND: Utf8Bytes = Utf8Bytes::from_static("{\"type\":\"behind\"}");

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
    let events = dashboard.feed.subscribe();
    let socket = socket.protocols([LIVE_PROTOCOL]).max_message_size(LONGEST).max_frame_size(LONGEST);
    Ok(socket.on_upgrade(move |socket| async move {
        tokio::select! {
            _ = watch(socket, events, &dashboard, viewer) => {}
            () = gone.cancelled() => {}
        }
        drop(permit);
    }))
}

/// Sends events until the page goes. An error of any kind is the end.
async fn watch(
    mut socket: WebSocket,
    mut events: broadcast::Receiver<Event>,
    dashboard: &Dashboard,
    viewer: Viewer,
) -> Option<()> {
    let mut shown = None;
    let waiting = waiting_message(dashboard, viewer, &mut shown).await?;
    send(&mut socket, waiting).await?;
    let mut ping = time::interval(PING);
    ping.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // Two pings without a sign of life: the page has gone without a word.
    let mut silent = 0;
    loop {
        let message = tokio::select! {
            event = events.recv() => match event {
                Ok(Event::Row(uid, text)) if viewer.0 == 0 || viewer.0 == uid => Message::Text(text),
                Ok(Event::Row(..)) => continue,
                Ok(Event::Waiting) => match waiting_message(dashboard, viewer, &mut shown).await {
                    Some(message) => message,
                    None => continue,
                },
                Ok(Event::Behind(whose)) if whose.is_none_or(|uid| viewer.0 == 0 || viewer.0 == uid) => {
                    Message::Text(BEHIND)
                }
                Ok(Event::Behind(_)) => continue,
                Err(RecvError::Lagged(_)) => Message::Text(BEHIND),
                Err(RecvError::Closed) => return None,
            },
            received = socket.recv() => {
                received?.ok()?;
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
        send(&mut socket, message).await?;
    }
}

/// The calls that wait and that a page may see, as a message; `None` where they are those `shown` already. Made beside the
/// runtime, for one page of a user at a time: calls of one user are long, and pages of another wait for the runtime.
async fn waiting_message(
    dashboard: &Dashboard,
    viewer: Viewer,
    shown: &mut Option<BTreeSet<String>>,
) -> Option<Message> {
    let ids = Some(dashboard.sessions.waiting.ids(viewer.0));
    if ids == *shown {
        return None;
    }
    *shown = ids;
    let turn = dashboard.turns.take(viewer.0, For::News).await;
    let thread = turn.thread().await;
    let sessions = Arc::clone(&dashboard.sessions);
    let made = task::spawn_blocking(move || {
        let _held = (thread, turn);
        feed::waiting_message(&sessions, viewer)
    });
    made.await.ok().map(|text| Message::Text(text.into()))
}

async fn send(socket: &mut WebSocket, message: Message) -> Option<()> {
    time::timeout(PATIENCE, socket.send(message)).await.ok()?.ok()
}
