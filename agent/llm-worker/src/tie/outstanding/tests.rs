//! Which call a process gets, and which are known for how long.

use super::*;
use proptest::prelude::*;
use serde_json::{Value, json};

fn raw(input: &Value) -> Box<RawValue> {
    RawValue::from_string(input.to_string()).unwrap()
}

fn running(call: Option<&str>, command: &str) -> Vec<String> {
    let id = call.map(|id| format!(" {id}")).unwrap_or_default();
    ["bash", "-c", &format!("/usr/bin/ringfence-runtime tie{id}\n{command}")].map(str::to_owned).to_vec()
}

/// What a process of this command line gets.
fn claim(all: &Arc<Outstanding>, named: Option<&str>, arguments: &[String]) -> Result<Claim, String> {
    all.claim(named, &Places::of(arguments))
}

impl PartialEq for Claim {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Taken(key, sure), Self::Taken(of, other)) => (key, sure) == (of, other),
            (Self::Asked(_), Self::Asked(_)) => true,
            (Self::Contested(keys), Self::Contested(others)) => keys == others,
            _ => false,
        }
    }
}

/// A claim for which the core tags a process at once, as it is.
fn tied(all: &Arc<Outstanding>, named: Option<&str>, arguments: &[String]) -> Result<Claim, String> {
    let claim = claim(all, named, arguments);
    if let Ok(Claim::Taken(key, _)) = &claim {
        all.settle(key, true);
    }
    claim
}

fn contested<const N: usize>(keys: [&CallKey; N]) -> Result<Claim, String> {
    Ok(Claim::Contested(keys.map(Clone::clone).to_vec()))
}

#[test]
fn a_named_call_is_taken_once_while_it_waits_by_a_process_that_runs_it() {
    let all = Arc::<Outstanding>::default();
    let [a, b] = [(); 2].map(|()| CallKey::mint());
    let waits = all.add(&a, "a", &raw(&json!({ "command": "make test" })));
    let _other = all.add(&b, "b", &raw(&json!({ "command": "make test" })));
    let shell = running(Some("a"), "make test");
    assert!(claim(&all, Some("a"), &running(Some("a"), "make tests")).is_err());
    assert!(claim(&all, Some("a"), &running(Some("b"), "make test")).is_err(), "it says another");
    assert!(claim(&all, Some("c"), &running(Some("c"), "make test")).is_err());
    assert!(claim(&all, Some(""), &running(None, "make test")).is_err());
    assert_eq!(tied(&all, Some("a"), &shell), Ok(Claim::Taken(a.clone(), Sure::Exact)));
    assert_eq!(claim(&all, Some("a"), &shell), contested([&a]));
    assert!(claim(&all, Some("a"), &running(Some("a"), "true")).is_err(), "no claim at all");
    assert!(all.contest(&a) && !all.contest(&a), "told once");
    all.settle(&a, false);
    assert!(claim(&all, Some("a"), &shell).is_ok(), "given back");
    drop(waits);
    assert!(!all.contest(&a), "it was told");
    let of_other = claim(&all, Some("b"), &running(Some("b"), "make test"));
    assert_eq!(of_other, Ok(Claim::Taken(b, Sure::Exact)), "its words are the same");
}

#[test]
fn a_call_that_the_core_is_asked_about_is_neither_taken_nor_contested_by_another() {
    let all = Arc::<Outstanding>::default();
    let a = CallKey::mint();
    let _waits = all.add(&a, "a", &raw(&json!({ "command": "make" })));
    for named in [Some("a"), None] {
        let shell = running(named, "make");
        let sure = if named.is_some() { Sure::Exact } else { Sure::Matched };
        assert_eq!(claim(&all, named, &shell), Ok(Claim::Taken(a.clone(), sure)));
        let Ok(Claim::Asked(asked)) = claim(&all, named, &shell) else { panic!("it waits") };
        assert!(!asked.is_cancelled());
        all.settle(&a, false);
        assert!(asked.is_cancelled());
    }
    let shell = running(Some("a"), "make");
    assert_eq!(tied(&all, Some("a"), &shell), Ok(Claim::Taken(a.clone(), Sure::Exact)));
    assert_eq!(claim(&all, Some("a"), &shell), contested([&a]));
}

/// Whoever has the run's token can post a result before the call's own shell has begun.
#[test]
fn a_call_that_was_answered_is_contested_by_its_words_where_it_has_a_process() {
    for named in [Some("a"), None] {
        let all = Arc::<Outstanding>::default();
        let (a, shell) = (CallKey::mint(), running(named, "make"));
        let add =
            |key: &CallKey| all.add(key, named.unwrap_or_default(), &raw(&json!({ "command": "make" })));
        let waits = add(&a);
        assert!(matches!(tied(&all, named, &shell), Ok(Claim::Taken(..))));
        drop(waits);
        assert!(claim(&all, named, &running(named, "make all")).is_err(), "other words");
        assert_eq!(claim(&all, named, &shell), contested([&a]), "{named:?}");
        assert!(all.contest(&a) && !all.contest(&a), "told once");
        // The control: nothing was tied to it, and a call of the same name and words that waits comes first.
        let b = CallKey::mint();
        let waits = add(&b);
        assert!(matches!(tied(&all, named, &shell), Ok(Claim::Taken(key, _)) if key == b));
        all.settle(&b, false);
        drop(waits);
        assert_eq!(claim(&all, named, &shell), contested([&a]));
    }
    // What was asked when it was answered is settled then.
    let all = Arc::<Outstanding>::default();
    let (a, shell) = (CallKey::mint(), running(Some("a"), "make"));
    let waits = all.add(&a, "a", &raw(&json!({ "command": "make" })));
    assert!(claim(&all, Some("a"), &shell).is_ok());
    drop(waits);
    assert!(matches!(claim(&all, Some("a"), &shell), Ok(Claim::Asked(_))));
    all.settle(&a, false);
    assert!(claim(&all, Some("a"), &shell).unwrap_err().contains("no call of this name waits"));
}

#[test]
fn a_call_that_has_a_process_is_contested_whatever_else_has_its_name_now() {
    let all = Arc::<Outstanding>::default();
    let [a, b] = [(); 2].map(|()| CallKey::mint());
    let _a = all.add(&a, "same", &raw(&json!({ "command": "make" })));
    let shell = running(Some("same"), "make");
    assert!(tied(&all, Some("same"), &shell).is_ok());
    let b_waits = all.add(&b, "same", &raw(&json!({ "command": "ls" })));
    assert_eq!(claim(&all, Some("same"), &shell), contested([&a]));
    assert!(claim(&all, Some("same"), &running(Some("same"), "ls")).unwrap_err().contains("more than one"));
    drop(b_waits);
    assert_eq!(claim(&all, Some("same"), &shell), contested([&a]), "the control");
}

#[test]
fn commands_of_calls_that_are_over_are_bounded() {
    let all = Arc::<Outstanding>::default();
    let command = |n: usize| format!("{n}{}", "x".repeat(MAX_COMMAND - 9));
    for n in 0..64 {
        let waits = all.add(&CallKey::mint(), &n.to_string(), &raw(&json!({ "command": command(n) })));
        let shell = running(Some(&n.to_string()), &command(n));
        assert!(tied(&all, Some(&n.to_string()), &shell).is_ok());
        drop(waits);
    }
    assert!(all.lock().over.iter().map(|call| call.command.bytes()).sum::<usize>() <= MAX_COMMANDS);
    let late = |n: usize| claim(&all, Some(&n.to_string()), &running(Some(&n.to_string()), &command(n)));
    assert!(late(0).is_err() && matches!(late(63), Ok(Claim::Contested(_))), "the newest are known");
}

#[test]
fn without_a_name_only_one_may_fit() {
    let all = Arc::<Outstanding>::default();
    let [a, b, c] = [(); 3].map(|()| CallKey::mint());
    let _a = all.add(&a, "", &raw(&json!({ "command": "ls" })));
    let b_waits = all.add(&b, "", &raw(&json!({ "cmd": " ls\n" })));
    let _c = all.add(&c, "", &raw(&json!({ "command": ["bash", "-lc", "ls -l"] })));
    let shell = running(None, "ls");
    assert!(claim(&all, None, &shell).unwrap_err().contains("more than one"));
    assert_eq!(claim(&all, None, &running(None, "ls -l")), Ok(Claim::Taken(c, Sure::Matched)));
    drop(b_waits);
    assert_eq!(tied(&all, None, &shell), Ok(Claim::Taken(a.clone(), Sure::Matched)));
    assert_eq!(claim(&all, None, &shell), contested([&a]), "it has a process");
    assert!(claim(&all, None, &running(None, "ls -a")).is_err(), "the control");
}

#[test]
fn what_is_not_known_makes_nothing_sure() {
    let all = Arc::<Outstanding>::default();
    let [a, b] = [(); 2].map(|()| CallKey::mint());
    let _a = all.add(&a, "a", &raw(&json!({ "command": "ls" })));
    let long = all.add(&b, "b", &raw(&json!({ "command": "x".repeat(MAX_COMMAND + 1) })));
    assert!(claim(&all, None, &running(None, "ls")).unwrap_err().contains("not known"));
    assert!(claim(&all, Some("b"), &running(Some("b"), "ls")).is_err());
    drop(long);
    assert_eq!(claim(&all, None, &running(None, "ls")), Ok(Claim::Taken(a, Sure::Matched)));
    let all = Arc::<Outstanding>::default();
    let add = |n: usize| {
        all.add(
            &CallKey::mint(),
            "",
            &raw(&json!({ "command": format!("{n}{}", "x".repeat(MAX_COMMAND - 9)) })),
        )
    };
    let _held: Vec<_> = (0..64).map(add).collect();
    assert!(all.lock().waiting.iter().map(|call| call.command.bytes()).sum::<usize>() <= MAX_COMMANDS);
    assert!(all.lock().waiting.iter().any(|call| call.command == Command::Unknown), "the bound is reached");
}

#[test]
fn a_call_of_one_id_with_another_is_nobody_s() {
    let all = Arc::<Outstanding>::default();
    let add = || all.add(&CallKey::mint(), "same", &raw(&json!({ "command": "ls" })));
    let (_one, _two) = (add(), add());
    assert!(claim(&all, Some("same"), &running(Some("same"), "ls")).unwrap_err().contains("more than one"));
}

#[test]
fn a_command_is_found_where_agents_tools_have_it() {
    let known = |text: &str| Command::Known(text.to_owned());
    for (input, command) in [
        (json!({ "command": "ls", "description": "x" }), known("ls")),
        (json!({ "cmd": "ls", "workdir": "/" }), known("ls")),
        (json!({ "command": ["bash", "-lc", "ls"] }), known("ls")),
        (json!({ "action": { "type": "exec", "command": ["bash", "-lc", "ls"] } }), known("ls")),
        (json!({ "command": ["ls"] }), Command::None),
        (json!({ "command": null }), Command::None),
        (json!({ "command": 7 }), Command::Unknown),
        (json!({ "action": "ls" }), Command::Unknown),
        (json!({ "file_path": "/a" }), Command::None),
        (json!({ "command": "ls", "cmd": "rm" }), Command::Unknown),
        (json!([]), Command::Unknown),
        (json!(["ls"]), Command::Unknown),
        (json!("ls"), Command::Unknown),
    ] {
        assert_eq!(Command::of(&raw(&input)), command, "{input}");
    }
}

#[test]
fn what_a_hook_says_is_of_one_call_and_once() {
    let all = Arc::<Outstanding>::default();
    let [a, b] = [(); 2].map(|()| CallKey::mint());
    let waits = all.add(&a, "a", &raw(&json!({})));
    let late = all.add(&b, "b", &raw(&json!({})));
    assert_eq!(all.done("a"), Finished::Known(a));
    assert_eq!(all.done("a"), Finished::Again);
    drop((waits, late));
    assert_eq!(all.done("a"), Finished::Again, "answered meanwhile");
    assert_eq!(all.done("b"), Finished::Known(b), "it says so late");
    assert_eq!(
        [all.done("b"), all.done("c"), all.done("c"), all.done("")],
        [Finished::Again, Finished::Unknown, Finished::Unknown, Finished::Unknown]
    );
}

#[test]
fn a_hook_s_word_of_several_calls_of_one_id_is_of_none() {
    let all = Arc::<Outstanding>::default();
    let add = |key: &CallKey| all.add(key, "c", &raw(&json!({})));
    let [c, d, e] = [(); 3].map(|()| CallKey::mint());
    let waits = add(&c);
    assert_eq!(all.done("c"), Finished::Known(c), "the control");
    // Of the first it was said.
    let _one_more = add(&d);
    assert_eq!(all.done("c"), Finished::Known(d));
    drop(waits);
    assert_eq!(all.done("c"), Finished::Again);
    // Of the one that was answered it was not said yet, or late.
    drop(add(&e));
    let _another = add(&CallKey::mint());
    assert_eq!(all.done("c"), Finished::OneOfSeveral);
    assert_eq!(all.done("c"), Finished::OneOfSeveral, "nothing was noted");
}

#[test]
fn what_hooks_say_drives_out_none_of_the_calls_that_were_answered() {
    let all = Arc::<Outstanding>::default();
    let key = CallKey::mint();
    drop(all.add(&key, "a", &raw(&json!({}))));
    drop(all.add(&CallKey::mint(), "", &raw(&json!({}))));
    for n in 0..2 * MOST_OVER {
        assert_eq!(all.done(&n.to_string()), Finished::Unknown);
    }
    assert_eq!(all.lock().over.len(), 1);
    assert_eq!(all.done("a"), Finished::Known(key));
    for n in 0..2 * MOST_OVER {
        drop(all.add(&CallKey::mint(), &n.to_string(), &raw(&json!({}))));
    }
    assert_eq!(all.lock().over.len(), MOST_OVER);
}

proptest! {
    /// Whatever waits and whoever asks: no call has two processes, and a taken one had the words.
    #[test]
    fn no_call_is_taken_twice(
        commands in prop::collection::vec("[ab]{1,2}", 1..6),
        asked in prop::collection::vec((prop::option::of(0..7usize), "[ab]{1,2}"), 0..12),
    ) {
        let all = Arc::<Outstanding>::default();
        let calls: Vec<_> = commands.iter().enumerate().map(|(n, command)| {
            let key = CallKey::mint();
            let waits = all.add(&key, &n.to_string(), &raw(&json!({ "command": command })));
            (key, command, waits)
        }).collect();
        let mut taken: Vec<CallKey> = Vec::new();
        for (named, command) in asked {
            let named = named.map(|n| n.to_string());
            if let Ok(Claim::Taken(key, _)) = claim(&all, named.as_deref(), &running(named.as_deref(), &command)) {
                prop_assert!(!taken.contains(&key));
                let (_, its, _) = calls.iter().find(|(of, ..)| *of == key).unwrap();
                prop_assert_eq!(*its, &command);
                taken.push(key);
            }
        }
    }
}
