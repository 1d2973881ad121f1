//! The runtime's flags, and what becomes of them.

use super::work::Job;
use ringfence_base::error::chain;
use ringfence_file_tools::output::DEFAULT_CHARS;
use serde_json::Value;
use std::{
    fs::File,
    io::{self, Read},
    path::PathBuf,
    time::Duration,
};

/// Most bytes of a system prompt: the rest of a frame is for the person's message.
const MOST_PROMPT: u64 = 4 << 20;

/// Most characters of a tool's output that may be configured: the output of several calls has to fit a frame of 16 MiB.
const MOST_CHARS: u64 = 2_000_000;

/// How to run the agent.
#[derive(Debug, clap::Args)]
#[group(id = "runtime")]
pub struct Args {
    /// File with the system prompt
    #[arg(long, value_name = "FILE", required = true)]
    system_prompt: PathBuf,
    /// Tools that the model may use, separated by commas: bash, read_file, write_file, edit_file, list_directory, search
    #[arg(long, value_name = "NAMES", required = true, value_delimiter = ',')]
    tools: Vec<String>,
    /// The daemon's socket for this agent; it may come later, and may go and come back
    #[arg(long, value_name = "PATH", required = true)]
    socket: PathBuf,
    /// Most rounds of tool calls for one message
    #[arg(long, value_name = "N", default_value_t = 100)]
    max_iterations: u32,
    /// Most characters of one tool's output; longer ones lose their middle
    #[arg(long, value_name = "N", default_value_t = DEFAULT_CHARS as u64, value_parser = clap::value_parser!(u64).range(1..=MOST_CHARS))]
    max_output_chars: u64,
    /// Most seconds that one tool call may take; then it and all that it started are killed
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    tool_timeout: u32,
}

/// Flags that were understood and files that were read.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) system: String,
    pub(super) jobs: Vec<Job>,
    /// What a turn's `tools` says about them.
    pub(super) tools: Value,
    pub(super) socket: PathBuf,
    pub(super) max_rounds: u32,
    pub(super) max_chars: usize,
    pub(super) timeout: Duration,
    /// Where tools start.
    pub(super) dir: PathBuf,
}

/// Why the flags cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("cannot read the system prompt {path}: {reason}")]
    Prompt { path: String, reason: String },
    #[error("there is no tool `{name}`; --tools takes {known}, separated by commas")]
    Tool { name: String, known: String },
    #[error("--tools names `{0}` twice")]
    Twice(String),
    #[error("cannot tell the working directory: {0}")]
    Directory(io::Error),
}

impl Args {
    /// Reads the prompt, finds the tools.
    pub(super) fn load(&self) -> Result<Settings, Error> {
        let system = self.prompt()?;
        let mut jobs = Vec::new();
        for name in self.tools.iter().map(|name| name.trim()).filter(|name| !name.is_empty()) {
            let job = Job::named(name).ok_or_else(|| Error::Tool {
                name: name.to_owned(),
                known: Job::all().map(Job::name).collect::<Vec<_>>().join(", "),
            })?;
            if jobs.contains(&job) {
                return Err(Error::Twice(name.to_owned()));
            }
            jobs.push(job);
        }
        let timeout = Duration::from_secs(self.tool_timeout.into());
        Ok(Settings {
            system,
            tools: jobs.iter().map(|job| job.describe(timeout)).collect(),
            jobs,
            socket: self.socket.clone(),
            max_rounds: self.max_iterations,
            max_chars: usize::try_from(self.max_output_chars).unwrap_or(usize::MAX),
            timeout,
            dir: std::env::current_dir().map_err(Error::Directory)?,
        })
    }

    fn prompt(&self) -> Result<String, Error> {
        let fail = |reason: String| Error::Prompt { path: self.system_prompt.display().to_string(), reason };
        let file = File::open(&self.system_prompt).map_err(|error| fail(chain(&error)))?;
        let mut bytes = Vec::new();
        file.take(MOST_PROMPT + 1).read_to_end(&mut bytes).map_err(|error| fail(error.to_string()))?;
        if bytes.len() as u64 > MOST_PROMPT {
            return Err(fail("it is over 4 MiB".to_owned()));
        }
        String::from_utf8(bytes).map_err(|_| fail("it is not UTF-8".to_owned()))
    }
}
