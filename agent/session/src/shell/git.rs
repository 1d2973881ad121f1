//! What `git` does that cannot be undone: work that is nowhere else, history of others.

use super::wrappers::{has_any, has_short, is_option, operands};
use crate::deeds::{Deeds, Mark};

/// Options in front of the subcommand that take the next word.
const VALUED: &[&str] = &["-C", "-c", "--git-dir", "--work-tree", "--namespace", "--exec-path"];

/// Judges the arguments of `git`.
pub(super) fn judge(words: &[String], deeds: &mut Deeds) {
    let mut rest = words;
    while let [word, after @ ..] = rest
        && is_option(word)
    {
        rest = if VALUED.contains(&word.as_str()) { after.get(1..).unwrap_or_default() } else { after };
    }
    let [subcommand, rest @ ..] = rest else { return };
    if has_any(rest, &["--dry-run"])
        || has_short(rest, &['n']) && matches!(subcommand.as_str(), "clean" | "rm")
    {
        return;
    }
    let first = operands(rest).next().unwrap_or_default();
    let deletes = match subcommand.as_str() {
        "push" => {
            has_short(rest, &['f', 'd'])
                || has_any(
                    rest,
                    &[
                        "--force",
                        "--force-with-lease",
                        "--force-if-includes",
                        "--mirror",
                        "--delete",
                        "--prune",
                    ],
                )
                || operands(rest).any(|refspec| refspec.starts_with(['+', ':']))
        }
        "reset" => has_any(rest, &["--hard", "--merge", "--keep"]),
        "branch" => has_short(rest, &['d', 'D']) || has_any(rest, &["--delete"]),
        "tag" => has_short(rest, &['d']) || has_any(rest, &["--delete"]),
        "stash" => matches!(first, "drop" | "clear"),
        "checkout" => {
            has_short(rest, &['f'])
                || has_any(rest, &["--force"])
                || rest.iter().any(|word| word == "--")
                || operands(rest).any(|path| path == ".")
        }
        "switch" => has_short(rest, &['f']) || has_any(rest, &["--force", "--discard-changes"]),
        "restore" => {
            let staged = has_any(rest, &["--staged"]) || has_short(rest, &['S']);
            !staged || has_any(rest, &["--worktree"]) || has_short(rest, &['W'])
        }
        "worktree" | "remote" | "submodule" => matches!(first, "remove" | "rm" | "prune" | "deinit"),
        "reflog" => matches!(first, "expire" | "delete"),
        "update-ref" => has_short(rest, &['d']),
        "gc" => has_any(rest, &["--prune"]),
        "clean" | "rm" | "filter-branch" | "filter-repo" | "prune" => true,
        _ => false,
    };
    if deletes {
        deeds.deletes(false);
    }
    let many = match subcommand.as_str() {
        "clean" => has_short(rest, &['d', 'x', 'X']),
        "push" => has_any(rest, &["--mirror"]),
        "filter-branch" | "filter-repo" => true,
        _ => false,
    };
    deeds.mark_if(many, Mark::Bulk);
    let sets = subcommand == "config" && operands(rest).count() > 1 && !has_any(rest, &["--get", "--list"]);
    deeds.mark_if(sets, Mark::Settings);
}
