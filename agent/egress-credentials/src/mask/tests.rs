use super::*;
use base64::engine::general_purpose::URL_SAFE;
use proptest::prelude::*;

const KEY: &str = "ghp/a+b=c d\"%1234567890";
const OTHER: &str = "glpat-0123456789";

fn mask() -> Mask {
    Mask::new(&[Secret::from(KEY.to_owned()), Secret::from(OTHER.to_owned())])
}

fn hex(upper: bool) -> String {
    KEY.bytes().map(|b| if upper { format!("{b:02X}") } else { format!("{b:02x}") }).collect()
}

fn spellings() -> Vec<String> {
    let each = |spell: &dyn Fn(char) -> String| {
        KEY.chars().map(|c| if c.is_alphanumeric() { c.into() } else { spell(c) }).collect()
    };
    vec![
        KEY.to_owned(),
        "ghp%2Fa%2Bb%3Dc%20d%22%251234567890".to_owned(),
        "ghp%2fa%2bb%3dc%20d%22%251234567890".to_owned(),
        // Python's `quote`, a form, twice.
        "ghp/a%2Bb%3Dc%20d%22%251234567890".to_owned(),
        "ghp%2Fa%2Bb%3Dc+d%22%251234567890".to_owned(),
        "ghp%252Fa%252Bb%253Dc%2520d%2522%25251234567890".to_owned(),
        hex(true),
        hex(false),
        KEY.replace('"', "\\\""),
        KEY.replace('"', "\\\"").replace('/', "\\/"),
        // .NET's JSON, Gson's, one within another.
        KEY.replace('+', "\\u002B").replace('"', "\\u0022"),
        KEY.replace('=', "\\u003d").replace('"', "\\\""),
        KEY.replace('"', "\\\\\\\"").replace('+', "\\\\u002B"),
        // Pages.
        KEY.replace('"', "&quot;").replace('+', "&#x2B;"),
        KEY.replace('"', "&#34;").replace('+', "&#43;"),
        each(&|c| format!("&#{};", c as u32)),
        each(&|c| format!("\\x{:02x}", c as u32)),
        each(&|c| format!("%{:02X}", c as u32)),
        KEY.chars().map(|c| format!("\\u{:04x}", c as u32)).collect(),
        STANDARD.encode(KEY),
        STANDARD.encode(format!("u:{KEY}")),
        STANDARD.encode(format!("us:{KEY}")),
        STANDARD.encode(format!("user:{KEY}")),
        STANDARD.encode(format!("user:{KEY}")).replace('+', "%2B").replace('/', "\\/"),
        URL_SAFE.encode(format!("??{KEY}>>")),
    ]
}

#[test]
fn every_spelling_is_found_and_no_length_changes() {
    for hidden in spellings() {
        let text = format!("before {hidden} after");
        let masked = String::from_utf8(mask().masked(text.as_bytes()).expect(&hidden)).unwrap();
        assert_eq!(masked.len(), text.len(), "{masked}");
        assert!(masked.starts_with("before ") && masked.ends_with(" after"), "{masked}");
        assert!(!masked.contains("1234567890") && !masked.contains(&hidden[6..14]), "{masked}");
    }
    assert_eq!(mask().masked(b"ghp/a+b=c d and 1234567890"), None, "the control");
    assert_eq!(mask().masked(b"ghp/a+b=c d\"\\%1234567891"), None, "the control");
}

#[test]
fn the_credential_of_another_host_of_the_container_is_found_too() {
    assert_eq!(mask().masked(b"x glpat-0123456789 x").unwrap(), b"x **************** x");
}

#[test]
fn what_ends_a_line_goes_out_with_it_and_the_rest_waits_whatever_it_is() {
    let (mask, mut pieces) = (mask(), Pieces::default());
    assert_eq!(pieces.push(&mask, b"data: ghp"), b"");
    assert_eq!(pieces.push(&mask, b"/a+b=c d\"%1234567890!\n\nx"), b"data: ***********************!\n\n");
    assert_eq!(pieces.waiting(), 1);
    assert_eq!(pieces.finish(&mask), b"x");
}

#[test]
fn overlapping_ones_leave_nothing_between_them() {
    let mask = Mask::new(&[Secret::from("abcabcabcabc".to_owned())]);
    let (mut pieces, mut out) = (Pieces::default(), Vec::new());
    for byte in b"abcabcabcabcabcabcabcabcabc".iter().chain(&[b' '; 4000]) {
        out.extend(pieces.push(&mask, &[*byte]));
    }
    out.extend(pieces.finish(&mask));
    assert_eq!(out.iter().filter(|byte| **byte == b'*').count(), 27);
}

/// The lengths of what goes out, piece by piece.
fn lengths(text: &[u8], cuts: &[usize]) -> Vec<usize> {
    let (mask, mut pieces, mut rest) = (mask(), Pieces::default(), text);
    let mut all = Vec::new();
    for cut in cuts {
        let (piece, behind) = rest.split_at((*cut).min(rest.len()));
        all.push(pieces.push(&mask, piece).len());
        rest = behind;
    }
    all.push(pieces.push(&mask, rest).len());
    all.push(pieces.finish(&mask).len());
    all
}

proptest! {
    #[test]
    fn nothing_that_is_seen_says_how_a_credential_begins(
        which in 0_usize..25,
        length in 1_usize..60,
        cuts in proptest::collection::vec(1_usize..400, 0..12),
        before in 0_usize..1500,
    ) {
        let spelled = spellings().swap_remove(which).into_bytes();
        let begins = &spelled[..length.min(spelled.len() - 1)];
        let mut right = vec![b'.'; before];
        right.extend_from_slice(begins);
        // The same, and at its end one that is wrong; one that is none at all.
        let mut wrong = right.clone();
        *wrong.last_mut().unwrap() ^= 1;
        let none = vec![b'.'; right.len()];
        prop_assert_eq!(lengths(&right, &cuts), lengths(&none, &cuts));
        if !right.contains(&b'\n') && !wrong.contains(&b'\n') {
            prop_assert_eq!(lengths(&right, &cuts), lengths(&wrong, &cuts));
        }
        // Ending in it is no sign either: each push is a boundary of the server's.
        let mut at_the_cut = cuts.clone();
        at_the_cut.push(right.len().saturating_sub(cuts.iter().sum()));
        prop_assert_eq!(lengths(&right, &at_the_cut), lengths(&none, &at_the_cut));
    }

    #[test]
    fn however_it_is_cut_nothing_of_it_goes_out(cuts in proptest::collection::vec(1_usize..700, 0..20), times in 1_usize..4) {
        let mask = mask();
        let text = format!("ghp ghp/a {KEY}{KEY} ghp/a+{}: {KEY}", STANDARD.encode(KEY)).repeat(times * 5);
        let (mut pieces, mut out, mut rest) = (Pieces::default(), Vec::new(), text.as_bytes());
        for cut in cuts {
            let (piece, behind) = rest.split_at(cut.min(rest.len()));
            out.extend(pieces.push(&mask, piece));
            rest = behind;
        }
        out.extend(pieces.push(&mask, rest));
        out.extend(pieces.finish(&mask));
        prop_assert_eq!(out, mask.masked(text.as_bytes()).unwrap(), "as the whole");
    }
}
