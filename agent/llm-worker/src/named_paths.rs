//! The files that a tool call is about, by its arguments: what the record compares events with, where a tool runs inside
//! the client's own process.
//!
//! By the names of arguments that the known agents' tools for files have, and the files of a patch. A shell's call names
//! none: what its command does is not known by its text.

use super::{http::strict_json, message::ToolCall, redact::REDACTED};
use ringfence_wire::trace::{MAX_PATHS, MAX_PATHS_BYTES};
use serde_json::Value;

/// Arguments that are a path.
const PATH_KEYS: &[&str] = &["file_path", "path", "filePath", "absolute_path", "notebook_path"];
/// Arguments that may be a patch.
const PATCH_KEYS: &[&str] = &["input", "patch", "patchText"];
/// Arguments that only a shell's call has, or that of something which runs what it is given.
const SHELL_KEYS: &[&str] = &["command", "commands", "cmd", "script", "code"];
/// Names of shells, in lower case.
const SHELLS: &[&str] = &[
    "bash",
    "shell",
    "sh",
    "exec",
    "exec_command",
    "write_stdin",
    "local_shell",
    "shell_command",
    "run_shell_command",
    "execute_command",
    "container.exec",
    "terminal",
];
/// How a patch begins.
const PATCH: &str = "*** Begin Patch";
/// The lines of a patch that name a file.
const PATCH_LINES: &[&str] = &["*** Add File: ", "*** Update File: ", "*** Delete File: ", "*** Move to: "];

/// The paths that a call names; those that do not begin at the root are taken from `workdir`, where that is known. `None`:
/// not all of them can be told, or they are more than a report carries.
pub(crate) fn of(call: &ToolCall, workdir: Option<&str>) -> Option<Vec<String>> {
    let name = call.name.to_lowercase();
    let mut paths = Vec::new();
    if SHELLS.contains(&name.as_str()) {
        return Some(paths);
    }
    // What parsers read differently names no one file.
    match strict_json::read(call.input.get()).ok()? {
        Value::String(text) => in_patch(&text, &mut paths),
        Value::Object(arguments) => {
            if SHELL_KEYS.iter().any(|key| arguments.contains_key(*key)) {
                return Some(paths);
            }
            for key in PATH_KEYS {
                match arguments.get(*key) {
                    None | Some(Value::Null) => {}
                    Some(Value::String(path)) if path.is_empty() => {}
                    Some(Value::String(path)) => paths.push(path.clone()),
                    Some(_) => return None,
                }
            }
            for key in PATCH_KEYS {
                if let Some(Value::String(text)) = arguments.get(*key) {
                    in_patch(text, &mut paths);
                }
            }
        }
        _ => {}
    }
    if paths.iter().any(|path| path.contains(REDACTED)) {
        return None;
    }
    if let Some(workdir) = workdir {
        // What begins with `~` is somebody's home, and whose is the client's to say.
        let is_from_there = |path: &&mut String| !path.starts_with(['/', '~']);
        paths.iter_mut().filter(is_from_there).for_each(|path| *path = format!("{workdir}/{path}"));
    }
    paths.sort();
    paths.dedup();
    let bytes: usize = paths.iter().map(String::len).sum();
    (paths.len() <= MAX_PATHS && bytes <= MAX_PATHS_BYTES).then_some(paths)
}

/// Adds the files of a patch, if the text is one; one more than can be told is enough.
fn in_patch(text: &str, paths: &mut Vec<String>) {
    if !text.trim_start().starts_with(PATCH) {
        return;
    }
    // Lines of a file begin with `+`, `-` or a space.
    let named = |line: &'_ str| {
        PATCH_LINES.iter().find_map(|mark| line.strip_prefix(mark)).map(|path| path.trim().to_owned())
    };
    paths.extend(text.lines().filter_map(named).filter(|path| !path.is_empty()).take(MAX_PATHS + 1));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{json, value::to_raw_value};

    fn named_in(name: &str, input: &Value, workdir: Option<&str>) -> Option<Vec<String>> {
        let input = to_raw_value(input).unwrap();
        of(&ToolCall { id: "i".into(), name: name.into(), input }, workdir)
    }

    fn named(name: &str, input: &Value) -> Option<Vec<String>> {
        named_in(name, input, None)
    }

    fn paths(all: &[&str]) -> Option<Vec<String>> {
        Some(all.iter().map(|path| (*path).to_owned()).collect())
    }

    #[test]
    fn tools_for_files_name_their_file() {
        for (tool, input) in [
            ("Read", json!({"file_path": "/w/a", "limit": 5})),
            ("Edit", json!({"file_path": "/w/a", "old_string": "/w/b", "new_string": "path"})),
            ("NotebookEdit", json!({"notebook_path": "/w/a", "new_source": "x"})),
            ("read", json!({"filePath": "/w/a"})),
            ("read_file", json!({"absolute_path": "/w/a"})),
            ("write_file", json!({"file_path": "/w/a", "content": "{\"path\":\"/w/b\"}"})),
            ("ls", json!({"path": "/w/a", "file_path": null, "filePath": ""})),
        ] {
            assert_eq!(named(tool, &input), paths(&["/w/a"]), "{tool}");
        }
        assert_eq!(named("WebFetch", &json!({"url": "https://x/"})), paths(&[]));
        assert_eq!(
            named("Read", &json!({"file_path": ["/w/a"]})),
            None,
            "nobody knows what it takes that for"
        );
    }

    #[test]
    fn a_patch_names_all_of_its_files() {
        let patch = "*** Begin Patch\n*** Update File: a.rs\n*** Move to: b.rs\n@@\n-*** Add File: no\n *** Add File: no\n+x\n\
                     *** Add File: /w/c \n+*** Delete File: no\n*** Delete File: d\n*** End Patch\n";
        let all = paths(&["/w/c", "a.rs", "b.rs", "d"]);
        assert_eq!(named("apply_patch", &json!(patch)), all, "a text by itself");
        for key in ["input", "patch", "patchText"] {
            assert_eq!(named("apply_patch", &json!({ key: patch })), all);
        }
        assert_eq!(named("say", &json!({"input": "*** Add File: a"})), paths(&[]), "no patch");
    }

    #[test]
    fn a_shell_names_none() {
        for (tool, input) in [
            ("Bash", json!({"command": "cat /w/a", "file_path": "/w/a"})),
            ("other", json!({"command": ["cat"], "path": "/w/a"})),
            ("exec_command", json!({"cmd": "ls", "path": "/w/a"})),
            ("run_shell_command", json!({"path": "/w/a"})),
            ("python", json!({"code": "x", "path": "/w/a"})),
        ] {
            assert_eq!(named(tool, &input), paths(&[]), "{tool}");
        }
    }

    #[test]
    fn what_is_not_at_the_root_begins_in_the_working_directory() {
        let input = json!({"file_path": "src/a", "path": "~/b", "filePath": "/c"});
        assert_eq!(named_in("Read", &input, Some("/w")), paths(&["/c", "/w/src/a", "~/b"]));
        assert_eq!(named("Read", &input), paths(&["/c", "src/a", "~/b"]));
    }

    #[test]
    fn what_cannot_all_be_told_is_not_known() {
        let patch = |count: usize| {
            let files: String = (0..count).map(|n| format!("*** Add File: f{n}\n")).collect();
            json!(format!("{PATCH}\n{files}"))
        };
        assert_eq!(named("apply_patch", &patch(MAX_PATHS)).map(|all| all.len()), Some(MAX_PATHS));
        assert_eq!(named("apply_patch", &patch(MAX_PATHS + 1)), None);
        let long = |bytes: usize| json!({"path": "x".repeat(bytes)});
        assert!(named("ls", &long(MAX_PATHS_BYTES)).is_some());
        assert_eq!(named("ls", &long(MAX_PATHS_BYTES + 1)), None);
        assert_eq!(named_in("ls", &long(MAX_PATHS_BYTES), Some("/w")), None);
        assert_eq!(named("ls", &json!({"path": "/w/[redacted]"})), None);
        let twice = serde_json::value::RawValue::from_string(r#"{"path":"/a","path":"/b"}"#.into()).unwrap();
        assert_eq!(of(&ToolCall { id: "i".into(), name: "ls".into(), input: twice }, None), None);
    }

    proptest! {
        /// Whatever a model sends, it is within the bounds, and no shell's call names a file.
        #[test]
        fn any_arguments_are_bounded(
            key in prop_oneof!["\\PC{0,9}", proptest::sample::select(PATH_KEYS).prop_map(str::to_owned)],
            value in "\\PC*", patch in "(\\*\\*\\* (Begin Patch|Add File: |Move to: )?|\\PC{0,5}|\n)*", is_shell: bool,
        ) {
            let mut input = json!({ key: value, "input": patch });
            if is_shell {
                input["command"] = json!("x");
            }
            for workdir in [None, Some("/w")] {
                let found = named_in("t", &input, workdir).unwrap_or_default();
                prop_assert!(found.len() <= MAX_PATHS);
                prop_assert!(found.iter().map(String::len).sum::<usize>() <= MAX_PATHS_BYTES);
                prop_assert!(!is_shell || found.is_empty());
            }
        }
    }
}
