//! A rule about modules: each source file is one, or is the root of a target. A file that no `mod` names is compiled by nobody,
//! and its tests pass by not being run.

use super::Source;
use std::{
    collections::{HashMap, HashSet},
    path::Path,
};

/// Files that are roots of targets wherever they are, and folders whose files are.
const ROOTS: [&str; 4] = ["lib.rs", "main.rs", "build.rs", "mod.rs"];
const FOLDERS_OF_ROOTS: [&str; 5] = ["tests", "bin", "benches", "examples", "targets"];

pub(super) fn check(files: &[Source]) -> Vec<String> {
    let rust = files.iter().filter(|file| file.has_extension("rs"));
    let declared: HashMap<&Path, HashSet<&str>> =
        rust.clone().map(|file| (file.path.as_path(), modules(&file.text))).collect();
    rust.filter(|file| !is_root(&file.path) && !is_declared(&file.path, &declared))
        .map(|file| {
            format!("{}: no `mod` names it: nothing compiles it, and its tests are not run", file.name())
        })
        .collect()
}

/// `mod.rs` is a module, but one that is named as its folder.
fn is_root(path: &Path) -> bool {
    let parent = path.parent().and_then(Path::file_name).unwrap_or_default();
    let is_named = |names: &[&str], name: &std::ffi::OsStr| names.iter().any(|one| name == *one);
    path.file_name().is_some_and(|name| is_named(&ROOTS, name) && name != "mod.rs")
        || (is_named(&FOLDERS_OF_ROOTS, parent) && !is_inside_module(path))
}

/// `tests/` beside `tests.rs`, or with a `mod.rs`, is a module's folder and not cargo's: below `src/` all are.
fn is_inside_module(path: &Path) -> bool {
    let above: Vec<_> = path.iter().collect();
    above.iter().rev().skip(2).any(|part| *part == "src")
        && path.parent().and_then(Path::file_name).is_some_and(|name| name != "bin")
}

/// Where the module's parent may be: `a/b.rs` and `a/b/mod.rs` are named by `a.rs`, `a/mod.rs`, or the roots in `a/`.
fn is_declared(path: &Path, declared: &HashMap<&Path, HashSet<&str>>) -> bool {
    let is_mod = path.file_name().is_some_and(|name| name == "mod.rs");
    let module = if is_mod { path.parent() } else { Some(path) };
    let Some((module, folder)) = module.and_then(|module| Some((module, module.parent()?))) else {
        return false;
    };
    let Some(name) = module.file_stem().and_then(|name| name.to_str()) else { return false };
    let mut parents: Vec<_> = ROOTS.iter().map(|root| folder.join(root)).collect();
    parents.push(folder.with_extension("rs"));
    parents.iter().any(|parent| declared.get(parent.as_path()).is_some_and(|names| names.contains(name)))
        // Tests of one target share helpers: `tests/support/mod.rs` is named by the tests beside it.
        || declared.iter().any(|(other, names)| {
            other.parent() == Some(folder) && is_root(other) && names.contains(name)
        })
}

/// The modules that a file has in files of their own.
fn modules(text: &str) -> HashSet<&str> {
    let names = text.lines().filter_map(|line| {
        let line = line.trim_start();
        let line = line.strip_prefix("pub").map_or(line, |rest| {
            let rest = rest.trim_start();
            rest.strip_prefix('(')
                .and_then(|rest| rest.split_once(')'))
                .map_or(rest, |(_, rest)| rest)
                .trim_start()
        });
        line.strip_prefix("mod ")?.split(';').next().filter(|name| !name.contains(' '))
    });
    names.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<_> =
            files.iter().map(|(path, text)| Source { path: path.into(), text: (*text).to_owned() }).collect();
        check(&files)
    }

    #[test]
    fn a_file_that_no_module_names_is_found() {
        assert_eq!(found(&[("agent/a/src/lib.rs", "mod b;"), ("agent/a/src/c.rs", "")]).len(), 1);
        assert_eq!(found(&[("agent/a/src/lib.rs", "// mod c;\nmod cc;"), ("agent/a/src/c.rs", "")]).len(), 1);
        assert_eq!(found(&[("agent/a/src/b.rs", ""), ("agent/a/src/b/tests.rs", "")]).len(), 2);
        assert_eq!(found(&[("agent/a/src/lib.rs", ""), ("agent/a/src/tests/c.rs", "")]).len(), 1);
        assert_eq!(found(&[("agent/a/tests/b.rs", ""), ("agent/a/tests/help/mod.rs", "")]).len(), 1);
    }

    #[test]
    fn modules_and_the_roots_of_targets_pass() {
        let files = [
            ("agent/a/build.rs", ""),
            ("agent/a/src/lib.rs", "pub mod b;\n#[cfg(test)]\npub(crate) mod d;\nmod e { }"),
            ("agent/a/src/b.rs", "mod c;\n#[cfg(test)]\nmod tests;"),
            ("agent/a/src/b/c.rs", ""),
            ("agent/a/src/b/tests.rs", ""),
            ("agent/a/src/d/mod.rs", "pub(in crate::d) mod f;"),
            ("agent/a/src/d/f.rs", ""),
            ("agent/a/src/bin/one.rs", ""),
            ("agent/a/tests/black_box.rs", "mod help;"),
            ("agent/a/tests/help/mod.rs", "mod more;"),
            ("agent/a/tests/help/more.rs", ""),
            ("agent/a/tests/llm/main.rs", "mod sends;"),
            ("agent/a/tests/llm/sends.rs", ""),
            ("fuzz/targets/frames.rs", ""),
        ];
        assert_eq!(found(&files), Vec::<String>::new());
        // `mod e { }` is no file's.
        let mut more = files.to_vec();
        more.push(("agent/a/src/e.rs", ""));
        assert_eq!(found(&more).len(), 1);
    }
}
