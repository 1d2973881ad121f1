//! Rules about source files: their length, first line, `unsafe`, lints, white space.

use super::Source;
use std::path::Path;

/// A file longer than this is several files.
const LINES: usize = 600;
/// Files that may be longer, each with a reason. None so far.
const LONG: &[(&str, &str)] = &[];
/// Where `unsafe` may be.
const UNSAFE_ROOMS: [&str; 6] = [
    "agent/bpf/src/",
    "agent/sandbox/src/host.rs",
    "agent/process/src/spawn.rs",
    "agent/process/src/listen_fds.rs",
    "agent/guest/src/sys.rs",
    "ebpf/src/",
];
/// Packages with their own lints: they are built outside the workspace too.
const OWN_LINTS: [&str; 2] = ["ebpf/Cargo.toml", "ebpf/common/Cargo.toml"];
/// Packages of no workspace, with their own versions.
const OWN_VERSIONS: [&str; 1] = ["ebpf/Cargo.toml"];

pub(super) fn check(files: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    for file in files {
        white_space(file, &mut found);
        if file.has_extension("rs") {
            rust(file, &mut found);
        } else if file.path.file_name().is_some_and(|name| name == "Cargo.toml") {
            manifest(file, &mut found);
        }
    }
    found
}

fn white_space(file: &Source, found: &mut Vec<String>) {
    // Licences are as their authors wrote them; a lock file is cargo's; the corpus is hostile on purpose.
    let as_it_is = file.name().starts_with("LICENSE") || file.name().starts_with("fuzz/corpus/");
    if as_it_is || file.has_extension("lock") || file.text.is_empty() {
        return;
    }
    for (number, line) in file.text.lines().enumerate() {
        if line.ends_with([' ', '\t', '\r']) {
            found.push(format!("{}:{}: white space at the end of the line", file.name(), number + 1));
        }
    }
    if !file.text.ends_with('\n') || file.text.ends_with("\n\n") {
        found.push(format!("{}: does not end in exactly one newline", file.name()));
    }
}

fn rust(file: &Source, found: &mut Vec<String>) {
    let name = file.name();
    let lines = file.text.lines().count();
    if lines > LINES && !LONG.iter().any(|(long, _)| *long == name) {
        found.push(format!("{name}: {lines} lines; split it, or give a reason in xtask/src/tidy/sources.rs"));
    }
    if !file.text.starts_with("//!") {
        found.push(format!("{name}:1: no `//!` line that says what the file is for"));
    }
    let is_room = UNSAFE_ROOMS.iter().any(|room| name.starts_with(room));
    for (number, line) in file.text.lines().enumerate() {
        let code = code(line);
        if !is_room && (has_word(&code, "unsafe") || (code.contains("unsafe_code") && code.contains("#!["))) {
            found.push(format!("{name}:{}: `unsafe` outside {}", number + 1, UNSAFE_ROOMS.join(", ")));
        }
        for stub in ["todo!(", "unimplemented!("] {
            if code.contains(stub) {
                found.push(format!("{name}:{}: a stub: {stub})", number + 1));
            }
        }
    }
}

/// A line without its comment and without what stands in string literals.
pub(super) fn code(line: &str) -> String {
    let mut kept = String::new();
    let mut quoted = false;
    let mut characters = line.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            '\\' if quoted => {
                characters.next();
            }
            // '"' as a character literal does not open a string.
            '\'' if !quoted && characters.peek() == Some(&'"') => {
                characters.next();
            }
            '"' => quoted = !quoted,
            '/' if !quoted && characters.peek() == Some(&'/') => break,
            _ if quoted => {}
            _ => kept.push(character),
        }
    }
    kept
}

fn has_word(code: &str, word: &str) -> bool {
    let is_part = |character: char| character.is_alphanumeric() || character == '_';
    code.match_indices(word).any(|(start, _)| {
        !code[..start].ends_with(is_part) && !code[start + word.len()..].starts_with(is_part)
    })
}

fn manifest(file: &Source, found: &mut Vec<String>) {
    let name = file.name();
    let is_package = file.text.contains("[package]");
    let inherits = file
        .text
        .split("[lints]")
        .nth(1)
        .is_some_and(|rest| rest.trim_start().starts_with("workspace = true"));
    if is_package && !inherits && !OWN_LINTS.contains(&name.as_str()) {
        found.push(format!("{name}: does not inherit the workspace's lints (`[lints]`, `workspace = true`)"));
    }
    if is_package && !OWN_VERSIONS.contains(&name.as_str()) && Path::new(&name).components().count() > 1 {
        versions(&name, &file.text, found);
    }
}

/// A dependency's version stands in one place: the workspace's list.
fn versions(name: &str, text: &str, found: &mut Vec<String>) {
    let mut in_dependencies = false;
    for (number, line) in text.lines().enumerate() {
        if line.starts_with('[') {
            in_dependencies = line.contains("dependencies");
        } else if in_dependencies
            && line.contains('=')
            && !line.contains("workspace")
            && !line.starts_with('#')
        {
            found.push(format!("{name}:{}: a version outside [workspace.dependencies]", number + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Source, check};

    fn found(path: &str, text: &str) -> Vec<String> {
        check(&[Source { path: path.into(), text: text.to_owned() }])
    }

    #[test]
    fn unsafe_is_found_in_code_only_and_outside_its_rooms_only() {
        let text = "//! A file.\nfn f() {\n    unsafe { g() }\n}\n";
        assert_eq!(found("agent/core/src/lib.rs", text).len(), 1);
        assert!(found("agent/bpf/src/sys.rs", text).is_empty());
        let harmless = "//! No unsafe.\n// unsafe\nconst A: &str = \"unsafe\";\nconst B: char = '\"'; // unsafe\nfn unsafe_code() {}\n";
        assert!(found("agent/core/src/lib.rs", harmless).is_empty());
        assert_eq!(found("agent/core/src/lib.rs", "//! A.\n#![expect(unsafe_code)]\n").len(), 1);
    }

    #[test]
    fn length_first_line_and_white_space_are_checked() {
        let long = format!("//! A.\n{}", "fn f() {}\n".repeat(600));
        assert_eq!(found("agent/src/a.rs", &long).len(), 1);
        assert_eq!(found("agent/src/a.rs", "fn f() {}\n").len(), 1);
        assert_eq!(found("agent/src/a.rs", "//! A. \n").len(), 1);
        assert_eq!(found("agent/src/a.rs", "//! A.").len(), 1);
        assert!(found("agent/src/a.rs", "//! A.\n").is_empty());
    }

    #[test]
    fn a_package_inherits_lints_and_versions() {
        let good = "[package]\n[dependencies]\nnix.workspace = true\n[lints]\nworkspace = true\n";
        assert!(found("agent/x/Cargo.toml", good).is_empty());
        assert_eq!(found("agent/x/Cargo.toml", "[package]\n").len(), 1);
        assert_eq!(
            found("agent/x/Cargo.toml", &good.replace("nix.workspace = true", "nix = \"1\"")).len(),
            1
        );
    }
}
