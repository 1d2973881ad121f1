//! `ringfence agent show` and `ringfence agent check`: an agent's configuration, and what is wrong with it.

use super::{owner::Owner, pin};
use crate::cli::output::print;
use ringfence_base::{escape::line as printable, sockets as serve};
use ringfence_core::agents;
use ringfence_credentials::Source;
use ringfence_llm_worker::worker::Ready;
use ringfence_policy::agents::{
    config::{Auth, Limits},
    registry::AgentConfig,
};
use ringfence_redact::misplaced;
use serde_json::{Value, json};
use std::process::ExitCode;

/// Shows an agent's configuration.
///
/// It is the profile with what it takes from the registry. Credentials are shown by their source, never by value.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  ringfence agent show reviewer")]
pub(crate) struct ShowArgs {
    /// The agent.
    agent: String,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Checks an agent's profile and credentials, and reports all errors.
#[derive(Debug, clap::Args)]
#[command(after_help = "Exit status:
  0  the agent can be started
  1  it cannot

Example:
  ringfence agent check reviewer")]
pub(crate) struct CheckArgs {
    /// The agent.
    name: String,
}

pub(super) fn show(args: &ShowArgs) -> anyhow::Result<ExitCode> {
    let owner = Owner::find(&args.agent)?;
    let config = owner.load(&args.agent)?;
    if args.json {
        return print(&format!("{}\n", described(&config, &owner)));
    }
    let llm = &config.llm;
    let mut text = format!("agent      {}\nprofile    {}\n", config.name, config.file.display());
    text += &format!("model      {} ({}, [llm.{}])\n", printable(&llm.model), llm.provider.name(), llm.name);
    if !llm.models.is_empty() {
        text += &format!("models     {}\n", printable(&llm.offered().collect::<Vec<_>>().join(", ")));
    }
    if let Some(url) = &llm.base_url {
        text += &format!("address    {}\n", misplaced::address(url));
    }
    text += &format!("key        {}\n", llm.api_key.as_ref().map_or_else(|| "none".to_owned(), from));
    text += &format!("max_tokens {}\n", llm.max_tokens);
    if !llm.provider_tools.is_empty() {
        text += &format!("provider   may run {}\n", printable(&llm.provider_tools.join(", ")));
    }
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
        let required = if mcp.required { "; required" } else { "" };
        text += &format!(
            "mcp        {} ({}): {tools}; {token}{required}\n",
            mcp.name,
            misplaced::address(&mcp.url)
        );
    }
    if config.http.is_some() {
        text += &format!("http       {}\n", owner.http_socket(&config.name).display());
        if let Some((port, token)) = owner.loopback(&config) {
            text += &format!("http       http://127.0.0.1:{port}, its token in {}\n", token.display());
        }
    }
    let also =
        |who: &str, uid: Option<u32>| uid.map_or_else(String::new, |uid| format!(", {who} user {uid}"));
    text += &format!(
        "socket     {}{}\nlog        {}{}\n",
        owner.socket(&config.name).display(),
        also("also for", config.socket_owner),
        owner.log(&config.name).display(),
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
        Source::Login(login) => {
            format!("the login in {}", printable(&misplaced::shown(&login.path.display().to_string())))
        }
        // The command line may contain the credential.
        Source::Command(words) => format!("what {} prints", misplaced::Command(words)),
    }
}

fn described(config: &AgentConfig, owner: &Owner) -> Value {
    let llm = &config.llm;
    let options = Value::Object(llm.options.clone()).to_string();
    let options: Value = serde_json::from_str(&misplaced::shown(&options)).unwrap_or_default();
    json!({
        "name": config.name,
        "file": config.file,
        "llm": {
            "name": llm.name, "provider": llm.provider.name(), "model": llm.model, "models": llm.models, "max_tokens": llm.max_tokens,
            "base_url": llm.base_url.as_ref().map(misplaced::address), "api_key": llm.api_key.as_ref().map(from),
            "auth": llm.auth.map(Auth::name),
            "options": options, "provider_tools": llm.provider_tools, "prompt_cache": llm.prompt_cache, "max_rounds": llm.max_rounds,
            "max_mcp_rounds": llm.max_mcp_rounds, "timeout": llm.timeout.as_secs(),
            "runtime_timeout": llm.runtime_timeout.as_secs(),
        },
        "mcp": config.mcp.iter().map(|mcp| json!({
            "name": mcp.name, "url": misplaced::address(&mcp.url), "auth_token": mcp.auth_token.as_ref().map(from), "tools": mcp.tools,
            "required": mcp.required,
        })).collect::<Vec<_>>(),
        "limits": {
            "turns_per_minute": config.limits.turns_per_minute, "tokens_per_day": config.limits.tokens_per_day,
            "cost_per_day": config.limits.cost_per_day,
        },
        "log_reader": config.log_reader,
        "socket_owner": config.socket_owner,
        "http": config.http.map(|_| {
            let (port, token) = owner.loopback(config).unzip();
            json!({ "socket": owner.http_socket(&config.name), "port": port, "token_file": token })
        }),
        "governed": config.governed,
        "socket": owner.socket(&config.name),
        "log": owner.log(&config.name),
        "notices": config.notices,
    })
}

pub(super) fn check(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let name = args.name.as_str();
    let owner = Owner::find(name)?;
    let config = owner.load(name)?;
    let unknown = match &owner {
        Owner::User(home) => {
            Ready::read(&config, home)?;
            serve::fits(&home.socket(name))?;
            Vec::new()
        }
        Owner::Daemon(_) => agents::check(&config)?,
    };
    let mut text = format!("{name}: ok ({})\n", config.file.display());
    for notice in &config.notices {
        text += &format!("    note: {notice}\n");
    }
    if let (Owner::Daemon(_), Some(why)) = (&owner, agents::left_out(&config)) {
        text += &format!("    note: {why}\n");
    }
    for credential in unknown {
        let credential = misplaced::Name(&credential);
        text += &format!(
            "    note: only the daemon's unit has systemd's credential {credential}, so it was not checked\n"
        );
    }
    owner.enter(name)?;
    for (server, tool) in pin::waiting(owner.pins(name))? {
        let tool = printable(&format!("{server}/{tool}"));
        text += &format!(
            "    note: the MCP tool {tool} has changed, and the model does not get it until you approve it: ringfence agent pin {name}\n"
        );
    }
    print(&text)
}
