//! Credentials in what servers send back: looked for as they are, percent-encoded, as hexadecimal digits, escaped as in JSON, and in
//! base64 at each of its three alignments, which is how basic auth has them. What is found becomes asterisks, as many as it had bytes:
//! lengths, and the frames of WebSockets, stay what they were. Pure.

use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use ringfence_credentials::Secret;
use zeroize::Zeroizing;

/// What stands in the place of each byte.
const MASKED: u8 = b'*';
/// So many bytes that could be a credential's beginning wait for those behind them; fewer go on, and are worth nothing.
const WAITING: usize = 4;

/// What is looked for, the longest first.
pub(crate) struct Mask(Vec<Zeroizing<Vec<u8>>>);

impl Mask {
    /// For one credential, of at least [`ringfence_wire::credentials::SHORTEST`] bytes.
    pub(crate) fn new(secret: &Secret) -> Self {
        let secret = secret.expose().as_bytes();
        let mut patterns = vec![
            Zeroizing::new(secret.to_vec()),
            each(secret, |byte, out| percent(byte, out, b"0123456789ABCDEF")),
            each(secret, |byte, out| percent(byte, out, b"0123456789abcdef")),
            each(secret, |byte, out| hex(byte, out, b"0123456789ABCDEF")),
            each(secret, |byte, out| hex(byte, out, b"0123456789abcdef")),
            each(secret, |byte, out| escaped(byte, out, b"\"\\")),
            each(secret, |byte, out| escaped(byte, out, b"\"\\/")),
        ];
        for alignment in 0..3 {
            patterns
                .extend([STANDARD, URL_SAFE].iter().map(|engine| inside_base64(secret, alignment, engine)));
        }
        patterns.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        patterns.dedup();
        Self(patterns)
    }

    /// Bytes without credentials. `None`: there are none.
    pub(crate) fn masked(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let mut out = None;
        for pattern in &self.0 {
            for at in memchr::memmem::find_iter(bytes, pattern.as_slice()) {
                let out: &mut Vec<u8> = out.get_or_insert_with(|| bytes.to_vec());
                if let Some(found) = out.get_mut(at..at + pattern.len()) {
                    found.fill(MASKED);
                }
            }
        }
        out
    }

    /// How many bytes at the end could be the beginning of a credential, and have to wait.
    fn undecided(&self, bytes: &[u8]) -> usize {
        let longest = self.0.first().map_or(0, |longest| longest.len());
        let from = bytes.len().saturating_sub(longest.saturating_sub(1));
        let tails = (from..bytes.len()).filter_map(|at| bytes.get(at..));
        let mut beginnings = tails.take_while(|tail| tail.len() >= WAITING).filter(|tail| {
            self.0.iter().any(|pattern| pattern.len() > tail.len() && pattern.starts_with(tail))
        });
        beginnings.next().map_or(0, <[u8]>::len)
    }
}

/// Bytes that come in pieces.
#[derive(Default)]
pub(crate) struct Pieces {
    /// The last that went out: too few to wait for.
    gone: Vec<u8>,
    held: Vec<u8>,
}

impl Pieces {
    /// What may go out now.
    pub(crate) fn push(&mut self, mask: &Mask, piece: &[u8]) -> Vec<u8> {
        let mut all = std::mem::take(&mut self.gone);
        let before = all.len();
        all.append(&mut self.held);
        all.extend_from_slice(piece);
        let mut all = mask.masked(&all).unwrap_or(all);
        self.held = all.split_off(all.len() - mask.undecided(&all).min(all.len() - before));
        self.gone = all.get(all.len().saturating_sub(WAITING - 1)..).unwrap_or_default().to_vec();
        all.drain(..before);
        all
    }

    /// What waited: nothing is behind it, so it is no credential.
    pub(crate) fn finish(&mut self) -> Vec<u8> {
        self.gone.clear();
        std::mem::take(&mut self.held)
    }

    /// How many bytes wait.
    pub(crate) fn waiting(&self) -> usize {
        self.held.len()
    }
}

fn each(secret: &[u8], write: impl Fn(u8, &mut Vec<u8>)) -> Zeroizing<Vec<u8>> {
    // Room for all of it at once: a vector that grows leaves copies behind.
    let mut out = Zeroizing::new(Vec::with_capacity(secret.len() * 3));
    secret.iter().for_each(|byte| write(*byte, &mut out));
    out
}

fn percent(byte: u8, out: &mut Vec<u8>, digits: &[u8; 16]) {
    if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
        out.push(byte);
    } else {
        out.push(b'%');
        hex(byte, out, digits);
    }
}

fn hex(byte: u8, out: &mut Vec<u8>, digits: &[u8; 16]) {
    out.extend([byte >> 4, byte & 15].iter().filter_map(|digit| digits.get(usize::from(*digit))));
}

fn escaped(byte: u8, out: &mut Vec<u8>, which: &[u8]) {
    if which.contains(&byte) {
        out.push(b'\\');
    }
    out.push(byte);
}

/// What base64 makes of a secret `alignment` bytes into a group of three, without the characters that its neighbours have a part in.
fn inside_base64(secret: &[u8], alignment: usize, engine: &impl base64::Engine) -> Zeroizing<Vec<u8>> {
    let mut padded = Zeroizing::new(vec![0; alignment]);
    padded.extend_from_slice(secret);
    let encoded = Zeroizing::new(engine.encode(&*padded));
    let from = alignment + usize::from(alignment > 0);
    let whole = padded.len() * 8 / 6;
    Zeroizing::new(encoded.as_bytes().get(from..whole).unwrap_or_default().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine as _;
    use proptest::prelude::*;

    const KEY: &str = "ghp/a+b=c d\"%1234567890";

    fn mask() -> Mask {
        Mask::new(&Secret::from(KEY.to_owned()))
    }

    #[test]
    fn every_spelling_is_found_and_no_length_changes() {
        let hex = |upper: bool| {
            KEY.bytes()
                .map(|b| if upper { format!("{b:02X}") } else { format!("{b:02x}") })
                .collect::<String>()
        };
        for hidden in [
            KEY.to_owned(),
            "ghp%2Fa%2Bb%3Dc%20d%22%251234567890".to_owned(),
            "ghp%2fa%2bb%3dc%20d%22%251234567890".to_owned(),
            hex(true),
            hex(false),
            KEY.replace('"', "\\\""),
            KEY.replace('"', "\\\"").replace('/', "\\/"),
            STANDARD.encode(KEY),
            STANDARD.encode(format!("u:{KEY}")),
            STANDARD.encode(format!("us:{KEY}")),
            STANDARD.encode(format!("user:{KEY}")),
            URL_SAFE.encode(format!("??{KEY}>>")),
        ] {
            let text = format!("before {hidden} after");
            let masked = String::from_utf8(mask().masked(text.as_bytes()).expect(&hidden)).unwrap();
            assert_eq!(masked.len(), text.len(), "{masked}");
            assert!(masked.starts_with("before ") && masked.ends_with(" after"), "{masked}");
            assert!(!masked.contains("1234567890") && !masked.contains(&hidden[6..14]), "{masked}");
        }
        assert_eq!(mask().masked(b"ghp/a+b=c d and 1234567890"), None, "the control");
    }

    #[test]
    fn a_piece_waits_only_for_what_could_become_one() {
        let (mask, mut pieces) = (mask(), Pieces::default());
        assert_eq!(pieces.push(&mask, b"data: ghp"), b"data: ghp", "too little to wait for");
        assert_eq!(
            pieces.push(&mask, b"/a+b=c d\"%1234567890!"),
            b"********************!",
            "and known all the same"
        );
        assert_eq!(pieces.push(&mask, b"x ghp/a"), b"x ");
        assert_eq!(pieces.waiting(), 5);
        assert_eq!(pieces.push(&mask, b"bc"), b"ghp/abc");
        assert_eq!(pieces.push(&mask, b"ghp/a+b"), b"");
        assert_eq!(pieces.finish(), b"ghp/a+b");
    }

    proptest! {
        #[test]
        fn however_it_is_cut_no_more_than_its_beginning_goes_out(cuts in proptest::collection::vec(1usize..70, 0..20), times in 1usize..4) {
            let mask = mask();
            let text = format!("ghp ghp/a {KEY}{KEY} ghp/a+{}: {KEY}", STANDARD.encode(KEY)).repeat(times);
            let (mut pieces, mut out, mut rest) = (Pieces::default(), Vec::new(), text.as_bytes());
            for cut in cuts {
                let (piece, behind) = rest.split_at(cut.min(rest.len()));
                out.extend(pieces.push(&mask, piece));
                rest = behind;
            }
            out.extend(pieces.push(&mask, rest));
            out.extend(pieces.finish());
            prop_assert_eq!(out.len(), text.len());
            prop_assert!(mask.masked(&out).is_none());
            let whole = mask.masked(text.as_bytes()).unwrap();
            let differing = out.iter().zip(&whole).filter(|(a, b)| a != b).count();
            prop_assert!(differing <= (WAITING - 1) * 4 * times, "{}", String::from_utf8_lossy(&out));
        }
    }
}
