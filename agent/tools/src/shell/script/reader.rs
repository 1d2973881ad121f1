//! The characters of a script, and words out of them: quotes, escapes, variables, comments.

use super::{Piece, Word};
use crate::shell::refusal::{Construct, ScriptError};

/// Characters of a script, with the backslash-newlines taken out where the shell takes them out.
#[derive(Default)]
pub(super) struct Reader<'a> {
    rest: &'a str,
    /// Where it is, from 1.
    pub(super) line: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { rest: text, line: 1 }
    }

    /// The next character outside of single quotes.
    pub(super) fn peek(&mut self) -> Option<char> {
        while let Some(rest) = self.rest.strip_prefix("\\\n") {
            self.rest = rest;
            self.line += 1;
        }
        self.rest.chars().next()
    }

    /// Takes the next character.
    pub(super) fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.take(c);
        Some(c)
    }

    /// Takes the character that is next.
    fn take(&mut self, c: char) {
        self.rest = &self.rest[c.len_utf8()..];
        self.line += usize::from(c == '\n');
    }

    /// Blanks and comments.
    pub(super) fn skip_blanks(&mut self) {
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' => self.take(c),
                // A backslash before the newline is a part of the comment.
                '#' => self.rest = &self.rest[self.rest.find('\n').unwrap_or(self.rest.len())..],
                _ => break,
            }
        }
    }

    /// Digits right before `<` or `>`: they name a descriptor.
    pub(super) fn descriptor(&mut self) -> Option<&'a str> {
        let digits = self.rest.bytes().take_while(u8::is_ascii_digit).count();
        let (number, rest) = self.rest.split_at(digits);
        if digits == 0 || !rest.trim_start_matches("\\\n").starts_with(['<', '>']) {
            return None;
        }
        self.rest = rest;
        Some(number)
    }

    /// A word; nothing if none begins here.
    pub(super) fn word(&mut self) -> Result<Word, ScriptError> {
        let mut word = Word::default();
        while let Some(c) = self.peek() {
            match c {
                ' ' | '\t' | '\n' | ';' | '|' | '&' | '<' | '>' | '(' | ')' => break,
                '\'' => {
                    let line = self.line;
                    self.take(c);
                    let unterminated = ScriptError::Unterminated { quote: '\'', line };
                    let end = self.rest.find('\'').ok_or(unterminated)?;
                    word.push_quoted(&self.rest[..end]);
                    self.line += self.rest[..end].matches('\n').count();
                    self.rest = &self.rest[end + 1..];
                }
                '"' => self.double_quoted(&mut word)?,
                '\\' => {
                    self.take(c);
                    // At the very end it stands for itself. (No newline: `peek` took those.)
                    let escaped = self.rest.chars().next();
                    if let Some(escaped) = escaped {
                        self.take(escaped);
                    }
                    word.push_quoted(escaped.unwrap_or('\\').encode_utf8(&mut [0; 4]));
                }
                '`' => return Err(self.refuse(Construct::Substitution("`"))),
                '$' => self.dollar(&mut word, false)?,
                _ => {
                    self.take(c);
                    word.push(c);
                }
            }
        }
        Ok(word)
    }

    fn double_quoted(&mut self, word: &mut Word) -> Result<(), ScriptError> {
        let line = self.line;
        self.take('"');
        word.push_quoted("");
        loop {
            let c = self.peek().ok_or(ScriptError::Unterminated { quote: '"', line })?;
            match c {
                '"' => {
                    self.take(c);
                    return Ok(());
                }
                '\\' => {
                    self.take(c);
                    match self.rest.chars().next() {
                        Some(escaped @ ('$' | '`' | '"' | '\\')) => {
                            self.take(escaped);
                            word.push_quoted(escaped.encode_utf8(&mut [0; 4]));
                        }
                        _ => word.push_quoted("\\"),
                    }
                }
                '`' => return Err(self.refuse(Construct::Substitution("`"))),
                '$' => self.dollar(word, true)?,
                _ => {
                    self.take(c);
                    word.push_quoted(c.encode_utf8(&mut [0; 4]));
                }
            }
        }
    }

    /// At `$`.
    fn dollar(&mut self, word: &mut Word, quoted: bool) -> Result<(), ScriptError> {
        self.take('$');
        let construct = match self.peek() {
            Some('(') => {
                self.take('(');
                let arithmetic = self.peek() == Some('(');
                if arithmetic { Construct::Arithmetic } else { Construct::Substitution("$(") }
            }
            Some('[') => Construct::Arithmetic,
            Some('\'') if !quoted => Construct::Quote("$'"),
            Some('"') if !quoted => Construct::Quote("$\""),
            Some(c @ ('0'..='9' | '@' | '*' | '#' | '?' | '-' | '$' | '!')) => Construct::Parameter(c.into()),
            Some('{') => {
                self.take('{');
                let name = self.name();
                if name.is_empty() || self.peek() != Some('}') {
                    Construct::Parameter("{".into())
                } else {
                    self.take('}');
                    word.0.push(Piece::Variable { name, quoted });
                    return Ok(());
                }
            }
            Some('a'..='z' | 'A'..='Z' | '_') => {
                let name = self.name();
                word.0.push(Piece::Variable { name, quoted });
                return Ok(());
            }
            _ => {
                if quoted {
                    word.push_quoted("$");
                } else {
                    word.push('$');
                }
                return Ok(());
            }
        };
        Err(self.refuse(construct))
    }

    /// A variable's name; empty if none begins here.
    fn name(&mut self) -> String {
        let mut name = String::new();
        while let Some(c) = self.peek() {
            let fits = c.is_ascii_alphabetic() || c == '_' || (c.is_ascii_digit() && !name.is_empty());
            if !fits {
                break;
            }
            self.take(c);
            name.push(c);
        }
        name
    }

    fn refuse(&self, construct: Construct) -> ScriptError {
        ScriptError::Refused { construct, line: self.line }
    }
}
