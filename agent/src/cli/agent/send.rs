//! `ringfence agent send`: a message to an agent, and its answer, as it comes.

use super::{home, name, owner::Owner};
use crate::cli::output::print;
use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressStyle};
use ringfence_base::{escape::line as printable, paths::Paths, sockets as serve};
use ringfence_policy::agents::home::Home;
use ringfence_wire::frame::{MAX_FRAME, read_message, write_message};
use serde_json::{Value, json};
use std::{
    io::{self, IsTerminal, Write},
    os::unix::net::UnixStream,
    process::ExitCode,
    time::Duration,
};

/// How long the agent's worker may take to accept a message.
const PATIENCE: Duration = Duration::from_secs(30);

/// The protocol's error code for an agent whose runtime is not connected.
const NO_RUNTIME: i64 = -32000;

/// The protocol's stop reason of a message that has reached its limit of rounds.
const MAX_ITERATIONS: &str = "max_iterations";

/// Sends a message to an agent, and prints its answer.
///
/// If this user and the daemon have an agent of the same name, the user's gets the message.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit status:
  0  the agent has answered; with --no-wait, it has or will get the message
  1  the agent failed or reached its limit of rounds, or the message was not delivered

Examples:
  ringfence agent send reviewer 'What changed since yesterday?'
  git diff | ringfence agent send reviewer -
  ringfence agent send reviewer 'Fix the build' --no-wait")]
pub(crate) struct SendArgs {
    /// The agent.
    agent: String,
    /// The message; `-` reads it from standard input.
    #[arg(allow_hyphen_values = true)]
    message: String,
    /// Do not wait for the answer.
    #[arg(long)]
    no_wait: bool,
}

pub(super) fn send(args: &SendArgs) -> anyhow::Result<ExitCode> {
    let text = match args.message.as_str() {
        "-" => io::read_to_string(io::stdin()).context("standard input cannot be read")?,
        text => text.to_owned(),
    };
    if text.trim().is_empty() {
        bail!("the message is empty");
    }
    let mut stream = connect(&home()?, name(&args.agent)?)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let params = json!({ "content": [{ "type": "text", "text": text }] });
    let request = json!({ "jsonrpc": "2.0", "id": 1, "method": "send", "params": params });
    write_message(&mut stream, &request).context("the message cannot be sent")?;
    let mut shown = Answer { begun: false, ends_in_newline: true, spinner: None };
    let answer = frame(&mut stream)?;
    if let Some(error) = answer.get("error") {
        let hint = if error["code"] == NO_RUNTIME {
            "; start its container, whose runtime connects to the agent's socket (`ringfence agent show` prints its path)"
        } else {
            ""
        };
        bail!("{} did not take the message: {}{hint}", args.agent, error_message(error));
    }
    let status = answer["result"]["status"].as_str().unwrap_or_default().to_owned();
    if args.no_wait {
        print(&format!("{}\n", printable(&status)))?;
        return Ok(ExitCode::SUCCESS);
    }
    // A model may take as long as it needs.
    stream.set_read_timeout(None)?;
    shown.wait(if status == "queued" { "waiting for its turn" } else { "thinking" });
    loop {
        let frame = frame(&mut stream).inspect_err(|_| shown.clear_spinner())?;
        match frame["method"].as_str() {
            Some("delivered") => shown.wait("thinking"),
            Some("output") => shown.write(frame["params"]["data"]["text"].as_str().unwrap_or_default())?,
            Some("end_turn") => {
                shown.end()?;
                if frame["params"]["stop_reason"] == MAX_ITERATIONS {
                    bail!(
                        "{} was not done when its limit of rounds was reached (`max_rounds` and `max_mcp_rounds` of its \
                         profile, or `--max-iterations` of its runtime); send it another message to have it go on",
                        args.agent
                    );
                }
                return Ok(ExitCode::SUCCESS);
            }
            Some("error") => {
                shown.end()?;
                bail!("{} failed: {}", args.agent, error_message(&frame["params"]));
            }
            _ => {}
        }
    }
}

fn connect(home: &Home, agent: &str) -> anyhow::Result<UnixStream> {
    // The user's own first, then the host's.
    let (path, of_host) = (home.socket(agent), Paths::from_env().agent_socket(agent));
    let mut refused = None;
    for place in [&path, &home.socket_link(agent), &of_host] {
        match UnixStream::connect(place) {
            Ok(stream) => return Ok(stream),
            Err(why) if why.kind() == io::ErrorKind::NotFound => {}
            // Too long for a socket's address, so there is no socket.
            Err(_) if serve::fits(place).is_err() => {}
            // The error of a socket that exists explains more than that of a missing one.
            Err(why) => refused = Some(why),
        }
    }
    const NEXT: &str =
        "`ringfence status` shows what runs; `ringfence agent start` serves this user's agents";
    if let Some(why) = refused {
        let (own, host) = (path.display(), of_host.display());
        return Err(why).with_context(|| format!("{agent} cannot be reached at {own} or {host}; {NEXT}"));
    }
    // If there is no such agent, this error lists the existing ones.
    let owner = Owner::find(agent)?;
    let socket = owner.socket(agent);
    serve::fits(&socket).with_context(|| format!("{agent} cannot be served"))?;
    bail!("{agent} cannot be reached: nothing serves it, and {} does not exist; {NEXT}", socket.display())
}

fn frame(stream: &mut UnixStream) -> anyhow::Result<Value> {
    read_message(stream, MAX_FRAME).context("the agent's worker ended the connection")
}

fn error_message(error: &Value) -> String {
    printable(error["message"].as_str().unwrap_or("no reason given"))
}

/// The answer on the terminal, as it comes.
struct Answer {
    begun: bool,
    ends_in_newline: bool,
    spinner: Option<ProgressBar>,
}

impl Answer {
    /// A spinner, on a terminal.
    fn wait(&mut self, what: &'static str) {
        if !io::stderr().is_terminal() || self.begun {
            return;
        }
        let spinner = self.spinner.get_or_insert_with(|| {
            let spinner = ProgressBar::new_spinner();
            spinner.set_style(ProgressStyle::default_spinner());
            spinner.enable_steady_tick(Duration::from_millis(100));
            spinner
        });
        spinner.set_message(what);
    }

    fn clear_spinner(&mut self) {
        if let Some(spinner) = self.spinner.take() {
            spinner.finish_and_clear();
        }
    }

    /// Escapes control characters for a terminal: a model can be made to send any.
    fn write(&mut self, text: &str) -> anyhow::Result<()> {
        self.clear_spinner();
        self.begun = true;
        let mut out = io::stdout().lock();
        let safe = if out.is_terminal() {
            text.split_inclusive(['\n', '\t'])
                .map(|part| {
                    let kept = part.trim_end_matches(['\n', '\t']);
                    printable(kept) + &part[kept.len()..]
                })
                .collect()
        } else {
            text.to_owned()
        };
        self.ends_in_newline = text.ends_with('\n') || (text.is_empty() && self.ends_in_newline);
        out.write_all(safe.as_bytes()).and_then(|()| out.flush()).context("standard output cannot be written")
    }

    fn end(&mut self) -> anyhow::Result<()> {
        self.clear_spinner();
        if !self.ends_in_newline {
            self.write("\n")?;
        }
        Ok(())
    }
}
