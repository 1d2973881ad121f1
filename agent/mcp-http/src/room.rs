//! How many bytes of messages are held at a time, of all that are under way: whoever sends many long ones at once is
//! refused some of them, and takes no more memory than that.

use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes that one permit stands for.
const UNIT: usize = 4 << 10;

/// There is no more room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many bytes are under way at once")]
pub(crate) struct Full;

/// The room of all answers.
#[derive(Debug, Clone)]
pub(crate) struct Rooms(Arc<Semaphore>);

impl Rooms {
    /// Room for so many bytes in all.
    pub(crate) fn new(bytes: usize) -> Self {
        Self(Arc::new(Semaphore::new((bytes / UNIT).clamp(1, Semaphore::MAX_PERMITS))))
    }

    /// The room of one answer, which holds nothing yet.
    pub(crate) fn one(&self) -> Room {
        Room { of: Arc::clone(&self.0), has: None }
    }
}

/// What one answer holds; given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Room {
    of: Arc<Semaphore>,
    has: Option<OwnedSemaphorePermit>,
}

impl Room {
    /// Another of the same room, which holds nothing.
    pub(crate) fn beside(&self) -> Self {
        Self { of: Arc::clone(&self.of), has: None }
    }

    /// Holds what another held as well; of other rooms, that is given back.
    pub(crate) fn join(&mut self, other: Self) {
        if !Arc::ptr_eq(&self.of, &other.of) {
            return;
        }
        match (&mut self.has, other.has) {
            (Some(has), Some(more)) => has.merge(more),
            (None, more) => self.has = more,
            (Some(_), None) => {}
        }
    }

    /// Makes it hold so many bytes: more or less than before.
    ///
    /// # Errors
    /// [`Full`].
    pub(crate) fn set(&mut self, bytes: usize) -> Result<(), Full> {
        let (needed, has) =
            (bytes.div_ceil(UNIT), self.has.as_ref().map_or(0, OwnedSemaphorePermit::num_permits));
        if needed > has {
            let more = u32::try_from(needed - has).map_err(|_| Full)?;
            let more = Arc::clone(&self.of).try_acquire_many_owned(more).map_err(|_| Full)?;
            match &mut self.has {
                Some(has) => has.merge(more),
                none => *none = Some(more),
            }
        } else if let Some(permit) = &mut self.has {
            drop(permit.split(has - needed));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_holds_the_others_lack_until_it_is_given_back() {
        let rooms = Rooms::new(10 * UNIT);
        let (mut one, mut other) = (rooms.one(), rooms.one());
        one.set(8 * UNIT).unwrap();
        assert_eq!(other.set(3 * UNIT), Err(Full));
        other.set(2 * UNIT).unwrap();
        one.set(UNIT + 1).unwrap();
        other.set(8 * UNIT).unwrap();
        assert_eq!(one.set(3 * UNIT), Err(Full));
        drop(other);
        one.set(10 * UNIT).unwrap();
        one.set(0).unwrap();
        rooms.one().set(10 * UNIT).unwrap();
    }

    #[test]
    fn what_is_handed_over_need_not_be_found_again() {
        let rooms = Rooms::new(10 * UNIT);
        let (mut kept, mut found) = (rooms.one(), rooms.one());
        kept.set(4 * UNIT - 1).unwrap();
        found.set(6 * UNIT - 1).unwrap();
        assert_eq!(kept.set(10 * UNIT - 2), Err(Full), "the control");
        kept.join(found);
        kept.set(10 * UNIT - 2).unwrap();
        assert_eq!(rooms.one().set(1), Err(Full));
        kept.set(0).unwrap();
        rooms.one().set(10 * UNIT).unwrap();
    }
}
