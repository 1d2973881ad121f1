//! Which connection has a session: its journal is read by one at a time.

use ringfence_wire::conn::is_hung_up;
use std::{
    collections::{HashMap, hash_map::Entry},
    io,
    os::unix::net::UnixStream,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// How long a session's new connection waits for the end of the one before it, whose interceptor has hung up: what the journal
/// has is stored first.
const PATIENCE: Duration = Duration::from_secs(30);
/// How soon it sees that end.
const SLICE: Duration = Duration::from_millis(20);

/// The sessions that connections have.
#[derive(Debug, Clone, Default)]
pub(super) struct Claims(Arc<Mutex<HashMap<String, Holder>>>);

/// Whose a session is, and by which connection.
#[derive(Debug)]
struct Holder {
    uid: u32,
    stream: UnixStream,
}

/// A session that a connection has; given back when dropped.
#[derive(Debug)]
pub(super) struct Claim {
    claims: Claims,
    session: String,
}

impl Claims {
    /// Claims a session for a connection. `None`: another has it. One whose interceptor has hung up, having waited too long for
    /// an answer, ends soon, and is waited for as long as `still` says: the next is of the same interceptor.
    ///
    /// # Errors
    /// Where the descriptor cannot be duplicated.
    pub(super) fn claim(
        &self,
        session: &str,
        uid: u32,
        stream: &UnixStream,
        still: &dyn Fn() -> bool,
    ) -> io::Result<Option<Claim>> {
        let holder = Holder { uid, stream: stream.try_clone()? };
        let until = Instant::now() + PATIENCE;
        loop {
            match self.lock().entry(session.to_owned()) {
                Entry::Vacant(free) => {
                    free.insert(holder);
                    return Ok(Some(Claim { claims: self.clone(), session: session.to_owned() }));
                }
                Entry::Occupied(other) if other.get().uid != uid || !is_hung_up(&other.get().stream) => {
                    return Ok(None);
                }
                Entry::Occupied(_) => {}
            }
            if !still() || is_hung_up(stream) || Instant::now() >= until {
                return Ok(None);
            }
            thread::sleep(SLICE);
        }
    }

    /// Whether no connection has this session.
    pub(super) fn is_free(&self, session: &str) -> bool {
        !self.lock().contains_key(session)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Holder>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.claims.lock().remove(&self.session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (UnixStream, UnixStream) {
        UnixStream::pair().expect("a pair")
    }

    #[test]
    fn a_session_is_one_connection_s_until_that_ends() {
        let claims = Claims::default();
        let ((ours, _theirs), (next, _other)) = (pair(), pair());
        let claim = |stream| claims.claim("s", 1000, stream, &|| true).expect("a descriptor");
        let first = claim(&ours).expect("free");
        assert!(claim(&next).is_none(), "its interceptor is there");
        assert!(claims.claim("t", 1000, &next, &|| true).expect("a descriptor").is_some(), "the control");
        drop(first);
        assert!(claim(&next).is_some() && claims.is_free("s"));
    }

    #[test]
    fn an_interceptor_that_hung_up_is_waited_for_by_itself_alone() {
        let claims = Claims::default();
        let ((ours, theirs), (next, other)) = (pair(), pair());
        let first = claims.claim("s", 1000, &ours, &|| true).expect("a descriptor").expect("free");
        drop(theirs);
        assert!(claims.claim("s", 1001, &next, &|| true).expect("a descriptor").is_none(), "another user's");
        assert!(claims.claim("s", 1000, &next, &|| false).expect("a descriptor").is_none(), "it had to go");
        let waits = thread::spawn({
            let claims = claims.clone();
            let next = next.try_clone().expect("a descriptor");
            move || claims.claim("s", 1000, &next, &|| true).expect("a descriptor").is_some()
        });
        thread::sleep(Duration::from_millis(50));
        assert!(!waits.is_finished(), "until it has ended");
        drop(first);
        assert!(waits.join().expect("no panic"));
        let _first = claims.claim("s", 1000, &ours, &|| true).expect("a descriptor").expect("free");
        drop(other);
        assert!(
            claims.claim("s", 1000, &next, &|| true).expect("a descriptor").is_none(),
            "who hung up as well"
        );
    }
}
