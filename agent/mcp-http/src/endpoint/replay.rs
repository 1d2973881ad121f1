//! The events of one stream, kept for a client that lost its connection. Pure.

use crate::room::Room;
use std::collections::VecDeque;

/// Most events that are kept.
const MOST: usize = 1024;
/// Most bytes of them, but for the last one, which is kept however long it is.
const BYTES: usize = 8 << 20;

/// The last events of a stream, each with its number: 1 is the first.
#[derive(Debug)]
pub(super) struct Replay {
    kept: VecDeque<Event>,
    bytes: usize,
    last: u64,
    /// The last one that is kept no more and that somebody may wait for; 0: there is none.
    lost: u64,
    room: Room,
}

#[derive(Debug)]
struct Event {
    number: u64,
    message: Vec<u8>,
    /// An answer or a request: without it, one of both sides waits for ever.
    is_awaited: bool,
}

impl Replay {
    /// Of a stream that begins; its events are held in this room.
    pub(super) fn new(room: Room) -> Self {
        Self { kept: VecDeque::new(), bytes: 0, last: 0, lost: 0, room }
    }

    /// Takes over the room that was found for the next one.
    pub(super) fn add(&mut self, room: Room) {
        self.room.join(room);
    }

    /// The next one; its number. Where there is no room any more, nothing is kept. `is_awaited`: one side waits for it.
    pub(super) fn push(&mut self, message: Vec<u8>, is_awaited: bool) -> u64 {
        self.last += 1;
        self.bytes += message.len();
        self.kept.push_back(Event { number: self.last, message, is_awaited });
        while self.kept.len() > 1 && (self.kept.len() > MOST || self.bytes > BYTES) {
            self.drop_first(u64::MAX);
        }
        if self.room.set(self.bytes).is_err() {
            self.clear();
        }
        self.last
    }

    /// Keeps nothing of what there was.
    pub(super) fn clear(&mut self) {
        self.forget(u64::MAX);
    }

    /// Keeps nothing up to this one.
    pub(super) fn forget(&mut self, number: u64) {
        while self.drop_first(number) {}
        let _ = self.room.set(self.bytes);
    }

    /// Drops the first that is kept, if it is none behind this number.
    fn drop_first(&mut self, number: u64) -> bool {
        let Some(event) = self.kept.pop_front_if(|event| event.number <= number) else { return false };
        self.bytes -= event.message.len();
        if event.is_awaited {
            self.lost = event.number;
        }
        true
    }

    /// Whether something behind this number is kept no more that somebody may wait for.
    pub(super) fn lacks(&self, number: u64) -> bool {
        number < self.lost
    }

    /// A room beside its own, which holds nothing.
    pub(super) fn no_room(&self) -> Room {
        self.room.beside()
    }

    /// Those behind this number, in their order.
    pub(super) fn after(&self, number: u64) -> impl Iterator<Item = (u64, &[u8])> {
        let kept = self.kept.iter().filter(move |event| event.number > number);
        kept.map(|event| (event.number, event.message.as_slice()))
    }
}

/// The id of an event, as clients send it back: its stream and its number there.
pub fn id(stream: u64, number: u64) -> String {
    format!("{stream}-{number}")
}

/// What an id of ours says; nothing for any other.
pub fn read_id(text: &str) -> Option<(u64, u64)> {
    let (stream, number) = text.split_once('-')?;
    let whole = |digits: &str| digits.bytes().all(|byte| byte.is_ascii_digit());
    Some((stream.parse().ok()?, number.parse().ok()?)).filter(|_| whole(stream) && whole(number))
}

/// A message as an event. Its line end is none of the event's data.
pub fn event(id: &str, message: &[u8]) -> Vec<u8> {
    let message = message.strip_suffix(b"\n").unwrap_or(message);
    let mut event = format!("id: {id}\nevent: message\n").into_bytes();
    // A message is one line. One that is not would be two fields.
    for line in message.split(|byte| matches!(byte, b'\n' | b'\r')) {
        event.extend_from_slice(b"data: ");
        event.extend_from_slice(line);
        event.push(b'\n');
    }
    event.push(b'\n');
    event
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::room::Rooms;

    #[test]
    fn what_a_client_missed_comes_in_order_and_old_events_go() {
        let mut replay = Replay::new(Rooms::new(3 * BYTES).one());
        for n in 1..=3_u8 {
            assert_eq!(replay.push(vec![n], true), u64::from(n));
        }
        let after = |replay: &Replay, n| replay.after(n).map(|(n, _)| n).collect::<Vec<_>>();
        assert_eq!(after(&replay, 0), [1, 2, 3]);
        assert_eq!(after(&replay, 2), [3]);
        assert_eq!(after(&replay, u64::MAX), [] as [u64; 0]);
        replay.push(vec![0; BYTES + 1], false);
        assert_eq!(after(&replay, 0), [4], "the last one stays, however long it is");
        for _ in 0..2 * MOST {
            replay.push(Vec::new(), false);
        }
        assert!(after(&replay, 0).len() <= MOST);
        replay.push(vec![0; 4 * BYTES], false);
        assert_eq!(after(&replay, 0), [] as [u64; 0], "there is no room for it");
        let next = replay.push(vec![1], false);
        assert_eq!(after(&replay, 0), [next], "but for the next");
    }

    #[test]
    fn what_somebody_waits_for_is_known_to_be_lost() {
        let rooms = Rooms::new(2 * BYTES);
        let mut replay = Replay::new(rooms.one());
        replay.push(vec![0; 9], false);
        replay.push(vec![0; 9], true);
        replay.push(vec![0; 9], false);
        replay.push(vec![0; 9], true);
        replay.forget(1);
        assert!(!replay.lacks(0), "nobody waits for that");
        replay.forget(3);
        assert!(replay.lacks(0) && replay.lacks(1) && !replay.lacks(2));
        replay.clear();
        assert!(replay.lacks(3) && !replay.lacks(4));
        let long = replay.push(vec![0; 3 * BYTES], true);
        assert!(replay.lacks(long - 1) && !replay.lacks(long), "there is no room for it");
        let first = replay.push(Vec::new(), true);
        for _ in 0..MOST {
            replay.push(Vec::new(), false);
        }
        assert!(replay.lacks(first - 1) && !replay.lacks(first));
        // With the room that was found for it, it is kept.
        let mut all = rooms.one();
        all.set(2 * BYTES).unwrap();
        replay.add(all);
        let next = replay.push(vec![0; 2 * BYTES], true);
        assert!(!replay.lacks(next - 1) && replay.after(next - 1).count() == 1);
    }

    #[test]
    fn an_id_is_ours_or_none() {
        assert_eq!(read_id(&id(7, 9)), Some((7, 9)));
        for none in ["", "-", "7", "7-", "-9", "7-9-1", "+7-9", "a-b", "99999999999999999999-1"] {
            assert_eq!(read_id(none), None, "{none}");
        }
    }

    #[test]
    fn an_event_holds_the_message_and_nothing_else() {
        assert_eq!(event("1-1", b"{\"a\":1}\n"), b"id: 1-1\nevent: message\ndata: {\"a\":1}\n\n");
        assert_eq!(event("1-1", b"a\rid: 9"), b"id: 1-1\nevent: message\ndata: a\ndata: id: 9\n\n");
    }
}
