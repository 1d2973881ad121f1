//! The simple commands of a shell script, wherever they stand in it: in pipelines, loops, groups, functions and
//! substitutions. One pass, no recursion.
//!
//! The confined shell (`ringfence-tools`) has a reader of its own, which refuses all that it does not run: loops,
//! substitutions, `~`, `cd`. This one must find what bash would run, and runs nothing: where it is unsure, it takes more
//! for a command than there is.

/// Most commands of a script that are read.
const MOST_COMMANDS: usize = 2000;
/// Most substitutions and groups that stand in one another.
const DEEPEST: usize = 64;
/// What stands in a word for the output of a substitution: no text has it (private use).
const OUTPUT: char = '\u{f8ff}';

/// Words before which a command begins.
const KEYWORDS: &[&str] = &[
    "!", "{", "}", "if", "then", "elif", "else", "fi", "while", "until", "do", "done", "esac", "time",
    "coproc",
];

/// What was read of a script.
#[derive(Debug, Default)]
pub(super) struct Script {
    pub(super) commands: Vec<Command>,
    /// Texts in which substitutions run, and nothing else: bodies of here-documents.
    pub(super) texts: Vec<String>,
    /// Whether it was understood to its end.
    pub(super) whole: bool,
}

/// A program with its arguments.
#[derive(Debug, Default, Clone)]
pub(super) struct Command {
    /// The program first, behind assignments; none: only redirects.
    pub(super) words: Vec<String>,
    /// Files that it is written to, with `>`.
    pub(super) written: Vec<String>,
    /// The same with `>>`.
    pub(super) appended: Vec<String>,
    /// Files that it reads.
    pub(super) read: Vec<String>,
    /// Whether its input is the output of the command before it.
    pub(super) piped: bool,
    /// Its input, where that stands in the script.
    pub(super) input: Option<String>,
    /// The here-document that is its input, in their order.
    pub(super) document: Option<usize>,
}

/// Whether a part of the word is only known when the script runs: the output of a command.
pub(super) fn has_output(word: &str) -> bool {
    word.contains(OUTPUT)
}

/// Whether the whole word is only known then.
pub(super) fn is_unknown(word: &str) -> bool {
    let bare = word.trim_matches(|c: char| c.is_whitespace() || c == '"');
    let name = bare.strip_prefix('$').map(|name| name.trim_start_matches('{').trim_end_matches('}'));
    has_output(word)
        || name.is_some_and(|name| !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_'))
}

/// Reads a script.
pub(super) fn read(text: &str) -> Script {
    let mut reader = Reader { rest: text.chars().peekable(), whole: true, ..Reader::new() };
    while reader.step() {}
    reader.end_command();
    reader.whole &= reader.stack.is_empty() && !reader.quoted;
    let Reader { mut script, bodies, whole, .. } = reader;
    let mut bodies: Vec<Option<String>> = bodies.into_iter().map(Some).collect();
    for command in &mut script.commands {
        if let Some(body) = command.document.and_then(|at| bodies.get_mut(at)) {
            command.input = body.take();
        }
    }
    script.whole = whole;
    script
}

/// Where the next word goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Words,
    Written,
    Appended,
    Read,
    Input,
}

/// What ends the innermost substitution or group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Close {
    /// `$(`, `<(`, `>(`: a word of the command around it.
    Parenthesis,
    /// The same, in its older form.
    Backtick,
    /// `(`: a command by itself.
    Group,
}

/// What was under way around a substitution or group.
struct Frame {
    close: Close,
    command: Command,
    word: Option<String>,
    place: Place,
    quoted: bool,
}

struct Reader<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
    script: Script,
    stack: Vec<Frame>,
    command: Command,
    /// The word under way.
    word: Option<String>,
    place: Place,
    /// Inside of double quotes.
    quoted: bool,
    /// Whether the next command gets the output of the last.
    piped: bool,
    /// Here-documents whose bodies begin at the next line: the delimiter, whether tabs are stripped, whether it is quoted.
    pending: Vec<(String, bool, bool)>,
    bodies: Vec<String>,
    whole: bool,
}

impl Reader<'_> {
    fn new() -> Self {
        Self {
            rest: "".chars().peekable(),
            script: Script::default(),
            stack: Vec::new(),
            command: Command::default(),
            word: None,
            place: Place::Words,
            quoted: false,
            piped: false,
            pending: Vec::new(),
            bodies: Vec::new(),
            whole: true,
        }
    }

    fn push(&mut self, c: char) {
        self.word.get_or_insert_default().push(c);
    }

    /// Takes the next character if it is this one.
    fn takes(&mut self, c: char) -> bool {
        self.rest.next_if_eq(&c).is_some()
    }

    /// Takes one character and what belongs to it; `false` at the end.
    fn step(&mut self) -> bool {
        let Some(c) = self.rest.next() else { return false };
        match c {
            '\\' => self.escaped(),
            '$' => self.dollar(),
            '`' => match self.stack.last() {
                Some(frame) if frame.close == Close::Backtick => self.close(),
                _ => self.open(Close::Backtick),
            },
            '"' => {
                self.quoted = !self.quoted;
                self.word.get_or_insert_default();
            }
            _ if self.quoted => self.push(c),
            '\'' => self.literal(),
            ' ' | '\t' | '\r' => self.end_word(),
            '\n' => {
                self.end_command();
                self.documents();
            }
            '#' if self.word.is_none() => while self.rest.next_if(|c| *c != '\n').is_some() {},
            ';' => self.end_command(),
            '&' => {
                if self.takes('>') {
                    self.redirect_out();
                } else {
                    self.end_command();
                }
            }
            '|' => {
                let or = self.takes('|');
                if !or {
                    self.takes('&');
                }
                self.end_command();
                self.piped = !or;
            }
            '(' => self.parenthesis(),
            ')' => match self.stack.last() {
                Some(frame) if frame.close != Close::Backtick => self.close(),
                // The pattern of a `case`.
                _ => {
                    self.word = None;
                    self.command = Command::default();
                }
            },
            '<' | '>' => self.redirect(c),
            _ => self.push(c),
        }
        self.script.commands.len() < MOST_COMMANDS || {
            self.whole = false;
            false
        }
    }

    fn escaped(&mut self) {
        match self.rest.next() {
            Some('\n') => {}
            Some(c) if self.quoted && !matches!(c, '$' | '`' | '"' | '\\') => {
                self.push('\\');
                self.push(c);
            }
            Some(c) => self.push(c),
            None => self.push('\\'),
        }
    }

    /// Single quotes, the first taken.
    fn literal(&mut self) {
        self.word.get_or_insert_default();
        loop {
            match self.rest.next() {
                Some('\'') => return,
                Some(c) => self.push(c),
                None => {
                    self.whole = false;
                    return;
                }
            }
        }
    }

    fn dollar(&mut self) {
        match self.rest.peek() {
            Some('(') => {
                self.rest.next();
                self.open(Close::Parenthesis);
            }
            Some('\'') if !self.quoted => {
                self.rest.next();
                self.encoded();
            }
            _ => self.push('$'),
        }
    }

    /// `$'...'`, behind its first quote.
    fn encoded(&mut self) {
        self.word.get_or_insert_default();
        while let Some(c) = self.rest.next() {
            match c {
                '\'' => return,
                '\\' => {
                    let (radix, most) = match self.rest.next() {
                        Some('n') => {
                            self.push('\n');
                            continue;
                        }
                        Some('t') => {
                            self.push('\t');
                            continue;
                        }
                        Some('x') => (16, 2),
                        Some('u') => (16, 4),
                        Some('U') => (16, 8),
                        Some(digit @ '0'..='7') => {
                            let first = digit.to_digit(8).unwrap_or_default();
                            let c = self.number(first, 8, 2);
                            self.push(c);
                            continue;
                        }
                        Some(c) => {
                            self.push(c);
                            continue;
                        }
                        None => break,
                    };
                    let c = self.number(0, radix, most);
                    self.push(c);
                }
                c => self.push(c),
            }
        }
        self.whole = false;
    }

    /// A character by its number.
    fn number(&mut self, mut value: u32, radix: u32, most: usize) -> char {
        for _ in 0..most {
            let Some(digit) = self.rest.peek().and_then(|c| c.to_digit(radix)) else { break };
            self.rest.next();
            value = value.saturating_mul(radix).saturating_add(digit);
        }
        char::from_u32(value).unwrap_or(OUTPUT)
    }

    fn parenthesis(&mut self) {
        if self.word.is_some() && self.takes(')') {
            // `name()`: a function, of which only the body counts.
            self.word = None;
            self.command = Command::default();
            return;
        }
        self.open(Close::Group);
    }

    /// Begins what stands in the word or command under way.
    fn open(&mut self, close: Close) {
        if self.stack.len() >= DEEPEST {
            self.whole = false;
            return;
        }
        self.stack.push(Frame {
            close,
            command: std::mem::take(&mut self.command),
            word: self.word.take(),
            place: std::mem::replace(&mut self.place, Place::Words),
            quoted: std::mem::take(&mut self.quoted),
        });
        self.piped &= close == Close::Group;
    }

    fn close(&mut self) {
        self.end_command();
        let Some(Frame { close, command, word, place, quoted }) = self.stack.pop() else { return };
        (self.command, self.word, self.place, self.quoted) = (command, word, place, quoted);
        if close != Close::Group {
            self.push(OUTPUT);
        }
    }

    /// At `<` or `>`, which is taken.
    fn redirect(&mut self, c: char) {
        if self.rest.peek() == Some(&'(') {
            self.rest.next();
            return self.open(Close::Parenthesis);
        }
        // The number of a descriptor.
        if self.word.as_ref().is_some_and(|word| word.bytes().all(|byte| byte.is_ascii_digit())) {
            self.word = None;
        }
        self.end_word();
        if c == '>' {
            return self.redirect_out();
        }
        if self.takes('<') {
            if self.takes('<') {
                self.place = Place::Input;
            } else {
                self.document();
            }
        } else if self.takes('&') {
            self.descriptor();
        } else if self.takes('>') {
            self.place = Place::Appended;
        } else {
            self.place = Place::Read;
        }
    }

    fn redirect_out(&mut self) {
        self.end_word();
        if self.takes('>') {
            self.place = Place::Appended;
        } else if self.takes('&') {
            self.descriptor();
        } else {
            self.takes('|');
            self.place = Place::Written;
        }
    }

    /// What stands behind `>&`: a descriptor, or a file.
    fn descriptor(&mut self) {
        if self.rest.peek().is_some_and(|c| c.is_ascii_digit() || *c == '-') {
            while self.rest.next_if(|c| c.is_ascii_digit() || *c == '-').is_some() {}
        } else {
            self.place = Place::Written;
        }
    }

    /// The delimiter of a here-document, behind `<<`.
    fn document(&mut self) {
        let tabs = self.takes('-');
        while self.rest.next_if(|c| matches!(c, ' ' | '\t')).is_some() {}
        let (mut delimiter, mut quoted) = (String::new(), false);
        while let Some(c) =
            self.rest.next_if(|c| !c.is_whitespace() && !matches!(c, ';' | '|' | '&' | '<' | '>' | ')'))
        {
            match c {
                '\'' | '"' | '\\' => quoted = true,
                c => delimiter.push(c),
            }
        }
        self.command.document = Some(self.bodies.len() + self.pending.len());
        self.pending.push((delimiter, tabs, quoted));
    }

    /// The bodies of the here-documents of the line that ended.
    fn documents(&mut self) {
        for (delimiter, tabs, quoted) in std::mem::take(&mut self.pending) {
            let mut body = String::new();
            loop {
                let mut line = String::new();
                while let Some(c) = self.rest.next_if(|c| *c != '\n') {
                    line.push(c);
                }
                let ended = self.rest.next().is_none();
                if (if tabs { line.trim_start_matches('\t') } else { &line }) == delimiter {
                    break;
                }
                body.push_str(&line);
                body.push('\n');
                if ended {
                    break;
                }
            }
            if !quoted && (body.contains("$(") || body.contains('`')) {
                self.script.texts.push(format!(": \"{}\"", body.replace('"', "\\\"")));
            }
            self.bodies.push(body);
        }
    }

    fn end_word(&mut self) {
        let Some(word) = self.word.take() else { return };
        match std::mem::replace(&mut self.place, Place::Words) {
            Place::Words if self.command.words.is_empty() => {
                if !KEYWORDS.contains(&word.as_str()) && !is_assignment(&word) {
                    self.command.words.push(word);
                }
            }
            Place::Words => self.command.words.push(word),
            Place::Written => self.command.written.push(word),
            Place::Appended => self.command.appended.push(word),
            Place::Read => self.command.read.push(word),
            Place::Input => self.command.input = Some(word),
        }
    }

    fn end_command(&mut self) {
        self.end_word();
        self.place = Place::Words;
        let mut command = std::mem::take(&mut self.command);
        let Command { words, written, appended, read, input, document, .. } = &command;
        let nothing = words.is_empty()
            && written.is_empty()
            && appended.is_empty()
            && read.is_empty()
            && input.is_none()
            && document.is_none();
        if !nothing {
            command.piped = std::mem::take(&mut self.piped);
            self.script.commands.push(command);
        }
    }
}

/// `NAME=value`, in front of a program.
pub(super) fn is_assignment(word: &str) -> bool {
    word.split_once('=').is_some_and(|(name, _)| {
        let name = name.strip_suffix('+').unwrap_or(name);
        !name.is_empty()
            && !name.starts_with(|c: char| c.is_ascii_digit())
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    })
}

#[cfg(test)]
mod tests;
