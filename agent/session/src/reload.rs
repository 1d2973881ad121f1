//! The rule file, watched: a change that tightens takes effect at once; one that loosens anything waits until a person
//! confirms it, unless only root can have made it.
//!
//! An agent that may write the user's files could otherwise switch off the rule that is in its way.

use super::{
    classify::Operation,
    rules::{self, Action, Rule, Written},
};
use ringfence_wire::mcp::RuleFile;
use std::{
    collections::{BTreeMap, HashMap},
    fs,
    io::Read,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

/// Longest rule file that is read, bytes.
pub const LONGEST: u64 = 1 << 20;

/// What identifies one state of a file.
type Stamp = (i64, i64, u64, u64);

/// A rule file: what of it is in force, and what was last read from it.
#[derive(Debug)]
pub struct Watch {
    file: PathBuf,
    stamp: Option<Stamp>,
    /// The text in force.
    text: String,
    /// The last text that could be read, and whether nobody but root can have written it.
    seen: (String, bool),
}

/// What became of a changed file.
#[derive(Debug)]
pub enum Change {
    /// These rules are in force from now on.
    Taken(Vec<Rule>),
    /// It loosens something: the old rules stay until somebody confirms. The text says what.
    Held(String),
    /// It is again what is in force.
    Back,
    /// It cannot be read; the old rules stay.
    Refused(String),
}

impl Watch {
    /// Watches `file`; `text` is in force, which is the file's or, where there is none, another's.
    ///
    /// # Errors
    /// Where `text` holds no rules.
    pub fn new(file: PathBuf, text: String) -> Result<Self, rules::Error> {
        let stamp = stamp(&file);
        rules::parse(&text)?;
        let trusted = stamp.is_some() && only_roots(&file);
        // Written since it was read: that is seen at the first look.
        let stamp = stamp.filter(|_| read(&file).is_ok_and(|now| now == text));
        Ok(Self { file, stamp, seen: (text.clone(), trusted), text })
    }

    /// The file as it was last read, for the auditor.
    pub fn offer(&self) -> RuleFile {
        let (text, trusted) = self.seen.clone();
        RuleFile { path: self.file.display().to_string(), text, trusted }
    }

    /// Looks at the file; what is new since the last look.
    pub fn look(&mut self) -> Option<Change> {
        let now = stamp(&self.file);
        if now == self.stamp {
            return None;
        }
        self.stamp = now;
        let named = self.file.display().to_string();
        let refused =
            |why: String| Some(Change::Refused(format!("{named}: {why}; the rules that were in force stay")));
        // Asked before it is read: what is written after that is another state of the file.
        let trusted = only_roots(&self.file);
        let text = match read(&self.file) {
            Ok(text) => text,
            Err(why) => return refused(why),
        };
        let rules = match rules::parse(&text) {
            Ok(rules) => rules,
            Err(error) => return refused(error.to_string()),
        };
        self.seen = (text.clone(), trusted);
        if text == self.text {
            return Some(Change::Back);
        }
        if !trusted && let Some(rule) = loosens(&self.text, &text) {
            return Some(Change::Held(self.held(&rule)));
        }
        self.text = text;
        Some(Change::Taken(rules))
    }

    /// Whether this is the file.
    pub fn is_of(&self, path: &str) -> bool {
        path == self.file.display().to_string()
    }

    /// The auditor says what is in force. The rules, where they are others than before.
    ///
    /// # Errors
    /// What is wrong with that text; what was in force stays.
    pub fn ordered(&mut self, text: &str) -> Result<Option<Vec<Rule>>, rules::Error> {
        if text == self.text {
            return Ok(None);
        }
        let rules = rules::parse(text)?;
        text.clone_into(&mut self.text);
        Ok(Some(rules))
    }

    /// The words for a change that waits.
    pub fn held(&self, rule: &str) -> String {
        format!(
            "{} loosens the rule {rule:?}: the old rules stay in force until a person confirms it, by `ringfence mcp rules confirm` or in the dashboard",
            self.file.display()
        )
    }
}

/// Reads a rule file.
///
/// # Errors
/// What the system says, or that it is too long to be one.
pub fn read(file: &Path) -> Result<String, String> {
    let mut text = String::new();
    let opened = fs::File::open(file).map_err(|e| e.to_string())?;
    opened.take(LONGEST + 1).read_to_string(&mut text).map_err(|e| e.to_string())?;
    if text.len() as u64 > LONGEST {
        return Err(format!("longer than {LONGEST} bytes; a rule file holds rules only"));
    }
    Ok(text)
}

fn stamp(file: &Path) -> Option<Stamp> {
    fs::metadata(file).ok().map(|m| (m.mtime(), m.mtime_nsec(), m.len(), m.ino()))
}

/// Whether nobody but root can have written the file, or put another one in its place.
fn only_roots(file: &Path) -> bool {
    let Ok(file) = fs::canonicalize(file) else { return false };
    file.ancestors().all(|part| fs::metadata(part).is_ok_and(|m| m.uid() == 0 && m.mode() & 0o022 == 0))
}

/// Longest path of a rule file that is taken, bytes: the system's own bound.
pub const LONGEST_PATH: usize = 4096;

/// Why a rule file that somebody offers is none that could be read, as far as its size tells: asked before anything is made
/// of it.
pub fn too_long(file: &RuleFile) -> Option<String> {
    if file.path.len() > LONGEST_PATH {
        return Some(format!("its path is longer than {LONGEST_PATH} bytes"));
    }
    (file.text.len() as u64 > LONGEST).then(|| format!("it is longer than {LONGEST} bytes"))
}

/// The first rule that `new` makes looser than `old`, or a word for a text that cannot be compared. `None`: every call
/// is judged at least as strictly as before. Whoever calls it may hold locks that others wait for, and both texts may be
/// anybody's: the time it takes is that of reading them.
pub fn loosens(old: &str, new: &str) -> Option<String> {
    if old == new {
        return None;
    }
    if [old, new].iter().any(|text| text.len() as u64 > LONGEST) {
        return Some("(a text that is too long to be compared)".to_owned());
    }
    match (rules::read(old), rules::read(new)) {
        (Ok(old), Ok(new)) => loosened(&old, &new).map(str::to_owned),
        _ => Some("(a text that cannot be compared)".to_owned()),
    }
}

/// What changed, line by line, as `diff -u` shows it.
pub fn difference(old: &str, new: &str) -> String {
    if [old, new].iter().any(|text| text.len() as u64 > LONGEST) {
        return format!("(longer than {LONGEST} bytes)\n");
    }
    similar::TextDiff::configure()
        .timeout(Duration::from_millis(200))
        .diff_lines(old, new)
        .unified_diff()
        .context_radius(2)
        .header("in force", "waits")
        .to_string()
}

/// Which calls a rule is about, but for their operations and scores.
type Patterns<'a> = (Option<&'a str>, Option<&'a str>);

fn patterns(rule: &Written) -> Patterns<'_> {
    (rule.tool_pattern.as_deref(), rule.server_pattern.as_deref())
}

/// A set of operations, a bit for each. What is none of the known ones is `unknown`.
fn operations(rule: &Written, unknown: u8) -> u8 {
    let bit = |name: &String| Operation::from_name(name).map_or(unknown, |operation| 1 << operation as u8);
    rule.operation_types.as_ref().map_or(EVERY, |names| names.iter().map(bit).fold(0, |all, bit| all | bit))
}

/// Every operation: what a rule is about that names none. The highest bit is that of names that nobody knows: in an old rule
/// they are covered by a rule about every operation only, and in a new one they cover nothing.
const EVERY: u8 = u8::MAX;
const NOBODY_S: u8 = 1 << 7;

/// The first rule of `old` that no rule of `new` covers: as wide in every condition, as strict in its action. As the
/// strictest of all matching rules wins, rules that cover all old ones judge no call more mildly; a change that is no
/// loosening and yet not covered rule by rule counts as one.
fn loosened<'a>(old: &'a [Written], new: &[Written]) -> Option<&'a str> {
    // Of rules about the same calls the lowest score counts: there are no more of them than actions and sets of operations.
    let mut index: HashMap<Patterns<'_>, BTreeMap<(Action, u8), u8>> = HashMap::new();
    for rule in new.iter().filter(|rule| rule.enabled) {
        let alike = index.entry(patterns(rule)).or_default();
        let score = alike.entry((rule.action, operations(rule, 0))).or_insert(u8::MAX);
        *score = rule.min_risk_score.min(*score);
    }
    let covers = |of: Patterns<'_>, old: &Written| {
        let operations = operations(old, NOBODY_S);
        index.get(&of).is_some_and(|alike| {
            alike.iter().any(|((action, about), score)| {
                *action >= old.action && operations & !about == 0 && *score <= old.min_risk_score
            })
        })
    };
    old.iter()
        .filter(|old| old.enabled && old.action > Action::Pass)
        .find(|old| {
            let (tools, servers) = patterns(old);
            // Where a pattern is absent two of these are the same.
            let wider = [(tools, servers), (None, servers), (tools, None), (None, None)];
            !wider.into_iter().any(|of| covers(of, old))
        })
        .map(|old| old.name.as_str())
}

#[cfg(test)]
mod tests {
    use super::{Change, LONGEST, Watch, difference, loosened, loosens};
    use crate::{
        risk,
        rules::{self, Action, MOST_RULES, SHIPPED, Written},
    };
    use proptest::{prelude::Strategy, prop_assert, prop_assert_eq, sample::select};
    use ringfence_wire::mcp::RuleFile;
    use serde_json::json;
    use std::fs;

    #[test]
    fn only_what_covers_every_old_rule_is_no_looser() {
        let old = rules::read(SHIPPED).expect("rules");
        assert_eq!(loosened(&old, &old), None);
        let with = |from: &str, to: &str| {
            let new = rules::read(&SHIPPED.replacen(from, to, 1)).expect("rules");
            loosened(&old, &new).map(str::to_owned)
        };
        assert_eq!(with("action: pause", "action: block"), None);
        assert_eq!(with("min_risk_score: 80", "min_risk_score: 10"), None);
        assert_eq!(with("action: pause", "action: flag"), Some("pause_deletes".into()));
        assert_eq!(with("min_risk_score: 80", "min_risk_score: 90"), Some("block_bulk_destructive".into()));
        assert_eq!(with("\"send_*,post_*\"", "\"send_*\""), Some("flag_external_messages".into()));
        assert_eq!(with("[write, delete, execute]", "[write]"), Some("pause_sql_mutations".into()));
        let off = SHIPPED.replacen("action: pause", "action: pause\n    enabled: false", 1);
        assert_eq!(loosened(&old, &rules::read(&off).expect("rules")), Some("pause_deletes"));
    }

    #[test]
    fn a_changed_file_is_taken_held_or_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("rules.yaml");
        // Others may write it, so that it does not count as root's where root runs the tests.
        let write = |text: &str| {
            fs::write(&file, text).expect("written");
            fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o666)).expect("mode");
        };
        write(SHIPPED);
        let mut watch = Watch::new(file.clone(), SHIPPED.to_owned()).expect("rules");
        assert!(watch.look().is_none());
        write(&format!("{SHIPPED}\n  - {{name: more, tool_pattern: 'x*', action: block}}\n"));
        assert!(matches!(watch.look(), Some(Change::Taken(rules)) if rules.len() == 7));
        assert!(watch.look().is_none());
        let strict = watch.offer();
        write("rules: []");
        assert!(matches!(watch.look(), Some(Change::Held(_))));
        assert_eq!(watch.offer().text, "rules: []");
        assert!(!watch.offer().trusted);
        write(&strict.text);
        assert!(matches!(watch.look(), Some(Change::Back)));
        assert!(watch.is_of(&strict.path) && !watch.is_of("/elsewhere/rules.yaml"));
        let confirmed = watch.ordered("rules: []").expect("rules");
        assert!(confirmed.is_some_and(|rules| rules.is_empty()));
        assert!(watch.ordered("rules: 3").is_err());
        write("rules: [] # the same");
        assert!(matches!(watch.look(), Some(Change::Taken(_))));
        write("rules: 3 # broken");
        assert!(matches!(watch.look(), Some(Change::Refused(_))));
        fs::remove_file(&file).expect("removed");
        assert!(matches!(watch.look(), Some(Change::Refused(_))));
        // One that was written between the reading and the watch is noticed.
        write("rules: []");
        let mut watch = Watch::new(file.clone(), SHIPPED.to_owned()).expect("rules");
        assert!(matches!(watch.look(), Some(Change::Held(_))));
        assert!(watch.look().is_none());
        fs::remove_file(&file).expect("removed");
        // And one that was not there at the start, when it comes.
        let mut watch = Watch::new(file.clone(), SHIPPED.to_owned()).expect("rules");
        assert!(watch.look().is_none());
        write("rules: []");
        assert!(matches!(watch.look(), Some(Change::Held(_))));
    }

    #[test]
    fn only_roots_own_files_in_its_own_directories_are_trusted() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("rules.yaml");
        fs::write(&file, SHIPPED).expect("written");
        assert!(!super::only_roots(&file), "everybody can put another one into the temporary directory");
        assert!(super::only_roots("/etc/passwd".as_ref()));
    }

    /// As the comparison is meant, rule by rule.
    fn loosened_slowly<'a>(old: &'a [Written], new: &[Written]) -> Option<&'a str> {
        let covers = |new: &Written, old: &Written| {
            let wider = |new: &Option<String>, old: &Option<String>| new.is_none() || new == old;
            let operations = match (&new.operation_types, &old.operation_types) {
                (None, _) => true,
                (Some(_), None) => false,
                (Some(new), Some(old)) => old.iter().all(|operation| new.contains(operation)),
            };
            new.enabled
                && new.action >= old.action
                && new.min_risk_score <= old.min_risk_score
                && wider(&new.tool_pattern, &old.tool_pattern)
                && wider(&new.server_pattern, &old.server_pattern)
                && operations
        };
        let held = old.iter().filter(|old| old.enabled && old.action > Action::Pass);
        held.into_iter().find(|old| !new.iter().any(|new| covers(new, old))).map(|old| old.name.as_str())
    }

    #[test]
    fn whatever_the_texts_are_they_are_compared_in_little_time() {
        // Pair by pair it would not end.
        let rule = |n: usize, more: &str| format!("- {{name: r{n}, action: flag{more}}}\n");
        let file = |many: usize, more: &dyn Fn(usize) -> String| {
            (0..many).fold("rules:\n".to_owned(), |text, n| text + &rule(n, &more(n)))
        };
        // As many as fit in the longest file that is read. More than anybody has: not compared, but held.
        let most = file(20_000, &|_| ", tool_pattern: a".into());
        assert!(most.len() < LONGEST as usize);
        let other = file(20_000, &|_| ", tool_pattern: b".into());
        assert_eq!(loosens(&most, &other).as_deref(), Some("(a text that cannot be compared)"));
        // Operations that are named again and again.
        let names = "write".to_owned() + &",read".repeat(180);
        let wide = file(MOST_RULES, &|n| format!(", tool_pattern: t{n}, operation_types: '{names}'"));
        let same = file(MOST_RULES, &|n| {
            format!(", tool_pattern: t{}, operation_types: '{names}'", MOST_RULES - 1 - n)
        });
        assert!(wide.len() < LONGEST as usize && wide.len() > LONGEST as usize * 3 / 4);
        assert_eq!(loosens(&wide, &same), None, "the order of rules is nothing");
        assert_eq!(loosens(&wide, &same.replacen("flag", "pass", 1)).as_deref(), Some("r999"));
        // Lines, all of them others.
        let lines = |digit: &str| digit.to_owned() + &format!("\n{digit}").repeat((LONGEST as usize - 1) / 2);
        assert!(!difference(&lines("1"), &lines("2")).is_empty());
    }

    #[test]
    fn what_is_longer_than_any_rule_file_is_neither_read_nor_compared() {
        let long = format!("rules: []{}", " ".repeat(LONGEST as usize));
        assert!(loosens("rules: []", &long).is_some_and(|why| why.contains("too long")));
        assert!(loosens(&long, "rules: []").is_some());
        assert!(difference(&long, "rules: []").len() < 100);
        let offer = |path: &str, text: &str| {
            super::too_long(&RuleFile { path: path.into(), text: text.into(), trusted: false })
        };
        assert_eq!(offer("/rules.yaml", &long[..LONGEST as usize]), None, "the control");
        assert!(offer("/rules.yaml", &long).is_some_and(|why| why.contains("1048576")));
        assert!(offer(&"x".repeat(5000), "rules: []").is_some_and(|why| why.contains("path")));
    }

    #[test]
    fn operations_that_nobody_knows_are_covered_by_all_and_cover_nothing() {
        let file = |operations: &str| format!("rules: [{{name: a, action: flag{operations}}}]");
        let [every, odd, read] = ["", ", operation_types: [fly]", ", operation_types: [read]"].map(file);
        assert_eq!(loosens(&odd, &every), None);
        for (old, new) in [(&every, &odd), (&read, &odd), (&odd, &read), (&odd, &(odd.clone() + " "))] {
            assert_eq!(loosens(old, new).as_deref(), Some("a"), "{old} {new}");
        }
        assert_eq!(loosens(&odd, &odd), None, "nothing changed");
    }

    fn rule() -> impl Strategy<Value = String> {
        let maybe = |values: &'static [&'static str]| proptest::option::of(select(values));
        (
            maybe(&["delete_*", "*_x", "read_*,delete_*", "*"]),
            maybe(&["fs", "db*"]),
            proptest::option::of(proptest::sample::subsequence(vec!["read", "write", "delete"], 1..3)),
            select(&[0u8, 20, 50, 90][..]),
            select(&["flag", "pause", "block"][..]),
            proptest::bool::weighted(0.9),
        )
            .prop_map(|(tools, servers, operations, score, action, enabled)| {
                let mut text = format!("action: {action}, min_risk_score: {score}, enabled: {enabled}");
                for (key, value) in [("tool_pattern", tools), ("server_pattern", servers)] {
                    text.extend(value.map(|value| format!(", {key}: '{value}'")));
                }
                text.extend(operations.map(|list| format!(", operation_types: [{}]", list.join(", "))));
                text
            })
    }

    fn file() -> impl Strategy<Value = String> {
        proptest::collection::vec(rule(), 0..4).prop_map(|rules| {
            let named = rules.iter().enumerate().map(|(n, rule)| format!("  - {{name: r{n}, {rule}}}\n"));
            if rules.is_empty() {
                "rules: []".to_owned()
            } else {
                "rules:\n".to_owned() + &named.collect::<String>()
            }
        })
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(2000))]
        #[test]
        fn the_quick_comparison_says_what_the_plain_one_says(old in file(), new in file()) {
            let (old, new) = (rules::read(&old).expect("rules"), rules::read(&new).expect("rules"));
            prop_assert_eq!(loosened(&old, &new), loosened_slowly(&old, &new));
        }

        #[test]
        fn what_loosens_nothing_judges_no_call_more_mildly(old in file(), new in file()) {
            if loosens(&old, &new).is_none() {
                let (old, new) = (rules::parse(&old).expect("rules"), rules::parse(&new).expect("rules"));
                for server in ["fs", "db1", "other"] {
                    for tool in ["read_x", "delete_x", "delete_it", "write_x", "odd"] {
                        for arguments in [json!({}), json!({"sql": "DELETE FROM t"}), json!({"password": 1})] {
                            let risk = risk::assess(tool, &arguments, false);
                            let action = |rules| rules::judge(rules, server, tool, &risk).action;
                            prop_assert!(action(&new) >= action(&old), "{server} {tool} {arguments}");
                        }
                    }
                }
            }
        }
    }
}
