//! `ringfence agent` and its shorter forms `show` and `logs`.

use super::{pin, send, status, whose::Whose};
use crate::{
    auditor::printable,
    core::{agents, client, paths::Paths},
    llm::{
        control::{self, ControlRequest, UserStatus},
        home::Home,
        limits::Limits,
        registry::AgentConfig,
        secret::Source,
        serve,
        worker::Ready,
    },
    misplaced, profile,
};
use anyhow::{Context, bail};
use ringfence_wire::message::{AdminRequest, Status, Stopping};
use serde_json::{Value, json};
use std::{
    fs::File,
    io::{self, BufRead, BufReader, IsTerminal, Write},
    os::unix::fs::MetadataExt,
    path::Path,
    process::ExitCode,
    thread,
    time::Duration,
};

/// Shows, checks and talks to agents: this user's, which `ringfence start` serves, and for root the daemon's. Where both have
/// one of a name, it is the user's.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ringfence agent ls
  ringfence agent check reviewer
  ringfence agent logs reviewer --follow
  ringfence agent send reviewer 'What is in src?'")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Lists the agents, and what each is doing.
    #[command(after_help = "Example:\n  ringfence agent ls --json | jq '.agents[] | {name, state}'")]
    Ls {
        /// One JSON object.
        #[arg(long)]
        json: bool,
    },
    Show(ShowArgs),
    Logs(LogsArgs),
    Send(send::Args),
    /// Stops one agent: it finishes what it does, then its socket is gone. SIGHUP to `ringfence start` or to the daemon
    /// (`systemctl reload ringfence`) starts it again.
    #[command(after_help = "Example:\n  ringfence agent stop reviewer")]
    Stop {
        /// The agent.
        name: String,
    },
    /// Reads an agent's profile and its credentials, and says everything that is wrong with them.
    #[command(
        after_help = "Exits with 0 if all is right, with 1 otherwise.\n\nExample:\n  ringfence agent check reviewer"
    )]
    Check {
        /// The agent.
        name: String,
    },
    Pin(pin::Args),
}

/// Prints an agent's profile with what it takes from the registry; credentials by their source, never by value.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  ringfence show reviewer")]
pub(crate) struct ShowArgs {
    /// The agent.
    agent: String,
    /// One JSON object.
    #[arg(long)]
    json: bool,
}

/// Prints an agent's conversation: for the eye on a terminal, else the log's own lines.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  ringfence logs reviewer --follow\n  ringfence logs reviewer --json | jq -r 'select(.role == \"user\")'"
)]
pub(crate) struct LogsArgs {
    /// The agent.
    agent: String,
    /// Go on with what is added.
    #[arg(long, short)]
    follow: bool,
    /// The log's own lines, on a terminal too.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::Ls { json } => list(*json),
        Command::Show(args) => show(args),
        Command::Logs(args) => logs(args),
        Command::Send(args) => send::run(args),
        Command::Stop { name } => stop(name),
        Command::Check { name } => check(name),
        Command::Pin(args) => pin::run(args),
    }
}

/// The user's directories.
pub(super) fn home() -> anyhow::Result<Home> {
    Home::from_env().context("the home directory is not known; set HOME")
}

/// An agent's name: not a path that leads elsewhere.
pub(super) fn name(text: &str) -> anyhow::Result<&str> {
    if profile::is_name(text) {
        return Ok(text);
    }
    bail!("{text:?} is not an agent's name: letters, digits, `-`, `_` and `.`, not beginning with `.`")
}

/// Prints, and minds nobody who reads no further (`| head`).
pub(super) fn print(text: &str) -> anyhow::Result<ExitCode> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => {
            Err(e).context("standard output cannot be written")
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

fn list(as_json: bool) -> anyhow::Result<ExitCode> {
    let own = control::status(&home()?);
    let daemons = client::admin::<Status>(&Paths::from_env().admin_socket(), &AdminRequest::Status, &[]);
    let (own, daemons) = match (own, daemons) {
        (Ok(own), daemons) => (Some(own), daemons.ok()),
        (Err(_), Ok(daemons)) => (None, Some(daemons)),
        // The daemon is root's to ask: what is said is about the user's own.
        (Err(error), Err(_)) => return Err(error.into()),
    };
    let of_daemon = daemons.map(|status| status.agents);
    if as_json {
        let mut all = own.map_or_else(|| Ok(json!({})), serde_json::to_value)?;
        if let Some(of_daemon) = of_daemon {
            all["daemon"] = serde_json::to_value(of_daemon)?;
        }
        return print(&format!("{all}\n"));
    }
    let mut text = String::new();
    if let Some(own) = &own {
        if let Some(error) = &own.error {
            text += &format!("! the registry cannot be used: {}\n", error.replace('\n', "\n  "));
        }
        text += &table(own);
        for line in pin::amiss(&home()?, &own.agents) {
            text += &format!("! {line}\n");
        }
    }
    if let Some(of_daemon) = of_daemon {
        let mut shown = Vec::new();
        status::agents(&mut shown, &of_daemon)?;
        let shown = String::from_utf8_lossy(&shown);
        match (own.is_some(), of_daemon.is_empty()) {
            (true, true) => {}
            (true, false) => text += &format!("\nthe daemon's:\n{shown}"),
            (false, true) => text += "the daemon serves no agents\n",
            (false, false) => text += shown.trim_start(),
        }
    }
    print(&text)
}

fn stop(name: &str) -> anyhow::Result<ExitCode> {
    match Whose::find(name) {
        Ok(Whose::Daemons(paths)) => {
            let request = AdminRequest::StopAgent { name: name.to_owned() };
            client::admin::<Stopping>(&paths.admin_socket(), &request, &[])?;
        }
        // Whoever serves it knows its name, though the profile may be gone.
        _ => drop(control::ask(&home()?, &ControlRequest::StopAgent { name: name.to_owned() })?),
    }
    print(&format!("{name} is told to stop; it lets what is under way finish\n"))
}

/// The agents as a table, one line each.
pub(super) fn table(status: &UserStatus) -> String {
    if status.agents.is_empty() {
        return format!("no agents: no profile in {} has an [llm.NAME] section\n", status.profiles.display());
    }
    let mut rows = vec![
        ["AGENT", "STATE", "MODEL", "RUNTIME", "WAITING", "TURNS", "FAILED", "TOKENS", "GRANT"]
            .map(str::to_owned),
    ];
    let mut wrong = String::new();
    for agent in &status.agents {
        let worker = agent.worker.clone().unwrap_or_default();
        let runtime = match (worker.runtime, worker.busy) {
            (true, true) => "busy",
            (true, false) => "idle",
            (false, _) => "-",
        };
        let read = worker
            .input_tokens
            .saturating_add(worker.cache_read_tokens)
            .saturating_add(worker.cache_write_tokens);
        rows.push([
            printable(&agent.name),
            agent.state.name().to_owned(),
            printable(agent.model.as_deref().unwrap_or("-")),
            runtime.to_owned(),
            worker.waiting.to_string(),
            worker.turns.to_string(),
            worker.failed.to_string(),
            format!("{read}+{}", worker.output_tokens),
            if agent.model.is_none() {
                "-"
            } else if agent.governed {
                "yes"
            } else {
                "none"
            }
            .to_owned(),
        ]);
        if let Some(error) = &agent.error {
            wrong += &format!("! {}: {}\n", agent.name, error.replace('\n', "\n  "));
        }
    }
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 9] = std::array::from_fn(width);
    for row in &rows {
        let cells: Vec<String> =
            row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        wrong += cells.join("  ").trim_end();
        wrong.push('\n');
    }
    wrong
}

fn check(name: &str) -> anyhow::Result<ExitCode> {
    let whose = Whose::find(name)?;
    let config = whose.load(name)?;
    let unknown = match &whose {
        Whose::Own(home) => {
            Ready::new(&config, home)?;
            serve::fits(&home.socket(name))?;
            Vec::new()
        }
        Whose::Daemons(_) => agents::check(&config)?,
    };
    let mut text = format!("{name}: ok ({})\n", config.file.display());
    for notice in &config.notices {
        text += &format!("    note: {notice}\n");
    }
    if let (Whose::Daemons(_), Some(why)) = (&whose, agents::left_out(&config)) {
        text += &format!("    note: {why}\n");
    }
    for credential in unknown {
        let credential = misplaced::Name(&credential);
        text += &format!(
            "    note: systemd's credential {credential} is for the daemon's unit, and was not looked at\n"
        );
    }
    whose.enter(name)?;
    for (server, tool) in pin::waiting(whose.pins(name))? {
        let tool = printable(&format!("{server}/{tool}"));
        text += &format!(
            "    note: the MCP tool {tool} has changed and is left out: ringfence agent pin {name}\n"
        );
    }
    print(&text)
}

/// `ringfence show`.
pub(crate) fn show(args: &ShowArgs) -> anyhow::Result<ExitCode> {
    let whose = Whose::find(&args.agent)?;
    let config = whose.load(&args.agent)?;
    if args.json {
        return print(&format!("{}\n", described(&config, &whose)));
    }
    let llm = &config.llm;
    let mut text = format!("agent      {}\nprofile    {}\n", config.name, config.file.display());
    text += &format!("model      {} ({}, [llm.{}])\n", printable(&llm.model), llm.provider.name(), llm.name);
    if let Some(url) = &llm.base_url {
        text += &format!("address    {}\n", misplaced::address(url));
    }
    text += &format!("key        {}\n", llm.api_key.as_ref().map_or_else(|| "none".to_owned(), from));
    text += &format!("max_tokens {}\n", llm.max_tokens);
    if let Some(limits) = limits(&config.limits) {
        text += &format!("limits     {limits}\n");
    }
    if !llm.options.is_empty() {
        text += &format!(
            "options    {}\n",
            printable(&misplaced::shown(&Value::Object(llm.options.clone()).to_string()))
        );
    }
    for mcp in &config.mcp {
        let tools = match &mcp.tools {
            None => "all tools".to_owned(),
            Some(tools) if tools.is_empty() => "no tools".to_owned(),
            Some(tools) => printable(&tools.join(", ")),
        };
        let token =
            mcp.auth_token.as_ref().map_or_else(|| "no token".to_owned(), |t| format!("token {}", from(t)));
        text += &format!("mcp        {} ({}): {tools}; {token}\n", mcp.name, misplaced::address(&mcp.url));
    }
    if config.http.is_some() {
        text += &format!("http       {}\n", whose.http_socket(&config.name).display());
        if let Some((port, token)) = whose.loopback(&config) {
            text += &format!("http       http://127.0.0.1:{port}, its token in {}\n", token.display());
        }
    }
    let also =
        |who: &str, uid: Option<u32>| uid.map_or_else(String::new, |uid| format!(", {who} user {uid}"));
    text += &format!(
        "socket     {}{}\nlog        {}{}\n",
        whose.socket(&config.name).display(),
        also("also for", config.socket_owner),
        whose.log(&config.name).display(),
        also("readable for", config.log_reader)
    );
    for notice in &config.notices {
        text += &format!("note: {}\n", printable(notice));
    }
    print(&text)
}

fn limits(limits: &Limits) -> Option<String> {
    let some = [
        limits.turns_per_minute.map(|n| format!("{n} turns a minute")),
        limits.tokens_per_day.map(|n| format!("{n} tokens a day")),
        limits.cost_per_day.map(|cost| format!("a cost of {cost} a day")),
    ];
    let some: Vec<String> = some.into_iter().flatten().collect();
    (!some.is_empty()).then(|| some.join(", "))
}

fn from(source: &Source) -> String {
    match source {
        Source::Value(_) => "[redacted] (in the file)".to_owned(),
        Source::Env(name) => format!("the variable {}", misplaced::Name(name)),
        Source::File(path) => {
            format!("the file {}", printable(&misplaced::shown(&path.display().to_string())))
        }
        Source::Credential(name) => format!("systemd's credential {}", misplaced::Name(name)),
        // Its words may be the credential.
        Source::Command(words) => format!("what {} prints", misplaced::Command(words)),
    }
}

fn described(config: &AgentConfig, whose: &Whose) -> Value {
    let llm = &config.llm;
    let options = Value::Object(llm.options.clone()).to_string();
    let options: Value = serde_json::from_str(&misplaced::shown(&options)).unwrap_or_default();
    json!({
        "name": config.name,
        "file": config.file,
        "llm": {
            "name": llm.name, "provider": llm.provider.name(), "model": llm.model, "max_tokens": llm.max_tokens,
            "base_url": llm.base_url.as_ref().map(misplaced::address), "api_key": llm.api_key.as_ref().map(from),
            "options": options, "prompt_cache": llm.prompt_cache, "max_rounds": llm.max_rounds,
            "max_mcp_rounds": llm.max_mcp_rounds, "timeout": llm.timeout.as_secs(),
            "runtime_timeout": llm.runtime_timeout.as_secs(),
        },
        "mcp": config.mcp.iter().map(|mcp| json!({
            "name": mcp.name, "url": misplaced::address(&mcp.url), "auth_token": mcp.auth_token.as_ref().map(from), "tools": mcp.tools,
        })).collect::<Vec<_>>(),
        "limits": {
            "turns_per_minute": config.limits.turns_per_minute, "tokens_per_day": config.limits.tokens_per_day,
            "cost_per_day": config.limits.cost_per_day,
        },
        "log_reader": config.log_reader,
        "socket_owner": config.socket_owner,
        "http": config.http.map(|_| {
            let (port, token) = whose.loopback(config).unzip();
            json!({ "socket": whose.http_socket(&config.name), "port": port, "token_file": token })
        }),
        "governed": config.governed,
        "socket": whose.socket(&config.name),
        "log": whose.log(&config.name),
        "notices": config.notices,
    })
}

/// `ringfence logs`.
pub(crate) fn logs(args: &LogsArgs) -> anyhow::Result<ExitCode> {
    let home = home()?;
    let path = match home.log(name(&args.agent)?) {
        // Of an agent that is gone.
        path if path.exists() => path,
        _ => {
            let whose = Whose::find(&args.agent)?;
            whose.enter(&args.agent)?;
            whose.log(&args.agent)
        }
    };
    let raw = args.json || !io::stdout().is_terminal();
    let mut follow = Follow { path: &path, file: None, inode: 0, partial: Vec::new() };
    let mut out = io::stdout().lock();
    loop {
        // Which of the two files failed is what a person wants to know.
        let mut unwritten = None;
        let read = follow.lines(|line| {
            let written = if raw { out.write_all(line) } else { out.write_all(pretty(line).as_bytes()) };
            written.map_err(|error| {
                let kind = error.kind();
                unwritten = Some(error);
                kind.into()
            })
        });
        match unwritten.map_or_else(|| out.flush(), Err) {
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => return Ok(ExitCode::SUCCESS),
            written => written.context("standard output cannot be written")?,
        }
        read.with_context(|| format!("{} cannot be read", path.display()))?;
        if !args.follow {
            return Ok(ExitCode::SUCCESS);
        }
        thread::sleep(Duration::from_millis(200));
    }
}

/// A log as it grows, replaced ones included.
struct Follow<'a> {
    path: &'a Path,
    file: Option<BufReader<File>>,
    inode: u64,
    partial: Vec<u8>,
}

impl Follow<'_> {
    fn lines(&mut self, mut each: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let Ok(meta) = std::fs::metadata(self.path) else { return Ok(()) };
        if self.file.is_none() || self.inode != meta.ino() {
            self.file = Some(BufReader::new(File::open(self.path)?));
            self.inode = meta.ino();
            self.partial.clear();
        }
        let Some(file) = &mut self.file else { return Ok(()) };
        while file.read_until(b'\n', &mut self.partial)? > 0 {
            // A line that is being written is shown when it is whole.
            if self.partial.last() == Some(&b'\n') {
                each(&self.partial)?;
                self.partial.clear();
            }
        }
        Ok(())
    }
}

/// One message for the eye.
fn pretty(line: &[u8]) -> String {
    let Ok(message) = serde_json::from_slice::<Value>(line) else {
        return "(a line that is no message)\n".to_owned();
    };
    let field = |key: &str| message[key].as_str().unwrap_or_default().to_owned();
    let mut text = format!("{}  {}", field("ts"), field("role"));
    if message["is_error"] == true {
        text += " (failed)";
    }
    text += "\n";
    for block in message["content"].as_array().into_iter().flatten() {
        let said = match (block["type"].as_str(), block["text"].as_str()) {
            (Some("text"), Some(said)) => lines(said),
            (kind, _) => format!("  [{}]\n", printable(kind.unwrap_or("?"))),
        };
        text += &said;
    }
    for call in message["tool_calls"].as_array().into_iter().flatten() {
        let name = call["name"].as_str().unwrap_or_default();
        text += &lines(&format!("-> {name} {}", call["input"]));
    }
    text
}

fn lines(said: &str) -> String {
    said.lines().map(|line| format!("  {}\n", printable(line))).collect()
}
