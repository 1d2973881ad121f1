//! The line of a container's egress worker: what was connected to by name comes in, and so do questions for a person, whose answers
//! go out.
//!
//! The core connects and says which container it is of; the worker has the connection from then on. It reads what agents and
//! servers send it, so that it may be in their hands: all that it can say is about its own container, and it is read no faster
//! than [`EACH`].

use super::{
    connections::Questions,
    link::{Link, LinkWriter},
    sessions::Sessions,
};
use crate::{
    queue::{Item, NotSent},
    shared::Shared,
};
use nix::{
    poll::{PollFd, PollFlags, ppoll},
    sys::time::TimeSpec,
};
use ringfence_base::clock;
use ringfence_events::{
    decode::Decoded,
    egress::{Checked, Now, can_decide, check, decider},
    manifests::Identity,
};
use ringfence_store::{Event, Incoming};
use ringfence_wire::{
    conn::Conn,
    egress::{EgressLine, EgressReport, MAX_REPORTS},
    egress_asks::EgressSaid,
    frame::FrameError,
    mcp::McpReply,
    message::Failure,
};
use std::{
    io,
    net::Shutdown,
    os::fd::AsFd,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// How long a report takes on average: a container's worker tells no more than the kernel does of the container, so that what it
/// did is not deleted any sooner to make room.
const EACH: Duration = Duration::from_millis(2);
/// A question takes as long as so many reports: rules are read for it.
const OF_ASK: usize = 4;
/// And so much sooner where it told little before.
const BURST: Duration = Duration::from_secs(2);
/// How often it is looked whether there is room for what was told.
const LOOK: Duration = Duration::from_millis(20);
/// How often it is looked whether questions were answered, or what was left unread is taken.
const TIDY: Duration = Duration::from_millis(500);
/// Longest name of a profile, bytes.
const LONGEST_PROFILE: usize = 128;
/// Bytes of a report in JSON, about.
const IN_JSON: usize = 512;
/// A container's addresses.
const BLOCK: u8 = 24;

/// Serves a line until its worker ends.
///
/// # Errors
/// [`FrameError`]: also that the worker ended, or said what none says.
pub(super) fn serve(
    mut conn: Conn,
    sessions: &Arc<Sessions>,
    line: &EgressLine,
    uid: u32,
    still: &dyn Fn() -> bool,
) -> Result<(), FrameError> {
    let refuse = |conn: &mut Conn, why: String| conn.send(&McpReply::Failed(Failure::new(why)));
    let Some(shared) = sessions.shared().filter(|_| uid == 0) else {
        return refuse(&mut conn, "only the daemon has the lines of egress workers made".to_owned());
    };
    if !is_sound(line) {
        return refuse(&mut conn, "that is no container of the daemon's".to_owned());
    }
    // A confined root is none that anybody believes about another container.
    if let Err(why) = sessions.may_approve(uid, conn.stream(), still) {
        sessions.waiting.refusals.log(conn.stream(), "the line of an egress worker is", &why);
        return refuse(&mut conn, why.to_string());
    }
    let spare = conn.stream().try_clone().map_err(FrameError::from_io)?;
    // By whose container it is: nobody keeps another user's containers off the record.
    let Some(permit) = sessions.egress.take(line.uid, move || drop(spare.shutdown(Shutdown::Both))) else {
        let why = format!("too many containers of uid {} have an egress worker", line.uid);
        sessions.turned.log(conn.stream(), "the line of an egress worker is", &why);
        return refuse(&mut conn, why);
    };
    if !permit.busy() {
        return Err(FrameError::Closed);
    }
    let link: Link = Arc::new(LinkWriter::new(conn.stream().try_clone().map_err(FrameError::from_io)?));
    link.open(&McpReply::Linked)?;
    listen(&mut conn.up_to(MAX_REPORTS), (sessions, shared), (line, &link), &|| still() && permit.is_held())
}

fn listen(
    conn: &mut Conn,
    (sessions, shared): (&Sessions, &Shared),
    (line, link): (&EgressLine, &Link),
    still: &dyn Fn() -> bool,
) -> Result<(), FrameError> {
    let identity = Arc::new(Identity {
        public: line.public.clone(),
        profile: line.profile.clone(),
        uid: line.uid,
        created: line.created,
    });
    let mut questions = Questions::new(sessions, line, link);
    let mut pace = Pace { until: Instant::now() };
    loop {
        let mut wanted = PollFlags::POLLIN;
        wanted.set(PollFlags::POLLOUT, link.is_behind());
        let look = (link.is_behind() || !questions.is_empty()).then(|| TimeSpec::from_duration(TIDY));
        let mut polled = [PollFd::new(conn.stream().as_fd(), wanted)];
        ppoll(&mut polled, look, None).map_err(|errno| FrameError::from_io(io::Error::from(errno)))?;
        let [ready] =
            polled.map(|fd| fd.revents().is_none_or(|events| events.intersects(!PollFlags::POLLOUT)));
        link.flush()?;
        questions.tidy();
        if !ready {
            continue;
        }
        let EgressSaid { reports, asks } = match conn.receive::<EgressSaid>() {
            Ok(said) => said,
            Err(error) => {
                if matches!(error, FrameError::Json(_) | FrameError::TooLong { .. } | FrameError::Empty) {
                    strange(sessions, line);
                }
                return Err(error);
            }
        };
        let mut is_sound = !(reports.is_empty() && asks.is_empty());
        let count = reports.len();
        let rest = pace.after(count + asks.len() * OF_ASK, Instant::now());
        for ask in asks {
            is_sound &= questions.take(ask, still)?;
        }
        let incoming = taken(sessions, shared, (line, &identity), reports).filter(|_| is_sound);
        let Some(incoming) = incoming else {
            strange(sessions, line);
            return Err(FrameError::Closed);
        };
        thread::sleep(rest);
        if count > 0 {
            hand_over(shared, incoming, count * IN_JSON, still)?;
        }
    }
}

/// What no worker of ours says ends its line: it may have another, and is heard from its first word on.
fn strange(sessions: &Sessions, line: &EgressLine) {
    sessions.turned.warn(line.uid, || {
        format!(
            "the egress worker of container {} tells what no worker tells: its line is ended",
            line.public
        )
    });
}

/// What is to be stored of what was told. `None`: no worker tells that.
fn taken(
    sessions: &Sessions,
    shared: &Shared,
    (line, identity): (&EgressLine, &Arc<Identity>),
    told: Vec<EgressReport>,
) -> Option<Vec<Incoming>> {
    let now = Now { micros: clock::now_micros(), boot: clock::since_boot() };
    let checked: Vec<Checked> =
        told.into_iter().map(|report| check(line, report, now)).collect::<Option<_>>()?;
    let manifests = shared.manifests();
    let incoming = checked.into_iter().map(|checked| match checked {
        Checked::Lost(count) => {
            Incoming::EgressLost { kernel: line.container, identity: Arc::clone(identity), count }
        }
        Checked::Event { ts, rule, record } => {
            let (rule, generation) = manifests.named(line.container, rule, |rule| can_decide(rule, &record));
            sessions.metrics.told(&record);
            let decider = decider(rule, &record);
            let record = Decoded { generation, ..*record };
            Incoming::Event(Box::new(Event { ts, identity: Some(Arc::clone(identity)), decider, record }))
        }
    });
    Some(incoming.collect())
}

/// Hands on what is to be stored, and waits for room: the worker waits meanwhile, and counts what it has no room for.
fn hand_over(
    shared: &Shared,
    incoming: Vec<Incoming>,
    bytes: usize,
    still: &dyn Fn() -> bool,
) -> Result<(), FrameError> {
    let mut item = Item::Batch { sequence: None, incoming };
    while still() {
        item = match shared.tell(item, bytes) {
            Ok(()) => return Ok(()),
            Err(NotSent::Full(item)) => item,
            Err(NotSent::Closed) => return Err(FrameError::Closed),
        };
        thread::sleep(LOOK);
    }
    Err(FrameError::Closed)
}

/// Whether the daemon can have said this.
fn is_sound(line: &EgressLine) -> bool {
    let is_id = |id: &str| id.len() == 12 && id.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_id(&line.public)
        && line.within.as_deref().is_none_or(is_id)
        && !line.profile.is_empty()
        && line.profile.len() <= LONGEST_PROFILE
        && line.block.prefix_len() == BLOCK
}

/// How fast a worker is listened to.
#[derive(Debug)]
struct Pace {
    /// When all that was taken would have come at the average.
    until: Instant,
}

impl Pace {
    /// How long to wait after so many reports more.
    fn after(&mut self, reports: usize, now: Instant) -> Duration {
        let reports = u32::try_from(reports).unwrap_or(u32::MAX);
        self.until = self.until.max(now) + EACH.saturating_mul(reports);
        self.until.saturating_duration_since(now + BURST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_is_heard_out_at_once_and_then_at_its_pace() {
        let start = Instant::now();
        let mut pace = Pace { until: start };
        let burst: Vec<Duration> = (0..15).map(|_| pace.after(64, start)).collect();
        assert!(burst.iter().all(Duration::is_zero), "{burst:?}");
        assert_eq!(pace.after(64, start), Duration::from_millis(48));
        assert_eq!(pace.after(64, start + Duration::from_millis(48)), Duration::from_millis(128));
        assert_eq!(pace.after(64, start + Duration::from_secs(60)), Duration::ZERO);
    }
}
