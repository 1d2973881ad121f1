//! `ringfence agent kits`.

use crate::cli::output::{self, print};
use ringfence_base::escape::line as printable;
use ringfence_kit as kit;
use ringfence_policy::{Dirs, Profile, built_in, kit::Kit};
use serde_json::json;
use std::process::ExitCode;

/// Lists the agents that `ringfence run` knows: each with the versions that it was tried with, and where its credential is.
///
/// A kit is the `[kit]` of a profile. Those of the binary can be replaced: by a profile of the same name in
/// /etc/ringfence/profiles, which may extend the one in the binary.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  ringfence agent kits\n  ringfence agent kits --json | jq -r '.[].name'\n  ringfence run claude"
)]
pub(crate) struct KitsArgs {
    /// Print one JSON array.
    #[arg(long)]
    json: bool,
}

pub(super) fn kits(args: &KitsArgs) -> anyhow::Result<ExitCode> {
    let all = kit::all(&Dirs::from_env());
    let all = all.iter().filter_map(|profile| Some((profile, profile.kit.as_ref()?)));
    if args.json {
        let list: Vec<_> = all.map(|(profile, kit)| described(profile, kit)).collect();
        return print(&format!("{}\n", serde_json::Value::from(list)));
    }
    let mut rows = vec![["AGENT", "PROVIDER", "TRIED WITH", "CREDENTIAL", "PROFILE"].map(str::to_owned)];
    rows.extend(all.map(|(profile, kit)| {
        [
            profile.name.clone(),
            kit.provider.name().to_owned(),
            printable(&kit.tried.join(", ")),
            kit::describe(&kit.credentials)
                .map_or_else(|| "none found".to_owned(), |place| printable(&place)),
            place(profile),
        ]
    }));
    print(&output::table(&rows))
}

/// Where a profile is.
fn place(profile: &Profile) -> String {
    if built_in::has(&profile.file) {
        "built in".to_owned()
    } else {
        printable(&profile.file.display().to_string())
    }
}

fn described(profile: &Profile, kit: &Kit) -> serde_json::Value {
    json!({
        "name": profile.name,
        "description": profile.description,
        "provider": kit.provider.name(),
        "models": kit.models,
        "tried": kit.tried,
        "credential": kit::describe(&kit.credentials),
        "login": kit.login,
        "file": (!built_in::has(&profile.file)).then(|| profile.file.display().to_string()),
    })
}
