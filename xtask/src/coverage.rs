//! `coverage`: docs/coverage.md, from the table of every way into the kernel.

use crate::paths::workspace;
use anyhow::{Context, Result};
use ringfence_coverage::{Covered, Group, TEXT, Table};
use std::fmt::Write;
use std::process::ExitCode;

/// Where the rendered table is.
pub(crate) const RENDERED: &str = "docs/coverage.md";

/// Writes docs/coverage.md from ebpf/coverage/coverage.toml and the lists beside it.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  cargo xtask coverage  after a change of the table")]
pub(crate) struct Args {}

pub(crate) fn run(_: &Args) -> Result<ExitCode> {
    let table = Table::parse(TEXT).context("ebpf/coverage/coverage.toml")?;
    let path = workspace().join(RENDERED);
    std::fs::write(&path, render(&table)).with_context(|| format!("cannot write {}", path.display()))?;
    println!("{RENDERED}");
    Ok(ExitCode::SUCCESS)
}

/// The whole document.
pub(crate) fn render(table: &Table) -> String {
    let mut text = String::from(
        "# Every way into the kernel\n\n\
         What holds each LSM hook, system call and socket family for a governed task, or why nothing has to. Made by\n\
         `cargo xtask coverage` from `ebpf/coverage/coverage.toml`; the VM test `kernel/surface` compares it with the kernels\n\
         6.1, 6.12 and the newest, and fails on a name too many or too few. A hook that is not here is refused to\n\
         governed tasks, a system call by the seccomp lists; `ringfence doctor` names both. [bypasses.md](bypasses.md) is the list of attacks.\n\n\
         Names in *decides* are hooks with a program; `seccomp` is the default list of system calls. A range such as `6.2..` says\n\
         which kernels have a name.\n",
    );
    section(&mut text, "LSM hooks", &table.hooks);
    section(&mut text, "System calls", &table.calls);
    text.push_str("\nBy the names of their entry functions in the kernel, `__x64_sys_NAME`.\n");
    section(&mut text, "Families of sockets", &table.families);
    programs(&mut text, table);
    text
}

/// What shows that each program is needed.
fn programs(text: &mut String, table: &Table) {
    text.push_str(
        "\n## What each program is for\n\n\
         `cargo xtask vm-test --without each` detaches one program after the other from a running daemon's set and expects that\n\
         its case fails; of those that another program covers, that it passes.\n\n\
         | program | the case that fails without it | covered |\n|---|---|---|\n",
    );
    for (program, case) in &table.shown {
        let _ = writeln!(text, "| `{program}` | `{case}` | |");
    }
    for (program, Covered { case, why }) in &table.covered {
        let _ = writeln!(text, "| `{program}` | | {why} (`{case}` passes) |");
    }
}

fn section(text: &mut String, title: &str, groups: &[Group]) {
    let count: usize = groups.iter().map(|group| group.names.len()).sum();
    let _ =
        write!(text, "\n## {title}: {count}\n\n| | decides | why | case | names |\n|---|---|---|---|---|\n");
    for Group { about, by, why, case, names } in groups {
        let quoted = |word: &String| format!("`{word}`");
        let by = if by.is_empty() {
            "nothing has to".into()
        } else {
            by.iter().map(quoted).collect::<Vec<_>>().join(" ")
        };
        let case = case.as_ref().map(quoted).unwrap_or_default();
        let names: Vec<String> = names
            .iter()
            .map(|name| match name.kernels.as_str() {
                "" => name.name.clone(),
                kernels => format!("{} ({kernels})", name.name),
            })
            .collect();
        let _ = writeln!(text, "| {about} | {by} | {why} | {case} | {} |", names.join(", "));
    }
}
