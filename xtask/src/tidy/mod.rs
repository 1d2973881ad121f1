//! `tidy`: rules of this repository that no compiler checks.

mod coverage;
mod declared;
mod docs;
mod layers;
mod modules;
mod sources;

use crate::paths::workspace;
use crate::report::quietly;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Checks the repository's own rules: file lengths, where `unsafe` may be, what the documents claim.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

/// One file of the checkout.
pub(crate) struct Source {
    /// Relative to the top.
    path: PathBuf,
    text: String,
}

impl Source {
    fn name(&self) -> String {
        self.path.to_string_lossy().into_owned()
    }

    fn has_extension(&self, wanted: &str) -> bool {
        self.path.extension().is_some_and(|extension| extension == wanted)
    }
}

pub(crate) fn run(_: &Args) -> Result<ExitCode> {
    let found = check()?;
    for line in &found {
        println!("{line}");
    }
    if found.is_empty() {
        println!("tidy");
        return Ok(ExitCode::SUCCESS);
    }
    println!("{} found", found.len());
    Ok(ExitCode::FAILURE)
}

/// What breaks a rule, a line each: file, line where there is one, and the rule.
pub(crate) fn check() -> Result<Vec<String>> {
    let files = files()?;
    let mut found = sources::check(&files);
    let cases = vm_tests("--list")?;
    found.extend(docs::check(&files, &cases));
    found.extend(coverage::check(&files, &cases));
    found.extend(coverage::tags(&vm_tests("--list-hooks")?));
    found.extend(layers::check()?);
    found.extend(modules::check(&files));
    found.extend(declared::check(&files));
    found.sort();
    Ok(found)
}

/// A list that the VM tests print: of their cases' names, or of the hooks that cases are tagged with.
fn vm_tests(list: &str) -> Result<Vec<String>> {
    let mut command = Command::new("python3");
    command.arg(workspace().join("vm-tests/run")).arg(list);
    Ok(quietly(&mut command)
        .context("tidy asks vm-tests/run for its cases")?
        .lines()
        .map(str::to_owned)
        .collect())
}

/// The files that are, or are about to be, in the repository; those that are not UTF-8 without their text.
fn files() -> Result<Vec<Source>> {
    let mut git = Command::new("git");
    git.args(["ls-files", "--cached", "--others", "--exclude-standard"]).current_dir(workspace());
    let names = quietly(&mut git).context("tidy asks git which files there are")?;
    let mut files = Vec::new();
    for name in names.lines() {
        let bytes = match std::fs::read(workspace().join(name)) {
            Ok(bytes) => bytes,
            // Listed, but deleted and not yet committed so.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error).with_context(|| format!("cannot read {name}")),
        };
        // A picture has no text, and documents link to it all the same.
        let text = String::from_utf8(bytes).unwrap_or_default();
        files.push(Source { path: Path::new(name).to_owned(), text });
    }
    Ok(files)
}

/// The file of that name.
fn find<'a>(files: &'a [Source], path: &str) -> Option<&'a Source> {
    files.iter().find(|file| file.path == Path::new(path))
}
