//! What is found, and that nothing else can be told from what waits.

use super::*;
use base64::engine::general_purpose::URL_SAFE;
use proptest::prelude::*;

const KEY: &str = "ghp/a+b=c d\"%1234567890";

fn mask() -> Mask {
    Mask::all(&[Secret::from(KEY.to_owned())]).unwrap()
}

fn digits(upper: bool) -> String {
    KEY.bytes().map(|b| if upper { format!("{b:02X}") } else { format!("{b:02x}") }).collect()
}

/// The key as servers write it.
fn spellings() -> Vec<String> {
    let each = |special: fn(u8) -> String| -> String {
        KEY.bytes()
            .map(|b| if b.is_ascii_alphanumeric() { char::from(b).into() } else { special(b) })
            .collect()
    };
    vec![
        KEY.to_owned(),
        each(|b| format!("%{b:02X}")),
        each(|b| format!("%{b:02x}")),
        each(|b| format!("%25{b:02x}")),
        each(|b| format!("\\u{b:04X}")),
        each(|b| format!("\\\\u{b:04x}")),
        each(|b| format!("\\x{b:02x}")),
        each(|b| format!("&#{b};")),
        each(|b| format!("&#x{b:X};")),
        each(|b| format!("&#0{b}")),
        digits(true),
        digits(false),
        digits(false).replace('a', "A"),
        KEY.replace('"', "\\\""),
        KEY.replace('"', "\\\"").replace('/', "\\/"),
        // .NET's JSON, Gson's, Python's quote, and pages.
        KEY.replace('+', "\\u002B").replace('"', "\\u0022"),
        KEY.replace('=', "\\u003d").replace('"', "\\\""),
        KEY.replace('%', "%25")
            .replace('+', "%2B")
            .replace('=', "%3D")
            .replace('"', "%22")
            .replace(' ', "%20"),
        KEY.replace('"', "&quot;").replace('+', "&#x2B;"),
        KEY.replace('"', "&#34;").replace('+', "&plus;").replace('=', "&equals;"),
        each(|b| if b == b' ' { "+".into() } else { format!("%{b:02X}") }),
        STANDARD.encode(KEY),
        STANDARD.encode(format!("u:{KEY}")),
        STANDARD.encode(format!("us:{KEY}")),
        STANDARD.encode(format!("user:{KEY}")),
        URL_SAFE.encode(format!("??{KEY}>>")),
        STANDARD.encode(format!("u:{KEY}")).replace('+', "\\u002B").replace('/', "\\/"),
        KEY.bytes().flat_map(|b| ['\0', char::from(b)]).collect(),
        KEY.bytes().flat_map(|b| [char::from(b), '\0']).collect(),
    ]
}

#[test]
fn every_spelling_is_found_and_no_length_changes() {
    for hidden in spellings() {
        for (before, after) in
            [("before ", " after"), ("before %", "; after"), ("before \\", "\\ after"), ("before &#x", "")]
        {
            let text = format!("{before}{hidden}{after}");
            let masked = mask().masked(text.as_bytes()).unwrap_or_else(|| panic!("{text}"));
            let masked = String::from_utf8(masked).unwrap();
            assert_eq!(masked.len(), text.len(), "{masked}");
            assert!(masked.starts_with("before ") && masked.ends_with(after), "{masked}");
            assert!(!masked.contains("34567890") && !masked.contains(&hidden[6..14]), "{masked}");
        }
    }
    for other in ["ghp/a+b=c d and 1234567890", "ghp/a+b=c d\"%123456789 0", "ghp/a+b=c d\"\\u00251234567891"]
    {
        assert_eq!(mask().masked(other.as_bytes()), None, "the control");
    }
}

#[test]
fn one_credential_within_or_behind_another_is_found_too() {
    let secrets = ["abababab", "babababc", "secret-of-another"].map(|text| Secret::from(text.to_owned()));
    let all = Mask::all(&secrets).unwrap();
    let masked = |text: &str| all.masked(text.as_bytes()).map(|bytes| String::from_utf8(bytes).unwrap());
    assert_eq!(masked("x abababababc x").as_deref(), Some("x *********** x"));
    assert_eq!(masked("x secret-of-another x").as_deref(), Some("x ***************** x"));
    assert_eq!(masked("x ababab x"), None);
    assert_eq!(Mask::all(&secrets[..1]).unwrap().masked(b"secret-of-another"), None, "the control");
}

/// Sizes of what goes out, for pieces of one text.
fn sizes(mask: &Mask, pieces: &[&[u8]], by_line: bool) -> Vec<usize> {
    let mut state = Pieces::default();
    let mut sizes: Vec<usize> = pieces
        .iter()
        .map(|piece| if by_line { state.push_lines(mask, piece) } else { state.push(mask, piece) }.len())
        .collect();
    sizes.push(state.finish().len());
    sizes
}

#[test]
fn what_waits_does_not_say_whether_a_guess_is_right() {
    let mask = mask();
    for spelling in spellings() {
        for known in 1..spelling.len() {
            let right = &spelling.as_bytes()[..known];
            let mut wrong = right.to_vec();
            *wrong.last_mut().unwrap() = b'~';
            for before in ["", "x", "some text, and then the guess: ", &"long ".repeat(100), "line\n"] {
                let [one, two] = [right, &wrong].map(|guess| [before.as_bytes(), guess].concat());
                for by_line in [false, true] {
                    for cut in [one.len(), before.len(), one.len() - 1] {
                        let of = |text: &[u8]| sizes(&mask, &[&text[..cut], &text[cut..]], by_line);
                        assert_eq!(of(&one), of(&two), "{spelling}: {known}");
                    }
                }
            }
        }
    }
}

#[test]
fn the_end_of_a_line_is_not_waited_behind() {
    let (mask, mut pieces) = (mask(), Pieces::default());
    assert_eq!(pieces.push_lines(&mask, b"data: ghp/a"), b"");
    assert_eq!(pieces.push_lines(&mask, b"\n\ndata: "), b"data: ghp/a\n\n");
    assert_eq!(
        pieces.push_lines(&mask, format!("{KEY}\r\nx").as_bytes()),
        b"data: ***********************\r\n"
    );
    assert_eq!((pieces.waiting(), pieces.finish()), (1, b"x".to_vec()));
    assert_eq!(pieces.push(&mask, b"a\nb"), b"", "where lines mean nothing");
}

/// Base64 of a text with the key in its middle, in lines, and what of it is the key's.
fn in_lines(key: &str, width: usize, cut: &str) -> (String, String) {
    let before = "Some text that comes before it, as long as it is. ";
    let encoded = STANDARD.encode(format!("{before}{key}, and behind it more of the same."));
    let (from, until) = (before.len() * 8 / 6 + 2, (before.len() + key.len()) * 8 / 6);
    let lines: Vec<&str> =
        encoded.as_bytes().chunks(width).map(|line| std::str::from_utf8(line).unwrap()).collect();
    (format!("{}\n", lines.join(cut)), encoded[from..until].to_owned())
}

#[test]
fn base64_in_lines_is_found_however_it_comes() {
    let mask = mask();
    for width in [60, 64, 76, 16, 23] {
        let cuts = [
            "\n", "\r\n", "\\n", "\\r\\n", "=\r\n", "=\n", " ", "\n    ", "\r\n\t", "%0A", "&#10;", " \n",
            "\t\r\n", "  \n  ", "\\\n",
        ];
        for cut in cuts {
            let (text, inside) = in_lines(KEY, width, cut);
            for size in [1, 7, 50, 1000] {
                let (mut pieces, mut out) = (Pieces::default(), Vec::new());
                text.as_bytes().chunks(size).for_each(|piece| out.extend(pieces.push_lines(&mask, piece)));
                out.extend(pieces.finish());
                assert_eq!((out.len(), pieces.found()), (text.len(), 1), "{text}");
                let whole = String::from_utf8(out).unwrap().replace(cut, "");
                assert!(
                    !whole.contains(&inside[..4]) && !whole.contains(&inside[inside.len() - 4..]),
                    "{whole}"
                );
                assert!(whole.starts_with("U29tZSB0ZXh0") && whole.contains("****"), "{whole}");
            }
            let (text, _) = in_lines(&KEY.replace('2', "3"), width, cut);
            assert_eq!(mask.masked(text.as_bytes()), None, "the control");
        }
    }
    // What is no base64 has no lines.
    assert_eq!(mask.masked(KEY.replace("c d", "c d\n").as_bytes()), None);
    assert_eq!(mask.masked([&digits(false)[..20], "\n", &digits(false)[20..]].concat().as_bytes()), None);
}

#[test]
fn lines_wait_where_base64_could_be_cut_and_events_do_not() {
    let mask = mask();
    let goes = |text: &str| Pieces::default().push_lines(&mask, text.as_bytes()).len();
    for text in [
        "data: {\"a\": 1}\n",
        "plain words\r\n",
        "aaaaaaaaaaaaaaa\n",
        "id: aaaaaaaaaaaaaaaaaaaaaaaa\n\n",
        "id: aaaaaaaaaaaaaaaaaaaaaaaa\r\n\r\n",
    ] {
        assert_eq!(goes(text), text.len(), "{text:?}");
    }
    let wide = "a\0".repeat(20) + "\n\0";
    for text in [
        "aaaaaaaaaaaaaaaa\n",
        "aaaaaaaaaaaaaaaa\r\n",
        "aaaaaaaaaaaaaaaa \t\n",
        "data: ~~~~~aaaaaaaaaaaa/a=-\n",
        "data: ~~~~~aaaaaaa&#43;aaaa\n",
        &wide,
    ] {
        assert_eq!(goes(text), 0, "{text:?}");
    }
    assert_eq!(goes("aaaaaaaaaaaaaaaa\nend.\n"), 22, "the next line's end is one");
}

#[test]
fn what_waits_tells_a_class_of_lengths() {
    let waits = |length: usize| {
        let mask = Mask::all(&[Secret::from("k".repeat(length))]).unwrap();
        mask.waits_of(u64::MAX)
    };
    assert!((16..=64).all(|length| waits(length) == 64 * 10 - 1));
    assert_eq!(
        [65, 256, 257, 4096, 4097, 16 << 10].map(waits),
        [2559, 2559, 10_239, 40_959, 163_839, 163_839]
    );
}

#[test]
fn one_search_is_good_for_many_texts_and_none_goes_on_in_the_next() {
    let (mask, mut pieces) = (mask(), Pieces::default());
    let (one, two) = KEY.split_at(10);
    for _ in 0..40 {
        assert_eq!(pieces.all_of(&mask, one.as_bytes()), None);
        assert_eq!(pieces.all_of(&mask, two.as_bytes()), None, "that one is behind it is nobody's doing");
        assert_eq!(pieces.all_of(&mask, KEY.as_bytes()), Some(vec![b'*'; KEY.len()]), "the control");
    }
    let room = pieces.beginnings.as_ptr();
    pieces.all_of(&mask, KEY.as_bytes());
    assert_eq!(pieces.beginnings.as_ptr(), room);
    assert!(mask.memory() as usize >= pieces.beginnings.len() * 8 + 2 * 639);
}

proptest! {
    #[test]
    fn however_it_is_cut_the_same_goes_out(cuts in proptest::collection::vec(1usize..70, 0..20), times in 1usize..4, by_line: bool) {
        let mask = mask();
        let text = format!("ghp ghp/a {KEY}{KEY}\n ghp/a+{}: \\{KEY}", STANDARD.encode(KEY)).repeat(times);
        let (mut pieces, mut out, mut rest) = (Pieces::default(), Vec::new(), text.as_bytes());
        for cut in cuts {
            let (piece, behind) = rest.split_at(cut.min(rest.len()));
            out.extend(if by_line { pieces.push_lines(&mask, piece) } else { pieces.push(&mask, piece) });
            rest = behind;
        }
        out.extend(pieces.push(&mask, rest));
        out.extend(pieces.finish());
        prop_assert_eq!(mask.masked(text.as_bytes()).unwrap(), out);
    }

    #[test]
    fn only_lengths_and_where_lines_end_say_what_waits(a in "([ghp/a+b=c %,]{0,40}|[ghp/a+=]{12,20})( |)(\n|\r\n|\n\n|)([ghp/a+b=c\n %,]{0,200})", size in 1usize..40, by_line: bool) {
        // Which of them base64 has, as it is or spelled, and which are blank is told, and nothing else.
        let other = |c| match c {
            ' ' => '\t',
            ',' => '~',
            _ => 'x',
        };
        let b: String = a.chars().map(|c| if matches!(c, '\n' | '\r') { c } else { other(c) }).collect();
        let cut = |text: &str| {
            let pieces: Vec<&[u8]> = text.as_bytes().chunks(size).collect();
            sizes(&mask(), &pieces, by_line)
        };
        prop_assert_eq!(cut(&a), cut(&b));
    }
}
