//! `ringfence man`: manual pages, made from the command line's own help.

use super::output::print;
use anyhow::Context as _;
use clap_mangen::{
    Man,
    roff::{Roff, bold, roman},
};
use ringfence_files::{Access, Dir};
use std::{fs, io, path::PathBuf, process::ExitCode};

/// Prints ringfence(1), or writes a manual page for each command to a directory.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ringfence man | man -l -
  ringfence man ~/.local/share/man/man1")]
pub(crate) struct Args {
    /// Write `ringfence.1`, `ringfence-run.1` and so on to this directory, which is created if it is missing.
    dir: Option<PathBuf>,
}

/// One manual page.
struct Page {
    file: String,
    text: Vec<u8>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut root = super::visible().disable_help_subcommand(true);
    root.build();
    let Some(dir) = &args.dir else {
        return print(&String::from_utf8(page(&root, None)?.text)?);
    };
    let mut pages = Vec::new();
    collect(&root, None, &mut pages)?;
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let opened = dir.canonicalize().and_then(|dir| Dir::open(&dir));
    let opened = opened.with_context(|| format!("cannot open {}", dir.display()))?;
    for page in &pages {
        let written = opened.replace(page.file.as_ref(), &page.text, Access::Mode(0o644));
        written.with_context(|| format!("cannot write {}", dir.join(&page.file).display()))?;
    }
    print(&format!("{} pages in {}\n", pages.len(), dir.display()))
}

/// The pages of a command and of all below it.
fn collect(command: &clap::Command, parent: Option<&str>, pages: &mut Vec<Page>) -> io::Result<()> {
    pages.push(page(command, parent)?);
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    command.get_subcommands().try_for_each(|below| collect(below, Some(name), pages))
}

/// The page of a built command, in the order of man-pages(7).
fn page(command: &clap::Command, parent: Option<&str>) -> io::Result<Page> {
    let man = Man::new(command.clone())
        .source(concat!("Ringfence ", env!("CARGO_PKG_VERSION")))
        .manual("Ringfence Manual");
    let mut text = Vec::new();
    man.render_title(&mut text)?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(&mut text)?;
    }
    if command.has_subcommands() {
        man.render_subcommands_section(&mut text)?;
    }
    let more = command.get_after_long_help().or_else(|| command.get_after_help());
    sections(&more.map(ToString::to_string).unwrap_or_default()).to_writer(&mut text)?;
    if let Some(parent) = parent {
        let mut roff = Roff::new();
        roff.control("SH", ["SEE ALSO"]).text([bold(parent), roman("(1)")]).to_writer(&mut text)?;
    }
    Ok(Page { file: man.get_filename(), text })
}

/// The text below a help's options, paragraph by paragraph. A paragraph whose first line ends with a colon (`Examples:`,
/// `Exit status:`) becomes a section, and its other lines stay as they are.
fn sections(help: &str) -> Roff {
    let mut roff = Roff::new();
    for (at, paragraph) in help.split("\n\n").filter(|paragraph| !paragraph.is_empty()).enumerate() {
        match paragraph.split_once(":\n") {
            Some((heading, body)) if !heading.contains('\n') => {
                roff.control("SH", [heading.to_uppercase().as_str()]).control("nf", []);
                for line in body.lines() {
                    roff.text([roman(line)]);
                }
                roff.control("fi", []);
            }
            _ => {
                if at == 0 {
                    roff.control("SH", ["NOTES"]);
                }
                roff.control("PP", []).text([roman(paragraph.replace('\n', " "))]);
            }
        }
    }
    roff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_paragraph_with_a_heading_becomes_a_section() {
        let page = sections("Examples:\n  a  b\n  c\n\nWhat it\nmeans.").to_roff();
        assert!(page.contains(".SH EXAMPLES\n.nf\n  a  b\n  c\n.fi\n.PP\nWhat it means."), "{page}");
        let page = sections("What it means.\n\nExamples:\n  a").to_roff();
        assert!(page.contains(".SH NOTES\n.PP\nWhat it means.\n.SH EXAMPLES"), "{page}");
    }
}
