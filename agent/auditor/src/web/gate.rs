//! Who may ask: the checks before any handler, and the headers of every answer.
//!
//! A page of another site can make the browser send requests here. It cannot name our host and leave out its origin, so
//! both are compared exactly; and it does not have the token. Each of the three alone would refuse it.

use super::{
    dashboard::Dashboard,
    headers::{bearer, is_json, offered, same_host, same_origin},
    refusal::{Reason, Refusal},
};
use axum::{
    extract::{Request, State},
    http::{
        HeaderMap, HeaderName, HeaderValue, Method, StatusCode,
        header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS},
    },
    middleware::Next,
    response::{IntoResponse, Response},
};
use ringfence_http::{
    Standing,
    turns::{For, Turn},
};
use ringfence_store::Viewer;
use std::sync::{Arc, atomic::Ordering};

/// Characters of a path on record.
const LONGEST_PATH: usize = 100;

tokio::task_local! {
    /// The asker's turn. A handler ends when its client hangs up; what it had begun on a thread goes on, and has to hold the
    /// turn, too, or one client could begin any number.
    static TURN: Arc<Turn>;
}

/// The turn of whoever this task answers, to be held by the work that is done for it.
pub(super) fn turn() -> Option<Arc<Turn>> {
    TURN.try_with(Arc::clone).ok()
}

/// Refuses what must not reach a handler, and sets the headers of what comes back.
pub(super) async fn pass(
    State(dashboard): State<Arc<Dashboard>>,
    mut request: Request,
    next: Next,
) -> Response {
    let peer = request.extensions().get::<Arc<Standing>>().and_then(|standing| standing.peer());
    let described = describe(&request);
    let mut response = match check(&dashboard, &request) {
        Ok(viewer) => {
            // Absent for the page's own files: a handler that needs it has none to give away.
            viewer.and_then(|viewer| request.extensions_mut().insert(viewer));
            let wanted = match *request.method() {
                _ if changes(&request) => For::Change,
                Method::POST => For::Decision,
                _ => For::Question,
            };
            match viewer {
                Some(viewer) => {
                    let turn = Arc::new(dashboard.turns.take(viewer.0, wanted).await);
                    TURN.scope(turn, next.run(request)).await
                }
                None => next.run(request).await,
            }
        }
        Err(refusal) => refusal.into_response(),
    };
    // Who may not, or not now. What is wrong with a question is the asker's own affair.
    if matches!(response.status().as_u16(), 401 | 403 | 415 | 503)
        && let Some(Reason(reason)) = response.extensions_mut().remove()
    {
        dashboard.log_refusal(peer, &described, &reason);
    }
    set_headers(response.headers_mut());
    response
}

/// What a request asks for, for the record: never its parameters.
fn describe(request: &Request) -> String {
    let path: String = request.uri().path().chars().take(LONGEST_PATH).collect();
    format!("{:.16} {path:?} of the dashboard", request.method().as_str())
}

/// Whether a request is to change rules, pins, what is in force of them, or approvals that stand.
fn changes(request: &Request) -> bool {
    const OF: [&str; 4] = ["/api/rules", "/api/tools", "/api/servers", "/api/approvals"];
    let writes = [Method::POST, Method::PATCH, Method::DELETE].contains(request.method());
    let path = request.uri().path();
    writes && OF.iter().any(|of| path.starts_with(of))
}

/// Who asks, where that matters.
fn check(dashboard: &Dashboard, request: &Request) -> Result<Option<Viewer>, Refusal> {
    let headers = request.headers();
    let host = same_host(headers, request.uri().authority().map(|a| a.as_str()), dashboard.port)?;
    same_origin(headers, host)?;
    let path = request.uri().path();
    let (api, live) =
        (path == "/api" || path.starts_with("/api/"), path == "/ws" || path.starts_with("/ws/"));
    if !api && !live && path != "/metrics" {
        return Ok(None);
    }
    let given = bearer(headers).or_else(|| live.then(|| offered(headers)).flatten());
    let Some(viewer) = given.and_then(|given| dashboard.sessions.holder(given)) else {
        return Err(Refusal::new(
            StatusCode::UNAUTHORIZED,
            "This needs the dashboard's token. Open the link that `ringfence dashboard` prints; each start of the auditor makes a new one.",
        ));
    };
    let standing = request.extensions().get::<Arc<Standing>>();
    if !standing.is_some_and(|standing| standing.identify(viewer.0)) {
        return Err(Refusal::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "Too many connections to the dashboard with this token; close some and try again.",
        ));
    }
    dashboard.sessions.used.store(true, Ordering::Relaxed);
    if (request.method() == Method::POST || changes(request)) && !is_json(headers) {
        let error = format!("A {} needs the header Content-Type: application/json.", request.method());
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, error));
    }
    Ok(Some(viewer))
}

/// Nothing but the page's own files; no text becomes HTML (Chromium holds that), no frame holds the page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

fn set_headers(headers: &mut HeaderMap) {
    let fixed = [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (CACHE_CONTROL, "no-store"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        mcp::sessions::{Serving, Sessions},
        web::{feed, work},
    };
    use axum::{
        Router,
        body::Body,
        http::header::{AUTHORIZATION, HOST},
        middleware,
        routing::get,
    };
    use hyper_util::service::TowerToHyperService;
    use ringfence_base::quota::{Bounds, Owners, Permits};
    use ringfence_base::socket_owners::SocketOwners;
    use ringfence_http::turns::{Threads, Turns};
    use std::{sync::mpsc, time::Duration};

    #[tokio::test]
    async fn a_client_that_hangs_up_has_its_turn_until_its_question_is_answered() {
        use hyper::service::Service as _;
        let folder = tempfile::tempdir().expect("a folder");
        let sessions = Arc::new(Sessions::new(folder.path().join("audit.db"), Serving::Own));
        let threads = Threads { questions: 4, decisions: 4, changes: 4, news: 4 };
        let (feed, turns) =
            (feed::start(&sessions).expect("a thread"), Turns::new(threads, sessions.owners.clone()));
        let dashboard = Arc::new(Dashboard {
            sessions: Arc::clone(&sessions),
            port: 80,
            feed,
            turns,
            owners: SocketOwners::default(),
        });
        // A question that takes until it is let go.
        let (begun, begins) = mpsc::channel();
        let (go, wait) = mpsc::channel::<()>();
        let wait = Arc::new(std::sync::Mutex::new(wait));
        let slow = move || {
            let (begun, wait) = (begun.clone(), Arc::clone(&wait));
            work::blocking(move || {
                begun.send(()).expect("somebody listens");
                let _ = wait.lock().expect("one at a time").recv();
                Ok(())
            })
        };
        let router = Router::new()
            .route("/api/slow", get(slow))
            .layer(middleware::from_fn_with_state(Arc::clone(&dashboard), pass));
        let uid = 1000;
        let permits = Permits::within(Bounds { all: 9, each: 9, unknown: 9 }, Owners::default());
        let mut request = Request::new(Body::empty());
        *request.uri_mut() = "/api/slow".parse().expect("a path");
        let bearer = format!("Bearer {}", sessions.token(uid));
        request.headers_mut().insert(HOST, HeaderValue::from_static("localhost"));
        request.headers_mut().insert(AUTHORIZATION, HeaderValue::from_str(&bearer).expect("a value"));
        request.extensions_mut().insert(Standing::of_stranger(&permits, None).expect("a place"));
        let client = tokio::spawn(TowerToHyperService::new(router).call(request));
        let begins = tokio::task::spawn_blocking(move || begins.recv_timeout(Duration::from_secs(60)));
        begins.await.expect("no panic").expect("the question is asked");
        client.abort();
        assert!(client.await.is_err_and(|error| error.is_cancelled()), "it hung up");
        let turn = |uid| dashboard.turns.take(uid, For::Question);
        let soon = Duration::from_millis(100);
        assert!(tokio::time::timeout(soon, turn(uid)).await.is_err(), "its question is still answered");
        assert!(tokio::time::timeout(soon, turn(1001)).await.is_ok(), "the control: another user's");
        go.send(()).expect("it waits");
        turn(uid).await;
    }
}
