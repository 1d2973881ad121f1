//! What is tried on the auditor: records of the kernel's rings, what egress workers tell, journals and ledgers of MCP sessions.

pub use super::web_targets as web;
use ringfence_base::escape;
use ringfence_common::{
    ABI_VERSION,
    event::{FLAG_ABSTRACT, FLAG_CUT, FLAG_EXE_CUT, Header, LARGE_SECTION, Op, SLACK, SMALL_SECTION},
};
use ringfence_events::{
    decode::{self, Decoded},
    egress::{self, Checked, Now},
};
use ringfence_session::rows::ingest::{Fold, Row};
use ringfence_session::{
    heads,
    journal::{self, Entry, GENESIS, Reader, Step},
    ledger::{self, Ledger},
};
use ringfence_wire::{
    egress::{EgressLine, MAX_NAME, REPORTS_AT_ONCE},
    egress_asks::{ASKS_AT_ONCE, EgressSaid},
};
use std::{
    collections::{HashMap, HashSet},
    convert::Infallible,
    io::Cursor,
    mem::offset_of,
};

/// Bytes of a short record, and of a long one.
const LENGTHS: [usize; 2] =
    [size_of::<Header>() + 3 * SMALL_SECTION + SLACK, size_of::<Header>() + 3 * LARGE_SECTION + SLACK];

/// Records of the rings: as they are, and, since no fuzzer guesses a length and a version, as the beginning of a record
/// whose first byte says which length it has. What is decoded is one line, and has every byte of the kernel's names.
pub fn records(data: &[u8]) {
    if let Ok(decoded) = decode::record(data) {
        lossless(data, &decoded);
    }
    let Some((long, rest)) = data.split_first() else { return };
    let long = usize::from(long & 1);
    let mut raw = rest.to_vec();
    raw.resize(LENGTHS[long], 0);
    let section = [SMALL_SECTION, LARGE_SECTION][long] as u16;
    let mut put = |at: usize, number: u16| raw[at..at + 2].copy_from_slice(&number.to_ne_bytes());
    put(offset_of!(Header, version), ABI_VERSION as u16);
    put(offset_of!(Header, section), section);
    if let Ok(decoded) = decode::record(&raw) {
        lossless(&raw, &decoded);
    }
}

/// What an egress worker tells of its container: what is taken of it is about that container, in its time, short and printable,
/// and is no record of the kernel's.
pub fn told(body: &[u8]) {
    let Ok(EgressSaid { reports, asks }) = serde_json::from_slice(body) else { return };
    assert!(asks.len() <= ASKS_AT_ONCE && reports.len() <= REPORTS_AT_ONCE);
    let now = Now { micros: 1_800_000_000_000_000, boot: 1_000_000_000 };
    let line = EgressLine {
        container: 0x1005,
        public: "0123456789ab".into(),
        profile: "coder".into(),
        uid: 1000,
        created: now.micros - 60_000_000,
        block: "198.18.3.0/24".parse().expect("a block"),
        within: None,
    };
    for report in reports {
        let Some(Checked::Event { ts, record, .. }) = egress::check(&line, report, now) else { continue };
        assert!(
            (line.created..=now.micros).contains(&ts) && (1..=now.boot).contains(&record.time),
            "{record:?}"
        );
        assert!(record.container == line.container && record.repeats > 0, "{record:?}");
        assert!(
            record.family == 0 || record.addr[..15] == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 198, 18, 3]
        );
        let told = record.egress.as_ref().expect("what the worker tells");
        assert!(told.name.len() <= 4 * MAX_NAME && !told.name.contains(char::is_control), "{told:?}");
        assert!(matches!(Op::of(record.op), Some(Op::NetConnection | Op::NetName)), "{record:?}");
    }
}

fn lossless(raw: &[u8], decoded: &Decoded) {
    let number = |at: usize| usize::from(u16::from_ne_bytes([raw[at], raw[at + 1]]));
    let section = number(offset_of!(Header, section));
    let used = |n: usize, at: usize| &raw[size_of::<Header>() + n * section..][..number(at)];
    let exe_cut = if decoded.flags & FLAG_EXE_CUT != 0 { FLAG_CUT } else { 0 };
    let second = decoded.flags & !FLAG_ABSTRACT;
    for (text, used, flags) in [
        (decoded.path.as_deref(), used(0, offset_of!(Header, path_len)), decoded.flags),
        (decoded.path2.as_deref(), used(1, offset_of!(Header, path2_len)), second),
        (Some(decoded.exe.as_str()), used(2, offset_of!(Header, exe_len)), exe_cut),
    ] {
        let text = text.unwrap_or_default();
        assert!(!text.contains(char::is_control) && text.len() <= 4 * used.len() + 4, "{text:?}");
        assert_eq!(written(text, flags), used, "{text:?}");
    }
    assert!(Op::of(decoded.op).is_some() && decoded.repeats > 0);
}

/// The section of a record that a text was made from.
fn written(text: &str, flags: u32) -> Vec<u8> {
    let name = |text: &str| {
        let name = escape::bytes(text).expect("what was escaped can be read");
        [&[u8::try_from(name.len()).expect("a name's length")], name.as_slice()].concat()
    };
    if flags & FLAG_ABSTRACT != 0 {
        return text.strip_prefix('@').map(name).unwrap_or_default();
    }
    let beginning = if flags & FLAG_CUT != 0 { ".../" } else { "/" };
    let names = text.strip_prefix(beginning).unwrap_or(text);
    names.split('/').rev().filter(|name| !name.is_empty()).flat_map(name).collect()
}

/// A session's journal, as it is and with its lines chained. Of one that was changed anywhere, nothing is read but what
/// stands before the change; a reader that stops at long lines reads the same; and the rows are the same each time, with
/// every call that is in the journal, and no answer to a call that was not forwarded.
pub fn journal(data: &[u8]) {
    follows(data, &entries(data));
    let Some((&[at, long], rest)) = data.split_first_chunk() else { return };
    let chained = chained(rest);
    let whole = entries(&chained);
    follows(&chained, &whole);
    in_steps(&chained, &whole, usize::from(long) + 1);
    rows(&whole);
    let mut changed = chained;
    let place = usize::from(at) * changed.len() / 256;
    let Some(byte) = changed.get_mut(place) else { return };
    *byte ^= 1 << (long % 8);
    let before = changed[..place].iter().filter(|byte| **byte == b'\n').count();
    let read = entries(&changed);
    assert!(read.len() <= before && whole.starts_with(&read), "byte {place} was changed");
}

/// Lines with their hashes.
fn chained(lines: &[u8]) -> Vec<u8> {
    let (mut text, mut head) = (Vec::new(), GENESIS.to_owned());
    for json in lines.split_inclusive(|byte| *byte == b'\n') {
        let whole = json.strip_suffix(b"\n").unwrap_or(json);
        head = journal::sha256(&[head.as_bytes(), whole].concat());
        text.extend_from_slice(head.as_bytes());
        text.push(b' ');
        text.extend_from_slice(json);
    }
    text
}

fn entries(text: &[u8]) -> Vec<Entry> {
    let mut reader = Reader::new(text);
    let mut entries = Vec::new();
    while let Ok(Some(entry)) = reader.next_entry() {
        entries.push(entry);
    }
    assert_eq!(reader.position().1, entries.len() as u64);
    assert!(reader.bytes() <= text.len() as u64);
    entries
}

/// Each entry that was read is on a line whose hash follows from all before.
fn follows(text: &[u8], entries: &[Entry]) {
    let mut head = GENESIS.to_owned();
    for line in text.split(|byte| *byte == b'\n').take(entries.len()) {
        head = journal::sha256(&[head.as_bytes(), &line[GENESIS.len() + 1..]].concat());
        assert!(line.starts_with(head.as_bytes()));
    }
}

/// A reader with a limit: it stops at a longer line, and goes on where the limit is another.
fn in_steps(text: &[u8], entries: &[Entry], limit: usize) {
    let mut reader = Reader::new(Cursor::new(text));
    let (mut read, mut room) = (Vec::new(), limit);
    while let Ok(step) = reader.step(room) {
        match step {
            Step::Entry(entry) => {
                read.push(entry);
                room = limit;
            }
            Step::Long => {
                assert!(room <= text.len(), "a line is longer than all of the journal");
                room = text.len() + 1;
            }
            Step::End => break,
        }
    }
    assert_eq!(read, entries);
}

fn rows(entries: &[Entry]) {
    let fold = || {
        let mut fold = Fold::default();
        entries.iter().map(|entry| fold.next(entry.clone())).collect::<Vec<_>>()
    };
    let rows = fold();
    assert_eq!(rows, fold());
    // What was decided about each call; none where a journal has two calls of one name, which no interceptor writes.
    let mut judged: HashMap<&str, Option<(&str, bool)>> = HashMap::new();
    let mut approved = HashSet::new();
    for (entry, rows) in entries.iter().zip(&rows) {
        match entry {
            Entry::Message { id, raw, calls, refused, .. } => {
                let Some((Row::Message(message), others)) = rows.split_first() else {
                    panic!("a message's first row is none: {rows:?}")
                };
                assert!(message.id == *id && message.raw == *raw);
                assert!(others.iter().all(|row| !matches!(row, Row::Message(_))));
                for call in calls {
                    let its = |row: &&Row| matches!(row, Row::Call(row) if row.judged.call == call.call);
                    assert!(others.iter().any(|row| its(&row)), "{} is in no row", call.call);
                    let verdict = Some((call.action.as_str(), refused.is_none()));
                    judged.entry(&call.call).and_modify(|known| *known = None).or_insert(verdict);
                }
            }
            Entry::Decision { call, outcome, .. } if outcome.as_str() == "approved" => {
                approved.insert(call.as_str());
            }
            _ => {}
        }
        for row in rows {
            let Row::Answer { call, .. } = row else { continue };
            let verdict = judged.get(call.as_str()).expect("an answer to a call of the journal's");
            assert!(match verdict {
                None => true,
                Some(("block", _)) | Some((_, false)) => false,
                Some(("pause", _)) => approved.contains(call.as_str()),
                Some(_) => true,
            });
        }
    }
}

/// Ledgers, and heads of ledgers and journals as journald gives them back: what is read is written and read the same. A
/// ledger that was folded is read to the same end. The first byte is the number of the first entry.
pub fn ledger(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    for line in text.lines() {
        if let Some((head, _)) = heads::parse(line) {
            assert_eq!(heads::parse(&head.to_string()), Some((head, None)));
        }
    }
    let Some(first) = text.chars().next() else { return };
    let mut head = GENESIS.to_owned();
    let mut rows = Vec::new();
    for (seq, entry) in (u64::from(u32::from(first)) % 3..).zip(text[first.len_utf8()..].lines()) {
        head = ledger::hash(&head, entry);
        rows.push(ledger::Row { uid: 0, seq, entry: entry.to_owned(), hash: head.clone() });
    }
    let Ok(read) = Ledger::read(&rows) else { return };
    let is_removed = |session: &str| -> Result<bool, Infallible> {
        Ok(read.sessions.get(session).is_some_and(|known| known.removed.is_some()))
    };
    let Ok(Some(folded)) = ledger::fold(&rows, is_removed, 2, 0) else { return };
    let ledger::Entry::Folded { upto, .. } = &folded else { return };
    let upto = *upto;
    let entry = serde_json::to_string(&folded).expect("an entry can be written");
    let seq = rows.last().map_or(1, |row| row.seq + 1);
    rows.push(ledger::Row { uid: 0, seq, hash: ledger::hash(&head, &entry), entry });
    rows.retain(|row| row.seq > upto);
    let again = Ledger::read(&rows).expect("a folded ledger");
    assert_eq!(again.hashes.get(&(seq - 1)), read.hashes.get(&(seq - 1)));
    assert!(again.sessions.keys().all(|session| read.sessions.contains_key(session)));
}
