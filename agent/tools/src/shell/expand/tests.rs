//! Words over a small tree: what they come to, and what a glob may look at.

use super::*;
use crate::shell::script;
use std::{ffi::OsStr, os::unix::fs::symlink, time::Duration};

/// Grants everything but what lies at or below some directories.
struct Except(Vec<PathBuf>);

impl Except {
    fn has(&self, dir: &Path) -> bool {
        !self.0.iter().any(|except| dir.starts_with(except))
    }
}

impl Listing for Except {
    type Denied = PathBuf;

    fn check_named(&self, dir: &Path) -> Result<(), PathBuf> {
        if self.has(dir) { Ok(()) } else { Err(dir.to_owned()) }
    }

    fn may_list(&self, dir: &Path) -> bool {
        self.has(dir)
    }
}

struct Tree {
    _kept: tempfile::TempDir,
    dir: PathBuf,
    environment: Environment,
}

impl Tree {
    fn new() -> Self {
        let kept = tempfile::tempdir().unwrap();
        let dir = kept.path().canonicalize().unwrap();
        for sub in ["src/deep", "docs", "secret", ".hidden"] {
            fs::create_dir_all(dir.join(sub)).unwrap();
        }
        for file in [
            "a.rs",
            "b.rs",
            "B.rs",
            "c d.txt",
            "[x]",
            "src/m.rs",
            "src/deep/n.rs",
            "docs/o.rs",
            "secret/key.rs",
            ".dot",
        ] {
            fs::write(dir.join(file), "").unwrap();
        }
        fs::write(dir.join(OsStr::from_bytes(b"odd\xff.bin")), "").unwrap();
        symlink(dir.join("secret"), dir.join("docs/way")).unwrap();
        let host = [("HOME", "/home/x y"), ("LANG", "*.rs"), ("TZ", ""), ("SECRET", "s")];
        let environment =
            Environment::new(host.into_iter().map(|(n, v)| (n.into(), v.into())), OsStr::new("/bin"));
        Self { _kept: kept, dir, environment }
    }

    fn words(&self, text: &str, except: &[&str]) -> Result<Vec<OsString>, ExpandError<PathBuf>> {
        let script = script::parse(&format!("echo {text}")).unwrap();
        let listing = Except(except.iter().map(|e| self.dir.join(e)).collect());
        let deadline = Instant::now() + Duration::from_secs(60);
        let mut expander = Expander::new(&self.environment, &self.dir, &listing, deadline);
        let mut out = Vec::new();
        for word in &script.pipelines[0].commands[0].words[1..] {
            expander.word(word, &mut out)?;
        }
        Ok(out)
    }

    fn expand(&self, text: &str) -> Vec<String> {
        let words = self.words(text, &[]).unwrap();
        words.iter().map(|w| w.to_string_lossy().into_owned()).collect()
    }
}

#[test]
fn globs_are_sorted_and_stay_themselves_where_nothing_matches() {
    let tree = Tree::new();
    assert_eq!(tree.expand("*.rs"), ["B.rs", "a.rs", "b.rs"]);
    assert_eq!(tree.expand("*.none x?"), ["*.none", "x?"]);
    assert_eq!(tree.expand("'*.rs' \\*.rs \"*\".rs"), ["*.rs", "*.rs", "*.rs"]);
    assert_eq!(tree.expand("'c d'*"), ["c d.txt"]);
    assert_eq!(tree.expand("\\[x] [[]x]"), ["[x]", "[x]"]);
    assert_eq!(tree.expand(".d* .h*/"), [".dot", ".hidden/"]);
    assert_eq!(tree.expand("odd*"), ["odd\u{fffd}.bin"]);
    assert_eq!(tree.expand("s*/*.rs"), ["secret/key.rs", "src/m.rs"]);
    assert_eq!(tree.expand("*/deep/*.rs"), ["src/deep/n.rs"]);
    assert_eq!(tree.expand("*/m.rs ./src//m* src/../a*"), ["src/m.rs", "./src//m.rs", "src/../a.rs"]);
    assert_eq!(tree.expand("*/"), ["docs/", "secret/", "src/"]);
    let absolute = tree.dir.join("a.rs").to_string_lossy().into_owned();
    assert_eq!(tree.expand(&format!("{}/a*", tree.dir.display())), [absolute]);
}

#[test]
fn variables_are_split_unless_they_are_quoted() {
    let tree = Tree::new();
    assert_eq!(tree.expand("$HOME"), ["/home/x", "y"]);
    assert_eq!(tree.expand("\"$HOME\""), ["/home/x y"]);
    assert_eq!(tree.expand("a$HOME/b"), ["a/home/x", "y/b"]);
    assert_eq!(tree.expand("$TZ \"$TZ\" a$TZ"), ["", "a"]);
    assert_eq!(tree.expand("$LANG"), ["B.rs", "a.rs", "b.rs"]);
    assert_eq!(tree.expand("\"$LANG\""), ["*.rs"]);
    let refused = tree.words("$SECRET", &[]).unwrap_err();
    assert!(refused.to_string().contains("$SECRET is refused: only HOME, LANG"), "{refused}");
}

#[test]
fn a_glob_looks_at_nothing_that_may_not_be_read() {
    let tree = Tree::new();
    let words = |text: &str, except: &[&str]| tree.words(text, except);
    assert!(
        matches!(words("secret/*", &["secret"]), Err(ExpandError::Denied(dir)) if dir == tree.dir.join("secret"))
    );
    assert!(matches!(words("docs/way/*", &["secret"]), Err(ExpandError::Denied(_))));
    assert!(matches!(words("src/../secret/*", &["secret"]), Err(ExpandError::Denied(_))));
    assert_eq!(words("*/*.rs", &["secret"]).unwrap(), ["docs/o.rs", "src/m.rs"]);
    assert_eq!(words("*/way/key*", &["secret"]).unwrap(), ["*/way/key*"]);
    assert_eq!(words("*/way/key.rs", &["secret"]).unwrap(), ["*/way/key.rs"], "not even whether it is there");
    assert_eq!(words("*/way/key.rs", &[]).unwrap(), ["docs/way/key.rs"]);
    assert_eq!(words("/proc/self/e*", &[]).unwrap(), ["/proc/self/e*"]);
}

#[test]
fn too_many_names_are_an_error() {
    let tree = Tree::new();
    let many = "* ".repeat(16_000);
    assert!(matches!(tree.words(&many, &[]), Err(ExpandError::TooMuch)));
}

#[test]
fn looking_ends_with_the_calls_time() {
    let tree = Tree::new();
    let (listing, script) = (Except(vec![]), script::parse("echo *").unwrap());
    let mut expander = Expander::new(&tree.environment, &tree.dir, &listing, Instant::now());
    let word = &script.pipelines[0].commands[0].words[1];
    assert!(matches!(expander.word(word, &mut vec![]), Err(ExpandError::TimedOut)));
}
