//! `ringfence agent list`.

use super::{home, pin};
use crate::cli::{
    output::{self, print},
    status,
};
use ringfence_base::{client, escape::line as printable, paths::Paths};
use ringfence_llm_worker::control::{self, UserStatus};
use ringfence_wire::{message::AdminRequest, status::Status};
use serde_json::json;
use std::process::ExitCode;

/// Lists the agents and their state.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  ringfence agent list --json | jq '.agents[] | {name, state}'")]
pub(crate) struct ListArgs {
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

pub(super) fn list(args: &ListArgs) -> anyhow::Result<ExitCode> {
    let own = control::status(&home()?);
    let daemons = client::admin::<Status>(&Paths::from_env().admin_socket(), &AdminRequest::Status, &[]);
    let (own, daemons) = match (own, daemons) {
        (Ok(own), daemons) => (Some(own), daemons.ok()),
        (Err(_), Ok(daemons)) => (None, Some(daemons)),
        // Only root may ask the daemon, so the error is about the user's own agents.
        (Err(error), Err(_)) => return Err(error.into()),
    };
    let of_daemon = daemons.map(|status| status.agents);
    if args.json {
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
        for line in pin::problems(&home()?, &own.agents) {
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

/// The agents as a table, one line each.
pub(crate) fn table(status: &UserStatus) -> String {
    if status.agents.is_empty() {
        return format!("no agents: no profile in {} has an [llm.NAME] section\n", status.profiles.display());
    }
    let mut rows = vec![
        ["AGENT", "STATE", "MODEL", "RUNTIME", "WAITING", "TURNS", "FAILED", "TOKENS", "GRANT"]
            .map(str::to_owned),
    ];
    let mut wrong = String::new();
    for agent in &status.agents {
        let worker = agent.worker.unwrap_or_default();
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
    wrong + &output::table(&rows)
}
