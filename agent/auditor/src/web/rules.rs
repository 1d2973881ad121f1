//! Rules by the API: what there is, and changes of rule files that wait. `rule_changes` is about changing one.

use super::{
    dashboard::Dashboard,
    params::{self, Confirmation},
    refusal::{Refusal, sentence},
    work::{ask, blocking},
};
use crate::mcp::{rule_changes::listed, server::NOT_PENDING};
use axum::{
    Extension, Json,
    extract::{State, rejection::JsonRejection},
    http::StatusCode,
};
use ringfence_base::quota::Lane;
use ringfence_session::reload;
use ringfence_store::{SessionReader, Viewer};
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};
use tokio::time;

/// How long a change waits for what its user's sessions write, and how often it looks whether it is its turn.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(5);

/// All rules, those of the database first.
pub(super) async fn list(
    State(dashboard): State<Arc<Dashboard>>,
    Extension(viewer): Extension<Viewer>,
) -> Result<Json<Value>, Refusal> {
    let sessions = Arc::clone(&dashboard.sessions);
    let listed = move |reader: &SessionReader| listed(reader, viewer, sessions.rule_file.as_deref());
    Ok(Json(ask(&dashboard, listed).await?.into()))
}

/// What is wrong with the rules that are not the database's.
pub(super) fn problems(dashboard: &Dashboard) -> Vec<String> {
    let (source, written) = dashboard.sessions.file_rules();
    written.err().map(|error| format!("{source}: {error}")).into_iter().collect()
}

/// Changes of rule files that wait for a confirmation: what is in force, what the file has, the rule that it loosens.
pub(super) async fn pending(
    State(dashboard): State<Arc<Dashboard>>,
    Extension(viewer): Extension<Viewer>,
) -> Result<Json<Value>, Refusal> {
    // The comparison as well: it takes longer than one thread has for all pages.
    let compared = move |reader: &SessionReader| {
        let mut rows = reader.pending_rules(viewer)?;
        for row in &mut rows {
            let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
            let (old, new) = (text("text"), text("pending"));
            row["loosens"] = reload::loosens(&old, &new).into();
            row["difference"] = reload::difference(&old, &new).into();
        }
        Ok(rows)
    };
    Ok(Json(ask(&dashboard, compared).await?.into()))
}

/// Puts a change in force that waits.
pub(super) async fn confirm(
    State(dashboard): State<Arc<Dashboard>>,
    Extension(viewer): Extension<Viewer>,
    posted: Result<Json<Confirmation>, JsonRejection>,
) -> Result<Json<Value>, Refusal> {
    let Confirmation { path, sha256 } = params::body(posted)?;
    let lane = lane(&dashboard, viewer, PATIENCE).await?;
    let done = blocking(move || {
        Ok(dashboard.sessions.confirm_rules(viewer.0, (&path, &sha256), "dashboard", lane)?)
    });
    if done.await? {
        return Ok(Json(json!({ "confirmed": true })));
    }
    Err(Refusal::new(StatusCode::CONFLICT, format!("{}.", sentence(NOT_PENDING))))
}

/// Waits for the user's lane to the writer, behind what that user's sessions write: without a thread, of which all pages have a
/// few. Whoever hangs up meanwhile, or is evicted, is not in the queue any more.
pub(super) async fn lane(dashboard: &Dashboard, viewer: Viewer, patience: Duration) -> Result<Lane, Refusal> {
    let lane = dashboard.sessions.writer.queue(viewer.0);
    let first = async {
        while !lane.is_first() {
            time::sleep(LOOK).await;
        }
    };
    match time::timeout(patience, first).await {
        Ok(()) => Ok(lane),
        Err(_) => {
            let error = "Your sessions write so much that the store is not to be had; try again.";
            Err(Refusal::new(StatusCode::SERVICE_UNAVAILABLE, error))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        mcp::sessions::{Serving, Sessions},
        web::feed,
    };
    use ringfence_base::socket_owners::SocketOwners;
    use ringfence_http::turns::{Threads, Turns};
    use ringfence_session::reload::LONGEST;
    use ringfence_wire::mcp::RuleFile;
    use rustix::time::{ClockId, clock_gettime};
    use tokio::runtime;

    /// A dashboard over changes that wait: each of a user, a path, and how long the texts are in lines of ten bytes.
    fn dashboard(changes: &[(u32, &str, usize)]) -> (tempfile::TempDir, Arc<Dashboard>) {
        let folder = tempfile::tempdir().expect("a folder");
        let sessions = Arc::new(Sessions::new(folder.path().join("audit.db"), Serving::Own));
        for (uid, path, lines) in changes {
            let text = |first: &str, kind: usize| {
                (0..*lines).fold(first.to_owned(), |text, n| text + &format!("\n# {kind}{n:06}"))
            };
            let mut writer = sessions.writer.lock(*uid, || true).expect("the lane");
            for (now, text) in
                [text("rules: [{name: a, action: block}]", 1), text("rules: []", 2)].into_iter().enumerate()
            {
                let file = RuleFile { path: (*path).to_owned(), text, trusted: false };
                let standing = writer.offer_rules(*uid, &file, now as i64).expect("stored");
                assert_eq!(standing.held.is_some(), now == 1);
            }
        }
        let threads = Threads { questions: 4, decisions: 4, changes: 4, news: 4 };
        let (feed, turns) =
            (feed::start(&sessions).expect("a thread"), Turns::new(threads, sessions.owners.clone()));
        let owners = SocketOwners::default();
        (folder, Arc::new(Dashboard { sessions, port: 80, feed, turns, owners }))
    }

    #[tokio::test]
    async fn long_changes_are_compared_beside_the_thread_that_all_pages_have() {
        let (_folder, dashboard) = dashboard(&[(5, "/a", 40_000), (5, "/b", 40_000)]);
        // What this thread works, however long it waits for a processor.
        let worked = || {
            let time = clock_gettime(ClockId::ThreadCPUTime);
            Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
        };
        let begun = worked();
        let Ok(Json(rows)) = pending(State(dashboard), Extension(Viewer(5))).await else { panic!("refused") };
        let took = worked() - begun;
        let begun = worked();
        for row in rows.as_array().into_iter().flatten() {
            let (old, new) =
                (row["text"].as_str().expect("a text"), row["pending"].as_str().expect("a text"));
            assert!(reload::loosens(old, new).is_some() && !reload::difference(old, new).is_empty());
        }
        let compared = worked() - begun;
        assert_eq!((rows.as_array().map(Vec::len), &rows[0]["loosens"]), (Some(2), &json!("a")));
        assert!(took < compared / 4, "{took:?}, and comparing takes {compared:?}");
    }

    /// The body that confirms a user's only change.
    fn confirmation(dashboard: &Dashboard, uid: u32) -> Result<Json<Confirmation>, JsonRejection> {
        let reader = SessionReader::open(&dashboard.sessions.db).expect("opens");
        let row = reader.pending_rules(Viewer(uid)).expect("reads").remove(0);
        let text = json!({ "path": row["path"], "sha256": row["sha256"] });
        Ok(Json(serde_json::from_value(text).expect("a body")))
    }

    #[test]
    fn changes_of_rules_that_wait_for_their_user_s_sessions_hold_no_thread_and_end() {
        let (_folder, dashboard) = dashboard(&[(5, "/a", 1), (6, "/b", 1), (7, "/c", 1)]);
        let confirm = |uid: u32| {
            let (shared, body) = (Arc::clone(&dashboard), confirmation(&dashboard, uid));
            async move { confirm(State(shared), Extension(Viewer(uid)), body).await.map(|_| ()) }
        };
        let queue = |uid: u32| dashboard.sessions.writer.queue(uid);
        // All pages have one thread, and the sessions of two users write without an end.
        let one = runtime::Builder::new_current_thread().enable_time().max_blocking_threads(1).build();
        one.expect("a runtime").block_on(async {
            let writes = [queue(5), queue(6)];
            let waits = [5, 6].map(|uid| tokio::spawn(confirm(uid)));
            time::sleep(2 * LOOK).await;
            assert!(confirm(7).await.is_ok(), "another user's");
            assert!(waits.iter().all(|confirms| !confirms.is_finished()));
            // Whoever hangs up is not in the queue any more, and whoever waits on has its turn.
            let [gone, stays] = waits;
            gone.abort();
            assert!(gone.await.is_err_and(|error| error.is_cancelled()));
            let [of_5, of_6] = writes;
            drop(of_5);
            assert!(queue(5).is_first(), "nobody is before the next");
            assert!(lane(&dashboard, Viewer(6), Duration::ZERO).await.is_err(), "it does not wait for ever");
            drop(of_6);
            assert!(stays.await.expect("no panic").is_ok());
            assert!(confirm(5).await.is_ok(), "the control");
        });
    }

    #[tokio::test]
    async fn an_answer_about_changes_is_short_and_says_what_is_left_out_and_each_user_is_in_it() {
        let long = LONGEST as usize / 10 - 10;
        let many: Vec<String> = (0..5).map(|n| format!("/{n}")).collect();
        let mut changes: Vec<(u32, &str, usize)> = many.iter().map(|path| (5, path.as_str(), long)).collect();
        changes.push((6, "/small", 30));
        let (_folder, dashboard) = dashboard(&changes);
        let of = |viewer: u32| {
            let reader = SessionReader::open(&dashboard.sessions.db).expect("opens");
            let rows = reader.pending_rules(Viewer(viewer)).expect("reads");
            assert!(rows.iter().map(|row| row.to_string().len()).sum::<usize>() < 3 << 20);
            let uids: Vec<u64> = rows.iter().filter_map(|row| row["uid"].as_u64()).collect();
            (uids, rows[0]["left_out"].clone())
        };
        assert_eq!(of(6), (vec![6], json!(0)), "the control");
        assert_eq!(of(5), (vec![5], json!(4)));
        assert_eq!(of(0), (vec![6], json!(5)), "one user's long ones do not keep another's out");
    }
}
