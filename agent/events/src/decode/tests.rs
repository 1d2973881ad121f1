//! Tests of the decoder: what it reads, what it refuses, and that no bytes make it panic.

use super::*;
use proptest::prelude::*;
use ringfence_common::event::op;

/// A small record by hand: header fields at their offsets, sections leaf first.
pub(super) fn small(op: u8, flags: u32, path: &[&[u8]], exe: &[&[u8]]) -> Vec<u8> {
    let mut raw = vec![0; size_of::<Header>() + 3 * SMALL_SECTION + SLACK];
    let mut put = |at: usize, bytes: &[u8]| raw[at..at + bytes.len()].copy_from_slice(bytes);
    put(offset_of!(Header, version), &(ABI_VERSION as u16).to_ne_bytes());
    put(offset_of!(Header, op), &[op, verdict::DENIED]);
    put(offset_of!(Header, flags), &flags.to_ne_bytes());
    put(offset_of!(Header, container), &0x1005u64.to_ne_bytes());
    put(offset_of!(Header, tgid), &77u32.to_ne_bytes());
    put(offset_of!(Header, section), &(SMALL_SECTION as u16).to_ne_bytes());
    for (section, length_at, names) in
        [(0, offset_of!(Header, path_len), path), (2, offset_of!(Header, exe_len), exe)]
    {
        let bytes: Vec<u8> = names.iter().flat_map(|n| [&[n.len() as u8], *n].concat()).collect();
        put(length_at, &(bytes.len() as u16).to_ne_bytes());
        put(size_of::<Header>() + section * SMALL_SECTION, &bytes);
    }
    raw
}

fn path_of(op: u8, flags: u32, path: &[&[u8]]) -> Option<String> {
    record(&small(op, flags, path, &[])).expect("decodes").path
}

#[test]
fn paths_are_turned_round_and_joined() {
    let raw = small(op::OPEN, 0, &[b"shadow", b"etc"], &[b"cat", b"bin", b"usr"]);
    let decoded = record(&raw).expect("decodes");
    assert_eq!(decoded.path.as_deref(), Some("/etc/shadow"));
    assert_eq!(decoded.exe, "/usr/bin/cat");
    assert_eq!((decoded.container, decoded.tgid, decoded.repeats), (0x1005, 77, 1));
}

#[test]
fn each_kind_of_path_looks_different() {
    let names: &[&[u8]] = &[b"b", b"a"];
    assert_eq!(path_of(op::OPEN, 0, names).as_deref(), Some("/a/b"));
    assert_eq!(path_of(op::OPEN, event::FLAG_CUT, names).as_deref(), Some(".../a/b"));
    assert_eq!(path_of(op::OPEN, event::FLAG_OUTSIDE, names).as_deref(), Some("a/b"));
    assert_eq!(path_of(op::CONNECT, event::FLAG_ABSTRACT, &[b"a/\0b"]).as_deref(), Some(r"@a\x2f\x00b"));
    assert_eq!(path_of(op::OPEN, 0, &[]).as_deref(), Some("/"));
    assert_eq!(path_of(op::OPEN, event::FLAG_UNLINKED, &[]), None);
    assert_eq!(path_of(op::CONNECT, 0, &[]), None);
    assert_eq!(path_of(op::EXEC, event::FLAG_OUTSIDE, &[b"memfd:a/b"]).as_deref(), Some(r"memfd:a\x2fb"));
}

#[test]
fn the_births_of_ancestors_keep_their_order() {
    let mut raw = small(op::OPEN, 0, &[b"a"], &[]);
    for (at, birth) in [11u64, 22, 33, 44].iter().enumerate() {
        let place = offset_of!(Header, lineage) + 8 * at;
        raw[place..place + 8].copy_from_slice(&birth.to_ne_bytes());
    }
    assert_eq!(record(&raw).expect("decodes").lineage, [11, 22, 33, 44]);
}

#[test]
fn the_longest_names_fit() {
    let name = [b'x'; 255];
    assert_eq!(path_of(op::OPEN, 0, &[&name]).expect("a path").len(), 256);
}

#[test]
fn what_we_did_not_write_is_refused() {
    let good = small(op::OPEN, 0, &[b"a"], &[]);
    let with = |at: usize, byte: u8| {
        let mut raw = good.clone();
        raw[at] = byte;
        record(&raw).map(|_| ()).expect_err("must be refused")
    };
    assert!(record(&good).is_ok());
    assert_eq!(with(offset_of!(Header, version), 200), DecodeError::Version(200));
    assert_eq!(with(offset_of!(Header, op), 0), DecodeError::Op(0));
    assert_eq!(with(offset_of!(Header, op), 250), DecodeError::Op(250));
    assert_eq!(with(offset_of!(Header, verdict), 0), DecodeError::Verdict(0));
    assert_eq!(with(offset_of!(Header, rule_kind), 99), DecodeError::RuleKind(99));
    assert_eq!(with(offset_of!(Header, section), 1), DecodeError::Length);
    // One more byte of path than its only component has: an empty component.
    assert_eq!(with(offset_of!(Header, path_len), 3), DecodeError::Section);
    // A component longer than what is used.
    assert_eq!(with(size_of::<Header>(), 9), DecodeError::Section);
    // More used than the section has.
    assert_eq!(with(offset_of!(Header, path_len) + 1, 0xff), DecodeError::Section);
    assert_eq!(record(&good[..50]), Err(DecodeError::Short(50)));
    assert_eq!(record(&good[..good.len() - 1]), Err(DecodeError::Length));
    assert_eq!(record(&[&good[..], &[0]].concat()), Err(DecodeError::Length));
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(raw in proptest::collection::vec(any::<u8>(), 0..1300)) {
        let _ = record(&raw);
    }

    #[test]
    fn no_change_of_a_good_record_makes_it_panic(
        changes in proptest::collection::vec((0usize..1136, any::<u8>()), 0..40)
    ) {
        let mut raw = small(op::RENAME, 0, &[b"b", b"a"], &[b"sh"]);
        for (at, byte) in changes {
            // The version stays, or nearly every case would end there.
            if at >= 2 && at < raw.len() {
                raw[at] = byte;
            }
        }
        if let Ok(decoded) = record(&raw) {
            prop_assert!(decoded.path.is_none_or(|p| !p.chars().any(char::is_control)));
            prop_assert!(!decoded.exe.chars().any(char::is_control));
        }
    }
}
