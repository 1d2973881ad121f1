//! What `ringfence --help` shows: the commands by task, examples, the exit statuses.

use super::exit;

/// What Ringfence is for.
pub(super) const ABOUT: &str =
    "Puts each AI-agent container under one profile that the kernel enforces and audits";

const EXAMPLES: &str = "Examples:
  ringfence doctor                        what this host can enforce
  ringfence run --profile coder -- bash   a command under a profile
  ringfence events why last               why the last denial happened
  ringfence agent start                   serve this user's LLM agents
  ringfence mcp wrap .mcp.json            record and judge what an MCP client calls
  ringfence tools --profile coder         tools that can do only what the profile grants

`ringfence COMMAND --help` explains a command.";

/// The commands by task.
pub(super) const GROUPS: [(&str, &[&str]); 6] = [
    ("Confine programs", &["run", "enroll", "profile", "proxy-connect"]),
    ("See what happened", &["status", "events", "dashboard"]),
    ("Run LLM agents", &["agent"]),
    ("Control MCP servers", &["mcp", "approvals", "audit"]),
    ("Give a model tools", &["tools", "grant"]),
    ("Set up", &["doctor", "install", "uninstall", "completions", "man"]),
];

/// The same command, with a help that lists its subcommands by task.
pub(super) fn with_overview(command: clap::Command) -> clap::Command {
    let overview = overview(&command);
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n{overview}\nOptions:\n{{options}}{{after-help}}"
    );
    let more = format!("{EXAMPLES}\n\n{}", exit::text());
    command.help_template(template).after_help(EXAMPLES).after_long_help(more)
}

fn overview(command: &clap::Command) -> String {
    let mut text = String::new();
    for (task, names) in GROUPS {
        text += &format!("\n{task}:\n");
        for command in names.iter().filter_map(|name| command.find_subcommand(name)) {
            let about = command.get_about().map(ToString::to_string).unwrap_or_default();
            text += &format!("  {:<11}  {about}\n", command.get_name());
        }
    }
    text
}
