//! `bench`: what enforcement, interception, outbound names, the LLM workers and redaction cost, measured where the figures are exact or at least comparable.

mod classify;
mod compared;
mod doors;
mod egress;
mod figures;
mod kernel;
mod launch;
mod llm;
mod mcp;
mod place;
mod redact;
mod shims;
mod stress;
mod tags;
mod tools;
mod truth;

use crate::build;
use crate::report::say;
use crate::vm::{self, Added, Job};
use anyhow::{Result, bail};
use std::process::ExitCode;
use std::time::Duration;

/// Measures what enforcement, interception and the LLM workers cost.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    Classify(classify::Args),
    Doors(doors::Args),
    Egress(egress::Args),
    Kernel(kernel::Args),
    Launch(launch::Args),
    Llm(llm::Args),
    Mcp(mcp::Args),
    Redact(redact::Args),
    Stress(stress::Args),
    Tags(tags::Args),
    Tools(tools::Args),
    Truth(truth::Args),
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    match &args.what {
        What::Classify(args) => classify::run(args),
        What::Doors(args) => doors::run(args),
        What::Egress(args) => egress::run(args),
        What::Kernel(args) => kernel::run(args),
        What::Launch(args) => launch::run(args),
        What::Llm(args) => llm::run(args),
        What::Mcp(args) => mcp::run(args),
        What::Redact(args) => redact::run(args),
        What::Stress(args) => stress::run(args),
        What::Tags(args) => tags::run(args),
        What::Tools(args) => tools::run(args),
        What::Truth(args) => truth::run(args),
    }
}

/// Runs a guest's benchmark where a nanosecond is an executed instruction, with the workload in `folder` of the guest, and
/// gives what `figure` reads out of its lines.
fn counted<T>(mut job: Job, folder: &str, figure: impl Fn(&str) -> Option<T>) -> Result<Vec<T>> {
    job.icount = true;
    for host in build::helpers("vm")? {
        let name = host.file_name().unwrap_or_default().to_string_lossy().into_owned();
        job.added.push(Added { host, guest: format!("{folder}/{name}").into() });
    }
    let mut figures = Vec::new();
    let status = vm::lines(&job, Duration::from_secs(600), |line| {
        say(line);
        figures.extend(figure(line));
    })?;
    if status != 0 {
        bail!("the benchmark ended with status {status} in the guest; what it said is above");
    }
    Ok(figures)
}
