//! The safe subset of a shell script: one pass over its text, no recursion, and a name for everything that is refused.
//!
//! The reader is our own, where a crate would do more: brush-parser accepts all of bash, so that everything else would
//! have to be found and refused in its tree; it overflows the stack on 40 KB of `$(`, keeps the last scripts in a cache
//! of the whole process, and brings a test framework along as a dependency. This subset has no nesting at all.

mod reader;
mod rules;

use super::{
    glob::{Pattern, Unit},
    refusal::{Construct, ScriptError},
};
use reader::Reader;
use rules::{assigned, expands_braces, is_builtin};

/// Most bytes of a script. It carries commands, no data: there are no here-documents.
pub(crate) const MAX_SCRIPT: usize = 128 * 1024;
/// Most commands of a script.
pub(crate) const MAX_COMMANDS: usize = 1000;
/// Most commands of one pipeline: they run at the same time.
pub(crate) const MAX_PIPELINE: usize = 64;

/// A script that was read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Script {
    /// At least one.
    pub(crate) pipelines: Vec<Pipeline>,
}

/// Commands whose output is the next one's input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Pipeline {
    /// Whether it runs at all.
    pub(crate) when: When,
    /// At least one.
    pub(crate) commands: Vec<Command>,
}

/// What the last pipeline that ran must have come to, for the next one to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// Whatever it was: `;`, a newline, the first.
    Always,
    /// Status 0: `&&`.
    Success,
    /// Any other: `||`.
    Failure,
}

/// One program with its arguments and redirects.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Command {
    /// The program first; at least one.
    pub(crate) words: Vec<Word>,
    /// In their order, which matters.
    pub(crate) redirects: Vec<Redirect>,
}

/// Where a standard descriptor goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Redirect {
    /// 0, 1 or 2.
    pub(crate) fd: usize,
    /// Where to.
    pub(crate) to: Target,
}

/// What a redirect leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// `<`
    Read(Word),
    /// `>`
    Write(Word),
    /// `>>`
    Append(Word),
    /// `>&`: what that descriptor is at this point.
    Same(usize),
}

/// Pieces that are written together.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Word(pub(crate) Vec<Piece>);

/// A piece of a word.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Unquoted: its globs are globs.
    Plain(String),
    /// Quoted or escaped: every character stands for itself. It may be empty, and makes a word of nothing.
    Quoted(String),
    /// The value of a variable.
    Variable {
        /// Which.
        name: String,
        /// In double quotes: one word, whatever is in it.
        quoted: bool,
    },
}

impl Word {
    /// Its text, if it is unquoted as a whole: only then can it be a word of the shell's grammar.
    fn bare(&self) -> Option<&str> {
        match self.0.as_slice() {
            [Piece::Plain(text)] => Some(text),
            _ => None,
        }
    }

    /// Its text, if it does not depend on a variable.
    pub(crate) fn text(&self) -> Option<String> {
        let mut text = String::new();
        for piece in &self.0 {
            match piece {
                Piece::Plain(more) | Piece::Quoted(more) => text.push_str(more),
                Piece::Variable { .. } => return None,
            }
        }
        Some(text)
    }

    /// Whether it has a glob of its own; what a variable brings is not looked at.
    fn has_glob(&self) -> bool {
        let mut units = Vec::new();
        for piece in &self.0 {
            let (text, active) = match piece {
                Piece::Plain(text) => (text, true),
                Piece::Quoted(text) => (text, false),
                Piece::Variable { .. } => continue,
            };
            units.extend(text.chars().map(|c| Unit { c, active }));
        }
        !matches!(Pattern::read(&units), Ok(None))
    }

    fn push(&mut self, c: char) {
        match self.0.last_mut() {
            Some(Piece::Plain(text)) => text.push(c),
            _ => self.0.push(Piece::Plain(c.into())),
        }
    }

    fn push_quoted(&mut self, more: &str) {
        match self.0.last_mut() {
            Some(Piece::Quoted(text)) => text.push_str(more),
            _ => self.0.push(Piece::Quoted(more.into())),
        }
    }
}

/// Reads a script.
///
/// # Errors
/// [`ScriptError`]: too much of something, no script, or outside of the subset.
pub(crate) fn parse(text: &str) -> Result<Script, ScriptError> {
    if text.len() > MAX_SCRIPT {
        return Err(ScriptError::TooLong { bytes: text.len() });
    }
    if text.contains('\0') {
        return Err(ScriptError::Refused { construct: Construct::Nul, line: 1 });
    }
    let mut parser = Parser { reader: Reader::new(text), ..Parser::default() };
    while parser.step()? {}
    if parser.script.pipelines.is_empty() {
        return Err(ScriptError::Empty);
    }
    Ok(parser.script)
}

#[derive(Default)]
struct Parser<'a> {
    reader: Reader<'a>,
    script: Script,
    commands: usize,
    command: Command,
    pipeline: Vec<Command>,
    when: Option<When>,
}

impl<'a> Parser<'a> {
    /// Takes one token; `false` at the end.
    fn step(&mut self) -> Result<bool, ScriptError> {
        self.reader.skip_blanks();
        let Some(c) = self.reader.peek() else {
            self.end_list(None)?;
            return Ok(false);
        };
        match c {
            '\n' => {
                self.end_list(Some("a newline"))?;
                self.reader.next();
            }
            ';' => {
                self.reader.next();
                if matches!(self.reader.peek(), Some(';' | '&')) {
                    return Err(self.refuse(Construct::ControlFlow(";;".into())));
                }
                if self.command == Command::default() {
                    return Err(self.unexpected("`;`"));
                }
                self.end_list(Some("`;`"))?;
            }
            '&' => {
                self.reader.next();
                match self.reader.peek() {
                    Some('&') => self.operator("&&", When::Success)?,
                    Some('>') => return Err(self.refuse(Construct::Redirect("&>"))),
                    _ => return Err(self.refuse(Construct::Background)),
                }
            }
            '|' => {
                self.reader.next();
                match self.reader.peek() {
                    Some('|') => self.operator("||", When::Failure)?,
                    Some('&') => return Err(self.refuse(Construct::Redirect("|&"))),
                    _ => {
                        self.end_command("`|`")?;
                        if self.pipeline.len() >= MAX_PIPELINE {
                            return Err(ScriptError::LongPipeline { line: self.reader.line });
                        }
                    }
                }
            }
            '(' => return Err(self.parenthesis()),
            ')' => return Err(self.unexpected("`)`")),
            '<' | '>' => self.redirect(None)?,
            _ => match self.reader.descriptor() {
                Some(fd) => self.redirect(Some(fd))?,
                None => self.word()?,
            },
        }
        Ok(true)
    }

    fn refuse(&self, construct: Construct) -> ScriptError {
        ScriptError::Refused { construct, line: self.reader.line }
    }

    fn unexpected(&self, what: &'static str) -> ScriptError {
        ScriptError::Unexpected { what, line: self.reader.line }
    }

    /// `&&` or `||`, of which one character was taken.
    fn operator(&mut self, text: &'static str, when: When) -> Result<(), ScriptError> {
        self.reader.next();
        self.end_command(if text == "&&" { "`&&`" } else { "`||`" })?;
        self.end_pipeline();
        self.when = Some(when);
        Ok(())
    }

    /// Ends the command; there must be one.
    fn end_command(&mut self, before: &'static str) -> Result<(), ScriptError> {
        let command = std::mem::take(&mut self.command);
        if command.words.is_empty() {
            if !command.redirects.is_empty() {
                return Err(self.refuse(Construct::NoProgram));
            }
            return Err(self.unexpected(before));
        }
        self.commands += 1;
        if self.commands > MAX_COMMANDS {
            return Err(ScriptError::TooMany);
        }
        self.pipeline.push(command);
        Ok(())
    }

    fn end_pipeline(&mut self) {
        let commands = std::mem::take(&mut self.pipeline);
        let when = self.when.take().unwrap_or(When::Always);
        self.script.pipelines.push(Pipeline { when, commands });
    }

    /// A newline, `;` or, with nothing, the end. After `|`, `&&`, `||` a newline does not count.
    fn end_list(&mut self, by: Option<&'static str>) -> Result<(), ScriptError> {
        if self.command == Command::default() {
            let open = !self.pipeline.is_empty() || self.when.is_some();
            return if open && by.is_none() { Err(self.unexpected("the end")) } else { Ok(()) };
        }
        self.end_command(by.unwrap_or("the end"))?;
        self.end_pipeline();
        Ok(())
    }

    fn parenthesis(&mut self) -> ScriptError {
        self.reader.next();
        let construct = if self.command.words.len() == 1 {
            Construct::Function
        } else if self.reader.peek() == Some('(') {
            Construct::Arithmetic
        } else {
            Construct::Subshell
        };
        self.refuse(construct)
    }

    /// At `<` or `>`, the descriptor before it taken.
    fn redirect(&mut self, fd: Option<&'a str>) -> Result<(), ScriptError> {
        let reads = self.reader.next() == Some('<');
        let fd = match fd {
            None => usize::from(!reads),
            Some("0") if reads => 0,
            Some("1") if !reads => 1,
            Some("2") if !reads => 2,
            Some(other) => return Err(self.refuse(Construct::Descriptor(other.into()))),
        };
        let next = self.reader.peek();
        let refused = match (reads, next) {
            (true, Some('<')) => {
                self.reader.next();
                Some(if self.reader.peek() == Some('<') { Construct::HereString } else { Construct::Heredoc })
            }
            (_, Some('(')) => Some(Construct::ProcessSubstitution),
            (true, Some('>')) => Some(Construct::Redirect("<>")),
            (true, Some('&')) => Some(Construct::Redirect("<&")),
            (false, Some('|')) => Some(Construct::Redirect(">|")),
            _ => None,
        };
        if let Some(construct) = refused {
            return Err(self.refuse(construct));
        }
        let to = match next {
            Some('&') => {
                self.reader.next();
                self.reader.skip_blanks();
                Target::Same(self.same()?)
            }
            Some('>') => {
                self.reader.next();
                Target::Append(self.target()?)
            }
            _ if reads => Target::Read(self.target()?),
            _ => Target::Write(self.target()?),
        };
        self.command.redirects.push(Redirect { fd, to });
        Ok(())
    }

    /// The descriptor after `>&`.
    fn same(&mut self) -> Result<usize, ScriptError> {
        let word = self.reader.word()?;
        match word.bare() {
            Some("1") => Ok(1),
            Some("2") => Ok(2),
            _ => Err(self.refuse(Construct::Redirect(">&"))),
        }
    }

    /// The file's name after a redirect.
    fn target(&mut self) -> Result<Word, ScriptError> {
        self.reader.skip_blanks();
        let word = self.reader.word()?;
        if word.0.is_empty() {
            return Err(self.unexpected("a redirect without a file"));
        }
        self.look(&word)?;
        if word.has_glob() {
            return Err(self.refuse(Construct::GlobTarget));
        }
        Ok(word)
    }

    fn word(&mut self) -> Result<(), ScriptError> {
        let word = self.reader.word()?;
        if word.0.is_empty() {
            // Not reached: what no word begins with was taken by `step`. Without it, a mistake there would never end.
            return Err(self.unexpected("this character"));
        }
        self.look(&word)?;
        if let Some(text) = word.bare() {
            let follows = matches!(self.reader.peek(), Some('<' | '>'));
            if follows && text.starts_with('{') && text.ends_with('}') {
                return Err(self.refuse(Construct::Descriptor(text.into())));
            }
        }
        if self.command.words.is_empty() {
            self.look_at_program(&word)?;
        }
        self.command.words.push(word);
        Ok(())
    }

    /// What may not be in any word.
    fn look(&self, word: &Word) -> Result<(), ScriptError> {
        if expands_braces(word) {
            return Err(self.refuse(Construct::Braces));
        }
        let Some(Piece::Plain(first)) = word.0.first() else { return Ok(()) };
        let value = assigned(first).filter(|value| {
            let plain = word.0.iter().any(|p| matches!(p, Piece::Plain(text) if text.contains(":~")));
            value.starts_with('~') || plain
        });
        if first.starts_with('~') || value.is_some() {
            return Err(self.refuse(Construct::Tilde));
        }
        Ok(())
    }

    /// What may not stand where a program's name is expected.
    fn look_at_program(&self, word: &Word) -> Result<(), ScriptError> {
        if let Some(text) = word.bare() {
            let construct = match text {
                "if" | "then" | "elif" | "else" | "fi" | "for" | "while" | "until" | "do" | "done"
                | "case" | "esac" | "select" | "coproc" | "time" | "[[" => {
                    Some(Construct::ControlFlow(text.into()))
                }
                "function" => Some(Construct::Function),
                "{" | "}" => Some(Construct::Group),
                "!" => Some(Construct::Negation),
                _ => None,
            };
            if let Some(construct) = construct {
                return Err(self.refuse(construct));
            }
        }
        if let Some(Piece::Plain(first)) = word.0.first()
            && assigned(first).is_some()
        {
            return Err(self.refuse(Construct::Assignment));
        }
        let Some(name) = word.text() else {
            return Err(self.refuse(Construct::Program("variable")));
        };
        if word.has_glob() {
            return Err(self.refuse(Construct::Program("glob")));
        }
        if is_builtin(&name) {
            return Err(self.refuse(Construct::Builtin(name)));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
