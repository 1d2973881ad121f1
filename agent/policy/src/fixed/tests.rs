//! The record of where paths led and of what could be written.

use super::*;
use proptest::prelude::*;

proptest! {
    #[test]
    fn any_bytes_survive_the_record(bytes: Vec<u8>) {
        let text = serde_json::to_string(&Bytes(bytes.clone())).unwrap();
        prop_assert_eq!(serde_json::from_str::<Bytes>(&text).unwrap().0, bytes);
    }
}

#[test]
fn what_is_new_is_taken_in_and_that_something_was_forgotten_stays_known() {
    let of = |path: &[u8], to: &[u8]| {
        let mut one = Fixed::default();
        one.fix_to(path, to);
        one
    };
    let mut led = Fixed::default();
    for (path, to, is_new) in
        [("/a", "/a", true), ("/a", "/a", false), ("/a", "/b", true), ("/c", "/c", true)]
    {
        let new = led.unknown_of(&of(path.as_bytes(), to.as_bytes()));
        assert_eq!(!new.is_empty(), is_new, "{path} {to}");
        led.take_in(&new);
    }
    assert_eq!((led.led_to(b"/a"), led.led_to(b"/c")), (Some(b"/b".to_vec()), Some(b"/c".to_vec())));
    assert_eq!((led.paths(), led.bytes(), led.has_more()), (2, 6, false));
    led.take_in(&Fixed::default().with_more());
    let again: Fixed = serde_json::from_str(&serde_json::to_string(&led).unwrap()).unwrap();
    assert!(again.has_more() && again == led);
}

#[test]
fn a_percent_sign_without_its_digits_is_an_error() {
    for wrong in ["\"%\"", "\"a%4\"", "\"%zz\"", "\"%é\""] {
        assert!(serde_json::from_str::<Bytes>(wrong).is_err(), "{wrong}");
    }
}

fn policy(at: &str, allow: u16, deny: u16) -> CompiledPolicy {
    let written = Writable {
        all: false,
        places: vec![WritablePlace {
            at: Bytes(at.into()),
            end: None,
            kind: Kind::Tree,
            allow: allow != 0,
            deny: deny != 0,
            reset: false,
        }],
    };
    written.policy()
}

#[test]
fn what_any_policy_allowed_could_have_been_written() {
    let mut written = Written::default();
    assert!(written.is_empty() && !written.policies().judge()(b"/a"));
    for policy in [policy("/a", WRITE, 0), policy("/b", WRITE, 0), policy("/a", WRITE, 0)] {
        written.add(&policy);
    }
    assert_eq!(written.policies.len(), 2, "equal ones are kept once");
    let again: Written = serde_json::from_str(&serde_json::to_string(&written).unwrap()).unwrap();
    assert_eq!(again, written);
    let could = again.policies();
    let judge = could.judge();
    assert!(judge(b"/a/x") && judge(b"/b") && !judge(b"/c"));
}

#[test]
fn with_more_policies_than_are_kept_everything_could_have_been() {
    let mut written = Written::default();
    let place = |n: usize| policy(&format!("/{n}"), WRITE, 0).places.remove(0);
    for round in 0..3 {
        let many = CompiledPolicy {
            places: (0..MAX_WRITTEN / 2).map(|n| place(n + round)).collect(),
            ..policy("/", 0, 0)
        };
        written.add(&many);
    }
    assert!(written.policies().judge()(b"/nowhere"));
    // And so with few that are long.
    let mut written = Written::default();
    for round in 0..4 {
        let long = format!("/{}{round}", "x".repeat(MAX_WRITTEN_BYTES / 3 - 10));
        written.add(&policy(&long, WRITE, 0));
        assert_eq!(written.policies().judge()(b"/nowhere"), round == 3, "{round}");
    }
}
