//! What is said on the tool runner's socket, in both protocols. The first byte tells which: a frame's length begins with a
//! zero, and a command's name never does.
//!
//! | protocol | request | answer |
//! |---|---|---|
//! | v1 | `command<TAB>argument<TAB>argument<LF>` | an Erlang external term, `{stdout, stderr, code}` |
//! | v2 | frames of JSON, [`Request`] | frames of JSON, [`Answer`] |

use crate::frame::HEADER;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Where the tool runner listens, if nobody says otherwise.
pub const SOCKET: &str = "/tmp/tool_runner.sock";

/// Most bytes of one request, in either protocol: 128 KiB.
pub const MAX_REQUEST: usize = 128 << 10;

/// Most bytes of a command's arguments that a v2 request carries: they are for the record, and a tool may have megabytes.
pub const MAX_ARGS: usize = 16 << 10;

/// A protocol, or what is neither.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// A line with tabs.
    V1,
    /// Frames of JSON.
    V2,
}

impl Protocol {
    /// Tells by the first byte.
    pub fn of(first: u8) -> Self {
        // No frame here is as long as 2^24 bytes.
        const { assert!(MAX_REQUEST < 1 << 24) };
        if first == 0 { Self::V2 } else { Self::V1 }
    }
}

/// Why a request cannot be understood.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// Over the limit.
    #[error("a request of more than {MAX_REQUEST} bytes")]
    TooLong,
    /// It ended, or time was up, before all of it was there.
    #[error("half a request: {0}")]
    Half(&'static str),
    /// A v1 line that names no command.
    #[error("the request names no command")]
    NoCommand,
    /// A NUL: no command line can have one.
    #[error("the request has a NUL byte, which no command line can have")]
    Nul,
    /// A frame of no bytes.
    #[error("a message of no bytes")]
    Empty,
    /// Not the JSON that was expected.
    #[error("a message that cannot be understood: {0}")]
    Json(#[source] serde_json::Error),
}

/// A v1 request: the command's name and its arguments, as bytes.
#[derive(Debug, PartialEq, Eq)]
pub struct Line {
    /// At least one; the first is not empty, none has a NUL.
    pub words: Vec<Vec<u8>>,
}

/// Reads a v1 request from what came so far; `None`: its end has not come yet. What follows the line end is not looked at.
///
/// # Errors
/// `TooLong`, `NoCommand`, `Nul`.
pub fn line(bytes: &[u8]) -> Result<Option<Line>, RequestError> {
    let end = bytes.iter().position(|byte| *byte == b'\n');
    if end.unwrap_or(bytes.len()) > MAX_REQUEST {
        return Err(RequestError::TooLong);
    }
    let Some(line) = end.and_then(|end| bytes.get(..end)) else { return Ok(None) };
    if line.contains(&0) {
        return Err(RequestError::Nul);
    }
    let words: Vec<Vec<u8>> = line.split(|byte| *byte == b'\t').map(<[u8]>::to_vec).collect();
    if words.first().is_none_or(Vec::is_empty) {
        return Err(RequestError::NoCommand);
    }
    Ok(Some(Line { words }))
}

/// A v1 answer: `{Stdout, Stderr, Code}` as `term_to_binary/1` writes it and `binary_to_term/1` reads it. The tags are of
/// the external term format, <https://www.erlang.org/doc/apps/erts/erl_ext_dist.html>.
pub fn term(stdout: &[u8], stderr: &[u8], code: i32) -> Vec<u8> {
    const VERSION: u8 = 131;
    const SMALL_TUPLE: u8 = 104;
    const BINARY: u8 = 109;
    const SMALL_INTEGER: u8 = 97;
    const INTEGER: u8 = 98;
    let mut term = Vec::with_capacity(stdout.len() + stderr.len() + 18);
    term.extend([VERSION, SMALL_TUPLE, 3]);
    for bytes in [stdout, stderr] {
        // What does not fit 32 bits fits no answer: callers keep far below.
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        term.push(BINARY);
        term.extend(length.to_be_bytes());
        term.extend(bytes.iter().take(length as usize));
    }
    match u8::try_from(code) {
        Ok(small) => term.extend([SMALL_INTEGER, small]),
        Err(_) => {
            term.push(INTEGER);
            term.extend(code.to_be_bytes());
        }
    }
    term
}

/// What a shim says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Request {
    /// May this tool run? First, and once.
    Ask(Ask),
    /// It ended; last, where the shim ran it as its own child.
    Done(Done),
}

/// A tool that a shim is about to become.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ask {
    /// The tool's name, as the shim is called.
    pub cmd: String,
    /// Its arguments, for the record: what is not UTF-8 is replaced, and only the first [`MAX_ARGS`] bytes are here.
    pub args: Vec<String>,
    /// How many arguments are not here.
    #[serde(default)]
    pub left_out: u64,
    /// Where it starts.
    pub cwd: String,
    /// Its output goes where the output of the outermost process goes: to whoever reads it all.
    #[serde(default)]
    pub end: bool,
}

impl Ask {
    /// About a tool with these arguments, as many as there is room for.
    pub fn new<'a>(
        cmd: String,
        args: impl Iterator<Item = std::borrow::Cow<'a, str>>,
        cwd: String,
        end: bool,
    ) -> Self {
        let mut ask = Self { cmd, cwd, end, ..Self::default() };
        let mut room = MAX_ARGS;
        for arg in args {
            match room.checked_sub(arg.len() + 1) {
                Some(left) if ask.left_out == 0 => {
                    room = left;
                    ask.args.push(arg.into_owned());
                }
                _ => ask.left_out += 1,
            }
        }
        ask
    }
}

/// How a tool ended that the shim ran as its child.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Done {
    /// Its exit status; none where a signal ended it.
    pub status: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Bytes that it wrote to standard output.
    pub bytes: u64,
    /// Bytes that it wrote to standard error, where that was watched.
    pub error_bytes: u64,
    /// Its output was cut.
    pub cut: bool,
    /// The file that has all of it.
    pub spill: Option<PathBuf>,
}

/// What the daemon answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Go on, in this manner.
    Go {
        /// The number of the run in the daemon's log.
        run: u64,
        /// What to do with long output.
        shape: Shape,
    },
    /// It must not run.
    Refused {
        /// Why, in words.
        message: String,
        /// The shim's exit status.
        status: u8,
    },
}

/// What becomes of long output.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Whose output is cut.
    pub truncate: Truncate,
    /// Which part of it is shown.
    pub keep: Keep,
    /// Most bytes that are shown.
    pub max_bytes: u64,
    /// Most lines that are shown.
    pub max_lines: u64,
    /// Binary output is named, not printed.
    pub name_binary: bool,
    /// The folder below which users have their spill files.
    pub spill_dir: PathBuf,
    /// Most bytes of one spill file; 0: there are none.
    pub spill_bytes: u64,
}

/// Whose output is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Truncate {
    /// The output that leaves the run: not what goes from one stage of a pipe to the next.
    End,
    /// Every tool's.
    Each,
    /// Nobody's.
    Off,
}

/// Which part of long output is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    /// Its start.
    Head,
    /// Its end.
    Tail,
    /// Half of the room for each.
    Both,
}

/// Takes a v2 message from what came so far: the message and how many bytes it took; `None`: it is not whole yet.
///
/// # Errors
/// `TooLong`, `Empty`, `Json`. After an error the stream is out of step.
pub fn message<M: for<'de> Deserialize<'de>>(bytes: &[u8]) -> Result<Option<(M, usize)>, RequestError> {
    let Some((header, rest)) = bytes.split_first_chunk::<HEADER>() else { return Ok(None) };
    let length = u32::from_be_bytes(*header) as usize;
    match length {
        0 => return Err(RequestError::Empty),
        _ if length > MAX_REQUEST => return Err(RequestError::TooLong),
        _ => {}
    }
    let Some(body) = rest.get(..length) else { return Ok(None) };
    let message = serde_json::from_slice(body).map_err(RequestError::Json)?;
    Ok(Some((message, HEADER + length)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::borrow::Cow;

    fn words(bytes: &[u8]) -> Vec<Vec<u8>> {
        line(bytes).unwrap().unwrap().words
    }

    #[test]
    fn a_line_is_words_between_tabs() {
        assert_eq!(words(b"cat\tfile.txt\n"), [b"cat".to_vec(), b"file.txt".to_vec()]);
        assert_eq!(words(b"echo\t\t%s\xff\n"), [b"echo".to_vec(), Vec::new(), b"%s\xff".to_vec()]);
        assert_eq!(words(b"ls\nrm\n"), [b"ls".to_vec()]);
        assert_eq!(line(b"cat\tfile").unwrap(), None);
        assert_eq!(line(b"").unwrap(), None);
    }

    #[test]
    fn a_bad_line_is_named() {
        assert!(matches!(line(b"\n"), Err(RequestError::NoCommand)));
        assert!(matches!(line(b"\tx\n"), Err(RequestError::NoCommand)));
        assert!(matches!(line(b"a\0b\n"), Err(RequestError::Nul)));
        let long = vec![b'a'; MAX_REQUEST + 1];
        assert!(matches!(line(&long), Err(RequestError::TooLong)));
        assert_eq!(line(&long[1..]).unwrap(), None);
    }

    /// Bytes that Erlang/OTP 25 made: `term_to_binary({<<"hi\n">>, <<>>, 0})` and with a code of -1.
    #[test]
    fn a_term_is_erlang_s() {
        let start = [131, 104, 3, 109, 0, 0, 0, 3, b'h', b'i', b'\n', 109, 0, 0, 0, 0];
        assert_eq!(term(b"hi\n", b"", 0), [start.as_slice(), &[97, 0]].concat());
        assert_eq!(term(b"hi\n", b"", -1), [start.as_slice(), &[98, 255, 255, 255, 255]].concat());
        assert_eq!(term(b"hi\n", b"", 256), [start.as_slice(), &[98, 0, 0, 1, 0]].concat());
    }

    #[test]
    fn an_ask_keeps_what_there_is_room_for() {
        let long = "x".repeat(MAX_ARGS);
        let args = ["a", long.as_str(), "b"];
        let ask = Ask::new("cat".into(), args.into_iter().map(Cow::Borrowed), "/".into(), true);
        assert_eq!((ask.args.as_slice(), ask.left_out), (["a".to_owned()].as_slice(), 2));
        let body = serde_json::to_vec(&Request::Ask(ask.clone())).unwrap();
        let frame = [&(body.len() as u32).to_be_bytes()[..], &body].concat();
        assert_eq!(Protocol::of(frame[0]), Protocol::V2);
        let (read, length) = message::<Request>(&frame).unwrap().unwrap();
        assert_eq!((read, length), (Request::Ask(ask), frame.len()));
        assert!(message::<Request>(&frame[..frame.len() - 1]).unwrap().is_none());
    }

    proptest::proptest! {
        #[test]
        fn where_a_request_is_cut_changes_nothing(words in proptest::collection::vec("[^\\t\\n\\x00]{1,9}", 1..5), at: proptest::sample::Index) {
            let request = words.join("\t") + "\n";
            let read = line(request.as_bytes()).unwrap().unwrap();
            proptest::prop_assert_eq!(&read.words, &words.iter().map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>());
            proptest::prop_assert_eq!(line(&request.as_bytes()[..at.index(request.len())]).unwrap(), None);
            let ask = Ask::new("x".into(), words.iter().map(|word| Cow::Borrowed(word.as_str())), "/".into(), false);
            let body = serde_json::to_vec(&Request::Ask(ask.clone())).unwrap();
            let frame = [&(body.len() as u32).to_be_bytes()[..], &body].concat();
            proptest::prop_assert!(message::<Request>(&frame[..at.index(frame.len())]).unwrap().is_none());
            proptest::prop_assert_eq!(message::<Request>(&frame).unwrap().unwrap(), (Request::Ask(ask), frame.len()));
        }
    }

    #[test]
    fn a_bad_message_is_named() {
        assert!(matches!(message::<Request>(&[0; 4]), Err(RequestError::Empty)));
        assert!(matches!(message::<Request>(&[0, 255, 0, 0]), Err(RequestError::TooLong)));
        assert!(matches!(message::<Request>(b"\0\0\0\x02{]"), Err(RequestError::Json(_))));
        let unknown = br#"{"ask":{"cmd":"x","args":[],"cwd":"/","root":true}}"#;
        let frame = [&(unknown.len() as u32).to_be_bytes()[..], unknown].concat();
        assert!(message::<Request>(&frame).unwrap_err().to_string().contains("unknown field `root`"));
    }
}
