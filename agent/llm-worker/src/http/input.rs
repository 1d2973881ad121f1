//! A tool call's input as it grows. Pure.

/// An input, whose pieces are to be those of one JSON document.
#[derive(Debug, Default)]
pub(super) struct Input {
    text: String,
    at: At,
}

/// Where in the document its text ends.
#[derive(Debug, Default, Clone, Copy)]
enum At {
    /// Before it.
    #[default]
    Blank,
    /// In an object or array: how deep, whether in a string there, and whether behind a backslash.
    Open { depth: usize, in_string: bool, escaped: bool },
    /// Behind it: an object or array that is closed, or what is neither.
    Behind,
}

impl Input {
    /// One to which nothing is added.
    pub(super) fn whole(text: String) -> Self {
        Self { text, at: At::Behind }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Whether the document is whole, or is none that has an end of its own.
    pub(super) fn is_behind(&self) -> bool {
        matches!(self.at, At::Behind)
    }

    /// Bytes that it takes in memory.
    pub(super) fn held(&self) -> usize {
        self.text.capacity()
    }

    pub(super) fn text(&self) -> &str {
        &self.text
    }

    pub(super) fn into_text(self) -> String {
        self.text
    }

    /// Adds a piece of a text that is no JSON.
    pub(super) fn push_text(&mut self, piece: &str) {
        self.text.push_str(piece);
    }

    /// Adds a piece. False: there is something behind the document. Some clients run what they have as soon as it is one, and
    /// take what follows for another call's or for nothing. What is neither object nor array is one at any time.
    #[must_use]
    pub(super) fn push(&mut self, piece: &str) -> bool {
        let fits = self.follow(piece);
        // What does not goes to nobody.
        if fits {
            self.text.push_str(piece);
        }
        fits
    }

    fn follow(&mut self, piece: &str) -> bool {
        for byte in piece.bytes() {
            let is_blank = matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
            match &mut self.at {
                At::Blank if is_blank => {}
                At::Blank if matches!(byte, b'{' | b'[') => {
                    self.at = At::Open { depth: 1, in_string: false, escaped: false };
                }
                At::Blank => {
                    self.at = At::Behind;
                    // The rest of the piece belongs to it.
                    return true;
                }
                At::Open { escaped, .. } if *escaped => *escaped = false,
                At::Open { in_string: true, escaped, .. } if byte == b'\\' => *escaped = true,
                At::Open { in_string, .. } if byte == b'"' => *in_string = !*in_string,
                At::Open { in_string: true, .. } => {}
                At::Open { depth, .. } => match byte {
                    b'{' | b'[' => *depth += 1,
                    b'}' | b']' if *depth == 1 => self.at = At::Behind,
                    b'}' | b']' => *depth -= 1,
                    _ => {}
                },
                At::Behind if is_blank => {}
                At::Behind => return false,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_follows_a_whole_document() {
        let cases: [(&[&str], bool); 12] = [
            (&["{}"], true),
            (&["", " {", "\"a\":\"}{\\\"", "\\\\", "\"", "}", " \n", ""], true),
            (&["[{\"a\":[1,{}]}", "]"], true),
            (&["7"], true),
            (&["no json"], true),
            (&["\"a\"", " "], true),
            (&["{}", "{}"], false),
            (&["{}{}"], false),
            (&["{\"a\":\"\\\"}\"}", "x"], false),
            (&["7", "7"], false),
            (&["\"a", "\""], false),
            (&["tr", "ue"], false),
        ];
        for (pieces, fits) in cases {
            let mut input = Input::default();
            assert_eq!(pieces.iter().all(|piece| input.push(piece)), fits, "{pieces:?}");
        }
    }
}
