//! Modules of a crate import in one direction: whoever reads a file of a cycle has to read all of them.
//!
//! A path is followed to the module that it leads into, and through that module's own imports to where the item is from.
//! Both graphs are checked: that of the files, and that of the modules directly below the crate. Tests are left out.

use super::{Source, sources::code};
use std::collections::{BTreeMap, BTreeSet};

/// The crates that are held to it, below `agent/`.
const CRATES: &[&str] = &["auditor", "store"];

/// The names that lead to a module; none for the crate's root.
type Module = Vec<String>;
type Graph = BTreeMap<Module, BTreeSet<Module>>;
/// The paths of each module's code that begin within the crate.
type Paths = BTreeMap<Module, Vec<Path>>;

/// A path, and whether it is an import: what a module imports, its children may import from it.
#[derive(Debug)]
struct Path {
    names: Vec<String>,
    is_import: bool,
}

/// Imports that are followed one after the other.
const LONGEST_WAY: usize = 8;

pub(super) fn check(files: &[Source]) -> Vec<String> {
    CRATES.iter().filter_map(|name| of_crate(files, name)).collect()
}

fn of_crate(files: &[Source], name: &str) -> Option<String> {
    let folder = format!("agent/{name}/src/");
    let texts: BTreeMap<Module, Vec<String>> = files
        .iter()
        .filter_map(|file| Some((module(file.name().strip_prefix(&folder)?)?, tokens(&file.text))))
        .collect();
    let paths: Paths = texts.iter().map(|(of, text)| (of.clone(), paths(&texts, of, text))).collect();
    let mut graph = Graph::new();
    for (from, paths_of) in &paths {
        let targets = paths_of
            .iter()
            .map(|path| target(&paths, from, &path.names, LONGEST_WAY))
            .filter(|to| to != from);
        graph.insert(from.clone(), targets.collect());
    }
    let mut below_the_root = Graph::new();
    for (from, targets) in &graph {
        let top = |module: &Module| module.iter().take(1).cloned().collect::<Module>();
        let others = targets.iter().map(top).filter(|to| *to != top(from));
        below_the_root.entry(top(from)).or_default().extend(others);
    }
    let cycle = cycle(&graph).or_else(|| cycle(&below_the_root))?;
    let names = cycle.iter().map(|module| match module.as_slice() {
        [] => "lib".to_owned(),
        names => names.join("::"),
    });
    Some(format!(
        "agent/{name}: its modules import in a circle: {}; move what they share below them",
        names.collect::<Vec<_>>().join(" -> ")
    ))
}

/// The module of a file below `src`; none for tests.
fn module(file: &str) -> Option<Module> {
    let mut names: Module = file.strip_suffix(".rs")?.split('/').map(str::to_owned).collect();
    if matches!(names.last()?.as_str(), "mod" | "lib") {
        names.pop();
    }
    (!names.iter().any(|name| name == "tests")).then_some(names)
}

/// Names, `::` and single characters of a file's code, without its tests.
fn tokens(text: &str) -> Vec<String> {
    let text = text.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let mut tokens: Vec<String> = Vec::new();
    for line in text.lines().map(code) {
        let mut rest = line.trim_start();
        while let Some(first) = rest.chars().next() {
            let is_name = |c: char| c.is_alphanumeric() || c == '_';
            let length = match rest.find(|c: char| !is_name(c)) {
                Some(0) if rest.starts_with("::") => 2,
                Some(0) => first.len_utf8(),
                Some(end) => end,
                None => rest.len(),
            };
            tokens.push(rest[..length].to_owned());
            rest = rest[length..].trim_start();
        }
    }
    tokens
}

/// The paths in a module's code that begin at the root, at its parent, at itself or at one of its children.
fn paths(modules: &BTreeMap<Module, Vec<String>>, of: &Module, tokens: &[String]) -> Vec<Path> {
    let is_child = |name: &str| {
        let child: Module = of.iter().cloned().chain([name.to_owned()]).collect();
        modules.contains_key(&child)
    };
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(name) = tokens.get(at) {
        let begins = matches!(name.as_str(), "crate" | "super" | "self") || is_child(name);
        let is_path = tokens.get(at + 1).is_some_and(|next| next == "::");
        let goes_on = at > 0 && tokens[at - 1] == "::";
        if !begins || !is_path || goes_on {
            at += 1;
            continue;
        }
        let is_import = at > 0 && tokens[at - 1] == "use";
        let mut unfolded = Vec::new();
        at = unfold(tokens, at, &[], &mut unfolded);
        found.extend(unfolded.into_iter().map(|names| Path { names, is_import }));
    }
    found
}

/// Reads one path behind others' beginning, with all that is in its braces; where the code goes on.
fn unfold(tokens: &[String], mut at: usize, before: &[String], found: &mut Vec<Vec<String>>) -> usize {
    let mut path = before.to_vec();
    loop {
        match tokens.get(at).map(String::as_str) {
            Some("{") => {
                at += 1;
                while let Some(token) = tokens.get(at).filter(|token| *token != "}") {
                    at = match token.as_str() {
                        "," => at + 1,
                        "as" => at + 2,
                        _ => unfold(tokens, at, &path, found),
                    };
                }
                return at + 1;
            }
            Some(name) => path.push(name.to_owned()),
            None => break,
        }
        at += 1;
        if tokens.get(at).is_none_or(|next| next != "::") {
            break;
        }
        at += 1;
    }
    found.push(path);
    at
}

/// The module that a path leads to: the one that has its item.
fn target(paths: &Paths, from: &Module, path: &[String], longest: usize) -> Module {
    let mut at = from.clone();
    for (number, name) in path.iter().enumerate() {
        match name.as_str() {
            "crate" if number == 0 => at.clear(),
            "super" => drop(at.pop()),
            "self" => {}
            _ => {
                at.push(name.clone());
                if paths.contains_key(&at) {
                    continue;
                }
                at.pop();
                let mut imports = paths.get(&at).into_iter().flatten().filter(|path| path.is_import);
                let import = imports.find(|import| import.names.last() == Some(name));
                return match import {
                    Some(import) if longest > 0 && at != *from => {
                        target(paths, &at, &import.names, longest - 1)
                    }
                    _ => at,
                };
            }
        }
    }
    at
}

/// A way from a module back to itself.
fn cycle(graph: &Graph) -> Option<Vec<Module>> {
    let mut done = BTreeSet::new();
    graph.keys().find_map(|start| walk(graph, &mut vec![start.clone()], &mut done))
}

fn walk(graph: &Graph, way: &mut Vec<Module>, done: &mut BTreeSet<Module>) -> Option<Vec<Module>> {
    let here = way.last()?.clone();
    if done.contains(&here) {
        return None;
    }
    for next in graph.get(&here).into_iter().flatten() {
        if let Some(first) = way.iter().position(|passed| passed == next) {
            return Some(way[first..].iter().chain([next]).cloned().collect());
        }
        way.push(next.clone());
        if let Some(cycle) = walk(graph, way, done) {
            return Some(cycle);
        }
        way.pop();
    }
    done.insert(here);
    None
}

#[cfg(test)]
mod tests {
    use super::{Source, of_crate};

    fn found(files: &[(&str, &str)]) -> String {
        let source = |(path, text): &(&str, &str)| Source {
            path: format!("agent/x/src/{path}").into(),
            text: (*text).to_owned(),
        };
        of_crate(&files.iter().map(source).collect::<Vec<_>>(), "x").unwrap_or_default()
    }

    #[test]
    fn modules_that_import_each_other_are_found_however_they_write_it() {
        let lib = ("lib.rs", "mod a;\nmod b;\n");
        assert_eq!(found(&[lib, ("a.rs", "use super::b::B;\n"), ("b.rs", "")]), "", "the control");
        for back in [
            "use super::a::A;",
            "use crate::{\n    a::{self, A},\n};",
            "fn f() -> super::a::A {}",
            "use super::a;",
        ] {
            let files = [lib, ("a.rs", "use super::b::B;\n"), ("b.rs", back)];
            assert!(found(&files).contains("a -> b -> a"), "{back}: {}", found(&files));
        }
        for harmless in [
            "// use super::a::A;",
            "const A: &str = \"super::a::A\";",
            "use other::a::A;",
            "\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n",
        ] {
            assert_eq!(found(&[lib, ("a.rs", "use super::b::B;\n"), ("b.rs", harmless)]), "", "{harmless}");
        }
    }

    #[test]
    fn what_a_child_takes_from_its_parent_is_the_parents_or_where_that_has_it_from() {
        let child = ("a.rs", "use super::{Error, c::C};\n");
        let parent = "mod a;\nmod c;\npub struct Error;\nfn f() { a::g() }\n";
        assert!(found(&[("lib.rs", parent), child, ("c.rs", "")]).contains("lib -> a -> lib"));
        let parent = "mod a;\nmod c;\npub use c::Error;\nfn f() { a::g() }\n";
        assert_eq!(found(&[("lib.rs", parent), child, ("c.rs", "")]), "");
    }

    #[test]
    fn modules_below_the_root_import_in_one_direction_whichever_of_their_files_do() {
        let room = ("room/mod.rs", "mod first;\nmod second;\n");
        let (first, second) = ("room/first.rs", "room/second.rs");
        let files = |beside| [room, (first, "use crate::beside::B;\n"), (second, ""), ("beside.rs", beside)];
        assert_eq!(found(&files("")), "", "the control");
        assert!(found(&files("use crate::room::second::S;\n")).contains("beside -> room -> beside"));
    }
}
