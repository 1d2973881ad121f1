//! Characters that nobody sees, and that a model reads: tags, zero widths, bidirectional controls, variation selectors that
//! carry bytes, terminal controls. Where writing or an emoji needs one it is none of these.

/// What was found first, and the text around it.
pub(super) struct Found {
    pub(super) why: &'static str,
    pub(super) excerpt: String,
}

const TAGS: &str = "it has tag characters, which spell out text that nobody sees";
const SELECTORS: &str =
    "it has variation selectors that select nothing: they can carry text that nobody sees";
const BIDI: &str = "it has controls that change the order in which text is shown";
const WIDTH: &str = "it has characters without width, which hide or split words";
const CONTROL: &str = "it has control characters, by which a terminal hides text";

/// Most different selectors of variants of writing and mathematics in a text: more of them are bytes.
const MOST_VARIANTS: usize = 4;
/// Characters before and behind what was found that are shown.
const AROUND: usize = 40;

/// The first that is suspect where it stands.
pub(super) fn find(text: &str) -> Option<Found> {
    if text.bytes().all(|byte| (0x20..0x7f).contains(&byte) || matches!(byte, b'\n' | b'\r' | b'\t')) {
        return None;
    }
    let chars: Vec<char> = text.chars().collect();
    let is_rtl = chars.iter().any(|c| is_right_to_left(*c));
    let at = |at: usize| chars.get(at).copied();
    let mut selectors = Vec::new();
    let mut index = 0;
    while let Some(c) = at(index) {
        let before = index.checked_sub(1).and_then(at);
        let why = match c {
            // A flag's region: a black flag, tags, the tag that ends it.
            '\u{1f3f4}' => {
                let tags = chars.iter().skip(index + 1).take_while(|c| is_tag(**c)).count();
                let ends = tags > 1 && tags <= 7 && at(index + tags) == Some('\u{e007f}');
                index += 1 + if ends { tags } else { 0 };
                continue;
            }
            c if is_tag(c) => Some(TAGS),
            c if is_selector(c) => {
                let is_one = before.is_some_and(|before| takes_selector(before, c, at(index + 1)));
                if !matches!(c, '\u{fe0e}' | '\u{fe0f}') && !selectors.contains(&c) {
                    selectors.push(c);
                }
                (!is_one || selectors.len() > MOST_VARIANTS).then_some(SELECTORS)
            }
            '\u{200e}' | '\u{200f}' | '\u{61c}' => (!is_rtl).then_some(BIDI),
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{206f}' => Some(BIDI),
            // Joiners within writing that has them, and within emoji.
            '\u{200c}' | '\u{200d}' => {
                let joins =
                    |c: Option<char>| c.is_some_and(|c| !c.is_ascii() && (!is_suspect(c) || is_selector(c)));
                (!joins(before) || !joins(at(index + 1))).then_some(WIDTH)
            }
            '\u{ad}'
            | '\u{34f}'
            | '\u{115f}'
            | '\u{1160}'
            | '\u{17b4}'
            | '\u{17b5}'
            | '\u{180e}'
            | '\u{200b}'
            | '\u{2060}'..='\u{2065}'
            | '\u{3164}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fffb}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0080}'..='\u{e00ff}'
            | '\u{e01f0}'..='\u{e0fff}' => Some(WIDTH),
            // At the beginning it is a byte-order mark.
            '\u{feff}' => (index > 0).then_some(WIDTH),
            '\n' | '\r' | '\t' => None,
            c if c.is_control() => Some(CONTROL),
            _ => None,
        };
        if let Some(why) = why {
            return Some(Found { why, excerpt: excerpt(&chars, index, why) });
        }
        index += 1;
    }
    None
}

/// The text around a place; of tags what they spell out.
fn excerpt(chars: &[char], at: usize, why: &str) -> String {
    let before = chars.iter().take(at).skip(at.saturating_sub(AROUND));
    let rest = chars.iter().skip(at);
    if why == TAGS {
        let spelt = rest.take_while(|c| is_tag(**c)).filter_map(|c| {
            char::from_u32(u32::from(*c).wrapping_sub(0xe0000)).filter(|c| c.is_ascii_graphic() || *c == ' ')
        });
        return format!("{} [spelt in tags: {}]", before.collect::<String>(), spelt.collect::<String>());
    }
    before.chain(rest.take(AROUND)).collect()
}

/// The text as it reads without them.
pub(super) fn without(text: &str) -> String {
    text.chars().filter(|c| !is_suspect(*c) && (!c.is_control() || matches!(c, '\n' | '\r' | '\t'))).collect()
}

/// Whether a character cannot be seen by itself, wherever it stands.
pub(super) fn is_suspect(c: char) -> bool {
    is_tag(c)
        || is_selector(c)
        || matches!(c,
            '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}' | '\u{1160}' | '\u{17b4}' | '\u{17b5}' | '\u{180e}'
            | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}'
            | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0080}'..='\u{e00ff}' | '\u{e01f0}'..='\u{e0fff}')
}

fn is_tag(c: char) -> bool {
    ('\u{e0000}'..='\u{e007f}').contains(&c)
}

fn is_selector(c: char) -> bool {
    matches!(c, '\u{fe00}'..='\u{fe0f}' | '\u{180b}'..='\u{180d}' | '\u{180f}' | '\u{e0100}'..='\u{e01ef}')
}

/// Whether a variation selector may stand behind a character, and before another: those for text and emoji behind a symbol or an
/// emoji, or behind the sign of a keycap and before its key; others behind writing or mathematics that has such variants; none
/// behind another selector.
fn takes_selector(c: char, selector: char, next: Option<char>) -> bool {
    let ideograph =
        matches!(c, '\u{2e80}'..='\u{9fff}' | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}');
    match selector {
        '\u{fe0e}' | '\u{fe0f}' => {
            // Dashes, quotation marks and lines are no symbols.
            let is_punctuation =
                matches!(c, '\u{2010}'..='\u{2027}' | '\u{2030}'..='\u{203b}' | '\u{2500}'..='\u{257f}');
            matches!(c, '#' | '*' | '0'..='9') && next == Some('\u{20e3}')
                || matches!(c, '\u{a9}' | '\u{ae}' | '\u{2010}'..='\u{2bff}' | '〰' | '〽' | '㊗' | '㊙' | '\u{1f000}'..='\u{1faff}')
                    && !is_suspect(c)
                    && !is_punctuation
        }
        '\u{fe00}'..='\u{fe0d}' => {
            ideograph
                || matches!(c, '0' | '\u{1000}'..='\u{109f}' | '\u{2200}'..='\u{22ff}' | '\u{2a00}'..='\u{2aff}' | '\u{ff01}'..='\u{ff1f}')
        }
        '\u{180b}'..='\u{180d}' | '\u{180f}' => matches!(c, '\u{1820}'..='\u{18aa}'),
        _ => ideograph,
    }
}

fn is_right_to_left(c: char) -> bool {
    matches!(c, '\u{590}'..='\u{8ff}' | '\u{fb1d}'..='\u{fdff}' | '\u{fe70}'..='\u{fefc}' | '\u{10800}'..='\u{10fff}'
        | '\u{1e800}'..='\u{1efff}')
}
