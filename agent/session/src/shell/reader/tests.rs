//! What is read out of scripts.

use super::{has_output, is_unknown, read};
use proptest::prelude::*;

fn commands(text: &str) -> Vec<Vec<String>> {
    read(text).commands.into_iter().map(|command| command.words).collect()
}

#[test]
fn every_command_is_found() {
    let all = [
        ("a b; c && d || e | f & g", vec!["a b", "c", "d", "e", "f", "g"]),
        ("if a; then b; else c; fi", vec!["a", "b", "c"]),
        ("for x in 1 2; do rm $x; done", vec!["for x in 1 2", "rm $x"]),
        ("while read l; do a; done < f", vec!["read l", "a", ""]),
        ("{ a; b; }; (c; d)", vec!["a", "b", "c", "d"]),
        ("f() { a; }", vec!["a"]),
        ("case x in a) b;; *) c;; esac", vec!["b", "c"]),
        ("X=1 Y=2 a X=3", vec!["a X=3"]),
        ("a \"b $(c 'd)') e\" f", vec!["c d)", "a b \u{f8ff} e f"]),
        ("a `b` <(c)", vec!["b", "c", "a \u{f8ff} \u{f8ff}"]),
        ("r''m \\rm 'r'm $'\\x72m'", vec!["rm rm rm rm"]),
        ("a # b\nc", vec!["a", "c"]),
        ("a \\\nb", vec!["a b"]),
    ];
    for (text, expected) in all {
        let found: Vec<String> = commands(text).iter().map(|words| words.join(" ")).collect();
        assert_eq!(found, expected, "{text}");
    }
}

#[test]
fn redirects_and_input() {
    let script = read("a <<E >f 2>>g 2>&1 | b\nx $(c)\nE\nd <<< 'y'; e <i &>all");
    let [a, b, d, e] = script.commands.as_slice() else { panic!("{script:?}") };
    assert_eq!((a.written.as_slice(), a.appended.as_slice()), (&["f".to_owned()][..], &["g".to_owned()][..]));
    assert_eq!(a.input.as_deref(), Some("x $(c)\n"));
    assert!(b.piped && !a.piped && !d.piped);
    assert_eq!(d.input.as_deref(), Some("y"));
    assert_eq!((e.read.as_slice(), e.written.as_slice()), (&["i".to_owned()][..], &["all".to_owned()][..]));
    assert_eq!(commands(&script.texts[0]), [vec!["c".to_owned()], vec![":".into(), "x \u{f8ff}\n".into()]]);
    assert!(script.whole);
}

#[test]
fn what_does_not_end_is_not_whole() {
    for text in ["a 'b", "a \"b", "a $(b", "(a", "a `b"] {
        assert!(!read(text).whole, "{text}");
    }
    assert!(!read(&"$(".repeat(100_000)).whole);
    assert!(!read(&"a;".repeat(100_000)).whole);
    assert!(read("a 'b' \"c\" $(d) `e` (f)").whole, "the control");
}

#[test]
fn what_is_only_known_later() {
    for word in ["$X", "${X}", "\u{f8ff}"] {
        assert!(is_unknown(word), "{word}");
    }
    assert!(has_output("a\u{f8ff}") && !is_unknown("rm $X") && !is_unknown("$") && !is_unknown("a"));
}

proptest! {
    #[test]
    fn anything_is_read(text in "[a-z $()`'\"\\\\<>|&;{}#\n-]{0,80}") {
        let script = read(&text);
        let words: usize = script.commands.iter().flat_map(|c| &c.words).map(String::len).sum();
        prop_assert!(words <= 4 * text.len());
    }
}
