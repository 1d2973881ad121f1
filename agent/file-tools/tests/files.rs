//! The file tools over real files: what they do, what they refuse, and that bad input meets a sentence.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use proptest::prelude::*;
use ringfence_base::error::chain;
use ringfence_file_tools::{
    Error, Tool,
    workspace::{Access, AllowAll, Gate, Workspace},
};
use serde_json::{Value, json};
use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::Path,
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

fn run_in(dir: &Path, tool: Tool, input: Value) -> Result<String, Error> {
    let mut out = Vec::new();
    tool.run(&input, &Workspace { dir, gate: &AllowAll, deadline: None }, &mut out)?;
    Ok(String::from_utf8_lossy(&out).into_owned())
}

struct Scene(TempDir);

impl Scene {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(self, name: &str, content: impl AsRef<[u8]>) -> Self {
        let path = self.0.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
        self
    }

    fn run(&self, tool: Tool, input: Value) -> Result<String, String> {
        run_in(self.0.path(), tool, input).map_err(|error| chain(&error))
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap()
    }

    fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(self.0.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }
}

#[test]
fn a_file_is_read_whole_and_by_lines() {
    let scene = Scene::new().file("a", "one\ntwo\nthree\nfour").file("none", "").file("unended", "x");
    let read = |input| scene.run(Tool::ReadFile, input);
    assert_eq!(read(json!({"path": "a"})).unwrap(), "one\ntwo\nthree\nfour");
    assert_eq!(read(json!({"path": "a", "offset": 3})).unwrap(), "three\nfour");
    assert_eq!(
        read(json!({"path": "a", "offset": 2, "limit": 2})).unwrap(),
        "two\nthree\n[the file goes on at line 4]"
    );
    assert_eq!(read(json!({"path": "a", "offset": 4, "limit": 9})).unwrap(), "four");
    assert_eq!(read(json!({"path": "none"})).unwrap(), "[empty file]");
    assert!(read(json!({"path": "a", "offset": 5})).unwrap_err().contains("there is no line 5"));
    assert!(read(json!({"path": "a", "offset": 0})).unwrap_err().contains("counted from 1"));
    assert_eq!(read(json!({"path": "unended", "limit": 1})).unwrap(), "x");
}

#[test]
fn lines_longer_than_a_chunk_are_counted_once() {
    let long = "x".repeat(200_000);
    let scene = Scene::new().file("a", format!("{long}\n{long}\nlast"));
    assert_eq!(scene.run(Tool::ReadFile, json!({"path": "a", "offset": 3})).unwrap(), "last");
    let second = scene.run(Tool::ReadFile, json!({"path": "a", "offset": 2, "limit": 1})).unwrap();
    assert_eq!(second, format!("{long}\n[the file goes on at line 3]"));
}

#[test]
fn what_is_no_text_file_is_refused_by_name() {
    let scene = Scene::new().file("bin", b"\x7fELF\0\0");
    let read = |path: &str| scene.run(Tool::ReadFile, json!({"path": path})).unwrap_err();
    assert!(read("bin").ends_with("bin is a binary file of 6 bytes; it is not shown as text"));
    assert!(read(".").contains("is a directory"));
    assert!(read("/dev/zero").contains("is a device"));
    assert!(read("missing").contains("No such file or directory"));
    assert!(read("a\0b").contains("NUL"));
    let long = "x".repeat(5000);
    assert!(read(&long).contains("name too long"));
    let _socket = std::os::unix::net::UnixListener::bind(scene.path("socket")).unwrap();
    assert!(read("socket").contains("is a socket"));
    rustix::fs::mkfifoat(rustix::fs::CWD, scene.path("fifo"), 0o600.into()).unwrap();
    assert!(read("fifo").contains("is a named pipe"));
}

#[test]
fn a_file_is_written_with_its_directories() {
    let scene = Scene::new();
    let said = scene.run(Tool::WriteFile, json!({"path": "a/b/c.txt", "content": "héllo"})).unwrap();
    assert!(said.starts_with("wrote 6 bytes to /") && said.ends_with("a/b/c.txt"));
    assert_eq!(scene.text("a/b/c.txt"), "héllo");
    assert_eq!(fs::read_dir(scene.path("a/b")).unwrap().count(), 1, "nothing else is left there");
    let error = scene.run(Tool::WriteFile, json!({"path": "a", "content": ""})).unwrap_err();
    assert!(error.contains("is a directory"));
    let error = scene.run(Tool::WriteFile, json!({"path": "a/b/c.txt/d", "content": ""})).unwrap_err();
    assert!(error.contains("Not a directory"), "{error}");
    let error = scene.run(Tool::WriteFile, json!({"path": "no/../x", "content": ""})).unwrap_err();
    assert!(error.contains("cannot find"), "{error}");
}

#[test]
fn mode_links_and_other_names_of_a_file_survive() {
    let scene = Scene::new().file("script", "old").file("twin", "old");
    fs::set_permissions(scene.path("script"), fs::Permissions::from_mode(0o750)).unwrap();
    symlink("script", scene.path("link")).unwrap();
    fs::hard_link(scene.path("twin"), scene.path("other")).unwrap();
    let write = |path: &str| scene.run(Tool::WriteFile, json!({"path": path, "content": "new"}));
    write("link").unwrap();
    assert!(fs::symlink_metadata(scene.path("link")).unwrap().is_symlink());
    assert_eq!(scene.text("script"), "new");
    assert_eq!(fs::metadata(scene.path("script")).unwrap().mode() & 0o7777, 0o750);
    assert!(write("twin").unwrap().contains("in place"));
    assert_eq!(scene.text("other"), "new");
    symlink("/nonexistent/target", scene.path("dangling")).unwrap();
    assert!(write("dangling").unwrap_err().contains("symbolic link to nothing"));
}

#[test]
fn a_reader_never_sees_half_a_file() {
    let scene = Scene::new().file("a", "x".repeat(100_000));
    let path = scene.path("a");
    let reader = thread::spawn(move || {
        for _ in 0..300 {
            let text = fs::read(&path).unwrap();
            assert_eq!(text.len(), 100_000);
            assert!(text.iter().all(|byte| *byte == text[0]));
        }
    });
    // As long as it reads, and some times in any case.
    let mut letters = ["y", "x"].iter().cycle();
    for _ in 0..60 {
        let mut write = || {
            let content = letters.next().unwrap().repeat(100_000);
            scene.run(Tool::WriteFile, json!({"path": "a", "content": content})).unwrap();
        };
        write();
        while !reader.is_finished() {
            write();
        }
    }
    reader.join().unwrap();
}

#[test]
fn an_edit_replaces_the_one_place() {
    let scene = Scene::new().file("a", "one two\nthree two\n");
    let edit = |old: &str, new: &str| {
        scene.run(Tool::EditFile, json!({"path": "a", "old_string": old, "new_string": new}))
    };
    assert!(edit("three two", "3").unwrap().contains("at line 2"));
    assert_eq!(scene.text("a"), "one two\n3\n");
    assert!(edit("\n3\n", "").is_ok());
    assert_eq!(scene.text("a"), "one two");
    assert!(edit("zero", "x").unwrap_err().contains("does not occur"));
    assert!(edit("  two ", "x").unwrap_err().contains("without the white space around it"));
    assert!(edit("", "x").unwrap_err().contains("empty"));
    assert!(edit("two", "two").unwrap_err().contains("the same"));
    assert_eq!(scene.text("a"), "one two");
    assert_eq!(scene.names(), ["a"]);
}

#[test]
fn an_edit_that_could_mean_two_places_is_refused() {
    let scene = Scene::new().file("a", "x\ny\nx\n").file("overlap", "aaa").file("crlf", "a\r\nb\r\n");
    let edit = |path: &str, old: &str, all: bool| {
        scene.run(
            Tool::EditFile,
            json!({"path": path, "old_string": old, "new_string": "Z", "replace_all": all}),
        )
    };
    assert!(edit("a", "x", false).unwrap_err().contains("at lines 1, 3;"));
    assert!(edit("overlap", "aa", false).unwrap_err().contains("more than once"));
    assert!(edit("a", "x", true).unwrap().contains("2 times"));
    assert_eq!(scene.text("a"), "Z\ny\nZ\n");
    assert!(edit("crlf", "a\nb", false).unwrap_err().contains("CRLF"));
}

#[test]
fn parallel_edits_of_one_file_are_all_there() {
    let lines: String = (0..40).map(|line| format!("<{line}>\n")).collect();
    let scene = Scene::new().file("a", lines);
    thread::scope(|scope| {
        for line in 0..40 {
            let scene = &scene;
            scope.spawn(move || {
                let input =
                    json!({"path": "a", "old_string": format!("<{line}>"), "new_string": format!("({line})")});
                scene.run(Tool::EditFile, input).unwrap();
            });
        }
    });
    let expected: String = (0..40).map(|line| format!("({line})\n")).collect();
    assert_eq!(scene.text("a"), expected);
}

#[test]
fn a_directory_is_listed_in_order() {
    let scene = Scene::new().file("b.txt", "12345").file("a/x", "").file("odd\nname", "");
    symlink("b.txt", scene.path("c")).unwrap();
    let list = |input| scene.run(Tool::ListDirectory, input);
    let expected = "a/\nb.txt (5 bytes)\nc -> b.txt\nodd\u{fffd}name (0 bytes)\n";
    assert_eq!(list(json!({})).unwrap(), expected);
    assert_eq!(list(Value::Null).unwrap(), expected);
    assert_eq!(list(json!({"path": "a"})).unwrap(), "x (0 bytes)\n");
    fs::create_dir(scene.path("empty")).unwrap();
    assert_eq!(list(json!({"path": "empty"})).unwrap(), "[empty directory]");
    assert!(list(json!({"path": "b.txt"})).unwrap_err().contains("is not a directory"));
    for number in 0..2_100 {
        fs::write(scene.path(&format!("a/{number}")), "").unwrap();
    }
    assert!(list(json!({"path": "a"})).unwrap().ends_with("[and 101 more]"));
}

#[test]
fn a_search_finds_lines_below_a_directory() {
    let scene = Scene::new()
        .file("src/main.rs", "fn main() {\n    let café = 1;\n}\n")
        .file("src/lib.rs", "fn helper() {}\r\n")
        .file("notes.md", "fn in words\n")
        .file(".git/config", "fn hidden\n")
        .file("image", b"fn\0binary");
    symlink("/", scene.path("root")).unwrap();
    let search = |input| scene.run(Tool::Search, input).unwrap();
    assert_eq!(
        search(json!({"pattern": r"^fn \w+\("})),
        "src/lib.rs:1: fn helper() {}\nsrc/main.rs:1: fn main() {\n[1 binary files were left out]"
    );
    assert_eq!(
        search(json!({"pattern": "FN", "glob": "*.md", "ignore_case": true})),
        "notes.md:1: fn in words\n"
    );
    assert_eq!(search(json!({"pattern": "café", "path": "src"})), "main.rs:2:     let café = 1;\n");
    assert_eq!(
        search(json!({"pattern": "café", "path": "src/main.rs"})),
        "src/main.rs:2:     let café = 1;\n"
    );
    assert!(search(json!({"pattern": "nowhere", "glob": "?ib.rs"})).contains("no line matches in 1 files"));
    let few = search(json!({"pattern": "fn", "max_results": 1}));
    assert!(few.starts_with("notes.md:1") && few.contains("stopped after 1 lines"));
}

#[test]
fn bad_patterns_and_bad_input_get_a_sentence() {
    let scene = Scene::new().file("a", "x");
    let search = |input| scene.run(Tool::Search, input).unwrap_err();
    assert!(search(json!({"pattern": "("})).starts_with("`pattern` is not a pattern"));
    assert!(search(json!({"pattern": "((((a{99}){99}){99}){99}){99}"})).starts_with("`pattern` is not"));
    assert!(search(json!({"pattern": "x", "max_results": 0})).contains("from 1 to 2000"));
    assert!(search(json!({"pattern": "x".repeat(20_000)})).contains("10000"));
    assert!(search(json!({})).contains("missing field `pattern`"));
    let read = |input| scene.run(Tool::ReadFile, input).unwrap_err();
    assert!(read(json!({"path": 3})).contains("`path` is not a string"));
    assert!(read(json!({"path": "a", "ofset": 3})).contains("unknown field `ofset`, expected one of"));
    assert!(read(json!([1])).contains("read_file cannot use this input"));
    assert!(read(json!({"path": "a", "offset": -1})).contains("-1"));
}

#[test]
fn a_pattern_that_makes_others_run_away_ends() {
    let scene = Scene::new().file("a", format!("{}b", "a".repeat(50_000)));
    let start = Instant::now();
    let said = scene.run(Tool::Search, json!({"pattern": "^(a+)+$"})).unwrap();
    assert!(said.contains("no line matches"));
    // One that backtracks has years to go.
    assert!(start.elapsed() < Duration::from_secs(300));
}

/// Admits reading below one directory, and writing nowhere.
struct Below(std::path::PathBuf);

impl Gate for Below {
    fn admit(&self, access: Access, path: &Path) -> Result<(), String> {
        if access == Access::Read && path.starts_with(&self.0) { Ok(()) } else { Err("not granted".into()) }
    }
}

#[test]
fn the_gate_is_asked_about_every_path_with_links_resolved() {
    let scene = Scene::new().file("in/a", "secret word\n").file("out/b", "secret word\n");
    symlink("../out/b", scene.path("in/link")).unwrap();
    let gate = Below(fs::canonicalize(scene.path("in")).unwrap());
    let workspace = Workspace { dir: scene.0.path(), gate: &gate, deadline: None };
    let run = |tool: Tool, input: Value| {
        let mut out = Vec::new();
        tool.run(&input, &workspace, &mut out).map(|()| String::from_utf8(out).unwrap())
    };
    assert_eq!(run(Tool::ReadFile, json!({"path": "in/a"})).unwrap(), "secret word\n");
    for path in ["in/link", "in/../out/b", "out/b"] {
        assert!(matches!(run(Tool::ReadFile, json!({"path": path})), Err(Error::Refused { .. })), "{path}");
    }
    for tool in [Tool::WriteFile, Tool::EditFile] {
        let input = match tool {
            Tool::WriteFile => json!({"path": "in/new/x", "content": "x"}),
            _ => json!({"path": "in/a", "old_string": "word", "new_string": "x"}),
        };
        assert!(matches!(run(tool, input), Err(Error::Refused { .. })));
    }
    assert!(!scene.path("in/new").exists());
    assert!(matches!(run(Tool::ListDirectory, json!({})), Err(Error::Refused { .. })));
    assert_eq!(run(Tool::Search, json!({"pattern": "word", "path": "in"})).unwrap(), "a:1: secret word\n");
}

#[test]
fn after_the_deadline_a_tool_gives_up() {
    let scene = Scene::new().file("a", "x\n".repeat(100));
    let workspace = Workspace { dir: scene.0.path(), gate: &AllowAll, deadline: Some(Instant::now()) };
    let mut out = Vec::new();
    assert!(matches!(Tool::ReadFile.run(&json!({"path": "a"}), &workspace, &mut out), Err(Error::TimedOut)));
    Tool::Search.run(&json!({"pattern": "x"}), &workspace, &mut out).unwrap();
    assert!(String::from_utf8(out).unwrap().contains("not complete"));
}

#[test]
fn every_tool_describes_itself() {
    for tool in Tool::ALL {
        assert_eq!(Tool::named(tool.name()), Some(tool));
        let schema = tool.parameters();
        for required in schema["required"].as_array().unwrap() {
            assert!(schema["properties"][required.as_str().unwrap()].is_object());
        }
        // Each property that the schema names is taken, and no other.
        let error = chain(&run_in(Path::new("/"), tool, json!({"no such parameter": 1})).unwrap_err());
        for name in schema["properties"].as_object().unwrap().keys() {
            assert!(error.contains(&format!("`{name}`")), "{error}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn an_edit_is_a_string_replacement(before in "[ab\né]{0,60}", old in "[ab\né]{1,4}", new in "[abc]{0,4}") {
        prop_assume!(old != new);
        let scene = Scene::new().file("a", &before);
        let said = scene.run(
            Tool::EditFile,
            json!({"path": "a", "old_string": old, "new_string": new, "replace_all": true}),
        );
        prop_assert_eq!(said.is_ok(), before.contains(&old));
        prop_assert_eq!(scene.text("a"), before.replace(&old, &new));
    }

    #[test]
    fn no_input_makes_a_tool_panic(text in "\\PC{0,40}", number in any::<i64>(), tool in 0_usize..5) {
        let scene = Scene::new().file("a", "text\n");
        let inputs = [
            json!({"path": text, "offset": number}), json!({"path": "a", "limit": number}), json!(text),
            json!({"pattern": text, "glob": text}), json!({"path": "a", "old_string": text, "new_string": ""}),
        ];
        for input in inputs {
            // A drawn path could be a real one: only what stays in the scene is written.
            if tool != 1 {
                let _ = scene.run(Tool::ALL[tool], input);
            }
        }
    }
}
