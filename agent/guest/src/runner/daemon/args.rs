//! The daemon's flags.

use clap::ValueEnum;
use ringfence_wire::runner::{Keep, SOCKET, Shape, Truncate};
use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

/// Most bytes of output that may be configured: they are in memory until it is known whether more comes.
const MOST_BYTES: u64 = 16 << 20;

/// How to run the daemon.
#[derive(Debug, clap::Args)]
#[group(id = "daemon")]
pub struct Args {
    /// Where to listen; shims find it by RINGFENCE_TOOLRUNNER_SOCKET if it is another
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    pub(crate) socket: PathBuf,
    #[command(flatten)]
    pub(super) limits: Limits,
}

/// What tools may do, and what becomes of their output.
#[derive(Debug, Clone, clap::Args)]
pub struct Limits {
    /// Whose output is cut: what leaves the run, every tool's (also between the stages of a pipe), or nobody's
    #[arg(long, value_name = "WHOSE", value_enum, default_value = "end")]
    truncate: Whose,
    /// Which part of long output is shown
    #[arg(long, value_name = "PART", value_enum, default_value = "head")]
    keep: Part,
    /// Most bytes that are shown
    #[arg(long, value_name = "N", default_value_t = 4000, value_parser = clap::value_parser!(u64).range(1..=MOST_BYTES))]
    max_bytes: u64,
    /// Most lines that are shown, of those bytes
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u64).range(1..))]
    max_lines: u64,
    /// Binary output is named with its size, or shown like any other
    #[arg(long, value_name = "HOW", value_enum, default_value = "name")]
    binary: Binary,
    /// Folder below which each user has a folder with what was cut, whole
    #[arg(long, value_name = "DIR", default_value = "/tmp")]
    spill_dir: PathBuf,
    /// Most bytes of one such file; 0: none are written
    #[arg(long, value_name = "N", default_value_t = 64 << 20)]
    spill_bytes: u64,
    /// Most tools that run at a time; more are refused, not queued: the stages of a pipe wait for each other
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..=4096))]
    max_tools: u16,
    /// Seconds until a tool is killed with its group; 0: it may run for ever
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=86_400))]
    timeout: u32,
    /// File for a line of JSON about each run; without it, standard error, and with `exec` nowhere
    #[arg(long, value_name = "FILE")]
    pub(crate) log: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Whose {
    End,
    Each,
    Off,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Part {
    Head,
    Tail,
    Both,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Binary {
    Name,
    Show,
}

impl Limits {
    pub(super) fn shape(&self) -> Shape {
        Shape {
            truncate: match self.truncate {
                Whose::End => Truncate::End,
                Whose::Each => Truncate::Each,
                Whose::Off => Truncate::Off,
            },
            keep: match self.keep {
                Part::Head => Keep::Head,
                Part::Tail => Keep::Tail,
                Part::Both => Keep::Both,
            },
            max_bytes: self.max_bytes,
            max_lines: self.max_lines,
            name_binary: self.binary == Binary::Name,
            spill_dir: self.spill_dir.clone(),
            spill_bytes: self.spill_bytes,
        }
    }

    pub(super) fn max_tools(&self) -> usize {
        self.max_tools.into()
    }

    /// How long a tool may run; zero: for ever.
    pub(super) fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout.into())
    }

    /// When a tool that began then has had its time.
    pub(super) fn deadline(&self, began: Instant) -> Option<Instant> {
        (self.timeout > 0).then(|| began + self.timeout())
    }
}
