//! The socket of MCP sessions: interceptors' links, and the command line's questions.

use super::{
    agent_line,
    approvals::NotApproved,
    attribution, egress_line,
    rule_changes::{NotChanged, listed, suggested},
    session_link::{admit, link, open_journal},
    sessions::Sessions,
    tools::{self, NotDecided, ToolDecision},
    waiting::{Decider, Refused},
};
use crate::accept::{Peer, Service};
use ringfence_base::{
    clock,
    error::chain,
    quota::{Permit, Permits},
};
use ringfence_session::{exceptions, heads::database};
use ringfence_store::{self as store, CallFilter, Changed, SessionReader, Shown, Viewer};
use ringfence_wire::{
    conn::Conn,
    frame::FrameError,
    mcp::{MAX_FIRST, MAX_MESSAGE, MAX_OFFERED, MAX_PATH, McpReply, McpRequest},
    message::Failure,
};
use std::{
    os::unix::net::UnixStream,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

/// How long a peer may take for one message.
const LIMIT: Duration = Duration::from_secs(5);
/// How long a question waits for others of the same user.
const TURN: Duration = Duration::from_secs(30);
/// Journals asked for after one offer.
const MAX_WANTED: usize = 256;

/// Why a change of rules is not confirmed.
pub(crate) const NOT_PENDING: &str =
    "no such change of a rule file waits: it was confirmed or taken back, or the file was changed again";

impl Service for Sessions {
    const NAME: &'static str = "mcp";
    const STACK: usize = 1 << 20;
    const SILENCE: Duration = LIMIT;

    fn permits(&self) -> &Permits {
        &self.connections
    }

    fn evicted(&self, Peer { uid, pid }: Peer) {
        self.turned_away.fetch_add(1, Ordering::Relaxed);
        self.turned.warn(uid, || {
            format!("a connection of process {pid} of user {uid} was ended: another one needs its place")
        });
    }

    fn turned_away(&self, Peer { uid, pid }: Peer, stream: UnixStream) {
        self.turned_away.fetch_add(1, Ordering::Relaxed);
        self.turned.warn(uid, || {
            format!("process {pid} of user {uid} was turned away: too many connections about MCP sessions")
        });
        let failure = Failure::new("too many connections to the auditor at once; close some and try again");
        let _ = Conn::new(stream, Duration::from_millis(100), MAX_MESSAGE).send(&McpReply::Failed(failure));
    }

    fn converse(self: Arc<Self>, peer: Peer, stream: UnixStream, permit: &Permit) -> Result<(), FrameError> {
        converse(stream, peer.uid, permit, &self)
    }
}

fn converse(
    stream: UnixStream,
    uid: u32,
    permit: &Permit,
    sessions: &Arc<Sessions>,
) -> Result<(), FrameError> {
    let viewer = Viewer(uid);
    let mut conn = Conn::new(stream, LIMIT, MAX_FIRST);
    let (request, descriptors) = conn.receive_with_descriptors::<McpRequest>()?;
    if !permit.busy() {
        // Evicted. What it had written before is there to be read all the same: whoever went on with that would be one of any
        // number.
        return Err(FrameError::Closed);
    }
    let still = || permit.is_held();
    sessions.used.store(true, Ordering::Relaxed);
    let failed = |error: String| McpReply::Failed(Failure::new(error));
    if let McpRequest::Session { journal, .. } | McpRequest::Journal { journal, .. } = &request
        && journal.len() > MAX_PATH
    {
        // It is written with every batch of rows.
        return conn.send(&failed(format!("the path of a journal has no more than {MAX_PATH} bytes")));
    }
    // Forty questions of one user are not before another's.
    let lanes = match &request {
        // A person's decision waits for nobody's questions, and a session's rows have a lane of their own.
        McpRequest::Session { .. }
        | McpRequest::AgentTools { .. }
        | McpRequest::Egress(_)
        | McpRequest::Waiting
        | McpRequest::Decide { .. }
        | McpRequest::ApproveFor { .. }
        | McpRequest::Revoke { .. }
        | McpRequest::Dashboard => None,
        McpRequest::Journal { .. } => Some(&sessions.journals),
        _ => Some(&sessions.questions),
    };
    let lane = lanes.map(|lanes| lanes.enter(uid, Instant::now() + TURN, still));
    if matches!(lane, Some(None)) {
        let why = "your other questions to the auditor are not answered yet; try again";
        return conn.send(&failed(why.to_owned()));
    }
    let refused = |what: &str, why: &Refused| sessions.waiting.refusals.log(conn.stream(), what, why);
    let reply = match request {
        McpRequest::Session { session, journal, http } => {
            return match admit(&conn, sessions, (&session, journal, http), uid, descriptors, &still) {
                Ok(admitted) => link(conn, sessions, (&session, uid), admitted, &still),
                Err(error) => conn.send(&failed(error)),
            };
        }
        McpRequest::AgentTools { agent, owner } => {
            return agent_line::serve(conn, sessions, (agent, owner), uid, &still);
        }
        McpRequest::Egress(line) => return egress_line::serve(conn, sessions, &line, uid, &still),
        McpRequest::Waiting => McpReply::Waiting { calls: sessions.waiting.list(uid) },
        McpRequest::Decide { call, approve } => {
            let decided = sessions.peers.facts(uid, conn.stream(), &still).and_then(|facts| {
                let who = Decider::Process { uid, facts };
                let known = sessions.waiting.known(&call, &who)?;
                // Nobody is known who started it: that no client's agent lets it go is all that can be told. A no harms nobody.
                if known.connection.is_some() && approve {
                    sessions.may_approve(uid, conn.stream(), &still)?;
                }
                sessions.waiting.decide(&known.call, approve, &who)
            });
            let decided = decided.inspect_err(|why| refused("a decision about a waiting call is", why));
            decided.map_or_else(|e| failed(e.to_string()), |call| McpReply::Decided { call })
        }
        // It reaches other sessions' calls: whoever one of their clients started gives none, whichever call it names.
        McpRequest::ApproveFor { call, standing } => {
            let facts = sessions
                .may_approve(uid, conn.stream(), &still)
                .and_then(|()| sessions.peers.facts(uid, conn.stream(), &still));
            match facts {
                Err(why) => {
                    refused("an approval of more than one call is", &why);
                    failed(why.to_string())
                }
                Ok(facts) => match sessions.writer.wait(uid, still) {
                    None => return Err(FrameError::Closed),
                    Some(lane) => {
                        let who = Decider::Process { uid, facts };
                        let given = sessions.approve_for(&call, &standing, &who, lane);
                        if let Err(NotApproved::Refused(why)) = &given {
                            refused("an approval of more than one call is", why);
                        }
                        given.map_or_else(
                            |error| failed(chain(&error)),
                            |(call, approval)| McpReply::Stands { call, approval },
                        )
                    }
                },
            }
        }
        McpRequest::Revoke { approval } => match sessions.may_approve(uid, conn.stream(), &still) {
            Err(why) => {
                refused("the end of an approval is", &why);
                failed(why.to_string())
            }
            Ok(()) => match sessions.writer.wait(uid, still) {
                None => return Err(FrameError::Closed),
                Some(lane) => sessions
                    .revoke_approval(viewer, &approval, &format!("uid {uid}, command line"), lane)
                    .map_or_else(|error| failed(chain(&error)), |approval| McpReply::Revoked { approval }),
            },
        },
        McpRequest::ConfirmRules { path, sha256 } => match sessions.may_approve(uid, conn.stream(), &still) {
            Err(why) => {
                refused("a confirmation of changed rules is", &why);
                failed(why.to_string())
            }
            Ok(()) => match sessions.writer.wait(uid, still) {
                None => return Err(FrameError::Closed),
                Some(lane) => {
                    match sessions.confirm_rules(uid, (&path, &sha256), &format!("uid {uid}"), lane) {
                        Ok(true) => McpReply::Confirmed,
                        Ok(false) => failed(NOT_PENDING.to_owned()),
                        Err(error) => failed(chain(&error)),
                    }
                }
            },
        },
        McpRequest::ChangeRule { change, agreed } => match sessions.may_approve(uid, conn.stream(), &still) {
            Err(why) => {
                refused("a change of a rule is", &why);
                failed(why.to_string())
            }
            Ok(()) => match sessions.writer.wait(uid, still) {
                None => return Err(FrameError::Closed),
                Some(lane) => {
                    let by = format!("uid {uid}, command line");
                    match sessions.change_rule(viewer, &change, (&by, agreed), lane) {
                        Ok(rule) => McpReply::RuleChanged { rule },
                        Err(NotChanged::Refused(Changed::Loosens(rule))) => McpReply::Loosens { rule },
                        Err(error) => failed(chain(&error)),
                    }
                }
            },
        },
        McpRequest::DecideTool { server, tool, sha256, approve } => {
            let decision = ToolDecision::Tool { server, tool, sha256, approve };
            return conn.send(&decide_tool(sessions, (uid, &conn), &decision, &still)?);
        }
        McpRequest::ForgetServer { server } => {
            return conn.send(&decide_tool(
                sessions,
                (uid, &conn),
                &ToolDecision::Forget { server },
                &still,
            )?);
        }
        // It says what would go unseen, and takes a while: whoever may not change a rule has no use for it that is good.
        McpRequest::TryRule { change, days } => match sessions.may_approve(uid, conn.stream(), &still) {
            Err(why) => {
                refused("a dry run of a rule is", &why);
                failed(why.to_string())
            }
            Ok(()) => sessions
                .readers
                .ask(|reader| Ok(sessions.try_rule(reader, viewer, &change, days)))
                .map_err(NotChanged::from)
                .flatten()
                .map_or_else(|error| failed(chain(&error)), |row| McpReply::Rows { rows: vec![row] }),
        },
        McpRequest::Dashboard => match sessions.port.load(Ordering::SeqCst) {
            0 => failed("the auditor has no dashboard: no port was free".to_owned()),
            port => match sessions.may_approve(uid, conn.stream(), &still).map(|()| sessions.token(uid)) {
                Ok(token) => McpReply::Dashboard { url: format!("http://127.0.0.1:{port}/#token={token}") },
                Err(why) => {
                    refused("the dashboard's token is", &why);
                    failed(why.to_string())
                }
            },
        },
        McpRequest::Offer { sessions: mut offered } => {
            offered.truncate(MAX_OFFERED);
            offered.retain(|session| uuid::Uuid::try_parse(session).is_ok() && !sessions.is_linked(session));
            let found = sessions
                .readers
                .ask(|reader| Ok((reader.removed(viewer, &offered)?, reader.missing(viewer, offered)?)));
            match found {
                Ok((removed, mut wanted)) => {
                    wanted.truncate(MAX_WANTED);
                    McpReply::Wanted { sessions: wanted, removed }
                }
                Err(error) => failed(chain(&error)),
            }
        }
        McpRequest::Journal { session, journal } => {
            let taken = open_journal(descriptors, &session).and_then(|file| {
                let Some(_claim) = sessions.claim((&session, uid), conn.stream(), &still)? else {
                    return Err(format!("session {session} is linked: its interceptor lives"));
                };
                sessions.catch_up((session, journal), uid, file, &still).map_err(|error| {
                    sessions.suspect(&error);
                    chain(&error)
                })
            });
            taken.map_or_else(failed, |()| McpReply::Taken)
        }
        McpRequest::Stderr { session, after, limit } => {
            of_session(sessions, viewer, &session, |reader, id| reader.stderr(viewer, &id, after, limit))
        }
        McpRequest::Calls { risk, verdict, outcome, session: Some(session), container, limit } => {
            of_session(sessions, viewer, &session, |reader, id| {
                let session = Some(id);
                let filter =
                    CallFilter { risk, verdict, outcome, session, container, limit, ..CallFilter::default() };
                reader.calls(viewer, &filter)
            })
        }
        question => sessions
            .readers
            .ask(|reader| match question {
                McpRequest::Calls { risk, verdict, outcome, session, container, limit } => {
                    let filter = CallFilter {
                        risk,
                        verdict,
                        outcome,
                        session,
                        container,
                        limit,
                        ..CallFilter::default()
                    };
                    reader.calls(viewer, &filter)
                }
                McpRequest::Table { table, after, limit, as_text } => {
                    let shown = if as_text { Shown::Text } else { Shown::Parsed };
                    reader.table(viewer, &table, after, limit, shown)
                }
                McpRequest::Call { call } => {
                    let id = reader.whole_id(viewer, &call)?;
                    let row = id.map(|id| detail(sessions, viewer, &id)).transpose()?.flatten();
                    Ok(row.into_iter().collect())
                }
                McpRequest::Sessions { limit } => reader.sessions(viewer, limit),
                McpRequest::Approvals => reader.approvals(viewer, clock::now_micros()),
                McpRequest::PendingRules => reader.pending_rules(viewer),
                McpRequest::Inventory { server } => reader.inventory(viewer, server.as_deref()),
                McpRequest::PendingTools { named } => tools::pending(reader, viewer, named.as_deref()),
                McpRequest::AgentPins { agent, of_daemon, after } => {
                    reader.agent_pins(viewer, (&agent, of_daemon), after)
                }
                McpRequest::Rules => listed(reader, viewer, sessions.rule_file.as_deref()),
                McpRequest::Heads => {
                    let heads = reader.heads(viewer, &database(&sessions.db), false)?;
                    Ok(heads.iter().map(|head| serde_json::json!({ "head": head.to_string() })).collect())
                }
                _ => reader.stats(viewer).map(|row| vec![row]),
            })
            .map_or_else(|e| failed(chain(&e)), |rows| McpReply::Rows { rows }),
    };
    drop(lane);
    conn.send(&reply)
}

/// Decides about a tool on behalf of whoever asks, if that is nobody whose own calls it would let pass.
fn decide_tool(
    sessions: &Sessions,
    (uid, conn): (u32, &Conn),
    decision: &ToolDecision,
    still: &dyn Fn() -> bool,
) -> Result<McpReply, FrameError> {
    let failed = |error: String| McpReply::Failed(Failure::new(error));
    if let Err(why) = sessions.may_approve(uid, conn.stream(), still) {
        sessions.waiting.refusals.log(conn.stream(), "a decision about a tool is", &why);
        return Ok(failed(why.to_string()));
    }
    let lane = sessions.writer.wait(uid, still).ok_or(FrameError::Closed)?;
    let decided = sessions.decide_tool(Viewer(uid), decision, &format!("uid {uid}, command line"), lane);
    Ok(decided.map_or_else(|error: NotDecided| failed(chain(&error)), |()| McpReply::ToolDecided))
}

/// Rows of the session whose id begins with this.
fn of_session(
    sessions: &Sessions,
    viewer: Viewer,
    beginning: &str,
    rows: impl FnOnce(&SessionReader, String) -> Result<Vec<serde_json::Value>, store::Error>,
) -> McpReply {
    let found = sessions.readers.ask(|reader| {
        let id = reader.whole_session(viewer, beginning)?;
        id.map(|id| rows(reader, id)).transpose()
    });
    match found {
        Ok(Some(rows)) => McpReply::Rows { rows },
        Ok(None) => McpReply::Failed(Failure::new(format!(
            "no session's id begins with {beginning:?}, or more than one does (give at least four characters); `ringfence mcp sessions` lists them"
        ))),
        Err(error) => McpReply::Failed(Failure::new(chain(&error))),
    }
}

/// One call, whole, with what the kernel saw of it as `events`, and in `events_cut` whether that is not all; and what of a rule
/// about calls like it can be said, as `suggested_rule`, and of an exception, as `suggested_exception`.
///
/// # Errors
/// Those of the store.
pub(crate) fn detail(
    sessions: &Sessions,
    viewer: Viewer,
    call: &str,
) -> Result<Option<serde_json::Value>, store::Error> {
    let Some(mut row) = sessions.readers.ask(|reader| reader.call(viewer, call))? else { return Ok(None) };
    let (events, cut) = attribution::of_call(sessions, viewer, call)?;
    row["events"] = serde_json::json!(events);
    row["events_cut"] = cut.into();
    row["suggested_rule"] = suggested(&row);
    row["suggested_exception"] = exceptions::suggested(&row);
    Ok(Some(row))
}

#[cfg(test)]
mod tests;
