//! `find`, and what it runs with what it finds.

use super::{One, SHELLS};
use crate::{
    deeds::{Deeds, Mark},
    shell::{
        reader::Command,
        targets::is_wide,
        wrappers::{self, is_option},
    },
};
use ringfence_wire::tool_call::Operation;

impl One<'_> {
    /// `find`: what it does with what it finds. The program behind `-exec` is judged as any other.
    pub(super) fn finds(&self, deeds: &mut Deeds) {
        const EXEC: &[&str] = &["-exec", "-execdir", "-ok", "-okdir", "-x", "-X", "--exec", "--exec-batch"];
        let begins = self.arguments.iter().position(|word| EXEC.contains(&word.as_str()));
        let (own, run) = self.arguments.split_at(begins.unwrap_or(self.arguments.len()));
        let mut inner = Deeds::NONE;
        if let [_, run @ ..] = run {
            let end = run.iter().position(|word| word == ";" || word == "+").unwrap_or(run.len());
            let (words, around) = wrappers::inner(run.get(..end).unwrap_or_default());
            if let [program, arguments @ ..] = words {
                let name = wrappers::name(program);
                let command = Command::default();
                let one = One {
                    name: &name,
                    arguments,
                    more: true,
                    command: &command,
                    before: None,
                    here: self.here,
                };
                // `find -exec find` ends here.
                if !matches!(name.as_str(), "find" | "fd" | "fdfind") && !one.removes(&mut inner) {
                    one.acts(&mut inner);
                }
                if SHELLS.contains(&name.as_str()) && arguments.iter().any(|word| word.contains("rm ")) {
                    inner.deletes(false);
                }
                deeds.mark_if(around.root, Mark::Root);
            }
        }
        if own.iter().any(|word| word == "-delete") || inner.operation == Operation::Delete {
            let filtered = own.iter().any(|word| {
                matches!(
                    word.as_str(),
                    "-name" | "-iname" | "-path" | "-regex" | "-mtime" | "-mmin" | "-size"
                )
            });
            let wide = own.iter().take_while(|word| !is_option(word)).any(|path| {
                let everything = !matches!(path.as_str(), "." | "./" | "/tmp" | "/var/tmp") || !filtered;
                is_wide(path, self.here) && everything
            });
            deeds.deletes(wide);
            deeds.mark(Mark::Bulk);
        } else {
            deeds.does(inner.operation);
        }
    }
}
