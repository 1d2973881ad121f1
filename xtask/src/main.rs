//! Ringfence's own build and test tool: `cargo xtask --help`. One file per verb.

mod agent_parties;
mod bench;
mod build;
mod client_parties;
mod coverage;
mod dashboard;
mod demo;
mod digest;
mod fuzz;
mod guest;
mod llm_parties;
mod npm;
mod parties;
mod paths;
mod python;
mod report;
mod setup;
mod tap;
mod test;
mod tidy;
mod unit;
mod vm;
mod vm_test;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Builds, boots and tests Ringfence.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", max_term_width = 100)]
#[command(
    after_help = "Examples:\n  cargo xtask demo                    see a governed shell, and the kernel refusing it\n  cargo xtask test --quick            what to run while you work\n  \
    cargo xtask vm -- ringfence status  one command in a guest; a shell without it"
)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    Demo(demo::Args),
    Setup(setup::Args),
    BuildEbpf(build::EbpfArgs),
    Coverage(coverage::Args),
    Build(build::BuildArgs),
    Test(test::Args),
    Tidy(tidy::Args),
    Vm(vm::Args),
    VmTest(vm_test::Args),
    Bench(bench::Args),
    Fuzz(fuzz::Args),
}

fn main() -> ExitCode {
    let result = match Cli::parse().verb {
        Verb::Demo(args) => demo::run(&args),
        Verb::Setup(args) => setup::run(&args),
        Verb::BuildEbpf(args) => build::ebpf(&args),
        Verb::Coverage(args) => coverage::run(&args),
        Verb::Build(args) => build::release(&args),
        Verb::Test(args) => test::run(&args),
        Verb::Tidy(args) => tidy::run(&args),
        Verb::Vm(args) => vm::run(&args),
        Verb::VmTest(args) => vm_test::run(&args),
        Verb::Bench(args) => bench::run(&args),
        Verb::Fuzz(args) => fuzz::run(&args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("xtask: {error:#}");
        ExitCode::FAILURE
    })
}
