//! Which of our crates may depend on which, and what a privileged one must never reach.
//!
//! SECURITY.md promises that bytes an agent chose are never parsed by a process that can load BPF. What is not linked cannot
//! parse: the tables below keep that, by cargo's own metadata.

use crate::build;
use crate::report::quietly;
use anyhow::{Context, Result};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// Each crate of the agent, from the bottom up, and those of ours that it may depend on (without `ringfence-`).
const ALLOWED: &[(&str, &[&str])] = &[
    // Data and files: of no role.
    ("common", &[]),
    ("coverage", &[]),
    ("files", &[]),
    ("grant", &[]),
    ("names", &[]),
    ("wire", &[]),
    ("test-support", &[]),
    ("base", &["files", "wire"]),
    ("pins", &["base"]),
    ("redact", &["base"]),
    ("credentials", &["redact"]),
    ("policy", &["base", "common", "credentials", "files", "grant", "redact", "wire"]),
    // What faces the kernel.
    ("process", &[]),
    ("sandbox", &[]),
    ("supervise", &["base", "wire"]),
    ("bpf", &["common", "coverage", "files", "policy", "sandbox", "wire"]),
    // The privileged role, and the launcher.
    (
        "core",
        &[
            "base",
            "bpf",
            "common",
            "credentials",
            "files",
            "grant",
            "policy",
            "process",
            "sandbox",
            "supervise",
            "wire",
        ],
    ),
    ("launch", &["base", "common", "credentials", "policy", "process", "sandbox", "supervise", "wire"]),
    // The record.
    ("session", &["base", "files", "pins", "redact", "wire"]),
    ("events", &["base", "common", "grant", "policy", "wire"]),
    ("store", &["base", "common", "events", "files", "pins", "session", "wire"]),
    ("client", &["base", "files", "session", "wire"]),
    ("http", &["base"]),
    (
        "auditor",
        &[
            "base", "client", "events", "files", "http", "pins", "process", "sandbox", "session", "store",
            "wire",
        ],
    ),
    ("mcp-http", &["base", "credentials", "http", "process", "redact", "sandbox", "session", "wire"]),
    ("notify", &["base", "credentials", "wire"]),
    ("interceptor", &["base", "client", "files", "launch", "pins", "process", "redact", "session", "wire"]),
    // Agents and tools.
    ("file-tools", &[]),
    ("tools", &["base", "file-tools", "grant", "names", "process"]),
    ("tool-server", &["base", "grant", "launch", "policy", "process", "sandbox", "session", "tools", "wire"]),
    (
        "llm-worker",
        &["base", "credentials", "files", "http", "pins", "policy", "redact", "sandbox", "supervise", "wire"],
    ),
    ("egress", &["base", "names", "sandbox", "wire"]),
    ("egress-credentials", &["base", "credentials", "sandbox", "wire"]),
    ("kit", &["base", "credentials", "files", "policy", "process", "supervise", "wire"]),
    ("guest", &["base", "file-tools", "wire"]),
];

/// What nothing but these crates may name as a dependency: the only ones with `aya`, and with SQL.
const ONLY: &[(&str, &[&str])] = &[
    ("aya", &["ringfence-bpf"]),
    ("rusqlite", &["ringfence-store"]),
    ("libseccomp", &["ringfence-sandbox"]),
];

/// What a crate must not reach, by however many others: HTTP, SQL, HTML, and the parsers of what agents write.
const NEVER: &[(&str, &[&str])] = &[
    ("core", HOSTILE),
    ("bpf", HOSTILE),
    ("launch", HOSTILE),
    ("kit", HOSTILE),
    ("names", &["aya", "hyper", "rusqlite", "rustls", "tokio"]),
    ("policy", &["aya", "rusqlite", "hyper", "tokio"]),
    ("store", &["aya", "hyper", "tokio"]),
    ("llm-worker", &["aya", "rusqlite"]),
    ("egress", &["aya", "hyper", "reqwest", "ringfence-policy", "rusqlite"]),
    ("egress-credentials", &["aya", "reqwest", "ringfence-policy", "rusqlite"]),
    ("auditor", &["aya"]),
    ("mcp-http", &["aya", "rusqlite"]),
    ("interceptor", &["aya", "rusqlite", "hyper", "tokio"]),
    ("notify", &["aya", "rusqlite", "axum"]),
    ("guest", &["aya", "rusqlite", "hyper", "tokio", "ringfence-policy"]),
];

/// Parsers and protocols that only unprivileged roles speak.
const HOSTILE: &[&str] = &[
    "axum",
    "dom_query",
    "h2",
    "html5ever",
    "httparse",
    "hyper",
    "reqwest",
    "ringfence-names",
    "ringfence-session",
    "ringfence-store",
    "rmcp",
    "rusqlite",
    "rustls",
    "serde-saphyr",
    "sqlparser",
    "tokio",
];

#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
    workspace_members: Vec<String>,
    resolve: Resolve,
}

#[derive(Debug, Deserialize)]
struct Package {
    id: String,
    name: String,
}

#[derive(Debug, Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Debug, Deserialize)]
struct Node {
    id: String,
    deps: Vec<Dep>,
}

#[derive(Debug, Deserialize)]
struct Dep {
    pkg: String,
    dep_kinds: Vec<Kind>,
}

#[derive(Debug, Deserialize)]
struct Kind {
    kind: Option<String>,
}

/// Who depends on whom, by name, without what only tests and build scripts need.
type Graph = BTreeMap<String, BTreeSet<String>>;

pub(super) fn check() -> Result<Vec<String>> {
    let mut cargo = build::cargo();
    cargo.args(["metadata", "--format-version", "1", "--locked"]);
    let text = quietly(&mut cargo).context("tidy asks cargo who depends on whom")?;
    let metadata: Metadata = serde_json::from_str(&text).context("cargo's metadata cannot be read")?;
    let (graph, ours) = graph(&metadata);
    Ok(found(&graph, &ours))
}

fn graph(metadata: &Metadata) -> (Graph, BTreeSet<String>) {
    let names: BTreeMap<&str, &str> =
        metadata.packages.iter().map(|package| (package.id.as_str(), package.name.as_str())).collect();
    let name = |id: &str| names.get(id).map_or_else(String::new, |name| (*name).to_owned());
    let mut graph = Graph::new();
    for node in &metadata.resolve.nodes {
        let normal = node.deps.iter().filter(|dep| dep.dep_kinds.iter().any(|kind| kind.kind.is_none()));
        graph.entry(name(&node.id)).or_default().extend(normal.map(|dep| name(&dep.pkg)));
    }
    (graph, metadata.workspace_members.iter().map(|id| name(id)).collect())
}

fn found(graph: &Graph, ours: &BTreeSet<String>) -> Vec<String> {
    let mut found = Vec::new();
    for (name, below) in graph.iter().filter(|(name, _)| ours.contains(*name)) {
        let Some(short) = name.strip_prefix("ringfence-") else { continue };
        if let Some((_, allowed)) = ALLOWED.iter().find(|(one, _)| *one == short) {
            for dep in below.iter().filter_map(|dep| dep.strip_prefix("ringfence-")) {
                if !allowed.contains(&dep) {
                    found.push(format!(
                        "{name} depends on ringfence-{dep}: not in the table of xtask/src/tidy/layers.rs"
                    ));
                }
            }
        } else if !OUTSIDE.contains(&short) {
            found.push(format!("{name}: say in xtask/src/tidy/layers.rs what it may depend on"));
        }
    }
    for (dep, only) in ONLY {
        for (name, below) in graph {
            if ours.contains(name) && below.contains(*dep) && !only.contains(&name.as_str()) {
                found.push(format!("{name} depends on {dep}, which only {} may", only.join(", ")));
            }
        }
    }
    for (short, never) in NEVER {
        let name = format!("ringfence-{short}");
        for dep in *never {
            if let Some(path) = path(graph, &name, dep) {
                found.push(format!("{name} must never reach {dep}, and does: {}", path.join(" -> ")));
            }
        }
    }
    found
}

/// Packages of the workspace that no role is made of.
const OUTSIDE: [&str; 3] = ["ebpf-build", "fuzz", "vm-tests"];

/// The shortest way from one package to another.
fn path(graph: &Graph, from: &str, to: &str) -> Option<Vec<String>> {
    let mut ways = vec![vec![from.to_owned()]];
    let mut seen = BTreeSet::from([from.to_owned()]);
    while !ways.is_empty() {
        let mut longer = Vec::new();
        for way in ways {
            for next in graph.get(way.last()?).into_iter().flatten() {
                let mut on = way.clone();
                on.push(next.clone());
                if next == to {
                    return Some(on);
                }
                if seen.insert(next.clone()) {
                    longer.push(on);
                }
            }
        }
        ways = longer;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(edges: &[(&str, &str)]) -> Vec<String> {
        let (mut graph, mut ours) = (Graph::new(), BTreeSet::new());
        for (from, to) in edges {
            graph.entry((*from).to_owned()).or_default().insert((*to).to_owned());
            graph.entry((*to).to_owned()).or_default();
            ours.extend(
                [*from, *to].into_iter().filter(|name| name.starts_with("ringfence")).map(str::to_owned),
            );
        }
        found(&graph, &ours)
    }

    #[test]
    fn what_the_table_has_is_no_finding() {
        let fine =
            [("ringfence", "ringfence-core"), ("ringfence-core", "ringfence-bpf"), ("ringfence-bpf", "aya")];
        assert_eq!(of(&fine), Vec::<String>::new());
    }

    #[test]
    fn a_dependency_that_is_not_in_the_table_is_found() {
        assert!(of(&[("ringfence-bpf", "ringfence-core")])[0].contains("not in the table"));
        assert!(of(&[("ringfence-new", "serde")])[0].contains("say in"));
    }

    #[test]
    fn the_core_reaches_no_parser_by_however_many_others() {
        let found = of(&[("ringfence-core", "a"), ("a", "b"), ("b", "hyper")]);
        assert!(found.iter().any(|line| line.contains("ringfence-core -> a -> b -> hyper")), "{found:?}");
        assert_eq!(of(&[("ringfence-http", "a"), ("a", "hyper")]), Vec::<String>::new(), "who serves it may");
    }

    #[test]
    fn only_one_crate_names_what_is_its_own() {
        assert!(of(&[("ringfence-core", "aya")]).iter().any(|line| line.contains("only ringfence-bpf")));
        assert!(
            of(&[("ringfence-auditor", "rusqlite")]).iter().any(|line| line.contains("only ringfence-store"))
        );
    }

    #[test]
    fn a_crate_is_in_the_table_once_and_what_it_may_use_stands_above_it() {
        for (at, (name, allowed)) in ALLOWED.iter().enumerate() {
            assert!(ALLOWED[..at].iter().all(|(other, _)| other != name), "{name} twice");
            for dep in *allowed {
                assert!(
                    ALLOWED[..at].iter().any(|(other, _)| other == dep),
                    "{name} depends upward, on {dep}"
                );
            }
        }
    }
}
