//! Tests of the journal.

use super::{Broken, Entry, GENESIS, Journal, LONGEST, Reader, SHORT, Step, is_held, link};
use proptest::prelude::*;
use std::{
    fs,
    io::{self, BufReader, Write},
};

fn note(text: &str) -> Entry {
    Entry::Note { at: 1, text: text.to_owned() }
}

fn read_all(bytes: &[u8]) -> Result<Vec<Entry>, Broken> {
    let mut reader = Reader::new(BufReader::new(bytes));
    let mut entries = Vec::new();
    while let Some(entry) = reader.next_entry()? {
        entries.push(entry);
    }
    Ok(entries)
}

#[test]
fn what_was_written_is_read_and_any_edit_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("journal");
    let mut journal = Journal::create(&path).expect("a journal");
    for text in ["one", "two", "three"] {
        journal.append(&note(text)).expect("room");
    }
    let bytes = fs::read(&path).expect("the journal");
    assert_eq!(read_all(&bytes).expect("whole"), [note("one"), note("two"), note("three")]);

    let text = String::from_utf8(bytes.clone()).expect("text");
    let lines: Vec<&str> = text.lines().collect();
    let edits = [
        text.replace("two", "too"),
        [lines[0], lines[2], ""].join("\n"),
        [lines[1], lines[0], lines[2], ""].join("\n"),
        [lines[0], lines[1], lines[1], ""].join("\n"),
        [lines[1], lines[2], ""].join("\n"),
    ];
    for edited in edits {
        assert!(matches!(read_all(edited.as_bytes()), Err(Broken::Chain(_))), "{edited}");
    }
    // A line that is still being written is not there yet.
    assert_eq!(read_all(&bytes[..bytes.len() - 3]).expect("whole").len(), 2);
    assert!(Journal::create(&path).is_err(), "a journal is never opened twice");
    assert!(is_held(&path));
    drop(journal);
    assert!(!is_held(&path) && !is_held(&folder.path().join("none")));
}

#[test]
fn a_journal_is_abandoned_once_its_writer_is_gone() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("journal");
    assert!(super::abandoned(&path).is_none());
    let journal = Journal::create(&path).expect("a journal");
    assert!(super::abandoned(&path).is_none());
    drop(journal);
    assert!(super::abandoned(&path).is_some() && super::abandoned(&path).is_some());
}

#[test]
fn what_is_no_file_in_the_place_of_a_journal_is_waited_for_by_nobody() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("journal");
    let made = std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo");
    assert!(made.success());
    assert!(super::abandoned(&path).is_none() && is_held(&path), "nobody can tell");
}

#[test]
fn a_reader_goes_on_where_it_stopped() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("journal");
    let mut journal = Journal::create(&path).expect("a journal");
    journal.append(&note("one")).expect("room");
    let file = fs::File::open(&path).expect("the journal");
    let mut reader = Reader::new(BufReader::new(file));
    assert_eq!(reader.next_entry().expect("whole"), Some(note("one")));
    assert_eq!(reader.next_entry().expect("whole"), None);
    journal.append(&note("two")).expect("room");
    assert_eq!(reader.next_entry().expect("whole"), Some(note("two")));
    assert_eq!(reader.position().1, 2);
}

#[test]
fn a_long_line_is_read_when_asked_for_and_not_kept_meanwhile() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("journal");
    let mut journal = Journal::create(&path).expect("a journal");
    let long = note(&"x".repeat(3 * SHORT));
    for entry in [&note("one"), &long, &note("three")] {
        journal.append(entry).expect("room");
    }
    let whole = fs::read(&path).expect("the journal");
    let cut = folder.path().join("cut");
    fs::write(&cut, &whole[..whole.len() - SHORT - 300]).expect("written");
    let mut reader = Reader::new(BufReader::new(fs::File::open(&cut).expect("a file")));
    assert_eq!(reader.step(SHORT).expect("whole"), Step::Entry(note("one")));
    assert_eq!(reader.step(SHORT).expect("whole"), Step::Long);
    assert!(reader.partial.capacity() == 0);
    // It has no end yet; once that was found it is not read again until it has grown.
    assert_eq!(reader.step(8 * SHORT).expect("whole"), Step::End);
    assert_eq!(reader.step(SHORT).expect("whole"), Step::End);
    assert!(reader.partial.capacity() == 0 && reader.unfinished > SHORT as u64);
    fs::write(&cut, &whole).expect("written");
    assert_eq!(reader.step(SHORT).expect("whole"), Step::Long);
    assert_eq!(reader.step(8 * SHORT).expect("whole"), Step::Entry(long));
    assert!(reader.partial.capacity() <= SHORT);
    assert_eq!(reader.step(SHORT).expect("whole"), Step::Entry(note("three")));
    assert_eq!(reader.step(SHORT).expect("whole"), Step::End);
}

#[test]
fn a_text_is_cut_where_its_json_would_be_too_long() {
    for (text, kept) in
        [("abcdef", "abcd"), ("ab\u{1}c", "ab"), ("a\"\"b", "a\""), ("ab\u{e4}\u{e4}", "ab\u{e4}")]
    {
        let cut = super::cut(text, 4).expect("cut");
        assert_eq!(cut, kept.to_owned() + super::CUT);
        let json = serde_json::to_string(cut.strip_suffix(super::CUT).expect("cut")).expect("JSON");
        assert!(json.len() <= 4 + 2, "{json}");
    }
    for whole in ["", "abcd", "\n\n", "a\u{20ac}"] {
        assert_eq!(super::cut(whole, 4), None);
    }
    let answer = r#"{"result":"0123456789","id":3}"#;
    let (kept, outline) = super::fitting_within(answer.into(), 20);
    assert!(kept.ends_with(super::CUT), "{kept}");
    assert_eq!(outline.map(|outline| outline.id), Some("3".to_owned()));
    assert_eq!(super::fitting_within(answer.into(), 99), (answer.into(), None));
    // The longest line, at its worst: six bytes for each.
    let (worst, _) = super::fitting("\u{1}".repeat(64 << 20).into());
    assert!(serde_json::to_string(&worst).expect("JSON").len() < LONGEST - (32 << 20));
}

#[test]
fn what_no_reader_would_take_is_not_written_and_the_journal_goes_on() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("journal");
    let mut journal = Journal::create(&path).expect("a journal");
    journal.longest = 4096;
    journal.append(&note("one")).expect("room");
    let error = journal.append(&note(&"\u{1}".repeat(700))).expect_err("700 bytes, 4200 as JSON");
    assert_eq!(error.kind(), io::ErrorKind::FileTooLarge);
    let fits = note(&"\u{1}".repeat(600));
    journal.append(&fits).expect("room");
    assert_eq!(read_all(&fs::read(&path).expect("the journal")).expect("whole"), [note("one"), fits]);
}

#[test]
fn garbage_is_refused_not_believed() {
    for garbage in [&b"x\n"[..], b"\n", &[0xff; 80], b"{}\n"] {
        let mut bytes = garbage.to_vec();
        bytes.push(b'\n');
        assert!(read_all(&bytes).is_err(), "{garbage:?}");
    }
    let full = fs::OpenOptions::new().write(true).open("/dev/full");
    assert!(full.expect("/dev/full").write_all(b"x").is_err());
}

proptest! {
    #[test]
    fn a_change_of_any_bit_is_the_end_of_what_is_read(
        texts in prop::collection::vec(".{0,20}", 1..6), at: prop::sample::Index, bit in 0u8..8
    ) {
        let (mut bytes, mut head) = (Vec::new(), GENESIS.as_bytes().to_vec());
        for text in &texts {
            let json = serde_json::to_vec(&note(text)).expect("JSON");
            head = link(&head, &json).to_vec();
            bytes.extend([head.as_slice(), b" ", &json, b"\n"].concat());
        }
        let whole: Vec<Entry> = texts.iter().map(|text| note(text)).collect();
        prop_assert_eq!(&read_all(&bytes).expect("whole"), &whole);
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        let before = bytes[..at].iter().filter(|byte| **byte == b'\n').count();
        let mut reader = Reader::new(bytes.as_slice());
        let mut read = Vec::new();
        while let Ok(Some(entry)) = reader.next_entry() {
            read.push(entry);
        }
        prop_assert!(read.len() <= before && whole.starts_with(&read));
    }
}
